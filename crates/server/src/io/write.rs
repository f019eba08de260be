//! Writing: from the client's memory to the data file, unit by unit, as the bytes arrive.

use super::read::Pieces;
use super::units::{Share, Unit, Units};
use super::work::{Work, check_flags};
use super::{BUFFERED_UNIT_BYTES, IoPart};
use crate::answer::{Answer, Refusal};
use crate::both::both;
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use weft_storage::{Buffer, DataFile, Disk};
use weft_transport::ServerBulk;
use weft_wire::limits::UNIT_BYTES_MAX;
use weft_wire::messages::{WriteReply, WriteRequest, io_flags, rights};
use weft_wire::{Status, Wire};

impl<D: Disk> IoPart<D> {
    /// Fetches this server's share of the regions and writes it.
    pub async fn write<B: ServerBulk>(
        &self,
        client: u64,
        request: WriteRequest,
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::WRITE, request.slot)?;
        check_flags(request.flags)?;
        let mut work = Work::begin();
        let share = Share::of(&layout, request.slot, &request.regions, 0).await?;
        if bulk.bytes() != share.bytes {
            let text = format!("{} bytes came for {} bytes of the file", bulk.bytes(), share.bytes);
            return Err(Refusal::new(Status::Malformed, text));
        }
        if share.bytes == 0 {
            let local_bytes = self.files.size(ino)?;
            return Ok(Answer::of(&WriteReply { written_bytes: 0, local_bytes, work: work.done() }));
        }
        let file = self.files.create(ino)?;
        let mut units = Units::new(&layout, request.slot, &request.regions, share.bytes);
        let mut transfer =
            Transfer { part: self, client, file: &file, bulk, work: &mut work, unwritten: None };
        transfer.run(&mut units).await?;
        self.settle(Some(&file), request.flags & io_flags::SYNC != 0).await?;
        let reply = WriteReply { written_bytes: share.bytes, local_bytes: file.size()?, work: work.done() };
        Ok(Answer { body: reply.to_bytes(), moved_bytes: share.bytes, ..Answer::default() })
    }
}

/// One write under way.
struct Transfer<'a, D: Disk, B: ServerBulk> {
    part: &'a IoPart<D>,
    client: u64,
    file: &'a DataFile<D>,
    bulk: &'a mut B,
    work: &'a mut Work,
    /// A unit that was fetched into a buffer and not yet written.
    unwritten: Option<(Unit, Buffer)>,
}

impl<D: Disk, B: ServerBulk> Transfer<'_, D, B> {
    async fn run(&mut self, units: &mut Units<'_>) -> Result<(), Refusal> {
        while let Some(unit) = units.next_at_most(UNIT_BYTES_MAX as u64) {
            self.work.write(&unit);
            match self.bulk.local(unit.share_offset, unit.bytes) {
                Some(memory) => write_from(self.file, &unit, &memory).await?,
                None => self.get_and_write(unit).await?,
            }
            // What is there already is written without waiting: other clients get their turn between units.
            weft_reactor::yield_now().await;
        }
        self.write_waiting().await
    }

    /// Fetches the unit into buffers; while one is filled from the client, the one before is written.
    async fn get_and_write(&mut self, mut unit: Unit) -> Result<(), Refusal> {
        while unit.bytes > 0 {
            let mut buffer = self.take_buffer(unit.bytes).await?;
            let part = unit.split_front(buffer.len() as u64);
            let mut slices = [IoSliceMut::new(&mut buffer[..part.bytes as usize])];
            let get = self.bulk.get(part.share_offset, &mut slices);
            match self.unwritten.take() {
                Some((before, filled)) => {
                    let (get, written) = both(get, write_buffer(self.file, &before, &filled)).await;
                    written?;
                    get?;
                }
                None => get.await?,
            }
            self.unwritten = Some((part, buffer));
        }
        Ok(())
    }

    /// A further buffer where there is one, else the one that is held, after it was written.
    async fn take_buffer(&mut self, bytes: u64) -> Result<Buffer, Refusal> {
        let want = bytes.min(BUFFERED_UNIT_BYTES) as usize;
        if self.unwritten.is_some() {
            if let Some(buffer) = self.part.pool.try_take_more(self.client, want) {
                return Ok(buffer);
            }
            self.write_waiting().await?;
        }
        Ok(self.part.pool.take(self.client, want).await)
    }

    async fn write_waiting(&mut self) -> Result<(), Refusal> {
        if let Some((unit, buffer)) = self.unwritten.take() {
            write_buffer(self.file, &unit, &buffer).await?;
        }
        Ok(())
    }
}

async fn write_buffer<D: Disk>(file: &DataFile<D>, unit: &Unit, buffer: &[u8]) -> Result<(), Refusal> {
    let mut rest = buffer;
    for piece in &unit.pieces {
        let (front, behind) = rest.split_at(piece.bytes as usize);
        file.write(piece.offset, front).await?;
        rest = behind;
    }
    Ok(())
}

/// Writes a unit straight from client memory that is in this process.
async fn write_from<D: Disk>(
    file: &DataFile<D>,
    unit: &Unit,
    memory: &[(NonNull<u8>, usize)],
) -> Result<(), Refusal> {
    let mut memory = Pieces::over(memory);
    for piece in &unit.pieces {
        let taken = memory.take(piece.bytes as usize);
        // SAFETY: the transport vouches for the memory while the request is under way; what the client's process does to it
        // meanwhile is between the client and itself, as the bytes are only read, by the kernel.
        let slices =
            taken.iter().map(|(at, bytes)| unsafe { std::slice::from_raw_parts(at.as_ptr(), *bytes) });
        let mut from: Vec<IoSlice<'_>> = slices.map(IoSlice::new).collect();
        file.write_vectored(piece.offset, &mut from).await?;
    }
    Ok(())
}
