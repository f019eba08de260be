//! A file system: its servers, as this host reaches them.

use super::cluster::judge_space;
use super::{Findings, Level};
use crate::load::{Answer, Look};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_cli_common::connections::Connections;
use weft_cli_common::size::format_ns;
use weft_client::{Client, Error, ErrorKind};
use weft_wire::Status;
use weft_wire::messages::{StatusReply, UNKNOWN_DISK};

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
    /// The name in the cluster file.
    pub name: String,
    /// "meta" or "io".
    pub role: &'static str,
    /// The address that clients connect to.
    pub address: String,
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
        judge_disks(servers, findings);
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
        let place = server.place();
        let status = match &server.status {
            Ok(status) => status,
            Err(error) => {
                let (what, harm) = match server.role {
                    "meta" => ("metadata server", "no file can be opened, created or listed"),
                    _ => ("I/O server", "files with data on it cannot be read or written"),
                };
                let cause = if error.is_empty() { String::new() } else { format!(" ({error})") };
                return findings.add(
                    Level::Problem,
                    "servers",
                    format!("the {what} {place} does not answer{cause}: {harm} until it does"),
                    "see on its host whether it runs and why not: weft doctor --config FILE; if it runs, check the network to it",
                );
            }
        };
        self.judge_version(&place, &status.version, findings);
        judge_data(&place, status, findings);
        judge_requests(&place, status, findings);
        if let Some(offset) = server.clock_offset_s.filter(|offset| offset.abs() >= OFFSET_WARNING_S) {
            let level = if offset.abs() >= OFFSET_PROBLEM_S { Level::Problem } else { Level::Warning };
            let side = if offset > 0.0 { "ahead of" } else { "behind" };
            findings.add(
                level,
                "clock-offset",
                format!(
                    "the clock of the host of {place} is {:.1} s {side} the clock of this host",
                    offset.abs()
                ),
                "run chrony or systemd-timesyncd on all hosts: keys and open files expire by the clock",
            );
        }
        if let Some(round_trip) = server.round_trip {
            let took = format_ns(round_trip.as_nanos() as u64);
            match round_trip >= LATENCY_WARNING {
                true => findings.add(
                    Level::Warning,
                    "latency",
                    format!("{place} takes {took} to answer an empty request from this host"),
                    "check the network to it (ping, ethtool) and the load of its host (top)",
                ),
                false => findings.ok("latency", format!("{}: {took} there and back", server.name)),
            }
        }
    }

    fn judge_version(&self, place: &str, version: &str, findings: &mut Findings) {
        if version == self.version {
            return findings.ok("versions", format!("{place} runs version {version}"));
        }
        findings.add(
            Level::Warning,
            "versions",
            format!("{place} runs version {version}, and this program is of version {}", self.version),
            "finish the upgrade: servers one by one, then clients",
        );
    }
}

impl ServerState {
    /// Its name and where it is.
    fn place(&self) -> String {
        format!("{} at {}", self.name, self.address)
    }
}

/// The gauge of this name; 0 without it.
fn gauge(status: &StatusReply, name: &str) -> u64 {
    status.gauges.iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value)
}

/// `1 block`, `2 blocks`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Data that is damaged or missing.
fn judge_data(place: &str, status: &StatusReply, findings: &mut Findings) {
    let damaged = gauge(status, "sums_damaged").max(gauge(status, "scrub_found"));
    if damaged > 0 {
        let blocks = counted(damaged, "block");
        findings.add(
            Level::Problem,
            "damaged-data",
            format!(
                "the disk of {place} returns other data than was written, in {blocks}: reading fails there"
            ),
            "list the files with weft scrub, restore them from a copy, and have the disk checked",
        );
    }
    let lost = gauge(status, "lost_files");
    if lost > 0 {
        let files = counted(lost, "file");
        findings.add(
            Level::Problem,
            "lost-data",
            format!("data of {files} is missing on the disk of {place}: reading it fails"),
            "list the files with weft fsck, restore them from a copy, and have the disk checked",
        );
    }
}

/// Requests that take long.
fn judge_requests(place: &str, status: &StatusReply, findings: &mut Findings) {
    let stuck = gauge(status, "stuck_requests");
    if stuck > 0 {
        let (requests, have) = (counted(stuck, "request"), if stuck == 1 { "has" } else { "have" });
        findings.add(
            Level::Warning,
            "stuck-requests",
            format!("{requests} to {place} {have} not ended for 30 s or more: programs wait"),
            "its log names each with its program, and says what it waits for (weft help logs)",
        );
    }
    let slow = gauge(status, "slow_requests");
    if slow > 0 {
        findings.add(
            Level::Note,
            "slow-requests",
            format!("{place} has served {} since it started", counted(slow, "slow request")),
            "its log says where the time went (weft help logs)",
        );
    }
}

/// The space of the servers' disks: servers that share one are named together.
fn judge_disks(servers: &[ServerState], findings: &mut Findings) {
    let mut disks: Vec<([u8; 16], Vec<&str>, &StatusReply)> = Vec::new();
    for server in servers {
        let Ok(status) = &server.status else { continue };
        let disk = status.disk_id.0;
        match disks.iter_mut().find(|(other, ..)| *other == disk && disk != UNKNOWN_DISK) {
            Some((_, names, _)) => names.push(&server.name),
            None => disks.push((disk, vec![&server.name], status)),
        }
    }
    for (_, names, status) in disks {
        judge_space(&names.join(", "), status.free_bytes, status.space_bytes, findings);
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
    let state = |Answer { name, role, address, status }: &Answer| {
        let pings = (0..pings).map_while(|_| client.ping(name, b"doctor").ok());
        ServerState {
            round_trip: if status.is_ok() { pings.min() } else { None },
            transport: weft_cli_common::connections::transport_of(client, name),
            status: status.clone(),
            clock_offset_s: status.as_ref().ok().and_then(|status| look.clock_offset_s(status)),
            name: name.clone(),
            role,
            address: address.clone(),
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
            role: "io",
            address: "node2:7401".into(),
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
            (gauge("lost_files"), Level::Problem, "lost-data"),
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

    /// The words of all findings that are worse than a note: found, cure.
    fn words(servers: Vec<ServerState>) -> Vec<(String, String)> {
        let mut findings = Findings::default();
        facts(Ok(servers)).judge(&mut findings);
        let bad = findings.0.into_iter().filter(|finding| finding.level >= Level::Warning);
        bad.map(|finding| (finding.found, finding.cure)).collect()
    }

    #[test]
    fn an_alarm_says_what_happened_where_and_what_to_do() {
        let with = |change: &dyn Fn(&mut ServerState)| {
            let mut server = server();
            change(&mut server);
            words(vec![server])
        };
        let of_status = |change: &dyn Fn(&mut StatusReply)| {
            with(&|server| change(server.status.as_mut().expect("it answers")))
        };
        let gauge =
            |name: &str, value| of_status(&|status| status.gauges = vec![Gauge { name: name.into(), value }]);
        let down = |role| {
            with(&|server| {
                server.role = role;
                server.status = Err("connection refused".into());
            })
        };
        let space = |free_bytes: u64| {
            of_status(&|status| (status.free_bytes, status.space_bytes) = (free_bytes << 30, 100 << 30))
        };
        for (found, expected, cure) in [
            (
                down("io"),
                "the I/O server io0 at node2:7401 does not answer (connection refused): files with data on it cannot be read or written until it does",
                "see on its host whether it runs and why not: weft doctor --config FILE; if it runs, check the network to it",
            ),
            (
                down("meta"),
                "the metadata server io0 at node2:7401 does not answer (connection refused): no file can be opened, created or listed until it does",
                "see on its host whether it runs and why not: weft doctor --config FILE; if it runs, check the network to it",
            ),
            (
                space(5),
                "the disk of io0 has 5.0 GiB of 100 GiB free (5 %)",
                "remove files (weft du shows where they are), or add a server with a disk of its own (weft server add)",
            ),
            (
                space(1),
                "the disk of io0 has 1.0 GiB of 100 GiB free (1 %): writing fails when it is full",
                "remove files (weft du shows where they are), or add a server with a disk of its own (weft server add)",
            ),
            (
                gauge("sums_damaged", 1),
                "the disk of io0 at node2:7401 returns other data than was written, in 1 block: reading fails there",
                "list the files with weft scrub, restore them from a copy, and have the disk checked",
            ),
            (
                gauge("lost_files", 2),
                "data of 2 files is missing on the disk of io0 at node2:7401: reading it fails",
                "list the files with weft fsck, restore them from a copy, and have the disk checked",
            ),
            (
                gauge("stuck_requests", 1),
                "1 request to io0 at node2:7401 has not ended for 30 s or more: programs wait",
                "its log names each with its program, and says what it waits for (weft help logs)",
            ),
            (
                with(&|server| server.clock_offset_s = Some(-5.0)),
                "the clock of the host of io0 at node2:7401 is 5.0 s behind the clock of this host",
                "run chrony or systemd-timesyncd on all hosts: keys and open files expire by the clock",
            ),
            (
                with(&|server| server.round_trip = Some(Duration::from_millis(50))),
                "io0 at node2:7401 takes 50.0 ms to answer an empty request from this host",
                "check the network to it (ping, ethtool) and the load of its host (top)",
            ),
            (
                of_status(&|status| status.version = "0.9".into()),
                "io0 at node2:7401 runs version 0.9, and this program is of version 1.0",
                "finish the upgrade: servers one by one, then clients",
            ),
        ] {
            assert_eq!(found, [(expected.to_owned(), cure.to_owned())]);
        }
    }

    #[test]
    fn a_full_disk_that_servers_share_is_one_alarm() {
        let on = |name: &str, disk: u8| {
            let mut server = ServerState { name: name.into(), ..server() };
            let status = server.status.as_mut().expect("it answers");
            (status.disk_id, status.free_bytes, status.space_bytes) =
                (weft_wire::Added([disk; 16]), 5 << 30, 100 << 30);
            server
        };
        let found = words(vec![on("meta0", 1), on("io0", 1), on("io1", 2)]);
        let found: Vec<_> = found.iter().map(|(found, _)| found.as_str()).collect();
        let on_disk = |names: &str| format!("the disk of {names} has 5.0 GiB of 100 GiB free (5 %)");
        assert_eq!(found, [on_disk("meta0, io0"), on_disk("io1")]);
        let unknown = words(vec![on("io0", 0), on("io1", 0)]);
        assert_eq!(unknown.len(), 2, "servers of an earlier version do not say");
    }
}
