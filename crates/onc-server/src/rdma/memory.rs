//! Between buffers here and the memory of a client.
//!
//! What the adapter knows, or gets to know for it ([`RdmaMemory`](super::RdmaMemory)), moves without a copy; other memory
//! by way of the port's bounce buffers.

use std::rc::Rc;

use weft_log::once_a_minute;
use weft_rdma::{BOUNCE_BYTES, Channel, Ended, Held, Known, RemotePiece, Writes};
use weft_reactor::Permit;
use weft_verbs::{Device, Fabric};

use crate::buffers::Buffer;

/// Data of a reply, and the memory that it was granted: kept until the adapter has sent them.
struct Kept<D: Device> {
    // Before the data.
    _known: Known<D>,
    _data: Buffer,
    _memory: Rc<Permit>,
}

/// A buffer as registered memory, if it is, or gets it.
///
/// # Safety
/// The buffer is there as long as the result.
unsafe fn known<F: Fabric>(channel: &Channel<F>, buffer: &Buffer) -> Option<Known<F::Device>> {
    if buffer.is_empty() {
        return None;
    }
    // SAFETY: as the caller promises.
    let known = unsafe { channel.port().known(buffer) };
    if known.is_none() && once_a_minute("use payloads that are not registered") {
        tracing::warn!(
            "data of clients over RDMA are copied: their buffer is not registered; raise the limit of locked memory \
             (ulimit -l)"
        );
    }
    known
}

/// `bytes` of the peer's memory from `from` on.
fn part_of(remote: &[RemotePiece], from: usize, bytes: usize) -> impl Iterator<Item = RemotePiece> {
    let (mut skipped, mut left) = (from as u64, bytes as u64);
    remote.iter().map(move |piece| {
        let before = skipped.min(piece.bytes);
        let here = left.min(piece.bytes - before);
        skipped -= before;
        left -= here;
        RemotePiece { address: piece.address + before, bytes: here, remote_key: piece.remote_key }
    })
}

/// Fills a buffer from the peer's memory. How much of it was copied here.
///
/// # Errors
/// The connection has ended.
pub(super) async fn fetch<F: Fabric>(
    channel: &Channel<F>,
    remote: &[RemotePiece],
    buffer: &mut Buffer,
) -> Result<usize, Ended> {
    // SAFETY: the buffer is borrowed.
    if let Some(local) = unsafe { known(channel, buffer) } {
        let pieces = [local.piece];
        // SAFETY: the buffer is borrowed until the transfer has ended or is dropped.
        unsafe { channel.transfer(&pieces, remote.iter().copied(), true) }.await?;
        return Ok(0);
    }
    for from in (0..buffer.len()).step_by(BOUNCE_BYTES) {
        let bytes = BOUNCE_BYTES.min(buffer.len() - from);
        let mut slot = channel.port().bounce_slot().await;
        let (local, part) = ([slot.piece(bytes)], part_of(remote, from, bytes));
        // SAFETY: the slot is given back after the transfer.
        unsafe { channel.transfer(&local, part, true) }.await?;
        // SAFETY: the transfer has ended.
        let memory = unsafe { slot.fill() };
        buffer[from..from + bytes].copy_from_slice(&memory[..bytes]);
    }
    Ok(buffer.len())
}

/// Begins to write data to the peer's memory: what is to be posted before the reply, and how much was copied
/// here.
///
/// # Errors
/// The connection has ended.
pub(super) async fn put<F: Fabric>(
    channel: &Channel<F>,
    data: Buffer,
    memory: &Rc<Permit>,
    remote: &[RemotePiece],
) -> Result<(Writes<F>, usize), Ended> {
    // SAFETY: both are kept together.
    if let Some(local) = unsafe { known(channel, &data) } {
        let pieces = [local.piece];
        let kept = Kept { _known: local, _data: data, _memory: memory.clone() };
        let held = Held::Keeper(Rc::new(kept));
        // SAFETY: nobody changes the data, which are kept until the work has ended.
        let writes = unsafe { channel.writes(&pieces, remote.iter().copied(), held) }.await;
        return Ok((writes, 0));
    }
    for from in (0..data.len()).step_by(BOUNCE_BYTES) {
        let bytes = BOUNCE_BYTES.min(data.len() - from);
        let mut slot = channel.port().bounce_slot().await;
        // SAFETY: the slot is new.
        let memory = unsafe { slot.fill() };
        memory[..bytes].copy_from_slice(&data[from..from + bytes]);
        let (local, part) = ([slot.piece(bytes)], part_of(remote, from, bytes));
        // SAFETY: the slot is given back after the transfer.
        unsafe { channel.transfer(&local, part, false) }.await?;
    }
    Ok((Writes::default(), data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_memory_begins_and_ends_within_its_pieces() {
        let piece = |address, bytes| RemotePiece { address, bytes, remote_key: 1 };
        let remote = [piece(100, 10), piece(200, 0), piece(300, 10), piece(400, 10)];
        let part = |from, bytes| {
            let pieces = part_of(&remote, from, bytes).filter(|piece| piece.bytes > 0);
            pieces.map(|piece| (piece.address, piece.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(part(0, 30), [(100, 10), (300, 10), (400, 10)]);
        assert_eq!(part(4, 10), [(104, 6), (300, 4)]);
        assert_eq!(part(10, 10), [(300, 10)]);
        assert_eq!(part(25, 100), [(405, 5)]);
    }
}
