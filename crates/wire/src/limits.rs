//! Every limit of the protocol. Relations that must hold between limits are checked at compile time.

use crate::HEADER_BYTES;

/// Largest body of any message. A list request has a few thousand extents in it. The client cuts a longer
/// list into several requests, so that its length is not limited, but memory use is.
pub const BODY_BYTES_MAX: usize = 128 << 10;
/// Largest body before the peer has proved that it knows its key.
pub const BODY_BYTES_UNPROVEN_MAX: usize = 2 << 10;
/// Data of up to this size is sent in the message itself (payload) on transports with remote memory.
pub const INLINE_BYTES_MAX: usize = 16 << 10;
/// One pipelined part of a bulk transfer (IB 6.6: units under 2 MiB overlap network and disk completely).
pub const UNIT_BYTES_MAX: usize = 1 << 20;
/// Largest share of one request on one server; longer transfers are cut by the client.
pub const SHARE_BYTES_MAX: u64 = 1 << 30;
/// Extents of an explicit list in one request: each takes at most 20 bytes in its delta form.
pub const LIST_EXTENTS_MAX: usize = 4096;
/// Parts (descriptors) of one composed region list in one request, those of repeated bodies included.
pub const REGION_PARTS_MAX: usize = 256;
/// Nested loops of one strided descriptor and dimensions of a subarray, and the repeats around them.
pub const REGION_LEVELS_MAX: usize = 16;
/// Runs of memory described to the server in one request, on transports with remote memory.
pub const MEMORY_RUNS_MAX: usize = 8192;
/// Memory keys in one request, on transports with remote keys.
pub const REMOTE_KEYS_MAX: usize = 8192;
/// Data of a request or reply in messages of an RDMA connection, or in one Fast RDMA Write (IB 4.1).
pub const MESSAGE_DATA_BYTES_MAX: usize = 64 << 10;
/// Concurrent requests of one connection at a server (credits, IB 3.3.1).
pub const CREDITS_PER_CONNECTION: u16 = 64;
/// Connections from one client process to one server.
pub const LANES_PER_SERVER_MAX: usize = 8;
/// Longest name of a directory entry.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path in one request.
pub const PATH_BYTES_MAX: usize = 4096;
/// Inodes whose paths one request looks for: their paths fit a reply.
pub const FIND_INODES_MAX: usize = 24;
const _: () = assert!(FIND_INODES_MAX * (PATH_BYTES_MAX + 32) < BODY_BYTES_MAX);
/// Most bytes of a file that lie with its inode.
pub const SMALL_FILE_BYTES_MAX: u32 = 64 << 10;
/// Longest value of an extended attribute.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Supplementary groups of a caller.
pub const GROUPS_MAX: usize = 1024;
/// Groups of an issued user key, the primary one included.
pub const KEY_GIDS_MAX: usize = 128;
/// Longest name of an issued key.
pub const KEY_NAME_BYTES_MAX: usize = 64;
/// Longest host or program name that a greeting may have.
pub const GREETING_TEXT_BYTES_MAX: usize = 256;
/// Keys in one reply to a client that lists them.
pub const KEYS_PER_MESSAGE_MAX: usize = 128;
/// Keys that are revoked and have not expired.
pub const KEYS_REVOKED_MAX: usize = 4096;
/// Entries in one page of a directory.
pub const DIRECTORY_PAGE_ENTRIES_MAX: u32 = 512;
/// Data files named in one removal or listing.
pub const OBJECTS_PER_MESSAGE_MAX: usize = 2048;
/// Subjects in one page of the list of quotas.
pub const QUOTA_ROWS_MAX: u32 = 256;
/// Entries of one page when a directory tree is marked.
pub const TREE_ENTRIES_MAX: u32 = 256;
/// Opens that one request ends.
pub const CLOSES_PER_MESSAGE_MAX: usize = 64;
/// Locks that one request claims.
pub const LOCKS_PER_CLAIM_MAX: usize = 1024;
/// Locks that a client may hold and wait for, those of all its owners together.
pub const LOCKS_PER_SESSION_MAX: usize = 64 << 10;
/// Longest time that a server holds back the reply to a lock request.
pub const LOCK_HOLD_MS_MAX: u32 = 10_000;
/// Findings of a check in one reply.
pub const FINDINGS_PER_MESSAGE_MAX: usize = 64;
/// Longest text of a finding.
pub const FINDING_TEXT_BYTES_MAX: usize = 1024;
/// Largest encoding of a cluster's map, which is sent in one message with other fields.
pub const MAP_BYTES_MAX: usize = BODY_BYTES_MAX - 4096;
/// Addresses of one server, over all transports, including those that it is moving away from.
pub const ENDPOINTS_PER_SERVER_MAX: usize = 64;
/// Longest address of a server.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// I/O servers of one cluster.
pub const SERVERS_MAX: usize = 1024;
/// Time in which a new connection must prove its key.
pub const HANDSHAKE_TIMEOUT_MS: u64 = 5_000;
/// Time in which a message that has begun must make progress, or its connection is cut.
pub const STALL_TIMEOUT_MS: u64 = 30_000;
/// Lifetime of a capability. Clients renew it by opening the file again.
pub const CAPABILITY_LIFE_S: u64 = 24 * 3600;
/// How much longer servers accept a capability, since their clocks may differ or jump. A wrong date by a day and a wrong time zone by
/// half a day are tolerated together.
pub const CLOCK_SKEW_S_MAX: u64 = 36 * 3600;
/// Duration of a lease, from before the client sent its request.
pub const LEASE_MS: u64 = 10_000;
/// Bytes of records in one page of a backup, except for a single longer record.
pub const BACKUP_PAGE_BYTES: usize = 48 << 10;
/// Changes in one reply to a watch.
pub const CHANGES_PER_MESSAGE_MAX: usize = 256;

const _: () =
    assert!(CHANGES_PER_MESSAGE_MAX * (NAME_BYTES_MAX + 32) <= BODY_BYTES_MAX, "changes fit a body");
const _: () =
    assert!(BACKUP_PAGE_BYTES + XATTR_BYTES_MAX + 1024 <= BODY_BYTES_MAX, "a page of a backup fits");
const _: () = assert!(LIST_EXTENTS_MAX * 20 + 4096 <= BODY_BYTES_MAX, "a full list fits a body");
const _: () =
    assert!(XATTR_BYTES_MAX + PATH_BYTES_MAX + 8 * GROUPS_MAX <= BODY_BYTES_MAX, "an attribute fits a body");
const _: () =
    assert!(REGION_PARTS_MAX * (REGION_LEVELS_MAX * 24 + 64) <= BODY_BYTES_MAX, "a composition fits a body");
const _: () = assert!(CLOSES_PER_MESSAGE_MAX * 24 <= BODY_BYTES_MAX, "closes fit a body");
const _: () = assert!(LOCKS_PER_CLAIM_MAX * 40 <= BODY_BYTES_MAX, "a claim fits a body");
const _: () = assert!(
    FINDINGS_PER_MESSAGE_MAX * (FINDING_TEXT_BYTES_MAX + 16) <= BODY_BYTES_MAX,
    "findings fit a body"
);
const _: () = assert!(OBJECTS_PER_MESSAGE_MAX * 32 <= BODY_BYTES_MAX, "a page of objects fits a body");
const _: () = assert!(INLINE_BYTES_MAX <= MESSAGE_DATA_BYTES_MAX, "inline data of a reply fits messages");
const _: () = assert!(REMOTE_KEYS_MAX < u16::MAX as usize, "a run names its key in 16 bits");
const _: () = assert!(INLINE_BYTES_MAX <= UNIT_BYTES_MAX, "inline data is less than a unit");
const _: () = assert!(
    4 * KEY_GIDS_MAX + KEY_NAME_BYTES_MAX + 2 * GREETING_TEXT_BYTES_MAX + 256 + HEADER_BYTES
        <= BODY_BYTES_UNPROVEN_MAX,
    "a greeting fits"
);
const _: () = assert!(
    KEYS_PER_MESSAGE_MAX * (4 * KEY_GIDS_MAX + KEY_NAME_BYTES_MAX + 64) <= BODY_BYTES_MAX,
    "a page of keys fits a body"
);
const _: () = assert!(KEYS_REVOKED_MAX * 16 + 64 <= BODY_BYTES_MAX, "all revoked keys fit a body");
const _: () =
    assert!(DIRECTORY_PAGE_ENTRIES_MAX as usize * (NAME_BYTES_MAX + 160) <= 2 * BODY_BYTES_MAX, "pages");
