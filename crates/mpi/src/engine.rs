//! What the processes of a file keep from one collective access to the next.

use weft_collective::{Choice, Collective, Costs, Learned, Method, Options};

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
    /// What exchanges would have saved so far, had they been prepared, in nanoseconds.
    missed_ns: f64,
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
        Ok(Engine {
            peers,
            collective: Collective::new(options(hints)),
            learned: Learned::new(),
            last: None,
            missed_ns: 0.0,
        })
    }

    /// What the first exchange is to be charged with: less, the more would have been saved by having done it.
    /// So it is done once it would have paid for itself.
    pub fn setup_ns(&self) -> u64 {
        if self.peers.has_node() {
            return 0;
        }
        let (processes, processors) = (self.peers.process_count(), self.peers.processor_count());
        (Costs::default().first_exchange_ns(processes, processors) - self.missed_ns).max(0.0) as u64
    }

    /// Notes a choice that was charged with this.
    pub fn miss(&mut self, choice: &Choice, setup_ns: u64) {
        let of = |method| choice.prediction(method).map(|prediction| prediction.ns);
        if let (Some(list_ns), Some(exchange_ns)) = (of(Method::List), of(Method::TwoPhase)) {
            self.missed_ns += (list_ns + setup_ns as f64 - exchange_ns).max(0.0);
        }
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
