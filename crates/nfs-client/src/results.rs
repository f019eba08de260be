//! Results of procedures, decoded (RFC 1813, 3.3). Every number from the wire is checked before anything is allocated.

use std::sync::Arc;

use weft_onc_rpc::xdr::Reader;

use crate::error::{Decoded, Malformed};
use crate::status::Status;
use crate::types::*;

/// The status that all results begin with.
pub(crate) fn status(reader: &mut Reader<'_>) -> Decoded<Result<(), Status>> {
    Ok(match reader.u32()? {
        0 => Ok(()),
        other => Err(Status(other)),
    })
}

pub(crate) fn found(reader: &mut Reader<'_>, path: Arc<str>) -> Decoded<Found> {
    Ok(Found {
        handle: FileHandle::read(reader, path)?,
        attr: Attr::read_option(reader)?,
        dir_attr: Attr::read_option(reader)?,
    })
}

pub(crate) fn access(reader: &mut Reader<'_>) -> Decoded<Access> {
    let attr = Attr::read_option(reader)?;
    Ok(Access { allowed: reader.u32()?, attr })
}

pub(crate) fn link_target(reader: &mut Reader<'_>) -> Decoded<Vec<u8>> {
    Attr::read_option(reader)?;
    Ok(reader.opaque(PATH_BYTES_MAX)?.to_vec())
}

/// Of READ; `data_bytes` came into the caller's memory, which has room for `room_bytes`.
pub(crate) fn read(reader: &mut Reader<'_>, data_bytes: Option<usize>, room_bytes: usize) -> Decoded<Read> {
    let attr = Attr::read_option(reader)?;
    let (count, is_end, length) = (reader.u32()? as usize, reader.bool()?, reader.u32()? as usize);
    let bytes = data_bytes.unwrap_or(0);
    if bytes > room_bytes || length > room_bytes {
        return Err(Malformed("it has more data than were asked for"));
    }
    if bytes != length || count != length {
        return Err(Malformed("the number of bytes and the data differ"));
    }
    Ok(Read { bytes, is_end, attr })
}

pub(crate) fn written(reader: &mut Reader<'_>, sent_bytes: usize) -> Decoded<Written> {
    let change = Change::read(reader)?;
    let bytes = reader.u32()? as usize;
    if bytes > sent_bytes {
        return Err(Malformed("it took more bytes than were sent"));
    }
    let stable = match reader.u32()? {
        0 => Stable::Unstable,
        1 => Stable::Data,
        2 => Stable::File,
        _ => return Err(Malformed("it names no known way of keeping data")),
    };
    Ok(Written { bytes, stable, verifier: reader.array()?, change })
}

pub(crate) fn committed(reader: &mut Reader<'_>) -> Decoded<Committed> {
    Ok(Committed { change: Change::read(reader)?, verifier: reader.array()? })
}

pub(crate) fn created(reader: &mut Reader<'_>, path: Arc<str>) -> Decoded<Created> {
    Ok(Created {
        handle: reader.option(|reader| FileHandle::read(reader, path))?,
        attr: Attr::read_option(reader)?,
        dir: Change::read(reader)?,
    })
}

pub(crate) fn renamed(reader: &mut Reader<'_>) -> Decoded<(Change, Change)> {
    Ok((Change::read(reader)?, Change::read(reader)?))
}

pub(crate) fn linked(reader: &mut Reader<'_>) -> Decoded<(Option<Attr>, Change)> {
    Ok((Attr::read_option(reader)?, Change::read(reader)?))
}

/// Of READDIR, or with attributes and handles of READDIRPLUS.
pub(crate) fn page(reader: &mut Reader<'_>, dir: &FileHandle, is_plus: bool, from: Cookie) -> Decoded<Page> {
    let dir_attr = Attr::read_option(reader)?;
    let verifier = reader.array()?;
    let (mut entries, mut cookie) = (Vec::new(), from.cookie);
    while reader.bool()? {
        let fileid = reader.u64()?;
        let name = reader.opaque(NAME_BYTES_MAX)?.to_vec();
        let is_name = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
        if !is_name {
            return Err(Malformed("a name in it cannot be one"));
        }
        cookie = reader.u64()?;
        let (mut attr, mut handle) = (None, None);
        if is_plus {
            attr = Attr::read_option(reader)?;
            handle = reader.option(|reader| FileHandle::read(reader, dir.path_of(&name)))?;
        }
        entries.push(Entry { fileid, name, cookie, attr, handle });
    }
    let is_end = reader.bool()?;
    if entries.is_empty() && !is_end {
        return Err(Malformed("a listing neither goes on nor ends"));
    }
    Ok(Page { entries, next: Cookie { cookie, verifier }, is_end, dir_attr })
}

pub(crate) fn fs_stat(reader: &mut Reader<'_>) -> Decoded<FsStat> {
    Attr::read_option(reader)?;
    Ok(FsStat {
        total_bytes: reader.u64()?,
        free_bytes: reader.u64()?,
        available_bytes: reader.u64()?,
        total_files: reader.u64()?,
        free_files: reader.u64()?,
        available_files: reader.u64()?,
        unchanged_s: reader.u32()?,
    })
}

pub(crate) fn fs_info(reader: &mut Reader<'_>) -> Decoded<FsInfo> {
    Attr::read_option(reader)?;
    let mut word = || reader.u32();
    let (read_bytes_max, read_bytes_best, _) = (word()?, word()?, word()?);
    let (write_bytes_max, write_bytes_best, _, readdir_bytes_best) = (word()?, word()?, word()?, word()?);
    Ok(FsInfo {
        read_bytes_max,
        read_bytes_best,
        write_bytes_max,
        write_bytes_best,
        readdir_bytes_best,
        file_bytes_max: reader.u64()?,
        time_step: Time::read(reader)?,
        properties: reader.u32()?,
    })
}

pub(crate) fn path_conf(reader: &mut Reader<'_>) -> Decoded<PathConf> {
    Attr::read_option(reader)?;
    Ok(PathConf {
        links_max: reader.u32()?,
        name_bytes_max: reader.u32()?,
        no_trunc: reader.bool()?,
        chown_restricted: reader.bool()?,
        case_insensitive: reader.bool()?,
        case_preserving: reader.bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode_reply;
    use crate::rpc::tests::{accepted, read_results};
    use weft_onc_rpc::xdr::Writer;

    fn dir() -> FileHandle {
        FileHandle::new(b"dir", "/export".into()).unwrap()
    }

    fn listing(names: &[&[u8]], is_plus: bool, is_end: bool) -> Vec<u8> {
        let begin = Writer::new().u32(0).fixed(&[9; 8]);
        let all = names.iter().enumerate().fold(begin, |writer, (number, name)| {
            let writer = writer.u32(1).u64(number as u64).opaque(name).u64(number as u64 + 100);
            if is_plus { writer.u32(0).u32(1).opaque(name) } else { writer }
        });
        all.u32(0).bool(is_end).into_bytes()
    }

    #[test]
    fn listings_have_names_handles_and_a_place_to_go_on() {
        for is_plus in [false, true] {
            let bytes = listing(&[b"a", b"bcd"], is_plus, false);
            let page = page(&mut Reader::new(&bytes), &dir(), is_plus, Cookie::default()).unwrap();
            assert_eq!(page.next, Cookie { cookie: 101, verifier: [9; 8] });
            assert_eq!((page.entries.len(), page.is_end), (2, false));
            assert_eq!(page.entries[1].name, b"bcd");
            let handle = page.entries[1].handle.as_ref();
            assert_eq!(
                handle.map(|handle| (handle.bytes(), &**handle.path())),
                is_plus.then_some((&b"bcd"[..], "/export/bcd"))
            );
        }
    }

    #[test]
    fn listings_that_cannot_be_are_refused() {
        for (names, is_end) in [(&[&b""[..]][..], true), (&[b"a/b"], true), (&[b"a\0"], true), (&[], false)] {
            let bytes = listing(names, false, is_end);
            assert!(page(&mut Reader::new(&bytes), &dir(), false, Cookie::default()).is_err(), "{names:?}");
        }
        let long = listing(&[&[b'x'; NAME_BYTES_MAX + 1]], false, true);
        assert!(page(&mut Reader::new(&long), &dir(), false, Cookie::default()).is_err());
    }

    #[test]
    fn a_read_must_have_the_data_it_announces() {
        let results = read_results(5, true);
        let read =
            |data_bytes, room_bytes| super::read(&mut Reader::new(&results[4..]), data_bytes, room_bytes);
        assert_eq!(read(Some(5), 10).map(|read| (read.bytes, read.is_end)), Ok((5, true)));
        assert!(read(Some(4), 10).is_err(), "the record ended too early");
        assert!(read(Some(5), 4).is_err(), "more than there was room for");
        assert!(read(None, 10).is_err());
    }

    #[test]
    fn a_handle_of_more_than_64_bytes_is_refused() {
        let bytes = Writer::new().opaque(&[1; HANDLE_BYTES_MAX + 1]).u64(0).into_bytes();
        assert!(found(&mut Reader::new(&bytes), "/x".into()).is_err());
    }

    #[test]
    fn a_server_cannot_take_more_than_was_sent() {
        let bytes = [0, 0, 7, 2, 1, 1].into_iter().fold(Writer::new(), Writer::u32).into_bytes();
        assert!(written(&mut Reader::new(&bytes), 6).is_err());
        assert_eq!(written(&mut Reader::new(&bytes), 7).map(|written| written.stable), Ok(Stable::File));
    }

    #[test]
    fn damaged_replies_are_fuzzed() {
        let right = [
            accepted(1, &[&[0; 4][..], &listing(&[b"a", b"bcd"], true, true)].concat()),
            accepted(1, &[&[0; 4][..], &listing(&[b"name"], false, true)].concat()),
            accepted(1, &read_results(9, true)),
            accepted(1, &[0; 200]),
            accepted(1, &[0, 0, 0, 70, 0, 0, 0, 0]),
        ];
        weft_test_fuzz::run("nfs-replies", &right, |reply| {
            let Ok(results) = decode_reply(reply) else { return };
            let mut reader = Reader::new(results);
            let Ok(Ok(())) = status(&mut reader) else { return };
            let of = |take: &dyn Fn(&mut Reader<'_>)| take(&mut Reader::new(reader.rest()));
            of(&|reader| _ = found(reader, "/x".into()));
            of(&|reader| _ = access(reader));
            of(&|reader| _ = link_target(reader));
            of(&|reader| _ = read(reader, Some(9), 10));
            of(&|reader| _ = written(reader, 10));
            of(&|reader| _ = committed(reader));
            of(&|reader| _ = created(reader, "/x".into()));
            of(&|reader| _ = renamed(reader));
            of(&|reader| _ = linked(reader));
            of(&|reader| _ = page(reader, &dir(), true, Cookie::default()));
            of(&|reader| _ = page(reader, &dir(), false, Cookie::default()));
            of(&|reader| _ = fs_stat(reader));
            of(&|reader| _ = fs_info(reader));
            of(&|reader| _ = path_conf(reader));
            of(&|reader| _ = crate::mount::mounted(reader, "/x"));
            of(&|reader| _ = crate::mount::exports(reader));
        });
    }
}
