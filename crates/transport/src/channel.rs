//! The client's end of a byte stream: requests out, data and replies in, never blocking.
//!
//! ```text
//!  submit ─► queue of messages ─► writev (header, body, caller's pieces) ─►  server
//!            one is being sent,                                                │
//!            the rest wait                                                     ▼
//!  done ◄── requests under way ◄── replies in any order; data ──► caller's pieces (readv)
//! ```
//!
//! A completion is given only when nothing of its request is left to send: from then on the caller's memory
//! is not touched.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use weft_wire::limits::{BODY_BYTES_MAX, CREDITS_PER_CONNECTION};
use weft_wire::{HEADER_BYTES, Header, Kind};

use crate::error::{FrameError, LinkError};
use crate::frame_limits::FrameLimits;
use crate::framing::FrameReader;
use crate::held::{GROUP_REQUESTS, GROUPED_BYTES_MAX, Leaving, leaving};
use crate::link::{Completion, OWN_REQUEST_IDS};
use crate::runs::{Cursor, IoVecs, MemoryRuns};
use crate::segment::Segment;
use crate::socket::{SocketSource, send, set_option, shut_down, wait_for};

/// Most bytes given to one `writev`, so that one call does not hold up the other servers' connections.
const SEND_BYTES_MAX: u64 = 4 << 20;
/// How long a link that is dropped waits for the server to have let go of the caller's memory.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where the server has been silent for long.
const LET_GO_TIMEOUT_SILENT: Duration = Duration::from_millis(20);

/// The payload of a message to be sent.
pub(crate) enum Payload {
    None,
    /// Bytes of the link's own.
    Bytes(Vec<u8>),
    /// The caller's pieces (tidy, in this process) and how many bytes they hold.
    Pieces(MemoryRuns, u64),
}

struct Outgoing {
    request_id: u64,
    /// Header, body, and own payload.
    head: Vec<u8>,
    head_sent: usize,
    pieces: MemoryRuns,
    cursor: Cursor,
    pieces_left: u64,
    passed: Option<Segment>,
}

struct Pending {
    request_id: u64,
    /// Where data of the server goes: tidy, in this process.
    memory: MemoryRuns,
    total_bytes: u64,
    cursor: Cursor,
    /// Share offset of `cursor`.
    position: u64,
    delivered_bytes: u64,
    sent: bool,
    reply: Option<(Header, Vec<u8>)>,
}

/// What of the incoming stream is being taken.
#[derive(Clone, Copy)]
struct Taking {
    request_id: u64,
    ends_request: bool,
}

/// What is wrong with a request of the caller's.
pub(crate) fn request_fault(header: &Header, body: &[u8], in_use: bool) -> Option<&'static str> {
    if header.kind != Kind::Request {
        Some("only requests are sent by a client")
    } else if body.len() > BODY_BYTES_MAX {
        Some("its body is larger than any server takes")
    } else if header.request_id >= OWN_REQUEST_IDS {
        Some("its number is one of those kept for the transport")
    } else if in_use {
        Some("its number is in use by a request under way")
    } else {
        None
    }
}

pub(crate) struct Channel {
    fd: OwnedFd,
    peer: String,
    unix: bool,
    reader: FrameReader,
    taking: Option<Taking>,
    outgoing: VecDeque<Outgoing>,
    pending: Vec<Pending>,
    ready: Vec<Completion>,
    credits: u16,
    failed: bool,
    process: u32,
    /// See [`crate::Link::moved_bytes`].
    moved_bytes: u64,
    let_go_timeout: Duration,
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd, peer: String, unix: bool) -> Channel {
        Channel {
            fd,
            peer,
            unix,
            reader: FrameReader::new(),
            taking: None,
            outgoing: VecDeque::new(),
            pending: Vec::new(),
            ready: Vec::new(),
            credits: 1,
            failed: false,
            process: std::process::id(),
            moved_bytes: 0,
            let_go_timeout: LET_GO_TIMEOUT,
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    pub(crate) fn despair(&mut self) {
        self.let_go_timeout = LET_GO_TIMEOUT_SILENT;
    }

    /// Has the connection reset when it is closed, so that the server does not take its end for that of the process.
    pub(crate) fn reset_at_close(&self) {
        if std::process::id() == self.process {
            let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
            // On a socket that is not connected any more there is nothing to reset.
            let _ = set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &at_once);
        }
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(crate) fn credits(&self) -> u16 {
        self.credits
    }

    pub(crate) fn set_credits(&mut self, credits: u16) {
        self.credits = credits.min(CREDITS_PER_CONNECTION);
    }

    /// Takes a credit for a request of the caller's.
    pub(crate) fn take_credit(&mut self) -> Result<(), LinkError> {
        self.check_open()?;
        self.credits =
            self.credits.checked_sub(1).ok_or_else(|| LinkError::NoCredit { peer: self.peer.clone() })?;
        Ok(())
    }

    fn check_open(&self) -> Result<(), LinkError> {
        if self.failed { Err(LinkError::Closed { peer: self.peer.clone() }) } else { Ok(()) }
    }

    /// Checks a request of the caller's before anything is done for it.
    pub(crate) fn check_request(&self, header: &Header, body: &[u8]) -> Result<(), LinkError> {
        self.check_open()?;
        if self.credits == 0 {
            return Err(LinkError::NoCredit { peer: self.peer.clone() });
        }
        match request_fault(header, body, self.is_pending(header.request_id)) {
            Some(what) => Err(LinkError::Request { peer: self.peer.clone(), what }),
            None => Ok(()),
        }
    }

    pub(crate) fn is_pending(&self, request_id: u64) -> bool {
        self.pending.iter().any(|pending| pending.request_id == request_id)
    }

    /// Sends a request; `memory` (tidy, in this process) is where its data goes.
    ///
    /// # Safety
    /// The memory of `payload` and `memory` stays valid until the completion comes or this is dropped.
    pub(crate) unsafe fn start(
        &mut self,
        mut header: Header,
        body: &[u8],
        payload: Payload,
        memory: (MemoryRuns, u64),
        passed: Option<Segment>,
    ) -> Result<(), LinkError> {
        let (own, pieces, pieces_left) = match payload {
            Payload::None => (Vec::new(), MemoryRuns::new(), 0),
            Payload::Bytes(bytes) => (bytes, MemoryRuns::new(), 0),
            Payload::Pieces(pieces, bytes) => (Vec::new(), pieces, bytes),
        };
        header.body_bytes = body.len() as u32;
        header.payload_bytes = own.len() as u64 + pieces_left;
        let mut head = Vec::with_capacity(HEADER_BYTES + body.len() + own.len());
        head.extend_from_slice(&header.encode());
        head.extend_from_slice(body);
        head.extend_from_slice(&own);
        let request_id = header.request_id;
        self.pending.push(Pending {
            request_id,
            memory: memory.0,
            total_bytes: memory.1,
            cursor: Cursor::default(),
            position: 0,
            delivered_bytes: 0,
            sent: false,
            reply: None,
        });
        let cursor = Cursor::default();
        self.outgoing.push_back(Outgoing {
            request_id,
            head,
            head_sent: 0,
            pieces,
            cursor,
            pieces_left,
            passed,
        });
        if self.leaves_now() { self.flush() } else { Ok(()) }
    }

    /// Whether the request that was queued last leaves with those before it, or waits for more.
    fn leaves_now(&self) -> bool {
        match leaving() {
            Leaving::AtOnce => self.outgoing.len() == 1,
            Leaving::InGroups => {
                let sends_much = self.outgoing.back().is_some_and(|last| last.left() > GROUPED_BYTES_MAX);
                let gets_much = self.pending.last().is_some_and(|last| last.total_bytes > GROUPED_BYTES_MAX);
                sends_much || gets_much || self.pending.len() == 1 || self.outgoing.len() >= GROUP_REQUESTS
            }
            Leaving::Held => false,
        }
    }

    /// Sends and receives what can be without waiting.
    pub(crate) fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.check_open()?;
        self.flush()?;
        let result = self.receive();
        done.append(&mut self.ready);
        result.map_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: LinkError) -> LinkError {
        self.failed = true;
        error
    }

    fn stream_error(&mut self, source: impl Into<FrameError>) -> LinkError {
        self.fail(LinkError::Stream { peer: self.peer.clone(), source: source.into() })
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        while !self.outgoing.is_empty() {
            match send_some(self.fd.as_fd(), &mut self.outgoing) {
                Ok(pieces_bytes) => self.moved_bytes += pieces_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The server may have said why before it closed: that is read first.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.outgoing.clear();
                    return Ok(());
                }
                Err(error) => return Err(self.stream_error(error)),
            }
            while let Some(request_id) =
                self.outgoing.front().filter(|first| first.left() == 0).map(|first| first.request_id)
            {
                self.outgoing.pop_front();
                self.note_sent(request_id);
            }
        }
        Ok(())
    }

    fn note_sent(&mut self, request_id: u64) {
        if let Some(at) = self.pending.iter().position(|pending| pending.request_id == request_id) {
            self.pending[at].sent = true;
            self.complete(at);
        }
    }

    /// Gives the completion of a request that is sent and answered.
    fn complete(&mut self, at: usize) {
        if self.pending[at].sent && self.pending[at].reply.is_some() {
            let Pending { reply, delivered_bytes, .. } = self.pending.swap_remove(at);
            self.ready.extend(reply.map(|(header, body)| Completion { header, body, delivered_bytes }));
        }
    }

    fn receive(&mut self) -> Result<(), LinkError> {
        let mut drained = false;
        let limits = FrameLimits::client();
        loop {
            if self.taking.is_some() && !self.take_payload(&mut drained)? {
                return Ok(());
            }
            let mut source = SocketSource { fd: self.fd.as_fd(), unix: self.unix, drained };
            let message = self.reader.next(&mut source, &limits);
            drained = source.drained;
            match message {
                Ok(Some((header, body))) => self.take_message(header, body)?,
                Ok(None) => {
                    if self.pending.is_empty() {
                        self.reader.release_buffer();
                    }
                    return Ok(());
                }
                Err(error) => return Err(self.stream_error(error)),
            }
        }
    }

    fn protocol(&self, what: &'static str) -> LinkError {
        LinkError::Protocol { peer: self.peer.clone(), what }
    }

    fn take_message(&mut self, header: Header, body: Vec<u8>) -> Result<(), LinkError> {
        let Some(at) = self.pending.iter().position(|pending| pending.request_id == header.request_id) else {
            return Err(self.protocol("it answered a request that is not under way"));
        };
        if self.pending[at].reply.is_some() {
            return Err(self.protocol("it answered a request twice"));
        }
        let reply = header.kind == Kind::Reply;
        let offset = if reply { 0 } else { header.share_offset };
        if header.payload_bytes > 0 {
            let pending = &mut self.pending[at];
            if offset.checked_add(header.payload_bytes).is_none_or(|end| end > pending.total_bytes) {
                return Err(self.protocol("it sent data outside of the memory it was given"));
            }
            if offset < pending.position {
                (pending.cursor, pending.position) = (Cursor::default(), 0);
            }
            pending.cursor.advance(&pending.memory, offset - pending.position);
            pending.position = offset;
        }
        if reply {
            if header.request_id < OWN_REQUEST_IDS {
                self.credits = self.credits.saturating_add(header.credit).min(CREDITS_PER_CONNECTION);
            }
            self.pending[at].reply = Some((header, body));
        }
        if header.payload_bytes > 0 {
            self.taking = Some(Taking { request_id: header.request_id, ends_request: reply });
        } else if reply {
            self.complete(at);
        }
        Ok(())
    }

    /// Moves payload into the caller's pieces. `false`: no more is there now.
    fn take_payload(&mut self, drained: &mut bool) -> Result<bool, LinkError> {
        let Some(Taking { request_id, ends_request }) = self.taking else { return Ok(true) };
        let at = self.pending.iter().position(|pending| pending.request_id == request_id);
        let at = at.ok_or_else(|| self.protocol("it sent data for a request that is not under way"))?;
        while self.reader.payload_left() > 0 {
            let pending = &mut self.pending[at];
            let mut pieces = IoVecs::new();
            pending.cursor.gather(&pending.memory, self.reader.payload_left(), &mut pieces);
            let mut source = SocketSource { fd: self.fd.as_fd(), unix: self.unix, drained: *drained };
            // SAFETY: the pieces are the caller's, who keeps them valid and untouched until the completion.
            let moved = unsafe { self.reader.payload(&mut source, &mut pieces) };
            *drained = source.drained;
            match moved {
                Ok(Some(moved)) => {
                    pending.cursor.advance(&pending.memory, moved as u64);
                    pending.position += moved as u64;
                    pending.delivered_bytes += moved as u64;
                    self.moved_bytes += moved as u64;
                }
                Ok(None) => return Ok(false),
                Err(error) => return Err(self.stream_error(error)),
            }
        }
        self.taking = None;
        if ends_request {
            self.complete(at);
        }
        Ok(true)
    }

    /// Waits for the completion of a request of the link's own; for setting up a link, before anything else
    /// is under way.
    pub(crate) fn wait_own(&mut self, request_id: u64, timeout: Duration) -> Result<Completion, LinkError> {
        let deadline = Instant::now() + timeout;
        let mut done = Vec::new();
        loop {
            self.progress(&mut done)?;
            if let Some(at) = done.iter().position(|completion| completion.header.request_id == request_id) {
                return Ok(done.swap_remove(at));
            }
            let events = libc::POLLIN | if self.wants_write() { libc::POLLOUT } else { 0 };
            let there =
                wait_for(self.fd.as_fd(), events, deadline).map_err(|error| self.stream_error(error))?;
            if !there {
                let error = LinkError::SetUpTimeout {
                    peer: self.peer.clone(),
                    timeout_ms: timeout.as_millis() as u64,
                };
                return Err(self.fail(error));
            }
        }
    }

    /// Ends the connection and waits until the server has let go of the caller's memory: it closes its end
    /// when it will not touch it any more. In a forked child nothing is done: there the connection is still
    /// the parent's.
    pub(crate) fn let_go(&mut self) {
        let nothing_lent = self.pending.iter().all(|pending| pending.request_id >= OWN_REQUEST_IDS);
        if nothing_lent || std::process::id() != self.process {
            return;
        }
        shut_down(self.fd.as_fd(), libc::SHUT_WR);
        let deadline = Instant::now() + self.let_go_timeout;
        let mut sink = [0u8; 4096];
        loop {
            // SAFETY: a live buffer of the length given.
            let read = unsafe {
                libc::recv(self.raw_fd(), sink.as_mut_ptr().cast(), sink.len(), libc::MSG_DONTWAIT)
            };
            let blocked = read < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
            if read <= 0 && !blocked {
                return;
            }
            if blocked && !wait_for(self.fd.as_fd(), libc::POLLIN, deadline).unwrap_or(false) {
                return;
            }
        }
    }
}

/// One `sendmsg` of what is left of the messages at the front. How much of it was the callers' pieces.
fn send_some(fd: BorrowedFd<'_>, outgoing: &mut VecDeque<Outgoing>) -> io::Result<u64> {
    let mut pieces = IoVecs::new();
    let mut passed = None;
    for (number, message) in outgoing.iter().enumerate() {
        // A descriptor goes with the first byte of its message.
        if message.passed.is_some() && number > 0 {
            break;
        }
        passed = passed.or(message.passed.as_ref());
        let head = &message.head[message.head_sent..];
        let wanted = pieces.bytes() as u64 + message.left();
        pieces.push(head.as_ptr().cast_mut(), head.len());
        let most = message.pieces_left.min(SEND_BYTES_MAX.saturating_sub(pieces.bytes() as u64));
        if most > 0 {
            message.cursor.gather(&message.pieces, most, &mut pieces);
        }
        if passed.is_some() || pieces.is_full() || pieces.bytes() as u64 != wanted {
            break;
        }
    }
    // SAFETY: the heads are live, and the callers of `start` keep the pieces valid.
    let sent = unsafe { send(fd, pieces.as_slice(), passed.map(Segment::fd), false) }?;
    let (mut left, mut of_pieces) = (sent, 0);
    for message in outgoing.iter_mut() {
        if left == 0 {
            break;
        }
        message.passed = None;
        let of_head = left.min(message.head.len() - message.head_sent);
        message.head_sent += of_head;
        let here = (left - of_head).min(message.pieces_left as usize);
        message.cursor.advance(&message.pieces, here as u64);
        message.pieces_left -= here as u64;
        of_pieces += here as u64;
        left -= of_head + here;
    }
    Ok(of_pieces)
}

impl Outgoing {
    /// Bytes that are left to send.
    fn left(&self) -> u64 {
        (self.head.len() - self.head_sent) as u64 + self.pieces_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::{group_requests, hold_requests};
    use crate::socket::owned;
    use weft_wire::Op;
    use weft_wire::messages::MemoryRun;

    /// Two ends that keep apart what was sent by different system calls.
    fn packets() -> [OwnedFd; 2] {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }, 0);
        // SAFETY: new descriptors that nobody else owns.
        fds.map(|fd| unsafe { owned(fd) }.unwrap())
    }

    /// What one system call has sent, if anything was sent.
    fn packet(fd: &OwnedFd) -> Option<Vec<u8>> {
        let mut room = vec![0; 64 << 10];
        // SAFETY: a live buffer of the length given.
        let bytes = unsafe { libc::recv(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        usize::try_from(bytes).ok().map(|bytes| room[..bytes].to_vec())
    }

    fn start(channel: &mut Channel, request_id: u64, data: &[u8]) {
        let header = Header::request(Op::Ping, request_id);
        let bytes = data.len() as u64;
        let address = data.as_ptr() as u64;
        let runs = vec![MemoryRun { segment: 0, address, bytes, stride_bytes: 0, count: 1 }];
        let payload = if data.is_empty() { Payload::None } else { Payload::Pieces(runs, bytes) };
        // SAFETY: the data are the test's, and live longer.
        unsafe { channel.start(header, b"body", payload, (MemoryRuns::new(), 0), None) }.unwrap();
    }

    #[test]
    fn requests_that_are_held_leave_together() {
        let [ours, theirs] = packets();
        let mut channel = Channel::new(ours, "a test".into(), true);
        start(&mut channel, 1, b"");
        let alone = packet(&theirs).expect("it is sent at once");
        hold_requests(true);
        let data = [7; 5000];
        (2..=4).for_each(|number| start(&mut channel, number, &data[..if number == 3 { 5000 } else { 0 }]));
        hold_requests(false);
        assert_eq!(packet(&theirs), None);
        channel.flush().unwrap();
        let together = packet(&theirs).expect("they are sent");
        assert_eq!((together.len(), packet(&theirs)), (3 * alone.len() + 5000, None));
        assert!(!channel.wants_write() && together[2 * alone.len()..][..5000] == data);
    }

    #[test]
    fn small_requests_that_are_begun_in_a_row_leave_in_groups() {
        let [ours, theirs] = packets();
        let mut channel = Channel::new(ours, "a test".into(), true);
        group_requests(|| start(&mut channel, 1, b""));
        let alone = packet(&theirs).expect("the first is sent at once").len();
        group_requests(|| (2..=8).for_each(|number| start(&mut channel, number, b"")));
        assert_eq!(packet(&theirs), None);
        group_requests(|| start(&mut channel, 9, b""));
        assert_eq!(packet(&theirs).expect("a group is sent").len(), GROUP_REQUESTS * alone);
        group_requests(|| start(&mut channel, 10, b""));
        group_requests(|| start(&mut channel, 11, &[7; 20 << 10]));
        assert_eq!(packet(&theirs).expect("much data is sent at once").len(), 2 * alone + (20 << 10));
        group_requests(|| start(&mut channel, 12, b""));
        channel.progress(&mut Vec::new()).unwrap();
        assert_eq!(packet(&theirs).expect("who looks for replies sends").len(), alone);
    }

    #[test]
    fn what_a_socket_does_not_take_is_sent_later() {
        let (mut ours, mut theirs) =
            std::os::unix::net::UnixStream::pair().map(|(a, b)| (Some(a), b)).unwrap();
        let ours = ours.take().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut channel = Channel::new(ours.into(), "a test".into(), true);
        let data: Vec<u8> = (0..900_000u32).map(|at| (at % 251) as u8).collect();
        hold_requests(true);
        (1..=3).for_each(|number| start(&mut channel, number, &data));
        hold_requests(false);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            std::io::Read::read_to_end(&mut theirs, &mut all).unwrap();
            all
        });
        while channel.wants_write() {
            channel.flush().unwrap();
        }
        drop(channel);
        let all = reading.join().unwrap();
        let one = HEADER_BYTES + 4 + data.len();
        assert_eq!(all.len(), 3 * one);
        all.chunks(one).for_each(|message| assert!(message[HEADER_BYTES + 4..] == data));
    }
}
