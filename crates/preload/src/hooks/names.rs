//! Creating, removing, moving and linking names.

use std::ffi::{CStr, c_char, c_int, c_uint};

use libc::{dev_t, mode_t, size_t, ssize_t};
use weft_client::OpenOptions;
use weft_client::c::special_kind;

use crate::dispatch::{on_path, place_of, text};
use crate::guard::{Errno, Outcome, Returned, enter, errno, system, within};
use crate::links::through_links;
use crate::mounts;
use crate::paths::{Place, Target};
use crate::real::hooks;
use crate::umask::mode_of_new;

const HERE: c_int = libc::AT_FDCWD;

hooks! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        on_path(HERE, path, false, |_, path| mkdir::real(path, mode), |target| make_directory(target, mode))
    }

    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        let local = |dirfd, path| mkdirat::real(dirfd, path, mode);
        on_path(dirfd, path, false, local, |target| make_directory(target, mode))
    }

    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        on_path(HERE, path, false, |_, path| mknod::real(path, mode, device), |target| make(target, mode, device))
    }

    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        let local = |dirfd, path| mknodat::real(dirfd, path, mode, device);
        on_path(dirfd, path, false, local, |target| make(target, mode, device))
    }

    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        let local = |_, path| __xmknod::real(version, path, mode, device);
        on_path(HERE, path, false, local, |target| make(target, mode, *device))
    }

    fn __xmknodat(version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        let local = |dirfd, path| __xmknodat::real(version, dirfd, path, mode, device);
        on_path(dirfd, path, false, local, |target| make(target, mode, *device))
    }

    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        let weft = |target: &Target| make(target, libc::S_IFIFO | mode & 0o7777, 0);
        on_path(HERE, path, false, |_, path| mkfifo::real(path, mode), weft)
    }

    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        let weft = |target: &Target| make(target, libc::S_IFIFO | mode & 0o7777, 0);
        on_path(dirfd, path, false, |dirfd, path| mkfifoat::real(dirfd, path, mode), weft)
    }

    fn unlink(path: *const c_char) -> c_int {
        on_path(HERE, path, false, |_, path| unlink::real(path), remove_file)
    }

    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        let local = |dirfd, path| unlinkat::real(dirfd, path, flags);
        on_path(dirfd, path, false, local, |target| match flags {
            0 => remove_file(target),
            libc::AT_REMOVEDIR => remove_directory(target),
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    fn rmdir(path: *const c_char) -> c_int {
        on_path(HERE, path, false, |_, path| rmdir::real(path), remove_directory)
    }

    fn remove(path: *const c_char) -> c_int {
        on_path(HERE, path, false, |_, path| remove::real(path), |target| match remove_file(target) {
            Err(Errno(libc::EISDIR)) => remove_directory(target),
            other => other,
        })
    }

    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        between((HERE, from), (HERE, to), false, |_, from, _, to| rename::real(from, to), |from, to| move_name(from, to, 0))
    }

    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        let local = |from_dir, from, to_dir, to| renameat::real(from_dir, from, to_dir, to);
        between((from_dir, from), (to_dir, to), false, local, |from, to| move_name(from, to, 0))
    }

    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
        let local = |from_dir, from, to_dir, to| renameat2::real(from_dir, from, to_dir, to, flags);
        between((from_dir, from), (to_dir, to), false, local, |from, to| move_name(from, to, flags))
    }

    fn link(from: *const c_char, to: *const c_char) -> c_int {
        linkat(HERE, from, HERE, to, 0)
    }

    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        let local = |from_dir, from, to_dir, to| linkat::real(from_dir, from, to_dir, to, flags);
        if !from.is_null() && *from == 0 && flags & libc::AT_EMPTY_PATH == 0 {
            return local(from_dir, from, to_dir, to);
        }
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let places = || (place_of(from_dir, from), place_of(to_dir, to));
        if let (Some(Place::Weft(_)), Some(Place::Local)) = places()
            && super::attributes::faccessat::real(to_dir, to, libc::F_OK, libc::AT_SYMLINK_NOFOLLOW) == 0
        {
            // Checked before the names are resolved.
            return enter(|| Err(Errno(libc::EEXIST)));
        }
        between((from_dir, from), (to_dir, to), follow, local, |from, to| link_name(from, to, follow))
    }

    fn symlink(goal: *const c_char, path: *const c_char) -> c_int {
        on_path(HERE, path, false, |_, path| symlink::real(goal, path), |target| make_link(target, goal))
    }

    fn symlinkat(goal: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        let local = |dirfd, path| symlinkat::real(goal, dirfd, path);
        on_path(dirfd, path, false, local, |target| make_link(target, goal))
    }

    fn readlink(path: *const c_char, buffer: *mut c_char, room: size_t) -> ssize_t {
        let local = |_, path| readlink::real(path, buffer, room);
        on_path(HERE, path, false, local, |target| read_link(target, buffer, room))
    }

    fn readlinkat(dirfd: c_int, path: *const c_char, buffer: *mut c_char, room: size_t) -> ssize_t {
        let local = |dirfd, path| readlinkat::real(dirfd, path, buffer, room);
        on_path(dirfd, path, false, local, |target| read_link(target, buffer, room))
    }

    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, room: size_t, size: size_t) -> ssize_t {
        if room > size { __readlink_chk::real(path, buffer, room, size) } else { readlink(path, buffer, room) }
    }

    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, buffer: *mut c_char, room: size_t, size: size_t) -> ssize_t {
        if room > size {
            __readlinkat_chk::real(dirfd, path, buffer, room, size)
        } else {
            readlinkat(dirfd, path, buffer, room)
        }
    }

    fn truncate = truncate64(path: *const c_char, bytes: libc::off_t) -> c_int {
        on_path(HERE, path, true, |_, path| truncate::real(path, bytes), |target| {
            let (made, at) = target.at()?;
            let bytes = u64::try_from(bytes).map_err(|_| Errno(libc::EINVAL))?;
            super::files::check_size(bytes, || Ok(made.client.stat(at.clone(), true)?.size))?;
            made.client.truncate(at, bytes)?;
            Ok(0)
        })
    }

    fn sync() -> () {
        let before = errno();
        for made in mounts::all().filter_map(|mount| mount.made_before()) {
            let _ = within(|| {
                crate::table::report_all();
                Ok(made.client.sync_all()?)
            });
        }
        weft_client::c::set_errno(before);
        sync::real()
    }
}

/// Calls `local` or `weft` for two names. If only one is in Weft, it is a move between file systems.
///
/// # Safety
/// The paths are NULL or end with a zero.
unsafe fn between<T: Returned>(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    follow: bool,
    local: impl Fn(c_int, *const c_char, c_int, *const c_char) -> T,
    weft: impl Fn(&Target, &Target) -> Outcome<T>,
) -> T {
    // SAFETY: as the caller promises.
    let (from_place, to_place) = unsafe { (place_of(from_dir, from), place_of(to_dir, to)) };
    let (mut from_place, mut to_place) = match (from_place, to_place) {
        (Some(from_place), Some(to_place)) => (from_place, to_place),
        // The other path is none, or too long; the kernel would have reported that.
        (Some(Place::Weft(_)), None) | (None, Some(Place::Weft(_))) => {
            let is_missing = from.is_null() || to.is_null();
            return enter(|| Err(Errno(if is_missing { libc::EFAULT } else { libc::ENAMETOOLONG })));
        }
        _ => return local(from_dir, from, to_dir, to),
    };
    // A symbolic link with an absolute target is followed once on the way to each name.
    for attempt in 0..2 {
        match (&from_place, &to_place) {
            (Place::Weft(from), Place::Weft(to)) if std::ptr::eq(from.mount, to.mount) => {
                let mut next = (None, None);
                let result = within(|| match weft(from, to) {
                    Err(Errno(libc::ENOENT | libc::ENOTDIR)) if attempt == 0 => {
                        next = (through_links(from, follow)?, through_links(to, false)?);
                        if next.0.is_none() && next.1.is_none() { weft(from, to).map(Some) } else { Ok(None) }
                    }
                    // A directory that one of the paths begins in was removed.
                    Err(Errno(libc::ESTALE)) => Err(Errno(libc::ENOENT)),
                    other => other.map(Some),
                });
                match result {
                    Ok(None) => {
                        from_place = next.0.unwrap_or(from_place);
                        to_place = next.1.unwrap_or(to_place);
                    }
                    result => return enter(|| result?.ok_or(Errno(libc::ENOENT))),
                }
            }
            (Place::Weft(_), _) => {
                // SAFETY: as the caller promises.
                return enter(|| Err(unsafe { why_not_across(to_dir, to) }));
            }
            (_, Place::Weft(_)) => {
                // SAFETY: as the caller promises.
                return enter(|| Err(unsafe { why_not_across(from_dir, from) }));
            }
            (from_place, to_place) => {
                let of = |place: &Place, dir, path| match place {
                    Place::Elsewhere(other) => (HERE, other.as_ptr()),
                    _ => (dir, path),
                };
                let (from, to) = (of(from_place, from_dir, from), of(to_place, to_dir, to));
                return local(from.0, from.1, to.0, to.1);
            }
        }
    }
    enter(|| Err(Errno(libc::ENOENT)))
}

/// The error for a name in Weft and one elsewhere: the error of the other path, or that it is on another file
/// system.
///
/// # Safety
/// The path ends with a zero.
unsafe fn why_not_across(dirfd: c_int, path: *const c_char) -> Errno {
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.is_empty() {
        return Errno(libc::ENOENT);
    }
    let from_descriptor = !path.starts_with(b"/") && dirfd != HERE;
    match system(libc::SYS_fcntl, [dirfd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) {
        Err(error) if from_descriptor => error,
        _ => Errno(libc::EXDEV),
    }
}

fn make_directory(target: &Target, mode: mode_t) -> Outcome<c_int> {
    let (made, at) = target.at_new()?;
    made.client.mkdir(at, mode_of_new(mode & 0o1777))?;
    Ok(0)
}

fn make(target: &Target, mode: mode_t, device: dev_t) -> Outcome<c_int> {
    let (made, at) = target.at_new()?;
    let bits = mode_of_new(mode);
    if mode & libc::S_IFMT == libc::S_IFDIR {
        return Err(Errno(libc::EPERM));
    }
    if target.ends_with_slash() {
        // The name is that of a directory, which this call does not create.
        return Err(Errno(if made.client.stat(at, true).is_ok() { libc::EEXIST } else { libc::ENOENT }));
    }
    match special_kind(mode).map_err(Errno)? {
        Some(kind) => {
            made.client.mknod(at, kind, bits, device as u32)?;
        }
        None => made.client.open(at, &OpenOptions::new().write(true).create_new(true).mode(bits))?.close()?,
    }
    Ok(0)
}

fn remove_file(target: &Target) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    made.client.unlink(at)?;
    Ok(0)
}

fn remove_directory(target: &Target) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    if target.full.iter().all(|byte| *byte == b'/') {
        return Err(Errno(libc::EBUSY));
    }
    made.client.rmdir(at)?;
    Ok(0)
}

fn move_name(from: &Target, to: &Target, flags: c_uint) -> Outcome<c_int> {
    let ((made, from), (_, to)) = (from.at()?, to.at()?);
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    made.client.rename(from, to, flags)?;
    Ok(0)
}

fn link_name(from: &Target, to: &Target, follow: bool) -> Outcome<c_int> {
    crate::table::report_all();
    let ((made, from), (_, to)) = (from.at()?, to.at()?);
    made.client.link(from, follow, to)?;
    Ok(0)
}

/// # Safety
/// The goal is NULL or ends with a zero.
unsafe fn make_link(target: &Target, goal: *const c_char) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    // SAFETY: as the caller promises.
    made.client.symlink(at, unsafe { text(goal) }?)?;
    Ok(0)
}

/// # Safety
/// The buffer has this size.
unsafe fn read_link(target: &Target, buffer: *mut c_char, room: size_t) -> Outcome<ssize_t> {
    let (made, at) = target.at()?;
    if room == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let goal = made.client.readlink(at)?;
    let bytes = goal.len().min(room);
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(goal.as_ptr(), buffer.cast(), bytes) };
    Ok(bytes as ssize_t)
}
