//! The procedures of NFSv3 (RFC 1813, 3.3), each in two forms: `start_…` begins a call, the other waits for it.

use weft_onc_rpc::xdr::{Reader, Writer};

use crate::client::{NfsClient, READDIR_BYTES_MAX};
use crate::error::{Decoded, Result};
use crate::incoming::Memory;
use crate::link::Data;
use crate::pending::{PendingCall, PendingRead, PendingWrite, Take, What};
use crate::procedure::Procedure;
use crate::results;
use crate::types::*;

/// Entries with attributes and handles are so much larger than without.
const PLUS_FACTOR: u32 = 4;

fn what(procedure: Procedure, on: &FileHandle, name: Option<&[u8]>) -> What {
    What { procedure, path: on.path().clone(), name: name.map(Box::from) }
}

fn name_in(writer: Writer, dir: &FileHandle, name: &[u8]) -> Writer {
    writer.opaque(dir.bytes()).opaque(name)
}

impl NfsClient {
    fn start<T>(
        &self,
        what: What,
        arguments: impl FnOnce(Writer) -> Writer,
        take: impl FnOnce(&mut Reader<'_>) -> Decoded<T> + 'static,
    ) -> PendingCall<T> {
        // SAFETY: no memory of the caller's.
        unsafe { self.start_with(what, arguments, Data::NONE, Box::new(|reader, _| take(reader))) }
    }

    /// A call whose reply may have so many bytes besides the usual.
    fn start_long<T>(
        &self,
        what: What,
        reply_bytes: usize,
        arguments: impl FnOnce(Writer) -> Writer,
        take: impl FnOnce(&mut Reader<'_>) -> Decoded<T> + 'static,
    ) -> PendingCall<T> {
        let data = Data::with_reply(reply_bytes);
        // SAFETY: no memory of the caller's.
        unsafe { self.start_with(what, arguments, data, Box::new(|reader, _| take(reader))) }
    }

    /// # Safety
    /// The memory of `data` stays as it is until the call has ended.
    unsafe fn start_with<T>(
        &self,
        what: What,
        arguments: impl FnOnce(Writer) -> Writer,
        data: Data,
        take: Take<T>,
    ) -> PendingCall<T> {
        let mut session = self.session.borrow_mut();
        let head = arguments(session.head_of(what.procedure.target())).into_bytes();
        // SAFETY: as the caller promises; a pending call that is dropped is cancelled.
        let number = unsafe { session.begin(head, data, true) };
        drop(session);
        PendingCall::new(&self.session, number, what, take)
    }

    /// NULL: does nothing; shows that the server answers.
    pub fn start_null(&self) -> PendingCall<()> {
        let what = what(Procedure::Null, self.root(), None);
        self.start(what, |writer| writer, |_| Ok(()))
    }

    /// GETATTR: attributes.
    pub fn start_getattr(&self, file: &FileHandle) -> PendingCall<Attr> {
        let what = what(Procedure::GetAttr, file, None);
        self.start(what, |writer| writer.opaque(file.bytes()), Attr::read)
    }

    /// SETATTR: changes attributes; with `if_ctime` only if the file was not changed since.
    pub fn start_setattr(
        &self,
        file: &FileHandle,
        set: &SetAttr,
        if_ctime: Option<Time>,
    ) -> PendingCall<Change> {
        let arguments = |writer: Writer| {
            set.write(writer.opaque(file.bytes())).option(if_ctime, |writer, time| time.write(writer))
        };
        self.start(what(Procedure::SetAttr, file, None), arguments, Change::read)
    }

    /// LOOKUP: the file of a name.
    pub fn start_lookup(&self, dir: &FileHandle, name: &[u8]) -> PendingCall<Found> {
        let path = dir.path_of(name);
        let what = what(Procedure::Lookup, dir, Some(name));
        self.start(what, |writer| name_in(writer, dir, name), |reader| results::found(reader, path))
    }

    /// ACCESS: which of these rights ([`Access`]) the user has.
    pub fn start_access(&self, file: &FileHandle, rights: u32) -> PendingCall<Access> {
        let arguments = |writer: Writer| writer.opaque(file.bytes()).u32(rights);
        self.start(what(Procedure::Access, file, None), arguments, results::access)
    }

    /// READLINK: the target of a symbolic link.
    pub fn start_readlink(&self, link: &FileHandle) -> PendingCall<Vec<u8>> {
        let what = what(Procedure::ReadLink, link, None);
        self.start_long(what, PATH_BYTES_MAX, |writer| writer.opaque(link.bytes()), results::link_target)
    }

    /// READ into memory of the caller's, at most what the server gives at once ([`NfsClient::info`]).
    ///
    /// # Safety
    /// The memory is writable, and nobody else uses it, until the call has ended or was dropped. A call that is forgotten
    /// (`mem::forget`) does not end.
    pub unsafe fn start_read_raw(
        &self,
        file: &FileHandle,
        offset: u64,
        start: *mut u8,
        bytes: usize,
    ) -> PendingCall<Read> {
        let bytes = bytes.min(self.info.read_bytes_max as usize);
        let arguments = |writer: Writer| writer.opaque(file.bytes()).u64(offset).u32(bytes as u32);
        let data = Data { sink: Memory { start, bytes }, ..Data::NONE };
        let take: Take<Read> = Box::new(move |reader, came| results::read(reader, came, bytes));
        // SAFETY: as the caller promises.
        unsafe { self.start_with(what(Procedure::Read, file, None), arguments, data, take) }
    }

    /// READ into a buffer, at most what the server gives at once ([`NfsClient::info`]).
    pub fn start_read(&self, file: &FileHandle, offset: u64, mut buffer: Vec<u8>) -> PendingRead {
        // SAFETY: the pending read keeps the buffer until the call has ended.
        let call = unsafe { self.start_read_raw(file, offset, buffer.as_mut_ptr(), buffer.len()) };
        PendingRead::new(call, buffer)
    }

    /// WRITE from memory of the caller's, at most what the server takes at once ([`NfsClient::info`]).
    ///
    /// # Safety
    /// The memory stays as it is until the call has ended or was dropped. A call that is forgotten (`mem::forget`) does not
    /// end.
    pub unsafe fn start_write_raw(
        &self,
        file: &FileHandle,
        offset: u64,
        start: *const u8,
        bytes: usize,
        stable: Stable,
    ) -> PendingCall<Written> {
        let bytes = bytes.min(self.info.write_bytes_max as usize);
        let arguments = |writer: Writer| {
            writer.opaque(file.bytes()).u64(offset).u32(bytes as u32).u32(stable.number()).u32(bytes as u32)
        };
        let data = Data { payload: Memory { start: start.cast_mut(), bytes }, ..Data::NONE };
        let take: Take<Written> = Box::new(move |reader, _| results::written(reader, bytes));
        // SAFETY: as the caller promises.
        unsafe { self.start_with(what(Procedure::Write, file, None), arguments, data, take) }
    }

    /// WRITE from a buffer, at most what the server takes at once ([`NfsClient::info`]).
    pub fn start_write(
        &self,
        file: &FileHandle,
        offset: u64,
        buffer: Vec<u8>,
        stable: Stable,
    ) -> PendingWrite {
        // SAFETY: the pending write keeps the buffer until the call has ended.
        let call = unsafe { self.start_write_raw(file, offset, buffer.as_ptr(), buffer.len(), stable) };
        PendingWrite::new(call, buffer)
    }

    /// COMMIT: brings unstable data to stable storage; `bytes` 0 means to the end.
    pub fn start_commit(&self, file: &FileHandle, offset: u64, bytes: u32) -> PendingCall<Committed> {
        let arguments = |writer: Writer| writer.opaque(file.bytes()).u64(offset).u32(bytes);
        self.start(what(Procedure::Commit, file, None), arguments, results::committed)
    }

    fn start_create_of(
        &self,
        procedure: Procedure,
        dir: &FileHandle,
        name: &[u8],
        arguments: impl FnOnce(Writer) -> Writer,
    ) -> PendingCall<Created> {
        let path = dir.path_of(name);
        let arguments = |writer: Writer| arguments(name_in(writer, dir, name));
        self.start(what(procedure, dir, Some(name)), arguments, |reader| results::created(reader, path))
    }

    /// CREATE: a regular file.
    pub fn start_create(&self, dir: &FileHandle, name: &[u8], how: &CreateHow) -> PendingCall<Created> {
        self.start_create_of(Procedure::Create, dir, name, |writer| match how {
            CreateHow::Unchecked(set) => set.write(writer.u32(0)),
            CreateHow::Guarded(set) => set.write(writer.u32(1)),
            CreateHow::Exclusive(verifier) => writer.u32(2).fixed(verifier),
        })
    }

    /// MKDIR: a directory.
    pub fn start_mkdir(&self, dir: &FileHandle, name: &[u8], set: &SetAttr) -> PendingCall<Created> {
        self.start_create_of(Procedure::MkDir, dir, name, |writer| set.write(writer))
    }

    /// SYMLINK: a symbolic link.
    pub fn start_symlink(
        &self,
        dir: &FileHandle,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> PendingCall<Created> {
        self.start_create_of(Procedure::SymLink, dir, name, |writer| set.write(writer).opaque(target))
    }

    /// MKNOD: a device, a socket or a named pipe.
    pub fn start_mknod(
        &self,
        dir: &FileHandle,
        name: &[u8],
        node: Node,
        set: &SetAttr,
    ) -> PendingCall<Created> {
        let (kind, device) = match node {
            Node::Block(major, minor) => (FileKind::Block, Some((major, minor))),
            Node::Character(major, minor) => (FileKind::Character, Some((major, minor))),
            Node::Socket => (FileKind::Socket, None),
            Node::Fifo => (FileKind::Fifo, None),
        };
        self.start_create_of(Procedure::MkNod, dir, name, |writer| {
            let writer = set.write(writer.u32(kind as u32));
            match device {
                Some((major, minor)) => writer.u32(major).u32(minor),
                None => writer,
            }
        })
    }

    /// REMOVE: a name of what is no directory.
    pub fn start_remove(&self, dir: &FileHandle, name: &[u8]) -> PendingCall<Change> {
        let what = what(Procedure::Remove, dir, Some(name));
        self.start(what, |writer| name_in(writer, dir, name), Change::read)
    }

    /// RMDIR: an empty directory.
    pub fn start_rmdir(&self, dir: &FileHandle, name: &[u8]) -> PendingCall<Change> {
        let what = what(Procedure::RmDir, dir, Some(name));
        self.start(what, |writer| name_in(writer, dir, name), Change::read)
    }

    /// RENAME: both directories before and after.
    pub fn start_rename(
        &self,
        from: (&FileHandle, &[u8]),
        to: (&FileHandle, &[u8]),
    ) -> PendingCall<(Change, Change)> {
        let arguments = |writer: Writer| name_in(name_in(writer, from.0, from.1), to.0, to.1);
        self.start(what(Procedure::Rename, from.0, Some(from.1)), arguments, results::renamed)
    }

    /// LINK: a further name for a file; the file's attributes, and the directory before and after.
    pub fn start_link(
        &self,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> PendingCall<(Option<Attr>, Change)> {
        let arguments = |writer: Writer| name_in(writer.opaque(file.bytes()), dir, name);
        self.start(what(Procedure::Link, dir, Some(name)), arguments, results::linked)
    }

    /// READDIR: names, in at most so many bytes.
    pub fn start_readdir(&self, dir: &FileHandle, from: Cookie, bytes: u32) -> PendingCall<Page> {
        let bytes = bytes.min(READDIR_BYTES_MAX);
        let arguments =
            |writer: Writer| writer.opaque(dir.bytes()).u64(from.cookie).fixed(&from.verifier).u32(bytes);
        self.start_page(Procedure::ReadDir, dir, from, bytes, arguments)
    }

    /// READDIRPLUS: names with attributes and handles. `bytes` limits the names, as of READDIR.
    pub fn start_readdirplus(&self, dir: &FileHandle, from: Cookie, bytes: u32) -> PendingCall<Page> {
        let with_all = bytes.saturating_mul(PLUS_FACTOR).min(READDIR_BYTES_MAX);
        let bytes = bytes.min(READDIR_BYTES_MAX);
        let arguments = |writer: Writer| {
            writer.opaque(dir.bytes()).u64(from.cookie).fixed(&from.verifier).u32(bytes).u32(with_all)
        };
        self.start_page(Procedure::ReadDirPlus, dir, from, with_all, arguments)
    }

    fn start_page(
        &self,
        procedure: Procedure,
        dir: &FileHandle,
        from: Cookie,
        bytes: u32,
        arguments: impl FnOnce(Writer) -> Writer,
    ) -> PendingCall<Page> {
        let is_plus = matches!(procedure, Procedure::ReadDirPlus);
        let of = dir.clone();
        self.start_long(what(procedure, dir, None), bytes as usize, arguments, move |reader| {
            results::page(reader, &of, is_plus, from)
        })
    }

    /// FSSTAT: space of a file system.
    pub fn start_fsstat(&self, file: &FileHandle) -> PendingCall<FsStat> {
        let what = what(Procedure::FsStat, file, None);
        self.start(what, |writer| writer.opaque(file.bytes()), results::fs_stat)
    }

    /// FSINFO: what the server offers.
    pub fn start_fsinfo(&self, file: &FileHandle) -> PendingCall<FsInfo> {
        let what = what(Procedure::FsInfo, file, None);
        self.start(what, |writer| writer.opaque(file.bytes()), results::fs_info)
    }

    /// PATHCONF: limits of names and links.
    pub fn start_pathconf(&self, file: &FileHandle) -> PendingCall<PathConf> {
        let what = what(Procedure::PathConf, file, None);
        self.start(what, |writer| writer.opaque(file.bytes()), results::path_conf)
    }
}

/// Declares the forms that wait.
macro_rules! blocking {
    ($($name:ident = $start:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl NfsClient {
            $(
                #[doc = concat!("[`NfsClient::", stringify!($start), "`], and its end.")]
                ///
                /// # Errors
                /// Those of [`PendingCall::wait`].
                pub fn $name(&self, $($argument: $type),*) -> Result<$result> {
                    self.$start($($argument),*).wait()
                }
            )*
        }
    };
}

blocking! {
    null = start_null() -> ();
    getattr = start_getattr(file: &FileHandle) -> Attr;
    setattr = start_setattr(file: &FileHandle, set: &SetAttr, if_ctime: Option<Time>) -> Change;
    lookup = start_lookup(dir: &FileHandle, name: &[u8]) -> Found;
    access = start_access(file: &FileHandle, rights: u32) -> Access;
    readlink = start_readlink(link: &FileHandle) -> Vec<u8>;
    commit = start_commit(file: &FileHandle, offset: u64, bytes: u32) -> Committed;
    create = start_create(dir: &FileHandle, name: &[u8], how: &CreateHow) -> Created;
    mkdir = start_mkdir(dir: &FileHandle, name: &[u8], set: &SetAttr) -> Created;
    symlink = start_symlink(dir: &FileHandle, name: &[u8], target: &[u8], set: &SetAttr) -> Created;
    mknod = start_mknod(dir: &FileHandle, name: &[u8], node: Node, set: &SetAttr) -> Created;
    remove = start_remove(dir: &FileHandle, name: &[u8]) -> Change;
    rmdir = start_rmdir(dir: &FileHandle, name: &[u8]) -> Change;
    rename = start_rename(from: (&FileHandle, &[u8]), to: (&FileHandle, &[u8])) -> (Change, Change);
    link = start_link(file: &FileHandle, dir: &FileHandle, name: &[u8]) -> (Option<Attr>, Change);
    readdir = start_readdir(dir: &FileHandle, from: Cookie, bytes: u32) -> Page;
    readdirplus = start_readdirplus(dir: &FileHandle, from: Cookie, bytes: u32) -> Page;
    fsstat = start_fsstat(file: &FileHandle) -> FsStat;
    fsinfo = start_fsinfo(file: &FileHandle) -> FsInfo;
    pathconf = start_pathconf(file: &FileHandle) -> PathConf;
}

impl NfsClient {
    /// READ, and its end: at most what the server gives at once.
    ///
    /// # Errors
    /// Those of [`PendingCall::wait`].
    pub fn read(&self, file: &FileHandle, offset: u64, buffer: &mut [u8]) -> Result<Read> {
        // SAFETY: the buffer is borrowed until the call has ended.
        unsafe { self.start_read_raw(file, offset, buffer.as_mut_ptr(), buffer.len()) }.wait()
    }

    /// WRITE, and its end: at most what the server takes at once.
    ///
    /// # Errors
    /// Those of [`PendingCall::wait`].
    pub fn write(&self, file: &FileHandle, offset: u64, data: &[u8], stable: Stable) -> Result<Written> {
        // SAFETY: the data are borrowed until the call has ended.
        unsafe { self.start_write_raw(file, offset, data.as_ptr(), data.len(), stable) }.wait()
    }
}
