//! Writing: from the client's memory to the data file, unit by unit, as the bytes arrive.

use super::access::{Access, next_buffer};
use super::memory::memory_of;
use super::plan::{span, wish};
use super::transfer::{Direction, Planned, Transfer};
use super::units::{Share, Unit, Units};
use super::work::{Work, check_flags};
use super::{DIRECT_PIECE_BYTES, IoPart};
use crate::answer::{Answer, Refusal};
use crate::both::both;
use crate::spent::{Part, during};
use std::io::IoSliceMut;
use weft_storage::cost::Method;
use weft_storage::{Buffer, Disk};
use weft_transport::{ConnError, ServerBulk};
use weft_wire::limits::INLINE_BYTES_MAX;
use weft_wire::messages::{WriteReply, WriteRequest, io_flags, rights};
use weft_wire::{Status, body};

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
        self.admit_end(&request.capability, || request.regions.span().map_or(0, |span| span.end()))?;
        let mut work = Work::begin();
        let share = Share::of(&layout, request.slot, &request.regions, 0, &|| bulk.is_gone()).await?;
        if bulk.info().bytes != share.bytes {
            let text = format!("{} bytes came for {} bytes of the file", bulk.info().bytes, share.bytes);
            return Err(Refusal::new(Status::Malformed, text));
        }
        let loss_epoch = self.loss_epoch(ino);
        if share.bytes == 0 {
            let local_bytes = self.files.size(ino)?;
            let work = work.done(self);
            return Ok(Answer::of(&WriteReply { written_bytes: 0, local_bytes, loss_epoch, work }));
        }
        let file = self.files.create_in(ino, &layout)?;
        let mut units = Units::new(&layout, request.slot, &request.regions, share.bytes);
        let sync = request.flags & io_flags::SYNC != 0;
        let access = Access::new(&file, &self.pool, client);
        let planner = self.planner(true, sync, wish(request.flags));
        let planned = Planned { access, planner, local_bytes: file.size()? };
        let transfer = Transfer { file: planned, bulk, work: &mut work };
        let is_small = share.bytes <= INLINE_BYTES_MAX as u64;
        let written = match is_small && transfer.bulk.local(0, share.bytes).is_none() {
            true => write_small(transfer, &mut units, share.bytes).await,
            // In a box, so that a small request has a small task.
            false => Box::pin(Writer { transfer, unwritten: None }.run(&mut units)).await,
        };
        written.map_err(|refusal| refusal.placed(ino, &layout, request.slot))?;
        let loss_epoch = self.settle(Some(&file), sync, loss_epoch).await?;
        let (local_bytes, work) = (file.size()?, work.done(self));
        let reply = WriteReply { written_bytes: share.bytes, local_bytes, loss_epoch, work };
        Ok(Answer { body: body::encode(&reply), moved_bytes: share.bytes, ..Answer::default() })
    }
}

/// Fetches all of a small share, and writes it.
async fn write_small<D: Disk, B: ServerBulk>(
    transfer: Transfer<'_, D, B>,
    units: &mut Units<'_>,
    bytes: u64,
) -> Result<(), Refusal> {
    let mut buffer = vec![0; bytes as usize];
    during(Part::Receive, transfer.bulk.get(0, &mut [IoSliceMut::new(&mut buffer)])).await?;
    let mut at = 0;
    while let Some(unit) = transfer.next(units).await? {
        if at > 0 {
            weft_reactor::yield_now().await;
        }
        let memory = [memory_of(&mut buffer[at..at + unit.bytes as usize])];
        transfer.file.timed_access(Direction::Write, &unit.pieces, &memory, transfer.work).await?;
        at += unit.bytes as usize;
    }
    Ok(())
}

struct Writer<'a, D: Disk, B: ServerBulk> {
    transfer: Transfer<'a, D, B>,
    /// A unit that was fetched into a buffer and not yet written.
    unwritten: Option<(Unit, Buffer)>,
}

impl<D: Disk, B: ServerBulk> Writer<'_, D, B> {
    async fn run(mut self, units: &mut Units<'_>) -> Result<(), Refusal> {
        while let Some(unit) = self.transfer.next(units).await? {
            self.move_unit(unit).await?;
            // What is there already is written without waiting: other clients get their turn between units.
            weft_reactor::yield_now().await;
        }
        self.write_waiting().await
    }

    async fn move_unit(&mut self, unit: Unit) -> Result<(), Refusal> {
        if self.transfer.in_place(Direction::Write, &unit).await? {
            return Ok(());
        }
        let several = unit.pieces.len() > 1;
        if several
            && self.transfer.bulk.info().mapped
            && unit.has_long_pieces(DIRECT_PIECE_BYTES)
            && matches!(self.transfer.file.planner.wish, None | Some(Method::Mapped))
            && self.get_mapped(&unit).await?
        {
            return Ok(());
        }
        self.get_and_write(unit).await
    }

    /// Fetches the unit into the pages of the data file. False if that cannot be: a page is not in memory or went, the file ends
    /// before, or no window is free.
    async fn get_mapped(&mut self, unit: &Unit) -> Result<bool, Refusal> {
        let span = span(&unit.pieces);
        let Planned { access, planner, local_bytes } = &self.transfer.file;
        if span.end() > *local_bytes {
            return Ok(false);
        }
        let file = access.file;
        let Some(mapped) = planner.mapped(file, &unit.pieces) else { return Ok(false) };
        self.write_waiting().await?;
        mapped.enter_to_write();
        // A change keeps nobody out, so it may last while the client is awaited. A turn may not.
        let _change = during(Part::Disk, file.begin_change(&unit.pieces)).await?;
        let mut share_offset = unit.share_offset;
        for mut run in mapped.runs() {
            while !run.is_full() {
                during(Part::Receive, self.transfer.bulk.arrival(share_offset)).await?;
                let _turn = during(Part::Turn, file.plain_turn(span)).await;
                // SAFETY: the pieces are mapped as long as `mapped` lives, and `fill` deals with pages that are gone.
                match run.fill(|pieces| unsafe { self.transfer.bulk.get_mapped(share_offset, pieces) }) {
                    Ok(bytes) => share_offset += bytes,
                    Err(ConnError::ClientMemory { .. }) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if mapped.is_whole() {
            file.note_written()?;
            self.transfer.work.mapped(&unit.pieces);
        }
        Ok(mapped.is_whole())
    }

    /// Fetches the unit into buffers; while one is filled from the client, the one before is written.
    async fn get_and_write(&mut self, mut unit: Unit) -> Result<(), Refusal> {
        while unit.bytes > 0 {
            let want_bytes = unit.bytes.min(self.transfer.bulk.info().unit_bytes) as usize;
            let (pool, client) = (self.transfer.file.access.pool, self.transfer.file.access.client);
            let give_back = self.unwritten.is_some().then(|| self.write_waiting());
            let mut buffer = next_buffer(pool, client, want_bytes, give_back).await?;
            let part = unit.split_front(buffer.len() as u64);
            let mut slices = [IoSliceMut::new(&mut buffer[..part.bytes as usize])];
            let Transfer { file, bulk, work } = &mut self.transfer;
            let get = during(Part::Receive, bulk.get(part.share_offset, &mut slices));
            match self.unwritten.take() {
                Some((before, mut filled)) => {
                    let memory = [memory_of(&mut filled[..before.bytes as usize])];
                    let store = file.timed_access(Direction::Write, &before.pieces, &memory, work);
                    let (get, written) = both(get, store).await;
                    written?;
                    get?;
                }
                None => get.await?,
            }
            self.unwritten = Some((part, buffer));
        }
        Ok(())
    }

    async fn write_waiting(&mut self) -> Result<(), Refusal> {
        if let Some((unit, mut buffer)) = self.unwritten.take() {
            let memory = [memory_of(&mut buffer[..unit.bytes as usize])];
            let Transfer { file, work, .. } = &mut self.transfer;
            file.timed_access(Direction::Write, &unit.pieces, &memory, work).await?;
        }
        Ok(())
    }
}
