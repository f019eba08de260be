//! Replies on their way out: all that are ready leave together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::xdr::padding;
use weft_reactor::{Interest, Notify, Permit, Readiness};

use crate::buffers::Buffer;
use crate::counts::{Counters, add};
use crate::limits::Patience;

/// Replies in one system call: two pieces and padding each.
const REPLIES_AT_ONCE: usize = 64;
static PADDING: [u8; 4] = [0; 4];

/// A reply, and what is given back when it has left.
pub(crate) struct Outgoing {
    /// With its mark.
    front: Vec<u8>,
    data: Buffer,
    _held: Vec<Permit>,
}

impl Outgoing {
    /// The reply `head`, then `data` and its padding.
    pub(crate) fn new(head: Vec<u8>, data: Buffer, held: Vec<Permit>) -> Outgoing {
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
    /// Nobody sends any more.
    is_closed: Cell<bool>,
}

impl Queue {
    pub(crate) fn push(&self, reply: Outgoing) {
        if !self.is_closed.get() {
            self.ready.borrow_mut().push_back(reply);
            self.more.notify();
        }
    }

    /// No more replies will come.
    pub(crate) fn end(&self) {
        self.ends.set(true);
        self.more.notify();
    }

    /// Drops all replies, and those that will come, with what they hold.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        let dropped = self.ready.take();
        drop(dropped);
    }

    /// Sends replies until the queue is ended and empty.
    ///
    /// # Errors
    /// The stream is broken, or its peer is out of patience's bounds.
    pub(crate) async fn send(
        &self,
        stream: &TcpStream,
        readiness: &Readiness,
        mut patience: Patience<'_>,
        counters: &Counters,
    ) -> io::Result<()> {
        loop {
            if self.ready.borrow().is_empty() {
                if self.ends.get() {
                    return Ok(());
                }
                self.more.notified().await;
                patience.begin();
                continue;
            }
            let sending = readiness.io(Interest::Write, || self.send_some(stream));
            let sent = patience.wait(sending).await.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => io::Error::new(error.kind(), "it does not take its replies"),
                _ => error,
            })?;
            add(&counters.sends, 1);
            add(&counters.sent_bytes, sent);
            self.note_sent(sent);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_its_mark_its_head_its_data_and_padding_and_the_data_stay_where_they_are() {
        let data = vec![9; 4093];
        let address = data.as_ptr();
        let reply = Outgoing::new(vec![1; 24], data.into(), Vec::new());
        let [front, data, padding] = reply.pieces();
        assert_eq!(front[..MARK_BYTES], Mark { is_last: true, bytes: 24 + 4096 }.to_bytes());
        assert_eq!((front.len(), data.len(), padding), (MARK_BYTES + 24, 4093, &[0; 3][..]));
        assert_eq!(data.as_ptr(), address);
    }
}
