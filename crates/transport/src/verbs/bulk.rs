//! The way to the memory of one request.
//!
//! | the request's data is | get | put |
//! | --- | --- | --- |
//! | described ([`DataAt::Remote`]) | RDMA Reads into zones, else into a buffer, copied | RDMA Writes from zones, else copied first |
//! | the client's to move ([`DataAt::Lent`]) | the same memory, lent: its RDMA Writes | the same: its RDMA Reads |
//! | in the message | copied | — |
//! | in a Fast buffer | copied; lent to system calls | — |
//! | not described | — | a message of data |

use std::any::Any;
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::rc::Rc;

use weft_rdma::{BOUNCE_BYTES, Held};
use weft_verbs::{Access, Fabric, MemoryPiece};
use weft_wire::Header;
use weft_wire::limits::UNIT_BYTES_MAX;
use weft_wire::messages::LentMemory;

use super::conn::state::{ConnInner, DataAt, Deferred};
use super::lend::{self, LENT_MAX};
use crate::error::ConnError;
use crate::server::{BulkInfo, LocalMemory, ServerBulk, Source, SourceKind, slices};

/// The way to the client's memory over RDMA.
pub struct VerbsBulk<F: Fabric> {
    conn: Rc<ConnInner<F>>,
    header: Header,
    source: DataAt<F>,
}

impl<F: Fabric> std::fmt::Debug for VerbsBulk<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = match &self.source {
            DataAt::Nothing => "nothing",
            DataAt::Inline(_) => "inline",
            DataAt::Fast { .. } => "fast",
            DataAt::Remote { .. } => "remote",
            DataAt::Lent { .. } => "lent",
        };
        write!(f, "VerbsBulk {{ {source}, bytes: {} }}", self.bytes())
    }
}

impl<F: Fabric> VerbsBulk<F> {
    pub(super) fn new(conn: Rc<ConnInner<F>>, header: Header, source: DataAt<F>) -> VerbsBulk<F> {
        VerbsBulk { conn, header, source }
    }

    fn bytes(&self) -> u64 {
        match &self.source {
            DataAt::Remote { described, .. } => described.bytes(),
            DataAt::Lent { told } => told.bytes,
            _ => self.header.payload_bytes,
        }
    }

    fn check(&self, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        let end = share_offset.saturating_add(bytes);
        if end > self.bytes() {
            return Err(ConnError::Range { peer: self.conn.peer_text(), bytes: self.bytes(), end });
        }
        Ok(())
    }

    /// Where data that came with the request begins.
    fn came(&self) -> Option<NonNull<u8>> {
        match &self.source {
            DataAt::Inline(payload) => NonNull::new(payload.as_ptr().cast_mut()),
            DataAt::Fast { fast, number, data_at } => {
                // SAFETY: within the buffer: that the data fits was checked when it arrived.
                Some(unsafe { fast.slots.base(*number).add(*data_at) })
            }
            DataAt::Nothing | DataAt::Remote { .. } | DataAt::Lent { .. } => None,
        }
    }

    /// Moves between registered memory here and the client's.
    ///
    /// # Safety
    /// The pieces stay as they are, and for a read nobody else's, until this has returned or is dropped.
    async unsafe fn transfer(
        &self,
        share_offset: u64,
        local: &[MemoryPiece],
        read: bool,
    ) -> Result<(), ConnError> {
        match &self.source {
            DataAt::Remote { described, .. } => {
                let bytes = local.iter().map(|piece| u64::from(piece.bytes)).sum();
                let remote = described.pieces(share_offset, bytes);
                // SAFETY: as the caller promises.
                let moved = unsafe { self.conn.channel.transfer(local, remote, read) };
                moved.await.map_err(|ended| self.conn.of_channel(ended))
            }
            // SAFETY: as the caller promises.
            DataAt::Lent { told } if told.write == read => unsafe {
                self.transfer_lent(told, share_offset, local).await
            },
            _ => Err(self.mechanism("move data the other way than its request says")),
        }
    }

    /// Lends it to the client, which moves the data. No turn is taken for it: the pace is the client's, and
    /// one that is slow would hold up all others.
    ///
    /// # Safety
    /// As [`VerbsBulk::transfer`].
    async unsafe fn transfer_lent(
        &self,
        told: &LentMemory,
        share_offset: u64,
        local: &[MemoryPiece],
    ) -> Result<(), ConnError> {
        let access = if told.write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let mut parts = lend::parts(local, told.step_bytes);
        parts.iter_mut().for_each(|(at, _)| *at += share_offset);
        for together in parts.chunks(LENT_MAX) {
            // SAFETY: as the caller promises: what is lent ends with this function.
            let lent = unsafe { self.conn.lend(together, self.header.request_id, access) };
            for part in lent.await? {
                part.given_back().await?;
            }
        }
        Ok(())
    }

    /// The same with memory that is not registered, in steps through a registered buffer.
    async fn put_copied(&self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        let total: usize = data.iter().map(|part| part.len()).sum();
        let mut bounce = self.conn.port().bounce_slot().await;
        let mut done = 0;
        while done < total {
            let bytes = (total - done).min(BOUNCE_BYTES);
            // SAFETY: the slot is this transfer's, and no work uses it now.
            let memory = unsafe { bounce.fill() };
            copy_from(data, done, &mut memory[..bytes]);
            self.conn.port_state.transfers.copied(bytes);
            let piece = [bounce.piece(bytes)];
            // SAFETY: the slot is given back only after the transfer has returned or been dropped.
            unsafe { self.transfer(share_offset + done as u64, &piece, false) }.await?;
            done += bytes;
        }
        Ok(())
    }

    async fn get_copied(&self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        let total: usize = buffers.iter().map(|part| part.len()).sum();
        let mut bounce = self.conn.port().bounce_slot().await;
        let mut done = 0;
        while done < total {
            let bytes = (total - done).min(BOUNCE_BYTES);
            if matches!(self.source, DataAt::Lent { .. }) {
                // SAFETY: the slot is this transfer's, and no work uses it now.
                let memory = unsafe { bounce.fill() };
                memory[..bytes].fill(0);
            }
            let piece = [bounce.piece(bytes)];
            // SAFETY: the slot is this transfer's, and given back only after it has returned or been dropped.
            unsafe { self.transfer(share_offset + done as u64, &piece, true) }.await?;
            // SAFETY: the transfer has ended.
            let memory = unsafe { bounce.fill() };
            copy_to(&memory[..bytes], buffers, done);
            self.conn.port_state.transfers.copied(bytes);
            done += bytes;
        }
        Ok(())
    }

    async fn put_slices(&self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        match self.source {
            DataAt::Remote { .. } | DataAt::Lent { .. } => {}
            DataAt::Nothing => {
                let header = self.header.data(share_offset, bytes);
                return self.conn.send_message(header, &[], data, Vec::new(), None).await;
            }
            DataAt::Inline(_) | DataAt::Fast { .. } => {
                return Err(self.mechanism("put data into the memory of a request that brings data"));
            }
        }
        self.check(share_offset, bytes)?;
        match self.conn.port().zone_pieces(data.iter().map(|part| (part.as_ptr(), part.len()))) {
            // SAFETY: the slices are borrowed for as long as this call.
            Some(local) => unsafe { self.transfer(share_offset, &local, false) }.await,
            None => self.put_copied(share_offset, data).await,
        }
    }

    /// # Safety
    /// The pieces stay, and nobody changes them, as long as `keeper` lives.
    async unsafe fn put_kept(
        &self,
        share_offset: u64,
        data: &[(NonNull<u8>, usize)],
        keeper: Rc<dyn Any>,
    ) -> Result<(), ConnError> {
        let bytes = data.iter().map(|(_, bytes)| *bytes as u64).sum();
        let parts = data.iter().map(|(base, bytes)| (base.as_ptr().cast_const(), *bytes));
        if let (DataAt::Remote { request, .. }, Some(pieces)) =
            (&self.source, self.conn.port().zone_pieces(parts))
        {
            self.check(share_offset, bytes)?;
            // SAFETY: as the caller promises.
            unsafe { request.defer(Deferred { share_offset, pieces, bytes, held: Held::Keeper(keeper) }) };
            return Ok(());
        }
        // SAFETY: as the caller promises; `keeper` lives until the end of this function.
        let put = self.put_slices(share_offset, &unsafe { slices(data) }).await;
        drop(keeper);
        put
    }

    fn mechanism(&self, what: &'static str) -> ConnError {
        ConnError::Mechanism { peer: self.conn.peer_text(), what }
    }
}

/// Copies the bytes of a list of buffers from `skip` on.
fn copy_from(parts: &[IoSlice<'_>], mut skip: usize, mut to: &mut [u8]) {
    for part in parts {
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        let bytes = (part.len() - skip).min(to.len());
        let (now, rest) = std::mem::take(&mut to).split_at_mut(bytes);
        now.copy_from_slice(&part[skip..skip + bytes]);
        (to, skip) = (rest, 0);
    }
}

/// Copies into a list of buffers from `skip` on.
fn copy_to(mut from: &[u8], parts: &mut [IoSliceMut<'_>], mut skip: usize) {
    for part in parts {
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        let bytes = (part.len() - skip).min(from.len());
        let (now, rest) = from.split_at(bytes);
        part[skip..skip + bytes].copy_from_slice(now);
        (from, skip) = (rest, 0);
    }
}

impl<F: Fabric> ServerBulk for VerbsBulk<F> {
    fn info(&self) -> BulkInfo {
        BulkInfo { unit_bytes: UNIT_BYTES_MAX as u64, ..BulkInfo::copies(self.bytes()) }
    }

    fn local(&self, share_offset: u64, bytes: u64) -> Option<LocalMemory<'_>> {
        let base = self.came()?;
        self.check(share_offset, bytes).ok()?;
        // SAFETY: within the data, as was just checked.
        let piece = (unsafe { base.add(share_offset as usize) }, bytes as usize);
        Some(LocalMemory::new(vec![piece], None))
    }

    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError> {
        match source.0 {
            SourceKind::Slices(data) => self.put_slices(share_offset, data).await,
            // SAFETY: as whoever made the source promised.
            SourceKind::Kept { pieces, keeper } => unsafe {
                self.put_kept(share_offset, pieces, keeper).await
            },
            other => Err(other.refused(self.conn.peer_text())),
        }
    }

    unsafe fn get_mapped(
        &mut self,
        _share_offset: u64,
        _pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        Err(self.mechanism("receive into mapped pages; see its BulkInfo"))
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.check(share_offset, bytes)?;
        if let Some(base) = self.came() {
            let mut at = share_offset as usize;
            for buffer in buffers {
                // SAFETY: within the data, as was checked; the client may write a Fast buffer meanwhile, and
                // no reference to it is made.
                unsafe {
                    std::ptr::copy_nonoverlapping(base.add(at).as_ptr(), buffer.as_mut_ptr(), buffer.len())
                };
                at += buffer.len();
            }
            self.conn.port_state.transfers.copied(bytes as usize);
            return Ok(());
        }
        let local = self.conn.port().zone_pieces(buffers.iter().map(|part| (part.as_ptr(), part.len())));
        if local.is_some() && matches!(self.source, DataAt::Lent { .. }) {
            // What the client leaves out must not be what somebody else had there.
            buffers.iter_mut().for_each(|buffer| buffer.fill(0));
        }
        match local {
            // SAFETY: the buffers are borrowed for as long as this call.
            Some(local) => unsafe { self.transfer(share_offset, &local, true) }.await,
            None => self.get_copied(share_offset, buffers).await,
        }
    }

    async fn discard(self) -> Result<(), ConnError> {
        Ok(())
    }
}
