//! Random requests of one size, done by a worker.

use crate::access::pattern::Shuffle;
use crate::worker::measure::{Done, Ready, measure, measure_each};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_bench_args::{Memory, Way};
use weft_cli_common::connections::at;
use weft_client::{Arena, Client, File, OpenOptions, finish_some};
use weft_layout::Regions;

/// Random requests of one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Requests {
    pub url: String,
    pub path: PathBuf,
    pub way: Way,
    pub memory: Memory,
    pub request_bytes: u64,
    pub file_bytes: u64,
    /// Under way at once.
    pub depth: usize,
    /// How many in all.
    pub requests: usize,
}

impl Requests {
    /// Does the task with the worker's connection, some before the measured part.
    pub fn perform(self, client: &Client, ready: Ready<'_>) -> Result<Done> {
        let file = client.open(at(&self.path), &OpenOptions::new().read(true).write(true))?;
        let bytes = self.request_bytes as usize;
        let mut owned = Vec::new();
        let mut arena: Option<Arena> = None;
        let memory: &mut [u8] = match self.memory {
            Memory::Any => {
                owned.resize(self.depth * bytes, 7);
                &mut owned
            }
            Memory::Alloc => &mut arena.insert(client.alloc(self.depth * bytes)?)[..self.depth * bytes],
        };
        let blocks = Shuffle { count: self.file_bytes / self.request_bytes, seed: 1 };
        let mut index = 0;
        let mut next = || {
            index = (index + 1) % blocks.count;
            blocks.at(index) * self.request_bytes
        };
        let done = if self.depth == 1 {
            self.one(&file, memory, next())?;
            ready(String::new())?;
            measure_each(self.requests, || self.one(&file, memory, next()))?
        } else {
            self.many(&file, memory, self.depth, &mut next)?;
            ready(String::new())?;
            measure(|| self.many(&file, memory, self.requests, &mut next))?
        };
        file.close()?;
        Ok(done)
    }

    fn one(&self, file: &File, memory: &mut [u8], offset: u64) -> Result<()> {
        let moved = match self.way {
            Way::Read => file.read_at(memory, offset)?,
            _ => file.write_at(memory, offset)?,
        };
        self.check(moved as u64)
    }

    /// Has `depth` under way until `requests` have ended.
    fn many(
        &self,
        file: &File,
        memory: &mut [u8],
        requests: usize,
        next: &mut dyn FnMut() -> u64,
    ) -> Result<()> {
        let whole = Regions::contiguous(0, self.request_bytes);
        let mut start = |piece: *mut u8| {
            let place = Regions::contiguous(next(), self.request_bytes);
            // SAFETY: the piece is of `memory`, which is borrowed until all have ended; nothing else under way has it.
            unsafe {
                match self.way {
                    Way::Read => file.start_read_raw(piece, &whole, &place),
                    _ => file.start_write_raw(piece, &whole, &place),
                }
            }
        };
        let pieces = memory.chunks_exact_mut(self.request_bytes as usize).take(requests);
        let pieces: Vec<_> = pieces.map(<[u8]>::as_mut_ptr).collect();
        let mut under_way: Vec<_> = pieces.into_iter().map(|piece| (piece, start(piece))).collect();
        let mut left = requests - under_way.len();
        while !under_way.is_empty() {
            let over = finish_some(under_way.iter_mut().map(|(_, one)| one));
            for at in over.into_iter().rev() {
                let (piece, ended) = under_way.swap_remove(at);
                self.check(ended.wait()?)?;
                if left > 0 {
                    left -= 1;
                    under_way.push((piece, start(piece)));
                }
            }
        }
        Ok(())
    }

    fn check(&self, moved_bytes: u64) -> Result<()> {
        ensure!(
            moved_bytes == self.request_bytes,
            "{moved_bytes} of {} bytes were moved",
            self.request_bytes
        );
        Ok(())
    }
}
