//! Places for appends: where the next bytes that somebody appends belong.
//!
//! ```text
//!   size on the I/O servers 100, no place given out       append of 10 ─► 100, and the tail is 110
//!   the bytes are still on their way, size 100            append of 5  ─► 110, and the tail is 115
//!   meanwhile another has written up to 200               append of 5  ─► 200, and the tail is 205
//! ```
//!
//! A place is the greater of the *tail* (the end of all places given out) and the size that the client has just measured. The tail is
//! in the store, in the batch of the reply: a server that was killed gives no place twice, and a repeated request
//! gets the place it had. It is kept while somebody has the file open for writing. A place that is not used (its
//! client died, the disk was full) stays a hole.
//!
//! A truncation takes the tail back. What was measured before it or during it does not count: its epoch is not the file's any
//! more, for the beginning and the end of a truncation change it. The client measures again.

use crate::MetaError;
use crate::caller::SessionId;
use crate::engine::Engine;
use crate::inode::SIZE_MAX;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::opens::Effect;
use crate::tails::encode_tail;
use weft_layout::shard_of;

/// Where bytes to be appended belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendPlace {
    /// The offset; `None` where the size that was given may be wrong: it is to be measured again, from `epoch` on.
    pub offset: Option<u64>,
    /// The file's epoch now.
    pub epoch: u64,
}

impl<E: Engine> Op<'_, E> {
    /// Gives `bytes` bytes a place at the end of a file, whose size was measured to be `file_bytes` from `epoch` on. `Stale` if
    /// the session does not have the file open for writing.
    pub fn append_place(
        &mut self,
        session: SessionId,
        ino: u64,
        bytes: u64,
        file_bytes: u64,
        epoch: u64,
    ) -> Result<AppendPlace, MetaError> {
        self.attempt(|op| {
            let current = op.need(ino)?.public_epoch(op.ns.incarnation);
            let file = op.open_file(ino).filter(|file| file.held_by(session).writers > 0);
            let cutting = file.ok_or(MetaError::Stale)?.total.truncations > 0;
            if cutting || epoch != current {
                return Ok(AppendPlace { offset: None, epoch: current });
            }
            let offset = op.ns.opens.tails.get(&ino).copied().unwrap_or(0).max(file_bytes);
            let end = offset.checked_add(bytes).filter(|end| *end <= SIZE_MAX);
            let tail = end.ok_or(MetaError::Invalid("end of an append"))?;
            op.set_tail(ino, Some(tail));
            Ok(AppendPlace { offset: Some(offset), epoch: current })
        })
    }

    /// Takes the tail of a file back, if it has one.
    pub(crate) fn drop_tail(&mut self, ino: u64) {
        if self.ns.opens.tails.contains_key(&ino) {
            self.set_tail(ino, None);
        }
    }

    fn set_tail(&mut self, ino: u64, tail: Option<u64>) {
        match tail {
            Some(tail) => self.put(keys::append_tail(ino), encode_tail(tail)),
            None => self.delete(keys::append_tail(ino)),
        }
        self.effect(Effect::SetTail { ino, tail });
    }
}

impl<E: Engine> Namespace<E> {
    /// Ends the tails of a shard's files that nobody came back to write to after a restart.
    pub(crate) fn drop_old_tails(&mut self, shard: u16) -> Result<(), MetaError> {
        let opens = &self.opens;
        let is_old = |ino: &u64| shard_of(*ino) == shard && !opens.has_writers(*ino);
        let old: Vec<u64> = opens.tails.keys().copied().filter(is_old).collect();
        let drop_tails = |op: &mut Op<'_, E>| {
            old.iter().for_each(|ino| op.drop_tail(*ino));
            Ok(())
        };
        self.change(drop_tails).map(drop)
    }
}
