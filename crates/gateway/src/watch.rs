//! How long what the metadata server said still holds, for a gateway that caches it.
//!
//! ```text
//!   ask() ──► request ──► metadata server ──► reply: holds for valid(asked)     no longer than the lease from before it was asked,
//!                              │                                                0 where anything was forgotten meanwhile
//!                              ▼
//!   forget ◄── changes ◄── watch, a thread         then the server acknowledges the change to its author
//! ```
//!
//! **Who is told.** The metadata server notes what it tells a client that watches, and the note lasts longer than the
//! cache here. Where no watch stands (none yet, or the server was reached anew since), nothing holds. The server
//! also takes a client that acknowledges nothing for one that caches nothing: so nothing holds for longer than the
//! lease from when the last watch was asked that has been answered.
//!
//! **Races.** A reply may come after the change that makes it wrong was forgotten. Every forgetting is counted before
//! it begins. A reply that was asked for under another count holds for no time. Who caches one does so under the
//! lock that forgetting takes as well, and asks [`Watch::valid`] under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_client::Client;
use weft_wire::Status;
use weft_wire::limits::LEASE_MS;
use weft_wire::messages::Change;

/// How long anything may be cached at most.
pub const LEASE: Duration = Duration::from_millis(LEASE_MS);
/// Pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// The same where the server grants this client no leases for now.
const PAUSE_WITHOUT_LEASES: Duration = Duration::from_secs(1);

/// When something was asked for, and under which circumstances.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    at: Instant,
    forgotten: u64,
    standing: u64,
}

impl Asked {
    /// When it was asked for.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Whether the metadata server told this client of changes at that time.
    pub fn is_watched(&self) -> bool {
        self.standing != 0
    }
}

/// The watch of one shard.
struct Standing {
    shard: u16,
    /// The arrival at the shard's metadata server under which the watch stands, plus 1; 0: it does not stand.
    under: AtomicU64,
    /// When the last watch was asked that was answered, in nanoseconds from the beginning.
    watched_at: AtomicU64,
}

/// See the module.
pub struct Watch {
    client: Client,
    /// One for each shard. A cache holds inodes of any shard, so its contents are valid while all of these stand.
    standings: Vec<Standing>,
    forgotten: AtomicU64,
    ending: AtomicBool,
    begin: Instant,
}

impl Watch {
    /// Of all that this client and those that share its session are told. It does not stand yet.
    pub fn new(client: &Client) -> Watch {
        let standing = |shard| Standing { shard, under: AtomicU64::new(0), watched_at: AtomicU64::new(0) };
        Watch {
            client: client.clone(),
            standings: client.shards().into_iter().map(standing).collect(),
            forgotten: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            begin: Instant::now(),
        }
    }

    /// To be called before something is asked of the servers.
    pub fn ask(&self) -> Asked {
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        Asked { at: Instant::now(), forgotten, standing: self.stands() }
    }

    /// The sum of the arrivals under which all watches stand, which only rise; 0: one does not stand.
    fn stands(&self) -> u64 {
        let mut all = 0;
        for standing in &self.standings {
            let under = standing.under.load(Ordering::SeqCst);
            if under != self.client.arrivals(standing.shard) + 1 {
                return 0;
            }
            all += under;
        }
        all
    }

    /// Whether nothing was forgotten since.
    pub fn is_undisturbed(&self, asked: &Asked) -> bool {
        asked.forgotten == self.forgotten.load(Ordering::SeqCst)
    }

    /// How much longer the reply holds.
    pub fn valid(&self, asked: &Asked) -> Duration {
        let stands = asked.standing != 0 && asked.standing == self.stands();
        if stands && self.is_undisturbed(asked) {
            let watched =
                self.standings.iter().map(|standing| standing.watched_at.load(Ordering::SeqCst)).min();
            let watched_at = self.begin + Duration::from_nanos(watched.unwrap_or(0));
            LEASE.saturating_sub(asked.at.min(watched_at).elapsed())
        } else {
            Duration::ZERO
        }
    }

    /// Something is about to be forgotten: replies that are under way do not hold.
    pub fn count_forgetting(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    /// Starts to watch, in a thread for each shard. `forget` forgets what others have changed (`None`: everything) before
    /// that is acknowledged.
    ///
    /// # Errors
    /// Those of a thread's start.
    pub fn start(
        self: &Arc<Self>,
        forget: impl Fn(Option<&[Change]>) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let forget = Arc::new(forget);
        for number in 0..self.standings.len() {
            let (this, forget) = (self.clone(), forget.clone());
            let watch = move || this.watch(&this.standings[number], &*forget);
            std::thread::Builder::new().name("weft-watch".into()).spawn(watch)?;
        }
        Ok(())
    }

    /// Nothing holds any more; the thread ends when its request is answered.
    pub fn leave(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.standings.iter().for_each(|standing| standing.under.store(0, Ordering::SeqCst));
    }

    /// As [`Watch::leave`], and tells the server so. Waits for its reply.
    pub fn end(&self) {
        self.leave();
        // If the server does not hear of it, the lease ends by itself.
        let _ = self.client.end_watch();
    }

    fn watch(&self, standing: &Standing, forget: &dyn Fn(Option<&[Change]>)) {
        let (mut epoch, mut acknowledged, mut at_once) = (0, 0, true);
        // Whether all that was told until now has been heard: what the server has answered may be lost with
        // an error.
        let mut heard_all = true;
        while !self.ending.load(Ordering::SeqCst) {
            let arrivals = self.client.arrivals(standing.shard);
            let asked_at = self.begin.elapsed().as_nanos() as u64;
            let reply = match self.client.watch(standing.shard, epoch, acknowledged, at_once) {
                Ok(reply) => reply,
                Err(error) => {
                    heard_all = false;
                    standing.under.store(0, Ordering::SeqCst);
                    at_once = true;
                    let is_refused = error.status() == Some(Status::Busy);
                    std::thread::sleep(if is_refused { PAUSE_WITHOUT_LEASES } else { PAUSE });
                    continue;
                }
            };
            if reply.reset || !reply.changes.is_empty() {
                self.count_forgetting();
                forget((!reply.reset).then_some(&reply.changes));
            }
            (epoch, acknowledged) = (reply.epoch, reply.last);
            if !std::mem::replace(&mut heard_all, true) {
                // The next one is asked at once, and counts.
                continue;
            }
            standing.watched_at.store(asked_at, Ordering::SeqCst);
            // The server knows this client as one that watches; but is it the one that others of its requests
            // went to?
            let stands =
                arrivals == self.client.arrivals(standing.shard) && !self.ending.load(Ordering::SeqCst);
            standing.under.store(if stands { arrivals + 1 } else { 0 }, Ordering::SeqCst);
            at_once = !stands;
        }
    }
}
