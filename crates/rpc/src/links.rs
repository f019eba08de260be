//! What the connections to a server can do.

use weft_transport::LinkKind;
use weft_wire::limits::SHARE_BYTES_MAX;

/// How a connection moves data, without particulars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// TCP.
    Tcp,
    /// Shared memory; the server reaches this process's memory.
    ShmDirect,
    /// Shared memory; data is copied through a segment of the link's.
    ShmStaged,
    /// RDMA.
    Verbs,
    /// In one process, for tests.
    Memory,
}

impl Way {
    const ALL: [Way; 5] = [Way::Tcp, Way::ShmDirect, Way::ShmStaged, Way::Verbs, Way::Memory];

    fn of(kind: &LinkKind) -> Way {
        match kind {
            LinkKind::Tcp { .. } => Way::Tcp,
            LinkKind::ShmDirect => Way::ShmDirect,
            LinkKind::ShmStaged { .. } => Way::ShmStaged,
            LinkKind::Verbs { .. } => Way::Verbs,
            LinkKind::Memory => Way::Memory,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What was seen of the connections to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// The most that one request over any of them may move.
    pub bulk_bytes_max: u64,
    /// Connections over which much data is spread.
    pub rails: usize,
    ways: u8,
}

impl Default for Links {
    fn default() -> Links {
        Links { bulk_bytes_max: SHARE_BYTES_MAX, rails: 1, ways: 0 }
    }
}

impl Links {
    pub(crate) fn over(kind: &LinkKind, bulk_bytes_max: u64) -> Links {
        Links { bulk_bytes_max, rails: 1, ways: Way::of(kind).bit() }
    }

    /// With one more.
    pub(crate) fn and(self, other: Links) -> Links {
        Links {
            bulk_bytes_max: self.bulk_bytes_max.min(other.bulk_bytes_max),
            rails: self.rails.max(other.rails),
            ways: self.ways | other.ways,
        }
    }

    /// The ways in which they move data.
    pub fn ways(&self) -> impl Iterator<Item = Way> {
        let ways = self.ways;
        Way::ALL.into_iter().filter(move |way| ways & way.bit() != 0)
    }
}
