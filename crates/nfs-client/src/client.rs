//! A client of one server: connecting, paths, and reading and writing of any length.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use weft_verbs::{Fabric, RdmaCore};

use crate::error::{ErrorKind, Failure, Result};
use crate::link::Way;
use crate::mount::{self, Export, NFS_PROGRAM};
use crate::options::ConnectOptions;
use crate::pending::PendingCall;
use crate::rdma::{RdmaStatus, RdmaWay};
use crate::session::{Shared, connect_any};
use crate::status::Status;
use crate::types::*;
use crate::url::{NfsUrl, Transport};

/// Most bytes of one READ or WRITE, whatever the server offers.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;
/// Bytes of one READ or WRITE to a server that says nothing.
const TRANSFER_BYTES_DEFAULT: u32 = 64 << 10;
/// How many symbolic links a path may have.
const LINKS_MAX: usize = 40;

/// A client of one server. It belongs to one thread; several threads connect several clients.
///
/// ```no_run
/// use weft_nfs_client::{ConnectOptions, NfsClient, NfsUrl, wait_all};
///
/// let url = NfsUrl::parse("nfs://nas/export/data")?;
/// let client = NfsClient::connect(&url, &ConnectOptions::default())?;
/// let file = client.resolve(&url.path)?;
/// let calls = (0..100).map(|_| client.start_getattr(&file.handle)).collect();
/// for attr in wait_all(calls) {
///     println!("{} bytes", attr?.size_bytes);
/// }
/// # Ok::<(), weft_nfs_client::Error>(())
/// ```
pub struct NfsClient {
    pub(crate) session: Shared,
    mount: Option<Shared>,
    root: FileHandle,
    /// The path of `root` on the server.
    export: String,
    pub(crate) info: FsInfo,
}

/// Where NFS over RDMA is served (RFC 8267, 6).
const RDMA_PORT: u16 = 20_049;

/// What a server says of itself that says nothing.
const INFO_DEFAULT: FsInfo = FsInfo {
    read_bytes_max: TRANSFER_BYTES_DEFAULT,
    read_bytes_best: TRANSFER_BYTES_DEFAULT,
    write_bytes_max: TRANSFER_BYTES_DEFAULT,
    write_bytes_best: TRANSFER_BYTES_DEFAULT,
    readdir_bytes_best: TRANSFER_BYTES_DEFAULT,
    file_bytes_max: i64::MAX as u64,
    time_step: Time { seconds: 0, nanoseconds: 1 },
    properties: 0,
};

/// NFS and MOUNT of a server. Both may be one connection.
fn connect_both(
    url: &NfsUrl,
    options: &ConnectOptions,
    way: &dyn Fn() -> Box<dyn Way>,
) -> Result<(Shared, Shared)> {
    let port = match (url.port, url.transport) {
        (Some(port), _) => port,
        (None, Transport::Tcp) => mount::port_of(&url.host, NFS_PROGRAM, options)?,
        (None, Transport::Rdma) => RDMA_PORT,
    };
    let session = connect_any(&url.host, port, options, way)
        .map_err(|(failure, server)| failure.of("connect to NFS", server))?;
    let session = Rc::new(RefCell::new(session));
    let mount = mount::connect(url, &session, port, options)?;
    Ok((session, mount))
}

/// How connections to a URL's server are made.
fn way_of<'a>(url: &NfsUrl, options: &'a ConnectOptions) -> Result<Box<dyn Fn() -> Box<dyn Way> + 'a>> {
    if url.transport == Transport::Tcp {
        return Ok(Box::new(|| options.tcp()));
    }
    let fabric = RdmaCore::load().map_err(|error| {
        let why = format!("{error}; without transport=rdma the server is reached over TCP");
        Failure::new(ErrorKind::Unreachable, why).of("use RDMA", "")
    })?;
    let (design, memory) = (url.rdma_design, url.rdma_memory);
    Ok(Box::new(move || Box::new(RdmaWay::new(fabric, design, memory))))
}

impl NfsClient {
    /// Connects to a server, and mounts the export that the URL's path is in.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses.
    pub fn connect(url: &NfsUrl, options: &ConnectOptions) -> Result<NfsClient> {
        let way = way_of(url, options)?;
        NfsClient::connect_by(url, options, &*way)
    }

    /// The same over RDMA with an adapter of this fabric, whatever transport the URL names.
    ///
    /// # Errors
    /// The same.
    pub fn connect_rdma<F: Fabric>(url: &NfsUrl, options: &ConnectOptions, fabric: &F) -> Result<NfsClient> {
        let url = NfsUrl { transport: Transport::Rdma, ..url.clone() };
        let way =
            || -> Box<dyn Way> { Box::new(RdmaWay::new(fabric.clone(), url.rdma_design, url.rdma_memory)) };
        NfsClient::connect_by(&url, options, &way)
    }

    fn connect_by(
        url: &NfsUrl,
        options: &ConnectOptions,
        way: &dyn Fn() -> Box<dyn Way>,
    ) -> Result<NfsClient> {
        let (session, mount) = connect_both(url, options, way)?;
        let root = mount::mount_above(&mount, &url.path)?;
        let export = root.path().to_string();
        let mut client = NfsClient { session, mount: Some(mount), root, export, info: INFO_DEFAULT };
        match client.fsinfo(&client.root) {
            Ok(info) => client.info = usable(info),
            Err(error) if error.status().is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(client)
    }

    /// What a server exports.
    ///
    /// # Errors
    /// If the server cannot be reached, or does not say.
    pub fn exports(url: &NfsUrl, options: &ConnectOptions) -> Result<Vec<Export>> {
        let (_, mount) = connect_both(url, options, &*way_of(url, options)?)?;
        mount::list_exports(&mount)
    }

    /// The export's directory.
    pub fn root(&self) -> &FileHandle {
        &self.root
    }

    /// Name and address of the server.
    pub fn server(&self) -> String {
        self.session.borrow().server().to_string()
    }

    /// RDMA of its connections, if it is over RDMA.
    pub fn rdma_status(&self) -> Option<RdmaStatus> {
        self.session.borrow().rdma_status()
    }

    /// What the server said of itself, with sizes that can be used.
    pub fn info(&self) -> &FsInfo {
        &self.info
    }

    /// Sends all calls that were started, as far as the connection takes them.
    pub fn flush(&self) {
        self.session.borrow_mut().send();
    }

    /// Moves all calls forward without waiting.
    pub fn progress(&self) {
        self.session.borrow_mut().progress();
    }

    /// What to wait for in an event loop, and how long at most; [`NfsClient::progress`] afterwards. While the connection is
    /// lost there is no descriptor.
    pub fn before_poll(&self) -> (Option<libc::pollfd>, std::time::Duration) {
        self.session.borrow().before_poll()
    }

    /// Finds the file of a path, which begins with that of the export. Symbolic links are followed.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn resolve(&self, path: &str) -> Result<Located> {
        self.walk(path, true)
    }

    /// The same, but a symbolic link at the end of the path is not followed.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn resolve_link(&self, path: &str) -> Result<Located> {
        self.walk(path, false)
    }

    /// The directory of a path, and the name in it.
    ///
    /// # Errors
    /// That of the call that failed; or if the path is that of the export itself.
    pub fn resolve_parent<'a>(&self, path: &'a str) -> Result<(FileHandle, &'a [u8])> {
        let (above, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        if self.parts_of(path)?.is_empty() {
            return Err(self.invalid(path, "it is the export itself"));
        }
        Ok((self.resolve(above)?.handle, name.as_bytes()))
    }

    fn invalid(&self, path: &str, why: &str) -> crate::Error {
        Failure::new(ErrorKind::Invalid, why).of(path, self.server())
    }

    fn parts_of(&self, path: &str) -> Result<VecDeque<Vec<u8>>> {
        let export = self.export.trim_end_matches('/');
        let rest = path.strip_prefix(export).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let outside = || self.invalid(path, &format!("it is not in the export {}", self.export));
        Ok(parts(rest.ok_or_else(outside)?.as_bytes()).collect())
    }

    fn walk(&self, path: &str, follow: bool) -> Result<Located> {
        let mut left = self.parts_of(path)?;
        let mut at = vec![self.located(self.root.clone(), None)?];
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            if part == b".." {
                at.truncate((at.len() - 1).max(1));
                continue;
            }
            let dir = &at[at.len() - 1];
            let found = self.lookup(&dir.handle, &part)?;
            let next = self.located(found.handle, found.attr)?;
            if next.attr.kind != FileKind::Symlink || (left.is_empty() && !follow) {
                at.push(next);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Failure::new(ErrorKind::Local(libc::ELOOP), "too many symbolic links")
                    .of(path, self.server()));
            }
            let target = self.readlink(&next.handle)?;
            if target.starts_with(b"/") {
                let inside = self.parts_of(&String::from_utf8_lossy(&target)).map_err(|_| {
                    let why = format!("its target {} is not in the export", String::from_utf8_lossy(&target));
                    self.invalid(next.handle.path(), &why)
                })?;
                at.truncate(1);
                prepend(&mut left, inside);
            } else {
                prepend(&mut left, parts(&target).collect());
            }
        }
        Ok(at.pop().expect("the root is there"))
    }

    fn located(&self, handle: FileHandle, attr: Option<Attr>) -> Result<Located> {
        let attr = attr.map_or_else(|| self.getattr(&handle), Ok)?;
        Ok(Located { handle, attr })
    }

    /// All names of a directory with their attributes and handles, without `.` and `..`, in the server's order. Where the
    /// server does not give these with the names, they are looked up.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn list(&self, dir: &FileHandle) -> Result<Vec<(Vec<u8>, Located)>> {
        let mut entries = self.names(dir, true);
        if entries.as_ref().is_err_and(|error| error.errno() == libc::EOPNOTSUPP) {
            entries = self.names(dir, false);
        }
        let mut found = Vec::new();
        let mut missing = VecDeque::new();
        for Entry { name, attr, handle, .. } in entries? {
            match (handle, attr) {
                (Some(handle), Some(attr)) => found.push((name, Located { handle, attr })),
                _ => missing.push_back((self.start_lookup(dir, &name), name)),
            }
        }
        while let Some((call, name)) = missing.pop_front() {
            match PendingCall::wait(call) {
                Ok(looked) => found.push((name, self.located(looked.handle, looked.attr)?)),
                // It was removed meanwhile.
                Err(error) if error.status() == Some(Status::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn names(&self, dir: &FileHandle, is_plus: bool) -> Result<Vec<Entry>> {
        let (mut all, mut from) = (Vec::new(), Cookie::default());
        loop {
            let bytes = self.info.readdir_bytes_best;
            let page =
                if is_plus { self.readdirplus(dir, from, bytes) } else { self.readdir(dir, from, bytes) }?;
            let (next, is_end) = (page.next, page.is_end);
            all.extend(page.entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b".."));
            if is_end {
                return Ok(all);
            }
            if next.cookie == from.cookie {
                let failure = Failure::protocol("a listing does not go on");
                return Err(failure.of(format!("READDIR {}", dir.path()), self.server()));
            }
            from = next;
        }
    }

    /// Reads until the buffer is full or the file ends; the bytes read. Many READs are under way at a time, and the server's
    /// data go straight into the buffer.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn read_all(&self, file: &FileHandle, offset: u64, buffer: &mut [u8], depth: usize) -> Result<usize> {
        let part_bytes = self.info.read_bytes_best as usize;
        let mut parts = buffer.chunks_mut(part_bytes).enumerate();
        let mut under_way = VecDeque::new();
        let mut done = 0;
        loop {
            while under_way.len() < depth.max(1)
                && let Some((number, part)) = parts.next()
            {
                let at = offset + (number * part_bytes) as u64;
                // SAFETY: the buffer is borrowed until all calls have ended: they do at the latest when this function returns.
                let call = unsafe { self.start_read_raw(file, at, part.as_mut_ptr(), part.len()) };
                under_way.push_back((call, at, part));
            }
            let Some((call, at, part)) = under_way.pop_front() else { return Ok(done) };
            let read = call.wait()?;
            let bytes = if read.bytes < part.len() && !read.is_end {
                read.bytes + self.read_rest(file, at + read.bytes as u64, &mut part[read.bytes..])?
            } else {
                read.bytes
            };
            done += bytes;
            if bytes < part.len() {
                return Ok(done);
            }
        }
    }

    /// What a short READ has left.
    fn read_rest(&self, file: &FileHandle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let read = self.read(file, offset + done as u64, &mut buffer[done..])?;
            done += read.bytes;
            if read.is_end || read.bytes == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Writes everything to stable storage. Many WRITEs are under way at a time, straight from the buffer, followed by one
    /// COMMIT. Where the server has lost data in between, they are written again.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn write_all(&self, file: &FileHandle, offset: u64, data: &[u8], depth: usize) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let verifiers = self.write_unstable(file, offset, data, depth)?;
            let committed = match verifiers[..] {
                [] => return Ok(()),
                _ => self.commit(file, 0, 0)?,
            };
            if verifiers.iter().all(|verifier| *verifier == committed.verifier) {
                return Ok(());
            }
        }
        let why = "the server restarts again and again, and each time loses what was written";
        Err(Failure::new(ErrorKind::Status(Status(5)), why)
            .of(format!("WRITE {}", file.path()), self.server()))
    }

    /// Writes everything, perhaps not to stable storage; the verifiers of what is not there yet, each once.
    ///
    /// # Errors
    /// That of the call that failed.
    pub fn write_unstable(
        &self,
        file: &FileHandle,
        offset: u64,
        data: &[u8],
        depth: usize,
    ) -> Result<Vec<[u8; 8]>> {
        let part_bytes = self.info.write_bytes_best as usize;
        let mut parts = data.chunks(part_bytes).enumerate();
        let mut under_way = VecDeque::new();
        let mut verifiers = Vec::new();
        loop {
            while under_way.len() < depth.max(1)
                && let Some((number, part)) = parts.next()
            {
                let at = offset + (number * part_bytes) as u64;
                under_way.push_back((self.start_write_borrowed(file, at, part), at, part));
            }
            let Some((call, mut at, mut part)) = under_way.pop_front() else { return Ok(verifiers) };
            let mut written = call.wait()?;
            loop {
                if written.stable == Stable::Unstable && !verifiers.contains(&written.verifier) {
                    verifiers.push(written.verifier);
                }
                part = &part[written.bytes..];
                at += written.bytes as u64;
                if part.is_empty() {
                    break;
                }
                if written.bytes == 0 {
                    let failure = Failure::protocol("it takes no bytes");
                    return Err(failure.of(format!("WRITE {}", file.path()), self.server()));
                }
                written = self.write(file, at, part, Stable::Unstable)?;
            }
        }
    }

    fn start_write_borrowed(&self, file: &FileHandle, at: u64, part: &[u8]) -> PendingCall<Written> {
        // SAFETY: callers keep the data borrowed, and all calls end at the latest when they return.
        unsafe { self.start_write_raw(file, at, part.as_ptr(), part.len(), Stable::Unstable) }
    }

    /// The path of the export on the server.
    pub fn export(&self) -> &str {
        &self.export
    }
}

impl Drop for NfsClient {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            mount::unmount(&mount, &self.export);
        }
    }
}

/// How often data are written again that a restarted server has lost.
const ATTEMPTS_MAX: usize = 5;

/// A file that was found, and its attributes then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The file.
    pub handle: FileHandle,
    /// Its attributes.
    pub attr: Attr,
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    parts.filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

fn prepend(left: &mut VecDeque<Vec<u8>>, parts: VecDeque<Vec<u8>>) {
    parts.into_iter().rev().for_each(|part| left.push_front(part));
}

/// Sizes that can be used: at least something, at most what this client offers, and the best not above the most.
fn usable(info: FsInfo) -> FsInfo {
    let pair = |most: u32, best: u32| {
        let most = if most == 0 { TRANSFER_BYTES_DEFAULT } else { most.min(TRANSFER_BYTES_MAX) };
        (most, if best == 0 { most } else { best.min(most) })
    };
    let (read_bytes_max, read_bytes_best) = pair(info.read_bytes_max, info.read_bytes_best);
    let (write_bytes_max, write_bytes_best) = pair(info.write_bytes_max, info.write_bytes_best);
    let readdir_bytes_best = info.readdir_bytes_best.clamp(READDIR_BYTES_MIN, READDIR_BYTES_MAX);
    FsInfo { read_bytes_max, read_bytes_best, write_bytes_max, write_bytes_best, readdir_bytes_best, ..info }
}

/// Sizes of listings that are asked for.
const READDIR_BYTES_MIN: u32 = 8 << 10;
/// See [`READDIR_BYTES_MIN`].
pub(crate) const READDIR_BYTES_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_server_are_made_usable() {
        let info =
            FsInfo { read_bytes_max: 0, write_bytes_best: u32::MAX, readdir_bytes_best: 1, ..INFO_DEFAULT };
        let info = usable(FsInfo { write_bytes_max: u32::MAX, ..info });
        assert_eq!(
            (info.read_bytes_max, info.read_bytes_best),
            (TRANSFER_BYTES_DEFAULT, TRANSFER_BYTES_DEFAULT)
        );
        assert_eq!((info.write_bytes_max, info.write_bytes_best), (TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX));
        assert_eq!(info.readdir_bytes_best, READDIR_BYTES_MIN);
    }
}
