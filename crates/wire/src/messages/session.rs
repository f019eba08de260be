//! Handshake and status.
//!
//! ```text
//! client                                                server
//!   │ Hello { versions, client_nonce, role, who }          │
//!   ├─────────────────────────────────────────────────────►│
//!   │ HelloReply { version, server_nonce, server's proof } │  the server knows the key: the client continues
//!   │◄─────────────────────────────────────────────────────┤
//!   │ Prove { client's proof }                             │
//!   ├─────────────────────────────────────────────────────►│  the client knows it too: requests are served
//!   │ ProveReply { credits, epoch, … }                     │
//!   │◄─────────────────────────────────────────────────────┤
//! ```

use crate::body::Added;
use crate::keys::KeyInfo;

/// The gauge with a server's clock, in microseconds since 1970: every server has it.
pub const CLOCK_GAUGE: &str = "clock_us";

/// Values of [`HelloRequest::role`]: they select the key of the proofs.
pub mod peer_role {
    /// A client with an issued key. The public part is in the greeting; the proofs use the secret.
    pub const CLIENT: u8 = 0;
    /// A server of the cluster. The proofs use the server key.
    pub const SERVER: u8 = 1;
    /// A client without a key, over a Unix socket only. The kernel reports its user. The proofs use a key of
    /// zeros and prove nothing.
    pub const PROCESS: u8 = 2;
}

/// Values of [`ClientUse::acts_for`]: whose requests a client may send.
pub mod acts_for {
    /// The server does not say.
    pub const UNKNOWN: u8 = 0;
    /// Those of one user.
    pub const ONE_USER: u8 = 1;
    /// Those of any user but root.
    pub const ALL_BUT_ROOT: u8 = 2;
    /// Those of any user.
    pub const ALL: u8 = 3;
    /// It is a server of the cluster.
    pub const SERVERS: u8 = 4;
}

crate::message! {
    /// See [`crate::Op::Hello`].
    pub struct HelloRequest {
        /// Oldest version that the client speaks.
        pub version_min: u8,
        /// Newest version that the client speaks.
        pub version_max: u8,
        /// See [`peer_role`].
        pub role: u8,
        /// Random, new for every connection.
        pub client_nonce: [u8; 32],
        /// The public part of the client's key; of a [`peer_role::CLIENT`] only.
        pub key: Option<KeyInfo>,
        /// Random, the same for all connections of one client. It identifies a session only among those of
        /// this key.
        pub session: [u8; 16],
        /// The kernel's boot id of the client's host. If it is equal, the host is the same.
        pub boot_id: [u8; 16],
        /// The client's process id in its own namespace.
        pub process_id: u32,
        /// Host name, for display.
        pub host: String,
        /// Program name, for display.
        pub program: String,
        /// The session ends with its last connection, if the client's host closes that in order: its process has ended.
        /// A client that goes on resets a connection that it gives up. Otherwise a session has its time of grace.
        pub ends_with_connection: Added<bool>,
        /// Which of the processes that share the session this is; 0 where it has one of its own.
        pub member: Added<u16>,
    }

    /// Reply to [`HelloRequest`].
    pub struct HelloReply {
        /// The version to use.
        pub version: u8,
        /// Random, new for every connection.
        pub server_nonce: [u8; 32],
        /// Proves that the server knows the key ([`crate::security::server_proof`]).
        pub proof: [u8; 32],
    }

    /// See [`crate::Op::Prove`].
    pub struct ProveRequest {
        /// Proves that the client knows the key ([`crate::security::client_proof`]).
        pub proof: [u8; 32],
    }

    /// Reply to [`ProveRequest`]: the session is established.
    pub struct ProveReply {
        /// The cluster.
        pub cluster_id: [u8; 16],
        /// The server's name in the cluster file.
        pub server_name: String,
        /// Of a metadata server: the run of the session. It ends with the server, or when the client was away
        /// for too long, and everything that the session held ends with it. Of an I/O server: changes
        /// whenever it starts.
        pub epoch: u64,
        /// Limit of concurrent requests on this connection.
        pub credits: u16,
        /// Kernel boot id of the server's host.
        pub boot_id: [u8; 16],
        /// Of an I/O server: as in [`SyncAllReply`](super::SyncAllReply), to detect later losses.
        pub loss_epoch: u64,
    }

    /// See [`crate::Op::Ping`].
    pub struct PingRequest {
        /// Returned unchanged; its length serves latency measurements.
        pub echo: Vec<u8>,
    }

    /// Reply to [`PingRequest`].
    pub struct PingReply {
        /// The bytes of the request.
        pub echo: Vec<u8>,
    }

    /// See [`crate::Op::Status`].
    pub struct StatusRequest {
        /// Whether to list the connected clients.
        pub with_clients: bool,
    }

    /// Counters of one operation.
    pub struct OpCount {
        /// The operation's number.
        pub op: u16,
        /// How often it was done.
        pub count: u64,
        /// How often it failed.
        pub errors: u64,
        /// File bytes moved.
        pub bytes: u64,
    }

    /// A client of a server.
    pub struct ClientInfo {
        /// A name for its session that does not reveal the id ([`crate::security::session_name`]).
        pub session: [u8; 16],
        /// Its host.
        pub host: String,
        /// Its program.
        pub program: String,
        /// Its process.
        pub process_id: u32,
        /// How it is connected ("tcp", "shm direct", "shm staged").
        pub transport: String,
        /// Number of its connections.
        pub connections: u32,
        /// Number of its requests that are done.
        pub requests: u64,
    }

    /// Reply to [`StatusRequest`].
    pub struct StatusReply {
        /// The server's name.
        pub name: String,
        /// "meta" or "io".
        pub role: String,
        /// Id of an I/O server.
        pub id: u16,
        /// Software version.
        pub version: String,
        /// Its process.
        pub process_id: u32,
        /// Time since the start.
        pub uptime_ms: u64,
        /// Processor time used.
        pub cpu_ms: u64,
        /// Resident memory.
        pub memory_bytes: u64,
        /// Storage directory.
        pub directory: String,
        /// Size of the disk under it.
        pub space_bytes: u64,
        /// Free space for users other than root.
        pub free_bytes: u64,
        /// Disk engine ("ring", "plain").
        pub disk: String,
        /// When writes are acknowledged: when durable ("sync") or when the operating system has them
        /// ("nosync").
        pub sync_mode: String,
        /// Requests in progress.
        pub active_requests: u64,
        /// Counters of all operations that were done at least once.
        pub operations: Vec<OpCount>,
        /// Named gauges and counters of the parts (buffers, garbage, …).
        pub gauges: Vec<Gauge>,
        /// Number of clients.
        pub clients: u32,
        /// The clients, if requested.
        pub client_list: Vec<ClientInfo>,
        /// Its use of RDMA.
        pub rdma: RdmaStatus,
        /// The inodes that most requests are about, if clients are requested; the busiest first.
        pub busy: Added<Vec<BusyInode>>,
        /// What the clients of `client_list` did, in the same order.
        pub client_uses: Added<Vec<ClientUse>>,
        /// What clients did that are not connected any more, by user, if clients are requested.
        pub ended_uses: Added<Vec<EndedUse>>,
        /// The disk under the server's directory; the same for servers that share it. Zeros: not known.
        pub disk_id: Added<[u8; 16]>,
    }

    /// The use that a client made of files, and for which user.
    #[derive(Default)]
    pub struct ClientUse {
        /// See [`acts_for`].
        pub acts_for: u8,
        /// The user of its key, or of its process where the kernel says that.
        pub uid: Option<u32>,
        /// The name of its key; empty if it has none.
        pub key: String,
        /// Bytes of files that it read.
        pub read_bytes: u64,
        /// Bytes that it wrote.
        pub written_bytes: u64,
    }

    /// What clients of a user did that are not connected any more, since the server started.
    pub struct EndedUse {
        /// Their user, and the bytes of all of them. [`acts_for::UNKNOWN`]: of several users.
        pub by: ClientUse,
        /// Number of their requests.
        pub requests: u64,
    }

    /// What requests did with an inode, counted from when the server began to count for it. It ends that where others are busier, and
    /// may begin anew.
    #[derive(Copy, Default)]
    pub struct BusyInode {
        /// The inode.
        pub ino: u64,
        /// Requests that succeeded.
        pub requests: u64,
        /// Bytes of the file that they read.
        pub read_bytes: u64,
        /// Bytes that they wrote.
        pub written_bytes: u64,
    }

    /// A server's use of RDMA.
    pub struct RdmaStatus {
        /// Addresses where it listens; empty: RDMA is not used.
        pub addresses: Vec<String>,
        /// Why RDMA is not used, or not everywhere; empty: no reason to report.
        pub reason: String,
        /// Adapters that it listens on.
        pub adapters: Vec<RdmaAdapter>,
    }

    /// An adapter in use.
    pub struct RdmaAdapter {
        /// Its name in the system: "mlx5_0", "rxe0".
        pub name: String,
        /// "InfiniBand", "RoCE", "iWARP".
        pub link_layer: String,
        /// Connections, registrations and operations of the adapter.
        pub counts: Vec<Gauge>,
    }

    /// A named number.
    pub struct Gauge {
        /// Name, ending with its unit.
        pub name: String,
        /// Value.
        pub value: u64,
    }

    /// A key in the metadata server's list.
    pub struct KeyRecord {
        /// Its public part.
        pub key: KeyInfo,
        /// When it was first seen, in seconds since 1970.
        pub noted_s: u64,
        /// When it was revoked; 0: it was not.
        pub revoked_s: u64,
    }

    /// See [`crate::Op::NoteKey`].
    pub struct NoteKeyRequest {
        /// Its public part.
        pub key: KeyInfo,
    }

    /// See [`crate::Op::ListKeys`].
    pub struct ListKeysRequest {
        /// Id of the last key received; zeros at first.
        pub after: [u8; 16],
    }

    /// Reply to [`ListKeysRequest`].
    pub struct ListKeysReply {
        /// A page of them, by id.
        pub keys: Vec<KeyRecord>,
        /// Whether this was the last page.
        pub end: bool,
    }

    /// See [`crate::Op::RevokeKey`].
    pub struct RevokeKeyRequest {
        /// The id.
        pub id: [u8; 16],
    }

    /// Reply to [`RevokeKeyRequest`]. The metadata server now refuses the key.
    pub struct RevokeKeyReply {
        /// I/O servers that have not confirmed yet. They are notified when they are reachable again.
        pub waiting: Vec<String>,
    }

    /// See [`crate::Op::SetRevoked`].
    pub struct SetRevokedRequest {
        /// All revoked keys.
        pub ids: Vec<[u8; 16]>,
    }

    /// See [`crate::Op::Revoked`].
    pub struct RevokedRequest {}

    /// Reply to [`RevokedRequest`].
    pub struct RevokedReply {
        /// All revoked keys that the server knows of.
        pub ids: Vec<[u8; 16]>,
    }

    /// See [`crate::Op::MemoryProbe`]: 32 bytes at `address`, 16 random ones of the client, and 16 that the
    /// server overwrites.
    pub struct MemoryProbeRequest {
        /// Address in the client.
        pub address: u64,
    }

    /// Reply to [`MemoryProbeRequest`].
    pub struct MemoryProbeReply {
        /// Whether the kernel allowed the server to read and write there.
        pub reached: bool,
        /// The bytes that were read.
        pub read: [u8; 16],
        /// The bytes that were written after them.
        pub written: [u8; 16],
        /// Why it was not allowed, if so.
        pub reason: String,
    }

    /// See [`crate::Op::SegmentAdd`].
    pub struct SegmentAddRequest {
        /// The client's number for it; not 0.
        pub segment: u16,
        /// Its size.
        pub bytes: u64,
    }

    /// See [`crate::Op::SegmentDrop`].
    pub struct SegmentDropRequest {
        /// The client's number for it.
        pub segment: u16,
    }

    /// A run of memory: equal pieces of client memory at equal distances. There are `count` pieces of
    /// `bytes`, the first at `address`, each `stride_bytes` after the one before. A request's memory is a
    /// list of runs, in the order of the request's share.
    ///
    /// A 64 MiB buffer of a file striped by 64 KiB over 4 servers is one run for each:
    /// `{ address, bytes: 65536, stride_bytes: 262144, count: 256 }`.
    pub struct MemoryRun {
        /// 0: the client's own memory, by address. Otherwise the number of a segment, and `address` is an
        /// offset in it.
        pub segment: u16,
        /// Where the first piece begins.
        pub address: u64,
        /// Bytes of each piece.
        pub bytes: u64,
        /// Distance from the beginning of a piece to that of the next.
        pub stride_bytes: i64,
        /// Number of pieces.
        pub count: u64,
    }

    /// Over shared memory, payload of a request with [`crate::flags::REMOTE_MEMORY`].
    pub struct RemoteMemory {
        /// In the order of the share.
        pub runs: Vec<MemoryRun>,
    }

    /// Memory of the client that the server may read or write through the client's adapter.
    pub struct RemoteKey {
        /// The address where it begins, for the client's adapter.
        pub address: u64,
        /// Its length.
        pub bytes: u64,
        /// The key that the server presents.
        pub remote_key: u32,
    }

    /// Over RDMA, payload of a request with [`crate::flags::REMOTE_MEMORY`]. The segment of a run is 1 + the
    /// index of its key, which covers all of its pieces. Addresses are those of the key.
    pub struct RemoteKeys {
        /// Registered memory.
        pub keys: Vec<RemoteKey>,
        /// In the order of the share.
        pub runs: Vec<MemoryRun>,
        /// Whether the keys end with the request. A server that can do so sends the last part of its reply in
        /// a way that invalidates the last key.
        pub keys_end: bool,
    }

    /// Over RDMA, payload of a request with [`crate::flags::LENT_MEMORY`]. The client moves the data itself,
    /// between its memory and buffers that the server lends it.
    pub struct LentMemory {
        /// Length of all data.
        pub bytes: u64,
        /// Bytes of one work request of the client if its memory is regular: units are best cut at multiples
        /// of it. 0: anywhere.
        pub step_bytes: u32,
        /// Whether the client supplies the data: a write.
        pub write: bool,
    }
}
