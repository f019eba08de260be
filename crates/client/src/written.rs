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

use weft_wire::messages::Time;

use crate::Result;
use crate::file::File;
use crate::held::Held;
use crate::inner::Inner;
use crate::size::{ask_size, time_key};

/// What was written through a handle, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenEnd {
    /// The end of the furthest byte that was written.
    pub end_bytes: u64,
    /// Something was written that the file's time of modification is to show.
    pub touch: bool,
    /// A write failed, and may have come further: the I/O servers are to be asked for the end.
    pub unsure: bool,
}

impl WrittenEnd {
    /// What was written through two handles.
    pub fn and(self, other: WrittenEnd) -> WrittenEnd {
        WrittenEnd {
            end_bytes: self.end_bytes.max(other.end_bytes),
            touch: self.touch || other.touch,
            unsure: self.unsure || other.unsure,
        }
    }
}

impl Held {
    /// Asks the I/O servers how far others have written that are covered by it. `mtime` is the last time of
    /// modification that is known: what is newer, they have written.
    pub(crate) fn settle_others(&self, inner: &Inner, mtime: &Time) -> Result<()> {
        if self.is_for_writing() {
            inner.keep_alive(self)?;
            let size = ask_size(inner, &self.capability())?;
            self.note_end(size.file_bytes);
            let touch = time_key(&size.mtime) > time_key(mtime);
            self.note_others(&WrittenEnd { end_bytes: size.file_bytes, touch, unsure: false });
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_put_together_in_any_order() {
        let one = WrittenEnd { end_bytes: 10, touch: true, unsure: false };
        let two = WrittenEnd { end_bytes: 30, touch: false, unsure: true };
        let both = WrittenEnd { end_bytes: 30, touch: true, unsure: true };
        assert_eq!((one.and(two), two.and(one)), (both, both));
        assert_eq!(one.and(WrittenEnd::default()), one);
    }
}
