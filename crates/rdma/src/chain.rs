//! A unit in registered memory here and the pieces of it at the peer, as work requests. Pure.
//!
//! One RDMA Write gathers, and one RDMA Read scatters, up to `pieces_max` local pieces; at the peer a work
//! request has one contiguous range.
//!
//! ```text
//!   here      [──────── a ────────][─── b ───]
//!   there     [── 1 ──][────── 2 ──────][─ 3 ]
//!   work      a→1      a,b→2            b→3
//! ```

use weft_verbs::MemoryPiece;

/// Memory of the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePiece {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The peer's key for it.
    pub remote_key: u32,
}

/// One work request: a part of [`Chain::pieces`], and the contiguous range that it goes to or comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Where the range begins.
    pub remote_address: u64,
    /// The peer's key for it.
    pub remote_key: u32,
    first_piece: usize,
    pieces: usize,
}

/// Work requests for one transfer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    pieces: Vec<MemoryPiece>,
    /// The work requests, in order.
    pub links: Vec<Link>,
}

impl Chain {
    /// Cuts a transfer of as many bytes as the shorter side has. Touching pieces of the peer's with one key
    /// become one.
    pub fn new(
        local: &[MemoryPiece],
        remote: impl IntoIterator<Item = RemotePiece>,
        pieces_max: usize,
    ) -> Chain {
        Chain::bounded(local, remote, pieces_max, u64::MAX)
    }

    /// The same with at most so many bytes in each work request, at least one.
    pub fn bounded(
        local: &[MemoryPiece],
        remote: impl IntoIterator<Item = RemotePiece>,
        pieces_max: usize,
        bytes_max: u64,
    ) -> Chain {
        let mut chain = Chain::default();
        let mut at = Position { local, within: 0 };
        let mut remote = remote.into_iter().filter(|piece| piece.bytes > 0).peekable();
        while let Some(mut piece) = remote.next() {
            while let Some(next) = remote.next_if(|next| {
                next.remote_key == piece.remote_key && next.address == piece.address + piece.bytes
            }) {
                piece.bytes += next.bytes;
            }
            if !chain.add(&mut at, piece, pieces_max.max(1), bytes_max.max(1)) {
                break;
            }
        }
        chain
    }

    /// Adds the work for one contiguous range of the peer's; false when nothing local is left.
    fn add(&mut self, at: &mut Position<'_>, piece: RemotePiece, pieces_max: usize, bytes_max: u64) -> bool {
        let mut done = 0;
        while done < piece.bytes {
            let first_piece = self.pieces.len();
            let mut moved = 0;
            while self.pieces.len() - first_piece < pieces_max
                && let Some(part) = at.take((piece.bytes - done).min(bytes_max) - moved)
            {
                moved += u64::from(part.bytes);
                self.pieces.push(part);
            }
            if moved == 0 {
                return false;
            }
            let pieces = self.pieces.len() - first_piece;
            let remote_address = piece.address + done;
            self.links.push(Link { remote_address, remote_key: piece.remote_key, first_piece, pieces });
            done += moved;
        }
        true
    }

    /// The local pieces of a work request.
    pub fn pieces(&self, link: &Link) -> &[MemoryPiece] {
        &self.pieces[link.first_piece..link.first_piece + link.pieces]
    }

    /// The bytes of a work request.
    pub fn bytes(&self, link: &Link) -> u64 {
        self.pieces(link).iter().map(|piece| u64::from(piece.bytes)).sum()
    }
}

/// How far the local side is taken.
struct Position<'a> {
    local: &'a [MemoryPiece],
    within: u32,
}

impl Position<'_> {
    /// The next local bytes, at most `bytes` and of one piece.
    fn take(&mut self, bytes: u64) -> Option<MemoryPiece> {
        while let Some(first) = self.local.first() {
            let left = first.bytes - self.within;
            if left == 0 {
                (self.local, self.within) = (&self.local[1..], 0);
                continue;
            }
            let part = bytes.min(left.into()) as u32;
            if part == 0 {
                return None;
            }
            let address = first.address + u64::from(self.within);
            self.within += part;
            return Some(MemoryPiece { address, bytes: part, local_key: first.local_key });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where every byte goes: (here, local key, there, remote key).
    fn bytes_of(chain: &Chain) -> Vec<(u64, u32, u64, u32)> {
        let mut all = Vec::new();
        for link in &chain.links {
            let mut there = link.remote_address;
            for piece in chain.pieces(link) {
                for byte in 0..u64::from(piece.bytes) {
                    all.push((piece.address + byte, piece.local_key, there, link.remote_key));
                    there += 1;
                }
            }
        }
        all
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn every_byte_goes_where_it_belongs(
            local in proptest::collection::vec((0u32..40, 1u32..4), 0..12),
            remote in proptest::collection::vec((0u64..40, 0u64..3, 1u32..3), 0..12),
            pieces_max in 1usize..5,
            bytes_max in proptest::option::of(1u64..60),
        ) {
            let local: Vec<MemoryPiece> = local.iter().enumerate()
                .map(|(at, (bytes, key))| MemoryPiece { address: 1000 * at as u64, bytes: *bytes, local_key: *key })
                .collect();
            let mut end = 50_000;
            let remote: Vec<RemotePiece> = remote.iter().map(|(bytes, gap, key)| {
                let address = end + gap;
                end = address + bytes;
                RemotePiece { address, bytes: *bytes, remote_key: *key }
            }).collect();
            let here = local.iter().flat_map(|piece| {
                (0..u64::from(piece.bytes)).map(|byte| (piece.address + byte, piece.local_key))
            });
            let there = remote.iter().flat_map(|piece| (0..piece.bytes).map(|byte| (piece.address + byte, piece.remote_key)));
            let model: Vec<_> = here.zip(there).map(|((a, b), (c, d))| (a, b, c, d)).collect();
            let bytes_max = bytes_max.unwrap_or(u64::MAX);
            let chain = Chain::bounded(&local, remote, pieces_max, bytes_max);
            prop_assert!(chain.links.iter().all(|link| (1..=pieces_max).contains(&link.pieces)));
            prop_assert!(chain.links.iter().all(|link| (1..=bytes_max).contains(&chain.bytes(link))));
            prop_assert_eq!(bytes_of(&chain), model);
        }
    }

    #[test]
    fn as_few_requests_as_the_pieces_allow() {
        let local: Vec<_> =
            (0..768).map(|row| MemoryPiece { address: row * 2048, bytes: 1024, local_key: 1 }).collect();
        let whole = RemotePiece { address: 1 << 20, bytes: 768 * 1024, remote_key: 5 };
        assert_eq!(Chain::new(&local, [whole], 30).links.len(), 26);
        let rows = (0..768).map(|row| RemotePiece { address: row * 1024, bytes: 1024, remote_key: 5 });
        assert_eq!(Chain::new(&local, rows, 30).links.len(), 26, "touching pieces are one");
    }
}
