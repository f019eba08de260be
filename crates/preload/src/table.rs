//! The descriptors of this process, and which of them are Weft's.
//!
//! ```text
//!   fd ─► chunk ─► slot: UNKNOWN  look once: O_PATH? the memfd's name? the magic?
//!                        NOT_OURS
//!                        INTERNAL  a connection of this library's; no business of the program's
//!                        Open ────► shared page (position, flags), the client's File
//! ```
//!
//! A look-up takes no lock and makes no system call. Memory of an `Open` is used again for others but never given back: whoever
//! finds one in a slot takes a reference, unless there is none left, and looks at the slot once more.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use weft_client::File;

use crate::guard::{Errno, Outcome, is_inside, within};
use crate::lock_sessions;
use crate::memory::SpinLock;
use crate::mounts::{self, Mount};
use crate::shared::{self, Kind, Shared};

const UNKNOWN: usize = 0;
const NOT_OURS: usize = 1;
const INTERNAL: usize = 2;
/// As `INTERNAL`, and a forked child gives it back by itself: each thread drops what it woke by.
const WAKER: usize = 3;
/// As `INTERNAL`, and a forked child keeps it: the connection of an open file's locks, the copy of a library.
const KEPT: usize = 4;
const OPEN_MIN: usize = KEPT + 1;

const CHUNK: usize = 1024;
/// Descriptors from here on are never ours.
const FDS_MAX: usize = 1 << 20;

type Chunk = [AtomicUsize; CHUNK];

static CHUNKS: [AtomicPtr<Chunk>; FDS_MAX / CHUNK] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FDS_MAX / CHUNK];
/// One above the greatest descriptor that was ever ours or internal.
static END: AtomicUsize = AtomicUsize::new(0);
/// Files that have unreported writes.
static DIRTY: AtomicUsize = AtomicUsize::new(0);
/// `Open`s that are nobody's. Held over a fork.
pub(crate) static FREE: SpinLock<Vec<&'static Open>> = SpinLock::new(Vec::new());

/// An open file of Weft, shared by the descriptors of this process that were made from each other.
pub(crate) struct Open {
    references: AtomicU32,
    page: AtomicPtr<Shared>,
    mount: AtomicPtr<Mount>,
    file: AtomicPtr<Opened>,
    dirty: AtomicBool,
    /// Whether this process has set record locks through it.
    pub(crate) locked: AtomicBool,
    /// Socket of the session of this open file's locks, or -1; also one that came by a fork or exec.
    pub(crate) lock_socket: AtomicI32,
    /// The lock on the whole file as this process's end of that session knows it.
    pub(crate) whole_known: AtomicU32,
    /// Whether this process has let go of the open file.
    pub(crate) left: AtomicBool,
}

/// A client's file, of one process.
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
    // SAFETY: published chunks live for ever.
    Some(unsafe { &(*chunk)[fd % CHUNK] })
}

/// The open file behind a descriptor, if it is Weft's.
pub(crate) fn find(fd: c_int) -> Option<Use> {
    let fd_index = usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX)?;
    let chunk = CHUNKS[fd_index / CHUNK].load(Ordering::Acquire);
    // SAFETY: null, or a chunk, which lives for ever.
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

/// The same for a descriptor that the program named, asked from inside.
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
        // SAFETY: an `Open`, which lives for ever.
        let open = unsafe { &*(value as *const Open) };
        let more = |count: u32| (count > 0).then_some(count + 1);
        if open.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            continue;
        }
        if slot.load(Ordering::Acquire) == value {
            // SAFETY: set before the `Open` was published, and mounts live for ever.
            let mount = unsafe { &*open.mount.load(Ordering::Acquire) };
            return Some(Use { open, mount });
        }
        release(open);
    }
}

/// Looks at a descriptor that this process has not seen.
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
    let open = FREE.with(|free| free.pop()).unwrap_or_else(|| {
        Box::leak(Box::new(Open {
            references: AtomicU32::new(0),
            page: AtomicPtr::default(),
            mount: AtomicPtr::default(),
            file: AtomicPtr::default(),
            dirty: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            lock_socket: AtomicI32::new(-1),
            whole_known: AtomicU32::new(0),
            left: AtomicBool::new(false),
        }))
    });
    let opened = file.map(|file| Box::into_raw(Box::new(Opened { generation: mounts::generation(), file })));
    open.page.store(page.as_ptr(), Ordering::Release);
    open.mount.store(ptr::from_ref(mount).cast_mut(), Ordering::Release);
    open.file.store(opened.unwrap_or(ptr::null_mut()), Ordering::Release);
    open.dirty.store(false, Ordering::Release);
    open.locked.store(false, Ordering::Release);
    open.lock_socket.store(-1, Ordering::Release);
    open.whole_known.store(0, Ordering::Release);
    open.left.store(false, Ordering::Release);
    open.references.store(1, Ordering::Release);
    put(fd, ptr::from_ref(open) as usize);
}

/// Sets a slot, and gives back what was in it.
fn put(fd: c_int, value: usize) {
    let Some(slot) = slot(fd) else { return };
    if value > NOT_OURS {
        END.fetch_max(fd as usize + 1, Ordering::AcqRel);
    }
    let before = slot.swap(value, Ordering::AcqRel);
    if before >= OPEN_MIN {
        // SAFETY: an `Open`, which lives for ever; the slot's reference is given back.
        release(unsafe { &*(before as *const Open) });
    }
}

/// `fd` is closed, or somebody else's now.
pub(crate) fn forget(fd: c_int) {
    let known = usize::try_from(fd).is_ok_and(|fd| fd < END.load(Ordering::Acquire));
    if known {
        put(fd, NOT_OURS);
    } else if let Some(slot) = slot(fd) {
        slot.store(NOT_OURS, Ordering::Release);
    }
}

/// `fd` came from another process, and may be ours.
pub(crate) fn look_again(fd: c_int) {
    put(fd, UNKNOWN);
}

/// `to` is a copy of `from` from now on.
pub(crate) fn copied(from: c_int, to: c_int) {
    match take(from) {
        Some(found) => {
            put(to, ptr::from_ref(found.open) as usize);
            // The reference is the slot's now.
            std::mem::forget(found);
        }
        // From the program before: nobody has looked at either.
        None if slot(from).is_some_and(|slot| slot.load(Ordering::Acquire) == UNKNOWN) => look_again(to),
        None => forget(to),
    }
}

/// `fd` is this library's own.
pub(crate) fn set_internal(fd: c_int) {
    put(fd, INTERNAL);
}

/// The same, of a descriptor that threads are woken by.
pub(crate) fn set_waker(fd: c_int) {
    put(fd, WAKER);
}

/// The same, of one that forked children keep.
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

/// One above the greatest descriptor that may be ours.
pub(crate) fn end() -> c_int {
    END.load(Ordering::Acquire) as c_int
}

fn release(open: &'static Open) {
    if open.references.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    let _ = within(|| {
        // SAFETY: set before the `Open` was published, and mounts live for ever.
        let mount = unsafe { &*open.mount.load(Ordering::Acquire) };
        // A reference that is never given back: there is none left, and the `Open` is nobody's when this ends.
        lock_sessions::leave(&std::mem::ManuallyDrop::new(Use { open, mount }));
        let page = NonNull::new(open.page.swap(ptr::null_mut(), Ordering::AcqRel));
        let opened = open.file.swap(ptr::null_mut(), Ordering::AcqRel);
        if open.dirty.swap(false, Ordering::AcqRel) {
            DIRTY.fetch_sub(1, Ordering::AcqRel);
        }
        page.into_iter().for_each(shared::unmap);
        if !opened.is_null() {
            // SAFETY: from `Box::into_raw`; the last reference is gone.
            let opened = unsafe { Box::from_raw(opened) };
            match opened.generation == mounts::generation() {
                true => drop(opened),
                // A parent's, which one of its threads may have been using.
                false => std::mem::forget(opened),
            }
        }
        FREE.with(|free| free.push(open));
        Ok(())
    });
}

impl Open {
    /// The page that all descriptors of it share.
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: mapped until the last reference is gone.
        unsafe { &*self.page.load(Ordering::Acquire) }
    }

    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.shared().kind()
    }

    /// Fails where it was not opened to read.
    pub(crate) fn check_readable(&self) -> Outcome<()> {
        if self.flags() & libc::O_ACCMODE == libc::O_WRONLY { Err(Errno(libc::EBADF)) } else { Ok(()) }
    }

    /// Fails where it was not opened to write.
    pub(crate) fn check_writable(&self) -> Outcome<()> {
        if self.flags() & libc::O_ACCMODE == libc::O_RDONLY { Err(Errno(libc::EBADF)) } else { Ok(()) }
    }

    /// As `F_GETFL` says.
    pub(crate) fn flags(&self) -> c_int {
        self.shared().flags.load(Ordering::Relaxed) as c_int
    }
}

impl Use {
    /// All that is known of it, for ever.
    pub(crate) fn whole(&self) -> &'static Open {
        self.open
    }

    /// One more reference.
    pub(crate) fn again(&self) -> Use {
        self.references.fetch_add(1, Ordering::AcqRel);
        Use { open: self.open, mount: self.mount }
    }

    /// The client's file; opened now where another process opened it first.
    pub(crate) fn file(&self) -> Outcome<&File> {
        let known = self.file.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw`, and not freed before the last reference is gone.
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

    /// Notes that something was written that the metadata server does not know of.
    pub(crate) fn note_written(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            DIRTY.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Reports it.
    pub(crate) fn report(&self) -> Outcome<()> {
        if self.dirty.swap(false, Ordering::AcqRel) {
            DIRTY.fetch_sub(1, Ordering::AcqRel);
            self.file()?.flush()?;
        }
        Ok(())
    }
}

/// Calls `with` for each open file of Weft that this process knows, once for each of its descriptors.
pub(crate) fn each(mut with: impl FnMut(&Use)) {
    each_fd(|_, open| with(open));
}

/// The same with the descriptors.
pub(crate) fn each_fd(mut with: impl FnMut(c_int, &Use)) {
    for fd in 0..END.load(Ordering::Acquire) as c_int {
        if let Some(open) = take(fd) {
            with(fd, &open);
        }
    }
}

/// A descriptor of the open file that has this page, by another name: one that this process knows already.
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

/// Reports what this process has written through any descriptor: before attributes are asked for or set, and at its end.
pub(crate) fn report_all() {
    if DIRTY.load(Ordering::Acquire) == 0 {
        return;
    }
    each(|open| {
        // What a server does not hear of now, it finds out when the session ends.
        let _ = open.report();
    });
}

/// In a forked child: closes the connections of its parent, but for those of locks that are its own too, and has nothing to report.
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
