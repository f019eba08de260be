//! What a server has done, counted without locks, and who is connected.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use weft_metrics::Histogram;
use weft_wire::messages::{ClientInfo, Gauge, HelloRequest, OpCount};
use weft_wire::security::session_name;
use weft_wire::{Op, Status};

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

/// Clients with at least one connection.
#[derive(Default)]
pub(crate) struct Clients {
    table: Mutex<HashMap<[u8; 16], Client>>,
}

struct Client {
    info: ClientInfo,
    requests: Arc<AtomicU64>,
}

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

    /// Notes a proven connection; the returned number counts its client's requests.
    pub fn connected(&self, hello: &HelloRequest, transport: String) -> Arc<AtomicU64> {
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
            requests: Arc::default(),
        });
        client.info.connections += 1;
        client.info.transport = transport;
        client.requests.clone()
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
            if client.info.connections == 0 {
                table.remove(session);
            }
        }
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

    /// The first `max` of them, by host and process.
    pub fn list(&self, max: usize) -> Vec<ClientInfo> {
        let with_requests = |client: &Client| ClientInfo {
            requests: client.requests.load(Ordering::Relaxed),
            ..client.info.clone()
        };
        let mut all: Vec<ClientInfo> = self.lock().values().map(with_requests).collect();
        all.sort_by(|a, b| (&a.host, a.process_id).cmp(&(&b.host, b.process_id)));
        all.truncate(max);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::Wire;

    #[test]
    fn every_operation_has_a_counter_of_its_own() {
        assert!(Op::ALL.iter().all(|op| (*op as usize) < OP_NUMBERS));
    }

    #[test]
    fn a_list_gives_no_session_away_and_keeps_words_short() {
        let clients = Clients::default();
        let hello = HelloRequest { program: "ä".repeat(900), ..HelloRequest::sample(&mut 0) };
        clients.connected(&hello, "tcp".into());
        let listed = clients.list(10);
        assert_ne!(listed[0].session, hello.session);
        assert_eq!(listed[0].program, "ä".repeat(64));
    }

    #[test]
    fn a_client_is_listed_while_it_has_connections() {
        let clients = Clients::default();
        let hello = HelloRequest::sample(&mut 0);
        let requests = clients.connected(&hello, "tcp".into());
        clients.connected(&hello, "shm direct".into());
        requests.fetch_add(3, Ordering::Relaxed);
        clients.disconnected(&hello.session);
        let listed = clients.list(10);
        assert_eq!((listed.len(), listed[0].connections, listed[0].requests), (1, 1, 3));
        clients.disconnected(&hello.session);
        assert_eq!(clients.count(), 0);
    }
}
