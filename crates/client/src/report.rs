//! What open files report to the metadata server, and how they stay open there.

use std::time::{Duration, SystemTime};

use weft_wire::messages::{Attr, OpenId, ReportRequest, ReserveRequest, SetAttrRequest, Time, WriteReport};

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::held::Held;
use crate::inner::Inner;
use crate::size::{ask_size, time_key};
use crate::written::WrittenEnd;

/// A capability is renewed when it has less than this to live.
const CAPABILITY_MARGIN: Duration = Duration::from_secs(3600);

impl Held {
    /// Tells the metadata server what was written; the attributes after it, or `None` when there was nothing
    /// to report.
    pub(crate) fn report_to(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        self.settle_end(inner)?;
        self.send_report(inner)
    }

    /// As [`Held::report_to`]; where servers cannot be asked how far a failed write came, what is known for
    /// certain.
    pub(crate) fn report_known_to(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        self.settle_end_if_possible(inner)?;
        self.send_report(inner)
    }

    fn send_report(&self, inner: &Inner) -> Result<Option<Attr>, Error> {
        if self.is_covered() {
            return Ok(None);
        }
        let Some(report) = self.take_report() else { return Ok(None) };
        let request = ReportRequest { ino: self.ino, report };
        match batch::ask(inner, &request) {
            Ok(reply) => Ok(Some(reply.attr)),
            Err(error) => {
                self.put_back(&request.report);
                Err(error)
            }
        }
    }

    /// After a failed write, asks the I/O servers how far it came. What is covered by another's open is left
    /// to who reports it.
    pub(crate) fn settle_end(&self, inner: &Inner) -> Result<(), Error> {
        if self.is_covered() {
            return Ok(());
        }
        if self.is_end_unsure() {
            inner.keep_alive(self)?;
            self.note_end(ask_size(inner, &self.capability())?.file_bytes);
        }
        Ok(())
    }

    /// Asks the I/O servers how far others have written that are covered by it. `mtime` is the last time of
    /// modification that is known: what is newer, they have written.
    pub(crate) fn settle_others(&self, inner: &Inner, mtime: &Time) -> Result<(), Error> {
        if self.is_for_writing() {
            inner.keep_alive(self)?;
            let size = ask_size(inner, &self.capability())?;
            self.note_end(size.file_bytes);
            let touch = time_key(&size.mtime) > time_key(mtime);
            self.note_others(&WrittenEnd { end_bytes: size.file_bytes, touch, unsure: false });
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
}

/// Changes attributes of the inode `ino` and, before that and in the same request, reports what was written
/// to it.
pub(crate) fn report_with(inner: &Inner, ino: u64, change: SetAttrRequest) -> Result<Attr, Error> {
    let mut opens = inner.held.of(ino);
    opens.retain(|held| !held.is_covered());
    opens.iter().try_for_each(|held| held.settle_end_if_possible(inner))?;
    let reports: Vec<_> = opens.iter().filter_map(|held| Some((held, held.take_report()?))).collect();
    let report = reports.iter().map(|(_, report)| report.clone()).reduce(|one, other| WriteReport {
        end_bytes: one.end_bytes.max(other.end_bytes),
        touch: one.touch || other.touch,
    });
    let changed = batch::ask(inner, &SetAttrRequest { report, ..change });
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
        if !held.begins_renewal(now.as_secs()) {
            return Ok(());
        }
        self.reopen(held)
    }

    /// Makes sure that the file may be written up to `end_bytes`: where a quota binds the writes of an open, more is
    /// reserved.
    pub(crate) fn keep_writable(&self, held: &Held, end_bytes: u64) -> Result<(), Error> {
        self.keep_alive(held)?;
        if held.may_write_to(end_bytes) {
            return Ok(());
        }
        // Only an open of this session can be promised anything.
        self.count_covered(held)?;
        let request = ReserveRequest { capability: held.capability(), end_bytes };
        held.renew(batch::ask(self, &request)?.capability);
        Ok(())
    }

    /// Makes sure that an open just made counts in the present run of the session. Where its reply is one
    /// that a server kept, which was restarted since, it was not known here when the others were reopened.
    pub(crate) fn count(&self, held: &Held) -> Result<(), Error> {
        let run = self.session().server(self.owner_of(held.ino)).run();
        if held.id().run == run { Ok(()) } else { self.reopen(held) }
    }

    /// Counts an open at the metadata server, which another's covers, for what only an open of this session
    /// may do.
    pub(crate) fn count_covered(&self, held: &Held) -> Result<(), Error> {
        if held.is_covered() { self.reopen(held) } else { Ok(()) }
    }

    fn reopen(&self, held: &Held) -> Result<(), Error> {
        held.reopened(batch::ask(self, &held.reopening())?);
        Ok(())
    }

    /// How the open is told from others that was answered with `run`.
    pub(crate) fn open_id(&self, run: u64) -> OpenId {
        OpenId { run, number: self.session().next_request_id() }
    }
}
