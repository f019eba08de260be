//! Reading: from the data file to the client's memory, unit by unit, as the disk delivers.

use super::units::{Share, Unit, Units};
use super::work::{Work, check_flags};
use super::{BUFFERED_UNIT_BYTES, IoPart, LONG_PIECE_BYTES};
use crate::answer::{Answer, Refusal};
use crate::both::both;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use weft_storage::{Buffer, DataFile, Disk};
use weft_transport::{ConnError, ServerBulk};
use weft_wire::Wire;
use weft_wire::limits::{INLINE_BYTES_MAX, UNIT_BYTES_MAX};
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
            return Ok(Answer::of(&ReadReply { filled_bytes: 0, local_bytes: 0, work: work.done() }));
        };
        let local_bytes = file.size()?;
        let share = Share::of(&layout, request.slot, &request.regions, local_bytes).await?;
        let filled_bytes = share.filled_bytes;
        let mut units = Units::new(&layout, request.slot, &request.regions, filled_bytes);
        let mut payload = Vec::new();
        // A client that described its memory has its data put there, however little it is.
        let inline_max = INLINE_BYTES_MAX as u64;
        if filled_bytes.max(bulk.bytes()) <= inline_max && bulk.local(0, filled_bytes).is_none() {
            payload.resize(filled_bytes as usize, 0);
            let mut at = 0;
            while let Some(unit) = units.next_at_most(filled_bytes) {
                work.read(&unit);
                file.read_pieces(&unit.pieces, &mut payload[at..]).await?;
                at += unit.bytes as usize;
            }
        } else {
            let mut transfer =
                Transfer { part: self, client, file: &file, bulk, work: &mut work, unput: None };
            transfer.run(&mut units).await?;
        }
        let body = ReadReply { filled_bytes, local_bytes, work: work.done() }.to_bytes();
        Ok(Answer { body, payload, moved_bytes: filled_bytes })
    }
}

/// One read under way.
struct Transfer<'a, D: Disk, B: ServerBulk> {
    part: &'a IoPart<D>,
    client: u64,
    file: &'a DataFile<D>,
    bulk: &'a mut B,
    work: &'a mut Work,
    /// A unit that was read into a buffer and not yet put.
    unput: Option<(u64, usize, Buffer)>,
}

impl<D: Disk, B: ServerBulk> Transfer<'_, D, B> {
    async fn run(&mut self, units: &mut Units<'_>) -> Result<(), Refusal> {
        while let Some(unit) = units.next_at_most(UNIT_BYTES_MAX as u64) {
            self.work.read(&unit);
            self.move_unit(unit).await?;
            // What is in memory is moved without waiting: other clients get their turn between units.
            weft_reactor::yield_now().await;
        }
        self.put_waiting().await
    }

    /// By the shortest way there is; see the table in this module's parent.
    async fn move_unit(&mut self, unit: Unit) -> Result<(), Refusal> {
        if let Some(memory) = self.bulk.local(unit.share_offset, unit.bytes) {
            return read_into(self.file, &unit, &memory).await;
        }
        let resident = unit.has_long_pieces(LONG_PIECE_BYTES)
            && (self.bulk.sends_files() || self.bulk.reaches_mapped())
            && unit.pieces.iter().all(|piece| self.file.resident(*piece));
        match self.file.raw_fd() {
            Some(fd) if resident && self.bulk.sends_files() => self.send_file(&unit, fd).await,
            _ if resident && self.bulk.reaches_mapped() => self.put_mapped(unit).await,
            _ => self.read_and_put(unit).await,
        }
    }

    async fn send_file(&mut self, unit: &Unit, fd: RawFd) -> Result<(), Refusal> {
        self.put_waiting().await?;
        // SAFETY: the descriptor is open as long as the handle, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut share_offset = unit.share_offset;
        for piece in &unit.pieces {
            self.bulk.put_file(share_offset, fd, piece.offset, piece.bytes).await?;
            share_offset += piece.bytes;
        }
        Ok(())
    }

    /// Puts the unit from the pages of the data file. What cannot be had so (the file was cut meanwhile, no window is free)
    /// goes through a buffer.
    async fn put_mapped(&mut self, mut unit: Unit) -> Result<(), Refusal> {
        self.put_waiting().await?;
        while let Some(piece) = unit.pieces.first().copied() {
            let Some(window) = self.file.map(piece.offset, piece.bytes) else {
                return self.read_and_put(unit).await;
            };
            let (bytes, Some(pages)) = (window.bytes(), NonNull::new(window.as_ptr())) else {
                return self.read_and_put(unit).await;
            };
            // SAFETY: the window is mapped as long as `window` lives, and only system calls touch it.
            let put = unsafe { self.bulk.put_mapped(unit.share_offset, pages, bytes).await };
            match put {
                Ok(()) => drop(unit.split_front(bytes as u64)),
                Err(ConnError::ClientMemory { .. }) => return self.read_and_put(unit).await,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads the unit into buffers; while one is filled from the disk, the one before is put.
    async fn read_and_put(&mut self, mut unit: Unit) -> Result<(), Refusal> {
        while unit.bytes > 0 {
            let mut buffer = self.take_buffer(unit.bytes).await?;
            let part = unit.split_front(buffer.len() as u64);
            let bytes = part.bytes as usize;
            let read = self.file.read_pieces(&part.pieces, &mut buffer[..bytes]);
            match self.unput.take() {
                Some((share_offset, bytes, filled)) => {
                    let slices = [IoSlice::new(&filled[..bytes])];
                    let (put, read) = both(self.bulk.put(share_offset, &slices), read).await;
                    put?;
                    read?;
                }
                None => {
                    read.await?;
                }
            }
            self.unput = Some((part.share_offset, bytes, buffer));
        }
        Ok(())
    }

    /// A further buffer where there is one, else the one that is held, after it was put.
    async fn take_buffer(&mut self, bytes: u64) -> Result<Buffer, Refusal> {
        let want = bytes.min(BUFFERED_UNIT_BYTES) as usize;
        if self.unput.is_some() {
            if let Some(buffer) = self.part.pool.try_take_more(self.client, want) {
                return Ok(buffer);
            }
            self.put_waiting().await?;
        }
        Ok(self.part.pool.take(self.client, want).await)
    }

    async fn put_waiting(&mut self) -> Result<(), Refusal> {
        if let Some((share_offset, bytes, buffer)) = self.unput.take() {
            self.bulk.put(share_offset, &[IoSlice::new(&buffer[..bytes])]).await?;
        }
        Ok(())
    }
}

/// Reads a unit straight into client memory that is in this process.
async fn read_into<D: Disk>(
    file: &DataFile<D>,
    unit: &Unit,
    memory: &[(NonNull<u8>, usize)],
) -> Result<(), Refusal> {
    let mut memory = Pieces::over(memory);
    for piece in &unit.pieces {
        let taken = memory.take(piece.bytes as usize);
        // SAFETY: the transport vouches for the memory while the request is under way; what the client's process does to it
        // meanwhile is between the client and itself, as the bytes are only written, by the kernel.
        let slices =
            || taken.iter().map(|(at, bytes)| unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), *bytes) });
        let mut into: Vec<IoSliceMut<'_>> = slices().map(IoSliceMut::new).collect();
        let mut read = file.read_vectored(piece.offset, &mut into).await?;
        drop(into);
        for slice in slices() {
            let present = read.min(slice.len());
            slice[present..].fill(0);
            read -= present;
        }
    }
    Ok(())
}

/// Pieces of memory, taken from the front.
pub(super) struct Pieces<'a> {
    rest: &'a [(NonNull<u8>, usize)],
    /// Of the first piece, already taken.
    taken: usize,
}

impl<'a> Pieces<'a> {
    pub fn over(memory: &'a [(NonNull<u8>, usize)]) -> Pieces<'a> {
        Pieces { rest: memory, taken: 0 }
    }

    /// The next `bytes` bytes.
    pub fn take(&mut self, mut bytes: usize) -> Vec<(NonNull<u8>, usize)> {
        let mut pieces = Vec::new();
        while bytes > 0
            && let Some((start, length)) = self.rest.first()
        {
            let part = bytes.min(length - self.taken);
            // SAFETY: `taken` is less than the piece's length.
            pieces.push((unsafe { start.add(self.taken) }, part));
            bytes -= part;
            self.taken += part;
            if self.taken == *length {
                self.rest = &self.rest[1..];
                self.taken = 0;
            }
        }
        pieces
    }
}
