//! From the bytes of a stream to calls.
//!
//! ```text
//!   │mark│ head · arguments ─► Service::needs ─► payload: straight into a buffer of its own
//!   └─ up to HEAD_ROOM_BYTES at once ─┘
//! ```
//!
//! A record in several fragments is put together first; clients of today send none.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use weft_onc_rpc::call::{CallError, CallHeader};
use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::padding;
use weft_reactor::{Interest, Permit, Readiness, Semaphore, timeout};

use crate::connection::Limits;
use crate::service::{Needs, Placed, Service};

/// Bytes that are read at once while it is not known what comes.
pub const HEAD_ROOM_BYTES: usize = 16 << 10;

/// What a stream's next record is.
pub(crate) enum Incoming {
    /// A call, with the memory that it and its reply take.
    Call { header: CallHeader, arguments: Vec<u8>, payload: Option<Vec<u8>>, memory: Permit },
    /// A call that is answered without the service.
    Answered(Vec<u8>),
    /// The peer has ended the stream, between two records.
    End,
}

/// A stream that is read.
pub(crate) struct Reader<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) readiness: &'a Readiness,
    /// A record may have so many bytes, and take so long once it has begun.
    pub(crate) record_bytes_max: usize,
    pub(crate) record_timeout: Duration,
    /// Of all calls together, and how much of it there is.
    pub(crate) memory: &'a Semaphore,
    pub(crate) memory_bytes_max: usize,
    /// What was read and is not used yet: the front of a record.
    buffer: Vec<u8>,
}

fn broken(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        stream: &'a TcpStream,
        readiness: &'a Readiness,
        limits: &Limits,
        memory: &'a Semaphore,
    ) -> Reader<'a> {
        Reader {
            stream,
            readiness,
            record_bytes_max: limits.record_bytes,
            record_timeout: limits.stall,
            memory,
            memory_bytes_max: limits.memory_bytes,
            buffer: Vec::new(),
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// The stream is broken, or its peer breaks the protocol: no more can be read.
    pub(crate) async fn next(&mut self, service: &impl Service) -> io::Result<Incoming> {
        if self.buffer.is_empty() {
            // Nothing is under way: no memory is held while the peer is silent.
            self.buffer = Vec::new();
            self.readiness.readable().await;
            if self.fill().await? == 0 {
                return Ok(Incoming::End);
            }
        }
        let whole = timeout(self.record_timeout, self.record(service)).await;
        whole.unwrap_or_else(|_| Err(broken("a record was begun and not completed in time".into())))
    }

    /// Reads once, behind what is there; how much.
    async fn fill(&mut self) -> io::Result<usize> {
        let before = self.buffer.len();
        self.buffer.resize(before + HEAD_ROOM_BYTES, 0);
        let mut stream = self.stream;
        let read = self.readiness.io(Interest::Read, || stream.read(&mut self.buffer[before..])).await;
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Reads until so many bytes are there.
    async fn want(&mut self, bytes: usize) -> io::Result<()> {
        while self.buffer.len() < bytes {
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Reads exactly what `rest` has room for.
    async fn read_into(&mut self, rest: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        let mut stream = self.stream;
        while done < rest.len() {
            match self.readiness.io(Interest::Read, || stream.read(&mut rest[done..])).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    async fn mark(&mut self, at: usize) -> io::Result<Mark> {
        self.want(at + MARK_BYTES).await?;
        let mark = Mark::of(self.buffer[at..at + MARK_BYTES].try_into().expect("four bytes"));
        if at + mark.bytes as usize > self.record_bytes_max {
            return Err(broken(format!("a record of more than {} bytes", self.record_bytes_max)));
        }
        Ok(mark)
    }

    async fn record(&mut self, service: &impl Service) -> io::Result<Incoming> {
        let mut mark = self.mark(0).await?;
        let mut bytes = mark.bytes as usize;
        // Further fragments: their marks are taken out.
        while !mark.is_last {
            let end = MARK_BYTES + bytes;
            mark = self.mark(end).await?;
            self.buffer.drain(end..end + MARK_BYTES);
            bytes += mark.bytes as usize;
            self.want(MARK_BYTES + bytes).await?;
        }
        self.buffer.drain(..MARK_BYTES);
        self.call(bytes, service).await
    }

    /// The call that a record of so many bytes is, the front of which is in the buffer.
    async fn call(&mut self, bytes: usize, service: &impl Service) -> io::Result<Incoming> {
        let mut wanted = bytes.min(HEAD_ROOM_BYTES);
        loop {
            let here = &self.buffer[..self.buffer.len().min(bytes)];
            let (header, head_bytes) = match CallHeader::decode(here) {
                Ok(decoded) => decoded,
                Err(CallError::Short) if here.len() < bytes => {
                    self.want(here.len() + 1).await?;
                    continue;
                }
                Err(CallError::Short | CallError::NotACall) => {
                    return Err(broken("a record that is no call".into()));
                }
                Err(CallError::Refused { xid, refusal }) => {
                    self.skip(bytes).await?;
                    return Ok(Incoming::Answered(reply::refused(xid, refusal)));
                }
            };
            let (payload, reply_bytes) = match service.needs(&header, &here[head_bytes..]) {
                Needs::Known { payload, reply_bytes } => (payload, reply_bytes),
                Needs::More if here.len() < bytes => {
                    wanted = (wanted.max(here.len()) + 1).min(bytes);
                    self.want(wanted).await?;
                    continue;
                }
                Needs::More => (None, 0),
            };
            let fits = |placed: &Placed| {
                let end = placed.bytes.checked_add(padding(placed.bytes))?.checked_add(placed.at)?;
                (end <= bytes - head_bytes).then_some(())
            };
            let payload = payload.filter(|placed| fits(placed).is_some());
            // What is asked for beyond all that there is would be waited for without end.
            let memory_bytes = bytes.saturating_add(reply_bytes).min(self.memory_bytes_max);
            let memory = self.memory.acquire(memory_bytes).await;
            return self.take(bytes, (header, head_bytes), payload, memory).await;
        }
    }

    /// The rest of a record that is thrown away.
    async fn skip(&mut self, bytes: usize) -> io::Result<()> {
        self.want(bytes).await?;
        self.buffer.drain(..bytes);
        Ok(())
    }

    /// Takes the record, with its payload apart.
    async fn take(
        &mut self,
        bytes: usize,
        (header, head_bytes): (CallHeader, usize),
        payload: Option<Placed>,
        memory: Permit,
    ) -> io::Result<Incoming> {
        let Some(placed) = payload else {
            self.want(bytes).await?;
            let arguments = self.buffer[head_bytes..bytes].to_vec();
            self.buffer.drain(..bytes);
            return Ok(Incoming::Call { header, arguments, payload: None, memory });
        };
        let begin = head_bytes + placed.at;
        self.want(begin).await?;
        let mut arguments = self.buffer[head_bytes..begin].to_vec();
        let mut data = vec![0; placed.bytes];
        let here = (self.buffer.len() - begin).min(placed.bytes);
        data[..here].copy_from_slice(&self.buffer[begin..begin + here]);
        self.buffer.drain(..begin + here);
        self.read_into(&mut data[here..]).await?;
        let after = bytes - begin - placed.bytes;
        self.want(after).await?;
        arguments.extend_from_slice(&self.buffer[padding(placed.bytes)..after]);
        self.buffer.drain(..after);
        Ok(Incoming::Call { header, arguments, payload: Some(data), memory })
    }
}
