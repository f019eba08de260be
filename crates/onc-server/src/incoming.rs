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
use std::time::Instant;

use weft_onc_rpc::call::{CallError, CallHeader};
use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::padding;
use weft_reactor::{Interest, Permit, Readiness, Semaphore, yield_now};

use crate::buffers::{Buffer, Buffers};
use crate::counts::{Counters, add};
use crate::limits::{Limits, Patience};
use crate::server::{Inner, Member};
use crate::service::{Needs, Placed, Service};

/// Bytes that are read at once while it is not known what comes.
pub const HEAD_ROOM_BYTES: usize = 16 << 10;

/// Fragments of a record. One of 1 MiB in fragments of 4 KiB has 256.
const FRAGMENTS_MAX: usize = 1024;

/// Bytes after which other connections have their turn.
const TURN_BYTES: usize = 256 << 10;

/// What a stream's next record is.
pub(crate) enum Incoming {
    /// A call, with the memory that it and its reply take.
    Call { header: CallHeader, arguments: Vec<u8>, payload: Option<Buffer>, memory: Permit },
    /// A call that is answered without the service.
    Answered(Vec<u8>),
    /// The peer has ended the stream, between two records.
    End,
}

/// A stream that is read.
pub(crate) struct Reader<'a> {
    stream: &'a TcpStream,
    readiness: &'a Readiness,
    limits: &'a Limits,
    /// Of all calls together.
    memory: &'a Semaphore,
    counters: &'a Counters,
    member: &'a Member,
    patience: Patience<'a>,
    /// What was read and is not used yet: the front of a record.
    buffer: Vec<u8>,
    /// Bytes that were read in this turn.
    turn_bytes: usize,
}

fn broken(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<'a> Reader<'a> {
    pub(crate) fn new<S>(
        stream: &'a TcpStream,
        readiness: &'a Readiness,
        inner: &'a Inner<S>,
        member: &'a Member,
    ) -> Reader<'a> {
        Reader {
            stream,
            readiness,
            limits: &inner.limits,
            memory: &inner.memory,
            counters: &inner.counters,
            member,
            patience: Patience::new(&inner.limits, &inner.memory),
            buffer: Vec::new(),
            turn_bytes: 0,
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// The stream is broken, or its peer breaks the protocol: no more can be read.
    pub(crate) async fn next(&mut self, service: &impl Service) -> io::Result<Incoming> {
        if self.buffer.is_empty() && self.first_bytes().await? == 0 {
            return Ok(Incoming::End);
        }
        self.patience.begin();
        self.record(service).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                io::Error::new(error.kind(), "it has begun a record and does not complete it")
            }
            _ => error,
        })
    }

    /// Waits for the first bytes of a record, with no memory held meanwhile. How many there are.
    async fn first_bytes(&mut self) -> io::Result<usize> {
        self.buffer = Vec::new();
        self.member.silent_since.set(Some(Instant::now()));
        let mut stream = self.stream;
        let bytes = loop {
            self.readiness.readable().await;
            self.buffer.resize(HEAD_ROOM_BYTES, 0);
            let read = stream.read(&mut self.buffer);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.buffer = Vec::new();
                    self.readiness.clear(Interest::Read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    self.note_empty(read.as_ref().is_ok_and(|bytes| *bytes < HEAD_ROOM_BYTES));
                    break read?;
                }
            }
        };
        self.member.silent_since.set(None);
        self.note_read(bytes).await;
        Ok(bytes)
    }

    /// A stream that gave less than there was room for has no more: that need not be asked.
    fn note_empty(&self, is_empty: bool) {
        if is_empty {
            self.readiness.clear(Interest::Read);
        }
    }

    async fn note_read(&mut self, bytes: usize) {
        add(&self.counters.received_bytes, bytes);
        self.turn_bytes += bytes;
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            yield_now().await;
        }
    }

    /// Reads once; how much.
    ///
    /// # Errors
    /// Those of the stream, its end among them.
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        let reading = self.readiness.io(Interest::Read, || stream.read(room));
        match self.patience.wait(reading).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.note_empty(bytes < room.len());
                self.note_read(bytes).await;
                Ok(bytes)
            }
        }
    }

    /// Reads once, behind what is there.
    async fn fill(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let before = buffer.len();
        buffer.resize(before + HEAD_ROOM_BYTES, 0);
        let bytes = self.read(&mut buffer[before..]).await?;
        buffer.truncate(before + bytes);
        self.buffer = buffer;
        Ok(())
    }

    /// Reads until so many bytes are there.
    async fn want(&mut self, bytes: usize) -> io::Result<()> {
        while self.buffer.len() < bytes {
            self.fill().await?;
        }
        Ok(())
    }

    /// Reads exactly what `rest` has room for.
    async fn read_into(&mut self, rest: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < rest.len() {
            done += self.read(&mut rest[done..]).await?;
        }
        Ok(())
    }

    async fn mark(&mut self, at: usize) -> io::Result<Mark> {
        self.want(at + MARK_BYTES).await?;
        let mark = Mark::of(self.buffer[at..at + MARK_BYTES].try_into().expect("four bytes"));
        if at + mark.bytes as usize > self.limits.record_bytes {
            return Err(broken(format!(
                "it begins a record of more than {} bytes",
                self.limits.record_bytes
            )));
        }
        Ok(mark)
    }

    async fn record(&mut self, service: &impl Service) -> io::Result<Incoming> {
        let mark = self.mark(0).await?;
        let mut bytes = mark.bytes as usize;
        let mut memory = None;
        if !mark.is_last {
            // For the record as it is put together, and its arguments.
            let wanted = (3 * self.limits.record_bytes).min(self.limits.memory_bytes);
            memory = Some(self.memory.acquire(wanted).await);
            self.patience.begin();
            bytes = self.join(bytes).await?;
        }
        self.buffer.drain(..MARK_BYTES);
        self.call(bytes, service, memory).await
    }

    /// Reads the fragments behind a first one of so many bytes, and takes their marks out. How long all are.
    async fn join(&mut self, first_bytes: usize) -> io::Result<usize> {
        let mut bytes = first_bytes;
        for _ in 1..FRAGMENTS_MAX {
            let end = MARK_BYTES + bytes;
            let mark = self.mark(end).await?;
            self.buffer.drain(end..end + MARK_BYTES);
            bytes += mark.bytes as usize;
            self.want(MARK_BYTES + bytes).await?;
            if mark.is_last {
                return Ok(bytes);
            }
        }
        Err(broken(format!("it sends a record of more than {FRAGMENTS_MAX} fragments")))
    }

    /// The call that a record of so many bytes is, the front of which is in the buffer. `memory`: what is
    /// held for it already.
    async fn call(
        &mut self,
        bytes: usize,
        service: &impl Service,
        memory: Option<Permit>,
    ) -> io::Result<Incoming> {
        loop {
            let here = &self.buffer[..self.buffer.len().min(bytes)];
            let may_come = here.len() < bytes.min(HEAD_ROOM_BYTES);
            let (header, head_bytes) = match CallHeader::decode(here) {
                Ok(decoded) => decoded,
                Err(CallError::Short) if may_come => {
                    self.want(here.len() + 1).await?;
                    continue;
                }
                Err(CallError::Short | CallError::NotACall) => {
                    return Err(broken("it sends a record that is no call".into()));
                }
                Err(CallError::Refused { xid, refusal }) => {
                    self.skip(bytes).await?;
                    return Ok(Incoming::Answered(reply::refused(xid, refusal)));
                }
            };
            let (payload, reply_bytes) = match service.needs(&header, &here[head_bytes..]) {
                Needs::Known { payload, reply_bytes } => (payload, reply_bytes),
                Needs::More if may_come => {
                    self.want(here.len() + 1).await?;
                    continue;
                }
                Needs::More => (None, 0),
            };
            let payload = payload.filter(|placed| placed.is_within(bytes - head_bytes));
            let memory = match memory {
                Some(memory) => memory,
                None => self.reserve(bytes.saturating_add(reply_bytes)).await,
            };
            return self.take(bytes, (header, head_bytes), payload, memory).await;
        }
    }

    async fn reserve(&mut self, bytes: usize) -> Permit {
        // What is asked for beyond all that there is would be waited for without end.
        let permit = self.memory.acquire(bytes.min(self.limits.memory_bytes)).await;
        self.patience.begin();
        permit
    }

    /// Reads the rest of a record and throws it away.
    async fn skip(&mut self, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        loop {
            let here = left.min(self.buffer.len());
            self.buffer.drain(..here);
            left -= here;
            if left == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
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
        let mut data = Buffers::default().take(placed.bytes);
        let here = (self.buffer.len() - begin).min(placed.bytes);
        add(&self.counters.copied_bytes, here);
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
