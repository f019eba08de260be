//! What of a reply is left in the server's memory, for this side to read (RFC 5666, 3.4: read chunks of a reply). Pure.
//!
//! ```text
//!   message      head ┊ behind it                position 104, 1 MiB ─► the data of a READ
//!   no message                                   position 0, 30 KiB  ─► the whole reply
//! ```

use weft_onc_rpc::rdma::{Body, Chunks, ReadSegment, Segment};
use weft_onc_rpc::xdr::padding;

use super::chunks::NoReply;

/// What is to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// The reply itself.
    pub long: Vec<Segment>,
    /// Data behind the head, which is inline.
    pub data: Vec<Segment>,
}

/// Bytes of segments.
pub(super) fn bytes_of(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.bytes as usize).sum()
}

/// Room of a call for its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeftRoom {
    /// For data.
    pub data_bytes: usize,
    /// For the reply itself, with data in it.
    pub reply_bytes: usize,
}

impl Left {
    /// What the header of a reply says; `None` if nothing was left. `inline_bytes` of the reply follow the header.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub(super) fn of(body: &Body, inline_bytes: usize, room: LeftRoom) -> Result<Option<Left>, NoReply> {
        let (chunks, is_long) = match body {
            Body::Message(chunks) => (chunks, false),
            Body::NoMessage(chunks) => (chunks, true),
            Body::Done | Body::Error(_) => return Ok(None),
        };
        let Chunks { reads, writes, reply } = chunks;
        if reads.is_empty() {
            return Ok(None);
        }
        let garbage = |why| Err(NoReply::Garbage(why));
        if !writes.is_empty() || reply.is_some() {
            return garbage("it both exposes memory and has written to memory that it was not given");
        }
        let position = if is_long { 0 } else { inline_bytes };
        if reads.iter().any(|read| read.position as usize != position) || (is_long && inline_bytes > 0) {
            return garbage("what it exposes is not at the end of the reply");
        }
        let segments: Vec<_> = reads.iter().map(|ReadSegment { segment, .. }| *segment).collect();
        let most = if is_long { room.reply_bytes } else { room.data_bytes + padding(room.data_bytes) };
        if segments.iter().any(|segment| segment.offset.checked_add(segment.bytes.into()).is_none())
            || bytes_of(&segments) > most
        {
            return garbage("it exposes more than was asked for");
        }
        Ok(Some(match is_long {
            true => Left { long: segments, data: Vec::new() },
            false => Left { long: Vec::new(), data: segments },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_onc_rpc::rdma::RdmaHeader;

    const ROOM: LeftRoom = LeftRoom { data_bytes: 99, reply_bytes: 200 };

    fn reads(reads: &[(u32, u32)]) -> Chunks {
        let segment = |bytes| Segment { handle: 7, bytes, offset: 4096 };
        let read =
            |(position, bytes): &(u32, u32)| ReadSegment { position: *position, segment: segment(*bytes) };
        Chunks { reads: reads.iter().map(read).collect(), ..Chunks::default() }
    }

    #[test]
    fn data_are_behind_the_head_and_a_long_reply_is_all() {
        let data = Left::of(&Body::Message(reads(&[(40, 60), (40, 40)])), 40, ROOM).unwrap().unwrap();
        assert_eq!((bytes_of(&data.data), data.data.len(), data.long.len()), (100, 2, 0), "with its padding");
        let long = Left::of(&Body::NoMessage(reads(&[(0, 200)])), 0, ROOM).unwrap().unwrap();
        assert_eq!((bytes_of(&long.long), long.data.len()), (200, 0));
        for body in [Body::Message(Chunks::default()), Body::Done] {
            assert_eq!(Left::of(&body, 40, ROOM), Ok(None));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrap =
            ReadSegment { position: 40, segment: Segment { handle: 1, bytes: 8, offset: u64::MAX - 3 } };
        let writes = vec![vec![Segment { handle: 7, bytes: 4, offset: 0 }]];
        let cases = [
            (Body::Message(reads(&[(40, 101)])), 40, "more than was asked for"),
            (Body::NoMessage(reads(&[(0, 201)])), 0, "a long reply that is too long"),
            (Body::NoMessage(reads(&[(0, u32::MAX), (0, u32::MAX)])), 0, "much more"),
            (Body::Message(reads(&[(36, 8)])), 40, "in the head"),
            (Body::Message(reads(&[(44, 8)])), 40, "beyond its end"),
            (Body::Message(reads(&[(40, 8), (48, 8)])), 40, "two chunks"),
            (Body::NoMessage(reads(&[(0, 8)])), 40, "a long reply that is inline"),
            (Body::NoMessage(reads(&[(0, 8), (8, 8)])), 0, "a chunk in a long reply"),
            (Body::Message(Chunks { reads: vec![wrap], ..Chunks::default() }), 40, "beyond all memory"),
            (Body::Message(Chunks { writes, ..reads(&[(40, 8)]) }), 40, "written, too"),
        ];
        for (body, inline_bytes, what) in cases {
            assert!(matches!(Left::of(&body, inline_bytes, ROOM), Err(NoReply::Garbage(_))), "{what}");
        }
    }

    #[test]
    fn damaged_headers_are_fuzzed() {
        let header = |body| RdmaHeader { xid: 1, credits: 2, body }.write().into_bytes();
        let right = [
            [header(Body::Message(reads(&[(40, 60), (40, 40)]))), vec![0; 40]].concat(),
            header(Body::NoMessage(reads(&[(0, 150)]))),
            header(Body::Done),
        ];
        weft_test_fuzz::run("nfs-rdma-left", &right, |bytes| {
            let Ok((header, at)) = RdmaHeader::decode(bytes) else { return };
            if let Ok(Some(left)) = Left::of(&header.body, bytes.len() - at, ROOM) {
                assert!(bytes_of(&left.data) <= 100 && bytes_of(&left.long) <= 200);
                assert!(left.data.is_empty() || left.long.is_empty());
            }
        });
    }
}
