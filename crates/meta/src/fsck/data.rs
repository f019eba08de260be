//! What the metadata server knows of files whose data files are looked at, and what it takes over from them.
//!
//! A size is judged only where it is settled and nobody writes. Between the question and the answer of the
//! I/O servers that may change: the epoch tells, since it is counted up with every first writer and
//! truncation.

use crate::engine::{CommitSeq, Engine};
use crate::inode::{Inode, Kind, Timestamp};
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::{EngineError, MetaError};
use weft_layout::{Layout, shard_of};

/// A file as far as its data files must agree with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Its inode.
    pub ino: u64,
    /// Where its bytes are.
    pub layout: Layout,
    /// Its size.
    pub bytes: u64,
    /// Whether data files may exist.
    pub may_have_data: bool,
    /// The size is known and nobody is writing, and the bytes are in data files; else it cannot be judged now.
    pub is_settled: bool,
    /// Changes when that does.
    pub epoch: u64,
}

/// A size that data files have, measured while the epoch was this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeFound {
    /// The file.
    pub ino: u64,
    /// [`FileState::epoch`] before and after the measurement.
    pub epoch: u64,
    /// What the data files have.
    pub bytes: u64,
}

/// What is known of an inode number that data files exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A file.
    File(FileState),
    /// An inode that has no data files.
    Other,
    /// Its removal is under way, or it was never given out.
    Unsettled,
    /// There is no such inode.
    Nothing,
}

impl<E: Engine> Namespace<E> {
    /// Up to `max` files with inode numbers above `after`, and the last number looked at; `None` when there
    /// are no more.
    pub fn files_after(&self, after: u64, max: usize) -> Result<(Vec<FileState>, Option<u64>), MetaError> {
        let from = keys::inode(after.saturating_add(1));
        let (mut files, mut last, mut records) = (Vec::new(), None, 0);
        for pair in self.engine.scan(&from, &[keys::INODE + 1]).take(max) {
            let (key, value) = pair?;
            records += 1;
            last = keys::number_of(&key);
            // What cannot be read is a finding of the names.
            if let Ok(inode) = Inode::decode(&key, &value) {
                files.extend(self.file_state(&inode));
            }
        }
        Ok((files, last.filter(|_| records == max)))
    }

    fn file_state(&self, inode: &Inode) -> Option<FileState> {
        let layout = inode.layout.filter(|_| inode.kind == Kind::File)?;
        let held =
            self.opens.file(inode.ino).is_some_and(|file| file.total.writers + file.total.truncations > 0);
        Some(FileState {
            ino: inode.ino,
            layout,
            bytes: inode.size,
            may_have_data: inode.may_have_data(),
            is_settled: !inode.small && !inode.dirty_size && !held && !self.grace,
            epoch: inode.public_epoch(self.incarnation),
        })
    }

    /// Whose data files with these inode numbers are.
    pub fn owners(&self, inos: &[u64]) -> Result<Vec<Owner>, MetaError> {
        inos.iter().map(|ino| self.owner(*ino)).collect()
    }

    fn owner(&self, ino: u64) -> Result<Owner, MetaError> {
        // Of a file of another shard, only that shard's metadata server knows whether it exists.
        if ino >= self.next_ino || shard_of(ino) != self.shard() {
            return Ok(Owner::Unsettled);
        }
        let key = keys::inode(ino);
        if let Some(value) = self.engine.get(&key)? {
            return Ok(match Inode::decode(&key, &value) {
                Ok(inode) => self.file_state(&inode).map_or(Owner::Other, Owner::File),
                Err(EngineError::Decode { .. }) => Owner::Unsettled,
                Err(error) => return Err(error.into()),
            });
        }
        Ok(if self.is_garbage(ino)? { Owner::Unsettled } else { Owner::Nothing })
    }

    /// Takes over the size that data files have, if nobody has written since it was measured. Says whether it
    /// did.
    pub fn take_size(&mut self, found: &SizeFound) -> Result<(bool, CommitSeq), MetaError> {
        self.change(|op| op.attempt(|op| op.stage_size(found)))
    }

    /// Makes a file of data files that have no inode, in `lost+found` by its number. Says whether it did: not
    /// where there is an inode by now, or the number was never given out.
    pub fn adopt_data(
        &mut self,
        now: Timestamp,
        ino: u64,
        layout: &Layout,
        bytes: u64,
    ) -> Result<(bool, CommitSeq), MetaError> {
        let adopt = |op: &mut Op<'_, E>| {
            if op.ns.owner(ino)? != Owner::Nothing {
                return Ok(false);
            }
            let mut inode = Inode::new(ino, op.ns.incarnation, Kind::File, 0o600, 0, 0, now);
            inode.layout = Some(*layout);
            inode.size = bytes;
            inode.ever_written = true;
            op.add_inode(inode.clone());
            op.bring_to_lost_and_found(now, inode)?;
            Ok(true)
        };
        self.change(|op| op.attempt(adopt))
    }

    /// The layout that a file of this number gets where nothing else is asked for.
    pub fn default_layout_of(&mut self, ino: u64) -> Result<Layout, MetaError> {
        self.begin().layout_for(ino, None, None)
    }
}

impl<E: Engine> Op<'_, E> {
    fn stage_size(&mut self, found: &SizeFound) -> Result<bool, MetaError> {
        let Some(mut inode) = self.inode(found.ino)? else { return Ok(false) };
        let state = self.ns.file_state(&inode);
        if !state.is_some_and(|state| state.is_settled && state.epoch == found.epoch) {
            return Ok(false);
        }
        inode.size = found.bytes;
        inode.ever_written = true;
        inode.epoch = inode.epoch.wrapping_add(1);
        self.put_inode(inode);
        Ok(true)
    }
}
