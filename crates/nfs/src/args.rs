//! Arguments of procedures, from the bytes of a call (RFC 1813, 2 and 3.3). Names and data are not copied, and
//! nothing is allocated whose length the message only claims.

use nfs3_types::nfs3::{
    NFS3_FHSIZE, Nfs3Option, createhow3, createverf3, devicedata3, mknoddata3, nfstime3, sattr3, set_atime,
    set_mtime, specdata3, stable_how,
};
use weft_onc_rpc::xdr::{Reader, XdrError};

use crate::place::Place;

/// Takes one kind of value.
type Taken<T> = Result<T, XdrError>;

/// A handle's bytes.
pub(crate) fn handle<'a>(from: &mut Reader<'a>) -> Taken<&'a [u8]> {
    from.opaque(NFS3_FHSIZE)
}

/// A name or a path, of whatever length: who uses it says when it is too long.
pub(crate) fn name<'a>(from: &mut Reader<'a>) -> Taken<&'a [u8]> {
    from.opaque(usize::MAX)
}

/// A directory and a name in it.
pub(crate) fn place<'a>(from: &mut Reader<'a>) -> Taken<Place<'a>> {
    Ok(Place { dir: handle(from)?, name: name(from)? })
}

fn flag(from: &mut Reader<'_>) -> Taken<bool> {
    match from.u32()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(XdrError::Wrong),
    }
}

fn time(from: &mut Reader<'_>) -> Taken<nfstime3> {
    Ok(nfstime3 { seconds: from.u32()?, nseconds: from.u32()? })
}

/// The time that a SETATTR is guarded by.
pub(crate) fn guard(from: &mut Reader<'_>) -> Taken<Option<nfstime3>> {
    if flag(from)? { time(from).map(Some) } else { Ok(None) }
}

fn maybe_u32(from: &mut Reader<'_>) -> Taken<Nfs3Option<u32>> {
    Ok(if flag(from)? { Nfs3Option::Some(from.u32()?) } else { Nfs3Option::None })
}

/// Attributes to be set.
pub(crate) fn sattr(from: &mut Reader<'_>) -> Taken<sattr3> {
    let (mode, uid, gid) = (maybe_u32(from)?, maybe_u32(from)?, maybe_u32(from)?);
    let size = if flag(from)? { Nfs3Option::Some(from.u64()?) } else { Nfs3Option::None };
    let atime = match from.u32()? {
        0 => set_atime::DONT_CHANGE,
        1 => set_atime::SET_TO_SERVER_TIME,
        2 => set_atime::SET_TO_CLIENT_TIME(time(from)?),
        _ => return Err(XdrError::Wrong),
    };
    let mtime = match from.u32()? {
        0 => set_mtime::DONT_CHANGE,
        1 => set_mtime::SET_TO_SERVER_TIME,
        2 => set_mtime::SET_TO_CLIENT_TIME(time(from)?),
        _ => return Err(XdrError::Wrong),
    };
    Ok(sattr3 { mode, uid, gid, size, atime, mtime })
}

/// How a file is to be created.
pub(crate) fn how(from: &mut Reader<'_>) -> Taken<createhow3> {
    Ok(match from.u32()? {
        0 => createhow3::UNCHECKED(sattr(from)?),
        1 => createhow3::GUARDED(sattr(from)?),
        2 => createhow3::EXCLUSIVE(createverf3(from.fixed(8)?.try_into().expect("8 bytes"))),
        _ => return Err(XdrError::Wrong),
    })
}

/// What MKNOD is to make.
pub(crate) fn special(from: &mut Reader<'_>) -> Taken<mknoddata3> {
    let device = |from: &mut Reader<'_>| {
        let dev_attributes = sattr(from)?;
        let spec = specdata3 { specdata1: from.u32()?, specdata2: from.u32()? };
        Ok(devicedata3 { dev_attributes, spec })
    };
    Ok(match from.u32()? {
        3 => mknoddata3::NF3BLK(device(from)?),
        4 => mknoddata3::NF3CHR(device(from)?),
        6 => mknoddata3::NF3SOCK(sattr(from)?),
        7 => mknoddata3::NF3FIFO(sattr(from)?),
        // Files, directories and links have procedures of their own.
        1 | 2 | 5 => mknoddata3::default,
        _ => return Err(XdrError::Wrong),
    })
}

/// A WRITE but for its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) stable: stable_how,
    /// Bytes of data that follow.
    pub(crate) data_bytes: u32,
}

/// Takes what a WRITE begins with.
pub(crate) fn write<'a>(from: &mut Reader<'a>) -> Taken<Write<'a>> {
    let (file, offset, count) = (handle(from)?, from.u64()?, from.u32()?);
    let stable = match from.u32()? {
        0 => stable_how::UNSTABLE,
        1 => stable_how::DATA_SYNC,
        2 => stable_how::FILE_SYNC,
        _ => return Err(XdrError::Wrong),
    };
    Ok(Write { file, offset, count, stable, data_bytes: from.u32()? })
}

#[cfg(test)]
mod tests {
    use nfs3_types::nfs3::{
        CREATE3args, SETATTR3args, WRITE3args, diropargs3, filename3, nfs_fh3, sattrguard3,
    };
    use nfs3_types::xdr_codec::{Opaque, Pack};

    use super::*;

    fn packed(value: &impl Pack) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.pack(&mut bytes).unwrap();
        bytes
    }

    fn file() -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned(vec![5; 36]) }
    }

    fn wanted() -> sattr3 {
        sattr3 {
            mode: Nfs3Option::Some(0o644),
            size: Nfs3Option::Some(1 << 40),
            atime: set_atime::SET_TO_SERVER_TIME,
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 2 }),
            ..sattr3::default()
        }
    }

    #[test]
    fn arguments_are_read_as_others_write_them() {
        let guard_time = nfstime3 { seconds: 8, nseconds: 9 };
        let args =
            SETATTR3args { object: file(), new_attributes: wanted(), guard: sattrguard3::Some(guard_time) };
        let bytes = packed(&args);
        let mut reader = Reader::new(&bytes);
        assert_eq!(handle(&mut reader), Ok(&[5; 36][..]));
        assert_eq!(packed(&sattr(&mut reader).unwrap()), packed(&wanted()));
        assert_eq!(guard(&mut reader), Ok(Some(guard_time)));
        assert!(reader.rest().is_empty());
        for chosen in [
            createhow3::UNCHECKED(wanted()),
            createhow3::GUARDED(wanted()),
            createhow3::EXCLUSIVE(createverf3([1, 2, 3, 4, 5, 6, 7, 8])),
        ] {
            let expected = packed(&chosen);
            let where_ = diropargs3 { dir: file(), name: filename3::from(&b"name"[..]) };
            let bytes = packed(&CREATE3args { where_, how: chosen });
            let mut reader = Reader::new(&bytes);
            let place = place(&mut reader).unwrap();
            assert_eq!((place.dir, place.name), (&[5; 36][..], &b"name"[..]));
            assert_eq!(packed(&how(&mut reader).unwrap()), expected);
        }
    }

    #[test]
    fn a_write_ends_where_its_data_begin() {
        let args = WRITE3args {
            file: file(),
            offset: 1 << 33,
            count: 5,
            stable: stable_how::DATA_SYNC,
            data: Opaque::owned(b"abcde".to_vec()),
        };
        let bytes = packed(&args);
        let mut reader = Reader::new(&bytes);
        let head = write(&mut reader).unwrap();
        assert_eq!((head.offset, head.count, head.stable), (1 << 33, 5, stable_how::DATA_SYNC));
        assert_eq!((head.data_bytes, reader.rest()), (5, &b"abcde\0\0\0"[..]));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let right = [packed(&wanted()), packed(&createhow3::GUARDED(wanted())), packed(&file())];
        weft_test_fuzz::run("nfs-args", &right, |bytes| {
            let _ = sattr(&mut Reader::new(bytes));
            let _ = how(&mut Reader::new(bytes));
            let _ = special(&mut Reader::new(bytes));
            let _ = place(&mut Reader::new(bytes));
            let _ = guard(&mut Reader::new(bytes));
            let _ = write(&mut Reader::new(bytes));
        });
    }
}
