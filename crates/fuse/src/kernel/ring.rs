//! Requests and replies through an io_uring.
//!
//! ```text
//!   thread of queue 1        entry 0 ─ at the kernel: a request may come
//!     io_uring ─ submit      entry 1 ─ here: a lock is waited for; the kernel has got entry 2 in its place
//!              ─ completions entry 2 ─ here: is being served; then COMMIT_AND_FETCH gives its reply and the entry
//!     mailbox ◄── other threads: "entry 1: done"
//! ```
//!
//! The threads of a queue have an io_uring each, and one entry at the kernel. Whoever makes a request and whoever serves it are on the
//! same processor, so that the one's sleep is the other's turn. An entry whose reply another thread will give is replaced meanwhile:
//! there is always somebody who can serve.
//!
//! A request that comes while a queue has no entry at the kernel waits there until a reply is given to that queue; a fresh entry alone
//! does not fetch it. If all entries wait for locks there may be no reply for long. So whoever begins to wait makes a request himself, on
//! that processor: its reply fetches the next.

use super::answer::{Answer, Later};
use super::dispatch::{Dispatcher, NUDGE};
use super::memory::{Memory, REQUEST_BYTES_MAX};
use super::panics::Ended;
use crate::outcome::{Errno, Outcome};
use crate::wake::Wake;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use weft_fuse_wire::ring::{Arrived, COMMIT_AND_FETCH, HEADERS_BYTES, REGISTER, command, put_reply};
use weft_fuse_wire::{Malformed, ReplyHeader, Request};

const POSSIBLE_PROCESSORS: &str = "/sys/devices/system/cpu/possible";
const SUBMISSIONS: u32 = 8;
/// Names and small values are put aside while a request is served, so that its reply has the payload's memory.
const ASIDE_BYTES_MAX: usize = 8192;
/// Body of the reply to a request whose data stays where it is: a count.
const SHORT_BODY_BYTES: usize = 64;
/// Marks the completion that tells of mail; entries have their index.
const MAILBOX: u64 = u64::MAX;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

fn make_ring() -> io::Result<Ring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    builder.build(SUBMISSIONS)
}

/// Whether this process can have such an io_uring.
pub(super) fn works() -> bool {
    make_ring().is_ok()
}

/// Queues of a connection: one for each processor that there can be.
pub(super) fn queues() -> usize {
    let list = std::fs::read_to_string(POSSIBLE_PROCESSORS).unwrap_or_default();
    last_processor(&list).map_or(1, |last| last + 1)
}

/// The last of a list such as `0-3,8`.
fn last_processor(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Serves requests of a queue until the connection ends.
pub(super) fn serve(device: Arc<File>, queue: u16, dispatcher: &Dispatcher) -> io::Result<()> {
    stay_on(queue);
    let thread = RingThread::new(device, queue, dispatcher.dir())?;
    thread.await_mail()?;
    thread.add_entry(dispatcher)?;
    dispatcher.end_waits_of_this_thread(|| {});
    loop {
        thread.ring.borrow_mut().submit_and_wait(1).or_else(interrupted)?;
        while let Some(completion) = thread.next() {
            match (completion.user_data(), completion.result()) {
                (MAILBOX, _) => thread.take_mail()?,
                (_, ended) if ended == -libc::ENOTCONN || ended == -libc::ECANCELED => return Ok(()),
                (_, error) if error < 0 => return Err(io::Error::from_raw_os_error(-error)),
                (index, _) => thread.serve(index as usize, dispatcher)?,
            }
        }
    }
}

fn interrupted(error: io::Error) -> io::Result<usize> {
    if error.raw_os_error() == Some(libc::EINTR) { Ok(0) } else { Err(error) }
}

/// Keeps the calling thread on the processor of its queue, where that is there and allowed.
fn stay_on(processor: u16) {
    // SAFETY: an all-zero set is a valid empty one, and the number is checked to be within it; the call only reads it.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        if usize::from(processor) < 8 * size_of::<libc::cpu_set_t>() {
            libc::CPU_SET(processor.into(), &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// Makes a request of the calling thread's own to a queue; the thread is to end soon, as it stays on that processor.
fn nudge(queue: u16, dir: &CString) {
    stay_on(queue);
    let Ok(name) = CString::new(NUDGE) else { return };
    // SAFETY: both strings end with a zero and live through the call; no value is taken.
    unsafe { libc::lgetxattr(dir.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
}

/// Memory for one request and its reply. While the kernel has it nothing here looks at it.
struct Entry {
    headers: Box<UnsafeCell<[u8; HEADERS_BYTES]>>,
    payload: UnsafeCell<Memory>,
    /// Both, as the kernel is told of them.
    parts: [libc::iovec; 2],
    /// The numbers of the request that is here: in its reply, and in its commit.
    unique: Cell<u64>,
    commit: Cell<u64>,
}

impl Entry {
    fn new(dispatcher: &Dispatcher) -> Rc<Entry> {
        let headers = Box::new(UnsafeCell::new([0; HEADERS_BYTES]));
        let mut payload = Memory::new(dispatcher.client(), REQUEST_BYTES_MAX as usize);
        let parts = [
            libc::iovec { iov_base: headers.get().cast(), iov_len: HEADERS_BYTES },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
        ];
        let payload = UnsafeCell::new(payload);
        Rc::new(Entry { headers, payload, parts, unique: Cell::new(0), commit: Cell::new(0) })
    }
}

/// Replies of other threads.
struct Mailbox {
    replies: Mutex<Vec<(usize, Outcome<usize>)>>,
    wake: Wake,
}

impl Mailbox {
    fn put(&self, index: usize, outcome: Outcome<usize>) {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        self.wake.wake();
    }

    fn take(&self) -> Vec<(usize, Outcome<usize>)> {
        self.wake.clear();
        std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct RingThread {
    device: Arc<File>,
    queue: u16,
    ring: RefCell<Ring>,
    entries: RefCell<Vec<Rc<Entry>>>,
    mailbox: Arc<Mailbox>,
    dir: Arc<CString>,
    aside: RefCell<Vec<u8>>,
}

impl RingThread {
    fn new(device: Arc<File>, queue: u16, dir: &Path) -> io::Result<RingThread> {
        Ok(RingThread {
            device,
            queue,
            ring: RefCell::new(make_ring()?),
            entries: RefCell::default(),
            mailbox: Arc::new(Mailbox { replies: Mutex::default(), wake: Wake::new()? }),
            dir: Arc::new(CString::new(dir.as_os_str().as_bytes())?),
            aside: RefCell::new(vec![0; ASIDE_BYTES_MAX]),
        })
    }

    fn next(&self) -> Option<cqueue::Entry> {
        self.ring.borrow_mut().completion().next()
    }

    fn push(&self, submission: &squeue::Entry128) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        // SAFETY: all memory that submissions point to lives as long as this thread's ring: the entries, which are dropped after it.
        while unsafe { ring.submission().push(submission) }.is_err() {
            ring.submit().or_else(interrupted)?;
        }
        Ok(())
    }

    /// Has the ring tell when there is mail.
    fn await_mail(&self) -> io::Result<()> {
        let wake = types::Fd(self.mailbox.wake.as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(wake, libc::POLLIN as u32).build().user_data(MAILBOX);
        self.push(&poll.into())
    }

    fn take_mail(&self) -> io::Result<()> {
        for (index, outcome) in self.mailbox.take() {
            self.commit(index, outcome)?;
        }
        self.await_mail()
    }

    /// Gives one more entry to the kernel.
    fn add_entry(&self, dispatcher: &Dispatcher) -> io::Result<()> {
        let entry = Entry::new(dispatcher);
        let mut entries = self.entries.borrow_mut();
        let parts = entry.parts.as_ptr() as u64;
        let register = self.submission(REGISTER, command(0, self.queue), parts, entries.len());
        entries.push(entry);
        drop(entries);
        self.push(&register)
    }

    /// A command to the device. The library has no way to give the number of `parts`, so that it is put together here.
    fn submission(&self, operation: u32, command: [u8; 80], parts: u64, index: usize) -> squeue::Entry128 {
        const PARTS: u32 = 2;
        let mut bytes = [0u8; 128];
        bytes[0] = opcode::UringCmd80::CODE;
        bytes[4..8].copy_from_slice(&self.device.as_raw_fd().to_ne_bytes());
        bytes[8..12].copy_from_slice(&operation.to_ne_bytes());
        bytes[16..24].copy_from_slice(&parts.to_ne_bytes());
        bytes[24..28].copy_from_slice(&PARTS.to_ne_bytes());
        bytes[32..40].copy_from_slice(&(index as u64).to_ne_bytes());
        bytes[48..].copy_from_slice(&command);
        // SAFETY: an `Entry128` is the kernel's submission of 128 bytes as it is, and every pattern of bytes is one.
        unsafe { std::mem::transmute(bytes) }
    }

    fn entry(&self, index: usize) -> Rc<Entry> {
        self.entries.borrow()[index].clone()
    }

    /// Gives the reply that is in an entry, and the entry, to the kernel; not before the next submission.
    fn commit(&self, index: usize, outcome: Outcome<usize>) -> io::Result<()> {
        let entry = self.entry(index);
        // SAFETY: the entry is here, not at the kernel, and only this thread looks at it; no other reference to its headers is
        // alive, as those to a request are to a copy.
        let headers = unsafe { &mut *entry.headers.get() };
        let (unique, errno) = (entry.unique.get(), outcome.map_or_else(|errno| errno.0, |_| 0));
        put_reply(headers, &ReplyHeader { unique, errno, body_bytes: outcome.unwrap_or(0) });
        self.push(&self.submission(COMMIT_AND_FETCH, command(entry.commit.get(), self.queue), 0, index))
    }

    /// Serves the request in an entry.
    fn serve(&self, index: usize, dispatcher: &Dispatcher) -> io::Result<()> {
        let entry = self.entry(index);
        // SAFETY: its completion says that the entry is here; until it is committed only this thread looks at it.
        let (headers, payload) = unsafe { (*entry.headers.get(), &mut *entry.payload.get()) };
        let arrived = Arrived::decode(&headers).map_err(io::Error::other)?;
        entry.unique.set(arrived.header.unique);
        entry.commit.set(arrived.commit);
        let bytes = arrived.payload_bytes;
        let state = Cell::new(Replied::Not);
        let turn = Turn { thread: self, index, state: &state };
        let mut short = [0; SHORT_BODY_BYTES];
        let is_short = bytes > ASIDE_BYTES_MAX;
        if is_short {
            let data = payload.get(..bytes).ok_or(Malformed("the payload"));
            let request = data.and_then(|data| Request::decode(&arrived.header, arrived.arguments, data));
            turn.dispatch(dispatcher, &arrived, request, &mut short);
        } else {
            let mut aside = self.aside.borrow_mut();
            aside[..bytes].copy_from_slice(&payload[..bytes]);
            let request = Request::decode(&arrived.header, arrived.arguments, &aside[..bytes]);
            turn.dispatch(dispatcher, &arrived, request, payload);
        }
        match state.get() {
            Replied::Here(outcome) => {
                if let Ok(bytes) = outcome
                    && is_short
                {
                    payload[..bytes].copy_from_slice(&short[..bytes]);
                }
                self.commit(index, outcome)
            }
            Replied::AtKernel => Ok(()),
            Replied::Later => self.add_entry(dispatcher),
            Replied::Not => self.commit(index, Err(Errno(libc::EIO))),
        }
    }
}

/// Where a reply is.
#[derive(Clone, Copy)]
enum Replied {
    Not,
    /// In the entry.
    Here(Outcome<usize>),
    /// It was given already.
    AtKernel,
    /// Another thread will give it.
    Later,
}

/// The serving of one request.
struct Turn<'a> {
    thread: &'a RingThread,
    index: usize,
    state: &'a Cell<Replied>,
}

impl Turn<'_> {
    fn dispatch(
        &self,
        dispatcher: &Dispatcher,
        arrived: &Arrived<'_>,
        request: Result<Request<'_>, Malformed>,
        body: &mut [u8],
    ) {
        let answer = RingAnswer { turn: self, body, at_once: false };
        if dispatcher.serve(&arrived.header, request, answer) == Ended::Unanswered {
            self.state.set(Replied::Not);
        }
    }
}

struct RingAnswer<'a> {
    turn: &'a Turn<'a>,
    body: &'a mut [u8],
    at_once: bool,
}

impl Answer for RingAnswer<'_> {
    fn body(&mut self) -> &mut [u8] {
        self.body
    }

    fn send(self, outcome: Outcome<usize>) {
        let Turn { thread, index, state } = self.turn;
        state.set(Replied::Here(outcome));
        // Only reads have more to do afterwards, and their body is in the entry.
        let given = |_: ()| thread.ring.borrow().submit().map(drop);
        if self.at_once && thread.commit(*index, outcome).and_then(given).is_ok() {
            state.set(Replied::AtKernel);
        }
    }

    fn send_data(self, data: &[u8]) {
        match self.body.get_mut(..data.len()) {
            Some(place) => place.copy_from_slice(data),
            None => return self.send(Err(Errno(libc::EIO))),
        }
        self.send(Ok(data.len()));
    }

    fn at_once(&mut self) {
        self.at_once = true;
    }

    fn none(self) {
        self.send(Ok(0));
    }

    fn later(self) -> Later {
        let Turn { thread, index, state } = self.turn;
        state.set(Replied::Later);
        let (mailbox, index) = (thread.mailbox.clone(), *index);
        let (queue, dir) = (thread.queue, thread.dir.clone());
        let later = Later::new(move |outcome| mailbox.put(index, outcome.map(|()| 0)));
        later.when_it_waits(move || nudge(queue, &dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_of_a_list_is_found() {
        assert_eq!(last_processor("0-3\n"), Some(3));
        assert_eq!(last_processor("0\n"), Some(0));
        assert_eq!(last_processor("0-3,8-11\n"), Some(11));
        assert_eq!(last_processor(""), None);
    }
}
