//! The files that this process has open, as its cluster connections must know them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use weft_layout::Layout;
use weft_wire::messages::{
    Attr, OpenId, OpenReply, ReopenRequest, ReportRequest, SetAttrRequest, WriteReport,
};
use weft_wire::security::Capability;

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::losses::Losses;
use crate::size::ask_size;
use crate::wait::lock;

/// A capability is renewed when it has less than this to live.
const CAPABILITY_MARGIN: Duration = Duration::from_secs(3600);

/// One open of a file.
pub(crate) struct Held {
    pub ino: u64,
    pub layout: Layout,
    /// [`weft_wire::messages::rights`].
    pub access: u32,
    capability: Mutex<Capability>,
    /// See [`OpenId`].
    number: u64,
    run: AtomicU64,
    written: Mutex<Written>,
    /// Shared by all opens of the file in this process.
    losses: OnceLock<Arc<Losses>>,
    losses_at_open: AtomicU64,
    /// Something was locked through it, and some of that was lost.
    locks: AtomicBool,
    locks_lost: AtomicBool,
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
    pub(crate) fn new(capability: Capability, access: u32, id: OpenId) -> Held {
        Held {
            ino: capability.ino,
            layout: capability.layout,
            access,
            capability: Mutex::new(capability),
            number: id.number,
            run: AtomicU64::new(id.run),
            written: Mutex::default(),
            losses: OnceLock::new(),
            losses_at_open: AtomicU64::new(0),
            locks: AtomicBool::new(false),
            locks_lost: AtomicBool::new(false),
        }
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

    /// The request by which it counts as open at the metadata server, if it does not already, and gets a new capability.
    pub(crate) fn reopening(&self) -> ReopenRequest {
        ReopenRequest { capability: self.capability(), id: self.id() }
    }

    /// It counts as open.
    pub(crate) fn reopened(&self, reply: OpenReply) {
        if let Some(capability) = reply.capability {
            *lock(&self.capability) = capability;
        }
        self.run.store(reply.run, Ordering::Release);
    }

    /// The losses of the file; of this open alone as long as nobody has added it to [`HeldFiles`].
    pub(crate) fn losses(&self) -> &Losses {
        self.losses.get_or_init(Arc::default)
    }

    /// The slot whose server has last told that it may have lost changes of the file, if one has since this open.
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

    /// Whether locks were lost that it was used under.
    pub(crate) fn has_lost_locks(&self) -> bool {
        self.locks_lost.load(Ordering::Acquire)
    }

    pub(crate) fn note_locks_lost(&self) {
        self.locks_lost.store(true, Ordering::Release);
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

    /// The end of what was written through it, as far as is known here.
    pub(crate) fn written_bytes(&self) -> u64 {
        lock(&self.written).end_bytes
    }

    fn note_end(&self, end_bytes: u64) {
        let mut written = lock(&self.written);
        written.end_bytes = written.end_bytes.max(end_bytes);
        written.unsure = false;
    }

    /// The file was cut or extended: an end beyond it is not there any more.
    pub(crate) fn note_size(&self, file_bytes: u64) {
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

    /// Tells the metadata server what was written; the attributes after it, or `None` when there was nothing to report.
    pub(crate) fn report_to(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        self.settle_end(inner)?;
        self.send_report(inner)
    }

    /// As [`Held::report_to`]; where servers cannot be asked how far a failed write came, what is known for certain.
    pub(crate) fn report_known_to(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        self.settle_end_if_possible(inner)?;
        self.send_report(inner)
    }

    fn send_report(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        let Some(report) = self.take_report() else { return Ok(None) };
        let request = ReportRequest { ino: self.ino, report };
        match batch::ask(inner, inner.meta(), &request) {
            Ok(reply) => Ok(Some(reply.attr)),
            Err(error) => {
                self.put_back(&request.report);
                Err(error)
            }
        }
    }

    /// After a failed write, asks the I/O servers how far it came.
    pub(crate) fn settle_end(&self, inner: &Inner) -> Result<(), Error> {
        if lock(&self.written).unsure {
            inner.keep_alive(self)?;
            self.note_end(ask_size(inner, &self.capability())?.file_bytes);
        }
        Ok(())
    }

    /// As [`Held::settle_end`]; it is left for later where servers cannot be asked.
    fn settle_end_if_possible(&self, inner: &Inner) -> Result<(), Error> {
        match self.settle_end(inner) {
            Err(error) if error.kind() == ErrorKind::Unreachable => Ok(()),
            settled => settled,
        }
    }

    /// A report did not get through.
    fn put_back(&self, report: &WriteReport) {
        let mut written = lock(&self.written);
        written.unreported = true;
        written.touch |= report.touch;
    }
}

/// Changes attributes of the inode `ino` and, before that and in the same request, reports what was written to it.
pub(crate) fn report_with(inner: &Inner, ino: u64, change: SetAttrRequest) -> Result<Attr, Error> {
    let opens = inner.held.of(ino);
    opens.iter().try_for_each(|held| held.settle_end_if_possible(inner))?;
    let reports: Vec<_> = opens.iter().filter_map(|held| Some((held, held.take_report()?))).collect();
    let report = reports.iter().map(|(_, report)| report.clone()).reduce(|one, other| WriteReport {
        end_bytes: one.end_bytes.max(other.end_bytes),
        touch: one.touch || other.touch,
    });
    let changed = batch::ask(inner, inner.meta(), &SetAttrRequest { report, ..change });
    if changed.is_err() {
        reports.iter().for_each(|(held, report)| held.put_back(report));
    }
    Ok(changed?.attr)
}

impl Inner {
    /// Makes sure that the capability of an open file does not expire under an operation.
    pub(crate) fn keep_alive(&self, held: &Held) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let capability = held.capability();
        if capability.expires_s > (now + CAPABILITY_MARGIN).as_secs() {
            return Ok(());
        }
        self.reopen(held)
    }

    /// Makes sure that an open just made counts in the present run of the session. Where its reply is one that a server kept, which was
    /// restarted since, it was not known here when the others were reopened.
    pub(crate) fn count(&self, held: &Held) -> Result<(), Error> {
        let run = self.session().server(self.meta()).run();
        if held.id().run == run { Ok(()) } else { self.reopen(held) }
    }

    fn reopen(&self, held: &Held) -> Result<(), Error> {
        held.reopened(batch::ask(self, self.meta(), &held.reopening())?);
        Ok(())
    }

    /// How the open is told from others that was answered with `run`.
    pub(crate) fn open_id(&self, run: u64) -> OpenId {
        OpenId { run, number: self.session().next_request_id() }
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
mod tests {
    use super::*;

    fn held() -> Held {
        let layout = Layout::new(65536, 0, 1, 1).unwrap();
        let capability = Capability {
            ino: 5,
            rights: 2,
            expires_s: 0,
            holder: weft_wire::security::Holder([0; 8]),
            layout,
            signature: [0; 16],
        };
        Held::new(capability, 2, OpenId { run: 1, number: 1 })
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
