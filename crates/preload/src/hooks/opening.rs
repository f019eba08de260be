//! Opening files by name.

use std::ffi::{c_char, c_int, c_uint};

use weft_client::{At, File, OpenOptions};
use weft_wire::messages::FileKind;

use super::standard_streams;
use crate::dispatch::on_path;
use crate::guard::{Errno, Outcome, nothing_passes};
use crate::mounts::Made;
use crate::path_text::tidy;
use crate::paths::Target;
use crate::real::hooks;
use crate::shared::{self, Kind, Texts};
use crate::umask::mode_of_new;
use crate::{privileges, table};

/// What the kernel adds to the flags of every open file of a 64-bit program.
const O_LARGEFILE: c_int = 0o100000;
/// Flags that `F_GETFL` returns.
const FLAGS_KEPT: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_TMPFILE
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_PATH;

hooks! {
    fn open = open64 = __open = __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        let result = on_path(
            libc::AT_FDCWD,
            path,
            follows(flags),
            |_, path| open::real(path, flags, mode),
            |target| open_target(target, flags, mode),
        );
        keep_apart(result)
    }

    fn openat = openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        let result = on_path(
            dirfd,
            path,
            follows(flags),
            |dirfd, path| openat::real(dirfd, path, flags, mode),
            |target| open_target(target, flags, mode),
        );
        keep_apart(result)
    }

    fn __open_2 = __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open(path, flags, 0)
    }

    fn __openat_2 = __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        openat(dirfd, path, flags, 0)
    }

    fn creat = creat64(path: *const c_char, mode: c_uint) -> c_int {
        open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, mode)
    }
}

pub(super) fn follows(flags: c_int) -> bool {
    flags & libc::O_NOFOLLOW == 0 && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL
}

/// Moves a descriptor that this library opened for itself away from the program's.
fn keep_apart(fd: c_int) -> c_int {
    if crate::guard::is_inside() { table::move_away(fd) } else { fd }
}

/// Opens the file of a path. Returns a descriptor.
pub(crate) fn open_target(target: &Target, flags: c_int, mode: c_uint) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    let (access, follow) = (flags & libc::O_ACCMODE, flags & libc::O_NOFOLLOW == 0);
    if flags & (libc::O_TMPFILE | libc::O_PATH) == libc::O_TMPFILE {
        return open_unnamed(target, flags, mode);
    }
    if access == libc::O_ACCMODE {
        return Err(Errno(libc::EINVAL));
    }
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return open_named(target, flags);
    }
    // SAFETY: no preconditions.
    let by_other = unsafe { libc::geteuid() } != 0;
    if flags & libc::O_NOATIME != 0 && by_other && !is_own(made, at.clone(), follow) {
        return Err(Errno(libc::EPERM));
    }
    // On Linux a file that is opened read-only can be truncated too; this needs the permission to write.
    let truncate = flags & libc::O_TRUNC != 0;
    let writable = access != libc::O_RDONLY || truncate;
    let options = OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(writable)
        .create(flags & libc::O_CREAT != 0)
        .truncate(truncate)
        .append(flags & libc::O_APPEND != 0)
        .sync(flags & (libc::O_SYNC | libc::O_DSYNC) != 0)
        .follow(follow)
        .mode(mode_of_new(mode));
    let exclusive = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    let options = if exclusive { options.create_new(true) } else { options };
    let opened = made.client.open(at.clone(), &options);
    match opened {
        Ok(file) => describe_file(target, file, flags),
        Err(error) if error.errno() == libc::EISDIR && !writable && flags & libc::O_CREAT == 0 => {
            open_named(target, flags)
        }
        Err(error) if error.errno() == libc::EOPNOTSUPP => Err(why_not(made, at, flags)),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file that has no name in the directory of a path. Of its descriptor the path is the directory's.
fn open_unnamed(target: &Target, flags: c_int, mode: c_uint) -> Outcome<c_int> {
    let access = flags & libc::O_ACCMODE;
    if !matches!(access, libc::O_WRONLY | libc::O_RDWR) || flags & libc::O_CREAT != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let (made, at) = target.at()?;
    let options = OpenOptions::new()
        .read(access == libc::O_RDWR)
        .write(true)
        .create_new(flags & libc::O_EXCL != 0)
        .sync(flags & (libc::O_SYNC | libc::O_DSYNC) != 0)
        .follow(flags & libc::O_NOFOLLOW == 0)
        .mode(mode_of_new(mode));
    describe_file(target, made.client.create_unnamed(at, &options)?, flags)
}

/// Whether the effective user owns the file. True if it does not exist.
fn is_own(made: &Made, at: At<'_>, follow: bool) -> bool {
    made.client.stat(at, follow).map_or(true, |attr| attr.uid == made.client.caller().uid)
}

/// Why something other than a file or directory cannot be opened.
fn why_not(made: &Made, at: At<'_>, flags: c_int) -> Errno {
    let follow = flags & libc::O_NOFOLLOW == 0;
    // It fails everywhere while nobody reads.
    let wants_reader = flags & (libc::O_ACCMODE | libc::O_NONBLOCK) == libc::O_WRONLY | libc::O_NONBLOCK;
    match made.client.stat(at, follow).map(|attr| attr.kind) {
        Ok(FileKind::Symlink) => Errno(libc::ELOOP),
        Ok(FileKind::Directory) => Errno(libc::EISDIR),
        Ok(FileKind::Fifo) if !wants_reader => nothing_passes(),
        Ok(_) => Errno(libc::ENXIO),
        Err(error) => error.into(),
    }
}

/// Opens a directory, or anything with `O_PATH`.
fn open_named(target: &Target, flags: c_int) -> Outcome<c_int> {
    let (made, at) = target.at()?;
    let attr = made.client.stat(at.clone(), flags & libc::O_NOFOLLOW == 0)?;
    let is_directory = attr.kind == FileKind::Directory;
    let only_named = flags & libc::O_PATH != 0;
    if flags & libc::O_DIRECTORY != 0 && !is_directory {
        return Err(Errno(libc::ENOTDIR));
    }
    if !only_named {
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_CREAT != 0 {
            return Err(Errno(libc::EISDIR));
        }
        made.client.access(at, true, libc::R_OK as u32)?;
    }
    let kind = if is_directory { Kind::Directory } else { Kind::Path };
    describe(target, kind, attr.ino, flags, None)
}

/// Creates a descriptor of an open file.
fn describe_file(target: &Target, file: File, flags: c_int) -> Outcome<c_int> {
    let (attr, created) = (file.attr(), file.created());
    let fd = describe(target, Kind::File, attr.ino, flags, Some(file))?;
    let truncated = flags & libc::O_TRUNC != 0;
    if (truncated || flags & libc::O_ACCMODE != libc::O_RDONLY)
        && let Some(open) = table::find_named(fd)
    {
        privileges::note(&open, &attr, created);
        if truncated && !created {
            privileges::take_away(&open)?;
        }
    }
    Ok(fd)
}

fn describe(target: &Target, kind: Kind, ino: u64, flags: c_int, file: Option<File>) -> Outcome<c_int> {
    let pass = file.as_ref().map(File::pass).unwrap_or_default();
    let url = target.mount.url();
    let path = tidy(&target.full);
    let texts = Texts { pass: &pass, url: url.as_bytes(), prefix: &target.mount.prefix, path: &path };
    let kept = flags & FLAGS_KEPT | if kind == Kind::Path { 0 } else { O_LARGEFILE };
    let (fd, page) = shared::create(kind, ino, kept, flags & libc::O_CLOEXEC != 0, &texts)?;
    table::publish(fd, page, target.mount, file);
    standard_streams::after_change(fd);
    Ok(fd)
}
