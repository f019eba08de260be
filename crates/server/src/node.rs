//! What one thread of a server serves from, and the table from operations to functions.

use crate::answer::{Answer, Refusal};
use crate::both::{Either, either};
use crate::config::{ClusterConfig, ServerConfig, ServerRole};
use crate::counters::{Clients, Counters};
use crate::io::IoPart;
use crate::meta::{Call, MetaPart};
use crate::rdma::RdmaTold;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use weft_meta::{Engine, SessionId};
use weft_reactor::Event;
use weft_storage::Disk;
use weft_transport::ServerBulk;
use weft_wire::messages::{ClusterMapReply, HelloRequest, PingReply, PingRequest, ServerInfo, peer_role};
use weft_wire::security::Key;
use weft_wire::{Class, Header, Op, Request, Role, Status};

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
    pub map: ClusterMapReply,
    pub client_key: Key,
    pub server_key: Key,
    /// Tells this run from every other.
    pub epoch: u64,
    pub boot_id: [u8; 16],
    pub started: Instant,
    pub counters: Counters,
    pub clients: Clients,
    pub rdma: RdmaTold,
}

impl Shared {
    pub fn new(
        config: &ClusterConfig,
        server: &ServerConfig,
        key: &Key,
        disk: &'static str,
        rdma: RdmaTold,
    ) -> Shared {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Shared {
            name: server.name.clone(),
            role: server.role,
            id: config.id_of(server),
            directory: config.directory_of(server),
            sync: server.sync,
            disk,
            cluster_id: config.cluster.id.0,
            map: cluster_map(config),
            client_key: key.client_key(),
            server_key: key.server_key(),
            epoch: since_1970.as_nanos() as u64,
            boot_id: boot_id(),
            started: Instant::now(),
            counters: Counters::new(),
            clients: Clients::default(),
            rdma,
        }
    }
}

fn cluster_map(config: &ClusterConfig) -> ClusterMapReply {
    let info = |server: &ServerConfig| ServerInfo {
        name: server.name.clone(),
        id: config.id_of(server),
        addresses: server.addresses.clone(),
        socket_path: config.socket_of(server).to_string_lossy().into_owned(),
        rdma_addresses: server.addresses_for_rdma().to_vec(),
    };
    ClusterMapReply {
        cluster_id: config.cluster.id.0,
        meta_servers: config.meta_servers().map(info).collect(),
        io_servers: config.io_servers().map(info).collect(),
        default_layout: config.default_layout(),
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
}

/// Who is at the other end of a proven connection.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub hello: HelloRequest,
    /// For fair shares of buffers.
    pub client: u64,
}

impl Session {
    pub fn new(hello: HelloRequest) -> Session {
        let client = u64::from_le_bytes(hello.session[..8].try_into().expect("8 of 16 bytes"));
        Session { hello, client }
    }

    pub fn id(&self) -> SessionId {
        SessionId(self.hello.session)
    }
}

/// The body of `op`'s request; a handler that takes another operation's has no way to be right.
fn decode<T: Request>(op: Op, body: &[u8]) -> Result<T, Refusal> {
    debug_assert_eq!(T::OP, op, "a handler takes the request of another operation");
    Ok(T::from_bytes(body)?)
}

impl<D: Disk, E: Engine + 'static> Node<D, E> {
    /// A thread's view, with nothing under way.
    pub fn new(shared: Arc<Shared>, part: Part<D, E>) -> Rc<Node<D, E>> {
        Rc::new(Node { shared, part, stopping: Event::new(), under_way: Cell::new(0) })
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

    /// Notes a proven connection of a client, and its end. Returns the epoch that it is told.
    pub fn connected(&self, session: &Session) -> u64 {
        match (&self.part, session.hello.role) {
            (Part::Meta(meta), peer_role::CLIENT) => {
                meta.session_connected(session.id(), session.hello.boot_id)
            }
            _ => self.shared.epoch,
        }
    }

    /// See [`Node::connected`].
    pub fn disconnected(&self, session: &Session) {
        if let (Part::Meta(meta), peer_role::CLIENT) = (&self.part, session.hello.role) {
            meta.session_disconnected(session.id());
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

    /// Does a request: the one table from operations to functions.
    pub async fn dispatch<B: ServerBulk>(
        &self,
        session: &Session,
        header: &Header,
        body: &[u8],
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        let op = header.op;
        if op.role() == Role::IoByServer && session.hello.role != peer_role::SERVER {
            let text = format!("{} is for servers of the cluster only", op.name());
            return Err(Refusal::new(Status::NotPermitted, text));
        }
        let call = &Call { header: *header, session: session.id() };
        match op {
            Op::Hello | Op::Prove => Err(Refusal::new(Status::Invalid, "this connection is proven already")),
            Op::MemoryProbe | Op::SegmentAdd | Op::SegmentDrop => {
                let text = format!("{} is for connections over shared memory", op.name());
                Err(Refusal::new(Status::Unsupported, text))
            }
            Op::Ping => Ok(Answer::of(&PingReply { echo: decode::<PingRequest>(op, body)?.echo })),
            Op::ClusterMap => Ok(Answer::of(&self.shared.map)),
            Op::Status => Ok(Answer::of(&self.status(decode(op, body)?))),
            Op::Space => match &self.part {
                Part::Io(io) => io.space(),
                Part::Meta(_) => Ok(Answer::of(&crate::status::space_of(&self.shared.directory))),
            },
            Op::Read => self.io(op)?.read(session.client, decode(op, body)?, bulk).await,
            Op::Write => self.io(op)?.write(session.client, decode(op, body)?, bulk).await,
            Op::Sync => self.io(op)?.sync(decode(op, body)?).await,
            Op::Size => self.io(op)?.size(decode(op, body)?),
            Op::Truncate => self.io(op)?.truncate(decode(op, body)?).await,
            Op::Punch => self.io(op)?.punch(decode(op, body)?).await,
            Op::Allocate => self.io(op)?.allocate(decode(op, body)?).await,
            Op::Explain => self.io(op)?.explain(decode(op, body)?, bulk.unit_bytes()).await,
            Op::Calibrate => self.io(op)?.calibrate(&self.shared.name, decode(op, body)?).await,
            Op::Seek => self.io(op)?.seek(decode(op, body)?),
            Op::Zero => self.io(op)?.zero(decode(op, body)?).await,
            Op::CopyRange => self.io(op)?.copy_range(decode(op, body)?).await,
            Op::RemoveObjects => self.io(op)?.remove_objects(decode(op, body)?).await,
            Op::ListObjects => self.io(op)?.list_objects(decode(op, body)?),
            Op::StatObjects => self.io(op)?.stat_objects(decode(op, body)?).await,
            Op::Check => self.meta(op)?.check_names(decode(op, body)?),
            Op::Treat => self.meta(op)?.treat(decode(op, body)?).await,
            Op::Lookup => self.meta(op)?.lookup(call, decode(op, body)?),
            Op::GetAttr => self.meta(op)?.get_attr(call, decode(op, body)?),
            Op::SetAttr => self.meta(op)?.set_attr(call, decode(op, body)?).await,
            Op::Create => self.meta(op)?.create(call, decode(op, body)?).await,
            Op::Open => self.meta(op)?.open(call, decode(op, body)?).await,
            Op::Close => self.meta(op)?.close(call, decode(op, body)?).await,
            Op::Report => self.meta(op)?.report(call, decode(op, body)?).await,
            Op::Reopen => self.meta(op)?.reopen(call, decode(op, body)?).await,
            Op::Mkdir => self.meta(op)?.mkdir(call, decode(op, body)?).await,
            Op::Mknod => self.meta(op)?.mknod(call, decode(op, body)?).await,
            Op::Symlink => self.meta(op)?.symlink(call, decode(op, body)?).await,
            Op::Readlink => self.meta(op)?.readlink(decode(op, body)?),
            Op::Link => self.meta(op)?.link(call, decode(op, body)?).await,
            Op::Unlink => self.meta(op)?.unlink(call, decode(op, body)?).await,
            Op::Rmdir => self.meta(op)?.rmdir(call, decode(op, body)?).await,
            Op::Rename => self.meta(op)?.rename(call, decode(op, body)?).await,
            Op::ReadDir => self.meta(op)?.read_dir(call, decode(op, body)?),
            Op::Access => self.meta(op)?.access(decode(op, body)?),
            Op::GetXattr => self.meta(op)?.get_xattr(call, decode(op, body)?),
            Op::SetXattr => self.meta(op)?.set_xattr(call, decode(op, body)?).await,
            Op::ListXattrs => self.meta(op)?.list_xattrs(decode(op, body)?),
            Op::RemoveXattr => self.meta(op)?.remove_xattr(call, decode(op, body)?).await,
            Op::SetLayout => self.meta(op)?.set_layout(call, decode(op, body)?).await,
            Op::TruncateBegin => self.meta(op)?.truncate_begin(call, decode(op, body)?).await,
            Op::TruncateCommit => self.meta(op)?.truncate_commit(call, decode(op, body)?).await,
            Op::Settle => self.meta(op)?.settle(call, decode(op, body)?).await,
            Op::FileCount => Ok(self.meta(op)?.file_count()),
            Op::Lock => self.meta(op)?.lock(call, decode(op, body)?).await,
            Op::Unlock => self.meta(op)?.unlock(call, decode(op, body)?),
            Op::GetLock => self.meta(op)?.get_lock(call, decode(op, body)?).await,
            Op::Append => self.meta(op)?.append(call, decode(op, body)?).await,
            Op::ClaimLocks => self.meta(op)?.claim_locks(call, decode(op, body)?),
            Op::SyncMeta => {
                self.meta(op)?.sync_all().await.map(|()| Answer::of(&weft_wire::messages::Empty {}))
            }
            Op::Watch => {
                let watched = self.meta(op)?.watch(call, decode(op, body)?);
                match either(watched, self.stopping.wait()).await {
                    Either::First(answer) => answer,
                    Either::Second(()) => Err(Refusal::new(Status::ShuttingDown, "the server is stopping")),
                }
            }
        }
    }
}
