//! What a sound store is: every rule that ties records together, checked over all of them.
//!
//! ```text
//!   n <dir> <name>  <-one to one->  o <dir> <cookie>        both lead to an inode of the kind they say
//!   i directory     one entry, in its parent; nlink = 2 + subdirectories; entries = entries under it
//!   i other         nlink = entries that lead to it; without any it is an orphan (u)
//!   x               only on inodes that count them       g   only where no inode is
//!   every directory is reached from the root; numbers and cookies are below their leases
//! ```

use crate::MetaError;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, Kind, ROOT_INO, decode_layout};
use crate::keys;
use crate::namespace::Namespace;
use std::collections::{HashMap, HashSet};
use thiserror::Error;

/// A rule that the store breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Damage {
    /// A record cannot be decoded.
    #[error("{0}")]
    Unreadable(String),
    /// A record of no known kind.
    #[error("the key {0} is of no known kind")]
    UnknownKey(String),
    /// The root directory is missing or no directory.
    #[error("there is no root directory")]
    NoRoot,
    /// An entry leads to an inode that is not there, or to one of another kind.
    #[error("entry {name:?} of directory {dir} leads to inode {ino}, which is missing or of another kind")]
    BadEntry {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
        /// Where it leads.
        ino: u64,
    },
    /// An entry is in only one of the two orders, or they disagree.
    #[error("entry {name:?} of directory {dir} is not the same by name and by order")]
    OrderMismatch {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
    },
    /// Entries below something that is not a directory.
    #[error("inode {dir} has entries but is no directory")]
    EntriesWithoutDirectory {
        /// The inode.
        dir: u64,
    },
    /// The link count is not what the entries say.
    #[error("inode {ino} counts {recorded} links, but has {found}")]
    LinkCount {
        /// The inode.
        ino: u64,
        /// In the inode.
        recorded: u32,
        /// Counted.
        found: u32,
    },
    /// The number of entries of a directory is not what it says.
    #[error("directory {ino} counts {recorded} entries, but has {found}")]
    EntryCount {
        /// The directory.
        ino: u64,
        /// In the inode.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// A directory's parent is not the one that has its entry, or it has several entries.
    #[error("directory {ino} says its parent is {recorded}, but its entries are in {found:?}")]
    BadParent {
        /// The directory.
        ino: u64,
        /// In the inode.
        recorded: u64,
        /// Where its entries are.
        found: Vec<u64>,
    },
    /// A directory that no path from the root reaches.
    #[error("directory {0} is not reached from the root")]
    Unreachable(u64),
    /// An inode without names and without an orphan record, or an orphan record for one that has names or is missing.
    #[error("the orphan record of inode {0} is missing or wrong")]
    BadOrphan(u64),
    /// Extended attributes that the inode does not count.
    #[error("inode {ino} counts {recorded} extended attributes, but has {found}")]
    XattrCount {
        /// The inode.
        ino: u64,
        /// In the inode, 0 if it is missing.
        recorded: u32,
        /// Counted.
        found: u32,
    },
    /// A file without layout, a symbolic link without target, or one of them elsewhere.
    #[error("inode {0} lacks what its kind must have, or has what it must not")]
    BadInode(u64),
    /// A garbage record for an inode that still exists.
    #[error("inode {0} exists and has a garbage record")]
    LiveGarbage(u64),
    /// A number was given out that the superblock does not cover.
    #[error("number {number} is beyond the superblock's lease {lease}")]
    BeyondLease {
        /// An inode number or cookie.
        number: u64,
        /// The bound.
        lease: u64,
    },
    /// The number of inodes is not what the superblock says.
    #[error("the superblock counts {recorded} inodes, but there are {found}")]
    InodeCount {
        /// In the superblock.
        recorded: u64,
        /// Counted.
        found: u64,
    },
}

/// All records, by kind.
#[derive(Default)]
struct Census {
    inodes: HashMap<u64, Inode>,
    by_name: HashMap<(u64, Vec<u8>), Entry>,
    by_order: HashMap<(u64, Vec<u8>), Entry>,
    xattrs: HashMap<u64, u32>,
    orphans: HashSet<u64>,
    garbage: Vec<u64>,
    damage: Vec<Damage>,
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl<E: Engine> Namespace<E> {
    /// Checks the whole store and returns every rule it breaks. Reads all records into memory (about 300 bytes per
    /// file), and must be called between operations.
    pub fn check(&self) -> Result<Vec<Damage>, MetaError> {
        let mut census = Census::default();
        for pair in self.engine.scan(&[0], &[u8::MAX]) {
            let (key, value) = pair?;
            if let Err(error) = census.take(&key, &value) {
                census.damage.push(Damage::Unreadable(error.to_string()));
            }
        }
        let (ino_lease, cookie_lease, inodes_in_use) = self.leases();
        census.check_entries(cookie_lease);
        census.check_inodes(ino_lease);
        census.check_reachable();
        census.check_records();
        let found = census.inodes.len() as u64;
        if found != inodes_in_use {
            census.damage.push(Damage::InodeCount { recorded: inodes_in_use, found });
        }
        Ok(census.damage)
    }
}

impl Census {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), crate::EngineError> {
        let number = keys::number_of(key).unwrap_or(0);
        match key[0] {
            keys::INODE => drop(self.inodes.insert(number, Inode::decode(key, value)?)),
            keys::NAME => {
                let name = key.get(9..).unwrap_or_default().to_vec();
                self.by_name.insert((number, name), Entry::decode(key, value)?);
            }
            keys::ORDER => {
                let (entry, name) = Entry::decode_order(key, value)?;
                if self.by_order.insert((number, name.clone()), entry).is_some() {
                    self.damage.push(Damage::OrderMismatch { dir: number, name: text(&name) });
                }
            }
            keys::XATTR => *self.xattrs.entry(number).or_default() += 1,
            keys::ORPHAN => {
                self.orphans.insert(number);
            }
            keys::GARBAGE => {
                decode_layout(key, value)?;
                self.garbage.push(number);
            }
            keys::REPLY | b's' => {}
            _ => self.damage.push(Damage::UnknownKey(keys::readable(key))),
        }
        Ok(())
    }

    fn check_entries(&mut self, cookie_lease: u64) {
        for ((dir, name), entry) in &self.by_name {
            if self.by_order.get(&(*dir, name.clone())) != Some(entry) {
                self.damage.push(Damage::OrderMismatch { dir: *dir, name: text(name) });
            }
            if self.inodes.get(&entry.ino).is_none_or(|inode| inode.kind != entry.kind) {
                self.damage.push(Damage::BadEntry { dir: *dir, name: text(name), ino: entry.ino });
            }
            if !self.inodes.get(dir).is_some_and(Inode::is_dir) {
                self.damage.push(Damage::EntriesWithoutDirectory { dir: *dir });
            }
            if entry.cookie >= cookie_lease {
                self.damage.push(Damage::BeyondLease { number: entry.cookie, lease: cookie_lease });
            }
        }
        for (dir, name) in self.by_order.keys() {
            if !self.by_name.contains_key(&(*dir, name.clone())) {
                self.damage.push(Damage::OrderMismatch { dir: *dir, name: text(name) });
            }
        }
    }

    fn check_inodes(&mut self, ino_lease: u64) {
        let mut parents: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut entries: HashMap<u64, u64> = HashMap::new();
        let mut subdirs: HashMap<u64, u32> = HashMap::new();
        for ((dir, _), entry) in &self.by_name {
            parents.entry(entry.ino).or_default().push(*dir);
            *entries.entry(*dir).or_default() += 1;
            *subdirs.entry(*dir).or_default() += u32::from(entry.kind == Kind::Directory);
        }
        for (&ino, inode) in &self.inodes {
            let found = parents.remove(&ino).unwrap_or_default();
            if inode.is_dir() {
                let links = 2 + subdirs.get(&ino).copied().unwrap_or(0);
                if inode.nlink != links {
                    self.damage.push(Damage::LinkCount { ino, recorded: inode.nlink, found: links });
                }
                let counted = entries.get(&ino).copied().unwrap_or(0);
                if inode.entries != counted {
                    self.damage.push(Damage::EntryCount { ino, recorded: inode.entries, found: counted });
                }
                let sound = if ino == ROOT_INO { found.is_empty() } else { found == [inode.parent] };
                if !sound {
                    self.damage.push(Damage::BadParent { ino, recorded: inode.parent, found });
                }
            } else if inode.nlink as usize != found.len() {
                let found = found.len() as u32;
                self.damage.push(Damage::LinkCount { ino, recorded: inode.nlink, found });
            }
            let layout_fits = inode.layout.is_some() == (inode.kind == Kind::File);
            let target_fits = inode.target.is_some() == (inode.kind == Kind::Symlink);
            if !layout_fits || !target_fits {
                self.damage.push(Damage::BadInode(ino));
            }
            if ino >= ino_lease {
                self.damage.push(Damage::BeyondLease { number: ino, lease: ino_lease });
            }
        }
    }

    /// Follows parents upwards; directories that end in a circle or nowhere are not reached.
    fn check_reachable(&mut self) {
        if !self.inodes.get(&ROOT_INO).is_some_and(Inode::is_dir) {
            self.damage.push(Damage::NoRoot);
        }
        let mut reached: HashMap<u64, bool> = HashMap::from([(ROOT_INO, true)]);
        for start in self.inodes.values().filter(|inode| inode.is_dir()) {
            let mut path = Vec::new();
            let mut ino = start.ino;
            let ends_at_root = loop {
                if let Some(known) = reached.get(&ino) {
                    break *known;
                }
                reached.insert(ino, false);
                path.push(ino);
                match self.inodes.get(&ino) {
                    Some(inode) if inode.is_dir() => ino = inode.parent,
                    _ => break false,
                }
            };
            for ino in path {
                reached.insert(ino, ends_at_root);
            }
            if !ends_at_root {
                self.damage.push(Damage::Unreachable(start.ino));
            }
        }
    }

    fn check_records(&mut self) {
        for (&ino, inode) in &self.inodes {
            if (inode.nlink == 0) != self.orphans.contains(&ino) {
                self.damage.push(Damage::BadOrphan(ino));
            }
            let found = self.xattrs.remove(&ino).unwrap_or(0);
            if inode.xattrs != found {
                self.damage.push(Damage::XattrCount { ino, recorded: inode.xattrs, found });
            }
        }
        for (&ino, &found) in &self.xattrs {
            self.damage.push(Damage::XattrCount { ino, recorded: 0, found });
        }
        for ino in &self.orphans {
            if !self.inodes.contains_key(ino) {
                self.damage.push(Damage::BadOrphan(*ino));
            }
        }
        for ino in &self.garbage {
            if self.inodes.contains_key(ino) {
                self.damage.push(Damage::LiveGarbage(*ino));
            }
        }
    }
}
