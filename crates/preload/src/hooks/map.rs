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
//! A shared mapping that grows or moves becomes another copy. Mappings are cut where the program unmaps or replaces a part,
//! or changes its protection.
//!
//! Bytes beyond the end of the file are zeros and are not written. Programs that hold locks on parts of the
//! file intend to share that memory with other processes, which a copy cannot do. Their shared mappings fail with
//! `ENODEV`.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{off_t, size_t};
use weft_layout::Regions;

use super::files::read_at;
use crate::guard::{Errno, Outcome, enter, system, warn, within};
use crate::locked_ranges::{self, Owner};
use crate::memory::SpinLock;
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{Use, find};
use crate::{lock_sessions, privileges};

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
    /// As the program wants it.
    protection: c_int,
    /// As many losses of locks were there when it was last like the file: [`crate::table::Open::losses`].
    losses: AtomicU32,
}

/// Held over a fork.
pub(crate) static MAPPINGS: SpinLock<Vec<Mapping>> = SpinLock::new(Vec::new());
/// Memory that holds the bytes of a file and is not written back. Held over a fork.
pub(crate) static COPIES: SpinLock<Vec<Range<usize>>> = SpinLock::new(Vec::new());

hooks! {
    fn mmap = mmap64(
        place: *mut c_void,
        bytes: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: off_t,
    ) -> *mut c_void {
        let open = if flags & libc::MAP_ANONYMOUS != 0 { None } else { find(fd) };
        match open {
            None => {
                let replaces = flags & libc::MAP_FIXED != 0 && !crate::guard::is_inside() && any();
                if replaces && let Err(Errno(errno)) = within(|| goes(place as usize, bytes)) {
                    weft_client::c::set_errno(errno);
                    return libc::MAP_FAILED;
                }
                mmap::real(place, bytes, protection, flags, fd, offset)
            }
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
            let written = within(|| goes(place as usize, bytes));
            let result = munmap::real(place, bytes);
            return if let Err(error) = written { enter(|| Err(error)) } else { result };
        }
        munmap::real(place, bytes)
    }

    fn msync(place: *mut c_void, bytes: size_t, flags: c_int) -> c_int {
        if !crate::guard::is_inside() && any() {
            match within(|| write_back(place as usize, bytes, flags & libc::MS_SYNC != 0)) {
                Ok(true) => return 0,
                Ok(false) => {}
                Err(error) => return enter(|| Err(error)),
            }
        }
        msync::real(place, bytes, flags)
    }

    fn mprotect(place: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
        let looks = !crate::guard::is_inside() && any();
        if looks && let Err(error) = within(|| protect(place as usize, bytes, protection)) {
            return enter(|| Err(error));
        }
        mprotect::real(place, bytes, protection)
    }

    fn mremap(place: *mut c_void, bytes: size_t, new_bytes: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
        if !crate::guard::is_inside() && any() {
            let remapped = within(|| Ok(remap(place as usize, bytes, new_bytes, flags, to as usize)));
            match remapped.unwrap_or_else(|error| Some(Err(error))) {
                None => {}
                Some(Ok(start)) => return start as *mut c_void,
                Some(Err(Errno(errno))) => {
                    weft_client::c::set_errno(errno);
                    return libc::MAP_FAILED;
                }
            }
        }
        mremap::real(place, bytes, new_bytes, flags, to)
    }

    fn madvise(place: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
        if !crate::guard::is_inside() && any() && is_copy(place as usize, bytes) {
            match advice {
                // The bytes would be zeros, and the file's on Linux.
                libc::MADV_DONTNEED => return 0,
                libc::MADV_FREE => return enter(|| Err(Errno(libc::EINVAL))),
                _ => {}
            }
        }
        madvise::real(place, bytes, advice)
    }

    fn remap_file_pages(place: *mut c_void, bytes: size_t, protection: c_int, page: size_t, flags: c_int) -> c_int {
        let is_ours = || MAPPINGS.with(|mappings| mappings.iter().any(|mapping| mapping.overlaps(place as usize, bytes)));
        if !crate::guard::is_inside() && any() && is_ours() {
            return enter(|| Err(cannot_map("remap_file_pages")));
        }
        remap_file_pages::real(place, bytes, protection, page, flags)
    }
}

fn any() -> bool {
    MAPPINGS.with(|mappings| !mappings.is_empty()) || COPIES.with(|copies| !copies.is_empty())
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
    let lockers = [Owner::process(open.shared().ino), Owner::open(open.whole())];
    if written_back && open.locked.load(Ordering::Acquire) && locked_ranges::any(lockers) {
        return Err(Errno(libc::ENODEV));
    }
    write_file_back(open.shared().ino)?;
    if flags & libc::MAP_FIXED != 0 {
        goes(place as usize, bytes)?;
    }
    let kept = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_NORESERVE);
    if written_back {
        return map_written_back(open, place as usize, bytes, (protection, kept), offset);
    }
    let start = anonymous(place as usize, bytes, libc::MAP_PRIVATE | kept)?;
    let fill = || -> Outcome<()> {
        read_at(&open, &Regions::contiguous(start as u64, bytes as u64), offset)?;
        if protection != libc::PROT_READ | libc::PROT_WRITE {
            system(libc::SYS_mprotect, [start, bytes, protection as usize, 0, 0, 0])?;
        }
        COPIES.with(|copies| copies.push(start..start + pages_of(bytes)));
        Ok(())
    };
    fill().inspect_err(|_| unmap(start, bytes)).map(|()| start)
}

/// Maps a range of a file so that changes are written back.
fn map_written_back(
    open: Use,
    place: usize,
    bytes: usize,
    (protection, flags): (c_int, c_int),
    offset: u64,
) -> Outcome<usize> {
    // Shared with forked children too.
    let start = anonymous(place, bytes, libc::MAP_SHARED | flags)?;
    let fill = || -> Outcome<()> {
        read_at(&open, &Regions::contiguous(start as u64, bytes as u64), offset)?;
        let before = anonymous(0, bytes, libc::MAP_PRIVATE)?;
        // SAFETY: two mappings of this size.
        unsafe { std::ptr::copy_nonoverlapping(start as *const u8, before as *mut u8, bytes) };
        let (open, generation) = (open.again(), crate::mounts::generation());
        let losses = AtomicU32::new(open.whole().losses.load(Ordering::Acquire));
        let mapping = Mapping { start, bytes, offset, before, open, generation, protection, losses };
        MAPPINGS.with(|mappings| mappings.push(mapping));
        if protection != libc::PROT_READ | libc::PROT_WRITE {
            system(libc::SYS_mprotect, [start, bytes, protection as usize, 0, 0, 0])?;
        }
        Ok(())
    };
    fill().inspect_err(|_| unmap(start, bytes)).map(|()| start)
}

/// Writes back changes in mappings that overlap a range, and makes them durable if asked to. Returns whether there were any.
fn write_back(place: usize, bytes: usize, durably: bool) -> Outcome<bool> {
    let taken = take(|mapping| mapping.overlaps(place, bytes));
    let found = !taken.is_empty();
    let mut result = Ok(found);
    for mapping in taken {
        let written = mapping.write_back().and_then(|()| if durably { mapping.sync() } else { Ok(()) });
        if let Err(error) = written {
            result = Err(error);
        }
        MAPPINGS.with(|mappings| mappings.push(mapping));
    }
    result
}

/// Has mappings end and begin at the bounds of a range, and writes back those within it. Returns them, off the list.
fn cut_out(place: usize, bytes: usize) -> (Vec<Mapping>, Outcome<()>) {
    let end = place.saturating_add(bytes).next_multiple_of(PAGE_BYTES);
    let (mut within, mut result) = (Vec::new(), Ok(()));
    for mut mapping in take(|mapping| mapping.overlaps(place, end - place)) {
        result = result.and(mapping.write_back());
        if mapping.start < place {
            let rest = mapping.split(place - mapping.start);
            MAPPINGS.with(|mappings| mappings.push(std::mem::replace(&mut mapping, rest)));
        }
        if mapping.start + mapping.bytes > end {
            let rest = mapping.split(end - mapping.start);
            MAPPINGS.with(|mappings| mappings.push(rest));
        }
        within.push(mapping);
    }
    (within, result)
}

/// The program's memory at a range is about to be something else.
fn goes(place: usize, bytes: usize) -> Outcome<()> {
    COPIES.with(|copies| {
        let end = place.saturating_add(bytes);
        let (mut at, count) = (0, copies.len());
        let mut rests = Vec::new();
        for _ in 0..count {
            let copy = copies[at].clone();
            if copy.end <= place || end <= copy.start {
                at += 1;
                continue;
            }
            copies.swap_remove(at);
            rests.extend([copy.start..place.min(copy.end), end.max(copy.start)..copy.end]);
        }
        copies.extend(rests.into_iter().filter(|rest| !rest.is_empty()));
    });
    let (gone, result) = cut_out(place, bytes);
    gone.iter().for_each(|mapping| unmap(mapping.before, mapping.bytes));
    result
}

/// Whether a range has pages of a copy that is not written back.
fn is_copy(place: usize, bytes: usize) -> bool {
    let end = place.saturating_add(bytes);
    COPIES.with(|copies| copies.iter().any(|copy| copy.start < end && place < copy.end))
}

/// `mremap` of a range with a mapping of Weft. Returns `None` if there is none.
fn remap(place: usize, bytes: usize, new_bytes: usize, flags: c_int, to: usize) -> Option<Outcome<usize>> {
    let is_shared =
        MAPPINGS.with(|mappings| mappings.iter().any(|mapping| mapping.overlaps(place, bytes.max(1))));
    if !is_shared && !is_copy(place, bytes.max(1)) {
        if flags & libc::MREMAP_FIXED != 0 {
            return goes(to, new_bytes).err().map(Err);
        }
        return None;
    }
    let pages = |bytes: usize| bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES;
    let (old, new) = (pages(bytes), pages(new_bytes));
    let moves = flags & libc::MREMAP_FIXED != 0;
    if new == 0 || !place.is_multiple_of(PAGE_BYTES) || moves && !to.is_multiple_of(PAGE_BYTES) {
        return Some(Err(Errno(libc::EINVAL)));
    }
    if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) != 0 || old == 0 || !is_shared && new > old {
        return Some(Err(cannot_map("mremap that grows a private mapping, or leaves the old one")));
    }
    Some(match is_shared {
        true => remap_shared(place, old, new, flags, to),
        false => remap_copy(place, old, new, flags, to),
    })
}

/// Shrinks or moves a copy. The file has nothing to do with it any more.
fn remap_copy(place: usize, old: usize, new: usize, flags: c_int, to: usize) -> Outcome<usize> {
    if flags & libc::MREMAP_FIXED != 0 {
        goes(to, new)?;
    }
    let moved = system(libc::SYS_mremap, [place, old, new, flags as usize, to, 0])?;
    goes(place, old)?;
    COPIES.with(|copies| copies.push(moved..moved + new));
    Ok(moved)
}

fn remap_shared(place: usize, old: usize, new: usize, flags: c_int, to: usize) -> Outcome<usize> {
    let moves = flags & libc::MREMAP_FIXED != 0;
    if moves && to < place + old && place < to + new {
        return Err(Errno(libc::EINVAL));
    }
    if new <= old && !moves {
        goes(place + new, old - new)?;
        unmap_if_any(place + new, old - new);
        return Ok(place);
    }
    if !moves && flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno(libc::ENOMEM));
    }
    let whole = take(|mapping| mapping.start == place && pages_of(mapping.bytes) >= old).pop();
    let Some(mapping) = whole else { return Err(cannot_map("mremap of several mappings at once")) };
    // Anonymous memory cannot grow where it is shared: another one takes its place, with more of the file.
    let remapped = mapping.write_back().and_then(|()| {
        let (open, offset, protection) = (mapping.open.again(), mapping.offset, mapping.protection);
        let fixed = if moves { libc::MAP_FIXED } else { 0 };
        if moves {
            goes(to, new)?;
        }
        map_written_back(open, if moves { to } else { 0 }, new, (protection, fixed), offset)
    });
    MAPPINGS.with(|mappings| mappings.push(mapping));
    let start = remapped?;
    goes(place, old)?;
    unmap(place, old);
    Ok(start)
}

fn pages_of(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

fn unmap_if_any(place: usize, bytes: usize) {
    if bytes > 0 {
        unmap(place, bytes);
    }
}

static HAS_TOLD: AtomicBool = AtomicBool::new(false);

/// The error for what a copy cannot do. Said on standard error, once.
fn cannot_map(what: &str) -> Errno {
    if !HAS_TOLD.swap(true, Ordering::Relaxed) {
        warn(&format!(
            "{what} is not supported under weft run, where a mapping of a file in Weft is a copy; use a mount"
        ));
    }
    Errno(libc::EINVAL)
}

/// Notes that a part of the mappings has another protection. Pages without access are not compared.
fn protect(place: usize, bytes: usize, protection: c_int) -> Outcome<()> {
    let (within, result) = cut_out(place, bytes);
    for mut mapping in within {
        mapping.protection = protection;
        MAPPINGS.with(|mappings| mappings.push(mapping));
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
    fn overlaps(&self, place: usize, bytes: usize) -> bool {
        self.start < place.saturating_add(bytes) && place < self.start + pages_of(self.bytes)
    }

    /// Keeps the first `bytes`, whole pages; returns the rest.
    fn split(&mut self, bytes: usize) -> Mapping {
        let rest = Mapping {
            start: self.start + bytes,
            bytes: self.bytes - bytes,
            offset: self.offset + bytes as u64,
            before: self.before + bytes,
            open: self.open.again(),
            losses: AtomicU32::new(self.losses.load(Ordering::Acquire)),
            ..*self
        };
        self.bytes = bytes;
        rest
    }

    /// Whether this process writes it back now.
    fn is_written_back(&self) -> bool {
        // With PROT_NONE it was written back when its protection changed. Otherwise the process that mapped it writes it back,
        // and sees what a child wrote.
        self.protection != libc::PROT_NONE && self.generation == crate::mounts::generation()
    }

    /// Takes what the memory has for the file's bytes.
    fn drop_changes(&self) {
        // SAFETY: both mappings have these bytes. The program may write to the first concurrently, as with any shared memory.
        let (now, before) = unsafe {
            let now = std::slice::from_raw_parts(self.start as *const u8, self.bytes);
            (now, std::slice::from_raw_parts_mut(self.before as *mut u8, self.bytes))
        };
        before.copy_from_slice(now);
    }

    /// Makes durable what was written back. A forked child has written nothing.
    fn sync(&self) -> Outcome<()> {
        if self.generation == crate::mounts::generation() {
            self.open.file()?.sync_data()?;
        }
        self.open.report()
    }

    fn write_back(&self) -> Outcome<()> {
        if !self.is_written_back() {
            return Ok(());
        }
        let checked = lock_sessions::check(&self.open);
        let losses = self.open.whole().losses.load(Ordering::Acquire);
        if self.losses.swap(losses, Ordering::AcqRel) != losses {
            // It was changed under locks that are lost, even if the file is locked again.
            self.drop_changes();
            return Err(Errno(libc::EIO));
        }
        checked?;
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
