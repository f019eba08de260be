//! Tasks of worker processes in measurements of repeated transfers.

use super::super::access::content;
use super::super::access::method::options_of;
use super::super::access::pattern::{Access, Pattern, Program};
use super::super::access::task::{complete, in_memory};
use super::super::adapters;
use super::super::worker::measure::{Done, Ready, measure_each};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;
use weft_bench_args::{How, Memory, Way};
use weft_cli_common::connections::at;
use weft_client::{Arena, Client, File, OpenOptions};
use weft_layout::Extent;

/// How calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// The method, as an option of the client library.
    pub how: How,
    /// Give the hint that all pieces are parts of one allocation (IB 5, NC 4.2.1).
    pub with_hint: bool,
    /// Calls in flight.
    pub depth: usize,
}

impl Moving {
    /// One call at a time, without a hint.
    pub const fn by(how: How) -> Moving {
        Moving { how, with_hint: false, depth: 1 }
    }
}

/// A rank's part of a pattern, repeated.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Repeated {
    pub url: String,
    pub path: PathBuf,
    pub pattern: Pattern,
    pub rank: usize,
    pub moving: Moving,
    pub memory: Memory,
    pub way: Way,
    pub rounds: u32,
}

/// Memory begins at a page boundary, so that rows of whole pages share no page.
const PAGE_BYTES: usize = 4096;
/// The number of the write for all contents.
const SALT: u64 = 7;

impl Repeated {
    /// Does the task with the worker's connection, once before the measured part.
    pub fn perform(self, client: &Client, ready: Ready<'_>) -> Result<Done> {
        let program = self.pattern.program(self.rank);
        let file = client.open(at(&self.path), &OpenOptions::new().read(true).write(true))?;
        file.set_access(options_of(self.moving.how));
        let mut owned = Vec::new();
        let mut arena: Option<Arena> = None;
        let memory: &mut [u8] = match self.memory {
            Memory::Any => {
                owned.resize(program.memory_bytes as usize + PAGE_BYTES, 0);
                let begin = owned.as_ptr().align_offset(PAGE_BYTES);
                &mut owned[begin..][..program.memory_bytes as usize]
            }
            Memory::Alloc => {
                let arena = arena.insert(client.alloc(program.memory_bytes as usize)?);
                &mut arena[..program.memory_bytes as usize]
            }
        };
        match self.way {
            Way::Read => content::clear_memory(memory),
            Way::Write | Way::Rewrite => content::fill_memory(memory, &program, SALT),
        }
        self.once(&file, memory, &program)?;
        ready(String::new())?;
        let before = adapters::of_client(client);
        let done = measure_each(self.rounds as usize, || self.once(&file, memory, &program))?;
        let adapter = adapters::since(&adapters::of_client(client), &before);
        if self.way == Way::Read {
            content::check_memory(memory, &program, SALT)?;
        }
        file.close()?;
        Ok(Done { adapter, ..done })
    }

    fn once(&self, file: &File, memory: &mut [u8], program: &Program) -> Result<()> {
        let all = [Extent::new(0, memory.len() as u64)];
        let hint: &[Extent] = if self.moving.with_hint { &all } else { &[] };
        let mut under_way = VecDeque::new();
        for access in &program.accesses {
            in_memory(memory, access)?;
            if self.moving.depth <= 1 {
                // SAFETY: the pieces are within `memory`, which is borrowed until this returns.
                let moved = unsafe { self.call(file, memory, access, hint) }?;
                complete(moved, access)?;
                continue;
            }
            if under_way.len() == self.moving.depth {
                let (first, access): (weft_client::PendingRaw, &Access) =
                    under_way.pop_front().expect("there are as many as may be");
                complete(first.wait()?, access)?;
            }
            // SAFETY: as above; all are waited for.
            let started = unsafe {
                match self.way {
                    Way::Read => file.start_read_raw(memory.as_mut_ptr(), &access.memory, &access.file),
                    _ => file.start_write_raw(memory.as_ptr(), &access.memory, &access.file),
                }
            };
            under_way.push_back((started, access));
        }
        under_way.into_iter().try_for_each(|(started, access)| complete(started.wait()?, access))
    }

    /// # Safety
    /// The pieces are within `memory`.
    unsafe fn call(&self, file: &File, memory: &mut [u8], access: &Access, hint: &[Extent]) -> Result<u64> {
        let (memory_side, file_side) = (&access.memory, &access.file);
        // SAFETY: as the caller promises; the memory is borrowed until this returns.
        let moved = unsafe {
            match (self.way, hint.is_empty()) {
                (Way::Read, true) => file.read_raw(memory.as_mut_ptr(), memory_side, file_side),
                (Way::Read, false) => file.read_raw_in(memory.as_mut_ptr(), memory_side, hint, file_side),
                (_, true) => file.write_raw(memory.as_ptr(), memory_side, file_side),
                (_, false) => file.write_raw_in(memory.as_ptr(), memory_side, hint, file_side),
            }
        };
        Ok(moved?)
    }
}
