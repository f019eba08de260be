//! Counters of an adapter's operations. Tests use them to check that operations are few.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters. They only grow.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64),* }

        /// Values of the counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// The current values.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl Counts {
            /// The increase since `before`.
            pub fn since(&self, before: &Counts) -> Counts {
                Counts { $($name: self.$name - before.$name),* }
            }

            /// The sum of both.
            pub fn plus(&self, other: &Counts) -> Counts {
                Counts { $($name: self.$name + other.$name),* }
            }

            /// All values, by name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Calls that posted send work: doorbell rings.
    doorbells,
    /// Messages sent.
    sends,
    /// RDMA Writes, without those with immediate data.
    writes,
    /// RDMA Writes with immediate data.
    writes_immediate,
    /// RDMA Reads.
    reads,
    /// Windows bound, and keys invalidated by work requests of this side.
    binds,
    /// Receives posted.
    receives,
    /// Completions taken from completion queues.
    completions,
    /// Polls of completion queues.
    polls,
    /// Wake-ups by completion queues.
    wakeups,
    /// Memory registrations.
    registrations,
    /// Registered pages.
    registered_pages,
    /// Registrations that failed.
    registrations_refused,
    /// Deregistrations.
    deregistrations,
    /// Bytes in Sends and RDMA Writes of this side.
    sent_bytes,
    /// Bytes in RDMA Reads of this side.
    read_bytes,
    /// Work requests that failed because the peer had no receive posted.
    receiver_not_ready,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
