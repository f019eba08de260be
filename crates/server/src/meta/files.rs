//! Operations on open files: create, open, close, reports of what was written, truncation, settling of sizes.

use super::effects::Failure;
use super::quota::{is_limited, is_limited_by};
use super::translate as t;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::spent;
use weft_meta::{
    CounterChange, CounterId, Engine, MayConflict, MetaError, NewFile, Op, OpenFlags, Opened, SessionId,
    Timestamp,
};
use weft_wire::limits::CLOSES_PER_MESSAGE_MAX;
use weft_wire::messages::{CounterChange as WireChange, *};
use weft_wire::security::Capability;
use weft_wire::{Added, Status};

impl<E: Engine + 'static> MetaPart<E> {
    /// Creates a file and opens it; opens the one that is there unless the creation is exclusive.
    pub async fn create(&self, call: &Call, request: CreateRequest) -> Result<Answer, Refusal> {
        let (read, write) = t::access(request.access)?;
        let (exclusive, append) = (request.exclusive, request.append.0);
        let flags = OpenFlags { read, write, exclusive, append, ..OpenFlags::default() };
        let new = self.new_file(request.mode, request.layout.as_ref(), request.small.0);
        let caller = t::caller(request.caller);
        self.change_spread(call, |op, now, effects| {
            if is_limited(&caller) {
                op.limited();
            }
            let opened = op.create(&caller, now, call.session, t::at(&request.at), &new, flags)?;
            needs_striped(&request.small, &opened)?;
            effects.lease(Some(&request.at), Some(opened.attr.ino));
            let mut reply = self.open_reply(op, call, is_limited(&caller), &opened, request.access)?;
            if opened.created && self.watchers.watches(call.session) {
                reply.parent = self.parent_attr(op, call, &request.at)?;
                reply.attr.size_live = false;
            }
            Ok(reply)
        })
        .await
    }

    /// What a file is made with. It begins as a small one where the client knows of these and wants no layout.
    fn new_file(&self, mode: u32, layout: Option<&LayoutWish>, small: bool) -> NewFile {
        let layout = layout.map(|wish| t::layout_request(Some(wish)));
        let small = small && layout.is_none() && self.spreading.is_possible();
        NewFile { mode, layout, small }
    }

    /// Creates a file without a name and opens it.
    pub async fn create_unnamed(
        &self,
        call: &Call,
        request: CreateUnnamedRequest,
    ) -> Result<Answer, Refusal> {
        let (read, write) = t::access(request.access)?;
        if !read && !write {
            return Err(Refusal::new(Status::Invalid, "a file without a name that is not opened"));
        }
        let (exclusive, no_follow) = (request.exclusive, !request.follow);
        let flags = OpenFlags { read, write, exclusive, no_follow, ..OpenFlags::default() };
        let new = self.new_file(request.mode, request.layout.as_ref(), request.small);
        let caller = t::caller(request.caller);
        self.change_spread(call, |op, now, effects| {
            if is_limited(&caller) {
                op.limited();
            }
            let dir = t::at(&request.dir);
            let opened = op.create_unnamed(&caller, now, call.session, dir, &new, flags)?;
            effects.lease(None, Some(opened.attr.ino));
            let mut reply = self.open_reply(op, call, is_limited(&caller), &opened, request.access)?;
            reply.attr.size_live &= !self.watchers.watches(call.session);
            Ok(reply)
        })
        .await
    }

    /// Opens a file.
    pub async fn open(&self, call: &Call, request: OpenRequest) -> Result<Answer, Refusal> {
        let (read, write) = t::access(request.access)?;
        let (no_follow, execute, append) = (!request.follow, request.execute.0, request.append.0);
        let flags = OpenFlags { read, write, no_follow, execute, append, ..OpenFlags::default() };
        let caller = t::caller(request.caller);
        self.change_spread(call, |op, _, effects| {
            let opened = op.open(&caller, call.session, t::at(&request.at), flags)?;
            needs_striped(&request.small, &opened)?;
            effects.lease(Some(&request.at), Some(opened.attr.ino));
            Ok(self.open_reply(op, call, is_limited(&caller), &opened, request.access)?)
        })
        .await
    }

    /// With no access nothing is held, and the capability gives no right but to ask the I/O servers for the size.
    fn open_reply(
        &self,
        op: &mut Op<'_, E>,
        call: &Call,
        limited: bool,
        opened: &Opened,
        access: u32,
    ) -> Result<OpenReply, MetaError> {
        let layout = opened.attr.layout.filter(|_| opened.attr.kind == weft_meta::Kind::File);
        let rights = match layout {
            Some(_) => self.rights_for(op, call, limited, (opened.attr.ino, access), None)?,
            None => access,
        };
        Ok(OpenReply {
            attr: t::attr(&opened.attr),
            capability: layout.map(|layout| self.sign(call, opened.attr.ino, rights, layout)),
            created: opened.created,
            parent: None,
            run: self.sessions.run_of(call.session),
            small_bytes: Added(opened.small_bytes),
        })
    }

    /// Gives back opens, all in one transaction. One of them that cannot be (its inode is damaged, its report makes no sense) is an
    /// error, and keeps none of the others.
    pub async fn close(&self, call: &Call, request: CloseRequest) -> Result<Answer, Refusal> {
        let files = request.files;
        if files.is_empty() || files.len() > CLOSES_PER_MESSAGE_MAX {
            let text = format!("{} opens ended at once; 1 to {CLOSES_PER_MESSAGE_MAX}", files.len());
            return Err(Refusal::new(Status::Invalid, text));
        }
        files.iter().try_for_each(|file| t::access(file.access).map(drop))?;
        let closed = self.change(call, |op, now, effects| {
            for file in &files {
                if !self.sessions.counts(call.session, &file.id, effects.closed()) {
                    continue;
                }
                effects.close(&file.id);
                op.drop_counter(CounterId { ino: file.ino, session: call.session, number: file.id.number });
                match close_one(op, call.session, now, file) {
                    Err(failure) if failure.is_conflict() => return Err(failure),
                    Err(failure) => effects.refuse_part(failure.into()),
                    Ok(()) => {}
                }
            }
            Ok(Empty {})
        });
        let closed = closed.await;
        self.locks_of_closed(call.session, files.iter().map(|file| file.ino));
        closed
    }

    /// Notes what a writer has written so far.
    pub async fn report(&self, call: &Call, request: ReportRequest) -> Result<Answer, Refusal> {
        self.change(call, |op, now, effects| {
            let report = t::write_report(&request.report, now);
            let attr = op.report_write(now, call.session, request.ino, &report)?;
            self.leased_attr(op, effects, call, None, attr)
        })
        .await
    }

    /// Gives bytes to be appended their place.
    pub async fn append(&self, call: &Call, request: AppendRequest) -> Result<Answer, Refusal> {
        self.change(call, |op, _, _| {
            let AppendRequest { ino, bytes, file_bytes, epoch } = request;
            let place = op.append_place(call.session, ino, bytes, file_bytes, epoch)?;
            Ok(AppendReply { offset: place.offset, epoch: place.epoch })
        })
        .await
    }

    /// Changes the counter of an open, which may be another client's.
    pub async fn fetch_add(&self, call: &Call, request: FetchAddRequest) -> Result<Answer, Refusal> {
        let FetchAddRequest { capability, session, open, change, amount } = request;
        self.check(&capability, 0)?;
        if capability.access() == 0 {
            return Err(Refusal::new(Status::Invalid, "a capability without rights"));
        }
        let id = CounterId { ino: capability.ino, session: SessionId(session), number: open.number };
        let change = match (change, u64::try_from(amount)) {
            (WireChange::Add, _) => CounterChange::Add(amount),
            (WireChange::Set, Ok(value)) => CounterChange::Set(value),
            (WireChange::Set, Err(_)) => {
                return Err(Refusal::new(
                    Status::Invalid,
                    format!("a counter is never {amount}: it is from 0 on"),
                ));
            }
        };
        spent::note_ino(id.ino);
        self.change(call, |op, _, _| {
            let begins = self.sessions.may_begin_counter(id.session, open.run);
            let before = op.fetch_counter(id, change, begins).map_err(|error| match error {
                MetaError::Stale => Failure::from(Refusal::new(
                    Status::Stale,
                    "the open that the counter belongs to has ended, or its client was given up as lost; the counter \
                     is gone with it",
                )),
                error => error.into(),
            })?;
            Ok(FetchAddReply { before })
        })
        .await
    }

    /// Takes a client's word, proved by its capability, that it has this file open.
    pub async fn reopen(&self, call: &Call, request: ReopenRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, 0)?;
        let (read, write) = t::access(held.access())?;
        if !read && !write {
            return Err(Refusal::new(Status::Invalid, "a capability without rights"));
        }
        self.change_spread(call, |op, _, effects| {
            let small_bytes = op.small_bytes(held.ino)?;
            if small_bytes > 0 && !request.small.0 {
                return Err(MetaError::Small { ino: held.ino }.into());
            }
            if !self.sessions.counts(call.session, &request.id, &[]) {
                for (_, for_writing) in
                    [(write, true), (read, false)].into_iter().filter(|(wanted, _)| *wanted)
                {
                    op.reopen(call.session, held.ino, for_writing)?;
                }
                effects.reopen(&request.id);
            }
            let attr = op.getattr(held.ino)?;
            let rights = self.rights_again(op, call, &held)?;
            let capability = attr.layout.map(|layout| self.sign(call, held.ino, rights, layout));
            let run = self.sessions.run_of(call.session);
            let small_bytes = Added(small_bytes);
            Ok(OpenReply { attr: t::attr(&attr), capability, created: false, parent: None, run, small_bytes })
        })
        .await
    }

    /// Begins to set a file's size. The reply has a capability where the data files must be cut and a commit is to follow;
    /// without one all is done.
    pub async fn truncate_begin(
        &self,
        call: &Call,
        request: TruncateBeginRequest,
    ) -> Result<Answer, Refusal> {
        let held = match &request.held {
            Some(held) => self.holds_writable(held, &request.at)?,
            None => false,
        };
        let limited = match &request.held {
            Some(capability) if held => is_limited_by(capability),
            _ => is_limited(&t::caller(request.caller.clone())),
        };
        let caller = if held { weft_meta::Caller::root() } else { t::caller(request.caller) };
        self.change_spread(call, |op, now, _| {
            let size = request.file_bytes;
            if limited {
                op.limited();
            }
            let begun = op.truncate_begin(&caller, now, call.session, t::at(&request.at), size)?;
            let layout = begun.attr.layout.filter(|_| begun.data_work);
            let access = rights::READ | rights::WRITE;
            let rights = match layout {
                Some(_) => self.rights_for(op, call, limited, (begun.attr.ino, access), Some(size))?,
                None => access,
            };
            Ok(OpenReply {
                attr: t::attr(&begun.attr),
                capability: layout.map(|layout| self.sign(call, begun.attr.ino, rights, layout)),
                created: false,
                parent: None,
                run: self.sessions.run_of(call.session),
                small_bytes: Added(0),
            })
        })
        .await
    }

    /// Whether `held` shows that the inode `at` itself is open for writing.
    fn holds_writable(&self, held: &Capability, at: &At) -> Result<bool, Refusal> {
        self.check(held, rights::WRITE)?;
        Ok(at.path.is_empty() && at.dir == held.ino)
    }

    /// The data files are cut.
    pub async fn truncate_commit(
        &self,
        call: &Call,
        request: TruncateCommitRequest,
    ) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, rights::WRITE)?;
        self.change(call, |op, now, _| {
            let attr = op.truncate_commit(now, call.session, held.ino, request.file_bytes, request.epoch)?;
            self.attr_reply(op, attr)
        })
        .await
    }

    /// Takes over a size found on the I/O servers.
    pub async fn settle(&self, call: &Call, request: SettleRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, 0)?;
        // A size that is wrong hides data: of a user's key it is taken only from who could cut the file anyway.
        let is_trusted = call.trusted_with_sizes || held.rights & rights::WRITE != 0;
        self.change(call, |op, _, _| {
            let attr = match is_trusted {
                true => op.settle(held.ino, request.file_bytes, None, request.epoch)?,
                false => op.getattr(held.ino)?,
            };
            self.attr_reply(op, attr)
        })
        .await
    }
}

/// A client that knows of no small files gets none.
fn needs_striped(knows_small: &Added<bool>, opened: &Opened) -> Result<(), MetaError> {
    match knows_small.0 || opened.small_bytes == 0 {
        true => Ok(()),
        false => Err(MetaError::Small { ino: opened.attr.ino }),
    }
}

/// Gives back the handles of one open: one to read, one to write, or both.
fn close_one<E: Engine>(
    op: &mut Op<'_, E>,
    session: SessionId,
    now: Timestamp,
    file: &ClosedFile,
) -> Result<(), Failure> {
    let (read, write) = t::access(file.access)?;
    let read = if read { op.close(now, session, file.ino, false, None) } else { Ok(()) };
    // No report means that nothing was written since the last one.
    let report = file.report.as_ref().map(|report| t::write_report(report, now)).unwrap_or_default();
    let write = if write { op.close(now, session, file.ino, true, Some(&report)) } else { Ok(()) };
    let failure = |error: MetaError| match error.is_conflict() {
        true => Failure::Names(error),
        false => {
            let refusal = Refusal::from(error);
            Refusal::new(refusal.status, format!("inode {}: {}", file.ino, refusal.text)).into()
        }
    };
    if write.as_ref().is_err_and(MetaError::is_conflict) {
        return write.map_err(failure);
    }
    read.and(write).map_err(failure)
}
