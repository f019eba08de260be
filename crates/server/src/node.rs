//! What one thread of a server serves from, and the table from operations to functions.

use crate::answer::{Answer, Refusal};
use crate::both::{Either, either};
use crate::caretaker;
use crate::config::{ClusterConfig, ServerConfig, ServerRole};
use crate::counters::{Clients, Counters};
use crate::crowd::Crowd;
use crate::current::CurrentMap;
use crate::identity::Identity;
use crate::io::IoPart;
use crate::key_ring::KeyRing;
use crate::meta::{Call, MetaPart, unix_s};
use crate::rdma::RdmaTold;
use crate::revoked::{Guard, Guards, Revoked};
use crate::slow::Slow;
use crate::spent::{self, Part as Spent};
use crate::under_way;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weft_meta::{Engine, SessionId};
use weft_reactor::Event;
use weft_storage::Disk;
use weft_transport::ServerBulk;
use weft_wire::messages::{
    CalibrateRequest, Empty, HelloRequest, NoteKeyRequest, PingReply, PingRequest, RevokeKeyReply,
    RevokeKeyRequest, RevokedReply, ScrubRequest, SetRevokedRequest, StatusRequest, peer_role,
};
use weft_wire::{Class, Header, Op, Request, Role, Status};

/// Whether the other servers have confirmed that a server has the right storage. Clones are the same.
#[derive(Clone)]
pub(crate) struct Confirmed(Arc<AtomicBool>);

impl Confirmed {
    /// So or not from the beginning.
    pub fn new(confirmed: bool) -> Confirmed {
        Confirmed(Arc::new(AtomicBool::new(confirmed)))
    }

    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub fn confirm(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub name: String,
    pub role: ServerRole,
    /// Place among the servers of its role.
    pub id: u16,
    pub directory: PathBuf,
    pub sync: crate::config::SyncMode,
    /// "ring", "plain", or what holds the names.
    pub disk: &'static str,
    pub cluster_id: [u8; 16],
    pub map: CurrentMap,
    pub keys: KeyRing,
    /// The user that this process runs as.
    pub own_uid: u32,
    pub revoked: Revoked,
    /// Tells this run from every other.
    pub epoch: u64,
    pub boot_id: [u8; 16],
    pub started: Instant,
    pub counters: Counters,
    pub clients: Clients,
    pub crowd: Crowd,
    pub rdma: RdmaTold,
    pub confirmed: Confirmed,
    pub slow: Slow,
    /// Of an I/O server.
    pub scrub: caretaker::Desk,
}

impl Shared {
    pub fn new(
        config: &ClusterConfig,
        server: &ServerConfig,
        keys: KeyRing,
        disk: &'static str,
        rdma: RdmaTold,
        revoked: Revoked,
        map: CurrentMap,
    ) -> Shared {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let counters = Counters::new();
        Shared {
            name: server.name.clone(),
            role: server.role,
            id: config.id_of(server),
            directory: config.directory_of(server),
            sync: server.sync,
            disk,
            cluster_id: config.cluster.id.0,
            map,
            keys,
            // SAFETY: the call only returns a number.
            own_uid: unsafe { libc::geteuid() },
            revoked,
            epoch: since_1970.as_nanos() as u64,
            boot_id: boot_id(),
            started: Instant::now(),
            slow: Slow::new(config.cluster.slow_request_ms, &counters),
            counters,
            clients: Clients::default(),
            crowd: Crowd::new(crate::server::descriptors_max()),
            rdma,
            confirmed: Confirmed::new(true),
            scrub: caretaker::Desk::default(),
        }
    }
}

impl Shared {
    /// Why a connection of this identity is not served, or not any more, if so.
    pub fn ended(&self, identity: &Identity) -> Option<&'static str> {
        let key = identity.key()?;
        if key.is_expired(unix_s()) {
            return Some("its key has expired; ask the administrator for a new one");
        }
        if !self.keys.has(&key.issuer) {
            return Some(
                "its key was issued with a cluster key that is not valid any more; ask the administrator for a new one",
            );
        }
        self.revoked.contains(&key.id).then_some("its key was revoked; ask the administrator for another")
    }
}

/// The kernel's boot identity; zeros where it tells none.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// The part of the work that a server has.
pub(crate) enum Part<D: Disk, E: Engine> {
    Io(IoPart<D>),
    Meta(Rc<MetaPart<E>>),
}

/// One thread's view of the server.
pub(crate) struct Node<D: Disk, E: Engine> {
    pub shared: Arc<Shared>,
    pub part: Part<D, E>,
    /// The server is to stop: nothing new is begun.
    pub stopping: Event,
    /// Requests of this thread whose handler has begun and not ended.
    pub under_way: Cell<u64>,
    /// These requests.
    pub requests: under_way::Table,
    is_looking: Cell<bool>,
    /// Connections of this thread that end with their keys.
    guards: Rc<Guards>,
}

/// How long a request waits for a server's storage to be confirmed, and how often it looks.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(5);
const CONFIRMATION_STEP: Duration = Duration::from_millis(5);

/// Who is at the other end of a proven connection.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// What it said of itself; its session is the one that the identity makes of it.
    pub hello: HelloRequest,
    pub identity: Identity,
    /// For fair shares of buffers.
    pub client: u64,
}

impl Session {
    /// Of a connection that has proved this identity.
    pub fn new(mut hello: HelloRequest, identity: Identity) -> Session {
        hello.session = identity.holder().session(&hello.session);
        let client = u64::from_le_bytes(hello.session[..8].try_into().expect("8 of 16 bytes"));
        Session { hello, identity, client }
    }

    pub fn id(&self) -> SessionId {
        SessionId(self.hello.session)
    }

    // Fuzzed by bodies: weft-wire
    /// The body of `op`'s request, vetted: callers in it are those that this connection may act for, and capabilities its own. All
    /// requests come this way. A handler that takes another operation's has no way to be right.
    fn decode<T: Request>(&self, op: Op, body: &[u8]) -> Result<T, Refusal> {
        debug_assert_eq!(T::OP, op, "a handler takes the request of another operation");
        let mut request = T::from_bytes(body)?;
        if T::VETTED {
            let mut vetting = self.identity.vetting();
            request.vet(&mut vetting);
            vetting.end()?;
        }
        Ok(request)
    }
}

impl<D: Disk, E: Engine + 'static> Node<D, E> {
    /// A thread's view, with nothing under way.
    pub fn new(shared: Arc<Shared>, part: Part<D, E>) -> Rc<Node<D, E>> {
        Rc::new(Node {
            shared,
            part,
            stopping: Event::new(),
            under_way: Cell::new(0),
            requests: under_way::Table::default(),
            is_looking: Cell::new(false),
            guards: Rc::default(),
        })
    }

    /// Tells of requests that do not end, from now on.
    pub fn look_after_requests(self: &Rc<Self>) {
        if self.is_looking.replace(true) {
            return;
        }
        let weak = Rc::downgrade(self);
        let every = self.shared.slow.look_every;
        weft_reactor::spawn(async move {
            while let Some(node) = weak.upgrade() {
                let (slow, name) = (&node.shared.slow, &node.shared.name);
                slow.look_at_all(name, &node.requests);
                drop(node);
                weft_reactor::sleep(every).await;
            }
        });
    }

    /// Whether a connection should take its next requests while this one is under way.
    pub fn may_wait(&self, op: Op) -> bool {
        match (&self.part, op.class()) {
            (Part::Meta(meta), Class::Metadata) => {
                matches!(op, Op::SyncMeta | Op::Watch | Op::Lock | Op::GetLock)
                    || !op.only_reads() && meta.replies_wait()
            }
            (_, Class::Control) => false,
            (Part::Io(_), Class::Metadata) => false,
            (_, Class::Bulk) => true,
        }
    }

    /// Why a connection of this identity is not served, or not any more, if so.
    pub fn ended(&self, identity: &Identity) -> Option<&'static str> {
        self.shared.ended(identity)
    }

    /// See [`ProveReply::loss_epoch`](weft_wire::messages::ProveReply::loss_epoch).
    pub fn loss_epoch(&self) -> u64 {
        match &self.part {
            Part::Io(io) => io.loss_epoch_of_all(),
            Part::Meta(_) => 0,
        }
    }

    /// Has `close` called when the key of a connection has expired or is revoked.
    pub fn guard(&self, identity: &Identity, close: impl Fn() + 'static) -> Guard {
        let guard = self.guards.add(identity, close);
        let shared = self.shared.clone();
        self.guards.keep_looking(move |guards| guards.close_ended(&shared));
        guard
    }

    /// These keys are revoked, all others are not.
    fn set_revoked(&self, ids: Vec<[u8; 16]>) -> Result<(), Refusal> {
        let kept = self.shared.revoked.set(ids);
        self.guards.close_ended(&self.shared);
        kept.map_err(|error| {
            Refusal::new(Status::Io, format!("cannot keep the list of revoked keys: {error}"))
        })
    }

    /// Ends a key, here and then on the I/O servers.
    async fn revoke_key(&self, session: &Session, request: RevokeKeyRequest) -> Result<Answer, Refusal> {
        let meta = self.meta(Op::RevokeKey)?;
        session.identity.must_administer("revoke keys")?;
        if session.identity.key().is_some_and(|key| key.id == request.id) {
            let text = "this is the key that the request came with; use another one to revoke it, or the cluster key";
            return Err(Refusal::new(Status::Invalid, text));
        }
        meta.revoke_key(request.id).await?;
        self.set_revoked(meta.revoked_keys())?;
        Ok(Answer::of(&RevokeKeyReply { waiting: meta.tell_of_revoked_keys().await }))
    }

    /// Notes a proven connection of a client, and its end. Returns the epoch that it is told.
    pub fn connected(&self, session: &Session) -> u64 {
        match (&self.part, session.hello.role) {
            (Part::Meta(meta), peer_role::CLIENT | peer_role::PROCESS) => {
                if let Some(key) = session.identity.key()
                    && let Err(refusal) = meta.note_key(key)
                {
                    crate::log::warning!(
                        &self.shared.name,
                        "cannot put a key on the list of keys: {}",
                        refusal.text
                    );
                }
                meta.session_connected(session.id(), session.hello.boot_id)
            }
            _ => self.shared.epoch,
        }
    }

    /// See [`Node::connected`].
    pub fn disconnected(&self, session: &Session) {
        match (&self.part, session.hello.role) {
            (Part::Meta(meta), peer_role::CLIENT | peer_role::PROCESS) => {
                meta.session_disconnected(session.id())
            }
            (Part::Meta(meta), _) => meta.server_disconnected(session.id()),
            _ => {}
        }
    }

    fn io(&self, op: Op) -> Result<&IoPart<D>, Refusal> {
        match &self.part {
            Part::Io(part) => Ok(part),
            Part::Meta(_) => Err(self.not_here(op, "an I/O server")),
        }
    }

    fn meta(&self, op: Op) -> Result<&MetaPart<E>, Refusal> {
        match &self.part {
            Part::Meta(part) => Ok(part),
            Part::Io(_) => Err(self.not_here(op, "a metadata server")),
        }
    }

    fn not_here(&self, op: Op, wanted: &str) -> Refusal {
        let text = format!("{} is for {wanted}; {} is none", op.name(), self.shared.name);
        Refusal::new(Status::WrongServer, text)
    }

    /// Waits until the other servers have confirmed this one's storage.
    async fn until_confirmed(&self) -> Result<(), Refusal> {
        let deadline = Instant::now() + CONFIRMATION_TIMEOUT;
        while !self.shared.confirmed.is() {
            if self.stopping.is_set() || Instant::now() >= deadline {
                let by = match self.part {
                    Part::Io(_) => "the metadata server has not",
                    Part::Meta(_) => "no I/O server has",
                };
                let text = format!("{by} confirmed yet that {} has the right storage", self.shared.name);
                return Err(Refusal::new(Status::ShuttingDown, text));
            }
            weft_reactor::sleep(CONFIRMATION_STEP).await;
        }
        Ok(())
    }

    /// Refuses who goes by an older map than this server; where it is this one that is behind, it asks for the newer one.
    fn check_map(&self, header: &Header) -> Result<(), Refusal> {
        let (theirs, ours) = (header.map_version, self.shared.map.version());
        if theirs > ours {
            self.shared.map.want();
        }
        if theirs == 0 || theirs >= ours || !header.op.needs_map() {
            return Ok(());
        }
        let text =
            format!("the cluster's map is at version {ours}, and the request goes by version {theirs}");
        Err(Refusal::new(Status::StaleMap, text))
    }

    /// Does a request: the one table from operations to functions.
    pub async fn dispatch<B: ServerBulk>(
        &self,
        session: &Session,
        header: &Header,
        body: &[u8],
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        let op = header.op;
        self.check_map(header)?;
        if matches!(op.role(), Role::IoByServer | Role::MetaByServer)
            && session.hello.role != peer_role::SERVER
        {
            let text = format!("{} is for servers of the cluster only", op.name());
            return Err(Refusal::new(Status::NotPermitted, text));
        }
        if !self.shared.confirmed.is() && matches!(op.role(), Role::Io | Role::IoByServer | Role::Meta) {
            spent::during(Spent::Confirmation, self.until_confirmed()).await?;
        }
        let identity = &session.identity;
        let call = &Call {
            header: *header,
            session: session.id(),
            holder: identity.holder(),
            trusted_with_sizes: identity.is_trusted_with_sizes(),
        };
        match op {
            Op::Hello | Op::Prove => Err(Refusal::new(Status::Invalid, "this connection is proven already")),
            Op::MemoryProbe | Op::SegmentAdd | Op::SegmentDrop => {
                let text = format!("{} is for connections over shared memory", op.name());
                Err(Refusal::new(Status::Unsupported, text))
            }
            Op::Ping => Ok(Answer::of(&PingReply { echo: session.decode::<PingRequest>(op, body)?.echo })),
            Op::ClusterMap => {
                if self.shared.map.version() == 0 {
                    self.until_confirmed().await?;
                }
                Ok(Answer::of(&*self.shared.map.get()))
            }
            Op::Status => {
                let mut request: StatusRequest = session.decode(op, body)?;
                // Who else is connected, from where and with what, is no business of a single user's.
                request.with_clients &= identity.administers();
                Ok(Answer::of(&self.status(request)))
            }
            Op::Space => match &self.part {
                Part::Io(io) => io.space(crate::status::disk_id(&self.shared)),
                Part::Meta(_) => Ok(Answer::of(&crate::status::space_of(&self.shared))),
            },
            Op::Register => self.meta(op)?.register(call, session.decode(op, body)?).await,
            Op::ReplaceServer => self.meta(op)?.replace_server(session.decode(op, body)?).await,
            Op::AddServer => self.meta(op)?.add_server(session.decode(op, body)?).await,
            Op::MoveServer => self.meta(op)?.move_server(session.decode(op, body)?).await,
            Op::ListServers => self.meta(op)?.list_servers(),
            Op::NotedLayouts => self.io(op)?.noted_layouts(session.decode(op, body)?).await,
            Op::VouchEmpty => self.io(op)?.vouch_empty(session.decode(op, body)?).await,
            Op::Read => self.io(op)?.read(session.client, session.decode(op, body)?, bulk).await,
            Op::Write => self.io(op)?.write(session.client, session.decode(op, body)?, bulk).await,
            Op::Sync => self.io(op)?.sync(session.decode(op, body)?).await,
            Op::SyncAll => self.io(op)?.sync_all(session.decode(op, body)?).await,
            Op::Size => self.io(op)?.size(session.decode(op, body)?),
            Op::Truncate => self.io(op)?.truncate(session.decode(op, body)?).await,
            Op::Punch => self.io(op)?.punch(session.decode(op, body)?).await,
            Op::Allocate => self.io(op)?.allocate(session.decode(op, body)?).await,
            Op::Explain => self.io(op)?.explain(session.decode(op, body)?, bulk).await,
            Op::Calibrate => {
                let request: CalibrateRequest = session.decode(op, body)?;
                if request.measure {
                    identity.must_administer("have a server measure its costs")?;
                }
                self.io(op)?.calibrate(&self.shared.name, request).await
            }
            Op::Scrub => {
                identity.must_administer("scrub data")?;
                self.io(op)?;
                Ok(Answer::of(&self.shared.scrub.answer(&session.decode::<ScrubRequest>(op, body)?)))
            }
            Op::Seek => self.io(op)?.seek(session.decode(op, body)?),
            Op::Zero => self.io(op)?.zero(session.decode(op, body)?).await,
            Op::CopyRange => self.io(op)?.copy_range(session.decode(op, body)?).await,
            Op::RemoveObjects => self.io(op)?.remove_objects(session.decode(op, body)?).await,
            Op::ListObjects => self.io(op)?.list_objects(session.decode(op, body)?),
            Op::StatObjects => self.io(op)?.stat_objects(session.decode(op, body)?).await,
            Op::SetRevoked => {
                self.io(op)?;
                let request: SetRevokedRequest = session.decode(op, body)?;
                self.set_revoked(request.ids).map(|()| Answer::of(&Empty {}))
            }
            Op::Revoked => {
                self.io(op)?;
                Ok(Answer::of(&RevokedReply { ids: self.shared.revoked.ids() }))
            }
            Op::NoteKey => {
                identity.must_administer("list keys")?;
                let request: NoteKeyRequest = session.decode(op, body)?;
                let meta = self.meta(op)?;
                meta.note_key(&request.key)?;
                meta.sync_all().await.map(|()| Answer::of(&Empty {}))
            }
            Op::ListKeys => {
                identity.must_administer("list keys")?;
                Ok(self.meta(op)?.list_keys(session.decode(op, body)?))
            }
            Op::RevokeKey => self.revoke_key(session, session.decode(op, body)?).await,
            Op::Check | Op::Treat if !identity.administers() => {
                identity.must_administer("check and repair the file system").map(|()| Answer::default())
            }
            Op::Backup => {
                identity.must_administer("take a backup of the names")?;
                self.meta(op)?.backup(session.decode(op, body)?)
            }
            Op::Check => self.meta(op)?.check_names(session.decode(op, body)?),
            Op::Treat => self.meta(op)?.treat(session.decode(op, body)?).await,
            Op::Lookup => self.meta(op)?.lookup(call, session.decode(op, body)?),
            Op::GetAttr => self.meta(op)?.get_attr(call, session.decode(op, body)?),
            Op::SetAttr => self.meta(op)?.set_attr(call, session.decode(op, body)?).await,
            Op::Create => self.meta(op)?.create(call, session.decode(op, body)?).await,
            Op::Open => self.meta(op)?.open(call, session.decode(op, body)?).await,
            Op::Close => self.meta(op)?.close(call, session.decode(op, body)?).await,
            Op::Report => self.meta(op)?.report(call, session.decode(op, body)?).await,
            Op::Reopen => self.meta(op)?.reopen(call, session.decode(op, body)?).await,
            Op::Mkdir => self.meta(op)?.mkdir(call, session.decode(op, body)?).await,
            Op::Mknod => self.meta(op)?.mknod(call, session.decode(op, body)?).await,
            Op::Symlink => self.meta(op)?.symlink(call, session.decode(op, body)?).await,
            Op::Readlink => self.meta(op)?.readlink(session.decode(op, body)?),
            Op::Link => self.meta(op)?.link(call, session.decode(op, body)?).await,
            Op::Unlink => self.meta(op)?.unlink(call, session.decode(op, body)?).await,
            Op::Rmdir => self.meta(op)?.rmdir(call, session.decode(op, body)?).await,
            Op::Rename => self.meta(op)?.rename(call, session.decode(op, body)?).await,
            Op::ReadDir => self.meta(op)?.read_dir(call, session.decode(op, body)?),
            Op::Access => self.meta(op)?.access(session.decode(op, body)?),
            Op::GetXattr => self.meta(op)?.get_xattr(call, session.decode(op, body)?),
            Op::SetXattr => self.meta(op)?.set_xattr(call, session.decode(op, body)?).await,
            Op::ListXattrs => self.meta(op)?.list_xattrs(session.decode(op, body)?),
            Op::RemoveXattr => self.meta(op)?.remove_xattr(call, session.decode(op, body)?).await,
            Op::SetLayout => self.meta(op)?.set_layout(call, session.decode(op, body)?).await,
            Op::TruncateBegin => self.meta(op)?.truncate_begin(call, session.decode(op, body)?).await,
            Op::TruncateCommit => self.meta(op)?.truncate_commit(call, session.decode(op, body)?).await,
            Op::Settle => self.meta(op)?.settle(call, session.decode(op, body)?).await,
            Op::FileCount => Ok(self.meta(op)?.file_count()),
            Op::Lock => self.meta(op)?.lock(call, session.decode(op, body)?).await,
            Op::Unlock => self.meta(op)?.unlock(call, session.decode(op, body)?),
            Op::GetLock => self.meta(op)?.get_lock(call, session.decode(op, body)?).await,
            Op::Append => self.meta(op)?.append(call, session.decode(op, body)?).await,
            Op::ClaimLocks => self.meta(op)?.claim_locks(call, session.decode(op, body)?),
            Op::SyncMeta => self.meta(op)?.sync_all().await.map(|()| Answer::of(&Empty {})),
            Op::Watch => {
                let watched = self.meta(op)?.watch(call, session.decode(op, body)?);
                match either(watched, self.stopping.wait()).await {
                    Either::First(answer) => answer,
                    Either::Second(()) => Err(Refusal::new(Status::ShuttingDown, "the server is stopping")),
                }
            }
        }
    }
}
