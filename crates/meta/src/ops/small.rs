//! Small files: their bytes lie with the inode, until they grow.
//!
//! ```text
//!   create        ─► with the inode     b<ino> -> bytes       a write, a read: one message to this server, no data file
//!                        │
//!                        │ a write beyond the bound, a hole that is punched, a range that is allocated:
//!                        │ spread_begin ─► the bytes go to the file's first I/O server ─► spread_end
//!                        ▼
//!                    striped            no record b          for good: a file never comes back
//! ```
//!
//! While the bytes lie here, the inode's size and times are the truth: no writer makes the size live. A client
//! that takes a striped file for a small one is told, for whoever reads or writes such bytes asks here first. One that takes a
//! small file for a striped one cannot be, since only `spread_end` makes a file striped.
//!
//! Between `spread_begin` and `spread_end` the bytes are in both places, and the server keeps writes waiting. A server that
//! dies there has a small file as before; its bytes are sent once more when it is spread the next time.

use crate::codec::Reader;
use crate::engine::Engine;
use crate::inode::{Attr, Inode, Timestamp, encode_layout};
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::opens::Effect;
use crate::{EngineError, MetaError};
use weft_layout::Layout;

/// The greatest bound of a small file's size that a server can be given.
pub const SMALL_FILE_BYTES_MAX: u32 = 64 * 1024;

const BYTES_VERSION: u8 = 1;

/// Bytes of a small file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallBytes {
    /// Those asked for, as far as the file goes.
    pub bytes: Vec<u8>,
    /// The size of the file.
    pub file_bytes: u64,
}

/// What is to be done with a file that shall be striped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Nothing more: it is striped.
    Done,
    /// The bytes are to be put into the file's first data file.
    Move {
        /// Where the file's bytes go.
        layout: Layout,
        /// All of them.
        bytes: Vec<u8>,
        /// Somebody may have been told that they are durable.
        durable: bool,
    },
}

/// The value under a `b` key.
fn encode_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + bytes.len());
    value.push(BYTES_VERSION);
    value.extend_from_slice(bytes);
    value
}

/// The bytes in the value under a `b` key.
pub(crate) fn small_bytes<'a>(key: &'a [u8], value: &'a [u8]) -> Result<&'a [u8], EngineError> {
    Ok(Reader::with_version(key, value, BYTES_VERSION)?.remainder())
}

impl<E: Engine> Op<'_, E> {
    /// How many bytes a file may have and lie with its inode; 0 if it is striped.
    pub(crate) fn small_bound(&self, inode: &Inode) -> u32 {
        let Some(layout) = inode.layout.filter(|_| inode.small) else { return 0 };
        // After the bound was lowered, files that are larger stay as they are.
        let kept = u32::try_from(inode.size).unwrap_or(0);
        self.ns.options.small_file_bytes.max(kept).clamp(1, SMALL_FILE_BYTES_MAX).min(layout.strip_bytes())
    }

    /// How many bytes the file `ino` may have and lie with its inode; 0 if it is striped.
    pub fn small_bytes(&mut self, ino: u64) -> Result<u32, MetaError> {
        let inode = self.need(ino)?;
        Ok(self.small_bound(&inode))
    }

    /// All bytes of a small file, as many as its size says.
    fn bytes_of(&mut self, inode: &Inode) -> Result<Vec<u8>, MetaError> {
        let key = keys::small(inode.ino);
        let mut bytes = match self.record(&key)? {
            None => Vec::new(),
            Some(mut value) => {
                small_bytes(&key, &value)?;
                value.drain(..1);
                value
            }
        };
        bytes.resize(inode.size as usize, 0);
        Ok(bytes)
    }

    fn put_bytes(&mut self, inode: &mut Inode, bytes: &[u8]) {
        inode.size = bytes.len() as u64;
        match bytes.is_empty() {
            true => self.delete(keys::small(inode.ino)),
            false => self.put(keys::small(inode.ino), encode_bytes(bytes)),
        }
    }

    /// Up to `bytes` bytes of a small file from `offset` on. `None` if the file is striped.
    pub fn read_small(&mut self, ino: u64, offset: u64, bytes: u64) -> Result<Option<SmallBytes>, MetaError> {
        let inode = self.need(ino)?;
        if !inode.small {
            return Ok(None);
        }
        let begin = offset.min(inode.size) as usize;
        let end = offset.saturating_add(bytes).min(inode.size) as usize;
        let mut all = if begin < end { self.bytes_of(&inode)? } else { Vec::new() };
        all.truncate(end);
        all.drain(..begin.min(all.len()));
        Ok(Some(SmallBytes { bytes: all, file_bytes: inode.size }))
    }

    /// Writes bytes of a small file. `None` if the file is striped.
    ///
    /// # Errors
    /// `Small` if the file would grow beyond the bound, or is being spread: it is to be spread first.
    pub fn write_small(
        &mut self,
        now: Timestamp,
        ino: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Option<Attr>, MetaError> {
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            let bound = op.small_bound(&inode);
            if !inode.small {
                return Ok(None);
            }
            let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= u64::from(bound));
            let end = end.filter(|_| !op.is_being_spread(ino)).ok_or(MetaError::Small { ino })? as usize;
            let mut all = match offset == 0 && end as u64 >= inode.size {
                true => Vec::with_capacity(end),
                false => op.bytes_of(&inode)?,
            };
            if end as u64 > inode.size {
                op.needs_room();
            }
            if inode.size == 0 {
                op.effect(Effect::FirstBytes { ino });
            }
            all.resize(all.len().max(end), 0);
            all[offset as usize..end].copy_from_slice(bytes);
            op.put_bytes(&mut inode, &all);
            op.drop_capability(&mut inode)?;
            inode.mtime = now;
            inode.ctime = now;
            op.put_inode(inode.clone());
            Ok(Some(op.attr_of(&inode)))
        })
    }

    /// Begins to make a file striped. Until [`Op::spread_end`] its bytes must not change.
    pub fn spread_begin(&mut self, ino: u64) -> Result<Spread, MetaError> {
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            let Some(layout) = inode.layout.filter(|_| inode.small) else { return Ok(Spread::Done) };

            if inode.size == 0 {
                op.become_striped(&mut inode);
                op.put_inode(inode);
                return Ok(Spread::Done);
            }
            let bytes = op.bytes_of(&inode)?;
            // From now on a data file may be there, which goes with the inode.
            inode.ever_written = true;
            op.put_inode(inode);
            op.effect(Effect::Spread { ino, begins: true });
            let durable = !op.ns.opens.unsynced.contains(&ino);
            Ok(Spread::Move { layout, bytes, durable })
        })
    }

    /// The bytes are in the data file, durable or not. If the file was removed meanwhile, that is garbage. False if they must be
    /// durable there, as a sync has promised meanwhile: then nothing has changed.
    pub fn spread_end(&mut self, ino: u64, layout: &Layout, durable: bool) -> Result<bool, MetaError> {
        self.attempt(|op| {
            if !durable && !op.ns.opens.unsynced.contains(&ino) && op.inode(ino)?.is_some() {
                return Ok(false);
            }
            op.effect(Effect::Spread { ino, begins: false });
            let Some(mut inode) = op.inode(ino)? else {
                op.leave_garbage(ino, layout);
                return Ok(true);
            };
            if inode.small {
                op.become_striped(&mut inode);
                op.put_inode(inode);
            }
            Ok(true)
        })
    }

    fn become_striped(&mut self, inode: &mut Inode) {
        inode.small = false;
        self.delete(keys::small(inode.ino));
        // From here on those who have it open may write to data files.
        inode.epoch = inode.epoch.wrapping_add(1);
        inode.dirty_size = self.ns.opens.has_writers(inode.ino);
    }

    fn is_being_spread(&self, ino: u64) -> bool {
        self.ns.opens.spreading.contains(&ino)
    }

    /// Sets the size of a small file within its bound.
    ///
    /// # Errors
    /// `Small` beyond it, or while it is being spread: the file is to be spread first.
    pub(crate) fn cut_small(&mut self, inode: &mut Inode, size: u64) -> Result<(), MetaError> {
        if size > u64::from(self.small_bound(inode)) || self.is_being_spread(inode.ino) {
            return Err(MetaError::Small { ino: inode.ino });
        }
        if size > inode.size {
            self.needs_room();
        }
        let mut bytes = if size == 0 { Vec::new() } else { self.bytes_of(inode)? };
        bytes.resize(size as usize, 0);
        if size != inode.size {
            self.drop_tail(inode.ino);
            inode.epoch = inode.epoch.wrapping_add(1);
        }
        self.put_bytes(inode, &bytes);
        Ok(())
    }

    pub(crate) fn leave_garbage(&mut self, ino: u64, layout: &Layout) {
        self.put(keys::garbage(ino), encode_layout(layout));
        self.effect(Effect::RemoveData);
    }
}

impl<E: Engine> Namespace<E> {
    /// All that was committed so far is made durable, as its caller sees to and tells.
    pub fn note_sync(&mut self) {
        self.opens.unsynced.clear();
    }

    /// The bytes of a file did not get to its data file: it is a small one as before.
    pub fn spread_failed(&mut self, ino: u64) {
        self.opens.spreading.remove(&ino);
    }
}
