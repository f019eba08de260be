//! From messages that came to replies.

use std::collections::VecDeque;

use weft_onc_rpc::rdma::{RdmaError, RdmaHeader};
use weft_onc_rpc::xdr::padding;
use weft_rdma::RECEIVE;
use weft_verbs::{Fabric, WorkDone, WorkKind, WorkStatus};

use super::chunks::{NoReply, Written};
use super::left::Left;
use super::link::{Ending, Inner, MESSAGE_BYTES, UnderWay};
use super::memory::RdmaDesign;
use crate::error::{ErrorKind, Failure};
use crate::incoming::Reply;
use crate::link::Lost;
use crate::rpc::{self, Payload};

pub(super) fn garbage(why: &str) -> Lost {
    Lost { why: why.into(), is_garbage: true }
}

impl<F: Fabric> Inner<F> {
    /// Takes all that has come; whether anything has.
    pub(super) fn receive(&mut self, replies: &mut Vec<Reply>) -> Result<bool, Lost> {
        let lost = |error: weft_verbs::VerbsError| Lost::new(error.to_string());
        self.requester.look().map_err(lost)?;
        let mut any = false;
        loop {
            let done = self.requester.poll().map_err(lost)?;
            // What ended before the queue was armed is not told by the descriptor.
            if done.is_empty() && !self.requester.arm().map_err(lost)? {
                break;
            }
            any |= !done.is_empty();
            self.take_all(&done)?;
        }
        replies.append(&mut self.ready);
        // Calls that waited for credits have their turn, and keys of answered ones end.
        self.send().map(|()| any)
    }

    fn take_all(&mut self, done: &[WorkDone]) -> Result<(), Lost> {
        let mut posts = Vec::new();
        for one in done {
            match (one.status, one.kind) {
                (WorkStatus::Ok, WorkKind::Sent) => self.note_ended(one.id)?,
                (WorkStatus::Ok, WorkKind::ReceivedImmediate(_)) => {
                    return Err(garbage("it wrote with immediate data"));
                }
                (WorkStatus::Ok, kind) => {
                    let slot = (one.id & !RECEIVE) as usize;
                    // SAFETY: the receive has ended, and the slot is posted again only after this.
                    let message = unsafe { self.receives.read(slot, one.bytes as usize) };
                    let ended = match kind {
                        WorkKind::ReceivedInvalidate(key) => Some(key),
                        _ => None,
                    };
                    self.take_message(message, ended)?;
                    posts.push((one.id, self.receives.piece(slot, MESSAGE_BYTES)));
                }
                (WorkStatus::Flushed, _) => self.end("the connection has ended"),
                (status, _) => self.end(&format!("RDMA work failed: {status:?}")),
            }
        }
        if self.requester.ended().is_none() && !posts.is_empty() {
            // SAFETY: what was in these slots has been taken out; they are the adapter's again.
            unsafe { self.requester.post_receives(&posts) }.map_err(|error| Lost::new(error.to_string()))?;
        }
        Ok(())
    }

    /// `ended`: the key whose validity the message has ended.
    fn take_message(&mut self, message: &[u8], ended: Option<u32>) -> Result<(), Lost> {
        let Ok((header, header_bytes)) = RdmaHeader::decode(message) else {
            return Err(garbage("it sent a message without a header of RPC-over-RDMA"));
        };
        let Some(mut call) = self.calls.remove(&header.xid) else {
            return Err(garbage("it answered a call that is not under way"));
        };
        // A server that grants nothing could never be called again (RFC 8166, 3.3.1).
        self.granted = header.credits.clamp(1, self.credits_max);
        self.exposer.counts.update(|totals| totals.credits = self.granted.into());
        if let Some(key) = ended {
            let window = call.exposed.iter_mut().find_map(|exposed| exposed.take_window(key));
            let Some(window) = window else {
                return Err(garbage("it ended a key that is not of the call that it answers"));
            };
            self.exposer.free_window(window);
            self.exposer.counts.update(|totals| totals.ended_by_server += 1);
        }
        let inline = &message[header_bytes..];
        if self.design == RdmaDesign::ReadRead {
            match Left::of(&header.body, inline.len(), call.left_room) {
                Ok(Some(left)) => {
                    return self.fetch(header.xid, call, &left, inline);
                }
                // Then all of it is here.
                Ok(None) => call.sink_at = None,
                Err(NoReply::Garbage(why)) => return Err(garbage(why)),
                Err(NoReply::Refused(_)) => {}
            }
        }
        let reply = match call.given.written(&header.body) {
            Ok(written) => self.reply_of(header.xid, &call, written, inline)?,
            Err(NoReply::Refused(error)) => Reply::failed(header.xid, refused(error, self.design)),
            Err(NoReply::Garbage(why)) => return Err(garbage(why)),
        };
        self.finish(call, reply);
        Ok(())
    }

    /// The reply, with its data in the sink.
    pub(super) fn reply_of(
        &self,
        xid: u32,
        call: &UnderWay<F::Device>,
        written: Written,
        inline: &[u8],
    ) -> Result<Reply, Lost> {
        let Written { long_reply, data } = written;
        let long = long_reply.and_then(|bytes| {
            let buffer = call.exposed.get(call.reply_at?)?.buffer.as_ref()?;
            // SAFETY: the server has answered, and writes no more.
            Some(unsafe { buffer.read(bytes) })
        });
        let reply = long.unwrap_or(inline);
        if !reply.starts_with(&xid.to_be_bytes()) {
            return Err(garbage("header and reply have different numbers"));
        }
        self.exposer.counts.update(|totals| {
            totals.long_replies += u64::from(long.is_some());
            if self.design == RdmaDesign::ReadWrite {
                totals.write_chunk_bytes += data as u64;
            }
        });
        let (head, data_bytes) = match rpc::payload_of_read(reply) {
            Payload::Follows(_) if call.sink_at.is_some() => {
                self.copy_out(call, data);
                // Whoever waits compares how much came with what the results say.
                (reply, Some(data))
            }
            Payload::Follows(bytes) if call.sink.bytes > 0 => {
                (self.take_inline(call, reply, bytes)?, Some(bytes))
            }
            _ => (reply, None),
        };
        Ok(Reply { xid, head: head.to_vec(), data_bytes, failure: None })
    }

    /// Copies data that are inline behind the head of their reply into the sink; the head.
    fn take_inline<'a>(
        &self,
        call: &UnderWay<F::Device>,
        reply: &'a [u8],
        bytes: usize,
    ) -> Result<&'a [u8], Lost> {
        let head_bytes = reply.len().checked_sub(bytes + padding(bytes));
        let (head, data) = head_bytes
            .map(|at| reply.split_at(at))
            .filter(|(head, _)| rpc::payload_of_read(head) == Payload::Follows(bytes))
            .ok_or_else(|| garbage("a reply ends before its data"))?;
        // What is more than was asked for goes nowhere, and whoever waits sees by the number that it did not fit.
        if bytes <= call.sink.bytes {
            // SAFETY: the sink has room, and is writable as whoever submitted the call promised.
            unsafe { call.sink.start.copy_from_nonoverlapping(data.as_ptr(), bytes) };
            self.exposer.counts.update(|totals| totals.copied_bytes += bytes as u64);
        }
        Ok(head)
    }

    /// Copies data that the server wrote into a buffer of the link's.
    fn copy_out(&self, call: &UnderWay<F::Device>, bytes: usize) {
        let exposed = call.sink_at.and_then(|at| call.exposed.get(at));
        let Some(buffer) = exposed.and_then(|exposed| exposed.buffer.as_ref()) else { return };
        if call.is_abandoned {
            return;
        }
        // SAFETY: the server has answered, and writes no more; no more was written than the sink has room for, which is
        // writable as whoever submitted the call promised.
        unsafe { call.sink.start.copy_from_nonoverlapping(buffer.read(bytes).as_ptr(), bytes) };
        self.exposer.counts.update(|totals| totals.copied_bytes += bytes as u64);
    }

    /// Gives the reply, at once or when the last key of the call has ended.
    pub(super) fn finish(&mut self, call: UnderWay<F::Device>, reply: Reply) {
        let reply = (!call.is_abandoned).then_some(reply);
        let keys: VecDeque<u32> = call.exposed.iter().flat_map(|exposed| exposed.keys()).collect();
        if keys.is_empty() {
            call.exposed.into_iter().for_each(|exposed| self.exposer.take_back(exposed));
            self.ready.extend(reply);
        } else {
            self.ending.push(Ending { reply, exposed: call.exposed, keys, waits_for: None });
        }
    }
}

fn refused(error: RdmaError, design: RdmaDesign) -> Failure {
    match error {
        RdmaError::Versions { low, high } => {
            let why = format!("it speaks versions {low} to {high} of RPC-over-RDMA only (ERR_VERS)");
            Failure::new(ErrorKind::Refused(libc::EPROTONOSUPPORT), why)
        }
        RdmaError::Chunks => {
            let why = match design {
                RdmaDesign::ReadWrite => {
                    "it does not understand the chunks of the call, or has no room for the reply (ERR_CHUNK)"
                }
                RdmaDesign::ReadRead => {
                    "it has no room for the reply and exposes none, or does not understand the call (ERR_CHUNK); \
                     rdma-design=read-write gives it room"
                }
            };
            Failure::new(ErrorKind::Refused(libc::EREMOTEIO), why)
        }
    }
}
