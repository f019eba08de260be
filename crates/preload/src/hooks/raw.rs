//! `syscall`: programs use it for system calls that libc lacks, or lacked when they were written, and to try the kernel. A call goes to
//! the hook of libc's function for it, where that has the same arguments and result. The others stay the kernel's.

use std::ffi::{c_char, c_int, c_long, c_uint};

use crate::dispatch::on_path;
use crate::guard::{Errno, is_inside};
use crate::real::hooks;

use super::{
    attributes, copying, descriptors, directories, extended_attributes, files, names, opening, process,
    space, whereabouts,
};

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
            libc::SYS_readv => files::readv(a as c_int, b as _, c as c_int) as c_long,
            libc::SYS_writev => files::writev(a as c_int, b as _, c as c_int) as c_long,
            // The kernel takes positions in two halves, of which the second is nothing on machines of 64 bits.
            libc::SYS_preadv => files::preadv(a as c_int, b as _, c as c_int, d as i64) as c_long,
            libc::SYS_pwritev => files::pwritev(a as c_int, b as _, c as c_int, d as i64) as c_long,
            libc::SYS_preadv2 => files::preadv2(a as c_int, b as _, c as c_int, d as i64, f as c_int) as c_long,
            libc::SYS_pwritev2 => files::pwritev2(a as c_int, b as _, c as c_int, d as i64, f as c_int) as c_long,
            libc::SYS_lseek => files::lseek(a as c_int, b as i64, c as c_int),
            libc::SYS_ftruncate => files::ftruncate(a as c_int, b as i64).into(),
            libc::SYS_fallocate => files::fallocate(a as c_int, b as c_int, c as i64, d as i64).into(),
            libc::SYS_fsync => files::fsync(a as c_int).into(),
            libc::SYS_fdatasync => files::fdatasync(a as c_int).into(),
            libc::SYS_syncfs => files::syncfs(a as c_int).into(),
            libc::SYS_sync_file_range => {
                files::sync_file_range(a as c_int, b as i64, c as i64, d as c_uint).into()
            }
            libc::SYS_readahead => files::readahead(a as c_int, b as i64, c) as c_long,
            libc::SYS_sendfile => copying::sendfile(a as c_int, b as c_int, c as _, d) as c_long,
            libc::SYS_copy_file_range => {
                copying::copy_file_range(a as c_int, b as _, c as c_int, d as _, e, f as c_uint) as c_long
            }
            libc::SYS_close => descriptors::close(a as c_int).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup => descriptors::dup(a as c_int).into(),
            libc::SYS_dup3 => descriptors::dup3(a as c_int, b as c_int, c as c_int).into(),
            libc::SYS_fcntl => descriptors::fcntl(a as c_int, b as c_int, c).into(),
            libc::SYS_flock => descriptors::flock(a as c_int, b as c_int).into(),
            libc::SYS_umask => descriptors::umask(a as libc::mode_t).into(),
            libc::SYS_openat => opening::openat(a as c_int, path(b), c as c_int, d as c_uint).into(),
            libc::SYS_openat2 => openat2(a as c_int, path(b), c as *const libc::open_how, d),
            libc::SYS_getdents64 => directories::getdents64(a as c_int, b as _, c) as c_long,
            libc::SYS_chdir => whereabouts::chdir(path(a)).into(),
            libc::SYS_fchdir => whereabouts::fchdir(a as c_int).into(),
            libc::SYS_statx => attributes::statx(a as c_int, path(b), c as c_int, d as c_uint, e as _).into(),
            libc::SYS_newfstatat => attributes::fstatat(a as c_int, path(b), c as _, d as c_int).into(),
            libc::SYS_fstat => attributes::fstat(a as c_int, b as _).into(),
            libc::SYS_statfs => space::statfs(path(a), b as _).into(),
            libc::SYS_fstatfs => space::fstatfs(a as c_int, b as _).into(),
            libc::SYS_faccessat => attributes::faccessat(a as c_int, path(b), c as c_int, 0).into(),
            libc::SYS_faccessat2 => attributes::faccessat(a as c_int, path(b), c as c_int, d as c_int).into(),
            libc::SYS_fchmod => attributes::fchmod(a as c_int, b as libc::mode_t).into(),
            libc::SYS_fchmodat => attributes::fchmodat(a as c_int, path(b), c as libc::mode_t, 0).into(),
            libc::SYS_fchown => attributes::fchown(a as c_int, b as libc::uid_t, c as libc::gid_t).into(),
            libc::SYS_fchownat => {
                attributes::fchownat(a as c_int, path(b), c as libc::uid_t, d as libc::gid_t, e as c_int).into()
            }
            libc::SYS_utimensat => attributes::utimensat(a as c_int, path(b), c as _, d as c_int).into(),
            libc::SYS_truncate => names::truncate(path(a), b as i64).into(),
            libc::SYS_mkdirat => names::mkdirat(a as c_int, path(b), c as libc::mode_t).into(),
            libc::SYS_mknodat => names::mknodat(a as c_int, path(b), c as libc::mode_t, d as libc::dev_t).into(),
            libc::SYS_symlinkat => names::symlinkat(path(a), b as c_int, path(c)).into(),
            libc::SYS_readlinkat => names::readlinkat(a as c_int, path(b), c as _, d) as c_long,
            libc::SYS_linkat => names::linkat(a as c_int, path(b), c as c_int, path(d), e as c_int).into(),
            libc::SYS_renameat2 => names::renameat2(a as c_int, path(b), c as c_int, path(d), e as c_uint).into(),
            libc::SYS_unlinkat => names::unlinkat(a as c_int, path(b), c as c_int).into(),
            libc::SYS_getxattr => extended_attributes::getxattr(path(a), path(b), c as _, d) as c_long,
            libc::SYS_lgetxattr => extended_attributes::lgetxattr(path(a), path(b), c as _, d) as c_long,
            libc::SYS_fgetxattr => extended_attributes::fgetxattr(a as c_int, path(b), c as _, d) as c_long,
            libc::SYS_setxattr => extended_attributes::setxattr(path(a), path(b), c as _, d, e as c_int).into(),
            libc::SYS_lsetxattr => extended_attributes::lsetxattr(path(a), path(b), c as _, d, e as c_int).into(),
            libc::SYS_fsetxattr => {
                extended_attributes::fsetxattr(a as c_int, path(b), c as _, d, e as c_int).into()
            }
            libc::SYS_listxattr => extended_attributes::listxattr(path(a), b as _, c) as c_long,
            libc::SYS_llistxattr => extended_attributes::llistxattr(path(a), b as _, c) as c_long,
            libc::SYS_flistxattr => extended_attributes::flistxattr(a as c_int, b as _, c) as c_long,
            libc::SYS_removexattr => extended_attributes::removexattr(path(a), path(b)).into(),
            libc::SYS_lremovexattr => extended_attributes::lremovexattr(path(a), path(b)).into(),
            libc::SYS_fremovexattr => extended_attributes::fremovexattr(a as c_int, path(b)).into(),
            libc::SYS_execve => process::execve(path(a), b as _, c as _).into(),
            libc::SYS_execveat => process::execveat(a as c_int, path(b), c as _, d as _, e as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            number => old(number, a, b, c, d).unwrap_or_else(|| syscall::real(number, a, b, c, d, e, f)),
            #[cfg(not(target_arch = "x86_64"))]
            _ => syscall::real(number, a, b, c, d, e, f),
        }
    }
}

/// Calls that newer machines do not have any more, for there are more general ones.
///
/// # Safety
/// The arguments are valid as in C.
#[cfg(target_arch = "x86_64")]
unsafe fn old(number: c_long, a: usize, b: usize, c: usize, d: usize) -> Option<c_long> {
    let path = |argument: usize| argument as *const c_char;
    // SAFETY: as the caller promises.
    Some(unsafe {
        match number {
            libc::SYS_open => opening::open(path(a), b as c_int, c as c_uint).into(),
            libc::SYS_creat => opening::creat(path(a), b as c_uint).into(),
            libc::SYS_stat => attributes::stat(path(a), b as _).into(),
            libc::SYS_lstat => attributes::lstat(path(a), b as _).into(),
            libc::SYS_access => attributes::access(path(a), b as c_int).into(),
            libc::SYS_chmod => attributes::chmod(path(a), b as libc::mode_t).into(),
            libc::SYS_chown => attributes::chown(path(a), b as libc::uid_t, c as libc::gid_t).into(),
            libc::SYS_lchown => attributes::lchown(path(a), b as libc::uid_t, c as libc::gid_t).into(),
            libc::SYS_utime => attributes::utime(path(a), b as _).into(),
            libc::SYS_utimes => attributes::utimes(path(a), b as _).into(),
            libc::SYS_futimesat => attributes::futimesat(a as c_int, path(b), c as _).into(),
            libc::SYS_mkdir => names::mkdir(path(a), b as libc::mode_t).into(),
            libc::SYS_mknod => names::mknod(path(a), b as libc::mode_t, c as libc::dev_t).into(),
            libc::SYS_symlink => names::symlink(path(a), path(b)).into(),
            libc::SYS_readlink => names::readlink(path(a), b as _, c) as c_long,
            libc::SYS_link => names::link(path(a), path(b)).into(),
            libc::SYS_rename => names::rename(path(a), path(b)).into(),
            libc::SYS_renameat => names::renameat(a as c_int, path(b), c as c_int, path(d)).into(),
            libc::SYS_unlink => names::unlink(path(a)).into(),
            libc::SYS_rmdir => names::rmdir(path(a)).into(),
            libc::SYS_dup2 => descriptors::dup2(a as c_int, b as c_int).into(),
            _ => return None,
        }
    })
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
