//! Clients write, then read, disjoint parts of one file (PVFS 4.1).
//!
//! ```text
//!   client 0   | block 0 |                          open ─ barrier ─ write ─ close
//!   client 1             | block 1 |                open ─ barrier ─ read  ─ close ─ check what was read
//!   client 2                       | block 2 |
//!   file       | block 0 | block 1 | block 2 | …    a new one for every repetition
//! ```
//!
//! The time is from the first client's start to the last one's end, which is never less than the paper's
//! maximum over the processes. The limits are measured alternately with it: loopback TCP with four streams
//! and its best congestion control, process_vm between as many pairs of processes, and the same writes and
//! reads by the same processes on one local file. Memory is warmed up before each write.

use super::adapters::Asked;
use super::amounts::Took;
use super::fleet::{Fleet, per_client};
use super::limits::{self, Buffers, Samples};
use super::numbers::{median, number};
use super::page_cache::warm_memory;
use super::report::{Report, Row};
use super::scratch::{Scratch, TRANSPORTS_DEFAULT, Testbed, scratch, usable};
use super::worker::Task;
use anyhow::{Result, bail};
use weft_bench_args::{CommonArgs, Memory, SharedFileArgs, Transport, Way};
use weft_cli_common::connections::{KeyArgs, at};
use weft_cli_common::output;
use weft_cli_common::size::{format_bytes, mib_per_s};
use weft_server::SyncMode;

const SCALE: [u16; 4] = [1, 2, 4, 8];

/// A transport and a kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The transport.
    pub transport: Transport,
    /// The kind of memory.
    pub memory: Memory,
}

/// The size of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Client processes.
    pub clients: usize,
    /// Bytes per client.
    pub bytes: u64,
}

/// One write and one read by all clients.
#[derive(Debug, Clone)]
struct Once {
    write_mib_s: f64,
    read_mib_s: f64,
    client_cpu_s: [f64; 2],
    server_cpu_s: [f64; 2],
    asked: [Asked; 2],
}

/// Runs the measurement.
pub fn run(args: SharedFileArgs) -> Result<()> {
    let cases = cases(&args.transport, args.memory)?;
    let shape = Shape { clients: usize::from(args.clients), bytes: args.bytes };
    let most = if args.scale { 8 } else { shape.clients as u64 };
    let scratch = scratch(&args.testbed.common, 3 * args.bytes * most)?;
    let runs = args.testbed.common.runs;
    if args.scale {
        return scale(&cases, args.bytes, &scratch, &args.testbed.common);
    }
    let io = args.io.unwrap_or(4);
    let transports: Vec<_> = cases.iter().map(|case| case.transport).collect();
    let url = args.testbed.url.as_deref();
    let (testbed, without) =
        Testbed::for_transports(url, &args.testbed.connect, &scratch, io, SyncMode::Nosync, &transports)?;
    let cases = usable(cases, |case| case.transport, &without)?;
    let parameters = serde_json::json!({
        "clients": shape.clients, "bytes": shape.bytes, "io_servers": testbed.client.map().io_servers().count(),
    });
    let mut report = Report::new("shared-file", parameters);
    (report.rows, report.took) = measure(&testbed, &scratch, &cases, shape, runs)?;
    report.print(&args.testbed.common)
}

fn cases(transports: &[Transport], memory: Option<Memory>) -> Result<Vec<Case>> {
    let all = [
        Case { transport: Transport::Tcp, memory: Memory::Any },
        Case { transport: Transport::Shm, memory: Memory::Any },
        Case { transport: Transport::Shm, memory: Memory::Alloc },
        Case { transport: Transport::Rdma, memory: Memory::Any },
        Case { transport: Transport::Rdma, memory: Memory::Alloc },
    ];
    let transports = if transports.is_empty() { TRANSPORTS_DEFAULT } else { transports };
    let wanted = |case: &Case| {
        transports.contains(&case.transport) && memory.is_none_or(|memory| memory == case.memory)
    };
    let cases: Vec<_> = all.into_iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("--memory alloc is for shared memory and RDMA only; leave out --transport tcp");
    }
    Ok(cases)
}

/// Measures every case alternately with the limits. Returns the operations of RDMA adapters in the last
/// repetition too.
pub fn measure(
    testbed: &Testbed,
    scratch: &Scratch,
    cases: &[Case],
    shape: Shape,
    runs: u16,
) -> Result<(Vec<Row>, Vec<Took>)> {
    let mut limit_fleet = Fleet::start(2 * shape.clients)?;
    let mut fleets = cases.iter().map(|_| Fleet::start(shape.clients)).collect::<Result<Vec<_>>>()?;
    let mut limits = Limits::default();
    let mut results = vec![Vec::new(); cases.len()];
    for _ in 0..runs {
        limits.measure(&mut limit_fleet, scratch, cases, shape)?;
        for ((case, fleet), results) in cases.iter().zip(&mut fleets).zip(&mut results) {
            results.push(once(testbed, scratch, fleet, *case, shape)?);
        }
    }
    let rows = cases.iter().zip(&results).flat_map(|(case, results)| limits.rows(*case, results, shape));
    let took = cases.iter().zip(&results).flat_map(|(case, results)| took(*case, results));
    Ok((rows.collect(), took.collect()))
}

fn took(case: Case, results: &[Once]) -> Vec<Took> {
    let Some(last) = results.last() else { return Vec::new() };
    let of = |(way, asked): (&str, &Asked)| {
        let amounts = asked.amounts();
        (!amounts.is_empty()).then(|| Took { what: format!("{}, {way}", case.name()), amounts })
    };
    ["write", "read"].into_iter().zip(&last.asked).filter_map(of).collect()
}

fn once(testbed: &Testbed, scratch: &Scratch, fleet: &mut Fleet, case: Case, shape: Shape) -> Result<Once> {
    let (url, path) = (testbed.url(case.transport.name()), testbed.dir.join("shared-file"));
    let memory = case.memory;
    // Created here, so that the clients only open it.
    let options = weft_client::OpenOptions::new().write(true).create_new(true).mode(0o644);
    testbed.client.open(at(&path), &options)?.close()?;
    warm_memory(scratch.path(), shape.bytes * shape.clients as u64)?;
    let transfers = |way| {
        per_client(shape.clients, shape.bytes, |block| Task::Transfer {
            way,
            url: url.clone(),
            path: path.clone(),
            block,
            memory,
        })
    };
    let before = testbed.server_load_over(case.transport);
    let write = fleet.run(&transfers(Way::Write))?;
    let between = testbed.server_load_over(case.transport);
    let read = fleet.run(&transfers(Way::Read))?;
    let after = testbed.server_load_over(case.transport);
    let checks =
        per_client(shape.clients, shape.bytes, |block| Task::Check { path: path.clone(), block, memory });
    fleet.run(&checks)?;
    testbed.client.unlink(at(&path))?;
    let total = shape.bytes * shape.clients as u64;
    Ok(Once {
        write_mib_s: mib_per_s(total, write.seconds),
        read_mib_s: mib_per_s(total, read.seconds),
        client_cpu_s: [write.cpu_s, read.cpu_s],
        server_cpu_s: [between.cpu_s - before.cpu_s, after.cpu_s - between.cpu_s],
        asked: [
            Asked::between(write.adapters(), &before.adapters, &between.adapters),
            Asked::between(read.adapters(), &between.adapters, &after.adapters),
        ],
    })
}

/// The machine's limits in the same repetitions.
#[derive(Default)]
struct Limits {
    tcp: Samples,
    tcp_blocks: Samples,
    process_vm: Vec<f64>,
    local_write: Vec<f64>,
    local_read: Vec<f64>,
}

impl Limits {
    fn measure(&mut self, fleet: &mut Fleet, scratch: &Scratch, cases: &[Case], shape: Shape) -> Result<()> {
        let (write, read) = limits::local_file(fleet, scratch.path(), shape.clients, shape.bytes)?;
        self.local_write.push(write);
        self.local_read.push(read);
        if cases.iter().any(|case| case.transport == Transport::Tcp) {
            for control in limits::congestion_controls() {
                self.tcp.add(&control, limits::tcp(4, &control, Buffers::Cached)?);
                let blocks = Buffers::Blocks(shape.bytes);
                self.tcp_blocks.add(&control, limits::tcp(shape.clients, &control, blocks)?);
            }
        }
        if cases.iter().any(|case| case.transport == Transport::Shm) {
            self.process_vm.push(limits::process_vm(fleet, shape.clients, shape.bytes)?);
        }
        Ok(())
    }

    fn rows(&self, case: Case, results: &[Once], shape: Shape) -> Vec<Row> {
        let name = case.name();
        let samples = |pick: fn(&Once) -> f64| results.iter().map(pick).collect::<Vec<_>>();
        let sum = |pick: fn(&Once) -> f64| results.iter().map(pick).sum::<f64>();
        let moved = (shape.bytes * shape.clients as u64 * results.len() as u64) as f64;
        let write = Row::new(format!("{name}, write"), "MiB/s", samples(|once| once.write_mib_s))
            .against("local file, first write", &self.local_write)
            .with_cpu(sum(|once| once.client_cpu_s[0]), sum(|once| once.server_cpu_s[0]), moved);
        let read = Row::new(format!("{name}, read"), "MiB/s", samples(|once| once.read_mib_s));
        let read = match (case.transport, case.memory) {
            (Transport::Tcp, _) => {
                let (control, tcp) = self.tcp.best();
                read.against(format!("loopback TCP, 4 streams, {control}"), tcp)
            }
            (Transport::Shm, Memory::Any) => read.against("process_vm_readv", &self.process_vm),
            (Transport::Shm, Memory::Alloc) | (Transport::Rdma, _) => {
                read.against("local file, read", &self.local_read)
            }
        };
        let read = read.with_cpu(sum(|once| once.client_cpu_s[1]), sum(|once| once.server_cpu_s[1]), moved);
        let mut rows = vec![write, read];
        if case.transport == Transport::Tcp {
            let (control, tcp) = self.tcp_blocks.best();
            let again = Row::new(format!("{name}, read (again)"), "MiB/s", samples(|once| once.read_mib_s));
            rows.push(
                again.against(
                    format!("loopback TCP, {} streams, {control}, whole blocks", shape.clients),
                    tcp,
                ),
            );
        }
        rows
    }
}

impl Case {
    fn name(self) -> String {
        match self.transport {
            Transport::Tcp => "tcp".to_string(),
            Transport::Shm | Transport::Rdma => format!("{}, {}", self.transport.name(), self.memory),
        }
    }
}

/// Measures writes and reads for every number of clients and of servers.
fn scale(cases: &[Case], bytes: u64, scratch: &Scratch, common: &CommonArgs) -> Result<()> {
    let parameters = serde_json::json!({ "bytes": bytes, "clients": SCALE, "io_servers": SCALE });
    let mut report = Report::new("shared-file scale", parameters);
    for case in cases {
        for io in SCALE {
            let without = Testbed::for_transports(
                None,
                &KeyArgs::default(),
                scratch,
                io,
                SyncMode::Nosync,
                &[case.transport],
            )?;
            let testbed = match without {
                (testbed, reasons) if reasons.is_empty() => testbed,
                (_, reasons) => bail!("cannot measure over {}: {}", case.transport.name(), reasons[0].1),
            };
            for clients in SCALE {
                let shape = Shape { clients: usize::from(clients), bytes };
                let mut fleet = Fleet::start(shape.clients)?;
                let results: Vec<_> = (0..common.runs)
                    .map(|_| once(&testbed, scratch, &mut fleet, *case, shape))
                    .collect::<Result<_>>()?;
                for (way, pick) in [("write", write_of as fn(&Once) -> f64), ("read", read_of)] {
                    let what = scale_name(*case, way, clients, io);
                    report.rows.push(Row::new(what, "MiB/s", results.iter().map(pick).collect()));
                }
            }
        }
    }
    if common.json {
        return report.print(common);
    }
    report.save(common)?;
    for case in cases {
        for way in ["write", "read"] {
            output::print_line(format_args!(
                "{}, {way}, MiB/s, {} per client",
                case.name(),
                format_bytes(bytes)
            ))?;
            output::print_table(&scale_table(&report, *case, way))?;
            output::print_line("")?;
        }
    }
    Ok(())
}

fn write_of(once: &Once) -> f64 {
    once.write_mib_s
}

fn read_of(once: &Once) -> f64 {
    once.read_mib_s
}

fn scale_name(case: Case, way: &str, clients: u16, io: u16) -> String {
    format!("{}, {way}, {clients} clients, {io} I/O servers", case.name())
}

fn scale_table(report: &Report, case: Case, way: &str) -> comfy_table::Table {
    let headings = ["", "1 server", "2 servers", "4 servers", "8 servers"];
    let mut table = output::table(&headings, &[1, 2, 3, 4]);
    for clients in SCALE {
        let mut cells =
            vec![if clients == 1 { "1 client".to_string() } else { format!("{clients} clients") }];
        for io in SCALE {
            let name = scale_name(case, way, clients, io);
            let row = report.rows.iter().find(|row| row.what == name);
            cells.push(row.map_or(String::new(), |row| number(median(&row.samples))));
        }
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wished_cases_are_measured() {
        assert_eq!(cases(&[], None).unwrap().len(), 3);
        assert_eq!(cases(&[Transport::Shm], None).unwrap().len(), 2);
        assert_eq!(cases(&[Transport::Tcp, Transport::Rdma], None).unwrap().len(), 3);
        assert_eq!(cases(&[], Some(Memory::Any)).unwrap().len(), 2);
        assert!(cases(&[Transport::Tcp], Some(Memory::Alloc)).is_err());
    }

    #[test]
    fn what_cannot_be_reached_is_left_out() {
        let without = [(Transport::Rdma, "no adapter".to_string())];
        let all = cases(&[Transport::Tcp, Transport::Rdma], None).unwrap();
        assert_eq!(usable(all, |case| case.transport, &without).unwrap().len(), 1);
        assert!(usable(cases(&[Transport::Rdma], None).unwrap(), |case| case.transport, &without).is_err());
    }
}
