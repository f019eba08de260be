//! The storage of each server of the cluster: I/O servers report it to the metadata server, about once a
//! second.
//!
//! ```text
//! I/O server                                               metadata server
//!   │ Register { my storage, mark, run; yours as I know it }   │  known storage, no older copy, used once?
//!   ├─────────────────────────────────────────────────────────►│  not itself older than is known?
//!   │ RegisterReply { its storage, mark, run; what is lost }   │
//!   │◄─────────────────────────────────────────────────────────┤  now the I/O server serves data
//!   │ Register { …; yours as in the reply }                    │
//!   ├─────────────────────────────────────────────────────────►│  now the metadata server serves names
//! ```

use super::{ClusterMapReply, Endpoint};

crate::message! {
    /// See [`crate::Op::Register`].
    pub struct RegisterRequest {
        /// The I/O server's place in the ring.
        pub id: u16,
        /// Its storage.
        pub storage: [u8; 16],
        /// Its mark: greater than that of every older copy of it.
        pub mark: u64,
        /// The run of the server that wrote the mark, random.
        pub run: [u8; 16],
        /// The metadata storage that it belongs to; zeros: none yet.
        pub meta_storage: [u8; 16],
        /// The greatest mark of that storage that it knows of.
        pub meta_mark: u64,
        /// The run that wrote it.
        pub meta_run: [u8; 16],
        /// The I/O server's addresses according to its own cluster file.
        pub endpoints: Vec<Endpoint>,
        /// Version of its map; 0: none.
        pub map_version: u32,
    }

    /// Reply to [`RegisterRequest`]: the server may serve.
    pub struct RegisterReply {
        /// The metadata server's storage.
        pub meta_storage: [u8; 16],
        /// Its mark, which is durable.
        pub meta_mark: u64,
        /// The run that wrote it.
        pub meta_run: [u8; 16],
        /// Missing data files with smaller inode numbers are lost, not empty.
        pub lost_below_ino: u64,
        /// The storage's mark continues at least from here.
        pub mark_floor: u64,
        /// Whether the metadata server serves names. If not, it waits until I/O servers confirm that they
        /// know its mark.
        pub serves_names: bool,
        /// The map, if it is newer than that of the request.
        pub map: Option<ClusterMapReply>,
    }

    /// See [`crate::Op::ReplaceServer`].
    pub struct ReplaceServerRequest {
        /// Name in the cluster file.
        pub name: String,
    }

    /// See [`crate::Op::ListServers`].
    pub struct ListServersRequest {}

    /// A server in the metadata server's registry.
    pub struct ServerRecord {
        /// Name in the cluster file.
        pub name: String,
        /// "meta" or "io".
        pub role: String,
        /// Its id among those of its role.
        pub id: u16,
        /// Its storage; zeros: none is known.
        pub storage: [u8; 16],
        /// The storage's mark.
        pub mark: u64,
        /// "up", "away", "expected" (its storage is to be replaced) or "new" (never seen).
        pub state: String,
        /// Missing data files with smaller inode numbers are lost.
        pub lost_below_ino: u64,
    }

    /// Reply to [`ListServersRequest`].
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
