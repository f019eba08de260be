//! A worker process of a measurement. It reads tasks as lines of JSON. It prepares each task, reports that,
//! waits for `go`, does the task, and replies with start, end and processor time.

pub mod measure;
pub mod names;
pub mod ping;

use super::access::content;
use super::access::task::AccessTask;
use super::adapters;
use super::repeated::task::Repeated;
use super::requests::task::Requests;
use anyhow::{Context, Result, bail};
use measure::{Block, Done, Ready, measure, measure_each_after};
use names::NameOp;
use ping::{Exchange, Socket};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_bench_args::{Memory, Way};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_client::{Arena, Client, OpenOptions};

/// Local files are read and written in requests of this size.
const LOCAL_REQUEST_BYTES: usize = 1 << 20;
/// The number of the write for the contents of blocks.
const SALT: u64 = 1;

/// A task of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Write a block of a local file.
    LocalWrite { path: PathBuf, block: Block },
    /// Read a block of a local file.
    LocalRead { path: PathBuf, block: Block },
    /// Write or read a block of a file in a cluster.
    Transfer { way: Way, url: String, path: PathBuf, block: Block, memory: Memory },
    /// Check the data that was read last. This is a separate task, so that no client's check takes processor
    /// time from clients that still read.
    Check { path: PathBuf, block: Block, memory: Memory },
    /// Allocate memory and report its address.
    Hold { bytes: u64 },
    /// Copy from another process's memory.
    CopyFrom { pid: u32, address: u64, bytes: u64 },
    /// Answer requests with replies; reports the address.
    Answer { socket: Socket, dir: PathBuf, exchange: Exchange },
    /// Send requests in groups, and time each group with its replies.
    Exchange { socket: Socket, to: String, exchange: Exchange, rounds: usize },
    /// Requests at random places of a file.
    Requests(Requests),
    /// Read the same bytes repeatedly, with pauses, and time each read.
    ReadAgain { url: String, path: PathBuf, bytes: usize, rounds: usize, pause_us: u64 },
    /// Create, query or remove files in a cluster, with several threads.
    Names { url: String, dir: PathBuf, op: NameOp, files: usize, threads: usize },
    /// The same in a local directory.
    LocalNames { dir: PathBuf, op: NameOp, files: usize },
    /// A part of a measurement of noncontiguous access.
    Access(AccessTask),
    /// Move the same bytes repeatedly, and time each transfer.
    Repeated(Repeated),
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

impl State {
    /// Prepares a task, calls `ready`, which returns when the measured part begins, and does the task.
    fn perform(&mut self, task: Task, ready: Ready<'_>) -> Result<Done> {
        match task {
            Task::LocalWrite { path, block } => self.local_write(&path, block, ready),
            Task::LocalRead { path, block } => self.local_read(&path, block, ready),
            Task::Transfer { way, url, path, block, memory } => {
                self.transfer(way, (&url, &path), (block, memory), ready)
            }
            Task::Check { path, block, memory } => {
                let data = match (&self.arena, memory) {
                    (Some(arena), Memory::Alloc) => &arena[..block.bytes as usize],
                    _ => &self.memory[..],
                };
                ready(String::new())?;
                measure(|| {
                    content::check(data, block.offset, SALT).with_context(|| path.display().to_string())
                })
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
            Task::Answer { socket, dir, exchange } => ping::answer(socket, &dir, exchange, ready),
            Task::Exchange { socket, to, exchange, rounds } => {
                ping::exchange(socket, &to, exchange, rounds, ready)
            }
            Task::Requests(requests) => {
                let client = self.client(&requests.url)?;
                requests.perform(&client, ready)
            }
            Task::ReadAgain { url, path, bytes, rounds, pause_us } => {
                let file = self.client(&url)?.open(at(&path), &OpenOptions::new().read(true))?;
                let mut buffer = vec![0; bytes];
                file.read_at(&mut buffer, 0)?;
                ready(String::new())?;
                let pause = Duration::from_micros(pause_us);
                measure_each_after(pause, rounds, || match file.read_at(&mut buffer, 0)? {
                    got if got == bytes => Ok(()),
                    got => bail!("{got} of {bytes} bytes were read"),
                })
            }
            Task::Repeated(repeated) => {
                let client = self.client(&repeated.url)?;
                repeated.perform(&client, ready)
            }
            Task::Names { url, dir, op, files, threads } => {
                names::by_threads(&self.client(&url)?, &dir, op, (files, threads), ready)
            }
            Task::LocalNames { dir, op, files } => {
                ready(String::new())?;
                measure(|| (0..files).try_for_each(|index| names::local(&dir, op, index)))
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
        content::fill(&mut self.memory, offset, SALT);
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

    /// Writes or reads a block of a file in a cluster.
    fn transfer(
        &mut self,
        way: Way,
        (url, path): (&str, &Path),
        (block, memory): (Block, Memory),
        ready: Ready<'_>,
    ) -> Result<Done> {
        let client = self.client(url)?;
        let options = match way {
            Way::Read => OpenOptions::new().read(true),
            Way::Write | Way::Rewrite => OpenOptions::new().write(true).create(true).mode(0o644),
        };
        let file = client.open(at(path), &options)?;
        let data = self.block_memory(&client, block.bytes, memory)?;
        match way {
            Way::Read => data.fill(0),
            Way::Write | Way::Rewrite => content::fill(data, block.offset, SALT),
        }
        ready(String::new())?;
        let before = adapters::of_client(&client);
        let done = measure(|| match way {
            Way::Read => match file.read_at(data, block.offset)? {
                got if got == data.len() => Ok(()),
                got => bail!("{}: the file ends at {}", path.display(), block.offset + got as u64),
            },
            Way::Write | Way::Rewrite => Ok(file.write_at(data, block.offset).map(drop)?),
        })?;
        Ok(Done { adapter: adapters::since(&adapters::of_client(&client), &before), ..done })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
        content::check(&state.memory, 1 << 20, SALT).unwrap();
    }
}
