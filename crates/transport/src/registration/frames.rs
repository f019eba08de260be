//! Which pages are behind addresses, for the `verify` mode: `/proc/self/pagemap`.
//!
//! A registered page is pinned, so that the kernel neither moves it nor pages it out: as long as the
//! registration is right, the frame number behind the address stays the same. Frame numbers are shown to
//! `CAP_SYS_ADMIN` only; others see whether a page is there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::group::PageRange;
use super::page::page_bytes;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The frames of a range as they were.
pub struct Frames {
    first_page: u64,
    frames: Vec<u64>,
}

fn read(range: &PageRange) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; range.pages() as usize * 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, range.start / page_bytes() * 8)?;
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    Ok(words.map(|word| word & (PRESENT | FRAME)).collect())
}

impl Frames {
    /// Of memory that was just registered.
    ///
    /// # Errors
    /// Of the system: there is no `/proc/self/pagemap`.
    pub fn of(range: &PageRange) -> io::Result<Frames> {
        Ok(Frames { first_page: range.start / page_bytes(), frames: read(range)? })
    }

    /// Whether the same pages are still behind a part of the range. What was not there then (an adapter that
    /// pins nothing) is not compared.
    ///
    /// # Errors
    /// As [`Frames::of`].
    pub fn are_still(&self, part: &PageRange) -> io::Result<bool> {
        let now = read(part)?;
        let first = (part.start / page_bytes() - self.first_page) as usize;
        let is_same = |(then, now): (&u64, &u64)| *then == 0 || then == now;
        let then = self.frames.get(first..first + now.len());
        Ok(then.is_some_and(|then| then.iter().zip(&now).all(is_same)))
    }
}
