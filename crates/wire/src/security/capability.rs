//! Capabilities: their encoding, signature and check.

use super::key::Key;
use super::proof::same_mac;
use crate::claims::{Capability, Holder, Vetting};
use crate::codec::{DecodeError, Reader, Wire, Writer};
use weft_layout::Layout;

impl Wire for Capability {
    const BYTES_MIN: usize = 54;
    fn put(&self, out: &mut Writer) {
        self.put_signed(out);
        self.signature.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Capability {
            ino: u64::get(input)?,
            rights: u32::get(input)?,
            expires_s: u64::get(input)?,
            holder: Holder(Wire::get(input)?),
            layout: Layout::get(input)?,
            signature: Wire::get(input)?,
        })
    }
    fn sample(seed: &mut u64) -> Self {
        Capability {
            ino: u64::sample(seed),
            rights: u32::sample(seed),
            expires_s: u64::sample(seed),
            holder: Holder(Wire::sample(seed)),
            layout: Layout::sample(seed),
            signature: Wire::sample(seed),
        }
    }
    const VETTED: bool = true;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        vetting.capability(self);
    }
}

/// Why a capability does not allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// The signature is not the metadata server's.
    #[error("its signature is wrong")]
    Forged,
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// It does not give the rights.
    #[error("it does not give the required right")]
    Rights,
    /// It was given to another holder.
    #[error("it was given to the holder of another key")]
    Holder,
}

impl Capability {
    /// Creates and signs a capability with the cluster's capability key.
    pub fn sign(
        key: &Key,
        holder: Holder,
        ino: u64,
        rights: u32,
        expires_s: u64,
        layout: Layout,
    ) -> Capability {
        let mut capability = Capability { ino, rights, expires_s, holder, layout, signature: [0; 16] };
        capability.signature = capability.signature_by(key);
        capability
    }

    fn put_signed(&self, out: &mut Writer) {
        self.ino.put(out);
        self.rights.put(out);
        self.expires_s.put(out);
        self.holder.0.put(out);
        self.layout.put(out);
    }

    fn signature_by(&self, key: &Key) -> [u8; 16] {
        let mut out = Writer::new();
        self.put_signed(&mut out);
        let hash = blake3::keyed_hash(&key.0, out.as_bytes());
        hash.as_bytes()[..16].try_into().expect("16 of 32 bytes")
    }

    /// Checks that it is genuine, valid at `now_s` and gives all of `rights`.
    pub fn check(&self, key: &Key, now_s: u64, rights: u32) -> Result<(), CapabilityError> {
        if !same_mac(&self.signature, &self.signature_by(key)) {
            return Err(CapabilityError::Forged);
        }
        if now_s >= self.expires_s {
            return Err(CapabilityError::Expired);
        }
        if self.rights & rights != rights {
            return Err(CapabilityError::Rights);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::rights;

    fn layout() -> Layout {
        Layout::sample(&mut 0)
    }

    #[test]
    fn a_capability_covers_what_it_says_and_nothing_else() {
        let key = Key([7; 32]).capability_key();
        let good = Capability::sign(&key, Holder([5; 8]), 42, rights::READ, 1000, layout());
        assert_eq!(good.check(&key, 999, rights::READ), Ok(()));
        assert_eq!(good.check(&key, 1000, rights::READ), Err(CapabilityError::Expired));
        assert_eq!(good.check(&key, 999, rights::WRITE), Err(CapabilityError::Rights));
        assert_eq!(good.check(&Key([8; 32]), 999, rights::READ), Err(CapabilityError::Forged));
        for changed in [
            Capability { ino: 43, ..good.clone() },
            Capability { rights: 3, ..good.clone() },
            Capability { expires_s: 2000, ..good.clone() },
            Capability { holder: Holder([6; 8]), ..good.clone() },
            Capability { layout: Layout::new(65536, 1, 3, 6).unwrap(), ..good.clone() },
        ] {
            assert_eq!(changed.check(&key, 999, rights::READ), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn a_capability_fits_a_file_handle() {
        // NFSv3 handles have 64 bytes, of which a gateway needs 8 for itself.
        assert_eq!(Capability::sample(&mut 0).to_bytes().len(), Capability::BYTES_MIN);
        const { assert!(Capability::BYTES_MIN <= 56) };
    }
}
