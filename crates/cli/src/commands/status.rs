//! `weft status`

use crate::adapters;
use crate::exit::Failures;
use crate::gateway_state::GATEWAY_PROGRAM;
use crate::hosts;
use crate::load::shared_disks;
use crate::load::{clients_of, clock_offset_s, user_of};
use crate::time_text::duration;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use weft_cli_common::connections::{ConnectArgs, Connections, transport_of};
use weft_cli_common::place::WeftPath;
use weft_cli_common::{output, size};
use weft_wire::Op;
use weft_wire::limits::CLOCK_SKEW_S_MAX;
use weft_wire::messages::{ClientInfo, ClientUse, Gauge, RdmaAdapter, RdmaStatus, StatusReply, Time};

/// Shows the servers of a file system: role, address, load, memory, space, and the transport to each from
/// here.
///
/// It names the servers whose clocks differ by two seconds or more from the clock of this host.
///
/// It names the NFS gateways that are connected (`weft nfs status` says more of them).
///
/// With --verbose it also shows processor time, memory, durability and disk of each server, the RDMA adapters in
/// use, here and on the servers, and why RDMA is not used. With --clients it lists the clients of each server,
/// their users, how they are connected, and how much they have read and written.
///
/// With --dir it shows the processes of a cluster on this machine: which servers run, as which process, since
/// when, and how often each was restarted. This needs no server and no key. Of a cluster that `weft up --hosts`
/// started it shows those on all hosts. The exit code is 1 if one of the servers does not run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL", required_unless_present = "dir")]
    url: Option<String>,
    /// Show the server processes of the cluster in this directory instead.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["clients", "operations", "verbose"])]
    dir: Option<PathBuf>,
    /// List the clients of each server.
    #[arg(long)]
    clients: bool,
    /// Show how many operations each server and its RDMA adapters have done, and the server's gauges.
    #[arg(long)]
    operations: bool,
    /// Show more of each server, the RDMA adapters, and why RDMA is not used.
    #[arg(short, long)]
    verbose: bool,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A smaller difference of two clocks is not shown.
const OFFSET_SHOWN_S: f64 = 2.0;

/// A server and its reply.
struct Row {
    name: String,
    address: String,
    transport: String,
    /// Why this process does not reach it by RDMA.
    why_not_rdma: Option<String>,
    status: Option<StatusReply>,
}

/// Shows the servers.
pub fn run(args: Args) -> Result<()> {
    if let Some(dir) = &args.dir {
        if let Some(record) = hosts::Record::load(dir)? {
            return super::processes::run_on_hosts(&record, args.json);
        }
        return super::processes::run(dir, args.json);
    }
    let url = args.url.as_deref().expect("the parser wants one of both");
    let place = WeftPath::from_argument(url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let mut failures = Failures::default();
    let mut rows = Vec::new();
    let asked_us = weft_host::unix_us();
    let answers = client.server_status(true);
    let asked_us = (asked_us, weft_host::unix_us());
    for (server, answer) in answers {
        let transport = transport_of(&client, &server.name);
        let status = failures.ok(answer);
        let address = server.address().to_string();
        rows.push(Row { name: server.name, address, transport, why_not_rdma: None, status });
    }
    let (rdma, transports) = (client.rdma_status(), client.transports());
    for row in &mut rows {
        let used = transports.iter().find(|used| used.server == row.name);
        row.why_not_rdma = used.and_then(|used| used.why_not_rdma.clone());
    }
    if args.json {
        let servers: Vec<_> = rows.iter().map(as_json).collect();
        let rdma = adapters::as_json(&rdma);
        let gateways: Vec<_> = gateways_of(&rows).iter().map(gateway_json).collect();
        let all = json!({ "url": place.url, "servers": servers, "gateways": gateways, "rdma": rdma });
        output::print_json(&all)?;
        return failures.result();
    }
    let disks = rows.iter().filter_map(|row| Some((&*row.name, row.status.as_ref()?.disk_id.0)));
    print_servers(&rows, &shared_disks(disks), args.verbose)?;
    print_clocks(&rows, asked_us)?;
    print_gateways(&rows)?;
    if args.verbose {
        adapters::print(&rdma, &transports)?;
        print_reasons(&rows)?;
    } else if rows.iter().any(|row| row.transport.contains(" (")) {
        output::print_line("a faster transport to some servers cannot be used; weft status -v says why")?;
    }
    print_scrubs(&rows)?;
    if args.operations {
        print_operations(&rows)?;
    }
    if args.clients {
        print_clients(&rows)?;
    }
    failures.result()
}

fn print_servers(rows: &[Row], disks: &HashMap<String, String>, verbose: bool) -> Result<()> {
    let mut headings =
        vec!["server", "role", "address", "reached by", "up", "clients", "active", "free", "of"];
    if verbose {
        headings.extend(["cpu", "memory", "sync", "disk", "rdma"]);
    }
    let mut table = output::table(&headings, &[4, 5, 6, 7, 8]);
    for row in rows {
        let Some(status) = &row.status else {
            table.add_row([row.name.as_str(), "", &row.address, "does not answer"]);
            continue;
        };
        // A disk that servers share is shown with the first of them.
        let (free, of) = match disks.get(&row.name) {
            Some(first) => (String::new(), format!("on {first}'s")),
            None => (size::format_bytes(status.free_bytes), size::format_bytes(status.space_bytes)),
        };
        // What it is, without why it is not another one.
        let transport = row.transport.split(" (").next().unwrap_or("").to_owned();
        let mut cells = vec![
            row.name.clone(),
            status.role.clone(),
            row.address.clone(),
            if verbose { row.transport.clone() } else { transport },
            duration(status.uptime_ms),
            status.clients.to_string(),
            status.active_requests.to_string(),
            free,
            of,
        ];
        if verbose {
            cells.extend([
                format!("{:.1} s", status.cpu_ms as f64 / 1e3),
                size::format_bytes(status.memory_bytes),
                status.sync_mode.clone(),
                status.disk.clone(),
                rdma_text(&status.rdma),
            ]);
        }
        table.add_row(cells);
    }
    output::print_table(&table)?;
    let slow = rows.iter().filter_map(|row| {
        let gauges = &row.status.as_ref()?.gauges;
        let slow = gauges.iter().find(|gauge| gauge.name == "slow_requests" && gauge.value > 0)?;
        Some(format!("{} {}", row.name, slow.value))
    });
    let slow: Vec<_> = slow.collect();
    if !slow.is_empty() {
        let what = "the servers' logs say where the time went (weft help logs)";
        output::print_line(format!("slow requests: {}; {what}", slow.join(", ")))?;
    }
    Ok(())
}

/// Names the servers whose clocks differ from the clock of this host.
fn print_clocks(rows: &[Row], asked_us: (u64, u64)) -> Result<()> {
    for row in rows {
        let offset = row.status.as_ref().and_then(|status| clock_offset_s(asked_us, status));
        let Some(offset) = offset.filter(|offset| offset.abs() >= OFFSET_SHOWN_S) else { continue };
        let time = duration((offset.abs() * 1e3) as u64);
        let side = if offset > 0.0 { "ahead of" } else { "behind" };
        let bound = CLOCK_SKEW_S_MAX / 3600;
        output::print_line(format!(
            "the clock of {} is {time} {side} the clock of this host: correct it; beyond {bound} hours files cannot be used",
            row.name
        ))?;
    }
    Ok(())
}

/// The NFS gateways, as they name themselves: name, host, process.
fn gateways_of(rows: &[Row]) -> BTreeSet<(&str, &str, u32)> {
    let clients = rows.iter().filter_map(|row| row.status.as_ref()).flat_map(|status| &status.client_list);
    let gateways = clients.filter_map(|client| {
        let name = client.program.strip_prefix(GATEWAY_PROGRAM)?;
        Some((name, client.host.as_str(), client.process_id))
    });
    gateways.collect()
}

fn print_gateways(rows: &[Row]) -> Result<()> {
    let gateways = gateways_of(rows);
    if gateways.is_empty() {
        return Ok(());
    }
    let gateway = |(name, host, pid): &(&str, &str, u32)| {
        format!("{} on {} (process {pid})", output::visible(name), output::visible(host))
    };
    let gateways: Vec<_> = gateways.iter().map(gateway).collect();
    output::print_line(format!("NFS gateways: {}", gateways.join(", ")))
}

fn gateway_json((name, host, pid): &(&str, &str, u32)) -> Value {
    json!({ "name": name, "host": host, "pid": pid })
}

/// The adapters: name, link layer, and how many receives are promised to clients.
fn rdma_text(rdma: &RdmaStatus) -> String {
    let adapter = |adapter: &RdmaAdapter| {
        let count =
            |name| adapter.counts.iter().find(|count| count.name == name).map_or(0, |count| count.value);
        let (promised, receives) = (count("promised_receives"), count("receives"));
        format!("{} ({}), {promised} of {receives} receives promised", adapter.name, adapter.link_layer)
    };
    match rdma.adapters.as_slice() {
        [] => "no".into(),
        adapters => adapters.iter().map(adapter).collect::<Vec<_>>().join(", "),
    }
}

/// Prints why RDMA is not used, or not everywhere: each reason once, with its servers.
fn print_reasons(rows: &[Row]) -> Result<()> {
    let mut groups: Vec<(&RdmaStatus, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(rdma) =
            row.status.as_ref().map(|status| &status.rdma).filter(|rdma| !rdma.reason.is_empty())
        else {
            continue;
        };
        match groups.iter_mut().find(|(other, _)| other.reason == rdma.reason) {
            Some((_, names)) => names.push(&row.name),
            None => groups.push((rdma, vec![&row.name])),
        }
    }
    for (rdma, names) in groups {
        let used = if rdma.addresses.is_empty() { "not used" } else { "used in part" };
        output::print_line(format!("RDMA is {used} by {}: {}", names.join(", "), rdma.reason))?;
    }
    Ok(())
}

/// Prints known damage to data, and when data was last scrubbed.
fn print_scrubs(rows: &[Row]) -> Result<()> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(status) = row.status.as_ref().filter(|status| status.role == "io") else { continue };
        let gauge =
            |name| status.gauges.iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value);
        let wrong = gauge("sums_wrong_blocks").max(gauge("scrub_found"));
        if wrong > 0 {
            let name = &row.name;
            output::print_line(format!(
                "DAMAGED DATA on {name}: {wrong} blocks; weft scrub lists the files"
            ))?;
        }
        if let lost @ 1.. = gauge("lost_files") {
            let files = if lost == 1 { "1 file has".into() } else { format!("{lost} files have") };
            output::print_line(format!(
                "LOST DATA: {files} lost data on {}; weft fsck lists them",
                row.name
            ))?;
        }
        let last = match gauge("scrub_finished_s") {
            0 => "never".to_string(),
            seconds => output::time_text(&Time { seconds: seconds as i64, nanoseconds: 0 }, false),
        };
        let now = if gauge("scrub_is_running") > 0 { ", and is now" } else { "" };
        let text = format!("{last}{now}");
        match groups.iter_mut().find(|(other, _)| *other == text) {
            Some((_, names)) => names.push(&row.name),
            None => groups.push((text, vec![&row.name])),
        }
    }
    for (text, names) in groups {
        output::print_line(format!("data last scrubbed on {}: {text}", names.join(", ")))?;
    }
    Ok(())
}

fn print_operations(rows: &[Row]) -> Result<()> {
    let mut table = output::table(&["server", "operation", "count", "errors", "bytes"], &[2, 3, 4]);
    for row in rows {
        let Some(status) = &row.status else { continue };
        for op in &status.operations {
            let bytes = if op.bytes > 0 { size::format_bytes(op.bytes) } else { String::new() };
            let (count, errors) = (op.count.to_string(), op.errors.to_string());
            table.add_row([row.name.clone(), op_name(op.op), count, errors, bytes]);
        }
        for gauge in &status.gauges {
            table.add_row([row.name.clone(), gauge.name.clone(), gauge.value.to_string()]);
        }
        for adapter in &status.rdma.adapters {
            for count in &adapter.counts {
                let name = format!("{} {}", adapter.name, count.name);
                table.add_row([row.name.clone(), name, count.value.to_string()]);
            }
        }
    }
    output::print_line("")?;
    output::print_table(&table)
}

fn print_clients(rows: &[Row]) -> Result<()> {
    let headings = [
        "server",
        "host",
        "program",
        "user",
        "process",
        "transport",
        "connections",
        "requests",
        "read",
        "written",
    ];
    let mut table = output::table(&headings, &[4, 6, 7, 8, 9]);
    for row in rows {
        for (client, used) in row.status.iter().flat_map(clients_of) {
            table.add_row([
                row.name.clone(),
                output::visible(&client.host),
                output::visible(&client.program),
                user_of(&client.program, &used),
                client.process_id.to_string(),
                output::visible(&client.transport),
                client.connections.to_string(),
                client.requests.to_string(),
                size::format_bytes(used.read_bytes),
                size::format_bytes(used.written_bytes),
            ]);
        }
    }
    output::print_line("")?;
    output::print_table(&table)
}

fn as_json(row: &Row) -> Value {
    let mut value = json!({
        "name": row.name,
        "address": row.address,
        "answers": row.status.is_some(),
        "why_not_rdma": row.why_not_rdma,
    });
    let Some(status) = &row.status else { return value };
    let operations = status.operations.iter().map(|op| {
        json!({ "operation": op_name(op.op), "count": op.count, "errors": op.errors, "bytes": op.bytes })
    });
    let more = json!({
        "role": status.role,
        "id": status.id,
        "version": status.version,
        "pid": status.process_id,
        "transport": row.transport,
        "uptime_ms": status.uptime_ms,
        "cpu_ms": status.cpu_ms,
        "memory_bytes": status.memory_bytes,
        "directory": status.directory,
        "space_bytes": status.space_bytes,
        "free_bytes": status.free_bytes,
        "disk": status.disk,
        "sync": status.sync_mode,
        "active_requests": status.active_requests,
        "clients": status.clients,
        "client_list": clients_of(status).map(client_json).collect::<Vec<_>>(),
        "operations": operations.collect::<Vec<_>>(),
        "gauges": gauges_json(&status.gauges),
        "rdma": rdma_json(&status.rdma),
    });
    let (Value::Object(value_map), Value::Object(more)) = (&mut value, more) else {
        unreachable!("both are objects")
    };
    value_map.extend(more);
    value
}

fn gauges_json(gauges: &[Gauge]) -> Value {
    let gauges = gauges.iter().map(|gauge| (gauge.name.clone(), Value::from(gauge.value)));
    Value::Object(gauges.collect())
}

fn rdma_json(rdma: &RdmaStatus) -> Value {
    let adapter = |adapter: &RdmaAdapter| {
        json!({
            "name": adapter.name,
            "link_layer": adapter.link_layer,
            "counts": gauges_json(&adapter.counts),
        })
    };
    json!({
        "used": !rdma.addresses.is_empty(),
        "addresses": rdma.addresses,
        "reason": rdma.reason,
        "adapters": rdma.adapters.iter().map(adapter).collect::<Vec<_>>(),
    })
}

fn client_json((client, used): (&ClientInfo, ClientUse)) -> Value {
    json!({
        "host": client.host,
        "program": client.program,
        "user": user_of(&client.program, &used),
        "uid": used.uid,
        "key": used.key,
        "pid": client.process_id,
        "transport": client.transport,
        "connections": client.connections,
        "requests": client.requests,
        "read_bytes": used.read_bytes,
        "written_bytes": used.written_bytes,
    })
}

fn op_name(number: u16) -> String {
    Op::from_u16(number).map_or_else(|| format!("{number:#x}"), |op| op.name().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_tells_how_many_receives_are_promised() {
        let count = |name: &str, value| Gauge { name: name.into(), value };
        let counts = vec![count("receives", 1024), count("promised_receives", 48)];
        let adapter = RdmaAdapter { name: "mlx5_0".into(), link_layer: "InfiniBand".into(), counts };
        let rdma = RdmaStatus { addresses: Vec::new(), reason: String::new(), adapters: vec![adapter] };
        assert_eq!(rdma_text(&rdma), "mlx5_0 (InfiniBand), 48 of 1024 receives promised");
    }
}
