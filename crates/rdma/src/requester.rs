//! The end of a connection that asked for it: poll style, no threads and no reactor. The calling thread posts and polls.
//!
//! ```text
//!   add ─► Batch ─► post ────────────► queue pair ─► peer
//!   tag of each piece of work ◄─ ended ── poll ◄──── completion queue
//! ```
//!
//! The descriptor is an epoll set of three: the completion queue's (armed whenever somebody waits), the connection's and
//! the adapter's.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use weft_verbs::{
    CompletionQueue, Device, DeviceEvent, Endpoint, EndpointState, Fabric, MemoryPiece, VerbsError, Work,
    WorkDone,
};

use crate::batch::Batch;

/// Completions taken at once.
const POLLED: usize = 32;
/// Of so many messages one reports its end, with which all before it are known to have ended.
const SIGNAL_EVERY: u64 = 4;
/// Work without a message among it of which one piece reports its end.
const SIGNAL_WORK_EVERY: u64 = 16;

/// Work that has been posted, and what it says of itself once it has ended.
pub trait Tag {
    /// It is a bind or an invalidation, which the adapter does by itself.
    fn is_local(&self) -> bool;

    /// It is a message, whose slot is needed again.
    fn is_message(&self) -> bool;
}

/// A connection that was asked for.
pub struct Requester<F: Fabric, T> {
    // The order of dropping: with the endpoint all work has ended.
    endpoint: F::Endpoint,
    queue: F::Queue,
    device: Arc<F::Device>,
    epoll: OwnedFd,
    armed: bool,
    /// Posted and not known to have ended, in order.
    posted: VecDeque<(u64, T)>,
    /// Number of the next piece of work.
    next_work: u64,
    signalled_work: u64,
    /// Messages since then.
    unsignalled_messages: u64,
    send_depth: u64,
    /// Local work is posted only when all other work has ended ([`weft_verbs::DeviceLimits::binds_alone`]), of which all is
    /// reported.
    binds_alone: bool,
    /// Why the connection has ended.
    ended: Option<String>,
}

impl<F: Fabric, T: Tag> Requester<F, T> {
    /// Of an endpoint with a queue pair over `queue`. `send_depth`: of the queue pair. `binds`: work is to bind windows.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(endpoint: F::Endpoint, queue: F::Queue, send_depth: u32, binds: bool) -> io::Result<Self> {
        let device = endpoint.device();
        let epoll = epoll_of(&[queue.fd(), endpoint.event_fd(), device.event_fd()])?;
        Ok(Requester {
            binds_alone: binds && device.limits().binds_alone,
            endpoint,
            queue,
            device,
            epoll,
            armed: false,
            posted: VecDeque::new(),
            next_work: 1,
            signalled_work: 0,
            unsignalled_messages: 0,
            send_depth: send_depth.into(),
            ended: None,
        })
    }

    /// What to wait for, after [`Requester::arm`].
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Its adapter.
    pub fn device(&self) -> &Arc<F::Device> {
        &self.device
    }

    /// Why the connection has ended, if it has.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Notes why the connection is of no use any more, if that is not known.
    pub fn note_end(&mut self, why: impl Into<String>) {
        self.ended.get_or_insert_with(|| why.into());
    }

    /// The number of its queue pair, by which the adapter's tools name it.
    pub fn queue_pair(&self) -> u32 {
        self.endpoint.queue_pair()
    }

    /// Whether work up to this number, or some of it, is not known to have ended.
    pub fn is_under_way(&self, number: u64) -> bool {
        self.posted.front().is_some_and(|(first, _)| *first <= number)
    }

    /// Ends the connection: the peer reaches no memory by it from here on.
    pub fn disconnect(&mut self, why: &str) {
        self.endpoint.disconnect();
        self.note_end(why);
    }

    /// Whether the send queue takes so many pieces of work more.
    pub fn has_room_for(&self, works: usize) -> bool {
        (self.posted.len() + works) as u64 <= self.send_depth
    }

    /// Whether binds and invalidations may be posted now.
    pub fn takes_local_work(&self) -> bool {
        !self.binds_alone || self.posted.iter().all(|(_, tag)| tag.is_local())
    }

    /// Adds work to a batch; its number. `signalled`: its end is to be known as soon as it has ended.
    pub fn add(
        &mut self,
        batch: &mut Batch,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        tag: T,
        signalled: bool,
    ) -> u64 {
        let number = self.next_work;
        self.next_work += 1;
        self.unsignalled_messages += u64::from(tag.is_message());
        let most = self.send_depth / 2;
        let signalled = signalled
            || (self.binds_alone && !tag.is_local())
            || self.unsignalled_messages >= SIGNAL_EVERY.min(most)
            || number - self.signalled_work >= SIGNAL_WORK_EVERY.min(most);
        if signalled {
            (self.signalled_work, self.unsignalled_messages) = (number, 0);
        }
        self.posted.push_back((number, tag));
        batch.add(number, work, pieces, signalled);
        number
    }

    /// Posts a batch with one ring of the doorbell.
    ///
    /// # Errors
    /// The queue is full, or the connection has ended.
    ///
    /// # Safety
    /// As for [`Endpoint::post_send`]. Work has ended when [`Requester::poll`] gives its tag.
    pub unsafe fn post(&mut self, batch: &Batch) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        unsafe { batch.post(&mut self.endpoint) }
    }

    /// Posts receives to the queue pair's own queue.
    ///
    /// # Errors
    /// As [`Requester::post`].
    ///
    /// # Safety
    /// As for [`Endpoint::post_receive`].
    pub unsafe fn post_receives(&mut self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        unsafe { self.endpoint.post_receive(receives) }
    }

    /// Looks at the descriptors without waiting.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub fn look(&mut self) -> Result<(), VerbsError> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 3];
        // SAFETY: room for the number of events given.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 3, 0) };
        for event in events.iter().take(count.max(0) as usize) {
            let cause = match event.u64 {
                0 => {
                    self.queue.take_wakeups()?;
                    self.armed = false;
                    None
                }
                1 => match self.endpoint.state() {
                    EndpointState::Ended(cause) => Some(cause),
                    _ => None,
                },
                _ => self.device.events().into_iter().find_map(|event| match event {
                    DeviceEvent::Fatal(cause) => Some(cause),
                    _ => None,
                }),
            };
            if let Some(cause) = cause {
                self.ended.get_or_insert(cause);
            }
        }
        Ok(())
    }

    /// Takes some of what has ended; nothing if nothing has.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub fn poll(&mut self) -> Result<Vec<WorkDone>, VerbsError> {
        let mut done = Vec::with_capacity(POLLED);
        self.queue.poll(&mut done, POLLED)?;
        Ok(done)
    }

    /// The tags of work up to this number, of which [`Requester::poll`] has told that it has ended.
    pub fn take_ended(&mut self, number: u64) -> Vec<T> {
        let ended = self.posted.iter().take_while(|(posted, _)| *posted <= number).count();
        self.posted.drain(..ended).map(|(_, tag)| tag).collect()
    }

    /// Has the descriptor tell of the next completion. Whether it was not so before: poll once more then.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub fn arm(&mut self) -> Result<bool, VerbsError> {
        if self.armed {
            return Ok(false);
        }
        self.queue.arm()?;
        self.armed = true;
        Ok(true)
    }
}

fn epoll_of(fds: &[RawFd]) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for (at, fd) in fds.iter().enumerate() {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: at as u64 };
        // SAFETY: a live event.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}
