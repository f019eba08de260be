//! `weft nfs exports`, `clients` and `status`: what the gateways of a cluster on this machine say.

use crate::gateway_state::{Client, Export, State, ask};
use crate::time_text::duration;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::PathBuf;
use weft_cli_common::launch::{CLUSTER_FILE, is_elsewhere};
use weft_cli_common::{Reported, output, size};
use weft_server::ClusterConfig;
use weft_server::config::Member;

/// See [`super::Command::Exports`], `Clients` and `Status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster's directory, as given to `weft up`.
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    dir: Option<PathBuf>,
    /// The cluster file.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A gateway of the cluster file.
struct Row {
    name: String,
    address: String,
    /// Why there is no state.
    lacks: &'static str,
    state: Option<State>,
}

const ELSEWHERE: &str = "on another machine";

/// Asks all gateways. Those of other machines cannot be asked.
fn rows(args: &Args) -> Result<Vec<Row>> {
    let path = match (&args.config, &args.dir) {
        (Some(config), _) => config.clone(),
        (None, Some(dir)) => dir.join(CLUSTER_FILE),
        (None, None) => bail!("give --dir or --config"),
    };
    let config = ClusterConfig::load(&path)?;
    if config.gateways.is_empty() {
        bail!("{} has no [[gateway]]; see `weft help nfs`", path.display());
    }
    let row = |gateway| {
        let member = Member::Gateway(gateway);
        let state = ask(&config.resolve(&gateway.directory)).with_context(|| gateway.name.clone())?;
        let lacks = if is_elsewhere(member) { ELSEWHERE } else { "does not run" };
        Ok(Row { name: gateway.name.clone(), address: gateway.addresses.join(", "), lacks, state })
    };
    config.gateways.iter().map(row).collect()
}

/// Fails if a gateway of this machine does not run.
fn check(rows: &[Row]) -> Result<()> {
    let silent = rows.iter().filter(|row| row.state.is_none() && row.lacks != ELSEWHERE);
    let silent: Vec<_> = silent.map(|row| row.name.as_str()).collect();
    if silent.is_empty() {
        return Ok(());
    }
    eprintln!("weft: not running: {}; start with `weft up`, or `weft serve --name NAME`", silent.join(", "));
    Err(Reported.into())
}

/// Runs `weft nfs exports`.
pub fn exports(args: &Args) -> Result<()> {
    let rows = rows(args)?;
    if args.json {
        let values = rows.iter().map(|row| {
            let state = row.state.as_ref();
            json!({
                "gateway": row.name,
                "answers": state.is_some(),
                "exports": state.map(|state| &state.exports),
                "wrong_file": state.and_then(|state| state.wrong_file.as_ref()),
            })
        });
        output::print_json(&values.collect::<Vec<_>>())?;
        return check(&rows);
    }
    let mut table =
        output::table(&["path", "clients", "access", "squash", "anonymous", "ports", "gateways"], &[]);
    for (export, gateways) in grouped(&rows) {
        table.add_row([
            output::visible(&export.path),
            export.clients.join(", "),
            export.access.clone(),
            export.squash.clone(),
            format!("{}:{}", export.anonymous_uid, export.anonymous_gid),
            if export.insecure_ports { "any".into() } else { "below 1024".into() },
            gateways.join(", "),
        ]);
    }
    output::print_table(&table)?;
    print_wrong_files(&rows)?;
    check(&rows)
}

/// Each export once, with the gateways that have it.
fn grouped(rows: &[Row]) -> Vec<(&Export, Vec<&str>)> {
    let mut groups: Vec<(&Export, Vec<&str>)> = Vec::new();
    for row in rows {
        for export in row.state.iter().flat_map(|state| &state.exports) {
            match groups.iter_mut().find(|(other, _)| *other == export) {
                Some((_, gateways)) => gateways.push(&row.name),
                None => groups.push((export, vec![&row.name])),
            }
        }
    }
    groups
}

fn print_wrong_files(rows: &[Row]) -> Result<()> {
    for row in rows {
        if let Some(wrong) = row.state.as_ref().and_then(|state| state.wrong_file.as_ref()) {
            let name = &row.name;
            output::print_line(format!(
                "{name} has the exports of before, since the cluster file is wrong: {wrong}"
            ))?;
        }
    }
    Ok(())
}

/// Runs `weft nfs clients`.
pub fn clients(args: &Args) -> Result<()> {
    let rows = rows(args)?;
    if args.json {
        let values = rows.iter().map(|row| {
            let state = row.state.as_ref();
            json!({
                "gateway": row.name,
                "answers": state.is_some(),
                "clients": state.map(|state| &state.clients),
            })
        });
        output::print_json(&values.collect::<Vec<_>>())?;
        return check(&rows);
    }
    let mut table = output::table(&["gateway", "client", "connections", "transport", "mounts"], &[2]);
    for row in &rows {
        for client in row.state.iter().flat_map(|state| &state.clients) {
            table.add_row([
                row.name.clone(),
                client.address.clone(),
                client.connections.to_string(),
                transport_of(client).into(),
                output::visible(&client.mounts.join(", ")),
            ]);
        }
    }
    output::print_table(&table)?;
    check(&rows)
}

/// What carries the calls of a client.
fn transport_of(client: &Client) -> &'static str {
    match (client.connections - client.rdma_connections, client.rdma_connections) {
        (0, 0) => "",
        (_, 0) => "tcp",
        (0, _) => "rdma",
        _ => "tcp, rdma",
    }
}

/// Runs `weft nfs status`.
pub fn status(args: &Args) -> Result<()> {
    let rows = rows(args)?;
    if args.json {
        output::print_json(&rows.iter().map(status_json).collect::<Vec<_>>())?;
        return check(&rows);
    }
    let headings = [
        "gateway",
        "address",
        "process",
        "up",
        "clients",
        "connections",
        "calls",
        "read",
        "written",
        "open files",
        "under way",
        "refused",
    ];
    let mut table = output::table(&headings, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    for row in &rows {
        let Some(state) = &row.state else {
            table.add_row([row.name.as_str(), &row.address, row.lacks]);
            continue;
        };
        let counts = &state.counts;
        let over_rdma = state.rdma_addresses.iter().map(|address| format!("{address} (rdma)"));
        let addresses: Vec<_> = std::iter::once(row.address.clone()).chain(over_rdma).collect();
        table.add_row([
            row.name.clone(),
            addresses.join(", "),
            state.pid.to_string(),
            duration(state.uptime_ms),
            state.clients.len().to_string(),
            state.clients.iter().map(|client| client.connections).sum::<usize>().to_string(),
            counts.calls.to_string(),
            size::format_bytes(counts.read_bytes),
            size::format_bytes(counts.written_bytes),
            counts.open_inodes.to_string(),
            counts.under_way.to_string(),
            counts.refused.to_string(),
        ]);
    }
    output::print_table(&table)?;
    for row in &rows {
        for lack in row.state.iter().flat_map(|state| &state.rdma_lacks) {
            output::print_line(format!("{} does not serve NFS over RDMA at {lack}", row.name))?;
        }
    }
    print_wrong_files(&rows)?;
    check(&rows)
}

fn status_json(row: &Row) -> Value {
    let mut value = json!({
        "gateway": row.name,
        "address": row.address,
        "answers": row.state.is_some(),
    });
    let state =
        row.state.as_ref().map(|state| serde_json::to_value(state).expect("it is made of JSON values"));
    if let (Value::Object(value), Some(Value::Object(state))) = (&mut value, state) {
        value.extend(state.into_iter().filter(|(key, _)| key != "name"));
    }
    value
}
