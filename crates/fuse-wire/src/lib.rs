//! The protocol between the Linux kernel and a FUSE file system, as bytes. This crate does no I/O.
//!
//! ```text
//!   request   header, 40 bytes          arguments of the operation      names, data
//!             length op unique node …   (their length depends on `op`)  "name\0", or data to write
//!
//!   reply     header, 16 bytes          body
//!             length error unique       attributes, data, names, …
//! ```
//!
//! Through the device (`/dev/fuse`) a request is these three parts in one block. Through an io_uring
//! ([`ring`]) they are in three blocks. So [`Request::decode`] takes the second and the third part
//! separately, and [`split`] separates them.
//!
//! All numbers are in the machine's byte order. The kernel's `include/uapi/linux/fuse.h` defines the
//! protocol. This is version 7.45. Features that need a newer kernel say which.

mod fields;
pub mod init;
pub mod notes;
mod reply;
mod request;
pub mod ring;

pub use fields::Malformed;
pub use reply::{
    Attributes, Body, DirectoryEntry, Entry, FileTime, LockFound, OpenReply, ReplyHeader, Space, open_flags,
};
pub use request::{
    CopyRange, Forgets, Header, LockRequest, Request, SetAttributes, SetTime, WriteManner, opcode, split,
};
