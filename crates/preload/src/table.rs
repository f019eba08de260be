//! The table of this process's descriptors, which says which of them are in Weft.
//!
//! ```text
//!   fd ─► chunk ─► slot: UNKNOWN  examined once: O_PATH? the memfd's name? the magic?
//!                        NOT_OURS
//!                        INTERNAL  a connection of this library, which the program must not use
//!                        Open ────► shared page (position, flags), the client's File
//! ```
//!
//! A lookup takes no lock and makes no system call. The memory of an `Open` is reused but never freed. A
//! lookup that finds an `Open` takes a reference; if its reference count is already 0, the lookup reads the
//! slot again.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use weft_client::File;

use crate::guard::{Errno, Outcome, is_inside, run_inside, system, within};
use crate::lock_sessions;
use crate::memory::SpinLock;
use crate::mounts::{self, Mount};
use crate::shared::{self, Kind, Shared};

const UNKNOWN: usize = 0;
const NOT_OURS: usize = 1;
const INTERNAL: usize = 2;
/// As `INTERNAL`, but a forked child closes it itself: each thread drops its own waker.
const WAKER: usize = 3;
/// As `INTERNAL`, but a forked child keeps it: the connection of an open file's locks, the copy of a library.
const KEPT: usize = 4;
const OPEN_MIN: usize = KEPT + 1;

const CHUNK: usize = 1024;
/// Descriptors from this number on are never in Weft.
const FDS_MAX: usize = 1 << 20;

/// This library's own descriptors are at or above this number, or in the last eighth if there are fewer.
const INTERNAL_MIN: u64 = 900;

type Chunk = [AtomicUsize; CHUNK];

static CHUNKS: [AtomicPtr<Chunk>; FDS_MAX / CHUNK] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FDS_MAX / CHUNK];
/// One more than the greatest descriptor that was ever in Weft or internal.
static END: AtomicUsize = AtomicUsize::new(0);
/// The number of files with unreported writes.
static DIRTY: AtomicUsize = AtomicUsize::new(0);
/// Whether the program is ending.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Unused `Open`s. Held over a fork.
pub(crate) static FREE: SpinLock<Vec<&'static Open>> = SpinLock::new(Vec::new());

/// An open file in Weft, shared by the descriptors of this process that were copied from each other.
#[derive(Default)]
pub(crate) struct Open {
    references: AtomicU32,
    page: AtomicPtr<Shared>,
    mount: AtomicPtr<Mount>,
    file: AtomicPtr<Opened>,
    dirty: AtomicBool,
    /// Whether this process has set record locks through it.
    pub(crate) locked: AtomicBool,
    /// Socket of the session of this open file's locks, or -1. It may come from a fork or exec.
    pub(crate) lock_socket: AtomicI32,
    /// The lock on the whole file, as this process's part of that session knows it.
    pub(crate) whole_known: AtomicU32,
    /// This process has recorded that locks of the open file are lost.
    pub(crate) loss_noted: AtomicBool,
    /// How often this process was refused something because locks were lost.
    pub(crate) losses: AtomicU32,
    /// Whether this process has closed the open file.
    pub(crate) left: AtomicBool,
}

/// The file in the client, of one process.
struct Opened {
    generation: u32,
    file: File,
}

/// A reference to an open file.
pub(crate) struct Use {
    open: &'static Open,
    pub(crate) mount: &'static Mount,
}

impl Deref for Use {
    type Target = Open;
    fn deref(&self) -> &Open {
        self.open
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        release(self.open);
    }
}

fn slot(fd: c_int) -> Option<&'static AtomicUsize> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX)?;
    let place = &CHUNKS[fd / CHUNK];
    let mut chunk = place.load(Ordering::Acquire);
    if chunk.is_null() {
        let fresh: Box<Chunk> = Box::new([const { AtomicUsize::new(UNKNOWN) }; CHUNK]);
        let fresh = Box::into_raw(fresh);
        match place.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => chunk = fresh,
            Err(other) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(fresh) });
                chunk = other;
            }
        }
    }
    // SAFETY: published chunks are never freed.
    Some(unsafe { &(*chunk)[fd % CHUNK] })
}

/// The open file of a descriptor, if it is in Weft.
pub(crate) fn find(fd: c_int) -> Option<Use> {
    let fd_index = usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX)?;
    let chunk = CHUNKS[fd_index / CHUNK].load(Ordering::Acquire);
    // SAFETY: null, or a chunk, which is never freed.
    let value = match unsafe { chunk.as_ref() } {
        Some(chunk) => chunk[fd_index % CHUNK].load(Ordering::Acquire),
        None => UNKNOWN,
    };
    match value {
        NOT_OURS | INTERNAL | WAKER | KEPT => None,
        UNKNOWN if is_inside() => None,
        UNKNOWN => find_out(fd),
        _ => take(fd),
    }
}

/// The same, called inside for a descriptor that the program named.
pub(crate) fn find_named(fd: c_int) -> Option<Use> {
    find(fd).or_else(|| {
        let unknown = slot(fd).is_some_and(|slot| slot.load(Ordering::Acquire) == UNKNOWN);
        if unknown { find_out(fd) } else { None }
    })
}

fn take(fd: c_int) -> Option<Use> {
    let slot = slot(fd)?;
    loop {
        let value = slot.load(Ordering::Acquire);
        if value < OPEN_MIN {
            return None;
        }
        // SAFETY: an `Open`, which is never freed.
        let open = unsafe { &*(value as *const Open) };
        let more = |count: u32| (count > 0).then_some(count + 1);
        if open.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            continue;
        }
        if slot.load(Ordering::Acquire) == value {
            // SAFETY: set before the `Open` was published, and mounts are never freed.
            let mount = unsafe { &*open.mount.load(Ordering::Acquire) };
            return Some(Use { open, mount });
        }
        release(open);
    }
}

/// Examines a descriptor that this process has not seen.
#[cold]
fn find_out(fd: c_int) -> Option<Use> {
    let found = within(|| {
        let slot = slot(fd).ok_or(Errno(libc::EBADF))?;
        let Some(page) = shared::recognize(fd) else {
            let _ = slot.compare_exchange(UNKNOWN, NOT_OURS, Ordering::AcqRel, Ordering::Acquire);
            return Ok(None);
        };
        // SAFETY: a live mapping.
        let texts = unsafe { page.as_ref() }.texts();
        let Some(mount) = mounts::of_descriptor(texts.prefix, texts.url) else {
            shared::unmap(page);
            return Ok(None);
        };
        if let Some(other) = known_copy(page) {
            shared::unmap(page);
            copied(other, fd);
            return Ok(take(fd));
        }
        publish(fd, page, mount, None);
        let found = take(fd);
        found.iter().for_each(lock_sessions::arrived);
        Ok(found)
    });
    found.ok().flatten()
}

/// Makes `fd` a descriptor of an open file.
pub(crate) fn publish(fd: c_int, page: NonNull<Shared>, mount: &'static Mount, file: Option<File>) {
    let open = FREE.with(|free| free.pop()).unwrap_or_else(|| Box::leak(Box::default()));
    let opened = file.map(|file| Box::into_raw(Box::new(Opened { generation: mounts::generation(), file })));
    open.page.store(page.as_ptr(), Ordering::Release);
    open.mount.store(ptr::from_ref(mount).cast_mut(), Ordering::Release);
    open.file.store(opened.unwrap_or(ptr::null_mut()), Ordering::Release);
    open.dirty.store(false, Ordering::Release);
    open.locked.store(false, Ordering::Release);
    open.lock_socket.store(-1, Ordering::Release);
    open.whole_known.store(0, Ordering::Release);
    open.loss_noted.store(false, Ordering::Release);
    open.losses.store(0, Ordering::Release);
    open.left.store(false, Ordering::Release);
    open.references.store(1, Ordering::Release);
    put(fd, ptr::from_ref(open) as usize);
}

/// Sets a slot, and releases its old contents.
fn put(fd: c_int, value: usize) {
    let Some(slot) = slot(fd) else { return };
    if value > NOT_OURS {
        END.fetch_max(fd as usize + 1, Ordering::AcqRel);
    }
    let before = slot.swap(value, Ordering::AcqRel);
    if before >= OPEN_MIN {
        // SAFETY: an `Open`, which is never freed. The slot's reference is released.
        release(unsafe { &*(before as *const Open) });
    }
}

/// Records that `fd` is closed, or no longer in Weft.
pub(crate) fn forget(fd: c_int) {
    let known = usize::try_from(fd).is_ok_and(|fd| fd < END.load(Ordering::Acquire));
    if known {
        put(fd, NOT_OURS);
    } else if let Some(slot) = slot(fd) {
        slot.store(NOT_OURS, Ordering::Release);
    }
}

/// Records that `fd` came from another process and may be in Weft.
pub(crate) fn look_again(fd: c_int) {
    put(fd, UNKNOWN);
}

/// Records that `to` is a copy of `from`.
pub(crate) fn copied(from: c_int, to: c_int) {
    match take(from) {
        Some(found) => {
            put(to, ptr::from_ref(found.open) as usize);
            // The slot owns the reference now.
            std::mem::forget(found);
        }
        // From the previous program: neither has been examined.
        None if slot(from).is_some_and(|slot| slot.load(Ordering::Acquire) == UNKNOWN) => look_again(to),
        None => forget(to),
    }
}

/// Marks `fd` as this library's own.
pub(crate) fn set_internal(fd: c_int) {
    put(fd, INTERNAL);
}

/// Moves a descriptor of this library to a high number, which programs do not use.
pub(crate) fn move_away(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let least = INTERNAL_MIN.min(limit.rlim_cur / 8 * 7) as usize;
    let moved = system(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, least, 0, 0, 0]);
    let own = match moved {
        Ok(moved) => {
            shared::close(fd);
            moved as c_int
        }
        Err(_) => fd,
    };
    set_internal(own);
    own
}

/// Marks a descriptor of this library that wakes threads.
pub(crate) fn set_waker(fd: c_int) {
    put(fd, WAKER);
}

/// Marks a descriptor of this library that forked children keep.
pub(crate) fn set_kept(fd: c_int) {
    put(fd, KEPT);
}

/// Whether `fd` is this library's own.
pub(crate) fn is_internal(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < END.load(Ordering::Acquire))
        && slot(fd).is_some_and(|slot| matches!(slot.load(Ordering::Acquire), INTERNAL | WAKER | KEPT))
}

/// Descriptors of this library's own.
pub(crate) fn internal() -> impl Iterator<Item = c_int> {
    (0..END.load(Ordering::Acquire) as c_int).filter(|fd| is_internal(*fd))
}

/// One more than the greatest descriptor that may be in Weft.
pub(crate) fn end() -> c_int {
    END.load(Ordering::Acquire) as c_int
}

fn release(open: &'static Open) {
    if open.references.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    run_inside(|| {
        // SAFETY: set before the `Open` was published, and mounts are never freed.
        let mount = unsafe { &*open.mount.load(Ordering::Acquire) };
        // This reference is never released: there is none left, and the `Open` is unused when this ends.
        lock_sessions::leave(&std::mem::ManuallyDrop::new(Use { open, mount }));
        let page = NonNull::new(open.page.swap(ptr::null_mut(), Ordering::AcqRel));
        let opened = open.file.swap(ptr::null_mut(), Ordering::AcqRel);
        if open.dirty.swap(false, Ordering::AcqRel) {
            DIRTY.fetch_sub(1, Ordering::AcqRel);
        }
        page.into_iter().for_each(shared::unmap);
        if !opened.is_null() {
            // SAFETY: from `Box::into_raw`. The last reference is released.
            let opened = unsafe { Box::from_raw(opened) };
            match opened.generation == mounts::generation() {
                true => drop(opened),
                // The parent's, which one of its threads may have been using.
                false => std::mem::forget(opened),
            }
        }
        FREE.with(|free| free.push(open));
    });
}

impl Open {
    /// The page that all descriptors of it share.
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: it is mapped until the last reference is released.
        unsafe { &*self.page.load(Ordering::Acquire) }
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> Kind {
        self.shared().kind()
    }

    /// Fails if it was not opened for reading.
    pub(crate) fn check_readable(&self) -> Outcome<()> {
        if self.flags() & libc::O_ACCMODE == libc::O_WRONLY { Err(Errno(libc::EBADF)) } else { Ok(()) }
    }

    /// Fails if it was not opened for writing.
    pub(crate) fn check_writable(&self) -> Outcome<()> {
        if self.flags() & libc::O_ACCMODE == libc::O_RDONLY { Err(Errno(libc::EBADF)) } else { Ok(()) }
    }

    /// The flags that `F_GETFL` returns.
    pub(crate) fn flags(&self) -> c_int {
        self.shared().flags.load(Ordering::Relaxed) as c_int
    }
}

impl Use {
    /// The `Open` itself, which is never freed.
    pub(crate) fn whole(&self) -> &'static Open {
        self.open
    }

    /// One more reference.
    pub(crate) fn again(&self) -> Use {
        self.references.fetch_add(1, Ordering::AcqRel);
        Use { open: self.open, mount: self.mount }
    }

    /// The client's file. Opened now if another process opened it first.
    pub(crate) fn file(&self) -> Outcome<&File> {
        let known = self.file.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw` and not freed before the last reference is released.
        match unsafe { known.as_ref() } {
            Some(opened) if opened.generation == mounts::generation() => Ok(&opened.file),
            _ => self.adopt(known),
        }
    }

    #[cold]
    fn adopt(&self, before: *mut Opened) -> Outcome<&File> {
        let shared = self.shared();
        match self.kind() {
            Kind::File => {}
            Kind::Directory => return Err(Errno(libc::EISDIR)),
            Kind::Path => return Err(Errno(libc::EBADF)),
        }
        let texts = shared.texts();
        let name = String::from_utf8_lossy(texts.path);
        let sync = self.flags() & (libc::O_SYNC | libc::O_DSYNC) != 0;
        let file = self.mount.made()?.client.adopt(texts.pass, &name, sync)?;
        let fresh = Box::into_raw(Box::new(Opened { generation: mounts::generation(), file }));
        let swapped = self.file.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(fresh) });
        }
        self.file()
    }

    /// Records a write that the metadata server does not know of.
    pub(crate) fn note_written(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            DIRTY.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Reports writes to the metadata server.
    pub(crate) fn report(&self) -> Outcome<()> {
        if self.dirty.swap(false, Ordering::AcqRel) {
            DIRTY.fetch_sub(1, Ordering::AcqRel);
            self.file()?.flush()?;
        }
        Ok(())
    }
}

/// Calls `with` for each open file in Weft that this process knows, once for each of its descriptors.
pub(crate) fn each(mut with: impl FnMut(&Use)) {
    each_fd(|_, open| with(open));
}

/// The same, with the descriptors.
pub(crate) fn each_fd(mut with: impl FnMut(c_int, &Use)) {
    for fd in 0..END.load(Ordering::Acquire) as c_int {
        if let Some(open) = take(fd) {
            with(fd, &open);
        }
    }
}

/// Another descriptor, already known to this process, of the open file with this page.
fn known_copy(page: NonNull<Shared>) -> Option<c_int> {
    // SAFETY: a live mapping.
    let birth = unsafe { page.as_ref() }.birth;
    let mut found = None;
    each_fd(|fd, open| {
        if open.shared().birth == birth {
            found = Some(fd);
        }
    });
    found
}

/// Records that the program is ending: later writes are reported at once.
pub(crate) fn note_ending() {
    ENDING.store(true, Ordering::Release);
}

/// Whether the program is ending.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// Reports this process's writes through all descriptors: before attributes are read or set, and at the end.
pub(crate) fn report_all() {
    if DIRTY.load(Ordering::Acquire) == 0 {
        return;
    }
    each(|open| {
        // The server finds out the rest when the session ends.
        let _ = open.report();
    });
}

/// In a forked child: closes the parent's connections, except those of locks that the child shares. There is
/// nothing to report.
pub(crate) fn forked() {
    lock_sessions::held_by(std::process::id());
    for fd in internal() {
        if slot(fd).is_some_and(|slot| slot.load(Ordering::Acquire) == INTERNAL) {
            shared::close(fd);
            put(fd, NOT_OURS);
        }
    }
    if DIRTY.swap(0, Ordering::AcqRel) != 0 {
        each(|open| open.dirty.store(false, Ordering::Release));
    }
}
