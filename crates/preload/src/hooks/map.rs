//! Memory-mapped files.
//!
//! There are no pages to share with a server, so a mapping is a copy of the file:
//!
//! ```text
//!   private, or shared to read    anonymous memory with the file's bytes at the time of mmap
//!   shared to write               the same, shared with forked children, beside a second copy; msync, munmap
//!                                 and the end of the program write the bytes that differ to the file
//! ```
//!
//! If a file is mapped again, the first mapping is written back before the second copy is made.
//!
//! Bytes beyond the end of the file are zeros and are not written. Programs that also lock parts of the file
//! intend to share that memory with other processes, which a copy cannot do. Their shared mappings fail with
//! `ENODEV`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{off_t, size_t};
use weft_layout::Regions;

use super::files::read_at;
use crate::guard::{Errno, Outcome, enter, system, within};
use crate::memory::SpinLock;
use crate::privileges;
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{Use, find};

const PAGE_BYTES: usize = 4096;

/// A mapping that is written back.
pub(crate) struct Mapping {
    start: usize,
    bytes: usize,
    offset: u64,
    /// The second copy: the file's original bytes.
    before: usize,
    /// A descriptor's reference, so that the file stays open.
    open: Use,
    generation: u32,
}

/// Held over a fork.
pub(crate) static MAPPINGS: SpinLock<Vec<Mapping>> = SpinLock::new(Vec::new());

hooks! {
    fn mmap = mmap64(
        place: *mut c_void,
        bytes: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: off_t,
    ) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS != 0 {
            return mmap::real(place, bytes, protection, flags, fd, offset);
        }
        match find(fd) {
            None => mmap::real(place, bytes, protection, flags, fd, offset),
            Some(open) => match within(|| map(open, place, bytes, protection, flags, offset)) {
                Ok(place) => place as *mut c_void,
                Err(Errno(errno)) => {
                    weft_client::c::set_errno(errno);
                    libc::MAP_FAILED
                }
            },
        }
    }

    fn munmap(place: *mut c_void, bytes: size_t) -> c_int {
        if !crate::guard::is_inside() && any() {
            let written = within(|| write_back(place as usize, bytes, true));
            let result = munmap::real(place, bytes);
            return if let Err(error) = written { enter(|| Err(error)) } else { result };
        }
        munmap::real(place, bytes)
    }

    fn msync(place: *mut c_void, bytes: size_t, flags: c_int) -> c_int {
        if any() && within(|| write_back(place as usize, bytes, false)).is_ok_and(|found| found) {
            return 0;
        }
        msync::real(place, bytes, flags)
    }
}

fn any() -> bool {
    MAPPINGS.with(|mappings| !mappings.is_empty())
}

fn anonymous(place: usize, bytes: usize, flags: c_int) -> Outcome<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (flags | libc::MAP_ANONYMOUS) as usize;
    system(libc::SYS_mmap, [place, bytes, protection, flags, usize::MAX, 0])
}

fn unmap(place: usize, bytes: usize) {
    let _ = system(libc::SYS_munmap, [place, bytes, 0, 0, 0, 0]);
}

fn map(
    open: Use,
    place: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Outcome<usize> {
    let offset = u64::try_from(offset).ok().filter(|offset| offset.is_multiple_of(PAGE_BYTES as u64));
    let offset = offset.filter(|_| bytes > 0).ok_or(Errno(libc::EINVAL))?;
    match open.kind() {
        Kind::File => {}
        Kind::Directory => return Err(Errno(libc::ENODEV)),
        Kind::Path => return Err(Errno(libc::EBADF)),
    }
    let access = open.flags() & libc::O_ACCMODE;
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let written_back = shared && protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || written_back && access != libc::O_RDWR {
        return Err(Errno(libc::EACCES));
    }
    if written_back && open.locked.load(Ordering::Acquire) {
        return Err(Errno(libc::ENODEV));
    }
    write_file_back(open.shared().ino)?;
    // Shared with forked children too.
    let kind = if written_back { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let kept = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_NORESERVE);
    let start = anonymous(place as usize, bytes, kind | kept)?;
    let fill = || -> Outcome<()> {
        let memory = Regions::contiguous(start as u64, bytes as u64);
        read_at(&open, &memory, offset)?;
        if written_back {
            let before = anonymous(0, bytes, libc::MAP_PRIVATE)?;
            // SAFETY: two mappings of this size.
            unsafe { std::ptr::copy_nonoverlapping(start as *const u8, before as *mut u8, bytes) };
            let generation = crate::mounts::generation();
            let open = open.again();
            MAPPINGS
                .with(|mappings| mappings.push(Mapping { start, bytes, offset, before, open, generation }));
        } else if protection != libc::PROT_READ | libc::PROT_WRITE {
            system(libc::SYS_mprotect, [start, bytes, protection as usize, 0, 0, 0])?;
        }
        Ok(())
    };
    fill().inspect_err(|_| unmap(start, bytes)).map(|()| start)
}

/// Writes back changes in mappings that overlap a range. Returns whether there were any. `end`: they are
/// being unmapped.
fn write_back(place: usize, bytes: usize, end: bool) -> Outcome<bool> {
    let taken =
        take(|mapping| mapping.start < place.saturating_add(bytes) && place < mapping.start + mapping.bytes);
    let found = !taken.is_empty();
    let mut result = Ok(found);
    for mapping in taken {
        if let Err(error) = mapping.write_back() {
            result = Err(error);
        }
        let covered = place <= mapping.start
            && mapping.start + mapping.bytes <= place + bytes.next_multiple_of(PAGE_BYTES);
        if end && covered {
            unmap(mapping.before, mapping.bytes);
        } else {
            MAPPINGS.with(|mappings| mappings.push(mapping));
        }
    }
    result
}

/// Removes mappings from the list.
fn take(which: impl Fn(&Mapping) -> bool) -> Vec<Mapping> {
    let mut taken = Vec::new();
    MAPPINGS.with(|mappings| {
        let mut at = 0;
        while at < mappings.len() {
            if which(&mappings[at]) { taken.push(mappings.swap_remove(at)) } else { at += 1 }
        }
    });
    taken
}

/// Writes back changes in this process's mappings of a file: before it is mapped again, and for `fsync`.
pub(crate) fn write_file_back(ino: u64) -> Outcome<()> {
    let mut result = Ok(());
    for mapping in take(|mapping| mapping.open.shared().ino == ino) {
        result = result.and(mapping.write_back());
        MAPPINGS.with(|mappings| mappings.push(mapping));
    }
    result
}

/// Writes back all mappings, at the end of the program.
pub(crate) fn write_all_back() {
    if any() {
        let _ = within(|| write_back(0, usize::MAX / 2, false));
    }
}

impl Mapping {
    fn write_back(&self) -> Outcome<()> {
        if self.generation != crate::mounts::generation() {
            // The process that mapped it writes it back. It sees what a child wrote.
            return Ok(());
        }
        let size = self.open.file()?.stat()?.size;
        let inside = size.saturating_sub(self.offset).min(self.bytes as u64) as usize;
        let mut at = 0;
        while at < inside {
            let bytes = PAGE_BYTES.min(inside - at);
            // SAFETY: both mappings have these bytes. The program may write to the first concurrently, as
            // with any shared memory.
            let (now, before) = unsafe {
                let now = std::slice::from_raw_parts((self.start + at) as *const u8, bytes);
                (now, std::slice::from_raw_parts_mut((self.before + at) as *mut u8, bytes))
            };
            if let Some(first) = (0..bytes).find(|at| now[*at] != before[*at]) {
                let last = (first..bytes).rfind(|at| now[*at] != before[*at]).unwrap_or(first);
                let changed = first..last + 1;
                before[changed.clone()].copy_from_slice(&now[changed.clone()]);
                privileges::take_away(&self.open)?;
                self.open.note_written();
                self.open.file()?.write_at(&before[changed.clone()], self.offset + (at + first) as u64)?;
            }
            at += bytes;
        }
        self.open.report()
    }
}
