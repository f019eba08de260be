//! What is wrong with one record, given those that it is tied to.
//!
//! ```text
//!   n <dir> <name>  <-one to one->  o <dir> <cookie>        both lead to an inode of the kind they say
//!   i directory     one entry, in its parent; nlink = 2 + subdirectories; entries = entries under it
//!   i other         nlink = entries that lead to it; without any it is an orphan (u), and open or lately removed
//!   b               only with the inode of a small file, as many bytes as its size
//!   x               only on inodes that count them       g   only where no inode is
//!   every directory is reached from the root; numbers and cookies are below their leases
//! ```
//!
//! Where two records disagree the finding is at one of them. Nothing is concluded from a record that cannot
//! be read.

use super::counts::Audit;
use super::damage::Damage;
use crate::count::decode_removed;
use crate::counters::decode_counter;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, Kind, MODE_MASK, ROOT_INO, SIZE_MAX, decode_layout};
use crate::namespace::Namespace;
use crate::ops::small::small_bytes;
use crate::orphan::Orphan;
use crate::quota::{decode_limit, decode_used};
use crate::replies::StoredReply;
use crate::tails::decode_tail;
use crate::walk::NAME_BYTES_MAX;
use crate::{EngineError, MetaError, keys};
use std::collections::HashSet;

const SUPER_FIELDS: [&[u8]; 12] = [
    keys::SUPER_FORMAT,
    keys::SUPER_INO_LEASE,
    keys::SUPER_COOKIE_LEASE,
    keys::SUPER_FILES,
    keys::SUPER_INCARNATION,
    keys::SUPER_LOCKS,
    keys::SUPER_STORAGE,
    keys::SUPER_MARK,
    keys::SUPER_VOUCHED_FROM,
    keys::SUPER_LOADED,
    keys::SUPER_MAP,
    keys::SUPER_QUOTA,
];
/// Kind and id.
const SERVER_KEY_BYTES: usize = 3;
/// Kind and session; and the shard, where that is not 0.
const WATCHER_KEY_BYTES: [usize; 2] = [17, 19];
/// Kind and id.
const ISSUED_KEY_BYTES: usize = 17;
/// Kind, session, shard and slot.
const REPLY_KEY_BYTES: usize = 21;
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// An inode as it is found.
enum Found {
    Missing,
    Unreadable,
    There(Box<Inode>),
}

/// Judges records in one turn of the metadata thread.
pub(crate) struct Judge<'a, E: Engine> {
    ns: &'a Namespace<E>,
    audit: &'a Audit,
    /// Directories known to be below the root, in this turn.
    reached: HashSet<u64>,
}

pub(super) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Whether a path can have this name.
fn is_name(name: &[u8]) -> bool {
    let special = name.is_empty() || name == b"." || name == b"..";
    !special && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/') && !name.contains(&0)
}

/// Whether an inode has just what its kind must have.
fn is_well_formed(inode: &Inode) -> bool {
    let times = [inode.atime, inode.mtime, inode.ctime, inode.btime];
    inode.layout.is_some() == (inode.kind == Kind::File)
        && inode.target.is_some() == (inode.kind == Kind::Symlink)
        && (inode.default_layout.is_none() || inode.is_dir())
        && (!inode.small || inode.kind == Kind::File && !inode.dirty_size)
        && inode.mode & !MODE_MASK == 0
        && inode.size <= SIZE_MAX
        && times.iter().all(|time| time.nanos < NANOS_PER_SECOND)
}

impl<'a, E: Engine> Judge<'a, E> {
    pub fn new(ns: &'a Namespace<E>, audit: &'a Audit) -> Judge<'a, E> {
        Judge { ns, audit, reached: HashSet::from([ROOT_INO]) }
    }

    /// What is wrong with the store as a whole.
    pub fn whole(&self) -> Result<Vec<Damage>, MetaError> {
        let mut damage = Vec::new();
        if self.ns.engine.get(&keys::inode(ROOT_INO))?.is_none() {
            damage.push(Damage::NoRoot);
        }
        let (recorded, found) = (self.ns.count.now(), self.audit.inodes());
        if recorded != found {
            damage.push(Damage::InodeCount { recorded, found });
        }
        Ok(damage)
    }

    fn inode(&self, ino: u64) -> Result<Found, EngineError> {
        let key = keys::inode(ino);
        Ok(match self.ns.engine.get(&key)? {
            None => Found::Missing,
            Some(value) => {
                Inode::decode(&key, &value).map_or(Found::Unreadable, |inode| Found::There(inode.into()))
            }
        })
    }

    fn exists(&self, kind: u8, ino: u64) -> Result<bool, EngineError> {
        Ok(self.ns.engine.get(&keys::numbered(kind, ino))?.is_some())
    }

    /// What is wrong with the record.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Damage>, MetaError> {
        match self.judge(key, value) {
            Err(MetaError::Engine(error @ EngineError::Decode { .. })) => {
                Ok(vec![Damage::Unreadable(error.to_string())])
            }
            judged => judged,
        }
    }

    fn judge(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Damage>, MetaError> {
        let number = keys::number_of(key).unwrap_or(0);
        let is_numbered = key.len() == 9;
        match key[0] {
            keys::INODE if is_numbered => self.inode_record(&Inode::decode(key, value)?),
            keys::NAME if key.len() >= 9 => self.name_record(number, &key[9..], &Entry::decode(key, value)?),
            keys::ORDER if key.len() == 17 => {
                let (entry, name) = Entry::decode_order(key, value)?;
                self.order_record(number, &name, &entry)
            }
            keys::XATTR if key.len() > 9 => match self.inode(number)? {
                Found::Missing => Ok(vec![Damage::XattrOfNothing(number)]),
                Found::There(inode) if inode.xattrs == 0 => self.xattr_count(&inode),
                _ => Ok(Vec::new()),
            },
            keys::SMALL if is_numbered => self.small_record(key, value, number),
            keys::ORPHAN if is_numbered => {
                Orphan::decode(number, value)?;
                match self.inode(number)? {
                    Found::There(inode) if inode.nlink == 0 => Ok(Vec::new()),
                    Found::Unreadable => Ok(Vec::new()),
                    _ => Ok(vec![Damage::BadOrphan(number)]),
                }
            }
            keys::GARBAGE if is_numbered => {
                decode_layout(key, value)?;
                let exists = self.exists(keys::INODE, number)?;
                Ok(exists.then_some(Damage::LiveGarbage(number)).into_iter().collect())
            }
            keys::POSTPONED if keys::postponed_of(key).is_some() => {
                let (_, ino) = keys::postponed_of(key).unwrap_or_default();
                let exists = self.exists(keys::INODE, ino)?;
                Ok(exists.then_some(Damage::LiveGarbage(ino)).into_iter().collect())
            }
            keys::REMOVED if is_numbered => {
                decode_removed(key, value)?;
                Ok(Vec::new())
            }
            keys::APPEND_TAIL if is_numbered => {
                decode_tail(key, value)?;
                Ok(Vec::new())
            }
            keys::COUNTER if keys::counter_of(key).is_some() => {
                decode_counter(key, value)?;
                Ok(Vec::new())
            }
            keys::USED => decode_used(key, value).map(|_| Vec::new()).map_err(Into::into),
            keys::LIMIT => decode_limit(key, value).map(|_| Vec::new()).map_err(Into::into),
            keys::REPLY => {
                if key.len() != REPLY_KEY_BYTES {
                    return Ok(vec![Damage::ReplyOfNothing(keys::readable(key))]);
                }
                StoredReply::decode(key, value)?;
                Ok(Vec::new())
            }
            keys::WATCHER if WATCHER_KEY_BYTES.contains(&key.len()) => Ok(Vec::new()),
            keys::LOCKER if keys::locker_of(key).is_some() => Ok(Vec::new()),
            keys::SERVER if key.len() == SERVER_KEY_BYTES => Ok(Vec::new()),
            keys::RUN if is_numbered => Ok(Vec::new()),
            keys::ISSUED if key.len() == ISSUED_KEY_BYTES => Ok(Vec::new()),
            b's' if SUPER_FIELDS.contains(&key) => Ok(Vec::new()),
            _ => Ok(vec![Damage::unknown(key)]),
        }
    }

    fn inode_record(&mut self, inode: &Inode) -> Result<Vec<Damage>, MetaError> {
        let ino = inode.ino;
        let mut damage = Vec::new();
        if !is_well_formed(inode) {
            damage.push(Damage::BadInode(ino));
        }
        let servers = self.ns.options.ring_servers;
        if let Some(layout) = inode.layout.filter(|layout| layout.ring_servers() > servers) {
            damage.push(Damage::LayoutServers { ino, ring_servers: layout.ring_servers(), servers });
        }
        if inode.is_dir() {
            self.directory(inode, &mut damage)?;
        } else {
            self.links(inode, &mut damage)?;
        }
        if inode.small && inode.size > 0 && !self.exists(keys::SMALL, ino)? {
            damage.push(Damage::SmallSize { ino, recorded: inode.size, found: 0 });
        }
        if inode.xattrs > 0 {
            damage.extend(self.xattr_count(inode)?);
        }
        let lease = self.ns.leases().0;
        if ino >= lease {
            damage.push(Damage::BeyondLease { number: ino, lease });
        }
        Ok(damage)
    }

    fn directory(&mut self, inode: &Inode, damage: &mut Vec<Damage>) -> Result<(), EngineError> {
        let ino = inode.ino;
        let counts = self.audit.counts(ino);
        let links = counts.subdirs.saturating_add(2);
        if inode.nlink != links {
            damage.push(Damage::LinkCount { ino, recorded: inode.nlink, found: links });
        }
        if inode.entries != u64::from(counts.names) {
            let found = counts.names.into();
            damage.push(Damage::EntryCount { ino, recorded: inode.entries, found });
        }
        if ino == ROOT_INO {
            if inode.parent != ROOT_INO {
                damage.push(Damage::RootParent(inode.parent));
            }
            return Ok(());
        }
        match counts.links {
            0 => damage.push(Damage::NoName(ino)),
            1 => {}
            found => damage.push(Damage::ManyNames { ino, found }),
        }
        if counts.links > 0 && !self.is_reached(inode)? {
            damage.push(Damage::Unreachable(ino));
        }
        Ok(())
    }

    /// Follows parents upwards. A circle has no end; a parent that has no name, or is missing, is a finding
    /// of its own.
    fn is_reached(&mut self, start: &Inode) -> Result<bool, EngineError> {
        let mut path = HashSet::from([start.ino]);
        let mut ino = start.parent;
        while !self.reached.contains(&ino) {
            if !path.insert(ino) {
                return Ok(false);
            }
            match self.inode(ino)? {
                Found::There(inode) if inode.is_dir() => ino = inode.parent,
                _ => return Ok(true),
            }
        }
        self.reached.extend(path);
        Ok(true)
    }

    fn links(&self, inode: &Inode, damage: &mut Vec<Damage>) -> Result<(), EngineError> {
        let (ino, found) = (inode.ino, self.audit.counts(inode.ino).links);
        match (found, inode.nlink) {
            (0, 0) => {
                if !self.exists(keys::ORPHAN, ino)? {
                    damage.push(Damage::BadOrphan(ino));
                } else if !self.ns.grace && !self.ns.opens.is_held(ino) {
                    damage.push(Damage::LeftOver(ino));
                }
            }
            (0, _) => damage.push(Damage::NoName(ino)),
            (found, recorded) if found != recorded => {
                damage.push(Damage::LinkCount { ino, recorded, found });
            }
            _ => {}
        }
        Ok(())
    }

    fn small_record(&self, key: &[u8], value: &[u8], ino: u64) -> Result<Vec<Damage>, MetaError> {
        let found = small_bytes(key, value)?.len() as u64;
        Ok(match self.inode(ino)? {
            Found::There(inode) if inode.small && inode.size == found => Vec::new(),
            Found::There(inode) if inode.small => {
                vec![Damage::SmallSize { ino, recorded: inode.size, found }]
            }
            Found::Unreadable => Vec::new(),
            _ => vec![Damage::BytesOfNothing(ino)],
        })
    }

    fn xattr_count(&self, inode: &Inode) -> Result<Vec<Damage>, MetaError> {
        let prefix = keys::numbered(keys::XATTR, inode.ino);
        let mut found = 0;
        for pair in self.ns.engine.scan(&prefix, &keys::after_prefix(&prefix)) {
            pair?;
            found += 1;
        }
        let damage = Damage::XattrCount { ino: inode.ino, recorded: inode.xattrs, found };
        Ok((inode.xattrs != found).then_some(damage).into_iter().collect())
    }

    fn name_record(&self, dir: u64, name: &[u8], entry: &Entry) -> Result<Vec<Damage>, MetaError> {
        let mut damage = Vec::new();
        let (ino, shown) = (entry.ino, text(name));
        if !is_name(name) {
            damage.push(Damage::BadName { dir, name: shown.clone() });
        }
        match self.inode(dir)? {
            Found::There(above) if above.is_dir() => {}
            Found::Unreadable => {}
            _ => damage.push(Damage::EntryWithoutDirectory { dir, name: shown.clone() }),
        }
        match self.inode(ino)? {
            Found::Missing => damage.push(Damage::MissingInode { dir, name: shown.clone(), ino }),
            Found::There(inode) if inode.kind != entry.kind => {
                damage.push(Damage::WrongKind { dir, name: shown.clone(), ino });
            }
            Found::There(inode) if inode.is_dir() && (inode.parent != dir || ino == ROOT_INO) => {
                damage.push(Damage::BadParent { ino, recorded: inode.parent, dir, name: shown.clone() });
            }
            _ => {}
        }
        let ordered = self.ns.engine.get(&keys::order(dir, entry.cookie))?;
        if ordered != Some(entry.encode_order(name)) {
            damage.push(Damage::OrderMismatch { dir, name: shown });
        }
        let lease = self.ns.leases().1;
        if entry.cookie >= lease {
            damage.push(Damage::BeyondLease { number: entry.cookie, lease });
        }
        Ok(damage)
    }

    /// Where both orders have the entry, differences are findings at its name.
    fn order_record(&self, dir: u64, name: &[u8], entry: &Entry) -> Result<Vec<Damage>, MetaError> {
        let key = keys::name(dir, name);
        let by_name = self.ns.engine.get(&key)?.map(|value| Entry::decode(&key, &value));
        let agrees = match by_name {
            Some(Ok(found)) => found.cookie == entry.cookie,
            Some(Err(_)) => true,
            None => false,
        };
        let damage = Damage::OrderMismatch { dir, name: text(name) };
        Ok((!agrees).then_some(damage).into_iter().collect())
    }
}
