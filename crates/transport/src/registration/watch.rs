//! Being told when memory of this process is unmapped: `userfaultfd`, used for its events only.
//!
//! ```text
//!   watch(range) ─ UFFDIO_REGISTER, write-protect mode, and nothing is ever protected: no access ever faults
//!
//!   any thread:  munmap, mremap, madvise, brk, mmap(MAP_FIXED)      reader thread             lookup (settle)
//!     │ "changing" + 1   (with the memory map locked)
//!     │ pages are unmapped, the map is unlocked                      poll
//!     │ event ───────────────────────────────────────────────────►  read, into the log       changing? read too, wait
//!     │ woken: "changing" − 1                                        │                        else: the log is complete
//!     ▼ returns                                                      ▼
//!                                                    teller thread: caches apply it and deregister
//! ```
//!
//! **Why a lookup cannot miss one.** The pages go, and the address can be given to somebody else, before the
//! event can be read: having read everything is not enough. But the kernel counts operations under way in the
//! descriptor (it refuses `UFFDIO_WRITEPROTECT` with `EAGAIN` while there are any, before it looks at
//! anything else), and it begins to count while the memory map is locked. Whoever has an address that was
//! given anew after an unmapping, sees the count or, if it is down again, finds the event in the log: it is
//! read and put there under one lock.
//!
//! **Case by case.**
//! - A watched range is unmapped in part, or mapped over (`MAP_FIXED`), or the heap shrinks (`brk`): an event
//!   with what was unmapped.
//! - `mremap` that moves, with `MREMAP_DONTUNMAP` too: an event with both places. The old one counts as
//!   unmapped. The new one is still watched, for nobody: the teller ends that. One that shrinks or grows in
//!   place unmaps the tail, or touches nothing.
//! - `madvise` with `MADV_DONTNEED`, `MADV_FREE`: an event, but before the pages go and with no sign when
//!   they are gone. See `doubtful` in `cache`.
//! - `fork`: a child's memory is not watched (no `UFFD_FEATURE_EVENT_FORK`), the parent's stays so. The
//!   child's copy of the descriptor is closed by a handler, because what is watched would stay so until the
//!   last copy is closed.
//! - `mprotect`: the pages stay; nothing to be told of. A key for writing outlives the right to write, until
//!   the program asks for a read of a file into memory that it may not write.
//! - Memory of files, shared memory, huge pages of `hugetlbfs`: can be cut off from elsewhere (`ftruncate`,
//!   holes), of which nobody tells. Refused, and so not cached.
//! - What is partly not mapped, or mapped while the watch begins: a range counts as watched only if the
//!   kernel finds each mapping in it whole and watched *after* it was registered (`UFFDIO_CONTINUE` says
//!   `EINVAL` for such a range of private memory, `ENOENT` for any other, and does nothing).
//! - A range begins and ends inside of mappings: these are watched as wholes, because a mapping that is cut
//!   in two could not be moved by `mremap` any more. A mapping is watched until no range needs it, which the
//!   teller finds out. New mappings beside a watched one stay mappings of their own, and are not watched with
//!   it. What such a mapping is cut into by `mprotect` or `MAP_FIXED` may stay cut until it is watched no
//!   more (the one effect on programs: an `mremap` of all the parts together fails meanwhile).
//! - Two buffers on one page: ranges are whole pages, and ranges may overlap.
//!
//! **What is not told**, and so must not be done to buffers: `shmat` with `SHM_REMAP` over them, and
//! `MADV_GUARD_INSTALL` (6.13) on their pages.
//!
//! **Why nothing can wait for ever.** A thread that unmaps waits, possibly with locks of the program's or the
//! allocator's, until its event is read. So the reader takes no lock but the log's, allocates nothing and
//! frees nothing (and closes the descriptor before its end, at which the system's library does); whoever has
//! the log's lock does not either. All signals are blocked in it. Caches are told by another thread, which
//! may wait like any other.
//!
//! Kernels: 5.13 or later on x86, by any user (the descriptor is one for user faults only, which
//! `vm.unprivileged_userfaultfd` does not restrict); `/dev/userfaultfd` (6.1) where the call is forbidden. At
//! the start everything above is tried out on a few pages; if anything is different, there is no watching.

mod kernel;
mod log;
mod start;
mod trial;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::coverage::Coverage;
use super::group::{PageRange, merge};
use super::holes;
use super::home::Home;
use super::page::page_bytes;
use super::ranges::Ranges;
use crate::socket::{checked, owned};
pub use log::Change;
use log::{Log, Record, record};
use start::{lock_after_fork, spawn};

/// Tries to watch mappings whose neighbours change at the same time.
const WATCH_TRIES: u32 = 4;
/// Looks at whether something is being unmapped, before a lookup does without the cache.
const SETTLE_LOOKS: u32 = 200;
/// The first of these without sleeping in between.
const SETTLE_LOOKS_AWAKE: u32 = 50;
const SETTLE_SLEEP: Duration = Duration::from_micros(20);

/// Who wants to know at once.
pub trait Told: Send + Sync {
    /// There is something in the log.
    fn told(&self);
}

/// What is watched, and why.
#[derive(Default)]
struct Watched {
    /// What has to be.
    needed: Coverage,
    /// What may be: whole mappings, as they were.
    mappings: Ranges,
}

struct Inner {
    /// Closed by the reader, when nobody uses it any more.
    descriptor: RawFd,
    wake: OwnedFd,
    log: Mutex<Log>,
    news: Condvar,
    is_stopping: AtomicBool,
    /// The descriptor is no longer what it was: nothing is told any more.
    is_blind: AtomicBool,
    watched: Mutex<Watched>,
    /// Where something was watched that perhaps need not be any more.
    left: Mutex<Vec<PageRange>>,
    told: Mutex<Vec<Weak<dyn Told>>>,
}

/// The watcher of a process; there is one, because memory can be watched by one descriptor only.
pub struct Watcher {
    inner: Arc<Inner>,
    home: Home,
    reader: Option<JoinHandle<()>>,
    teller: Option<JoinHandle<()>>,
}

/// A range that is watched. Ends when it is dropped.
pub struct Watch {
    watcher: Arc<Watcher>,
    range: PageRange,
    is_on: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static CURRENT: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
/// For the handler in forked children.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

extern "C" fn close_in_child() {
    let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: the child's copy; nothing in the child uses it (see `Home`).
        unsafe { libc::close(descriptor) };
    }
}

impl Watcher {
    /// The one of this process; started if there is none.
    ///
    /// # Errors
    /// Why memory cannot be watched here.
    pub fn of_this_process() -> Result<Arc<Watcher>, String> {
        let mut current = lock_after_fork(&CURRENT)?;
        if let Some(watcher) = current.upgrade().filter(|watcher| watcher.home.is_here()) {
            return Ok(watcher);
        }
        let watcher = Arc::new(Watcher::start().map_err(|error| format!("userfaultfd: {error}"))?);
        trial::run(&watcher).map_err(|what| format!("userfaultfd here is different: {what}"))?;
        *current = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> io::Result<Watcher> {
        static HANDLER: Once = Once::new();
        // SAFETY: the handler only closes a descriptor.
        HANDLER.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close_in_child));
        });
        // SAFETY: no memory is passed; the result is new.
        let wake = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }?;
        let descriptor = kernel::open()?;
        let inner = Arc::new(Inner {
            descriptor: descriptor.as_raw_fd(),
            wake,
            log: Mutex::new(Log::new()),
            news: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
            watched: Mutex::default(),
            left: Mutex::new(Vec::new()),
            told: Mutex::new(Vec::new()),
        });
        DESCRIPTOR.store(inner.descriptor, Ordering::Relaxed);
        let mut watcher = Watcher { inner: inner.clone(), home: Home::here(), reader: None, teller: None };
        let reading = inner.clone();
        watcher.reader = Some(spawn("weft-watch", move || reading.read_until_stopped(descriptor))?);
        watcher.teller = Some(spawn("weft-watch-tell", move || inner.tell_until_stopped())?);
        Ok(watcher)
    }

    /// Adds one that is told at once, and returns the number of changes that came before.
    pub fn tell(&self, told: Weak<dyn Told>) -> u64 {
        let mut all = lock(&self.inner.told);
        all.retain(|told| told.strong_count() > 0);
        all.push(told);
        lock(&self.inner.log).next
    }

    /// The next change after those that were seen.
    pub fn next_change(&self, seen: &mut u64) -> Option<Change> {
        let log = lock(&self.inner.log);
        loop {
            match log.after(seen)? {
                None => return Some(Change::Unknown),
                Some(Record::Change(change)) => return Some(change),
                Some(Record::Moved(_)) => {}
            }
        }
    }

    /// Makes sure that everything which was unmapped before this call is in the log. Says `false` if so much
    /// is being unmapped that it did not come to that, or if the program has closed the descriptor (some
    /// close all that they do not know).
    pub fn settle(&self) -> bool {
        for look in 0..SETTLE_LOOKS {
            if self.inner.is_blind.load(Ordering::Relaxed) {
                return false;
            }
            if !self.inner.is_changing() {
                return !self.inner.is_blind.load(Ordering::Relaxed);
            }
            self.inner.read_events();
            if look < SETTLE_LOOKS_AWAKE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SETTLE_SLEEP);
            }
        }
        false
    }

    /// Watches a range, if all of it is private memory of no file.
    pub fn watch(self: &Arc<Watcher>, range: PageRange) -> Option<Watch> {
        let mut watched = lock(&self.inner.watched);
        let mut watch_mappings = || self.watch_mappings(&range, &mut watched.mappings).unwrap_or(false);
        let is_watched = self.is_one_watched(&range) && self.inner.register(&range)
            || (0..WATCH_TRIES).any(|_| watch_mappings());
        if is_watched {
            watched.needed.add(&range);
            return Some(Watch { watcher: self.clone(), range, is_on: AtomicBool::new(true) });
        }
        drop(watched);
        self.inner.leave(range);
        None
    }

    /// Has what is watched of a range stay so.
    pub fn keep(self: &Arc<Watcher>, range: PageRange) -> Watch {
        lock(&self.inner.watched).needed.add(&range);
        Watch { watcher: self.clone(), range, is_on: AtomicBool::new(true) }
    }

    /// Watches the mappings that a range is made of, and says whether they are all of it.
    fn watch_mappings(&self, range: &PageRange, watched: &mut Ranges) -> io::Result<bool> {
        let mappings = holes::mappings(*range)?;
        let mut at = range.start;
        for mapping in &mappings {
            if mapping.range.start > at || !mapping.is_private_anonymous {
                return Ok(false);
            }
            at = mapping.range.end;
        }
        let mut watch = |mapping: &holes::Mapped| {
            watched.add(mapping.range);
            let (start, end) = (mapping.range.start.max(range.start), mapping.range.end.min(range.end));
            self.inner.register(&mapping.range) && self.is_one_watched(&PageRange { start, end })
        };
        Ok(at >= range.end && mappings.iter().all(&mut watch))
    }

    /// Whether a range is part of one mapping, which is private and watched.
    fn is_one_watched(&self, range: &PageRange) -> bool {
        for _ in 0..SETTLE_LOOKS {
            match self.inner.ask(range) {
                libc::EINVAL => return true,
                libc::EAGAIN => self.settle(),
                _ => return false,
            };
        }
        false
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // In a forked child there are no such threads, and the descriptor is closed.
        if !self.home.is_here() {
            return;
        }
        self.inner.is_stopping.store(true, Ordering::SeqCst);
        // Locked, so that the teller either sees the flag or waits already.
        drop(lock(&self.inner.log));
        self.inner.news.notify_all();
        if let Some(teller) = self.teller.take()
            && teller.thread().id() != std::thread::current().id()
        {
            let _ = teller.join();
        }
        let _ = DESCRIPTOR.compare_exchange(self.inner.descriptor, -1, Ordering::Relaxed, Ordering::Relaxed);
        let one = 1u64.to_ne_bytes();
        // SAFETY: an eventfd takes eight bytes.
        unsafe { libc::write(self.inner.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Watch {
    /// What is watched.
    pub fn range(&self) -> &PageRange {
        &self.range
    }

    /// Ends it.
    pub fn end(&self) {
        if self.watcher.home.is_here() && self.is_on.swap(false, Ordering::Relaxed) {
            lock(&self.watcher.inner.watched).needed.remove(&self.range);
            self.watcher.inner.leave(self.range);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    /// Whether something watched is being unmapped: an operation has begun, and its event was not read.
    fn is_changing(&self) -> bool {
        // SAFETY: the kernel looks at this first, and then refuses the address.
        let result =
            unsafe { libc::ioctl(self.descriptor, kernel::UFFDIO_WRITEPROTECT, std::ptr::null_mut::<u64>()) };
        let error = io::Error::last_os_error().raw_os_error();
        if result == 0 || error != Some(libc::EFAULT) && error != Some(libc::EAGAIN) {
            self.is_blind.store(true, Ordering::Relaxed);
        }
        error == Some(libc::EAGAIN)
    }

    /// Reads all events that there are. Neither allocates nor frees.
    fn read_events(&self) {
        const MESSAGES: usize = 16;
        // Looked at first, because it is another file's data if the program has closed the descriptor.
        if !self.is_changing() {
            return;
        }
        let mut messages = [kernel::Message { event: 0, reserved: [0; 7], arguments: [0; 3] }; MESSAGES];
        loop {
            let mut log = lock(&self.log);
            // SAFETY: the buffer is as large as said, and its type has no invalid values.
            let bytes =
                unsafe { libc::read(self.descriptor, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
            let count = usize::try_from(bytes).unwrap_or(0) / size_of::<kernel::Message>();
            for message in &messages[..count] {
                record(message, &mut log);
            }
            if count > 0 {
                self.news.notify_all();
            }
            if count < MESSAGES {
                return;
            }
        }
    }

    fn read_until_stopped(&self, descriptor: OwnedFd) {
        let poll = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        loop {
            let mut both = [poll(self.descriptor), poll(self.wake.as_raw_fd())];
            // SAFETY: two of them.
            unsafe { libc::poll(both.as_mut_ptr(), 2, -1) };
            self.read_events();
            if self.is_blind.load(Ordering::Relaxed) {
                // It is somebody else's now.
                std::mem::forget(descriptor);
                return;
            }
            if both[1].revents != 0 {
                // Ends all watching, before this thread gives back its own memory: of that nobody would read
                // any more.
                drop(descriptor);
                return;
            }
        }
    }

    fn tell_until_stopped(&self) {
        let mut seen = 0;
        loop {
            let is_over = {
                let mut log = lock(&self.log);
                while log.next == seen && !log.is_left && !self.is_stopping.load(Ordering::SeqCst) {
                    log = self.news.wait(log).unwrap_or_else(PoisonError::into_inner);
                }
                log.next == seen && !std::mem::take(&mut log.is_left)
            };
            if is_over {
                return;
            }
            self.note_moved(&mut seen);
            self.unwatch_left();
            let all: Vec<_> = lock(&self.told).clone();
            for told in all.iter().filter_map(Weak::upgrade) {
                told.told();
            }
        }
    }

    /// Leaves it to the teller to end the watching of what nobody needs watched there.
    fn leave(&self, range: PageRange) {
        lock(&self.left).push(range);
        lock(&self.log).is_left = true;
        self.news.notify_all();
    }

    /// Memory that was moved is watched for nobody.
    fn note_moved(&self, seen: &mut u64) {
        loop {
            let Some(record) = lock(&self.log).after(seen) else { return };
            if let Some(Record::Moved(range)) = record {
                lock(&self.watched).mappings.add(range);
                lock(&self.left).push(range);
            }
        }
    }

    /// Ends the watching of mappings in which nothing has to be watched. They are looked for in all of the
    /// mappings that were once watched together: what was needed of one may be unmapped itself, and the rest
    /// still be watched.
    fn unwatch_left(&self) {
        let left = merge(std::mem::take(&mut *lock(&self.left)));
        let mut watched = lock(&self.watched);
        for range in left {
            for part in watched.mappings.around(&range) {
                let Ok(mappings) = holes::mappings(part) else { continue };
                watched.mappings.remove(&part);
                for mapping in mappings.iter().filter(|mapping| mapping.is_private_anonymous) {
                    if watched.needed.covers_any(&mapping.range) {
                        watched.mappings.add(mapping.range);
                    } else {
                        self.unregister(&mapping.range);
                    }
                }
            }
        }
    }

    /// Ends the watching of a mapping, if it is still there and is watched.
    fn unregister(&self, range: &PageRange) {
        let _ = self.ioctl(kernel::UFFDIO_UNREGISTER, &mut [range.start, range.bytes(), 0, 0]);
    }

    /// Says whether the kernel watches a range from now on, as far as it is mapped.
    fn register(&self, range: &PageRange) -> bool {
        let mut arguments = [range.start, range.bytes(), kernel::REGISTER_MODE_WP, 0];
        let is_done = self.ioctl(kernel::UFFDIO_REGISTER, &mut arguments).is_ok();
        is_done && arguments[3] & kernel::ALLOWS_ZEROPAGE != 0
    }

    /// How the kernel refuses to map pages of a file there.
    fn ask(&self, range: &PageRange) -> libc::c_int {
        match self.ioctl(kernel::UFFDIO_CONTINUE, &mut [range.start, range.bytes(), 0, 0]) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(0),
        }
    }

    fn ioctl(&self, request: libc::c_ulong, arguments: &mut [u64; 4]) -> io::Result<()> {
        if self.is_blind.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // SAFETY: none of the requests takes more than four words.
        let result = unsafe { libc::ioctl(self.descriptor, request, arguments.as_mut_ptr()) };
        checked(result as isize).map(drop)
    }
}
