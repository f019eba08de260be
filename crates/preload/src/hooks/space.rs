//! The space of file systems, and their limits.

use std::ffi::{c_char, c_int, c_long};

use libc::{statfs as StatFs, statvfs as StatVfs};
use weft_wire::limits::NAME_BYTES_MAX;

use crate::dispatch::on_path;
use crate::guard::{Errno, Outcome, enter};
use crate::mounts::Made;
use crate::paths::Target;
use crate::real::hooks;
use crate::table::find;

const HERE: c_int = libc::AT_FDCWD;
const BLOCK_BYTES: u64 = 4096;
/// `f_type`: "WEFT".
const FILE_SYSTEM_TYPE: i64 = 0x5745_4654;

hooks! {
    fn statfs = statfs64 = __statfs(path: *const c_char, place: *mut StatFs) -> c_int {
        on_path(HERE, path, true, |_, path| statfs::real(path, place), |target| space(place_of(target)?, place))
    }

    fn fstatfs = fstatfs64(fd: c_int, place: *mut StatFs) -> c_int where fd is open {
        space((open.mount.made()?, open.shared().ino), place)
    }

    fn statvfs = statvfs64(path: *const c_char, place: *mut StatVfs) -> c_int {
        on_path(HERE, path, true, |_, path| statvfs::real(path, place), |target| space_v(place_of(target)?, place))
    }

    fn fstatvfs = fstatvfs64(fd: c_int, place: *mut StatVfs) -> c_int where fd is open {
        space_v((open.mount.made()?, open.shared().ino), place)
    }

    fn pathconf(path: *const c_char, name: c_int) -> c_long {
        on_path(HERE, path, true, |_, path| pathconf::real(path, name), |_| limit(name))
    }

    fn fpathconf(fd: c_int, name: c_int) -> c_long {
        if find(fd).is_some() { enter(|| limit(name)) } else { fpathconf::real(fd, name) }
    }
}

/// The connections for an existing file, and its inode.
type Place = (&'static Made, u64);

fn place_of(target: &Target) -> Outcome<Place> {
    let (made, at) = target.at()?;
    let attr = made.client.stat(at, true)?;
    Ok((made, attr.ino))
}

unsafe fn space(of: Place, place: *mut StatFs) -> Outcome<c_int> {
    // SAFETY: zeroed bytes are a valid `statvfs` and a valid `statfs`; the program passes a pointer to one.
    let (place, found) = unsafe {
        let mut found: StatVfs = std::mem::zeroed();
        space_v(of, &mut found)?;
        *place = std::mem::zeroed();
        (&mut *place, found)
    };
    place.f_type = FILE_SYSTEM_TYPE as _;
    (place.f_bsize, place.f_frsize) = (BLOCK_BYTES as _, BLOCK_BYTES as _);
    (place.f_blocks, place.f_bfree, place.f_bavail) = (found.f_blocks, found.f_bfree, found.f_bavail);
    (place.f_files, place.f_ffree) = (found.f_files, found.f_ffree);
    place.f_namelen = found.f_namemax as _;
    Ok(0)
}

unsafe fn space_v((made, ino): Place, place: *mut StatVfs) -> Outcome<c_int> {
    let found = made.client.statfs_at(ino)?;
    // SAFETY: zeroed bytes are a valid `statvfs`; the program passes a pointer to one.
    let place = unsafe {
        *place = std::mem::zeroed();
        &mut *place
    };
    (place.f_bsize, place.f_frsize) = (BLOCK_BYTES, BLOCK_BYTES);
    place.f_blocks = found.space_bytes / BLOCK_BYTES;
    place.f_bfree = found.free_bytes / BLOCK_BYTES;
    place.f_bavail = found.available_bytes / BLOCK_BYTES;
    place.f_files = found.files + u64::from(u32::MAX);
    (place.f_ffree, place.f_favail) = (u32::MAX.into(), u32::MAX.into());
    (place.f_fsid, place.f_namemax) = (made.device, NAME_BYTES_MAX as u64);
    Ok(0)
}

fn limit(name: c_int) -> Outcome<c_long> {
    match name {
        libc::_PC_NAME_MAX => Ok(NAME_BYTES_MAX as _),
        libc::_PC_PATH_MAX => Ok(libc::PATH_MAX.into()),
        libc::_PC_LINK_MAX => Ok(u32::MAX.into()),
        libc::_PC_PIPE_BUF => Ok(4096),
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED => Ok(1),
        _ => Err(Errno(libc::EINVAL)),
    }
}
