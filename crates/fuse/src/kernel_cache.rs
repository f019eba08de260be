//! What the kernel may cache of one inode: its attributes, and for how long. Without I/O and without a clock.
//!
//! ```text
//!   told   ───► cached for the rest of a lease ───► another changes it: a note
//!                     ▲                                     │
//!                     │ told once more, a second later      ▼
//!                     └─────────────────────────────── uncached: told, but for no time; changes need no note
//! ```
//!
//! A note has a price: the kernel drops the replies about this inode that are on their way, and a `read` that waits for one goes by
//! the size of before. That is right for what the note is about, which is not acknowledged yet; but a change shortly before, which was,
//! would be missed. So there is no note where nothing is cached, and nothing is cached where changes come in bursts: for a while
//! after each note, and until the kernel has heard once what there was after it.
//!
//! Pages that the kernel keeps of a file go when it hears of another size or modification time. Where both are as before although
//! something was changed, or may have been while nothing was promised, the status-change time tells. What it hears in reply to a change of
//! its own it does not compare; and what its programs write makes the size that it knows larger without a word from here.

use std::time::{Duration, Instant};
use weft_wire::messages::{Attr, Time};

/// How long nothing is cached after a note.
const UNCACHED: Duration = Duration::from_secs(1);
/// How long the kernel may take to hear what it is told.
const HEARING: Duration = Duration::from_millis(100);

/// An inode that the kernel knows or will know.
#[derive(Debug)]
pub(crate) struct CachedInode {
    lookups: u64,
    told: Instant,
    cached_until: Option<Instant>,
    uncached: Option<Uncached>,
    pages: Option<Box<Pages>>,
}

#[derive(Debug)]
struct Uncached {
    until: Instant,
    /// The kernel was told since it began.
    told: bool,
}

/// A file of which the kernel may keep pages.
#[derive(Debug)]
struct Pages {
    seen: Option<Seen>,
    /// Somebody has changed the file since then, or may have after `promised_until`.
    suspect: bool,
    promised_until: Instant,
}

/// What the kernel knows of a file.
#[derive(Debug)]
struct Seen {
    /// Size as last told, or as its programs have made it since.
    bytes: u64,
    /// When the file was modified, as last told.
    mtime: Time,
    /// When its status was changed, as last told.
    ctime: Time,
}

/// What has to be done before a change is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forget {
    /// A note about the attributes.
    pub(crate) attributes: bool,
    /// A note about attributes and pages.
    pub(crate) pages: bool,
}

impl Pages {
    fn are_suspect(&self, now: Instant) -> bool {
        self.suspect || now >= self.promised_until
    }
}

impl CachedInode {
    /// Of an inode that the kernel knows by so many lookups.
    pub(crate) fn new(lookups: u64, now: Instant) -> CachedInode {
        CachedInode { lookups, told: now, cached_until: None, uncached: None, pages: None }
    }

    /// The kernel is about to be told of it once more.
    pub(crate) fn looked_up(&mut self, now: Instant) {
        self.lookups += 1;
        self.told = now;
    }

    /// The kernel has forgotten so many lookups. Returns whether it knows the inode no more.
    pub(crate) fn let_go(&mut self, lookups: u64) -> bool {
        self.lookups = self.lookups.saturating_sub(lookups);
        self.lookups == 0
    }

    /// When the kernel was last told.
    pub(crate) fn told_at(&self) -> Instant {
        self.told
    }

    /// The kernel may keep pages of it from now on.
    pub(crate) fn opened(&mut self, now: Instant) {
        self.pages.get_or_insert_with(|| Box::new(Pages { seen: None, suspect: true, promised_until: now }));
    }

    /// The kernel is about to be told attributes, which hold for `valid`; returns for how long it may cache them.
    pub(crate) fn tell(&mut self, now: Instant, valid: Duration) -> Duration {
        self.told = now;
        if self.is_uncached(now) || valid.is_zero() {
            return Duration::ZERO;
        }
        self.cached_until = self.cached_until.max(Some(now + valid));
        valid
    }

    fn is_uncached(&mut self, now: Instant) -> bool {
        let Some(uncached) = &mut self.uncached else { return false };
        if !uncached.told {
            uncached.told = true;
            uncached.until = uncached.until.max(now + HEARING);
        }
        let lasts = now < uncached.until;
        if !lasts {
            self.uncached = None;
        }
        lasts
    }

    /// The kernel is about to be told these attributes of a file. Returns whether it has to be told of its pages first, as it would
    /// take old ones for good. `promised`: for so long the servers tell of changes; `undisturbed`: nothing was forgotten since
    /// the attributes were asked for.
    pub(crate) fn hides_a_change(
        &mut self,
        attr: &Attr,
        now: Instant,
        promised: Duration,
        undisturbed: bool,
    ) -> bool {
        let Some(pages) = &mut self.pages else { return false };
        let suspect = pages.are_suspect(now);
        let now_seen = Seen { bytes: attr.size, mtime: attr.mtime.clone(), ctime: attr.ctime.clone() };
        let seen = pages.seen.replace(now_seen);
        pages.suspect = suspect && !undisturbed;
        pages.promised_until = now + promised;
        let looks_the_same = |seen: &Seen| seen.bytes == attr.size && seen.mtime == attr.mtime;
        suspect && seen.is_some_and(|seen| looks_the_same(&seen) && seen.ctime != attr.ctime)
    }

    /// The kernel is about to hear that a program of this mount has written up to here.
    pub(crate) fn written_to(&mut self, end: u64) {
        if let Some(seen) = self.seen() {
            seen.bytes = seen.bytes.max(end);
        }
    }

    /// The kernel is about to hear that a program of this mount has made it empty.
    pub(crate) fn emptied(&mut self) {
        if let Some(seen) = self.seen() {
            seen.bytes = 0;
        }
    }

    fn seen(&mut self) -> Option<&mut Seen> {
        self.pages.as_mut()?.seen.as_mut()
    }

    /// Whether pages may be older than what others have changed. The reply to a change of attributes is taken over by the kernel with
    /// its times, and no pages go for them: of such pages it has to be told before.
    pub(crate) fn has_suspect_pages(&self, now: Instant) -> bool {
        self.pages.as_ref().is_some_and(|pages| pages.are_suspect(now))
    }

    /// Another has changed it; `data`: also what it holds.
    pub(crate) fn changed(&mut self, data: bool, now: Instant) -> Forget {
        let was_cached = self.cached_until.take().is_some_and(|until| until > now);
        if was_cached {
            self.uncached = Some(Uncached { until: now + UNCACHED, told: false });
        }
        if let Some(pages) = self.pages.as_mut().filter(|_| data) {
            pages.suspect = !was_cached;
            return Forget { attributes: false, pages: was_cached };
        }
        Forget { attributes: was_cached, pages: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const MS: Duration = Duration::from_millis(1);
    const NOTHING: Forget = Forget { attributes: false, pages: false };
    const ATTRIBUTES: Forget = Forget { attributes: true, pages: false };
    const PAGES: Forget = Forget { attributes: false, pages: true };

    fn attr(size: u64, mtime: i64, ctime: i64) -> Attr {
        let time = |seconds| Time { seconds, nanoseconds: 0 };
        let kind = weft_wire::messages::FileKind::File;
        let zero = || time(0);
        Attr {
            ino: 7,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            size,
            size_live: false,
            epoch: 0,
            atime: zero(),
            mtime: time(mtime),
            ctime: time(ctime),
            btime: zero(),
            generation: 0,
            rdev: 0,
            layout: None,
        }
    }

    #[test]
    fn what_is_cached_needs_a_note_and_what_is_not_needs_none() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        assert_eq!(inode.changed(true, now), NOTHING);
        assert_eq!(inode.tell(now, LEASE), LEASE);
        assert_eq!(inode.changed(false, now), ATTRIBUTES);
        assert_eq!(inode.changed(false, now), NOTHING);
    }

    #[test]
    fn what_was_cached_is_over_with_its_time() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.tell(now, LEASE);
        inode.tell(now + MS, Duration::ZERO);
        assert_eq!(inode.changed(false, now + LEASE), NOTHING);
    }

    #[test]
    fn nothing_is_cached_in_a_burst_of_changes() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.tell(now, LEASE);
        assert_eq!(inode.changed(true, now), ATTRIBUTES);
        for step in 0..9 {
            let at = now + step * 100 * MS;
            assert_eq!(inode.tell(at, LEASE), Duration::ZERO);
            assert_eq!(inode.changed(true, at), NOTHING);
        }
        assert_eq!(inode.tell(now + UNCACHED, LEASE), LEASE);
    }

    #[test]
    fn the_first_reply_after_a_note_is_not_cached_however_late_it_is() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.tell(now, LEASE);
        inode.changed(true, now);
        let late = now + LEASE;
        assert_eq!(inode.tell(late, LEASE), Duration::ZERO);
        assert_eq!(inode.tell(late + MS, LEASE), Duration::ZERO);
        assert_eq!(inode.tell(late + HEARING, LEASE), LEASE);
    }

    #[test]
    fn pages_go_with_a_note_where_attributes_are_cached() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.opened(now);
        inode.tell(now, LEASE);
        assert_eq!(inode.changed(false, now), ATTRIBUTES);
        inode.tell(now, LEASE);
        inode.tell(now + UNCACHED, LEASE);
        assert_eq!(inode.changed(true, now + UNCACHED), PAGES);
    }

    #[test]
    fn a_change_behind_an_old_size_and_time_is_found_by_the_other_time() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.opened(now);
        assert!(!inode.hides_a_change(&attr(5, 10, 10), now, LEASE, true));
        // This mount has set the mode: nobody else has done anything.
        assert!(!inode.hides_a_change(&attr(5, 10, 11), now, LEASE, true));
        assert_eq!(inode.changed(true, now), NOTHING);
        // Asked for before the change was heard of, so that it says nothing yet.
        assert!(!inode.hides_a_change(&attr(5, 10, 11), now, LEASE, false));
        assert!(inode.hides_a_change(&attr(5, 10, 12), now, LEASE, true));
        assert!(!inode.hides_a_change(&attr(5, 10, 13), now, LEASE, true));
        // Long after, nobody would have said anything.
        assert!(inode.hides_a_change(&attr(5, 10, 14), now + LEASE, LEASE, true));
        // The kernel itself sees another size or time.
        inode.changed(true, now + LEASE);
        assert!(!inode.hides_a_change(&attr(6, 10, 15), now + LEASE, LEASE, true));
        inode.changed(true, now + LEASE);
        assert!(!inode.hides_a_change(&attr(6, 11, 16), now + LEASE, LEASE, true));
    }

    #[test]
    fn the_kernel_knows_the_size_that_programs_of_the_mount_have_made() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        inode.opened(now);
        inode.written_to(9);
        assert!(!inode.hides_a_change(&attr(5, 10, 10), now, LEASE, true));
        inode.written_to(9);
        inode.written_to(7);
        inode.changed(true, now);
        assert!(inode.hides_a_change(&attr(9, 10, 12), now, LEASE, true), "it has heard of no other size");
        inode.emptied();
        inode.changed(true, now);
        assert!(!inode.hides_a_change(&attr(9, 10, 13), now, LEASE, true), "it was empty, for the kernel");
    }

    #[test]
    fn an_inode_is_gone_when_all_lookups_are() {
        let now = Instant::now();
        let mut inode = CachedInode::new(0, now);
        inode.looked_up(now);
        inode.looked_up(now);
        assert!(!inode.let_go(1));
        assert!(inode.let_go(1));
    }

    #[test]
    fn pages_are_suspect_from_a_change_of_another_until_the_kernel_compares() {
        let now = Instant::now();
        let mut inode = CachedInode::new(1, now);
        assert!(!inode.has_suspect_pages(now), "there are none");
        inode.opened(now);
        assert!(inode.has_suspect_pages(now), "it has heard nothing yet");
        inode.hides_a_change(&attr(5, 1, 1), now, LEASE, true);
        assert!(!inode.has_suspect_pages(now));
        assert!(inode.has_suspect_pages(now + LEASE), "nothing is promised any more");
        inode.changed(false, now);
        assert!(!inode.has_suspect_pages(now));
        inode.changed(true, now);
        assert!(inode.has_suspect_pages(now));
        inode.hides_a_change(&attr(5, 2, 2), now, LEASE, true);
        assert!(!inode.has_suspect_pages(now));
    }
}
