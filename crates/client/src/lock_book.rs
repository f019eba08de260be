//! The locks that this process holds: what it claims again from a metadata server that was away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use weft_transport::Link;
use weft_wire::limits::LOCKS_PER_CLAIM_MAX;
use weft_wire::locks::HeldLocks;
use weft_wire::messages::{ClaimLocksRequest, Empty, FileLock, UnlockRequest, UnlockWhat};

use crate::error::Error;
use crate::fork;
use crate::greet::ask;
use crate::held::Held;
use crate::host::since_boot;
use crate::session::Session;
use crate::wait::lock;

/// Replies that the metadata server keeps back for this process at the same time.
const KEPT_BACK_MAX: usize = 32;
/// The last byte that a lock can have.
pub(crate) const LAST_BYTE: u64 = i64::MAX as u64;
/// Locks are held for so long after a request whose reply shows that the metadata server has this session. A session
/// without connections ends after 10 seconds, and a server that was started again waits 20 seconds for its clients;
/// the rest of that is for a write to reach its servers.
const CONFIRMED_FOR: Duration = Duration::from_secs(5);
/// Set in the numbers of owners that are open files.
const OPEN_FILE: u64 = 1 << 63;

/// What one owner has of one file.
#[derive(Default)]
struct Owned {
    ranges: HeldLocks,
    whole: Option<bool>,
    pid: u32,
    /// The open files that it was locked through.
    through: Vec<Weak<Held>>,
    lost: Lost,
    /// What was given back, as far as the server has not confirmed that: it may still keep others away.
    owed: HeldLocks,
    whole_owed: bool,
}

/// What an owner has lost of a file.
#[derive(Default)]
struct Lost {
    /// It has lost something, and has not locked again since.
    is_any: bool,
    /// It knows: a call of its has failed for this reason.
    is_told: bool,
    /// Ranges that it has neither locked again nor given up.
    ranges: HeldLocks,
    whole: bool,
}

impl Owned {
    fn is_through(&self, held: &Held) -> bool {
        self.through.iter().any(|through| std::ptr::eq(through.as_ptr(), held))
    }

    fn owes(&self) -> bool {
        !self.owed.is_empty() || self.whole_owed
    }

    fn is_over(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_none() && !self.lost.is_any && !self.owes()
    }

    /// What tells the server again of what is owed of `ino` by `owner`.
    fn requests(&self, ino: u64, owner: u64) -> impl Iterator<Item = UnlockRequest> {
        let pid = self.pid;
        let request = move |whole, first, last| UnlockRequest {
            lock: FileLock { ino, owner, whole, exclusive: false, first, last, pid },
            what: UnlockWhat::Lock,
        };
        let ranges = self.owed.iter().map(move |range| request(false, range.first, range.last));
        ranges.chain(self.whole_owed.then(|| request(true, 0, LAST_BYTE)))
    }

    /// What `request` gives back is owed, or not any longer.
    fn set_owed(&mut self, request: &UnlockRequest, owed: bool) {
        let (range, whole) = given_back(request);
        if let Some((first, last)) = range {
            self.owed.set(first, last, owed.then_some(true));
        }
        if whole {
            self.whole_owed = owed;
        }
    }
}

/// The first and the last byte that a request gives back, and whether it gives back the lock on the whole file.
fn given_back(request: &UnlockRequest) -> (Option<(u64, u64)>, bool) {
    match (&request.what, request.lock.whole) {
        (UnlockWhat::Owner, _) => (Some((0, LAST_BYTE)), true),
        (_, true) => (None, true),
        (_, false) => (Some((request.lock.first, request.lock.last)), false),
    }
}

/// All locks of this process.
#[derive(Default)]
pub(crate) struct LockBook {
    owners: Mutex<Owners>,
    /// Connections on which claims were made.
    claims: AtomicU64,
    kept_back: AtomicUsize,
    /// When the newest request was sent whose reply showed that the metadata server has this session: milliseconds
    /// of [`since_boot`]. 0: never.
    confirmed_ms: AtomicU64,
    last_owner: AtomicU64,
    /// Some locks were lost once.
    any_lost: AtomicBool,
    /// Other processes lock as the same owners, so there may be more than is known here.
    pub(crate) shared: bool,
}

#[derive(Default)]
struct Owners {
    generation: u64,
    by_file: HashMap<(u64, u64), Owned>,
    /// A thread tells the server again what is owed.
    settling: bool,
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
            *owners = Owners { generation, ..Owners::default() };
        }
        owners
    }

    pub(crate) fn note(&self, file_lock: &FileLock, held: &Arc<Held>, exclusive: Option<bool>) {
        let mut owners = self.owners();
        let key = (file_lock.ino, file_lock.owner);
        if exclusive.is_none() && !owners.by_file.contains_key(&key) {
            return;
        }
        let owned =
            owners.by_file.entry(key).or_insert_with(|| Owned { pid: file_lock.pid, ..Owned::default() });
        match file_lock.whole {
            true => (owned.whole, owned.lost.whole) = (exclusive, false),
            false => {
                owned.ranges.set(file_lock.first, file_lock.last, exclusive);
                owned.lost.ranges.set(file_lock.first, file_lock.last, None);
            }
        }
        owned.through.retain(|through| through.strong_count() > 0);
        if exclusive.is_some() && !owned.through.iter().any(|through| through.as_ptr() == Arc::as_ptr(held)) {
            owned.through.push(Arc::downgrade(held));
        }
        if owned.is_over() {
            owners.by_file.remove(&key);
        }
    }

    /// Notes what an owner gives back, before the server is told. Until [`LockBook::note_settled`] it is owed.
    pub(crate) fn note_given_back(&self, request: &UnlockRequest) {
        let mut owners = self.owners();
        let key = (request.lock.ino, request.lock.owner);
        let owned =
            owners.by_file.entry(key).or_insert_with(|| Owned { pid: request.lock.pid, ..Owned::default() });
        match given_back(request) {
            (Some(_), true) => *owned = Owned { pid: owned.pid, ..Owned::default() },
            (Some((first, last)), false) => {
                owned.ranges.set(first, last, None);
                owned.lost.ranges.set(first, last, None);
            }
            (None, _) => (owned.whole, owned.lost.whole) = (None, false),
        }
        owned.set_owed(request, true);
    }

    /// As [`LockBook::note_given_back`]; what is returned notes the reply.
    pub(crate) fn begin_giving_back(
        self: &Arc<LockBook>,
        request: &UnlockRequest,
    ) -> impl FnOnce(Empty) -> Result<(), Error> + Send + 'static {
        self.note_given_back(request);
        let (book, request) = (self.clone(), request.clone());
        move |_| {
            book.note_settled(&request);
            Ok(())
        }
    }

    /// The server has confirmed what was given back.
    pub(crate) fn note_settled(&self, request: &UnlockRequest) {
        let mut owners = self.owners();
        let key = (request.lock.ino, request.lock.owner);
        let Some(owned) = owners.by_file.get_mut(&key) else { return };
        owned.set_owed(request, false);
        if owned.is_over() {
            owners.by_file.remove(&key);
        }
    }

    /// What tells the server again of something that this owner gave back of a file, where it may still have that.
    pub(crate) fn owed_by(&self, ino: u64, owner: u64) -> Option<UnlockRequest> {
        self.owners().by_file.get(&(ino, owner))?.requests(ino, owner).next()
    }

    /// What is to be told again, by the caller alone until [`LockBook::end_settling`]. `None`: another thread is at it.
    pub(crate) fn begin_settling(&self) -> Option<Vec<UnlockRequest>> {
        let mut owners = self.owners();
        if std::mem::replace(&mut owners.settling, true) {
            return None;
        }
        Some(owners.by_file.iter().flat_map(|((ino, owner), owned)| owned.requests(*ino, *owner)).collect())
    }

    pub(crate) fn end_settling(&self) {
        self.owners().settling = false;
    }

    /// Whether an owner has, or owes, anything of a file.
    pub(crate) fn has(&self, ino: u64, owner: u64) -> bool {
        self.shared || self.owners().by_file.contains_key(&(ino, owner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owners().by_file.is_empty()
    }

    fn all(&self) -> Vec<FileLock> {
        let owners = self.owners();
        let mut all = Vec::new();
        for ((ino, owner), owned) in &owners.by_file {
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
        let (first, last) = (file_lock.first, file_lock.last);
        let mut owners = self.owners();
        let Some(owned) = owners.by_file.get_mut(&(file_lock.ino, file_lock.owner)) else { return };
        match file_lock.whole {
            true => owned.lost.whole |= owned.whole.take().is_some(),
            false => {
                let held: Vec<_> = owned.ranges.overlapping(first, last).copied().collect();
                for lock in held {
                    let (first, last) = (lock.first.max(first), lock.last.min(last));
                    owned.ranges.set(first, last, None);
                    owned.lost.ranges.set(first, last, Some(true));
                }
            }
        }
        if owned.lost.whole || !owned.lost.ranges.is_empty() {
            (owned.lost.is_any, owned.lost.is_told) = (true, false);
            self.any_lost.store(true, Ordering::SeqCst);
            owned.through.iter().filter_map(Weak::upgrade).for_each(|held| held.note_locks_lost(true));
        }
    }

    /// Whether an owner has lost locks of a file without knowing it. From now on it knows.
    pub(crate) fn tell_loss(&self, ino: u64, owner: u64) -> bool {
        let mut owners = self.owners();
        let owned = owners.by_file.get_mut(&(ino, owner)).filter(|owned| owned.lost.is_any);
        owned.is_some_and(|owned| !std::mem::replace(&mut owned.lost.is_told, true))
    }

    /// A call through this open file has failed for the loss of its locks.
    pub(crate) fn note_told(&self, held: &Held) {
        let mut owners = self.owners();
        let through =
            owners.by_file.iter_mut().filter(|((ino, _), owned)| *ino == held.ino && owned.is_through(held));
        through.for_each(|(_, owned)| owned.lost.is_told = true);
    }

    /// An owner has got a lock through an open file, and will know of it now. If it has locked again, or given up, all that it had
    /// lost, the open file can be used again, unless another has lost locks that it took through it.
    pub(crate) fn end_loss(&self, file_lock: &FileLock, held: &Held) {
        let mut owners = self.owners();
        if let Some(owned) = owners.by_file.get_mut(&(file_lock.ino, file_lock.owner))
            && owned.lost.ranges.is_empty()
            && !owned.lost.whole
        {
            owned.lost = Lost::default();
        }
        let is_lost = |((ino, _), owned): (&(u64, u64), &Owned)| {
            *ino == held.ino && owned.lost.is_any && owned.is_through(held)
        };
        held.note_locks_lost(owners.by_file.iter().any(is_lost));
    }

    /// The metadata server has answered a request that was sent at `asked`, by [`since_boot`].
    pub(crate) fn note_confirmed(&self, asked: Duration) {
        self.confirmed_ms.fetch_max(asked.as_millis() as u64, Ordering::SeqCst);
    }

    /// Whether the locks are held at `now`, for all that the metadata server can have done since its last word.
    pub(crate) fn is_confirmed(&self, now: Duration) -> bool {
        let confirmed = Duration::from_millis(self.confirmed_ms.load(Ordering::SeqCst));
        now.saturating_sub(confirmed) < CONFIRMED_FOR
    }

    /// Whether any locks of this process were ever lost.
    pub(crate) fn has_lost_any(&self) -> bool {
        self.any_lost.load(Ordering::SeqCst)
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
        server: usize,
        link: &mut dyn Link,
        deadline: Instant,
    ) -> Result<(), Error> {
        let asked = since_boot();
        self.claims.fetch_add(1, Ordering::SeqCst);
        let mut owned = self.all();
        owned.retain(|lock| session.owner_of(lock.ino) == server);
        for locks in owned.chunks(LOCKS_PER_CLAIM_MAX) {
            let request = ClaimLocksRequest { locks: locks.to_vec() };
            let reply = ask(link, session.next_request_id(), &request, deadline)?;
            reply.lost.iter().filter_map(|at| locks.get(*at as usize)).for_each(|lost| self.note_lost(lost));
        }
        self.note_confirmed(asked);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(what: UnlockWhat, whole: bool, first: u64, last: u64) -> UnlockRequest {
        let lock = FileLock { ino: 5, owner: 7, whole, exclusive: false, first, last, pid: 1 };
        UnlockRequest { lock, what }
    }

    fn held() -> Arc<Held> {
        Arc::new(crate::held::tests::held())
    }

    fn range(owner: u64, first: u64, last: u64) -> FileLock {
        FileLock { ino: 5, owner, whole: false, exclusive: true, first, last, pid: 1 }
    }

    fn take(book: &LockBook, lock: &FileLock, through: &Arc<Held>) {
        book.note(lock, through, Some(lock.exclusive));
        book.end_loss(lock, through);
    }

    #[test]
    fn a_loss_ends_with_a_lock_once_all_that_was_lost_is_locked_again_or_given_up() {
        let (book, open) = (LockBook::default(), held());
        take(&book, &range(7, 0, 9), &open);
        take(&book, &range(7, 20, 29), &open);
        take(&book, &range(7, 40, 49), &open);
        book.note_lost(&range(7, 0, 9));
        book.note_lost(&range(7, 20, 29));
        assert!(open.has_lost_locks());
        assert_eq!(book.all(), [range(7, 40, 49)], "what is left is claimed on");
        assert!(book.tell_loss(5, 7) && !book.tell_loss(5, 7) && !book.tell_loss(5, 8));
        take(&book, &range(7, 0, 9), &open);
        assert!(open.has_lost_locks(), "the other range is lost still");
        book.note_given_back(&request(UnlockWhat::Lock, false, 20, 29));
        book.note_settled(&request(UnlockWhat::Lock, false, 20, 29));
        assert!(open.has_lost_locks(), "to give up a lock is not to take one");
        take(&book, &range(7, 60, 60), &open);
        assert!(!open.has_lost_locks());
        book.note_lost(&range(7, 60, 60));
        assert!(open.has_lost_locks() && book.tell_loss(5, 7), "each loss is told");
    }

    #[test]
    fn a_loss_is_of_every_open_file_and_owner_that_locked() {
        let (book, one, other) = (LockBook::default(), held(), held());
        let whole = |owner| FileLock { whole: true, last: LAST_BYTE, ..range(owner, 0, 0) };
        take(&book, &range(7, 0, 9), &one);
        take(&book, &range(7, 0, 9), &other);
        take(&book, &whole(8), &one);
        book.note_lost(&range(7, 0, 9));
        book.note_lost(&whole(8));
        assert!(one.has_lost_locks() && other.has_lost_locks());
        book.note_told(&one);
        assert!(!book.tell_loss(5, 7) && !book.tell_loss(5, 8));
        take(&book, &range(7, 0, 9), &one);
        assert!(one.has_lost_locks(), "another owner's lock through it is lost");
        take(&book, &range(7, 0, 9), &other);
        assert!(!other.has_lost_locks());
        // The other owner is gone.
        book.note_given_back(&UnlockRequest { lock: whole(8), what: UnlockWhat::Owner });
        take(&book, &range(7, 0, 9), &one);
        assert!(!one.has_lost_locks());
    }

    #[test]
    fn what_was_given_back_cannot_be_lost() {
        let (book, open) = (LockBook::default(), held());
        take(&book, &range(7, 0, 9), &open);
        book.note_given_back(&request(UnlockWhat::Lock, false, 0, 4));
        book.note_lost(&range(7, 0, 4));
        assert!(!open.has_lost_locks());
        book.note_lost(&range(7, 0, 9));
        assert!(open.has_lost_locks());
    }

    fn owed(book: &LockBook) -> Vec<(bool, u64, u64)> {
        let owed = book.begin_settling().expect("nobody settles");
        book.end_settling();
        owed.iter().map(|request| (request.lock.whole, request.lock.first, request.lock.last)).collect()
    }

    #[test]
    fn what_is_given_back_is_owed_until_the_server_confirms_it() {
        let book = LockBook::default();
        let range = request(UnlockWhat::Lock, false, 10, 19);
        book.note_given_back(&range);
        book.note_given_back(&request(UnlockWhat::Lock, true, 0, LAST_BYTE));
        assert_eq!(owed(&book), [(false, 10, 19), (true, 0, LAST_BYTE)]);
        assert!(book.has(5, 7) && book.owed_by(5, 7).is_some() && book.owed_by(5, 8).is_none());
        assert!(book.all().is_empty(), "it is not claimed");
        book.note_settled(&request(UnlockWhat::Lock, false, 0, 14));
        book.note_settled(&request(UnlockWhat::Lock, true, 0, LAST_BYTE));
        assert_eq!(owed(&book), [(false, 15, 19)]);
        book.note_settled(&range);
        assert!(book.is_empty());
        book.note_given_back(&request(UnlockWhat::Owner, true, 0, LAST_BYTE));
        assert_eq!(owed(&book), [(false, 0, LAST_BYTE), (true, 0, LAST_BYTE)]);
        book.note_settled(&request(UnlockWhat::Owner, true, 0, LAST_BYTE));
        assert!(book.is_empty());
    }

    #[test]
    fn one_thread_at_a_time_settles() {
        let book = LockBook::default();
        assert_eq!(book.begin_settling().map(|owed| owed.len()), Some(0));
        assert!(book.begin_settling().is_none());
        book.end_settling();
        assert!(book.begin_settling().is_some());
    }
}
