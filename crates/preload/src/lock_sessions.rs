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
//! A session without connections ends after the server's grace of 10 seconds. So the locks of killed
//! processes are released. The last process that closes an open file, as far as its page shows, releases its
//! locks at once.
//!
//! A program that is executed keeps the sockets and reads their purpose from `WEFT_LOCKS`:
//! `PID:SESSION:SOCKET:INODES:FD=SOCKET,…`, for the process's own locks and those of open files.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use weft_client::{Client, ConnectOptions, File, LockKind, LockOwner, LockTarget, LockWait, Transport};

use crate::guard::{Errno, Outcome, is_inside, system, within};
use crate::memory::SpinLock;
use crate::mounts;
use crate::shared::{self, Kind, NOT_LOCKED, SHARED, random_id};
use crate::table::{self, Open, Use};

/// The process that `F_GETLK` reports for a lock of an open file.
const NO_PROCESS: u32 = -1i32 as u32;

/// The environment variable that a program reads after exec.
pub(crate) const VARIABLE: &CStr = c"WEFT_LOCKS";

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
    generation: u32,
    id: [u8; 16],
    client: Option<Client>,
    /// Files with locks that are open in the session.
    files: Vec<(u64, Arc<File>)>,
    /// Files that the previous program had locked.
    inherited: Vec<u64>,
}

/// Held over a fork.
pub(crate) static PROCESS: SpinLock<Option<Process>> = SpinLock::new(None);
static PROCESS_SOCKET: AtomicI32 = AtomicI32::new(-1);
/// Set while descriptors are examined whose sockets were kept over exec.
static INHERITING: AtomicBool = AtomicBool::new(false);

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
    let options = ConnectOptions { transport: Some(Transport::Tcp), ..ConnectOptions::default() };
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
pub(crate) fn by_open_file<T>(open: &Use, body: impl FnOnce(&File) -> Outcome<T>) -> Outcome<T> {
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
    let locks = &open.shared().locks;
    if locks.any() {
        check_open_file(open)?;
    }
    if open.locked.load(Ordering::Acquire) && has_locked(open.shared().ino) {
        by_process(open, |file| Ok(file.check_locks()?))?;
    }
    Ok(())
}

/// The same for the locks of the open file. All processes that have it learn of a loss from each other.
pub(crate) fn check_open_file(open: &Use) -> Outcome<()> {
    let locks = &open.shared().locks;
    if !locks.are_lost() && end_of(open.whole()).is_some() {
        // If that fails, its lock is lost or the server cannot be reached, which is found out now.
        let _ = go_on_with(open);
        by_open_file(open, |file| match file.check_locks() {
            Err(error) if error.status() == Some(weft_wire::Status::LockLost) => {
                locks.note_lost();
                Ok(())
            }
            other => Ok(other?),
        })?;
    }
    if locks.are_lost() { Err(Errno(libc::EIO)) } else { Ok(()) }
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
pub(crate) fn by_process<T>(open: &Use, body: impl FnOnce(&File) -> Outcome<T>) -> Outcome<T> {
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

fn fresh() -> Process {
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
    let _ = within(|| {
        table::each(|open| {
            end_of_process(open);
            leave(open);
        });
        Ok(())
    });
}

/// What a program that is executed needs to know of locks, and the sockets that it keeps.
pub(crate) struct Passed {
    /// `WEFT_LOCKS=…`
    pub(crate) text: CString,
    sockets: Vec<c_int>,
}

/// Prepares an exec. `None` if nothing is locked. A program in a spawned child has none of this process's own
/// locks.
pub(crate) fn pass_on(by_child: bool) -> Option<Passed> {
    let own = PROCESS.with(|process| {
        let process = process.as_ref().filter(|process| process.generation == mounts::generation())?;
        let inos: Vec<u64> =
            process.files.iter().map(|(ino, _)| *ino).chain(process.inherited.iter().copied()).collect();
        (!by_child && !inos.is_empty()).then_some((process.id, inos))
    });
    let (id, mut inos) = own.unwrap_or(([0; 16], Vec::new()));
    let (mut pairs, mut sockets) = (Vec::new(), Vec::new());
    table::each_fd(|fd, open| {
        let ino = open.shared().ino;
        if closes_on_exec(fd) {
            // Closing it releases the process's locks on the file.
            inos.retain(|other| *other != ino);
            return;
        }
        let socket = open.whole().lock_socket.load(Ordering::Acquire);
        if open.shared().locks.any() && socket >= 0 {
            pairs.push(format!("{fd}={socket}"));
            sockets.push(socket);
        }
    });
    let process_socket = PROCESS_SOCKET.load(Ordering::Acquire);
    if !inos.is_empty() {
        sockets.push(process_socket);
    }
    if sockets.is_empty() {
        return None;
    }
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let inos: Vec<String> = inos.iter().map(u64::to_string).collect();
    let text = format!(
        "WEFT_LOCKS={}:{id}:{process_socket}:{}:{}",
        std::process::id(),
        inos.join(","),
        pairs.join(",")
    );
    sockets.iter().for_each(|socket| set_close_on_exec(*socket, 0));
    Some(Passed { text: CString::new(text).ok()?, sockets })
}

impl Drop for Passed {
    /// The exec failed, or a child did it.
    fn drop(&mut self) {
        self.sockets.iter().for_each(|socket| set_close_on_exec(*socket, libc::FD_CLOEXEC));
    }
}

fn closes_on_exec(fd: c_int) -> bool {
    let flags = system(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]);
    flags.is_ok_and(|flags| flags as c_int & libc::FD_CLOEXEC != 0)
}

fn set_close_on_exec(fd: c_int, flag: c_int) {
    let _ = system(libc::SYS_fcntl, [fd as usize, libc::F_SETFD as usize, flag as usize, 0, 0, 0]);
}

/// After exec: reads what the previous program had locked. Connects to nothing.
pub(crate) fn inherit() {
    let Some(text) = mounts::variable(VARIABLE) else { return };
    let inherited = text.to_str().ok().and_then(Inherited::parse);
    // SAFETY: the name ends with a zero. Programs that this one starts get a value of their own.
    unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
    let Some(inherited) = inherited else { return };
    // SAFETY: no preconditions.
    let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
    if inherited.pid == own && !inherited.inos.is_empty() {
        set_close_on_exec(inherited.socket, libc::FD_CLOEXEC);
        table::set_internal(inherited.socket);
        PROCESS_SOCKET.store(inherited.socket, Ordering::Release);
        let process = Process { id: inherited.id, inherited: inherited.inos, ..fresh() };
        PROCESS.with(|own| *own = Some(process));
    }
    if inherited.pid != own && inherited.pid != parent {
        // From a program in between that did not use this library.
        return;
    }
    INHERITING.store(true, Ordering::Release);
    for (fd, socket) in inherited.sockets {
        if let Some(open) = table::find_named(fd) {
            set_close_on_exec(socket, libc::FD_CLOEXEC);
            table::set_kept(socket);
            open.whole().lock_socket.store(socket, Ordering::Release);
        }
    }
    INHERITING.store(false, Ordering::Release);
}

/// The contents of the variable.
#[derive(Debug, PartialEq, Eq)]
struct Inherited {
    pid: c_int,
    id: [u8; 16],
    socket: c_int,
    inos: Vec<u64>,
    sockets: Vec<(c_int, c_int)>,
}

impl Inherited {
    // Not fuzzed: the text is that of the process before exec, of the same user.
    fn parse(text: &str) -> Option<Inherited> {
        let fields: Vec<&str> = text.split(':').collect();
        let [pid, id, socket, inos, sockets] = fields[..] else { return None };
        let mut whole = [0; 16];
        for (at, byte) in whole.iter_mut().enumerate() {
            *byte = u8::from_str_radix(id.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        let pair = |word: &str| {
            let (fd, socket) = word.split_once('=')?;
            Some((fd.parse().ok()?, socket.parse().ok()?))
        };
        let listed = |list: &str| list.split(',').filter(|word| !word.is_empty()).count();
        let inos_read: Vec<u64> = inos.split(',').filter_map(|word| word.parse().ok()).collect();
        let sockets_read: Vec<_> = sockets.split(',').filter_map(pair).collect();
        let whole_lists = inos_read.len() == listed(inos) && sockets_read.len() == listed(sockets);
        whole_lists.then_some(Inherited {
            pid: pid.parse().ok()?,
            id: whole,
            socket: socket.parse().ok()?,
            inos: inos_read,
            sockets: sockets_read,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_read_whole_or_not_at_all() {
        let id = "000102030405060708090a0b0c0d0e0f";
        let read = Inherited::parse(&format!("12:{id}:900:5,6:3=901,4=902")).unwrap();
        assert_eq!((read.pid, read.socket, read.id[15]), (12, 900, 15));
        assert_eq!((read.inos, read.sockets), (vec![5, 6], vec![(3, 901), (4, 902)]));
        let none = Inherited::parse(&format!("12:{id}:-1::")).unwrap();
        assert!(none.inos.is_empty() && none.sockets.is_empty() && none.socket == -1);
        for bad in ["", "12", "12:00:1::", "x:y:z:1:2"] {
            assert_eq!(Inherited::parse(bad), None, "{bad}");
        }
        assert_eq!(Inherited::parse(&format!("12:{id}:900:5,x:")), None);
    }
}
