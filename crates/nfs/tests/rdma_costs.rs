//! What READ and WRITE over RDMA ask of both sides' adapters, for both designs and all ways to register memory: the
//! figures of docs/benchmarks.md. `--nocapture` prints them.
//!
//! ```text
//!   gateway (design, memory) ◄─ on the double of verbs ─► client (design, memory)
//!      its counts, each call                              its counts, each call
//!              └────────── × costs of a registration, a page, a work request, … ──────┘
//! ```

mod common;
mod serving;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::Cluster;
use weft_nfs::{Listeners, RdmaDesign, RdmaMemory, RdmaOptions, Serving};
use weft_nfs_client as client;
use weft_nfs_client::{AuthSys, ConnectOptions, CreateHow, FileHandle, NfsClient, NfsUrl, SetAttr, Stable};
use weft_onc_server::RdmaListener;
use weft_verbs::Counts;
use weft_verbs_double::{Adapter, Pretend, PretendOptions};

const SIZES: [usize; 3] = [4 << 10, 128 << 10, FILE_BYTES];
const FILE_BYTES: usize = 1 << 20;
/// A multiple of the messages of which one reports its end.
const CALLS: u64 = 32;

const SERVERS: [(RdmaDesign, RdmaMemory); 7] = [
    (RdmaDesign::ReadWrite, RdmaMemory::Pool),
    (RdmaDesign::ReadWrite, RdmaMemory::Cached),
    (RdmaDesign::ReadWrite, RdmaMemory::Each),
    (RdmaDesign::ReadRead, RdmaMemory::Pool),
    (RdmaDesign::ReadRead, RdmaMemory::Cached),
    (RdmaDesign::ReadRead, RdmaMemory::Windows),
    (RdmaDesign::ReadRead, RdmaMemory::Each),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
}

/// What one call asks of one side.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Cost {
    registrations: f64,
    pages: f64,
    deregistrations: f64,
    binds: f64,
    rdma_reads: f64,
    rdma_writes: f64,
    messages: f64,
    doorbells: f64,
    completions: f64,
    copied_bytes: f64,
    exposed_bytes: f64,
}

impl Cost {
    fn new(counts: &Counts, copied_bytes: u64, exposed_bytes: u64) -> Cost {
        let each = |count: u64| count as f64 / CALLS as f64;
        Cost {
            registrations: each(counts.registrations),
            pages: each(counts.registered_pages),
            deregistrations: each(counts.deregistrations),
            binds: each(counts.binds),
            rdma_reads: each(counts.reads),
            rdma_writes: each(counts.writes),
            messages: each(counts.sends),
            doorbells: each(counts.doorbells),
            completions: each(counts.completions),
            copied_bytes: each(copied_bytes),
            exposed_bytes: each(exposed_bytes),
        }
    }

    /// All but what is reported of it: how many ends are taken out at once is chance.
    fn asked(&self) -> Cost {
        Cost { completions: 0.0, ..*self }
    }
}

/// What things cost, in µs.
#[derive(Debug, Clone, Copy)]
struct Prices {
    name: &'static str,
    /// `weft bench registration-costs`: a call and a page, of registering and of ending that.
    register: (f64, f64),
    deregister: (f64, f64),
    /// As the double charges: a ring of the doorbell, a work request, an end that is reported.
    doorbell: f64,
    work: f64,
    completion: f64,
    /// Copying 1 MiB: `weft bench limits`.
    copied_mib: f64,
}

const PRICES: [Prices; 2] = [
    Prices {
        name: "paper",
        register: (7.42, 0.77),
        deregister: (1.1, 0.23),
        doorbell: 0.15,
        work: 0.05,
        completion: 0.04,
        copied_mib: 58.5,
    },
    Prices {
        name: "pinning here",
        register: (0.67, 0.08),
        deregister: (0.42, 0.03),
        doorbell: 0.15,
        work: 0.05,
        completion: 0.04,
        copied_mib: 58.5,
    },
];

impl Prices {
    fn of(&self, cost: &Cost) -> f64 {
        let work = cost.binds + cost.rdma_reads + cost.rdma_writes + cost.messages;
        // Each page that was registered is given back, too; where registrations stay, there are none.
        cost.registrations * self.register.0
            + cost.pages * (self.register.1 + self.deregister.1)
            + cost.deregistrations * self.deregister.0
            + cost.doorbells * self.doorbell
            + work * self.work
            + cost.completions * self.completion
            + cost.copied_bytes / 1_048_576.0 * self.copied_mib
    }
}

/// One measurement.
struct Measured {
    server: (RdmaDesign, RdmaMemory),
    client: client::RdmaMemory,
    operation: Operation,
    bytes: usize,
    of_server: Cost,
    of_client: Cost,
}

impl Measured {
    fn total(&self, prices: &Prices) -> f64 {
        prices.of(&self.of_server) + prices.of(&self.of_client)
    }
}

struct Bench<'a> {
    serving: &'a Serving,
    server_host: Pretend,
    client_host: Pretend,
    server: (RdmaDesign, RdmaMemory),
}

/// Waits until nothing changes any more: what work held is let go of after replies have come.
fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    const LOOKS: usize = 3;
    let (begun, mut last, mut same) = (Instant::now(), look(), 0);
    while same < LOOKS {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come to rest");
        std::thread::sleep(Duration::from_millis(5));
        let now = look();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

impl Bench<'_> {
    fn connect(&self, memory: client::RdmaMemory) -> NfsClient {
        let (rdma, tcp) = (self.serving.rdma_addresses()[0], self.serving.addresses()[0].port());
        let url = NfsUrl::parse(&format!("nfs://{rdma}/?transport=rdma&mountport={tcp}")).unwrap();
        let design = match self.server.0 {
            RdmaDesign::ReadWrite => client::RdmaDesign::ReadWrite,
            RdmaDesign::ReadRead => client::RdmaDesign::ReadRead,
        };
        let url = NfsUrl { rdma_memory: memory, rdma_design: design, ..url };
        let credential = Some(AuthSys { machine: b"client".to_vec(), ..AuthSys::default() });
        let options = ConnectOptions { credential, ..ConnectOptions::default() };
        NfsClient::connect_rdma(&url, &options, &self.client_host).unwrap()
    }

    /// Polls are left out: how often somebody looks is chance.
    fn counts(&self, of: &NfsClient) -> (Counts, Counts, u64, u64, u64) {
        let only = |counts: Counts| Counts { polls: 0, wakeups: 0, ..counts };
        let gateway = self.serving.counts();
        let copied = of.rdma_status().unwrap().totals.copied_bytes;
        let exposed = gateway.rdma_exposed_bytes;
        (
            only(self.server_host.counts()),
            only(self.client_host.counts()),
            gateway.copied_bytes,
            copied,
            exposed,
        )
    }

    fn measure(
        &self,
        of: &NfsClient,
        file: &FileHandle,
        operation: Operation,
        buffer: &mut [u8],
    ) -> Measured {
        let bytes = buffer.len();
        let mut call = || match operation {
            Operation::Read => assert_eq!(of.read(file, 0, buffer).unwrap().bytes, bytes),
            Operation::Write => assert_eq!(of.write(file, 0, buffer, Stable::Unstable).unwrap().bytes, bytes),
        };
        // What stays registered gets it now.
        (0..4).for_each(|_| call());
        let before = settled(|| self.counts(of));
        (0..CALLS).for_each(|_| call());
        let after = settled(|| self.counts(of));
        Measured {
            server: self.server,
            client: of.rdma_status().unwrap().memory,
            operation,
            bytes,
            of_server: Cost::new(&after.0.since(&before.0), after.2 - before.2, after.4 - before.4),
            of_client: Cost::new(&after.1.since(&before.1), after.3 - before.3, 0),
        }
    }
}

fn measure_all(cluster: &Cluster) -> Vec<Measured> {
    const PAGE: usize = 4096;
    let mut all = Vec::new();
    // No memory is given back while something is counted, for that ends registrations some time later.
    let mut memory = vec![1; FILE_BYTES + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[start..start + FILE_BYTES];
    for server in SERVERS {
        let server_host = Pretend::new(PretendOptions::default());
        let client_host = server_host.another_host(vec![Adapter::new("clients", [127, 0, 0, 2].into())]);
        let rdma = vec![RdmaListener::bind(&server_host, "127.0.0.1:0".parse().unwrap()).unwrap()];
        let tcp = vec![TcpListener::bind("127.0.0.1:0").unwrap()];
        let rdma_options = RdmaOptions { design: server.0, memory: server.1 };
        let options = serving::options(cluster.client(), &cluster.key, "/");
        let serving = Serving::start_over(options, Listeners { tcp, rdma, rdma_options }).unwrap();
        let bench = Bench { serving: &serving, server_host, client_host, server };
        let clients = client::RdmaMemory::ALL.map(|(strategy, _)| bench.connect(strategy));
        for of in &clients {
            let how = CreateHow::Unchecked(SetAttr { mode: Some(0o644), ..SetAttr::default() });
            let file = of.create(of.root(), b"file", &how).unwrap().handle.unwrap();
            of.write_all(&file, 0, memory, 1).unwrap();
            for operation in [Operation::Read, Operation::Write] {
                all.extend(SIZES.map(|bytes| bench.measure(of, &file, operation, &mut memory[..bytes])));
            }
        }
        assert!(bench.client_host.complaints().is_empty(), "{:?}", bench.client_host.complaints());
        assert_eq!(bench.server_host.counts().receiver_not_ready, 0);
        serving.stop();
    }
    all
}

/// What is expected: pages, and what does not depend on the size.
fn expected(
    server: (RdmaDesign, RdmaMemory),
    client: client::RdmaMemory,
    operation: Operation,
    bytes: usize,
) -> (Cost, Cost) {
    use client::RdmaMemory as Client;
    let reads_itself = server.0 == RdmaDesign::ReadRead && operation == Operation::Read;
    let pages = (bytes / 4096) as f64;
    let one_if = |is: bool| f64::from(u8::from(is));
    let server_each = one_if(server.1 == RdmaMemory::Each);
    let server_binds = one_if(reads_itself && server.1 == RdmaMemory::Windows);
    let of_server = Cost {
        registrations: server_each,
        pages: server_each * pages,
        deregistrations: server_each,
        // A bind, and an invalidation, which is a post of its own.
        binds: 2.0 * server_binds,
        rdma_reads: one_if(operation == Operation::Write),
        rdma_writes: one_if(operation == Operation::Read && !reads_itself),
        messages: 1.0,
        doorbells: 1.0 + one_if(operation == Operation::Write) + server_binds,
        exposed_bytes: one_if(reads_itself) * bytes as f64,
        ..Cost::default()
    };
    let client_each = one_if(client == Client::Each);
    let of_client = Cost {
        registrations: client_each,
        pages: client_each * pages,
        deregistrations: client_each,
        // The server ends the key with its reply.
        binds: one_if(client == Client::Windows && !reads_itself),
        rdma_reads: one_if(reads_itself),
        messages: 1.0 + one_if(reads_itself),
        doorbells: 1.0 + 2.0 * one_if(reads_itself),
        copied_bytes: one_if(client == Client::Copied) * bytes as f64,
        ..Cost::default()
    };
    (of_server, of_client)
}

/// That one way is ahead of another, all else being the same, by all prices.
fn ahead(all: &[Measured], what: &str, pairs: impl Fn(&Measured, &Measured) -> bool) {
    let mut compared = 0;
    for one in all {
        for other in all.iter().filter(|other| one.operation == other.operation && one.bytes == other.bytes) {
            if pairs(one, other) {
                compared += 1;
                for prices in &PRICES {
                    let (first, second) = (one.total(prices), other.total(prices));
                    let how = format!(
                        "{:?} of {}, {}: {first} µs, {second} µs",
                        one.operation, one.bytes, prices.name
                    );
                    assert!(first < second, "{what}: {how}");
                }
            }
        }
    }
    assert!(compared > 0, "{what}");
}

#[test]
fn the_papers_order_comes_out_of_counts_and_costs() {
    use client::RdmaMemory as Client;
    let cluster = Cluster::start(1, 64 << 10);
    let all = measure_all(&cluster);
    for one in &all {
        let expected = expected(one.server, one.client, one.operation, one.bytes);
        let what = format!("{:?} × {:?}, {:?} of {}", one.server, one.client, one.operation, one.bytes);
        assert_eq!((one.of_server.asked(), one.of_client.asked()), expected, "{what}");
    }
    println!("{}", table(&all));
    ahead(&all, "Read-Write ahead of Read-Read", |one, other| {
        (one.server.0, other.server.0) == (RdmaDesign::ReadWrite, RdmaDesign::ReadRead)
            && (one.server.1, one.client) == (other.server.1, other.client)
            && one.operation == Operation::Read
    });
    let servers = |first: RdmaMemory, second: RdmaMemory| {
        move |one: &Measured, other: &Measured| {
            (one.server.1, other.server.1) == (first, second)
                && (one.server.0, one.client) == (other.server.0, other.client)
        }
    };
    let reads = |one: &Measured| one.operation == Operation::Read;
    ahead(&all, "the cache of a server ahead of each", servers(RdmaMemory::Cached, RdmaMemory::Each));
    ahead(&all, "windows of a server ahead of each", servers(RdmaMemory::Windows, RdmaMemory::Each));
    let before_windows = servers(RdmaMemory::Cached, RdmaMemory::Windows);
    ahead(&all, "the cache of a server ahead of windows", |one, other| {
        reads(one) && before_windows(one, other)
    });
    let clients = |first: Client, second: Client| {
        move |one: &Measured, other: &Measured| {
            (one.client, other.client) == (first, second) && one.server == other.server
        }
    };
    ahead(&all, "the cache of a client ahead of each", clients(Client::Cached, Client::Each));
    ahead(&all, "windows of a client ahead of each", clients(Client::Windows, Client::Each));
    let at = |bytes: usize, first: Client, second: Client| {
        let pair = clients(first, second);
        move |one: &Measured, other: &Measured| one.bytes == bytes && pair(one, other)
    };
    ahead(&all, "copying ahead of each for small data", at(SIZES[0], Client::Copied, Client::Each));
    let here = &PRICES[1];
    let is_behind = |one: &Measured| {
        all.iter().filter(|other| at(one.bytes, Client::Each, Client::Copied)(other, one)).all(|other| {
            one.operation != other.operation || one.bytes < SIZES[1] || other.total(here) < one.total(here)
        })
    };
    assert!(all.iter().all(is_behind), "and behind it for large ones, by pinning here");
    let binds = |one: &Measured| one.operation == Operation::Write || one.server.0 == RdmaDesign::ReadWrite;
    let before_windows = clients(Client::Cached, Client::Windows);
    ahead(&all, "the cache of a client ahead of windows", |one, other| {
        binds(one) && before_windows(one, other)
    });
}

/// A row of the tables.
struct Row {
    operation: Operation,
    server: (RdmaDesign, RdmaMemory),
    client: client::RdmaMemory,
    /// Whose counts it has.
    is_server: bool,
    name: String,
}

fn rows() -> Vec<Row> {
    use client::RdmaMemory as Client;
    let short = |design| if design == RdmaDesign::ReadWrite { "RW" } else { "RR" };
    let mut rows = Vec::new();
    for operation in [Operation::Read, Operation::Write] {
        // WRITE is the same in both designs.
        let is_shown = |design| operation == Operation::Read || design == RdmaDesign::ReadWrite;
        for server in SERVERS.into_iter().filter(|(design, _)| is_shown(*design)) {
            let name = format!("{operation:?}, {}, server {:?}", short(server.0), server.1);
            rows.push(Row { operation, server, client: Client::Cached, is_server: true, name });
        }
        for server in
            SERVERS.into_iter().filter(|(design, memory)| is_shown(*design) && *memory == RdmaMemory::Pool)
        {
            for (memory, known_as) in Client::ALL {
                let name = format!("{operation:?}, {}, client {known_as}", short(server.0));
                rows.push(Row { operation, server, client: memory, is_server: false, name });
            }
        }
    }
    rows
}

/// The tables of docs/benchmarks.md. What depends on the size is given for each of [`SIZES`].
fn table(all: &[Measured]) -> String {
    let number =
        |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let by_size = |values: Vec<f64>| {
        let is_same = values.windows(2).all(|pair| pair[0] == pair[1]);
        let shown: Vec<_> = values.into_iter().map(number).collect();
        if is_same { shown[0].clone() } else { shown.join(", ") }
    };
    let (mut counts, mut costs) = (String::new(), String::new());
    for Row { operation, server, client, is_server, name } in rows() {
        let is_this =
            |one: &&Measured| (one.operation, one.server, one.client) == (operation, server, client);
        let these: Vec<_> = all.iter().filter(is_this).collect();
        let side = |one: &Measured| if is_server { one.of_server } else { one.of_client };
        let columns: [fn(&Cost) -> f64; 10] = [
            |cost| cost.registrations,
            |cost| cost.deregistrations,
            |cost| cost.pages,
            |cost| cost.binds,
            |cost| cost.rdma_reads,
            |cost| cost.rdma_writes,
            |cost| cost.messages,
            |cost| cost.doorbells,
            |cost| cost.completions,
            |cost| cost.copied_bytes / 1024.0,
        ];
        let shown = columns.map(|column| by_size(these.iter().map(|one| column(&side(one))).collect()));
        let _ = writeln!(counts, "| {name} | {} |", shown.join(" | "));
        let priced = |prices: &Prices| {
            let of_sizes: Vec<_> = these.iter().map(|one| format!("{:.2}", one.total(prices))).collect();
            of_sizes.join(" | ")
        };
        let _ = writeln!(costs, "| {name} | {} |", PRICES.each_ref().map(priced).join(" | "));
    }
    format!("{counts}\n{costs}")
}
