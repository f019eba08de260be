//! `weft status --dir`: the processes of a cluster on this machine, or on several hosts.

use crate::hosts;
use crate::time_text::duration;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, SystemTime};
use weft_cli_common::launch::{CLUSTER_FILE, ProcessId, RunState, RunningServer, find, is_elsewhere};
use weft_cli_common::{Reported, output};
use weft_server::ClusterConfig;

/// A server of the cluster file.
#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    role: String,
    address: String,
    running: bool,
    pid: Option<u32>,
    /// When the process started, in seconds since 1970.
    started_s: Option<u64>,
    restarts: u32,
    /// Whether the supervisor restarts it when it dies.
    supervised: bool,
    /// Whether the supervisor no longer tries to start it.
    #[serde(default)]
    given_up: bool,
    /// "runs", or why it does not.
    state: String,
    /// Its host, of a cluster on several.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    host: Option<String>,
}

impl Row {
    fn unknown(name: &str, state: String) -> Row {
        Row {
            name: name.to_owned(),
            role: String::new(),
            address: String::new(),
            running: false,
            pid: None,
            started_s: None,
            restarts: 0,
            supervised: false,
            given_up: false,
            state,
            host: None,
        }
    }
}

/// State of a server whose processes cannot be seen from here.
const ELSEWHERE: &str = "on another machine";

/// Shows the processes.
pub fn run(dir: &Path, as_json: bool) -> Result<()> {
    let file = dir.join(CLUSTER_FILE);
    if !file.exists() {
        bail!("{} has no {CLUSTER_FILE}; give the directory that you gave to weft up", dir.display());
    }
    let config = ClusterConfig::load(&file)?;
    let state = RunState::load(dir)?;
    let supervisor = state.as_ref().and_then(|state| {
        let id = state.supervisor?;
        id.handle().map(|_| id)
    });
    let rows: Vec<_> = config
        .members()
        .map(|server| {
            let noted = state.as_ref().and_then(|state| state.server(server.name()));
            let found = find(&config, state.as_ref(), server);
            let state = match &found {
                Ok(Some(_)) => "runs".into(),
                Ok(None) if is_elsewhere(server) => ELSEWHERE.into(),
                Ok(None) => why_not(noted, supervisor.is_some()),
                Err(error) => format!("unknown: {error}"),
            };
            let found = found.ok().flatten();
            let process = found.as_ref().map(|found| found.process);
            Row {
                name: server.name().to_owned(),
                role: server.role_name().to_owned(),
                address: server.addresses()[0].clone(),
                running: process.is_some(),
                pid: process.map(|process| process.pid),
                started_s: process.as_ref().and_then(started_s),
                restarts: noted.map_or(0, |noted| noted.restarts),
                given_up: noted.is_some_and(|noted| noted.given_up) && process.is_none(),
                supervised: supervisor.is_some() && found.is_some_and(|found| found.is_recorded),
                state,
                host: None,
            }
        })
        .collect();
    match as_json {
        true => output::print_json(&json!({
            "dir": dir,
            "supervisor": supervisor.map(|id| json!({ "pid": id.pid, "started_s": started_s(&id) })),
            "servers": rows,
        }))?,
        false => {
            print(&rows)?;
            print_supervisor(supervisor)?;
            print_given_up(dir, &rows)?;
        }
    }
    all_run(&rows)
}

fn all_run(rows: &[Row]) -> Result<()> {
    match rows.iter().all(|row| row.running || row.state == ELSEWHERE) {
        true => Ok(()),
        false => Err(Reported.into()),
    }
}

/// Shows the processes on all hosts of a cluster, each as its host tells.
pub fn run_on_hosts(record: &hosts::Record, as_json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for (host, status) in hosts::statuses(record) {
        let told = status.and_then(|mut status| {
            serde_json::from_value::<Vec<Row>>(status["servers"].take())
                .context("its answer is not understood")
        });
        let told = told.unwrap_or_else(|error| {
            let unknown = |name: &String| Row::unknown(name, format!("unknown: {error:#}"));
            host.servers.iter().map(unknown).collect()
        });
        let own = told.into_iter().filter(|row| host.servers.contains(&row.name));
        rows.extend(own.map(|row| Row { host: Some(host.name.clone()), ..row }));
    }
    match as_json {
        true => output::print_json(&json!({ "dir": record.dir, "servers": rows }))?,
        false => print(&rows)?,
    }
    all_run(&rows)
}

/// Why a server does not run, as far as is known.
fn why_not(noted: Option<&RunningServer>, is_supervised: bool) -> String {
    let end = noted.and_then(|noted| noted.last_end.as_deref());
    let and = end.map_or(String::new(), |end| format!(": {end}"));
    match noted {
        Some(noted) if noted.given_up => format!("given up{and}"),
        Some(noted) if !noted.wanted => format!("stopped{and}"),
        Some(_) if is_supervised => format!("will be restarted{and}"),
        _ => format!("does not run{and}"),
    }
}

fn print(rows: &[Row]) -> Result<()> {
    let headings = ["server", "role", "address", "process", "up", "restarts", "supervised", "state"];
    let has_hosts = rows.iter().any(|row| row.host.is_some());
    let headings: Vec<_> = has_hosts.then_some("host").into_iter().chain(headings).collect();
    let mut table = output::table(&headings, &[3, 4, 5].map(|column| column + usize::from(has_hosts)));
    for row in rows {
        let columns = [
            row.name.clone(),
            row.role.clone(),
            row.address.clone(),
            row.pid.map_or(String::new(), |pid| pid.to_string()),
            row.started_s.map_or(String::new(), age_text),
            row.restarts.to_string(),
            if row.supervised { "yes".into() } else { "no".into() },
            row.state.clone(),
        ];
        table.add_row(row.host.clone().into_iter().chain(columns));
    }
    output::print_table(&table)
}

fn print_supervisor(supervisor: Option<ProcessId>) -> Result<()> {
    output::print_line(match supervisor {
        Some(id) => format!(
            "process {} supervises, since {}",
            id.pid,
            started_s(&id).map_or("an unknown time".into(), age_text)
        ),
        None => {
            "no supervisor: a server that dies is not restarted; weft up --detach starts a supervisor".into()
        }
    })
}

fn print_given_up(dir: &Path, rows: &[Row]) -> Result<()> {
    let names: Vec<_> = rows.iter().filter(|row| row.given_up).map(|row| row.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let (dir, only) = (dir.display(), names.join(" --only "));
    output::print_line(format!(
        "the supervisor has given up on {}; see {dir}/log, and when the cause is removed: weft up --dir {dir} --only {only} --detach",
        names.join(", ")
    ))
}

fn age_text(started_s: u64) -> String {
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(started_s));
    duration(age.unwrap_or_default().as_millis() as u64)
}

/// When a process started, in seconds since 1970.
fn started_s(process: &ProcessId) -> Option<u64> {
    Some(process.started()?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}
