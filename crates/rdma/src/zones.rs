//! Memory of the process that a port's adapter knows: what lies in it moves without a copy.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_verbs::{Access, Device, MemoryPiece, Registration, VerbsError};

struct Zone<D: Device> {
    bytes: u64,
    registration: D::Registration,
}

/// The zones of one adapter, by address.
pub(crate) struct Zones<D: Device> {
    zones: RefCell<BTreeMap<u64, Zone<D>>>,
    access: Access,
}

impl<D: Device> Zones<D> {
    pub(crate) fn new(access: Access) -> Self {
        Zones { zones: RefCell::default(), access }
    }

    /// Registers one.
    ///
    /// # Safety
    /// As for [`crate::Ports::add_zone`].
    pub(crate) unsafe fn add(&self, device: &D, address: u64, bytes: u64) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        let registration = unsafe { device.register(address as usize, bytes as usize, self.access) }?;
        self.zones.borrow_mut().insert(address, Zone { bytes, registration });
        Ok(())
    }

    pub(crate) fn remove(&self, address: u64) {
        self.zones.borrow_mut().remove(&address);
    }

    /// All of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.zones.borrow().values().map(|zone| zone.bytes).sum()
    }

    /// Memory as pieces for work requests, if all of it lies in zones.
    pub(crate) fn pieces(&self, parts: impl Iterator<Item = (*const u8, usize)>) -> Option<Vec<MemoryPiece>> {
        let zones = self.zones.borrow();
        let piece = |(base, bytes): (*const u8, usize)| {
            let address = base as u64;
            let (start, zone) = zones.range(..=address).next_back()?;
            let inside = address + bytes as u64 <= start + zone.bytes;
            let local_key = zone.registration.local_key();
            inside.then_some(MemoryPiece { address, bytes: u32::try_from(bytes).ok()?, local_key })
        };
        parts.filter(|(_, bytes)| *bytes > 0).map(piece).collect()
    }
}
