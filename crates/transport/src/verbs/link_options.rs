//! How a link over RDMA is made, and how it moves data.

use weft_verbs::TrafficClass;
use weft_wire::limits::MESSAGE_DATA_BYTES_MAX;
use weft_wire::security::Key;

use super::choose::{Direction, Mechanism, Thresholds, Transfer, choose};
use super::envelope::VerbsRole;
use super::sizes::{CLIENT_FAST_BUFFERS, CLIENT_RECEIVES, CLIENT_SENDS, FAST_DATA_BYTES};
use crate::link::LinkTraits;

/// Fewest pieces of a request for which a client asks for the server's units, by default.
const LEND_PIECES_MIN: u64 = 128;

/// Smaller pieces of memory are better packed, in data larger than what goes through Fast RDMA buffers, into
/// which the link packs by itself (NC 4.3): an adapter gathers a piece in about the time in which a processor
/// copies so much of it.
const PACK_BELOW_BYTES: u64 = 256;

/// How a link over RDMA is made, and how it moves data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The key of the cluster's clients, or of its servers; `None` where there is none.
    pub key: Option<Key>,
    /// Which of the two.
    pub role: VerbsRole,
    /// What the network is to think of this link's traffic.
    pub class: TrafficClass,
    /// Data of up to this size rides in messages.
    pub inline_bytes_max: u64,
    /// Data of up to this size goes through Fast RDMA buffers where one is free.
    pub fast_bytes_max: u64,
    /// Always this mechanism where it is possible, for comparisons.
    pub mechanism: Option<Mechanism>,
    /// Data in at least so many pieces, that are short, is moved by this side into and out of units that the
    /// server lends; 0: never.
    pub lend_pieces_min: u64,
    /// Receives of the link, 8 KiB each, which also bound the requests under way.
    pub receives: u16,
    /// Messages that may be on their way, 8 KiB each.
    pub sends: u16,
    /// Fast RDMA buffers of the link's own, 72 KiB each.
    pub fast_buffers: u16,
    /// Servers get at memory by keys that end with each request, where the adapter has memory windows.
    /// Registrations are shared: what the first link over an adapter says holds for all.
    pub windows: bool,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions {
            key: None,
            role: VerbsRole::Client,
            class: TrafficClass::default(),
            inline_bytes_max: 4096,
            fast_bytes_max: FAST_DATA_BYTES as u64,
            mechanism: None,
            lend_pieces_min: LEND_PIECES_MIN,
            receives: CLIENT_RECEIVES,
            sends: CLIENT_SENDS,
            fast_buffers: CLIENT_FAST_BUFFERS,
            windows: true,
        }
    }
}

impl VerbsOptions {
    /// How the data of a request moves whose memory, in so many pieces, is not registered yet, to a server
    /// that allows the same, has a Fast buffer free, and lends; `write`: a write of a file.
    pub fn mechanism_for(&self, bytes: u64, pieces: u64, write: bool) -> Mechanism {
        let direction = if write { Direction::Get } else { Direction::Put };
        let fast_free = self.fast_buffers > 0;
        let transfer = Transfer { direction, bytes, pieces, registered: false, fast_free, lent: true };
        choose(&transfer, &self.thresholds(), self.mechanism)
    }

    /// What suits a link with these options.
    pub fn traits(&self) -> LinkTraits {
        let pack_above_bytes = match self.mechanism {
            None => self.inline_bytes_max.max(self.fast_bytes_max),
            Some(Mechanism::Inline) => self.inline_bytes_max,
            Some(Mechanism::Fast) => self.fast_bytes_max,
            Some(Mechanism::Remote | Mechanism::Lend) => 0,
        };
        LinkTraits { pack_below_bytes: PACK_BELOW_BYTES, pack_above_bytes, shared: true, registers: true }
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        Thresholds {
            inline_bytes_max: self.inline_bytes_max,
            fast_bytes_max: self.fast_bytes_max.min(FAST_DATA_BYTES as u64),
            message_data_bytes_max: MESSAGE_DATA_BYTES_MAX as u64,
            lend_pieces_min: self.lend_pieces_min,
        }
    }
}
