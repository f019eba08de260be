//! A file system: its servers, as this host reaches them.

use super::cluster::judge_space;
use super::{Findings, Level};
use crate::load::Look;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_cli_common::connections::Connections;
use weft_client::{Client, Error, ErrorKind};
use weft_wire::Status;
use weft_wire::messages::StatusReply;

/// A server that started so short a time ago was perhaps restarted.
const YOUNG_MS: u64 = 10 * 60 * 1000;
/// Capabilities and keys live by the clock; a second is no harm.
const OFFSET_WARNING_S: f64 = 2.0;
const OFFSET_PROBLEM_S: f64 = 60.0;
const LATENCY_WARNING: Duration = Duration::from_millis(20);
const PINGS: usize = 5;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoConnection {
    /// Nobody answers.
    Unreachable(String),
    /// Something answers that is not Weft, or of another version.
    Protocol(String),
    /// There is no key, or it cannot be read.
    NoKey(String),
    /// The key is not accepted, or the server has not proved that it knows it.
    KeyRefused(String),
}

/// A server, as it says it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerState {
    /// Its name and address.
    pub name: String,
    /// What it says, or why it does not.
    pub status: Result<StatusReply, String>,
    /// How it is reached, with the reason where a faster transport is not used.
    pub transport: String,
    /// The shortest of some round trips.
    pub round_trip: Option<Duration>,
    /// Its clock less that of this host, if it could be told.
    pub clock_offset_s: Option<f64>,
}

/// What is so.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemFacts {
    /// The file system.
    pub url: String,
    /// Its servers, or why they cannot be asked.
    pub servers: Result<Vec<ServerState>, NoConnection>,
    /// This program's version.
    pub version: String,
}

impl SystemFacts {
    /// Connects and asks.
    pub fn gather(connections: &Connections, url: &str) -> SystemFacts {
        let servers = match connections.client(url) {
            Ok(client) => Ok(states(&client, &Look::without_clients(&client), PINGS)),
            Err(error) => Err(why_not(&error)),
        };
        SystemFacts { url: url.to_owned(), servers, version: env!("CARGO_PKG_VERSION").into() }
    }

    /// What that means.
    pub fn judge(&self, findings: &mut Findings) {
        let servers = match &self.servers {
            Ok(servers) => servers,
            Err(why) => return self.judge_no_connection(why, findings),
        };
        findings.ok("connection", format!("{} answers", self.url));
        findings.ok("key", "the key is accepted");
        for server in servers {
            self.judge_server(server, findings);
        }
        let silent = servers.iter().any(|server| server.status.is_err());
        if !silent {
            findings.ok("servers", format!("all {} servers answer", servers.len()));
        }
        judge_restarts(servers, findings);
        judge_transports(servers, findings);
        let lossy: Vec<&str> = servers
            .iter()
            .filter(|server| server.status.as_ref().is_ok_and(|status| status.sync_mode == "nosync"))
            .map(|server| server.name.as_str())
            .collect();
        match lossy.is_empty() {
            true => findings.ok("durability", "what is acknowledged is on the disks"),
            false => findings.add(
                Level::Note,
                "durability",
                format!("{} acknowledge before the disk has it: a power failure may lose the last moments, fsync does not", lossy.join(", ")),
                "for sync at each write: weft up --sync, or sync = \"sync\" in the cluster file",
            ),
        }
    }

    fn judge_no_connection(&self, why: &NoConnection, findings: &mut Findings) {
        let url = &self.url;
        match why {
            NoConnection::Unreachable(error) => findings.add(
                Level::Problem,
                "connection",
                format!("{url} does not answer: {error}"),
                "is the address right, does the metadata server run (weft doctor --config FILE on its host), does a firewall let its port through?",
            ),
            NoConnection::Protocol(error) => findings.add(
                Level::Problem,
                "connection",
                format!("what answers at {url} is not Weft, or of a version that this one does not speak: {error}"),
                "check host and port; weft version shows the versions",
            ),
            NoConnection::NoKey(error) => findings.add(
                Level::Problem,
                "key",
                error.clone(),
                "ask the administrator for a key (weft key issue); weft help keys says where it goes",
            ),
            NoConnection::KeyRefused(error) => findings.add(
                Level::Problem,
                "key",
                format!("the key is not accepted: {error}"),
                "it is of another cluster, has expired or was revoked: ask the administrator (weft key list)",
            ),
        }
    }

    fn judge_server(&self, server: &ServerState, findings: &mut Findings) {
        let name = &server.name;
        let status = match &server.status {
            Ok(status) => status,
            Err(error) => {
                return findings.add(
                    Level::Problem,
                    "servers",
                    format!("{name} does not answer: {error}"),
                    "does it run (weft doctor --config FILE on its host), and is the way to it open?",
                );
            }
        };
        if status.version != self.version {
            findings.add(
                Level::Warning,
                "versions",
                format!("{name} is of version {}, this program of {}", status.version, self.version),
                "finish the upgrade: servers one by one, then clients",
            );
        } else {
            findings.ok("versions", format!("{name}: {}", status.version));
        }
        judge_space(name, status.free_bytes, status.space_bytes, findings);
        let gauge =
            |name: &str| status.gauges.iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value);
        let damaged = gauge("sums_damaged").max(gauge("scrub_found"));
        if damaged > 0 {
            findings.add(
                Level::Problem,
                "damaged-data",
                format!("{name} has {damaged} blocks of data that differ from what was written"),
                "weft scrub lists the files: restore them, and have the disk checked",
            );
        }
        let lost = gauge("lost_files");
        if lost > 0 {
            let files = if lost == 1 { "1 file".into() } else { format!("{lost} files") };
            findings.add(
                Level::Problem,
                "lost-data",
                format!("{name} has lost data of {files}"),
                "weft fsck and weft scrub list them: restore them from a copy, and have the disk checked",
            );
        }
        if gauge("stuck_requests") > 0 {
            findings.add(
                Level::Warning,
                "stuck-requests",
                format!("{name} has {} requests that do not end", gauge("stuck_requests")),
                "its log names them and what they wait for (weft help logs)",
            );
        }
        if gauge("slow_requests") > 0 {
            findings.add(
                Level::Note,
                "slow-requests",
                format!("{name} has had {} slow requests since it started", gauge("slow_requests")),
                "its log says where the time went (weft help logs)",
            );
        }
        if let Some(offset) = server.clock_offset_s.filter(|offset| offset.abs() >= OFFSET_WARNING_S) {
            let level = if offset.abs() >= OFFSET_PROBLEM_S { Level::Problem } else { Level::Warning };
            findings.add(
                level,
                "clock-offset",
                format!("the clock of {name} is {:.1} s {}", offset.abs(), if offset > 0.0 { "ahead" } else { "behind" }),
                "have chrony or systemd-timesyncd keep the clocks of all hosts: keys and capabilities expire by them",
            );
        }
        if let Some(round_trip) = server.round_trip {
            let found = format!("{name}: {:.0} µs there and back", round_trip.as_secs_f64() * 1e6);
            match round_trip >= LATENCY_WARNING {
                true => findings.add(Level::Warning, "latency", found, "is that the network you meant?"),
                false => findings.ok("latency", found),
            }
        }
    }
}

/// Servers that started lately, in one finding.
fn judge_restarts(servers: &[ServerState], findings: &mut Findings) {
    let up_ms = |server: &ServerState| server.status.as_ref().ok().map(|status| status.uptime_ms);
    let young = servers.iter().filter(|server| up_ms(server).is_some_and(|up_ms| up_ms < YOUNG_MS));
    let (names, ages): (Vec<_>, Vec<_>) = young.map(|server| (server.name.as_str(), up_ms(server))).unzip();
    if let Some(youngest_ms) = ages.into_iter().flatten().min() {
        findings.add(
            Level::Note,
            "restarts",
            format!("{} started in the last ten minutes, {} s ago", names.join(", "), youngest_ms / 1000),
            "if nobody restarted it, its log says why it ended",
        );
    }
}

/// How servers are reached, those together that are reached alike.
fn judge_transports(servers: &[ServerState], findings: &mut Findings) {
    let mut alike: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for server in servers.iter().filter(|server| server.status.is_ok()) {
        alike.entry(&server.transport).or_default().push(&server.name);
    }
    for (transport, names) in alike {
        let (names, are) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
        match transport.split_once(" (") {
            Some((used, reason)) => findings.add(
                Level::Note,
                "transport",
                format!(
                    "{names} {are} reached by {used}, not by a faster transport: {}",
                    reason.trim_end_matches(')')
                ),
                "weft help transports",
            ),
            None => findings.ok("transport", format!("{names} {are} reached by {transport}")),
        }
    }
}

/// What servers have said, and how each is reached: the shortest of so many round trips counts.
pub fn states(client: &Client, look: &Look, pings: usize) -> Vec<ServerState> {
    let state = |(name, status): &(String, Result<StatusReply, String>)| {
        let pings = (0..pings).map_while(|_| client.ping(name, b"doctor").ok());
        ServerState {
            round_trip: if status.is_ok() { pings.min() } else { None },
            transport: weft_cli_common::connections::transport_of(client, name),
            status: status.clone(),
            clock_offset_s: status.as_ref().ok().and_then(|status| look.clock_offset_s(status)),
            name: name.clone(),
        }
    };
    look.servers().iter().map(state).collect()
}

fn why_not(error: &anyhow::Error) -> NoConnection {
    let text = format!("{error:#}");
    match error.downcast_ref::<Error>().map(Error::kind) {
        Some(ErrorKind::Unreachable | ErrorKind::Local(_)) => NoConnection::Unreachable(text),
        Some(ErrorKind::Untrusted | ErrorKind::Status(Status::Unauthenticated)) => {
            NoConnection::KeyRefused(text)
        }
        Some(ErrorKind::Configuration) => NoConnection::NoKey(text),
        _ => NoConnection::Protocol(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::Wire;
    use weft_wire::messages::Gauge;

    fn server() -> ServerState {
        let status = StatusReply {
            role: "io".into(),
            version: "1.0".into(),
            uptime_ms: 1 << 30,
            free_bytes: 50,
            space_bytes: 100,
            sync_mode: "sync".into(),
            gauges: Vec::new(),
            ..StatusReply::sample(&mut 0)
        };
        ServerState {
            name: "io0".into(),
            status: Ok(status),
            transport: "shm direct".into(),
            round_trip: Some(Duration::from_micros(30)),
            clock_offset_s: None,
        }
    }

    fn facts(servers: Result<Vec<ServerState>, NoConnection>) -> SystemFacts {
        SystemFacts { url: "weft://a:1/".into(), servers, version: "1.0".into() }
    }

    fn found(facts: &SystemFacts) -> Vec<(Level, &'static str)> {
        let mut findings = Findings::default();
        facts.judge(&mut findings);
        assert!(findings.0.iter().all(|finding| super::super::NAMES.contains(&finding.name)));
        let bad = findings.0.iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.level, finding.name)).collect()
    }

    #[test]
    fn each_fault_of_a_file_system_is_named() {
        assert_eq!(found(&facts(Ok(vec![server()]))), []);
        let with = |change: &dyn Fn(&mut ServerState)| {
            let mut server = server();
            change(&mut server);
            facts(Ok(vec![server]))
        };
        let of_status = |change: fn(&mut StatusReply)| {
            with(&|server| server.status.as_mut().map(change).expect("it answers"))
        };
        let gauge = |name: &str| {
            let gauge = Gauge { name: name.into(), value: 3 };
            with(&|server| server.status.as_mut().expect("it answers").gauges = vec![gauge.clone()])
        };
        for (facts, level, name) in [
            (facts(Err(NoConnection::Unreachable("refused".into()))), Level::Problem, "connection"),
            (facts(Err(NoConnection::Protocol("HTTP".into()))), Level::Problem, "connection"),
            (facts(Err(NoConnection::NoKey("none".into()))), Level::Problem, "key"),
            (facts(Err(NoConnection::KeyRefused("revoked".into()))), Level::Problem, "key"),
            (with(&|server| server.status = Err("timed out".into())), Level::Problem, "servers"),
            (of_status(|status| status.version = "0.9".into()), Level::Warning, "versions"),
            (of_status(|status| status.free_bytes = 5), Level::Warning, "disk-space"),
            (of_status(|status| status.free_bytes = 0), Level::Problem, "disk-space"),
            (of_status(|status| status.uptime_ms = 5000), Level::Note, "restarts"),
            (of_status(|status| status.sync_mode = "nosync".into()), Level::Note, "durability"),
            (gauge("sums_damaged"), Level::Problem, "damaged-data"),
            (gauge("stuck_requests"), Level::Warning, "stuck-requests"),
            (gauge("slow_requests"), Level::Note, "slow-requests"),
            (with(&|server| server.transport = "tcp (no shared memory)".into()), Level::Note, "transport"),
            (with(&|server| server.clock_offset_s = Some(-5.0)), Level::Warning, "clock-offset"),
            (with(&|server| server.clock_offset_s = Some(500.0)), Level::Problem, "clock-offset"),
            (with(&|server| server.round_trip = Some(Duration::from_millis(50))), Level::Warning, "latency"),
        ] {
            assert_eq!(found(&facts), [(level, name)], "{facts:?}");
        }
    }
}
