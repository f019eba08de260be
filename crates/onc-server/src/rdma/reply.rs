//! From an answer to messages and to writes into the client's memory.
//!
//! ```text
//!   data ──► write chunk ┐
//!   rest ──► reply chunk ┴─► the message behind them, with one ring of the doorbell
//! ```

use std::rc::Rc;

use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, RdmaHeader};
use weft_onc_rpc::xdr::padding;
use weft_onc_rpc::{CallHeader, reply};
use weft_rdma::{Ended, RemotePiece, Writes};
use weft_reactor::Permit;
use weft_verbs::Fabric;

use super::call::{Fault, Gathered};
use super::connection::{Arrived, Credit, Session};
use super::memory::{Kept, put};
use super::room::{NoRoom, Room, Way};
use crate::buffers::Buffer;
use crate::counts::add;
use crate::service::{Call, Reply, Service};

/// A call that is to be answered.
struct Asked {
    xid: u32,
    /// Calls that the client wants to have under way.
    wanted: u32,
    room: Room,
    /// A key of the client's that ends with the answer.
    key: Option<u32>,
    credit: Credit,
}

/// A key of those that a call gives.
fn key_of(chunks: &Chunks) -> Option<u32> {
    let reads = chunks.reads.iter().map(|read| &read.segment);
    let writes = chunks.writes.iter().flatten();
    reads.chain(writes).chain(chunks.reply.iter().flatten()).map(|segment| segment.handle).next()
}

impl<F: Fabric, S: Service> Session<F, S> {
    /// Does what a message asks for, and answers.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn answer(&self, arrived: Arrived) -> Result<(), Ended> {
        let Arrived { xid, wanted, what, credit, .. } = arrived;
        let mut asked = Asked { xid, wanted, room: Room::default(), key: None, credit };
        let mut message = match what {
            Ok(message) => message,
            Err(error) => return self.refuse(asked, error).await,
        };
        asked.key = key_of(&message.chunks).filter(|_| self.connection.said.takes_invalidation);
        asked.room =
            Room { writes: std::mem::take(&mut message.chunks.writes), reply: message.chunks.reply.take() };
        match self.gather(xid, message).await {
            Ok(Gathered::Call { header, arguments, payload, memory }) => {
                let (peer, connection) = (self.member.peer, self.member.number);
                let buffers = self.buffers.clone();
                let call = Call { peer, connection, header, arguments, payload, buffers };
                self.serve_call(asked, call, memory).await
            }
            Ok(Gathered::Answered { reply, memory }) => {
                add(&self.inner.counters.refused_calls, 1);
                self.reply(asked, reply, Buffer::default(), memory).await
            }
            Err(Fault::Chunks) => self.refuse(asked, RdmaError::Chunks).await,
            Err(Fault::NotACall) => {
                self.connection.break_off("it sends a message that is no call");
                Err(self.connection.channel.ended())
            }
            Err(Fault::Ended) => Err(self.connection.channel.ended()),
        }
    }

    async fn serve_call(&self, asked: Asked, call: Call, memory: Permit) -> Result<(), Ended> {
        let CallHeader { xid, program, version, procedure, .. } = call.header;
        match self.inner.service.clone().call(call).await {
            Reply::Results(results) => {
                self.inner.counters.answered((program, version, procedure));
                let mut head = reply::success(xid).into_bytes();
                head.extend_from_slice(&results.before);
                self.reply(asked, head, results.data, memory).await
            }
            Reply::Refused(refusal) => {
                add(&self.inner.counters.refused_calls, 1);
                self.reply(asked, reply::refused(xid, refusal), Buffer::default(), memory).await
            }
            Reply::Nothing => Ok(()),
        }
    }

    /// Sends that a header, or that of a reply, makes no sense.
    async fn refuse(&self, asked: Asked, error: RdmaError) -> Result<(), Ended> {
        add(&self.inner.counters.refused_calls, 1);
        let asked = Asked { key: None, ..asked };
        self.post(asked, Body::Error(error), &[], Writes::default()).await
    }

    async fn reply(&self, asked: Asked, head: Vec<u8>, data: Buffer, memory: Permit) -> Result<(), Ended> {
        let most = self.connection.said.message_bytes;
        let Way { body, data_to, rest_to } = match asked.room.way(head.len(), data.len(), most) {
            Ok(way) => way,
            Err(NoRoom) => return self.refuse(asked, RdmaError::Chunks).await,
        };
        let memory = Rc::new(memory);
        let mut rest = head;
        let mut writes = Writes::default();
        match data_to {
            Some(to) => {
                writes = self.write(data, &to, &memory).await?;
                // Nobody waits for a turn while he has one.
                let is_last = rest_to.is_none();
                writes = self.connection.channel.write_before(vec![writes], is_last).await?;
            }
            None => {
                add(&self.inner.counters.copied_bytes, data.len());
                rest.extend_from_slice(&data);
                rest.resize(rest.len() + padding(data.len()), 0);
            }
        }
        if let Some(to) = rest_to {
            let mut long = self.buffers.take(rest.len());
            long.copy_from_slice(&rest);
            rest.clear();
            writes = self.write(long, &to, &memory).await?;
            writes = self.connection.channel.write_before(vec![writes], true).await?;
        }
        self.post(asked, body, &rest, writes).await
    }

    /// Begins to write to the client's memory.
    async fn write(&self, data: Buffer, to: &[RemotePiece], memory: &Rc<Permit>) -> Result<Writes<F>, Ended> {
        add(&self.inner.counters.rdma_written_bytes, data.len());
        let kept = Rc::new(Kept { data, _memory: memory.clone() });
        let (writes, copied) = put(&self.connection.channel, kept, to).await?;
        add(&self.inner.counters.copied_bytes, copied);
        Ok(writes)
    }

    /// Sends the answer, behind `writes`.
    async fn post(&self, asked: Asked, body: Body, rest: &[u8], writes: Writes<F>) -> Result<(), Ended> {
        let Asked { xid, wanted, key, credit, .. } = asked;
        let channel = &self.connection.channel;
        let mut slot = channel.port().message_slot().await;
        let room = channel.room(writes.len() + 1).await;
        let credits = self.connection.grant(wanted);
        let header = RdmaHeader { xid, credits, body }.write().into_bytes();
        let bytes = header.len() + rest.len();
        // SAFETY: the slot is new.
        let memory = unsafe { slot.fill() };
        memory[..header.len()].copy_from_slice(&header);
        memory[header.len()..bytes].copy_from_slice(rest);
        add(&self.inner.counters.sent_bytes, bytes);
        add(&self.inner.counters.sends, 1);
        // With the answer the client may call again.
        drop(credit);
        channel.send(room, writes, slot, bytes, key)
    }
}
