//! Where a reply goes (RFC 8166, 3.4.6 and 3.5; RFC 8267, 3). Pure.
//!
//! | the reply | goes |
//! | --- | --- |
//! | its data, if the call has a write chunk | into the first one |
//! | the rest, with data where there is no write chunk | behind the header, if that fits |
//! | | else into the reply chunk, which takes all of it |
//! | where there is none, and replies are exposed (RFC 5666) | data stay, for the client to read, and the rest goes inline |
//! | | where that does not fit, all of it stays |
//!
//! The header says how much of each write chunk was used: nothing of those for which there are no data.

use weft_onc_rpc::rdma::{Body, Chunks, RdmaHeader, Segment};
use weft_onc_rpc::xdr::padding;
use weft_rdma::RemotePiece;

use super::chunks::piece_of;

/// Bytes of a chunk of one segment in the read list.
const READ_BYTES: usize = 24;

/// What a call has for its reply.
#[derive(Debug, Clone, Default)]
pub(super) struct Room {
    /// For data; a chunk each.
    pub(super) writes: Vec<Vec<Segment>>,
    /// For a reply that is too long to be sent.
    pub(super) reply: Option<Vec<Segment>>,
}

/// The reply does not fit anywhere.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// Where a part of a reply goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum To {
    /// Data: with the rest. The rest: behind the header.
    Inline,
    /// Into the client's memory.
    Written(Vec<RemotePiece>),
    /// Nowhere: the client reads it.
    Exposed,
}

/// How a reply leaves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The lists of its header, without what is exposed.
    pub(super) chunks: Chunks,
    /// Nothing follows the header.
    pub(super) is_long: bool,
    /// Where the data go.
    pub(super) data_to: To,
    /// Where the rest goes.
    pub(super) rest_to: To,
}

impl Way {
    /// The rest of its header.
    pub(super) fn body(self) -> Body {
        if self.is_long { Body::NoMessage(self.chunks) } else { Body::Message(self.chunks) }
    }
}

/// As much of a chunk as `bytes` need.
fn used(chunk: &[Segment], bytes: usize) -> Result<Vec<Segment>, NoRoom> {
    let mut left = bytes as u64;
    let take = |segment: &Segment| {
        let here = left.min(u64::from(segment.bytes));
        left -= here;
        Segment { bytes: here as u32, ..*segment }
    };
    let segments = chunk.iter().map(take).collect();
    if left == 0 { Ok(segments) } else { Err(NoRoom) }
}

fn pieces(used: &[Segment]) -> Result<Vec<RemotePiece>, NoRoom> {
    used.iter().map(|segment| piece_of(segment).map_err(|_| NoRoom)).collect()
}

impl Room {
    /// The way of a reply of `head_bytes`, then data. A message may have `message_bytes`. `exposes`: what has no
    /// room may be exposed.
    pub(super) fn way(
        &self,
        head_bytes: usize,
        data_bytes: usize,
        message_bytes: usize,
        exposes: bool,
    ) -> Result<Way, NoRoom> {
        let is_apart = data_bytes > 0 && !self.writes.is_empty();
        let chunk_bytes = |index| if index == 0 && is_apart { data_bytes } else { 0 };
        let writes: Vec<_> = self
            .writes
            .iter()
            .enumerate()
            .map(|(index, chunk)| used(chunk, chunk_bytes(index)))
            .collect::<Result<_, NoRoom>>()?;
        let data_to = if is_apart { To::Written(pieces(&writes[0])?) } else { To::Inline };
        let rest_bytes = head_bytes + if is_apart { 0 } else { data_bytes + padding(data_bytes) };
        let chunks = Chunks { writes, ..Chunks::default() };
        let header_bytes = bytes_of(&chunks);
        if header_bytes + rest_bytes <= message_bytes {
            return Ok(Way { chunks, is_long: false, data_to, rest_to: To::Inline });
        }
        let with_exposed = header_bytes + READ_BYTES;
        let way = match &self.reply {
            Some(reply) => {
                let reply = used(reply, rest_bytes)?;
                let rest_to = To::Written(pieces(&reply)?);
                let chunks = Chunks { reply: Some(reply), ..chunks };
                Way { chunks, is_long: true, data_to, rest_to }
            }
            None if !exposes || with_exposed > message_bytes => return Err(NoRoom),
            None if !is_apart && data_bytes > 0 && with_exposed + head_bytes <= message_bytes => {
                Way { chunks, is_long: false, data_to: To::Exposed, rest_to: To::Inline }
            }
            None => Way { chunks, is_long: true, data_to, rest_to: To::Exposed },
        };
        if bytes_of(&way.chunks) > message_bytes { Err(NoRoom) } else { Ok(way) }
    }
}

/// Bytes of a header with these lists.
fn bytes_of(chunks: &Chunks) -> usize {
    let body = Body::Message(chunks.clone());
    RdmaHeader { xid: 0, credits: 0, body }.write().into_bytes().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(bytes: &[u32]) -> Vec<Segment> {
        let segment =
            |(index, bytes): (usize, &u32)| Segment { handle: index as u32, bytes: *bytes, offset: 1 << 20 };
        bytes.iter().enumerate().map(segment).collect()
    }

    fn lengths(chunk: &[Segment]) -> Vec<u32> {
        chunk.iter().map(|segment| segment.bytes).collect()
    }

    #[test]
    fn data_fill_the_first_write_chunk_and_others_come_back_empty() {
        let room = Room { writes: vec![segments(&[10, 0, 10, 10]), segments(&[5])], reply: None };
        let way = room.way(40, 15, 1024, false).unwrap();
        assert_eq!(
            way.chunks.writes.iter().map(|chunk| lengths(chunk)).collect::<Vec<_>>(),
            [vec![10, 0, 5, 0], vec![0]]
        );
        assert_eq!((way.is_long, way.rest_to, way.chunks.reply), (false, To::Inline, None));
        let To::Written(pieces) = way.data_to else { panic!() };
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), 15);
        assert_eq!(room.way(40, 31, 1024, false), Err(NoRoom), "the chunk has 30 bytes");
        let unused = room.way(40, 0, 1024, false).unwrap();
        assert_eq!((lengths(&unused.chunks.writes[0]), unused.data_to), (vec![0; 4], To::Inline));
    }

    #[test]
    fn what_is_too_long_goes_into_the_reply_chunk() {
        let room = Room { writes: Vec::new(), reply: Some(segments(&[100, 1000])) };
        // A header without lists has 28 bytes.
        let inline = room.way(100, 0, 128, false).unwrap();
        assert_eq!(inline.rest_to, To::Inline);
        assert_eq!(inline.body(), Body::Message(Chunks::default()));
        let long = room.way(104, 21, 128, false).unwrap();
        assert!(long.is_long && long.data_to == To::Inline);
        assert_eq!(lengths(&long.chunks.reply.unwrap()), [100, 28]);
        assert_eq!(room.way(1104, 0, 128, false), Err(NoRoom), "the chunk has 1100 bytes");
        assert_eq!(room.way(104, 0, 60, false), Err(NoRoom), "not even the header fits");
        assert_eq!(Room::default().way(101, 0, 128, false), Err(NoRoom), "there is no chunk");
    }

    #[test]
    fn a_chunk_beyond_all_memory_is_no_room() {
        let wrap = Segment { handle: 1, bytes: 100, offset: u64::MAX - 50 };
        let room = Room { writes: vec![vec![wrap]], reply: None };
        assert_eq!(room.way(40, 60, 1024, false), Err(NoRoom));
        assert!(room.way(40, 40, 1024, false).is_ok());
    }

    #[test]
    fn what_has_no_room_is_exposed_where_that_may_be() {
        let to = |room: &Room, head_bytes, data_bytes| {
            let way = room.way(head_bytes, data_bytes, 128, true).unwrap();
            assert!(way.chunks.reads.is_empty() && way.chunks.reply.is_none());
            (way.is_long, way.data_to, way.rest_to)
        };
        let none = Room::default();
        assert_eq!(to(&none, 60, 40), (false, To::Inline, To::Inline), "it fits");
        assert_eq!(to(&none, 76, 100), (false, To::Exposed, To::Inline));
        assert_eq!(to(&none, 77, 100), (true, To::Inline, To::Exposed), "the header has a chunk");
        assert_eq!(to(&none, 200, 0), (true, To::Inline, To::Exposed));
        assert_eq!(none.way(200, 0, 51, true), Err(NoRoom), "not even the header fits");
        // Whoever gives room gets it used, and no key.
        let room = Room { writes: vec![segments(&[100])], reply: None };
        let (is_long, data_to, rest_to) = to(&room, 40, 100);
        assert!(!is_long && matches!(data_to, To::Written(_)) && rest_to == To::Inline);
        assert_eq!(room.way(40, 101, 128, true), Err(NoRoom), "and if it is too small, an error");
        let small = Room { writes: Vec::new(), reply: Some(segments(&[100])) };
        assert_eq!(small.way(200, 0, 128, true), Err(NoRoom));
    }
}
