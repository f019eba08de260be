//! What the connections to a file's servers can do, as far as requests are cut and packed by it.

use weft_rpc::links::Way;
use weft_rpc::rpc::Rpc;
use weft_wire::limits::SHARE_BYTES_MAX;

use crate::rdma::RdmaOptions;
use crate::server::Server;

/// Over shared memory, smaller pieces of memory are packed: the kernel pins a page for each piece that a
/// server reaches by itself, and so in pieces of 1 KiB moves 4 MiB half as fast, of 64 bytes a tenth. With
/// four clients on two processors packing still leads at 8 KiB, by up to two. Measured with `weft bench
/// transfer` and the example `pieces`.
const PACK_BELOW_BYTES_SHM: u64 = 16 << 10;
/// The same over TCP: there a piece costs its place in a list of the kernel's, which from 256 bytes on is
/// less than the copy.
const PACK_BELOW_BYTES_TCP: u64 = 256;
/// The same over RDMA, in shares larger than what goes through Fast RDMA buffers, into which the connection
/// packs by itself (NC 4.3): an adapter gathers a piece in about the time in which a processor copies so much
/// of it.
const PACK_BELOW_BYTES_VERBS: u64 = 256;
/// Bytes of a share at most where a server is reached over several rails.
const RAIL_SHARE_BYTES: u64 = 4 << 20;

/// What the servers of a file can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The most that one request to any of them may move.
    pub share_bytes_max: u64,
    /// Pieces smaller than this, on average, are better packed …
    pub pack_below_bytes: u64,
    /// … in shares larger than this: others the connection packs by itself, into memory that adapters know.
    pub pack_above_bytes: u64,
    /// Whether buffers that are kept are better of memory that connections were told of.
    pub shared: bool,
    /// Whether memory has to be registered.
    pub registers: bool,
    /// Connections to each of them over which a request is spread.
    pub rails: usize,
}

impl Reach {
    /// Of the connections to a server.
    pub(crate) fn of(server: &Server, rpc: &Rpc) -> Reach {
        let links = server.links();
        let rdma = rpc.rdma.as_ref().map(|rdma| rdma.options());
        let over = |way| Reach::over(way, links.bulk_bytes_max, rdma);
        links.ways().map(over).reduce(Reach::of_both).unwrap_or_default().with_rails(links.rails)
    }

    /// Of connections of one way; `rdma` is how RDMA is used.
    pub(crate) fn over(way: Way, share_bytes_max: u64, rdma: Option<&RdmaOptions>) -> Reach {
        let reach = Reach { share_bytes_max, ..Reach::default() };
        match way {
            Way::ShmDirect => Reach { pack_below_bytes: PACK_BELOW_BYTES_SHM, shared: true, ..reach },
            Way::Tcp => Reach { pack_below_bytes: PACK_BELOW_BYTES_TCP, ..reach },
            Way::Verbs => Reach {
                pack_below_bytes: PACK_BELOW_BYTES_VERBS,
                pack_above_bytes: rdma.map_or(0, RdmaOptions::packed_bytes_max),
                shared: true,
                registers: true,
                ..reach
            },
            // The link packs by itself.
            Way::ShmStaged => Reach { shared: true, ..reach },
            Way::Memory => reach,
        }
    }

    /// The same over several rails: shares are cut so that every rail has some.
    fn with_rails(self, rails: usize) -> Reach {
        let share_bytes_max =
            if rails > 1 { self.share_bytes_max.min(RAIL_SHARE_BYTES) } else { self.share_bytes_max };
        Reach { share_bytes_max, rails, ..self }
    }

    /// What both can do.
    pub(crate) fn of_both(self, other: Reach) -> Reach {
        Reach {
            share_bytes_max: self.share_bytes_max.min(other.share_bytes_max),
            pack_below_bytes: self.pack_below_bytes.min(other.pack_below_bytes),
            pack_above_bytes: self.pack_above_bytes.max(other.pack_above_bytes),
            shared: self.shared || other.shared,
            registers: self.registers || other.registers,
            rails: self.rails.max(other.rails),
        }
    }
}

impl Default for Reach {
    fn default() -> Reach {
        Reach {
            share_bytes_max: SHARE_BYTES_MAX,
            pack_below_bytes: 0,
            pack_above_bytes: 0,
            shared: false,
            registers: false,
            rails: 1,
        }
    }
}
