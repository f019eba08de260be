//! What was written under one open file by several processes, which is reported once.
//!
//! ```text
//!   process 0       open ─► File::share ─► bytes ─► processes 1 to n        1 Open
//!   processes 1–n   Client::import_shared: no message                       write to the I/O servers
//!                   File::written_end ──── reduced with WrittenEnd::and ───► process 0
//!   process 0       File::close_shared                                      1 Close, with the end of all
//! ```
//!
//! Where process 0 is not told, [`File::close`] asks the I/O servers for the end.

use crate::Result;
use crate::file::File;
use crate::written::WrittenEnd;

impl File {
    /// Whether it was imported by [`Client::import_shared`](crate::Client::import_shared) and does not count
    /// as open by itself.
    pub fn is_covered(&self) -> bool {
        self.open.held.is_covered()
    }

    /// What was written through this handle and not yet reported, for whoever reports it: the handle that was
    /// shared. Asks nobody.
    pub fn written_end(&self) -> WrittenEnd {
        self.open.held.written_end()
    }

    /// Notes what others have written that share this open. The next [`File::flush`] or close reports it.
    pub fn note_written(&self, others: &WrittenEnd) {
        self.open.held.note_others(others);
    }

    /// Notes that another process has set the size of the file through a handle of the same open: an end
    /// beyond it is not reported. Truncating through this handle notes it by itself.
    pub fn note_size(&self, file_bytes: u64) {
        self.open.held.note_size(file_bytes);
    }

    /// As [`File::close`], of a file that was shared: `others` is what all others have written, who write no
    /// more. No I/O server is asked for the end unless it is unsure.
    ///
    /// # Errors
    /// As [`File::close`].
    pub fn close_shared(self, others: &WrittenEnd) -> Result<()> {
        self.open.held.note_others(others);
        self.open.held.note_covers(false);
        self.close()
    }
}
