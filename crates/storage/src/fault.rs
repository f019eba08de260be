//! A disk that fails on purpose, by a seed: for tests of everything above the seam.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_layout::Extent;

use crate::disk::{Disk, ObjectInfo, Seek, Space};
use crate::sums_directory::SumsDirectory;

/// What goes wrong, and how often. Rates are in thousandths of the operations of that kind; the default
/// is that nothing does.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultPlan {
    /// Decides which operations are hit. The same seed and the same operations give the same faults.
    pub seed: u64,
    /// Reads, writes, syncs and opens that fail with `EIO`, leaving nothing done.
    pub error_per_mille: u32,
    /// Reads and writes that move only a part, at least one byte.
    pub short_per_mille: u32,
    /// Reads, writes and syncs that complete later, by up to `delay_ms_max` milliseconds.
    pub delay_per_mille: u32,
    /// The longest delay.
    pub delay_ms_max: u64,
    /// The disk is full (`ENOSPC`) once this many bytes were written; the last write is cut short.
    pub full_after_bytes: Option<u64>,
    /// The disk dies once this many bytes were written: the last write is torn at that byte, and it and
    /// everything later fails with `EIO`.
    pub torn_after_bytes: Option<u64>,
    /// The sync with this number, counted from 1, fails with `EIO`, and the next one succeeds: as Linux takes pages for clean that
    /// it could not write.
    pub failing_sync: Option<u64>,
}

/// A disk with faults laid over it.
pub struct FaultDisk<D> {
    inner: D,
    state: Mutex<State>,
}

struct State {
    plan: FaultPlan,
    random: u64,
    written_bytes: u64,
    syncs: u64,
    dead: bool,
}

impl State {
    /// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn hits(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.next() % 1000 < u64::from(per_mille)
    }

    /// How much of a transfer of `bytes` to do.
    fn shorten(&mut self, bytes: usize) -> usize {
        if bytes > 1 && self.hits(self.plan.short_per_mille) {
            return 1 + (self.next() % (bytes as u64 - 1)) as usize;
        }
        bytes
    }
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl<D> FaultDisk<D> {
    /// Lays `plan` over `inner`.
    pub fn new(inner: D, plan: FaultPlan) -> Self {
        let state = State { plan, random: plan.seed, written_bytes: 0, syncs: 0, dead: false };
        FaultDisk { inner, state: Mutex::new(state) }
    }

    /// Starts over with another plan: counts begin at nothing, and a dead disk lives again.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.state() = State { plan, random: plan.seed, written_bytes: 0, syncs: 0, dead: false };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> io::Result<()> {
        if self.state().dead { Err(broken()) } else { Ok(()) }
    }

    fn maybe_fail(&self) -> io::Result<()> {
        let mut state = self.state();
        let rate = state.plan.error_per_mille;
        if state.dead || state.hits(rate) { Err(broken()) } else { Ok(()) }
    }

    fn count_sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.syncs += 1;
        if state.plan.failing_sync == Some(state.syncs) { Err(broken()) } else { Ok(()) }
    }

    fn delayed(&self) -> bool {
        let mut state = self.state();
        let rate = state.plan.delay_per_mille;
        state.hits(rate)
    }

    async fn delay(&self) {
        let delay_ms = {
            let mut state = self.state();
            state.next() % (state.plan.delay_ms_max + 1)
        };
        weft_reactor::sleep(Duration::from_millis(delay_ms)).await;
    }

    fn read_part(
        &self,
        to: &mut [IoSliceMut<'_>],
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.maybe_fail()?;
        let bytes = to.iter().map(|slice| slice.len()).sum();
        let mut part = vec![0; self.state().shorten(bytes)];
        let count = read(&mut [IoSliceMut::new(&mut part)])?;
        let mut rest = &part[..count];
        for slice in to {
            let (head, tail) = rest.split_at(slice.len().min(rest.len()));
            slice[..head.len()].copy_from_slice(head);
            rest = tail;
        }
        Ok(count)
    }
}

impl<D: Disk> Disk for FaultDisk<D> {
    type File = D::File;

    fn open(&self, ino: u64) -> io::Result<Option<D::File>> {
        self.maybe_fail()?;
        self.inner.open(ino)
    }

    fn create(&self, ino: u64) -> io::Result<D::File> {
        self.maybe_fail()?;
        self.inner.create(ino)
    }

    fn note(&self, file: &D::File, note: &[u8]) -> io::Result<()> {
        self.alive()?;
        self.inner.note(file, note)
    }

    fn noted(&self, ino: u64) -> io::Result<Option<Vec<u8>>> {
        self.alive()?;
        self.inner.noted(ino)
    }

    fn remove(&self, ino: u64) -> io::Result<bool> {
        self.alive()?;
        self.inner.remove(ino)
    }

    fn size_of(&self, ino: u64) -> io::Result<Option<u64>> {
        self.alive()?;
        self.inner.size_of(ino)
    }

    fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>> {
        self.alive()?;
        self.inner.list(after, max)
    }

    fn space(&self) -> io::Result<Space> {
        self.alive()?;
        self.inner.space()
    }

    fn size(&self, file: &D::File) -> io::Result<u64> {
        self.alive()?;
        self.inner.size(file)
    }

    fn truncate(&self, file: &D::File, bytes: u64) -> io::Result<()> {
        self.alive()?;
        self.inner.truncate(file, bytes)
    }

    fn punch(&self, file: &D::File, offset: u64, bytes: u64) -> io::Result<()> {
        self.alive()?;
        self.inner.punch(file, offset, bytes)
    }

    fn allocate(&self, file: &D::File, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()> {
        self.alive()?;
        self.inner.allocate(file, offset, bytes, keep_size)
    }

    fn zero(&self, file: &D::File, offset: u64, bytes: u64) -> io::Result<()> {
        self.alive()?;
        self.inner.zero(file, offset, bytes)
    }

    fn seek(&self, file: &D::File, offset: u64, what: Seek) -> io::Result<Option<u64>> {
        self.alive()?;
        self.inner.seek(file, offset, what)
    }

    fn copy_some(
        &self,
        from: &D::File,
        from_offset: u64,
        to: &D::File,
        to_offset: u64,
        bytes: u64,
    ) -> io::Result<u64> {
        self.alive()?;
        self.inner.copy_some(from, from_offset, to, to_offset, bytes)
    }

    fn read_cached(
        &self,
        file: &D::File,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        if self.delayed() {
            return Ok(None);
        }
        let mut waits = false;
        let count = self.read_part(to, |part| {
            let count = self.inner.read_cached(file, offset, part)?;
            waits = count.is_none();
            Ok(count.unwrap_or(0))
        })?;
        Ok(if waits { None } else { Some(count) })
    }

    fn read_blocking(&self, file: &D::File, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_part(to, |part| self.inner.read_blocking(file, offset, part))
    }

    async fn fetch(&self, file: &D::File, extents: &[Extent]) {
        self.delay().await;
        self.inner.fetch(file, extents).await
    }

    fn resident(&self, file: &D::File, extent: Extent) -> bool {
        !self.delayed() && self.inner.resident(file, extent)
    }

    async fn write_some(&self, file: &D::File, offset: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.delayed() {
            self.delay().await;
        }
        self.maybe_fail()?;
        let wanted: usize = from.iter().map(|slice| slice.len()).sum();
        let (allowed, torn) = {
            let mut state = self.state();
            let mut allowed = state.shorten(wanted);
            let left = |limit: Option<u64>, written| limit.map_or(u64::MAX, |limit| limit - written);
            let full = left(state.plan.full_after_bytes, state.written_bytes);
            let torn = left(state.plan.torn_after_bytes, state.written_bytes);
            if full == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            state.dead = torn < (wanted as u64).min(full);
            allowed = if state.dead { torn as usize } else { allowed.min(full as usize) };
            state.written_bytes += allowed as u64;
            (allowed, state.dead)
        };
        let joined: Vec<u8> = from.iter().flat_map(|slice| slice.iter().copied()).take(allowed).collect();
        self.inner.write(file, offset, &joined).await?;
        if torn { Err(broken()) } else { Ok(allowed) }
    }

    fn sync_whole(&self) -> io::Result<bool> {
        self.maybe_fail()?;
        self.count_sync()?;
        self.inner.sync_whole()
    }

    async fn sync(&self, file: &D::File) -> io::Result<()> {
        if self.delayed() {
            self.delay().await;
        }
        self.maybe_fail()?;
        self.count_sync()?;
        self.inner.sync(file).await
    }

    /// None: transfers that bypass this disk would bypass its faults.
    fn raw_fd(&self, _file: &D::File) -> Option<RawFd> {
        None
    }

    fn sums(&self) -> Option<&SumsDirectory> {
        self.inner.sums()
    }
}
