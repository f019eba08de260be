//! Waiting for descriptors. Files in Weft are always ready to read and write, like local files.

use std::ffi::{c_int, c_void};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::guard::{Errno, enter};
use crate::real::hooks;
use crate::table::find;

const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

hooks! {
    fn poll = __poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let ready = set_aside(list, count);
        let found = poll::real(list, count, if ready > 0 { 0 } else { timeout });
        put_back(list, count, ready, found)
    }

    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int {
        if count as usize * size_of::<pollfd>() > size {
            __poll_chk::real(list, count, timeout, size)
        } else {
            poll(list, count, timeout)
        }
    }

    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let ready = set_aside(list, count);
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        let found = ppoll::real(list, count, if ready > 0 { &at_once } else { timeout }, mask);
        put_back(list, count, ready, found)
    }

    fn __ppoll_chk(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t) -> c_int {
        if count as usize * size_of::<pollfd>() > size {
            __ppoll_chk::real(list, count, timeout, mask, size)
        } else {
            ppoll(list, count, timeout, mask)
        }
    }

    fn select = __select(end: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let ours = Ours::take(end, [read, write, except]);
        let mut at_once = timeval { tv_sec: 0, tv_usec: 0 };
        let found = select::real(end, read, write, except, if ours.ready > 0 { &mut at_once } else { timeout });
        ours.add(found, [read, write])
    }

    fn pselect(
        end: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let ours = Ours::take(end, [read, write, except]);
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        let found = pselect::real(end, read, write, except, if ours.ready > 0 { &at_once } else { timeout }, mask);
        ours.add(found, [read, write])
    }

    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // As the kernel reports for regular files and directories.
        if find(fd).is_some() { enter(|| Err(Errno(libc::EPERM))) } else { epoll_ctl::real(epoll, operation, fd, event) }
    }
}

/// Hides files of Weft from the kernel: it skips negative descriptors such as `!fd`. Returns how many are
/// ready.
unsafe fn set_aside(list: *mut pollfd, count: nfds_t) -> c_int {
    if list.cast::<c_void>().is_null() {
        return 0;
    }
    let mut ready = 0;
    for at in 0..count as usize {
        // SAFETY: the program passes this many.
        let entry = unsafe { &mut *list.add(at) };
        if entry.fd >= 0 && find(entry.fd).is_some() {
            entry.fd = !entry.fd;
            ready += c_int::from(entry.events & READY != 0);
        }
    }
    ready
}

unsafe fn put_back(list: *mut pollfd, count: nfds_t, ready: c_int, found: c_int) -> c_int {
    if list.cast::<c_void>().is_null() {
        return found;
    }
    for at in 0..count as usize {
        // SAFETY: the program passes this many.
        let entry = unsafe { &mut *list.add(at) };
        if entry.fd < 0 && find(!entry.fd).is_some() {
            entry.fd = !entry.fd;
            entry.revents = entry.events & READY;
        }
    }
    if found < 0 { found } else { found + ready }
}

/// Files of Weft in the sets of `select`.
struct Ours {
    sets: [fd_set; 2],
    end: c_int,
    ready: c_int,
}

impl Ours {
    /// Removes them from the sets.
    unsafe fn take(end: c_int, [read, write, except]: [*mut fd_set; 3]) -> Ours {
        // SAFETY: zeroed bytes are empty sets.
        let sets = unsafe { std::mem::zeroed() };
        let mut ours = Ours { sets, end: end.min(libc::FD_SETSIZE as c_int), ready: 0 };
        for fd in 0..ours.end {
            // SAFETY: the program passes sets; fd is within them.
            unsafe {
                let is_in = |set: *mut fd_set| !set.is_null() && libc::FD_ISSET(fd, set);
                if ![read, write, except].into_iter().any(is_in) || find(fd).is_none() {
                    continue;
                }
                for (at, set) in [read, write].into_iter().enumerate() {
                    if is_in(set) {
                        libc::FD_SET(fd, &mut ours.sets[at]);
                        libc::FD_CLR(fd, set);
                        ours.ready += 1;
                    }
                }
                if is_in(except) {
                    libc::FD_CLR(fd, except);
                }
            }
        }
        ours
    }

    /// Adds them again, as ready.
    unsafe fn add(&self, found: c_int, sets: [*mut fd_set; 2]) -> c_int {
        if found < 0 || self.ready == 0 {
            return found;
        }
        for fd in 0..self.end {
            for (ours, set) in self.sets.iter().zip(sets) {
                // SAFETY: as in `take`.
                unsafe {
                    if libc::FD_ISSET(fd, ours) {
                        libc::FD_SET(fd, set);
                    }
                }
            }
        }
        found + self.ready
    }
}
