//! Measuring what accesses cost in a directory.
//!
//! A measured point is the median over batches of accesses that walk over a few MiB, at addresses that are not
//! aligned to anything, as pieces of files are. What is read from the device was written, synced and dropped
//! from the page cache before. A point that finds no time any more is left out; a curve with fewer than two
//! points stays as it is by default.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use weft_layout::Extent;

use crate::cost::{CostModel, Curve};
use crate::directory::{DATA_DIRECTORY, is_in_memory};
use crate::disk::check;
use crate::residency;
use weft_buffers::Mapping;

/// A measurement ends within about this time, however slow the disk.
const TIME_MAX: Duration = Duration::from_millis(1200);
/// Part of the scratch file that stays cached.
const CACHED_BYTES: u64 = 8 << 20;
/// Part of the scratch file that is dropped from the cache again and again.
const DEVICE_BYTES: u64 = 8 << 20;
/// Free space without which nothing is measured: running full in a mapping would end the server.
const ROOM_BYTES: u64 = 256 << 20;
/// Reads under way at once at the device.
const DEPTH: usize = 32;
/// Lengths measured in the cache and in memory.
const CACHED_SIZES: [u64; 7] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Time for each of these points.
const POINT_TIME: Duration = Duration::from_millis(2);
/// Lengths measured at the device, and how many at once of each.
const DEVICE_READS: [(u64, usize); 6] =
    [(64, DEPTH), (4 << 10, DEPTH), (16 << 10, DEPTH), (64 << 10, DEPTH), (256 << 10, 24), (1 << 20, 6)];
/// How many times.
const DEVICE_BATCHES: usize = 5;
const DEVICE_WRITES: [(u64, usize); 4] = [(64, 12), (4 << 10, 12), (64 << 10, 6), (256 << 10, 3)];
/// Distance of pieces at the device, so that none finds its page brought in by its neighbour.
const DEVICE_GAP_BYTES: u64 = 16 << 10;
/// Pieces begin this far behind round addresses.
const UNALIGNED: u64 = 24;

/// Measures everything, in about a second at most.
pub(crate) fn measure(directory: &Path, with_ring: bool) -> io::Result<(CostModel, Duration)> {
    let begun = Instant::now();
    let mut scratch = Scratch::make(directory, begun + TIME_MAX)?;
    let mut model = CostModel::default();
    scratch.memory(&mut model);
    scratch.cached(&mut model, if with_ring { libc::RWF_NOWAIT } else { 0 })?;
    scratch.mapped(&mut model)?;
    if scratch.drop_from_cache()? {
        scratch.device_reads(&mut model, with_ring)?;
        scratch.device_writes(&mut model)?;
        scratch.syncs(&mut model)?;
    } else {
        model.read_device = model.read_cached.clone();
        model.write_device = model.write_cached.clone();
        let free = vec![(4 << 10, 0), (1 << 20, 0)];
        model.sync = Curve::new(free).map_err(io::Error::other)?;
    }
    Ok((model, begun.elapsed()))
}

/// The file to measure on, and memory to move it through.
struct Scratch {
    file: File,
    in_memory: bool,
    deadline: Instant,
    buffer: Vec<u8>,
    other: Vec<u8>,
    /// What writing a page cost that was new, by median.
    fresh_page_ns: u64,
}

impl Scratch {
    fn make(directory: &Path, deadline: Instant) -> io::Result<Scratch> {
        let data = directory.join(DATA_DIRECTORY);
        let path = data.join("calibration");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        let in_memory = is_in_memory(&file)?;
        enough_room(&file)?;
        let mut scratch = Scratch {
            file,
            in_memory,
            deadline,
            buffer: noise(1 << 20),
            other: noise(1 << 20),
            fresh_page_ns: 0,
        };
        let bytes = if in_memory { CACHED_BYTES } else { CACHED_BYTES + DEVICE_BYTES };
        let mut samples = Vec::new();
        for at in (0..bytes).step_by(scratch.buffer.len()) {
            let begun = Instant::now();
            scratch.file.write_all_at(&scratch.buffer, at)?;
            samples.push(begun.elapsed().as_nanos() as u64 / (scratch.buffer.len() as u64 / 4096));
            scratch.buffer[at as usize >> 12] ^= 1;
        }
        scratch.fresh_page_ns = median(&mut samples);
        Ok(scratch)
    }

    /// Points for every size, as far as there is time. `access` does one access at an offset below `end` and may be
    /// repeated at will.
    fn curve(
        &mut self,
        end: u64,
        mut access: impl FnMut(&mut Scratch, u64, usize) -> io::Result<()>,
    ) -> io::Result<Vec<(u64, u64)>> {
        let mut points = Vec::new();
        for bytes in CACHED_SIZES {
            let mut walk = Walk::new(bytes, end);
            let batch = ((64 << 10) / bytes).clamp(1, 128);
            let mut samples = Vec::new();
            let begun = Instant::now();
            while samples.len() < 3 || begun.elapsed() < POINT_TIME {
                let batch_begun = Instant::now();
                for _ in 0..batch {
                    let at = walk.next();
                    access(self, at, bytes as usize)?;
                }
                samples.push(batch_begun.elapsed().as_nanos() as u64 / batch);
            }
            // What came first found cold caches and is no median of anything.
            points.push((bytes, median(&mut samples[1..])));
            if Instant::now() > self.deadline {
                break;
            }
        }
        Ok(points)
    }

    fn memory(&mut self, model: &mut CostModel) {
        let end = self.other.len() as u64;
        let mut filled = 0;
        let points = self.curve(end, |scratch, at, bytes| {
            let at = (at as usize).min(scratch.other.len() - bytes);
            filled = if filled + bytes > scratch.buffer.len() { 0 } else { filled };
            scratch.buffer[filled..filled + bytes].copy_from_slice(&scratch.other[at..at + bytes]);
            filled += bytes;
            Ok(())
        });
        set(&mut model.copy, points.unwrap_or_default());
        // As much as a set of ranges under a lock does for a range that comes and goes.
        let ranges = Mutex::new(std::collections::BTreeMap::new());
        let lock = || ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        const TIMES: u64 = 1000;
        for at in 0..TIMES {
            lock().insert(at, at + 1);
            lock().remove(&at);
        }
        model.lock_ns = begun.elapsed().as_nanos() as u64 / TIMES;
    }

    fn cached(&mut self, model: &mut CostModel, flags: i32) -> io::Result<()> {
        // A file system without RWF_NOWAIT is read without.
        let flags = if self.read(0, 1, flags).is_ok() { flags } else { 0 };
        let points = self.curve(CACHED_BYTES, |scratch, at, bytes| scratch.read(at, bytes, flags))?;
        set(&mut model.read_cached, points);
        let points = self.curve(CACHED_BYTES, |scratch, at, bytes| {
            scratch.file.write_all_at(&scratch.buffer[..bytes], at)
        })?;
        set(&mut model.write_cached, points);
        let long = 1 << 20;
        let again_ns = model.write_cached.cost_ns(long) / (long / 4096) as f64;
        model.new_page_ns = self.fresh_page_ns.saturating_sub(again_ns as u64);
        Ok(())
    }

    fn read(&mut self, at: u64, bytes: usize, flags: i32) -> io::Result<()> {
        let to = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: bytes };
        assert!(bytes <= self.buffer.len());
        // SAFETY: the vector describes the beginning of a live, writable buffer.
        check(unsafe { libc::preadv2(self.file.as_raw_fd(), &to, 1, at as i64, flags) }).map(drop)
    }

    fn mapped(&mut self, model: &mut CostModel) -> io::Result<()> {
        let map = |scratch: &Scratch| Mapping::of_file(scratch.file.as_raw_fd(), 0, CACHED_BYTES as usize);
        model.page_fault_ns = enter(&map(self)?, |page| {
            // SAFETY: the page is mapped, and the file reaches beyond it and is cut by nobody.
            unsafe { page.read_volatile() };
        });
        let mapping = map(self)?;
        model.page_fault_write_ns = enter_in_one(&mapping, &self.file);
        // SAFETY: as above.
        model.page_fault_write_ns += enter(&mapping, |page| unsafe { page.write_volatile(1) });
        let mut at_buffer = 0;
        let mut place = |bytes: usize, buffer_bytes: usize| {
            at_buffer = if at_buffer + bytes > buffer_bytes { 0 } else { at_buffer };
            at_buffer += bytes;
            at_buffer - bytes
        };
        let points = self.curve(CACHED_BYTES, |scratch, at, bytes| {
            let place = place(bytes, scratch.buffer.len());
            let to = &mut scratch.buffer[place..place + bytes];
            // SAFETY: both are `bytes` long, the mapping from `at` on; they are different memory.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(mapping.as_ptr().add(at as usize), bytes) };
            Ok(())
        })?;
        set(&mut model.mapped_read, points);
        let points = self.curve(CACHED_BYTES, |scratch, at, bytes| {
            let place = place(bytes, scratch.buffer.len());
            let from = &scratch.buffer[place..place + bytes];
            // SAFETY: as above.
            unsafe { mapping.as_ptr().add(at as usize).copy_from_nonoverlapping(from.as_ptr(), bytes) };
            Ok(())
        })?;
        set(&mut model.mapped_write, points);
        Ok(())
    }

    /// Makes all of the file clean and the part for the device uncached; `false` where it stays cached.
    fn drop_from_cache(&mut self) -> io::Result<bool> {
        if self.in_memory || Instant::now() > self.deadline {
            return Ok(false);
        }
        self.file.sync_data()?;
        let (from, bytes) = (CACHED_BYTES as i64, DEVICE_BYTES as i64);
        // SAFETY: no memory is passed. It is a hint; whether it was taken is looked at below.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), from, bytes, libc::POSIX_FADV_DONTNEED) };
        Ok(!residency::is_cached(&self.file, Extent { offset: CACHED_BYTES, bytes: DEVICE_BYTES }))
    }

    fn device_reads(&mut self, model: &mut CostModel, with_ring: bool) -> io::Result<()> {
        let mut ring = if with_ring { Some(IoUring::new(DEPTH as u32)?) } else { None };
        let mut scrap = vec![0; 1 << 20];
        let mut points = Vec::new();
        for (bytes, count) in DEVICE_READS {
            let mut samples = Vec::new();
            while samples.len() < DEVICE_BATCHES && Instant::now() < self.deadline {
                self.drop_from_cache()?;
                let places = device_places(CACHED_BYTES, bytes, count);
                let begun = Instant::now();
                if let Some(ring) = &mut ring
                    && let Err(error) = fetch(ring, &self.file, &places, bytes, &mut scrap)
                {
                    // The kernel may still write to it.
                    std::mem::forget(scrap);
                    return Err(error);
                }
                for at in &places {
                    self.read(*at, bytes as usize, 0)?;
                }
                samples.push(begun.elapsed().as_nanos() as u64 / places.len() as u64);
            }
            if !samples.is_empty() {
                points.push((bytes, median(&mut samples)));
            }
        }
        set(&mut model.read_device, points);
        Ok(())
    }

    fn device_writes(&mut self, model: &mut CostModel) -> io::Result<()> {
        self.drop_from_cache()?;
        let mut points = Vec::new();
        let mut begin = CACHED_BYTES;
        for (bytes, count) in DEVICE_WRITES {
            let mut samples = Vec::new();
            let places = device_places(begin, bytes, count);
            begin = places.last().map_or(begin, |last| last - UNALIGNED + device_step(bytes));
            for at in places {
                if Instant::now() > self.deadline {
                    break;
                }
                let begun = Instant::now();
                self.file.write_all_at(&self.buffer[..bytes as usize], at)?;
                samples.push(begun.elapsed().as_nanos() as u64);
            }
            if !samples.is_empty() {
                points.push((bytes, median(&mut samples)));
            }
        }
        set(&mut model.write_device, points);
        Ok(())
    }

    fn syncs(&mut self, model: &mut CostModel) -> io::Result<()> {
        self.file.sync_data()?;
        let mut points = Vec::new();
        for bytes in [4 << 10, 256 << 10, 1 << 20] {
            let mut samples = Vec::new();
            for at in [0, 1 << 20, 2 << 20] {
                if Instant::now() > self.deadline {
                    break;
                }
                self.file.write_all_at(&self.buffer[..bytes as usize], at)?;
                let begun = Instant::now();
                self.file.sync_data()?;
                samples.push(begun.elapsed().as_nanos() as u64);
            }
            if !samples.is_empty() {
                points.push((bytes, median(&mut samples)));
            }
        }
        set(&mut model.sync, points);
        Ok(())
    }
}

/// Up to `count` places for `bytes` each that share no page, from `begin` to the file's end.
fn device_places(begin: u64, bytes: u64, count: usize) -> Vec<u64> {
    let room = (CACHED_BYTES + DEVICE_BYTES - begin) / device_step(bytes);
    (0..room.min(count as u64)).map(|n| begin + n * device_step(bytes) + UNALIGNED).collect()
}

fn device_step(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096) + DEVICE_GAP_BYTES
}

/// Brings pieces into the page cache through a ring, all at once. After an error reads may still be under way.
fn fetch(ring: &mut IoUring, file: &File, places: &[u64], bytes: u64, scrap: &mut [u8]) -> io::Result<()> {
    assert!(bytes as usize <= scrap.len() && places.len() <= DEPTH);
    for at in places {
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), scrap.as_mut_ptr(), bytes as u32);
        // SAFETY: `scrap` is at least `bytes` long; the caller keeps it until all reads have ended.
        let pushed = unsafe { ring.submission().push(&entry.offset(*at).build()) };
        pushed.map_err(io::Error::other)?;
    }
    let mut wanted = places.len();
    let mut result = Ok(());
    while wanted > 0 {
        match ring.submit_and_wait(wanted) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for done in ring.completion() {
            wanted -= 1;
            if done.result() < 0 {
                result = Err(io::Error::from_raw_os_error(-done.result()));
            }
        }
    }
    result
}

/// Touches every page of a fresh mapping once: nanoseconds per page.
fn enter(mapping: &Mapping, touch: impl Fn(*mut u8)) -> u64 {
    let pages = mapping.bytes() / 4096;
    let begun = Instant::now();
    for page in 0..pages {
        // SAFETY: within the mapping.
        touch(unsafe { mapping.as_ptr().add(page * 4096) });
    }
    begun.elapsed().as_nanos() as u64 / pages as u64
}

/// What a page costs when many are entered by one call, in nanoseconds; 0 where that is not done.
fn enter_in_one(mapping: &Mapping, file: &File) -> u64 {
    if !is_in_memory(file).unwrap_or(false) {
        return 0;
    }
    let begun = Instant::now();
    mapping.enter(0, mapping.bytes());
    begun.elapsed().as_nanos() as u64 / (mapping.bytes() / 4096) as u64
}

/// Offsets of accesses of some length that walk over a range again and again, past other bytes than before.
struct Walk {
    bytes: u64,
    step: u64,
    end: u64,
    at: u64,
    round: u64,
}

impl Walk {
    fn new(bytes: u64, end: u64) -> Walk {
        let step = if bytes <= 64 << 10 { bytes * 5 } else { bytes + (68 << 10) };
        Walk { bytes, step, end, at: UNALIGNED, round: 0 }
    }

    fn next(&mut self) -> u64 {
        if self.at + self.bytes > self.end {
            self.round += 1;
            self.at = UNALIGNED + self.round * self.bytes % self.step;
            if self.at + self.bytes > self.end {
                self.at = 0;
            }
        }
        let at = self.at;
        self.at += self.step;
        at
    }
}

/// Replaces a curve where enough was measured.
fn set(curve: &mut Curve, points: Vec<(u64, u64)>) {
    if let Ok(measured) = Curve::measured(points) {
        *curve = measured;
    }
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// Bytes that no file system compresses.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut words = Vec::with_capacity(bytes);
    while words.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words
}

fn enough_room(file: &File) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `statvfs`.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live and writable.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if stat.f_bavail * stat.f_frsize < ROOM_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            "there is too little free space to measure in",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_at_the_device_are_within_the_file() {
        for (bytes, count) in DEVICE_READS {
            let places = device_places(CACHED_BYTES, bytes, count);
            assert_eq!(places.len(), count);
            assert!(places.last().unwrap() + bytes <= CACHED_BYTES + DEVICE_BYTES);
        }
    }

    #[test]
    fn a_walk_stays_within_its_range() {
        for bytes in CACHED_SIZES {
            let mut walk = Walk::new(bytes, CACHED_BYTES);
            assert!((0..10_000).all(|_| walk.next() + bytes <= CACHED_BYTES));
        }
    }
}
