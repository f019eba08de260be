//! Messages out of a byte stream, for both ends of TCP and Unix sockets: a state machine that never blocks.
//!
//! ```text
//!            recv into the buffer               readv: pieces, then the buffer
//!  stream ───────────────────────► buffer ─┐  ┌────────────────────────────────► caller's pieces
//!                                          ▼  │
//!   next():    HEADER (64) ──checked──► BODY ─┴─► PAYLOAD left ──► payload() until 0 ──► HEADER …
//! ```
//!
//! A small message (header, body, inline data) takes one system call. Bulk payload goes straight into its pieces; only
//! what happened to come with a header is copied out of the buffer. While the last of a payload is read, the same call reads
//! the beginning of the next message into the buffer, so that a stream of units costs one call each.
//!
//! Every length is checked against [`FrameLimits`] before anything is allocated for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use weft_wire::{HEADER_BYTES, Header};

use crate::error::FrameError;
use crate::frame_limits::FrameLimits;
use crate::runs::IoVecs;

/// Buffer of a connection while a message is coming: several small messages in one call, with a page of data each.
const BUFFER_BYTES: usize = 32 << 10;
/// Of the buffer, how much is offered behind a bulk payload for the message after it: little, for the payload of that
/// message is better read to where it belongs.
const TAIL_BYTES: usize = 4 << 10;
/// What is left of a payload is small up to here. Others like it may be behind it, and the whole buffer is offered.
const SMALL_BYTES: usize = 8 << 10;
/// Idle buffers kept for the connections of a thread.
const POOLED_BUFFERS_MAX: usize = 32;
/// Descriptors that may wait for the message they belong to; more are closed.
const DESCRIPTORS_MAX: usize = 4;
/// A stream that bytes come from.
pub(crate) trait Source {
    /// Reads into the pieces; 0 is the end, `WouldBlock` is none now. Descriptors that came along are added to `passed`.
    ///
    /// # Safety
    /// The pieces are writable memory that nobody else uses.
    unsafe fn read(
        &mut self,
        pieces: &mut [libc::iovec],
        passed: &mut VecDeque<OwnedFd>,
    ) -> io::Result<usize>;
}

thread_local! {
    static POOL: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn take_buffer() -> Box<[u8]> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().pop());
    pooled.ok().flatten().unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
}

fn give_buffer(buffer: Box<[u8]>) {
    // A thread that is ending has lost its pool.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < POOLED_BUFFERS_MAX && buffer.len() == BUFFER_BYTES {
            pool.push(buffer);
        }
    });
}

/// Where in a message the stream stands.
enum State {
    Header,
    Body { header: Header, body: Vec<u8>, filled: usize },
    Payload { left: u64 },
}

/// Takes messages out of a stream.
pub(crate) struct FrameReader {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    state: State,
    passed: VecDeque<OwnedFd>,
}

impl FrameReader {
    pub(crate) fn new() -> FrameReader {
        FrameReader { buffer: None, start: 0, end: 0, state: State::Header, passed: VecDeque::new() }
    }

    /// Whether the stream stands between two messages, with nothing of the next one here.
    pub(crate) fn is_idle(&self) -> bool {
        self.start == self.end && matches!(self.state, State::Header)
    }

    /// Gives the buffer to other connections of this thread while nothing comes.
    pub(crate) fn release_buffer(&mut self) {
        if self.start == self.end
            && let Some(buffer) = self.buffer.take()
        {
            (self.start, self.end) = (0, 0);
            give_buffer(buffer);
        }
    }

    /// Bytes of the current message's payload that are still to be taken.
    pub(crate) fn payload_left(&self) -> u64 {
        if let State::Payload { left } = self.state { left } else { 0 }
    }

    /// The oldest descriptor that came with the stream.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.passed.pop_front()
    }

    /// Closes descriptors that no message asked for.
    pub(crate) fn drop_descriptors(&mut self) {
        self.passed.clear();
    }

    /// The next message's header and body, or `None` when the stream has no more bytes now. The payload of the message
    /// before must have been taken.
    pub(crate) fn next(
        &mut self,
        source: &mut impl Source,
        limits: &FrameLimits,
    ) -> Result<Option<(Header, Vec<u8>)>, FrameError> {
        loop {
            match &mut self.state {
                State::Header => {
                    if self.end - self.start < HEADER_BYTES {
                        if !self.fill(source)? {
                            return Ok(None);
                        }
                        continue;
                    }
                    let bytes: [u8; HEADER_BYTES] =
                        self.buffered()[..HEADER_BYTES].try_into().expect("a header's length was checked");
                    let header = Header::decode(&bytes)?;
                    limits.check(&header)?;
                    self.start += HEADER_BYTES;
                    self.state = State::Body { header, body: vec![0; header.body_bytes as usize], filled: 0 };
                }
                State::Body { header, body, filled } => {
                    let buffered = &self.buffer.as_deref().unwrap_or_default()[self.start..self.end];
                    let copied = buffered.len().min(body.len() - *filled);
                    body[*filled..*filled + copied].copy_from_slice(&buffered[..copied]);
                    self.start += copied;
                    *filled += copied;
                    if *filled == body.len() {
                        let message = (*header, std::mem::take(body));
                        self.state = match message.0.payload_bytes {
                            0 => State::Header,
                            left => State::Payload { left },
                        };
                        return Ok(Some(message));
                    }
                    if !self.read_body(source)? {
                        return Ok(None);
                    }
                }
                State::Payload { .. } => {
                    unreachable!("a payload is taken before the next message is asked for")
                }
            }
        }
    }

    /// Moves payload into `pieces`, which together hold at least one byte and at most what is left. Returns how many bytes
    /// went into them, from the first on, or `None` when the stream has no more now.
    ///
    /// # Safety
    /// The pieces are writable memory that nobody else uses.
    pub(crate) unsafe fn payload(
        &mut self,
        source: &mut impl Source,
        pieces: &mut IoVecs,
    ) -> Result<Option<usize>, FrameError> {
        let State::Payload { left } = &mut self.state else { return Ok(Some(0)) };
        let wanted = pieces.bytes();
        debug_assert!(wanted > 0 && wanted as u64 <= *left);
        let buffered = (self.end - self.start).min(wanted);
        let moved = if buffered > 0 {
            let buffer = self.buffer.as_deref().unwrap_or_default();
            // SAFETY: as the caller promises.
            unsafe { scatter(&buffer[self.start..self.start + buffered], pieces.as_slice()) };
            self.start += buffered;
            buffered
        } else {
            (self.start, self.end) = (0, 0);
            if wanted as u64 == *left {
                let buffer = self.buffer.get_or_insert_with(take_buffer);
                let tail_bytes =
                    if wanted <= SMALL_BYTES { buffer.len() } else { TAIL_BYTES.min(buffer.len()) };
                pieces.push(buffer.as_mut_ptr(), tail_bytes);
            }
            // SAFETY: as the caller promises; the tail is this reader's own.
            let read = unsafe { source.read(pieces.as_mut_slice(), &mut self.passed) };
            let Some(read) = would_block(read)? else { return Ok(None) };
            if read == 0 {
                return Err(FrameError::Truncated);
            }
            self.end = read.saturating_sub(wanted);
            self.bound_descriptors();
            read.min(wanted)
        };
        *left_mut(&mut self.state) -= moved as u64;
        if self.payload_left() == 0 {
            self.state = State::Header;
        }
        Ok(Some(moved))
    }

    /// Whether bytes have come that were not handed out.
    pub(crate) fn has_buffered(&self) -> bool {
        self.start < self.end
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer.as_deref().unwrap_or_default()[self.start..self.end]
    }

    /// Reads into the buffer's free part. `false`: nothing there now.
    fn fill(&mut self, source: &mut impl Source) -> Result<bool, FrameError> {
        let buffer = self.buffer.get_or_insert_with(take_buffer);
        buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let free = &mut buffer[self.end..];
        let mut piece = [libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() }];
        // SAFETY: the piece is the free part of this reader's own buffer.
        let read = unsafe { source.read(&mut piece, &mut self.passed) };
        let Some(read) = would_block(read)? else { return Ok(false) };
        if read == 0 {
            return Err(if self.start == self.end { FrameError::Closed } else { FrameError::Truncated });
        }
        self.end += read;
        self.bound_descriptors();
        Ok(true)
    }

    /// Reads the rest of a body straight into it. `false`: nothing there now.
    fn read_body(&mut self, source: &mut impl Source) -> Result<bool, FrameError> {
        let State::Body { body, filled, .. } = &mut self.state else { return Ok(true) };
        let rest = &mut body[*filled..];
        let mut pieces = IoVecs::new();
        pieces.push(rest.as_mut_ptr(), rest.len());
        let wanted = rest.len();
        (self.start, self.end) = (0, 0);
        let buffer = self.buffer.get_or_insert_with(take_buffer);
        pieces.push(buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the pieces are the unfilled part of the body and this reader's own buffer.
        let read = unsafe { source.read(pieces.as_mut_slice(), &mut self.passed) };
        let Some(read) = would_block(read)? else { return Ok(false) };
        if read == 0 {
            return Err(FrameError::Truncated);
        }
        *filled += read.min(wanted);
        self.end = read.saturating_sub(wanted);
        self.bound_descriptors();
        Ok(true)
    }

    fn bound_descriptors(&mut self) {
        self.passed.truncate(DESCRIPTORS_MAX);
    }
}

impl Drop for FrameReader {
    fn drop(&mut self) {
        self.start = self.end;
        self.release_buffer();
    }
}

fn left_mut(state: &mut State) -> &mut u64 {
    match state {
        State::Payload { left } => left,
        _ => unreachable!("only called while a payload is taken"),
    }
}

fn would_block(read: io::Result<usize>) -> Result<Option<usize>, FrameError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(FrameError::Io(error)),
    }
}

/// Copies `bytes` into the pieces from the first on.
///
/// # Safety
/// The pieces are writable memory that nobody else uses, and hold at least as many bytes.
unsafe fn scatter(mut bytes: &[u8], pieces: &[libc::iovec]) {
    for piece in pieces {
        let part = bytes.len().min(piece.iov_len);
        // SAFETY: `part` is within both.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.iov_base.cast(), part) };
        bytes = &bytes[part..];
        if bytes.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_wire::Op;
    use weft_wire::limits::BODY_BYTES_UNPROVEN_MAX;

    impl FrameReader {
        fn with_buffer(bytes: usize) -> FrameReader {
            let mut reader = FrameReader::new();
            reader.buffer = Some(vec![0; bytes].into_boxed_slice());
            reader
        }
    }

    /// Gives a stream in chunks of given lengths, with "nothing now" between them.
    struct Script {
        bytes: Vec<u8>,
        at: usize,
        chunks: std::iter::Cycle<std::vec::IntoIter<usize>>,
        pause: bool,
    }

    impl Script {
        fn new(bytes: Vec<u8>, chunks: Vec<usize>) -> Script {
            Script { bytes, at: 0, chunks: chunks.into_iter().cycle(), pause: false }
        }
    }

    impl Source for Script {
        unsafe fn read(
            &mut self,
            pieces: &mut [libc::iovec],
            _: &mut VecDeque<OwnedFd>,
        ) -> io::Result<usize> {
            self.pause = !self.pause;
            if self.pause {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let room: usize = pieces.iter().map(|piece| piece.iov_len).sum();
            let chunk = self.chunks.next().unwrap_or(1).min(room).min(self.bytes.len() - self.at);
            // SAFETY: the pieces hold at least `chunk` bytes, as `Source::read` demands.
            unsafe { scatter(&self.bytes[self.at..self.at + chunk], pieces) };
            self.at += chunk;
            Ok(chunk)
        }
    }

    fn stream(messages: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, (body, payload)) in messages.iter().enumerate() {
            let mut header = Header::request(Op::Write, at as u64);
            header.body_bytes = *body as u32;
            header.payload_bytes = *payload as u64;
            bytes.extend(header.encode());
            bytes.extend((0..*body).map(|byte| (byte * 7 + at) as u8));
            bytes.extend((0..*payload).map(|byte| (byte * 13 + at) as u8));
        }
        bytes
    }

    /// Header, body and payload.
    type Message = (Header, Vec<u8>, Vec<u8>);

    /// Reads everything; gives the messages, and the error at the end.
    fn read_all(source: &mut Script, buffer_bytes: usize) -> (Vec<Message>, FrameError) {
        let mut reader = FrameReader::with_buffer(buffer_bytes);
        let limits = FrameLimits::server(true, false);
        let mut all = Vec::new();
        loop {
            let (header, body) = match reader.next(source, &limits) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) => return (all, error),
            };
            let mut payload = vec![0; header.payload_bytes as usize];
            let mut done = 0;
            while reader.payload_left() > 0 {
                let mut pieces = IoVecs::new();
                pieces.push(payload[done..].as_mut_ptr(), (payload.len() - done).min(1000));
                // SAFETY: the piece is the rest of `payload`.
                match unsafe { reader.payload(source, &mut pieces) } {
                    Ok(moved) => done += moved.unwrap_or(0),
                    Err(error) => return (all, error),
                }
            }
            all.push((header, body, payload));
        }
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn any_split_gives_the_same_messages(
            messages in proptest::collection::vec((0usize..6000, 0usize..9000), 0..5),
            chunks in proptest::collection::vec(1usize..5000, 1..6),
            buffer_bytes in 64usize..9000,
        ) {
            let (read, end) = read_all(&mut Script::new(stream(&messages), chunks), buffer_bytes);
            prop_assert!(matches!(end, FrameError::Closed), "{}", end);
            prop_assert_eq!(read.len(), messages.len());
            for (at, ((header, body, payload), (body_bytes, payload_bytes))) in read.iter().zip(&messages).enumerate() {
                prop_assert_eq!(header.request_id, at as u64);
                prop_assert!(body.iter().copied().eq((0..*body_bytes).map(|byte| (byte * 7 + at) as u8)));
                prop_assert!(payload.iter().copied().eq((0..*payload_bytes).map(|byte| (byte * 13 + at) as u8)));
            }
        }

        #[test]
        fn a_cut_stream_is_truncated_or_closed(cut in 0usize..3000, chunk in 1usize..700) {
            let mut bytes = stream(&[(500, 900), (0, 0), (900, 300)]);
            bytes.truncate(cut.min(bytes.len()));
            let (_, end) = read_all(&mut Script::new(bytes, vec![chunk]), 256);
            prop_assert!(matches!(end, FrameError::Closed | FrameError::Truncated), "{}", end);
        }

        #[test]
        fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 64..300)) {
            let (read, end) = read_all(&mut Script::new(bytes, vec![50]), 256);
            prop_assert!(read.is_empty());
            prop_assert!(matches!(end, FrameError::Header(_)), "{}", end);
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_allocation() {
        let mut header = Header::request(Op::Hello, 1);
        header.body_bytes = BODY_BYTES_UNPROVEN_MAX as u32 + 1;
        let mut reader = FrameReader::with_buffer(256);
        let mut source = Script::new(header.encode().to_vec(), vec![64]);
        let limits = FrameLimits::server(false, false);
        assert!(reader.next(&mut source, &limits).unwrap().is_none());
        assert!(matches!(reader.next(&mut source, &limits), Err(FrameError::TooBig { part: "body", .. })));
    }

    #[test]
    fn damaged_streams_are_refused_where_they_are_damaged() {
        weft_test_fuzz::run("stream", &[stream(&[(5, 9), (0, 0), (90, 30)])], |bytes| {
            if !bytes.is_empty() {
                let (read, _) = read_all(&mut Script::new(bytes.to_vec(), vec![50]), 256);
                assert!(read.len() <= bytes.len() / HEADER_BYTES);
            }
        });
    }
}
