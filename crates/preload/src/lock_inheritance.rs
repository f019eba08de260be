//! Locks over exec: a program keeps the sockets of the sessions ([`crate::lock_sessions`]) that the program
//! before it had.
//!
//! It reads their purpose from `WEFT_LOCKS`: `PID:SESSION:SOCKET:INODES:FD=SOCKET,…`, for the process's own
//! locks and those of open files.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::Ordering;

use crate::guard::system;
use crate::lock_sessions::{INHERITING, PROCESS, PROCESS_SOCKET, fresh};
use crate::{mounts, table};

/// The environment variable that a program reads after exec.
pub(crate) const VARIABLE: &CStr = c"WEFT_LOCKS";

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
        let mut process = fresh();
        (process.id, process.inherited) = (inherited.id, inherited.inos);
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
