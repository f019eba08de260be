//! The metadata server's part: one namespace on one thread, one function per operation.
//!
//! ```text
//!   request ─► names.rs, attributes.rs, files.rs     translate, run one transaction of weft-meta, translate back
//!                  │
//!                  ▼
//!              run.rs          the transaction, again after a conflict; then its effects (effects.rs)
//!              durable.rs      sync mode: the reply waits for the group commit that covers it
//!              locks.rs        who has locked what (lock_table.rs), and who waits for it (lock_waits.rs)
//!              watchers.rs     the reply of a change waits until lease holders (leases.rs) have acknowledged it
//!              watch.rs        the requests of clients that watch
//!              removed.rs      what was replaced under somebody's eyes can be opened for a moment
//!              sessions.rs     who is connected (session_table.rs); what a client held that stays away
//!              map.rs          the cluster's map (map_record.rs): where servers are
//!              keys.rs         which keys are issued and revoked (issued.rs)
//!              registry.rs     which storage each I/O server has, and whether this store is the newest
//! ```
//!
//! A change that may not happen twice runs under the client's exactly-once slot: its reply is stored in the same
//! transaction, and a repetition is answered with it.

mod attributes;
mod backup;
mod check;
pub(crate) mod durable;
mod effects;
mod files;
mod issued;
mod keys;
mod leases;
mod lock_table;
mod lock_waits;
mod locks;
mod map;
pub(crate) mod map_record;
mod names;
mod penalties;
mod quota;
pub(crate) mod registry;
mod removed;
mod run;
mod session_table;
mod sessions;
mod small;
mod spreading;
mod translate;
mod watch;
mod watcher;
mod watchers;

#[cfg(test)]
pub(crate) use sessions::SESSION_GRACE;

use crate::answer::Refusal;
use crate::clock::{SteadyClock, unix_s};
use crate::config::SyncMode;
use crate::key_ring::KeyRing;
use crate::poke::Poke;
use crate::spent::{Part, during};
use crate::stop::StopFlag;
use durable::Durability;
use effects::Effects;
use issued::IssuedKeys;
use lock_waits::Locks;
use registry::Registry;
use session_table::Sessions;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use watchers::Watchers;
use weft_layout::Layout;
use weft_meta::{CommitSeq, Engine, Locker, Namespace, SessionId, Timestamp};
use weft_reactor::Notify;
use weft_wire::limits::{CAPABILITY_LIFE_S, CLOCK_SKEW_S_MAX};
use weft_wire::security::{Capability, Holder};
use weft_wire::{Header, Status};

/// How often a nosync server makes durable what was acknowledged.
const BACKGROUND_SYNC: Duration = Duration::from_secs(1);
/// How long after a restart clients may come back for their open files.
const GRACE: Duration = Duration::from_secs(20);
/// How often replies kept for clients that never came back are dropped, and how old they are then.
const OLD_REPLIES_EVERY: Duration = Duration::from_secs(3600);
/// Replies are kept for a day, and as much longer as the clock may have jumped since: a request that is repeated must find its own.
const OLD_REPLIES_AGE_S: u64 = 24 * 3600 + CLOCK_SKEW_S_MAX;

/// Replies that are older than this time are dropped.
fn old_replies_before(now_s: u64) -> Timestamp {
    Timestamp { seconds: now_s.saturating_sub(OLD_REPLIES_AGE_S) as i64, nanos: 0 }
}

/// Who calls: a request's header and its connection's session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub header: Header,
    pub session: SessionId,
    /// Which of the processes that share the session asks.
    pub member: u16,
    /// Whom capabilities are for.
    pub holder: Holder,
    /// Whether it is more than one user's, see [`crate::identity::Identity::is_trusted_with_sizes`].
    pub trusted_with_sizes: bool,
}

impl Call {
    /// Who locks by it.
    pub fn locker(&self) -> Locker {
        Locker { session: self.session, member: self.member }
    }
}

/// Everything a metadata server serves from.
pub(crate) struct MetaPart<E: Engine> {
    pub(crate) namespace: Rc<RefCell<Namespace<E>>>,
    pub(crate) durability: Rc<Durability>,
    sync: SyncMode,
    keys: KeyRing,
    ring_servers: Cell<u16>,
    sessions: Sessions,
    locks: Rc<Locks>,
    watchers: Watchers,
    /// Of the operation that runs; its memory serves one after the other.
    effects: RefCell<Effects>,
    spreading: spreading::Spreading,
    /// Many removed inodes are kept for a moment, which is to end.
    many_removed: Rc<Notify>,
    /// Usage is to be counted, or limits are others.
    usage_changed: Rc<Notify>,
    garbage: Poke,
    failure: RefCell<Option<String>>,
    checks: check::Checks<E>,
    backups: backup::Backups,
    registry: OnceCell<Rc<Registry>>,
    map: OnceCell<map_record::MapKeeper>,
    storage_failure: RefCell<Option<String>>,
    issued: IssuedKeys,
    /// For times of grace of quotas.
    steady: SteadyClock,
    stop: StopFlag,
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Serves from `namespace`, on the current reactor. `garbage` is told when something is to be removed; `stop` is set when
    /// the store has failed, see [`MetaPart::failure`].
    pub fn start(
        namespace: Namespace<E>,
        sync: SyncMode,
        keys: KeyRing,
        ring_servers: u16,
        garbage: Poke,
        stop: StopFlag,
    ) -> std::io::Result<Rc<MetaPart<E>>> {
        let watched = namespace.watchers(namespace.shard()).map_err(std::io::Error::other)?;
        let issued = IssuedKeys::load(&namespace).map_err(std::io::Error::other)?;
        let part = Rc::new(MetaPart {
            durability: Durability::start(namespace.syncer())?,
            namespace: Rc::new(RefCell::new(namespace)),
            sync,
            keys,
            ring_servers: Cell::new(ring_servers),
            sessions: Sessions::default(),
            locks: Rc::default(),
            watchers: Watchers::new(watched),
            effects: RefCell::default(),
            spreading: spreading::Spreading::default(),
            many_removed: Rc::default(),
            usage_changed: Rc::default(),
            garbage,
            failure: RefCell::default(),
            checks: check::Checks::default(),
            backups: backup::Backups::default(),
            registry: OnceCell::new(),
            map: OnceCell::new(),
            storage_failure: RefCell::default(),
            issued,
            steady: SteadyClock::default(),
            stop,
        });
        let weak = Rc::downgrade(&part);
        let durability = part.durability.clone();
        weft_reactor::spawn(async move {
            let reason = durability.failure().await;
            if let Some(part) = weak.upgrade() {
                part.store_failed(&reason);
            }
        });
        part.begin_lock_grace().map_err(std::io::Error::other)?;
        part.let_go_of_removed_in_turns();
        part.look_after_quotas();
        let weak = Rc::downgrade(&part);
        weft_reactor::spawn(async move {
            loop {
                weft_reactor::sleep(BACKGROUND_SYNC).await;
                let Some(part) = weak.upgrade() else { return };
                let committed = part.namespace.borrow().committed();
                part.durability.want(committed);
                part.look_for_failure();
                part.end_idle_backup();
            }
        });
        let weak = Rc::downgrade(&part);
        weft_reactor::spawn(async move {
            weft_reactor::sleep(GRACE).await;
            while let Some(part) = weak.upgrade() {
                part.tidy();
                drop(part);
                weft_reactor::sleep(OLD_REPLIES_EVERY).await;
            }
        });
        Ok(part)
    }

    /// Ends the time of grace, and drops what clients that never came back left.
    fn tidy(&self) {
        let before = old_replies_before(unix_s());
        let mut namespace = self.namespace.borrow_mut();
        let shard = namespace.shard();
        let reaped = if namespace.in_grace() { namespace.reap_orphans(shard) } else { Ok(0) };
        let tidied = reaped.and_then(|_| namespace.drop_old_replies(shard, before));
        if let Err(error) = tidied {
            crate::log::warning!("meta", "cannot tidy up after clients that are gone: {error}");
        }
        drop(namespace);
        self.forget_old_watchers(shard);
        self.end_lock_grace();
        self.poke_garbage();
    }

    /// Why the store failed, if it did. From then on nothing is acknowledged, and the server ends: what is on the disk is only
    /// known after the journal was read anew.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    fn store_failed(&self, reason: &str) {
        self.failure.borrow_mut().get_or_insert_with(|| reason.to_owned());
        self.stop.stop();
    }

    /// Why this store must not be served from, if that was found out.
    pub fn storage_failure(&self) -> Option<String> {
        self.storage_failure.borrow().clone()
    }

    fn stop_for_storage(&self, reason: &str) {
        self.storage_failure.borrow_mut().get_or_insert_with(|| reason.to_owned());
        self.stop.stop();
    }

    fn look_for_failure(&self) {
        let reason = self.namespace.borrow().failure().map(str::to_owned);
        if let Some(reason) = reason {
            self.store_failed(&reason);
        }
    }

    /// What clients are told after a failure of the store: to ask again, when the server has started anew.
    fn ask_again(&self, otherwise: Refusal) -> Refusal {
        match self.failure.borrow().as_ref() {
            Some(reason) => Refusal::new(Status::ShuttingDown, reason.clone()),
            None => otherwise,
        }
    }

    /// Tells the remover of data files that there may be work.
    pub fn poke_garbage(&self) {
        self.namespace.borrow_mut().take_to_remove();
        self.garbage.poke();
    }

    /// Whether a reply may have to wait for the disk, so that the connection's other requests should go on meanwhile.
    pub fn replies_wait(&self) -> bool {
        self.sync == SyncMode::Sync || self.watchers.any()
    }

    /// Clients that watch, and inodes with leases.
    pub fn watch_counts(&self) -> (usize, usize) {
        self.watchers.counts()
    }

    async fn durable(&self, seq: CommitSeq) -> Result<(), Refusal> {
        during(Part::Sync, self.durability.wait(seq)).await.map_err(|reason| {
            self.store_failed(&reason);
            self.ask_again(Refusal::new(Status::Io, reason))
        })
    }

    /// Makes everything durable that was acknowledged so far.
    pub async fn sync_all(&self) -> Result<(), Refusal> {
        self.namespace.borrow_mut().note_sync();
        let committed = self.namespace.borrow().committed();
        self.durable(committed).await
    }

    fn sign(&self, call: &Call, ino: u64, rights: u32, layout: Layout) -> Capability {
        let expires_s = unix_s() + CAPABILITY_LIFE_S;
        self.keys.sign(call.holder, ino, rights, expires_s, layout)
    }

    fn check(&self, capability: &Capability, rights: u32) -> Result<(), Refusal> {
        let now_s = unix_s();
        let checked = self.keys.check(capability, now_s, rights);
        checked.map_err(|error| Refusal::of_capability("the metadata server", capability, now_s, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_may_be_asked_for_again_is_kept_when_the_clock_jumps_by_a_day() {
        const DAY_S: u64 = 86_400;
        let (now_s, reply) = (1_800_000_000, |at_s: u64| Timestamp { seconds: at_s as i64, nanos: 0 });
        for (stored_s, tidied_s) in
            [(now_s, now_s + DAY_S), (now_s - DAY_S, now_s + 60), (now_s, now_s - DAY_S)]
        {
            assert!(reply(stored_s) >= old_replies_before(tidied_s), "{stored_s} at {tidied_s}");
        }
        assert!(reply(now_s) < old_replies_before(now_s + 3 * DAY_S));
    }
}
