//! Which storage each server of the cluster has: said by I/O servers to the metadata server, about once a second.
//!
//! ```text
//! I/O server                                                      metadata server
//!   │ Register { my storage, mark, run; yours as I know it }          │  the storage it knows? not an older copy? used once?
//!   ├────────────────────────────────────────────────────────────────►│  it is not itself older than that server knows?
//!   │ RegisterReply { its storage, mark, run; what is lost }          │
//!   │◄────────────────────────────────────────────────────────────────┤  from here on the I/O server serves data
//!   │ Register { …; yours as you said }                               │
//!   ├────────────────────────────────────────────────────────────────►│  from here on the metadata server serves names
//! ```

use super::{ClusterMapReply, Endpoint};

crate::message! {
    /// See [`crate::Op::Register`].
    pub struct RegisterRequest {
        /// The I/O server's place in the ring.
        pub id: u16,
        /// Which storage it has.
        pub storage: [u8; 16],
        /// Its mark: greater than that of every older copy of it.
        pub mark: u64,
        /// The run of the server that wrote the mark, random.
        pub run: [u8; 16],
        /// The metadata storage that it belongs to; zeros: it has met none yet.
        pub meta_storage: [u8; 16],
        /// The greatest mark of that storage that it knows of.
        pub meta_mark: u64,
        /// The run that wrote it.
        pub meta_run: [u8; 16],
        /// Where the I/O server is reached, as its own cluster file says.
        pub endpoints: Vec<Endpoint>,
        /// Version of the map that it has; 0: none.
        pub map_version: u32,
    }

    /// Answer to [`RegisterRequest`]: the server may serve.
    pub struct RegisterReply {
        /// Which storage the metadata server has.
        pub meta_storage: [u8; 16],
        /// Its mark, which is durable.
        pub meta_mark: u64,
        /// The run that wrote it.
        pub meta_run: [u8; 16],
        /// Data files of smaller inode numbers that the I/O server does not have are lost, not empty.
        pub lost_below_ino: u64,
        /// The storage's mark goes on from here at least.
        pub mark_floor: u64,
        /// The metadata server serves names; if not, it waits until I/O servers say that they know its mark.
        pub serves_names: bool,
        /// The map, where it is newer than the one of the request.
        pub map: Option<ClusterMapReply>,
    }

    /// See [`crate::Op::ReplaceServer`].
    pub struct ReplaceServerRequest {
        /// Name in the cluster file.
        pub name: String,
    }

    /// See [`crate::Op::ListServers`].
    pub struct ListServersRequest {}

    /// A server that the metadata server keeps record of.
    pub struct ServerRecord {
        /// Name in the cluster file.
        pub name: String,
        /// "meta" or "io".
        pub role: String,
        /// Place among those of its role.
        pub id: u16,
        /// Its storage; zeros: none is known.
        pub storage: [u8; 16],
        /// The storage's mark.
        pub mark: u64,
        /// "up", "away", "expected" (its storage is to be replaced) or "new" (never seen).
        pub state: String,
        /// Data files of smaller inode numbers that it does not have are lost.
        pub lost_below_ino: u64,
    }

    /// Answer to [`ListServersRequest`].
    pub struct ListServersReply {
        /// The metadata server, then the I/O servers by id.
        pub servers: Vec<ServerRecord>,
    }

    /// See [`crate::Op::VouchEmpty`].
    pub struct VouchEmptyRequest {
        /// Inode numbers.
        pub inos: Vec<u64>,
    }
}
