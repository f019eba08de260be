//! State shared by all descriptors of one open file, in all processes that have them: a page in a memfd.
//!
//! ```text
//!   process A   fd 3 ─┐                                 ┌──────────────────────────────┐
//!               fd 7 ─┤ dup, fork, exec, SCM_RIGHTS     │ magic │ position │ flags │ … │
//!   process B   fd 1 ─┴── O_PATH descriptor of ────────►│ inode │ pass, URL, path      │
//!                                                       └──────────────────────────────┘
//! ```
//!
//! The program's descriptor is opened with `O_PATH`. The kernel lets it be inherited, duplicated and closed
//! like any other. Calls that bypass this library (from a static program, or raw system calls) fail with
//! `EBADF` instead of seeing an empty file. A process that finds an unknown `O_PATH` descriptor checks for
//! the magic, and then has the file open.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::guard::{Errno, Outcome, address, system};

const NAME: &[u8] = b"weft\0";
const LINK: &[u8] = b"/memfd:weft (deleted)";
const MAGIC: [u8; 16] = *b"weft descriptor5";
const PAGE_BYTES: usize = 16 << 10;
const TEXT_BYTES: usize = PAGE_BYTES - 88 - size_of::<SharedLocks>();
const _: () = assert!(size_of::<Shared>() == PAGE_BYTES, "texts fill the page");

/// The kind of the open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// A file with contents.
    File = 1,
    /// A directory.
    Directory = 2,
    /// Any file, opened with `O_PATH`.
    Path = 3,
}

/// Limit of processes with the same open file that know each other.
const HOLDERS_MAX: usize = 32;

/// Locks of an open file, whichever process took them; see [`crate::lock_sessions`].
#[repr(C)]
pub(crate) struct SharedLocks {
    state: AtomicU32,
    joins: AtomicU32,
    session: [AtomicU64; 2],
    /// The lock on the whole file.
    whole: AtomicU32,
    /// Processes that have it open; 0 for none.
    holders: [AtomicU32; HOLDERS_MAX],
}

pub(crate) const NOT_LOCKED: u32 = 0;
pub(crate) const SHARED: u32 = 1;
pub(crate) const EXCLUSIVELY: u32 = 2;

const NO_SESSION: u32 = 0;
const BEING_MADE: u32 = 1;
const MADE: u32 = 2;
const LOST: u32 = 3;

impl SharedLocks {
    /// Whether any lock was ever taken.
    pub(crate) fn any(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), MADE | LOST)
    }

    /// Whether locks were lost, according to any process that has it.
    pub(crate) fn are_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    /// Records the loss for all processes that have it.
    pub(crate) fn note_lost(&self) {
        self.state.store(LOST, Ordering::Release);
    }

    /// Records, for all processes that have it, that it is locked again.
    pub(crate) fn note_locked_again(&self) {
        let _ = self.state.compare_exchange(LOST, MADE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The session of the locks. Starts one if there is none.
    pub(crate) fn session(&self) -> [u8; 16] {
        let begun =
            self.state.compare_exchange(NO_SESSION, BEING_MADE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if begun {
            let id = random_id();
            for (half, place) in id.chunks(8).zip(&self.session) {
                place.store(half.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)), Ordering::Relaxed);
            }
            self.state.store(MADE, Ordering::Release);
        }
        while !self.any() {
            std::thread::yield_now();
        }
        let [first, second] = &self.session;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&first.load(Ordering::Relaxed).to_be_bytes());
        id[8..].copy_from_slice(&second.load(Ordering::Relaxed).to_be_bytes());
        id
    }

    /// The lock on the whole file (flock) by any process: [`NOT_LOCKED`], [`SHARED`] or [`EXCLUSIVELY`].
    pub(crate) fn whole(&self) -> u32 {
        self.whole.load(Ordering::Acquire)
    }

    /// Records the lock on the whole file.
    pub(crate) fn note_whole(&self, kind: u32) {
        self.whole.store(kind, Ordering::Release);
    }

    /// A number for a process that joins the session.
    pub(crate) fn next_member(&self) -> u16 {
        self.joins.fetch_add(1, Ordering::Relaxed) as u16
    }

    /// Records that a process has the file open.
    pub(crate) fn hold(&self, pid: u32) {
        if self.holders.iter().any(|holder| holder.load(Ordering::Acquire) == pid) {
            return;
        }
        for holder in &self.holders {
            let before = holder.load(Ordering::Acquire);
            let is_free = before == 0 || !is_alive(before);
            if is_free && holder.compare_exchange(before, pid, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }

    /// Records that a process no longer has it open. Returns whether another has.
    pub(crate) fn let_go(&self, pid: u32) -> bool {
        for holder in &self.holders {
            let _ = holder.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        self.holders.iter().map(|holder| holder.load(Ordering::Acquire)).any(|pid| pid != 0 && is_alive(pid))
    }
}

fn is_alive(pid: u32) -> bool {
    !matches!(system(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]), Err(Errno(libc::ESRCH)))
}

/// 16 random bytes.
pub(crate) fn random_id() -> [u8; 16] {
    let mut id = [0u8; 16];
    let place = id.as_mut_ptr() as usize;
    if system(libc::SYS_getrandom, [place, id.len(), 0, 0, 0, 0]).is_err() {
        // No two processes of one machine share these.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        id[..4].copy_from_slice(&std::process::id().to_le_bytes());
        id[4..].copy_from_slice(&now.as_nanos().to_le_bytes()[..12]);
    }
    id
}

/// The page.
#[repr(C)]
pub(crate) struct Shared {
    magic: [u8; 16],
    /// The position of reads and writes; for a directory, of the next entry.
    pub(crate) position: AtomicU64,
    /// Of a directory: where the listing ends that began at its beginning.
    pub(crate) until: AtomicU64,
    /// The flags that `F_GETFL` returns.
    pub(crate) flags: AtomicU32,
    kind: u32,
    pub(crate) ino: u64,
    lengths: [u32; 4],
    /// What a write must remove first: see [`crate::privileges`].
    pub(crate) privileges: AtomicU32,
    pub(crate) locks: SharedLocks,
    /// Identifies the open file: the process that opened it with a count, and the time.
    pub(crate) birth: [u64; 2],
    text: [u8; TEXT_BYTES],
}

/// The texts in a page.
pub(crate) struct Texts<'a> {
    /// The pass for the file, for `Client::adopt`; empty except for files.
    pub(crate) pass: &'a [u8],
    /// The cluster.
    pub(crate) url: &'a [u8],
    /// The prefix of its paths in this process.
    pub(crate) prefix: &'a [u8],
    /// Path in the file system at the time of opening, for `..` and `fchdir`.
    pub(crate) path: &'a [u8],
}

impl Shared {
    /// The kind of the open file.
    pub(crate) fn kind(&self) -> Kind {
        match self.kind {
            1 => Kind::File,
            2 => Kind::Directory,
            _ => Kind::Path,
        }
    }

    /// The texts.
    pub(crate) fn texts(&self) -> Texts<'_> {
        let mut rest = &self.text[..];
        let mut next = |length: u32| {
            let (text, after) = rest.split_at((length as usize).min(rest.len()));
            rest = after;
            text
        };
        let [pass, url, prefix, path] = self.lengths.map(&mut next);
        Texts { pass, url, prefix, path }
    }
}

/// Creates a page and a descriptor of it: the lowest free one.
pub(crate) fn create(
    kind: Kind,
    ino: u64,
    flags: c_int,
    close_on_exec: bool,
    texts: &Texts<'_>,
) -> Outcome<(c_int, NonNull<Shared>)> {
    let all = [texts.pass, texts.url, texts.prefix, texts.path];
    if all.iter().map(|text| text.len()).sum::<usize>() > TEXT_BYTES {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    let fd =
        system(libc::SYS_memfd_create, [address(NAME.as_ptr()), libc::MFD_CLOEXEC as usize, 0, 0, 0, 0])?;
    let fd = fd as c_int;
    let made = fill(fd, kind, ino, flags, all).and_then(|page| Ok((seal_off(fd, close_on_exec)?, page)));
    if made.is_err() {
        close(fd);
    }
    made
}

fn fill(fd: c_int, kind: Kind, ino: u64, flags: c_int, texts: [&[u8]; 4]) -> Outcome<NonNull<Shared>> {
    // Only what is used: if the program's file size is limited (`RLIMIT_FSIZE`), that applies to this file
    // too.
    let text_bytes: usize = texts.iter().map(|text| text.len()).sum();
    let used_bytes = std::mem::offset_of!(Shared, text) + text_bytes;
    system(libc::SYS_ftruncate, [fd as usize, used_bytes, 0, 0, 0, 0])?;
    let page = map(fd)?;
    // SAFETY: a new mapping of this size, zeroed, that nobody else has.
    let shared = unsafe { &mut *page.as_ptr() };
    shared.magic = MAGIC;
    shared.flags = AtomicU32::new(flags as u32);
    (shared.kind, shared.ino) = (kind as u32, ino);
    shared.birth = birth();
    shared.locks.holders[0] = AtomicU32::new(std::process::id());
    shared.lengths = texts.map(|text| text.len() as u32);
    let mut at = 0;
    for text in texts {
        shared.text[at..at + text.len()].copy_from_slice(text);
        at += text.len();
    }
    Ok(page)
}

fn birth() -> [u64; 2] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    [u64::from(std::process::id()) << 32 | u64::from(count), now.as_nanos() as u64]
}

/// Replaces a descriptor by an `O_PATH` descriptor of the same memfd.
fn seal_off(fd: c_int, close_on_exec: bool) -> Outcome<c_int> {
    let blind = open_link(fd, libc::O_PATH)?;
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    let moved = system(libc::SYS_dup3, [blind as usize, fd as usize, flags as usize, 0, 0, 0]);
    close(blind);
    moved.map(|fd| fd as c_int)
}

fn map(fd: c_int) -> Outcome<NonNull<Shared>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let arguments = [0, PAGE_BYTES, protection as usize, libc::MAP_SHARED as usize, fd as usize, 0];
    let place = system(libc::SYS_mmap, arguments)?;
    NonNull::new(place as *mut Shared).ok_or(Errno(libc::ENOMEM))
}

/// Unmaps a page.
pub(crate) fn unmap(page: NonNull<Shared>) {
    let _ = system(libc::SYS_munmap, [page.as_ptr() as usize, PAGE_BYTES, 0, 0, 0, 0]);
}

/// Closes any descriptor.
pub(crate) fn close(fd: c_int) {
    let _ = system(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// `/proc/self/fd/FD`, terminated by a zero.
pub(crate) fn link_name(fd: c_int) -> [u8; 32] {
    let mut name = [0u8; 32];
    let start = b"/proc/self/fd/";
    name[..start.len()].copy_from_slice(start);
    let mut digits = [0u8; 10];
    let (mut count, mut rest) = (0, fd as u32);
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        (count, rest) = (count + 1, rest / 10);
        if rest == 0 {
            break;
        }
    }
    for at in 0..count {
        name[start.len() + at] = digits[count - 1 - at];
    }
    name
}

/// Opens the file of a descriptor again.
pub(crate) fn open_link(fd: c_int, flags: c_int) -> Outcome<c_int> {
    let (name, flags) = (link_name(fd), flags | libc::O_CLOEXEC);
    let at = libc::AT_FDCWD as usize;
    let opened = system(libc::SYS_openat, [at, address(name.as_ptr()), flags as usize, 0, 0, 0])?;
    Ok(opened as c_int)
}

/// The page of a descriptor that this process has not examined before; `None` if it is not of Weft.
pub(crate) fn recognize(fd: c_int) -> Option<NonNull<Shared>> {
    let flags = system(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]).ok()?;
    if flags as c_int & libc::O_PATH == 0 {
        return None;
    }
    let (name, mut found) = (link_name(fd), [0u8; 64]);
    let at = libc::AT_FDCWD as usize;
    let place = found.as_mut_ptr() as usize;
    let length = system(libc::SYS_readlinkat, [at, address(name.as_ptr()), place, found.len(), 0, 0]).ok()?;
    if &found[..length] != LINK {
        return None;
    }
    let reopened = open_link(fd, libc::O_RDWR).ok()?;
    let page = map(reopened);
    close(reopened);
    let page = page.ok()?;
    // SAFETY: a live mapping. Others may change it only through atomics.
    if unsafe { page.as_ref() }.magic == MAGIC {
        return Some(page);
    }
    unmap(page);
    None
}
