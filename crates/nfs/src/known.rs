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
/// Attributes, names and rights that one of the two ages holds. A full young age replaces the old one early.
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
    /// The directory above a directory.
    parent: Option<(u64, Instant)>,
    rights: Vec<Right>,
    /// Of a directory; `None` is a name that nothing has.
    names: HashMap<Box<[u8]>, (Option<u64>, Instant)>,
}

impl Inode {
    fn len(&self) -> usize {
        self.names.len()
            + self.rights.len()
            + usize::from(self.attr.is_some())
            + usize::from(self.parent.is_some())
    }

    /// Forgets the attributes and who may do what, but not the names.
    fn forget(&mut self) {
        (self.attr, self.parent) = (None, None);
        self.rights.clear();
    }
}

/// Everything, in two ages: what was learnt more than two leases ago is in neither. Nothing moves from the old age
/// to the young one: a directory that is asked about again does not take its old names along.
struct Tables {
    young: HashMap<u64, Inode>,
    old: HashMap<u64, Inode>,
    turned: Instant,
    /// At least what `young` holds.
    kept: usize,
}

impl Tables {
    fn new() -> Tables {
        Tables { young: HashMap::new(), old: HashMap::new(), turned: Instant::now(), kept: 0 }
    }

    /// Both ages of an inode, the younger first.
    fn get(&self, ino: u64) -> impl Iterator<Item = &Inode> {
        [self.young.get(&ino), self.old.get(&ino)].into_iter().flatten()
    }

    fn forget_in(&mut self, ino: u64, forget: impl Fn(&mut Inode)) {
        [self.young.get_mut(&ino), self.old.get_mut(&ino)].into_iter().flatten().for_each(forget);
    }

    /// What holds at this time of that which `find` finds of an inode.
    fn valid<'a, T>(
        &'a self,
        ino: u64,
        now: Instant,
        find: impl Fn(&'a Inode) -> Option<&'a (T, Instant)>,
    ) -> Option<&'a T> {
        self.get(ino).find_map(|inode| find(inode).filter(|(_, until)| *until > now).map(|(value, _)| value))
    }

    fn name(&self, dir: u64, name: &[u8], now: Instant) -> Option<Option<u64>> {
        self.valid(dir, now, |inode| inode.names.get(name)).copied()
    }

    /// Those of the bits in `asked` that a user is granted.
    fn granted(&self, ino: u64, who: &Who, asked: u32, now: Instant) -> Option<u32> {
        let answers = |right: &&Right| right.who == *who && right.asked & asked == asked && right.until > now;
        let found = self.get(ino).find_map(|inode| inode.rights.iter().find(answers));
        found.map(|right| right.granted & asked)
    }

    /// Drops what was learnt more than two leases ago.
    fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.turned) >= LEASE || self.kept >= KEPT_MAX {
            self.old = std::mem::take(&mut self.young);
            (self.turned, self.kept) = (now, 0);
        }
    }

    fn put(&mut self, ino: u64, now: Instant, put: impl FnOnce(&mut Inode)) {
        self.turn(now);
        let inode = self.young.entry(ino).or_default();
        let before = inode.len();
        put(inode);
        self.kept += inode.len().saturating_sub(before);
    }

    fn forget_name(&mut self, dir: u64, name: &[u8]) {
        self.forget_in(dir, |inode| _ = inode.names.remove(name));
    }

    fn forget(&mut self, changes: Option<&[Told]>) {
        let Some(changes) = changes else {
            *self = Tables::new();
            return;
        };
        for change in changes {
            if change.what & (changed::ATTRIBUTES | changed::DATA) != 0 {
                self.forget_in(change.ino, Inode::forget);
            }
            if change.what & changed::NAME != 0 {
                self.forget_name(change.ino, &change.name);
            }
            if change.what & changed::ALL_NAMES != 0 {
                self.forget_in(change.ino, |inode| inode.names.clear());
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.values().chain(self.old.values()).map(Inode::len).sum()
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
        lock(&self.tables).valid(ino, Instant::now(), |inode| inode.attr.as_ref()).cloned()
    }

    /// The inode that has a name in a directory, for somebody who may search it.
    pub(crate) fn name(&self, dir: u64, name: &[u8], who: &Who) -> Option<u64> {
        let now = Instant::now();
        let tables = lock(&self.tables);
        let ino = tables.name(dir, name, now)??;
        (tables.granted(dir, who, SEARCH, now)? & SEARCH != 0).then_some(ino)
    }

    /// The inode that has a name in a directory, if one has, for the gateway itself.
    pub(crate) fn name_for_root(&self, dir: u64, name: &[u8]) -> Option<Option<u64>> {
        lock(&self.tables).name(dir, name, Instant::now())
    }

    /// The directory above a directory, for the gateway itself.
    pub(crate) fn parent(&self, dir: u64) -> Option<u64> {
        lock(&self.tables).valid(dir, Instant::now(), |inode| inode.parent.as_ref()).copied()
    }

    /// What somebody may do with an inode, of the bits in `asked`.
    pub(crate) fn rights(&self, ino: u64, who: &Who, asked: u32) -> Option<u32> {
        lock(&self.tables).granted(ino, who, asked, Instant::now())
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
        self.put(asked, |tables, now, until| {
            let time = |attr: &Attr| (attr.ctime.seconds, attr.ctime.nanoseconds);
            let known = tables.get(attr.ino).find_map(|inode| inode.attr.as_ref());
            // Of two replies the later one may come first.
            if known.is_none_or(|(known, _)| time(known) <= time(attr)) {
                tables.put(attr.ino, now, |inode| inode.attr = Some((attr.clone(), until)));
            }
        });
    }

    /// The server has found this inode by a name, for somebody who may search its directory.
    pub(crate) fn learn_name(&self, asked: &Asked, (dir, name): (u64, &[u8]), ino: u64, who: &Who) {
        self.learn_name_for_root(asked, (dir, name), Some(ino));
        self.learn_rights(asked, dir, who, (SEARCH, SEARCH));
    }

    /// The server has said what has a name, if anything has.
    pub(crate) fn learn_name_for_root(&self, asked: &Asked, (dir, name): (u64, &[u8]), ino: Option<u64>) {
        if !self.own.changed_since(key_of(dir, name), asked.at()) {
            self.put_name(asked, (dir, name), ino);
        }
    }

    fn put_name(&self, asked: &Asked, (dir, name): (u64, &[u8]), ino: Option<u64>) {
        if !matches!(name, b"." | b"..") {
            self.put(asked, |tables, now, until| {
                tables.put(dir, now, |inode| _ = inode.names.insert(name.into(), (ino, until)));
            });
        }
    }

    /// The server has said which directory is above one.
    pub(crate) fn learn_parent(&self, asked: &Asked, dir: u64, parent: u64) {
        if !self.own.changed_since(parent_key(dir), asked.at()) {
            self.put(asked, |tables, now, until| {
                tables.put(dir, now, |inode| inode.parent = Some((parent, until)));
            });
        }
    }

    /// The server has said which of the bits `asked` somebody is granted.
    pub(crate) fn learn_rights(&self, when: &Asked, ino: u64, who: &Who, (asked, granted): (u32, u32)) {
        if self.own.changed_since(rights_key(ino), when.at()) {
            return;
        }
        self.put(when, |tables, now, until| {
            tables.put(ino, now, |inode| {
                let (who, is_new) = (*who, |right: &Right| right.who != *who || right.asked & !asked != 0);
                inode.rights.retain(is_new);
                if inode.rights.len() >= RIGHTS_MAX {
                    inode.rights.remove(0);
                }
                inode.rights.push(Right { who, asked, granted, until });
            });
        });
    }

    fn put(&self, asked: &Asked, put: impl FnOnce(&mut Tables, Instant, Instant)) {
        let mut tables = lock(&self.tables);
        // Under the lock: a forgetting is counted before it takes the lock, so it is either seen here, or sees
        // what is put.
        let valid = self.watch.valid(asked);
        if !valid.is_zero() {
            let now = Instant::now();
            put(&mut tables, now, now + valid);
        }
    }

    /// This gateway changes, or has changed, what an inode's attributes say. Its rights are as before.
    pub(crate) fn changed(&self, ino: u64) {
        self.own.changed(ino);
        lock(&self.tables).forget_in(ino, |inode| inode.attr = None);
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

/// What stands for the directory above one.
fn parent_key(dir: u64) -> u64 {
    key_of(dir, b"..")
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
    /// Attributes, and the directory above it.
    Place,
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
        let known = lock(&self.known.tables).name(dir, name, Instant::now());
        match known {
            Some(Some(ino)) => self = self.inode(ino, Scope::Place),
            _ => {
                self.everything = true;
                self.known.forget_everything();
            }
        }
        self.name(dir, name)
    }

    fn forget_inode(&self, ino: u64, scope: Scope) {
        lock(&self.known.tables).forget_in(ino, |inode| match scope {
            Scope::Attributes => inode.attr = None,
            Scope::Place => (inode.attr, inode.parent) = (None, None),
            Scope::Rights => inode.forget(),
        });
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
            match scope {
                Scope::Attributes => {}
                Scope::Place => known.own.changed(parent_key(*ino)),
                Scope::Rights => known.own.changed(rights_key(*ino)),
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
            self.known.put_name(&self.asked, (dir, name), Some(ino));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn put_name(tables: &mut Tables, (dir, name): (u64, u64), now: Instant) {
        let name = name.to_be_bytes();
        tables.put(dir, now, |inode| _ = inode.names.insert(name[..].into(), (Some(1), now + LEASE)));
    }

    #[test]
    fn a_directory_that_is_asked_about_all_the_time_keeps_no_old_names() {
        let (mut tables, start) = (Tables::new(), Instant::now());
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            for name in 0..1000 {
                put_name(&mut tables, (7, second * 1000 + name), now);
            }
            let bound = 1000 * 2 * (LEASE.as_secs() as usize + 1);
            assert!(tables.len() <= bound, "{} after {second} s", tables.len());
        }
        tables.turn(start + Duration::from_secs(120));
        tables.turn(start + Duration::from_secs(140));
        assert_eq!(tables.len(), 0);
    }

    #[test]
    fn what_is_kept_is_bounded_also_within_a_lease() {
        let (mut tables, now) = (Tables::new(), Instant::now());
        let who = |uid| Who { export: 1, credential: Credential::new(uid, uid, &[]) };
        for at in 0..4 * KEPT_MAX as u64 {
            put_name(&mut tables, (at % 3, at), now);
            tables.put(at, now, |inode| inode.parent = Some((1, now + LEASE)));
            tables.put(at % 5, now, |inode| {
                let right = Right { who: who(at as u32), asked: 7, granted: 7, until: now + LEASE };
                inode.rights.push(right);
            });
            if at % 1000 == 0 {
                assert!(tables.len() <= 2 * KEPT_MAX, "{}", tables.len());
            }
        }
    }

    #[test]
    fn the_younger_counts_and_both_are_forgotten() {
        let (mut tables, now) = (Tables::new(), Instant::now());
        let parent = |tables: &Tables| tables.valid(7, now, |inode| inode.parent.as_ref()).copied();
        let put = |tables: &mut Tables, parent, at: Instant| {
            tables.put(7, at, |inode| inode.parent = Some((parent, at + LEASE)));
        };
        put(&mut tables, 1, now);
        put(&mut tables, 2, now + LEASE);
        assert_eq!(parent(&tables), Some(2));
        let change = Told { ino: 7, what: changed::ATTRIBUTES, name: Vec::new() };
        tables.forget(Some(&[change]));
        assert_eq!(parent(&tables), None);
    }
}
