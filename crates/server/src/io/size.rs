//! Operations on a data file's size and space, and making it durable.

use super::{IoPart, local_range};
use crate::answer::{Answer, Refusal};
use weft_layout::Extent;
use weft_storage::{DataFiles, Disk, Seek, StorageError};
use weft_wire::messages::*;

impl<D: Disk> IoPart<D> {
    /// Makes what was written durable.
    pub async fn sync(&self, request: SyncRequest) -> Result<Answer, Refusal> {
        let ino = self.admit_any(&request.capability)?;
        self.files.sync(ino).await?;
        Ok(Answer::of(&self.data_size(ino)?))
    }

    /// Size of the local data file.
    pub fn size(&self, request: SizeRequest) -> Result<Answer, Refusal> {
        let ino = self.admit_any(&request.capability)?;
        Ok(Answer::of(&self.data_size(ino)?))
    }

    /// Cuts or extends the local data file to what a file of this size has here.
    pub async fn truncate(&self, request: TruncateRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, 0, request.file_bytes)?;
        self.change(ino, Extent::new(0, u64::MAX), |files| files.truncate(ino, local.bytes)).await?;
        Ok(Answer::of(&self.data_size(ino)?))
    }

    /// Frees the space under a range.
    pub async fn punch(&self, request: RangeRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        if local.bytes > 0 {
            self.change(ino, local, |files| files.punch(ino, local.offset, local.bytes)).await?;
        }
        Ok(Answer::of(&self.data_size(ino)?))
    }

    /// Reserves space for a range.
    pub async fn allocate(&self, request: AllocateRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        let allocate =
            |files: &DataFiles<D>| files.allocate(ino, local.offset, local.bytes, request.keep_size);
        self.change(ino, local, allocate).await?;
        Ok(Answer::of(&self.data_size(ino)?))
    }

    /// Makes a range zeros that have space.
    pub async fn zero(&self, request: ZeroRequest) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        let local = local_range(&layout, request.slot, request.offset, request.bytes)?;
        let zero = |files: &DataFiles<D>| files.zero(ino, local.offset, local.bytes, request.keep_size);
        self.change(ino, local, zero).await?;
        Ok(Answer::of(&self.data_size(ino)?))
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
    async fn change(
        &self,
        ino: u64,
        extent: Extent,
        change: impl FnOnce(&DataFiles<D>) -> Result<(), StorageError>,
    ) -> Result<(), Refusal> {
        let before = self.files.open(ino)?;
        let _turn = match &before {
            Some(file) => Some(file.plain_turn(extent).await),
            None => None,
        };
        change(&self.files)?;
        self.settle(self.files.open(ino)?.as_ref(), false).await
    }

    /// Space of this server's disk.
    pub fn space(&self) -> Result<Answer, Refusal> {
        let space = self.files.space()?;
        Ok(Answer::of(&SpaceReply {
            space_bytes: space.total_bytes,
            free_bytes: space.available_bytes,
            available_bytes: space.available_bytes,
        }))
    }
}
