//! From a message, and what it leaves in the client's memory, to a call.
//!
//! ```text
//!   all inline                            nothing is read
//!   the payload in a chunk of its own ──► straight into its buffer
//!   a long call, chunks elsewhere     ──► read, put together, and cut as if all had been inline
//! ```

use weft_onc_rpc::call::{CallError, CallHeader};
use weft_onc_rpc::rdma::Chunks;
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::padding;
use weft_rdma::Ended;
use weft_reactor::Permit;
use weft_verbs::Fabric;

use super::chunks::{CallChunks, Chunk, Wrong};
use super::connection::{Message, Session};
use super::memory::fetch;
use crate::buffers::Buffer;
use crate::counts::add;
use crate::service::{Needs, Placed, Service};

/// What a message is.
pub(super) enum Gathered {
    /// A call, with the memory that it and its reply take.
    Call { header: CallHeader, arguments: Vec<u8>, payload: Option<Buffer>, memory: Permit },
    /// A call that is answered without the service.
    Answered { reply: Vec<u8>, memory: Permit },
}

/// Why there is no call.
pub(super) enum Fault {
    /// The connection has ended.
    Ended,
    /// The lists of the header make no sense.
    Chunks,
    /// It is no call: nobody can be answered.
    NotACall,
}

impl From<Ended> for Fault {
    fn from(_: Ended) -> Fault {
        Fault::Ended
    }
}

impl From<Wrong> for Fault {
    fn from(_: Wrong) -> Fault {
        Fault::Chunks
    }
}

/// A call whose payload is a chunk of its own.
struct Direct {
    header: CallHeader,
    head_bytes: usize,
    payload: Placed,
    reply_bytes: usize,
}

impl<F: Fabric, S: Service> Session<F, S> {
    /// Reads what of a call is in chunks.
    pub(super) async fn gather(&self, xid: u32, message: Message) -> Result<Gathered, Fault> {
        let Message { chunks: Chunks { reads, .. }, is_long, inline } = message;
        let chunks = CallChunks::new(&reads, is_long, inline.len(), self.inner.limits.record_bytes)?;
        if let Some(direct) = self.direct(&chunks, &inline) {
            return self.take_direct(xid, direct, &chunks.inserted[0], &inline).await;
        }
        if chunks.long.is_none() && chunks.inserted.is_empty() {
            return self.cut(xid, inline, None).await;
        }
        // What its reply needs is known only when all is read; and there are two copies of it for a while.
        let memory = self.reserve(3 * self.inner.limits.record_bytes).await;
        let base = match &chunks.long {
            Some(long) => self.read(long).await?.to_vec(),
            None => inline,
        };
        let mut data = Vec::with_capacity(chunks.inserted.len());
        for chunk in &chunks.inserted {
            data.push(self.read(chunk).await?);
        }
        let whole = chunks.join(&base, &data);
        drop(data);
        self.cut(xid, whole, Some(memory)).await
    }

    async fn reserve(&self, bytes: usize) -> Permit {
        // What is asked for beyond all that there is would be waited for without end.
        self.inner.memory.acquire(bytes.min(self.inner.limits.memory_bytes)).await
    }

    async fn read(&self, chunk: &Chunk) -> Result<Buffer, Ended> {
        let mut buffer = self.buffers.take(chunk.bytes);
        let copied = fetch(&self.connection.channel, &chunk.pieces, &mut buffer).await?;
        add(&self.inner.counters.rdma_read_bytes, chunk.bytes);
        add(&self.inner.counters.copied_bytes, copied);
        Ok(buffer)
    }

    /// The call, if its only chunk is its payload, with or without its padding.
    fn direct(&self, chunks: &CallChunks, inline: &[u8]) -> Option<Direct> {
        let [chunk] = &chunks.inserted[..] else { return None };
        if chunks.long.is_some() {
            return None;
        }
        let (header, head_bytes) = CallHeader::decode(&inline[..chunk.position]).ok()?;
        let needs = self.inner.service.needs(&header, &inline[head_bytes..chunk.position]);
        let Needs::Known { payload: Some(payload), reply_bytes } = needs else { return None };
        let is_here = chunk.position.checked_sub(head_bytes) == Some(payload.at);
        let is_all = chunk.bytes == payload.bytes || chunk.bytes == payload.bytes + padding(payload.bytes);
        (is_here && is_all).then_some(Direct { header, head_bytes, payload, reply_bytes })
    }

    async fn take_direct(
        &self,
        xid: u32,
        direct: Direct,
        chunk: &Chunk,
        inline: &[u8],
    ) -> Result<Gathered, Fault> {
        let Direct { header, head_bytes, payload: placed, reply_bytes } = direct;
        if header.xid != xid {
            return Err(Fault::NotACall);
        }
        let memory = self.reserve((inline.len() + chunk.bytes).saturating_add(reply_bytes)).await;
        let mut payload = self.read(chunk).await?;
        payload.truncate(placed.bytes);
        let arguments = inline[head_bytes..].to_vec();
        Ok(Gathered::Call { header, arguments, payload: Some(payload), memory })
    }

    /// The call that is here as a whole, with its payload apart. `memory`: what is held for it already.
    async fn cut(&self, xid: u32, whole: Vec<u8>, memory: Option<Permit>) -> Result<Gathered, Fault> {
        let reserve = async |reply_bytes: usize| match memory {
            Some(memory) => memory,
            None => self.reserve(whole.len().saturating_add(reply_bytes)).await,
        };
        let (header, head_bytes) = match CallHeader::decode(&whole) {
            Ok((header, bytes)) if header.xid == xid => (header, bytes),
            Err(CallError::Refused { xid, refusal }) => {
                let memory = reserve(0).await;
                return Ok(Gathered::Answered { reply: reply::refused(xid, refusal), memory });
            }
            Ok(_) | Err(CallError::Short | CallError::NotACall) => return Err(Fault::NotACall),
        };
        let (placed, reply_bytes) = match self.inner.service.needs(&header, &whole[head_bytes..]) {
            Needs::Known { payload, reply_bytes } => (payload, reply_bytes),
            Needs::More => (None, 0),
        };
        let memory = reserve(reply_bytes).await;
        let mut arguments = whole[head_bytes..].to_vec();
        let payload = placed.filter(|placed| placed.is_within(arguments.len())).map(|placed| {
            let mut payload = self.buffers.take(placed.bytes);
            let end = placed.at + placed.bytes;
            payload.copy_from_slice(&arguments[placed.at..end]);
            arguments.drain(placed.at..end + padding(placed.bytes));
            add(&self.inner.counters.copied_bytes, placed.bytes);
            payload
        });
        Ok(Gathered::Call { header, arguments, payload, memory })
    }
}
