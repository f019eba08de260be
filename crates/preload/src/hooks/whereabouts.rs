//! The current directory, and the resolved paths of files.

use std::ffi::{c_char, c_int};

use libc::size_t;
use weft_client::At;
use weft_wire::messages::FileKind;

use crate::cwd::Here;
use crate::dispatch::on_path;
use crate::guard::{Errno, Outcome, enter};
use crate::path_text::normal;
use crate::paths::{self, Place, Target};
use crate::real::hooks;
use crate::shared::Kind;
use crate::{cwd, links, table};

const HERE: c_int = libc::AT_FDCWD;

hooks! {
    fn chdir(path: *const c_char) -> c_int {
        on_path(HERE, path, true, |_, path| left(chdir::real(path)), go)
    }

    fn fchdir(fd: c_int) -> c_int {
        match table::find(fd) {
            None => left(fchdir::real(fd)),
            Some(open) if open.kind() != Kind::Directory => enter(|| Err(Errno(libc::ENOTDIR))),
            Some(open) => enter(|| {
                let (mount, ino) = (open.mount, open.shared().ino);
                mount.made()?.client.access(At::ino(ino), false, libc::X_OK as u32)?;
                let path = links::path_of_directory(mount, ino, open.shared().texts().path)?;
                match paths::in_mount(mount, path) {
                    Place::Weft(target) => {
                        cwd::enter(Here { mount, ino, path: links::true_path(&target)? })?;
                        Ok(0)
                    }
                    _ => Err(Errno(libc::ENOENT)),
                }
            }),
        }
    }

    fn getcwd(buffer: *mut c_char, room: size_t) -> *mut c_char {
        if crate::guard::is_inside() || !cwd::is_inside() {
            return getcwd::real(buffer, room);
        }
        enter(|| put(&shown()?.ok_or(Errno(libc::ENOENT))?, buffer, room, libc::ERANGE))
    }

    fn __getcwd_chk(buffer: *mut c_char, room: size_t, size: size_t) -> *mut c_char {
        if room > size { __getcwd_chk::real(buffer, room, size) } else { getcwd(buffer, room) }
    }

    fn get_current_dir_name() -> *mut c_char {
        if cwd::is_inside() { getcwd(std::ptr::null_mut(), 0) } else { get_current_dir_name::real() }
    }

    fn getwd(buffer: *mut c_char) -> *mut c_char {
        if cwd::is_inside() { getcwd(buffer, libc::PATH_MAX as size_t) } else { getwd::real(buffer) }
    }

    fn __getwd_chk(buffer: *mut c_char, size: size_t) -> *mut c_char {
        if cwd::is_inside() { getcwd(buffer, size) } else { __getwd_chk::real(buffer, size) }
    }

    fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char {
        on_path(HERE, path, true, |_, path| realpath::real(path, buffer), |target| {
            true_name(target, buffer)
        })
    }

    fn __realpath_chk(path: *const c_char, buffer: *mut c_char, size: size_t) -> *mut c_char {
        if size < libc::PATH_MAX as size_t { __realpath_chk::real(path, buffer, size) } else { realpath(path, buffer) }
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, std::ptr::null_mut())
    }
}

/// The current directory as the program sees it, if it is in Weft. Fails if it was removed.
fn shown() -> Outcome<Option<Vec<u8>>> {
    let Some(here) = cwd::inside() else { return Ok(None) };
    let path = links::path_of_directory(here.mount, here.ino, &here.path)?;
    let shown = [&here.mount.prefix[..], &path].concat();
    if path != here.path {
        cwd::HERE.with(|now| *now = Some(Here { path, ..here }));
    }
    Ok(Some(shown))
}

/// After exec: takes over the previous program's directory.
pub(crate) fn inherit() {
    let Some((ino, path)) = cwd::inherited() else { return };
    if let Place::Weft(target) = paths::resolve(HERE, path) {
        let full = normal(&target.full);
        let path = if full == b"/" { Vec::new() } else { full };
        cwd::note(Here { mount: target.mount, ino, path });
    }
}

/// Records a change to a local directory.
fn left(result: c_int) -> c_int {
    if result == 0 && !crate::guard::is_inside() {
        let _ = crate::guard::within(|| {
            cwd::leave();
            Ok(())
        });
    }
    result
}

fn go(target: &Target) -> Outcome<c_int> {
    cwd::enter(here_at(target)?)?;
    Ok(0)
}

/// Checks that a directory may be entered.
fn here_at(target: &Target) -> Outcome<Here> {
    let (made, at) = target.at()?;
    let attr = made.client.stat(at.clone(), true)?;
    if attr.kind != FileKind::Directory {
        return Err(Errno(libc::ENOTDIR));
    }
    made.client.access(at, true, libc::X_OK as u32)?;
    Ok(Here { mount: target.mount, ino: attr.ino, path: links::true_path(target)? })
}

/// The directory of a path in Weft; `None` with errno.
///
/// # Safety
/// A string.
pub(super) unsafe fn directory_at(path: *const c_char) -> Option<Here> {
    let found = std::cell::RefCell::new(None);
    let weft = |target: &Target| {
        *found.borrow_mut() = Some(here_at(target)?);
        Ok(0)
    };
    // SAFETY: as the caller promises.
    unsafe { on_path(HERE, path, true, |_, _| enter(|| Err(Errno(libc::ENOENT))), weft) };
    found.into_inner()
}

unsafe fn true_name(target: &Target, buffer: *mut c_char) -> Outcome<*mut c_char> {
    let whole = [&target.mount.prefix[..], &links::true_path(target)?].concat();
    // SAFETY: in C, NULL or a buffer of PATH_MAX bytes.
    unsafe {
        put(&whole, buffer, if buffer.is_null() { 0 } else { libc::PATH_MAX as size_t }, libc::ENAMETOOLONG)
    }
}

/// Copies a string into the program's buffer, or into memory from libc.
unsafe fn put(text: &[u8], buffer: *mut c_char, room: size_t, too_long: c_int) -> Outcome<*mut c_char> {
    let needed = text.len() + 1;
    if room != 0 && room < needed {
        return Err(Errno(too_long));
    }
    if !buffer.is_null() && room == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let place = match buffer.is_null() {
        // SAFETY: no preconditions.
        true => unsafe { libc::malloc(needed.max(room)) }.cast::<c_char>(),
        false => buffer,
    };
    if place.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: there is space for the text and a zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, text.len());
        *place.add(text.len()) = 0;
    }
    Ok(place)
}
