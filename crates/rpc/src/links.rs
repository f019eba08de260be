//! What the connections to a server can do.

use weft_transport::LinkTraits;
use weft_wire::limits::SHARE_BYTES_MAX;

/// What was seen of the connections to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// The most that one request over any of them may move.
    pub bulk_bytes_max: u64,
    /// Connections over which much data is spread.
    pub rails: usize,
    /// What suits all of them.
    pub traits: LinkTraits,
}

impl Default for Links {
    fn default() -> Links {
        Links { bulk_bytes_max: SHARE_BYTES_MAX, rails: 1, traits: LinkTraits::default() }
    }
}

impl Links {
    /// With one more.
    pub(crate) fn and(self, other: Links) -> Links {
        Links {
            bulk_bytes_max: self.bulk_bytes_max.min(other.bulk_bytes_max),
            rails: self.rails.max(other.rails),
            traits: self.traits.and(other.traits),
        }
    }
}
