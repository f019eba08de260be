//! What the processes of a file keep from one collective access to the next.

use weft_collective::{Choice, Collective, Learned, Method, Options};

use crate::hints::Hints;

/// See the module.
pub struct Engine {
    /// Two-phase accesses.
    pub collective: Collective,
    /// How far predictions were from what was measured.
    pub learned: Learned,
    /// The choice before, and how long it took here.
    pub last: Option<(Choice, u64)>,
    /// Whether there was an exchange.
    pub has_exchanged: bool,
    /// What exchanges would have saved so far, had they been prepared, in nanoseconds.
    missed_ns: f64,
}

/// What the first exchange of a file takes beyond the others, as processes of a node make shared memory.
const SETUP_NS: f64 = 2e6;

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            collective: Collective::new(Options::default()),
            learned: Learned::new(),
            last: None,
            has_exchanged: false,
            missed_ns: 0.0,
        }
    }
}

impl Engine {
    /// What the first exchange is to be charged with: less, the more would have been saved by having done it.
    /// So it is done once it would have paid for itself.
    pub fn setup_ns(&self) -> u64 {
        match self.has_exchanged {
            true => 0,
            false => (SETUP_NS - self.missed_ns).max(0.0) as u64,
        }
    }

    /// Notes a choice that was charged with this.
    pub fn miss(&mut self, choice: &Choice, setup_ns: u64) {
        let of = |method| choice.prediction(method).map(|prediction| prediction.ns);
        if let (Some(list_ns), Some(exchange_ns)) = (of(Method::List), of(Method::TwoPhase)) {
            self.missed_ns += (list_ns + setup_ns as f64 - exchange_ns).max(0.0);
        }
    }
}

/// How exchanges are done by these hints, which are the same in all processes.
pub fn options(hints: &Hints) -> Options {
    let aggregators_max = if hints.cb_nodes == 0 { usize::MAX } else { hints.cb_nodes as usize };
    Options { buffer_bytes: hints.cb_buffer_bytes, aggregators_max, ..Options::default() }
}
