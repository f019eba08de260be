//! A worker process of a measurement. It reads tasks as lines of JSON. It prepares each task, reports that,
//! waits for `go`, does the task, and replies with start, end and processor time.

use super::access::method::Counters;
use super::access::task::AccessTask;
use super::adapters::{self, Counts};
use super::repeated::task::Repeated;
use super::report::percentile;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;
use weft_bench_args::Memory;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_client::{Arena, Client, OpenOptions};

/// Local files are read and written in requests of this size.
const LOCAL_REQUEST_BYTES: usize = 1 << 20;

/// A part of a file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Block {
    pub offset: u64,
    pub bytes: u64,
}

/// An operation on many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameOp {
    Create,
    Stat,
    Unlink,
}

/// The socket between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Socket {
    Tcp,
    Unix,
}

/// A task of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Write a block of a local file.
    LocalWrite { path: PathBuf, block: Block },
    /// Read a block of a local file.
    LocalRead { path: PathBuf, block: Block },
    /// Write a block of a file in a cluster.
    Write { url: String, path: PathBuf, block: Block, memory: Memory },
    /// Read a block of a file in a cluster.
    Read { url: String, path: PathBuf, block: Block, memory: Memory },
    /// Check the data that was read last. This is a separate task, so that no client's check takes processor
    /// time from clients that still read.
    Check { path: PathBuf, block: Block, memory: Memory },
    /// Allocate memory and report its address.
    Hold { bytes: u64 },
    /// Copy from another process's memory.
    CopyFrom { pid: u32, address: u64, bytes: u64 },
    /// Echo messages; reports the address.
    Echo { socket: Socket, dir: PathBuf, bytes: usize, spin_us: u64 },
    /// Send messages to an echo, and time each.
    Call { socket: Socket, to: String, bytes: usize, spin_us: u64, rounds: usize },
    /// Read the same bytes repeatedly, and time each read.
    ReadAgain { url: String, path: PathBuf, bytes: usize, rounds: usize },
    /// Create, query or remove files in a cluster, with several threads.
    Names { url: String, dir: PathBuf, op: NameOp, files: usize, threads: usize },
    /// The same in a local directory.
    LocalNames { dir: PathBuf, op: NameOp, files: usize },
    /// A part of a measurement of noncontiguous access.
    Access(AccessTask),
    /// Move the same bytes repeatedly, and time each transfer.
    Repeated(Repeated),
}

/// The cost of a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Done {
    /// The start, on the clock that all processes of this machine share.
    pub begin_ns: u64,
    /// The end, on the same clock.
    pub end_ns: u64,
    /// Processor time of this process.
    pub cpu_s: f64,
    /// Median of single operations, if they were timed.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Costs of the accesses, if they were counted.
    pub counters: Counters,
    /// Operations of RDMA adapters meanwhile.
    pub adapter: Counts,
}

/// State that is kept from task to task.
#[derive(Default)]
struct State {
    client: Option<(String, Client)>,
    memory: Vec<u8>,
    arena: Option<Arena>,
}

/// Does tasks until the input ends.
pub fn run() -> Result<()> {
    let mut state = State::default();
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let task: Task = serde_json::from_str(&line)?;
        let mut ready = |text: String| -> Result<()> {
            reply(Ok(text))?;
            let mut go = String::new();
            input.read_line(&mut go)?;
            if go.is_empty() { bail!("the measurement was aborted") } else { Ok(()) }
        };
        let done = state.perform(task, &mut ready);
        reply(done.map_err(|error| format!("{error:#}")))?;
        line.clear();
    }
    Ok(())
}

fn reply<T: Serialize>(result: Result<T, String>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &result)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Reports that a task is prepared, and returns when the measured part begins.
pub type Ready<'a> = &'a mut dyn FnMut(String) -> Result<()>;

impl State {
    /// Prepares a task, calls `ready`, which returns when the measured part begins, and does the task.
    fn perform(&mut self, task: Task, ready: Ready<'_>) -> Result<Done> {
        match task {
            Task::LocalWrite { path, block } => self.local_write(&path, block, ready),
            Task::LocalRead { path, block } => self.local_read(&path, block, ready),
            Task::Write { url, path, block, memory } => self.write(&url, &path, block, memory, ready),
            Task::Read { url, path, block, memory } => self.read(&url, &path, block, memory, ready),
            Task::Check { path, block, memory } => {
                let data = match (&self.arena, memory) {
                    (Some(arena), Memory::Alloc) => &arena[..block.bytes as usize],
                    _ => &self.memory[..],
                };
                ready(String::new())?;
                measure(|| check(data, block.offset).with_context(|| path.display().to_string()))
            }
            Task::Hold { bytes } => {
                self.fill_memory(bytes, 0);
                ready((self.memory.as_ptr() as u64).to_string())?;
                measure(|| Ok(()))
            }
            Task::CopyFrom { pid, address, bytes } => {
                self.fill_memory(bytes, 0);
                ready(String::new())?;
                measure(|| copy_from(pid, address, &mut self.memory))
            }
            Task::Echo { socket, dir, bytes, spin_us } => echo(socket, &dir, bytes, spin_us, ready),
            Task::Call { socket, to, bytes, spin_us, rounds } => {
                call(socket, &to, bytes, spin_us, rounds, ready)
            }
            Task::ReadAgain { url, path, bytes, rounds } => {
                let file = self.client(&url)?.open(at(&path), &OpenOptions::new().read(true))?;
                let mut buffer = vec![0; bytes];
                file.read_at(&mut buffer, 0)?;
                ready(String::new())?;
                measure_each(rounds, || match file.read_at(&mut buffer, 0)? {
                    got if got == bytes => Ok(()),
                    got => bail!("{got} of {bytes} bytes were read"),
                })
            }
            Task::Repeated(repeated) => {
                let client = self.client(&repeated.url)?;
                repeated.perform(&client, ready)
            }
            Task::Names { url, dir, op, files, threads } => {
                let client = self.client(&url)?;
                let done = |index: usize| weft_name(&client, &dir, op, index);
                done_by_threads(files, threads, &done, ready)
            }
            Task::LocalNames { dir, op, files } => {
                ready(String::new())?;
                measure(|| (0..files).try_for_each(|index| local_name(&dir, op, index)))
            }
            Task::Access(task) => {
                let mut memory = std::mem::take(&mut self.memory);
                let done = task.perform(&mut memory, |url| self.client(url), ready);
                self.memory = memory;
                done
            }
        }
    }

    fn client(&mut self, url: &str) -> Result<Client> {
        match &self.client {
            Some((known, client)) if known == url => Ok(client.clone()),
            _ => {
                let client = Connections::new(&ConnectArgs::default()).client(url)?;
                self.arena = None;
                self.client = Some((url.to_string(), client.clone()));
                Ok(client)
            }
        }
    }

    /// Fills memory, so that its pages exist, with the contents at `offset` of the file.
    fn fill_memory(&mut self, bytes: u64, offset: u64) {
        self.memory.resize(bytes as usize, 0);
        fill(&mut self.memory, offset);
    }

    fn local_write(&mut self, path: &Path, block: Block, ready: Ready<'_>) -> Result<Done> {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        self.fill_memory(block.bytes, block.offset);
        ready(String::new())?;
        measure(|| {
            let mut offset = block.offset;
            for part in self.memory.chunks(LOCAL_REQUEST_BYTES) {
                file.write_all_at(part, offset)?;
                offset += part.len() as u64;
            }
            Ok(())
        })
    }

    fn local_read(&mut self, path: &Path, block: Block, ready: Ready<'_>) -> Result<Done> {
        let file = File::open(path)?;
        self.memory.resize(block.bytes as usize, 0);
        self.memory.fill(0);
        ready(String::new())?;
        measure(|| {
            let mut offset = block.offset;
            for part in self.memory.chunks_mut(LOCAL_REQUEST_BYTES) {
                file.read_exact_at(part, offset)?;
                offset += part.len() as u64;
            }
            Ok(())
        })
    }

    /// The memory that a block is read into or written from.
    fn block_memory(&mut self, client: &Client, bytes: u64, memory: Memory) -> Result<&mut [u8]> {
        match memory {
            Memory::Any => {
                self.memory.resize(bytes as usize, 0);
                Ok(&mut self.memory)
            }
            Memory::Alloc => {
                if self.arena.as_ref().is_none_or(|arena| (arena.bytes() as u64) < bytes) {
                    self.arena = Some(client.alloc(bytes as usize)?);
                }
                let arena = self.arena.as_mut().expect("it was just made where it was missing");
                Ok(&mut arena[..bytes as usize])
            }
        }
    }

    fn write(
        &mut self,
        url: &str,
        path: &Path,
        block: Block,
        memory: Memory,
        ready: Ready<'_>,
    ) -> Result<Done> {
        let client = self.client(url)?;
        let file = client.open(at(path), &OpenOptions::new().write(true).create(true).mode(0o644))?;
        let data = self.block_memory(&client, block.bytes, memory)?;
        fill(data, block.offset);
        ready(String::new())?;
        let before = adapters::of_client(&client);
        let done = measure(|| {
            file.write_at(data, block.offset)?;
            Ok(())
        })?;
        Ok(Done { adapter: adapters::since(&adapters::of_client(&client), &before), ..done })
    }

    fn read(
        &mut self,
        url: &str,
        path: &Path,
        block: Block,
        memory: Memory,
        ready: Ready<'_>,
    ) -> Result<Done> {
        let client = self.client(url)?;
        let file = client.open(at(path), &OpenOptions::new().read(true))?;
        let data = self.block_memory(&client, block.bytes, memory)?;
        data.fill(0);
        ready(String::new())?;
        let before = adapters::of_client(&client);
        let done = measure(|| match file.read_at(data, block.offset)? {
            got if got == data.len() => Ok(()),
            got => bail!("{}: the file ends at {}", path.display(), block.offset + got as u64),
        })?;
        Ok(Done { adapter: adapters::since(&adapters::of_client(&client), &before), ..done })
    }
}

/// Fills memory with its own file offsets, 8 bytes each.
fn fill(data: &mut [u8], offset: u64) {
    for (index, word) in data.chunks_mut(8).enumerate() {
        let value = (offset + 8 * index as u64 + 1).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

fn check(data: &[u8], offset: u64) -> Result<()> {
    for (index, word) in data.chunks(8).enumerate() {
        let value = (offset + 8 * index as u64 + 1).to_le_bytes();
        if word != &value[..word.len()] {
            bail!("wrong data at {}", offset + 8 * index as u64);
        }
    }
    Ok(())
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is written to a live value.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times a piece of work.
pub fn measure(work: impl FnOnce() -> Result<()>) -> Result<Done> {
    let (begin_ns, cpu_ns) = (clock_ns(libc::CLOCK_MONOTONIC), clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID));
    work()?;
    let cpu_s = (clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) as f64 / 1e9;
    Ok(Done { begin_ns, end_ns: clock_ns(libc::CLOCK_MONOTONIC), cpu_s, ..Done::default() })
}

/// Repeats a piece of work and times each repetition.
pub fn measure_each(rounds: usize, mut work: impl FnMut() -> Result<()>) -> Result<Done> {
    let mut took_ns = Vec::with_capacity(rounds);
    let done = measure(|| {
        for _ in 0..rounds {
            let begun = Instant::now();
            work()?;
            took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        Ok(())
    })?;
    took_ns.sort_unstable();
    Ok(Done { p50_ns: percentile(&took_ns, 0.5), p99_ns: percentile(&took_ns, 0.99), ..done })
}

/// process_vm_readv in pieces of 1 MiB, sixteen to a call.
fn copy_from(pid: u32, address: u64, memory: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < memory.len() {
        let bytes = (memory.len() - done).min(16 << 20);
        let local: Vec<_> = memory[done..done + bytes]
            .chunks_mut(1 << 20)
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect();
        let remote = libc::iovec { iov_base: (address + done as u64) as *mut libc::c_void, iov_len: bytes };
        // SAFETY: the local pieces are live and disjoint; the kernel checks the remote address.
        let copied =
            unsafe { libc::process_vm_readv(pid as i32, local.as_ptr(), local.len() as u64, &remote, 1, 0) };
        if copied <= 0 {
            return Err(std::io::Error::last_os_error()).context("process_vm_readv");
        }
        done += copied as usize;
    }
    Ok(())
}

fn echo(socket: Socket, dir: &Path, bytes: usize, spin_us: u64, ready: Ready<'_>) -> Result<Done> {
    let mut buffer = vec![0; bytes];
    let serve = |socket: OwnedFd, buffer: &mut [u8]| {
        measure(|| {
            while receive(&socket, buffer, spin_us)? {
                send(&socket, buffer)?;
            }
            Ok(())
        })
    };
    match socket {
        Socket::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            ready(listener.local_addr()?.to_string())?;
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            serve(stream.into(), &mut buffer)
        }
        Socket::Unix => {
            let path = dir.join(format!("echo-{}", std::process::id()));
            let listener = UnixListener::bind(&path)?;
            ready(path.display().to_string())?;
            let stream = listener.accept()?.0;
            std::fs::remove_file(&path)?;
            serve(stream.into(), &mut buffer)
        }
    }
}

fn call(
    socket: Socket,
    to: &str,
    bytes: usize,
    spin_us: u64,
    rounds: usize,
    ready: Ready<'_>,
) -> Result<Done> {
    let stream: OwnedFd = match socket {
        Socket::Tcp => {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.into()
        }
        Socket::Unix => UnixStream::connect(to)?.into(),
    };
    let mut buffer = vec![1; bytes];
    ready(String::new())?;
    measure_each(rounds, || {
        send(&stream, &buffer)?;
        if receive(&stream, &mut buffer, spin_us)? { Ok(()) } else { bail!("the echo has ended") }
    })
}

fn send(socket: &OwnedFd, data: &[u8]) -> Result<()> {
    let mut sent = 0;
    while sent < data.len() {
        let rest = &data[sent..];
        // SAFETY: the buffer is live and its true size is given.
        let count =
            unsafe { libc::send(socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        if count < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        sent += count as usize;
    }
    Ok(())
}

/// Fills the buffer: polls for `spin_us`, then sleeps. Returns false if the other end has closed.
fn receive(socket: &OwnedFd, buffer: &mut [u8], spin_us: u64) -> Result<bool> {
    let mut filled = 0;
    let mut begun = Instant::now();
    while filled < buffer.len() {
        let spin = (begun.elapsed().as_micros() as u64) < spin_us;
        let rest = &mut buffer[filled..];
        let flags = if spin { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the buffer is live and its true size is given.
        let got = unsafe { libc::recv(socket.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), flags) };
        match got {
            0 => return Ok(false),
            got if got > 0 => {
                filled += got as usize;
                begun = Instant::now();
            }
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::WouldBlock {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(true)
}

fn done_by_threads(
    files: usize,
    threads: usize,
    one: &(dyn Fn(usize) -> Result<()> + Sync),
    ready: Ready<'_>,
) -> Result<Done> {
    ready(String::new())?;
    measure(|| {
        std::thread::scope(|scope| {
            let part = |thread: usize| move || (thread..files).step_by(threads).try_for_each(one);
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(part(thread))).collect();
            let mine = part(0)();
            let theirs =
                others.into_iter().map(|other| other.join().expect("a worker's thread does not panic"));
            theirs.fold(mine, Result::and)
        })
    })
}

fn weft_name(client: &Client, dir: &Path, op: NameOp, index: usize) -> Result<()> {
    let path = dir.join(format!("f{index}"));
    match op {
        NameOp::Create => {
            let options = OpenOptions::new().write(true).create_new(true).mode(0o644);
            client.open(at(&path), &options)?.close()?;
        }
        NameOp::Stat => {
            client.stat(at(&path), true)?;
        }
        NameOp::Unlink => client.unlink(at(&path))?,
    }
    Ok(())
}

fn local_name(dir: &Path, op: NameOp, index: usize) -> Result<()> {
    let path = dir.join(format!("f{index}"));
    match op {
        NameOp::Create => drop(File::create_new(&path)?),
        NameOp::Stat => {
            std::fs::metadata(&path)?;
        }
        NameOp::Unlink => std::fs::remove_file(&path)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_moved_is_noticed() {
        let mut data = vec![0; 100];
        fill(&mut data, 4096);
        check(&data, 4096).unwrap();
        assert!(check(&data, 4104).is_err());
        data[50] ^= 1;
        assert!(check(&data, 4096).unwrap_err().to_string().contains("4144"));
    }

    #[test]
    fn local_blocks_are_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut state = State::default();
        for offset in [0, 3 << 20] {
            let block = Block { offset, bytes: 3 << 20 };
            state.perform(Task::LocalWrite { path: path.clone(), block }, &mut |_| Ok(())).unwrap();
        }
        let block = Block { offset: 1 << 20, bytes: 4 << 20 };
        state.perform(Task::LocalRead { path, block }, &mut |_| Ok(())).unwrap();
        check(&state.memory, 1 << 20).unwrap();
    }
}
