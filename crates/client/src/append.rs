//! Appends: the metadata server gives each a place of its own, so that those of any clients follow each
//! other.
//!
//! ```text
//!   1  size      all I/O servers of the file, at once
//!   2  place     metadata server: max(size, end of all places given out)     "cut meanwhile": from 1
//!   3  write     I/O servers
//! ```

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_wire::Status;
use weft_wire::messages::AppendRequest;

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::open_file::OpenFile;

/// How soon to ask again while the file is being cut.
const CUT_PAUSE: Duration = Duration::from_millis(2);
/// How long a file may be in the process of being cut. One who dies at it is given up by the server much
/// sooner.
const CUT_MAX: Duration = Duration::from_secs(60);

impl OpenFile {
    /// Where `bytes` bytes to be appended belong: nobody else is given a byte of it.
    pub(crate) fn append_place(&self, bytes: u64) -> Result<u64, Error> {
        let begin = Instant::now();
        self.inner.count_covered(&self.held)?;
        loop {
            let epoch = self.append_epoch.load(Ordering::Relaxed);
            let file_bytes = self.live_bytes()?;
            if bytes == 0 {
                return Ok(file_bytes);
            }
            let request = AppendRequest { ino: self.held.ino, bytes, file_bytes, epoch };
            let reply = batch::ask(&self.inner, &request)?;
            self.append_epoch.store(reply.epoch, Ordering::Relaxed);
            match reply.offset {
                Some(offset) => return Ok(offset),
                None if begin.elapsed() > CUT_MAX => {
                    let text = "somebody has been truncating the file for too long; try again";
                    return Err(Error::new("Append", ErrorKind::Status(Status::Busy), text));
                }
                None if reply.epoch == epoch => std::thread::sleep(CUT_PAUSE),
                None => {}
            }
        }
    }
}
