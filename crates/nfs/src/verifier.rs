//! The verifier of unstable writes (RFC 1813, 3.3.7 and 3.3.21).
//!
//! A client keeps what it wrote until a COMMIT returns the verifier that its WRITEs returned. It is another
//! one in each run of a gateway, and after an I/O server may have lost what it had acknowledged. One verifier
//! is enough for all files: where it changes without need, clients write again what they could have left.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use nfs3_types::nfs3::writeverf3;

/// The verifier of now.
pub(crate) struct Verifier(Cell<u64>);

impl Verifier {
    /// One that no other gateway, and no earlier run of this one, had.
    pub(crate) fn new() -> Verifier {
        Verifier(Cell::new(random()))
    }

    /// Acknowledged writes may be lost.
    pub(crate) fn change(&self) {
        self.0.set(random());
    }

    pub(crate) fn now(&self) -> writeverf3 {
        writeverf3(self.0.get().to_be_bytes())
    }
}

fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(now.as_nanos());
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_until_something_may_be_lost() {
        let verifier = Verifier::new();
        let before = verifier.now();
        assert_eq!(verifier.now(), before);
        verifier.change();
        assert_ne!(verifier.now(), before);
        assert_ne!(Verifier::new().now(), verifier.now());
    }
}
