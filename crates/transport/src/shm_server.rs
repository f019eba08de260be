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

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use weft_reactor::yield_now;
use weft_wire::limits::{MEMORY_RUNS_MAX, UNIT_BYTES_MAX};
use weft_wire::messages::{
    Empty, ErrorDetail, MemoryProbeReply, MemoryProbeRequest, RemoteMemory, SegmentAddRequest,
    SegmentDropRequest,
};
use weft_wire::{Header, Op, Status, Wire, body, flags};

use crate::error::{ConnError, RunsError};
use crate::runs::{Cursor, IOV_MAX, IoVecs, MemoryRuns, span, tidy};
use crate::segment::{Mapping, map_passed};
use crate::server::{Incoming, PeerInfo, ServerBulk, ServerConn, ServerStream, StreamBulk};
use crate::socket::{checked, owned, peer_credentials, peer_groups};

/// Segments that one connection may have.
const SEGMENTS_MAX: usize = 64;
/// Bytes of address space that they may take.
const SEGMENT_BYTES_MAX: u64 = 1 << 40;
/// Pieces that [`ServerBulk::local`] lists; with more, moving by `put` and `get` in batches is no slower.
const LOCAL_PIECES_MAX: usize = 4 * IOV_MAX;

/// The memory of a connection's client.
struct ClientMemory {
    process: libc::pid_t,
    /// Becomes readable when the process ends.
    process_fd: Option<OwnedFd>,
    same_user: bool,
    /// The client's own memory was reached by a probe.
    reached: Cell<bool>,
    segments: RefCell<BTreeMap<u16, Rc<Mapping>>>,
    /// A page of a segment was gone: nothing that was moved through the mappings since is sure.
    is_gone: Cell<bool>,
}

impl ClientMemory {
    fn new(credentials: &libc::ucred) -> ClientMemory {
        // SAFETY: no memory is passed, and the result is new.
        let process_fd =
            unsafe { owned(libc::syscall(libc::SYS_pidfd_open, credentials.pid, 0) as i32) }.ok();
        // SAFETY: no memory is passed.
        let same_user = credentials.uid == unsafe { libc::geteuid() };
        ClientMemory {
            process: credentials.pid,
            process_fd,
            same_user,
            reached: Cell::new(false),
            segments: RefCell::new(BTreeMap::new()),
            is_gone: Cell::new(false),
        }
    }

    /// Whether the process still has its end of the connection, so that it is the one that asked.
    fn is_there(&self, stream: &ServerStream) -> bool {
        let Some(process_fd) = &self.process_fd else { return false };
        let mut entries = [
            libc::pollfd { fd: stream.fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 },
            libc::pollfd { fd: process_fd.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        ];
        // SAFETY: two live entries.
        let count = unsafe { libc::poll(entries.as_mut_ptr(), 2, 0) };
        count == 0 && !stream.is_closed()
    }

    /// Tries to read and write the 32 bytes of a probe.
    fn probe(&self, stream: &ServerStream, address: u64) -> Result<([u8; 16], [u8; 16]), String> {
        if !self.same_user {
            return Err("the server runs as another user".into());
        }
        if self.process_fd.is_none() || !self.is_there(stream) {
            return Err("the server cannot see the client's process (another container?)".into());
        }
        let mut read = [0u8; 16];
        let mut written = [0u8; 16];
        weft_host::fill_random(&mut written).map_err(|error| error.to_string())?;
        let refused = |error: io::Error| format!("the kernel refuses process_vm access: {error}");
        for (local, at, direction) in
            [(&mut read, address, Direction::Get), (&mut written, address.wrapping_add(16), Direction::Put)]
        {
            let local = libc::iovec { iov_base: local.as_mut_ptr().cast(), iov_len: local.len() };
            let remote = libc::iovec { iov_base: at as usize as *mut _, iov_len: 16 };
            // SAFETY: the local piece is a live array of this function's.
            let moved =
                unsafe { process_vm(self.process, direction, &[local], &[remote]) }.map_err(refused)?;
            if moved != 16 {
                return Err("the probe's memory is not mapped".into());
            }
        }
        Ok((read, written))
    }

    fn add_segment(&self, id: u16, bytes: u64, fd: Option<OwnedFd>) -> Result<(), (Status, String)> {
        let fd = fd.ok_or((Status::Malformed, "no descriptor came with the segment".to_string()))?;
        let mut segments = self.segments.borrow_mut();
        let mapped: u64 = segments.values().map(|mapping| mapping.bytes() as u64).sum();
        if id == 0 || segments.contains_key(&id) {
            return Err((Status::Invalid, format!("segment number {id} cannot be used")));
        }
        if segments.len() >= SEGMENTS_MAX || mapped.saturating_add(bytes) > SEGMENT_BYTES_MAX {
            return Err((
                Status::Limit,
                format!("a connection may have {SEGMENTS_MAX} segments of 1 TiB in all"),
            ));
        }
        let mapping = map_passed(fd.as_fd(), bytes).map_err(|text| (Status::Invalid, text))?;
        segments.insert(id, Rc::new(mapping));
        Ok(())
    }

    /// Checks what a request describes, and keeps the segments that it needs.
    fn accept(&self, mut runs: MemoryRuns) -> Result<Described, RunsError> {
        if runs.len() > MEMORY_RUNS_MAX {
            return Err(RunsError::TooMany(runs.len()));
        }
        let bytes = tidy(&mut runs)?;
        let segments = self.segments.borrow();
        let mut mappings: Vec<(u16, Rc<Mapping>)> = Vec::new();
        for run in &mut runs {
            let id = run.segment;
            if id == 0 {
                if !self.reached.get() {
                    return Err(RunsError::UnknownSegment(0));
                }
                continue;
            }
            let mapping = segments.get(&id).ok_or(RunsError::UnknownSegment(id))?;
            let (_, end) = span(run).ok_or(RunsError::Overflow)?;
            if end > mapping.bytes() as u64 {
                return Err(RunsError::OutsideSegment(id));
            }
            // From here on the address is this process's own.
            run.address += mapping.base().as_ptr() as u64;
            if mappings.iter().all(|(known, _)| *known != id) {
                mappings.push((id, mapping.clone()));
            }
        }
        Ok(Described { runs, bytes, mappings: Rc::new(mappings) })
    }
}

/// Checked client memory: segment 0 has the client's addresses, others this process's.
struct Described {
    runs: MemoryRuns,
    bytes: u64,
    mappings: Rc<Vec<(u16, Rc<Mapping>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Direction {
    /// Into the client's memory.
    Put,
    /// Out of it.
    Get,
}

/// # Safety
/// The local pieces are memory that may be read (put) or written (get) by a system call.
unsafe fn process_vm(
    process: libc::pid_t,
    direction: Direction,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> io::Result<usize> {
    let call = match direction {
        Direction::Put => libc::process_vm_writev,
        Direction::Get => libc::process_vm_readv,
    };
    // SAFETY: the kernel checks every address on both sides; what is local is as the caller promises.
    checked(unsafe { call(process, local.as_ptr(), local.len() as _, remote.as_ptr(), remote.len() as _, 0) })
}

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

/// The way to the memory of a request over shared memory.
pub struct ShmBulk {
    way: Way,
    stream: Rc<ServerStream>,
    client: Rc<ClientMemory>,
}

enum Way {
    /// Small: on the socket.
    Streamed(StreamBulk),
    /// Remote memory, and a place in it with its share offset, so that units in order need no search.
    Described { described: Described, cursor: (Cursor, u64) },
}

impl std::fmt::Debug for ShmBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.way {
            Way::Streamed(bulk) => write!(f, "ShmBulk {{ streamed: {bulk:?} }}"),
            Way::Described { described, .. } => write!(f, "ShmBulk {{ described: {:?} }}", described.runs),
        }
    }
}

impl Described {
    fn check(&self, stream: &ServerStream, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        let end = share_offset.saturating_add(bytes);
        if end > self.bytes {
            return Err(ConnError::Range { peer: stream.peer_text(), bytes: self.bytes, end });
        }
        Ok(())
    }

    /// The place of a share offset, from the one where the unit before ended.
    fn place(&self, cursor: (Cursor, u64), share_offset: u64) -> Cursor {
        let (mut at, offset) = cursor;
        if share_offset < offset {
            return Cursor::at(&self.runs, share_offset);
        }
        at.advance(&self.runs, share_offset - offset);
        at
    }

    /// Moves one batch: the next pieces of the client's, as many as lie in one process and fit one call.
    ///
    /// # Safety
    /// The local pieces are memory that may be read (put) or written (get) by a system call.
    unsafe fn batch(
        &self,
        process: libc::pid_t,
        at: &Cursor,
        direction: Direction,
        local: &IoVecs,
    ) -> io::Result<usize> {
        let mut remote = IoVecs::new();
        let mut own = None;
        at.walk(&self.runs, local.bytes() as u64, |segment, address, bytes| {
            let is_own = segment != 0;
            if *own.get_or_insert(is_own) != is_own {
                return false;
            }
            remote.push(address as usize as *mut u8, bytes as usize)
        });
        // Memory in segments is mapped here; the kernel copies there too, for it notices pages that cannot be had.
        let process = if own == Some(true) { std::process::id() as libc::pid_t } else { process };
        // SAFETY: as the caller promises.
        let moved = unsafe { process_vm(process, direction, local.as_slice(), remote.as_slice()) }?;
        if moved == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(moved)
    }
}

impl ShmBulk {
    /// Moves a unit; `local` gives what is left of the local side after so many bytes, at most [`UNIT_BYTES_MAX`] at once.
    ///
    /// # Safety
    /// The pieces that `local` gives are memory that may be read (put) or written (get) by a system call.
    async unsafe fn transfer(
        &mut self,
        share_offset: u64,
        bytes: u64,
        direction: Direction,
        mut local: impl FnMut(&mut IoVecs, usize),
    ) -> Result<(), ConnError> {
        let Way::Described { described, .. } = &self.way else { return Ok(()) };
        described.check(&self.stream, share_offset, bytes)?;
        let mut done = 0;
        while done < bytes {
            done += {
                let mut pieces = IoVecs::new();
                local(&mut pieces, done as usize);
                // SAFETY: as the caller promises.
                unsafe { self.transfer_some(share_offset + done, direction, &pieces) }?
            };
            if done < bytes {
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Moves what one system call takes of a unit that was checked: how many bytes.
    ///
    /// # Safety
    /// The local pieces are memory that may be read (put) or written (get) by a system call.
    unsafe fn transfer_some(
        &mut self,
        share_offset: u64,
        direction: Direction,
        local: &IoVecs,
    ) -> Result<u64, ConnError> {
        let Way::Described { described, cursor } = &mut self.way else { return Ok(0) };
        if !self.client.is_there(&self.stream) {
            self.stream.close();
            return Err(self.stream.closed_error());
        }
        let mut at = described.place(*cursor, share_offset);
        // SAFETY: as the caller promises.
        let moved = unsafe { described.batch(self.client.process, &at, direction, local) }
            .map_err(|source| ConnError::ClientMemory { peer: self.stream.peer_text(), source })?;
        at.advance(&described.runs, moved as u64);
        *cursor = (at, share_offset + moved as u64);
        Ok(moved as u64)
    }

    /// # Safety
    /// As for [`ServerBulk::put_mapped`].
    async unsafe fn transfer_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<(), ConnError> {
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        // Every batch goes on where the one before ended: the pieces before that are looked at once.
        let (mut first, mut before) = (0, 0);
        let local = |vecs: &mut IoVecs, done: usize| {
            while first < pieces.len() && before + pieces[first].1 <= done {
                before += pieces[first].1;
                first += 1;
            }
            let mut skip = done - before;
            for (base, bytes) in &pieces[first..] {
                let left = (bytes - skip).min(UNIT_BYTES_MAX - vecs.bytes());
                if !vecs.push(base.as_ptr().wrapping_add(skip), left) || vecs.bytes() == UNIT_BYTES_MAX {
                    return;
                }
                skip = 0;
            }
        };
        // SAFETY: as the caller promises; only the kernel touches the pages.
        unsafe { self.transfer(share_offset, bytes, Direction::Put, local) }.await
    }
}

impl ServerBulk for ShmBulk {
    fn bytes(&self) -> u64 {
        match &self.way {
            Way::Streamed(bulk) => bulk.bytes(),
            Way::Described { described, .. } => described.bytes,
        }
    }

    fn local(&self, share_offset: u64, bytes: u64) -> Option<Vec<(NonNull<u8>, usize)>> {
        let Way::Described { described, cursor } = &self.way else { return None };
        described.check(&self.stream, share_offset, bytes).ok()?;
        let mut pieces: Vec<(NonNull<u8>, usize)> = Vec::new();
        let mut all_local = true;
        described.place(*cursor, share_offset).walk(&described.runs, bytes, |segment, address, bytes| {
            match NonNull::new(address as usize as *mut u8) {
                Some(base) if segment != 0 && pieces.len() < LOCAL_PIECES_MAX => {
                    pieces.push((base, bytes as usize));
                }
                _ => all_local = false,
            }
            all_local
        });
        all_local.then_some(pieces)
    }

    fn is_gone(&self) -> bool {
        self.stream.is_closed()
    }

    fn memory_is_gone(&self) {
        self.client.is_gone.set(true);
    }

    fn mechanism(&self, what: &'static str) -> ConnError {
        ConnError::Mechanism { peer: self.stream.peer_text(), what }
    }

    fn keeper(&self) -> Option<Rc<dyn Any>> {
        match &self.way {
            Way::Streamed(_) => None,
            Way::Described { described, .. } => Some(described.mappings.clone()),
        }
    }

    fn sends_files(&self) -> bool {
        matches!(self.way, Way::Streamed(_))
    }

    fn reaches_mapped(&self) -> bool {
        matches!(self.way, Way::Described { .. })
    }

    async fn put(&mut self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        if let Way::Streamed(bulk) = &mut self.way {
            return bulk.put(share_offset, data).await;
        }
        let bytes = data.iter().map(|part| part.len() as u64).sum();
        let local = |pieces: &mut IoVecs, done: usize| pieces.push_rest(data.iter().map(Deref::deref), done);
        // SAFETY: the pieces are parts of borrowed slices, and a put only reads them.
        unsafe { self.transfer(share_offset, bytes, Direction::Put, local) }.await
    }

    async fn put_file(
        &mut self,
        share_offset: u64,
        file: BorrowedFd<'_>,
        file_offset: u64,
        bytes: u64,
    ) -> Result<(), ConnError> {
        match &mut self.way {
            Way::Streamed(bulk) => bulk.put_file(share_offset, file, file_offset, bytes).await,
            Way::Described { .. } => {
                Err(self.mechanism("send files to described memory; use local or put_mapped"))
            }
        }
    }

    async unsafe fn put_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<(), ConnError> {
        if !self.reaches_mapped() {
            return Err(self.mechanism("send mapped pages; use put or put_file"));
        }
        // SAFETY: as the caller promises.
        unsafe { self.transfer_mapped(share_offset, pieces) }.await
    }

    unsafe fn get_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let Way::Described { described, .. } = &self.way else {
            return Err(self.mechanism("receive into mapped pages; use get"));
        };
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        described.check(&self.stream, share_offset, bytes)?;
        let mut batch = IoVecs::new();
        pieces.iter().all(|(base, bytes)| {
            let part = (*bytes).min(UNIT_BYTES_MAX - batch.bytes());
            batch.push(base.as_ptr(), part) && part == *bytes
        });
        // SAFETY: as the caller promises.
        unsafe { self.transfer_some(share_offset, Direction::Get, &batch) }
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        if let Way::Streamed(bulk) = &mut self.way {
            return bulk.get(share_offset, buffers).await;
        }
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let local = |pieces: &mut IoVecs, done: usize| pieces.push_rest_mut(buffers, done);
        // SAFETY: the pieces are parts of the caller's exclusively borrowed buffers.
        unsafe { self.transfer(share_offset, bytes, Direction::Get, local) }.await
    }

    async fn discard(self) -> Result<(), ConnError> {
        match self.way {
            Way::Streamed(bulk) => bulk.discard().await,
            Way::Described { .. } => Ok(()),
        }
    }
}
