//! An I/O server as a member of its cluster: it tells the metadata server, again and again, which storage it has.
//!
//! ```text
//!   start ─► Register (mark and run as the last run left them) ─► agreed ─► mark + 1, own run ─► Register ─► agreed
//!                │  └─ not reached: again                                                                      │
//!                └─ refused: the server ends, and says why             clients are served ◄────────────────────┘
//!                                                                      every second: Register; sooner while no names are
//!                                                                      served, since these wait for what is noted here
//! ```
//!
//! The mark is counted up only once the metadata server has agreed: an older copy that is started again and again stays as old as
//! it is. With each reply it hears whether there is a newer map of the cluster, and whoever shows it one has it ask at once. The mark
//! is counted up while data changes, too, so that a copy that is put back later is told from what it is a copy of.

use crate::both::{Either, either};
use crate::config::ClusterConfig;
use crate::key_ring::KeyRing;
use crate::log;
use crate::map::endpoints_of;
use crate::peer::{Peer, PeerError};
use crate::saved_map;
use crate::shared::Shared;
use crate::stop::StopFlag;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_reactor::{Reactor, ReactorOptions, timeout};
use weft_storage::{RandomId, Seen, State, StateFile, StorageError};
use weft_wire::Op;
use weft_wire::Status;
use weft_wire::messages::{ClusterMapReply, Endpoint, RegisterReply, RegisterRequest, ServerInfo};

/// How often a server that is confirmed says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How soon it comes again where the metadata server waits to hear that its run is noted.
const SOON: Duration = Duration::from_millis(20);
/// How long it waits at first where the metadata server does not answer; twice as long each time, up to a heartbeat.
const RETRY_FIRST: Duration = Duration::from_millis(20);
/// How often the mark is counted up while there are changes.
const MARK_EVERY: Duration = Duration::from_secs(10);
/// Operations that change data files.
const CHANGES: [Op; 8] = [
    Op::Write,
    Op::Truncate,
    Op::Punch,
    Op::Allocate,
    Op::Zero,
    Op::CopyRange,
    Op::PlaceObject,
    Op::RemoveObjects,
];

/// What a member needs.
pub(crate) struct Setup {
    pub storage: RandomId,
    /// As the last run left it.
    pub state: StateFile,
    /// This run of the server.
    pub run: RandomId,
    /// The server's directory, where the map is kept.
    pub directory: PathBuf,
    /// Where the server is reached.
    pub endpoints: Vec<Endpoint>,
    /// The metadata server as the cluster file has it.
    pub meta: ServerInfo,
    /// The cluster file, which is read again where the metadata server does not answer.
    pub cluster_file: PathBuf,
    pub keys: KeyRing,
    pub stop: StopFlag,
    pub shared: Arc<Shared>,
    /// Has data files of smaller inode numbers count as lost where they are missing.
    pub lose_below: Box<dyn Fn(u64) + Send>,
}

/// Runs until the server is to stop, or must. Returns why it must.
///
/// It has a thread and a reactor of its own: its notes are synced to the disk, which would keep clients waiting.
pub(crate) fn run(setup: Setup) -> Option<String> {
    let (stop, name) = (setup.stop.clone(), setup.shared.name.clone());
    let peer = Peer::new(meta_server(&setup.shared.map.get(), &setup.meta), setup.keys.clone());
    let changes = setup.shared.counters.count_of(&CHANGES);
    let mut member = Member { setup, peer, changes_marked: changes, marked: Instant::now() };
    let ran = Reactor::new(ReactorOptions::default()).map(|reactor| {
        let refused = reactor.run(async {
            match either(member.run(), stop.wait()).await {
                Either::First(reason) => Some(reason),
                Either::Second(_) => None,
            }
        });
        if refused.is_none() {
            member.end();
        }
        refused
    });
    match ran {
        Ok(refused) => refused,
        Err(error) => {
            log::warning!(&name, "cannot keep in touch with the metadata server: {error}");
            stop.stop();
            None
        }
    }
}

struct Member {
    setup: Setup,
    peer: Peer,
    /// Changes that were counted when the mark was counted up last, and when that was.
    changes_marked: u64,
    marked: Instant,
}

impl Member {
    /// Registers again and again. Returns why the server must stop.
    async fn run(&mut self) -> String {
        let mut retry = RETRY_FIRST;
        loop {
            let wait = match self.register().await {
                Ok(_) if !self.has_begun() => match self.begin() {
                    Ok(()) => continue,
                    Err(error) => return self.must_stop(error.to_string()),
                },
                Ok(names) => {
                    retry = RETRY_FIRST;
                    self.setup.shared.confirmed.confirm();
                    match names {
                        Names::Served => HEARTBEAT,
                        Names::Awaited => SOON,
                    }
                }
                Err(Trouble::MustStop(reason)) => return self.must_stop(reason),
                Err(Trouble::TryAgain(reason)) => {
                    if log::once_a_minute(&format!("member {reason}")) {
                        let server = &self.setup.shared.name;
                        log::warning!(server, "has no word from the metadata server: {reason}");
                    }
                    self.read_file_again();
                    retry = (retry * 2).min(HEARTBEAT);
                    retry
                }
            };
            self.idle(wait).await;
        }
    }

    fn must_stop(&self, reason: String) -> String {
        self.setup.stop.stop();
        reason
    }

    /// Waits until a newer map is wanted, the connection is gone, or `time` is over.
    async fn idle(&self, time: Duration) {
        let wanted = self.setup.shared.map.wanted();
        let _ = timeout(time, either(wanted.wait(), self.peer.gone())).await;
    }

    /// So that a copy of the directory that was made while this run went on is older than what is left now.
    fn end(&mut self) {
        if self.has_begun()
            && let Err(error) = self.begin()
        {
            log::warning!(&self.setup.shared.name, "{error}");
        }
    }

    /// Whether the mark is one of this run's.
    fn has_begun(&self) -> bool {
        self.setup.state.state().run == self.setup.run
    }

    fn begin(&mut self) -> Result<(), StorageError> {
        self.setup.state.raise_mark(self.setup.run)
    }

    async fn register(&mut self) -> Result<Names, Trouble> {
        self.raise_mark()?;
        let request = RegisterRequest {
            endpoints: self.setup.endpoints.clone(),
            map_version: self.setup.shared.map.version(),
            ..what_it_has(self.setup.shared.id, self.setup.storage, self.setup.state.state())
        };
        let reply = self.peer.call(&request).await.map_err(|error| match error {
            PeerError::Refused { status: Status::WrongStorage, text, .. } => {
                Trouble::MustStop(format!("the metadata server refuses this server: {text}"))
            }
            error => Trouble::TryAgain(error.to_string()),
        })?;
        self.agreed(&reply)?;
        Ok(if reply.serves_names { Names::Served } else { Names::Awaited })
    }

    fn raise_mark(&mut self) -> Result<(), Trouble> {
        let changes = self.setup.shared.counters.count_of(&CHANGES);
        if self.has_begun() && changes != self.changes_marked && self.marked.elapsed() >= MARK_EVERY {
            self.begin()?;
            (self.changes_marked, self.marked) = (changes, Instant::now());
        }
        Ok(())
    }

    /// The metadata server may have moved while this one was not told of it.
    fn read_file_again(&mut self) {
        let Ok(config) = ClusterConfig::load(&self.setup.cluster_file) else { return };
        let Some(meta) = config.meta_servers().next() else { return };
        self.setup.meta.endpoints = endpoints_of(&config, meta);
        self.look_where_meta_is();
    }

    fn look_where_meta_is(&mut self) {
        self.peer.is_at(&meta_server(&self.setup.shared.map.get(), &self.setup.meta));
    }

    fn take_map(&mut self, map: &ClusterMapReply) -> Result<(), Trouble> {
        if map.cluster_id != self.setup.shared.cluster_id {
            return Err(Trouble::TryAgain("it sent the map of another cluster".into()));
        }
        map.check()
            .map_err(|why| Trouble::TryAgain(format!("it sent a map that cannot be gone by: {why}")))?;
        if let Err(error) = saved_map::save(&self.setup.directory, map)
            && log::once_a_minute("save map")
        {
            // It is told again after a restart.
            log::warning!(&self.setup.shared.name, "cannot keep the cluster's map: {error}");
        }
        self.setup.shared.map.publish(map.clone());
        self.look_where_meta_is();
        Ok(())
    }

    fn agreed(&mut self, reply: &RegisterReply) -> Result<(), Trouble> {
        if let Some(map) = &reply.map {
            self.take_map(map)?;
        }
        let state = *self.setup.state.state();
        let now = after_agreement(&state, reply);
        (self.setup.lose_below)(now.lost_below_ino);
        if now != state {
            self.setup.state.write(now)?;
        }
        Ok(())
    }
}

/// What a server says of its storage. Where it is reached, and by which map it goes, is added.
pub(crate) fn what_it_has(id: u16, storage: RandomId, state: &State) -> RegisterRequest {
    let meta = state.meta.unwrap_or_default();
    RegisterRequest {
        id,
        storage,
        mark: state.mark,
        run: state.run,
        meta_storage: meta.storage,
        meta_mark: meta.mark,
        meta_run: meta.run,
        endpoints: Vec::new(),
        map_version: 0,
    }
}

/// What it notes when the metadata server has agreed.
pub(crate) fn after_agreement(state: &State, reply: &RegisterReply) -> State {
    State {
        mark: state.mark.max(reply.mark_floor),
        meta: Some(Seen { storage: reply.meta_storage, mark: reply.meta_mark, run: reply.meta_run }),
        lost_below_ino: state.lost_below_ino.max(reply.lost_below_ino),
        ..*state
    }
}

/// The metadata server: where the map has it, and where the cluster file has it besides.
pub(crate) fn meta_server(map: &ClusterMapReply, in_file: &ServerInfo) -> ServerInfo {
    let mut meta = map.meta_servers().next().unwrap_or(in_file).clone();
    let more = in_file.endpoints.iter().filter(|one| !meta.endpoints.contains(one)).cloned();
    let more: Vec<_> = more.collect();
    meta.endpoints.extend(more);
    meta
}

/// Whether the metadata server that has agreed serves names.
enum Names {
    Served,
    Awaited,
}

enum Trouble {
    MustStop(String),
    TryAgain(String),
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Trouble {
        Trouble::TryAgain(error.to_string())
    }
}
