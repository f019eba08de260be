//! What this mount was told, what the kernel may cache of it, and how both forget.
//!
//! ```text
//!   request ─► ask() ─► servers ─► reply: valid(asked)           no longer than the lease from before it was asked,
//!                                     │                          0 where anything was forgotten meanwhile
//!                                     ▼
//!   the kernel: names, attributes, pages       here: attributes of directories, names of those made here
//!                     ▲                                  ▲
//!                     └── forget ◄── changes ◄── watch ──┘       then the server acknowledges the change to its author
//! ```
//!
//! **Who is told, and races** between replies and changes: `weft_gateway::Watch`. What the kernel does with a reply just
//! before or after a note is its business: attributes have versions, and so have names where all of them are
//! forgotten at once. A single name has none, so that it is not forgotten alone where the kernel was told of
//! one in its directory a moment ago. And an inode of which the kernel was told may not be known to it yet:
//! then the note is repeated. Which inodes need a note is decided in `kernel_cache.rs`; what follows from a change of
//! others is in `changes.rs`.
//!
//! **Locks.** A note about a name waits for the directory's lock in the kernel, which an operation of this
//! mount holds while it waits for its reply; that reply may wait for another mount, which waits for this one.
//! So names are forgotten by a thread of its own, and where it does not come through at once, the kernel
//! forgets all names instead, which takes no lock. A kernel that cannot do that (before Linux 6.16) is never
//! allowed to cache a name, and there is nothing to be forgotten.

use crate::forgetting::Forgetting;
use crate::kernel_cache::CachedInode;
use crate::notify::{ALL_BYTES, Notes};
use crate::places::{Place, Places};
use crate::refills::pages_of;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weft_client::{Client, SetAttr, SetTime};
use weft_gateway::{Asked, Sharded, Watch};
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::{Attr, Time};

mod changes;

/// How long ago the kernel must have been told of a name for it to have taken it in.
const NAMES_HEARD: Duration = Duration::from_millis(100);
/// How long pages may be waited for. The kernel has them locked while they are being read, and all threads
/// that could answer may be busy with changes that wait for another mount. Whoever reads by `read` is right
/// all the same, for it compares times first.
const PAGES_PATIENCE: Duration = Duration::from_secs(1);
/// The same, before a write of such pages is answered.
const REFILLED_PATIENCE: Duration = Duration::from_millis(50);
/// The same, of pages written in part: the kernel keeps one of those locked until the reply if it does not
/// have the rest of it.
const PART_PATIENCE: Duration = Duration::from_millis(2);
/// How long a lookup waits for a directory to be dropped from where it was. The kernel holds that place's lock all the time where it
/// looks in order to move the directory back there.
const DROP_PATIENCE: Duration = Duration::from_millis(5);
/// The same, where the kernel looks again because it was not dropped in time: it has let go of its locks.
const DROPPED_PATIENCE: Duration = Duration::from_millis(100);
/// Names remembered of one directory that was made here.
const NAMES_MAX: usize = 1 << 16;

/// What is known of a directory.
struct Directory {
    /// How long it holds, if nobody changes anything.
    until: Instant,
    /// Its attributes as last told, and when they were asked for, if they still hold.
    attr: Option<(Attr, Option<Instant>)>,
    /// When this mount last changed it in a way that its attributes do not follow.
    changed_at: Option<Instant>,
    /// All of its names, and perhaps some that are gone, where it was made here and nobody else has changed
    /// it.
    names: Option<HashSet<Box<[u8]>>>,
    /// When the kernel was last allowed to cache a name in it.
    names_told: Option<Instant>,
}

impl Directory {
    fn new(until: Instant) -> Directory {
        Directory { until, attr: None, changed_at: None, names: None, names_told: None }
    }

    fn attributes_are_over(&mut self) {
        if let Some((_, current)) = &mut self.attr {
            *current = None;
        }
    }
}

/// Whether `known` attributes show a change that those of `attr` are from before.
fn is_newer(known: &Attr, attr: &Attr) -> bool {
    let changed_at = |attr: &Attr| (attr.ctime.seconds, attr.ctime.nanoseconds);
    changed_at(known) > changed_at(attr)
}

/// See the module.
pub(crate) struct Coherence {
    watch: Arc<Watch>,
    root_ino: u64,
    root_node: u64,
    /// Whether the kernel is to cache names.
    caches_names: bool,
    notes: OnceLock<Arc<Notes>>,
    forgetting: OnceLock<Forgetting>,
    nodes: Sharded<u64, CachedInode>,
    directories: Sharded<u64, Directory>,
    /// Where the kernel has directories.
    places: Places,
    /// When this mount last removed or moved something that may be a directory, in nanoseconds from `begin`.
    removed_at: AtomicU64,
    begin: Instant,
    /// Operations under way that have the kernel hold a directory.
    changing: Sharded<u64, u32>,
}

impl Coherence {
    /// Of a mount whose root is inode `root_ino`, known to the kernel as `root_node`.
    pub(crate) fn new(client: &Client, root_ino: u64, root_node: u64, caches_names: bool) -> Coherence {
        let nodes: Sharded<u64, CachedInode> = Sharded::default();
        // The kernel never forgets the root.
        nodes.lock(&root_ino).insert(root_ino, CachedInode::new(u64::MAX, Instant::now()));
        Coherence {
            watch: Arc::new(Watch::new(client)),
            root_ino,
            root_node,
            caches_names,
            notes: OnceLock::new(),
            forgetting: OnceLock::new(),
            nodes,
            directories: Sharded::default(),
            places: Places::default(),
            removed_at: AtomicU64::new(0),
            begin: Instant::now(),
            changing: Sharded::default(),
        }
    }

    /// To be called before something is asked of the servers.
    pub(crate) fn ask(&self) -> Asked {
        self.watch.ask()
    }

    /// How much longer the reply is valid.
    pub(crate) fn valid(&self, asked: &Asked) -> Duration {
        self.watch.valid(asked)
    }

    /// Nothing is cached any more, and the server is told so.
    pub(crate) fn end(&self) {
        self.watch.end();
    }

    fn node(&self, ino: u64) -> u64 {
        if ino == self.root_ino { self.root_node } else { ino }
    }
}

/// What the kernel is told.
impl Coherence {
    /// The kernel is about to be told of an inode once more.
    pub(crate) fn looked_up(&self, ino: u64) {
        let now = Instant::now();
        self.nodes.lock(&ino).entry(ino).or_insert_with(|| CachedInode::new(0, now)).looked_up(now);
    }

    /// The kernel has forgotten so many of them. Returns whether it knows the inode no more.
    pub(crate) fn let_go(&self, ino: u64, lookups: u64) -> bool {
        let mut shard = self.nodes.lock(&ino);
        let Some(inode) = shard.get_mut(&ino) else { return true };
        let gone = ino != self.root_ino && inode.let_go(lookups);
        if gone {
            shard.remove(&ino);
            drop(shard);
            self.directories.lock(&ino).remove(&ino);
            self.places.forget(ino);
        }
        gone
    }

    /// The kernel is about to look for something for this thread of a program, perhaps once more.
    pub(crate) fn looking(&self, thread: u32) {
        if let Some(forgetting) = self.forgetting.get() {
            forgetting.finish_directories(thread, DROPPED_PATIENCE);
        }
    }

    /// A lookup of this thread is about to tell the kernel of a directory at this place: it is dropped from where another mount has
    /// moved it away from (`places.rs`). Within one directory the kernel moves it without a lock.
    pub(crate) fn found_directory(&self, ino: u64, place: Place, thread: u32) {
        let elsewhere = self.places.elsewhere(ino, &place).filter(|(dir, _)| *dir != place.0);
        let is_dropped = elsewhere.is_none_or(|(dir, name)| {
            let drop =
                |forgetting: &Forgetting| forgetting.directory(self.node(dir), &name, thread, DROP_PATIENCE);
            self.forgetting.get().is_none_or(drop)
        });
        if is_dropped {
            self.places.put(ino, place);
        }
    }

    /// Whether a page of a listing may tell the kernel of a directory at this place. Where it was at another one, a lookup does.
    pub(crate) fn may_list_directory(&self, ino: u64, place: &Place) -> bool {
        let may = self.places.elsewhere(ino, place).is_none();
        if may {
            self.places.put(ino, place.clone());
        }
        may
    }

    /// This mount has moved what is at a place, or exchanged it with what is at the other one.
    pub(crate) fn moved(&self, from: Place, to: Place, exchanged: bool) {
        match exchanged {
            true => self.places.exchanged(from, to),
            false => self.places.moved(from, to),
        }
    }

    /// The kernel may keep pages of a file from now on.
    pub(crate) fn opened(&self, ino: u64) {
        let now = Instant::now();
        self.nodes.lock(&ino).entry(ino).or_insert_with(|| CachedInode::new(0, now)).opened(now);
    }

    /// The kernel is about to hear that a program has written up to here, which makes the size that it knows larger.
    pub(crate) fn written_to(&self, ino: u64, end: u64) {
        if let Some(inode) = self.nodes.lock(&ino).get_mut(&ino) {
            inode.written_to(end);
        }
    }

    /// The kernel is about to hear that a program has made the file empty.
    pub(crate) fn emptied(&self, ino: u64) {
        if let Some(inode) = self.nodes.lock(&ino).get_mut(&ino) {
            inode.emptied();
        }
    }

    /// The kernel is about to be told these attributes; returns how long it may cache them: no longer than
    /// `most`.
    pub(crate) fn may_cache(&self, asked: &Asked, attr: &Attr, most: Duration) -> Duration {
        let ino = attr.ino;
        let mut shard = self.nodes.lock(&ino);
        let Some(inode) = shard.get_mut(&ino) else { return Duration::ZERO };
        // Under the lock, so that who forgets sees either what is cached, or is seen.
        let (now, valid) = (Instant::now(), self.valid(asked));
        if inode.hides_a_change(attr, now, valid, self.watch.is_undisturbed(asked)) {
            drop(shard);
            self.forget_pages(ino, ALL_BYTES, PAGES_PATIENCE);
            return Duration::ZERO;
        }
        inode.tell(now, if attr.size_live { Duration::ZERO } else { valid.min(most) })
    }

    /// The kernel is about to be told of a name in this directory; returns how long it may cache it: no
    /// longer than `most`.
    pub(crate) fn may_cache_name(&self, asked: &Asked, dir: u64, most: Duration) -> Duration {
        let mut shard = self.directories.lock(&dir);
        let valid = self.valid(asked).min(most);
        if valid.is_zero() || !self.may_cache_names() {
            return Duration::ZERO;
        }
        let directory = shard.entry(dir).or_insert_with(|| Directory::new(asked.at()));
        directory.names_told = Some(Instant::now());
        valid
    }

    /// Whether the kernel is to cache names, and can be told to forget them without waiting for its locks.
    fn may_cache_names(&self) -> bool {
        self.caches_names && self.notes.get().is_some_and(|notes| notes.can_forget_all_names())
    }

    /// This mount has changed attributes of an inode in a way that the kernel does not know of.
    pub(crate) fn attributes_changed(&self, ino: u64) {
        self.watch.count_forgetting();
        self.directory_changed(ino);
        if let Some(notes) = self.notes.get() {
            notes.inode(self.node(ino), None);
        }
    }

    /// Others may have changed a file without a word: has the kernel forget its attributes and pages. Waits
    /// for reads of it that are under way.
    pub(crate) fn contents_changed(&self, ino: u64) {
        self.watch.count_forgetting();
        if let Some(inode) = self.nodes.lock(&ino).get_mut(&ino) {
            inode.changed(true, Instant::now());
        }
        if let Some(notes) = self.notes.get() {
            notes.inode(self.node(ino), Some(ALL_BYTES));
        }
    }

    /// The kernel is about to be told attributes of a file as the reply to a change of them.
    pub(crate) fn attributes_set(&self, ino: u64) {
        let now = Instant::now();
        if self.nodes.lock(&ino).get(&ino).is_some_and(|inode| inode.has_suspect_pages(now)) {
            self.forget_pages(ino, ALL_BYTES, PAGES_PATIENCE);
        }
    }

    /// Pages with these bytes of a file may be older than a write that is being answered (`refills.rs`).
    pub(crate) fn refilled(&self, ino: u64, bytes: Range<u64>) {
        let whole_pages = bytes == pages_of(&bytes);
        let patience = if whole_pages { REFILLED_PATIENCE } else { PART_PATIENCE };
        self.forget_pages(ino, bytes, patience);
    }

    /// Has the kernel forget pages and attributes; returns whether it knows the inode, as far as it has
    /// answered.
    fn forget_pages(&self, ino: u64, bytes: Range<u64>, patience: Duration) -> bool {
        self.forgetting.get().is_none_or(|forgetting| forgetting.pages(self.node(ino), bytes, patience))
    }
}

/// Directories.
impl Coherence {
    /// Attributes of a directory, and how much longer they hold.
    pub(crate) fn directory(&self, asked: &Asked, ino: u64) -> Option<(Attr, Duration)> {
        let shard = self.directories.lock(&ino);
        let directory = shard.get(&ino)?;
        let left = directory.until.saturating_duration_since(asked.at());
        let (attr, current) = directory.attr.as_ref()?;
        let current = current.is_some_and(|asked_at| self.none_removed_since(asked_at));
        (current && asked.is_watched() && !left.is_zero()).then(|| (attr.clone(), left))
    }

    /// Attributes of a directory as they were last told, whether they still hold or not.
    pub(crate) fn last_of_directory(&self, ino: u64) -> Option<Attr> {
        self.directories.lock(&ino).get(&ino)?.attr.as_ref().map(|(attr, _)| attr.clone())
    }

    /// Attributes of a directory that the servers have no more: as it was last, with no links.
    pub(crate) fn removed_directory(&self, ino: u64) -> Option<Attr> {
        self.change_removed(ino, |_, _| {})
    }

    /// Changes attributes of a directory that the servers have no more.
    pub(crate) fn set_removed_directory(&self, ino: u64, changes: &SetAttr) {
        let set = |place: &mut Time, change: &Option<SetTime>, now: &Time| match change {
            Some(SetTime::Now) => *place = now.clone(),
            Some(SetTime::To(time)) => *place = time.clone(),
            None => {}
        };
        self.change_removed(ino, |attr, now| {
            attr.mode = changes.mode.unwrap_or(attr.mode);
            attr.uid = changes.uid.unwrap_or(attr.uid);
            attr.gid = changes.gid.unwrap_or(attr.gid);
            set(&mut attr.atime, &changes.atime, now);
            set(&mut attr.mtime, &changes.mtime, now);
            attr.ctime = now.clone();
        });
    }

    /// `change` is told the time. The kernel drops the listing that it keeps of the directory: its names went before it did, while
    /// its time is as it was set.
    fn change_removed(&self, ino: u64, change: impl FnOnce(&mut Attr, &Time)) -> Option<Attr> {
        let since_1970 = weft_host::since_1970();
        let now = Time { seconds: since_1970.as_secs() as i64, nanoseconds: since_1970.subsec_nanos() };
        let mut shard = self.directories.lock(&ino);
        let (attr, _) = shard.get_mut(&ino)?.attr.as_mut()?;
        let is_news = attr.nlink > 0;
        if is_news {
            (attr.nlink, attr.size, attr.ctime) = (0, 0, now.clone());
        }
        change(attr, &now);
        let attr = attr.clone();
        drop(shard);
        if let Some(notes) = self.notes.get().filter(|_| is_news) {
            notes.inode(self.node(ino), Some(ALL_BYTES));
        }
        Some(attr)
    }

    /// Notes attributes of a directory, as the reply to `asked` had them; older ones than those known do not
    /// count.
    pub(crate) fn note_directory(&self, asked: &Asked, attr: &Attr) {
        let mut shard = self.directories.lock(&attr.ino);
        let directory = shard.entry(attr.ino).or_insert_with(|| Directory::new(asked.at()));
        if directory.attr.as_ref().is_some_and(|(known, now)| now.is_some() && is_newer(known, attr)) {
            return;
        }
        let valid = self.valid(asked);
        let holds = !valid.is_zero()
            && directory.changed_at.is_none_or(|changed| asked.at() > changed)
            && self.none_removed_since(asked.at());
        directory.attr = Some((attr.clone(), holds.then_some(asked.at())));
        if holds {
            directory.until = directory.until.max(Instant::now() + valid);
        }
    }

    /// A directory was made here: it is empty.
    pub(crate) fn made_directory(&self, asked: &Asked, attr: &Attr) {
        self.note_directory(asked, attr);
        let mut shard = self.directories.lock(&attr.ino);
        if let Some(directory) = shard.get_mut(&attr.ino).filter(|_| !self.valid(asked).is_zero()) {
            directory.names = Some(HashSet::new());
        }
    }

    /// The attributes of a directory hold no longer, for this mount has changed it in a way that is not
    /// followed.
    pub(crate) fn directory_changed(&self, ino: u64) {
        if let Some(directory) = self.directories.lock(&ino).get_mut(&ino) {
            directory.attributes_are_over();
            directory.changed_at = Some(Instant::now());
        }
    }

    /// Whether attributes of a directory, as the reply to `asked` had them, may lack a change of this mount's.
    pub(crate) fn directory_changed_since(&self, asked: &Asked, attr: &Attr) -> bool {
        let shard = self.directories.lock(&attr.ino);
        let Some(directory) = shard.get(&attr.ino) else { return false };
        directory.changed_at.is_some_and(|changed| changed >= asked.at())
            || directory.attr.as_ref().is_some_and(|(known, _)| is_newer(known, attr))
    }

    /// This mount has removed or moved something that may be a directory; which one it was nobody has said.
    pub(crate) fn directory_removed(&self) {
        let now = self.begin.elapsed().as_nanos() as u64;
        self.removed_at.fetch_max(now, Ordering::SeqCst);
    }

    fn none_removed_since(&self, at: Instant) -> bool {
        let removed_at = self.removed_at.load(Ordering::SeqCst);
        removed_at == 0 || at > self.begin + Duration::from_nanos(removed_at)
    }

    /// The server was asked for a name in a directory, and has noted that: what is known of it holds on.
    pub(crate) fn asked_in(&self, asked: &Asked, ino: u64) {
        let mut shard = self.directories.lock(&ino);
        let valid = self.valid(asked);
        if !valid.is_zero()
            && let Some(directory) = shard.get_mut(&ino)
        {
            directory.until = directory.until.max(Instant::now() + valid);
        }
    }

    /// How much longer a name is known to be missing, if it is.
    pub(crate) fn is_missing(&self, asked: &Asked, dir: u64, name: &[u8]) -> Option<Duration> {
        let shard = self.directories.lock(&dir);
        let directory = shard.get(&dir)?;
        let left = directory.until.saturating_duration_since(asked.at());
        // A name that cannot be is for the server to refuse.
        let missing = name.len() <= NAME_BYTES_MAX && directory.names.as_ref()?.get(name).is_none();
        (missing && asked.is_watched() && !left.is_zero()).then_some(left)
    }

    /// A name may be made now.
    pub(crate) fn adding(&self, dir: u64, name: &[u8]) {
        if let Some(directory) = self.directories.lock(&dir).get_mut(&dir)
            && let Some(names) = &mut directory.names
        {
            match names.len() < NAMES_MAX {
                true => drop(names.insert(name.into())),
                false => directory.names = None,
            }
        }
    }

    /// A name was removed.
    pub(crate) fn removed(&self, dir: u64, name: &[u8]) {
        if let Some(directory) = self.directories.lock(&dir).get_mut(&dir)
            && let Some(names) = &mut directory.names
        {
            names.remove(name);
        }
    }

    /// Notes that an operation is under way for which the kernel holds a directory, until the guard is
    /// dropped.
    pub(crate) fn changing(&self, dir: u64) -> Changing<'_> {
        *self.changing.lock(&dir).entry(dir).or_default() += 1;
        Changing { coherence: self, dir }
    }

    /// Whether a note about a single name would wait, or might come before the kernel has taken in what it
    /// was told.
    fn is_busy(&self, dir: u64) -> bool {
        let told = self.directories.lock(&dir).get(&dir).and_then(|directory| directory.names_told);
        told.is_some_and(|told| told.elapsed() < NAMES_HEARD) || self.changing.lock(&dir).contains_key(&dir)
    }
}

/// See [`Coherence::changing`].
pub(crate) struct Changing<'a> {
    coherence: &'a Coherence,
    dir: u64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut shard = self.coherence.changing.lock(&self.dir);
        if let Some(count) = shard.get_mut(&self.dir) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&self.dir);
            }
        }
    }
}
