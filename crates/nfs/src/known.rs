//! What the metadata server has told this gateway, as long as it holds: attributes, names and rights, under leases.
//!
//! ```text
//!   GETATTR, LOOKUP, ACCESS ─► known ──────────────────────────► the reply, without a message
//!                          └─► not: ask() ─► metadata server ─► learn(asked, …)
//!
//!   a change by others        the watch's thread forgets it here, then it is acknowledged to its author
//!   a change by this gateway  Change: forgotten before and after; what its reply says is learnt
//! ```
//!
//! The server tells a session of changes by others only. So each change that this gateway makes goes through
//! [`Known::change`] or [`Known::changed`].
//!
//! A name counts for those who were allowed to search its directory. Whether they are is a right like others: it
//! depends on the directory's attributes, and is forgotten with them.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_client::Client;
use weft_gateway::{Asked, Changes, LEASE, Watch};
use weft_wire::messages::{Attr, Change as Told, changed};

use crate::credential::Credential;

/// To look up names in a directory, as in access(2).
const SEARCH: u32 = 1;
/// Inodes and names that are kept before the older ones of them are dropped early.
const KEPT_MAX: usize = 1 << 15;
/// Users whose rights to one inode are remembered.
const RIGHTS_MAX: usize = 64;

/// Who asks: a user of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) export: u64,
    pub(crate) credential: Credential,
}

/// What a user was found to be allowed, of what was asked.
struct Right {
    who: Who,
    /// As in access(2): bits that were asked for, and those of them that are granted.
    asked: u32,
    granted: u32,
    until: Instant,
}

/// What is known of an inode.
#[derive(Default)]
struct Inode {
    attr: Option<(Attr, Instant)>,
    rights: Vec<Right>,
    /// Of a directory.
    names: HashMap<Box<[u8]>, (u64, Instant)>,
}

/// Everything, in two ages: what was learnt more than two leases ago is in neither.
struct Tables {
    young: HashMap<u64, Inode>,
    old: HashMap<u64, Inode>,
    turned: Instant,
    /// Inodes and names that were put into `young`.
    kept: usize,
}

impl Tables {
    fn new() -> Tables {
        Tables { young: HashMap::new(), old: HashMap::new(), turned: Instant::now(), kept: 0 }
    }

    fn get(&self, ino: u64) -> Option<&Inode> {
        self.young.get(&ino).or_else(|| self.old.get(&ino))
    }

    fn get_mut(&mut self, ino: u64) -> Option<&mut Inode> {
        self.young.get_mut(&ino).or_else(|| self.old.get_mut(&ino))
    }

    /// Drops what was learnt more than two leases ago.
    fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.turned) >= LEASE || self.kept >= KEPT_MAX {
            self.old = std::mem::take(&mut self.young);
            (self.turned, self.kept) = (now, 0);
        }
    }

    /// To put more into.
    fn entry(&mut self, ino: u64, now: Instant) -> &mut Inode {
        self.turn(now);
        self.kept += 1;
        let Tables { young, old, .. } = self;
        young.entry(ino).or_insert_with(|| old.remove(&ino).unwrap_or_default())
    }

    /// All but the names of a directory.
    fn forget_inode(&mut self, ino: u64) {
        if let Some(inode) = self.get_mut(ino) {
            inode.attr = None;
            inode.rights.clear();
        }
    }

    /// Attributes of an inode whose rights stay as they are.
    fn forget_attributes(&mut self, ino: u64) {
        if let Some(inode) = self.get_mut(ino) {
            inode.attr = None;
        }
    }

    fn forget_name(&mut self, dir: u64, name: &[u8]) {
        if let Some(inode) = self.get_mut(dir) {
            inode.names.remove(name);
        }
    }

    fn forget(&mut self, changes: Option<&[Told]>) {
        let Some(changes) = changes else {
            *self = Tables::new();
            return;
        };
        for change in changes {
            if change.what & (changed::ATTRIBUTES | changed::DATA) != 0 {
                self.forget_inode(change.ino);
            }
            if change.what & changed::NAME != 0 {
                self.forget_name(change.ino, &change.name);
            }
            if change.what & changed::ALL_NAMES != 0
                && let Some(inode) = self.get_mut(change.ino)
            {
                inode.names.clear();
            }
        }
    }
}

fn lock(tables: &Mutex<Tables>) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands for a name among changes; an inode stands for itself.
fn key_of(dir: u64, name: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((dir, name))
}

/// See the module.
pub(crate) struct Known {
    watch: Arc<Watch>,
    tables: Arc<Mutex<Tables>>,
    own: Changes,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.watch.leave();
    }
}

impl Known {
    /// Starts to watch.
    ///
    /// # Errors
    /// Those of a thread's start.
    pub(crate) fn start(client: &Client) -> io::Result<Known> {
        let tables = Arc::new(Mutex::new(Tables::new()));
        let watch = Arc::new(Watch::new(client));
        let shared = tables.clone();
        watch.start(move |changes| lock(&shared).forget(changes))?;
        Ok(Known { watch, tables, own: Changes::default() })
    }

    /// What tells the server that nothing is cached any more, and may wait for its reply.
    pub(crate) fn ending(&self) -> impl FnOnce() + Send + 'static {
        let watch = self.watch.clone();
        move || watch.end()
    }

    /// To be called before something is asked of the servers.
    pub(crate) fn ask(&self) -> Asked {
        self.watch.ask()
    }

    /// Attributes of an inode.
    pub(crate) fn attr(&self, ino: u64) -> Option<Attr> {
        let tables = lock(&self.tables);
        let (attr, until) = tables.get(ino)?.attr.as_ref()?;
        (*until > Instant::now()).then(|| attr.clone())
    }

    /// The inode that has a name in a directory, for somebody who may search it.
    pub(crate) fn name(&self, dir: u64, name: &[u8], who: &Who) -> Option<u64> {
        let now = Instant::now();
        let tables = lock(&self.tables);
        let inode = tables.get(dir)?;
        let (ino, _) = inode.names.get(name).filter(|(_, until)| *until > now)?;
        (granted_of(inode, who, SEARCH, now)? & SEARCH != 0).then_some(*ino)
    }

    /// What somebody may do with an inode, of the bits in `asked`.
    pub(crate) fn rights(&self, ino: u64, who: &Who, asked: u32) -> Option<u32> {
        granted_of(lock(&self.tables).get(ino)?, who, asked, Instant::now())
    }

    /// The server has told these attributes, as of some time after `asked`.
    pub(crate) fn learn(&self, asked: &Asked, attr: &Attr) {
        if !self.own.changed_since(attr.ino, asked.at()) {
            self.put_attr(asked, attr);
        }
    }

    fn put_attr(&self, asked: &Asked, attr: &Attr) {
        // Nobody tells when a file grows that somebody writes.
        if attr.size_live {
            return;
        }
        self.put(asked, attr.ino, |inode, until| {
            let time = |attr: &Attr| (attr.ctime.seconds, attr.ctime.nanoseconds);
            // Of two replies the later one may come first.
            if inode.attr.as_ref().is_none_or(|(known, _)| time(known) <= time(attr)) {
                inode.attr = Some((attr.clone(), until));
            }
        });
    }

    /// The server has found this inode by a name, for somebody who may search its directory.
    pub(crate) fn learn_name(&self, asked: &Asked, (dir, name): (u64, &[u8]), ino: u64, who: &Who) {
        if !self.own.changed_since(key_of(dir, name), asked.at()) {
            self.put_name(asked, (dir, name), ino);
        }
        self.learn_rights(asked, dir, who, (SEARCH, SEARCH));
    }

    fn put_name(&self, asked: &Asked, (dir, name): (u64, &[u8]), ino: u64) {
        if !matches!(name, b"." | b"..") {
            self.put(asked, dir, |inode, until| {
                inode.names.insert(name.into(), (ino, until));
            });
        }
    }

    /// The server has said which of the bits `asked` somebody is granted.
    pub(crate) fn learn_rights(&self, when: &Asked, ino: u64, who: &Who, (asked, granted): (u32, u32)) {
        if self.own.changed_since(rights_key(ino), when.at()) {
            return;
        }
        self.put(when, ino, |inode, until| {
            let (who, is_new) = (*who, |right: &Right| right.who != *who || right.asked & !asked != 0);
            inode.rights.retain(is_new);
            if inode.rights.len() >= RIGHTS_MAX {
                inode.rights.remove(0);
            }
            inode.rights.push(Right { who, asked, granted, until });
        });
    }

    fn put(&self, asked: &Asked, ino: u64, put: impl FnOnce(&mut Inode, Instant)) {
        let mut tables = lock(&self.tables);
        // Under the lock: a forgetting is counted before it takes the lock, so it is either seen here, or sees
        // what is put.
        let valid = self.watch.valid(asked);
        if !valid.is_zero() {
            let now = Instant::now();
            put(tables.entry(ino, now), now + valid);
        }
    }

    /// This gateway changes, or has changed, what an inode's attributes say. Its rights are as before.
    pub(crate) fn changed(&self, ino: u64) {
        self.own.changed(ino);
        lock(&self.tables).forget_attributes(ino);
    }

    /// This gateway changes what it may not know: nothing holds any more.
    pub(crate) fn forget_everything(&self) {
        self.watch.count_forgetting();
        lock(&self.tables).forget(None);
    }

    /// Frees the memory of what holds no longer.
    pub(crate) fn trim(&self) {
        lock(&self.tables).turn(Instant::now());
    }

    /// Begins a change by this gateway.
    pub(crate) fn change(&self) -> Change<'_> {
        let asked = self.ask();
        Change { known: self, asked, inodes: Vec::new(), names: Vec::new(), everything: false }
    }
}

/// What stands for the rights to an inode among changes. Where two keys are equal, something is asked for once more.
fn rights_key(ino: u64) -> u64 {
    !ino
}

fn granted_of(inode: &Inode, who: &Who, asked: u32, now: Instant) -> Option<u32> {
    let answers = |right: &&Right| right.who == *who && right.asked & asked == asked && right.until > now;
    inode.rights.iter().find(answers).map(|right| right.granted & asked)
}

/// A change that is under way. What it changes is forgotten at once, and again when it is over or given up:
/// replies in between may be from before it.
pub(crate) struct Change<'a> {
    known: &'a Known,
    asked: Asked,
    inodes: Vec<(u64, Scope)>,
    names: Vec<(u64, Vec<u8>)>,
    everything: bool,
}

/// How much of an inode changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Times, size, links: nobody's rights.
    Attributes,
    /// Owner or mode as well.
    Rights,
}

impl Change<'_> {
    /// An inode changes.
    pub(crate) fn inode(mut self, ino: u64, scope: Scope) -> Self {
        self.inodes.push((ino, scope));
        self.forget_inode(ino, scope);
        self
    }

    /// A name in a directory changes, and with it the directory.
    pub(crate) fn name(mut self, dir: u64, name: &[u8]) -> Self {
        lock(&self.known.tables).forget_name(dir, name);
        self.names.push((dir, name.to_vec()));
        self.inode(dir, Scope::Attributes)
    }

    /// What has a name in a directory, if anything has, loses it. Where nobody knows what that is, everything
    /// may be it.
    pub(crate) fn loses(mut self, dir: u64, name: &[u8]) -> Self {
        let ino = {
            let tables = lock(&self.known.tables);
            let known = tables.get(dir).and_then(|inode| inode.names.get(name));
            known.filter(|(_, until)| *until > Instant::now()).map(|(ino, _)| *ino)
        };
        match ino {
            Some(ino) => self = self.inode(ino, Scope::Attributes),
            None => {
                self.everything = true;
                self.known.forget_everything();
            }
        }
        self.name(dir, name)
    }

    fn forget_inode(&self, ino: u64, scope: Scope) {
        let mut tables = lock(&self.known.tables);
        match scope {
            Scope::Attributes => tables.forget_attributes(ino),
            Scope::Rights => tables.forget_inode(ino),
        }
    }

    /// It was made: `learn` says what its reply shows, of which that is learnt which nothing else changed
    /// meanwhile.
    pub(crate) fn made(self, learn: impl FnOnce(&mut Learn<'_>)) {
        let (known, asked) = (self.known, self.asked);
        let keys: Vec<u64> = self.keys().collect();
        let is_old = |key: &u64| known.own.changed_since(*key, asked.at());
        let old = keys.iter().copied().filter(is_old).collect();
        drop(self);
        learn(&mut Learn { known, asked, keys, old });
    }

    fn keys(&self) -> impl Iterator<Item = u64> {
        let names = self.names.iter().map(|(dir, name)| key_of(*dir, name));
        self.inodes.iter().map(|(ino, _)| *ino).chain(names)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let known = self.known;
        if self.everything {
            known.forget_everything();
        }
        for (ino, scope) in &self.inodes {
            known.own.changed(*ino);
            if *scope == Scope::Rights {
                known.own.changed(rights_key(*ino));
            }
            self.forget_inode(*ino, *scope);
        }
        for (dir, name) in &self.names {
            known.own.changed(key_of(*dir, name));
            lock(&known.tables).forget_name(*dir, name);
        }
    }
}

/// Learns from the reply of a change.
pub(crate) struct Learn<'a> {
    known: &'a Known,
    asked: Asked,
    /// What the change has changed.
    keys: Vec<u64>,
    /// Those of them that something else changed while it was under way.
    old: Vec<u64>,
}

impl Learn<'_> {
    fn is_old(&self, key: u64) -> bool {
        match self.keys.contains(&key) {
            true => self.old.contains(&key),
            false => self.known.own.changed_since(key, self.asked.at()),
        }
    }

    /// Attributes after the change.
    pub(crate) fn attr(&mut self, attr: &Attr) {
        if !self.is_old(attr.ino) {
            self.known.put_attr(&self.asked, attr);
        }
    }

    /// A name that the change has given.
    pub(crate) fn name(&mut self, dir: u64, name: &[u8], ino: u64) {
        if !self.is_old(key_of(dir, name)) {
            self.known.put_name(&self.asked, (dir, name), ino);
        }
    }
}
