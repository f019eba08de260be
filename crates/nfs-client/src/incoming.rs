//! The stream of replies, taken apart (RFC 5531, 11). It does no I/O of its own.
//!
//! ```text
//!   stream:  mark  head of a reply         data of a READ                 padding   mark  head …
//!                  └► bytes of its own     └► the caller's memory, straight         └► small buffer, what comes behind
//! ```
//!
//! As long as data are expected the stream is received into two pieces: the caller's memory, and a buffer for what comes
//! behind them. So only what arrived together with the head is copied: at most [`SMALL_ROOM_BYTES`] where large data are
//! expected.
//!
//! A record may be in any number of fragments. Records for calls that nobody waits for are passed over.

use rustc_hash::FxHashMap;
use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::xdr::Reader;

use crate::error::Failure;
use crate::rpc::{self, Payload};

/// Longest head of a reply: a listing of the largest size that is asked for, with room to spare.
pub(crate) const HEAD_BYTES_MAX: usize = 2 << 20;
/// Longest record that is taken at all.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 20;
/// Most fragments of a record.
const FRAGMENTS_MAX: u32 = 65_536;
/// The buffer for what is not received straight into the caller's memory.
const BUFFER_BYTES: usize = 64 << 10;
/// What of it is used while large data are expected.
const SMALL_ROOM_BYTES: usize = 4 << 10;
/// Data of this size are large.
const LARGE_BYTES: usize = 32 << 10;

/// Memory of the caller's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub start: *mut u8,
    pub bytes: usize,
}

impl Memory {
    pub(crate) const NONE: Memory = Memory { start: std::ptr::null_mut(), bytes: 0 };

    /// # Safety
    /// It is readable, and nobody writes to it, as long as the slice is used.
    pub(crate) unsafe fn as_slice<'a>(self) -> &'a [u8] {
        match self.bytes {
            0 => &[],
            // SAFETY: as the caller promises.
            bytes => unsafe { std::slice::from_raw_parts(self.start, bytes) },
        }
    }
}

/// A reply as it came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub xid: u32,
    /// Everything but the data of a READ.
    pub head: Vec<u8>,
    /// How much data of a READ came, if there were any.
    pub data_bytes: Option<usize>,
    /// Why there is none: the call could not be sent, or its transport's header was refused.
    pub failure: Option<Failure>,
}

impl Reply {
    /// That the call has failed below RPC.
    pub(crate) fn failed(xid: u32, failure: Failure) -> Reply {
        Reply { xid, head: Vec::new(), data_bytes: None, failure: Some(failure) }
    }
}

enum Step {
    Head,
    /// Data for a call: how much of them is missing.
    Data {
        xid: u32,
        memory: Memory,
        placed: usize,
        left: usize,
    },
    /// Padding of data, until the record ends.
    Padding {
        xid: u32,
        placed: usize,
    },
    /// A record for nobody.
    Skip,
}

/// Takes the stream apart.
pub(crate) struct Incoming {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    expected: FxHashMap<u32, Memory>,
    large_expected: usize,
    step: Step,
    head: Vec<u8>,
    /// What came of the next record mark.
    mark: [u8; MARK_BYTES],
    mark_bytes: usize,
    fragment_left: usize,
    is_last: bool,
    /// A record has begun and has not ended.
    in_record: bool,
    fragments: u32,
    record_bytes: usize,
}

impl Incoming {
    pub(crate) fn new() -> Incoming {
        Incoming {
            buffer: vec![0; BUFFER_BYTES].into(),
            from: 0,
            to: 0,
            expected: FxHashMap::default(),
            large_expected: 0,
            step: Step::Head,
            head: Vec::new(),
            mark: [0; MARK_BYTES],
            mark_bytes: 0,
            fragment_left: 0,
            is_last: false,
            in_record: false,
            fragments: 0,
            record_bytes: 0,
        }
    }

    /// A reply to this call may come; its data go to `memory`.
    ///
    /// # Safety
    /// `memory` is writable until the reply was given or [`Incoming::forget`] was called.
    pub(crate) unsafe fn expect(&mut self, xid: u32, memory: Memory) {
        self.expected.insert(xid, memory);
        self.large_expected += usize::from(memory.bytes >= LARGE_BYTES);
    }

    /// Nobody waits for this reply any more, and its memory is not touched from here on.
    pub(crate) fn forget(&mut self, xid: u32) {
        self.no_longer(xid);
        if matches!(self.step, Step::Data { xid: taken, .. } if taken == xid) {
            self.step = Step::Skip;
        }
    }

    fn no_longer(&mut self, xid: u32) {
        if let Some(memory) = self.expected.remove(&xid) {
            self.large_expected -= usize::from(memory.bytes >= LARGE_BYTES);
        }
    }

    /// Where the next bytes go: data's memory, and the buffer.
    pub(crate) fn room(&mut self) -> [libc::iovec; 2] {
        debug_assert!(self.from == self.to, "everything that came was looked at");
        (self.from, self.to) = (0, 0);
        let room = if self.large_expected > 0 { SMALL_ROOM_BYTES } else { BUFFER_BYTES };
        let buffer = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: room };
        let data = match &self.step {
            Step::Data { memory, placed, left, .. } => libc::iovec {
                // SAFETY: `placed` and `left` bytes are within the memory.
                iov_base: unsafe { memory.start.add(*placed) }.cast(),
                iov_len: (*left).min(self.fragment_left),
            },
            _ => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        };
        [data, buffer]
    }

    /// So many bytes came into the room; replies that are complete are added to `replies`.
    ///
    /// # Errors
    /// What is wrong with the stream, which is of no use then.
    pub(crate) fn received(&mut self, bytes: usize, replies: &mut Vec<Reply>) -> Result<(), &'static str> {
        let mut straight = 0;
        if let Step::Data { placed, left, .. } = &mut self.step {
            straight = bytes.min(*left).min(self.fragment_left);
            *placed += straight;
            *left -= straight;
            self.fragment_left -= straight;
        }
        self.to = bytes - straight;
        while self.advance(replies)? {}
        Ok(())
    }

    /// Goes one step on; whether another one may be possible. All bytes of the buffer are taken in the end.
    fn advance(&mut self, replies: &mut Vec<Reply>) -> Result<bool, &'static str> {
        if self.fragment_left == 0 {
            if !(self.in_record && self.is_last) {
                return self.take_mark();
            }
            self.end_record(replies)?;
            return Ok(true);
        }
        let available = (self.to - self.from).min(self.fragment_left);
        match &mut self.step {
            Step::Head => self.take_head(available),
            Step::Data { xid, left: 0, placed, .. } => {
                self.step = Step::Padding { xid: *xid, placed: *placed };
                Ok(true)
            }
            Step::Data { memory, placed, left, .. } => {
                let count = available.min(*left);
                // SAFETY: the memory has room for what is left, and is not the buffer's.
                unsafe {
                    let target = memory.start.add(*placed);
                    target.copy_from_nonoverlapping(self.buffer.as_ptr().add(self.from), count);
                }
                *placed += count;
                *left -= count;
                Ok(self.taken(count))
            }
            Step::Padding { .. } | Step::Skip => Ok(self.taken(available)),
        }
    }

    /// Notes bytes of a fragment as taken; whether there were any.
    fn taken(&mut self, count: usize) -> bool {
        self.from += count;
        self.fragment_left -= count;
        count > 0
    }

    fn take_mark(&mut self) -> Result<bool, &'static str> {
        let count = (MARK_BYTES - self.mark_bytes).min(self.to - self.from);
        let mark = &mut self.mark[self.mark_bytes..][..count];
        mark.copy_from_slice(&self.buffer[self.from..][..count]);
        self.from += count;
        self.mark_bytes += count;
        if self.mark_bytes < MARK_BYTES {
            return Ok(false);
        }
        let mark = Mark::of(self.mark);
        self.mark_bytes = 0;
        (self.is_last, self.fragment_left) = (mark.is_last, mark.bytes as usize);
        self.in_record = true;
        self.fragments += 1;
        self.record_bytes += self.fragment_left;
        if self.record_bytes > RECORD_BYTES_MAX || self.fragments > FRAGMENTS_MAX {
            return Err("a record is longer than any reply");
        }
        Ok(true)
    }

    fn take_head(&mut self, available: usize) -> Result<bool, &'static str> {
        let wanted = self.wanted_of_head();
        if !matches!(self.step, Step::Head) {
            return Ok(true);
        }
        let count = available.min(wanted - self.head.len());
        if self.head.len() + count > HEAD_BYTES_MAX {
            return Err("the head of a reply is longer than any");
        }
        self.head.extend(&self.buffer[self.from..][..count]);
        Ok(self.taken(count))
    }

    /// How long the head has to be before more can be said; or another step begins.
    fn wanted_of_head(&mut self) -> usize {
        let Ok(xid) = Reader::new(&self.head).u32() else { return 4 };
        let Some(memory) = self.expected.get(&xid).copied() else {
            self.step = Step::Skip;
            return 0;
        };
        if memory.bytes == 0 {
            return usize::MAX;
        }
        match rpc::payload_of_read(&self.head) {
            Payload::Needs(bytes) => bytes,
            Payload::None => usize::MAX,
            // More than was asked for: it goes nowhere, and whoever waits sees by the number that it did not fit.
            Payload::Follows(bytes) if bytes > memory.bytes => {
                self.step = Step::Padding { xid, placed: bytes };
                0
            }
            Payload::Follows(bytes) => {
                self.step = Step::Data { xid, memory, placed: 0, left: bytes };
                0
            }
        }
    }

    fn end_record(&mut self, replies: &mut Vec<Reply>) -> Result<(), &'static str> {
        let head = std::mem::take(&mut self.head);
        let ended = match std::mem::replace(&mut self.step, Step::Head) {
            Step::Skip => None,
            Step::Head => {
                let xid = Reader::new(&head).u32().map_err(|_| "a record is too short for a reply")?;
                self.expected.contains_key(&xid).then_some((xid, None))
            }
            Step::Data { xid, placed, .. } | Step::Padding { xid, placed } => Some((xid, Some(placed))),
        };
        (self.in_record, self.fragments, self.record_bytes) = (false, 0, 0);
        if let Some((xid, data_bytes)) = ended {
            self.no_longer(xid);
            replies.push(Reply { xid, head, data_bytes, failure: None });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::tests::{accepted, read_results};
    use weft_test_random::{Random, seed};

    /// A record in fragments of at most so many bytes.
    fn record(bytes: &[u8], fragment_bytes: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        let fragments: Vec<&[u8]> = bytes.chunks(fragment_bytes).collect();
        for (number, fragment) in fragments.iter().enumerate() {
            let is_last = number + 1 == fragments.len();
            stream.extend(Mark { is_last, bytes: fragment.len() as u32 }.to_bytes());
            stream.extend(*fragment);
        }
        stream
    }

    fn read_reply(xid: u32, data: &[u8]) -> Vec<u8> {
        let mut reply = accepted(xid, &read_results(data.len() as u32, true));
        reply.extend(data);
        reply.resize(reply.len().next_multiple_of(4), 0);
        reply
    }

    /// Gives the stream in parts, as a socket would.
    fn feed(
        incoming: &mut Incoming,
        mut stream: &[u8],
        part: &mut dyn FnMut() -> usize,
    ) -> Result<Vec<Reply>, &'static str> {
        let mut replies = Vec::new();
        while !stream.is_empty() {
            let room = incoming.room();
            let mut count = part().min(stream.len()).min(room[0].iov_len + room[1].iov_len);
            let given = count;
            for piece in room {
                let now = count.min(piece.iov_len);
                // SAFETY: the room is writable.
                unsafe { piece.iov_base.cast::<u8>().copy_from(stream.as_ptr(), now) };
                stream = &stream[now..];
                count -= now;
            }
            incoming.received(given, &mut replies)?;
        }
        Ok(replies)
    }

    #[test]
    fn replies_in_any_parts_and_fragments_are_put_together() {
        let mut random = Random(seed());
        for _ in 0..300 {
            let mut incoming = Incoming::new();
            let mut stream = Vec::new();
            let data: Vec<Vec<u8>> = (0..6u8)
                .map(|number| {
                    vec![number + 1; random.below([1, 10, 5000, 100_000][number as usize % 4]) as usize]
                })
                .collect();
            let mut memory: Vec<Vec<u8>> = data.iter().map(|data| vec![0; data.len() + 1]).collect();
            for (xid, (data, memory)) in data.iter().zip(&mut memory).enumerate() {
                let fragment_bytes = 3 + random.below([3, 100, 100_000][xid % 3]) as usize;
                let place = Memory { start: memory.as_mut_ptr(), bytes: memory.len() };
                // SAFETY: the memory lives as long as the test.
                unsafe { incoming.expect(xid as u32, place) };
                stream.extend(record(&read_reply(xid as u32, data), fragment_bytes));
                // Nobody waits for this one.
                stream.extend(record(&read_reply(99, data), fragment_bytes));
            }
            // SAFETY: no memory.
            unsafe { incoming.expect(50, Memory::NONE) };
            stream.extend(record(&accepted(50, b"plain"), 7));
            let part_max = [1, 7, 3000, 1 << 20][random.below(4) as usize];
            let replies = feed(&mut incoming, &stream, &mut || 1 + random.below(part_max) as usize).unwrap();
            assert_eq!(replies.len(), 7);
            for (xid, reply) in replies[..6].iter().enumerate() {
                assert_eq!((reply.xid, reply.data_bytes.unwrap_or(0)), (xid as u32, data[xid].len()));
                assert!(memory[xid].starts_with(&data[xid]), "the data are in the caller's memory");
                assert_eq!(memory[xid][data[xid].len()], 0, "and nothing behind them");
            }
            assert_eq!(
                replies[6],
                Reply { xid: 50, head: accepted(50, b"plain"), data_bytes: None, failure: None }
            );
        }
    }

    #[test]
    fn large_data_are_not_copied() {
        let (mut incoming, mut memory) = (Incoming::new(), vec![0u8; 1 << 20]);
        // SAFETY: the memory lives as long as the test.
        unsafe { incoming.expect(1, Memory { start: memory.as_mut_ptr(), bytes: memory.len() }) };
        let stream = record(&read_reply(1, &[7; 1 << 20]), 1 << 30);
        let [none, small] = incoming.room();
        assert_eq!((none.iov_len, small.iov_len), (0, SMALL_ROOM_BYTES));
        feed(&mut incoming, &stream[..small.iov_len], &mut || usize::MAX).unwrap();
        let [data, _] = incoming.room();
        assert!(data.iov_len > memory.len() - small.iov_len, "the rest goes straight");
    }

    #[test]
    fn what_is_forgotten_is_not_written_to() {
        let (mut incoming, mut memory) = (Incoming::new(), vec![0u8; 100]);
        // SAFETY: the memory lives as long as the test.
        unsafe { incoming.expect(1, Memory { start: memory.as_mut_ptr(), bytes: memory.len() }) };
        let stream = record(&read_reply(1, &[7; 100]), 1 << 30);
        let (first, rest) = stream.split_at(stream.len() - 50);
        assert!(feed(&mut incoming, first, &mut || usize::MAX).unwrap().is_empty());
        incoming.forget(1);
        assert!(feed(&mut incoming, rest, &mut || usize::MAX).unwrap().is_empty());
        assert_eq!((memory[49], memory[50]), (7, 0));
    }

    #[test]
    fn more_data_than_asked_for_go_nowhere() {
        let (mut incoming, mut memory) = (Incoming::new(), vec![0u8; 10]);
        // SAFETY: the memory lives as long as the test.
        unsafe { incoming.expect(1, Memory { start: memory.as_mut_ptr(), bytes: memory.len() }) };
        let replies = feed(&mut incoming, &record(&read_reply(1, &[7; 11]), 99), &mut || 5).unwrap();
        assert_eq!((replies[0].data_bytes, memory), (Some(11), vec![0; 10]));
    }

    #[test]
    fn a_stream_that_cannot_be_is_refused() {
        let stream_of = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
        let refused = |stream: &[u8]| feed(&mut Incoming::new(), stream, &mut || usize::MAX).is_err();
        assert!(refused(&stream_of(&[0x7fff_ffff])), "a huge fragment");
        assert!(refused(&stream_of(&[0x8000_0000])), "an empty record");
        assert!(refused(&stream_of(&[0x8000_0002])) || refused(&[0x80, 0, 0, 2, 1, 2]), "no number");
        assert!(refused(&stream_of(&[0; FRAGMENTS_MAX as usize + 1])), "fragments without end");
        let mut incoming = Incoming::new();
        // SAFETY: no memory.
        unsafe { incoming.expect(1, Memory::NONE) };
        let mut long = accepted(1, &[]);
        long.resize(HEAD_BYTES_MAX + 4, 0);
        assert!(feed(&mut incoming, &record(&long, 1 << 30), &mut || usize::MAX).is_err(), "a huge head");
    }

    #[test]
    fn damaged_streams_are_fuzzed() {
        let right = [
            record(&read_reply(1, b"some data"), 20),
            record(&accepted(2, b"plain"), 1 << 20),
            record(&accepted(1, &[0, 0, 0, 70]), 9),
        ];
        weft_test_fuzz::run("nfs-stream", &right, |stream| {
            let (mut incoming, mut memory) = (Incoming::new(), [0u8; 12]);
            let place = Memory { start: memory.as_mut_ptr(), bytes: 10 };
            // SAFETY: the memory lives longer than the stream.
            unsafe {
                incoming.expect(1, place);
                incoming.expect(2, Memory::NONE);
            }
            let _ = feed(&mut incoming, stream, &mut || 13);
            assert_eq!(memory[10..], [0, 0], "nothing is written behind the memory");
        });
    }
}
