//! Memory in which a server's handlers have their units, registered where the transport registers memory.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

const ZONE_BYTES: usize = 4 << 20;

thread_local! {
    static ZONE: RefCell<Option<Rc<Zone>>> = const { RefCell::new(None) };
}

/// Memory that is given out from its beginning on, and again when all of it is back.
pub struct Zone {
    base: *mut u8,
    used: Cell<usize>,
    given: Cell<usize>,
}

impl Zone {
    /// This thread's from now on.
    pub fn begin() -> Rc<Zone> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), ZONE_BYTES, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let zone = Rc::new(Zone { base: base.cast(), used: Cell::new(0), given: Cell::new(0) });
        ZONE.set(Some(zone.clone()));
        zone
    }

    pub fn memory(&self) -> (*mut u8, usize) {
        (self.base, ZONE_BYTES)
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        // SAFETY: unmaps what `begin` has mapped; nothing of it is given out.
        unsafe { libc::munmap(self.base.cast(), ZONE_BYTES) };
    }
}

/// A unit: in the thread's zone, where there is one with room, else anywhere.
pub enum UnitMemory {
    Own(Vec<u8>),
    InZone { zone: Rc<Zone>, at: usize, bytes: usize },
}

impl UnitMemory {
    pub fn of(data: Vec<u8>) -> UnitMemory {
        let Some(zone) = ZONE.with_borrow(Clone::clone) else { return UnitMemory::Own(data) };
        if zone.used.get() + data.len() > ZONE_BYTES {
            return UnitMemory::Own(data);
        }
        let (at, bytes) = (zone.used.get(), data.len());
        zone.used.set(at + bytes);
        zone.given.set(zone.given.get() + bytes);
        let mut unit = UnitMemory::InZone { zone, at, bytes };
        unit.copy_from_slice(&data);
        unit
    }
}

impl Drop for UnitMemory {
    fn drop(&mut self) {
        let UnitMemory::InZone { zone, bytes, .. } = self else { return };
        zone.given.set(zone.given.get() - *bytes);
        if zone.given.get() == 0 {
            zone.used.set(0);
        }
    }
}

impl Deref for UnitMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            UnitMemory::Own(data) => data,
            // SAFETY: this part of the zone is this unit's.
            UnitMemory::InZone { zone, at, bytes } => unsafe {
                std::slice::from_raw_parts(zone.base.add(*at), *bytes)
            },
        }
    }
}

impl DerefMut for UnitMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            UnitMemory::Own(data) => data,
            // SAFETY: as above.
            UnitMemory::InZone { zone, at, bytes } => unsafe {
                std::slice::from_raw_parts_mut(zone.base.add(*at), *bytes)
            },
        }
    }
}
