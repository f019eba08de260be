//! What every implementation of the seam must do. Each adapter's tests name its hosts and get all of it:
//!
//! ```ignore
//! #[macro_use]
//! #[path = "…/crates/verbs/tests/suite/mod.rs"]
//! mod suite;
//! conformance!([] hosts()); // -> suite::Hosts<F>, for each test anew
//! ```
//!
//! In the brackets are attributes for the tests, such as `#[ignore = "why"]`.

mod ends;
mod faults;
mod transfers;

pub use ends::*;
pub use faults::*;
pub use transfers::*;

/// Makes a test of each part of the suite.
#[macro_export]
macro_rules! conformance {
    ([$($attribute:tt)*] $hosts:expr) => {
        $crate::conformance! { @each [$($attribute)*] $hosts;
            private_data_goes_both_ways
            a_refusal_says_why
            a_port_without_a_listener_refuses
            messages_arrive
            inline_memory_is_free_at_once
            writes_and_reads_reach_the_peers_memory
            writes_with_immediate_data_take_a_receive
            pieces_are_gathered_and_scattered
            a_fence_waits_for_reads
            a_chain_is_one_doorbell_and_one_completion
            a_full_queue_says_how_much_it_took
            many_share_one_receive_queue
            sleepers_are_woken_once
            wrong_keys_end_only_their_connection
            memory_is_protected_as_it_was_registered
            wrong_local_keys_are_told
            a_deregistered_key_is_refused
            windows_open_and_close
            a_window_opens_only_its_part
            windows_are_closed_by_their_owner
            memory_that_is_not_there_is_not_registered
            an_end_flushes_what_is_posted
            a_dropped_endpoint_ends_the_other
            things_may_be_dropped_in_any_order
            counts_add_up
        }
    };
    (@each [$($attribute:tt)*] $hosts:expr; $($name:ident)*) => {
        $crate::conformance! { @list [[$($attribute)*] $hosts] $($name)* }
    };
    (@list $how:tt $name:ident $($rest:ident)*) => {
        $crate::conformance! { @one $how $name }
        $crate::conformance! { @list $how $($rest)* }
    };
    (@list $how:tt) => {};
    (@one [[$($attribute:tt)*] $hosts:expr] $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            suite::$name(&$hosts);
        }
    };
}
