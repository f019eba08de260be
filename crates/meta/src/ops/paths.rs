//! From inodes to paths. A file does not know its names, so that they are looked for among all names, part by part:
//!
//! ```text
//!   o1,16 -> 7 a   o1,17 -> 8 b   o7,18 -> 12 data   …      is 12 wanted? then path of 7, "/data"
//!   └─ one request looks at some thousand ─┘  └─ the next goes on after the last one
//! ```

use crate::MetaError;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, ROOT_INO};
use crate::keys;
use crate::op::Op;
use std::collections::{HashMap, HashSet, hash_map};

/// Levels of a path that is shown.
const PATH_LEVELS_MAX: usize = 64;
/// Entries of a directory that are looked through for a name.
const PATH_ENTRIES_MAX: usize = 10_000;

/// Paths of inodes in a part of all names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathsPart {
    /// Inodes that have a name there, with the path of one.
    pub found: Vec<(u64, Vec<u8>)>,
    /// Directory and cookie after which to go on; `None` where nothing is left to look for, or at.
    pub next: Option<(u64, u64)>,
}

impl<E: Engine> Op<'_, E> {
    /// Looks for names of `inodes` among the `entries_max` entries after the one with this cookie in this directory: (0, 0) to begin.
    pub fn find_paths(
        &mut self,
        inodes: &[u64],
        (dir, cookie): (u64, u64),
        entries_max: usize,
    ) -> Result<PathsPart, MetaError> {
        let mut wanted: HashSet<u64> = inodes.iter().copied().collect();
        let mut found = Vec::new();
        if wanted.remove(&ROOT_INO) {
            found.push((ROOT_INO, b"/".to_vec()));
        }
        let entries = self.records_after(&[keys::ORDER], &keys::order(dir, cookie), entries_max)?;
        let last = entries.last().filter(|_| entries.len() == entries_max);
        let mut next = last.and_then(|(key, _)| keys::place_of(key));
        let mut above = HashMap::new();
        for (key, value) in &entries {
            let (entry, name) = Entry::decode_order(key, value)?;
            let Some((dir, _)) = keys::place_of(key).filter(|_| wanted.contains(&entry.ino)) else {
                continue;
            };
            let above = match above.entry(dir) {
                hash_map::Entry::Occupied(known) => known.into_mut(),
                hash_map::Entry::Vacant(unknown) => unknown.insert(self.path_of(dir)?),
            };
            if let Some(above) = above {
                wanted.remove(&entry.ino);
                found.push((entry.ino, joined(above, &name)));
            }
        }
        if wanted.is_empty() {
            next = None;
        }
        Ok(PathsPart { found, next })
    }

    /// The path of a directory, from the root on; `None` where it is gone, or not easily found: with very many entries beside it.
    pub fn path_of(&mut self, dir: u64) -> Result<Option<Vec<u8>>, MetaError> {
        let mut path = Vec::new();
        let mut ino = dir;
        for _ in 0..PATH_LEVELS_MAX {
            if ino == ROOT_INO {
                return Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }));
            }
            let Some(parent) = self.inode(ino)?.filter(Inode::is_dir).map(|inode| inode.parent) else {
                return Ok(None);
            };
            let prefix = keys::numbered(keys::ORDER, parent);
            let mut name = None;
            for (key, value) in self.records_after(&prefix, &prefix, PATH_ENTRIES_MAX)? {
                let (entry, found) = Entry::decode_order(&key, &value)?;
                if entry.ino == ino {
                    name = Some(found);
                    break;
                }
            }
            let Some(name) = name else { return Ok(None) };
            path = [b"/", name.as_slice(), path.as_slice()].concat();
            ino = parent;
        }
        Ok(None)
    }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    match above {
        b"/" => [b"/", name].concat(),
        _ => [above, b"/", name].concat(),
    }
}
