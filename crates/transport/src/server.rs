//! The server's side of the seam, and the part of it that TCP and Unix sockets share: a stream of messages on a reactor.
//!
//! ```text
//!  one task:      recv ─► Incoming ─► spawn handler ─► recv …       (recv waits while a request's payload is being read)
//!  its handlers:  bulk.get / bulk.put … reply                       (units of several requests interleave: fair turns)
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_reactor::{Interest, LocalLock, Notify, Readiness, timeout};
use weft_wire::limits::{STALL_TIMEOUT_MS, UNIT_BYTES_MAX};
use weft_wire::{HEADER_BYTES, Header};

use crate::error::{ConnError, FrameError};
use crate::framing::{FrameLimits, FrameReader, SERVER_BUFFER_BYTES};
use crate::runs::IoVecs;
use crate::socket::{SocketSource, checked, send, set_nonblocking, shut_down};

/// What a refused peer may still send before its connection is closed, so that the refusal reaches it.
const REFUSED_BYTES_MAX: usize = 256 << 10;
/// How long it may do so.
const REFUSED_TIMEOUT: Duration = Duration::from_millis(500);
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Unit of transfers that pass through a buffer and are copied out of it by a processor: small enough that it stays in the
/// processor's cache between the two copies.
const COPIED_UNIT_BYTES: u64 = 256 << 10;

/// Who is at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// How data moves, for status: "tcp cubic", "shm direct", "shm staged", "memory".
    pub transport: String,
    /// Its address, for people.
    pub address: String,
    /// Over a Unix socket: its process, as the kernel says.
    pub process_id: Option<u32>,
    /// Over a Unix socket: its user, as the kernel says.
    pub user_id: Option<u32>,
    /// Over a Unix socket: its groups, as the kernel says, the primary one first.
    pub group_ids: Vec<u32>,
}

impl std::fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client {} ({})", self.address, self.transport)
    }
}

/// A request as it came.
#[derive(Debug)]
pub struct Incoming<B> {
    /// Its header, with lengths that were checked.
    pub header: Header,
    /// Its body, not decoded.
    pub body: Vec<u8>,
    /// Its way to the client's memory.
    pub bulk: B,
}

/// A server's end of a connection; many tasks of one thread share it.
#[allow(async_fn_in_trait)]
pub trait ServerConn: 'static {
    /// The way to the memory of a request.
    type Bulk: ServerBulk;

    /// Waits for the next request; first until the payload of the one before is taken or its bulk dropped. What the
    /// transport itself asks for (probe, segments) is answered within.
    ///
    /// Called by one task at a time. After an error the connection is closed.
    ///
    /// # Errors
    /// The client is gone, stalled, or sent what is no message; where it can be told, it was.
    async fn recv(&self) -> Result<Incoming<Self::Bulk>, ConnError>;

    /// Sends a reply. Lengths are set here; `payload` is inline data, placed at the beginning of the memory of a put. How far that
    /// memory was filled is said by the header ([`Header::moved`]): where data goes through a buffer of the client's transport,
    /// no more is copied out of it.
    ///
    /// # Errors
    /// The client is gone or takes nothing any more.
    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError>;

    /// The client has proved that it knows the key: the limits of strangers are lifted.
    fn prove(&self);

    /// Who it is.
    fn peer(&self) -> PeerInfo;

    /// Cuts the connection: everything waiting on it fails.
    fn close(&self);
}

/// The way to the client's memory for one request. Offsets are in the request's share.
///
/// Dropping it is always right: what is left of a streamed payload is then read and thrown away.
#[allow(async_fn_in_trait)]
pub trait ServerBulk: 'static {
    /// Bytes that the request streams or describes. 0 for a put that is streamed: how much the client takes is known from its
    /// request, and more than that makes the client close the connection.
    fn bytes(&self) -> u64;

    /// Client memory that this process can address: pieces in order, for system calls and for copies that survive a page which
    /// cannot be had (the client may change it at any time). They live as long as the bulk or its [`ServerBulk::keeper`].
    /// `None` where it cannot, or there are too many pieces.
    fn local(&self, share_offset: u64, bytes: u64) -> Option<Vec<(NonNull<u8>, usize)>>;

    /// A page of what [`ServerBulk::local`] gave was gone, and an empty one may be in its place: the memory must not be used
    /// any more. The request is to be refused, and its connection ends with that reply.
    fn memory_is_gone(&self) {}

    /// Keeps what [`ServerBulk::local`] gave alive, beyond the bulk: for operations that outlive a dropped handler.
    fn keeper(&self) -> Option<Rc<dyn Any>>;

    /// Whether the client is gone, as far as is known: who has much to do before the next transfer asks now and then.
    fn is_gone(&self) -> bool {
        false
    }

    /// [`ConnError::Mechanism`]: what this way does not do.
    fn mechanism(&self, what: &'static str) -> ConnError;

    /// Whether [`ServerBulk::put_file`] works.
    fn sends_files(&self) -> bool {
        false
    }

    /// Whether [`ServerBulk::put_mapped`] and [`ServerBulk::get_mapped`] work.
    fn reaches_mapped(&self) -> bool {
        false
    }

    /// Bytes of a unit that passes through a buffer, as this way to the client's memory likes them best.
    fn unit_bytes(&self) -> u64 {
        COPIED_UNIT_BYTES
    }

    /// Moves one unit into the client's memory.
    ///
    /// # Errors
    /// The client is gone, or its memory is not there.
    async fn put(&mut self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError>;

    /// As [`ServerBulk::put`], for the last unit of a request that is going to succeed: it may be moved as late as with the
    /// reply, so that both take one step, also when the bulk is dropped before it. A reply of a failure leaves open whether
    /// the unit arrives.
    ///
    /// # Errors
    /// As [`ServerBulk::put`].
    ///
    /// # Safety
    /// The pieces stay, and nobody changes them, as long as `keeper` lives.
    async unsafe fn put_last(
        &mut self,
        share_offset: u64,
        data: &[(NonNull<u8>, usize)],
        keeper: Rc<dyn Any>,
    ) -> Result<(), ConnError> {
        // SAFETY: as the caller promises; `keeper` lives until the end of this function.
        let put = self.put(share_offset, &unsafe { slices(data) }).await;
        drop(keeper);
        put
    }

    /// Moves bytes of a file into the client's memory without passing through this process. What the file does not have
    /// (any more) arrives as zeros.
    ///
    /// # Errors
    /// As [`ServerBulk::put`]; `Mechanism` where [`ServerBulk::sends_files`] says no.
    async fn put_file(
        &mut self,
        _share_offset: u64,
        _file: BorrowedFd<'_>,
        _file_offset: u64,
        _bytes: u64,
    ) -> Result<(), ConnError> {
        Err(self.mechanism("send files; use put"))
    }

    /// Moves mapped pieces of a data file, one behind the other, into the client's memory; pages that are gone are an error,
    /// no signal: `ClientMemory` where it can be done another way then, and on a stream, which is cut in the middle of a
    /// message, the end of the connection.
    ///
    /// # Errors
    /// As [`ServerBulk::put`]; `Mechanism` where [`ServerBulk::reaches_mapped`] says no.
    ///
    /// # Safety
    /// The pieces lie in mappings that stay until this returns.
    async unsafe fn put_mapped(
        &mut self,
        _share_offset: u64,
        _pieces: &[(NonNull<u8>, usize)],
    ) -> Result<(), ConnError> {
        Err(self.mechanism("send mapped pages; use put"))
    }

    /// Waits until [`ServerBulk::get_mapped`] may find bytes at this offset: on a stream until some have come.
    ///
    /// # Errors
    /// The client is gone or stalled.
    async fn arrival(&mut self, _share_offset: u64) -> Result<(), ConnError> {
        Ok(())
    }

    /// Moves bytes of the client into mapped pieces of a data file, as many as can be had without waiting for the client: how
    /// many, from the first piece on. After 0 [`ServerBulk::arrival`] is to be awaited.
    ///
    /// # Errors
    /// As [`ServerBulk::put_mapped`].
    ///
    /// # Safety
    /// The pieces lie in mappings that stay until this returns, and are writable. This process may touch their pages: the
    /// caller deals with those that are gone.
    unsafe fn get_mapped(
        &mut self,
        _share_offset: u64,
        _pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        Err(self.mechanism("receive into mapped pages; use get"))
    }

    /// Fetches one unit from the client's memory. Of a streamed payload offsets must rise; what is left out is thrown away.
    ///
    /// # Errors
    /// The client is gone, stalled, or its memory is not there.
    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError>;

    /// Throws away what is left of a streamed payload, now.
    ///
    /// # Errors
    /// The client is gone or stalled.
    async fn discard(self) -> Result<(), ConnError>
    where
        Self: Sized;
}

/// Pieces of memory for a put.
///
/// # Safety
/// They stay, and nobody changes them, as long as the slices are used; or only the kernel looks at the bytes.
pub(crate) unsafe fn slices<'a>(pieces: &[(NonNull<u8>, usize)]) -> Vec<IoSlice<'a>> {
    // SAFETY: as the caller promises.
    let slice = |(base, bytes): &(NonNull<u8>, usize)| unsafe {
        IoSlice::new(std::slice::from_raw_parts(base.as_ptr(), *bytes))
    };
    pieces.iter().map(slice).collect()
}

/// Who has the payload of the message that the stream stands in.
#[derive(Clone, Copy, PartialEq)]
enum PayloadOwner {
    /// Nobody, or there is none: it is thrown away before the next message.
    Nobody,
    /// A bulk.
    Bulk,
}

/// A stream of messages on a reactor.
pub(crate) struct ServerStream {
    // Before the descriptor: it has to be taken off the reactor first.
    readiness: Readiness,
    fd: OwnedFd,
    unix: bool,
    reader: RefCell<FrameReader>,
    drained: Cell<bool>,
    owner: Cell<PayloadOwner>,
    payload_free: Notify,
    writing: LocalLock<()>,
    proven: Cell<bool>,
    closed: Cell<bool>,
    stall_timeout: Cell<Duration>,
    peer: RefCell<PeerInfo>,
}

/// Cuts the connection if a message is left half written: nothing after it could be understood.
struct WholeMessage<'a> {
    stream: &'a ServerStream,
    whole: bool,
}

impl Drop for WholeMessage<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.stream.close();
        }
    }
}

impl ServerStream {
    pub(crate) fn new(fd: OwnedFd, unix: bool, peer: PeerInfo) -> io::Result<ServerStream> {
        set_nonblocking(fd.as_fd())?;
        Ok(ServerStream {
            readiness: Readiness::new(&fd)?,
            fd,
            unix,
            reader: RefCell::new(FrameReader::new(SERVER_BUFFER_BYTES)),
            drained: Cell::new(false),
            owner: Cell::new(PayloadOwner::Nobody),
            payload_free: Notify::new(),
            writing: LocalLock::new(()),
            proven: Cell::new(false),
            closed: Cell::new(false),
            stall_timeout: Cell::new(Duration::from_millis(STALL_TIMEOUT_MS)),
            peer: RefCell::new(peer),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn prove(&self) {
        self.proven.set(true);
    }

    pub(crate) fn set_stall_timeout(&self, stall_timeout: Duration) {
        self.stall_timeout.set(stall_timeout);
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven.get()
    }

    pub(crate) fn peer(&self) -> PeerInfo {
        self.peer.borrow().clone()
    }

    pub(crate) fn set_transport(&self, transport: &str) {
        self.peer.borrow_mut().transport = transport.into();
    }

    pub(crate) fn peer_text(&self) -> String {
        self.peer.borrow().to_string()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn close(&self) {
        if !self.closed.replace(true) {
            shut_down(self.fd.as_fd(), libc::SHUT_RDWR);
            self.payload_free.notify();
        }
    }

    pub(crate) fn closed_error(&self) -> ConnError {
        ConnError::Closed { peer: self.peer_text() }
    }

    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        self.reader.borrow_mut().take_descriptor()
    }

    /// Reads from the socket. That it is empty is noted at once: the kernel tells once of what comes later, and such news
    /// must not be cleared by a task that looks only then.
    fn reading<R>(&self, read: impl FnOnce(&mut SocketSource<'_>) -> R) -> R {
        let mut source = SocketSource { fd: self.fd.as_fd(), unix: self.unix, drained: self.drained.get() };
        let result = read(&mut source);
        if source.drained && !self.drained.replace(source.drained) {
            self.readiness.clear(Interest::Read);
        }
        result
    }

    fn io_error(&self, error: impl Into<FrameError>) -> ConnError {
        let was_closed = self.closed.get();
        self.close();
        let source = error.into();
        let gone = match &source {
            FrameError::Closed => true,
            FrameError::Io(error) => {
                matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
            }
            _ => false,
        };
        let peer = self.peer_text();
        if gone || was_closed { ConnError::Closed { peer } } else { ConnError::Stream { peer, source } }
    }

    fn stalled(&self) -> ConnError {
        self.close();
        ConnError::Stalled { peer: self.peer_text(), timeout_ms: self.stall_timeout.get().as_millis() as u64 }
    }

    /// Waits for bytes; in the middle of something only until `deadline`.
    async fn wait_readable(&self, deadline: Option<Instant>) -> Result<(), ConnError> {
        match deadline {
            None => self.readiness.readable().await,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                timeout(left, self.readiness.readable()).await.map_err(|_| self.stalled())?;
            }
        }
        self.drained.set(false);
        Ok(())
    }

    /// Waits for room to send.
    async fn wait_writable(&self) -> Result<(), ConnError> {
        self.readiness.clear(Interest::Write);
        timeout(self.stall_timeout.get(), self.readiness.writable()).await.map_err(|_| self.stalled())
    }

    /// The next request's header and body. Its payload, if there is one, is the caller's to hand out.
    pub(crate) async fn message(&self, remote_memory: bool) -> Result<(Header, Vec<u8>), ConnError> {
        while self.owner.get() == PayloadOwner::Bulk && !self.closed.get() {
            self.payload_free.notified().await;
        }
        self.skip(u64::MAX).await?;
        let mut deadline = None;
        loop {
            if self.closed.get() {
                return Err(self.closed_error());
            }
            match self.next_message(remote_memory) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {
                    let begun = !self.reader.borrow().is_idle();
                    deadline =
                        begun.then(|| deadline.unwrap_or_else(|| Instant::now() + self.stall_timeout.get()));
                    self.wait_readable(deadline).await?;
                }
                Err(error) => return Err(self.refuse(error).await),
            }
        }
    }

    /// The next request if it is here. An idle connection gives up its buffer.
    fn next_message(&self, remote_memory: bool) -> Result<Option<(Header, Vec<u8>)>, FrameError> {
        let limits = FrameLimits::server(self.proven.get(), remote_memory);
        let mut reader = self.reader.borrow_mut();
        let message = self.reading(|source| reader.next(source, &limits))?;
        if message.is_none() && reader.is_idle() {
            reader.release_buffer();
            reader.drop_descriptors();
        }
        Ok(message)
    }

    /// Payload of the current message that is still to be taken.
    fn payload_left(&self) -> u64 {
        self.reader.borrow().payload_left()
    }

    /// Takes payload into buffers, in order, as much as they hold; it must be there to be taken.
    async fn take(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut done = 0;
        while done < total {
            let moved = {
                let mut pieces = IoVecs::new();
                pieces.push_rest_mut(buffers, done);
                // SAFETY: the pieces are the rest of the caller's exclusively borrowed buffers.
                unsafe { self.take_now(&mut pieces) }?
            };
            done += moved;
            if moved == 0 {
                self.wait_for_payload().await?;
            }
        }
        Ok(())
    }

    /// Takes what has come of the payload into pieces, without waiting: how many bytes.
    ///
    /// # Safety
    /// The pieces are writable memory that nobody else uses.
    unsafe fn take_now(&self, pieces: &mut IoVecs) -> Result<usize, ConnError> {
        if self.closed.get() {
            return Err(self.closed_error());
        }
        // SAFETY: as the caller promises.
        let taken = self.reading(|source| unsafe { self.reader.borrow_mut().payload(source, pieces) });
        let moved = taken.map_err(|error| self.io_error(error))?.unwrap_or(0);
        self.free_payload();
        Ok(moved)
    }

    async fn wait_for_payload(&self) -> Result<(), ConnError> {
        self.wait_readable(Some(Instant::now() + self.stall_timeout.get())).await
    }

    /// Waits, where nothing of the payload is here and the socket is known to be empty.
    async fn payload_has_come(&self) -> Result<(), ConnError> {
        if self.drained.get() && !self.reader.borrow().has_buffered() && !self.closed.get() {
            self.wait_for_payload().await?;
        }
        Ok(())
    }

    fn free_payload(&self) {
        if self.payload_left() == 0 && self.owner.replace(PayloadOwner::Nobody) == PayloadOwner::Bulk {
            self.payload_free.notify();
        }
    }

    /// Throws away up to `bytes` of payload.
    async fn skip(&self, bytes: u64) -> Result<(), ConnError> {
        let mut left = self.payload_left().min(bytes);
        if left == 0 {
            return Ok(());
        }
        let mut sink = vec![0u8; left.min(64 << 10) as usize];
        while left > 0 {
            let part = left.min(sink.len() as u64) as usize;
            self.take(&mut [IoSliceMut::new(&mut sink[..part])]).await?;
            left -= part as u64;
        }
        Ok(())
    }

    /// Takes the whole of a short payload.
    pub(crate) async fn take_all(&self, header: &Header) -> Result<Vec<u8>, ConnError> {
        let mut payload = vec![0u8; header.payload_bytes as usize];
        self.take(&mut [IoSliceMut::new(&mut payload)]).await?;
        Ok(payload)
    }

    /// Tells a peer whose message cannot be taken why, where it can be told, and closes the connection.
    async fn refuse(&self, error: FrameError) -> ConnError {
        if let Some((header, detail)) = error.refusal()
            && self.send_message(header, &detail, &[]).await.is_ok()
        {
            shut_down(self.fd.as_fd(), libc::SHUT_WR);
            // Closing with unread bytes would reset the connection under the refusal.
            let _ = timeout(REFUSED_TIMEOUT, self.drain_refused()).await;
        }
        self.io_error(error)
    }

    async fn drain_refused(&self) {
        let mut sink = vec![0u8; 16 << 10];
        let mut drained = 0;
        while drained < REFUSED_BYTES_MAX {
            let read = self.readiness.io(Interest::Read, || {
                // SAFETY: a live buffer of the length given.
                checked(unsafe { libc::recv(self.fd.as_raw_fd(), sink.as_mut_ptr().cast(), sink.len(), 0) })
            });
            match read.await {
                Ok(count) if count > 0 => drained += count,
                _ => return,
            }
        }
    }

    /// Sends a message in this task's turn: header, body, payload, in one system call if the socket takes it.
    pub(crate) async fn send_message(
        &self,
        mut header: Header,
        body: &[u8],
        payload: &[IoSlice<'_>],
    ) -> Result<(), ConnError> {
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        header.body_bytes = body.len() as u32;
        header.payload_bytes = payload_bytes as u64;
        let head = header.encode();
        let _turn = self.writing.lock().await;
        let mut message = WholeMessage { stream: self, whole: false };
        let total = HEADER_BYTES + body.len() + payload_bytes;
        let mut done = 0;
        while done < total {
            let parts = [head.as_slice(), body].into_iter().chain(payload.iter().map(Deref::deref));
            done += self.send_once(parts, done, false).await?;
        }
        message.whole = true;
        Ok(())
    }

    /// One `sendmsg` of what is left of `parts` after `done` bytes; waits for room if there is none.
    async fn send_once<'a>(
        &self,
        parts: impl Iterator<Item = &'a [u8]>,
        done: usize,
        more: bool,
    ) -> Result<usize, ConnError> {
        if self.closed.get() {
            return Err(self.closed_error());
        }
        let sent = {
            let mut pieces = IoVecs::new();
            pieces.push_rest(parts, done);
            // SAFETY: the pieces are parts of borrowed slices.
            unsafe { send(self.fd.as_fd(), pieces.as_slice(), None, more) }
        };
        self.sent_or_wait(sent).await
    }

    async fn sent_or_wait(&self, sent: io::Result<usize>) -> Result<usize, ConnError> {
        match sent {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_writable().await.map(|()| 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(self.io_error(error)),
        }
    }

    /// Sends one data unit from a file.
    async fn send_file_unit(
        &self,
        header: Header,
        file: BorrowedFd<'_>,
        file_offset: u64,
    ) -> Result<(), ConnError> {
        let head = header.encode();
        let bytes = header.payload_bytes;
        let _turn = self.writing.lock().await;
        let mut message = WholeMessage { stream: self, whole: false };
        let mut done = 0;
        while done < HEADER_BYTES {
            done += self.send_once([head.as_slice()].into_iter(), done, true).await?;
        }
        let mut moved = 0;
        let mut at_end = false;
        while moved < bytes && !at_end {
            if self.closed.get() {
                return Err(self.closed_error());
            }
            let mut offset = (file_offset + moved) as libc::off_t;
            let left = (bytes - moved) as usize;
            // SAFETY: a live offset; the descriptors are open.
            let sent =
                checked(unsafe { libc::sendfile(self.fd.as_raw_fd(), file.as_raw_fd(), &mut offset, left) });
            at_end = matches!(sent, Ok(0));
            moved += self.sent_or_wait(sent).await? as u64;
        }
        // The file became shorter meanwhile: the length is already on its way.
        while moved < bytes {
            let part = &ZEROS[..(bytes - moved).min(ZEROS.len() as u64) as usize];
            moved += self.send_once([part].into_iter(), 0, false).await? as u64;
        }
        message.whole = true;
        Ok(())
    }
}

/// The way to a client's memory by the stream of its connection: the whole of TCP, and what is small on a Unix socket.
pub struct StreamBulk {
    stream: Rc<ServerStream>,
    request: Header,
    owns_payload: bool,
    /// Share offset of the next byte of payload.
    position: u64,
}

impl std::fmt::Debug for StreamBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamBulk {{ bytes: {}, position: {} }}", self.request.payload_bytes, self.position)
    }
}

impl StreamBulk {
    pub(crate) fn new(stream: &Rc<ServerStream>, request: Header) -> StreamBulk {
        let owns_payload = request.payload_bytes > 0;
        if owns_payload {
            stream.owner.set(PayloadOwner::Bulk);
        }
        StreamBulk { stream: stream.clone(), request, owns_payload, position: 0 }
    }

    /// Whether a part of the payload lies within it, and was not taken yet.
    fn check(&self, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        if share_offset < self.position {
            return Err(self.mechanism("go back in a streamed payload: it is read in the order of the share"));
        }
        let end = share_offset.saturating_add(bytes);
        if end > self.request.payload_bytes {
            let peer = self.stream.peer_text();
            return Err(ConnError::Range { peer, bytes: self.request.payload_bytes, end });
        }
        Ok(())
    }

    /// Throws away what is before a part of the payload.
    async fn go_to(&mut self, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        self.check(share_offset, bytes)?;
        self.stream.skip(share_offset - self.position).await?;
        self.position = share_offset;
        Ok(())
    }
}

impl ServerBulk for StreamBulk {
    fn bytes(&self) -> u64 {
        self.request.payload_bytes
    }

    fn local(&self, _share_offset: u64, _bytes: u64) -> Option<Vec<(NonNull<u8>, usize)>> {
        None
    }

    fn is_gone(&self) -> bool {
        self.stream.is_closed()
    }

    fn mechanism(&self, what: &'static str) -> ConnError {
        ConnError::Mechanism { peer: self.stream.peer_text(), what }
    }

    fn keeper(&self) -> Option<Rc<dyn Any>> {
        None
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn reaches_mapped(&self) -> bool {
        true
    }

    async fn put(&mut self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.stream.send_message(self.request.data(share_offset, bytes), &[], data).await
    }

    async fn put_file(
        &mut self,
        share_offset: u64,
        file: BorrowedFd<'_>,
        file_offset: u64,
        bytes: u64,
    ) -> Result<(), ConnError> {
        let mut done = 0;
        while done < bytes {
            let unit_bytes = (bytes - done).min(UNIT_BYTES_MAX as u64);
            let header = self.request.data(share_offset + done, unit_bytes);
            self.stream.send_file_unit(header, file, file_offset + done).await?;
            done += unit_bytes;
        }
        Ok(())
    }

    async unsafe fn put_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<(), ConnError> {
        // SAFETY: the caller keeps them mapped, and only the kernel looks at the bytes.
        self.put(share_offset, &unsafe { slices(pieces) }).await
    }

    async fn arrival(&mut self, share_offset: u64) -> Result<(), ConnError> {
        self.go_to(share_offset, 0).await?;
        self.stream.payload_has_come().await
    }

    unsafe fn get_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        self.check(share_offset, bytes)?;
        if share_offset > self.position || bytes == 0 {
            return Ok(0);
        }
        let mut rest = IoVecs::new();
        pieces.iter().all(|(base, bytes)| rest.push(base.as_ptr(), *bytes));
        // SAFETY: as the caller promises.
        let moved = unsafe { self.stream.take_now(&mut rest) }? as u64;
        self.position += moved;
        self.owns_payload = self.position < self.request.payload_bytes;
        Ok(moved)
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.go_to(share_offset, bytes).await?;
        self.stream.take(buffers).await?;
        self.position = share_offset + bytes;
        self.owns_payload = self.position < self.request.payload_bytes;
        Ok(())
    }

    async fn discard(mut self) -> Result<(), ConnError> {
        if self.owns_payload {
            self.stream.skip(u64::MAX).await?;
            self.owns_payload = false;
        }
        Ok(())
    }
}

impl Drop for StreamBulk {
    fn drop(&mut self) {
        if self.owns_payload {
            self.stream.owner.set(PayloadOwner::Nobody);
            self.stream.payload_free.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use weft_reactor::{Reactor, ReactorOptions, sleep};
    use weft_wire::Op;

    fn somebody() -> PeerInfo {
        PeerInfo {
            transport: "test".into(),
            address: "here".into(),
            process_id: None,
            user_id: None,
            group_ids: Vec::new(),
        }
    }

    #[test]
    fn pages_that_are_gone_cut_the_stream_and_kill_nobody() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a new mapping; the file is empty, so none of its pages can be had.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let pieces = [(NonNull::new(base.cast::<u8>()).unwrap(), 4096)];
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = Rc::new(ServerStream::new(ours.into(), true, somebody()).unwrap());
            let mut bulk = StreamBulk::new(&stream, Header::request(Op::Read, 1));
            // SAFETY: mapped until the end of this test.
            unsafe { bulk.put_mapped(0, &pieces).await }.unwrap_err();
            assert!(stream.is_closed());
        });
        // SAFETY: nobody uses the mapping any more.
        unsafe { libc::munmap(base, 4096) };
    }

    #[test]
    fn a_payload_is_taken_into_mapped_pieces_as_it_comes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = Rc::new(ServerStream::new(ours.into(), true, somebody()).unwrap());
            stream.prove();
            let header = Header { payload_bytes: 20, ..Header::request(Op::Write, 1) };
            theirs.write_all(&header.encode()).unwrap();
            theirs.write_all(&[1; 10]).unwrap();
            let (header, _) = stream.message(false).await.unwrap();
            let mut bulk = StreamBulk::new(&stream, header);
            let mut memory = [0u8; 20];
            let base = NonNull::from(&mut memory).cast::<u8>();
            // SAFETY: parts of this memory, which nobody else uses until it is looked at.
            let take = |bulk: &mut StreamBulk, at: usize| unsafe {
                bulk.get_mapped(at as u64, &[(base.add(at), 20 - at)]).unwrap()
            };
            bulk.arrival(0).await.unwrap();
            assert_eq!(take(&mut bulk, 0), 10);
            assert_eq!(take(&mut bulk, 10), 0, "the rest has not come");
            theirs.write_all(&[2; 10]).unwrap();
            bulk.arrival(10).await.unwrap();
            assert_eq!(take(&mut bulk, 10), 10);
            assert_eq!(memory[..10], [1; 10]);
            assert_eq!(memory[10..], [2; 10]);
        });
    }

    #[test]
    fn news_between_a_short_read_and_the_wait_for_more_is_not_lost() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = ServerStream::new(ours.into(), true, somebody()).unwrap();
            stream.prove();
            stream.set_stall_timeout(Duration::from_millis(500));
            let header = Header { payload_bytes: 20, ..Header::request(Op::Write, 1) };
            theirs.write_all(&header.encode()).unwrap();
            theirs.write_all(&[1; 10]).unwrap();
            stream.message(false).await.unwrap();
            let mut half = [0; 10];
            stream.take(&mut [IoSliceMut::new(&mut half)]).await.unwrap();
            // The socket is known to be empty; the rest comes while nobody waits for it.
            theirs.write_all(&[2; 10]).unwrap();
            sleep(Duration::from_millis(20)).await;
            stream.take(&mut [IoSliceMut::new(&mut half)]).await.unwrap();
            assert_eq!(half, [2; 10]);
        });
    }
}
