//! Replies on their way out: all that are ready leave together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::time::Duration;

use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::xdr::padding;
use weft_reactor::{Interest, Notify, Permit, Readiness, timeout};

/// Replies in one system call: two pieces and padding each.
const REPLIES_AT_ONCE: usize = 64;
static PADDING: [u8; 4] = [0; 4];

/// A reply, and what is given back when it has left.
pub(crate) struct Outgoing {
    /// With its mark.
    front: Vec<u8>,
    data: Vec<u8>,
    _held: Vec<Permit>,
}

impl Outgoing {
    /// The reply `head`, then `data` and its padding.
    pub(crate) fn new(head: Vec<u8>, data: Vec<u8>, held: Vec<Permit>) -> Outgoing {
        let bytes = (head.len() + data.len() + padding(data.len())) as u32;
        let mut front = Vec::with_capacity(MARK_BYTES + head.len());
        front.extend_from_slice(&Mark { is_last: true, bytes }.to_bytes());
        front.extend_from_slice(&head);
        Outgoing { front, data, _held: held }
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [&self.front, &self.data, &PADDING[..padding(self.data.len())]]
    }

    fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }
}

/// The replies of a connection that are ready.
#[derive(Default)]
pub(crate) struct Queue {
    ready: RefCell<VecDeque<Outgoing>>,
    /// Bytes of the first one that have left.
    sent: Cell<usize>,
    more: Notify,
    ends: Cell<bool>,
}

impl Queue {
    pub(crate) fn push(&self, reply: Outgoing) {
        self.ready.borrow_mut().push_back(reply);
        self.more.notify();
    }

    /// No more replies will come.
    pub(crate) fn end(&self) {
        self.ends.set(true);
        self.more.notify();
    }

    /// Sends replies until the queue is ended and empty.
    ///
    /// # Errors
    /// The stream is broken, or its peer takes nothing for `longest`.
    pub(crate) async fn send(
        &self,
        stream: &TcpStream,
        readiness: &Readiness,
        longest: Duration,
    ) -> io::Result<()> {
        loop {
            if self.ready.borrow().is_empty() {
                if self.ends.get() {
                    return Ok(());
                }
                self.more.notified().await;
                continue;
            }
            let sending = readiness.io(Interest::Write, || self.send_some(stream));
            let sent = timeout(longest, sending).await;
            self.note_sent(sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?);
        }
    }

    fn send_some(&self, mut stream: &TcpStream) -> io::Result<usize> {
        let ready = self.ready.borrow();
        let mut skipped = self.sent.get();
        let mut pieces = Vec::with_capacity(3 * REPLIES_AT_ONCE);
        for piece in ready.iter().take(REPLIES_AT_ONCE).flat_map(Outgoing::pieces) {
            let here = skipped.min(piece.len());
            skipped -= here;
            if here < piece.len() {
                pieces.push(IoSlice::new(&piece[here..]));
            }
        }
        match stream.write_vectored(&pieces) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            sent => sent,
        }
    }

    fn note_sent(&self, bytes: usize) {
        let mut ready = self.ready.borrow_mut();
        let mut sent = self.sent.get() + bytes;
        while let Some(first) = ready.front().filter(|first| first.bytes() <= sent) {
            sent -= first.bytes();
            ready.pop_front();
        }
        self.sent.set(sent);
    }
}
