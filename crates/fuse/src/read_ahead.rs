//! Reading ahead for files that are read in order past the page cache.
//!
//! ```text
//!   reader    read 0 │ read 1 │ read 2 │ read 3 │ …          each begins when the one before has ended
//!   chunks                      [─── a ───][─── b ───] …      the servers fill b while the reader copies a
//! ```
//!
//! **When.** A reader that goes on where it stopped gets chunks fetched: as many bytes as it has read in order, up to
//! [`CHUNK_BYTES_MAX`], and a whole number of its requests, so that none lies across two chunks. A request elsewhere ends it.
//! So what is fetched for nothing is little against what was read.
//!
//! **By whom.** The thread that has answered a request fetches the next chunk, and waits for it; the reader's next request is
//! another thread's. So nothing is left under way on a connection when the reader stops.
//!
//! **Never stale.** A chunk is good for as long as attributes are, and only while nothing has changed the file through this
//! mount: every change counts the file's [`Epochs`] up when it is done and before it is acknowledged, and a chunk bears the
//! count and the time from before it was asked for. What is not good, or does not reach far enough, is read from the servers.

use crate::kernel::answer::Answer;
use crate::outcome::Errno;
use crate::read_buffer::{LentChunk, ReadBuffers};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use weft_client::{Client, File};

/// The most that is asked for at once: enough that waking the servers costs little, and so little that it is still in a
/// processor's cache when the reader gets it. Measured; see `docs/decisions/0017-what-was-tried-for-speed.md`.
pub(crate) const CHUNK_BYTES_MAX: u64 = 2 << 20;
/// Chunks of one open file: the reader is in the first, the others are being filled.
const CHUNKS_MAX: usize = 3;
/// To be read in order before anything is fetched ahead, and two requests at least.
const RUN_BYTES_MIN: u64 = 128 << 10;
/// Counters of changes; files that share one only lose a chunk now and then.
const EPOCHS: usize = 1024;

/// How often files were changed through this mount.
pub(crate) struct Epochs(Box<[AtomicU64]>);

impl Default for Epochs {
    fn default() -> Epochs {
        Epochs((0..EPOCHS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Epochs {
    fn of(&self, ino: u64) -> &AtomicU64 {
        &self.0[ino as usize % EPOCHS]
    }

    /// Something has changed the contents of `ino`, or tried to.
    pub(crate) fn changed(&self, ino: u64) {
        self.of(ino).fetch_add(1, Ordering::SeqCst);
    }

    /// The count of changes so far.
    pub(crate) fn now(&self, ino: u64) -> u64 {
        self.of(ino).load(Ordering::SeqCst)
    }
}

/// What a read needs besides its place.
pub(crate) struct Reader<'a> {
    pub(crate) client: &'a Client,
    pub(crate) buffers: &'a Arc<ReadBuffers>,
    pub(crate) epochs: &'a Epochs,
    pub(crate) file: &'a File,
    /// How long a chunk is valid.
    pub(crate) valid: Duration,
    /// The size of the file, if it is known.
    pub(crate) told_bytes: Option<u64>,
}

impl Reader<'_> {
    fn circumstances(&self) -> Circumstances {
        Circumstances {
            epoch: self.epochs.now(self.file.ino()),
            now: Instant::now(),
            valid: self.valid,
            file_bytes: self.file.attr().size,
        }
    }

    /// Reads from the servers. What lies beyond the end of a file is not asked for, where that is known: the server that has
    /// no more bytes of the file does not know whether another one has.
    pub(crate) fn read(&self, offset: u64, bytes: usize, mut answer: impl Answer) {
        let body = answer.body();
        let left = self.told_bytes.map_or(u64::MAX, |told| told.saturating_sub(offset));
        let room = bytes.min(body.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut body[..room], offset);
        answer.send(read.map_err(Errno::from));
    }
}

/// What decides which chunks are good, and which are wanted.
struct Circumstances {
    epoch: u64,
    now: Instant,
    valid: Duration,
    /// Nothing is fetched from beyond it.
    file_bytes: u64,
}

/// A part of the file that is fetched ahead.
struct Chunk {
    offset: u64,
    bytes: u64,
    /// As it was before the chunk was asked for.
    epoch: u64,
    planned: Instant,
    /// `None` if it could not be read.
    filled: OnceLock<Option<Filled>>,
}

struct Filled {
    memory: LentChunk,
    /// Those below the end of the file.
    bytes: usize,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    fn is_good(&self, circumstances: &Circumstances) -> bool {
        let age = circumstances.now.saturating_duration_since(self.planned);
        self.epoch == circumstances.epoch && age < circumstances.valid
    }

    /// Its bytes. Who asks first reads them, and others wait.
    fn fetch(&self, reader: &Reader<'_>) -> Option<&[u8]> {
        let filled = self.filled.get_or_init(|| {
            let mut memory = reader.buffers.take_chunk(reader.client)?;
            let bytes = reader.file.read_at(memory.get_mut(..self.bytes as usize)?, self.offset).ok()?;
            Some(Filled { memory, bytes })
        });
        filled.as_ref().map(|filled| &filled.memory[..filled.bytes])
    }
}

/// How one open file is read.
#[derive(Default)]
struct Stream {
    /// Where a request in order begins.
    next: u64,
    /// Read in order up to there.
    run_bytes: u64,
    chunks: VecDeque<Arc<Chunk>>,
}

/// What to do about a request.
struct Plan {
    /// Where its data is or will be.
    source: Option<Arc<Chunk>>,
    /// To be fetched when the request has been answered.
    ahead: Option<Arc<Chunk>>,
}

impl Stream {
    fn plan(&mut self, circumstances: &Circumstances, offset: u64, bytes: u64) -> Plan {
        let end = offset + bytes;
        self.chunks.retain(|chunk| chunk.is_good(circumstances));
        let source = self.chunks.iter().find(|chunk| chunk.offset <= offset && end <= chunk.end()).cloned();
        if offset == self.next {
            (self.next, self.run_bytes) = (end, self.run_bytes + bytes);
        } else if source.is_none() {
            *self = Stream { next: end, run_bytes: bytes, chunks: VecDeque::new() };
        }
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= offset) {
            self.chunks.pop_front();
        }
        Plan { source, ahead: self.extend(circumstances, bytes) }
    }

    /// Plans the next chunk, where the reader has come far enough for one.
    fn extend(&mut self, circumstances: &Circumstances, request_bytes: u64) -> Option<Arc<Chunk>> {
        let offset = self.chunks.back().map_or(self.next, |chunk| chunk.end());
        let in_order = self.run_bytes >= RUN_BYTES_MIN.max(2 * request_bytes);
        let fits = (1..=CHUNK_BYTES_MAX).contains(&request_bytes);
        if !in_order || !fits || self.chunks.len() >= CHUNKS_MAX || offset >= circumstances.file_bytes {
            return None;
        }
        let requests = self.run_bytes.min(CHUNK_BYTES_MAX) / request_bytes;
        let chunk = Arc::new(Chunk {
            offset,
            bytes: requests * request_bytes,
            epoch: circumstances.epoch,
            planned: circumstances.now,
            filled: OnceLock::new(),
        });
        self.chunks.push_back(chunk.clone());
        Some(chunk)
    }
}

/// The reading ahead of one open file.
#[derive(Default)]
pub(crate) struct ReadAhead(Mutex<Stream>);

impl ReadAhead {
    /// Answers with `bytes` from `offset` on, from a chunk where there is one, and fetches what comes next.
    pub(crate) fn read(&self, reader: &Reader<'_>, offset: u64, bytes: usize, mut answer: impl Answer) {
        let circumstances = reader.circumstances();
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Plan { source, ahead } = stream.plan(&circumstances, offset, bytes as u64);
        drop(stream);
        let data = source.as_ref().and_then(|chunk| {
            let from = (offset - chunk.offset) as usize;
            let data = chunk.fetch(reader)?.get(from..from + bytes)?;
            chunk.is_good(&reader.circumstances()).then_some(data)
        });
        if ahead.is_some() {
            answer.at_once();
        }
        match data {
            Some(data) => answer.send_data(data),
            None => reader.read(offset, bytes, answer),
        }
        // Its memory may be the next chunk's.
        drop(source);
        if let Some(chunk) = ahead {
            chunk.fetch(reader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn circumstances() -> Circumstances {
        Circumstances { epoch: 7, now: Instant::now(), valid: Duration::from_secs(1), file_bytes: 100 * MIB }
    }

    /// A stream that was read in order up to `end`.
    fn stream_at(circumstances: &Circumstances, end: u64, request_bytes: u64) -> Stream {
        let mut stream = Stream::default();
        (0..end / request_bytes).for_each(|at| {
            stream.plan(circumstances, at * request_bytes, request_bytes);
        });
        stream
    }

    #[test]
    fn the_first_request_fetches_nothing_ahead_and_neither_do_small_ones() {
        let circumstances = circumstances();
        assert!(Stream::default().plan(&circumstances, 0, MIB).ahead.is_none());
        let mut stream = Stream::default();
        let begun: Vec<u64> =
            (0..40).filter(|at| stream.plan(&circumstances, at * 4096, 4096).ahead.is_some()).collect();
        assert_eq!(begun.first(), Some(&31));
    }

    #[test]
    fn a_chunk_is_no_longer_than_what_was_read_in_order() {
        let circumstances = circumstances();
        let mut stream = Stream { next: 50 * MIB, ..Stream::default() };
        let mut read_bytes = 0;
        for at in 0..30 {
            read_bytes += 100_000;
            let plan = stream.plan(&circumstances, 50 * MIB + at * 100_000, 100_000);
            assert!(plan.ahead.is_none_or(|chunk| chunk.bytes <= read_bytes.min(CHUNK_BYTES_MAX)));
        }
    }

    #[test]
    fn requests_of_one_size_never_lie_across_chunks() {
        for request_bytes in [4096, 10_000, 128 << 10, 1_000_000, MIB] {
            let circumstances = circumstances();
            let mut stream = Stream::default();
            let from_chunks = (0..50 * MIB / request_bytes)
                .skip_while(|at| {
                    stream.plan(&circumstances, at * request_bytes, request_bytes).ahead.is_none()
                })
                .skip(1)
                .collect::<Vec<_>>();
            for at in from_chunks {
                let plan = stream.plan(&circumstances, at * request_bytes, request_bytes);
                assert!(plan.source.is_some(), "request {at} of {request_bytes}");
                assert!(stream.chunks.len() <= CHUNKS_MAX);
            }
        }
    }

    #[test]
    fn a_request_elsewhere_ends_it() {
        let circumstances = circumstances();
        let mut stream = stream_at(&circumstances, 8 * MIB, MIB);
        assert!(!stream.chunks.is_empty());
        let plan = stream.plan(&circumstances, 70 * MIB, MIB);
        assert!(plan.source.is_none() && plan.ahead.is_none() && stream.chunks.is_empty());
    }

    #[test]
    fn a_request_that_is_overtaken_is_no_jump() {
        let circumstances = circumstances();
        let mut stream = stream_at(&circumstances, 8 * MIB, 128 << 10);
        for offset in [(8 * MIB) + (128 << 10), 8 * MIB] {
            assert!(stream.plan(&circumstances, offset, 128 << 10).source.is_some());
        }
    }

    #[test]
    fn nothing_is_used_after_a_change_or_for_too_long() {
        let begin = circumstances();
        let changed = Circumstances { epoch: 8, ..circumstances() };
        let late = Circumstances { now: begin.now + begin.valid, ..circumstances() };
        for (later, good) in [(&begin, true), (&changed, false), (&late, false)] {
            let mut stream = stream_at(&begin, 8 * MIB, MIB);
            let chunk = stream.chunks.back().unwrap().clone();
            assert_eq!(chunk.is_good(later), good);
            assert_eq!(stream.plan(later, 8 * MIB, MIB).source.is_some(), good);
            assert_eq!(stream.chunks.iter().any(|other| Arc::ptr_eq(other, &chunk)), good);
        }
    }

    #[test]
    fn nothing_is_fetched_from_beyond_the_end() {
        let circumstances = Circumstances { file_bytes: 3 * MIB, ..circumstances() };
        let mut stream = stream_at(&circumstances, 3 * MIB, MIB);
        assert!(stream.chunks.iter().all(|chunk| chunk.offset < 3 * MIB));
        assert!(stream.plan(&circumstances, 3 * MIB, MIB).ahead.is_none());
    }

    #[test]
    fn a_change_is_seen_of_the_file_itself() {
        let epochs = Epochs::default();
        epochs.changed(5);
        assert_eq!(epochs.of(5).load(Ordering::SeqCst), 1);
        assert_eq!(epochs.of(6).load(Ordering::SeqCst), 0);
    }
}
