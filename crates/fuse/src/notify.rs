//! Telling the kernel to forget, by notes written to the FUSE device.
//!
//! The crate `fuser` has some of these. Two are missing there: that a name is only to be asked for again (so that a directory that
//! somebody is in stays what it is), and that all names are (`FUSE_NOTIFY_INC_EPOCH`, Linux 6.16), the only note about names for
//! which the kernel takes no lock.
//!
//! ```text
//!   header: u32 length, i32 code, u64 0     then by code:
//!     2 an inode     u64 node, i64 offset (negative: attributes only), i64 length (0: to the end)
//!     3 a name       u64 directory, u32 length of the name, u32 flags (1: ask again), the name, 0
//!     8 all names    nothing
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const EXPIRE_ONLY: u32 = 1;
const HEADER_BYTES: usize = 16;

/// The way back to the kernel.
pub(crate) struct Notes {
    device: File,
    all_names: bool,
}

impl Notes {
    /// Notes on this connection, whose first request has been answered.
    pub(crate) fn new(device: OwnedFd) -> Notes {
        let mut notes = Notes { device: device.into(), all_names: false };
        notes.all_names = notes.all_names().is_ok();
        notes
    }

    /// Whether the kernel can be told to forget names without waiting for anybody.
    pub(crate) fn can_forget_all_names(&self) -> bool {
        self.all_names
    }

    /// Attributes of an inode; its pages with `data`. Returns whether the kernel knows the inode.
    pub(crate) fn inode(&self, node: u64, data: bool) -> bool {
        let offset: i64 = if data { 0 } else { -1 };
        let parts = [&node.to_ne_bytes()[..], &offset.to_ne_bytes(), &0i64.to_ne_bytes()];
        let sent = self.send(INVAL_INODE, &parts);
        !sent.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    }

    /// A name; waits until nobody in the kernel holds the directory.
    pub(crate) fn name(&self, dir_node: u64, name: &[u8]) {
        let length = name.len() as u32;
        let parts =
            [&dir_node.to_ne_bytes()[..], &length.to_ne_bytes(), &EXPIRE_ONLY.to_ne_bytes(), name, &[0]];
        // A name that the kernel does not know (any more) is not wrong.
        let _ = self.send(INVAL_ENTRY, &parts);
    }

    /// All names, at once.
    pub(crate) fn all_names(&self) -> io::Result<()> {
        self.send(INC_EPOCH, &[])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut note = Vec::with_capacity(bytes);
        note.extend_from_slice(&(bytes as u32).to_ne_bytes());
        note.extend_from_slice(&code.to_ne_bytes());
        note.extend_from_slice(&0u64.to_ne_bytes());
        parts.iter().for_each(|part| note.extend_from_slice(part));
        (&self.device).write(&note).map(drop)
    }
}
