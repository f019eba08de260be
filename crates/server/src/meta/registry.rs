//! Which storage each I/O server has, and whether this metadata store is the newest.
//!
//! Both sides of a cluster note each other's storages: an identity, made once, and a mark that is counted up when a run of a
//! server begins to serve and while there are changes. When an I/O server says what it has and what it knows, the two are compared:
//!
//! `registry/judge.rs` has the rules, `registry/state.rs` what is in memory.
//!
//! Until an I/O server is confirmed it serves no data. Until this store is confirmed it serves no names. That takes two rounds:
//!
//! ```text
//!   agreed    one I/O server, and all that are known where they come within SETTLING     the mark is counted up, durably
//!   noted     they have come again, and know this run's mark; or one does and SETTLING   names are served
//!             is over once more
//! ```
//!
//! So a name is never changed in a run that no I/O server knows of: a copy of the store from before the run is found out.

mod judge;
mod state;

pub(crate) use state::{Registry, Restore, SETTLING};

use self::judge::{Circumstances, Progress, Verdict, judge, seen, short};
use self::state::Presence;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::log;
use crate::map::{Event, MapError};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_meta::{Engine, MetaError, Op, OwnStorage, ServerRecord, SessionId};
use weft_wire::Status;
use weft_wire::messages::{
    Empty, ListServersReply, RegisterReply, RegisterRequest, ReplaceServerRequest, ServerRecord as Listed,
};

/// How often the mark is counted up while there are changes.
const MARK_EVERY: Duration = Duration::from_secs(10);
/// How far the marks of a copy that is accepted go beyond those of what it is a copy of, so that this is not taken for a later
/// run of it when it comes back.
const FORK: u64 = 1 << 32;

/// An I/O server that has said which storage it has.
struct Judged<'a> {
    name: String,
    noted: Option<&'a ServerRecord>,
    request: &'a RegisterRequest,
    /// No I/O server is noted yet.
    is_first: bool,
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Keeps record of storages from now on.
    pub fn keep_registry(self: &Rc<Self>, registry: Registry) {
        let registry = Rc::new(registry);
        if self.registry.set(registry.clone()).is_err() {
            return;
        }
        let weak = Rc::downgrade(self);
        weft_reactor::spawn(async move {
            let mut marked = 0;
            while let Some(part) = weak.upgrade() {
                part.go_on(&registry).await;
                let confirmed = registry.confirmed.is();
                if confirmed {
                    part.raise_mark(&registry, &mut marked).await;
                }
                drop(part);
                weft_reactor::sleep(if confirmed { MARK_EVERY } else { SETTLING }).await;
                registry.has_waited();
            }
        });
    }

    /// Counts the mark up where enough I/O servers have agreed, and serves names where they have noted it.
    async fn go_on(&self, registry: &Registry) {
        if registry.confirmed.is() || registry.restore.is_under_way() {
            return;
        }
        let known = match self.namespace.borrow().servers() {
            Ok(known) => known,
            Err(error) => return self.store_failed(&error.to_string()),
        };
        match registry.progress(&known) {
            Progress::Waits => {}
            Progress::Agreed => self.raise_mark(registry, &mut 0).await,
            Progress::Noted => {
                if registry.restore.wanted {
                    let revoked = registry.restore.revoked.take();
                    if let Err(refusal) = self.take_revoked(revoked).await {
                        return self.store_failed(&refusal.text);
                    }
                    self.end_loading();
                }
                registry.confirmed.confirm();
            }
        }
    }

    /// The I/O servers have agreed with a store that was made from a backup. Where this is not durable, they are asked once more.
    fn end_loading(&self) {
        let done = |op: &mut Op<'_, E>| {
            op.loading_is_done();
            Ok::<_, MetaError>(())
        };
        if let Err(error) = self.namespace.borrow_mut().change(done) {
            log::warning!("meta", "cannot note that the I/O servers have agreed with the store: {error}");
        }
    }

    fn registry(&self) -> Result<&Rc<Registry>, Refusal> {
        let text = "this metadata server keeps no record of storages";
        self.registry.get().ok_or_else(|| Refusal::new(Status::Unsupported, text))
    }

    /// Counts the mark up if there were commits since `marked`, and tells nobody before it is durable.
    async fn raise_mark(&self, registry: &Registry, marked: &mut u64) {
        let (own, run) = (registry.own.get(), registry.run);
        let raised = {
            let mut namespace = self.namespace.borrow_mut();
            if namespace.committed() == *marked && own.run == run {
                return;
            }
            namespace.raise_mark(&run)
        };
        match raised {
            Ok((mark, seq)) => {
                *marked = seq;
                if self.durable(seq).await.is_ok() && mark > registry.own.get().mark {
                    registry.is_at(mark);
                }
            }
            Err(error) => log::warning!(&registry.name, "cannot note that the names have changed: {error}"),
        }
    }

    /// See the module's header.
    pub async fn register(&self, call: &Call, request: RegisterRequest) -> Result<Answer, Refusal> {
        let registry = self.registry()?.clone();
        let id = request.id;
        let name = self.io_name(id).ok_or(MapError::NoSuchId { id })?;
        let known = self.namespace.borrow().servers().map_err(MetaError::from)?;
        let noted = known.iter().find(|(known, _)| *known == id).map(|(_, record)| record.clone());
        self.spreading.heard(id, call.header.version);
        let verdict = self.judge_storage(call, &registry, noted.as_ref(), &request)?;
        let server = Judged { name, noted: noted.as_ref(), request: &request, is_first: known.is_empty() };
        let record = self.record_after(verdict, &registry, server).await?;
        if noted.as_ref() != Some(&record) {
            self.note_server(id, &record).await?;
        }
        let (lost_below_ino, mark_floor) = (record.lost_below_ino, record.seen.mark);
        let heard = Some((call.session, Instant::now()));
        let knows_run = request.meta_run == registry.run;
        registry.present.borrow_mut().insert(id, Presence { heard, lost_below_ino, knows_run });
        self.go_on(&registry).await;
        // Told at once, so that what is written from now on is known to be of this run.
        if registry.confirmed.is() && registry.own.get().run != registry.run {
            self.raise_mark(&registry, &mut 0).await;
        }
        if lost_below_ino > record.vouched_below_ino {
            self.poke_garbage();
        }
        let came = Event::Registered {
            id,
            storage: request.storage,
            endpoints: request.endpoints,
            map_version: request.map_version,
        };
        // A disk that is full keeps nobody from saying that it is there.
        if let Err(refusal) = self.change_map(came).await
            && log::once_a_minute("map")
        {
            log::warning!(
                &registry.name,
                "cannot note in the cluster's map that {id} is there: {}",
                refusal.text
            );
        }
        let own = registry.own.get();
        Ok(Answer::of(&RegisterReply {
            meta_storage: own.storage,
            meta_mark: own.mark,
            meta_run: own.run,
            lost_below_ino,
            mark_floor,
            serves_names: registry.confirmed.is(),
            map: self.newer_map(request.map_version),
        }))
    }

    /// Compares what an I/O server says with what is noted.
    fn judge_storage(
        &self,
        call: &Call,
        registry: &Registry,
        noted: Option<&ServerRecord>,
        request: &RegisterRequest,
    ) -> Result<Verdict, Refusal> {
        let in_use = registry.present.borrow().get(&request.id).is_some_and(|server| {
            server.is_up() && server.heard.is_some_and(|(session, _)| session != call.session)
        });
        let own = registry.own.get();
        // Nearly always it is this run that it knows.
        let is_of_this_history = request.meta_run == own.run && request.meta_mark <= own.mark
            || self
                .namespace
                .borrow()
                .may_have_had(request.meta_mark, &request.meta_run)
                .map_err(MetaError::from)?;
        // When all that are known have agreed, the past is given up, and only who is new may still know of it.
        let restoring = registry.restore.wanted && (noted.is_none() || !registry.confirmed.is());
        let circumstances = Circumstances { in_use, is_of_this_history, restoring };
        Ok(judge(&own, noted, request, circumstances))
    }

    /// What is to be noted of an I/O server after a verdict. Where this store is not the newest, the metadata server ends.
    async fn record_after(
        &self,
        verdict: Verdict,
        registry: &Registry,
        server: Judged<'_>,
    ) -> Result<ServerRecord, Refusal> {
        let Judged { name, noted, request, is_first } = server;
        let before = noted.cloned().unwrap_or(ServerRecord {
            name: name.clone(),
            seen: seen(request),
            lost_below_ino: 0,
            vouched_below_ino: 0,
            expected: false,
        });
        Ok(match verdict {
            Verdict::Known => before,
            Verdict::Later => ServerRecord { name, seen: seen(request), expected: false, ..before },
            Verdict::Adopted if noted.is_some() => {
                let lost_below_ino = self.namespace.borrow().next_ino();
                log::warning!(
                    &registry.name,
                    "{name} has a new storage ({}): what files made before now had on the old one is lost",
                    short(&request.storage)
                );
                let mark = before.seen.mark.max(request.mark) + FORK;
                let seen = OwnStorage { mark, ..seen(request) };
                // It is expected until it has come with its new mark.
                ServerRecord { name, seen, lost_below_ino, vouched_below_ino: 0, expected: true }
            }
            Verdict::Adopted => before,
            Verdict::InUse => {
                let text = format!("another process serves the storage of {name} at the moment");
                return Err(Refusal::new(Status::Busy, text));
            }
            Verdict::GivenUp => {
                self.go_beyond(registry, request.meta_mark).await?;
                // What this store knows of it may be of before its storage was replaced, too.
                let is_same = before.seen.storage == request.storage;
                if is_same { before } else { ServerRecord { name, seen: seen(request), ..before } }
            }
            Verdict::OwnIsOlder(why) => {
                let text = format!(
                    "{name} {why}: the directory of the metadata server was put back from an older copy, or a second copy of it \
                     ran. What was made since is not in it, so nothing is served. Put the newest directory back. If that is gone \
                     for ever: weft serve --accept-older (weft help recovery)"
                );
                log::warning!(&registry.name, "{text}");
                self.stop_for_storage(&text);
                return Err(Refusal::new(Status::ShuttingDown, text));
            }
            Verdict::Refused(why) => {
                log::warning!(&registry.name, "refused {name}: {why}");
                if is_first {
                    self.stop_for_storage(&format!("{name} was refused: {why}"));
                }
                return Err(Refusal::new(Status::WrongStorage, why));
            }
        })
    }

    /// Notes how a server was seen, durably.
    async fn note_server(&self, id: u16, record: &ServerRecord) -> Result<(), Refusal> {
        let put = |op: &mut Op<'_, E>| {
            op.put_server(id, record);
            Ok::<_, MetaError>(())
        };
        let ((), seq) = self.namespace.borrow_mut().change(put)?;
        self.durable(seq).await
    }

    /// Brings this store's mark beyond one that an I/O server knows of a newer copy.
    async fn go_beyond(&self, registry: &Registry, known_mark: u64) -> Result<(), Refusal> {
        let (own, run) = (registry.own.get(), registry.run);
        if own.run == run && known_mark < own.mark {
            return Ok(());
        }
        let raised = {
            let mut namespace = self.namespace.borrow_mut();
            // With the greater mark the I/O servers would agree with a later run as well, which must do what is left to do.
            namespace.change(|op| {
                op.loading_begins();
                Ok::<_, MetaError>(())
            })?;
            namespace.raise_mark_beyond(known_mark.max(own.mark) + FORK, &run)
        };
        let (mark, seq) = raised.map_err(MetaError::from)?;
        self.durable(seq).await?;
        registry.is_at(mark);
        Ok(())
    }

    /// The connection of a server is gone.
    pub fn server_disconnected(&self, session: SessionId) {
        let Some(registry) = self.registry.get() else { return };
        for server in registry.present.borrow_mut().values_mut() {
            if server.heard.is_some_and(|(over, _)| over == session) {
                server.heard = None;
            }
        }
    }

    /// The next storage that a server comes with is taken for its own.
    pub async fn replace_server(&self, request: ReplaceServerRequest) -> Result<Answer, Refusal> {
        let registry = self.registry()?.clone();
        let listed = self.io_names().into_iter().find(|(_, name)| *name == request.name);
        let id = listed.map(|(id, _)| id);
        let known = match id {
            Some(id) => self.namespace.borrow().server(id).map_err(MetaError::from)?,
            None => None,
        };
        let Some((id, record)) = id.zip(known) else {
            let text = format!("there is no I/O server {} whose storage is known", request.name);
            return Err(Refusal::new(Status::NotFound, text));
        };
        if registry.is_up(id) {
            let text =
                format!("{} is up with the storage that the cluster knows; stop it first", request.name);
            return Err(Refusal::new(Status::Busy, text));
        }
        self.note_server(id, &ServerRecord { expected: true, ..record }).await?;
        log::warning!(&registry.name, "the storage of {} is to be replaced", request.name);
        Ok(Answer::of(&Empty {}))
    }

    /// Which storage each server has.
    pub fn list_servers(&self) -> Result<Answer, Refusal> {
        let registry = self.registry()?;
        let own = registry.own.get();
        let mut servers = vec![Listed {
            name: registry.name.clone(),
            role: "meta".into(),
            id: 0,
            storage: own.storage,
            mark: own.mark,
            state: if registry.confirmed.is() { "up" } else { "expected" }.into(),
            lost_below_ino: 0,
        }];
        let known = self.namespace.borrow().servers().map_err(MetaError::from)?;
        for (id, name) in self.io_names() {
            let record = known.iter().find(|(known, _)| *known == id).map(|(_, record)| record);
            let state = match record {
                _ if registry.is_up(id) => "up",
                Some(record) if record.expected => "expected",
                Some(_) => "away",
                None => "new",
            };
            let seen = record.map(|record| record.seen).unwrap_or_default();
            servers.push(Listed {
                name,
                role: "io".into(),
                id,
                storage: seen.storage,
                mark: seen.mark,
                state: state.into(),
                lost_below_ino: record.map_or(0, |record| record.lost_below_ino),
            });
        }
        Ok(Answer::of(&ListServersReply { servers }))
    }
}

#[cfg(test)]
mod mistakes;
