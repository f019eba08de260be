//! What the processes of a file keep from one collective access to the next.

use weft_collective::{Choice, Collective, Learned, Method, Options};

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
    setup: SetUp,
}

/// What the first exchange of a file is to be charged with: less, the more would have been saved by having done
/// it. So it is done once it would have paid for itself.
#[derive(Debug, Default)]
struct SetUp {
    /// What exchanges would have saved so far, had they been prepared, in nanoseconds.
    missed_ns: f64,
}

/// What the first exchange of a file takes beyond the others: MPI makes a communicator and shared memory.
const SETUP_NS: f64 = 2e6;
/// The same where a process waits for its turn on a processor: MPI's own waiting keeps it from those that work.
const CROWDED_SETUP_NS: f64 = 100e6;

impl SetUp {
    fn charge_ns(&self, is_crowded: bool) -> u64 {
        let setup_ns = if is_crowded { CROWDED_SETUP_NS } else { SETUP_NS };
        (setup_ns - self.missed_ns).max(0.0) as u64
    }

    /// Notes what an access was expected to take in both ways; the exchange was charged with `charge_ns`.
    fn miss(&mut self, list_ns: f64, exchange_ns: f64, charge_ns: u64) {
        self.missed_ns += (list_ns + charge_ns as f64 - exchange_ns).max(0.0);
    }
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
            setup: SetUp::default(),
        })
    }

    /// What an exchange is to be charged with for what the first one takes beyond the others.
    pub fn setup_ns(&self) -> u64 {
        if self.peers.has_node() {
            return 0;
        }
        self.setup.charge_ns(self.peers.process_count() > self.peers.processor_count())
    }

    /// Notes a choice that was charged with this.
    pub fn miss(&mut self, choice: &Choice, setup_ns: u64) {
        let of = |method| choice.prediction(method).map(|prediction| prediction.ns);
        if let (Some(list_ns), Some(exchange_ns)) = (of(Method::List), of(Method::TwoPhase)) {
            self.setup.miss(list_ns, exchange_ns, setup_ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_prepared_once_that_would_have_paid_for_itself() {
        let mut setup = SetUp::default();
        let charge_ns = setup.charge_ns(false);
        assert_eq!(charge_ns, SETUP_NS as u64);
        assert!(setup.charge_ns(true) > charge_ns);
        // What was charged is no part of what an exchange takes once it is prepared: it would have saved half.
        let exchange_ns = 1e6 + charge_ns as f64;
        setup.miss(1e6 + SETUP_NS / 2.0, exchange_ns, charge_ns);
        assert_eq!(setup.charge_ns(false), charge_ns / 2);
        // An access for which an exchange is slower changes nothing.
        setup.miss(1e6, 5e6, setup.charge_ns(false));
        assert_eq!(setup.charge_ns(false), charge_ns / 2);
        setup.miss(9e6, 1e6, setup.charge_ns(false));
        assert_eq!(setup.charge_ns(false), 0);
    }
}
