//! Opens, and the size protocol.
//!
//! Clients write to the I/O servers without telling this server, so the truth about a file's size is the maximum
//! over its data files. The size in the inode is a cache of it. It is right while `dirty_size` is off; a `stat` of a
//! dirty file returns `size_live`, and the client asks the I/O servers.
//!
//! ```text
//!             first writer opens                 last writer closes, all reports trusted
//!   clean  ------------------------->  dirty  ---------------------------------------------->  clean
//!   size known    (durable first)     size live                                          size known
//!                                       | ^   a writer gone without report, a foreign truncation: untrusted;
//!                                       | |   it stays dirty when the last one closes
//!                                       v |
//!                                     settle(size measured with no writer open)  ----------->  clean
//! ```
//!
//! - A writer *reports* the end of what it wrote at fsync and close. While all writers since the file was clean have
//!   reported, the maximum of their reports and the old size is the size.
//! - A *truncation* is begun here (rights, the file becomes dirty), done by the client on the I/O servers, and
//!   committed here. It makes reports of writers of other sessions untrusted; a session's own reports after it count
//!   from the new size. Two at once void each other.
//! - The *epoch* changes whenever a measurement begun before could be wrong: at the first writer, at the begin and the
//!   end of a truncation, at an untrusted end. `settle` and `truncate_commit` name the epoch they started from and do nothing if it moved.
//!   The upper half of an epoch is the run of the server, so restarts void measurements too.
//! - Opens are in memory. After a restart sessions tell theirs again (`reopen`); until `reap_orphans` nothing settles.

use crate::MetaError;
use crate::caller::{Caller, SessionId};
use crate::engine::Engine;
use crate::flags::require_alterable;
use crate::inode::{Attr, Inode, Kind, SIZE_MAX, Timestamp};
use crate::keys;
use crate::op::Op;
use crate::opens::{Effect, Hold};
use crate::permission::{WRITE, require};
use crate::walk::{At, Follow};

/// What a writer tells about its writes since it opened the file (or since its own last truncation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteReport {
    /// The end of the furthest byte written; 0 if nothing was written.
    pub max_end: u64,
    /// When it last wrote, if the modification time is to be set so: not if nothing was written, nor if the time was
    /// set explicitly afterwards.
    pub mtime: Option<Timestamp>,
}

/// A truncation begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// The file; its epoch is for `truncate_commit`.
    pub attr: Attr,
    /// The size asked for.
    pub size: u64,
    /// Whether the data files must be cut (or extended) and `truncate_commit` called. If not, all is done.
    pub data_work: bool,
}

impl<E: Engine> Op<'_, E> {
    pub(crate) fn hold(&mut self, ino: u64, session: SessionId, hold: Hold) {
        self.effect(Effect::Take { ino, session, hold });
    }

    /// Registers a writer; whether the inode is to be stored then.
    pub(crate) fn add_writer(&mut self, session: SessionId, inode: &mut Inode) -> bool {
        self.hold(inode.ino, session, Hold::Write);
        if inode.small {
            return false;
        }
        if self.ns.opens.has_writers(inode.ino) {
            return true;
        }
        if inode.dirty_size {
            self.effect(Effect::SetUnclean { ino: inode.ino, unclean: true });
        }
        inode.epoch = inode.epoch.wrapping_add(1);
        inode.dirty_size = true;
        true
    }

    /// Counts a session's handle again after a restart of the server. Call it only for a handle the session proves to
    /// have had (its capability): permissions are not checked again. `Stale` if the file is gone.
    pub fn reopen(&mut self, session: SessionId, ino: u64, write: bool) -> Result<Attr, MetaError> {
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            if inode.kind == Kind::File {
                if !write {
                    op.hold(ino, session, Hold::Read);
                } else if op.add_writer(session, &mut inode) {
                    op.put_inode(inode.clone());
                }
            }
            Ok(op.attr_of(&inode))
        })
    }

    /// Notes what a writer has written so far (at flush and fsync).
    pub fn report_write(
        &mut self,
        now: Timestamp,
        session: SessionId,
        ino: u64,
        report: &WriteReport,
    ) -> Result<Attr, MetaError> {
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            if op.open_file(ino).is_none_or(|file| file.held_by(session).writers == 0) {
                return Err(MetaError::Stale);
            }
            let before = inode.clone();
            op.apply_report(now, &mut inode, report)?;
            if inode != before {
                op.put_inode(inode.clone());
            }
            Ok(op.attr_of(&inode))
        })
    }

    fn apply_report(
        &mut self,
        now: Timestamp,
        inode: &mut Inode,
        report: &WriteReport,
    ) -> Result<(), MetaError> {
        if report.max_end > SIZE_MAX {
            return Err(MetaError::Invalid("end of a write"));
        }
        if !inode.small {
            inode.size = inode.size.max(report.max_end);
            inode.ever_written |= report.max_end > 0;
        }
        if let Some(mtime) = report.mtime {
            inode.mtime = mtime;
            inode.ctime = now;
        }
        if report.mtime.is_some() || report.max_end > 0 {
            self.note_written(inode.ino);
            self.drop_capability(inode)?;
        }
        Ok(())
    }

    /// Gives back one handle. A writer that cannot vouch for its report (a write failed or was cut off) gives none.
    /// Closing what is not held (after a restart) changes nothing.
    ///
    /// Unlike other operations it adds to what is staged, so that many handles, also of one file, are given back in one commit. One that
    /// fails gives the handle back as a writer without a report, and leaves the others as they are.
    pub fn close(
        &mut self,
        now: Timestamp,
        session: SessionId,
        ino: u64,
        write: bool,
        report: Option<&WriteReport>,
    ) -> Result<(), MetaError> {
        let Some(file) = self.holding(ino, session) else { return Ok(()) };
        let hold = if write { Hold::Write } else { Hold::Read };
        if (if write { file.held.writers } else { file.held.readers }) == 0 {
            return Ok(());
        }
        let last_writer = write && file.total.writers == 1;
        let last_holder = self.is_last_hold(ino, 1, file.total.holders());
        self.effect(Effect::Release { ino, session, hold });
        if file.held.opens() == 1 {
            self.drop_counters_by(ino, session);
        }
        let Some(mut inode) = self.inode(ino)? else { return Ok(()) };
        let before = inode.clone();
        let reported = match report.filter(|_| write) {
            Some(report) => self.apply_report(now, &mut inode, report).map(|()| true),
            None => Ok(false),
        };
        let trusted = matches!(reported, Ok(true));
        if last_writer {
            self.end_writing(&mut inode, file.unclean || file.total.truncations > 0 || !trusted);
        } else if write && !trusted && !inode.small {
            self.effect(Effect::SetUnclean { ino, unclean: true });
        }
        if last_holder && inode.nlink == 0 {
            self.purge(&inode)?;
        } else if inode != before {
            self.put_inode(inode);
        }
        reported.map(drop)
    }

    fn end_writing(&mut self, inode: &mut Inode, untrusted: bool) {
        // In the time of grace a writer may still come back that was given a place before the restart.
        if !self.ns.grace {
            self.drop_tail(inode.ino);
        }
        if inode.small {
            return;
        }
        if untrusted {
            inode.epoch = inode.epoch.wrapping_add(1);
        } else {
            inode.dirty_size = false;
        }
    }

    /// Ends a session for good: its handles are given back without reports, its kept replies deleted.
    pub fn session_gone(&mut self, session: SessionId) -> Result<(), MetaError> {
        self.attempt(|op| {
            for ino in op.ns.opens.files_of(session) {
                op.abandon(session, ino)?;
            }
            let shard = op.ns.shard();
            for prefix in [keys::replies_of(shard, session), keys::lockers_of(shard, session)] {
                for (key, _) in op.records_after(&prefix, &prefix, usize::MAX)? {
                    op.delete(key);
                }
            }
            op.effect(Effect::SessionGone { session });
            Ok(())
        })
    }

    fn abandon(&mut self, session: SessionId, ino: u64) -> Result<(), MetaError> {
        if !self.ns.grace {
            self.drop_counters_by(ino, session);
        }
        let Some(file) = self.open_file(ino) else { return Ok(()) };
        let held = file.held_by(session);
        let last_writers = held.writers > 0 && held.writers == file.total.writers;
        let last_holder = self.is_last_hold(ino, held.holders(), file.holders());
        let Some(mut inode) = self.inode(ino)? else { return Ok(()) };
        if last_holder && inode.nlink == 0 {
            return self.purge(&inode);
        }
        if held.writers > 0 && !last_writers && !inode.small {
            self.effect(Effect::SetUnclean { ino, unclean: true });
        }
        if last_writers || held.truncations > 0 {
            self.end_writing(&mut inode, true);
            self.put_inode(inode);
        }
        Ok(())
    }

    /// Takes over a size that was measured at the I/O servers from `epoch` on, with no writer open. Does nothing if
    /// that is no longer so; the attributes returned tell.
    pub fn settle(
        &mut self,
        ino: u64,
        size: u64,
        mtime: Option<Timestamp>,
        epoch: u64,
    ) -> Result<Attr, MetaError> {
        if size > SIZE_MAX {
            return Err(MetaError::Invalid("size"));
        }
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            let busy = op.open_file(ino).is_some_and(|file| file.total.writers + file.total.truncations > 0);
            let current = inode.public_epoch(op.ns.incarnation) == epoch;
            if inode.kind == Kind::File && inode.dirty_size && current && !busy && !op.ns.grace {
                inode.size = size;
                inode.mtime = mtime.unwrap_or(inode.mtime);
                inode.dirty_size = false;
                inode.ever_written = true;
                op.drop_capability(&mut inode)?;
                op.put_inode(inode.clone());
            }
            Ok(op.attr_of(&inode))
        })
    }

    /// Begins to set a file's size. Needs write permission, or (for an inode by number) a handle open for writing.
    ///
    /// # Errors
    /// `Small` if the bytes lie with the inode, and the size is beyond the bound for that: the file is to be spread first.
    pub fn truncate_begin(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        at: At,
        size: u64,
    ) -> Result<Truncation, MetaError> {
        if size > SIZE_MAX {
            return Err(MetaError::Invalid("size"));
        }
        self.attempt(|op| {
            let mut inode = op.resolve(caller, at, Follow::Always)?;
            let by_handle = at.path.is_empty()
                && op.open_file(inode.ino).is_some_and(|file| file.held_by(session).writers > 0);
            match inode.kind {
                Kind::Directory => return Err(MetaError::IsDirectory),
                Kind::File if by_handle => {}
                Kind::File => require(caller, &inode, WRITE)?,
                _ => return Err(MetaError::Invalid("only files have a size")),
            }
            require_alterable(&inode)?;
            let truncation = op.start_truncation(caller, now, session, &mut inode, size)?;
            op.put_inode(inode);
            Ok(truncation)
        })
    }

    /// Stages the begin of a truncation on `inode`, which the caller stages afterwards. Set-id bits fall unless root does it.
    fn start_truncation(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        inode: &mut Inode,
        size: u64,
    ) -> Result<Truncation, MetaError> {
        if !caller.is_root() {
            inode.drop_set_id(caller.in_group(inode.gid));
        }
        self.drop_capability(inode)?;
        if inode.small {
            self.cut_small(inode, size)?;
        }
        let nothing_to_cut = size == inode.size || size == 0 && !inode.ever_written;
        let data_work = inode.dirty_size || !nothing_to_cut;
        if data_work {
            self.drop_tail(inode.ino);
            inode.dirty_size = true;
            inode.epoch = inode.epoch.wrapping_add(1);
            self.hold(inode.ino, session, Hold::Truncate);
            self.effect(Effect::SetUnclean { ino: inode.ino, unclean: true });
        } else {
            inode.size = size;
            inode.mtime = now;
            inode.ctime = now;
            self.cut_grant(inode.ino, size);
        }
        Ok(Truncation { attr: self.attr_of(inode), size, data_work })
    }

    /// Ends a truncation after the data files were cut. If another truncation or a first writer came between, the
    /// size stays live. `Stale` if this server does not know of the begin: begin again.
    pub fn truncate_commit(
        &mut self,
        now: Timestamp,
        session: SessionId,
        ino: u64,
        size: u64,
        epoch: u64,
    ) -> Result<Attr, MetaError> {
        self.attempt(|op| {
            let mut inode = op.need(ino)?;
            let Some(file) = op.open_file(ino) else { return Err(MetaError::Stale) };
            let (held, total) = (file.held_by(session), file.total);
            if held.truncations == 0 {
                return Err(MetaError::Stale);
            }
            let valid = !file.overlapped && inode.public_epoch(op.ns.incarnation) == epoch;
            let last_holder = op.is_last_hold(ino, 1, file.holders());
            op.effect(Effect::Release { ino, session, hold: Hold::Truncate });
            // A size that was measured while the data files were being cut is not to place an append.
            inode.epoch = inode.epoch.wrapping_add(1);
            inode.mtime = now;
            inode.ctime = now;
            inode.ever_written = true;
            op.cut_grant(ino, size);
            if valid {
                inode.size = size;
                inode.dirty_size = total.writers > 0;
                if held.writers == total.writers {
                    op.effect(Effect::SetUnclean { ino, unclean: false });
                }
            }
            if last_holder && inode.nlink == 0 {
                op.purge(&inode)?;
            } else {
                op.put_inode(inode.clone());
            }
            Ok(op.attr_of(&inode))
        })
    }
}
