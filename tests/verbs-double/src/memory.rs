//! What adapters know about memory: registrations, windows, their keys, and the copying that stands for moving.
//!
//! A key is an index and 8 bits that make a mistaken one unlikely to fit. No index is used twice in a run while it lives,
//! and local keys, remote keys and keys of windows differ, so that one taken for the other is caught.

use crate::pinned::PinnedPages;
use std::collections::BTreeMap;
use std::io;
use weft_test_random::Random;
use weft_verbs::{Access, MemoryPiece};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// The pages that bytes lie in.
pub(crate) fn pages_of(address: u64, bytes: u64) -> u64 {
    (address + bytes).div_ceil(PAGE_BYTES) - address / PAGE_BYTES
}

pub(crate) struct Registered {
    pub(crate) adapter: usize,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    access: Access,
    remote_key: u32,
    slot: Option<u32>,
}

impl Registered {
    fn covers(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        address >= self.address && end.is_some_and(|end| end <= self.address + self.bytes)
    }
}

/// A window, by the upper bits of its keys.
struct WindowState {
    adapter: usize,
    last_key: Option<u32>,
    bound: Option<Bound>,
}

struct Bound {
    key: u32,
    queue_pair: u32,
    local_key: u32,
    address: u64,
    bytes: u64,
    access: Access,
}

/// Memory that was found to be as its key says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    address: u64,
    bytes: u64,
    slot: Option<u32>,
}

/// The memory behind a live registration is not there.
#[derive(Debug)]
pub(crate) struct Gone;

/// What all adapters of a network know.
pub(crate) struct Memory {
    registrations: BTreeMap<u32, Registered>,
    remote_keys: BTreeMap<u32, u32>,
    windows: BTreeMap<u32, WindowState>,
    next_index: u32,
    pinned: Option<PinnedPages>,
}

const TAG: u32 = 0xff;

impl Memory {
    pub(crate) fn new(pinned: Option<PinnedPages>) -> Memory {
        Memory {
            registrations: BTreeMap::new(),
            remote_keys: BTreeMap::new(),
            windows: BTreeMap::new(),
            next_index: 1,
            pinned,
        }
    }

    /// An index that nothing has, in the upper 24 bits.
    fn take_index(&mut self) -> u32 {
        loop {
            let base = self.next_index << 8;
            self.next_index = (self.next_index + 1) & 0xff_ffff;
            let registered = self.registrations.range(base..=base | TAG).next().is_some();
            if base != 0 && !registered && !self.windows.contains_key(&base) {
                return base;
            }
        }
    }

    pub(crate) fn pins(&self) -> bool {
        self.pinned.is_some()
    }

    /// Makes memory known and gives its local key. Limits were checked.
    pub(crate) fn register(
        &mut self,
        adapter: usize,
        address: u64,
        bytes: u64,
        access: Access,
        random: &mut Random,
    ) -> io::Result<u32> {
        let slot = self.take_pages(address, bytes, access)?;
        let base = self.take_index();
        let local_key = base | random.below(256) as u32;
        let remote = access.contains(Access::REMOTE_READ) || access.contains(Access::REMOTE_WRITE);
        let remote_key = if remote { local_key ^ 0x5a } else { 0 };
        if remote {
            self.remote_keys.insert(remote_key, local_key);
        }
        self.registrations
            .insert(local_key, Registered { adapter, address, bytes, access, remote_key, slot });
        Ok(local_key)
    }

    /// Sees that pages are there, and pins them if that is what registering does.
    fn take_pages(&mut self, address: u64, bytes: u64, access: Access) -> io::Result<Option<u32>> {
        if access.contains(Access::ON_DEMAND) {
            return Ok(None);
        }
        let write = access.contains(Access::LOCAL_WRITE);
        match self.pinned.as_mut().map(|pinned| pinned.pin(address, bytes)) {
            Some(Ok(slot)) => Ok(Some(slot)),
            Some(Err(error)) if write || error.raw_os_error() != Some(libc::EFAULT) => Err(error),
            _ => check_mapped(address, bytes, write).map(|()| None),
        }
    }

    pub(crate) fn remote_key(&self, local_key: u32) -> u32 {
        self.registrations.get(&local_key).map_or(0, |known| known.remote_key)
    }

    /// Forgets a registration. Also says whether windows were still bound to it, which ends them.
    pub(crate) fn deregister(&mut self, local_key: u32) -> Option<(Registered, bool)> {
        let gone = self.registrations.remove(&local_key)?;
        self.remote_keys.remove(&gone.remote_key);
        if let (Some(pinned), Some(slot)) = (&mut self.pinned, gone.slot) {
            pinned.unpin(slot);
        }
        let mut had_windows = false;
        for window in self.windows.values_mut() {
            if window.bound.as_ref().is_some_and(|bound| bound.local_key == local_key) {
                window.bound = None;
                had_windows = true;
            }
        }
        Some((gone, had_windows))
    }

    /// The places of local pieces, if their keys allow it.
    pub(crate) fn local(&self, adapter: usize, pieces: &[MemoryPiece], write: bool) -> Option<Vec<Place>> {
        let place = |piece: &MemoryPiece| {
            let bytes = u64::from(piece.bytes);
            let known = self.registrations.get(&piece.local_key)?;
            let allowed = known.adapter == adapter
                && known.covers(piece.address, bytes)
                && (!write || known.access.contains(Access::LOCAL_WRITE));
            allowed.then_some(Place { address: piece.address, bytes, slot: known.slot })
        };
        pieces.iter().filter(|piece| piece.bytes > 0).map(place).collect()
    }

    /// A place for a peer that is at the other end of `queue_pair`, if its key allows it.
    pub(crate) fn remote(
        &self,
        adapter: usize,
        queue_pair: u32,
        (key, address, bytes): (u32, u64, u64),
        access: Access,
    ) -> Option<Place> {
        if bytes == 0 {
            return Some(Place { address, bytes, slot: None });
        }
        if let Some(known) =
            self.remote_keys.get(&key).and_then(|local_key| self.registrations.get(local_key))
        {
            let allowed =
                known.adapter == adapter && known.covers(address, bytes) && known.access.contains(access);
            return allowed.then_some(Place { address, bytes, slot: known.slot });
        }
        let bound = self.bound(adapter, queue_pair, key)?;
        let end = address.checked_add(bytes)?;
        let allowed =
            bound.access.contains(access) && address >= bound.address && end <= bound.address + bound.bytes;
        let slot = self.registrations.get(&bound.local_key)?.slot;
        allowed.then_some(Place { address, bytes, slot })
    }

    fn bound(&self, adapter: usize, queue_pair: u32, key: u32) -> Option<&Bound> {
        let window = self.windows.get(&(key & !TAG)).filter(|window| window.adapter == adapter)?;
        window.bound.as_ref().filter(|bound| bound.key == key && bound.queue_pair == queue_pair)
    }

    pub(crate) fn add_window(&mut self, adapter: usize) -> u32 {
        let base = self.take_index();
        self.windows.insert(base, WindowState { adapter, last_key: None, bound: None });
        base
    }

    /// Whether windows are bound on a queue pair.
    pub(crate) fn has_windows(&self, queue_pair: u32) -> bool {
        let bound = |window: &WindowState| window.bound.as_ref().map(|bound| bound.queue_pair);
        self.windows.values().any(|window| bound(window) == Some(queue_pair))
    }

    pub(crate) fn remove_window(&mut self, base: u32) {
        self.windows.remove(&base);
    }

    /// Binds a window as InfiniBand's type 2 wants it (specification, 10.6.7.2): it is unbound, its key is another than the
    /// last, the registration allows binding, covers the range, and is writable if the window is to be.
    pub(crate) fn bind(
        &mut self,
        adapter: usize,
        queue_pair: u32,
        (key, local_key): (u32, u32),
        (address, bytes): (u64, u64),
        access: Access,
    ) -> bool {
        let Some(known) = self.registrations.get(&local_key) else { return false };
        let registration_allows = known.adapter == adapter
            && known.access.contains(Access::WINDOW_BIND)
            && bytes > 0
            && known.covers(address, bytes)
            && (!access.contains(Access::REMOTE_WRITE) || known.access.contains(Access::LOCAL_WRITE));
        let Some(window) = self.windows.get_mut(&(key & !TAG)) else { return false };
        let window_allows =
            window.adapter == adapter && window.bound.is_none() && window.last_key != Some(key);
        if registration_allows && window_allows {
            window.last_key = Some(key);
            window.bound = Some(Bound { key, queue_pair, local_key, address, bytes, access });
        }
        registration_allows && window_allows
    }

    /// Ends the validity of a window's key; keys of registrations are not ended by work, as in today's kernels.
    pub(crate) fn invalidate(&mut self, adapter: usize, queue_pair: u32, key: u32) -> bool {
        if self.bound(adapter, queue_pair, key).is_none() {
            return false;
        }
        let window = self.windows.get_mut(&(key & !TAG));
        window.is_some_and(|window| window.bound.take().is_some())
    }

    /// The bytes of places in order.
    pub(crate) fn gather(&mut self, places: &[Place]) -> Result<Vec<u8>, Gone> {
        let mut bytes = vec![0; places.iter().map(|place| place.bytes as usize).sum()];
        self.copy(Direction::Out, &mut bytes, places)?;
        Ok(bytes)
    }

    /// Puts bytes into places in order; there may be fewer than the places hold.
    pub(crate) fn scatter(&mut self, bytes: &mut [u8], places: &[Place]) -> Result<(), Gone> {
        let mut places = places.to_vec();
        let mut left = bytes.len() as u64;
        for place in &mut places {
            place.bytes = place.bytes.min(left);
            left -= place.bytes;
        }
        places.retain(|place| place.bytes > 0);
        self.copy(Direction::In, bytes, &places)
    }

    fn copy(&mut self, direction: Direction, bytes: &mut [u8], places: &[Place]) -> Result<(), Gone> {
        let Some(pinned) = &mut self.pinned else { return copy_own(direction, bytes, places) };
        let mut rest = bytes;
        for place in places {
            let (part, behind) = rest.split_at_mut(place.bytes as usize);
            rest = behind;
            match (place.slot, direction) {
                (None, _) => copy_own(direction, part, &[*place])?,
                (Some(slot), Direction::Out) => {
                    pinned.copy_out(slot, place.address, part).map_err(|_| Gone)?
                }
                (Some(slot), Direction::In) => pinned.copy_in(slot, place.address, part).map_err(|_| Gone)?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

/// Copies between a buffer and places in this process, without harm where they are not mapped.
fn copy_own(direction: Direction, bytes: &mut [u8], places: &[Place]) -> Result<(), Gone> {
    const PLACES_AT_ONCE: usize = 1024;
    let mut rest = bytes;
    for some in places.chunks(PLACES_AT_ONCE) {
        let length = some.iter().map(|place| place.bytes as usize).sum();
        let (part, behind) = rest.split_at_mut(length);
        rest = behind;
        let local = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: length };
        let theirs: Vec<libc::iovec> = some
            .iter()
            .map(|place| libc::iovec { iov_base: place.address as *mut _, iov_len: place.bytes as usize })
            .collect();
        let (process, count) = (std::process::id() as i32, theirs.len() as u64);
        // SAFETY: the local buffer is ours; the system checks the other side, which whoever registered it allows to be
        // read or written, by the contracts of `register` and of posting.
        let copied = unsafe {
            match direction {
                Direction::Out => libc::process_vm_readv(process, &local, 1, theirs.as_ptr(), count, 0),
                Direction::In => libc::process_vm_writev(process, &local, 1, theirs.as_ptr(), count, 0),
            }
        };
        if copied != length as isize {
            return Err(Gone);
        }
    }
    Ok(())
}

/// Whether all pages can be read, or written, by bringing them in as pinning would.
fn check_mapped(address: u64, bytes: u64, write: bool) -> io::Result<()> {
    let start = address / PAGE_BYTES * PAGE_BYTES;
    let length = pages_of(address, bytes) * PAGE_BYTES;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: brings pages in and changes none.
        if unsafe { libc::madvise(start as *mut _, length as usize, advice) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            _ => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }
}
