//! Copying between files where both have their bytes on this server: from data file to data file, with no client in between.
//!
//! ```text
//!   from    ....dddddddd........dddd|         d: data   .: hole   |: end of the data file
//!   to      ....dddddddd........dddd....      holes are punched where the target has bytes, and its end is set
//!               └ chunk ┘└ punch ┘
//! ```

use super::{IoPart, local_range};
use crate::answer::{Answer, Refusal};
use weft_layout::{Extent, slot_shift};
use weft_storage::{DataFile, Disk, Seek};
use weft_wire::messages::{CopyRangeReply, CopyRangeRequest, rights};
use weft_wire::{Status, body};

/// Copied before other tasks of the thread get their turn.
const CHUNK_BYTES: u64 = 1 << 20;

impl<D: Disk> IoPart<D> {
    /// Copies this server's share of a range, with its holes.
    pub async fn copy_range(&self, request: CopyRangeRequest) -> Result<Answer, Refusal> {
        let (from_ino, from_layout) = self.admit(&request.from, rights::READ, request.from_slot)?;
        let (to_ino, to_layout) = self.admit(&request.to, rights::WRITE, request.to_slot)?;
        let shift = slot_shift(&from_layout, request.from_offset, &to_layout, request.to_offset);
        let slots =
            (u32::from(request.from_slot), u32::from(request.to_slot), u32::from(from_layout.server_count()));
        if shift.is_none_or(|shift| (slots.0 + u32::from(shift)) % slots.2 != slots.1) {
            return Err(Refusal::new(Status::Invalid, "the two ranges do not lie on the same servers"));
        }
        let from = local_range(&from_layout, request.from_slot, request.from_offset, request.bytes)?;
        let to = local_range(&to_layout, request.to_slot, request.to_offset, request.bytes)?;
        self.admit_end(&request.to, || request.to_offset + request.bytes)?;
        if from_ino == to_ino && from.offset < to.end() && to.offset < from.end() {
            return Err(Refusal::new(Status::Invalid, "the two ranges of the file overlap"));
        }
        let loss_epoch = self.loss_epoch(to_ino);
        if to.bytes == 0 {
            let local_bytes = self.files.size(to_ino)?;
            return Ok(Answer::of(&CopyRangeReply { copied_bytes: 0, local_bytes, loss_epoch }));
        }
        let source = self.files.open(from_ino)?;
        // One that was cut would be copied with holes.
        source.as_ref().map_or(Ok(0), |source| source.size())?;
        let target = self.files.create_in(to_ino, &to_layout)?;
        let copied_bytes = match &source {
            Some(source) => copy(source, from, &target, to.offset).await?,
            None => clear(&target, to).await.map(|()| 0)?,
        };
        extend(&target, to).await?;
        let loss_epoch = self.settle(Some(&target), false, loss_epoch).await?;
        let reply = CopyRangeReply { copied_bytes, local_bytes: target.size()?, loss_epoch };
        Ok(Answer { body: body::encode(&reply), moved_bytes: copied_bytes, ..Answer::default() })
    }
}

/// Copies `range` of `source` to `to_offset` of `target`, holes as holes; the bytes of data.
async fn copy<D: Disk>(
    source: &DataFile<D>,
    range: Extent,
    target: &DataFile<D>,
    to_offset: u64,
) -> Result<u64, Refusal> {
    let there = |offset: u64| to_offset + (offset - range.offset);
    let (mut at, mut copied_bytes) = (range.offset, 0);
    while at < range.end() {
        let data = source.seek(at, Seek::Data)?.map_or(range.end(), |data| data.min(range.end()));
        if data > at {
            clear(target, Extent::new(there(at), data - at)).await?;
            at = data;
            continue;
        }
        let hole = source.seek(at, Seek::Hole)?.unwrap_or(range.end()).clamp(at, range.end());
        while at < hole {
            let chunk = Extent::new(at, CHUNK_BYTES.min(hole - at));
            if !source.resident(chunk) {
                source.fetch(&[chunk]).await;
            }
            source.verify(&[chunk]).await?;
            let turn = target.plain_turn(Extent::new(there(at), chunk.bytes)).await;
            let copied = source.copy_some(at, target, there(at), chunk.bytes)?;
            drop(turn);
            if copied == 0 {
                // It was cut meanwhile; the rest is found to be a hole.
                break;
            }
            (at, copied_bytes) = (at + copied, copied_bytes + copied);
            weft_reactor::yield_now().await;
        }
    }
    Ok(copied_bytes)
}

/// Makes a range of the target a hole, as far as it has bytes there.
async fn clear<D: Disk>(target: &DataFile<D>, range: Extent) -> Result<(), Refusal> {
    let _turn = target.plain_turn(range).await;
    if range.offset < target.size()? {
        target.punch(range.offset, range.bytes)?;
    }
    Ok(())
}

/// Lets the target reach to the end of `range`, where that is a hole. Nobody writes behind its beginning meanwhile, so that what
/// is found to be the end still is when it is set.
async fn extend<D: Disk>(target: &DataFile<D>, range: Extent) -> Result<(), Refusal> {
    if target.size()? < range.end() {
        let _turn = target.exclusive_turn(Extent::new(range.offset, u64::MAX - range.offset)).await;
        if target.size()? < range.end() {
            target.truncate(range.end())?;
        }
    }
    Ok(())
}
