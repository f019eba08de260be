//! From an export's path to its handle: MOUNT version 3 (RFC 1813, 5) and portmap version 2 (RFC 1833, 3).

use std::cell::RefCell;
use std::rc::Rc;

use weft_onc_rpc::portmap::{self, Mapping};
use weft_onc_rpc::xdr::{Reader, Writer};

use crate::error::{Decoded, Error, ErrorKind, Failure, Malformed, Result};
use crate::link::Data;
use crate::options::ConnectOptions;
use crate::results;
use crate::rpc::{self, Target};
use crate::session::{Session, Shared, connect_any};
use crate::status::Status;
use crate::types::{FileHandle, NAME_BYTES_MAX, PATH_BYTES_MAX};
use crate::url::{NfsUrl, Transport};

const GETPORT: Target =
    Target { program: portmap::PROGRAM, version: portmap::VERSION, procedure: portmap::GETPORT };
pub(crate) const NFS_PROGRAM: u32 = 100_003;
pub(crate) const MOUNT_PROGRAM: u32 = 100_005;
const VERSION: u32 = 3;
const MNT: Target = Target { program: MOUNT_PROGRAM, version: VERSION, procedure: 1 };
const UMNT: Target = Target { program: MOUNT_PROGRAM, version: VERSION, procedure: 3 };
const EXPORT: Target = Target { program: MOUNT_PROGRAM, version: VERSION, procedure: 5 };
/// The greatest flavor of credentials that this client offers.
const AUTH_SYS: u32 = 1;
/// How many flavors of an export are looked at.
const FLAVORS_MAX: u32 = 64;
/// Longest list of exports that a server may write over RDMA.
const EXPORTS_BYTES_MAX: usize = 128 << 10;
/// Most exports that are taken from a server.
const EXPORTS_MAX: usize = 65_536;

/// A directory that a server exports, and the hosts or networks that may mount it; none are all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Its path on the server.
    pub path: Vec<u8>,
    /// Who may mount it.
    pub clients: Vec<Vec<u8>>,
}

fn begin(
    session: &mut Session,
    target: Target,
    reply_bytes: usize,
    arguments: impl FnOnce(Writer) -> Writer,
) -> u64 {
    let head = arguments(session.head_of(target)).into_bytes();
    // SAFETY: no memory of the caller's.
    unsafe { session.begin(head, Data::with_reply(reply_bytes), false) }
}

/// A call of another program than NFS, to its end, whose reply may have so many bytes besides the usual.
fn ask(
    session: &mut Session,
    target: Target,
    reply_bytes: usize,
    arguments: impl FnOnce(Writer) -> Writer,
) -> std::result::Result<Vec<u8>, Failure> {
    let number = begin(session, target, reply_bytes, arguments);
    session.wait(number);
    let answer = session.take(number).unwrap_or_else(|| Err(Failure::protocol("there is no answer")))?;
    rpc::decode_reply(&answer.reply).map(<[u8]>::to_vec)
}

/// The port of a program, from the host's portmapper.
pub(crate) fn port_of(host: &str, program: u32, options: &ConnectOptions) -> Result<u16> {
    let name = if program == NFS_PROGRAM { "NFS" } else { "MOUNT" };
    let advice = "give `nfs://HOST:PORT/PATH?mountport=PORT`";
    let operation = || format!("ask the portmapper for the port of {name}");
    let connected = connect_any(host, portmap::PORT, options, &|| options.tcp());
    let mut session = connected.map_err(|(failure, server)| {
        let failure = Failure { detail: format!("{}; or {advice}", failure.detail), ..failure };
        failure.of(operation(), server)
    })?;
    let mapping = Mapping { program, version: VERSION, protocol: portmap::TCP, port: 0 };
    let port = ask(&mut session, GETPORT, 0, |writer| mapping.write(writer))
        .and_then(|results| Ok(portmap::decode_port(&results).map_err(Malformed::from)?));
    match port {
        Ok(Some(port)) => Ok(port),
        Ok(None) => {
            let why = format!("{name} version {VERSION} over TCP is not registered there; {advice}");
            Err(Failure::new(ErrorKind::Unreachable, why).of(operation(), session.server()))
        }
        Err(failure) => Err(failure.of(operation(), session.server())),
    }
}

/// A connection to the server's MOUNT program: at the port that the URL names, by the connection to NFS (`nfs`) where both
/// are served there, or where the portmapper says. It is over TCP, unless it is that of NFS.
pub(crate) fn connect(url: &NfsUrl, nfs: &Shared, nfs_port: u16, options: &ConnectOptions) -> Result<Shared> {
    let is_rdma = url.transport == Transport::Rdma;
    let port = match url.mount_port {
        Some(port) => port,
        None if url.port.is_none() && !is_rdma => port_of(&url.host, MOUNT_PROGRAM, options)?,
        None => {
            let null = Target { procedure: 0, ..MNT };
            match ask(&mut nfs.borrow_mut(), null, 0, |writer| writer) {
                Ok(_) => return Ok(nfs.clone()),
                Err(_) => port_of(&url.host, MOUNT_PROGRAM, options)?,
            }
        }
    };
    if port == nfs_port && !is_rdma {
        return Ok(nfs.clone());
    }
    let connected = connect_any(&url.host, port, options, &|| options.tcp());
    let session = connected.map_err(|(failure, server)| failure.of("connect to MOUNT", server))?;
    Ok(Rc::new(RefCell::new(session)))
}

/// Results of MNT behind the status: the handle, and whether the export takes AUTH_SYS.
pub(crate) fn mounted(reader: &mut Reader<'_>, path: &str) -> Decoded<(FileHandle, bool)> {
    let handle = FileHandle::read(reader, path.into())?;
    let flavors = reader.u32()?;
    // A server that names none, as some do, has to be tried.
    let mut takes_sys = flavors == 0;
    for _ in 0..flavors.min(FLAVORS_MAX) {
        takes_sys |= reader.u32()? <= AUTH_SYS;
    }
    Ok((handle, takes_sys))
}

/// The handle of a directory that is exported, or is in one.
pub(crate) fn mount(mount: &Shared, path: &str) -> Result<FileHandle> {
    let mut session = mount.borrow_mut();
    let results = ask(&mut session, MNT, 4 * FLAVORS_MAX as usize, |writer| writer.opaque(path.as_bytes()))
        .and_then(|results| {
            let mut reader = Reader::new(&results);
            if let Err(status) = results::status(&mut reader)? {
                return Err(refused(status));
            }
            match mounted(&mut reader, path)? {
                (handle, true) => Ok(handle),
                (_, false) => {
                    let why = "it is exported for Kerberos only, which this client does not offer";
                    Err(Failure::new(ErrorKind::Refused(libc::EACCES), why))
                }
            }
        });
    results.map_err(|failure| failure.of(format!("MNT {path}"), session.server()))
}

fn refused(status: Status) -> Failure {
    let advice = match status {
        Status::NOENT => "; is it exported?",
        Status(13) => "; is it exported to this host?",
        _ => "",
    };
    let detail = format!("{}: {}{advice}", status.mount_name(), status.meaning());
    Failure { detail, ..Failure::of_status(status) }
}

/// Tells the server that a directory is used no more, and does not wait: servers only list it.
pub(crate) fn unmount(mount: &Shared, path: &str) {
    let mut session = mount.borrow_mut();
    let number = begin(&mut session, UMNT, 0, |writer| writer.opaque(path.as_bytes()));
    session.send();
    session.cancel(number);
}

/// Results of EXPORT.
pub(crate) fn exports(reader: &mut Reader<'_>) -> Decoded<Vec<Export>> {
    let mut exports = Vec::new();
    while reader.bool()? {
        let path = reader.opaque(PATH_BYTES_MAX)?.to_vec();
        let mut clients = Vec::new();
        while reader.bool()? {
            clients.push(reader.opaque(NAME_BYTES_MAX)?.to_vec());
        }
        exports.push(Export { path, clients });
        if exports.len() > EXPORTS_MAX {
            return Err(Malformed("it has too many exports"));
        }
    }
    Ok(exports)
}

/// What a server exports.
pub(crate) fn list_exports(mount: &Shared) -> Result<Vec<Export>> {
    let mut session = mount.borrow_mut();
    let results = ask(&mut session, EXPORT, EXPORTS_BYTES_MAX, |writer| writer);
    let listed = results.and_then(|results| Ok(exports(&mut Reader::new(&results))?));
    listed.map_err(|failure| failure.of("list exports", session.server()))
}

/// The export that a path is in, and its handle. Servers that do not list their exports are asked for the path, and for the
/// directories above it.
pub(crate) fn mount_above(session: &Shared, path: &str) -> Result<FileHandle> {
    let listed = list_exports(session).unwrap_or_default();
    let names = listed.iter().filter_map(|export| std::str::from_utf8(&export.path).ok());
    let mut candidates: Vec<String> =
        names.filter(|export| is_above(export, path)).map(str::to_string).collect();
    candidates.sort_by_key(|export| std::cmp::Reverse(export.len()));
    candidates.extend(and_above(path).map(str::to_string).filter(|above| above != "/" || path == "/"));
    let mut first: Option<Error> = None;
    for candidate in candidates {
        match mount(session, &candidate) {
            Ok(handle) => return Ok(handle),
            Err(error) if error.status().is_none() => return Err(error),
            Err(error) => first = Some(first.unwrap_or(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        let why = "the server exports no directory that this is in; `weft nfs ls nfs://HOST/` lists what it exports";
        Failure::new(ErrorKind::Status(Status::NOENT), why).of(format!("MNT {path}"), session.borrow().server())
    }))
}

/// Whether `path` is `export`, or in it.
fn is_above(export: &str, path: &str) -> bool {
    let export = export.trim_end_matches('/');
    path.strip_prefix(export).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path, and the directories above it.
fn and_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| {
        let (above, _) = path.trim_end_matches('/').rsplit_once('/')?;
        Some(if above.is_empty() { "/" } else { above })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_in_exports() {
        assert!(
            is_above("/a", "/a") && is_above("/a", "/a/b") && is_above("/", "/a") && is_above("/a/", "/a")
        );
        assert!(!is_above("/a", "/ab") && !is_above("/a/b", "/a"));
        assert_eq!(and_above("/a/b/c").collect::<Vec<_>>(), ["/a/b/c", "/a/b", "/a", "/"]);
        assert_eq!(and_above("/").collect::<Vec<_>>(), ["/"]);
    }

    #[test]
    fn an_export_that_wants_kerberos_is_told_from_others() {
        let reply = |flavors: &[u32]| {
            let writer = Writer::new().opaque(b"handle").u32(flavors.len() as u32);
            flavors.iter().fold(writer, |writer, flavor| writer.u32(*flavor)).into_bytes()
        };
        let takes_sys = |flavors: &[u32]| mounted(&mut Reader::new(&reply(flavors)), "/x").unwrap().1;
        assert!(takes_sys(&[390_003, 1]) && takes_sys(&[]) && takes_sys(&[0]) && !takes_sys(&[390_003]));
        let mut endless = reply(&[]);
        let at = endless.len() - 4;
        endless[at..].copy_from_slice(&[0xff; 4]);
        assert!(mounted(&mut Reader::new(&endless), "/x").is_err());
    }
}
