//! The load of a file system: two looks at what its servers have counted, and the rates between them.

use crate::busy_files::{self, FileLoad};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;
use weft_client::Client;
use weft_wire::Op;
use weft_wire::messages::{CLOCK_GAUGE, StatusReply};

/// What all servers had counted at a moment.
pub struct Look {
    at: Instant,
    /// When servers were asked and had answered, in microseconds since 1970.
    asked_us: (u64, u64),
    /// In order: metadata servers first. Or why one does not answer.
    servers: Vec<(String, Result<StatusReply, String>)>,
}

/// See [`Look::clock_offset_s`]; the status was asked for and received at these microseconds since 1970.
pub fn clock_offset_s((asked, answered): (u64, u64), status: &StatusReply) -> Option<f64> {
    let there = status.gauges.iter().find(|gauge| gauge.name == CLOCK_GAUGE)?.value;
    let offset_us = match there {
        early if early < asked => -((asked - early) as f64),
        late => late.saturating_sub(answered) as f64,
    };
    Some(offset_us / 1e6)
}

impl Look {
    /// Asks all servers, and for their clients.
    pub fn at(client: &Client) -> Look {
        Look::asking(client, true)
    }

    /// Asks all servers.
    pub fn without_clients(client: &Client) -> Look {
        Look::asking(client, false)
    }

    fn asking(client: &Client, with_clients: bool) -> Look {
        let (at, asked_us) = (Instant::now(), weft_host::unix_us());
        let servers = client.server_status(with_clients);
        Look {
            at,
            asked_us: (asked_us, weft_host::unix_us()),
            servers: servers
                .into_iter()
                .map(|(server, answer)| (server.name, answer.map_err(|error| error.to_string())))
                .collect(),
        }
    }

    /// A server's clock less that of this host, in seconds, as far as that can be told: within the time of the request no offset is
    /// seen. `None` if the server does not say.
    pub fn clock_offset_s(&self, status: &StatusReply) -> Option<f64> {
        clock_offset_s(self.asked_us, status)
    }

    /// Whether any server has answered.
    pub fn has_any(&self) -> bool {
        self.servers.iter().any(|(_, answer)| answer.is_ok())
    }

    /// What each server has said, or why it does not.
    pub fn servers(&self) -> &[(String, Result<StatusReply, String>)] {
        &self.servers
    }
}

/// What a server did, per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerLoad {
    /// Its name.
    pub server: String,
    /// "meta" or "io"; empty if it does not answer.
    pub role: String,
    /// Whether it answers.
    pub up: bool,
    /// Operations that ended.
    pub operations_per_s: f64,
    /// Of these, those that failed.
    pub errors_per_s: f64,
    /// Bytes of files that were read.
    pub read_bytes_per_s: f64,
    /// Bytes of files that were written.
    pub written_bytes_per_s: f64,
    /// Processors in use.
    pub processors: f64,
    /// Requests that were being served at the end.
    pub active_requests: u64,
    /// Clients at the end.
    pub clients: u32,
    /// What is free on its disk.
    pub free_bytes: u64,
}

/// What a client did at all servers, per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientLoad {
    /// Its host.
    pub host: String,
    /// Its program.
    pub program: String,
    /// Its process.
    pub process_id: u32,
    /// How it is connected.
    pub transport: String,
    /// Requests to all servers.
    pub requests_per_s: f64,
}

/// Between two looks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// The time between them.
    pub seconds: f64,
    /// By server, in the order of the cluster.
    pub servers: Vec<ServerLoad>,
    /// By client, the busiest first.
    pub clients: Vec<ClientLoad>,
    /// By file, the busiest first.
    pub files: Vec<FileLoad>,
}

impl Load {
    /// What was done between two looks. A server that was restarted meanwhile counts from its start.
    pub fn between(first: &Look, second: &Look) -> Load {
        let seconds = second.at.duration_since(first.at).as_secs_f64().max(1e-9);
        let before: HashMap<&str, &StatusReply> = first
            .servers
            .iter()
            .filter_map(|(name, status)| Some((name.as_str(), status.as_ref().ok()?)))
            .collect();
        let before_of = |name: &str, now: &StatusReply| {
            before.get(name).copied().filter(|before| before.process_id == now.process_id)
        };
        let servers = second.servers.iter().map(|(name, status)| match status {
            Err(_) => ServerLoad::of_none(name),
            Ok(now) => ServerLoad::between(before_of(name, now), now, seconds),
        });
        let answers = second.servers.iter().filter_map(|(name, status)| Some((name, status.as_ref().ok()?)));
        let pairs: Vec<_> = answers.map(|(name, now)| (before_of(name, now), now)).collect();
        Load {
            seconds,
            servers: servers.collect(),
            clients: clients_between(first, second, seconds),
            files: busy_files::between(&pairs, seconds),
        }
    }

    /// All servers together.
    pub fn total(&self) -> ServerLoad {
        let mut total = ServerLoad::of_none("all");
        for server in &self.servers {
            total.operations_per_s += server.operations_per_s;
            total.errors_per_s += server.errors_per_s;
            total.read_bytes_per_s += server.read_bytes_per_s;
            total.written_bytes_per_s += server.written_bytes_per_s;
            total.processors += server.processors;
            total.active_requests += server.active_requests;
            total.clients = total.clients.max(server.clients);
            total.free_bytes += server.free_bytes;
            total.up |= server.up;
        }
        total
    }
}

impl ServerLoad {
    fn of_none(name: &str) -> ServerLoad {
        ServerLoad {
            server: name.to_owned(),
            role: String::new(),
            up: false,
            operations_per_s: 0.0,
            errors_per_s: 0.0,
            read_bytes_per_s: 0.0,
            written_bytes_per_s: 0.0,
            processors: 0.0,
            active_requests: 0,
            clients: 0,
            free_bytes: 0,
        }
    }

    fn between(before: Option<&StatusReply>, now: &StatusReply, seconds: f64) -> ServerLoad {
        // What this command asks itself does not count.
        let counts = |status: &StatusReply, op: Option<&[Op]>| {
            let is_wanted = |number: u16| match op {
                Some(ops) => ops.iter().any(|op| *op as u16 == number),
                None => number != Op::Status as u16,
            };
            let wanted = status.operations.iter().filter(|count| is_wanted(count.op));
            wanted.fold((0, 0, 0), |sum, count| {
                (sum.0 + count.count, sum.1 + count.errors, sum.2 + count.bytes)
            })
        };
        let more = |op: Option<&[Op]>| {
            let (new, old) = (counts(now, op), before.map_or((0, 0, 0), |before| counts(before, op)));
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
            (rate(new.0, old.0), rate(new.1, old.1), rate(new.2, old.2))
        };
        let (operations_per_s, errors_per_s, _) = more(None);
        let cpu_ms = now.cpu_ms.saturating_sub(before.map_or(0, |before| before.cpu_ms));
        ServerLoad {
            server: now.name.clone(),
            role: now.role.clone(),
            up: true,
            operations_per_s,
            errors_per_s,
            read_bytes_per_s: more(Some(&[Op::Read, Op::ReadSmall])).2,
            written_bytes_per_s: more(Some(&[Op::Write, Op::WriteSmall, Op::CopyRange])).2,
            processors: cpu_ms as f64 / 1e3 / seconds,
            active_requests: now.active_requests,
            clients: now.clients,
            free_bytes: now.free_bytes,
        }
    }
}

fn clients_between(first: &Look, second: &Look, seconds: f64) -> Vec<ClientLoad> {
    let mut requests: HashMap<(&str, [u8; 16]), u64> = HashMap::new();
    let listed = |look: &'_ Look| -> Vec<(String, weft_wire::messages::ClientInfo)> {
        let of_server = |(name, status): &(String, Result<StatusReply, String>)| {
            let clients = status.as_ref().map(|status| status.client_list.clone()).unwrap_or_default();
            clients.into_iter().map(|client| (name.clone(), client)).collect::<Vec<_>>()
        };
        look.servers.iter().flat_map(of_server).collect()
    };
    let (before, after) = (listed(first), listed(second));
    for (server, client) in &before {
        requests.insert((server, client.session), client.requests);
    }
    let mut all: HashMap<[u8; 16], ClientLoad> = HashMap::new();
    for (server, client) in &after {
        // The list is made by the request that asks for it.
        let known = requests.get(&(server.as_str(), client.session)).copied().unwrap_or(0);
        let rate = client.requests.saturating_sub(known) as f64 / seconds;
        let load = all.entry(client.session).or_insert_with(|| ClientLoad {
            host: client.host.clone(),
            program: client.program.clone(),
            process_id: client.process_id,
            transport: client.transport.clone(),
            requests_per_s: 0.0,
        });
        load.requests_per_s += rate;
    }
    let mut all: Vec<ClientLoad> = all.into_values().collect();
    let key = |client: &ClientLoad| (client.host.clone(), client.process_id);
    all.sort_by(|one, other| {
        other.requests_per_s.total_cmp(&one.requests_per_s).then_with(|| key(one).cmp(&key(other)))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_wire::Wire;
    use weft_wire::messages::{Gauge, OpCount};

    fn status(process_id: u32, counts: &[(Op, u64, u64)]) -> StatusReply {
        let count = |(op, count, bytes): &(Op, u64, u64)| OpCount {
            op: *op as u16,
            count: *count,
            errors: 1,
            bytes: *bytes,
        };
        StatusReply {
            name: "io0".into(),
            process_id,
            cpu_ms: 1000 * counts.len() as u64,
            operations: counts.iter().map(count).collect(),
            client_list: Vec::new(),
            ..StatusReply::sample(&mut 0)
        }
    }

    #[test]
    fn a_clock_is_off_only_as_far_as_the_time_of_the_request_does_not_explain_it() {
        let look = Look { at: Instant::now(), asked_us: (5_000_000, 6_000_000), servers: Vec::new() };
        let offset = |clock_us: Option<u64>| {
            let gauge = |value| Gauge { name: CLOCK_GAUGE.into(), value };
            let gauges = clock_us.map(gauge).into_iter().collect();
            look.clock_offset_s(&StatusReply { gauges, ..status(1, &[]) })
        };
        assert_eq!(offset(None), None);
        assert_eq!(offset(Some(3_000_000)), Some(-2.0));
        assert_eq!(offset(Some(5_500_000)), Some(0.0));
        assert_eq!(offset(Some(16_000_000)), Some(10.0));
    }

    #[test]
    fn rates_are_of_what_came_between_and_a_restart_begins_at_nothing() {
        let now = Instant::now();
        let look = |after_s: u64, status: Option<StatusReply>| Look {
            at: now + Duration::from_secs(after_s),
            asked_us: (5_000_000, 6_000_000),
            servers: vec![("io0".into(), status.ok_or("it is down".into()))],
        };
        let first = look(0, Some(status(1, &[(Op::Read, 10, 4096)])));
        let second =
            look(2, Some(status(1, &[(Op::Read, 30, 12288), (Op::Write, 4, 100), (Op::Status, 50, 0)])));
        let load = Load::between(&first, &second);
        let server = &load.servers[0];
        assert_eq!((server.operations_per_s, server.read_bytes_per_s), (12.0, 4096.0));
        assert_eq!((server.written_bytes_per_s, server.processors), (50.0, 1.0));
        let restarted = look(2, Some(status(2, &[(Op::Read, 6, 0)])));
        assert_eq!(
            Load::between(&second, &look(4, Some(status(2, &[(Op::Read, 6, 0)])))).servers[0]
                .operations_per_s,
            3.0
        );
        let gone = Load::between(&restarted, &look(4, None));
        assert!(!gone.servers[0].up && !gone.total().up);
    }
}
