//! Memory that is lent to the client: it moves the data itself.
//!
//! ```text
//!   server   Bind ▸ Bind of windows to two parts ▸ Send that tells them      one doorbell
//!   client   RDMA Writes (what it brings) or RDMA Reads (what it gets), gathered from and scattered to its pieces
//!            Send with Invalidate: the key has ended, the memory is the server's alone again
//!   server   awake
//! ```
//!
//! What counts is which key a message has ended, as the adapter reports it, and nothing that the client says.
//! The client cannot reach anything but the part, and that in one direction and until it has given it back.
//! If it does not, for the time in which a peer has to make progress, or if the handler is dropped, its
//! connection ends and the window with it, before the memory is anybody else's.
//!
//! Windows belong to the connection and are made with it: a client whose connection has none is told that
//! nothing is lent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use weft_rdma::{Batch, Held, either};
use weft_reactor::{Event, Permit, Semaphore, timeout};
use weft_verbs::{Access, Device, Fabric, MemoryPiece, Window, Work};

use super::send::Parts;
use super::state::ConnInner;
use crate::error::ConnError;
use crate::verbs::envelope::{Lend, PartKind};
use crate::verbs::lend::LENT_MAX;

/// A connection's windows.
pub(super) struct Lending<W> {
    free: RefCell<Vec<W>>,
    /// As many as there are free windows.
    turns: Semaphore,
    /// Lent, by the keys that are valid.
    lent: RefCell<HashMap<u32, (W, Rc<Event>)>>,
}

impl<W: Window> Lending<W> {
    /// With its windows; `None` if the adapter has none, or no more.
    pub(super) fn new<D: Device<Window = W>>(device: &D) -> Option<Lending<W>> {
        if !device.limits().windows {
            return None;
        }
        let windows: Result<Vec<W>, _> = (0..LENT_MAX).map(|_| device.window()).collect();
        let (free, lent) = (RefCell::new(windows.ok()?), RefCell::default());
        Some(Lending { free, turns: Semaphore::new(LENT_MAX), lent })
    }

    /// The client has ended a key. False if it was not one of what is lent to it.
    pub(super) fn give_back(&self, key: u32) -> bool {
        let Some((window, back)) = self.lent.borrow_mut().remove(&key) else { return false };
        self.free.borrow_mut().push(window);
        self.turns.add(1);
        back.set();
        true
    }

    /// No key is valid any more, and none will be: the connection is over.
    pub(super) fn end(&self) {
        self.lent.borrow_mut().clear();
        self.free.borrow_mut().clear();
    }
}

/// A part that is lent. If it is dropped before it was given back, the connection ends, so that nobody
/// reaches the memory any more.
pub(in crate::verbs) struct Lent<'a, F: Fabric> {
    conn: &'a ConnInner<F>,
    back: Rc<Event>,
}

impl<F: Fabric> Lent<'_, F> {
    /// Waits until the client has given it back.
    pub(in crate::verbs) async fn given_back(self) -> Result<(), ConnError> {
        let conn = self.conn;
        let stall = conn.port().stall();
        match timeout(stall, either(self.back.wait(), conn.channel.over())).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(conn.error()),
            Err(_) => {
                conn.fail("it does not give back memory that was lent to it".into());
                Err(ConnError::Stalled { peer: conn.peer_text(), timeout_ms: stall.as_millis() as u64 })
            }
        }
    }
}

impl<F: Fabric> Drop for Lent<'_, F> {
    fn drop(&mut self) {
        if !self.back.is_set() {
            self.conn.fail("a transfer was given up in the middle".into());
            self.conn.channel.disconnect();
            self.conn.end_windows();
        }
    }
}

impl<F: Fabric> ConnInner<F> {
    /// Lends registered memory for parts of a request's data, as many as are lent at once, each with where it
    /// begins in the share; once what was lent before is given back.
    ///
    /// # Safety
    /// The memory stays as it is, and if it is lent for writing nobody else's, until the result is dropped.
    pub(in crate::verbs) async unsafe fn lend(
        &self,
        parts: &[(u64, MemoryPiece)],
        request_id: u64,
        access: Access,
    ) -> Result<Vec<Lent<'_, F>>, ConnError> {
        let Some(lending) = &self.lending else { return Err(self.error()) };
        let mut turns = None;
        either(async { turns = Some(lending.turns.acquire(parts.len()).await) }, self.channel.over()).await;
        let _sending = self.sending.lock().await;
        self.check_open()?;
        self.credit().await?;
        let mut slot = self.port().message_slot().await;
        let room = self.channel.room(parts.len() + 1).await;
        self.channel.ready_to_bind().await.map_err(|ended| self.of_channel(ended))?;
        let (mut batch, mut message, mut lent) = (Batch::default(), Vec::new(), Vec::new());
        for (share_offset, part) in parts {
            let Some(mut window) = lending.free.borrow_mut().pop() else { return Err(self.error()) };
            let MemoryPiece { address, bytes, local_key } = *part;
            let (window_key, share_offset) = (window.next_key(), *share_offset);
            let told = Lend { request_id, share_offset, address, bytes, remote_key: window_key };
            let bytes = bytes.into();
            let bind = Work::Bind { window_key, local_key, address, bytes, access };
            self.channel.add(&mut batch, bind, [], false);
            message.extend(told.encode());
            let back = Rc::new(Event::new());
            lending.lent.borrow_mut().insert(window_key, (window, back.clone()));
            lent.push(Lent { conn: self, back });
        }
        turns.into_iter().for_each(Permit::forget);
        let bytes = self.fill(&mut slot, PartKind::Lend, &[&message], &mut Parts::default());
        self.channel.add(&mut batch, Work::Send, [slot.piece(bytes)], true);
        // SAFETY: the slot is this message's until its work has ended; of the memory the caller promises it.
        let posted = unsafe { self.channel.post(room, &batch, vec![Held::Slot(slot)]) };
        posted.map_err(|ended| self.of_channel(ended))?;
        Ok(lent)
    }
}
