//! Shared memory, the server's end: it reaches into the client's memory.
//!
//! ```text
//!  payload of a request              segment 0: process_vm_readv/writev on the peer of the socket, 1,024 pieces a call
//!  RemoteMemory { runs } ──────────► segment n: mapped here; `local` gives it to preadv/pwritev on the data file
//! ```
//!
//! The process is the one that the kernel noted when the connection was made, of the server's own user, and alive with its end of
//! the connection open: that is looked at before each batch. Another user's memory is never reached for, not even by root:
//! between two looks that process could have become a privileged one by `exec`.
//!
//! Mapped client memory and mapped files are only ever touched by system calls here, which fail where a page is gone. Who gets
//! client memory by `local` and copies by itself says so when a page was gone: the connection then ends, and its mappings with
//! it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use weft_wire::messages::{
    Empty, ErrorDetail, MemoryProbeReply, MemoryProbeRequest, RemoteMemory, SegmentAddRequest,
    SegmentDropRequest,
};
use weft_wire::{Header, Op, Status, Wire, body, flags};

use super::bulk::{ShmBulk, Way};
use super::client_memory::ClientMemory;
use crate::error::ConnError;
use crate::runs::Cursor;
use crate::server::{Incoming, PeerInfo, ServerConn};
use crate::socket::{peer_credentials, peer_groups};
use crate::stream::ServerStream;
use crate::stream_bulk::StreamBulk;

/// A server's end of a Unix socket.
#[derive(Clone)]
pub struct ShmConn {
    stream: Rc<ServerStream>,
    client: Rc<ClientMemory>,
}

impl ShmConn {
    /// On the current reactor, from an accepted socket.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn from_fd(fd: OwnedFd) -> io::Result<ShmConn> {
        let credentials = peer_credentials(fd.as_fd())?;
        let peer = PeerInfo {
            transport: "shm".into(),
            address: format!("process {}", credentials.pid),
            process_id: u32::try_from(credentials.pid).ok().filter(|process| *process > 0),
            user_id: Some(credentials.uid),
            group_ids: peer_groups(fd.as_fd(), &credentials)?,
        };
        let stream = Rc::new(ServerStream::new(fd, true, peer)?);
        Ok(ShmConn { stream, client: Rc::new(ClientMemory::new(&credentials)) })
    }

    /// Changes the time in which a message that has begun must make progress
    /// ([`weft_wire::limits::STALL_TIMEOUT_MS`] otherwise).
    pub fn set_stall_timeout(&self, stall_timeout: Duration) {
        self.stream.set_stall_timeout(stall_timeout);
    }

    /// Answers what concerns the transport only.
    async fn serve_own(&self, header: &Header, body: &[u8]) -> Result<(), ConnError> {
        let answer = if !self.stream.is_proven() {
            Err((Status::Unauthenticated, "memory is set up after the proof of the key".to_string()))
        } else {
            match header.op {
                Op::MemoryProbe => self.probe(header, body),
                Op::SegmentAdd => self.segment_add(header, body),
                _ => self.segment_drop(header, body),
            }
        };
        let (status, reply) = match answer {
            Ok(reply) => (Status::Ok, reply),
            Err((status, text)) => (status, body::encode(&ErrorDetail { text })),
        };
        self.stream.send_message(header.reply(status), &reply, &[]).await
    }

    fn probe(&self, header: &Header, body: &[u8]) -> Result<Vec<u8>, (Status, String)> {
        let request: MemoryProbeRequest = body::decode(header, body).map_err(malformed)?;
        let reply = match self.client.probe(&self.stream, request.address) {
            Ok((read, written)) => {
                self.client.reached.set(true);
                self.stream.set_transport("shm direct");
                MemoryProbeReply { reached: true, read, written, reason: String::new() }
            }
            Err(reason) => {
                self.stream.set_transport("shm staged");
                MemoryProbeReply { reached: false, read: [0; 16], written: [0; 16], reason }
            }
        };
        Ok(body::encode(&reply))
    }

    fn segment_add(&self, header: &Header, body: &[u8]) -> Result<Vec<u8>, (Status, String)> {
        let fd = self.stream.take_descriptor();
        let request: SegmentAddRequest = body::decode(header, body).map_err(malformed)?;
        self.client.add_segment(request.segment, request.bytes, fd)?;
        if !self.client.reached.get() {
            self.stream.set_transport("shm staged");
        }
        Ok(body::encode(&Empty {}))
    }

    fn segment_drop(&self, header: &Header, body: &[u8]) -> Result<Vec<u8>, (Status, String)> {
        let request: SegmentDropRequest = body::decode(header, body).map_err(malformed)?;
        let dropped = self.client.segments.borrow_mut().remove(&request.segment);
        dropped.ok_or((Status::Invalid, format!("segment {} is not known", request.segment)))?;
        Ok(body::encode(&Empty {}))
    }

    /// The way to the memory that a request describes; a reply that refuses it where it makes no sense.
    async fn described(&self, header: &Header) -> Result<Option<ShmBulk>, ConnError> {
        let payload = self.stream.take_all(header).await?;
        let described = RemoteMemory::from_bytes(&payload)
            .map_err(|error| error.to_string())
            .and_then(|memory| self.client.accept(memory.runs).map_err(|error| error.to_string()));
        match described {
            Ok(described) => Ok(Some(ShmBulk {
                way: Way::Described { described, cursor: (Cursor::default(), 0) },
                stream: self.stream.clone(),
                client: self.client.clone(),
            })),
            Err(text) => {
                let detail = body::encode(&ErrorDetail { text });
                self.stream.send_message(header.reply(Status::Malformed), &detail, &[]).await?;
                Ok(None)
            }
        }
    }
}

fn malformed(error: weft_wire::DecodeError) -> (Status, String) {
    (Status::Malformed, error.to_string())
}

impl ServerConn for ShmConn {
    type Bulk = ShmBulk;

    async fn recv(&self) -> Result<Incoming<ShmBulk>, ConnError> {
        loop {
            let (header, body) = self.stream.message(true).await?;
            if matches!(header.op, Op::MemoryProbe | Op::SegmentAdd | Op::SegmentDrop) {
                self.serve_own(&header, &body).await?;
                continue;
            }
            if header.flags & flags::REMOTE_MEMORY != 0 {
                if let Some(bulk) = self.described(&header).await? {
                    return Ok(Incoming { header, body, bulk });
                }
                continue;
            }
            let way = Way::Streamed(StreamBulk::new(&self.stream, header));
            let bulk = ShmBulk { way, stream: self.stream.clone(), client: self.client.clone() };
            return Ok(Incoming { header, body, bulk });
        }
    }

    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        if !self.client.is_gone.get() {
            return self.stream.send_message(header, body, payload).await;
        }
        // No success is told any more: the client asks again, over a connection with mappings of its own.
        let replied = match header.status {
            Status::Ok => Err(self.stream.closed_error()),
            _ => self.stream.send_message(header, body, payload).await,
        };
        self.stream.close();
        replied
    }

    fn prove(&self) {
        self.stream.prove();
    }

    fn peer(&self) -> PeerInfo {
        self.stream.peer()
    }

    fn close(&self) {
        self.stream.close();
    }
}
