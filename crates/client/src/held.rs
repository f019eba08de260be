//! The files that this process has open, as its cluster connections must know them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use weft_layout::Layout;
use weft_wire::Added;
use weft_wire::messages::{OpenId, OpenReply, ReopenRequest, WriteReport};
use weft_wire::security::Capability;

use crate::losses::Losses;
use crate::wait::lock;
use crate::written::WrittenEnd;

/// One open of a file.
pub(crate) struct Held {
    pub ino: u64,
    pub layout: Layout,
    /// [`weft_wire::messages::rights`].
    pub access: u32,
    capability: Mutex<Capability>,
    /// Space that the capability's bound allows was given back since.
    reserves_anew: AtomicBool,
    /// How many bytes the file may have and lie with its inode; 0 once it is known to be striped.
    small_bytes: AtomicU32,
    /// See [`OpenId`].
    number: u64,
    run: AtomicU64,
    /// The session that it was opened in, and its run then.
    session: [u8; 16],
    first_run: u64,
    /// The open that its counter belongs to, once that is asked for.
    counter: OnceLock<CounterOf>,
    /// The open of another process covers it: it does not count itself.
    covered: AtomicBool,
    /// Others are covered by it, and may have written what is not known here.
    covers: AtomicBool,
    written: Mutex<Written>,
    /// Shared by all opens of the file in this process.
    losses: OnceLock<Arc<Losses>>,
    losses_at_open: AtomicU64,
    /// Something was locked through it, and some of that was lost.
    locks: AtomicBool,
    locks_lost: AtomicBool,
    forgotten: AtomicBool,
    /// When its capability was renewed last because it was about to end, by this host's clock.
    renewed_s: AtomicU64,
}

/// The open that a counter belongs to, as servers know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CounterOf {
    pub session: [u8; 16],
    /// The run of that session in which it was opened.
    pub run: u64,
    pub number: u64,
}

/// What was written and not yet reported.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Written {
    end_bytes: u64,
    unreported: bool,
    touch: bool,
    /// A write failed: how far it came is not known.
    unsure: bool,
}

impl Held {
    /// An open of the session `session`.
    pub(crate) fn new(capability: Capability, access: u32, id: OpenId, session: [u8; 16]) -> Held {
        Held {
            ino: capability.ino,
            layout: capability.layout,
            access,
            capability: Mutex::new(capability),
            reserves_anew: AtomicBool::new(false),
            small_bytes: AtomicU32::new(0),
            number: id.number,
            run: AtomicU64::new(id.run),
            session,
            first_run: id.run,
            counter: OnceLock::new(),
            covered: AtomicBool::new(false),
            covers: AtomicBool::new(false),
            written: Mutex::default(),
            losses: OnceLock::new(),
            losses_at_open: AtomicU64::new(0),
            locks: AtomicBool::new(false),
            locks_lost: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            renewed_s: AtomicU64::new(0),
        }
    }

    /// One of a file that may be small, by [`OpenReply::small_bytes`].
    pub(crate) fn small(self, small_bytes: u32) -> Held {
        Held { small_bytes: AtomicU32::new(small_bytes), ..self }
    }

    /// How many bytes the file may have and lie with its inode; 0 if it is striped.
    pub(crate) fn small_bytes(&self) -> u32 {
        self.small_bytes.load(Ordering::Relaxed)
    }

    /// The metadata server has said that the file is striped.
    pub(crate) fn note_striped(&self) {
        self.small_bytes.store(0, Ordering::Relaxed);
    }

    /// One whose counter is that of another open.
    pub(crate) fn counting_with(self, counter: CounterOf) -> Held {
        Held { counter: OnceLock::from(counter), ..self }
    }

    /// One that does not count at the metadata server, for the open of another process covers it.
    pub(crate) fn under_anothers(self) -> Held {
        Held { covered: AtomicBool::new(true), ..self }
    }

    /// Whether the open of another process covers it.
    pub(crate) fn is_covered(&self) -> bool {
        self.covered.load(Ordering::Acquire)
    }

    /// Whether others that are covered by it may have written what is not known here.
    pub(crate) fn covers_others(&self) -> bool {
        self.covers.load(Ordering::Acquire)
    }

    pub(crate) fn note_covers(&self, covers: bool) {
        self.covers.store(covers, Ordering::Release);
    }

    /// The open that its counter belongs to.
    pub(crate) fn counter(&self) -> CounterOf {
        *self.counter.get_or_init(|| CounterOf {
            session: self.capability().holder.session(&self.session),
            run: self.first_run,
            number: self.number,
        })
    }

    pub(crate) fn capability(&self) -> Capability {
        lock(&self.capability).clone()
    }

    pub(crate) fn is_for_writing(&self) -> bool {
        self.access & weft_wire::messages::rights::WRITE != 0
    }

    /// What tells it from other opens of the session.
    pub(crate) fn id(&self) -> OpenId {
        OpenId { run: self.run.load(Ordering::Acquire), number: self.number }
    }

    /// The request by which it counts as open at the metadata server, if it does not already, and gets a new
    /// capability.
    pub(crate) fn reopening(&self) -> ReopenRequest {
        ReopenRequest { capability: self.capability(), id: self.id(), small: Added(true) }
    }

    /// It counts as open.
    pub(crate) fn reopened(&self, reply: OpenReply) {
        if reply.small_bytes.0 > 0 && self.small_bytes() == 0 {
            // The server had said that the file is striped. It has no record now of the data files with the later writes.
            self.note_forgotten();
        }
        self.small_bytes.store(reply.small_bytes.0, Ordering::Relaxed);
        if let Some(capability) = reply.capability {
            self.renew(capability);
        }
        self.run.store(reply.run, Ordering::Release);
        self.covered.store(false, Ordering::Release);
    }

    /// The metadata server has lost changes of the file that it had acknowledged. Each sync of this open fails from now on.
    pub(crate) fn note_forgotten(&self) {
        self.forgotten.store(true, Ordering::Release);
    }

    /// See [`Held::note_forgotten`].
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }

    /// It has another capability.
    pub(crate) fn renew(&self, capability: Capability) {
        self.reserves_anew.store(false, Ordering::Release);
        *lock(&self.capability) = capability;
    }

    /// Whether its capability is to be renewed now. Where the clocks differ so much that a new one looks as old, once a minute is
    /// enough: servers accept it for longer.
    pub(crate) fn begins_renewal(&self, now_s: u64) -> bool {
        let before_s = self.renewed_s.load(Ordering::Relaxed);
        let is_due = now_s.abs_diff(before_s) >= 60;
        if is_due {
            self.renewed_s.store(now_s, Ordering::Relaxed);
        }
        is_due
    }

    /// Whether bytes up to `end_bytes` may be written without reserving space for them.
    pub(crate) fn may_write_to(&self, end_bytes: u64) -> bool {
        let capability = self.capability();
        capability.allows_end(end_bytes)
            && (!self.reserves_anew.load(Ordering::Acquire) || capability.allows_end(u64::MAX))
    }

    /// The losses of the file; of this open alone as long as nobody has added it to [`HeldFiles`].
    pub(crate) fn losses(&self) -> &Losses {
        self.losses.get_or_init(Arc::default)
    }

    /// The slot whose server has last told that it may have lost changes of the file, if one has since this
    /// open.
    pub(crate) fn lossy_slot(&self) -> Option<u16> {
        self.losses().last_slot_since(self.losses_at_open.load(Ordering::Acquire))
    }

    /// Whether anything was ever locked through it.
    pub(crate) fn has_locks(&self) -> bool {
        self.locks.load(Ordering::Acquire)
    }

    pub(crate) fn note_locks(&self) {
        self.locks.store(true, Ordering::Release);
    }

    /// Whether locks were lost that it was used under, and not taken again since.
    pub(crate) fn has_lost_locks(&self) -> bool {
        self.locks_lost.load(Ordering::Acquire)
    }

    pub(crate) fn note_locks_lost(&self, are_lost: bool) {
        self.locks_lost.store(are_lost, Ordering::Release);
    }

    /// Notes that bytes up to `end_bytes` were written.
    pub(crate) fn note_write(&self, end_bytes: u64) {
        let mut written = lock(&self.written);
        written.end_bytes = written.end_bytes.max(end_bytes);
        (written.unreported, written.touch) = (true, true);
    }

    /// Notes that a write failed somewhere on its way.
    pub(crate) fn note_failed_write(&self) {
        let mut written = lock(&self.written);
        (written.unreported, written.touch, written.unsure) = (true, true, true);
    }

    /// What was written through it, for who reports it.
    pub(crate) fn written_end(&self) -> WrittenEnd {
        let Written { end_bytes, touch, unsure, .. } = *lock(&self.written);
        WrittenEnd { end_bytes, touch, unsure }
    }

    /// Notes what others have written that are covered by it.
    pub(crate) fn note_others(&self, others: &WrittenEnd) {
        let mut written = lock(&self.written);
        written.end_bytes = written.end_bytes.max(others.end_bytes);
        written.unreported |= *others != WrittenEnd::default();
        written.touch |= others.touch;
        written.unsure |= others.unsure;
    }

    /// The end of what was written through it, as far as is known here.
    pub(crate) fn written_bytes(&self) -> u64 {
        lock(&self.written).end_bytes
    }

    /// Whether a failed write may have come further than is known here.
    pub(crate) fn is_end_unsure(&self) -> bool {
        lock(&self.written).unsure
    }

    pub(crate) fn note_end(&self, end_bytes: u64) {
        let mut written = lock(&self.written);
        written.end_bytes = written.end_bytes.max(end_bytes);
        written.unsure = false;
    }

    /// The file was cut or extended: an end beyond it is not there any more, and what was promised of its space was given back, so
    /// that more is to be reserved before it is extended.
    pub(crate) fn note_size(&self, file_bytes: u64) {
        self.reserves_anew.store(true, Ordering::Release);
        let mut written = lock(&self.written);
        written.end_bytes = written.end_bytes.min(file_bytes);
    }

    /// The modification time was set by hand after what was written so far.
    pub(crate) fn note_time_set(&self) {
        lock(&self.written).touch = false;
    }

    /// What is to be reported; it counts as reported then.
    pub(crate) fn take_report(&self) -> Option<WriteReport> {
        let mut written = lock(&self.written);
        let report = WriteReport { end_bytes: written.end_bytes, touch: written.touch };
        let is_due = written.unreported;
        // After a failed write there may be more to report.
        written.unreported = written.unsure;
        is_due.then(|| {
            written.touch = false;
            report
        })
    }

    /// A report did not get through.
    pub(crate) fn put_back(&self, report: &WriteReport) {
        let mut written = lock(&self.written);
        written.unreported = true;
        written.touch |= report.touch;
    }
}

/// All of them, by inode.
#[derive(Default)]
pub(crate) struct HeldFiles {
    files: Mutex<HashMap<u64, Vec<Arc<Held>>>>,
}

impl HeldFiles {
    pub(crate) fn add(&self, held: &Arc<Held>) {
        let mut files = lock(&self.files);
        let opens = files.entry(held.ino).or_default();
        let losses = opens.first().and_then(|open| open.losses.get().cloned()).unwrap_or_default();
        held.losses_at_open.store(losses.count(), Ordering::Release);
        held.losses.set(losses).expect("an open is added once, before it is used");
        opens.push(held.clone());
    }

    pub(crate) fn remove(&self, held: &Arc<Held>) {
        let mut files = lock(&self.files);
        if let Some(opens) = files.get_mut(&held.ino) {
            opens.retain(|open| !Arc::ptr_eq(open, held));
            if opens.is_empty() {
                files.remove(&held.ino);
            }
        }
    }

    pub(crate) fn of(&self, ino: u64) -> Vec<Arc<Held>> {
        lock(&self.files).get(&ino).cloned().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        lock(&self.files).values().flatten().cloned().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn held() -> Held {
        let layout = Layout::new(65536, 0, 1, 1).unwrap();
        let capability = Capability {
            ino: 5,
            rights: 2,
            expires_s: 0,
            holder: weft_wire::security::Holder([0; 8]),
            layout,
            signature: [0; 16],
        };
        Held::new(capability, 2, OpenId { run: 1, number: 1 }, [3; 16])
    }

    #[test]
    fn a_report_has_the_greatest_end_and_is_made_once() {
        let held = held();
        assert_eq!(held.take_report(), None);
        held.note_write(100);
        held.note_write(50);
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 100, touch: true }));
        assert_eq!(held.take_report(), None);
    }

    #[test]
    fn after_a_failed_write_what_is_known_is_reported_and_the_rest_stays_due() {
        let held = held();
        held.note_write(100);
        held.note_failed_write();
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 100, touch: true }));
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 100, touch: false }));
        held.note_end(150);
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 150, touch: false }));
        assert_eq!(held.take_report(), None);
    }

    #[test]
    fn what_others_wrote_is_reported_with_what_was_written_here() {
        let held = held();
        held.note_others(&WrittenEnd::default());
        assert_eq!(held.take_report(), None, "nobody wrote");
        held.note_write(100);
        held.note_others(&WrittenEnd { end_bytes: 70, touch: true, unsure: false });
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 100, touch: true }));
        held.note_others(&WrittenEnd { end_bytes: 300, touch: true, unsure: false });
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 300, touch: true }));
        held.note_others(&WrittenEnd { end_bytes: 0, touch: true, unsure: true });
        assert!(held.is_end_unsure(), "a write of another failed: the servers are to be asked");
        assert_eq!(held.written_end(), WrittenEnd { end_bytes: 300, touch: true, unsure: true });
    }

    #[test]
    fn a_handle_under_anothers_open_is_one_of_its_own_once_it_was_opened_again() {
        let held = held().under_anothers();
        assert!(held.is_covered() && held.reopening().id.run == 1);
        let reply = OpenReply { run: 9, capability: None, ..weft_wire::Wire::sample(&mut 0) };
        held.reopened(reply);
        assert!(!held.is_covered() && held.id().run == 9);
    }

    #[test]
    fn a_counter_is_named_by_the_open_it_came_from() {
        let own = held();
        own.reopened(OpenReply { run: 9, capability: None, ..weft_wire::Wire::sample(&mut 0) });
        assert_eq!((own.counter().run, own.counter().number), (1, 1));
        assert_ne!(own.counter().session, [3; 16], "servers know the session by another name");
        let other = CounterOf { session: [5; 16], run: 4, number: 8 };
        assert_eq!(held().counting_with(other).counter(), other);
    }

    #[test]
    fn a_time_set_by_hand_stays_until_the_next_write() {
        let held = held();
        held.note_write(10);
        held.note_time_set();
        assert_eq!(held.take_report(), Some(WriteReport { end_bytes: 10, touch: false }));
        held.note_write(10);
        assert_eq!(held.take_report().map(|report| report.touch), Some(true));
    }

    #[test]
    fn a_truncation_takes_ends_beyond_it_away_and_a_lost_report_comes_back() {
        let held = held();
        held.note_write(100);
        held.note_size(30);
        let report = held.take_report().unwrap();
        assert_eq!(report.end_bytes, 30);
        held.put_back(&report);
        assert_eq!(held.take_report(), Some(report));
    }
}
