//! Operations on descriptors of any kind.

use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::Ordering;

use libc::{mode_t, ssize_t};

use super::{locks, standard_streams};
use crate::guard::{Errno, Outcome, enter, enter_wait, is_inside, within};
use crate::lock_sessions;
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{self, Use, find};
use crate::umask::note_umask;

/// Flags that `F_SETFL` changes.
const FLAGS_SETTABLE: c_int = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;

/// The flag of a file that may only be appended to, as linux/fs.h has it.
const APPEND_ONLY: u32 = 0x20;

hooks! {
    fn close = __close(fd: c_int) -> c_int {
        if is_inside() {
            table::forget(fd);
            return close::real(fd);
        }
        if table::is_internal(fd) {
            return enter(|| Err(Errno(libc::EBADF)));
        }
        let Some(open) = find(fd) else {
            let result = close::real(fd);
            standard_streams::after_change(fd);
            return result;
        };
        // Other processes see all writes when close returns.
        let reported = within(|| {
            lock_sessions::end_of_process(&open);
            open.report()
        });
        drop(open);
        table::forget(fd);
        let result = close::real(fd);
        match reported {
            Err(Errno(errno)) => enter(|| Err(Errno(errno))),
            Ok(()) => result,
        }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // All descriptors that close on exec do so, including this library's own.
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
            return close_range::real(first, last, flags);
        }
        for fd in first..=last.min(table::end().max(1) as c_uint - 1) {
            report_before_it_goes(fd as c_int);
        }
        let mut from = first;
        for fd in table::internal().map(|fd| fd as c_uint).filter(|fd| (first..=last).contains(fd)) {
            if from < fd && close_range::real(from, fd - 1, flags) < 0 {
                return -1;
            }
            from = fd + 1;
        }
        let result = if from <= last { close_range::real(from, last, flags) } else { 0 };
        let end = table::end();
        for fd in (first.min(end as c_uint) as c_int)..end {
            if fd as c_uint <= last && !table::is_internal(fd) {
                table::forget(fd);
            }
        }
        result
    }

    fn closefrom(first: c_int) -> () {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    fn dup(fd: c_int) -> c_int {
        copied(fd, dup::real(fd))
    }

    fn dup2 = __dup2(fd: c_int, to: c_int) -> c_int {
        if table::is_internal(to) && !is_inside() {
            return enter(|| Err(Errno(libc::EBUSY)));
        }
        report_before_it_goes(to);
        let result = dup2::real(fd, to);
        if fd == to { result } else { copied(fd, result) }
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if table::is_internal(to) && !is_inside() {
            return enter(|| Err(Errno(libc::EBUSY)));
        }
        report_before_it_goes(to);
        copied(fd, dup3::real(fd, to, flags))
    }

    fn fcntl = fcntl64 = __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        match find(fd) {
            Some(open) if matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) => {
                enter_wait(|| control(&open, command, argument))
            }
            None => fcntl::real(fd, command, argument),
            Some(open) => match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, fcntl::real(fd, command, argument)),
                libc::F_GETFD | libc::F_SETFD => fcntl::real(fd, command, argument),
                _ => enter(|| control(&open, command, argument)),
            },
        }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int where fd is open {
        match request {
            libc::FIOCLEX => Ok(fcntl::real(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize)),
            libc::FIONCLEX => Ok(fcntl::real(fd, libc::F_SETFD, 0)),
            libc::FIONBIO => {
                let on = *(argument as *const c_int) != 0;
                let flag = if on { libc::O_NONBLOCK } else { 0 };
                change_flags(&open, libc::O_NONBLOCK, flag);
                Ok(0)
            }
            libc::FS_IOC_GETFLAGS => {
                let flags = open.mount.made()?.client.flags(open.shared().ino)?;
                *(argument as *mut c_int) = flags as c_int;
                Ok(0)
            }
            libc::FS_IOC_SETFLAGS => {
                let flags = *(argument as *const c_int) as u32;
                open.mount.made()?.client.set_flags(open.shared().ino, flags)?;
                Ok(0)
            }
            libc::FIONREAD if open.kind() == Kind::File => {
                let size = open.file()?.stat()?.size;
                let left = size.saturating_sub(open.shared().position.load(Ordering::Acquire));
                *(argument as *mut c_int) = left.min(c_int::MAX as u64) as c_int;
                Ok(0)
            }
            _ => Err(Errno(libc::ENOTTY)),
        }
    }

    fn isatty(fd: c_int) -> c_int {
        match find(fd) {
            None => isatty::real(fd),
            Some(_) => {
                weft_client::c::set_errno(libc::ENOTTY);
                0
            }
        }
    }

    fn tcgetattr(fd: c_int, place: *mut libc::termios) -> c_int where fd is _open { Err(Errno(libc::ENOTTY)) }

    fn flock(fd: c_int, operation: c_int) -> c_int {
        match find(fd) {
            None => flock::real(fd, operation),
            Some(open) => enter_wait(|| locks::flock(&open, operation)),
        }
    }

    fn lockf = lockf64(fd: c_int, command: c_int, bytes: libc::off_t) -> c_int {
        match find(fd) {
            None => lockf::real(fd, command, bytes),
            Some(open) => enter_wait(|| locks::lockf(&open, command, bytes)),
        }
    }

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = made_inside(socket::real(domain, kind, protocol));
        if fd >= 0 && is_inside() {
            lock_sessions::note_socket(fd);
        }
        fd
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        let fd = made_inside(eventfd::real(count, flags));
        if fd >= 0 && is_inside() {
            table::set_waker(fd);
        }
        fd
    }

    fn memfd_create(name: *const std::ffi::c_char, flags: c_uint) -> c_int {
        made_inside(memfd_create::real(name, flags))
    }

    fn umask(mask: mode_t) -> mode_t {
        let before = umask::real(mask);
        note_umask(mask);
        before
    }

    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t {
        let result = recvmsg::real(fd, message, flags);
        if result >= 0 && !is_inside() {
            // Descriptors of Weft may have arrived. They are examined when they are used.
            received(message);
        }
        result
    }
}

/// Moves a descriptor that the client creates to a high number, and marks it.
fn made_inside(fd: c_int) -> c_int {
    if is_inside() { table::move_away(fd) } else { fd }
}

/// Records a copy of a descriptor.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 {
        table::copied(from, to);
        standard_streams::after_change(to);
    }
    to
}

/// Reports writes before a descriptor is replaced, as at its closing.
fn report_before_it_goes(fd: c_int) {
    if let Some(open) = find(fd) {
        // The call cannot report the error.
        let _ = within(|| {
            lock_sessions::end_of_process(&open);
            open.report()
        });
    }
}

/// # Safety
/// The kernel has filled the message.
unsafe fn received(message: *mut libc::msghdr) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = (*header).cmsg_len as usize - (data as usize - header as usize);
                for at in 0..bytes / size_of::<c_int>() {
                    table::look_again(data.add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Sets those flags of an open file that `mask` selects. All its descriptors share them, in other processes too.
fn change_flags(open: &Use, mask: c_int, flags: c_int) {
    let change = |before: u32| Some(before & !(mask as u32) | (flags & mask) as u32);
    let _ = open.shared().flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
}

/// Whether `F_SETFL` may set these flags: `O_APPEND` stays with a file that may only be appended to, and
/// `O_NOATIME` is for the owner.
fn check_flags(open: &Use, flags: c_int) -> Outcome<()> {
    let before = open.flags();
    let client = || Ok::<_, Errno>(&open.mount.made()?.client);
    let is_writable = before & libc::O_ACCMODE != libc::O_RDONLY;
    let stops_appending = before & !flags & libc::O_APPEND != 0 && is_writable;
    if stops_appending && client()?.flags(open.shared().ino)? & APPEND_ONLY != 0 {
        return Err(Errno(libc::EPERM));
    }
    if flags & !before & libc::O_NOATIME != 0 {
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        if user != 0 && client()?.getattr(open.shared().ino)?.uid != user {
            return Err(Errno(libc::EPERM));
        }
    }
    Ok(())
}

/// `fcntl` on an open file of ours.
unsafe fn control(open: &Use, command: c_int, argument: usize) -> Outcome<c_int> {
    match command {
        libc::F_GETFL => Ok(open.flags()),
        libc::F_SETFL => {
            let flags = argument as c_int & FLAGS_SETTABLE;
            check_flags(open, flags)?;
            change_flags(open, FLAGS_SETTABLE, flags);
            Ok(0)
        }
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => {
            // SAFETY: C passes a `struct flock` with these commands.
            let lock = unsafe { (argument as *mut libc::flock).as_mut() }.ok_or(Errno(libc::EFAULT))?;
            locks::record(open, command, lock)
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}
