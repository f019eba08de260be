//! Where a reply goes (RFC 8166, 3.4.6 and 3.5; RFC 8267, 3). Pure.
//!
//! | the reply | goes |
//! | --- | --- |
//! | its data, if the call has a write chunk | into the first one |
//! | the rest, with data where there is no write chunk | behind the header, if that fits |
//! | | else into the reply chunk, which takes all of it |
//!
//! The header says how much of each write chunk was used: nothing of those for which there are no data.

use weft_onc_rpc::rdma::{Body, Chunks, RdmaHeader, Segment};
use weft_onc_rpc::xdr::padding;
use weft_rdma::RemotePiece;

use super::chunks::piece_of;

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

/// How a reply leaves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The rest of its header.
    pub(super) body: Body,
    /// Where the data go; `None`: with the rest.
    pub(super) data_to: Option<Vec<RemotePiece>>,
    /// Where the rest goes; `None`: behind the header.
    pub(super) rest_to: Option<Vec<RemotePiece>>,
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
    /// The way of a reply of `head_bytes`, then data. A message may have `message_bytes`.
    pub(super) fn way(
        &self,
        head_bytes: usize,
        data_bytes: usize,
        message_bytes: usize,
    ) -> Result<Way, NoRoom> {
        let is_apart = data_bytes > 0 && !self.writes.is_empty();
        let chunk_bytes = |index| if index == 0 && is_apart { data_bytes } else { 0 };
        let writes: Vec<_> = self
            .writes
            .iter()
            .enumerate()
            .map(|(index, chunk)| used(chunk, chunk_bytes(index)))
            .collect::<Result<_, NoRoom>>()?;
        let data_to = if is_apart { Some(pieces(&writes[0])?) } else { None };
        let rest_bytes = head_bytes + if is_apart { 0 } else { data_bytes + padding(data_bytes) };
        let body = Body::Message(Chunks { writes: writes.clone(), ..Chunks::default() });
        if bytes_of(&body) + rest_bytes <= message_bytes {
            return Ok(Way { body, data_to, rest_to: None });
        }
        let reply = used(self.reply.as_ref().ok_or(NoRoom)?, rest_bytes)?;
        let rest_to = Some(pieces(&reply)?);
        let body = Body::NoMessage(Chunks { writes, reply: Some(reply), ..Chunks::default() });
        if bytes_of(&body) > message_bytes {
            return Err(NoRoom);
        }
        Ok(Way { body, data_to, rest_to })
    }
}

/// Bytes of a header with this body.
fn bytes_of(body: &Body) -> usize {
    RdmaHeader { xid: 0, credits: 0, body: body.clone() }.write().into_bytes().len()
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
        let way = room.way(40, 15, 1024).unwrap();
        let Body::Message(chunks) = &way.body else { panic!("{way:?}") };
        assert_eq!(
            chunks.writes.iter().map(|chunk| lengths(chunk)).collect::<Vec<_>>(),
            [vec![10, 0, 5, 0], vec![0]]
        );
        assert_eq!((way.rest_to, chunks.reply.clone()), (None, None));
        assert_eq!(way.data_to.unwrap().iter().map(|piece| piece.bytes).sum::<u64>(), 15);
        assert_eq!(room.way(40, 31, 1024), Err(NoRoom), "the chunk has 30 bytes");
        let unused = room.way(40, 0, 1024).unwrap();
        let Body::Message(chunks) = unused.body else { panic!() };
        assert_eq!((lengths(&chunks.writes[0]), unused.data_to), (vec![0; 4], None));
    }

    #[test]
    fn what_is_too_long_goes_into_the_reply_chunk() {
        let room = Room { writes: Vec::new(), reply: Some(segments(&[100, 1000])) };
        // A header without lists has 28 bytes.
        let inline = room.way(100, 0, 128).unwrap();
        assert_eq!((inline.body, inline.rest_to), (Body::Message(Chunks::default()), None));
        let long = room.way(104, 21, 128).unwrap();
        let Body::NoMessage(chunks) = long.body else { panic!() };
        assert_eq!((lengths(&chunks.reply.unwrap()), long.data_to), (vec![100, 28], None));
        assert_eq!(room.way(1104, 0, 128), Err(NoRoom), "the chunk has 1100 bytes");
        assert_eq!(room.way(104, 0, 60), Err(NoRoom), "not even the header fits");
        assert_eq!(Room::default().way(101, 0, 128), Err(NoRoom), "there is no chunk");
    }

    #[test]
    fn a_chunk_beyond_all_memory_is_no_room() {
        let wrap = Segment { handle: 1, bytes: 100, offset: u64::MAX - 50 };
        let room = Room { writes: vec![vec![wrap]], reply: None };
        assert_eq!(room.way(40, 60, 1024), Err(NoRoom));
        assert!(room.way(40, 40, 1024).is_ok());
    }
}
