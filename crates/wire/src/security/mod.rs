//! Who may connect, and who may access which file.
//!
//! There is one secret, the cluster key, which only servers have. All other keys are derived from it, each in
//! one direction:
//!
//! ```text
//!  cluster key ──derive──► issuing key ──hash over the public part──► secret of each issued key (keys.rs)
//!       │                                  clients: mutual challenge at connect (HelloRequest, ProveRequest)
//!       ├─────────derive──► server key       between servers: the same challenge
//!       ├─────────derive──► capability key   the metadata server signs, I/O servers check; no client has it
//!       └─────────derive──► knock key        in every issued key; for the queues of RDMA connections
//! ```
//!
//! While the cluster key is being replaced there are two, see [`ClusterKeys`].
//!
//! A proof is a keyed hash over both nonces and the greeting. It includes a direction, so that it cannot be
//! reflected or replayed. A [`Capability`] gives the file, its layout, rights, expiry and holder. An I/O
//! server checks it without asking anyone.

mod bound;
mod capability;
mod cluster_keys;
mod key;
mod proof;

pub use crate::claims::{Capability, Holder};
pub use bound::WriteBound;
pub use capability::CapabilityError;
pub use cluster_keys::{ClusterKeys, ClusterKeysError};
pub use key::{ClusterKeyName, Key, KeyError};
pub use proof::{client_proof, connect_mac, same_mac, same_proof, server_proof, session_name};
