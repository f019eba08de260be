//! What the Linux kernel and a FUSE file system say to each other, as bytes; no I/O is done here.
//!
//! ```text
//!   request   header, 40 bytes          arguments of the operation      names, data
//!             length op unique node …   (a length that `op` decides)    "name\0", or what is to be written
//!
//!   reply     header, 16 bytes          body
//!             length error unique       attributes, data, names, …
//! ```
//!
//! Through the device (`/dev/fuse`) a request is these three in one piece. Through an io_uring ([`ring`]) they come in three
//! pieces of memory; so [`Request::decode`] takes the second and the third apart from each other, and [`split`] parts them.
//!
//! All numbers have the byte order of the machine. The protocol is defined by the kernel's `include/uapi/linux/fuse.h`; this is of
//! its version 7.45, and everything it asks for says from which kernel on it is there.

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
