//! The operations of a ring, from their submission until the kernel has completed them; see [`crate::ring`].

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Poll, Waker};

use io_uring::squeue::Entry;
use io_uring::types::CancelBuilder;
use io_uring::{IoUring, Probe, opcode};

use crate::slab::Slab;

/// An io_uring and the operations in its hands.
pub(crate) struct Ring {
    state: RefCell<RingState>,
}

struct RingState {
    uring: IoUring,
    operations: Slab<Operation>,
    /// Entries that wait for a place in the submission queue.
    backlog: VecDeque<Entry>,
    /// Operations submitted and not yet completed. Never more than the completion queue holds.
    in_kernel: usize,
}

enum Operation {
    Running {
        keepalive: Box<dyn Any>,
        waker: Option<Waker>,
    },
    Done(i32),
    /// The future was dropped. The memory must stay until the kernel is done with it.
    Abandoned {
        keepalive: Box<dyn Any>,
    },
}

impl Ring {
    pub(crate) fn new(entries: u32) -> io::Result<Ring> {
        let explain = |error: io::Error| {
            let text = format!(
                "io_uring cannot be used here ({error}): make the reactor without a ring and use the plain disk"
            );
            io::Error::new(error.kind(), text)
        };
        let uring = Self::build(entries).map_err(explain)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(explain)?;
        let needed = [opcode::Read::CODE, opcode::Readv::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(explain(io::ErrorKind::Unsupported.into()));
        }
        let state = RingState { uring, operations: Slab::new(), backlog: VecDeque::new(), in_kernel: 0 };
        Ok(Ring { state: RefCell::new(state) })
    }

    /// Cooperative task running (Linux 5.19) saves an interrupt per completion. Older kernels do without it.
    fn build(entries: u32) -> io::Result<IoUring> {
        match IoUring::builder().dontfork().setup_coop_taskrun().build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                IoUring::builder().dontfork().build(entries)
            }
            result => result,
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.state.borrow().uring.as_raw_fd()
    }

    /// Whether there are entries that the kernel has not taken for lack of resources.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        let mut state = self.state.borrow_mut();
        !state.uring.submission().is_empty() || (!state.backlog.is_empty() && state.has_room())
    }

    /// Queues an operation. Returns its key.
    ///
    /// # Safety
    /// As [`crate::ring::submit`].
    pub(crate) unsafe fn begin(&self, entry: Entry, keepalive: Box<dyn Any>) -> u64 {
        let mut state = self.state.borrow_mut();
        let key = state.operations.insert(Operation::Running { keepalive, waker: None });
        state.backlog.push_back(entry.user_data(key));
        key
    }

    /// The result of an operation, which ends it; else wakes `new_waker` when there is one.
    pub(crate) fn poll(&self, key: u64, new_waker: &Waker) -> Poll<i32> {
        let mut state = self.state.borrow_mut();
        let result = match state.operations.get_mut(key) {
            Some(Operation::Running { waker, .. }) => {
                waker.get_or_insert_with(|| new_waker.clone()).clone_from(new_waker);
                return Poll::Pending;
            }
            Some(Operation::Done(result)) => *result,
            Some(Operation::Abandoned { .. }) | None => unreachable!("its future holds this operation"),
        };
        state.operations.remove(key);
        Poll::Ready(result)
    }

    /// Nobody waits for an operation any more. Its memory stays until the kernel is done with it.
    pub(crate) fn abandon(&self, key: u64) {
        let mut state = self.state.borrow_mut();
        let Some(operation) = state.operations.get_mut(key) else { return };
        if matches!(operation, Operation::Done(_)) {
            state.operations.remove(key);
            return;
        }
        let placeholder = Operation::Done(0);
        if let Operation::Running { keepalive, waker } = std::mem::replace(operation, placeholder) {
            *operation = Operation::Abandoned { keepalive };
            drop(state);
            drop(waker);
        }
    }

    /// Submits new operations. Returns (operations, system calls).
    pub(crate) fn submit(&self) -> (u64, u64) {
        self.state.borrow_mut().submit()
    }

    /// Wakes the owners of completed operations. Returns whether there were any.
    pub(crate) fn reap(&self) -> bool {
        // Keepalives and wakers run other code when dropped or woken, so only after the borrow ends.
        let mut released: Vec<(Box<dyn Any>, Option<Waker>)> = Vec::new();
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        for completion in state.uring.completion() {
            let key = completion.user_data();
            state.in_kernel -= 1;
            match state.operations.get_mut(key) {
                Some(operation @ Operation::Running { .. }) => {
                    let done = Operation::Done(completion.result());
                    if let Operation::Running { keepalive, waker } = std::mem::replace(operation, done) {
                        released.push((keepalive, waker));
                    }
                }
                Some(Operation::Abandoned { .. }) => {
                    if let Some(Operation::Abandoned { keepalive }) = state.operations.remove(key) {
                        released.push((keepalive, None));
                    }
                }
                Some(Operation::Done(_)) | None => unreachable!("an operation completes once"),
            }
        }
        drop(borrowed);
        let any = !released.is_empty();
        for (keepalive, waker) in released {
            drop(keepalive);
            waker.into_iter().for_each(Waker::wake);
        }
        any
    }

    /// Cancels what can be cancelled and waits until the kernel is done with all memory.
    pub(crate) fn finish(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            state.submit();
            if state.in_kernel == 0 && state.backlog.is_empty() {
                return;
            }
            // This only saves waiting (Linux 6.0). An operation that cannot be cancelled completes at its own
            // time.
            let _ = state.uring.submitter().register_sync_cancel(None, CancelBuilder::any());
            let waited = state.uring.submit_and_wait(1);
            drop(state);
            if let Err(error) = waited {
                let again = [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)];
                assert!(again.contains(&error.raw_os_error()), "io_uring_enter failed: {error}");
            }
            self.reap();
        }
    }
}

impl RingState {
    fn has_room(&mut self) -> bool {
        self.in_kernel < self.uring.completion().capacity()
    }

    /// Submits the backlog as far as there is space. Returns (operations, system calls).
    fn submit(&mut self) -> (u64, u64) {
        let (mut operations, mut submits) = (0, 0);
        loop {
            while self.has_room() && !self.uring.submission().is_full() {
                let Some(entry) = self.backlog.pop_front() else { break };
                // SAFETY: the caller of `submit` vouched for the memory for as long as the keepalive
                // lives, and the operation table holds that until the completion.
                unsafe { self.uring.submission().push(&entry) }
                    .expect("the queue was just seen not to be full");
                self.in_kernel += 1;
                operations += 1;
            }
            if self.uring.submission().is_empty() {
                return (operations, submits);
            }
            submits += 1;
            match self.uring.submit() {
                Ok(_) if !self.backlog.is_empty() && self.has_room() => {}
                Ok(_) => return (operations, submits),
                // The kernel is short of memory or completions are waiting: the next turn tries again.
                Err(error) => {
                    let again = [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)];
                    assert!(again.contains(&error.raw_os_error()), "io_uring_enter failed: {error}");
                    return (operations, submits);
                }
            }
        }
    }
}
