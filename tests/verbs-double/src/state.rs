//! Everything of a pretended network, behind one lock.

use crate::charges::Charged;
use crate::engine::errno;
use crate::fabric::PretendDevice;
use crate::memory::Memory;
use crate::options::{Costs, Delivery, Faults, NotReady};
use crate::wakeup::Wakeup;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use weft_test_random::Random;
use weft_verbs::{
    Counters, DeviceEvent, DeviceLimits, EndpointOptions, MemoryPiece, Work, WorkDone, WorkStatus,
};

/// A network: the state, and a way to wait for it to change.
pub(crate) struct Network {
    state: Mutex<State>,
    changed: Condvar,
    /// The process that has it; a forked child has only its memory.
    process: u32,
}

impl Network {
    pub(crate) fn new(state: State) -> Network {
        Network { state: Mutex::new(state), changed: Condvar::new(), process: std::process::id() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Network::lock`], but in a forked child, where the lock may be held for ever by a thread that is not there, and
    /// where nothing is to be ended, it fails.
    pub(crate) fn enter(&self) -> io::Result<MutexGuard<'_, State>> {
        if std::process::id() == self.process { Ok(self.lock()) } else { Err(errno(libc::EPERM)) }
    }

    /// Wakes those who wait for an answer.
    pub(crate) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Waits until somebody tells, or for so long.
    pub(crate) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

pub(crate) struct State {
    pub(crate) costs: Costs,
    pub(crate) faults: Faults,
    pub(crate) delivery: Delivery,
    pub(crate) not_ready: NotReady,
    pub(crate) pinned_bytes_max: u64,
    pub(crate) random: Random,
    pub(crate) hosts: u32,
    pub(crate) adapters: Vec<AdapterState>,
    pub(crate) memory: Memory,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) shared: BTreeMap<u32, Shared>,
    pub(crate) ends: BTreeMap<u32, End>,
    pub(crate) listening: BTreeMap<u32, Listening>,
    /// Connections on which something may happen, in the order in which that came.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) complaints: Vec<String>,
    pub(crate) registrations_asked: u64,
    pub(crate) works_begun: u64,
    pub(crate) next_number: u32,
    pub(crate) next_port: u16,
}

impl State {
    /// A number for something new; never 0.
    pub(crate) fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// A port of the kind that systems choose.
    pub(crate) fn port(&mut self) -> u16 {
        const CHOSEN_FROM: u16 = 32768;
        self.next_port = self.next_port.checked_add(1).unwrap_or(CHOSEN_FROM).max(CHOSEN_FROM);
        self.next_port
    }

    pub(crate) fn counters(&self, end: u32) -> &Counters {
        &self.adapters[self.ends[&end].adapter].counters
    }

    /// Marks a connection as one on which something may happen.
    pub(crate) fn may_go_on(&mut self, end: u32) {
        if !self.ready.contains(&end) {
            self.ready.push_back(end);
        }
    }
}

pub(crate) struct AdapterState {
    pub(crate) host: u32,
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) limits: DeviceLimits,
    pub(crate) inline_bytes_max: u32,
    pub(crate) counters: Arc<Counters>,
    pub(crate) charged: Charged,
    pub(crate) events: Vec<DeviceEvent>,
    pub(crate) wakeup: Arc<Wakeup>,
    /// Open while anything was made from it.
    pub(crate) opened: Weak<PretendDevice>,
    pub(crate) registrations: u64,
    pub(crate) registered_bytes: u64,
    pub(crate) removed: bool,
    pub(crate) port_down: bool,
}

impl AdapterState {
    pub(crate) fn happened(&mut self, event: DeviceEvent) {
        self.events.push(event);
        self.wakeup.ring();
    }

    pub(crate) fn works(&self) -> bool {
        !self.removed && !self.port_down
    }
}

pub(crate) struct Queue {
    pub(crate) adapter: usize,
    pub(crate) depth: u32,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) armed: bool,
    pub(crate) overrun: bool,
    pub(crate) wakeup: Arc<Wakeup>,
}

/// An end of work in a queue, and the places that it frees when it is taken out.
pub(crate) struct Entry {
    pub(crate) done: WorkDone,
    pub(crate) frees: Frees,
}

pub(crate) enum Frees {
    Sends { end: u32, places: u32 },
    Receive { end: u32 },
    Shared { shared: u32 },
}

pub(crate) struct Shared {
    pub(crate) adapter: usize,
    pub(crate) depth: u32,
    pub(crate) used: u32,
    pub(crate) posted: VecDeque<(u64, MemoryPiece)>,
    /// Connections whose next message waits for a receive.
    pub(crate) waiting: VecDeque<u32>,
}

/// One end of a connection; its number is also that of its queue pair.
pub(crate) struct End {
    pub(crate) adapter: usize,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) private_data: Vec<u8>,
    pub(crate) standing: Standing,
    pub(crate) other: Option<u32>,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) pair: Option<Pair>,
    /// The network between the ends is broken.
    pub(crate) severed: bool,
}

impl End {
    pub(crate) fn stands(&self) -> bool {
        matches!(self.standing, Standing::Accepting | Standing::Connected)
    }

    pub(crate) fn has_stood(&self) -> bool {
        self.stands() || matches!(self.standing, Standing::Ended(_))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Resolved.
    Idle,
    /// Has asked, and waits.
    Asking,
    /// Was asked.
    Asked,
    /// Has accepted; the other side does not know yet.
    Accepting,
    Connected,
    Refused(Vec<u8>),
    Ended(String),
}

pub(crate) struct Pair {
    pub(crate) options: EndpointOptions,
    pub(crate) queue: u32,
    pub(crate) receives: ReceivesFrom,
    /// Posted and not at its end, in order.
    pub(crate) sends: VecDeque<Posted>,
    /// How many of them have begun.
    pub(crate) begun: usize,
    pub(crate) places_used: u32,
    /// Places of work that ended without a report.
    pub(crate) unreported: u32,
    pub(crate) reads_under_way: u8,
    /// The next message waits for a receive of the peer's.
    pub(crate) waits: bool,
    /// A begun piece of work has failed: nothing begins any more.
    pub(crate) failing: bool,
    /// It is in the error state.
    pub(crate) failed: bool,
}

pub(crate) enum ReceivesFrom {
    Own { depth: u32, used: u32, posted: VecDeque<(u64, MemoryPiece)> },
    Shared(u32),
}

#[derive(Clone)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) pieces: Vec<MemoryPiece>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) bytes: u64,
    pub(crate) signalled: bool,
    pub(crate) fenced: bool,
    pub(crate) progress: Progress,
}

#[derive(Clone)]
pub(crate) enum Progress {
    Waits,
    /// The peer had no receive for it.
    NotReady,
    /// A read whose answer is on the way.
    Answered(Vec<u8>),
    Ended(WorkStatus),
}

pub(crate) struct Listening {
    pub(crate) host: u32,
    pub(crate) address: SocketAddr,
    pub(crate) backlog: u32,
    pub(crate) waiting: VecDeque<u32>,
    pub(crate) wakeup: Arc<Wakeup>,
    /// Its adapter was removed.
    pub(crate) gone: bool,
}
