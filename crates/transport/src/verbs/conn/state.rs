//! What a connection is made of.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::Waker;

use weft_rdma::{Channel, Ended, Held, Port, Slots};
use weft_reactor::LocalLock;
use weft_verbs::{Device, Fabric, MemoryPiece};
use weft_wire::Header;
use weft_wire::messages::LentMemory;

use super::lend::Lending;
use crate::error::{ConnError, FrameError};
use crate::server::PeerInfo;
use crate::verbs::assembly::Assembler;
use crate::verbs::choose::Mechanism;
use crate::verbs::credits::Credits;
use crate::verbs::keys::Described;
use crate::verbs::options::PortState;

/// A request as it arrived.
pub(super) struct Arrived {
    pub header: Header,
    pub body: Vec<u8>,
    pub source: ArrivedSource,
}

pub(super) enum ArrivedSource {
    /// The payload, or none.
    Payload(Vec<u8>),
    /// In this Fast buffer, from this byte on.
    Fast(u16, usize),
}

/// Where a request's data is.
pub(in crate::verbs) enum DataAt<F: Fabric> {
    /// Nowhere: there is none, or the client takes what comes.
    Nothing,
    /// It came with the message.
    Inline(Rc<Vec<u8>>),
    /// In a Fast buffer of the connection's.
    Fast { fast: Rc<Fast<F::Device>>, number: usize, data_at: usize },
    /// In the client's registered memory.
    Remote { described: Rc<Described>, request: Rc<Request<F>> },
    /// Where only the client knows: it moves the data itself.
    Lent { told: LentMemory },
}

impl<F: Fabric> DataAt<F> {
    /// How the client chose to move it; not known where the reply will tell.
    pub(in crate::verbs) fn mechanism(&self) -> Option<Mechanism> {
        match self {
            DataAt::Nothing => None,
            DataAt::Inline(_) => Some(Mechanism::Inline),
            DataAt::Fast { .. } => Some(Mechanism::Fast),
            DataAt::Remote { .. } => Some(Mechanism::Remote),
            DataAt::Lent { .. } => Some(Mechanism::Lend),
        }
    }
}

/// Fast RDMA buffers of a connection.
pub(in crate::verbs) struct Fast<D: Device> {
    pub slots: Slots<D>,
    pub used: RefCell<Vec<bool>>,
}

/// What belongs to a request until its reply.
pub(in crate::verbs) struct Request<F: Fabric> {
    pub(super) fast: Option<u16>,
    pub(super) described: Option<Rc<Described>>,
    pub(super) deferred: RefCell<Vec<Deferred<F>>>,
}

impl<F: Fabric> Request<F> {
    pub(super) fn new(fast: Option<u16>, described: Option<Rc<Described>>) -> Rc<Request<F>> {
        Rc::new(Request { fast, described, deferred: RefCell::new(Vec::new()) })
    }

    /// Adds data that goes out with the reply.
    ///
    /// # Safety
    /// Its pieces stay as they are as long as what it holds lives.
    pub(in crate::verbs) unsafe fn defer(&self, deferred: Deferred<F>) {
        self.deferred.borrow_mut().push(deferred);
    }
}

/// Data that goes out with the reply.
pub(in crate::verbs) struct Deferred<F: Fabric> {
    pub share_offset: u64,
    pub pieces: Vec<MemoryPiece>,
    pub bytes: u64,
    /// Keeps the memory.
    pub held: Held<F>,
}

/// Weft's part of a connection.
pub(in crate::verbs) struct ConnInner<F: Fabric> {
    /// The first field, so that memory of work outlives it.
    pub channel: Channel<F>,
    pub port_state: Rc<PortState>,
    pub peer: PeerInfo,
    pub proven: Cell<bool>,
    pub(super) credits: RefCell<Credits>,
    /// Parts whose receives are being posted again.
    pub(super) dealt_with: Cell<u32>,
    pub(super) assembler: RefCell<Assembler>,
    pub(super) payload: RefCell<Vec<u8>>,
    pub(super) arrived: RefCell<VecDeque<Arrived>>,
    pub(super) refused: RefCell<Option<FrameError>>,
    pub(super) receiver: RefCell<Option<Waker>>,
    pub(super) credit_waiter: RefCell<Option<Waker>>,
    pub(super) sending: LocalLock<()>,
    pub(super) requests: RefCell<HashMap<u64, Rc<Request<F>>>>,
    pub fast: Option<Rc<Fast<F::Device>>>,
    /// Windows for what is lent to the client.
    pub(super) lending: Option<Lending<<F::Device as Device>::Window>>,
}

impl<F: Fabric> Drop for ConnInner<F> {
    fn drop(&mut self) {
        self.end_windows();
        if let Some(fast) = &self.fast {
            self.port_state.give_fast(fast.slots.count());
        }
    }
}

impl<F: Fabric> ConnInner<F> {
    pub(super) fn new(
        channel: Channel<F>,
        port_state: Rc<PortState>,
        credits: Credits,
        fast: Option<Rc<Fast<F::Device>>>,
        lending: Option<Lending<<F::Device as Device>::Window>>,
    ) -> Rc<ConnInner<F>> {
        let device = channel.port().device();
        let peer = PeerInfo {
            transport: format!("verbs {} {}", device.name(), device.limits().link_layer),
            address: channel.peer().to_string(),
            process_id: None,
            user_id: None,
            group_ids: Vec::new(),
        };
        Rc::new(ConnInner {
            channel,
            port_state,
            peer,
            proven: Cell::new(false),
            credits: RefCell::new(credits),
            dealt_with: Cell::new(0),
            assembler: RefCell::default(),
            payload: RefCell::default(),
            arrived: RefCell::default(),
            refused: RefCell::default(),
            receiver: RefCell::default(),
            credit_waiter: RefCell::default(),
            sending: LocalLock::new(()),
            requests: RefCell::default(),
            fast,
            lending,
        })
    }

    pub fn port(&self) -> &Port<F> {
        self.channel.port()
    }

    pub fn peer_text(&self) -> String {
        self.peer.to_string()
    }

    /// Why it ended.
    pub fn error(&self) -> ConnError {
        self.of_channel(self.channel.ended())
    }

    /// What the channel reports.
    pub fn of_channel(&self, ended: Ended) -> ConnError {
        ConnError::of_channel(self.peer_text(), ended)
    }

    pub(super) fn check_open(&self) -> Result<(), ConnError> {
        self.channel.check_open().map_err(|ended| self.of_channel(ended))
    }

    /// Ends it for a reason that is to be reported.
    pub(super) fn fail(&self, cause: String) {
        self.channel.fail(Ended::Broken(cause));
    }

    /// No memory can be reached any more by what was lent over this connection, which is disconnected.
    pub(super) fn end_windows(&self) {
        if let Some(lending) = &self.lending {
            lending.end();
        }
    }
}

impl ConnError {
    /// Of the connection with `peer`.
    pub(super) fn of_channel(peer: String, ended: Ended) -> ConnError {
        match ended {
            Ended::Closed => ConnError::Closed { peer },
            Ended::Broken(text) => ConnError::Stream { peer, source: FrameError::Io(io::Error::other(text)) },
        }
    }
}
