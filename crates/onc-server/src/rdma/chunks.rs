//! Where the bytes of a call are (RFC 8166, 3.4 and 3.5). Pure.
//!
//! ```text
//!   inline │ head · arguments        │ more arguments │
//!                                    ▲ position 148
//!   read list                 chunk 1, 8190 bytes, 2 of padding that nobody sends
//! ```
//!
//! A chunk at position 0 takes the place of what is inline: a long call.

use std::ops::Deref;

use weft_onc_rpc::rdma::{ReadSegment, Segment};
use weft_onc_rpc::xdr::padding;
use weft_rdma::RemotePiece;

/// A part of a call in the client's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Where it belongs in the message.
    pub(super) position: usize,
    /// How long it is.
    pub(super) bytes: usize,
    /// Where it is.
    pub(super) pieces: Vec<RemotePiece>,
}

/// The lists of a header make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong;

/// The chunks of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CallChunks {
    /// The call itself, if it is a long one.
    pub(super) long: Option<Chunk>,
    /// What belongs into it, by ascending position.
    pub(super) inserted: Vec<Chunk>,
}

/// A segment as memory of the peer's.
pub(super) fn piece_of(segment: &Segment) -> Result<RemotePiece, Wrong> {
    let bytes = u64::from(segment.bytes);
    segment.offset.checked_add(bytes).ok_or(Wrong)?;
    Ok(RemotePiece { address: segment.offset, bytes, remote_key: segment.handle })
}

impl CallChunks {
    /// Of a read list. `inline_bytes` follow the header; with `is_long` there must be none, and a chunk at
    /// position 0. All of it together may have `most_bytes`.
    pub(super) fn new(
        reads: &[ReadSegment],
        is_long: bool,
        inline_bytes: usize,
        most_bytes: usize,
    ) -> Result<CallChunks, Wrong> {
        let mut chunks = Vec::<Chunk>::new();
        let mut all_bytes = inline_bytes;
        for read in reads {
            let (position, bytes) = (read.position as usize, read.segment.bytes as usize);
            if !matches!(chunks.last(), Some(last) if last.position == position) {
                let is_behind = chunks.last().is_none_or(|last| last.position < position);
                if !is_behind || !position.is_multiple_of(4) {
                    return Err(Wrong);
                }
                chunks.push(Chunk { position, bytes: 0, pieces: Vec::new() });
            }
            all_bytes += bytes;
            if all_bytes > most_bytes {
                return Err(Wrong);
            }
            let last = chunks.last_mut().ok_or(Wrong)?;
            last.bytes += bytes;
            last.pieces.push(piece_of(&read.segment)?);
        }
        let begins_long = chunks.first().is_some_and(|first| first.position == 0);
        if begins_long != is_long || (is_long && inline_bytes > 0) {
            return Err(Wrong);
        }
        let long = is_long.then(|| chunks.remove(0));
        let base_bytes = long.as_ref().map_or(inline_bytes, |long| long.bytes);
        let all = CallChunks { long, inserted: chunks };
        let are_within = all.cuts().all(|cut| cut.is_some_and(|at| at <= base_bytes));
        are_within.then_some(all).ok_or(Wrong)
    }

    /// Where in what is inline, or in the long call, each chunk belongs; `None` if it would be in the chunk
    /// before it.
    fn cuts(&self) -> impl Iterator<Item = Option<usize>> {
        self.inserted.iter().scan((0, 0), |(inserted_bytes, last), chunk| {
            let cut = chunk.position.checked_sub(*inserted_bytes).filter(|cut| cut >= last);
            *inserted_bytes += chunk.bytes + padding(chunk.bytes);
            *last = cut.unwrap_or(*last);
            Some(cut)
        })
    }

    /// The whole call, of what is inline or in the long call, and of what the chunks have.
    pub(super) fn join<D: Deref<Target = [u8]>>(&self, base: &[u8], data: &[D]) -> Vec<u8> {
        let bytes: usize = data.iter().map(|data| data.len() + 4).sum();
        let mut whole = Vec::with_capacity(base.len() + bytes);
        let mut done = 0;
        for (cut, data) in self.cuts().flatten().zip(data) {
            whole.extend_from_slice(&base[done..cut]);
            whole.extend_from_slice(data);
            whole.resize(whole.len() + padding(data.len()), 0);
            done = cut;
        }
        whole.extend_from_slice(&base[done..]);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    fn read(position: u32, bytes: u32) -> ReadSegment {
        ReadSegment { position, segment: Segment { handle: 7, bytes, offset: 64 } }
    }

    fn chunks(reads: &[ReadSegment], inline_bytes: usize) -> Result<CallChunks, Wrong> {
        CallChunks::new(reads, false, inline_bytes, MOST)
    }

    #[test]
    fn chunks_are_put_where_they_belong_with_their_padding() {
        let base = b"0123456789ab";
        let two = chunks(&[read(4, 3), read(4, 2), read(16, 4)], 12).unwrap();
        assert_eq!(
            two.inserted.iter().map(|chunk| (chunk.position, chunk.bytes)).collect::<Vec<_>>(),
            [(4, 5), (16, 4)]
        );
        assert_eq!(two.inserted[0].pieces.len(), 2);
        assert_eq!(two.join(base, &[&b"ABCDE"[..], b"FGHI"]), b"0123ABCDE\0\0\x004567FGHI89ab");
        let at_the_end = chunks(&[read(12, 4)], 12).unwrap();
        assert_eq!(at_the_end.join(base, &[&b"ABCD"[..]]), b"0123456789abABCD");
        let nothing = chunks(&[read(8, 0)], 12).unwrap();
        assert_eq!(nothing.join(base, &[&b""[..]]), base);
        assert_eq!(chunks(&[], 12).unwrap().join::<&[u8]>(base, &[]), base);
    }

    #[test]
    fn a_long_call_is_in_the_chunk_at_position_zero() {
        let long = CallChunks::new(&[read(0, 40), read(0, 8), read(20, 4)], true, 0, MOST).unwrap();
        assert_eq!(long.long.as_ref().map(|chunk| (chunk.bytes, chunk.pieces.len())), Some((48, 2)));
        assert_eq!(long.inserted.len(), 1);
        let wrong = |reads: &[ReadSegment], is_long, inline_bytes| {
            CallChunks::new(reads, is_long, inline_bytes, MOST) == Err(Wrong)
        };
        assert!(wrong(&[], true, 0), "nothing is there");
        assert!(wrong(&[read(4, 8)], true, 0), "the call itself is missing");
        assert!(wrong(&[read(0, 8)], true, 4), "it is there twice");
        assert!(wrong(&[read(0, 8)], false, 40), "it is there twice");
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let wrap =
            ReadSegment { position: 4, segment: Segment { handle: 7, bytes: 8, offset: u64::MAX - 6 } };
        let cases: [(&str, &[ReadSegment]); 6] = [
            ("beyond the end", &[read(16, 4)]),
            ("not at a word", &[read(6, 4)]),
            ("backwards", &[read(8, 4), read(4, 4)]),
            ("in the chunk before", &[read(4, 9), read(12, 4)]),
            ("more than may be", &[read(4, u32::MAX), read(4, u32::MAX)]),
            ("beyond all memory", &[wrap]),
        ];
        for (what, reads) in cases {
            assert_eq!(chunks(reads, 12), Err(Wrong), "{what}");
        }
        assert!(CallChunks::new(&[read(4, 100)], false, 12, 111).is_err());
        assert!(CallChunks::new(&[read(4, 100)], false, 12, 112).is_ok());
    }
}
