//! The table of a metadata server: which function does which operation.

use crate::answer::{Answer, Refusal};
use crate::both::{Either, either};
use crate::identity::Session;
use crate::log;
use crate::meta::{Call, MetaPart};
use crate::node::Node;
use crate::service::Service;
use crate::status;
use std::rc::Rc;
use weft_meta::{Engine, Locker};
use weft_transport::ServerBulk;
use weft_wire::messages::{
    Empty, Gauge, NoteKeyRequest, RevokeKeyReply, RevokeKeyRequest, WatchRequest, peer_role,
};
use weft_wire::{Class, Header, Op, Status};

/// Since this version of the protocol a client says in its greeting which of the processes of its session it is.
const MEMBERS_SINCE: u8 = 8;

/// A metadata server, which has one thread.
pub(crate) struct MetaService<E: Engine> {
    node: Rc<Node>,
    meta: Rc<MetaPart<E>>,
}

impl<E: Engine + 'static> MetaService<E> {
    pub fn new(node: Rc<Node>, meta: Rc<MetaPart<E>>) -> Rc<MetaService<E>> {
        Rc::new(MetaService { node, meta })
    }

    /// Counts of the namespace, of locks and of leases.
    pub fn gauges(&self) -> Vec<Gauge> {
        let counts = self.meta.namespace.borrow().statfs();
        let (locks_held, lock_waits) = self.meta.lock_counts();
        let (watchers, leases) = self.meta.watch_counts();
        let (lease_lapses, barred_keys) = self.meta.penalty_counts();
        let gauges = [
            ("inodes", counts.inodes),
            ("open_files", counts.open_files),
            ("lately_removed", counts.lately_removed),
            ("sessions", counts.sessions),
            ("file_counters", counts.counters),
            ("locks_held", locks_held as u64),
            ("lock_waits", lock_waits as u64),
            ("watching_clients", watchers as u64),
            ("leased_inodes", leases as u64),
            ("lease_lapses", lease_lapses),
            ("keys_without_leases", barred_keys as u64),
        ];
        gauges.map(|(name, value)| Gauge { name: name.into(), value }).into()
    }

    async fn note_key(&self, request: NoteKeyRequest) -> Result<Answer, Refusal> {
        self.meta.note_key(&request.key)?;
        self.meta.sync_all().await.map(|()| Answer::of(&Empty {}))
    }

    /// Ends a key, here and then on the I/O servers.
    async fn revoke_key(&self, session: &Session, request: RevokeKeyRequest) -> Result<Answer, Refusal> {
        session.identity.must_administer("revoke keys")?;
        if session.identity.key().is_some_and(|key| key.id == request.id) {
            let text = "this is the key that the request came with; use another one to revoke it, or the cluster key";
            return Err(Refusal::new(Status::Invalid, text));
        }
        self.meta.revoke_key(request.id).await?;
        self.node.set_revoked(self.meta.revoked_keys())?;
        Ok(Answer::of(&RevokeKeyReply { waiting: self.meta.tell_of_revoked_keys().await }))
    }

    async fn watch(&self, call: &Call, request: WatchRequest) -> Result<Answer, Refusal> {
        match either(self.meta.watch(call, request), self.node.stopping.wait()).await {
            Either::First(answer) => answer,
            Either::Second(()) => Err(Refusal::new(Status::ShuttingDown, "the server is stopping")),
        }
    }
}

impl<E: Engine + 'static> Service for MetaService<E> {
    fn node(&self) -> &Rc<Node> {
        &self.node
    }

    fn may_wait(&self, op: Op) -> bool {
        match op.class() {
            Class::Bulk => true,
            Class::Control => false,
            Class::Metadata => {
                matches!(
                    op,
                    Op::SyncMeta | Op::SyncSmall | Op::TruncateBegin | Op::Watch | Op::Lock | Op::GetLock
                ) || !op.only_reads() && self.meta.replies_wait()
            }
        }
    }

    fn connected(&self, session: &Session) -> u64 {
        if !matches!(session.hello.role, peer_role::CLIENT | peer_role::PROCESS) {
            return self.node.shared.epoch;
        }
        if let Some(key) = session.identity.key()
            && let Err(refusal) = self.meta.note_key(key)
        {
            let server = &self.node.shared.name;
            log::warning!(server, "cannot put a key on the list of keys: {}", refusal.text);
        }
        self.meta.session_connected(session.id(), session.hello.boot_id)
    }

    fn disconnected(&self, session: &Session, is_ended: bool) {
        match session.hello.role {
            peer_role::CLIENT | peer_role::PROCESS => {
                let ends = is_ended && session.hello.ends_with_connection.0;
                let locker = Locker { session: session.id(), member: session.hello.member.0 };
                self.meta.session_disconnected(locker, ends);
            }
            _ => self.meta.server_disconnected(session.id()),
        }
    }

    fn stop(&self) {
        self.meta.stop_locks();
    }

    async fn dispatch<B: ServerBulk>(
        &self,
        session: &Session,
        header: &Header,
        body: &[u8],
        _bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        use Op::*;
        let (node, meta, op, identity) = (&self.node, &self.meta, header.op, &session.identity);
        node.admit(session, header).await?;
        let call = &Call {
            header: *header,
            session: session.id(),
            member: session.hello.member.0,
            holder: identity.holder(),
            trusted_with_sizes: identity.is_trusted_with_sizes(),
        };
        if !matches!(op, Reopen | ClaimLocks) && session.hello.version_max >= MEMBERS_SINCE {
            meta.locker_is_back(call.locker());
        }
        match op {
            Hello | Prove => node.is_proven(),
            MemoryProbe | SegmentAdd | SegmentDrop => node.not_over_this_transport(op),
            Ping => Ok(node.ping(session.decode(op, body)?)),
            ClusterMap => node.cluster_map().await,
            Status => Ok(node.status(session, session.decode(op, body)?, self.gauges())),
            Space => Ok(Answer::of(&status::space_of(&node.shared))),
            Register => meta.register(call, session.decode(op, body)?).await,
            ReplaceServer => meta.replace_server(session.decode(op, body)?).await,
            AddServer => meta.add_server(session.decode(op, body)?).await,
            MoveServer => meta.move_server(session.decode(op, body)?).await,
            ListServers => meta.list_servers(),
            NoteKey => {
                identity.must_administer("list keys")?;
                self.note_key(session.decode(op, body)?).await
            }
            ListKeys => {
                identity.must_administer("list keys")?;
                Ok(meta.list_keys(session.decode(op, body)?))
            }
            RevokeKey => self.revoke_key(session, session.decode(op, body)?).await,
            Backup => {
                identity.must_administer("take a backup of the names")?;
                meta.backup(session.decode(op, body)?)
            }
            Check => {
                identity.must_administer("check and repair the file system")?;
                meta.check_names(session.decode(op, body)?)
            }
            Treat => {
                identity.must_administer("check and repair the file system")?;
                meta.treat(session.decode(op, body)?).await
            }
            Lookup => meta.lookup(call, session.decode(op, body)?),
            GetAttr => meta.get_attr(call, session.decode(op, body)?),
            SetAttr => meta.set_attr(call, session.decode(op, body)?).await,
            Create => meta.create(call, session.decode(op, body)?).await,
            CreateUnnamed => meta.create_unnamed(call, session.decode(op, body)?).await,
            Open => meta.open(call, session.decode(op, body)?).await,
            Close => meta.close(call, session.decode(op, body)?).await,
            Report => meta.report(call, session.decode(op, body)?).await,
            Reopen => meta.reopen(call, session.decode(op, body)?).await,
            Mkdir => meta.mkdir(call, session.decode(op, body)?).await,
            Mknod => meta.mknod(call, session.decode(op, body)?).await,
            Symlink => meta.symlink(call, session.decode(op, body)?).await,
            Readlink => meta.readlink(session.decode(op, body)?),
            Link => meta.link(call, session.decode(op, body)?).await,
            Unlink => meta.unlink(call, session.decode(op, body)?).await,
            Rmdir => meta.rmdir(call, session.decode(op, body)?).await,
            Rename => meta.rename(call, session.decode(op, body)?).await,
            ReadDir => meta.read_dir(call, session.decode(op, body)?),
            Access => meta.access(session.decode(op, body)?),
            GetXattr => meta.get_xattr(call, session.decode(op, body)?),
            SetXattr => meta.set_xattr(call, session.decode(op, body)?).await,
            ListXattrs => meta.list_xattrs(session.decode(op, body)?),
            RemoveXattr => meta.remove_xattr(call, session.decode(op, body)?).await,
            SetLayout => meta.set_layout(call, session.decode(op, body)?).await,
            TruncateBegin => meta.truncate_begin(call, session.decode(op, body)?).await,
            TruncateCommit => meta.truncate_commit(call, session.decode(op, body)?).await,
            Settle => meta.settle(call, session.decode(op, body)?).await,
            FileCount => Ok(meta.file_count(session.decode(op, body)?)),
            Lock => meta.lock(call, session.decode(op, body)?).await,
            Unlock => meta.unlock(call, session.decode(op, body)?),
            GetLock => meta.get_lock(call, session.decode(op, body)?).await,
            ReadSmall => meta.read_small(session.decode(op, body)?),
            WriteSmall => meta.write_small(call, session.decode(op, body)?).await,
            SyncSmall => meta.sync_small(session.decode(op, body)?).await,
            Spread => meta.spread_file(call, session.decode(op, body)?).await,
            Reserve => meta.reserve(call, session.decode(op, body)?).await,
            SetQuota => {
                identity.must_administer("set quotas")?;
                meta.set_quota(call, session.decode(op, body)?).await
            }
            ListQuotas => meta.list_quotas(identity.administers(), session.decode(op, body)?).await,
            MarkTree => {
                identity.must_administer("set quotas")?;
                meta.mark_tree(call, session.decode(op, body)?).await
            }
            CountUsage => {
                identity.must_administer("set quotas")?;
                meta.count_usage(call).await
            }
            FindPaths => {
                identity.must_administer("find paths")?;
                meta.find_paths(session.decode(op, body)?)
            }
            Append => meta.append(call, session.decode(op, body)?).await,
            ClaimLocks => meta.claim_locks(call, session.decode(op, body)?),
            FetchAdd => meta.fetch_add(call, session.decode(op, body)?).await,
            SyncMeta => meta.sync_all().await.map(|()| Answer::of(&Empty {})),
            Watch => self.watch(call, session.decode(op, body)?).await,
            NotedLayouts | VouchEmpty | Read | Write | Sync | SyncAll | Size | Truncate | Punch
            | Allocate | Explain | Calibrate | Scrub | Seek | Zero | CopyRange | RemoveObjects
            | ListObjects | StatObjects | PlaceObject | SetRevoked | Revoked => {
                node.not_here(op, "an I/O server")
            }
        }
    }
}
