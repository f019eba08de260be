//! FUSE through an io_uring (Linux 6.14, where `/sys/module/fuse/parameters/enable_uring` is Y).
//!
//! ```text
//!   an entry: memory for one request from the kernel, and for the reply to it
//!
//!     headers, 288 bytes   0   header of the request, then of the reply      128 bytes
//!                        128   arguments of the operation                    128 bytes
//!                        256   flags, commit number, payload length           32 bytes
//!     payload              names or data of the request, then the body of the reply
//!
//!   REGISTER ──► (request) ──► completion ──► COMMIT_AND_FETCH (reply; ready for the next request) ──► …
//! ```
//!
//! Every possible processor has a queue, and every queue must have an entry before the kernel sends anything.
//! INIT, FORGET and INTERRUPT still come through the device.

use crate::ReplyHeader;
use crate::fields::{Fields, Malformed};
use crate::request::Header;

/// Length of an entry's headers.
pub const HEADERS_BYTES: usize = 288;
const ARGUMENTS: std::ops::Range<usize> = 128..256;
const COMMIT_AT: usize = 264;
const PAYLOAD_AT: usize = 272;

/// Registers an entry with the kernel.
pub const REGISTER: u32 = 1;
/// Sends a reply, and makes the entry available for the next request.
pub const COMMIT_AND_FETCH: u32 = 2;

/// Encodes the command in the last 80 bytes of a submission.
pub fn command(commit: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// A request in an entry.
#[derive(Debug)]
pub struct Arrived<'a> {
    /// Its header.
    pub header: Header,
    /// The arguments of the operation, and any bytes after them.
    pub arguments: &'a [u8],
    /// Identifies the request in its commit.
    pub commit: u64,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl Arrived<'_> {
    // Fuzzed by fuse: tests/protocol.rs
    /// Decodes an entry's headers.
    pub fn decode(headers: &[u8; HEADERS_BYTES]) -> Result<Arrived<'_>, Malformed> {
        Ok(Arrived {
            header: Header::decode(headers)?,
            arguments: &headers[ARGUMENTS],
            commit: Fields(&headers[COMMIT_AT..]).u64("the commit number")?,
            payload_bytes: Fields(&headers[PAYLOAD_AT..]).u32("the payload's length")? as usize,
        })
    }
}

/// Writes a reply's header and the length of its body into an entry's headers.
pub fn put_reply(headers: &mut [u8; HEADERS_BYTES], reply: &ReplyHeader) {
    headers[..ReplyHeader::BYTES].copy_from_slice(&reply.encode());
    headers[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&(reply.body_bytes as u32).to_ne_bytes());
}
