//! The kernel's part: `linux/userfaultfd.h`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::socket::{checked, owned};

const USER_MODE_ONLY: libc::c_int = 1;
pub const IOC_NEW: libc::c_ulong = 0xaa00;
pub const API: u64 = 0xaa;
pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
pub const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
pub const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
pub const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
pub const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
pub const UFFDIO_CONTINUE: libc::c_ulong = 0xc020_aa07;
pub const REGISTER_MODE_WP: u64 = 2;
/// A bit of the operations that a range allows: not with huge pages of `hugetlbfs` in it.
pub const ALLOWS_ZEROPAGE: u64 = 1 << 4;
pub const EVENT_REMAP: u8 = 0x14;
pub const EVENT_REMOVE: u8 = 0x15;
pub const EVENT_UNMAP: u8 = 0x16;

/// `struct uffd_msg`; the arguments by position.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    pub arguments: [u64; 3],
}

/// A descriptor with the events that are needed.
pub fn open() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: no memory is passed; the result is new.
    let called = unsafe { owned(libc::syscall(libc::SYS_userfaultfd, flags) as RawFd) };
    let descriptor = match called {
        Ok(descriptor) => descriptor,
        Err(error) => {
            let device =
                File::options().read(true).write(true).open("/dev/userfaultfd").map_err(|_| error)?;
            // SAFETY: as above.
            unsafe { owned(libc::ioctl(device.as_raw_fd(), IOC_NEW, flags)) }?
        }
    };
    let features =
        FEATURE_PAGEFAULT_FLAG_WP | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
    let mut arguments = [API, features, 0];
    // SAFETY: `struct uffdio_api` has three words.
    checked(unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, arguments.as_mut_ptr()) as isize })?;
    Ok(descriptor)
}
