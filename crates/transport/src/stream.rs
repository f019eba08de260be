//! A stream of messages on a reactor: a server's end of TCP and of Unix sockets.
//!
//! One task reads messages; a payload is handed out to the bulk of its request and read by the handler. Any task sends, a
//! whole message in its turn.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use weft_reactor::{Interest, LocalLock, Notify, Readiness, timeout, yield_now};
use weft_wire::limits::STALL_TIMEOUT_MS;
use weft_wire::{HEADER_BYTES, Header, Kind};

use crate::error::{ConnError, FrameError};
use crate::frame_limits::FrameLimits;
use crate::framing::FrameReader;
use crate::runs::IoVecs;
use crate::server::PeerInfo;
use crate::socket::{SocketSource, checked, send, set_nonblocking, shut_down};

/// What a refused peer may still send before its connection is closed, so that the refusal reaches it.
const REFUSED_BYTES_MAX: usize = 256 << 10;
/// How long it may do so.
const REFUSED_TIMEOUT: Duration = Duration::from_millis(500);
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Who has the payload of the message that the stream stands in.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PayloadOwner {
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
    pub(crate) owner: Cell<PayloadOwner>,
    pub(crate) payload_free: Notify,
    writing: LocalLock<()>,
    gathered: RefCell<Gathered>,
    proven: Cell<bool>,
    closed: Cell<bool>,
    stall_timeout: Cell<Duration>,
    peer: RefCell<PeerInfo>,
}

/// Longest message that waits for others to leave with it.
const GATHERED_BYTES_MAX: usize = 8 << 10;
/// Bytes of messages from which on they leave at once.
const TOGETHER_BYTES: usize = 64 << 10;
/// Turns of other tasks in which no request and no answer comes, after which messages leave.
const IDLE_TURNS_MAX: u32 = 2;

/// Short messages that leave together, where several requests are under way.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// Messages that were put in so far, and those of them that have left.
    put: u64,
    sent: u64,
    /// Requests that came so far, and those of them that have no reply yet.
    came: u64,
    under_way: u32,
}

impl Gathered {
    fn state(&self) -> (u64, u64, usize, u32) {
        (self.put, self.came, self.bytes.len(), self.under_way)
    }
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
            reader: RefCell::new(FrameReader::new()),
            drained: Cell::new(false),
            owner: Cell::new(PayloadOwner::Nobody),
            payload_free: Notify::new(),
            writing: LocalLock::new(()),
            gathered: RefCell::default(),
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
        let peer = self.peer_text();
        match error.into() {
            _ if was_closed => ConnError::Closed { peer },
            FrameError::Closed if self.unix => ConnError::Closed { peer },
            FrameError::Closed => ConnError::Ended { peer },
            FrameError::Io(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                ConnError::Closed { peer }
            }
            source => ConnError::Stream { peer, source },
        }
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
                Ok(Some(message)) => {
                    let mut gathered = self.gathered.borrow_mut();
                    gathered.came += 1;
                    gathered.under_way += 1;
                    return Ok(message);
                }
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
    pub(crate) async fn take(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
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
    pub(crate) unsafe fn take_now(&self, pieces: &mut IoVecs) -> Result<usize, ConnError> {
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
    pub(crate) async fn payload_has_come(&self) -> Result<(), ConnError> {
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
    pub(crate) async fn skip(&self, bytes: u64) -> Result<(), ConnError> {
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
        let total = HEADER_BYTES + body.len() + payload_bytes;
        let is_first = self.gathered.borrow().bytes.is_empty();
        let is_gathered = total <= GATHERED_BYTES_MAX
            && (!is_first || self.gathered.borrow().under_way > 1 || self.reader.borrow().has_buffered());
        if header.kind == Kind::Reply {
            let mut gathered = self.gathered.borrow_mut();
            gathered.under_way = gathered.under_way.saturating_sub(1);
        }
        let number = is_gathered.then(|| {
            let mut gathered = self.gathered.borrow_mut();
            gathered.bytes.extend_from_slice(&head);
            gathered.bytes.extend_from_slice(body);
            payload.iter().for_each(|part| gathered.bytes.extend_from_slice(part));
            gathered.put += 1;
            gathered.put
        });
        let _turn = self.writing.lock().await;
        if is_gathered && is_first {
            self.let_others_put().await;
        }
        self.send_gathered(number.unwrap_or(u64::MAX)).await?;
        if is_gathered {
            return Ok(());
        }
        let mut message = WholeMessage { stream: self, whole: false };
        let mut done = 0;
        while done < total {
            let parts = [head.as_slice(), body].into_iter().chain(payload.iter().map(Deref::deref));
            done += self.send_once(parts, done, false).await?;
        }
        message.whole = true;
        Ok(())
    }

    /// Lets requests that are here be answered as well, as far as that waits for nothing. Their answers wait for the turn of
    /// who calls this.
    async fn let_others_put(&self) {
        let mut idle_turns = 0;
        while idle_turns < IDLE_TURNS_MAX {
            let (put, came, bytes, under_way) = self.gathered.borrow().state();
            let none_comes = under_way == 0 && !self.reader.borrow().has_buffered();
            if none_comes || bytes >= TOGETHER_BYTES {
                return;
            }
            yield_now().await;
            let (put_since, came_since, ..) = self.gathered.borrow().state();
            idle_turns = if (put_since, came_since) == (put, came) { idle_turns + 1 } else { 0 };
        }
    }

    /// Sends what was gathered, in the turn of who calls it, unless the message of this number has left.
    async fn send_gathered(&self, number: u64) -> Result<(), ConnError> {
        let (bytes, put) = {
            let mut gathered = self.gathered.borrow_mut();
            if gathered.sent >= number || gathered.bytes.is_empty() {
                return if self.closed.get() { Err(self.closed_error()) } else { Ok(()) };
            }
            (std::mem::take(&mut gathered.bytes), gathered.put)
        };
        let mut messages = WholeMessage { stream: self, whole: false };
        let mut done = 0;
        while done < bytes.len() {
            done += self.send_once([bytes.as_slice()].into_iter(), done, false).await?;
        }
        messages.whole = true;
        self.gathered.borrow_mut().sent = put;
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
    pub(crate) async fn send_file_unit(
        &self,
        header: Header,
        file: BorrowedFd<'_>,
        file_offset: u64,
    ) -> Result<(), ConnError> {
        let head = header.encode();
        let bytes = header.payload_bytes;
        let _turn = self.writing.lock().await;
        self.send_gathered(u64::MAX).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use weft_reactor::{Reactor, ReactorOptions, spawn};
    use weft_wire::Op;

    /// A stream, and its peer's end, where what different system calls have sent is kept apart.
    fn pair() -> (ServerStream, std::os::fd::OwnedFd) {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }, 0);
        // SAFETY: new descriptors that nobody else owns.
        let [ours, theirs] = fds.map(|fd| unsafe { crate::socket::owned(fd) }.unwrap());
        let peer = PeerInfo {
            transport: "shm".into(),
            address: "a test".into(),
            process_id: None,
            user_id: None,
            group_ids: Vec::new(),
        };
        (ServerStream::new(ours, true, peer).unwrap(), theirs)
    }

    fn say(theirs: &std::os::fd::OwnedFd, bytes: &[u8]) {
        // SAFETY: a live buffer of the length given.
        let sent = unsafe { libc::send(theirs.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        assert_eq!(sent, bytes.len() as isize);
    }

    /// The length of what one system call has sent.
    fn heard(theirs: &std::os::fd::OwnedFd) -> usize {
        let mut room = vec![0u8; 4096];
        // SAFETY: a live buffer of the length given.
        let read = unsafe { libc::recv(theirs.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        usize::try_from(read).unwrap()
    }

    #[test]
    fn replies_to_requests_with_payload_that_came_together_leave_together() {
        const PAYLOAD_BYTES: usize = 1000;
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async {
            let (stream, theirs) = pair();
            stream.prove();
            let stream = Rc::new(stream);
            let request = |number| {
                let header =
                    Header { payload_bytes: PAYLOAD_BYTES as u64, ..Header::request(Op::Write, number) };
                [&header.encode()[..], &[7; PAYLOAD_BYTES]].concat()
            };
            say(&theirs, &(1..=5).flat_map(request).collect::<Vec<u8>>());
            let session = async move {
                let mut answers = Vec::new();
                for _ in 0..5 {
                    let (header, _) = stream.message(false).await.unwrap();
                    stream.owner.set(PayloadOwner::Bulk);
                    let (stream, header) = (stream.clone(), Header { kind: Kind::Reply, ..header });
                    answers.push(spawn(async move {
                        let mut payload = [0; PAYLOAD_BYTES];
                        stream.take(&mut [IoSliceMut::new(&mut payload)]).await.unwrap();
                        stream.send_message(header, b"body", &[]).await
                    }));
                }
                for answer in answers {
                    answer.await.unwrap();
                }
            };
            spawn(session).await;
            assert_eq!(heard(&theirs), 5 * (HEADER_BYTES + 4));
        });
    }

    #[test]
    fn replies_that_are_ready_at_the_same_time_leave_together() {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async {
            let (stream, theirs) = pair();
            let stream = Rc::new(stream);
            say(
                &theirs,
                &(1..=3).flat_map(|number| Header::request(Op::Ping, number).encode()).collect::<Vec<u8>>(),
            );
            let mut answers = Vec::new();
            for _ in 0..3 {
                let (header, _) = stream.message(false).await.unwrap();
                let (stream, header) = (stream.clone(), Header { kind: Kind::Reply, ..header });
                answers.push(spawn(async move { stream.send_message(header, b"body", &[]).await }));
            }
            for answer in answers {
                answer.await.unwrap();
            }
            assert_eq!(heard(&theirs), 3 * (HEADER_BYTES + 4));
            // Nobody else waits for this one.
            let header = Header { kind: Kind::Reply, ..Header::request(Op::Ping, 4) };
            stream.send_message(header, b"body", &[]).await.unwrap();
            assert_eq!(heard(&theirs), HEADER_BYTES + 4);
        });
    }
}
