//! The load of a file system: two looks at what its servers have counted, and the rates between them.

use crate::busy_files::{self, FileLoad};
use crate::gateway_state::GATEWAY_PROGRAM;
use serde::Serialize;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use weft_cli_common::output;
use weft_client::{Client, ErrorKind};
use weft_wire::Op;
use weft_wire::messages::{
    CLOCK_GAUGE, ClientInfo, ClientUse, EndedUse, ServerInfo, StatusReply, UNKNOWN_DISK, acts_for,
    server_role,
};

/// What all servers had counted at a moment.
pub struct Look {
    at: Instant,
    /// When servers were asked and had answered, in microseconds since 1970.
    asked_us: (u64, u64),
    /// In order: metadata servers first.
    servers: Vec<Answer>,
}

/// The answer of a server.
pub struct Answer {
    /// The name in the cluster file.
    pub name: String,
    /// "meta" or "io".
    pub role: &'static str,
    /// The address that clients connect to.
    pub address: String,
    /// Its status, or why it does not answer.
    pub status: Result<StatusReply, String>,
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
            servers: servers.into_iter().map(Answer::of).collect(),
        }
    }

    /// A server's clock less that of this host, in seconds, as far as that can be told: within the time of the request no offset is
    /// seen. `None` if the server does not say.
    pub fn clock_offset_s(&self, status: &StatusReply) -> Option<f64> {
        clock_offset_s(self.asked_us, status)
    }

    /// The servers that have answered, and what they say.
    fn answers(&self) -> impl Iterator<Item = (&str, &StatusReply)> {
        self.servers.iter().filter_map(|answer| Some((answer.name.as_str(), answer.status.as_ref().ok()?)))
    }

    /// Whether any server has answered.
    pub fn has_any(&self) -> bool {
        self.servers.iter().any(|answer| answer.status.is_ok())
    }

    /// What each server has said.
    pub fn servers(&self) -> &[Answer] {
        &self.servers
    }
}

impl Answer {
    fn of((server, status): (ServerInfo, weft_client::Result<StatusReply>)) -> Answer {
        Answer {
            role: if server.role == server_role::META { "meta" } else { "io" },
            address: server.address().to_owned(),
            status: status.map_err(|error| cause_of(error.kind(), error.detail())),
            name: server.name,
        }
    }
}

/// The system's words for connections that fail, which errors contain.
const REASONS: [&str; 5] =
    ["Connection refused", "No route to host", "Network is unreachable", "timed out", "Permission denied"];

/// Why a server does not answer, in a few words; empty if there is no more to say of it.
fn cause_of(kind: ErrorKind, detail: &str) -> String {
    match kind {
        ErrorKind::Unreachable => {
            let reason = REASONS.iter().find(|reason| detail.contains(*reason));
            reason.map_or(String::new(), |reason| reason.to_lowercase())
        }
        _ => detail.to_owned(),
    }
}

/// What a server did, per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerLoad {
    /// Its name.
    pub server: String,
    /// "meta" or "io".
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
    /// Size of its disk.
    pub space_bytes: u64,
    /// The first server that has the same disk, if it is another one.
    pub on_disk_of: Option<String>,
    /// See [`StatusReply::disk_id`].
    #[serde(skip)]
    pub disk_id: [u8; 16],
}

/// Space of disks, each counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Capacity {
    /// Size of all of them.
    pub space_bytes: u64,
    /// Free space on all of them.
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
    /// The user, in words: see [`user_of`].
    pub user: String,
    /// The name of its key; empty if it has none.
    pub key: String,
    /// Requests to all servers.
    pub requests_per_s: f64,
    /// Bytes of files that it read.
    pub read_bytes_per_s: f64,
    /// Bytes of files that it wrote.
    pub written_bytes_per_s: f64,
}

/// What the servers do among each other, and this command at them, per second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct InternalLoad {
    /// Connections, at all servers.
    pub connections: u32,
    /// Requests on them.
    pub requests_per_s: f64,
    /// Bytes of files that were read by them.
    pub read_bytes_per_s: f64,
    /// Bytes of files that were written by them.
    pub written_bytes_per_s: f64,
}

impl InternalLoad {
    /// The words for it in tables.
    pub const WORDS: &str = "internal: servers, this command";
}

/// What clients of a user did, per second, that have ended by now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndedLoad {
    /// As of [`ClientLoad`].
    pub user: String,
    /// The name of their key; empty if they had none.
    pub key: String,
    /// Requests to all servers.
    pub requests_per_s: f64,
    /// Bytes of files that they read.
    pub read_bytes_per_s: f64,
    /// Bytes of files that they wrote.
    pub written_bytes_per_s: f64,
}

impl EndedLoad {
    /// The words for it in tables.
    pub const WORDS: &str = "clients that have ended";
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
    /// Of clients that have ended meanwhile, the busiest first.
    pub ended: Vec<EndedLoad>,
    /// Of connections that are no client's.
    pub internal: InternalLoad,
    /// By file, the busiest first.
    pub files: Vec<FileLoad>,
}

impl Load {
    /// What was done between two looks. A server that was restarted meanwhile counts from its start.
    pub fn between(first: &Look, second: &Look) -> Load {
        let seconds = second.at.duration_since(first.at).as_secs_f64().max(1e-9);
        let before: HashMap<&str, &StatusReply> = first.answers().collect();
        let before_of = |name: &str, now: &StatusReply| {
            before.get(name).copied().filter(|before| before.process_id == now.process_id)
        };
        let of_server = |answer: &Answer| match &answer.status {
            Err(_) => ServerLoad { role: answer.role.into(), ..ServerLoad::of_none(&answer.name) },
            Ok(now) => ServerLoad::between(before_of(&answer.name, now), now, seconds),
        };
        let mut servers: Vec<ServerLoad> = second.servers.iter().map(of_server).collect();
        let pairs: Vec<_> = second.answers().map(|(name, now)| (before_of(name, now), now)).collect();
        let disks = servers.iter().filter(|server| server.up).map(|server| (&*server.server, server.disk_id));
        let mut shared = shared_disks(disks);
        servers.iter_mut().for_each(|server| server.on_disk_of = shared.remove(&server.server));
        let (clients, internal) = clients_between(first, second, seconds);
        let ended = ended_between(first, second, seconds);
        Load { seconds, servers, clients, ended, internal, files: busy_files::between(&pairs, seconds) }
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
            total.up |= server.up;
        }
        let all = self.capacity_of(|_| true);
        (total.space_bytes, total.free_bytes) = (all.space_bytes, all.free_bytes);
        total
    }

    /// The space for the data of files: disks of I/O servers.
    pub fn capacity(&self) -> Capacity {
        self.capacity_of(|server| server.role == "io")
    }

    fn capacity_of(&self, counts: impl Fn(&ServerLoad) -> bool) -> Capacity {
        let (mut all, mut counted) = (Capacity::default(), HashSet::new());
        for server in self.servers.iter().filter(|server| server.up && counts(server)) {
            if server.disk_id == UNKNOWN_DISK || counted.insert(server.disk_id) {
                all.space_bytes += server.space_bytes;
                all.free_bytes += server.free_bytes;
            }
        }
        all
    }
}

/// Servers, by name, that have the disk of an earlier one, which is named.
pub fn shared_disks<'a>(disks: impl IntoIterator<Item = (&'a str, [u8; 16])>) -> HashMap<String, String> {
    let mut first: HashMap<[u8; 16], &str> = HashMap::new();
    let mut shared = HashMap::new();
    for (server, disk) in disks.into_iter().filter(|(_, disk)| *disk != UNKNOWN_DISK) {
        match first.entry(disk) {
            Entry::Occupied(other) => drop(shared.insert(server.to_owned(), (*other.get()).to_owned())),
            Entry::Vacant(place) => drop(place.insert(server)),
        }
    }
    shared
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
            space_bytes: 0,
            on_disk_of: None,
            disk_id: UNKNOWN_DISK,
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
            space_bytes: now.space_bytes,
            on_disk_of: None,
            disk_id: now.disk_id.0,
        }
    }
}

/// Counts of a client at a server: requests, bytes read, bytes written.
type Done = [u64; 3];

/// A client, as a server lists it. A server of an earlier version says nothing of its use.
struct Listed<'a> {
    server: &'a str,
    info: &'a ClientInfo,
    used: ClientUse,
}

impl Listed<'_> {
    fn done(&self) -> Done {
        [self.info.requests, self.used.read_bytes, self.used.written_bytes]
    }

    /// Whether it is a server, or this process.
    fn is_internal(&self) -> bool {
        match self.used.acts_for {
            acts_for::SERVERS => true,
            acts_for::UNKNOWN if self.info.program == SERVER_PROGRAM => true,
            _ => self.info.process_id == std::process::id() && self.info.host == weft_host::name(),
        }
    }
}

/// What servers call themselves at each other.
const SERVER_PROGRAM: &str = "weft server";

/// The clients of a server, and what they did, as far as it says.
pub fn clients_of(status: &StatusReply) -> impl Iterator<Item = (&ClientInfo, ClientUse)> {
    let uses = status.client_uses.0.iter().cloned().chain(std::iter::repeat(ClientUse::default()));
    status.client_list.iter().zip(uses)
}

fn listed(look: &Look) -> Vec<Listed<'_>> {
    let of_server =
        |(server, status)| clients_of(status).map(move |(info, used)| Listed { server, info, used });
    look.answers().flat_map(of_server).collect()
}

/// Servers whose list of clients was not whole.
fn shortened(look: &Look) -> HashSet<&str> {
    let is_short = |status: &StatusReply| (status.client_list.len() as u64) < u64::from(status.clients);
    look.answers().filter(|(_, status)| is_short(status)).map(|(server, _)| server).collect()
}

fn clients_between(first: &Look, second: &Look, seconds: f64) -> (Vec<ClientLoad>, InternalLoad) {
    let (before, was_short) = (listed(first), shortened(first));
    let known: HashMap<(&str, [u8; 16]), Done> =
        before.iter().map(|client| ((client.server, client.info.session), client.done())).collect();
    let (mut all, mut internal) = (HashMap::<[u8; 16], ClientLoad>::new(), InternalLoad::default());
    for client in &listed(second) {
        let now = client.done();
        let unknown = if was_short.contains(client.server) { now } else { [0; 3] };
        let before = known.get(&(client.server, client.info.session)).copied().unwrap_or(unknown);
        let rate = |at: usize| now[at].saturating_sub(before[at]) as f64 / seconds;
        let [requests, read, written] = [rate(0), rate(1), rate(2)];
        if client.is_internal() {
            internal.connections += client.info.connections;
            internal.requests_per_s += requests;
            internal.read_bytes_per_s += read;
            internal.written_bytes_per_s += written;
            continue;
        }
        let load = all.entry(client.info.session).or_insert_with(|| ClientLoad {
            host: client.info.host.clone(),
            program: client.info.program.clone(),
            process_id: client.info.process_id,
            transport: client.info.transport.clone(),
            user: user_of(&client.info.program, &client.used),
            key: client.used.key.clone(),
            requests_per_s: 0.0,
            read_bytes_per_s: 0.0,
            written_bytes_per_s: 0.0,
        });
        load.requests_per_s += requests;
        load.read_bytes_per_s += read;
        load.written_bytes_per_s += written;
    }
    let mut all: Vec<ClientLoad> = all.into_values().collect();
    let key = |client: &ClientLoad| (client.host.clone(), client.process_id);
    all.sort_by(|one, other| other.load().total_cmp(&one.load()).then_with(|| key(one).cmp(&key(other))));
    (all, internal)
}

/// What servers have counted for clients that have ended, but for what these had done at the first look.
fn ended_between(first: &Look, second: &Look, seconds: f64) -> Vec<EndedLoad> {
    let now: HashSet<_> = listed(second).iter().map(|client| (client.server, client.info.session)).collect();
    let mut old: HashMap<(&str, User), Done> = HashMap::new();
    let mut add = |server, used: &ClientUse, done: Done| {
        let sum = old.entry((server, whose(used))).or_default();
        (0..3).for_each(|at| sum[at] += done[at]);
    };
    let before = listed(first);
    for gone in before.iter().filter(|client| !now.contains(&(client.server, client.info.session))) {
        add(gone.server, &gone.used, gone.done());
    }
    for (server, status) in first.answers() {
        status.ended_uses.0.iter().for_each(|ended| add(server, &ended.by, done_of(ended)));
    }
    let mut all: HashMap<(String, String), EndedLoad> = HashMap::new();
    for (server, status) in
        second.answers().filter(|(server, _)| first.answers().any(|(one, _)| one == *server))
    {
        for ended in status.ended_uses.0.iter().filter(|ended| ended.by.acts_for != acts_for::SERVERS) {
            let (now, old) =
                (done_of(ended), old.get(&(server, whose(&ended.by))).copied().unwrap_or_default());
            let rate = |at: usize| now[at].saturating_sub(old[at]) as f64 / seconds;
            let (user, key) = (user_of("", &ended.by), ended.by.key.clone());
            let load = all.entry((user.clone(), key.clone())).or_insert(EndedLoad {
                user,
                key,
                requests_per_s: 0.0,
                read_bytes_per_s: 0.0,
                written_bytes_per_s: 0.0,
            });
            load.requests_per_s += rate(0);
            load.read_bytes_per_s += rate(1);
            load.written_bytes_per_s += rate(2);
        }
    }
    let mut all: Vec<EndedLoad> = all.into_values().filter(|load| load.requests_per_s > 0.0).collect();
    all.sort_by(|one, other| {
        let bytes = |load: &EndedLoad| load.read_bytes_per_s + load.written_bytes_per_s;
        bytes(other)
            .total_cmp(&bytes(one))
            .then_with(|| (&one.user, &one.key).cmp(&(&other.user, &other.key)))
    });
    all
}

/// For whom a client acts, its user, and the name of its key.
type User = (u8, Option<u32>, String);

fn whose(used: &ClientUse) -> User {
    (used.acts_for, used.uid, used.key.clone())
}

fn done_of(ended: &EndedUse) -> Done {
    [ended.requests, ended.by.read_bytes, ended.by.written_bytes]
}

impl ClientLoad {
    fn load(&self) -> f64 {
        self.requests_per_s + (self.read_bytes_per_s + self.written_bytes_per_s) / busy_files::BYTES_PER_LOAD
    }
}

/// Programs that act for all users of a host begin their names so.
pub const MOUNT_PROGRAM: &str = "weft mount ";

/// The user of a client, in words: its name on this host or its number; "any user" of a client that acts for all users and does not
/// say for which; "server" of one; empty if the server does not say.
pub fn user_of(program: &str, used: &ClientUse) -> String {
    let for_many = [MOUNT_PROGRAM, GATEWAY_PROGRAM].iter().any(|many| program.starts_with(many));
    match (used.acts_for, used.uid) {
        (acts_for::UNKNOWN, _) => String::new(),
        (acts_for::SERVERS, _) => "server".into(),
        (acts_for::ONE_USER, Some(uid)) => output::user_name(uid),
        (_, Some(uid)) if !for_many => output::user_name(uid),
        (acts_for::ALL_BUT_ROOT, _) => "any user but root".into(),
        _ => "any user".into(),
    }
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

    fn answer(name: &str, status: Option<StatusReply>) -> Answer {
        let named = |status| StatusReply { name: name.into(), ..status };
        let status = status.map(named).ok_or("it is down".into());
        Answer { name: name.into(), role: "io", address: "a:1".into(), status }
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
            servers: vec![answer("io0", status)],
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
    /// Two looks, 2 seconds apart.
    fn looks(first: Vec<Answer>, second: Vec<Answer>) -> [Look; 2] {
        let now = Instant::now();
        let look = |at, servers| Look { at, asked_us: (0, 0), servers };
        [look(now, first), look(now + Duration::from_secs(2), second)]
    }

    #[test]
    fn a_disk_that_servers_share_counts_once() {
        let on = |disk: u8, role: &str| StatusReply {
            role: role.into(),
            disk_id: weft_wire::Added([disk; 16]),
            space_bytes: 100,
            free_bytes: 30,
            ..status(1, &[])
        };
        let servers = |_| {
            [("meta0", 1, "meta"), ("io0", 1, "io"), ("io1", 1, "io"), ("io2", 2, "io"), ("io3", 0, "io")]
                .map(|(name, disk, role)| answer(name, Some(on(disk, role))))
                .into()
        };
        let [first, second] = looks(servers(0), servers(1));
        let load = Load::between(&first, &second);
        let shared: Vec<_> = load.servers.iter().map(|server| server.on_disk_of.as_deref()).collect();
        assert_eq!(shared, [None, Some("meta0"), Some("meta0"), None, None]);
        assert_eq!(load.capacity(), Capacity { space_bytes: 300, free_bytes: 90 });
        assert_eq!(load.total().free_bytes, 90);
    }

    fn client(name: u8, program: &str, requests: u64, used: ClientUse) -> (ClientInfo, ClientUse) {
        let info = ClientInfo {
            session: [name; 16],
            host: "node".into(),
            program: program.into(),
            process_id: name.into(),
            transport: "tcp".into(),
            connections: 2,
            requests,
        };
        (info, used)
    }

    fn used(acts_for: u8, uid: Option<u32>, read_bytes: u64, written_bytes: u64) -> ClientUse {
        ClientUse { acts_for, uid, key: String::new(), read_bytes, written_bytes }
    }

    fn serving(clients: Vec<(ClientInfo, ClientUse)>) -> StatusReply {
        let count = clients.len() as u32;
        let (client_list, uses) = clients.into_iter().unzip();
        let client_uses = weft_wire::Added(uses);
        StatusReply { client_list, client_uses, clients: count, ..status(1, &[]) }
    }

    #[test]
    fn clients_have_users_and_bytes_and_what_is_internal_is_one_row() {
        let own = |requests| {
            let (mut info, used) = client(9, "weft", requests, used(acts_for::ALL, Some(0), 0, 0));
            (info.host, info.process_id) = (weft_host::name(), std::process::id());
            (info, used)
        };
        let user = |read, written| used(acts_for::ONE_USER, Some(4_000_000_000), read, written);
        let before = serving(vec![
            client(1, "job", 10, user(1 << 20, 0)),
            client(3, "weft server", 5, used(acts_for::SERVERS, None, 0, 0)),
            own(1),
        ]);
        let after = serving(vec![
            client(1, "job", 14, user(3 << 20, 2 << 20)),
            client(2, "weft mount /mnt", 2, used(acts_for::ALL, Some(0), 0, 4096)),
            client(3, "weft server", 15, used(acts_for::SERVERS, None, 0, 512)),
            own(3),
        ]);
        let [first, second] = looks(vec![answer("io0", Some(before))], vec![answer("io0", Some(after))]);
        let load = Load::between(&first, &second);
        let seen: Vec<_> = load
            .clients
            .iter()
            .map(|client| (client.program.as_str(), client.user.as_str(), client.requests_per_s))
            .collect();
        assert_eq!(seen, [("job", "4000000000", 2.0), ("weft mount /mnt", "any user", 1.0)]);
        assert_eq!(load.clients[0].read_bytes_per_s, 1_048_576.0);
        assert_eq!(load.clients[0].written_bytes_per_s, 1_048_576.0);
        assert_eq!(load.clients[1].written_bytes_per_s, 2048.0);
        let internal = InternalLoad {
            connections: 4,
            requests_per_s: 6.0,
            read_bytes_per_s: 0.0,
            written_bytes_per_s: 256.0,
        };
        assert_eq!(load.internal, internal);
    }

    #[test]
    fn a_client_that_was_not_in_a_list_that_was_not_whole_did_not_do_all_of_it_now() {
        let entry = |requests| client(1, "job", requests, used(acts_for::ALL, None, requests << 20, 0));
        let short = StatusReply { clients: 1000, ..serving(Vec::new()) };
        let [first, second] =
            looks(vec![answer("io0", Some(short))], vec![answer("io0", Some(serving(vec![entry(1 << 30)])))]);
        assert_eq!(Load::between(&first, &second).clients[0].requests_per_s, 0.0);
    }

    #[test]
    fn what_clients_did_that_have_ended_is_their_users() {
        let user = |read_bytes| used(acts_for::ONE_USER, Some(4_000_000_000), read_bytes, 0);
        let ended = |read_bytes, requests| EndedUse { by: user(read_bytes), requests };
        let with_ended =
            |clients, ended| StatusReply { ended_uses: weft_wire::Added(vec![ended]), ..serving(clients) };
        // One of 100 bytes had ended before; of that with 1000 bytes 200 are new, and one came and ended with 300.
        let before = with_ended(vec![client(1, "job", 10, user(1000))], ended(100, 4));
        let after = with_ended(Vec::new(), ended(100 + 1200 + 300, 4 + 12 + 2));
        let [first, second] = looks(vec![answer("io0", Some(before))], vec![answer("io0", Some(after))]);
        let expected = EndedLoad {
            user: "4000000000".into(),
            key: String::new(),
            requests_per_s: 2.0,
            read_bytes_per_s: 250.0,
            written_bytes_per_s: 0.0,
        };
        assert_eq!(Load::between(&first, &second).ended, [expected]);
        assert_eq!(Load::between(&second, &second).ended, [], "long ago");
    }

    #[test]
    fn a_cause_is_said_if_there_is_one() {
        let of = |detail| cause_of(ErrorKind::Unreachable, detail);
        let long =
            "connect: server io1: cannot connect to server a:1: Connection refused (os error 111); check";
        assert_eq!(of(long), "connection refused");
        assert_eq!(of("it did not come back within 0 ms; last: it does not answer others"), "");
        assert_eq!(cause_of(ErrorKind::Untrusted, "it is no Weft server"), "it is no Weft server");
    }

    #[test]
    fn users_are_named_as_far_as_they_are_known() {
        let of = |program: &str, acts: u8, uid| user_of(program, &used(acts, uid, 0, 0));
        assert_eq!(of("job", acts_for::ONE_USER, Some(0)), "root");
        assert_eq!(of("weft", acts_for::ALL, Some(0)), "root", "the kernel says so");
        assert_eq!(of("weft mount /m", acts_for::ALL, Some(0)), "any user");
        assert_eq!(of("NFS gateway nfs0", acts_for::ALL, None), "any user");
        assert_eq!(of("weft mount /m", acts_for::ALL_BUT_ROOT, None), "any user but root");
        assert_eq!(of("weft server", acts_for::SERVERS, None), "server");
        assert_eq!(of("job", acts_for::UNKNOWN, None), "", "an earlier version");
    }
}
