//! Attributes in the words of NFSv3 (RFC 1813, 2.5 and 2.6).

use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfstime3, post_op_attr, sattr3, set_atime, set_mtime, specdata3, wcc_attr,
    wcc_data,
};
use weft_client::{SetAttr, SetTime};
use weft_wire::messages::{Attr, DirState, FileKind, Time};

/// A time; those before 1970 are 1970, and those after 2106 the last that there is.
pub(crate) fn time_of(time: &Time) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => nfstime3 { seconds: 0, nseconds: 0 },
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

fn kind_of(kind: FileKind) -> ftype3 {
    match kind {
        FileKind::File => ftype3::NF3REG,
        FileKind::Directory => ftype3::NF3DIR,
        FileKind::Symlink => ftype3::NF3LNK,
        FileKind::Fifo => ftype3::NF3FIFO,
        FileKind::Socket => ftype3::NF3SOCK,
        FileKind::Character => ftype3::NF3CHR,
        FileKind::Block => ftype3::NF3BLK,
    }
}

/// Attributes in the file system `fsid`, of what takes `used_bytes`.
pub(crate) fn fattr_of(attr: &Attr, used_bytes: u64, fsid: u64) -> fattr3 {
    let rdev = u64::from(attr.rdev);
    fattr3 {
        type_: kind_of(attr.kind),
        mode: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: used_bytes,
        rdev: specdata3 { specdata1: libc::major(rdev), specdata2: libc::minor(rdev) },
        fsid,
        fileid: attr.ino,
        atime: time_of(&attr.atime),
        mtime: time_of(&attr.mtime),
        ctime: time_of(&attr.ctime),
    }
}

/// What is known after an operation.
pub(crate) fn post_op(attr: Option<fattr3>) -> post_op_attr {
    attr.map_or(Nfs3Option::None, Nfs3Option::Some)
}

/// What is known before and after an operation, both of one transaction.
pub(crate) fn wcc(before: Option<wcc_attr>, after: Option<fattr3>) -> wcc_data {
    wcc_data { before: before.map_or(Nfs3Option::None, Nfs3Option::Some), after: post_op(after) }
}

/// A file before an operation.
pub(crate) fn before_of(attr: &Attr) -> wcc_attr {
    wcc_attr { size: attr.size, mtime: time_of(&attr.mtime), ctime: time_of(&attr.ctime) }
}

/// A directory before an operation.
pub(crate) fn dir_before_of(state: &DirState) -> wcc_attr {
    wcc_attr { size: state.size, mtime: time_of(&state.mtime), ctime: time_of(&state.ctime) }
}

fn time_from(time: nfstime3) -> SetTime {
    SetTime::To(Time { seconds: time.seconds.into(), nanoseconds: time.nseconds })
}

fn given<T: Copy + nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    option: &Nfs3Option<T>,
) -> Option<T> {
    match option {
        Nfs3Option::Some(value) => Some(*value),
        Nfs3Option::None => None,
    }
}

/// Changes of attributes but the size; `None` where a time is none.
pub(crate) fn changes_of(wanted: &sattr3) -> Option<SetAttr> {
    let is_time = |time: &nfstime3| time.nseconds < 1_000_000_000;
    let atime = match wanted.atime {
        set_atime::DONT_CHANGE => None,
        set_atime::SET_TO_SERVER_TIME => Some(SetTime::Now),
        set_atime::SET_TO_CLIENT_TIME(time) if is_time(&time) => Some(time_from(time)),
        set_atime::SET_TO_CLIENT_TIME(_) => return None,
    };
    let mtime = match wanted.mtime {
        set_mtime::DONT_CHANGE => None,
        set_mtime::SET_TO_SERVER_TIME => Some(SetTime::Now),
        set_mtime::SET_TO_CLIENT_TIME(time) if is_time(&time) => Some(time_from(time)),
        set_mtime::SET_TO_CLIENT_TIME(_) => return None,
    };
    let mode = given(&wanted.mode).map(|mode| mode & 0o7777);
    Some(SetAttr { mode, uid: given(&wanted.uid), gid: given(&wanted.gid), atime, mtime })
}

/// The size that is wanted.
pub(crate) fn size_of(wanted: &sattr3) -> Option<u64> {
    given(&wanted.size)
}

/// The mode of something new that is wanted.
pub(crate) fn mode_of(wanted: &sattr3) -> Option<u32> {
    given(&wanted.mode).map(|mode| mode & 0o7777)
}

/// A device's number as Weft has it; `None` for one that does not fit.
pub(crate) fn device_of(spec: &specdata3) -> Option<u32> {
    u32::try_from(libc::makedev(spec.specdata1, spec.specdata2)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_nfs_cannot_say_are_the_nearest_that_it_can() {
        let time = |seconds| time_of(&Time { seconds, nanoseconds: 5 });
        assert_eq!(time(7), nfstime3 { seconds: 7, nseconds: 5 });
        assert_eq!(time(-1).seconds, 0);
        assert_eq!(time(1 << 32).seconds, u32::MAX);
    }

    #[test]
    fn devices_keep_their_numbers() {
        for (major, minor) in [(0, 0), (8, 1), (259, 4000), (4095, (1 << 20) - 1)] {
            let spec = specdata3 { specdata1: major, specdata2: minor };
            let rdev = u64::from(device_of(&spec).unwrap());
            assert_eq!((libc::major(rdev), libc::minor(rdev)), (major, minor));
        }
        assert_eq!(device_of(&specdata3 { specdata1: 4096, specdata2: 0 }), None);
    }

    #[test]
    fn a_time_that_is_none_is_refused() {
        let mut wanted = sattr3 { atime: set_atime::SET_TO_SERVER_TIME, ..sattr3::default() };
        assert_eq!(changes_of(&wanted).unwrap().atime, Some(SetTime::Now));
        wanted.mtime = set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 1_000_000_000 });
        assert!(changes_of(&wanted).is_none());
    }
}
