//! What was asked of an adapter. Promises about how little it is are kept by tests over these.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters that grow.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64),* }

        /// What they stood at.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// What they stand at.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl Counts {
            /// What was added since.
            pub fn since(&self, before: &Counts) -> Counts {
                Counts { $($name: self.$name - before.$name),* }
            }

            /// Both together.
            pub fn plus(&self, other: &Counts) -> Counts {
                Counts { $($name: self.$name + other.$name),* }
            }

            /// All of them, by name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Calls that posted send work: rings of a doorbell.
    doorbells,
    /// Messages sent.
    sends,
    /// RDMA Writes, without those with immediate data.
    writes,
    /// RDMA Writes with immediate data.
    writes_immediate,
    /// RDMA Reads.
    reads,
    /// Windows bound, and keys invalidated by work of this side.
    binds,
    /// Receives posted.
    receives,
    /// Ends of work taken from completion queues.
    completions,
    /// Times that completion queues were looked at.
    polls,
    /// Wake-ups that completion queues gave.
    wakeups,
    /// Memory registrations.
    registrations,
    /// Pages of them.
    registered_pages,
    /// Registrations that the system refused.
    registrations_refused,
    /// Registrations ended.
    deregistrations,
    /// Bytes in sends and writes of this side.
    sent_bytes,
    /// Bytes in reads of this side.
    read_bytes,
    /// Work that ended because a peer had no receive posted.
    receiver_not_ready,
}

impl Counters {
    /// Adds to one.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
