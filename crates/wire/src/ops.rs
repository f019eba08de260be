//! The table of operations.

use weft_layout::{ROOT_SHARD, shard_of};

/// How an operation is scheduled and counted (IB 3.4's traffic classes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Names and attributes.
    Metadata,
    /// File bytes.
    Bulk,
    /// About the connection or the cluster.
    Control,
}

/// Which servers do an operation, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Any server, for anybody.
    Any,
    /// A metadata server, for clients.
    Meta,
    /// An I/O server, for clients with a capability.
    Io,
    /// An I/O server, for other servers of the cluster only.
    IoByServer,
    /// A metadata server, for other servers of the cluster, or whoever has their key.
    MetaByServer,
}

/// The subject of a request, which decides the server that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// This inode, or a name below this directory: the metadata server that owns the inode's shard answers.
    Inode(u64),
    /// Something of which each metadata server has its own part. The sender asks one server for each shard.
    EachShard,
    /// Something that exists once in the cluster, like its map, its keys and its quotas.
    Cluster,
    /// The server itself, or data that it stores. The sender chooses the server.
    Server,
}

impl About {
    /// The shard whose metadata server answers, if that is decided by the request alone.
    pub fn shard(self) -> Option<u16> {
        match self {
            About::Inode(ino) => Some(shard_of(ino)),
            About::Cluster => Some(ROOT_SHARD),
            About::EachShard | About::Server => None,
        }
    }
}

/// A request body, with its operation and its reply.
pub trait Request: crate::Wire {
    /// The operation.
    const OP: Op;
    /// The body of the reply on success.
    type Reply: crate::Wire;

    /// What the request is about, which decides which server it is sent to.
    fn about(&self) -> About;
}

/// A request that says by itself which metadata server answers it: that of a shard.
pub trait Owned: Request {
    /// The shard whose owner answers.
    fn shard(&self) -> u16 {
        self.about().shard().unwrap_or(ROOT_SHARD)
    }
}

macro_rules! owned {
    (Inode, $request:ident) => {
        impl Owned for crate::messages::$request {}
    };
    (Cluster, $request:ident) => {
        impl Owned for crate::messages::$request {}
    };
    ($other:ident, $request:ident) => {};
}

macro_rules! ops {
    ($($(#[doc = $doc:literal])* $number:literal $name:ident: $class:ident, $role:ident, $again:literal, $request:ident -> $reply:ident,
        $about:ident $(($($of:tt)+))?;)*) => {
        /// Every operation of the protocol. A server matches on it without a wildcard, so that a missing
        /// handler does not compile.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op { $($(#[doc = $doc])* $name = $number,)* }

        impl Op {
            /// Every operation, by number.
            pub const ALL: &'static [Op] = &[$(Op::$name),*];

            /// The operation with this number on the wire.
            pub fn from_u16(number: u16) -> Option<Op> {
                match number { $($number => Some(Op::$name),)* _ => None }
            }
            /// Its place in [`Op::ALL`].
            pub fn index(self) -> usize {
                // One per operation, in order, so that the compiler makes a table of it.
                enum Index { $($name,)* }
                match self { $(Op::$name => Index::$name as usize,)* }
            }
            /// Its name in counters, logs and errors.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name),)* }
            }
            /// Its traffic class.
            pub fn class(self) -> Class {
                match self { $(Op::$name => Class::$class,)* }
            }
            /// Which servers do it, and for whom.
            pub fn role(self) -> Role {
                match self { $(Op::$name => Role::$role,)* }
            }
            /// Whether doing it twice is the same as doing it once. Others are sent with an exactly-once
            /// slot.
            pub fn idempotent(self) -> bool {
                match self { $(Op::$name => $again,)* }
            }
        }

        $(impl Request for crate::messages::$request {
            const OP: Op = Op::$name;
            type Reply = crate::messages::$reply;

            fn about(&self) -> About {
                About::$about $((self.$($of)+))?
            }
        }
        owned!($about, $request);)*

        #[cfg(test)]
        pub(crate) fn samples() -> Vec<(String, Vec<u8>)> {
            use crate::Wire;
            let mut all = Vec::new();
            $(
                let mut seed = $number;
                all.push((concat!(stringify!($name), " request").to_string(),
                    crate::messages::$request::sample(&mut seed).to_bytes()));
                all.push((concat!(stringify!($name), " reply").to_string(),
                    crate::messages::$reply::sample(&mut seed).to_bytes()));
            )*
            let mut seed = 0;
            all.push(("remote memory".to_string(), crate::messages::RemoteMemory::sample(&mut seed).to_bytes()));
            all.push(("remote keys".to_string(), crate::messages::RemoteKeys::sample(&mut seed).to_bytes()));
            all.push(("lent memory".to_string(), crate::messages::LentMemory::sample(&mut seed).to_bytes()));
            all
        }

        #[cfg(test)]
        fn samples_about() -> Vec<(Op, About)> {
            use crate::Wire;
            vec![$((Op::$name, crate::messages::$request::sample(&mut $number).about())),*]
        }

        /// Decodes `bytes` as the request and as the reply of `op`, for fuzzing. It must not panic, nor
        /// accept bytes that it would encode differently, but for fields that an older sender leaves out.
        /// Returns how many of the two decoded.
        #[cfg(test)]
        pub(crate) fn fuzz_decode(op: Op, bytes: &[u8]) -> usize {
            use crate::Wire;
            fn one<T: Wire>(bytes: &[u8]) -> usize {
                match T::from_bytes(bytes) {
                    Ok(value) => {
                        let whole = value.to_bytes();
                        assert!(whole.starts_with(bytes), "an encoding has one form");
                        let again = T::from_bytes(&whole).map(|value| value.to_bytes());
                        assert_eq!(again, Ok(whole), "what is left out has its default");
                        1
                    }
                    Err(_) => 0,
                }
            }
            match op { $(Op::$name => {
                one::<crate::messages::$request>(bytes) + one::<crate::messages::$reply>(bytes)
            })* }
        }
    };
}

ops! {
    /// First message of a connection: versions, nonce, identity of the client.
    0x001 Hello: Control, Any, true, HelloRequest -> HelloReply, Server;
    /// Proof that the client knows the key; nothing else is served before it.
    0x002 Prove: Control, Any, true, ProveRequest -> ProveReply, Server;
    /// Do nothing, to check whether the peer is alive.
    0x003 Ping: Control, Any, true, PingRequest -> PingReply, Server;
    /// The servers of the cluster and its defaults.
    0x004 ClusterMap: Control, Any, true, ClusterMapRequest -> ClusterMapReply, Server;
    /// State and counters of a server.
    0x005 Status: Control, Any, true, StatusRequest -> StatusReply, Server;
    /// An I/O server reports its storage, and learns whether the cluster accepts it.
    0x006 Register: Control, MetaByServer, true, RegisterRequest -> RegisterReply, Cluster;
    /// Accept the next storage that an I/O server presents.
    0x007 ReplaceServer: Control, MetaByServer, true, ReplaceServerRequest -> Empty, Cluster;
    /// List the storage of each server, and whether it is up.
    0x008 ListServers: Control, Any, true, ListServersRequest -> ListServersReply, Server;
    /// Add an I/O server to the cluster.
    0x009 AddServer: Control, MetaByServer, true, AddServerRequest -> MapChangedReply, Cluster;
    /// Change the addresses of a server.
    0x00a MoveServer: Control, MetaByServer, true, MoveServerRequest -> MapChangedReply, Cluster;
    /// Shared memory: test whether the server can access the client's memory directly.
    0x010 MemoryProbe: Control, Any, true, MemoryProbeRequest -> MemoryProbeReply, Server;
    /// Shared memory: add a segment, whose descriptor comes with the message.
    0x011 SegmentAdd: Control, Any, true, SegmentAddRequest -> Empty, Server;
    /// Shared memory: remove a segment.
    0x012 SegmentDrop: Control, Any, true, SegmentDropRequest -> Empty, Server;

    /// Read file regions: the server moves its share into the client's memory.
    0x100 Read: Bulk, Io, true, ReadRequest -> ReadReply, Server;
    /// Write file regions: the server fetches its share from the client's memory.
    0x101 Write: Bulk, Io, true, WriteRequest -> WriteReply, Server;
    /// Make the writes to a data file durable.
    0x102 Sync: Bulk, Io, true, SyncRequest -> DataSize, Server;
    /// Size of the local data file.
    0x103 Size: Metadata, Io, true, SizeRequest -> DataSize, Server;
    /// Truncate or extend the file to a size.
    0x104 Truncate: Bulk, Io, true, TruncateRequest -> DataSize, Server;
    /// Free the space under a range; it reads as zeros.
    0x105 Punch: Bulk, Io, true, RangeRequest -> DataSize, Server;
    /// Reserve space for a range.
    0x106 Allocate: Bulk, Io, true, AllocateRequest -> DataSize, Server;
    /// Space of an I/O server's disk.
    0x107 Space: Metadata, Any, true, SpaceRequest -> SpaceReply, Server;
    /// Explain how a read or write of file regions would be done now, and its expected cost.
    0x108 Explain: Bulk, Io, true, ExplainRequest -> ExplainReply, Server;
    /// A server's cost model; on request, measured again.
    0x109 Calibrate: Bulk, Any, true, CalibrateRequest -> CalibrateReply, Server;
    /// Find the next data and the next hole of a data file.
    0x10a Seek: Metadata, Io, true, SeekRequest -> SeekReply, Server;
    /// Zero a range of a data file, with reserved space.
    0x10b Zero: Metadata, Io, true, ZeroRequest -> DataSize, Server;
    /// Copy a range of one file to another, as far as both are in this server's data files.
    0x10c CopyRange: Bulk, Io, true, CopyRangeRequest -> CopyRangeReply, Server;
    /// Scrub all data of an I/O server, or report the progress and findings of a scrub; for administrators.
    0x10d Scrub: Control, Any, true, ScrubRequest -> ScrubReply, Server;
    /// Make all writes to all data files of an I/O server durable.
    0x10e SyncAll: Bulk, Io, true, SyncAllRequest -> SyncAllReply, Server;
    /// Remove data files whose inodes are gone.
    0x110 RemoveObjects: Bulk, IoByServer, true, RemoveObjectsRequest -> Empty, Server;
    /// List data files, page by page.
    0x111 ListObjects: Bulk, IoByServer, true, ListObjectsRequest -> ListObjectsReply, Server;
    /// Which data files have lost data; for servers of the cluster also the sizes of those that exist.
    0x112 StatObjects: Bulk, Io, true, StatObjectsRequest -> StatObjectsReply, Server;
    /// Set the list of revoked keys. The I/O server keeps it and cuts connections that use them.
    0x113 SetRevoked: Control, IoByServer, true, SetRevokedRequest -> Empty, Server;
    /// Confirm that these files never had data on this server, although the storage that could show it is
    /// lost.
    0x114 VouchEmpty: Bulk, IoByServer, true, VouchEmptyRequest -> Empty, Server;
    /// Layouts of the files of data files, as far as those record them.
    0x115 NotedLayouts: Bulk, IoByServer, true, NotedLayoutsRequest -> NotedLayoutsReply, Server;
    /// Revoked keys that an I/O server knows of; for a metadata server whose store was restored from a copy.
    0x116 Revoked: Control, IoByServer, true, RevokedRequest -> RevokedReply, Server;
    /// Set the bytes of a small file that becomes striped.
    0x117 PlaceObject: Bulk, IoByServer, true, PlaceObjectRequest -> Empty, Server;

    /// Walk a path and return the attributes at its end.
    0x200 Lookup: Metadata, Meta, true, LookupRequest -> AttrReply, Inode(at.dir);
    /// Attributes of an inode.
    0x201 GetAttr: Metadata, Meta, true, InodeRequest -> AttrReply, Inode(ino);
    /// Change attributes, and report earlier writes.
    0x202 SetAttr: Metadata, Meta, true, SetAttrRequest -> AttrReply, Inode(at.dir);
    /// Create a file, and open it.
    0x203 Create: Metadata, Meta, false, CreateRequest -> OpenReply, Inode(at.dir);
    /// Open a file: attributes and capability.
    0x204 Open: Metadata, Meta, false, OpenRequest -> OpenReply, Inode(at.dir);
    /// End opens, and report writes.
    0x205 Close: Metadata, Meta, false, CloseRequest -> Empty, Inode(first_ino());
    /// Report writes so far (flush, fsync).
    0x206 Report: Metadata, Meta, true, ReportRequest -> AttrReply, Inode(ino);
    /// After a reconnection: declare that this file is still open.
    0x207 Reopen: Metadata, Meta, true, ReopenRequest -> OpenReply, Inode(capability.ino);
    /// Make a directory.
    0x208 Mkdir: Metadata, Meta, false, MkdirRequest -> AttrReply, Inode(at.dir);
    /// Make a special file.
    0x209 Mknod: Metadata, Meta, false, MknodRequest -> AttrReply, Inode(at.dir);
    /// Make a symbolic link.
    0x20a Symlink: Metadata, Meta, false, SymlinkRequest -> AttrReply, Inode(at.dir);
    /// Read a symbolic link.
    0x20b Readlink: Metadata, Meta, true, ReadlinkRequest -> ReadlinkReply, Inode(at.dir);
    /// Make a hard link.
    0x20c Link: Metadata, Meta, false, LinkRequest -> AttrReply, Inode(to.dir);
    /// Remove a name that is not a directory's.
    0x20d Unlink: Metadata, Meta, false, UnlinkRequest -> RemovedReply, Inode(at.dir);
    /// Remove an empty directory.
    0x20e Rmdir: Metadata, Meta, false, RmdirRequest -> RmdirReply, Inode(at.dir);
    /// Rename a file or directory.
    0x20f Rename: Metadata, Meta, false, RenameRequest -> RenamedReply, Inode(from.dir);
    /// A page of a directory, with attributes.
    0x210 ReadDir: Metadata, Meta, true, ReadDirRequest -> ReadDirReply, Inode(ino);
    /// Check the caller's permissions.
    0x211 Access: Metadata, Meta, true, AccessRequest -> Empty, Inode(at.dir);
    /// Value of an extended attribute.
    0x212 GetXattr: Metadata, Meta, true, GetXattrRequest -> XattrReply, Inode(ino);
    /// Set an extended attribute.
    0x213 SetXattr: Metadata, Meta, false, SetXattrRequest -> Empty, Inode(ino);
    /// Names of the extended attributes.
    0x214 ListXattrs: Metadata, Meta, true, ListXattrsRequest -> ListXattrsReply, Inode(ino);
    /// Remove an extended attribute.
    0x215 RemoveXattr: Metadata, Meta, false, RemoveXattrRequest -> Empty, Inode(ino);
    /// Set a directory's default layout, or an unwritten file's own.
    0x216 SetLayout: Metadata, Meta, true, SetLayoutRequest -> AttrReply, Inode(at.dir);
    /// Before the data files are truncated: check rights, and mark the size as live.
    0x217 TruncateBegin: Metadata, Meta, true, TruncateBeginRequest -> OpenReply, Inode(at.dir);
    /// After the data files are truncated: record the size.
    0x218 TruncateCommit: Metadata, Meta, true, TruncateCommitRequest -> AttrReply, Inode(capability.ino);
    /// Record the size found on the I/O servers while nobody writes.
    0x219 Settle: Metadata, Meta, true, SettleRequest -> AttrReply, Inode(capability.ino);
    /// Number of files of the file system.
    0x21a FileCount: Metadata, Meta, true, FileCountRequest -> FileCountReply, EachShard;
    /// Make all metadata acknowledged so far durable.
    0x21b SyncMeta: Metadata, Meta, true, SyncMetaRequest -> Empty, EachShard;
    /// Receive revocations of this client's leases; the reply comes when there are some, or after a while.
    0x21c Watch: Metadata, Meta, true, WatchRequest -> WatchReply, EachShard;
    /// Lock a range of a file, or the whole of it, for one owner.
    0x21d Lock: Metadata, Meta, false, LockRequest -> LockReply, Inode(lock.ino);
    /// Release locks, or stop waiting for one.
    0x21e Unlock: Metadata, Meta, false, UnlockRequest -> Empty, Inode(lock.ino);
    /// Find a lock that conflicts with a given one.
    0x21f GetLock: Metadata, Meta, true, GetLockRequest -> GetLockReply, Inode(lock.ino);
    /// Assign the offset of an append.
    0x220 Append: Metadata, Meta, false, AppendRequest -> AppendReply, Inode(ino);
    /// After a reconnection: claim the locks that this client held.
    0x221 ClaimLocks: Metadata, Meta, true, ClaimLocksRequest -> ClaimLocksReply, Inode(first_ino());
    /// Change the counter of an open, and return what it was.
    0x222 FetchAdd: Metadata, Meta, false, FetchAddRequest -> FetchAddReply, Inode(capability.ino);
    /// Read bytes of a small file.
    0x223 ReadSmall: Metadata, Meta, true, ReadSmallRequest -> ReadSmallReply, Inode(capability.ino);
    /// Write bytes of a small file.
    0x224 WriteSmall: Metadata, Meta, true, WriteSmallRequest -> WriteSmallReply, Inode(capability.ino);
    /// Make the bytes of a small file durable, and all metadata acknowledged so far.
    0x225 SyncSmall: Metadata, Meta, true, SyncSmallRequest -> SyncSmallReply, Inode(capability.ino);
    /// Make a small file striped: its bytes go to its first I/O server.
    0x226 Spread: Bulk, Meta, true, SpreadRequest -> Empty, Inode(capability.ino);
    /// Before a file is extended beyond what its capability allows: reserve space of the quotas that it counts for.
    0x227 Reserve: Metadata, Meta, true, ReserveRequest -> ReserveReply, Inode(capability.ino);
    /// Set the limits of a user, a group or a directory tree; for administrators.
    0x228 SetQuota: Metadata, Meta, true, SetQuotaRequest -> Empty, Cluster;
    /// Usage and limits, page by page.
    0x229 ListQuotas: Metadata, Meta, true, ListQuotasRequest -> ListQuotasReply, Cluster;
    /// Mark what is in a directory as part of a directory tree with a quota, page by page; for administrators.
    0x22a MarkTree: Metadata, Meta, true, MarkTreeRequest -> MarkTreeReply, Inode(dir);
    /// Count all usage anew; for administrators.
    0x22b CountUsage: Metadata, Meta, true, CountUsageRequest -> Empty, Cluster;
    /// Paths of inodes, looked for among all names part by part; for administrators.
    0x22c FindPaths: Metadata, Meta, true, FindPathsRequest -> FindPathsReply, Inode(after.dir);
    /// Create a file without a name, and open it; [`Op::Link`] may give it one.
    0x22d CreateUnnamed: Metadata, Meta, false, CreateUnnamedRequest -> OpenReply, Inode(dir.dir);
    /// Start a check of the file system, or report its progress and findings.
    0x230 Check: Metadata, Meta, true, CheckRequest -> CheckReply, Cluster;
    /// Repair one finding of a check, if it still holds.
    0x231 Treat: Bulk, Meta, true, TreatRequest -> TreatReply, Cluster;
    /// Add an issued key to the list of keys; for administrators.
    0x240 NoteKey: Metadata, Meta, true, NoteKeyRequest -> Empty, Cluster;
    /// A page of the list of keys; for administrators.
    0x241 ListKeys: Metadata, Meta, true, ListKeysRequest -> ListKeysReply, Cluster;
    /// Revoke a key; for administrators.
    0x242 RevokeKey: Bulk, Meta, true, RevokeKeyRequest -> RevokeKeyReply, Cluster;
    /// Start a backup of the names, or get a page of it; for administrators.
    0x250 Backup: Bulk, Meta, true, BackupRequest -> BackupReply, Cluster;
}

impl Op {
    /// Whether it is an operation of the metadata server that changes nothing and replies at once.
    pub fn only_reads(self) -> bool {
        use Op::*;
        matches!(
            self,
            ReadSmall
                | Lookup
                | GetAttr
                | Readlink
                | ReadDir
                | Access
                | GetXattr
                | ListXattrs
                | FileCount
                | ListQuotas
                | FindPaths
        )
    }

    /// Whether the bytes that it moves are read from a file; else they are written to one.
    pub fn reads_file(self) -> bool {
        matches!(self, Op::Read | Op::ReadSmall)
    }

    /// The version of the protocol that brought it. It is sent only to servers that speak this version.
    pub fn since(self) -> u8 {
        match self {
            Op::FetchAdd => 2,
            Op::ReadSmall | Op::WriteSmall | Op::SyncSmall | Op::Spread | Op::PlaceObject => 4,
            Op::FindPaths => 6,
            Op::CreateUnnamed => 8,
            Op::Reserve | Op::SetQuota | Op::ListQuotas | Op::MarkTree | Op::CountUsage => 5,
            _ => 1,
        }
    }

    /// Whether a server refuses it if the sender's map is older than its own. Operations that only release or
    /// keep what is held at this very server need no map: a refusal would delay the end of a program, or let
    /// a lease expire.
    pub fn needs_map(self) -> bool {
        use Op::*;
        matches!(self.role(), Role::Io | Role::Meta)
            && !matches!(self, Close | Unlock | Reopen | ClaimLocks | Watch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways_and_rise() {
        for op in Op::ALL {
            assert_eq!(Op::from_u16(*op as u16), Some(*op));
            assert_eq!(Op::ALL[op.index()], *op);
        }
        assert!(Op::ALL.windows(2).all(|pair| (pair[0] as u16) < pair[1] as u16));
        assert_eq!(Op::from_u16(0), None);
    }

    /// Clients send these to the owner of a shard; all others to a server that they choose.
    #[test]
    fn operations_of_metadata_servers_say_which_one_they_are_for() {
        for (op, about) in samples_about() {
            let for_meta = matches!(op.role(), Role::Meta | Role::MetaByServer);
            assert_eq!(about != About::Server, for_meta, "{op:?} is about {about:?}");
        }
    }

    #[test]
    fn a_request_goes_to_the_shard_of_the_inode_that_it_names() {
        let ino = 7 << 52 | 99;
        let at = crate::messages::At { dir: ino, path: b"a/b".to_vec() };
        let caller = crate::messages::Caller { uid: 0, gid: 0, groups: Vec::new() };
        let lookup = crate::messages::LookupRequest { caller, at, follow: true };
        assert_eq!((lookup.about(), lookup.about().shard()), (About::Inode(ino), Some(7)));
        let count = crate::messages::SyncMetaRequest {};
        assert_eq!((count.about(), count.about().shard()), (About::EachShard, None));
        let keys = crate::messages::ListKeysRequest { after: [0; 16] };
        assert_eq!(keys.about().shard(), Some(ROOT_SHARD));
    }

    #[test]
    fn every_operation_came_with_a_version_that_this_build_speaks() {
        assert!(Op::ALL.iter().all(|op| (1..=crate::VERSIONS.1).contains(&op.since())));
    }
}
