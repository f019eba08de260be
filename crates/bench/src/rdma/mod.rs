//! Measurements of RDMA below Weft: the cost of registrations and of single operations on this host's
//! adapter.
//!
//! ```text
//!   adapter       finds the first adapter of this host that has an address
//!   pinning       pins pages as fixed buffers of io_uring: the cost of registering without an adapter
//!   operations    single operations between two ends of a connection in this process
//! ```
//!
//! On an emulated machine (`tests/guest`) counts are valid and times are not.

pub mod adapter;
pub mod group_registration;
pub mod operations;
pub mod pinning;
pub mod registration_costs;
pub mod scheme_trial;
