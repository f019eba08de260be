//! Reading and changing attributes.

use std::ffi::{c_char, c_int, c_uint};

use libc::{gid_t, mode_t, stat as Stat, timespec, timeval, uid_t};
use weft_client::c::{stat_of, time_to_set};
use weft_client::{At, SetAttr, SetTime};
use weft_wire::messages::{Attr, FileKind, Time};

use crate::dispatch::on_path;
use crate::guard::{Errno, Outcome, enter};
use crate::mounts::Made;
use crate::paths::Target;
use crate::privileges;
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{self, Use, find};

const HERE: c_int = libc::AT_FDCWD;
/// Supported flags of `fstatat` and `statx`. For any other, the kernel reports the error.
const STAT_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT;
const STAT_BLOCK_BYTES: u64 = 512;

hooks! {
    fn stat = stat64(path: *const c_char, place: *mut Stat) -> c_int {
        on_path(HERE, path, true, |_, path| stat::real(path, place), |target| stat_path(target, true, place))
    }

    fn lstat = lstat64(path: *const c_char, place: *mut Stat) -> c_int {
        on_path(HERE, path, false, |_, path| lstat::real(path, place), |target| stat_path(target, false, place))
    }

    fn fstat = fstat64(fd: c_int, place: *mut Stat) -> c_int where fd is open { stat_open(&open, place) }

    fn fstatat = fstatat64(dirfd: c_int, path: *const c_char, place: *mut Stat, flags: c_int) -> c_int {
        if flags & !STAT_FLAGS != 0 {
            return fstatat::real(dirfd, path, place, flags);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        if is_empty(path, flags) && find(dirfd).is_some() {
            return fstat(dirfd, place);
        }
        let local = |dirfd, path| fstatat::real(dirfd, path, place, flags);
        on_path(dirfd, path, follow, local, |target| stat_path(target, follow, place))
    }

    fn __xstat = __xstat64(version: c_int, path: *const c_char, place: *mut Stat) -> c_int {
        let local = |_, path| __xstat::real(version, path, place);
        on_path(HERE, path, true, local, |target| stat_path(target, true, place))
    }

    fn __lxstat = __lxstat64(version: c_int, path: *const c_char, place: *mut Stat) -> c_int {
        let local = |_, path| __lxstat::real(version, path, place);
        on_path(HERE, path, false, local, |target| stat_path(target, false, place))
    }

    fn __fxstat = __fxstat64(version: c_int, fd: c_int, place: *mut Stat) -> c_int {
        if find(fd).is_some() { fstat(fd, place) } else { __fxstat::real(version, fd, place) }
    }

    fn __fxstatat = __fxstatat64(version: c_int, dirfd: c_int, path: *const c_char, place: *mut Stat, flags: c_int) -> c_int {
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        if is_empty(path, flags) && find(dirfd).is_some() {
            return fstat(dirfd, place);
        }
        let local = |dirfd, path| __fxstatat::real(version, dirfd, path, place, flags);
        on_path(dirfd, path, follow, local, |target| stat_path(target, follow, place))
    }

    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, place: *mut libc::statx) -> c_int {
        if flags & !(STAT_FLAGS | libc::AT_STATX_SYNC_TYPE) != 0 || flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE {
            return statx::real(dirfd, path, flags, mask, place);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        if is_empty(path, flags) && let Some(open) = find(dirfd) {
            return enter(|| {
                table::report_all();
                let made = open.mount.made()?;
                *place = statx_of(made, &attr_of_open(made, &open)?);
                Ok(0)
            });
        }
        let local = |dirfd, path| statx::real(dirfd, path, flags, mask, place);
        on_path(dirfd, path, follow, local, |target| {
            table::report_all();
            *place = statx_of(target.mount.made()?, &attr_of(target, follow)?);
            Ok(0)
        })
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        on_path(HERE, path, true, |_, path| access::real(path, mode), |target| may(target, mode, 0))
    }

    fn euidaccess = eaccess(path: *const c_char, mode: c_int) -> c_int {
        let weft = |target: &Target| may(target, mode, libc::AT_EACCESS);
        on_path(HERE, path, true, |_, path| euidaccess::real(path, mode), weft)
    }

    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        if flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return faccessat::real(dirfd, path, mode, flags);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        if is_empty(path, flags) && let Some(open) = find(dirfd) {
            return enter(|| may_ino(open.mount.made()?, At::ino(open.shared().ino), mode, flags));
        }
        let local = |dirfd, path| faccessat::real(dirfd, path, mode, flags);
        on_path(dirfd, path, follow, local, |target| may(target, mode, flags))
    }

    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        on_path(HERE, path, true, |_, path| chmod::real(path, mode), |target| set(target, true, &mode_of(mode)))
    }

    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        let weft = |_: &Target| Err(Errno(libc::EOPNOTSUPP));
        on_path(HERE, path, false, |_, path| lchmod::real(path, mode), weft)
    }

    fn fchmod(fd: c_int, mode: mode_t) -> c_int where fd is open {
        set_ino(open.mount.made()?, open.shared().ino, &mode_of(mode))
    }

    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
            return fchmodat::real(dirfd, path, mode, flags);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let local = |dirfd, path| fchmodat::real(dirfd, path, mode, flags);
        on_path(dirfd, path, follow, local, |target| {
            if !follow && is_link(target)? {
                // As on Linux: a symbolic link has no mode of its own.
                return Err(Errno(libc::EOPNOTSUPP));
            }
            set(target, follow, &mode_of(mode))
        })
    }

    fn chown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int {
        let local = |_, path| chown::real(path, owner, group);
        on_path(HERE, path, true, local, |target| set(target, true, &owners(owner, group)))
    }

    fn lchown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int {
        let local = |_, path| lchown::real(path, owner, group);
        on_path(HERE, path, false, local, |target| set(target, false, &owners(owner, group)))
    }

    fn fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int where fd is open {
        set_ino(open.mount.made()?, open.shared().ino, &owners(owner, group))
    }

    fn fchownat(dirfd: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int) -> c_int {
        if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return fchownat::real(dirfd, path, owner, group, flags);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        if is_empty(path, flags) && find(dirfd).is_some() {
            return fchown(dirfd, owner, group);
        }
        let local = |dirfd, path| fchownat::real(dirfd, path, owner, group, flags);
        on_path(dirfd, path, follow, local, |target| set(target, follow, &owners(owner, group)))
    }

    fn utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return utimensat::real(dirfd, path, times, flags);
        }
        if path.is_null() || is_empty(path, flags) {
            return if find(dirfd).is_some() { futimens(dirfd, times) } else { utimensat::real(dirfd, path, times, flags) };
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let local = |dirfd, path| utimensat::real(dirfd, path, times, flags);
        on_path(dirfd, path, follow, local, |target| set(target, follow, &times_of(times)?))
    }

    fn futimens(fd: c_int, times: *const timespec) -> c_int where fd is open {
        set_ino(open.mount.made()?, open.shared().ino, &times_of(times)?)
    }

    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        let weft = |target: &Target| set(target, true, &micro_times_of(times)?);
        on_path(HERE, path, true, |_, path| utimes::real(path, times), weft)
    }

    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        let weft = |target: &Target| set(target, false, &micro_times_of(times)?);
        on_path(HERE, path, false, |_, path| lutimes::real(path, times), weft)
    }

    fn futimes(fd: c_int, times: *const timeval) -> c_int where fd is open {
        set_ino(open.mount.made()?, open.shared().ino, &micro_times_of(times)?)
    }

    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() {
            // Of the descriptor itself. Java calls it this way.
            return if find(dirfd).is_some() { futimes(dirfd, times) } else { futimesat::real(dirfd, path, times) };
        }
        let weft = |target: &Target| set(target, true, &micro_times_of(times)?);
        on_path(dirfd, path, true, |dirfd, path| futimesat::real(dirfd, path, times), weft)
    }

    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        on_path(HERE, path, true, |_, path| utime::real(path, times), |target| {
            let second = |seconds| timespec { tv_sec: seconds, tv_nsec: 0 };
            match times.as_ref() {
                None => set(target, true, &times_of(std::ptr::null())?),
                Some(times) => set(target, true, &times_of([second(times.actime), second(times.modtime)].as_ptr())?),
            }
        })
    }
}

/// Whether a call means the descriptor itself.
///
/// # Safety
/// The path is NULL or ends with a zero.
unsafe fn is_empty(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: as the caller promises.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// Attributes as `struct stat`. The space of a large file is queried from the servers. A small file counts as
/// if it had no holes.
fn filled(made: &Made, attr: &Attr) -> Stat {
    let mut stat = stat_of(attr);
    stat.st_dev = made.device;
    let is_large = attr.layout.is_some_and(|layout| attr.size > u64::from(layout.strip_bytes()));
    if attr.kind == FileKind::File
        && is_large
        && let Ok(allocated) = made.client.allocated_bytes([attr])
    {
        stat.st_blocks = allocated[0].div_ceil(STAT_BLOCK_BYTES) as libc::blkcnt_t;
    }
    stat
}

/// Attributes of a path's file. A directory that was removed, but is open or the current one, has no links.
fn attr_of(target: &Target, follow: bool) -> Outcome<Attr> {
    let (made, at) = target.at()?;
    match made.client.stat(at, follow) {
        Err(error) if error.errno() == libc::ESTALE && target.is_known_directory() => {
            Ok(removed(made, target.directory()))
        }
        other => Ok(other?),
    }
}

/// Attributes of an open file.
fn attr_of_open(made: &Made, open: &Use) -> Outcome<Attr> {
    let ino = open.shared().ino;
    match made.client.getattr(ino) {
        Err(error) if error.errno() == libc::ESTALE && open.kind() == Kind::Directory => {
            Ok(removed(made, ino))
        }
        other => Ok(other?),
    }
}

/// Attributes of a removed directory, which the servers no longer know.
fn removed(made: &Made, ino: u64) -> Attr {
    let zero = Time { seconds: 0, nanoseconds: 0 };
    let caller = made.client.caller();
    Attr {
        ino,
        generation: 0,
        kind: FileKind::Directory,
        mode: 0o700,
        uid: caller.uid,
        gid: caller.gid,
        nlink: 0,
        rdev: 0,
        size: 0,
        size_live: false,
        epoch: 0,
        atime: zero.clone(),
        mtime: zero.clone(),
        ctime: zero.clone(),
        btime: zero,
        layout: None,
    }
}

unsafe fn stat_path(target: &Target, follow: bool, place: *mut Stat) -> Outcome<c_int> {
    table::report_all();
    let attr = attr_of(target, follow)?;
    // SAFETY: the program passes a pointer to one.
    unsafe { *place = filled(target.mount.made()?, &attr) };
    Ok(0)
}

unsafe fn stat_open(open: &Use, place: *mut Stat) -> Outcome<c_int> {
    table::report_all();
    let made = open.mount.made()?;
    let attr = attr_of_open(made, open)?;
    // SAFETY: the program passes a pointer to one.
    unsafe { *place = filled(made, &attr) };
    Ok(0)
}

fn statx_of(made: &Made, attr: &Attr) -> libc::statx {
    let stat = filled(made, attr);
    // SAFETY: zeroed bytes are a valid `statx`.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let time = |seconds, nanoseconds| {
        // SAFETY: as above.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds);
        time
    };
    found.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    found.stx_blksize = stat.st_blksize as u32;
    found.stx_nlink = attr.nlink;
    (found.stx_uid, found.stx_gid) = (attr.uid, attr.gid);
    found.stx_mode = stat.st_mode as u16;
    (found.stx_ino, found.stx_size, found.stx_blocks) = (attr.ino, attr.size, stat.st_blocks as u64);
    found.stx_atime = time(attr.atime.seconds, attr.atime.nanoseconds);
    found.stx_btime = time(attr.btime.seconds, attr.btime.nanoseconds);
    found.stx_ctime = time(attr.ctime.seconds, attr.ctime.nanoseconds);
    found.stx_mtime = time(attr.mtime.seconds, attr.mtime.nanoseconds);
    (found.stx_dev_major, found.stx_dev_minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    (found.stx_rdev_major, found.stx_rdev_minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    found
}

fn may(target: &Target, mode: c_int, flags: c_int) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    may_ino(made, at, mode, flags)
}

/// Checks access for the real user, as the kernel does, unless the flags say otherwise.
fn may_ino(made: &Made, at: At<'_>, mode: c_int, flags: c_int) -> Outcome<c_int> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    match flags & libc::AT_EACCESS != 0 {
        true => made.client.access(at, follow, mode as u32)?,
        false => made.for_real_user().access(at, follow, mode as u32)?,
    }
    Ok(0)
}

fn set(target: &Target, follow: bool, changes: &SetAttr) -> Outcome<c_int> {
    table::report_all();
    let (made, at) = target.at()?;
    let attr = made.client.setattr(at, follow, changes)?;
    note_privileges(attr.ino, changes);
    Ok(0)
}

/// Whether a path is a symbolic link.
pub(super) fn is_link(target: &Target) -> Outcome<bool> {
    Ok(attr_of(target, false)?.kind == FileKind::Symlink)
}

fn set_ino(made: &Made, ino: u64, changes: &SetAttr) -> Outcome<c_int> {
    table::report_all();
    made.client.setattr(At::ino(ino), false, changes)?;
    note_privileges(ino, changes);
    Ok(0)
}

fn note_privileges(ino: u64, changes: &SetAttr) {
    if changes.mode.is_some_and(|mode| mode & (libc::S_ISUID | libc::S_ISGID) != 0) {
        privileges::given(ino);
    }
}

fn mode_of(mode: mode_t) -> SetAttr {
    SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }
}

fn owners(owner: uid_t, group: gid_t) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: given(owner), gid: given(group), ..SetAttr::default() }
}

/// # Safety
/// `times` is NULL or points to two times.
unsafe fn times_of(times: *const timespec) -> Outcome<SetAttr> {
    if times.is_null() {
        return Ok(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() });
    }
    // SAFETY: as the caller promises.
    let [atime, mtime] = unsafe { &*times.cast::<[timespec; 2]>() };
    let (atime, mtime) = (time_to_set(atime).map_err(Errno)?, time_to_set(mtime).map_err(Errno)?);
    Ok(SetAttr { atime, mtime, ..SetAttr::default() })
}

/// # Safety
/// `times` is NULL or points to two times.
unsafe fn micro_times_of(times: *const timeval) -> Outcome<SetAttr> {
    if times.is_null() {
        // SAFETY: NULL is allowed.
        return unsafe { times_of(std::ptr::null()) };
    }
    // SAFETY: as the caller promises.
    let times = unsafe { &*times.cast::<[timeval; 2]>() };
    if times.iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) {
        return Err(Errno(libc::EINVAL));
    }
    let fine = times.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
    // SAFETY: two times.
    unsafe { times_of(fine.as_ptr()) }
}
