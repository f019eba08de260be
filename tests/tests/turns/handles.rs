//! Operations on open files, and on files that are mapped.

use crate::names::{LENGTHS, OFFSETS, SIZES, some_data, some_time};
use crate::outcome::{Seen, attributes, done};
use crate::sys::{self, Mapping};
use libc::{FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use weft_test_random::Random;

/// Longer than files usually are, so that what is mapped grows and shrinks.
const MAPPED_BYTES: usize = 150_000;

/// An open file, or directory, and its mapping if there is one.
pub struct Open {
    pub file: File,
    mapping: Mutex<Option<Mapping>>,
}

impl Open {
    pub fn new(file: File) -> Open {
        Open { file, mapping: Mutex::new(None) }
    }

    /// What `work` makes of the mapping, which is made if there is none. It stays if `work` says so.
    pub fn is_directory(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.is_dir())
    }

    fn mapped<T>(&self, work: impl FnOnce(&Mapping) -> io::Result<(T, bool)>) -> io::Result<T> {
        let mut place = self.mapping.lock().expect("nobody panics who has it");
        let mapping = match place.take() {
            Some(mapping) => mapping,
            None => Mapping::new(&self.file, MAPPED_BYTES)?,
        };
        let (result, stays) = work(&mapping)?;
        *place = stays.then_some(mapping);
        Ok(result)
    }
}

/// An operation on an open file.
#[derive(Debug, Clone)]
pub enum OnHandle {
    Write {
        offset: u64,
        data: (u8, usize),
    },
    Read {
        offset: u64,
        bytes: usize,
    },
    Truncate(u64),
    Allocate {
        mode: i32,
        offset: u64,
        bytes: u64,
    },
    Stat,
    Sync,
    Times(i64),
    Lock(i32),
    LockRange {
        kind: i32,
        start: u64,
        bytes: u64,
    },
    Load {
        offset: usize,
        bytes: usize,
    },
    /// And write it back, by msync or by munmap.
    Store {
        offset: usize,
        data: (u8, usize),
        unmap: bool,
    },
}

impl OnHandle {
    /// Whether file systems differ in what it makes of the time of the last change.
    pub fn leaves_any_time(&self) -> bool {
        matches!(self, OnHandle::Allocate { .. } | OnHandle::Store { .. })
    }

    /// Whether it may be another time afterwards.
    pub fn changes_time(&self) -> bool {
        self.leaves_any_time() || matches!(self, OnHandle::Times(_))
    }

    /// Whether it is about locks.
    pub fn locks(&self) -> bool {
        matches!(self, OnHandle::Lock(_) | OnHandle::LockRange { .. })
    }
}

/// Some operation; of mappings only where they are wanted.
pub fn some_op(random: &mut Random, with_mappings: bool) -> OnHandle {
    let offset = *random.choose(OFFSETS);
    match random.below(if with_mappings { 14 } else { 11 }) {
        0 | 1 => OnHandle::Write { offset, data: some_data(random) },
        2 | 3 => OnHandle::Read { offset, bytes: 20_000 },
        4 => OnHandle::Truncate(*random.choose(SIZES)),
        5 => {
            let modes = [
                0,
                FALLOC_FL_KEEP_SIZE,
                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                FALLOC_FL_ZERO_RANGE,
                FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
                FALLOC_FL_COLLAPSE_RANGE,
            ];
            OnHandle::Allocate { mode: *random.choose(&modes), offset, bytes: *random.choose(LENGTHS) }
        }
        6 => OnHandle::Stat,
        7 => OnHandle::Sync,
        8 => OnHandle::Times(some_time(random)),
        9 => OnHandle::Lock(*random.choose(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN])),
        10 => {
            let kind = *random.choose(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]);
            OnHandle::LockRange { kind, start: random.below(4), bytes: random.below(4) }
        }
        11 => OnHandle::Load { offset: offset as usize, bytes: 20_000 },
        _ => {
            let unmap = random.one_in(3);
            OnHandle::Store { offset: offset as usize, data: some_data(random), unmap }
        }
    }
}

pub fn apply(open: &Open, op: &OnHandle) -> io::Result<Seen> {
    let file = &open.file;
    Ok(match op {
        OnHandle::Write { offset, data: (byte, length) } => {
            let count = file.write_at(&vec![*byte; *length], *offset)?;
            tell(file)?;
            Seen::Count(count)
        }
        OnHandle::Read { offset, bytes } => {
            let mut data = vec![0; *bytes];
            let read = file.read_at(&mut data, *offset)?;
            data.truncate(read);
            Seen::bytes(data)
        }
        OnHandle::Truncate(bytes) => done(file.set_len(*bytes))?,
        OnHandle::Allocate { mode, offset, bytes } => {
            sys::fallocate(file, *mode, *offset, *bytes)?;
            done(tell(file))?
        }
        OnHandle::Stat => attributes(&file.metadata()?),
        OnHandle::Sync => done(file.sync_all())?,
        OnHandle::Times(seconds) => done(sys::set_times_of(file, *seconds))?,
        OnHandle::Lock(how) => done(sys::flock(file, *how))?,
        OnHandle::LockRange { kind, start, bytes } => done(sys::lock_range(file, *kind, *start, *bytes))?,
        OnHandle::Load { offset, bytes } => Seen::bytes(open.mapped(|mapping| {
            let mut data = vec![0; reach(file, *offset, *bytes)?];
            mapping.load(*offset, &mut data);
            Ok((data, true))
        })?),
        OnHandle::Store { offset, data: (byte, length), unmap } => Seen::Count(open.mapped(|mapping| {
            let data = vec![*byte; reach(file, *offset, *length)?];
            mapping.store(*offset, &data);
            if !unmap {
                mapping.sync()?;
            }
            Ok((data.len(), !unmap))
        })?),
    })
}

/// The end of any descriptor tells others of what was written.
fn tell(file: &File) -> io::Result<()> {
    file.try_clone().map(drop)
}

/// How many of these bytes are within the mapping and the file. Asking is also what renews pages that are mapped.
fn reach(file: &File, offset: usize, bytes: usize) -> io::Result<usize> {
    let end = MAPPED_BYTES.min(file.metadata()?.len() as usize);
    Ok(bytes.min(end.saturating_sub(offset)))
}

/// What tmpfs does not offer, by what it does.
pub fn apply_locally(open: &Open, op: &OnHandle) -> io::Result<Seen> {
    match op {
        OnHandle::Allocate { mode, offset, bytes } if mode & FALLOC_FL_ZERO_RANGE != 0 => {
            let keep = mode & FALLOC_FL_KEEP_SIZE;
            sys::fallocate(&open.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, *offset, *bytes)?;
            done(sys::fallocate(&open.file, keep, *offset, *bytes))
        }
        op => apply(open, op),
    }
}

/// From one open file into another, or within one. (The kernel compares the range with the size that it saw last.)
pub fn copy(from: (&Open, u64), to: (&Open, u64), bytes: usize) -> io::Result<Seen> {
    from.0.file.metadata()?;
    let count = sys::copy_range((&from.0.file, from.1), (&to.0.file, to.1), bytes)?;
    tell(&to.0.file)?;
    Ok(Seen::Count(count))
}
