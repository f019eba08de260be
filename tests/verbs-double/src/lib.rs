//! An adapter that exists in memory only: a double of [`weft_verbs::Fabric`] for tests. It is no RDMA, and no result of it is one
//! of RDMA: its link layer is [`weft_verbs::LinkLayer::Pretended`].
//!
//! ```text
//!   Pretend (a host) ─┐
//!   Pretend (a host) ─┴── one network, one lock: adapters, memory and keys, queues, connections
//!                          │
//!                          ├── counts what is asked (weft_verbs::Counters)
//!                          ├── charges what it would cost, without waiting for it (Costs, Charged)
//!                          └── goes wrong where it is told to (Faults, set_port, remove_adapter, sever)
//! ```
//!
//! It is as strict as the strictest adapter is: places in a send queue come back only when a later report is taken out of the completion
//! queue; places of receives likewise; reports of failed work say nothing but that; an armed queue wakes once;
//! keys of every kind are checked in adapter, range and rights; a violation ends both queue pairs. Where the reports of a destroyed queue
//! pair may or may not come, they come.
//!
//! Everything happens under the lock, in an order that follows from the calls and the seed ([`Delivery`]). So a test of one thread is
//! repeatable; only [`weft_verbs::Endpoint::connect`] waits, for the other side to answer on another thread.

mod charges;
mod endpoint;
mod engine;
mod fabric;
mod memory;
mod options;
mod pinned;
mod queues;
mod registered;
mod state;
mod wakeup;

pub use charges::Charged;
pub use endpoint::{PretendEndpoint, PretendListener};
pub use fabric::{Pretend, PretendDevice, PretendRegistration, PretendWindow};
pub use options::{Adapter, Costs, Delivery, Faults, NotReady, Pinning, PretendOptions, When, usual_limits};
pub use queues::{PretendQueue, PretendShared};
pub use registered::RegisteredMemory;
