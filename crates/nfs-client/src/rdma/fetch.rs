//! Reading replies out of the server's memory (the Read-Read design).
//!
//! ```text
//!   reply with read chunks ─► RDMA Reads into the sink, or a buffer ─► all ended ─► RDMA_DONE ─► Reply
//! ```
//!
//! Until RDMA_DONE is sent the server holds the memory, and the call counts as under way.

use std::collections::VecDeque;

use weft_onc_rpc::rdma::{Body, RdmaHeader, Segment};
use weft_onc_rpc::xdr::padding;
use weft_rdma::{Batch, Chain, RemotePiece};
use weft_verbs::{Device, Fabric, MemoryPiece, Work};

use super::chunks::Written;
use super::exposed::Direction;
use super::left::{Left, bytes_of};
use super::link::{Inner, Sent, UnderWay};
use super::replies::garbage;
use crate::error::{ErrorKind, Failure};
use crate::incoming::Reply;
use crate::link::Lost;
use crate::rpc::{self, Payload};

/// A reply that is being read.
pub(super) struct Fetching<D: Device> {
    pub xid: u32,
    pub call: UnderWay<D>,
    /// What of the reply came inline.
    inline: Vec<u8>,
    read: Written,
    /// RDMA Reads that are still to be posted.
    reads: VecDeque<(Work, MemoryPiece)>,
    /// The work that ends the last of them.
    waits_for: Option<u64>,
}

fn reads_of(local: &[MemoryPiece], remote: &[Segment]) -> impl Iterator<Item = (Work, MemoryPiece)> {
    let piece = |segment: &Segment| RemotePiece {
        address: segment.offset,
        bytes: segment.bytes.into(),
        remote_key: segment.handle,
    };
    let chain = Chain::new(local, remote.iter().map(piece), 1);
    let read = |link: &weft_rdma::Link| {
        let work = Work::Read { remote_address: link.remote_address, remote_key: link.remote_key };
        (work, chain.pieces(link)[0])
    };
    chain.links.iter().map(read).collect::<Vec<_>>().into_iter()
}

/// How many bytes of data were left behind the head of a READ, as it says; there may be padding behind them.
fn data_bytes(left: &Left, head: &[u8], sink_bytes: usize) -> Result<usize, Lost> {
    let exposed_bytes = bytes_of(&left.data);
    match rpc::payload_of_read(head) {
        _ if left.data.is_empty() => Ok(0),
        Payload::Follows(bytes)
            if bytes <= sink_bytes && (exposed_bytes == bytes || exposed_bytes == bytes + padding(bytes)) =>
        {
            Ok(bytes)
        }
        _ => Err(garbage("it exposes other data than its reply says")),
    }
}

impl<F: Fabric> Inner<F> {
    /// Begins to read what a reply has left in the server's memory.
    ///
    /// # Errors
    /// What came inline does not go with it.
    pub(super) fn fetch(
        &mut self,
        xid: u32,
        mut call: UnderWay<F::Device>,
        left: &Left,
        inline: &[u8],
    ) -> Result<(), Lost> {
        if call.is_abandoned {
            self.done.push_back(xid);
            call.exposed.into_iter().for_each(|exposed| self.exposer.take_back(exposed));
            return Ok(());
        }
        let mut read = Written { long_reply: None, data: data_bytes(left, inline, call.sink.bytes)? };
        let mut reads = VecDeque::new();
        if let Some(sink) = call.sink_at.and_then(|at| call.exposed.get(at)) {
            reads.extend(reads_of(&sink.pieces, &left.data));
        }
        if !left.long.is_empty() {
            let bytes = bytes_of(&left.long);
            let taken = self.exposer.buffers.take(bytes).map_err(|error| error.to_string());
            let local = taken.and_then(|buffer| {
                self.exposer.expose_buffer(buffer, bytes, Direction::Local, &mut VecDeque::new())
            });
            match local {
                Ok(buffer) => {
                    reads.extend(reads_of(&buffer.pieces, &left.long));
                    (call.reply_at, call.sink_at) = (Some(call.exposed.len()), None);
                    read.long_reply = Some(bytes);
                    call.exposed.push(buffer);
                }
                Err(why) => {
                    let failure =
                        Failure::new(ErrorKind::Local(libc::ENOMEM), format!("no room for a reply: {why}"));
                    self.done.push_back(xid);
                    self.finish(call, Reply::failed(xid, failure));
                    return Ok(());
                }
            }
        }
        let inline = inline.to_vec();
        let fetching = Fetching { xid, call, inline, read, reads, waits_for: None };
        if fetching.reads.is_empty() {
            return self.end_fetch(fetching);
        }
        self.fetching.push(fetching);
        Ok(())
    }

    /// Adds the RDMA Reads that there is room for, and tells the server what was read.
    pub(super) fn send_fetches(&mut self, batch: &mut Batch) {
        for fetching in &mut self.fetching {
            while self.requester.has_room_for(1)
                && let Some((work, piece)) = fetching.reads.pop_front()
            {
                let is_last = fetching.reads.is_empty();
                let number = self.requester.add(batch, work, [piece], Sent::Read, is_last);
                fetching.waits_for = is_last.then_some(number);
            }
        }
        while self.requester.has_room_for(1)
            && !self.done.is_empty()
            && let Some(slot) = self.sends_free.pop()
            && let Some(xid) = self.done.pop_front()
        {
            let header = RdmaHeader { xid, credits: self.credits_max, body: Body::Done };
            self.send_from(slot, &[&header.write().into_bytes()], batch, false);
            self.exposer.counts.update(|totals| totals.replies_read += 1);
        }
    }

    /// Work up to this number has ended: replies that were read with it are given.
    pub(super) fn end_fetches(&mut self, number: u64) -> Result<(), Lost> {
        for at in (0..self.fetching.len()).rev() {
            if self.fetching[at].waits_for.is_some_and(|work| work <= number) {
                let fetching = self.fetching.swap_remove(at);
                self.end_fetch(fetching)?;
            }
        }
        Ok(())
    }

    /// All of a reply has been read.
    fn end_fetch(&mut self, fetching: Fetching<F::Device>) -> Result<(), Lost> {
        let Fetching { xid, call, inline, read, .. } = fetching;
        self.done.push_back(xid);
        let bytes = read.data + read.long_reply.unwrap_or(0);
        self.exposer.counts.update(|totals| totals.read_bytes += bytes as u64);
        let reply = self.reply_of(xid, &call, read, &inline)?;
        self.finish(call, reply);
        Ok(())
    }

    /// Nobody waits for a reply that is being read.
    pub(super) fn cancel_fetch(&mut self, xid: u32) {
        let Some(fetching) = self.fetching.iter_mut().find(|fetching| fetching.xid == xid) else { return };
        (fetching.call.is_abandoned, fetching.call.sink) = (true, crate::incoming::Memory::NONE);
        if fetching.call.exposed.iter().any(|exposed| exposed.is_callers()) {
            self.end("a call was given up while its data were read into its caller's memory");
        }
    }
}
