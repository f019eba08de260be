//! What every gateway needs that serves a Weft file system to many users of another protocol: FUSE and NFS today.
//!
//! ```text
//!   a request of another protocol: who asks, for which inode
//!      │ Callers      ──► client handle that acts for this user and these groups   (Identities: who that is in Weft)
//!      │ Reports      ──► what this gateway wrote is reported before attributes are asked for
//!      │ Blocks       ──► st_blocks of an inode
//!      │ Watch        ──► how long a reply of the metadata server may be cached
//!      ▼ Identities   ──► owners as this machine shows them
//!   the reply
//! ```
//!
//! Nothing here knows the other protocol. Errors are those of `weft-client`, whose `errno()` any protocol can map.

mod blocks;
mod callers;
mod identity;
mod reports;
mod sharded;
mod watch;

pub use blocks::Blocks;
pub use callers::{Callers, Process, Requester};
pub use identity::{IdMap, IdMapError, Identities, Squash};
pub use reports::{Changes, Reports};
pub use sharded::Sharded;
pub use watch::{Asked, LEASE, Watch};
