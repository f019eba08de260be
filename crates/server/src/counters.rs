//! What a server has done, counted without locks, and who is connected.

use crate::identity::Session;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use weft_metrics::Histogram;
use weft_wire::messages::{ClientInfo, ClientUse, EndedUse, Gauge, OpCount};
use weft_wire::security::session_name;
use weft_wire::{Op, Status, Wire};

/// Operation numbers are below this; the table of counters is indexed by them.
const OP_NUMBERS: usize = 0x300;

#[derive(Default)]
struct OpCounter {
    count: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
}

/// How long operations took, and how they failed: kept where somebody looks at metrics.
struct Timed {
    /// By number of the operation; of those that this server does.
    times: Vec<Histogram>,
    /// By number of the status.
    failures: Vec<AtomicU64>,
}

impl Timed {
    fn new() -> Timed {
        Timed {
            times: Op::ALL.iter().map(|_| Histogram::default()).collect(),
            failures: Status::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

/// Counters of all operations and gauges of the parts, shared by all threads of a server.
pub(crate) struct Counters {
    ops: Vec<OpCounter>,
    /// Requests whose handler has begun and not ended.
    pub active_requests: AtomicU64,
    /// Connections that did not prove themselves in time or at all.
    pub refused_connections: AtomicU64,
    /// Connections cut because they broke the protocol after proving themselves.
    pub cut_connections: AtomicU64,
    /// Requests that came with the last credit of their connection.
    pub credits_used_up: AtomicU64,
    gauges: Mutex<HashMap<&'static str, Arc<AtomicU64>>>,
    timed: OnceLock<Timed>,
    /// Gauges that a thread of the server says from time to time.
    told: Mutex<Vec<Gauge>>,
}

impl Counters {
    pub fn new() -> Counters {
        Counters {
            ops: (0..OP_NUMBERS).map(|_| OpCounter::default()).collect(),
            active_requests: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            cut_connections: AtomicU64::new(0),
            credits_used_up: AtomicU64::new(0),
            gauges: Mutex::default(),
            timed: OnceLock::new(),
            told: Mutex::default(),
        }
    }

    /// From now on times and failures are kept.
    pub fn keep_times(&self) {
        self.timed.get_or_init(Timed::new);
    }

    /// Whether the times of operations are kept.
    pub fn keeps_times(&self) -> bool {
        self.timed.get().is_some()
    }

    /// Says gauges that only one thread of the server knows.
    pub fn tell(&self, gauges: Vec<Gauge>) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = gauges;
    }

    /// What was said last.
    pub fn told(&self) -> Vec<Gauge> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Times of the operations that were done at least once.
    pub fn times(&self) -> impl Iterator<Item = (Op, &Histogram)> {
        let times = self.timed.get().map_or(&[][..], |timed| &timed.times);
        let all = Op::ALL.iter().copied().zip(times);
        all.filter(|(op, _)| self.count_of(&[*op]) > 0)
    }

    /// How often a status was the answer.
    pub fn failures(&self) -> impl Iterator<Item = (Status, u64)> {
        let failures = self.timed.get().map_or(&[][..], |timed| &timed.failures);
        let all = Status::ALL.iter().copied().zip(failures);
        all.map(|(status, count)| (status, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
    }

    /// Notes the end of an operation that moved `bytes` of a file. `took` is known where times are kept.
    pub fn done(&self, op: Op, status: Status, bytes: u64, took: Option<Duration>) {
        let counter = &self.ops[op as usize % OP_NUMBERS];
        counter.count.fetch_add(1, Ordering::Relaxed);
        if let Some((timed, took)) = self.timed.get().zip(took) {
            timed.times[op.index()].note(took);
            if status != Status::Ok {
                timed.failures[status as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        if status != Status::Ok {
            counter.errors.fetch_add(1, Ordering::Relaxed);
        }
        if bytes > 0 {
            counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How often any of these operations was done.
    pub fn count_of(&self, ops: &[Op]) -> u64 {
        ops.iter().map(|op| self.ops[*op as usize % OP_NUMBERS].count.load(Ordering::Relaxed)).sum()
    }

    /// A number that a part of the server keeps; the same for every caller that gives this name.
    pub fn gauge(&self, name: &'static str) -> Arc<AtomicU64> {
        self.lock_gauges().entry(name).or_default().clone()
    }

    fn lock_gauges(&self) -> MutexGuard<'_, HashMap<&'static str, Arc<AtomicU64>>> {
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations that were done at least once.
    pub fn operations(&self) -> Vec<OpCount> {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let counts = Op::ALL.iter().map(|op| {
            let counter = &self.ops[*op as usize % OP_NUMBERS];
            OpCount {
                op: *op as u16,
                count: load(&counter.count),
                errors: load(&counter.errors),
                bytes: load(&counter.bytes),
            }
        });
        counts.filter(|count| count.count > 0).collect()
    }

    /// All gauges, by name.
    pub fn gauges(&self) -> Vec<Gauge> {
        let fixed = [
            ("connections_refused", &self.refused_connections),
            ("connections_cut", &self.cut_connections),
            ("credits_used_up", &self.credits_used_up),
        ];
        let mut all: Vec<Gauge> = fixed.iter().map(|(name, value)| gauge(name, value)).collect();
        all.extend(self.lock_gauges().iter().map(|(name, value)| gauge(name, value)));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

fn gauge(name: &str, value: &AtomicU64) -> Gauge {
    Gauge { name: name.to_owned(), value: value.load(Ordering::Relaxed) }
}

/// Clients with at least one connection, and what those did that had one.
#[derive(Default)]
pub(crate) struct Clients {
    table: Mutex<HashMap<[u8; 16], Client>>,
    ended: Mutex<HashMap<User, Done>>,
}

struct Client {
    info: ClientInfo,
    user: User,
    done: Arc<ClientDone>,
}

/// For whom a client acts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct User {
    acts_for: u8,
    uid: Option<u32>,
    key: String,
}

/// Requests, and bytes read and written.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl User {
    fn with(&self, done: Done) -> ClientUse {
        ClientUse {
            acts_for: self.acts_for,
            uid: self.uid,
            key: self.key.clone(),
            read_bytes: done.read_bytes,
            written_bytes: done.written_bytes,
        }
    }
}

/// Counts of a client over all its connections.
#[derive(Default)]
pub(crate) struct ClientDone {
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl ClientDone {
    fn so_far(&self) -> Done {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Done {
            requests: load(&self.requests),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
        }
    }

    /// Notes a request that is done, and the bytes of a file that it moved.
    pub fn note(&self, op: Op, moved_bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if moved_bytes > 0 {
            let bytes = if op.reads_file() { &self.read_bytes } else { &self.written_bytes };
            bytes.fetch_add(moved_bytes, Ordering::Relaxed);
        }
    }
}

/// So many bytes of files count as much as a request where the busiest clients are chosen.
const BYTES_PER_REQUEST: u64 = 64 << 10;
/// Users whose ended clients are counted apart; those of others are counted together.
const ENDED_USERS_MAX: usize = 64;
/// Bytes of what a client says of itself that are kept.
const WORDS_BYTES_MAX: usize = 128;

pub(crate) fn shortened(words: &str) -> String {
    let mut ends = (0..=words.len().min(WORDS_BYTES_MAX)).rev();
    let end = ends.find(|at| words.is_char_boundary(*at)).unwrap_or(0);
    words[..end].to_owned()
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Client>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a proven connection; what its client does is to be noted in the returned value. `uid` is the user of its process, where
    /// the kernel says that.
    pub fn connected(&self, session: &Session, transport: String, uid: Option<u32>) -> Arc<ClientDone> {
        let Session { hello, identity, .. } = session;
        let mut table = self.lock();
        let client = table.entry(hello.session).or_insert_with(|| Client {
            info: ClientInfo {
                session: session_name(&hello.session),
                host: shortened(&hello.host),
                program: shortened(&hello.program),
                process_id: hello.process_id,
                transport: String::new(),
                connections: 0,
                requests: 0,
            },
            user: User {
                acts_for: identity.acts_for(),
                uid: identity.only_user().or(uid),
                key: identity.key().map_or(String::new(), |key| key.name.clone()),
            },
            done: Arc::default(),
        });
        client.info.connections += 1;
        client.info.transport = transport;
        // Its first connection may have been over TCP.
        client.user.uid = client.user.uid.or(uid);
        client.done.clone()
    }

    /// Notes how a client's connection works now, where that is known only after its set-up.
    pub fn transport_is(&self, session: &[u8; 16], transport: String) {
        if let Some(client) = self.lock().get_mut(session) {
            client.info.transport = transport;
        }
    }

    /// Notes the end of a connection.
    pub fn disconnected(&self, session: &[u8; 16]) {
        let mut table = self.lock();
        if let Some(client) = table.get_mut(session) {
            client.info.connections -= 1;
            if client.info.connections == 0
                && let Some(client) = table.remove(session)
            {
                self.end(client);
            }
        }
    }

    fn end(&self, client: Client) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let has_place = ended.len() < ENDED_USERS_MAX || ended.contains_key(&client.user);
        let sum = ended.entry(if has_place { client.user } else { User::default() }).or_default();
        let done = client.done.so_far();
        sum.requests += done.requests;
        sum.read_bytes += done.read_bytes;
        sum.written_bytes += done.written_bytes;
    }

    /// What clients did that have ended, by user.
    pub fn ended(&self) -> Vec<EndedUse> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user =
            |(user, done): (&User, &Done)| EndedUse { by: user.with(*done), requests: done.requests };
        ended.iter().map(of_user).collect()
    }

    /// How many have connected by each transport, by its first word: "tcp", "shm", "rdma".
    pub fn by_transport(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for client in self.lock().values() {
            let word = client.info.transport.split(' ').next().unwrap_or("").to_owned();
            *all.entry(word).or_default() += u64::from(client.info.connections);
        }
        all
    }

    /// Their number.
    pub fn count(&self) -> u32 {
        self.lock().len() as u32
    }

    /// Them and what they did, by host and process: those that did most, within so many bytes of a message.
    pub fn list(&self, bytes_max: usize) -> (Vec<ClientInfo>, Vec<ClientUse>) {
        let now = |client: &Client| {
            let done = client.done.so_far();
            (ClientInfo { requests: done.requests, ..client.info.clone() }, client.user.with(done))
        };
        let mut all: Vec<(ClientInfo, ClientUse)> = self.lock().values().map(now).collect();
        all.sort_by_key(|(info, done)| {
            Reverse(info.requests.saturating_add((done.read_bytes + done.written_bytes) / BYTES_PER_REQUEST))
        });
        let mut bytes = 0;
        let listed = all.into_iter().take_while(|(info, done)| {
            bytes += info.to_bytes().len() + done.to_bytes().len();
            bytes <= bytes_max
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by(|(a, _), (b, _)| (&a.host, a.process_id).cmp(&(&b.host, b.process_id)));
        listed.into_iter().unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use weft_wire::keys::{KeyInfo, KeyKind};
    use weft_wire::messages::{HelloRequest, acts_for};

    #[test]
    fn every_operation_has_a_counter_of_its_own() {
        assert!(Op::ALL.iter().all(|op| (*op as usize) < OP_NUMBERS));
    }

    fn session(hello: HelloRequest, identity: Identity) -> Session {
        Session::new(hello, identity)
    }

    #[test]
    fn a_list_gives_no_session_away_and_keeps_words_short() {
        let clients = Clients::default();
        let hello = HelloRequest { program: "ä".repeat(900), ..HelloRequest::sample(&mut 0) };
        let session = session(hello, Identity::server());
        clients.connected(&session, "tcp".into(), None);
        let (listed, _) = clients.list(1000);
        assert_ne!(listed[0].session, session.hello.session);
        assert_eq!(listed[0].program, "ä".repeat(64));
    }

    #[test]
    fn a_client_is_listed_while_it_has_connections() {
        let clients = Clients::default();
        let session = session(HelloRequest::sample(&mut 0), Identity::server());
        let done = clients.connected(&session, "tcp".into(), None);
        clients.connected(&session, "shm direct".into(), Some(7));
        done.note(Op::Read, 4096);
        done.note(Op::WriteSmall, 10);
        done.note(Op::Lookup, 0);
        clients.disconnected(&session.hello.session);
        let (listed, uses) = clients.list(1000);
        assert_eq!((listed.len(), listed[0].connections, listed[0].requests), (1, 1, 3));
        assert_eq!((uses[0].uid, uses[0].read_bytes, uses[0].written_bytes), (Some(7), 4096, 10));
        assert_eq!(clients.ended(), []);
        clients.disconnected(&session.hello.session);
        assert_eq!(clients.count(), 0);
        let [ended] = &clients.ended()[..] else { panic!("{:?}", clients.ended()) };
        assert_eq!((ended.requests, &ended.by), (3, &uses[0]));
    }

    #[test]
    fn what_ended_clients_did_takes_bounded_memory() {
        let clients = Clients::default();
        for uid in 0..1000 {
            let kind = KeyKind::User { uid, gids: vec![1] };
            let key = KeyInfo { kind, ..KeyInfo::sample(&mut 0) };
            let session = session(HelloRequest::sample(&mut 0), Identity::of_key(&key));
            clients.connected(&session, "tcp".into(), None).note(Op::Read, 1);
            clients.disconnected(&session.hello.session);
        }
        let ended = clients.ended();
        assert_eq!(ended.len(), ENDED_USERS_MAX + 1);
        assert_eq!(ended.iter().map(|ended| ended.by.read_bytes).sum::<u64>(), 1000);
    }

    #[test]
    fn a_list_says_for_whom_a_client_acts() {
        let clients = Clients::default();
        let key = |kind| KeyInfo { kind, name: "k".into(), ..KeyInfo::sample(&mut 0) };
        let user = key(KeyKind::User { uid: 1000, gids: vec![1] });
        let host = key(KeyKind::Host { squash_root: true });
        let identities = [Identity::server(), Identity::of_key(&user), Identity::of_key(&host)];
        for (process_id, identity) in (0..).zip(identities) {
            let session_id = [process_id as u8; 16];
            let hello = HelloRequest {
                process_id,
                session: session_id,
                host: String::new(),
                ..HelloRequest::sample(&mut 0)
            };
            clients.connected(&session(hello, identity), "shm direct".into(), Some(7));
        }
        let (_, uses) = clients.list(10_000);
        let seen: Vec<_> = uses.iter().map(|one| (one.acts_for, one.uid, one.key.as_str())).collect();
        let expected = [
            (acts_for::SERVERS, Some(7), ""),
            (acts_for::ONE_USER, Some(1000), "k"),
            (acts_for::ALL_BUT_ROOT, Some(7), "k"),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_list_that_is_too_long_has_the_busiest() {
        let clients = Clients::default();
        for process_id in 0..100u32 {
            let hello = HelloRequest {
                process_id,
                session: [process_id as u8; 16],
                host: "node".into(),
                program: "p".into(),
                ..HelloRequest::sample(&mut 0)
            };
            let done = clients.connected(&session(hello, Identity::server()), "tcp".into(), None);
            if process_id % 10 == 7 {
                done.note(Op::Write, 100 << 20);
            }
        }
        let (listed, uses) = clients.list(700);
        assert_eq!(listed.len(), uses.len());
        let bytes: usize = listed.iter().map(|one| one.to_bytes().len()).sum();
        assert!(bytes <= 700 && listed.len() >= 5, "{bytes} bytes of {} clients", listed.len());
        assert!(listed.iter().all(|client| client.process_id % 10 == 7), "{listed:?}");
        assert!(listed.is_sorted_by_key(|client| client.process_id));
    }
}
