//! Telling the kernel to forget, by notes written to the FUSE device.
//!
//! A name is only to be asked for again, so that a directory that somebody is in stays what it is. All names at once
//! (Linux 6.16) is the only note about names for which the kernel takes no lock.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use weft_fuse_wire::notes;

/// All bytes that a file can have.
pub(crate) const ALL_BYTES: Range<u64> = 0..u64::MAX;

/// The way back to the kernel.
pub(crate) struct Notes {
    device: Arc<File>,
    all_names: bool,
}

impl Notes {
    /// Notes on this connection, whose first request has been answered.
    pub(crate) fn new(device: Arc<File>) -> Notes {
        let mut notes = Notes { device, all_names: false };
        notes.all_names = notes.all_names().is_ok();
        notes
    }

    /// Whether the kernel can be told to forget names without waiting for anybody.
    pub(crate) fn can_forget_all_names(&self) -> bool {
        self.all_names
    }

    /// Attributes of an inode, and its pages with any of these bytes. Returns whether the kernel knows the inode.
    pub(crate) fn inode(&self, node: u64, pages: Option<Range<u64>>) -> bool {
        let sent = self.send(&notes::forget_inode(node, pages));
        !sent.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    }

    /// A name; waits until nobody in the kernel holds the directory.
    pub(crate) fn name(&self, dir_node: u64, name: &[u8]) {
        // A name that the kernel does not know (any more) is not wrong.
        let _ = self.send(&notes::ask_again(dir_node, name));
    }

    /// A name with what is cached below it; waits as [`Notes::name`] does.
    pub(crate) fn drop_name(&self, dir_node: u64, name: &[u8]) {
        let _ = self.send(&notes::drop_name(dir_node, name));
    }

    /// All names, at once.
    pub(crate) fn all_names(&self) -> io::Result<()> {
        self.send(&notes::ask_all_again())
    }

    fn send(&self, note: &[u8]) -> io::Result<()> {
        (&*self.device).write(note).map(drop)
    }
}
