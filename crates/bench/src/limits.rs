//! Measures what the machine itself can do.

use super::fleet::{Fleet, Phase, per_client};
use super::numbers::median;
use super::page_cache::warm_memory;
use super::report::{Report, Row};
use super::scratch::scratch;
use super::worker::Task;
use super::worker::ping::{Exchange, Socket};
use crate::progress;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;
use weft_bench_args::LimitsArgs;
use weft_cli_common::size::mib_per_s;

/// Message size of ping-pongs: a page.
pub const PING_BYTES: usize = 4096;
const PING_ROUNDS: usize = 5000;
const TCP_BYTES: u64 = 1 << 30;
const COPY_BYTES: usize = 64 << 20;

/// Runs the measurement.
pub fn run(args: LimitsArgs) -> Result<()> {
    let (clients, bytes) = (usize::from(args.clients), args.bytes);
    let scratch = scratch(&args.common, 2 * bytes * clients as u64)?;
    let mut fleet = Fleet::start(2 * clients)?;
    let mut samples = Samples::default();
    for _ in 0..args.common.runs {
        for cores in [1, 2] {
            samples.add(&format!("memory copy, {}", counted(cores, "core")), memory_copy(cores));
        }
        for control in congestion_controls() {
            progress::tell();
            for streams in [1, 4] {
                samples.add(
                    &format!("loopback TCP, {}, {control}", counted(streams, "stream")),
                    tcp(streams, &control, Buffers::Cached)?,
                );
            }
            samples.add(
                &format!("loopback TCP, {}, {control}, whole blocks", counted(clients, "stream")),
                tcp(clients, &control, Buffers::Blocks(bytes))?,
            );
        }
        for copiers in [1, clients] {
            samples.add(
                &format!("process_vm_readv, {}", counted(copiers, "copier")),
                process_vm(&mut fleet, copiers, bytes)?,
            );
        }
        let (write, read) = local_file(&mut fleet, scratch.path(), clients, bytes)?;
        samples.add(&format!("local file, {clients} processes, first write"), write);
        samples.add(&format!("local file, {clients} processes, read"), read);
    }
    let mut report = Report::new("limits", serde_json::json!({ "clients": clients, "bytes": bytes }));
    report.rows = samples.rows("MiB/s");
    let mut times = Samples::default();
    let sleeping = Exchange::ping_pong(PING_BYTES, [0, 0]);
    for _ in 0..args.common.runs {
        for socket in [Socket::Tcp, Socket::Unix] {
            let phase = exchange_raw(&mut fleet, socket, scratch.path(), sleeping, PING_ROUNDS)?;
            times.add(&format!("4 KiB ping-pong, {}, p50", socket.name()), phase.done[0].p50_us());
            times.add(&format!("4 KiB ping-pong, {}, p99", socket.name()), phase.done[0].p99_us());
        }
    }
    report.rows.extend(times.rows("µs"));
    report.print(&args.common)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Samples by name, in the order of their first appearance.
#[derive(Default)]
pub struct Samples {
    names: Vec<String>,
    values: BTreeMap<String, Vec<f64>>,
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, name: &str, value: f64) {
        if !self.values.contains_key(name) {
            self.names.push(name.to_string());
        }
        self.values.entry(name.to_string()).or_default().push(value);
    }

    /// All samples of this name.
    pub fn of(&self, name: &str) -> &[f64] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The name with the greatest median.
    pub fn best(&self) -> (&str, &[f64]) {
        let by_median = |a: &&String, b: &&String| median(self.of(a)).total_cmp(&median(self.of(b)));
        let name = self.names.iter().max_by(by_median).map_or("", String::as_str);
        (name, self.of(name))
    }

    /// One row per name.
    pub fn rows(&self, unit: &'static str) -> Vec<Row> {
        self.names.iter().map(|name| Row::new(name, unit, self.of(name).to_vec())).collect()
    }
}

/// Speed of memory copies in MiB/s, of 64 MiB on each of this many threads.
pub fn memory_copy(threads: usize) -> f64 {
    const ROUNDS: usize = 8;
    let barrier = Barrier::new(threads);
    let copy = || {
        let (from, mut to) = (vec![1u8; COPY_BYTES], vec![2u8; COPY_BYTES]);
        barrier.wait();
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        begun.elapsed().as_secs_f64()
    };
    let slowest = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).fold(0.0, f64::max)
    });
    mib_per_s((threads * ROUNDS * COPY_BYTES) as u64, slowest)
}

/// Stands for the congestion control that connections have by themselves.
const SYSTEM_CONTROL: &str = "system";

/// The congestion controls that this process may use: the kernel offers some to root only. Where none may be chosen, the system's.
pub fn congestion_controls() -> Vec<String> {
    let known =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let is_allowed = |control: &&str| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        set_congestion_control(&TcpStream::connect(listener.local_addr()?)?, control)
    };
    let allowed = known.split_whitespace().filter(|control| is_allowed(control).is_ok());
    let allowed: Vec<String> = allowed.map(str::to_string).collect();
    if allowed.is_empty() { vec![SYSTEM_CONTROL.to_string()] } else { allowed }
}

/// The buffers at the ends of a TCP stream, both touched before the measurement.
#[derive(Debug, Clone, Copy)]
pub enum Buffers {
    /// 1 GiB in total, repeatedly from and to 1 MiB that stays in the processors' caches: the limit of the
    /// network stack alone.
    Cached,
    /// A block of this size per stream, once: the limit of a transfer of that much data.
    Blocks(u64),
}

impl Buffers {
    /// Bytes of a stream, and of each of its buffers.
    fn sizes(self, streams: usize) -> (u64, usize) {
        match self {
            Buffers::Cached => (TCP_BYTES / streams as u64, 1 << 20),
            Buffers::Blocks(bytes) => (bytes, bytes as usize),
        }
    }
}

/// Speed of loopback TCP in MiB/s over this many streams, each with a sending and a receiving thread.
pub fn tcp(streams: usize, control: &str, buffers: Buffers) -> Result<f64> {
    let (each, buffer_bytes) = buffers.sizes(streams);
    let mut pairs = Vec::new();
    for _ in 0..streams {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        set_congestion_control(&sender, control)?;
        pairs.push((sender, listener.accept()?.0, vec![1u8; buffer_bytes], vec![1u8; buffer_bytes]));
    }
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (sender, receiver, from, mut into) in pairs {
            scope.spawn(move || send_all(sender, &from, each));
            threads.push(scope.spawn(move || receive_all(receiver, &mut into)));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("receiving does not panic"))
    })?;
    Ok(mib_per_s(each * streams as u64, begun.elapsed().as_secs_f64()))
}

fn send_all(mut stream: TcpStream, from: &[u8], bytes: u64) {
    for _ in 0..bytes / from.len() as u64 {
        if stream.write_all(from).is_err() {
            return;
        }
    }
}

fn receive_all(mut stream: TcpStream, into: &mut [u8]) -> Result<()> {
    let mut at = 0;
    loop {
        match stream.read(&mut into[at..])? {
            0 => return Ok(()),
            got => at = (at + got) % into.len(),
        }
    }
}

fn set_congestion_control(stream: &TcpStream, control: &str) -> Result<()> {
    if control == SYSTEM_CONTROL {
        return Ok(());
    }
    let (name, bytes) = (control.as_ptr().cast(), control.len() as u32);
    // SAFETY: the name is live and its true length is given.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, bytes) };
    if set == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error()).with_context(|| format!("cannot use congestion control {control}"))
}

/// Speed of copies from other processes' memory, in MiB/s. The fleet needs two workers for each copier.
pub fn process_vm(fleet: &mut Fleet, copiers: usize, bytes: u64) -> Result<f64> {
    for copier in 0..copiers {
        let address = fleet.prepare(copiers + copier, &Task::Hold { bytes })?.parse()?;
        let pid = fleet.pid(copiers + copier);
        fleet.prepare(copier, &Task::CopyFrom { pid, address, bytes })?;
    }
    let phase = fleet.go(0..copiers)?;
    fleet.go(copiers..2 * copiers)?;
    Ok(mib_per_s(bytes * copiers as u64, phase.seconds))
}

/// Speeds in MiB/s of writing a new local file by all processes, each its block, and of reading it.
pub fn local_file(fleet: &mut Fleet, dir: &Path, clients: usize, bytes: u64) -> Result<(f64, f64)> {
    let path = dir.join("local-file");
    warm_memory(dir, bytes * clients as u64)?;
    let writes = per_client(clients, bytes, |block| Task::LocalWrite { path: path.clone(), block });
    let write = fleet.run(&writes)?;
    let reads = per_client(clients, bytes, |block| Task::LocalRead { path: path.clone(), block });
    let read = fleet.run(&reads)?;
    std::fs::remove_file(&path)?;
    let total = bytes * clients as u64;
    Ok((mib_per_s(total, write.seconds), mib_per_s(total, read.seconds)))
}

/// Requests and replies between two processes.
pub fn exchange_raw(
    fleet: &mut Fleet,
    socket: Socket,
    dir: &Path,
    exchange: Exchange,
    rounds: usize,
) -> Result<Phase> {
    let to = fleet.prepare(1, &Task::Answer { socket, dir: dir.to_owned(), exchange })?;
    // The answering end accepts connections only in the measured part, but they can be made before that.
    fleet.prepare(0, &Task::Exchange { socket, to, exchange, rounds })?;
    fleet.go(0..2)
}

impl Socket {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Socket::Tcp => "TCP",
            Socket::Unix => "Unix socket",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_one_with_the_greatest_median() {
        let mut samples = Samples::default();
        for (name, value) in [("a", 1.0), ("b", 9.0), ("a", 5.0), ("b", 2.0), ("a", 6.0), ("b", 3.0)] {
            samples.add(name, value);
        }
        assert_eq!(samples.best(), ("a", &[1.0, 5.0, 6.0][..]));
        assert_eq!(samples.rows("x").len(), 2);
    }

    #[test]
    fn loopback_and_memory_have_a_speed() {
        assert!(memory_copy(1) > 1.0);
        assert!(set_congestion_control(&loopback(), "no-such").is_err());
    }

    #[test]
    fn every_congestion_control_that_is_measured_is_allowed() {
        let as_user = || {
            // SAFETY: it changes the user of this thread only, which ends with the test.
            unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
            congestion_controls()
                .iter()
                .map(|control| {
                    set_congestion_control(&loopback(), control).map_err(|error| error.to_string())
                })
                .collect::<Vec<_>>()
        };
        let set = std::thread::spawn(as_user).join().expect("it does not panic");
        assert!(!set.is_empty() && set.iter().all(Result::is_ok), "{set:?}");
    }

    fn loopback() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    }
}
