//! Memory of a test that plays one end of a connection by hand.

use std::ops::{Deref, DerefMut};

use weft_verbs::{Access, Device, MemoryPiece, Registration, VerbsError};

use crate::{PretendDevice, PretendRegistration};

/// Zeros at first, registered as a whole until it is dropped.
pub struct RegisteredMemory {
    /// Its registration.
    pub registration: PretendRegistration,
    bytes: Box<[u8]>,
}

impl RegisteredMemory {
    /// Memory of so many bytes, with these rights.
    ///
    /// # Errors
    /// As [`Device::register`].
    pub fn new(device: &PretendDevice, bytes: usize, access: Access) -> Result<RegisteredMemory, VerbsError> {
        let bytes = vec![0; bytes].into_boxed_slice();
        // SAFETY: the memory goes after its registration.
        let registration = unsafe { device.register(bytes.as_ptr() as usize, bytes.len(), access) }?;
        Ok(RegisteredMemory { registration, bytes })
    }

    /// A part of it, for work of this end.
    pub fn piece(&self, at: usize, bytes: usize) -> MemoryPiece {
        let address = self.as_ptr() as u64 + at as u64;
        MemoryPiece { address, bytes: bytes as u32, local_key: self.registration.local_key() }
    }
}

impl Deref for RegisteredMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for RegisteredMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
