//! Memory of the process that a port's adapter knows: what lies in it moves without a copy. How it gets known
//! is a choice ([`ZoneRegistration`]).
//!
//! ```text
//!   zone            0 ─────────────────────────── 2 MiB
//!   Whole           [───────── one registration ──────]   from the beginning of the zone to its end
//!   Blocks          [64K][64K]      [──── 256K ────]      each from its first use to the end of the zone
//!   Each                 [5000 bytes]                     for one use, wherever it is
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_verbs::{Access, Device, MemoryPiece, Registration, VerbsError};

/// The smallest block that is registered by itself.
const BLOCK_BYTES_MIN: u64 = 64 << 10;

/// When memory of zones is registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ZoneRegistration {
    /// Zones as wholes, when they begin.
    #[default]
    Whole,
    /// The block that memory lies in (its size a power of two, its address a multiple of that), when it is first
    /// used; until its zone ends.
    Blocks,
    /// The memory itself, for each use.
    Each,
}

/// How zones are made known to an adapter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZoneOptions {
    pub registration: ZoneRegistration,
    /// Windows may be bound.
    pub windows: bool,
    /// Peers with the key may read.
    pub remote_read: bool,
}

impl ZoneOptions {
    fn access(self) -> Access {
        let with = |wanted, access| if wanted { access } else { Access::LOCAL_READ };
        Access::LOCAL_WRITE
            | with(self.windows, Access::WINDOW_BIND)
            | with(self.remote_read, Access::REMOTE_READ)
    }
}

/// Registered memory; its keys are valid as long as it lives.
pub struct Known<D: Device> {
    /// For work of this side.
    pub piece: MemoryPiece,
    /// For peers; 0 where they cannot read it.
    pub remote_key: u32,
    _registration: Rc<D::Registration>,
}

impl<D: Device> Known<D> {
    fn new(address: u64, bytes: u64, by: &Rc<D::Registration>) -> Option<Known<D>> {
        let piece = MemoryPiece { address, bytes: u32::try_from(bytes).ok()?, local_key: by.local_key() };
        Some(Known { piece, remote_key: by.remote_key(), _registration: by.clone() })
    }
}

struct Zone<D: Device> {
    bytes: u64,
    /// As a whole.
    registration: Option<Rc<D::Registration>>,
    /// Of its blocks, by address and size.
    blocks: BTreeMap<(u64, u64), Rc<D::Registration>>,
}

/// The zones of one adapter, by address.
pub(crate) struct Zones<D: Device> {
    zones: RefCell<BTreeMap<u64, Zone<D>>>,
    options: ZoneOptions,
}

impl<D: Device> Zones<D> {
    pub(crate) fn new(options: ZoneOptions) -> Self {
        Zones { zones: RefCell::default(), options }
    }

    /// Registers one, as far as zones are registered as wholes.
    ///
    /// # Safety
    /// As for [`crate::Ports::add_zone`].
    pub(crate) unsafe fn add(&self, device: &D, address: u64, bytes: u64) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        let register = || unsafe { device.register(address as usize, bytes as usize, self.options.access()) };
        let is_whole = self.options.registration == ZoneRegistration::Whole;
        let registration = is_whole.then(register).transpose()?.map(Rc::new);
        let zone = Zone { bytes, registration, blocks: BTreeMap::new() };
        self.zones.borrow_mut().insert(address, zone);
        Ok(())
    }

    pub(crate) fn remove(&self, address: u64) {
        self.zones.borrow_mut().remove(&address);
    }

    /// What of them is registered.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = |zone: &Zone<D>| zone.blocks.keys().map(|(_, bytes)| bytes).sum();
        let registered =
            |zone: &Zone<D>| zone.registration.as_ref().map_or_else(|| blocks(zone), |_| zone.bytes);
        self.zones.borrow().values().map(registered).sum()
    }

    /// Memory as pieces for work requests, if all of it lies in zones that are registered as wholes.
    pub(crate) fn pieces(&self, parts: impl Iterator<Item = (*const u8, usize)>) -> Option<Vec<MemoryPiece>> {
        let piece = |(base, bytes): (*const u8, usize)| Some(self.whole(base as u64, bytes as u64)?.piece);
        parts.filter(|(_, bytes)| *bytes > 0).map(piece).collect()
    }

    /// Memory that is known, or gets known; `None` if it does not.
    ///
    /// # Safety
    /// It stays mapped as long as the result lives, and nobody but its users minds that an adapter writes to it.
    pub(crate) unsafe fn known(&self, device: &D, address: u64, bytes: u64) -> Option<Known<D>> {
        match self.options.registration {
            ZoneRegistration::Whole => self.whole(address, bytes),
            ZoneRegistration::Blocks => self.in_block(device, address, bytes),
            // SAFETY: as the caller promises.
            ZoneRegistration::Each => unsafe { self.alone(device, address, bytes) },
        }
    }

    /// Memory that is registered by itself.
    ///
    /// # Safety
    /// As for [`Zones::known`].
    pub(crate) unsafe fn alone(&self, device: &D, address: u64, bytes: u64) -> Option<Known<D>> {
        // SAFETY: as the caller promises.
        let made = unsafe { device.register(address as usize, bytes as usize, self.options.access()) };
        Known::new(address, bytes, &Rc::new(made.ok()?))
    }

    fn whole(&self, address: u64, bytes: u64) -> Option<Known<D>> {
        let zones = self.zones.borrow();
        let (start, zone) = zones.range(..=address).next_back()?;
        let is_inside = address + bytes <= start + zone.bytes;
        zone.registration.as_ref().filter(|_| is_inside).and_then(|by| Known::new(address, bytes, by))
    }

    fn in_block(&self, device: &D, address: u64, bytes: u64) -> Option<Known<D>> {
        let mut zones = self.zones.borrow_mut();
        let (start, zone) = zones.range_mut(..=address).next_back()?;
        let (start, end) = (*start, *start + zone.bytes);
        let sizes = std::iter::successors(Some(BLOCK_BYTES_MIN), |bytes| bytes.checked_mul(2));
        let around = |size: u64| ((address & !(size - 1)).max(start), size);
        let holds = |(at, size): &(u64, u64)| address + bytes <= (at + size).min(end);
        let mut holding = sizes.take_while(|size| *size < 2 * zone.bytes).map(around).filter(holds);
        let smallest = holding.next()?;
        if let Some(known) = std::iter::once(smallest).chain(holding).find_map(|key| zone.blocks.get(&key)) {
            return Known::new(address, bytes, known);
        }
        let (at, size) = smallest;
        let (at_bytes, access) = (size.min(end - at), self.options.access());
        // SAFETY: the zone stays mapped until it is removed, as whoever has added it promises.
        let made = unsafe { device.register(at as usize, at_bytes as usize, access) };
        let registration = Rc::new(made.ok()?);
        zone.blocks.insert(smallest, registration.clone());
        Known::new(address, bytes, &registration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::time::Duration;
    use weft_verbs::{Endpoint, Fabric, TrafficClass};
    use weft_verbs_double::{Pretend, PretendDevice, PretendOptions};

    const ZONE_BYTES: usize = 2 << 20;

    /// Counts registrations made and ended.
    type Counted<'a> = &'a dyn Fn() -> (u64, u64);

    /// Runs with a zone.
    fn with_zone(
        registration: ZoneRegistration,
        test: impl FnOnce(&Zones<PretendDevice>, &PretendDevice, u64, Counted<'_>),
    ) {
        let host = Pretend::new(PretendOptions::default());
        let anywhere = "127.0.0.1:1".parse().unwrap();
        let endpoint = host.resolve(anywhere, TrafficClass::default(), Duration::from_secs(1)).unwrap();
        let device = &*endpoint.device();
        let layout = Layout::from_size_align(ZONE_BYTES, ZONE_BYTES).unwrap();
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(layout) };
        let zones = Zones::new(ZoneOptions { registration, windows: false, remote_read: true });
        // SAFETY: the memory outlives the zones.
        unsafe { zones.add(device, memory as u64, ZONE_BYTES as u64) }.unwrap();
        let counted = || (host.counts().registrations, host.counts().deregistrations);
        test(&zones, device, memory as u64, &counted);
        drop(zones);
        assert_eq!(counted().0, counted().1, "all have ended");
        // SAFETY: allocated above with the same layout, and not registered any more.
        unsafe { dealloc(memory, layout) };
    }

    fn known(
        zones: &Zones<PretendDevice>,
        device: &PretendDevice,
        at: u64,
        bytes: u64,
    ) -> Option<Known<PretendDevice>> {
        // SAFETY: the memory of the test is there until its end.
        unsafe { zones.known(device, at, bytes) }
    }

    #[test]
    fn a_zone_is_one_registration() {
        with_zone(ZoneRegistration::Whole, |zones, device, start, counted| {
            let (one, other) = (known(zones, device, start, 10), known(zones, device, start + 9000, 1 << 20));
            assert_eq!(one.unwrap().remote_key, other.unwrap().remote_key);
            assert!(
                known(zones, device, start + 1, ZONE_BYTES as u64).is_none(),
                "not all of it is in a zone"
            );
            assert_eq!((counted(), zones.bytes()), ((1, 0), ZONE_BYTES as u64));
        });
    }

    #[test]
    fn a_block_is_registered_when_it_is_first_used_and_stays() {
        with_zone(ZoneRegistration::Blocks, |zones, device, start, counted| {
            assert_eq!((counted(), zones.bytes()), ((0, 0), 0));
            let key = |at, bytes| known(zones, device, start + at, bytes).map(|known| known.remote_key);
            let small = key(0, 5000).unwrap();
            assert_eq!((key(60_000, 5536), key(4096, 1)), (Some(small), Some(small)), "in the same 64 KiB");
            assert_eq!((counted(), zones.bytes()), ((1, 0), 64 << 10));
            let next = key(64 << 10, 100).unwrap();
            let both = key(60_000, 10_000).unwrap();
            assert!(small != next && next != both && small != both);
            assert_eq!(key(0, 128 << 10), Some(both), "the block that holds both");
            assert_eq!((counted(), zones.bytes()), ((3, 0), 256 << 10));
            let all = key(1, ZONE_BYTES as u64 - 1).unwrap();
            assert_eq!(key(1 << 20, 100), Some(all), "a larger one will do");
            assert_eq!((key(1, ZONE_BYTES as u64), counted()), (None, (4, 0)));
            // Memory in use stays registered, whatever becomes of the zone.
            let used = known(zones, device, start, 100);
            zones.remove(start);
            assert_eq!(counted(), (4, 3));
            drop(used);
            assert_eq!((counted(), key(0, 100)), ((4, 4), None));
        });
    }

    #[test]
    fn each_use_is_a_registration_wherever_the_memory_is() {
        with_zone(ZoneRegistration::Each, |zones, device, start, counted| {
            let elsewhere = [0u8; 10];
            let uses = [(start, 5000), (start, 5000), (elsewhere.as_ptr() as u64, 10)];
            let known = uses.map(|(at, bytes)| known(zones, device, at, bytes).unwrap());
            assert_eq!((counted(), known[0].piece.bytes, zones.bytes()), ((3, 0), 5000, 0));
            drop(known);
            assert_eq!(counted(), (3, 3));
        });
    }
}
