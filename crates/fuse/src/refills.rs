//! Pages that the kernel may have filled again with what a write was about to replace.
//!
//! ```text
//!   writer   copies into page 7 ─── WRITE ──────────────────► servers ─► forget page 7 ─► reply
//!   others        open: pages go      READ page 7 ─► servers    ▲
//!                                     the bytes of before       └── it was read since the write before this one
//! ```
//!
//! The kernel copies what is written into its pages, lets go of them and sends the WRITE. An open that finds the file changed makes
//! it drop them before that WRITE has arrived, and a READ that overtakes the WRITE fills one anew, with old bytes that nobody would
//! doubt again. The kernel has one WRITE of an inode under way at a time, but for those past the cache: so what was read
//! since the last of them ended, and is written now, is what may be wrong. Forgotten before the reply, no program
//! that knows of the write ever sees it. What the writing thread itself has read is right: the kernel keeps a page locked from the READ's
//! begin to its end, and a thread that writes reads nothing meanwhile. Pages that are being written back from a mapping cannot be dropped, and need none of this.

use std::ops::Range;

const PAGE_BYTES: u64 = 4096;
/// Ranges remembered apart; more are remembered as one from the first to the last.
const RANGES_MAX: usize = 64;

/// What was read of one inode since no write of it was under way.
#[derive(Default)]
pub(crate) struct Refills {
    read: Vec<Read>,
    writes_under_way: u32,
}

struct Read {
    /// In bytes, whole pages.
    pages: Range<u64>,
    /// The thread that read; 0: it is not known, or there were several.
    by: u32,
}

impl Refills {
    /// A READ has arrived.
    pub(crate) fn reading(&mut self, by: u32, bytes: &Range<u64>) {
        let pages = pages_of(bytes);
        match self.read.last_mut() {
            Some(last) if last.by == by && touch(&last.pages, &pages) => {
                last.pages = hull(&last.pages, &pages)
            }
            _ => self.read.push(Read { pages, by }),
        }
        if self.read.len() > RANGES_MAX {
            let all = self.read.drain(..).map(|read| read.pages).reduce(|one, other| hull(&one, &other));
            self.read.extend(all.map(|pages| Read { pages, by: 0 }));
        }
    }

    /// A WRITE has arrived.
    pub(crate) fn writing(&mut self) {
        self.writes_under_way += 1;
    }

    /// It has been done, or has failed. Returns whether its pages are to be forgotten.
    pub(crate) fn written(&mut self, by: u32, bytes: &Range<u64>) -> bool {
        let written = pages_of(bytes);
        let mut foreign = self.read.iter().filter(|read| read.by == 0 || read.by != by);
        let refilled =
            foreign.any(|Read { pages, .. }| pages.start < written.end && written.start < pages.end);
        self.writes_under_way = self.writes_under_way.saturating_sub(1);
        if self.writes_under_way == 0 {
            self.read.clear();
        }
        refilled
    }
}

/// The pages that `bytes` lie in.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let end = bytes.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
    bytes.start - bytes.start % PAGE_BYTES..end
}

fn touch(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start <= other.end && other.start <= one.end
}

fn hull(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.min(other.start)..one.end.max(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: u32 = 11;
    const WRITER: u32 = 12;

    /// A write of `bytes` with nothing else meanwhile.
    fn write(refills: &mut Refills, bytes: Range<u64>) -> bool {
        refills.writing();
        refills.written(WRITER, &bytes)
    }

    #[test]
    fn what_was_read_since_the_write_before_is_forgotten_once() {
        let mut refills = Refills::default();
        assert!(!write(&mut refills, 0..100), "nothing was read");
        refills.reading(READER, &(4096..8192));
        assert!(write(&mut refills, 8191..8200));
        assert!(!write(&mut refills, 8191..8200), "nobody has read since");
    }

    #[test]
    fn what_the_writing_thread_has_read_is_right_unless_it_may_have_been_another() {
        for (by, forgotten) in [(WRITER, false), (READER, true), (0, true)] {
            let mut refills = Refills::default();
            refills.reading(by, &(0..4096));
            assert_eq!(write(&mut refills, 0..4096), forgotten, "{by}");
        }
        let mut refills = Refills::default();
        refills.reading(0, &(0..4096));
        refills.writing();
        assert!(refills.written(0, &(0..4096)), "two that are not known may be two");
        // Neighbouring ranges of two readers are not one.
        refills.reading(WRITER, &(0..4096));
        refills.reading(READER, &(4096..8192));
        assert!(!write(&mut refills, 0..4096));
    }

    #[test]
    fn pages_count_as_a_whole_and_neighbours_do_not() {
        for (written, forgotten) in
            [(0..4096, false), (4096..4097, true), (8191..8192, true), (8192..9000, false)]
        {
            let mut refills = Refills::default();
            refills.reading(READER, &(5000..5001));
            assert_eq!(write(&mut refills, written.clone()), forgotten, "{written:?}");
        }
    }

    #[test]
    fn a_read_during_two_writes_counts_for_both() {
        let mut refills = Refills::default();
        refills.writing();
        refills.writing();
        refills.reading(READER, &(0..8192));
        assert!(refills.written(WRITER, &(0..1)));
        assert!(refills.written(WRITER, &(4096..4097)));
        assert!(!write(&mut refills, 0..8192));
    }

    #[test]
    fn more_reads_than_are_remembered_are_never_too_few() {
        let mut refills = Refills::default();
        let reads: Vec<u64> = (0..1000).map(|at| (at * 7919 % 1000) * 3 * PAGE_BYTES).collect();
        reads.iter().for_each(|&offset| refills.reading(READER, &(offset..offset + 10)));
        assert!(refills.read.len() <= RANGES_MAX);
        refills.writing();
        for offset in reads {
            refills.writing();
            assert!(refills.written(WRITER, &(offset..offset + 1)), "{offset}");
        }
    }

    #[test]
    fn a_range_to_the_end_of_all_files_is_one() {
        let mut refills = Refills::default();
        refills.reading(READER, &(u64::MAX - 5..u64::MAX));
        assert!(write(&mut refills, 0..u64::MAX));
    }
}
