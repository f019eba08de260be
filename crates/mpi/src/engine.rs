//! What the processes of a file keep from one collective access to the next.

use weft_collective::{Choice, Collective, Learned, Options};

use crate::abi::Handle;
use crate::error::Result;
use crate::hints::Hints;
use crate::mpi::Mpi;
use crate::peers::MpiPeers;

/// See the module.
pub struct Engine {
    /// The processes.
    pub peers: MpiPeers,
    /// Two-phase accesses.
    pub collective: Collective,
    /// How far predictions were from what was measured.
    pub learned: Learned,
    /// The choice before, and how long it took here.
    pub last: Option<(Choice, u64)>,
}

impl Engine {
    /// Collective: for the processes of `comm`.
    pub fn new(
        mpi: &'static Mpi,
        comm: Handle,
        rank_and_size: (usize, usize),
        hints: &Hints,
    ) -> Result<Engine> {
        let peers = MpiPeers::new(mpi, comm, rank_and_size.0, rank_and_size.1)?;
        Ok(Engine { peers, collective: Collective::new(options(hints)), learned: Learned::new(), last: None })
    }

    /// Collective: gives back what MPI must be told of.
    pub fn free(self) {
        self.peers.free();
    }
}

fn options(hints: &Hints) -> Options {
    let aggregators_max = if hints.cb_nodes == 0 { usize::MAX } else { hints.cb_nodes as usize };
    Options { buffer_bytes: hints.cb_buffer_bytes, aggregators_max, ..Options::default() }
}
