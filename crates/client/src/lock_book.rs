//! The locks that this process holds: what it claims again from a metadata server that was away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use weft_transport::Link;
use weft_wire::limits::LOCKS_PER_CLAIM_MAX;
use weft_wire::locks::HeldLocks;
use weft_wire::messages::{ClaimLocksRequest, FileLock};

use crate::error::Error;
use crate::fork;
use crate::greet::ask;
use crate::held::Held;
use crate::session::Session;
use crate::wait::lock;

/// Replies that the metadata server keeps back for this process at the same time.
const KEPT_BACK_MAX: usize = 32;
/// The last byte that a lock can have.
pub(crate) const LAST_BYTE: u64 = i64::MAX as u64;
/// Set in the numbers of owners that are open files.
const OPEN_FILE: u64 = 1 << 63;

/// What one owner has of one file.
struct Owned {
    ranges: HeldLocks,
    whole: Option<bool>,
    pid: u32,
    /// The open files that it was locked through.
    through: Vec<Weak<Held>>,
    lost: bool,
}

/// All locks of this process.
#[derive(Default)]
pub(crate) struct LockBook {
    owners: Mutex<Owners>,
    /// Connections on which claims were made.
    claims: AtomicU64,
    kept_back: AtomicUsize,
    last_owner: AtomicU64,
    /// Other processes lock as the same owners, so there may be more than is known here.
    pub(crate) shared: bool,
}

#[derive(Default)]
struct Owners {
    generation: u64,
    by_file: HashMap<(u64, u64), Owned>,
}

impl LockBook {
    /// Of a session that other processes are in, or not.
    pub(crate) fn new(shared: bool) -> LockBook {
        LockBook { shared, ..LockBook::default() }
    }

    /// A number for an open file as an owner.
    pub(crate) fn new_owner(&self) -> u64 {
        OPEN_FILE | self.last_owner.fetch_add(1, Ordering::Relaxed)
    }

    /// A forked child has none of its parent's locks.
    fn owners(&self) -> MutexGuard<'_, Owners> {
        let mut owners = lock(&self.owners);
        let generation = fork::generation();
        if owners.generation != generation {
            *owners = Owners { generation, by_file: HashMap::new() };
        }
        owners
    }

    pub(crate) fn note(&self, file_lock: &FileLock, held: &Arc<Held>, exclusive: Option<bool>) {
        let mut owners = self.owners();
        let key = (file_lock.ino, file_lock.owner);
        if exclusive.is_none() && !owners.by_file.contains_key(&key) {
            return;
        }
        let owned = owners.by_file.entry(key).or_insert_with(|| Owned {
            ranges: HeldLocks::default(),
            whole: None,
            pid: file_lock.pid,
            through: Vec::new(),
            lost: false,
        });
        match file_lock.whole {
            true => owned.whole = exclusive,
            false => owned.ranges.set(file_lock.first, file_lock.last, exclusive),
        }
        owned.through.retain(|through| through.strong_count() > 0);
        if exclusive.is_some() && !owned.through.iter().any(|through| through.as_ptr() == Arc::as_ptr(held)) {
            owned.through.push(Arc::downgrade(held));
        }
        if owned.ranges.is_empty() && owned.whole.is_none() && !owned.lost {
            owners.by_file.remove(&key);
        }
    }

    pub(crate) fn has(&self, ino: u64, owner: u64) -> bool {
        self.shared || self.owners().by_file.contains_key(&(ino, owner))
    }

    /// Takes all that an owner has of a file out. Says whether there was anything.
    pub(crate) fn remove(&self, ino: u64, owner: u64) -> bool {
        self.owners().by_file.remove(&(ino, owner)).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owners().by_file.is_empty()
    }

    fn all(&self) -> Vec<FileLock> {
        let owners = self.owners();
        let mut all = Vec::new();
        for ((ino, owner), owned) in owners.by_file.iter().filter(|(_, owned)| !owned.lost) {
            let template = FileLock {
                ino: *ino,
                owner: *owner,
                whole: false,
                exclusive: false,
                first: 0,
                last: LAST_BYTE,
                pid: owned.pid,
            };
            all.extend(owned.whole.map(|exclusive| FileLock { whole: true, exclusive, ..template.clone() }));
            all.extend(owned.ranges.iter().map(|lock| FileLock {
                exclusive: lock.exclusive,
                first: lock.first,
                last: lock.last,
                ..template.clone()
            }));
        }
        all
    }

    fn note_lost(&self, file_lock: &FileLock) {
        if let Some(owned) = self.owners().by_file.get_mut(&(file_lock.ino, file_lock.owner)) {
            owned.lost = true;
            owned.through.iter().filter_map(Weak::upgrade).for_each(|held| held.note_locks_lost());
        }
    }

    /// Connections on which claims were made so far.
    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::SeqCst)
    }

    /// On a new connection, after the server was away or had given this client up: tells it all locks, and
    /// notes which are lost.
    pub(crate) fn claim(
        &self,
        session: &Session,
        link: &mut dyn Link,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        for locks in self.all().chunks(LOCKS_PER_CLAIM_MAX) {
            let request = ClaimLocksRequest { locks: locks.to_vec() };
            let reply = ask(link, session.next_request_id(), &request, deadline)?;
            reply.lost.iter().filter_map(|at| locks.get(*at as usize)).for_each(|lost| self.note_lost(lost));
        }
        Ok(())
    }
}

/// A reply that may be kept back.
pub(crate) struct KeptBack<'a>(&'a LockBook);

impl<'a> KeptBack<'a> {
    /// `None` where enough are kept back.
    pub(crate) fn begin(book: &'a LockBook) -> Option<KeptBack<'a>> {
        let taken = KeptBack(book);
        (book.kept_back.fetch_add(1, Ordering::Relaxed) < KEPT_BACK_MAX).then_some(taken)
    }
}

impl Drop for KeptBack<'_> {
    fn drop(&mut self) {
        self.0.kept_back.fetch_sub(1, Ordering::Relaxed);
    }
}
