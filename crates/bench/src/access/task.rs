//! Tasks of worker processes in measurements of noncontiguous access.

use super::super::adapters;
use super::super::worker::measure::{Block, Done, Ready, measure};
use super::content;
use super::method::{Counters, options_of};
use super::pattern::{Access, Both, Pattern};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use weft_bench_args::{How, Way};
use weft_cli_common::connections::at;
use weft_client::{Client, OpenOptions};
use weft_layout::Regions;

/// Whole files are read and written in units of this size.
const PART_BYTES: u64 = 16 << 20;

/// A file, and how to access it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Place {
    /// A local file. Each piece is a system call.
    Local { path: PathBuf },
    /// A file in a cluster.
    Weft { url: String, path: PathBuf, how: How },
}

/// A task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum AccessTask {
    /// Do a rank's part of a pattern to one file after the other. Writes are write number `salt`. With
    /// `sync`, also make them durable.
    Do { places: Vec<Place>, pattern: Pattern, rank: usize, way: Way, salt: u64, sync: bool },
    /// Check that the last data that was read, from the last file, is from write `salt`.
    Check { pattern: Pattern, rank: usize, salt: u64 },
    /// Write a block of each file in one piece, as write 0.
    Fill { places: Vec<Place>, block: Block },
    /// Read a block of each file in one piece, and check that every piece of the pattern is from write `salt`
    /// and the rest from write 0.
    CheckFiles { places: Vec<Place>, block: Block, pattern: Pattern, salt: u64 },
}

/// An open file.
enum Opened {
    Local(std::fs::File),
    Weft(weft_client::File, How),
}

impl AccessTask {
    /// Does the task with the worker's memory and connection.
    pub fn perform(
        self,
        memory: &mut Vec<u8>,
        mut connect: impl FnMut(&str) -> Result<Client>,
        ready: Ready<'_>,
    ) -> Result<Done> {
        let mut open = |places: &[Place]| {
            places.iter().map(|place| place.open(&mut connect)).collect::<Result<Vec<_>>>()
        };
        match self {
            AccessTask::Do { places, pattern, rank, way, salt, sync } => {
                let program = pattern.program(rank);
                let files = open(&places)?;
                let client = places.first().map(|place| place.client(&mut connect)).transpose()?.flatten();
                memory.resize(program.memory_bytes as usize, 0);
                match way {
                    Way::Read => content::clear_memory(memory),
                    Way::Write | Way::Rewrite => content::fill_memory(memory, &program, salt),
                }
                ready(String::new())?;
                let asked = || client.as_ref().map(adapters::of_client).unwrap_or_default();
                let before = asked();
                let done = measure(|| {
                    files.iter().try_for_each(|file| {
                        program.accesses.iter().try_for_each(|access| file.access(way, memory, access))?;
                        if sync && way != Way::Read { file.sync() } else { Ok(()) }
                    })
                })?;
                let mut counters = Counters::default();
                files.iter().for_each(|file| counters += file.counters());
                Ok(Done { counters, adapter: adapters::since(&asked(), &before), ..done })
            }
            AccessTask::Check { pattern, rank, salt } => {
                ready(String::new())?;
                measure(|| content::check_memory(memory, &pattern.program(rank), salt))
            }
            AccessTask::Fill { places, block } => {
                let files = open(&places)?;
                ready(String::new())?;
                measure(|| files.iter().try_for_each(|file| fill_file(file, block, memory)))
            }
            AccessTask::CheckFiles { places, block, pattern, salt } => {
                let files = open(&places)?;
                ready(String::new())?;
                measure(|| files.iter().try_for_each(|file| check_file(file, block, &pattern, salt, memory)))
            }
        }
    }
}

fn fill_file(file: &Opened, block: Block, memory: &mut Vec<u8>) -> Result<()> {
    parts(block).try_for_each(|part| {
        memory.resize(part.bytes as usize, 0);
        content::fill(memory, part.offset, 0);
        file.access(Way::Write, memory, &part.as_access())
    })
}

fn check_file(file: &Opened, block: Block, pattern: &Pattern, salt: u64, memory: &mut Vec<u8>) -> Result<()> {
    let mut pieces = Vec::new();
    if !pattern.covers_file() {
        for rank in 0..pattern.ranks() {
            pieces.extend(pattern.program(rank).accesses.iter().flat_map(Access::both_sides));
        }
        pieces.sort_unstable_by_key(|piece| piece.file_offset);
    }
    for part in parts(block) {
        memory.resize(part.bytes as usize, 0);
        file.access(Way::Read, memory, &part.as_access())?;
        if pattern.covers_file() {
            content::check(memory, part.offset, salt)?;
            continue;
        }
        let end = part.offset + part.bytes;
        let first = pieces.partition_point(|piece| piece.file_offset + piece.bytes <= part.offset);
        for piece in pieces[first..].iter().take_while(|piece| piece.file_offset < end) {
            let (from, to) = (piece.file_offset.max(part.offset), (piece.file_offset + piece.bytes).min(end));
            let found = &mut memory[(from - part.offset) as usize..(to - part.offset) as usize];
            content::check(found, from, salt)?;
            content::fill(found, from, 0);
        }
        content::check(memory, part.offset, 0)?;
    }
    Ok(())
}

/// Cuts a block into parts of at most 16 MiB.
fn parts(block: Block) -> impl Iterator<Item = Block> {
    let count = block.bytes.div_ceil(PART_BYTES);
    (0..count).map(move |index| {
        let begin = index * PART_BYTES;
        Block { offset: block.offset + begin, bytes: (block.bytes - begin).min(PART_BYTES) }
    })
}

impl Block {
    /// An access to the whole block, at the beginning of memory.
    fn as_access(self) -> Access {
        Access {
            memory: Regions::contiguous(0, self.bytes),
            file: Regions::contiguous(self.offset, self.bytes),
        }
    }
}

impl Place {
    /// The client of the file's cluster, if it is in one.
    fn client(&self, connect: &mut impl FnMut(&str) -> Result<Client>) -> Result<Option<Client>> {
        match self {
            Place::Local { .. } => Ok(None),
            Place::Weft { url, .. } => connect(url).map(Some),
        }
    }

    fn open(&self, connect: &mut impl FnMut(&str) -> Result<Client>) -> Result<Opened> {
        match self {
            Place::Local { path } => {
                let file = std::fs::File::options().read(true).write(true).open(path);
                Ok(Opened::Local(file.with_context(|| format!("cannot open {}", path.display()))?))
            }
            Place::Weft { url, path, how } => {
                let file = connect(url)?.open(at(path), &OpenOptions::new().read(true).write(true))?;
                file.set_access(options_of(*how));
                Ok(Opened::Weft(file, *how))
            }
        }
    }
}

impl Opened {
    /// Reads or writes the pieces of an access.
    fn access(&self, way: Way, memory: &mut [u8], access: &Access) -> Result<()> {
        let reads = way == Way::Read;
        match self {
            Opened::Local(file) => access.both_sides().try_for_each(|both| {
                let piece = &mut memory[both.in_memory()];
                let place = both.file_offset;
                Ok(if reads { file.read_exact_at(piece, place) } else { file.write_all_at(piece, place) }?)
            }),
            Opened::Weft(file, How::AtOnce) => {
                let start = |both: Both| {
                    let (piece, place) = (both.memory(), both.file());
                    // SAFETY: the piece is within `memory`, which is borrowed until all are waited for;
                    // pieces are disjoint.
                    unsafe {
                        match reads {
                            true => file.start_read_raw(memory.as_mut_ptr(), &piece, &place),
                            false => file.start_write_raw(memory.as_ptr(), &piece, &place),
                        }
                    }
                };
                let started: Vec<_> = access.both_sides().map(start).collect();
                complete(started.into_iter().map(|one| Ok(one.wait()?)).sum::<Result<u64>>()?, access)
            }
            Opened::Weft(file, _) => {
                in_memory(memory, access)?;
                // SAFETY: the pieces are within `memory`, which is borrowed until this returns.
                let bytes = unsafe {
                    match reads {
                        true => file.read_raw(memory.as_mut_ptr(), &access.memory, &access.file),
                        false => file.write_raw(memory.as_ptr(), &access.memory, &access.file),
                    }
                };
                complete(bytes?, access)
            }
        }
    }

    /// The costs of all accesses since the file was opened.
    fn counters(&self) -> Counters {
        match self {
            Opened::Local(_) => Counters::default(),
            Opened::Weft(file, _) => file.io_stats().into(),
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Opened::Local(file) => Ok(file.sync_data()?),
            Opened::Weft(file, _) => Ok(file.sync_data()?),
        }
    }
}

/// Fails if a piece of an access is not in the memory.
pub fn in_memory(memory: &[u8], access: &Access) -> Result<()> {
    match access.memory.span() {
        Some(span) if span.end() > memory.len() as u64 => bail!("a piece ends outside the memory"),
        _ => Ok(()),
    }
}

/// Fails if not all bytes of an access were moved.
pub fn complete(bytes: u64, access: &Access) -> Result<()> {
    match access.file.total_bytes() {
        wanted if wanted == bytes => Ok(()),
        wanted => bail!("{bytes} of {wanted} bytes were moved"),
    }
}

impl Both {
    fn in_memory(&self) -> std::ops::Range<usize> {
        self.memory_offset as usize..(self.memory_offset + self.bytes) as usize
    }

    fn memory(&self) -> Regions {
        Regions::contiguous(self.memory_offset, self.bytes)
    }

    fn file(&self) -> Regions {
        Regions::contiguous(self.file_offset, self.bytes)
    }
}
