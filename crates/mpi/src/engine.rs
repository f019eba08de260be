//! What the processes of a file keep from one collective access to the next.

use weft_collective::{Choice, Collective, Costs, Learned, Method, Options};

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
    setup: SetUp,
}

/// What the first exchange of a file is to be charged with: less, the more would have been saved by having done
/// it. So it is done once it would have paid for itself.
#[derive(Debug, Default)]
struct SetUp {
    /// What exchanges would have saved so far, had they been prepared, in nanoseconds.
    missed_ns: f64,
}

impl SetUp {
    fn charge_ns(&self) -> u64 {
        (Costs::default().setup_ns - self.missed_ns).max(0.0) as u64
    }

    /// Notes what an access was expected to take in both ways; the exchange was charged with `charge_ns`.
    fn miss(&mut self, list_ns: f64, exchange_ns: f64, charge_ns: u64) {
        self.missed_ns += (list_ns + charge_ns as f64 - exchange_ns).max(0.0);
    }
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            collective: Collective::new(Options::default()),
            learned: Learned::new(),
            last: None,
            has_exchanged: false,
            setup: SetUp::default(),
        }
    }
}

impl Engine {
    /// What an exchange is to be charged with for what the first one takes beyond the others.
    pub fn setup_ns(&self) -> u64 {
        if self.has_exchanged { 0 } else { self.setup.charge_ns() }
    }

    /// Notes a choice that was charged with this.
    pub fn miss(&mut self, choice: &Choice, setup_ns: u64) {
        let of = |method| choice.prediction(method).map(|prediction| prediction.ns);
        if let (Some(list_ns), Some(exchange_ns)) = (of(Method::List), of(Method::TwoPhase)) {
            self.setup.miss(list_ns, exchange_ns, setup_ns);
        }
    }
}

/// How exchanges are done by these hints, which are the same in all processes.
pub fn options(hints: &Hints) -> Options {
    let aggregators_max = if hints.cb_nodes == 0 { usize::MAX } else { hints.cb_nodes as usize };
    Options { buffer_bytes: hints.cb_buffer_bytes, aggregators_max, ..Options::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_prepared_once_that_would_have_paid_for_itself() {
        let mut setup = SetUp::default();
        let charge_ns = setup.charge_ns();
        let setup_ns = Costs::default().setup_ns;
        assert_eq!(charge_ns, setup_ns as u64);
        // What was charged is no part of what an exchange takes once it is prepared: it would have saved half.
        let exchange_ns = 1e6 + charge_ns as f64;
        setup.miss(1e6 + setup_ns / 2.0, exchange_ns, charge_ns);
        assert_eq!(setup.charge_ns(), charge_ns / 2);
        // An access for which an exchange is slower changes nothing.
        setup.miss(1e6, 5e6, setup.charge_ns());
        assert_eq!(setup.charge_ns(), charge_ns / 2);
        setup.miss(9e6, 1e6, setup.charge_ns());
        assert_eq!(setup.charge_ns(), 0);
    }
}
