//! `weft status --dir`: the processes of a cluster on this machine.

use crate::time_text::duration;
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::path::Path;
use std::time::SystemTime;
use weft_cli_common::launch::{CLUSTER_FILE, ProcessId, RunState, RunningServer, find, is_elsewhere};
use weft_cli_common::{Reported, output};
use weft_server::ClusterConfig;

/// A server of the cluster file.
struct Row {
    name: String,
    role: &'static str,
    address: String,
    process: Option<ProcessId>,
    /// Whether the supervisor restarts it when it dies.
    supervised: bool,
    restarts: u32,
    /// "runs", or why it does not.
    state: String,
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
            Row {
                name: server.name().to_owned(),
                role: server.role_name(),
                address: server.addresses()[0].clone(),
                supervised: supervisor.is_some() && found.as_ref().is_some_and(|found| found.is_recorded),
                process: found.map(|found| found.process),
                restarts: noted.map_or(0, |noted| noted.restarts),
                state,
            }
        })
        .collect();
    match as_json {
        true => output::print_json(&json!({
            "dir": dir,
            "supervisor": supervisor.map(|id| json!({ "pid": id.pid, "started_s": started_s(&id) })),
            "servers": rows.iter().map(row_json).collect::<Vec<_>>(),
        }))?,
        false => print(&rows, supervisor)?,
    }
    if rows.iter().all(|row| row.process.is_some() || row.state == ELSEWHERE) {
        Ok(())
    } else {
        Err(Reported.into())
    }
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

fn print(rows: &[Row], supervisor: Option<ProcessId>) -> Result<()> {
    let headings = ["server", "role", "address", "process", "up", "restarts", "supervised", "state"];
    let mut table = output::table(&headings, &[3, 4, 5]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.role.to_string(),
            row.address.clone(),
            row.process.map_or(String::new(), |process| process.pid.to_string()),
            row.process.and_then(|process| age_text(&process)).unwrap_or_default(),
            row.restarts.to_string(),
            if row.supervised { "yes".into() } else { "no".into() },
            row.state.clone(),
        ]);
    }
    output::print_table(&table)?;
    output::print_line(match supervisor {
        Some(id) => format!(
            "process {} supervises, since {}",
            id.pid,
            age_text(&id).unwrap_or_else(|| "an unknown time".into())
        ),
        None => {
            "no supervisor: a server that dies is not restarted; weft up --detach starts a supervisor".into()
        }
    })
}

fn age_text(process: &ProcessId) -> Option<String> {
    let age = SystemTime::now().duration_since(process.started()?).unwrap_or_default();
    Some(duration(age.as_millis() as u64))
}

/// When a process started, in seconds since 1970.
fn started_s(process: &ProcessId) -> Option<u64> {
    Some(process.started()?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}

fn row_json(row: &Row) -> Value {
    json!({
        "name": row.name,
        "role": row.role,
        "address": row.address,
        "running": row.process.is_some(),
        "pid": row.process.map(|process| process.pid),
        "started_s": row.process.as_ref().and_then(started_s),
        "restarts": row.restarts,
        "supervised": row.supervised,
        "state": row.state,
    })
}
