//! The wire format: one message form for every transport and every server.
//!
//! ```text
//!  0        8        16       24       32       40       48       56      64
//!  ┌────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┐ body_bytes   payload_bytes
//!  │magic·v·│request │status· │payload │share   │credit· │ trace  │map·crc │┌───────────┐┌────────────────┐
//!  │kind·op │  id    │body len│ bytes  │offset  │slot·flg│        │        ││ operation ││ data, or where │
//!  └────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────┘└───────────┘│ the data is    │
//!     header (64 bytes, little-endian, checksummed)                                      └────────────────┘
//! ```
//!
//! * [`Header`] is the fixed part, the same for requests, replies, data units and control.
//! * [`Op`] is the table of operations; every operation has a request and a reply type in [`messages`].
//! * [`messages`] are plain fields in order, little-endian, variable parts behind a 32-bit count ([`codec`]).
//! * A request describes file bytes by [`weft_layout::Regions`] ([`regions`] has their compact form). *Where
//!   those bytes are in the client's memory* is described separately, in the transport's form.
//! * [`locks`] are the ranges that one owner has locked; server and client use the same code.
//! * [`security`] has the mutual challenge and the signed capability, [`keys`] the identity of a key's
//!   holder.
//! * Every bound is in [`limits`].
//!
//! Invariants: nothing here does I/O or reads a clock. No integer from outside is trusted: a decoder checks
//! every count against the remaining bytes before it allocates.
#![forbid(unsafe_code)]

pub mod body;
mod claims;
pub mod codec;
mod header;
pub mod keys;
pub mod limits;
pub mod locks;
pub mod messages;
mod ops;
pub mod regions;
pub mod security;
mod status;
mod versions;

pub use body::Added;
pub use claims::Vetting;
pub use codec::{DecodeError, Reader, Wire, Writer};
pub use header::{HEADER_BYTES, Header, HeaderError, Kind, MAGIC, flags, header_checksum};
pub use ops::{About, Class, Op, Owned, Request, Role};
pub use status::Status;
pub use versions::{VERSIONS, negotiate};
