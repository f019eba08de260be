//! What an operation is about to change, told before its commit: whoever was told otherwise has to hear of it.
//!
//! It is taken from what the operation has staged, so that no operation can forget to say it:
//!
//! ```text
//!   rename a/x -> b/y      names  (a, x) (b, y)      inodes  a, b: attributes   x's: attributes
//!   open for writing       names  -                  inodes  the file: data     (its size may change at any time from now on)
//! ```

use crate::MetaError;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::keys;
use crate::op::Op;
use crate::opens::{Effect, Hold};

/// What the commit of an operation changes for those who have seen it before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Inodes that existed before.
    pub inodes: Vec<TouchedInode>,
    /// Names that lead elsewhere, or nowhere, or somewhere at last: directory and name.
    pub names: Vec<(u64, Vec<u8>)>,
}

/// An inode of which something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchedInode {
    /// Its number.
    pub ino: u64,
    /// Whether what it holds changes: a file's bytes, size or writers. Else it is only its attributes.
    pub data: bool,
}

impl Touched {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    fn add(&mut self, ino: u64, data: bool) {
        match self.inodes.iter_mut().find(|touched| touched.ino == ino) {
            Some(touched) => touched.data |= data,
            None => self.inodes.push(TouchedInode { ino, data }),
        }
    }
}

impl<E: Engine> Op<'_, E> {
    /// What the commit of this operation will change.
    pub fn touched(&mut self) -> Result<Touched, MetaError> {
        let mut touched = Touched::default();
        self.each_changed_inode(|before, now| {
            let data = now.is_none_or(|now| holds_otherwise(before, now));
            if data || now.is_none_or(|now| *now != as_settled(before, now)) {
                touched.add(before.ino, data);
            }
        })?;
        // Also where the same operation sets the time back.
        self.staged_written().iter().for_each(|ino| touched.add(*ino, true));
        for effect in self.staged_effects() {
            if let Effect::Take { ino, hold: Hold::Write | Hold::Truncate, .. } = effect {
                touched.add(*ino, true);
            }
        }
        let names =
            self.staged_entries().filter_map(|key| Some((keys::number_of(key)?, key.get(9..)?.to_vec())));
        touched.names = names.collect();
        Ok(touched)
    }
}

fn holds_otherwise(before: &Inode, now: &Inode) -> bool {
    let contents = |inode: &Inode| (inode.size, inode.mtime);
    !before.is_dir() && (contents(before) != contents(now) || now.dirty_size && !before.dirty_size)
}

/// `before`, where that the size has become certain does not count: nobody holds a lease on one that was not.
fn as_settled(before: &Inode, now: &Inode) -> Inode {
    let (dirty_size, epoch, ever_written) = (now.dirty_size, now.epoch, now.ever_written);
    Inode { dirty_size, epoch, ever_written, ..before.clone() }
}
