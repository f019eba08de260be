//! Greeting, proof and status.
//!
//! ```text
//! client                                                server
//!   │ Hello { versions, client_nonce, role, who }          │
//!   ├─────────────────────────────────────────────────────►│
//!   │ HelloReply { version, server_nonce, server's proof } │   the server knows the key: the client goes on
//!   │◄─────────────────────────────────────────────────────┤
//!   │ Prove { client's proof }                             │
//!   ├─────────────────────────────────────────────────────►│   the client knows it: requests are served
//!   │ ProveReply { credits, epoch, … }                     │
//!   │◄─────────────────────────────────────────────────────┤
//! ```

use crate::keys::KeyInfo;

/// Values of [`HelloRequest::role`]: which key the proofs are made with.
pub mod peer_role {
    /// A client with an issued key, whose public part is in the greeting and whose secret makes the proofs.
    pub const CLIENT: u8 = 0;
    /// A server of the cluster; the server key makes the proofs.
    pub const SERVER: u8 = 1;
    /// A client without a key, over a Unix socket only: the kernel says who it is, and the key of zeros that makes the proofs
    /// proves nothing.
    pub const PROCESS: u8 = 2;
}

crate::message! {
    /// See [`crate::Op::Hello`].
    pub struct HelloRequest {
        /// Oldest version spoken.
        pub version_min: u8,
        /// Newest version spoken.
        pub version_max: u8,
        /// See [`peer_role`].
        pub role: u8,
        /// Random, new for every connection.
        pub client_nonce: [u8; 32],
        /// The public part of the client's key; of a [`peer_role::CLIENT`] only.
        pub key: Option<KeyInfo>,
        /// The same for all connections of one client, random. It names a session among those of this key only.
        pub session: [u8; 16],
        /// The kernel's boot identity of the client's host: equal means the same host.
        pub boot_id: [u8; 16],
        /// The client's process as it sees itself.
        pub process_id: u32,
        /// Host name, for people.
        pub host: String,
        /// Program name, for people.
        pub program: String,
    }

    /// Answer to [`HelloRequest`].
    pub struct HelloReply {
        /// The version to be used.
        pub version: u8,
        /// Random, new for every connection.
        pub server_nonce: [u8; 32],
        /// Shows that the server knows the key ([`crate::security::server_proof`]).
        pub proof: [u8; 32],
    }

    /// See [`crate::Op::Prove`].
    pub struct ProveRequest {
        /// Shows that the client knows the key ([`crate::security::client_proof`]).
        pub proof: [u8; 32],
    }

    /// Answer to [`ProveRequest`]: the session stands.
    pub struct ProveReply {
        /// The cluster.
        pub cluster_id: [u8; 16],
        /// The server's name in the cluster file.
        pub server_name: String,
        /// Of a metadata server: the run of the session, which ends when the server does or the client was away for too long, and
        /// with it what the session held. Of an I/O server: changes whenever it starts.
        pub epoch: u64,
        /// Requests that may be under way on this connection.
        pub credits: u16,
        /// Kernel boot identity of the server's host.
        pub boot_id: [u8; 16],
        /// Of an I/O server: as in [`SyncAllReply`](super::SyncAllReply), which tells with it what was lost since.
        pub loss_epoch: u64,
    }

    /// See [`crate::Op::Ping`].
    pub struct PingRequest {
        /// Comes back; with its length, for latency measurements.
        pub echo: Vec<u8>,
    }

    /// Answer to [`PingRequest`].
    pub struct PingReply {
        /// What was sent.
        pub echo: Vec<u8>,
    }

    /// See [`crate::Op::Status`].
    pub struct StatusRequest {
        /// Whether the connected clients are listed.
        pub with_clients: bool,
    }

    /// Counters of one operation.
    pub struct OpCount {
        /// The operation's number.
        pub op: u16,
        /// Times done.
        pub count: u64,
        /// Of these, with an error.
        pub errors: u64,
        /// File bytes moved.
        pub bytes: u64,
    }

    /// A client of a server.
    pub struct ClientInfo {
        /// A name for its session, which tells nothing of the id ([`crate::security::session_name`]).
        pub session: [u8; 16],
        /// Its host.
        pub host: String,
        /// Its program.
        pub program: String,
        /// Its process.
        pub process_id: u32,
        /// How it is connected ("tcp", "shm direct", "shm staged").
        pub transport: String,
        /// Its connections.
        pub connections: u32,
        /// Requests done for it.
        pub requests: u64,
    }

    /// Answer to [`StatusRequest`].
    pub struct StatusReply {
        /// The server's name.
        pub name: String,
        /// "meta" or "io".
        pub role: String,
        /// Place in the ring of an I/O server.
        pub id: u16,
        /// Software version.
        pub version: String,
        /// Its process.
        pub process_id: u32,
        /// Time since its start.
        pub uptime_ms: u64,
        /// Processor time used.
        pub cpu_ms: u64,
        /// Resident memory.
        pub memory_bytes: u64,
        /// Storage directory.
        pub directory: String,
        /// Size of the disk under it.
        pub space_bytes: u64,
        /// Free on it.
        pub free_bytes: u64,
        /// Disk engine ("ring", "plain").
        pub disk: String,
        /// Whether writes are acknowledged when durable ("sync") or when taken ("nosync").
        pub sync_mode: String,
        /// Requests under way now.
        pub active_requests: u64,
        /// Counters of operations that were done at least once.
        pub operations: Vec<OpCount>,
        /// Named gauges and counters of the parts (buffers, garbage, …).
        pub gauges: Vec<Gauge>,
        /// Number of clients.
        pub clients: u32,
        /// The clients, if asked for.
        pub client_list: Vec<ClientInfo>,
        /// Its RDMA.
        pub rdma: RdmaStatus,
    }

    /// RDMA of a server.
    pub struct RdmaStatus {
        /// Where it listens; empty: RDMA is not used.
        pub addresses: Vec<String>,
        /// Why it is not used, or not everywhere where it could be; empty: there is nothing to tell.
        pub reason: String,
        /// The adapters that it listens on.
        pub adapters: Vec<RdmaAdapter>,
    }

    /// An adapter in use.
    pub struct RdmaAdapter {
        /// As the system calls it: "mlx5_0", "rxe0".
        pub name: String,
        /// "InfiniBand", "RoCE", "iWARP".
        pub link_layer: String,
        /// What is connected and registered, and what was asked of the adapter.
        pub counts: Vec<Gauge>,
    }

    /// A named number.
    pub struct Gauge {
        /// Name, ending with its unit.
        pub name: String,
        /// Value.
        pub value: u64,
    }

    /// A key as the metadata server knows it.
    pub struct KeyRecord {
        /// Its public part.
        pub key: KeyInfo,
        /// When it was first heard of, in seconds since 1970.
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
        /// Id of the last key seen; zeros at first.
        pub after: [u8; 16],
    }

    /// Answer to [`ListKeysRequest`].
    pub struct ListKeysReply {
        /// A page of them, by id.
        pub keys: Vec<KeyRecord>,
        /// Whether this was the last page.
        pub end: bool,
    }

    /// See [`crate::Op::RevokeKey`].
    pub struct RevokeKeyRequest {
        /// Which.
        pub id: [u8; 16],
    }

    /// Answer to [`RevokeKeyRequest`]. The metadata server serves the key no more.
    pub struct RevokeKeyReply {
        /// Names of I/O servers that did not confirm yet; they are told when they answer again.
        pub waiting: Vec<String>,
    }

    /// See [`crate::Op::SetRevoked`].
    pub struct SetRevokedRequest {
        /// All keys that are revoked.
        pub ids: Vec<[u8; 16]>,
    }

    /// See [`crate::Op::Revoked`].
    pub struct RevokedRequest {}

    /// Answer to [`RevokedRequest`].
    pub struct RevokedReply {
        /// All keys that are revoked, as far as the server was told.
        pub ids: Vec<[u8; 16]>,
    }

    /// See [`crate::Op::MemoryProbe`]: 32 bytes at `address`, 16 random ones of the client's and 16 for the server to
    /// overwrite.
    pub struct MemoryProbeRequest {
        /// Address in the client.
        pub address: u64,
    }

    /// Answer to [`MemoryProbeRequest`].
    pub struct MemoryProbeReply {
        /// Whether the kernel let the server read and write there.
        pub reached: bool,
        /// What was read.
        pub read: [u8; 16],
        /// What was written behind it.
        pub written: [u8; 16],
        /// Why not, where not.
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

    /// Equal pieces of client memory at equal distances: `count` pieces of `bytes`, the first at `address`, each
    /// `stride_bytes` after the one before. A request's memory is a list of runs, in the order of the request's share.
    ///
    /// A 64 MiB buffer of a file striped by 64 KiB over 4 servers is one run for each:
    /// `{ address, bytes: 65536, stride_bytes: 262144, count: 256 }`.
    pub struct MemoryRun {
        /// 0: the client's own memory, by address. Else a segment's number, and `address` is an offset in it.
        pub segment: u16,
        /// Where the first piece begins.
        pub address: u64,
        /// Bytes of each piece.
        pub bytes: u64,
        /// From the beginning of a piece to the next one's.
        pub stride_bytes: i64,
        /// Pieces.
        pub count: u64,
    }

    /// Over shared memory, payload of a request with [`crate::flags::REMOTE_MEMORY`].
    pub struct RemoteMemory {
        /// In the order of the share.
        pub runs: Vec<MemoryRun>,
    }

    /// Memory of the client's that its adapter lets the server read or write.
    pub struct RemoteKey {
        /// Where it begins, as the client's adapter knows it.
        pub address: u64,
        /// How much.
        pub bytes: u64,
        /// What the server shows for it.
        pub remote_key: u32,
    }

    /// Over RDMA, payload of a request with [`crate::flags::REMOTE_MEMORY`]. The segment of a run is 1 + the place of its key,
    /// which covers all of its pieces; addresses are those of the key.
    pub struct RemoteKeys {
        /// Registered memory.
        pub keys: Vec<RemoteKey>,
        /// In the order of the share.
        pub runs: Vec<MemoryRun>,
        /// The keys end with the request: a server that can sends the last part of its reply so that it ends the last of them.
        pub keys_end: bool,
    }

    /// Over RDMA, payload of a request with [`crate::flags::LENT_MEMORY`]: the client moves the data itself, between its memory and
    /// units that the server lends it.
    pub struct LentMemory {
        /// All of the data.
        pub bytes: u64,
        /// What one work request of the client's takes, where its memory is regular: units are best cut at multiples of it. 0: anywhere.
        pub step_bytes: u32,
        /// The client brings the data: a write of a file.
        pub write: bool,
    }
}
