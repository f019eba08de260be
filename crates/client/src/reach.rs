//! What the connections to a file's servers can do, as far as requests are cut and packed by it.

use weft_transport::LinkTraits;
use weft_wire::limits::SHARE_BYTES_MAX;

use crate::server::Server;

/// Bytes of a share at most where a server is reached over several rails.
const RAIL_SHARE_BYTES: u64 = 4 << 20;

/// What the servers of a file can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The most that one request to any of them may move.
    pub share_bytes_max: u64,
    /// What suits the connections to them.
    pub traits: LinkTraits,
    /// Connections to each of them over which a request is spread.
    pub rails: usize,
}

impl Reach {
    /// Of the connections to a server.
    pub(crate) fn of(server: &Server) -> Reach {
        let links = server.links();
        let most = if links.rails > 1 { RAIL_SHARE_BYTES } else { SHARE_BYTES_MAX };
        // Over several rails shares are cut so that every rail has some.
        let share_bytes_max = links.bulk_bytes_max.min(most);
        Reach { share_bytes_max, traits: links.traits, rails: links.rails }
    }

    /// What both can do.
    pub(crate) fn of_both(self, other: Reach) -> Reach {
        Reach {
            share_bytes_max: self.share_bytes_max.min(other.share_bytes_max),
            traits: self.traits.and(other.traits),
            rails: self.rails.max(other.rails),
        }
    }
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { share_bytes_max: SHARE_BYTES_MAX, traits: LinkTraits::default(), rails: 1 }
    }
}
