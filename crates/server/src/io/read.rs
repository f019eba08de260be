//! Reading: from the data file to the client's memory, unit by unit, as the disk delivers.

use super::access::{Access, next_buffer};
use super::memory::memory_of;
use super::plan::wish;
use super::transfer::{Direction, Planned, Transfer};
use super::units::{Share, Unit, Units};
use super::work::{Work, check_flags};
use super::{DIRECT_PIECE_BYTES, IoPart, LONG_PIECE_BYTES, SENDFILE_PIECE_BYTES};
use crate::answer::{Answer, Refusal};
use crate::both::both;
use crate::spent::{Part, during};
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use weft_storage::cost::Method;
use weft_storage::{Buffer, Disk};
use weft_transport::{ConnError, ServerBulk, Source};
use weft_wire::body;
use weft_wire::limits::INLINE_BYTES_MAX;
use weft_wire::messages::{ReadReply, ReadRequest, rights};

impl<D: Disk> IoPart<D> {
    /// Delivers this server's share of the regions, as far as the data file reaches; holes are delivered as zeros.
    pub async fn read<B: ServerBulk>(
        &self,
        client: u64,
        request: ReadRequest,
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        let (ino, layout) = self.admit(&request.capability, rights::READ, request.slot)?;
        check_flags(request.flags)?;
        let mut work = Work::begin();
        let Some(file) = self.files.open(ino)? else {
            return Ok(Answer::of(&ReadReply { filled_bytes: 0, local_bytes: 0, work: work.done(self) }));
        };
        let local_bytes = file.size()?;
        let share =
            Share::of(&layout, request.slot, &request.regions, local_bytes, &|| bulk.is_gone()).await?;
        let filled_bytes = share.filled_bytes;
        let mut units = Units::new(&layout, request.slot, &request.regions, filled_bytes);
        let access = Access::new(&file, &self.pool, client);
        let file = Planned { access, planner: self.planner(false, false, wish(request.flags)), local_bytes };
        let placed = |refusal: Refusal| refusal.placed(ino, &layout, request.slot);
        let mut payload = Vec::new();
        // A client that described its memory has its data put there, however little it is.
        if bulk.info().bytes == 0 && filled_bytes <= INLINE_BYTES_MAX as u64 {
            payload.resize(filled_bytes as usize, 0);
            let mut at = 0;
            while let Some(unit) = units.next_at_most(filled_bytes, &|| bulk.is_gone()).await? {
                if at > 0 {
                    weft_reactor::yield_now().await;
                }
                let memory = [memory_of(&mut payload[at..at + unit.bytes as usize])];
                let moved = file.access(Direction::Read, &unit.pieces, &memory, &mut work).await;
                moved.map_err(placed)?;
                at += unit.bytes as usize;
            }
        } else {
            let transfer = Transfer { file, bulk, work: &mut work };
            // In a box, so that a small request has a small task.
            Box::pin(Reader { transfer, unput: None }.run(&mut units)).await.map_err(placed)?;
        }
        let body = body::encode(&ReadReply { filled_bytes, local_bytes, work: work.done(self) });
        Ok(Answer { body, payload, moved_bytes: filled_bytes })
    }
}

struct Reader<'a, D: Disk, B: ServerBulk> {
    transfer: Transfer<'a, D, B>,
    /// A unit that was read into a buffer and not yet put.
    unput: Option<Filled>,
}

/// A part of a share, in a buffer.
struct Filled {
    share_offset: u64,
    bytes: usize,
    buffer: Buffer,
}

impl<D: Disk, B: ServerBulk> Reader<'_, D, B> {
    async fn run(mut self, units: &mut Units<'_>) -> Result<(), Refusal> {
        while let Some(unit) = self.transfer.next(units).await? {
            self.move_unit(unit).await?;
            // What is in memory is moved without waiting: other clients get their turn between units.
            weft_reactor::yield_now().await;
        }
        self.put_last().await
    }

    /// By the shortest way there is; see the table in this module's parent.
    async fn move_unit(&mut self, unit: Unit) -> Result<(), Refusal> {
        if self.transfer.in_place(Direction::Read, &unit).await? {
            return Ok(());
        }
        let (file, bulk) = (self.transfer.file.access.file, self.transfer.bulk.info());
        let wish = self.transfer.file.planner.wish;
        if matches!(wish, None | Some(Method::Each))
            && bulk.files
            && unit.has_long_pieces(SENDFILE_PIECE_BYTES)
            && let Some(fd) = file.raw_fd()
            && unit.pieces.iter().all(|piece| file.resident(*piece))
        {
            file.verify(&unit.pieces).await?;
            return self.send_file(&unit, fd).await;
        }
        let direct = match wish {
            None | Some(Method::Mapped) => unit.has_long_pieces(DIRECT_PIECE_BYTES),
            Some(Method::Each) => unit.has_long_pieces(LONG_PIECE_BYTES),
            Some(Method::Sieve) => false,
        };
        if direct && bulk.mapped && self.put_mapped(&unit).await? {
            return Ok(());
        }
        self.read_and_put(unit).await
    }

    async fn send_file(&mut self, unit: &Unit, fd: RawFd) -> Result<(), Refusal> {
        self.put_waiting().await?;
        // SAFETY: the descriptor is open as long as the handle, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut share_offset = unit.share_offset;
        for piece in &unit.pieces {
            let source = Source::file(fd, piece.offset, piece.bytes);
            during(Part::Send, self.transfer.bulk.put(share_offset, source)).await?;
            share_offset += piece.bytes;
        }
        self.transfer.work.read_each(&unit.pieces);
        Ok(())
    }

    /// Puts the unit from the pages of the data file. False if it cannot be had so: a page is not in memory or went (the file
    /// was cut meanwhile), or no window is free.
    async fn put_mapped(&mut self, unit: &Unit) -> Result<bool, Refusal> {
        let file = &self.transfer.file;
        file.access.file.verify(&unit.pieces).await?;
        let Some(mapped) = file.planner.mapped(file.access.file, &unit.pieces) else { return Ok(false) };
        self.put_waiting().await?;
        let pieces = mapped.addresses();
        // SAFETY: the pieces are mapped as long as `mapped` lives, and only system calls touch them here.
        let source = unsafe { Source::mapped(&pieces) };
        let put = during(Part::Send, self.transfer.bulk.put(unit.share_offset, source)).await;
        match put {
            Ok(()) if mapped.is_whole() => {
                self.transfer.work.mapped(&unit.pieces);
                Ok(true)
            }
            Ok(()) | Err(ConnError::ClientMemory { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the unit into buffers; while one is filled from the disk, the one before is put.
    async fn read_and_put(&mut self, mut unit: Unit) -> Result<(), Refusal> {
        while unit.bytes > 0 {
            let want_bytes = unit.bytes.min(self.transfer.bulk.info().unit_bytes) as usize;
            let (pool, client) = (self.transfer.file.access.pool, self.transfer.file.access.client);
            let give_back = self.unput.is_some().then(|| self.put_waiting());
            let mut buffer = next_buffer(pool, client, want_bytes, give_back).await?;
            let part = unit.split_front(buffer.len() as u64);
            let bytes = part.bytes as usize;
            let memory = [memory_of(&mut buffer[..bytes])];
            let Transfer { file, bulk, work } = &mut self.transfer;
            match self.unput.take() {
                Some(before) => {
                    let slices = [IoSlice::new(&before.buffer[..before.bytes])];
                    let put = during(Part::Send, bulk.put(before.share_offset, Source::slices(&slices)));
                    let read = file.access(Direction::Read, &part.pieces, &memory, work);
                    let (put, read) = both(put, read).await;
                    put?;
                    read?;
                }
                None => file.timed_access(Direction::Read, &part.pieces, &memory, work).await?,
            }
            self.unput = Some(Filled { share_offset: part.share_offset, bytes, buffer });
        }
        Ok(())
    }

    async fn put_waiting(&mut self) -> Result<(), Refusal> {
        if let Some(Filled { share_offset, bytes, buffer }) = self.unput.take() {
            let slices = [IoSlice::new(&buffer[..bytes])];
            during(Part::Send, self.transfer.bulk.put(share_offset, Source::slices(&slices))).await?;
        }
        Ok(())
    }

    /// Hands the part that waits over with its buffer: it may go out with the reply.
    async fn put_last(mut self) -> Result<(), Refusal> {
        if let Some(Filled { share_offset, bytes, mut buffer }) = self.unput.take() {
            let memory = [memory_of(&mut buffer[..bytes])];
            // SAFETY: the memory is the buffer's, which is nobody else's until it is dropped.
            let source = unsafe { Source::kept(&memory, Rc::new(buffer)) };
            during(Part::Send, self.transfer.bulk.put(share_offset, source)).await?;
        }
        Ok(())
    }
}
