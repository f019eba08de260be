//! What an open file is to the library; [`crate::File`] is its front.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use weft_layout::Regions;
use weft_wire::messages::{
    AllocateRequest, Attr, Caller, CloseRequest, ClosedFile, DataSize, InodeRequest, RangeRequest,
    SyncAllRequest, SyncMetaRequest, SyncRequest, ZeroRequest, rights, server_state,
};
use weft_wire::{Op, Status};

use crate::At;
use crate::access::{AccessOptions, IoStats};
use crate::batch;
use crate::call::Guard;
use crate::closing;
use crate::error::{Error, ErrorKind};
use crate::held::Held;
use crate::inner::Inner;
use crate::locks::Guards;
use crate::reach::Reach;
use crate::server::Role;
use crate::size::{self, ask_size, on_all_slots};
use crate::wait::lock;
use crate::window::{Direction, slots_of};

/// Locks of other open files that one is used under.
pub(crate) struct Relied {
    /// Of the process that relies on them.
    pub generation: u64,
    pub name: &'static str,
    pub locks: Arc<dyn Guard>,
}

/// An open file, shared by its handle and the operations under way on it. It is closed with the last of them.
pub(crate) struct OpenFile {
    pub inner: Arc<Inner>,
    pub caller: Arc<Caller>,
    pub held: Arc<Held>,
    /// For errors.
    pub name: String,
    /// Every write is acknowledged when durable.
    pub sync: bool,
    /// Whether the metadata server has made durable that the file is striped.
    striped_durably: AtomicBool,
    pub created: bool,
    pub attr: Mutex<Attr>,
    /// The directory after the creation, where the server told it.
    pub parent: OnceLock<Attr>,
    access: Mutex<AccessOptions>,
    stats: Mutex<IoStats>,
    /// Writes at the cursor go to the end of the file.
    pub appends: bool,
    /// As of which epoch the metadata server takes a size for an append.
    pub append_epoch: AtomicU64,
    /// The number of this open file as an owner of locks.
    pub lock_owner: u64,
    pub(crate) relied: Mutex<Vec<Relied>>,
    pub(crate) relies: AtomicBool,
    closed: AtomicBool,
}

impl OpenFile {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        caller: &Arc<Caller>,
        held: Held,
        name: String,
        (sync, created, appends): (bool, bool, bool),
        attr: Attr,
    ) -> Arc<OpenFile> {
        let held = Arc::new(held);
        inner.held.add(&held);
        Arc::new(OpenFile {
            inner: inner.clone(),
            caller: caller.clone(),
            held,
            name,
            sync,
            striped_durably: AtomicBool::new(false),
            created,
            append_epoch: AtomicU64::new(attr.epoch),
            appends,
            lock_owner: inner.locks.new_owner(),
            attr: Mutex::new(attr),
            parent: OnceLock::new(),
            access: Mutex::default(),
            stats: Mutex::default(),
            relied: Mutex::default(),
            relies: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn check_access(&self, direction: Direction) -> Result<(), Error> {
        let (right, operation, what) = match direction {
            Direction::Read => (rights::READ, "Read", "reading"),
            Direction::Write => (rights::WRITE, "Write", "writing"),
        };
        if self.held.access & right != 0 {
            return self.check_locks().map_err(|error| error.on(&self.name));
        }
        let text = format!("the file was not opened for {what}");
        Err(Error::new(operation, ErrorKind::NotOpenForThis, text).on(&self.name))
    }

    /// Whether a write to the striped file must first have the metadata server make durable that it is striped.
    pub(crate) fn needs_sync_before_write(&self) -> bool {
        self.sync && !self.striped_durably.load(Ordering::Relaxed)
    }

    /// The metadata server has synced after it said that the file is striped.
    pub(crate) fn note_striped_durably(&self) {
        self.striped_durably.store(true, Ordering::Relaxed);
    }

    pub(crate) fn access(&self) -> AccessOptions {
        *lock(&self.access)
    }

    pub(crate) fn set_access(&self, access: AccessOptions) {
        *lock(&self.access) = access.bounded();
    }

    pub(crate) fn stats(&self) -> IoStats {
        *lock(&self.stats)
    }

    pub(crate) fn note_stats(&self, stats: &IoStats) {
        lock(&self.stats).add(stats);
    }

    /// What all of the servers concerned can do.
    pub(crate) fn reach(&self, regions: &Regions) -> Reach {
        let session = self.inner.session();
        let layout = &self.held.layout;
        let servers = slots_of(layout, regions).filter_map(|slot| self.inner.io(layout.chain(slot)).ok());
        let reaches = servers.map(|index| {
            let server = session.server(index);
            if !server.was_reached() {
                // Where it cannot be reached, the request itself will say so.
                drop(self.inner.take_lane(index, true, None));
            }
            Reach::of(server)
        });
        reaches.reduce(Reach::of_both).unwrap_or_default()
    }

    /// The size now, over all data files.
    pub(crate) fn live_bytes(&self) -> Result<u64, Error> {
        let _operation = self.inner.operation();
        if let Some(file_bytes) = self.held.small_size(&self.inner)? {
            return Ok(file_bytes);
        }
        self.inner.keep_alive(&self.held)?;
        Ok(ask_size(&self.inner, &self.held.capability())?.file_bytes)
    }

    /// Reports what was written; the attributes after it, or `None` when there was nothing to report.
    pub(crate) fn flush(&self) -> Result<Option<Attr>, Error> {
        let attr = self.held.report_to(&self.inner)?;
        if let Some(attr) = &attr {
            *lock(&self.attr) = attr.clone();
        }
        Ok(attr)
    }

    /// As [`OpenFile::flush`]; where servers cannot be asked how far a failed write came, of what is known
    /// for certain.
    pub(crate) fn flush_known(&self) -> Result<Option<Attr>, Error> {
        let attr = self.held.report_known_to(&self.inner)?;
        if let Some(attr) = &attr {
            *lock(&self.attr) = attr.clone();
        }
        Ok(attr)
    }

    /// Makes durable what any client has written to the file, its size and times.
    pub(crate) fn sync_data(&self) -> Result<(), Error> {
        let _operation = self.inner.operation();
        self.sync_contents()?;
        self.flush()?;
        self.sync_attributes()
    }

    /// As [`OpenFile::sync_data`] of what the servers have; whether nothing was lost.
    pub(crate) fn sync_what_is_left(&self) -> Result<bool, Error> {
        let _operation = self.inner.operation();
        self.check_locks()?;
        sync_servers(&self.inner, &self.held)?;
        self.flush()?;
        self.sync_attributes()?;
        Ok(self.held.lossy_slot().is_none() && !self.held.is_forgotten())
    }

    /// Makes durable what any client has written to the data files.
    pub(crate) fn sync_contents(&self) -> Result<(), Error> {
        self.check_locks()?;
        sync_contents(&self.inner, &self.held)
    }

    /// An error if changes may have been lost since the file was opened, as far as the servers have told.
    pub(crate) fn check_losses(&self) -> Result<(), Error> {
        check_losses(&self.inner, &self.held)
    }

    /// Makes durable what the metadata server was told.
    pub(crate) fn sync_attributes(&self) -> Result<(), Error> {
        batch::ask_server(&self.inner, self.inner.owner_of(self.held.ino), &SyncMetaRequest {})?;
        check_remembered(&self.inner, &self.held)
    }

    pub(crate) fn stat(&self) -> Result<Attr, Error> {
        let _operation = self.inner.operation();
        let request = InodeRequest { caller: (*self.caller).clone(), ino: self.held.ino };
        let mut attr = batch::ask(&self.inner, &request)?.attr;
        size::bring_up_to_date(&self.inner, &self.caller, std::iter::once(&mut attr))?;
        *lock(&self.attr) = attr.clone();
        Ok(attr)
    }

    pub(crate) fn truncate_while(
        self: &Arc<Self>,
        guard: Option<Arc<dyn Guard>>,
        file_bytes: u64,
    ) -> Result<(), Error> {
        let _operation = self.inner.operation();
        self.check_access(Direction::Write)?;
        self.inner.keep_alive(&self.held)?;
        let held = Some(self.held.capability());
        let guard = Guards::of([self.guard(), guard]);
        size::truncate(&self.inner, &self.caller, &At::ino(self.held.ino), held, file_bytes, guard)
    }

    pub(crate) fn touch(&self) -> Result<(), Error> {
        let _operation = self.inner.operation();
        self.check_access(Direction::Write)?;
        self.inner.keep_alive(&self.held)?;
        self.held.note_write(0);
        self.flush_known().map(drop)
    }

    pub(crate) fn punch(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<(), Error> {
        self.inner.keep_alive(&self.held)?;
        self.on_range(offset, bytes, |capability, slot| RangeRequest { capability, slot, offset, bytes })?;
        self.held.note_write(0);
        Ok(())
    }

    /// Space first, on all servers, and then what can be seen: where one of them is full, the file stays as
    /// it is.
    pub(crate) fn allocate(self: &Arc<Self>, offset: u64, bytes: u64, keep_size: bool) -> Result<(), Error> {
        let _operation = self.inner.operation();
        let request = |keep_size| {
            move |capability, slot| AllocateRequest { capability, slot, offset, bytes, keep_size }
        };
        self.inner.keep_writable(&self.held, offset.saturating_add(bytes))?;
        self.on_range(offset, bytes, request(true))?;
        if !keep_size {
            self.on_range(offset, bytes, request(false))?;
        }
        self.held.note_write(if keep_size { 0 } else { offset + bytes });
        Ok(())
    }

    /// Zeros that have space; in the same two steps.
    pub(crate) fn zero(self: &Arc<Self>, offset: u64, bytes: u64, keep_size: bool) -> Result<(), Error> {
        let _operation = self.inner.operation();
        let space = |capability, slot| AllocateRequest { capability, slot, offset, bytes, keep_size: true };
        self.inner.keep_writable(&self.held, offset.saturating_add(bytes))?;
        self.on_range(offset, bytes, space)?;
        let zero = |capability, slot| ZeroRequest { capability, slot, offset, bytes, keep_size };
        self.on_range(offset, bytes, zero)?;
        self.held.note_write(if keep_size { 0 } else { offset + bytes });
        Ok(())
    }

    /// Sends a request to every server that has a part of a range, by the capability as it is.
    fn on_range<R: weft_wire::Request<Reply = DataSize>>(
        self: &Arc<Self>,
        offset: u64,
        bytes: u64,
        request: impl Fn(weft_wire::security::Capability, u16) -> R,
    ) -> Result<(), Error> {
        self.check_access(Direction::Write)?;
        let end = offset.checked_add(bytes).filter(|end| *end <= weft_layout::OFFSET_LIMIT && bytes > 0);
        let end = end.ok_or_else(|| {
            let text = format!("{bytes} bytes at {offset} are no range of a file");
            Error::new(R::OP.name(), ErrorKind::Invalid, text)
        })?;
        self.held.spread(&self.inner)?;
        let layout = self.held.layout;
        let concerned = |slot: u16| layout.local_size(slot, end) > layout.local_size(slot, offset);
        let slots = (0..layout.server_count()).filter(|slot| concerned(*slot));
        let requests: Vec<_> = slots
            .clone()
            .map(|slot| Ok((self.inner.io(layout.chain(slot))?, request(self.held.capability(), slot))))
            .collect::<Result<_, Error>>()?;
        let guard = self.guard();
        let replies = batch::ask_each(&self.inner, requests, |_, call| call.guarded(guard.clone()));
        for (slot, reply) in slots.zip(replies) {
            self.held.losses().note_change(slot, reply?.loss_epoch);
        }
        Ok(())
    }

    /// Ends the open, once. Waits only if there is something to report, for only then something can be lost.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let _operation = self.inner.operation();
        match self.end()? {
            Some(file) => self.tell_closed(file),
            None => Ok(()),
        }
    }

    /// From now on it is not closed when it is dropped.
    pub(crate) fn forget_close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// As [`OpenFile::close`]; but where nothing is to be reported, and nothing was locked, the message waits
    /// for others. Returns how many wait then.
    pub(crate) fn close_later(&self) -> Result<usize, Error> {
        let _operation = self.inner.operation();
        match self.end()? {
            Some(file) if file.report.is_none() && !self.held.has_locks() => {
                Ok(self.inner.closing().leave(&self.inner, file))
            }
            Some(file) => self.tell_closed(file).map(|()| 0),
            None => Ok(0),
        }
    }

    fn tell_closed(&self, file: ClosedFile) -> Result<(), Error> {
        let inner = &self.inner;
        let is_report = file.report.is_some();
        let request = CloseRequest { files: vec![file] };
        if is_report {
            batch::reap(inner);
            return batch::ask(inner, &request).map(drop);
        }
        closing::send(inner, request);
        Ok(())
    }

    /// Notes at the servers that have changes which are not durable that nobody asks them for this file any
    /// more.
    fn leave_to_sync_all(&self) {
        for slot in self.held.losses().unsynced_slots() {
            if let Ok(server) = self.inner.io(self.held.layout.chain(slot)) {
                self.inner.losses_at(server).note_closed();
            }
        }
    }

    /// Ends what this process has of the open; what the metadata server is to be told of it, if it has not
    /// been yet.
    fn end(&self) -> Result<Option<ClosedFile>, Error> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        let inner = &self.inner;
        // A forked child that has not touched the file system leaves its parent's files alone.
        if inner.is_unused_fork() {
            return Ok(None);
        }
        self.unlock_at_close();
        self.leave_to_sync_all();
        let settled = match self.held.covers_others() && !self.held.is_covered() {
            true => self.held.settle_others(inner, &lock(&self.attr).mtime.clone()),
            false => self.held.settle_end(inner),
        };
        inner.held.remove(&self.held);
        if self.held.is_covered() {
            return Ok(None);
        }
        // Without a report that is true the open is better left to end with the session: the size stays
        // marked as unknown.
        settled?;
        let report = self.held.take_report();
        Ok(Some(ClosedFile { ino: self.held.ino, access: self.held.access, report, id: self.held.id() }))
    }
}

/// Makes durable what any client has written to any file.
///
/// # Errors
/// The first one, and where files that this process has closed may be lost. A server that cannot be reached
/// matters only to them.
pub(crate) fn sync_all_contents(inner: &Arc<Inner>) -> Result<(), Error> {
    let session = inner.session();
    let io = session.listed_of(Role::Io).filter(|(_, server)| server.info().state == server_state::ACTIVE);
    let servers: Vec<_> =
        io.map(|(index, server)| (index, server, inner.losses_at(index).closed())).collect();
    let requests = servers.iter().map(|(index, ..)| (*index, SyncAllRequest {}));
    let mut failed = None;
    for ((index, server, closed), reply) in servers.iter().zip(batch::ask_all(inner, requests, None)) {
        let lost = || {
            let text = "acknowledged changes of files that are closed did not get to the disk, or its machine stopped before they did: \
                        write again what was not yet durable, and have the disk checked";
            Error::new(Op::SyncAll.name(), ErrorKind::Status(Status::Io), text)
                .at_server(server.describe(None))
        };
        let result = match reply {
            Ok(reply) if inner.losses_at(*index).note_sync(reply.loss_epoch, *closed) => Err(lost()),
            Err(error) if error.kind() != ErrorKind::Unreachable || *closed > 0 => Err(error),
            _ => Ok(()),
        };
        if let Err(error) = result {
            failed.get_or_insert(error);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Makes durable what any client has written to the data files of an open file.
pub(crate) fn sync_contents(inner: &Arc<Inner>, held: &Held) -> Result<(), Error> {
    sync_servers(inner, held)?;
    check_losses(inner, held)
}

/// Makes durable what the servers have of the data files of an open file.
pub(crate) fn sync_servers(inner: &Arc<Inner>, held: &Held) -> Result<(), Error> {
    if held.sync_small(inner)? {
        return Ok(());
    }
    inner.keep_alive(held)?;
    let capability = held.capability();
    let request = |_| SyncRequest { capability: capability.clone() };
    let requests = on_all_slots(inner, &held.layout, request)?;
    let losses = held.losses();
    let changes = losses.changes();
    let mut failed = None;
    for (slot, reply) in (0..).zip(batch::ask_all(inner, requests, None)) {
        match reply {
            Ok(reply) => losses.note_sync(slot, reply.loss_epoch, changes),
            Err(error) => {
                // Of other refusals the epochs tell whether anything was lost.
                if matches!(error.status(), Some(Status::Io | Status::NoSpace | Status::ReadOnly)) {
                    losses.note_failed_sync(slot);
                }
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// An error if the metadata server has told, on a new connection, that it has lost changes of the file.
pub(crate) fn check_remembered(inner: &Inner, held: &Held) -> Result<(), Error> {
    if held.is_forgotten() {
        let text = "the metadata server has lost acknowledged changes of this file, as after a power failure of its machine: \
                    open the file again, and write again what was not yet durable";
        let server = inner.session().server(inner.owner_of(held.ino)).describe(None);
        return Err(Error::new(Op::SyncMeta.name(), ErrorKind::Status(Status::Io), text).at_server(server));
    }
    Ok(())
}

fn check_losses(inner: &Inner, held: &Held) -> Result<(), Error> {
    check_remembered(inner, held)?;
    let Some(slot) = held.lossy_slot() else { return Ok(()) };
    let text = "acknowledged changes of this file did not get to the disk, or its machine stopped before they did: open the \
                file again, write again what was not yet durable, and have the disk checked";
    let server = inner.io(held.layout.chain(slot))?;
    let server = inner.session().server(server).describe(None);
    Err(Error::new(Op::Sync.name(), ErrorKind::Status(Status::Io), text).at_server(server))
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // There is nobody left to tell of an error; who wants to know calls `File::close`.
        let _ = self.close();
    }
}
