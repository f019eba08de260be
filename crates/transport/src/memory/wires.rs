//! What both ends of a connection share.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use weft_wire::Header;

use crate::link::Completion;
use crate::runs::MemoryRuns;

pub(super) const PEER: &str = "server in this process";

/// A server's end of a new connection, to be moved to the thread that serves it.
pub struct MemoryEnd {
    pub(super) wire: Arc<Wires>,
    pub(super) seed: u64,
}

/// What both ends share.
pub(super) struct Wires {
    pub state: Mutex<State>,
    pub event: OwnedFd,
    pub delay_ms_max: u64,
    pub lends: bool,
}

pub(super) struct State {
    pub credits: u16,
    pub requests: VecDeque<(Header, Vec<u8>)>,
    pub completions: Vec<Completion>,
    pub memory: Vec<Memory>,
    pub open: bool,
    pub proven: bool,
    pub messages_left: Option<u64>,
    pub server_waker: Option<Waker>,
}

/// Memory of a request under way.
pub(super) struct Memory {
    pub request_id: u64,
    pub runs: MemoryRuns,
    pub bytes: u64,
    pub is_get: bool,
    pub delivered_bytes: u64,
}

impl State {
    pub(super) fn new(messages_left: Option<u64>) -> State {
        State {
            credits: 1,
            requests: VecDeque::new(),
            completions: Vec::new(),
            memory: Vec::new(),
            open: true,
            proven: false,
            messages_left,
            server_waker: None,
        }
    }

    pub(super) fn memory(&mut self, request_id: u64) -> Option<&mut Memory> {
        self.memory.iter_mut().find(|memory| memory.request_id == request_id)
    }

    /// Counts a message; the connection may break under it.
    pub(super) fn count_message(&mut self) {
        if let Some(left) = &mut self.messages_left {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.open = false,
            }
        }
    }
}

impl Wires {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_client(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 live bytes; a full counter leaves the descriptor readable, which is all that matters.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Ends the connection for both, and the use of the client's memory.
    pub(super) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.open = false;
            state.memory.clear();
            state.server_waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        self.wake_client();
    }
}
