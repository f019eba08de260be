//! Owners of locks. There are two kinds, each with sessions of its own at the metadata server.
//!
//! ```text
//!   fcntl            the process     released when it closes any descriptor of the file; kept over exec, not
//!                                    inherited
//!   flock, F_OFD_…   the open file   shared by all processes that have it; kept until the last one closes it
//!
//!   the session of an open file: its id is in the page that all its descriptors share
//!
//!     process A  lock ── socket ──┐
//!     process B  forked from A: ──┤  the same socket: while a process has it, the server keeps the locks
//!     process C  B's parent ──────┘  joins when B has ended and the page shows a lock (`flock 9` in a shell)
//! ```
//!
//! A session ends with its last connection ([`ConnectOptions::ends_with_connection`]). So the locks of killed
//! processes are released as soon as the kernel has closed their sockets; only where the connection breaks, or
//! the kernel resets it, the server waits 10 seconds whether the process comes back. The last process that
//! closes an open file, as far as its page shows, releases its locks itself.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Weak};

use weft_client::{
    Client, ConnectOptions, Error, File, Guard, LockKind, LockOwner, LockTarget, LockWait, Transport,
};

use crate::guard::{Errno, Outcome, is_inside, run_inside, within};
use crate::locked_ranges::{self, Owner};
use crate::memory::SpinLock;
use crate::mounts;
use crate::shared::{self, Kind, NOT_LOCKED, SHARED, random_id};
use crate::table::{self, Open, Use};

/// The process that `F_GETLK` reports for a lock of an open file.
const NO_PROCESS: u32 = -1i32 as u32;

/// This process's part of the session of an open file's locks: the file, opened in that session.
pub(crate) struct End {
    generation: u32,
    open: &'static Open,
    file: Arc<File>,
}

/// All sessions of open files. Held over a fork.
pub(crate) static ENDS: SpinLock<Vec<End>> = SpinLock::new(Vec::new());

/// The locks of this process.
pub(crate) struct Process {
    pub(crate) generation: u32,
    pub(crate) id: [u8; 16],
    client: Option<Client>,
    /// Files with locks that are open in the session.
    pub(crate) files: Vec<(u64, Arc<File>)>,
    /// Files that the previous program had locked.
    pub(crate) inherited: Vec<u64>,
}

/// Held over a fork.
pub(crate) static PROCESS: SpinLock<Option<Process>> = SpinLock::new(None);
pub(crate) static PROCESS_SOCKET: AtomicI32 = AtomicI32::new(-1);
/// Set while descriptors are examined whose sockets were kept over exec.
pub(crate) static INHERITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Where to store the descriptor of the session's socket that is created now.
    static SOCKET_GOES_TO: Cell<Option<&'static AtomicI32>> = const { Cell::new(None) };
}

/// The owner of all locks of a process in its lock session.
pub(crate) fn owner() -> LockOwner {
    LockOwner::Other { id: 1, pid: std::process::id() }
}

/// The owner of the locks of an open file, which belong to no process.
pub(crate) fn open_file_owner() -> LockOwner {
    LockOwner::Other { id: 1, pid: NO_PROCESS }
}

/// Records a socket that this process has created. If it is of an open file's session, forked children keep
/// it.
pub(crate) fn note_socket(fd: c_int) {
    if let Some(place) = SOCKET_GOES_TO.get() {
        place.store(fd, Ordering::Release);
        if !std::ptr::eq(place, &PROCESS_SOCKET) {
            table::set_kept(fd);
        }
    }
}

/// Runs `body`, which may connect a session. Stores its socket in `place`.
fn connecting<T>(place: &'static AtomicI32, body: impl FnOnce() -> T) -> T {
    let before = SOCKET_GOES_TO.replace(Some(place));
    let result = body();
    SOCKET_GOES_TO.set(before);
    result
}

fn join(open: &Use, id: [u8; 16], member: u16) -> Outcome<Client> {
    let map = open.mount.made()?.client.map();
    // One connection is one socket, which forked children can keep.
    let options = ConnectOptions {
        transport: Some(Transport::Tcp),
        ends_with_connection: true,
        ..ConnectOptions::default()
    };
    Ok(Client::join_session(open.mount.address(), options, map, id, member)?)
}

fn adopt(open: &Use, client: &Client) -> Outcome<File> {
    if open.kind() != Kind::File {
        return Err(Errno(libc::EBADF));
    }
    let texts = open.shared().texts();
    Ok(client.adopt(texts.pass, &String::from_utf8_lossy(texts.path), false)?)
}

/// Runs `body` with the file in the session of its open file description.
pub(crate) fn by_open_file<T>(open: &Use, body: impl FnOnce(&Arc<File>) -> Outcome<T>) -> Outcome<T> {
    let place = &open.whole().lock_socket;
    connecting(place, || {
        let file = match end_of(open.whole()) {
            Some(file) => file,
            None => {
                let locks = &open.shared().locks;
                let inherited = place.swap(-1, Ordering::AcqRel);
                let client = join(open, locks.session(), locks.next_member())?;
                let file = Arc::new(adopt(open, &client)?);
                give_up(inherited);
                open.whole().whole_known.store(NOT_LOCKED, Ordering::Release);
                let end = End { generation: mounts::generation(), open: open.whole(), file: file.clone() };
                ENDS.with(|ends| ends.push(end));
                file
            }
        };
        body(&file)
    })
}

/// Fails if locks are lost that the program relies on for this read or write: as on a mount, only through the
/// open files on which they were taken. If there are locks and the connection was lost, it is established
/// again, so that they hold.
pub(crate) fn check(open: &Use) -> Outcome<()> {
    let checked = check_both(open);
    note_if_lost(open, &checked);
    checked
}

fn check_both(open: &Use) -> Outcome<()> {
    if open.shared().locks.any() {
        check_open_file(open)?;
    }
    if open.locked.load(Ordering::Acquire) && has_locked(open.shared().ino) {
        by_process(open, |file| Ok(file.check_locks()?))?;
    }
    Ok(())
}

/// Notes that a call has failed because locks are lost, if that is why: changes of mappings are not written back then.
pub(crate) fn note_if_lost<T>(open: &Use, outcome: &Outcome<T>) {
    if outcome.is_err() && are_lost(open) {
        open.whole().losses.fetch_add(1, Ordering::AcqRel);
    }
}

/// Whether locks that were taken through the open file are lost, as far as is known.
fn are_lost(open: &Use) -> bool {
    let of_process = || {
        PROCESS.with(|process| {
            let process = process.as_ref().filter(|process| process.generation == mounts::generation());
            let mut files = process.into_iter().flat_map(|process| &process.files);
            files.any(|(ino, file)| *ino == open.shared().ino && file.has_lost_locks())
        })
    };
    open.shared().locks.are_lost() || open.locked.load(Ordering::Acquire) && of_process()
}

/// The same for the locks of the open file. All processes that have it learn of a loss from each other.
pub(crate) fn check_open_file(open: &Use) -> Outcome<()> {
    let locks = &open.shared().locks;
    if !locks.are_lost() && end_of(open.whole()).is_some() {
        // If that fails, its lock is lost or the server cannot be reached, which is found out now.
        let _ = go_on_with(open);
        by_open_file(open, |file| match file.check_locks() {
            Err(error) if error.status() == Some(weft_wire::Status::LockLost) => {
                match open.whole().loss_noted.swap(true, Ordering::AcqRel) {
                    false => locks.note_lost(),
                    true => join_anew(open),
                }
                Ok(())
            }
            other => Ok(other?),
        })?;
    }
    if locks.are_lost() { Err(Errno(libc::EIO)) } else { Ok(()) }
}

/// Forgets this process's part of the session, which has lost locks, since another process has locked again.
fn join_anew(open: &Use) {
    ENDS.with(|ends| {
        while let Some(at) = ends.iter().position(|end| end.is_of(open.whole())) {
            // Closing the file in the session would release the locks that others have there.
            std::mem::forget(ends.swap_remove(at));
        }
    });
    open.whole().loss_noted.store(false, Ordering::Release);
    let _ = go_on_with(open);
}

/// A lock of the open file was granted after a loss.
pub(crate) fn note_locked_again(open: &Use, file: &File) {
    if !file.has_lost_locks() {
        open.whole().loss_noted.store(false, Ordering::Release);
        open.shared().locks.note_locked_again();
    }
}

/// The locks that are taken through a file of a session, for the requests of an open file.
struct TakenThrough {
    file: Weak<File>,
    socket: &'static AtomicI32,
}

impl Guard for TakenThrough {
    fn check(&self) -> Result<(), Error> {
        match self.file.upgrade() {
            Some(file) => connecting(self.socket, || file.check_locks()),
            None => Ok(()),
        }
    }
}

/// Has each request of the open file wait for word that the locks are held which were taken through `file`.
pub(crate) fn rely_on(open: &Use, file: &Arc<File>, is_of_process: bool) -> Outcome<()> {
    let (name, socket) = match is_of_process {
        true => ("the process", &PROCESS_SOCKET),
        false => ("the open file", &open.whole().lock_socket),
    };
    open.file()?.rely_on(name, Arc::new(TakenThrough { file: Arc::downgrade(file), socket }));
    Ok(())
}

/// Whether this process has the file open in the session of its locks.
fn has_locked(ino: u64) -> bool {
    PROCESS.with(|process| {
        process.as_ref().is_some_and(|process| {
            process.generation == mounts::generation() && process.files.iter().any(|(other, _)| *other == ino)
        })
    })
}

fn end_of(open: &'static Open) -> Option<Arc<File>> {
    ENDS.with(|ends| {
        let end = ends.iter().find(|end| end.is_of(open))?;
        Some(end.file.clone())
    })
}

impl End {
    fn is_of(&self, open: &'static Open) -> bool {
        self.generation == mounts::generation() && std::ptr::eq(self.open, open)
    }
}

/// Closes a socket of a session. This process's state of the connection is never used again.
fn give_up(socket: c_int) {
    if table::is_internal(socket) {
        shared::close(socket);
        table::forget(socket);
    }
}

/// Runs `body` with the file in the session of the process.
pub(crate) fn by_process<T>(open: &Use, body: impl FnOnce(&Arc<File>) -> Outcome<T>) -> Outcome<T> {
    let ino = open.shared().ino;
    connecting(&PROCESS_SOCKET, || {
        let (known, client, id) = PROCESS.with(|process| {
            let process = process.get_or_insert_with(fresh);
            if process.generation != mounts::generation() {
                // A forked child does not have its parent's locks.
                std::mem::forget(std::mem::replace(process, fresh()));
            }
            let known = process.files.iter().find(|(other, _)| *other == ino).map(|(_, file)| file.clone());
            (known, process.client.clone(), process.id)
        });
        let file = match known {
            Some(file) => file,
            None => {
                let client = match client {
                    Some(client) => client,
                    None => join(open, id, 0)?,
                };
                let file = Arc::new(adopt(open, &client)?);
                PROCESS.with(|process| {
                    let process = process.get_or_insert_with(fresh);
                    process.client.get_or_insert(client);
                    process.files.push((ino, file.clone()));
                });
                file
            }
        };
        body(&file)
    })
}

pub(crate) fn fresh() -> Process {
    Process {
        generation: mounts::generation(),
        id: random_id(),
        client: None,
        files: Vec::new(),
        inherited: Vec::new(),
    }
}

/// Releases the process's locks on a file of which it closes a descriptor.
pub(crate) fn end_of_process(open: &Use) {
    let ino = open.shared().ino;
    let has_any = PROCESS.with(|process| {
        process.as_ref().is_some_and(|process| {
            process.generation == mounts::generation()
                && (process.inherited.contains(&ino) || process.files.iter().any(|(other, _)| *other == ino))
        })
    });
    if !has_any {
        return;
    }
    locked_ranges::forget(Owner::process(ino));
    // The server releases what remains with the session.
    let _ = by_process(open, |file| Ok(file.unlock_all_as(owner())?));
    let closed = PROCESS.with(|process| {
        let process = process.as_mut()?;
        process.inherited.retain(|other| *other != ino);
        let at = process.files.iter().position(|(other, _)| *other == ino)?;
        Some(process.files.swap_remove(at))
    });
    closed.into_iter().for_each(|(_, file)| close_now(file));
}

/// Closes a file in its session, unless another thread uses it there.
fn close_now(file: Arc<File>) {
    if let Some(file) = Arc::into_inner(file) {
        // What is not closed now is closed with the session.
        let _ = file.close();
    }
}

/// Called when this process closes its last descriptor of an open file, or ends. The last process of all
/// releases its locks.
pub(crate) fn leave(open: &Use) {
    if open.whole().left.swap(true, Ordering::AcqRel) {
        return;
    }
    locked_ranges::forget(Owner::open(open.whole()));
    let shared = open.shared();
    let others = shared.locks.let_go(std::process::id());
    if !shared.locks.any() {
        return;
    }
    if !others {
        let _ = by_open_file(open, |file| Ok(file.unlock_all_as(open_file_owner())?));
    }
    let mut ended = Vec::new();
    ENDS.with(|ends| {
        while let Some(at) = ends.iter().position(|end| end.is_of(open.whole())) {
            ended.push(ends.swap_remove(at));
        }
    });
    if others {
        // Closing the file in the session would release the locks that others still have there.
        std::mem::forget(ended);
    } else {
        ended.into_iter().for_each(|end| close_now(end.file));
    }
    give_up(open.whole().lock_socket.swap(-1, Ordering::AcqRel));
}

/// Called when this process has received an open file that it did not open.
pub(crate) fn arrived(open: &Use) {
    let locks = &open.shared().locks;
    locks.hold(std::process::id());
    if locks.any() && !INHERITING.load(Ordering::Acquire) {
        join_if_apart(open);
    }
}

/// Joins the session of an open file's locks if this process has no socket of it.
fn join_if_apart(open: &Use) {
    if open.whole().lock_socket.load(Ordering::Acquire) < 0 {
        // Without the server there are no locks to keep.
        let _ = by_open_file(open, |_| Ok(()));
    }
}

/// Takes over changes that other processes have made to the open file's lock on the whole file, so that this
/// process claims it after a restart of the server.
fn go_on_with(open: &Use) -> Outcome<()> {
    let (locks, known) = (&open.shared().locks, &open.whole().whole_known);
    let now = locks.whole();
    if locks.are_lost() || known.load(Ordering::Acquire) == now {
        return Ok(());
    }
    by_open_file(open, |file| {
        let (owner, whole) = (open_file_owner(), LockTarget::Whole);
        match now {
            NOT_LOCKED => file.unlock_as(owner, whole)?,
            SHARED => file.lock_as(owner, whole, LockKind::Shared, LockWait::Never)?,
            _ => file.lock_as(owner, whole, LockKind::Exclusive, LockWait::Never)?,
        }
        known.store(now, Ordering::Release);
        Ok(())
    })
}

/// Takes over locks of a child that has ended, on open files that this process shares.
pub(crate) fn after_a_child() {
    if is_inside() {
        return;
    }
    table::each(|open| {
        if open.shared().locks.any() {
            let _ = within(|| {
                join_if_apart(open);
                go_on_with(open)
            });
        }
    });
}

/// Records that a forked child has the same open files.
pub(crate) fn held_by(pid: u32) {
    table::each(|open| open.shared().locks.hold(pid));
}

/// Releases, at the end of the program, what only it has.
pub(crate) fn end() {
    run_inside(|| {
        table::each(|open| {
            end_of_process(open);
            leave(open);
        });
    });
}
