//! `syscall`: programs use it for system calls that libc lacks, or lacked when they were written.

use std::ffi::{c_char, c_int, c_long, c_uint};

use crate::dispatch::on_path;
use crate::guard::{Errno, is_inside};
use crate::real::hooks;

use super::{attributes, copying, descriptors, directories, files, names, opening, process};

hooks! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        if is_inside() {
            return syscall::real(number, a, b, c, d, e, f);
        }
        let path = |argument: usize| argument as *const c_char;
        match number {
            libc::SYS_read => files::read(a as c_int, b as _, c) as c_long,
            libc::SYS_write => files::write(a as c_int, b as _, c) as c_long,
            libc::SYS_pread64 => files::pread(a as c_int, b as _, c, d as i64) as c_long,
            libc::SYS_pwrite64 => files::pwrite(a as c_int, b as _, c, d as i64) as c_long,
            libc::SYS_lseek => files::lseek(a as c_int, b as i64, c as c_int),
            libc::SYS_close => descriptors::close(a as c_int).into(),
            libc::SYS_openat => opening::openat(a as c_int, path(b), c as c_int, d as c_uint).into(),
            libc::SYS_openat2 => openat2(a as c_int, path(b), c as *const libc::open_how, d),
            libc::SYS_statx => attributes::statx(a as c_int, path(b), c as c_int, d as c_uint, e as _).into(),
            libc::SYS_newfstatat => attributes::fstatat(a as c_int, path(b), c as _, d as c_int).into(),
            libc::SYS_faccessat2 => attributes::faccessat(a as c_int, path(b), c as c_int, d as c_int).into(),
            libc::SYS_renameat2 => names::renameat2(a as c_int, path(b), c as c_int, path(d), e as c_uint).into(),
            libc::SYS_unlinkat => names::unlinkat(a as c_int, path(b), c as c_int).into(),
            libc::SYS_readlinkat => names::readlinkat(a as c_int, path(b), c as _, d) as c_long,
            libc::SYS_utimensat => attributes::utimensat(a as c_int, path(b), c as _, d as c_int).into(),
            libc::SYS_mkdirat => names::mkdirat(a as c_int, path(b), c as libc::mode_t).into(),
            libc::SYS_getdents64 => directories::getdents64(a as c_int, b as _, c) as c_long,
            libc::SYS_copy_file_range => {
                copying::copy_file_range(a as c_int, b as _, c as c_int, d as _, e, f as c_uint) as c_long
            }
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup3 => descriptors::dup3(a as c_int, b as c_int, c as c_int).into(),
            libc::SYS_execve => process::execve(path(a), b as _, c as _).into(),
            libc::SYS_execveat => process::execveat(a as c_int, path(b), c as _, d as _, e as c_int).into(),
            libc::SYS_fcntl => descriptors::fcntl(a as c_int, b as c_int, c).into(),
            _ => syscall::real(number, a, b, c, d, e, f),
        }
    }
}

/// `openat2`. Only the kernel can enforce its restrictions on paths. Programs fall back to other calls if the
/// kernel does not have it.
///
/// # Safety
/// The arguments are valid as in C.
unsafe fn openat2(dirfd: c_int, path: *const c_char, how: *const libc::open_how, bytes: usize) -> c_long {
    // SAFETY: as the caller promises.
    unsafe {
        let local = |dirfd: c_int, path: *const c_char| {
            syscall::real(libc::SYS_openat2, dirfd as usize, path as usize, how as usize, bytes, 0, 0)
        };
        if how.is_null() || bytes < size_of::<libc::open_how>() {
            return local(dirfd, path);
        }
        let (flags, mode) = ((*how).flags as c_int, (*how).mode as c_uint);
        on_path(dirfd, path, opening::follows(flags), local, |target| match (*how).resolve {
            0 => Ok(opening::open_target(target, flags, mode)?.into()),
            _ => Err(Errno(libc::ENOSYS)),
        })
    }
}
