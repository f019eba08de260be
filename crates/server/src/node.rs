//! What one thread of a server serves from, whatever its service.
//!
//! ```text
//!   request ─► admit: newer map? may this peer ask for it? is the storage confirmed? ─► the service's table
//!                                                                                        └─ what all servers do: here
//! ```

use crate::answer::{Answer, Refusal};
use crate::busy::Noter;
use crate::config::ServerRole;
use crate::identity::{Identity, Session};
use crate::revoked::{Guard, Guards};
use crate::shared::Shared;
use crate::spent::{self, Part};
use crate::status;
use crate::under_way;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_reactor::Event;
use weft_wire::messages::{Gauge, PingReply, PingRequest, StatusRequest, peer_role};
use weft_wire::{Header, Op, Role, Status};

/// How long a request waits for a server's storage to be confirmed, and how often it looks.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(5);
const CONFIRMATION_STEP: Duration = Duration::from_millis(5);

/// See the module's header.
pub(crate) struct Node {
    pub shared: Arc<Shared>,
    /// The server is to stop: nothing new is begun.
    pub stopping: Event,
    /// Requests of this thread whose handler has begun and not ended.
    pub under_way: Cell<u64>,
    /// These requests.
    pub requests: under_way::Table,
    /// Which inodes they are about.
    pub busy: Noter,
    is_looking: Cell<bool>,
    /// Connections of this thread that end with their keys.
    guards: Rc<Guards>,
}

impl Node {
    /// With nothing under way.
    pub fn new(shared: Arc<Shared>) -> Rc<Node> {
        Rc::new(Node {
            busy: shared.busy.noter(),
            shared,
            stopping: Event::new(),
            under_way: Cell::new(0),
            requests: under_way::Table::default(),
            is_looking: Cell::new(false),
            guards: Rc::default(),
        })
    }

    /// Logs requests that do not end, from now on.
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

    /// Has `close` called when the key of a connection has expired or is revoked.
    pub fn guard(&self, identity: &Identity, close: impl Fn() + 'static) -> Guard {
        let guard = self.guards.add(identity, close);
        let shared = self.shared.clone();
        self.guards.keep_looking(move |guards| guards.close_ended(|identity| shared.ended(identity)));
        guard
    }

    /// These keys are revoked, all others are not.
    pub fn set_revoked(&self, ids: Vec<[u8; 16]>) -> Result<(), Refusal> {
        let kept = self.shared.revoked.set(ids);
        self.guards.close_ended(|identity| self.shared.ended(identity));
        kept.map_err(|error| {
            Refusal::new(Status::Io, format!("cannot keep the list of revoked keys: {error}"))
        })
    }

    /// Refuses a request that this server must not do now, whatever its service; waits until the server's
    /// storage is confirmed.
    pub async fn admit(&self, session: &Session, header: &Header) -> Result<(), Refusal> {
        self.check_map(header)?;
        let role = header.op.role();
        if matches!(role, Role::IoByServer | Role::MetaByServer) && session.hello.role != peer_role::SERVER {
            let text = format!("{} is for servers of the cluster only", header.op.name());
            return Err(Refusal::new(Status::NotPermitted, text));
        }
        if !self.shared.confirmed.is() && matches!(role, Role::Io | Role::IoByServer | Role::Meta) {
            spent::during(Part::Confirmation, self.until_confirmed()).await?;
        }
        Ok(())
    }

    /// Refuses a request that goes by an older map than this server; where this server is behind, it asks for
    /// the newer map.
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

    /// Waits until the other servers have confirmed this one's storage.
    async fn until_confirmed(&self) -> Result<(), Refusal> {
        let deadline = Instant::now() + CONFIRMATION_TIMEOUT;
        while !self.shared.confirmed.is() {
            if self.stopping.is_set() || Instant::now() >= deadline {
                let by = match self.shared.role {
                    ServerRole::Io => "the metadata server has not",
                    ServerRole::Meta => "no I/O server has",
                };
                let text = format!("{by} confirmed yet that {} has the right storage", self.shared.name);
                return Err(Refusal::new(Status::ShuttingDown, text));
            }
            weft_reactor::sleep(CONFIRMATION_STEP).await;
        }
        Ok(())
    }

    /// Refuses an operation of another kind of server.
    pub fn not_here(&self, op: Op, wanted: &str) -> Result<Answer, Refusal> {
        let text = format!("{} is for {wanted}; {} is none", op.name(), self.shared.name);
        Err(Refusal::new(Status::WrongServer, text))
    }

    /// Refuses an operation of the handshake, which is over.
    pub fn is_proven(&self) -> Result<Answer, Refusal> {
        Err(Refusal::new(Status::Invalid, "this connection is proven already"))
    }

    /// Refuses an operation that the transport of shared memory does itself.
    pub fn not_over_this_transport(&self, op: Op) -> Result<Answer, Refusal> {
        let text = format!("{} is for connections over shared memory", op.name());
        Err(Refusal::new(Status::Unsupported, text))
    }

    /// Sends a ping back.
    pub fn ping(&self, request: PingRequest) -> Answer {
        Answer::of(&PingReply { echo: request.echo })
    }

    /// The cluster's map, as soon as there is one.
    pub async fn cluster_map(&self) -> Result<Answer, Refusal> {
        if self.shared.map.version() == 0 {
            self.until_confirmed().await?;
        }
        Ok(Answer::of(&*self.shared.map.get()))
    }

    /// The server's state, with the service's own gauges.
    pub fn status(&self, session: &Session, mut request: StatusRequest, gauges: Vec<Gauge>) -> Answer {
        // Who else is connected, from where and with what, is no business of a single user's.
        request.with_clients &= session.identity.administers();
        Answer::of(&status::of(&self.shared, request, gauges))
    }
}
