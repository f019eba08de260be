//! The NFS gateway: NFSv3 and MOUNT (RFC 1813) over the files of a Weft cluster.
//!
//! ```text
//!   NFS client ─► onc-server ─► Gateway ─► procedures/…     one function for each procedure
//!                 records,      programs,    │ target.rs    a handle's inode, its export, its user
//!                 calls         duplicates   │ opens.rs     open files, what was written, rights
//!                                            ▼ weft.rs      operations of weft-client as futures
//!                                        weft-client ─► metadata server, I/O servers
//! ```
//!
//! A gateway keeps nothing that a client relies on: handles are the same on every gateway, and stable over
//! restarts. So several gateways may serve the same files, and a client may go from one to another.
//!
//! One thread runs all calls. Only what `weft-client` cannot begin without waiting is done by other threads
//! (`workers.rs`): reports of what was written, syncs, truncation and closing.

// What tests share names this crate as they do.
#[cfg(test)]
extern crate self as weft_nfs;

mod args;
mod attributes;
mod credential;
mod datagrams;
mod descriptors;
mod duplicates;
mod export;
mod gateway;
mod handle;
mod known;
mod locks;
mod mount;
mod network;
mod opens;
mod outbound;
mod permits;
mod place;
mod procedures;
mod refusals;
mod rpcbind;
mod serve;
#[cfg(test)]
#[path = "../tests/serving/mod.rs"]
mod serving;
mod space;
mod status;
mod target;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod testing;
mod times;
mod used;
mod verifier;
mod weft;
mod workers;

pub use credential::Credential;
pub use export::{ExportOptions, Rule};
pub use gateway::{Gateway, GatewayCounts, GatewayOptions, MOUNT_PROGRAM, NFS_PROGRAM, VERSION};
pub use handle::{HANDLE_BYTES, Handle, HandleKeys, Mark};
pub use locks::{GRACE_DEFAULT, LockCounts, LockOptions};
pub use network::{Network, NetworkError};
pub use rpcbind::LOCAL_MAPPER;
pub use serve::{Listeners, PORT_DEFAULT, RDMA_PORT_DEFAULT, Serving, listen_rdma};
pub use target::Sender;
pub use times::ProcedureTimes;
pub use weft::{Weft, both};
pub use weft_gateway::{Identities, Squash};
pub use weft_onc_server::{Peer, RdmaDesign, RdmaListener, RdmaMemory, RdmaOptions, Transport};
pub use weft_verbs::RdmaCore;
pub use workers::Workers;
