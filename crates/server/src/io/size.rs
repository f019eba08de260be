//! Operations on a data file's size and space, and making it durable.

use super::{IoPart, local_range};
use crate::answer::{Answer, Refusal};
use crate::spent::{Part, during};
use weft_layout::{Extent, Layout};
use weft_storage::{DataFiles, Disk, Seek, StorageError};
use weft_wire::messages::*;

impl<D: Disk> IoPart<D> {
    /// Makes what was written durable.
    pub async fn sync(&self, request: SyncRequest) -> Result<Answer, Refusal> {
        let ino = self.admit_any(&request.capability)?;
        during(Part::Sync, self.files.sync(ino)).await?;
        Ok(Answer::of(&self.data_size(ino, self.loss_epoch(ino))?))
    }

    /// Makes durable what anybody has written.
    pub async fn sync_all(&self, _request: SyncAllRequest) -> Result<Answer, Refusal> {
        during(Part::Sync, self.files.sync_all()).await?;
        Ok(Answer::of(&SyncAllReply { loss_epoch: self.loss_epoch_of_all() }))
    }

    /// Size of the local data file.
    pub fn size(&self, request: SizeRequest) -> Result<Answer, Refusal> {
        let ino = self.admit_any(&request.capability)?;
        Ok(Answer::of(&self.data_size(ino, self.loss_epoch(ino))?))
    }

    /// Cuts or extends the local data file to what a file of this size has here.
    pub async fn truncate(&self, request: TruncateRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, 0, request.file_bytes)?;
        self.admit_end(&request.capability, || request.file_bytes)?;
        let loss_epoch = self
            .change(ino, &layout, Extent::new(0, u64::MAX), |files| files.truncate(ino, local.bytes))
            .await?;
        Ok(Answer::of(&self.data_size(ino, loss_epoch)?))
    }

    /// Frees the space under a range.
    pub async fn punch(&self, request: RangeRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        if local.bytes == 0 {
            return Ok(Answer::of(&self.data_size(ino, self.loss_epoch(ino))?));
        }
        let punch = |files: &DataFiles<D>| files.punch(ino, local.offset, local.bytes);
        let loss_epoch = self.change(ino, &layout, local, punch).await?;
        Ok(Answer::of(&self.data_size(ino, loss_epoch)?))
    }

    /// Reserves space for a range.
    pub async fn allocate(&self, request: AllocateRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        self.admit_end(&request.capability, || request.offset + request.bytes)?;
        let allocate =
            |files: &DataFiles<D>| files.allocate(ino, local.offset, local.bytes, request.keep_size);
        let loss_epoch = self.change(ino, &layout, local, allocate).await?;
        Ok(Answer::of(&self.data_size(ino, loss_epoch)?))
    }

    /// Makes a range zeros that have space.
    pub async fn zero(&self, request: ZeroRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        self.admit_end(&request.capability, || request.offset + request.bytes)?;
        let zero = |files: &DataFiles<D>| files.zero(ino, local.offset, local.bytes, request.keep_size);
        let loss_epoch = self.change(ino, &layout, local, zero).await?;
        Ok(Answer::of(&self.data_size(ino, loss_epoch)?))
    }

    /// Where data and holes of the local data file are next.
    pub fn seek(&self, request: SeekRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, 0, request.slot)?;
        let begin = local_range(&layout, request.slot, request.offset, 0)?.offset;
        let Some(file) = self.files.open(ino)? else {
            return Ok(Answer::of(&SeekReply { data_offset: None, hole_offset: begin, local_bytes: 0 }));
        };
        let local_bytes = file.size()?;
        let data_offset = file.seek(begin, Seek::Data)?.filter(|found| *found < local_bytes);
        let hole_offset = file.seek(begin, Seek::Hole)?.unwrap_or(begin);
        Ok(Answer::of(&SeekReply { data_offset, hole_offset, local_bytes }))
    }

    /// Changes a data file, while no read-modify-write goes on where it changes, and makes that durable where that is wanted.
    /// Returns the loss epoch for the answer.
    async fn change(
        &self,
        ino: u64,
        layout: &Layout,
        extent: Extent,
        change: impl FnOnce(&DataFiles<D>) -> Result<(), StorageError>,
    ) -> Result<u64, Refusal> {
        let loss_epoch = self.loss_epoch(ino);
        let before = self.files.open_if_there(ino)?;
        let _turn = match &before {
            Some(file) => Some(during(Part::Turn, file.plain_turn(extent)).await),
            None => None,
        };
        change(&self.files)?;
        let after = self.files.open_if_there(ino)?;
        if let (None, Some(made)) = (&before, &after) {
            self.files.note_layout(made, layout);
        }
        self.settle(after.as_ref(), false, loss_epoch).await
    }

    /// Space for data files. `disk` is what the host says of the disk.
    pub fn space(&self, disk: SpaceReply) -> Result<Answer, Refusal> {
        let space = self.files.space()?;
        Ok(Answer::of(&SpaceReply {
            space_bytes: space.total_bytes,
            free_bytes: disk.free_bytes.clamp(space.available_bytes, space.total_bytes),
            available_bytes: space.available_bytes,
            disk_id: disk.disk_id,
        }))
    }
}
