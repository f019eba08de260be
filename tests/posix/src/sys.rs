//! System calls as they are, with paths as bytes and errno as the error.

use crate::names::errno_name;
use libc::{c_int, c_void};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An error of a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&errno_name(self.0))
    }
}

/// What a system call returned.
pub type Outcome<T = ()> = Result<T, Errno>;

/// A time: seconds and nanoseconds.
pub type Time = (i64, i64);

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn done(result: impl Into<i64>) -> Outcome<i64> {
    match result.into() {
        -1 => Err(last_error()),
        value => Ok(value),
    }
}

fn none(result: c_int) -> Outcome {
    done(result).map(|_| ())
}

fn c(path: impl AsRef<[u8]>) -> CString {
    CString::new(path.as_ref()).expect("no zero in a path")
}

fn descriptor(result: c_int) -> Outcome<OwnedFd> {
    // SAFETY: the descriptor is new, and nobody else's.
    done(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A system call whose pointers lead to values that live through it.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: paths end with a zero, all pointers are to values of the right type that live through the call, and
        // lengths are theirs.
        unsafe { $call }
    };
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

impl Kind {
    fn of(mode: u32) -> Kind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Symlink,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::Char,
            _ => Kind::Block,
        }
    }
}

/// Attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as in struct stat")]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub kind: Kind,
    /// Permission bits, set-id bits and the sticky one.
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: i64,
    pub blocks: i64,
    pub blksize: i64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

fn stat_with(fill: impl FnOnce(*mut libc::stat) -> c_int) -> Outcome<Stat> {
    let mut raw = std::mem::MaybeUninit::<libc::stat>::zeroed();
    none(fill(raw.as_mut_ptr()))?;
    // SAFETY: it was zeroed, which is a value, and then filled by the kernel.
    let raw = unsafe { raw.assume_init() };
    Ok(Stat {
        dev: raw.st_dev,
        ino: raw.st_ino,
        kind: Kind::of(raw.st_mode),
        mode: raw.st_mode & 0o7777,
        nlink: raw.st_nlink,
        uid: raw.st_uid,
        gid: raw.st_gid,
        rdev: raw.st_rdev,
        size: raw.st_size,
        blocks: raw.st_blocks,
        blksize: raw.st_blksize,
        atime: (raw.st_atime, raw.st_atime_nsec),
        mtime: (raw.st_mtime, raw.st_mtime_nsec),
        ctime: (raw.st_ctime, raw.st_ctime_nsec),
    })
}

pub fn stat(path: impl AsRef<[u8]>) -> Outcome<Stat> {
    let path = c(path);
    stat_with(|raw| call!(libc::stat(path.as_ptr(), raw)))
}

pub fn lstat(path: impl AsRef<[u8]>) -> Outcome<Stat> {
    let path = c(path);
    stat_with(|raw| call!(libc::lstat(path.as_ptr(), raw)))
}

pub fn fstat(fd: &OwnedFd) -> Outcome<Stat> {
    stat_with(|raw| call!(libc::fstat(fd.as_raw_fd(), raw)))
}

pub fn fstatat(fd: RawFd, path: impl AsRef<[u8]>, flags: c_int) -> Outcome<Stat> {
    let path = c(path);
    stat_with(|raw| call!(libc::fstatat(fd, path.as_ptr(), raw, flags)))
}

pub fn statx(path: impl AsRef<[u8]>, flags: c_int, mask: u32) -> Outcome<libc::statx> {
    let path = c(path);
    let mut raw = std::mem::MaybeUninit::<libc::statx>::zeroed();
    none(call!(libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, raw.as_mut_ptr())))?;
    // SAFETY: it was zeroed, which is a value, and then filled by the kernel.
    Ok(unsafe { raw.assume_init() })
}

pub fn open(path: impl AsRef<[u8]>, flags: c_int) -> Outcome<OwnedFd> {
    open_mode(path, flags, 0)
}

pub fn open_mode(path: impl AsRef<[u8]>, flags: c_int, mode: u32) -> Outcome<OwnedFd> {
    let path = c(path);
    descriptor(call!(libc::open(path.as_ptr(), flags, mode)))
}

pub fn openat(fd: RawFd, path: impl AsRef<[u8]>, flags: c_int, mode: u32) -> Outcome<OwnedFd> {
    let path = c(path);
    descriptor(call!(libc::openat(fd, path.as_ptr(), flags, mode)))
}

pub fn creat(path: impl AsRef<[u8]>, mode: u32) -> Outcome<OwnedFd> {
    let path = c(path);
    descriptor(call!(libc::creat(path.as_ptr(), mode)))
}

pub fn read(fd: &OwnedFd, bytes: usize) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let got = done(call!(libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), bytes)) as i64)?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

pub fn pread(fd: &OwnedFd, bytes: usize, offset: i64) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let got = done(call!(libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), bytes, offset)) as i64)?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

pub fn write(fd: &OwnedFd, data: &[u8]) -> Outcome<usize> {
    Ok(done(call!(libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len())) as i64)? as usize)
}

pub fn pwrite(fd: &OwnedFd, data: &[u8], offset: i64) -> Outcome<usize> {
    Ok(done(call!(libc::pwrite(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), offset)) as i64)? as usize)
}

pub fn readv(fd: &OwnedFd, parts: &mut [&mut [u8]]) -> Outcome<usize> {
    let mut vector: Vec<_> = parts
        .iter_mut()
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        .collect();
    Ok(done(call!(libc::readv(fd.as_raw_fd(), vector.as_mut_ptr(), vector.len() as c_int)) as i64)? as usize)
}

pub fn writev(fd: &OwnedFd, parts: &[&[u8]]) -> Outcome<usize> {
    let vector: Vec<_> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    Ok(done(call!(libc::writev(fd.as_raw_fd(), vector.as_ptr(), vector.len() as c_int)) as i64)? as usize)
}

pub fn lseek(fd: &OwnedFd, offset: i64, whence: c_int) -> Outcome<i64> {
    done(call!(libc::lseek(fd.as_raw_fd(), offset, whence)))
}

pub fn fcntl(fd: &OwnedFd, command: c_int, argument: c_int) -> Outcome<i64> {
    done(call!(libc::fcntl(fd.as_raw_fd(), command, argument)))
}

/// Sets or clears `O_NONBLOCK` by `FIONBIO`.
pub fn set_nonblocking(fd: &OwnedFd, on: c_int) -> Outcome {
    none(call!(libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw const on)))
}

pub fn dup(fd: &OwnedFd) -> Outcome<OwnedFd> {
    descriptor(call!(libc::dup(fd.as_raw_fd())))
}

pub fn fsync(fd: &OwnedFd) -> Outcome {
    none(call!(libc::fsync(fd.as_raw_fd())))
}

pub fn fdatasync(fd: &OwnedFd) -> Outcome {
    none(call!(libc::fdatasync(fd.as_raw_fd())))
}

pub fn syncfs(fd: &OwnedFd) -> Outcome {
    none(call!(libc::syncfs(fd.as_raw_fd())))
}

/// Closes a descriptor and tells what close said.
pub fn close(fd: OwnedFd) -> Outcome {
    let raw = std::os::fd::IntoRawFd::into_raw_fd(fd);
    none(call!(libc::close(raw)))
}

pub fn truncate(path: impl AsRef<[u8]>, bytes: i64) -> Outcome {
    let path = c(path);
    none(call!(libc::truncate(path.as_ptr(), bytes)))
}

pub fn ftruncate(fd: &OwnedFd, bytes: i64) -> Outcome {
    none(call!(libc::ftruncate(fd.as_raw_fd(), bytes)))
}

pub fn fallocate(fd: &OwnedFd, mode: c_int, offset: i64, bytes: i64) -> Outcome {
    none(call!(libc::fallocate(fd.as_raw_fd(), mode, offset, bytes)))
}

pub fn posix_fallocate(fd: &OwnedFd, offset: i64, bytes: i64) -> Outcome {
    match call!(libc::posix_fallocate(fd.as_raw_fd(), offset, bytes)) {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// From here on this process may write files of so many bytes only, and hears of more by EFBIG.
pub fn limit_file_bytes(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    call!({
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0, "setrlimit");
    });
}

pub fn mkdir(path: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::mkdir(path.as_ptr(), mode)))
}

pub fn mkdirat(fd: RawFd, path: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::mkdirat(fd, path.as_ptr(), mode)))
}

pub fn rmdir(path: impl AsRef<[u8]>) -> Outcome {
    let path = c(path);
    none(call!(libc::rmdir(path.as_ptr())))
}

pub fn unlink(path: impl AsRef<[u8]>) -> Outcome {
    let path = c(path);
    none(call!(libc::unlink(path.as_ptr())))
}

pub fn unlinkat(fd: RawFd, path: impl AsRef<[u8]>, flags: c_int) -> Outcome {
    let path = c(path);
    none(call!(libc::unlinkat(fd, path.as_ptr(), flags)))
}

pub fn link(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Outcome {
    let (from, to) = (c(from), c(to));
    none(call!(libc::link(from.as_ptr(), to.as_ptr())))
}

pub fn linkat(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, flags: c_int) -> Outcome {
    let (from, to) = (c(from), c(to));
    none(call!(libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)))
}

pub fn symlink(target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Outcome {
    let (target, path) = (c(target), c(path));
    none(call!(libc::symlink(target.as_ptr(), path.as_ptr())))
}

pub fn symlinkat(target: impl AsRef<[u8]>, fd: RawFd, path: impl AsRef<[u8]>) -> Outcome {
    let (target, path) = (c(target), c(path));
    none(call!(libc::symlinkat(target.as_ptr(), fd, path.as_ptr())))
}

/// As much of the target as fits `bytes`.
pub fn readlink_into(path: impl AsRef<[u8]>, bytes: usize) -> Outcome<Vec<u8>> {
    let path = c(path);
    let mut buffer = vec![0u8; bytes];
    let got = done(call!(libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), bytes)) as i64)?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

pub fn readlink(path: impl AsRef<[u8]>) -> Outcome<Vec<u8>> {
    readlink_into(path, 8192)
}

pub fn rename(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Outcome {
    let (from, to) = (c(from), c(to));
    none(call!(libc::rename(from.as_ptr(), to.as_ptr())))
}

pub fn renameat2(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, flags: u32) -> Outcome {
    let (from, to) = (c(from), c(to));
    none(call!(libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)))
}

pub fn renameat(from_fd: RawFd, from: &str, to_fd: RawFd, to: &str) -> Outcome {
    let (from, to) = (c(from), c(to));
    none(call!(libc::renameat(from_fd, from.as_ptr(), to_fd, to.as_ptr())))
}

/// `mode` has the kind and the permissions.
pub fn mknod(path: impl AsRef<[u8]>, mode: u32, device: u64) -> Outcome {
    let path = c(path);
    none(call!(libc::mknod(path.as_ptr(), mode, device)))
}

pub fn mkfifo(path: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::mkfifo(path.as_ptr(), mode)))
}

pub fn chmod(path: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::chmod(path.as_ptr(), mode)))
}

pub fn fchmod(fd: &OwnedFd, mode: u32) -> Outcome {
    none(call!(libc::fchmod(fd.as_raw_fd(), mode)))
}

pub fn fchmodat(fd: RawFd, path: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::fchmodat(fd, path.as_ptr(), mode, 0)))
}

/// An owner or group that stays.
pub const SAME: u32 = u32::MAX;

pub fn chown(path: impl AsRef<[u8]>, uid: u32, gid: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::chown(path.as_ptr(), uid, gid)))
}

pub fn lchown(path: impl AsRef<[u8]>, uid: u32, gid: u32) -> Outcome {
    let path = c(path);
    none(call!(libc::lchown(path.as_ptr(), uid, gid)))
}

pub fn fchown(fd: &OwnedFd, uid: u32, gid: u32) -> Outcome {
    none(call!(libc::fchown(fd.as_raw_fd(), uid, gid)))
}

pub fn fchownat(fd: RawFd, path: impl AsRef<[u8]>, uid: u32, gid: u32, flags: c_int) -> Outcome {
    let path = c(path);
    none(call!(libc::fchownat(fd, path.as_ptr(), uid, gid, flags)))
}

/// Set to the clock.
pub const NOW: Time = (0, libc::UTIME_NOW);
/// Leave as it is.
pub const OMIT: Time = (0, libc::UTIME_OMIT);

fn specs(atime: Time, mtime: Time) -> [libc::timespec; 2] {
    [atime, mtime].map(|(seconds, nanoseconds)| libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds })
}

pub fn utimensat(path: impl AsRef<[u8]>, atime: Time, mtime: Time, flags: c_int) -> Outcome {
    let (path, times) = (c(path), specs(atime, mtime));
    none(call!(libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags)))
}

/// Without times: both to the clock.
pub fn utime_now(path: impl AsRef<[u8]>) -> Outcome {
    let path = c(path);
    none(call!(libc::utimensat(libc::AT_FDCWD, path.as_ptr(), std::ptr::null(), 0)))
}

pub fn futimens(fd: &OwnedFd, atime: Time, mtime: Time) -> Outcome {
    let times = specs(atime, mtime);
    none(call!(libc::futimens(fd.as_raw_fd(), times.as_ptr())))
}

pub fn access(path: impl AsRef<[u8]>, mask: c_int) -> Outcome {
    let path = c(path);
    none(call!(libc::access(path.as_ptr(), mask)))
}

pub fn faccessat(fd: RawFd, path: impl AsRef<[u8]>, mask: c_int, flags: c_int) -> Outcome {
    let path = c(path);
    none(call!(libc::faccessat(fd, path.as_ptr(), mask, flags)))
}

pub fn chdir(path: impl AsRef<[u8]>) -> Outcome {
    let path = c(path);
    none(call!(libc::chdir(path.as_ptr())))
}

pub fn fchdir(fd: &OwnedFd) -> Outcome {
    none(call!(libc::fchdir(fd.as_raw_fd())))
}

pub fn getcwd() -> Outcome<String> {
    std::env::current_dir()
        .map(|path| path.to_string_lossy().into_owned())
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))
}

pub fn umask(mask: u32) -> u32 {
    call!(libc::umask(mask))
}

pub fn statvfs(path: impl AsRef<[u8]>) -> Outcome<libc::statvfs> {
    let path = c(path);
    let mut raw = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    none(call!(libc::statvfs(path.as_ptr(), raw.as_mut_ptr())))?;
    // SAFETY: it was zeroed, which is a value, and then filled by the kernel.
    Ok(unsafe { raw.assume_init() })
}

pub fn fstatvfs(fd: &OwnedFd) -> Outcome<libc::statvfs> {
    let mut raw = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    none(call!(libc::fstatvfs(fd.as_raw_fd(), raw.as_mut_ptr())))?;
    // SAFETY: it was zeroed, which is a value, and then filled by the kernel.
    Ok(unsafe { raw.assume_init() })
}

pub fn pathconf(path: &str, name: c_int) -> Outcome<i64> {
    let path = c(path);
    done(call!(libc::pathconf(path.as_ptr(), name)))
}

fn value_of(get: impl Fn(*mut c_void, usize) -> isize) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0u8; 1 << 17];
    let got = done(get(buffer.as_mut_ptr().cast(), buffer.len()) as i64)?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

fn names_of(list: Vec<u8>) -> Vec<String> {
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    names
}

pub fn setxattr(path: &str, name: &str, value: &[u8], flags: c_int) -> Outcome {
    let (path, name) = (c(path), c(name));
    none(call!(libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)))
}

pub fn lsetxattr(path: &str, name: &str, value: &[u8], flags: c_int) -> Outcome {
    let (path, name) = (c(path), c(name));
    none(call!(libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)))
}

pub fn fsetxattr(fd: &OwnedFd, name: &str, value: &[u8], flags: c_int) -> Outcome {
    let name = c(name);
    none(call!(libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)))
}

pub fn getxattr(path: &str, name: &str) -> Outcome<Vec<u8>> {
    let (path, name) = (c(path), c(name));
    value_of(|into, bytes| call!(libc::getxattr(path.as_ptr(), name.as_ptr(), into, bytes)))
}

pub fn lgetxattr(path: &str, name: &str) -> Outcome<Vec<u8>> {
    let (path, name) = (c(path), c(name));
    value_of(|into, bytes| call!(libc::lgetxattr(path.as_ptr(), name.as_ptr(), into, bytes)))
}

pub fn fgetxattr(fd: &OwnedFd, name: &str) -> Outcome<Vec<u8>> {
    let name = c(name);
    value_of(|into, bytes| call!(libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), into, bytes)))
}

/// What getxattr says of a buffer of so many bytes.
pub fn getxattr_into(path: &str, name: &str, bytes: usize) -> Outcome<usize> {
    let (path, name) = (c(path), c(name));
    let mut buffer = vec![0u8; bytes.max(1)];
    let into = buffer.as_mut_ptr().cast();
    Ok(done(call!(libc::getxattr(path.as_ptr(), name.as_ptr(), into, bytes)) as i64)? as usize)
}

/// What listxattr says of a buffer of so many bytes.
pub fn listxattr_into(path: &str, bytes: usize) -> Outcome<usize> {
    let path = c(path);
    let mut buffer = vec![0u8; bytes.max(1)];
    Ok(done(call!(libc::listxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), bytes)) as i64)? as usize)
}

pub fn listxattr(path: &str) -> Outcome<Vec<String>> {
    let path = c(path);
    value_of(|into, bytes| call!(libc::listxattr(path.as_ptr(), into.cast(), bytes))).map(names_of)
}

pub fn llistxattr(path: &str) -> Outcome<Vec<String>> {
    let path = c(path);
    value_of(|into, bytes| call!(libc::llistxattr(path.as_ptr(), into.cast(), bytes))).map(names_of)
}

pub fn flistxattr(fd: &OwnedFd) -> Outcome<Vec<String>> {
    value_of(|into, bytes| call!(libc::flistxattr(fd.as_raw_fd(), into.cast(), bytes))).map(names_of)
}

pub fn removexattr(path: &str, name: &str) -> Outcome {
    let (path, name) = (c(path), c(name));
    none(call!(libc::removexattr(path.as_ptr(), name.as_ptr())))
}

pub fn lremovexattr(path: &str, name: &str) -> Outcome {
    let (path, name) = (c(path), c(name));
    none(call!(libc::lremovexattr(path.as_ptr(), name.as_ptr())))
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as in struct dirent")]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: u8,
    /// Where telldir said to be after it.
    pub position: i64,
}

/// An open directory stream.
pub struct Directory(*mut libc::DIR);

impl Directory {
    pub fn open(path: impl AsRef<[u8]>) -> Outcome<Directory> {
        let path = c(path);
        let stream = call!(libc::opendir(path.as_ptr()));
        if stream.is_null() { Err(last_error()) } else { Ok(Directory(stream)) }
    }

    pub fn of(fd: OwnedFd) -> Outcome<Directory> {
        let stream = call!(libc::fdopendir(std::os::fd::IntoRawFd::into_raw_fd(fd)));
        if stream.is_null() { Err(last_error()) } else { Ok(Directory(stream)) }
    }

    /// The next entry; none at the end.
    pub fn read(&self) -> Outcome<Option<Entry>> {
        // SAFETY: the stream is open until this is dropped; errno belongs to this thread, and an entry is good until the next
        // call for the same stream.
        unsafe {
            *libc::__errno_location() = 0;
            let entry = libc::readdir(self.0);
            if entry.is_null() {
                return if *libc::__errno_location() == 0 { Ok(None) } else { Err(last_error()) };
            }
            let name = std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec();
            Ok(Some(Entry {
                name,
                ino: (*entry).d_ino,
                kind: (*entry).d_type,
                position: libc::telldir(self.0),
            }))
        }
    }

    pub fn rest(&self) -> Outcome<Vec<Entry>> {
        let mut entries = Vec::new();
        while let Some(entry) = self.read()? {
            entries.push(entry);
        }
        Ok(entries)
    }

    pub fn rewind(&self) {
        call!(libc::rewinddir(self.0));
    }

    pub fn seek(&self, position: i64) {
        call!(libc::seekdir(self.0, position));
    }

    pub fn fd(&self) -> RawFd {
        call!(libc::dirfd(self.0))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        call!(libc::closedir(self.0));
    }
}

/// All entries but `.` and `..`, by name.
pub fn list(path: impl AsRef<[u8]>) -> Outcome<Vec<String>> {
    let entries = Directory::open(path)?.rest()?;
    let mut names: Vec<_> =
        entries.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok(names)
}

/// Mapped memory of a file.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    pub fn new(fd: &OwnedFd, bytes: usize, protection: c_int, flags: c_int, offset: i64) -> Outcome<Mapping> {
        let start = call!(libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), offset));
        if start == libc::MAP_FAILED { Err(last_error()) } else { Ok(Mapping { start: start.cast(), bytes }) }
    }

    /// Memory of no file, at the start of a page.
    pub fn anonymous(bytes: usize) -> Outcome<Mapping> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = call!(libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0));
        if start == libc::MAP_FAILED { Err(last_error()) } else { Ok(Mapping { start: start.cast(), bytes }) }
    }

    /// Writes `bytes` from `at` on to `offset` of the file.
    pub fn pwrite(&self, fd: &OwnedFd, at: usize, bytes: usize, offset: i64) -> Outcome<usize> {
        assert!(at + bytes <= self.bytes);
        Ok(done(call!(libc::pwrite(fd.as_raw_fd(), self.start.add(at).cast(), bytes, offset)) as i64)?
            as usize)
    }

    /// Reads `bytes` of the file from `offset` on to `at`.
    pub fn pread(&self, fd: &OwnedFd, at: usize, bytes: usize, offset: i64) -> Outcome<usize> {
        assert!(at + bytes <= self.bytes);
        Ok(done(call!(libc::pread(fd.as_raw_fd(), self.start.add(at).cast(), bytes, offset)) as i64)?
            as usize)
    }

    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: within the mapping; volatile, as the file may change it.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub fn bytes(&self, from: usize, count: usize) -> Vec<u8> {
        (from..from + count).map(|at| self.get(at)).collect()
    }

    pub fn set(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.bytes);
        for (index, byte) in data.iter().enumerate() {
            // SAFETY: within the mapping; volatile, as the file may change it.
            unsafe { self.start.add(at + index).write_volatile(*byte) };
        }
    }

    pub fn sync(&self, flags: c_int) -> Outcome {
        none(call!(libc::msync(self.start.cast(), self.bytes, flags)))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        call!(libc::munmap(self.start.cast(), self.bytes));
    }
}

/// Somebody.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

fn become_user(user: &User) {
    // SAFETY: sets ids of this process, which has one thread; the saved user stays root.
    unsafe {
        assert_eq!(libc::setgroups(user.groups.len(), user.groups.as_ptr()), 0, "setgroups");
        assert_eq!(libc::setresgid(user.gid, user.gid, 0), 0, "setresgid");
        assert_eq!(libc::setresuid(user.uid, user.uid, 0), 0, "setresuid");
    }
}

struct RootAgain;

impl Drop for RootAgain {
    fn drop(&mut self) {
        // SAFETY: takes back what the saved user allows.
        unsafe {
            assert_eq!(libc::setresuid(0, 0, 0), 0, "setresuid back");
            assert_eq!(libc::setresgid(0, 0, 0), 0, "setresgid back");
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0, "setgroups back");
        }
    }
}

/// Runs `action` as somebody else.
pub fn as_user<T>(user: User, action: impl FnOnce() -> T) -> T {
    become_user(&user);
    let _root = RootAgain;
    action()
}

/// Runs `action` as a user by the effective ids only, with root's real ones.
pub fn as_effective<T>(user: User, action: impl FnOnce() -> T) -> T {
    // SAFETY: sets ids of this process, which has one thread.
    unsafe {
        assert_eq!(libc::setresgid(0, user.gid, 0), 0, "setresgid");
        assert_eq!(libc::setresuid(0, user.uid, 0), 0, "setresuid");
    }
    let _root = RootAgain;
    action()
}

/// Runs `action` in another process; fails where it does.
pub fn in_process(action: impl FnOnce()) {
    // SAFETY: this process has one thread, so its child may do anything; it ends without touching what the parent shares.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "fork");
        if child == 0 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
            libc::_exit(i32::from(outcome.is_err()));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        assert_eq!(status, 0, "the other process failed");
    }
}
