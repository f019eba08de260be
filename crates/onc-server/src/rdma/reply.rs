//! From an answer to messages and to writes into the client's memory.
//!
//! ```text
//!   data ──► write chunk ┐
//!   rest ──► reply chunk ┴─► the message behind them, with one ring of the doorbell
//!   data or rest ──► exposed ──► the message with where it is ──► RDMA_DONE          (Read-Read)
//! ```

use std::rc::Rc;

use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, RdmaHeader, ReadSegment};
use weft_onc_rpc::xdr::padding;
use weft_onc_rpc::{CallHeader, reply};
use weft_rdma::{Ended, RemotePiece, Writes};
use weft_reactor::Permit;
use weft_verbs::Fabric;

use super::call::{Fault, Gathered};
use super::connection::{Arrived, Credit, Session};
use super::exposed::Exposing;
use super::memory::put;
use super::room::{NoRoom, Room, To};
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
        self.post(asked, Body::Error(error), &[], Writes::default(), None).await
    }

    async fn reply(&self, asked: Asked, head: Vec<u8>, data: Buffer, memory: Permit) -> Result<(), Ended> {
        let most = self.connection.said.message_bytes;
        let exposes = self.connection.exposes();
        let mut way = match asked.room.way(head.len(), data.len(), most, exposes) {
            Ok(way) => way,
            Err(NoRoom) => return self.refuse(asked, RdmaError::Chunks).await,
        };
        let memory = Rc::new(memory);
        let mut rest = head;
        let (mut writes, mut exposed) = (Writes::default(), None);
        match &way.data_to {
            To::Written(to) => {
                writes = self.write(data, to, &memory).await?;
                // Nobody waits for a turn while he has one.
                let is_last = !matches!(way.rest_to, To::Written(_));
                writes = self.connection.channel.write_before(vec![writes], is_last).await?;
            }
            To::Exposed => exposed = Some((rest.len(), data)),
            To::Inline => {
                add(&self.inner.counters.copied_bytes, data.len());
                rest.extend_from_slice(&data);
                rest.resize(rest.len() + padding(data.len()), 0);
            }
        }
        if way.rest_to != To::Inline {
            let mut long = self.buffers.take(rest.len());
            long.copy_from_slice(&rest);
            rest.clear();
            match &way.rest_to {
                To::Written(to) => {
                    writes = self.write(long, to, &memory).await?;
                    writes = self.connection.channel.write_before(vec![writes], true).await?;
                }
                _ => exposed = Some((0, long)),
            }
        }
        let Some((position, data)) = exposed else {
            return self.post(asked, way.body(), &rest, writes, None).await;
        };
        let connection = &self.connection;
        let room = connection.exposer.room(&connection.channel, data.len(), memory).await?;
        let Some(exposing) = connection.exposer.expose(&connection.channel, data, room) else {
            return self.refuse(asked, RdmaError::Chunks).await;
        };
        way.chunks.reads.push(ReadSegment { position: position as u32, segment: exposing.segment });
        self.post(asked, way.body(), &rest, writes, Some(exposing)).await
    }

    /// Begins to write to the client's memory.
    async fn write(&self, data: Buffer, to: &[RemotePiece], memory: &Rc<Permit>) -> Result<Writes<F>, Ended> {
        add(&self.inner.counters.rdma_written_bytes, data.len());
        let (writes, copied) = put(&self.connection.channel, data, memory, to).await?;
        add(&self.inner.counters.copied_bytes, copied);
        Ok(writes)
    }

    /// Sends the answer, behind `writes`, and with it what of the answer is `exposing`.
    async fn post(
        &self,
        asked: Asked,
        body: Body,
        rest: &[u8],
        mut writes: Writes<F>,
        exposing: Option<Exposing<F::Device>>,
    ) -> Result<(), Ended> {
        let Asked { xid, wanted, key, credit, .. } = asked;
        let channel = &self.connection.channel;
        let bind = exposing.as_ref().and_then(|exposing| exposing.bind);
        let mut slot = channel.port().message_slot().await;
        let room = channel.room(writes.len() + usize::from(bind.is_some()) + 1).await;
        if let Some(bind) = bind {
            channel.ready_to_bind().await?;
            writes = writes.behind(bind);
        }
        channel.check_open()?;
        let credits = self.connection.grant(wanted);
        let header = RdmaHeader { xid, credits, body }.write().into_bytes();
        let bytes = header.len() + rest.len();
        // SAFETY: the slot is new.
        let memory = unsafe { slot.fill() };
        memory[..header.len()].copy_from_slice(&header);
        memory[header.len()..bytes].copy_from_slice(rest);
        add(&self.inner.counters.sent_bytes, bytes);
        add(&self.inner.counters.sends, 1);
        if let Some(exposing) = exposing
            && self.connection.exposer.begin(xid, exposing).is_err()
        {
            self.connection.break_off("it uses the number of a call whose reply it has not read");
            return Err(channel.ended());
        }
        // With the answer the client may call again.
        drop(credit);
        channel.send(room, writes, slot, bytes, key)
    }
}
