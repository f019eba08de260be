//! Files that are open for READs and WRITEs. NFS has no open files, Weft has.
//!
//! ```text
//!   first READ of a user    Open as this user: rights are checked, one request more
//!   READs after it          one request to the I/O servers each
//!   another user            Access: the open file is shared
//!   idle for some seconds   closed; what was written and not synced is synced before
//! ```
//!
//! - Rights that were checked count for [`RIGHTS_VALID`], or until attributes are set through this gateway.
//! - A write or truncation of another than root ends set-id bits, which are looked at together with the rights.
//!   Those that are set past this gateway end with the first write after [`RIGHTS_VALID`].
//! - The owner of a file may always read and write it, and who may execute a file may read it (RFC 1813, 4.4):
//!   a client has checked the rights when a program opened it, and they may have changed since.
//! - What was written is reported before attributes of that inode are asked for.
//! - An open file has all that was written since the last sync: if a server says that it lost some of it, the
//!   verifier of writes changes, and the file is opened anew.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::nfsstat3;
use weft_client::{At, Client, Error, ErrorKind, File, OpenOptions, PendingCall, SetAttr};
use weft_gateway::{Asked, Reports};
use weft_reactor::{LocalLock, Notify, sleep};
use weft_wire::Status;
use weft_wire::limits::CAPABILITY_LIFE_S;
use weft_wire::messages::{Attr, Caller, FileKind};

use crate::known::{Known, Scope, Who};
use crate::status::{Named, status_of};
use crate::target::Target;
use crate::verifier::Verifier;
use crate::weft::Weft;
use crate::workers::Workers;

/// How long a user's rights to a file count after they were checked.
const RIGHTS_VALID: Duration = Duration::from_secs(5);
/// Users whose rights to one file are remembered.
const RIGHTS_MAX: usize = 64;
/// How long a file stays open that is used all the time. Its capability lives longer, and must not be renewed
/// on the reactor's thread, which that would block.
const OPEN_LIFE: Duration = Duration::from_secs(CAPABILITY_LIFE_S / 2);
/// How long a file stays open that nobody uses.
const IDLE: Duration = Duration::from_secs(5);
/// How long one stays open that was written and not synced, if nobody uses it.
const IDLE_UNSYNCED: Duration = Duration::from_secs(30);
/// Inodes with open files from which on those that nobody uses at the moment are closed.
const OPEN_MAX: usize = 4096;

/// An open file that a worker thread closes, when nobody has it any more. On the reactor's thread that could
/// wait for ever: a report waits for a slot, which operations under way have that this thread moves on.
pub(crate) struct OpenFile {
    file: Option<File>,
    client: Client,
    workers: Workers,
    opened_at: Instant,
}

impl std::ops::Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let client = self.client.clone();
            self.workers.leave(move || close(&client, file));
        }
    }
}

/// What cannot be reported is found by the servers themselves.
fn close(client: &Client, file: File) {
    match file.close_later() {
        Ok(0) => {}
        Ok(_) => client.send_closes(),
        Err(error) => tracing::warn!(%error, "a file could not be closed"),
    }
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    /// As in access(2).
    fn mask(self) -> u32 {
        match self {
            Access::Read => 4,
            Access::Write => 2,
        }
    }
}

struct Right {
    who: Who,
    access: Access,
    at: Instant,
}

/// The open files of one inode.
pub(crate) struct Entry {
    ino: u64,
    reader: RefCell<Option<Arc<OpenFile>>>,
    writer: RefCell<Option<Arc<OpenFile>>>,
    opening: LocalLock<()>,
    reporting: LocalLock<()>,
    /// Writes that the metadata server has not been told of.
    unreported: Cell<bool>,
    /// Where the file ends, unless another client has changed that; `None`: unknown.
    end: Cell<Option<u64>>,
    /// Changes so far, and those at the beginning of the last sync that succeeded.
    changes: Cell<u64>,
    synced: Cell<u64>,
    used_at: Cell<Instant>,
    rights: RefCell<Vec<Right>>,
    known: Rc<Known>,
}

impl Entry {
    fn new(ino: u64, known: &Rc<Known>) -> Entry {
        Entry {
            ino,
            reader: RefCell::default(),
            writer: RefCell::default(),
            opening: LocalLock::new(()),
            reporting: LocalLock::new(()),
            unreported: Cell::new(false),
            end: Cell::new(None),
            changes: Cell::new(0),
            synced: Cell::new(0),
            used_at: Cell::new(Instant::now()),
            rights: RefCell::default(),
            known: known.clone(),
        }
    }

    fn place(&self, access: Access) -> &RefCell<Option<Arc<OpenFile>>> {
        match access {
            Access::Read => &self.reader,
            Access::Write => &self.writer,
        }
    }

    fn file(&self, access: Access) -> Option<Arc<OpenFile>> {
        self.place(access).borrow().clone()
    }

    fn is_allowed(&self, target: &Target, access: Access) -> bool {
        let now = Instant::now();
        let mut rights = self.rights.borrow_mut();
        rights.retain(|right| now.saturating_duration_since(right.at) < RIGHTS_VALID);
        rights.iter().any(|right| right.access == access && right.who == target.who())
    }

    fn allow(&self, target: &Target, access: Access) {
        let mut rights = self.rights.borrow_mut();
        if rights.len() >= RIGHTS_MAX {
            rights.remove(0);
        }
        rights.push(Right { who: target.who(), access, at: Instant::now() });
    }

    /// Something is about to be written, or has been.
    pub(crate) fn note_change(&self) {
        self.unreported.set(true);
        self.changes.set(self.changes.get() + 1);
        self.known.changed(self.ino);
    }

    /// The file has been written up to here.
    pub(crate) fn note_size(&self, end: u64) {
        self.end.set(self.end.get().map(|known| known.max(end)));
    }

    /// The file had this size when so many changes had been made.
    fn learn_size(&self, bytes: u64, changes: u64) {
        self.end.set((self.changes.get() == changes).then_some(bytes));
    }

    /// Whether the file may end here.
    pub(crate) fn may_end_at(&self, offset: u64) -> bool {
        self.end.get().is_none_or(|end| end == offset)
    }

    /// Whether writes have not been reported to the metadata server.
    pub(crate) fn is_unreported(&self) -> bool {
        self.unreported.get()
    }

    fn is_unsynced(&self) -> bool {
        self.writer.borrow().is_some() && self.synced.get() != self.changes.get()
    }
}

/// Attributes of an inode that has a name.
fn with_names(attr: Attr) -> weft_client::Result<Attr> {
    match attr.nlink {
        0 => Err(Error::new("Getattr", ErrorKind::Status(Status::Stale), "its last name was removed")),
        _ => Ok(attr),
    }
}

fn by_handle(error: Error) -> nfsstat3 {
    status_of(&error, Named::Handle)
}

/// An open file in use. It is not closed before this is dropped.
pub(crate) struct Opened {
    pub(crate) entry: Rc<Entry>,
    pub(crate) file: Arc<OpenFile>,
}

/// All open files.
pub(crate) struct Opens {
    client: Client,
    weft: Weft,
    workers: Workers,
    reports: Reports,
    pub(crate) known: Rc<Known>,
    pub(crate) verifier: Verifier,
    entries: RefCell<HashMap<u64, Rc<Entry>>>,
    crowded: Notify,
}

impl Opens {
    pub(crate) fn new(client: &Client, weft: &Weft, workers: &Workers, known: &Rc<Known>) -> Opens {
        Opens {
            client: client.clone(),
            weft: weft.clone(),
            workers: workers.clone(),
            reports: Reports::default(),
            known: known.clone(),
            verifier: Verifier::new(),
            entries: RefCell::default(),
            crowded: Notify::new(),
        }
    }

    /// Inodes with open files.
    pub(crate) fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    async fn call<T: 'static>(&self, call: PendingCall<T>) -> weft_client::Result<T> {
        self.weft.finish(call).await.wait()
    }

    fn kept(&self, file: File) -> Arc<OpenFile> {
        let (client, workers) = (self.client.clone(), self.workers.clone());
        Arc::new(OpenFile { file: Some(file), client, workers, opened_at: Instant::now() })
    }

    fn entry(&self, ino: u64) -> Rc<Entry> {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= OPEN_MAX {
            self.crowded.notify();
        }
        let entry = entries.entry(ino).or_insert_with(|| Rc::new(Entry::new(ino, &self.known)));
        entry.used_at.set(Instant::now());
        entry.clone()
    }

    fn known(&self, ino: u64) -> Option<Rc<Entry>> {
        self.entries.borrow().get(&ino).cloned()
    }

    /// The file, open for this, if the user may.
    pub(crate) async fn get(&self, target: &Target, access: Access) -> Result<Opened, nfsstat3> {
        let entry = self.entry(target.ino);
        if entry.is_allowed(target, access)
            && let Some(file) = entry.file(access)
            && file.opened_at.elapsed() < OPEN_LIFE
        {
            return Ok(Opened { entry, file });
        }
        let turn = entry.opening.lock().await;
        if entry.file(access).is_some_and(|file| file.opened_at.elapsed() >= OPEN_LIFE) {
            self.sync(target.ino).await?;
            entry.place(access).take();
        }
        let opened = entry.file(access);
        if opened.is_none() || !entry.is_allowed(target, access) {
            let file = match &opened {
                None => self.open(target, access).await?,
                Some(file) => {
                    self.check(target, access).await?;
                    file.clone()
                }
            };
            let attr = match &opened {
                Some(_) => self.call(target.root().start_getattr(target.ino)).await.map_err(by_handle)?,
                None => file.attr(),
            };
            let attr = with_names(attr).map_err(by_handle)?;
            if access == Access::Write {
                self.clear_set_id(target, &attr).await?;
            }
            *entry.place(access).borrow_mut() = Some(file);
            entry.allow(target, access);
        }
        drop(turn);
        let file = entry.file(access).ok_or(nfsstat3::NFS3ERR_JUKEBOX)?;
        Ok(Opened { entry, file })
    }

    async fn open(&self, target: &Target, access: Access) -> Result<Arc<OpenFile>, nfsstat3> {
        let options = OpenOptions::new().read(access == Access::Read).write(access == Access::Write);
        let options = options.follow(false);
        let at = At::ino(target.ino);
        let refused = match self.call(target.client.start_open(at.clone(), &options)).await {
            Ok(file) => return Ok(self.kept(file)),
            Err(error) => error,
        };
        match refused.status() {
            Some(Status::Access) => {
                self.check_override(target, access).await?;
                let file = self.call(target.root().start_open(at, &options)).await;
                file.map(|file| self.kept(file)).map_err(|error| status_of(&error, Named::Handle))
            }
            // What is no file has no contents (RFC 1813, 3.3.6).
            Some(Status::Unsupported) => Err(nfsstat3::NFS3ERR_INVAL),
            _ => Err(status_of(&refused, Named::Handle)),
        }
    }

    /// Whether the user may use what is open already.
    pub(crate) async fn check(&self, target: &Target, access: Access) -> Result<(), nfsstat3> {
        let at = At::ino(target.ino);
        match self.call(target.client.start_access(at, false, access.mask())).await {
            Ok(()) => Ok(()),
            Err(error) if error.status() == Some(Status::Access) => self.check_override(target, access).await,
            Err(error) => Err(status_of(&error, Named::Handle)),
        }
    }

    /// Whether it is to be allowed although the file's mode does not allow it.
    async fn check_override(&self, target: &Target, access: Access) -> Result<(), nfsstat3> {
        const EXECUTE: u32 = 1;
        let handle = |error: weft_client::Error| status_of(&error, Named::Handle);
        let attr = self.call(target.root().start_getattr(target.ino)).await.map_err(handle)?;
        if attr.kind == FileKind::File && attr.uid == target.client.caller().uid {
            return Ok(());
        }
        if access == Access::Read {
            let executes = target.client.start_access(At::ino(target.ino), false, EXECUTE);
            return self.call(executes).await.map_err(handle);
        }
        Err(nfsstat3::NFS3ERR_ACCES)
    }

    /// A write of another than root ends set-id bits.
    async fn clear_set_id(&self, target: &Target, attr: &Attr) -> Result<(), nfsstat3> {
        if target.client.caller().uid == 0 {
            return Ok(());
        }
        let cleared = target.client.caller().mode_after_change(attr.mode, attr.gid);
        if cleared == attr.mode {
            return Ok(());
        }
        // Not as root, whom the servers may take for nobody.
        let owner = Caller { uid: attr.uid, gid: attr.gid, groups: Vec::new() };
        let changes = SetAttr { mode: Some(cleared), ..SetAttr::default() };
        let change = self.known.change().inode(target.ino, Scope::Attributes);
        let set = target.root().with_caller(owner).start_setattr(At::ino(target.ino), false, &changes);
        let attr = self.call(set).await.map_err(by_handle)?;
        change.made(|learn| learn.attr(&attr));
        Ok(())
    }

    /// A name was removed, of this inode if that is known. If it was the last one, its handle is stale from now on.
    pub(crate) fn lost_name(&self, ino: Option<u64>) {
        match ino {
            Some(ino) => self.forget_rights(ino),
            None => self.entries.borrow().values().for_each(|entry| entry.rights.borrow_mut().clear()),
        }
    }

    /// Rights to it may have changed.
    pub(crate) fn forget_rights(&self, ino: u64) {
        if let Some(entry) = self.known(ino) {
            entry.rights.borrow_mut().clear();
        }
    }

    /// After a write: a server that lost earlier ones has said so.
    pub(crate) fn look_for_losses(&self, opened: &Opened) {
        if opened.file.check_losses().is_err() {
            self.lost(opened);
        }
    }

    /// Writes that were acknowledged may be lost: clients are to write again, to the file opened anew.
    fn lost(&self, opened: &Opened) {
        tracing::warn!(
            ino = opened.entry.ino,
            "an I/O server may have lost writes: clients will write again"
        );
        self.verifier.change();
        let mut writer = opened.entry.writer.borrow_mut();
        if writer.as_ref().is_some_and(|file| Arc::ptr_eq(file, &opened.file)) {
            writer.take();
        }
    }

    /// Makes durable what was written to the inode through this gateway. Whether all of it was there still;
    /// else the verifier has changed.
    pub(crate) async fn sync(&self, ino: u64) -> Result<bool, nfsstat3> {
        let Some(entry) = self.known(ino).filter(|entry| entry.is_unsynced()) else { return Ok(true) };
        let Some(file) = entry.file(Access::Write) else { return Ok(true) };
        let opened = Opened { entry, file };
        if opened.file.check_losses().is_err() {
            self.lost(&opened);
            return Ok(false);
        }
        let changes = opened.entry.changes.get();
        let file = opened.file.clone();
        let synced = self.workers.run(move || file.sync_what_is_left()).await;
        self.reported(ino);
        match synced {
            Ok(true) => {
                opened.entry.synced.set(opened.entry.synced.get().max(changes));
                if opened.entry.changes.get() == changes {
                    opened.entry.unreported.set(false);
                }
                Ok(true)
            }
            Ok(false) => {
                self.lost(&opened);
                Ok(false)
            }
            Err(error) => {
                tracing::warn!(ino, %error, "what was written cannot be made durable");
                if matches!(error.status(), Some(Status::Io | Status::NoSpace | Status::ReadOnly)) {
                    self.lost(&opened);
                }
                // Of a file that is removed nothing has to be durable.
                if matches!(error.status(), Some(Status::Stale | Status::NotFound)) {
                    opened.entry.synced.set(changes);
                }
                Err(status_of(&error, Named::Handle))
            }
        }
    }

    /// Tells the metadata server what was written to the inode through this gateway.
    pub(crate) async fn report(&self, ino: u64) -> weft_client::Result<()> {
        let Some(entry) = self.known(ino) else { return Ok(()) };
        if entry.writer.borrow().is_none() {
            return Ok(());
        }
        // One that is under way is waited for.
        let _turn = entry.reporting.lock().await;
        let Some(file) = entry.file(Access::Write) else { return Ok(()) };
        if !entry.unreported.replace(false) {
            return Ok(());
        }
        let reported = self.workers.run(move || file.flush_known()).await;
        self.reported(ino);
        if reported.is_err() {
            entry.unreported.set(true);
        }
        reported.map(drop)
    }

    /// What was written was reported, which has changed attributes.
    fn reported(&self, ino: u64) {
        self.reports.changed(ino);
        self.known.changed(ino);
    }

    /// Attributes of an inode now.
    ///
    /// # Errors
    /// `ESTALE` for an inode without names, which lasts only until its last user closes it.
    pub(crate) async fn attr(&self, client: &Client, ino: u64) -> weft_client::Result<Attr> {
        if let Some(attr) = self.known.attr(ino) {
            return with_names(attr);
        }
        self.report(ino).await?;
        let entry = self.known(ino);
        let changes = entry.as_ref().map(|entry| entry.changes.get());
        let asked = self.known.ask();
        let attr = self.call(client.start_getattr(ino)).await?;
        self.known.learn(&asked, &attr);
        if let (Some(entry), Some(changes)) = (entry, changes) {
            entry.learn_size(attr.size, changes);
        }
        with_names(attr)
    }

    /// Attributes that a reply had: asked for again, if what was written here was not reported before.
    pub(crate) async fn brought_up_to_date(
        &self,
        client: &Client,
        asked: &Asked,
        attr: Attr,
    ) -> weft_client::Result<Attr> {
        let is_written = self.known(attr.ino).is_some_and(|entry| entry.writer.borrow().is_some());
        let is_old =
            |entry: Rc<Entry>| entry.unreported.get() || self.reports.changed_since(attr.ino, asked.at());
        if is_written && self.known(attr.ino).is_some_and(is_old) {
            return self.attr(client, attr.ino).await;
        }
        self.known.learn(asked, &attr);
        Ok(attr)
    }

    /// Closes what nobody uses, time and again.
    pub(crate) async fn look_after(self: Rc<Self>) {
        loop {
            let mut nap = std::pin::pin!(sleep(Duration::from_secs(1)));
            let mut crowded = std::pin::pin!(self.crowded.notified());
            std::future::poll_fn(|context| {
                let napped = nap.as_mut().poll(context).is_ready();
                match napped || crowded.as_mut().poll(context).is_ready() {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            })
            .await;
            weft_onc_server::buffers::trim();
            self.known.trim();
            let is_crowded = self.count() >= OPEN_MAX;
            self.close_idle(is_crowded).await;
        }
    }

    async fn close_idle(&self, is_crowded: bool) {
        let now = Instant::now();
        let is_idle = |entry: &&Rc<Entry>| {
            let limit = match (is_crowded, entry.is_unsynced()) {
                (true, _) => Duration::ZERO,
                (false, true) => IDLE_UNSYNCED,
                (false, false) => IDLE,
            };
            Rc::strong_count(entry) == 1 && now.saturating_duration_since(entry.used_at.get()) >= limit
        };
        let idle: Vec<u64> = self.entries.borrow().values().filter(is_idle).map(|entry| entry.ino).collect();
        for ino in idle {
            // An error leaves the file open, and the sync is tried again.
            if self.sync(ino).await.is_err() {
                continue;
            }
            let mut entries = self.entries.borrow_mut();
            let Some(entry) = entries.get(&ino) else { continue };
            if Rc::strong_count(entry) > 1 || entry.is_unsynced() {
                continue;
            }
            entries.remove(&ino);
        }
    }

    /// Syncs and closes everything, when the gateway ends.
    pub(crate) async fn close_everything(&self) {
        let inos: Vec<u64> = self.entries.borrow().keys().copied().collect();
        for ino in inos {
            let _ = self.sync(ino).await;
        }
        self.entries.borrow_mut().clear();
        self.workers.idle().await;
    }
}
