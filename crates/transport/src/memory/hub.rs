//! Where clients and servers of a process meet.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_reactor::{MailSender, Mailbox, mailbox};

use super::link::MemoryLink;
use super::wires::{MemoryEnd, PEER, State, Wires};
use crate::error::LinkError;
use crate::segment::KnownSegments;
use crate::socket::owned;

/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFaults {
    /// Of the random delays.
    pub seed: u64,
    /// The first connections are refused.
    pub refuse_first: u32,
    /// Every connection is cut when so many requests and replies have gone over it.
    pub cut_after_messages: Option<u64>,
    /// Each reply is late by a random time up to this.
    pub delay_ms_max: u64,
}

struct Hub {
    faults: MemoryFaults,
    refused: AtomicU32,
    connections: AtomicU64,
    lends: bool,
}

/// The listening side.
pub struct MemoryHub {
    ends: Mailbox<MemoryEnd>,
}

/// Makes connections to a [`MemoryHub`].
#[derive(Clone)]
pub struct MemoryConnector {
    hub: Arc<Hub>,
    sender: MailSender<MemoryEnd>,
}

impl MemoryHub {
    /// A place to connect to, and the way there.
    pub fn new(faults: MemoryFaults) -> (MemoryConnector, MemoryHub) {
        MemoryHub::make(faults, false)
    }

    /// The same, with servers that are lent the client's memory by [`ServerBulk::local`](crate::ServerBulk::local).
    ///
    /// # Safety
    /// The memory of every request stays valid until the server has answered, even if the link is dropped
    /// before.
    pub unsafe fn lending(faults: MemoryFaults) -> (MemoryConnector, MemoryHub) {
        MemoryHub::make(faults, true)
    }

    fn make(faults: MemoryFaults, lends: bool) -> (MemoryConnector, MemoryHub) {
        let (sender, ends) = mailbox(BACKLOG);
        let hub = Hub { faults, refused: AtomicU32::new(0), connections: AtomicU64::new(0), lends };
        (MemoryConnector { hub: Arc::new(hub), sender }, MemoryHub { ends })
    }

    /// The next connection; `None` when nobody is left who could connect.
    pub async fn accept(&mut self) -> Option<MemoryEnd> {
        self.ends.receive().await
    }
}

impl MemoryConnector {
    /// Connects.
    ///
    /// # Errors
    /// [`LinkError::Connect`]: refused as the faults say, or the hub is gone or full.
    pub fn connect(&self) -> Result<MemoryLink, LinkError> {
        let refused =
            || LinkError::Connect { peer: PEER.into(), source: io::ErrorKind::ConnectionRefused.into() };
        if self.hub.refused.fetch_add(1, Ordering::Relaxed) < self.hub.faults.refuse_first {
            return Err(refused());
        }
        // SAFETY: no memory is passed, and the result is new.
        let event = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
            .map_err(|source| LinkError::Local { what: "make an eventfd", source })?;
        let number = self.hub.connections.fetch_add(1, Ordering::Relaxed);
        let wire = Arc::new(Wires {
            state: Mutex::new(State::new(self.hub.faults.cut_after_messages)),
            event,
            delay_ms_max: self.hub.faults.delay_ms_max,
            lends: self.hub.lends,
        });
        let seed = self.hub.faults.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.sender.send(MemoryEnd { wire: wire.clone(), seed }).map_err(|_| refused())?;
        Ok(MemoryLink { wire, segments: KnownSegments::default() })
    }
}
