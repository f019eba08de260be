//! The fixed header of every message.

use crate::ops::Op;
use crate::status::Status;
use crate::versions::VERSIONS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Size of a header on the wire.
pub const HEADER_BYTES: usize = 64;
/// The first four bytes of every message.
pub const MAGIC: [u8; 4] = *b"WEFT";

/// The kind of a message. The control messages of IB 3.2 are requests and replies here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client to server: do an operation.
    Request = 1,
    /// Server to client: the result.
    Reply = 2,
    /// A unit of bulk data on a byte-stream transport.
    Data = 3,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Kind> {
        Some(match value {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Data,
            _ => return None,
        })
    }
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// The payload has no data. It describes where the data is in the client's memory.
    pub const REMOTE_MEMORY: u16 = 1;
    /// The request may have been executed before: its reply was lost with a connection.
    pub const RETRY: u16 = 2;
    /// With [`REMOTE_MEMORY`], over RDMA: the client asks for parts of the server's buffers, and moves the
    /// data itself.
    pub const LENT_MEMORY: u16 = 4;
    /// All bits that this version knows.
    pub const KNOWN: u16 = REMOTE_MEMORY | RETRY | LENT_MEMORY;
}

/// A decoded header. `body_bytes` and `payload_bytes` follow it on the wire, in that order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Protocol version of the sender.
    pub version: u8,
    /// Request, reply, data or control.
    pub kind: Kind,
    /// The operation.
    pub op: Op,
    /// Chosen by the client, unique in its session. The reply and data units repeat it.
    pub request_id: u64,
    /// The result; [`Status::Ok`] in all messages but replies.
    pub status: Status,
    /// Bytes of body.
    pub body_bytes: u32,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// In a data unit: the offset of its first byte in the request's share. In a reply: the length of the
    /// share that was moved. Memory of a read after that is unchanged.
    pub share_offset: u64,
    /// Credits granted: requests that the receiver may send in addition.
    pub credit: u16,
    /// The client's exactly-once slot that this request occupies.
    pub slot: u16,
    /// See [`flags`].
    pub flags: u16,
    /// The trace id, which identifies one operation in the logs of several servers; 0 if unused.
    pub trace: u64,
    /// In a request: the version of the sender's cluster map; 0 if it has or needs none. In a reply: the
    /// server's version.
    pub map_version: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    op: le::U16,
    request_id: le::U64,
    status: le::U32,
    body_bytes: le::U32,
    payload_bytes: le::U64,
    share_offset: le::U64,
    credit: le::U16,
    slot: le::U16,
    flags: le::U16,
    zero_a: le::U16,
    trace: le::U64,
    map_version: le::U32,
    checksum: le::U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, request_id) == 8);
const _: () = assert!(std::mem::offset_of!(Raw, status) == 16);
const _: () = assert!(std::mem::offset_of!(Raw, payload_bytes) == 24);
const _: () = assert!(std::mem::offset_of!(Raw, share_offset) == 32);
const _: () = assert!(std::mem::offset_of!(Raw, credit) == 40);
const _: () = assert!(std::mem::offset_of!(Raw, trace) == 48);
const _: () = assert!(std::mem::offset_of!(Raw, map_version) == 56);
const _: () = assert!(std::mem::offset_of!(Raw, checksum) == 60);

/// CRC-32C of a header without its last four bytes, which hold it.
pub fn header_checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c(&bytes[..HEADER_BYTES - 4])
}

/// Why bytes are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The peer speaks another protocol.
    #[error("these bytes are not Weft's protocol (they begin with {0:02x?})")]
    Foreign([u8; 4]),
    /// The checksum does not match.
    #[error("a message header was damaged in transit (checksum {found:08x}, computed {computed:08x})")]
    Checksum {
        /// The checksum in the message.
        found: u32,
        /// The checksum of the received bytes.
        computed: u32,
    },
    /// A field has a value that this version does not know. The header is intact, so a proper refusal can be
    /// sent.
    #[error("unknown {field} {value} in a message header of version {version}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The sender's version.
        version: u8,
        /// The request id for the refusal.
        request_id: u64,
    },
}

impl Header {
    /// A request's header. Lengths are set when it is sent.
    pub fn request(op: Op, request_id: u64) -> Header {
        Header {
            version: VERSIONS.1,
            kind: Kind::Request,
            op,
            request_id,
            status: Status::Ok,
            body_bytes: 0,
            payload_bytes: 0,
            share_offset: 0,
            credit: 0,
            slot: 0,
            flags: 0,
            trace: 0,
            map_version: 0,
        }
    }

    /// The reply to `self`, returning one credit.
    pub fn reply(&self, status: Status) -> Header {
        Header {
            kind: Kind::Reply,
            status,
            credit: 1,
            trace: self.trace,
            ..Header::request(self.op, self.request_id)
        }
    }

    /// Sets in a reply the length of the share that was moved, from its beginning.
    pub fn moved(self, share_bytes: u64) -> Header {
        Header { share_offset: share_bytes, ..self }
    }

    /// A data unit of `self`'s transfer.
    pub fn data(&self, share_offset: u64, payload_bytes: u64) -> Header {
        Header { kind: Kind::Data, share_offset, payload_bytes, ..Header::request(self.op, self.request_id) }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            version: self.version,
            kind: self.kind as u8,
            op: (self.op as u16).into(),
            request_id: self.request_id.into(),
            status: (self.status as u32).into(),
            body_bytes: self.body_bytes.into(),
            payload_bytes: self.payload_bytes.into(),
            share_offset: self.share_offset.into(),
            credit: self.credit.into(),
            slot: self.slot.into(),
            flags: self.flags.into(),
            zero_a: 0.into(),
            trace: self.trace.into(),
            map_version: self.map_version.into(),
            checksum: 0.into(),
        };
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(raw);
        let checksum = header_checksum(&bytes);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header. The receiver must check every length in it against [`crate::limits`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(HeaderError::Foreign(raw.magic));
        }
        let computed = header_checksum(bytes);
        if raw.checksum.get() != computed {
            return Err(HeaderError::Checksum { found: raw.checksum.get(), computed });
        }
        let unknown = |field, value| HeaderError::Unknown {
            field,
            value,
            version: raw.version,
            request_id: raw.request_id.get(),
        };
        let kind = Kind::from_u8(raw.kind).ok_or(unknown("message kind", raw.kind.into()))?;
        let op = Op::from_u16(raw.op.get()).ok_or(unknown("operation", raw.op.get().into()))?;
        let status = Status::from_u32(raw.status.get()).ok_or(unknown("status", raw.status.get()))?;
        if raw.flags.get() & !flags::KNOWN != 0 {
            return Err(unknown("flags", raw.flags.get().into()));
        }
        Ok(Header {
            version: raw.version,
            kind,
            op,
            request_id: raw.request_id.get(),
            status,
            body_bytes: raw.body_bytes.get(),
            payload_bytes: raw.payload_bytes.get(),
            share_offset: raw.share_offset.get(),
            credit: raw.credit.get(),
            slot: raw.slot.get(),
            flags: raw.flags.get(),
            trace: raw.trace.get(),
            map_version: raw.map_version.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            version: 1,
            kind: Kind::Data,
            op: Op::Read,
            request_id: 0x0102_0304_0506_0708,
            status: Status::Ok,
            body_bytes: 9,
            payload_bytes: 10,
            share_offset: 11,
            credit: 12,
            slot: 13,
            flags: flags::RETRY,
            trace: 14,
            map_version: 15,
        }
    }

    #[test]
    fn survives_the_wire() {
        assert_eq!(Header::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = sample().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_protocol_is_named() {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert_eq!(Header::decode(&bytes), Err(HeaderError::Foreign(*b"GET ")));
    }

    #[test]
    fn an_unknown_operation_keeps_its_request_id() {
        let mut bytes = sample().encode();
        bytes[6..8].copy_from_slice(&0xfff0u16.to_le_bytes());
        let sum = header_checksum(&bytes);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        match Header::decode(&bytes) {
            Err(HeaderError::Unknown { field: "operation", value: 0xfff0, request_id, .. }) => {
                assert_eq!(request_id, sample().request_id)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn damaged_headers_are_refused_or_written_back_the_same() {
        weft_test_fuzz::run("header", &[sample().encode().to_vec()], |bytes| {
            let Some(mut bytes) = bytes.first_chunk::<HEADER_BYTES>().copied() else { return };
            let _ = Header::decode(&bytes);
            // Without a right checksum nothing else would be reached.
            bytes[..4].copy_from_slice(&MAGIC);
            let sum = header_checksum(&bytes);
            bytes[60..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(header) = Header::decode(&bytes) {
                assert_eq!(Header::decode(&header.encode()), Ok(header));
            }
        });
    }
}
