//! The header of a message over RDMA, version 1 (RFC 8166), and what both sides say of themselves when they
//! connect (RFC 8797).
//!
//! ```text
//!   xid · version · credits · kind ┬ message, no message: read list · write list · reply chunk, then the call or reply
//!                                  ├ done                                               (Read-Read only)
//!                                  └ error: versions (low · high), or chunks
//!
//!   read list:    1 · position · segment, …, 0        segments of one position are one chunk
//!   write list:   1 · count · segments, …, 0          a chunk for each item of data in the results
//!   reply chunk:  0, or 1 · count · segments
//!   segment:      handle · bytes · offset
//! ```

use crate::xdr::{Reader, Writer, XdrError};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// Bytes of an inline message that every peer takes (RFC 8166, 3.3.2).
pub const INLINE_BYTES_DEFAULT: u32 = 1024;

/// Segments of all lists of a header together. A message of 1 MiB has 256 pages.
pub const SEGMENTS_MAX: usize = 1024;

/// Bytes of a segment on the wire.
const SEGMENT_BYTES: usize = 16;

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The key of its registration.
    pub handle: u32,
    /// How long it is; in a reply, how much of it was written.
    pub bytes: u32,
    /// Where it begins, as the key counts.
    pub offset: u64,
}

/// Memory that the receiver reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSegment {
    /// Where its bytes belong in the message. At 0, the message itself begins in it.
    pub position: u32,
    /// The memory.
    pub segment: Segment,
}

/// The lists of a header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunks {
    /// What the receiver reads.
    pub reads: Vec<ReadSegment>,
    /// What the receiver of a call writes items of data of the results to; a chunk each.
    pub writes: Vec<Vec<Segment>>,
    /// What it writes a whole reply to that is too long to be sent.
    pub reply: Option<Vec<Segment>>,
}

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The call or reply follows.
    Message(Chunks),
    /// It is in a read chunk at position 0, or in the reply chunk.
    NoMessage(Chunks),
    /// The client has read all that a reply exposed.
    Done,
    /// The sender has not understood a header.
    Error(RdmaError),
}

/// Why a header was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdmaError {
    /// It is of none of these versions.
    Versions {
        /// The lowest that is known.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// Its lists make no sense, or there is no room for the reply.
    Chunks,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaHeader {
    /// The number of the call.
    pub xid: u32,
    /// Calls that the sender wants to have under way; in a reply, those that it may have.
    pub credits: u32,
    /// The rest.
    pub body: Body,
}

/// What a header that cannot be decoded is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdmaRefusal {
    /// Nothing: there is not so much as a number.
    Nothing,
    /// This, by [`RdmaHeader`] with this number.
    Error {
        /// Of the call.
        xid: u32,
        /// Why.
        error: RdmaError,
    },
}

const MSG: u32 = 0;
const NOMSG: u32 = 1;
const DONE: u32 = 3;
const ERROR: u32 = 4;
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

impl RdmaHeader {
    /// Takes a header from the front of a message; and its length.
    ///
    /// # Errors
    /// What to answer.
    pub fn decode(bytes: &[u8]) -> Result<(RdmaHeader, usize), RdmaRefusal> {
        let mut reader = Reader::new(bytes);
        let mut first = || Ok::<_, XdrError>((reader.u32()?, reader.u32()?, reader.u32()?));
        let (xid, version, credits) = first().map_err(|_| RdmaRefusal::Nothing)?;
        if version != VERSION {
            let error = RdmaError::Versions { low: VERSION, high: VERSION };
            return Err(RdmaRefusal::Error { xid, error });
        }
        let refused = |_| RdmaRefusal::Error { xid, error: RdmaError::Chunks };
        let body = Body::read(&mut reader).map_err(refused)?;
        Ok((RdmaHeader { xid, credits, body }, reader.position()))
    }

    /// On the wire.
    pub fn write(&self) -> Writer {
        let writer = Writer::with_capacity(64).u32(self.xid).u32(VERSION).u32(self.credits);
        match &self.body {
            Body::Message(chunks) => chunks.write(writer.u32(MSG)),
            Body::NoMessage(chunks) => chunks.write(writer.u32(NOMSG)),
            Body::Done => writer.u32(DONE),
            Body::Error(RdmaError::Versions { low, high }) => {
                writer.u32(ERROR).u32(ERR_VERS).u32(*low).u32(*high)
            }
            Body::Error(RdmaError::Chunks) => writer.u32(ERROR).u32(ERR_CHUNK),
        }
    }
}

impl Body {
    fn read(reader: &mut Reader<'_>) -> Result<Body, XdrError> {
        Ok(match reader.u32()? {
            MSG => Body::Message(Chunks::read(reader)?),
            NOMSG => Body::NoMessage(Chunks::read(reader)?),
            DONE => Body::Done,
            ERROR => Body::Error(match reader.u32()? {
                ERR_VERS => RdmaError::Versions { low: reader.u32()?, high: reader.u32()? },
                ERR_CHUNK => RdmaError::Chunks,
                _ => return Err(XdrError::Wrong),
            }),
            // RDMA_MSGP is obsolete: nobody may send it (RFC 8166, 4.3).
            _ => return Err(XdrError::Wrong),
        })
    }
}

impl Segment {
    fn read(reader: &mut Reader<'_>) -> Result<Segment, XdrError> {
        Ok(Segment { handle: reader.u32()?, bytes: reader.u32()?, offset: reader.u64()? })
    }

    fn write(&self, writer: Writer) -> Writer {
        writer.u32(self.handle).u32(self.bytes).u64(self.offset)
    }
}

/// Counts down segments, and takes lists of them.
struct Segments<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: usize,
}

impl Segments<'_, '_> {
    /// One item of a list or an array fewer may come.
    fn count(&mut self, items: usize) -> Result<(), XdrError> {
        self.left = self.left.checked_sub(items).ok_or(XdrError::Wrong)?;
        Ok(())
    }

    fn array(&mut self) -> Result<Vec<Segment>, XdrError> {
        let count = self.reader.u32()? as usize;
        self.count(count)?;
        if self.reader.rest().len() / SEGMENT_BYTES < count {
            return Err(XdrError::Short);
        }
        (0..count).map(|_| Segment::read(self.reader)).collect()
    }
}

impl Chunks {
    fn read(reader: &mut Reader<'_>) -> Result<Chunks, XdrError> {
        let mut from = Segments { reader, left: SEGMENTS_MAX };
        let mut chunks = Chunks::default();
        while from.reader.bool()? {
            from.count(1)?;
            let position = from.reader.u32()?;
            chunks.reads.push(ReadSegment { position, segment: Segment::read(from.reader)? });
        }
        while from.reader.bool()? {
            // An empty chunk counts, too.
            from.count(1)?;
            chunks.writes.push(from.array()?);
        }
        if from.reader.bool()? {
            chunks.reply = Some(from.array()?);
        }
        Ok(chunks)
    }

    fn write(&self, writer: Writer) -> Writer {
        let array = |writer: Writer, segments: &[Segment]| {
            let writer = writer.bool(true).u32(segments.len() as u32);
            segments.iter().fold(writer, |writer, segment| segment.write(writer))
        };
        let reads = self
            .reads
            .iter()
            .fold(writer, |writer, read| read.segment.write(writer.bool(true).u32(read.position)));
        let writes = self.writes.iter().fold(reads.bool(false), |writer, chunk| array(writer, chunk));
        let writes = writes.bool(false);
        match &self.reply {
            Some(chunk) => array(writes, chunk),
            None => writes.bool(false),
        }
    }
}

/// What a peer says of itself in the private data of its connection (RFC 8797, 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    /// Its memory's keys may be invalidated by the messages that it receives.
    pub takes_invalidation: bool,
    /// The longest message that it sends: a multiple of 1024, at most 256 KiB.
    pub send_bytes: u32,
    /// The longest that it receives.
    pub receive_bytes: u32,
}

const MAGIC: u32 = 0xf6ab_0e18;
const PRIVATE_VERSION: u8 = 1;
const INVALIDATION: u8 = 1;

/// Bytes of private data.
pub const PRIVATE_BYTES: usize = 8;

impl PrivateData {
    /// On the wire. Sizes are rounded down to what can be said.
    pub fn to_bytes(self) -> [u8; PRIVATE_BYTES] {
        let size = |bytes: u32| ((bytes >> 10).clamp(1, 256) - 1) as u8;
        let flags = if self.takes_invalidation { INVALIDATION } else { 0 };
        let [a, b, c, d] = MAGIC.to_be_bytes();
        [a, b, c, d, PRIVATE_VERSION, flags, size(self.send_bytes), size(self.receive_bytes)]
    }

    /// What a peer has said: nothing, if the bytes are not that.
    pub fn decode(bytes: &[u8]) -> Option<PrivateData> {
        // A connection manager may add zeros behind.
        let said = bytes.first_chunk::<PRIVATE_BYTES>()?;
        let [magic @ .., version, flags, send, receive] = *said;
        let is_known = u32::from_be_bytes(magic) == MAGIC && version == PRIVATE_VERSION;
        let size = |byte: u8| (u32::from(byte) + 1) << 10;
        is_known.then(|| PrivateData {
            takes_invalidation: flags & INVALIDATION != 0,
            send_bytes: size(send),
            receive_bytes: size(receive),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn segment(handle: u32, bytes: u32, offset: u64) -> Segment {
        Segment { handle, bytes, offset }
    }

    /// A READ of 4 KiB: a chunk for its data, nothing read, no reply chunk.
    const READ_CALL: &[u8] = b"\0\0\0\x07\0\0\0\x01\0\0\0\x20\0\0\0\0\
        \0\0\0\0\
        \0\0\0\x01\0\0\0\x01\0\0\x12\x34\0\0\x10\0\0\0\0\x01\0\0\0\x80\0\0\0\0\
        \0\0\0\0";

    #[test]
    fn a_call_with_a_write_chunk_is_as_the_rfc_has_it() {
        let writes = vec![vec![segment(0x1234, 4096, 0x1_0000_0080)]];
        let header =
            RdmaHeader { xid: 7, credits: 32, body: Body::Message(Chunks { writes, ..Chunks::default() }) };
        assert_eq!(header.write().into_bytes(), READ_CALL);
        assert_eq!(RdmaHeader::decode(READ_CALL), Ok((header, READ_CALL.len())));
        let chunks = RdmaRefusal::Error { xid: 7, error: RdmaError::Chunks };
        for end in 0..READ_CALL.len() {
            let expected = if end < 12 { RdmaRefusal::Nothing } else { chunks };
            assert_eq!(RdmaHeader::decode(&READ_CALL[..end]), Err(expected), "{end} bytes");
        }
    }

    #[test]
    fn a_long_call_is_in_a_chunk_at_position_zero_and_has_room_for_a_reply() {
        let reads = vec![
            ReadSegment { position: 0, segment: segment(1, 2000, 16) },
            ReadSegment { position: 148, segment: segment(2, 8192, 0) },
        ];
        let reply = Some(vec![segment(3, 65536, 0), segment(4, 100, 1)]);
        let header = RdmaHeader {
            xid: 9,
            credits: 1,
            body: Body::NoMessage(Chunks { reads, writes: Vec::new(), reply }),
        };
        let bytes = b"\0\0\0\x09\0\0\0\x01\0\0\0\x01\0\0\0\x01\
            \0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\x07\xd0\0\0\0\0\0\0\0\x10\
            \0\0\0\x01\0\0\0\x94\0\0\0\x02\0\0\x20\0\0\0\0\0\0\0\0\0\
            \0\0\0\0\0\0\0\0\
            \0\0\0\x01\0\0\0\x02\0\0\0\x03\0\x01\0\0\0\0\0\0\0\0\0\0\
            \0\0\0\x04\0\0\0\x64\0\0\0\0\0\0\0\x01";
        assert_eq!(header.write().into_bytes(), bytes);
        assert_eq!(RdmaHeader::decode(bytes), Ok((header, bytes.len())));
    }

    #[test]
    fn errors_and_done_are_as_the_rfc_has_them() {
        let cases: [(Body, &[u8]); 3] = [
            (Body::Done, b"\0\0\0\x03"),
            (Body::Error(RdmaError::Chunks), b"\0\0\0\x04\0\0\0\x02"),
            (
                Body::Error(RdmaError::Versions { low: 1, high: 2 }),
                b"\0\0\0\x04\0\0\0\x01\0\0\0\x01\0\0\0\x02",
            ),
        ];
        for (body, rest) in cases {
            let bytes = [b"\0\0\0\x05\0\0\0\x01\0\0\0\x08", rest].concat();
            let header = RdmaHeader { xid: 5, credits: 8, body };
            assert_eq!(header.write().into_bytes(), bytes);
            assert_eq!(RdmaHeader::decode(&bytes), Ok((header, bytes.len())));
        }
    }

    #[test]
    fn what_is_not_understood_is_answered() {
        let with = |at: usize, byte: u8| {
            let mut bytes = READ_CALL.to_vec();
            bytes[at] = byte;
            RdmaHeader::decode(&bytes)
        };
        let refused = |error| Err(RdmaRefusal::Error { xid: 7, error });
        assert_eq!(with(7, 2), refused(RdmaError::Versions { low: 1, high: 1 }));
        assert_eq!(with(15, 2), refused(RdmaError::Chunks), "RDMA_MSGP");
        assert_eq!(with(19, 2), refused(RdmaError::Chunks), "a list is there or not");
        assert_eq!(with(24, 0xff), refused(RdmaError::Chunks), "4 thousand million segments");
        let many = [&READ_CALL[..16], &b"\0\0\0\x01".repeat(6 * (SEGMENTS_MAX + 1)), &[0; 12]].concat();
        assert_eq!(RdmaHeader::decode(&many), refused(RdmaError::Chunks), "a list that is too long");
    }

    #[test]
    fn private_data_are_as_the_rfc_has_them() {
        let data = PrivateData { takes_invalidation: true, send_bytes: 4096, receive_bytes: 262_144 };
        let bytes = b"\xf6\xab\x0e\x18\x01\x01\x03\xff";
        assert_eq!(data.to_bytes(), *bytes);
        assert_eq!(PrivateData::decode(bytes), Some(data));
        assert_eq!(PrivateData::decode(&[&bytes[..], &[0; 48]].concat()), Some(data));
        assert_eq!(PrivateData::decode(&bytes[..7]), None);
        assert_eq!(PrivateData::decode(b"\xf6\xab\x0e\x18\x02\x01\x03\x03"), None);
        let least = PrivateData { takes_invalidation: false, send_bytes: 5, receive_bytes: 1 << 30 };
        assert_eq!(least.to_bytes()[5..], [0, 0, 255]);
    }

    fn segments() -> impl Strategy<Value = Vec<Segment>> {
        let one = any::<(u32, u32, u64)>();
        vec(one.prop_map(|(handle, bytes, offset)| segment(handle, bytes, offset)), 0..5)
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]

        #[test]
        fn what_is_written_is_read(
            (xid, credits, position, is_here) in any::<(u32, u32, u32, bool)>(),
            reads in segments(),
            writes in vec(segments(), 0..4),
            reply in proptest::option::of(segments()),
        ) {
            let reads = reads.into_iter().map(|segment| ReadSegment { position, segment }).collect();
            let chunks = Chunks { reads, writes, reply };
            let body = if is_here { Body::Message(chunks) } else { Body::NoMessage(chunks) };
            let header = RdmaHeader { xid, credits, body };
            let bytes = header.write().into_bytes();
            prop_assert_eq!(RdmaHeader::decode(&bytes), Ok((header, bytes.len())));
        }
    }

    #[test]
    fn any_bytes_are_a_header_or_refused() {
        let error = RdmaHeader { xid: 1, credits: 1, body: Body::Error(RdmaError::Chunks) };
        let seeds = [READ_CALL.to_vec(), error.write().into_bytes(), READ_CALL[..16].to_vec()];
        weft_test_fuzz::run("onc-rdma", &seeds, |bytes| {
            if let Ok((header, length)) = RdmaHeader::decode(bytes) {
                assert_eq!(header.write().into_bytes(), bytes[..length]);
            }
            if let Some(data) = PrivateData::decode(bytes) {
                assert_eq!(PrivateData::decode(&data.to_bytes()), Some(data));
            }
        });
    }
}
