//! Measurements of RDMA below Weft: what this host's adapter takes for registrations and for single operations.
//!
//! ```text
//!   adapter       the first adapter of this host that one of its addresses leads to, or why there is none
//!   pinning       pages pinned as io_uring's fixed buffers: what registering takes without its adapter's part
//!   operations    two ends of one connection in this process, an operation at a time
//! ```
//!
//! In an emulated machine (`tests/guest`) counts are true and times are not.

pub mod adapter;
pub mod group_registration;
pub mod operations;
pub mod pinning;
pub mod registration_costs;
pub mod scheme_trial;
