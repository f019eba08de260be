//! A cluster, as a program sees it: names and attributes, and the way to open files.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_transport::LinkKind;
use weft_wire::messages::{
    AccessRequest, Attr, AttrReply, Caller, ClusterMapReply, CreateRequest, FileCountRequest, FileKind,
    GetXattrRequest, InodeRequest, LayoutWish, LinkRequest, ListXattrsRequest, LookupRequest, MkdirRequest,
    MknodRequest, OpenRequest, PingRequest, ReadDirReply, ReadDirRequest, ReadlinkRequest,
    RemoveXattrRequest, RenameRequest, RmdirRequest, ServerInfo, SetAttrRequest, SetLayoutRequest,
    SetXattrRequest, SpaceRequest, StatusReply, StatusRequest, SymlinkRequest, SyncMetaRequest, Time,
    UnlinkRequest, WatchReply, WatchRequest, attr_valid, endpoint, rights, server_state,
};
use weft_wire::{Request, Status};

use crate::batch;
use crate::closing;
use crate::copy;
use crate::deadline::Operation;
use crate::dial::Dial;
use crate::error::{Error, ErrorKind};
use crate::held::{self, Held};
use crate::inner::Inner;
use crate::lane::Lane;
use crate::open_file::{OpenFile, sync_all_contents, sync_contents};
use crate::rdma::{Rdma, RdmaStatus};
use crate::server::{Role, Server};
use crate::size;
use crate::waits;
use crate::{Arena, At, ConnectOptions, File, OpenOptions, ReadDir, Result, SetAttr, SetTime, Url};

/// How long a server may take to say how it is.
const STATUS_PATIENCE: Duration = Duration::from_secs(3);
/// How long an I/O server may take to say how much space it has.
const SPACE_PATIENCE: Duration = Duration::from_secs(3);

/// A connection to a cluster, on somebody's behalf. Clones share the connections; all methods may be called by many
/// threads at once, and after a fork, in parent and child.
///
/// Errors of all methods: [`ErrorKind::Status`] with the server's reason, [`ErrorKind::Unreachable`] when a server was lost
/// and did not come back within [`ConnectOptions::retry_timeout_ms`].
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    pub(crate) caller: Arc<Caller>,
}

/// Space and files of the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the I/O servers' disks together, in bytes. A disk that several of them use counts once.
    pub space_bytes: u64,
    /// Free on them.
    pub free_bytes: u64,
    /// Free for users other than root.
    pub available_bytes: u64,
    /// Inodes in use.
    pub files: u64,
}

/// A server that has not answered for as long as an operation may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadServer {
    /// Its name and address.
    pub server: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: u64,
    /// What the last attempt met.
    pub cause: String,
    index: usize,
}

/// How one server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportInUse {
    /// The server's name.
    pub server: String,
    /// "meta" or "io".
    pub role: &'static str,
    /// "tcp cubic", "shm direct", "shm staged: REASON", "verbs mlx5_0 …", …; several where connections differ; `None` while
    /// there is none.
    pub transport: Option<String>,
    /// Why not over a faster transport, where one was expected.
    pub fallback: Option<String>,
    /// Why not over RDMA; `None` where it is, or there is no connection.
    pub why_not_rdma: Option<String>,
    /// Connections at the moment.
    pub connections: usize,
}

impl Client {
    /// Connects to the cluster that has the server of `url`, and learns its other servers. They are connected to when
    /// they are needed.
    ///
    /// # Errors
    /// At once, if that server cannot be reached, does not know the key, or refuses.
    pub fn connect(url: &Url, options: ConnectOptions) -> Result<Client> {
        let caller = Arc::new(options.find_caller());
        Ok(Client { inner: Arc::new(Inner::connect(url, options, None)?), caller })
    }

    /// As [`Client::connect`], with these adapters in the place of the host's: for simulations and tests.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(url: &Url, options: ConnectOptions, rdma: Rdma) -> Result<Client> {
        let caller = Arc::new(options.find_caller());
        Ok(Client { inner: Arc::new(Inner::connect(url, options, Some(rdma))?), caller })
    }

    /// As [`Client::connect`], where the cluster's map is known from another process or from before a fork: nothing is asked until
    /// it is needed. A map that is old by then is brought up to date when it does not suffice.
    ///
    /// # Errors
    /// If there is no key, or the map makes no sense.
    pub fn connect_with_map(
        url: &Url,
        options: ConnectOptions,
        map: impl Into<Arc<ClusterMapReply>>,
    ) -> Result<Client> {
        let caller = Arc::new(options.find_caller());
        Ok(Client { inner: Arc::new(Inner::with_map(url, options, map.into(), None)?), caller })
    }

    /// As [`Client::connect_with_map`], as one of several processes that hold locks together: the session `id`, any 16 bytes that no
    /// other has, lives as long as one of them is connected. Of 64 processes that are in it at the same time each is another
    /// `member`. Locks of [`LockOwner::Other`](crate::LockOwner) are theirs in common, and what one of them has locked others can
    /// unlock; after a restart of the metadata server each comes back for what it has locked itself. Files of this client must
    /// not be dropped while others are to keep their locks: closing a file ends all locks that the session has on it.
    ///
    /// # Errors
    /// If there is no key.
    pub fn join_session(
        url: &Url,
        options: ConnectOptions,
        map: impl Into<Arc<ClusterMapReply>>,
        id: [u8; 16],
        member: u16,
    ) -> Result<Client> {
        let caller = Arc::new(options.find_caller());
        Ok(Client { inner: Arc::new(Inner::with_map(url, options, map.into(), Some((id, member)))?), caller })
    }

    /// A client of a cluster with this map whose connections `dial` makes: for simulations and tests.
    ///
    /// # Errors
    /// If there is no key.
    pub fn over(map: ClusterMapReply, options: ConnectOptions, dial: Box<dyn Dial>) -> Result<Client> {
        let url = Url::parse("weft://simulated/").expect("a URL");
        let caller = Arc::new(options.find_caller());
        let identity = options.identity(&url)?;
        let inner = Inner::over(&url, &options, identity, map.into(), (dial, None), None)?;
        Ok(Client { inner: Arc::new(inner), caller })
    }

    /// The same connections, on another's behalf.
    pub fn with_caller(&self, caller: Caller) -> Client {
        Client { inner: self.inner.clone(), caller: Arc::new(caller) }
    }

    /// On whose behalf.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The cluster's servers and defaults: the newest map that this client has seen.
    pub fn map(&self) -> Arc<ClusterMapReply> {
        self.inner.map()
    }

    /// What was connected to.
    pub fn url(&self) -> &Url {
        &self.inner.url
    }

    /// How each server is reached at the moment, metadata servers first.
    pub fn transports(&self) -> Vec<TransportInUse> {
        let of = |server: &Server| {
            let lanes = server.lanes();
            let mut texts: Vec<String> = Vec::new();
            for lane in &lanes {
                let text = self.lane_text(lane);
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            TransportInUse {
                server: server.info().name.clone(),
                role: if server.role == Role::Meta { "meta" } else { "io" },
                transport: (!texts.is_empty()).then(|| texts.join(", ")),
                fallback: server.fallback(),
                why_not_rdma: why_not_rdma(server, &lanes),
                connections: lanes.len(),
            }
        };
        self.inner.session().listed().map(|(_, server)| of(server)).collect()
    }

    /// How a connection moves data, and what the network is told of it.
    fn lane_text(&self, lane: &Lane) -> String {
        let traffic = lane.traffic();
        let tos = self.inner.rdma.as_ref().map_or(0, |rdma| rdma.options().tos.of(traffic));
        match lane.kind() {
            kind @ LinkKind::Verbs { .. } if tos != 0 => format!("{kind} ({traffic}, type of service {tos})"),
            kind => kind.to_string(),
        }
    }

    /// RDMA of this process: adapters, memory and counts, or why there is none. Looks for it where nothing has asked for it
    /// yet.
    pub fn rdma_status(&self) -> RdmaStatus {
        match &self.inner.rdma {
            Some(rdma) => rdma.status(),
            None => RdmaStatus::none("connections are made by a simulation"),
        }
    }

    fn caller_owned(&self) -> Caller {
        (*self.caller).clone()
    }

    fn meta<R: Request>(&self, request: &R) -> Result<R::Reply> {
        batch::reap(&self.inner);
        batch::ask(&self.inner, self.inner.meta(), request)
    }

    /// As [`Client::meta`], of what `at` names: if that is a file by its number, behind the closes of it that wait.
    fn meta_behind_closes<R: Request>(&self, at: &At<'_>, request: &R) -> Result<R::Reply> {
        match at.number() {
            Some(ino) => {
                batch::reap(&self.inner);
                closing::ask_behind(&self.inner, ino, request)
            }
            None => self.meta(request),
        }
    }

    /// Asks for attributes and brings their size up to date.
    fn attr<R: Request<Reply = AttrReply>>(&self, request: &R, on: &dyn std::fmt::Display) -> Result<Attr> {
        let _operation = self.operation();
        let attr = || {
            let mut attr = self.meta(request)?.attr;
            size::bring_up_to_date(&self.inner, &self.caller, std::iter::once(&mut attr))?;
            Ok(attr)
        };
        attr().map_err(|error: Error| error.on(on))
    }

    /// Attributes of what a name leads to; `follow`: of what a symbolic link at its end points to.
    pub fn stat<'a>(&self, at: impl Into<At<'a>>, follow: bool) -> Result<Attr> {
        let at = at.into();
        self.attr(&LookupRequest { caller: self.caller_owned(), at: at.to_wire(), follow }, &at)
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        self.attr(&InodeRequest { caller: self.caller_owned(), ino }, &At::ino(ino))
    }

    /// Changes attributes; returns them as they are then.
    pub fn setattr<'a>(&self, at: impl Into<At<'a>>, follow: bool, changes: &SetAttr) -> Result<Attr> {
        let at = at.into();
        let request = self.setattr_request(&at, follow, changes);
        let attr = self.attr(&request, &at)?;
        self.note_times_set(attr.ino, changes);
        Ok(attr)
    }

    /// As [`Client::setattr`], of a file that this client's open files may have written to: what they wrote is reported before,
    /// with the same message. Either both take effect or none does.
    pub fn report_and_setattr(&self, ino: u64, changes: &SetAttr) -> Result<Attr> {
        let _operation = self.operation();
        let at = At::ino(ino);
        let request = self.setattr_request(&at, false, changes);
        batch::reap(&self.inner);
        let changed = held::report_with(&self.inner, ino, request);
        let up_to_date = changed.and_then(|mut attr| {
            size::bring_up_to_date(&self.inner, &self.caller, std::iter::once(&mut attr))?;
            Ok(attr)
        });
        let attr = up_to_date.map_err(|error| error.on(&at))?;
        self.note_times_set(ino, changes);
        Ok(attr)
    }

    /// A time set by hand is not to be overwritten by a report of what was written before.
    fn note_times_set(&self, ino: u64, changes: &SetAttr) {
        if changes.mtime.is_some() {
            self.inner.held.of(ino).iter().for_each(|held| held.note_time_set());
        }
    }

    fn setattr_request(&self, at: &At<'_>, follow: bool, changes: &SetAttr) -> SetAttrRequest {
        let zero = Time { seconds: 0, nanoseconds: 0 };
        let time = |change: &Option<SetTime>, to: u32, now: u32| match change {
            None => (0, zero.clone()),
            Some(SetTime::Now) => (now, zero.clone()),
            Some(SetTime::To(time)) => (to, time.clone()),
        };
        let (atime_valid, atime) = time(&changes.atime, attr_valid::ATIME, attr_valid::ATIME_NOW);
        let (mtime_valid, mtime) = time(&changes.mtime, attr_valid::MTIME, attr_valid::MTIME_NOW);
        let given = |given: bool, bit: u32| if given { bit } else { 0 };
        let valid = given(changes.mode.is_some(), attr_valid::MODE)
            | given(changes.uid.is_some(), attr_valid::UID)
            | given(changes.gid.is_some(), attr_valid::GID)
            | atime_valid
            | mtime_valid;
        SetAttrRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            follow,
            valid,
            mode: changes.mode.unwrap_or(0),
            uid: changes.uid.unwrap_or(0),
            gid: changes.gid.unwrap_or(0),
            atime,
            mtime,
            report: None,
        }
    }

    /// Opens a file, or creates it: one round trip.
    pub fn open<'a>(&self, at: impl Into<At<'a>>, options: &OpenOptions) -> Result<File> {
        let _operation = self.operation();
        let at = at.into();
        self.open_at(&at, options).map_err(|error| error.on(&at))
    }

    fn open_at(&self, at: &At<'_>, options: &OpenOptions) -> Result<File> {
        let read = if options.read { rights::READ } else { 0 };
        let access = read | if options.write { rights::WRITE } else { 0 };
        if access == 0 || options.truncate && !options.write {
            let text = "a file is opened to read, to write, or both; to be truncated, to write";
            return Err(Error::new("Open", ErrorKind::Invalid, text));
        }
        let caller = self.caller_owned();
        let reply = if options.create {
            self.meta(&CreateRequest {
                caller,
                at: at.to_wire(),
                mode: options.mode,
                exclusive: options.exclusive,
                layout: options.layout.clone(),
                access,
            })?
        } else {
            let request = OpenRequest { caller, at: at.to_wire(), follow: options.follow, access };
            self.meta_behind_closes(at, &request)?
        };
        let Some(capability) = reply.capability else {
            let status = match reply.attr.kind {
                FileKind::Directory => Status::IsDirectory,
                _ => Status::Unsupported,
            };
            return Err(Error::new("Open", ErrorKind::Status(status), "only files have contents here"));
        };
        let is_empty = reply.attr.size == 0 && !reply.attr.size_live;
        let held = Held::new(capability, access, self.inner.open_id(reply.run));
        let open = OpenFile::new(
            &self.inner,
            &self.caller,
            held,
            at.to_string(),
            (options.sync, reply.created, options.append),
            reply.attr,
        );
        self.inner.count(&open.held)?;
        if let Some(parent) = reply.parent {
            let _ = open.parent.set(parent);
        }
        open.set_access(options.access);
        let file = File::new(open);
        if options.truncate && !file.created() && !is_empty {
            file.truncate(0)?;
        }
        if options.sync && file.open().held.is_for_writing() {
            // Durable bytes of a file whose name is not are lost with it.
            file.sync_attributes()?;
        }
        Ok(file)
    }

    /// Makes a directory; `mode` has the umask applied.
    pub fn mkdir<'a>(&self, at: impl Into<At<'a>>, mode: u32) -> Result<Attr> {
        self.make_directory(at.into(), mode, None)
    }

    /// Makes a directory with a default layout for what is created in it.
    pub fn mkdir_with_layout<'a>(
        &self,
        at: impl Into<At<'a>>,
        mode: u32,
        layout: &LayoutWish,
    ) -> Result<Attr> {
        self.make_directory(at.into(), mode, Some(layout.clone()))
    }

    fn make_directory(&self, at: At<'_>, mode: u32, layout: Option<LayoutWish>) -> Result<Attr> {
        self.attr(&MkdirRequest { caller: self.caller_owned(), at: at.to_wire(), mode, layout }, &at)
    }

    /// Makes a named pipe, a socket's name or a device.
    pub fn mknod<'a>(&self, at: impl Into<At<'a>>, kind: FileKind, mode: u32, rdev: u32) -> Result<Attr> {
        let at = at.into();
        self.attr(&MknodRequest { caller: self.caller_owned(), at: at.to_wire(), kind, mode, rdev }, &at)
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink<'a>(&self, at: impl Into<At<'a>>, target: &[u8]) -> Result<Attr> {
        let at = at.into();
        let target = target.to_vec();
        self.attr(&SymlinkRequest { caller: self.caller_owned(), at: at.to_wire(), target }, &at)
    }

    /// Where a symbolic link points.
    pub fn readlink<'a>(&self, at: impl Into<At<'a>>) -> Result<Vec<u8>> {
        let at = at.into();
        let reply = self.meta(&ReadlinkRequest { caller: self.caller_owned(), at: at.to_wire() });
        reply.map(|reply| reply.target).map_err(|error| error.on(&at))
    }

    /// Gives what `from` leads to another name; `follow`: what a symbolic link at the end of `from` points to.
    pub fn link<'a, 'b>(&self, from: impl Into<At<'a>>, follow: bool, to: impl Into<At<'b>>) -> Result<Attr> {
        let (from, to) = (from.into(), to.into());
        let request =
            LinkRequest { caller: self.caller_owned(), from: from.to_wire(), follow, to: to.to_wire() };
        self.attr(&request, &format_args!("{from} to {to}"))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink<'a>(&self, at: impl Into<At<'a>>) -> Result<()> {
        self.unlink_in(at).map(drop)
    }

    /// As [`Client::unlink`]; returns the directory's attributes after it, if this client watches and `at` is one name in a
    /// directory that is given by number.
    pub fn unlink_in<'a>(&self, at: impl Into<At<'a>>) -> Result<Option<Attr>> {
        let at = at.into();
        let reply = self.meta(&UnlinkRequest { caller: self.caller_owned(), at: at.to_wire() });
        reply.map(|reply| reply.parent).map_err(|error| error.on(&at))
    }

    /// Removes an empty directory.
    pub fn rmdir<'a>(&self, at: impl Into<At<'a>>) -> Result<()> {
        let at = at.into();
        let reply = self.meta(&RmdirRequest { caller: self.caller_owned(), at: at.to_wire() });
        reply.map(drop).map_err(|error| error.on(&at))
    }

    /// Moves a name; `flags` are [`weft_wire::messages::rename_flags`].
    pub fn rename<'a, 'b>(&self, from: impl Into<At<'a>>, to: impl Into<At<'b>>, flags: u32) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let request =
            RenameRequest { caller: self.caller_owned(), from: from.to_wire(), to: to.to_wire(), flags };
        self.meta(&request).map(drop).map_err(|error| error.on(&format_args!("{from} to {to}")))
    }

    /// One page of a directory; `after` is 0 or the cookie of the last entry seen, `entries_max` at most
    /// [`weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX`].
    pub fn read_dir_page(
        &self,
        ino: u64,
        after: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReadDirReply> {
        self.page(ino, after, entries_max, with_attrs).map_err(|error| error.on(&At::ino(ino)))
    }

    pub(crate) fn page(
        &self,
        ino: u64,
        after: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReadDirReply> {
        let request = ReadDirRequest { caller: self.caller_owned(), ino, after, entries_max, with_attrs };
        let _operation = self.operation();
        let mut page = self.meta(&request)?;
        let attrs = page.entries.iter_mut().filter_map(|entry| entry.attr.as_mut());
        size::bring_up_to_date(&self.inner, &self.caller, attrs)?;
        Ok(page)
    }

    /// All entries of a directory, with attributes.
    pub fn read_dir<'a>(&self, at: impl Into<At<'a>>) -> Result<ReadDir> {
        let at = at.into();
        let request = LookupRequest { caller: self.caller_owned(), at: at.to_wire(), follow: true };
        let attr = self.meta(&request).map_err(|error| error.on(&at))?.attr;
        if attr.kind != FileKind::Directory {
            return Err(Error::new("ReadDir", ErrorKind::Status(Status::NotDirectory), "").on(&at));
        }
        Ok(ReadDir::new(self.clone(), attr.ino, at.to_string()))
    }

    /// Whether the caller may; `mask`: 4 read, 2 write, 1 execute, 0 only whether it is there.
    pub fn access<'a>(&self, at: impl Into<At<'a>>, follow: bool, mask: u32) -> Result<()> {
        let at = at.into();
        let request = AccessRequest { caller: self.caller_owned(), at: at.to_wire(), follow, mask };
        self.meta(&request).map(drop).map_err(|error| error.on(&at))
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let request = GetXattrRequest { caller: self.caller_owned(), ino, name: name.to_vec() };
        self.meta(&request).map(|reply| reply.value).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Sets an extended attribute; `flags`: 1: it must not be there, 2: it must.
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        let request = SetXattrRequest { caller: self.caller_owned(), ino, name, value, flags };
        self.meta(&request).map(drop).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Names of the extended attributes.
    pub fn list_xattrs(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let request = ListXattrsRequest { caller: self.caller_owned(), ino };
        self.meta(&request).map(|reply| reply.names).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        let request = RemoveXattrRequest { caller: self.caller_owned(), ino, name: name.to_vec() };
        self.meta(&request).map(drop).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Sets a directory's default layout, or that of a file while it was never written; `None` removes a directory's.
    pub fn set_layout<'a>(&self, at: impl Into<At<'a>>, layout: Option<&LayoutWish>) -> Result<Attr> {
        let at = at.into();
        let layout = layout.cloned();
        self.attr(&SetLayoutRequest { caller: self.caller_owned(), at: at.to_wire(), layout }, &at)
    }

    /// Cuts or extends a file to `file_bytes`; what is added reads as zeros.
    pub fn truncate<'a>(&self, at: impl Into<At<'a>>, file_bytes: u64) -> Result<()> {
        let _operation = self.operation();
        let at = at.into();
        size::truncate(&self.inner, &self.caller, &at, None, file_bytes).map_err(|error| error.on(&at))
    }

    /// Copies `bytes` bytes from `from_offset` of one file to `to_offset` of another, or of the same one, holes as holes; the number
    /// of bytes, fewer than asked for only at the end of `from`. Where both ranges lie alike on the servers, these copy among
    /// their own data files and no byte comes here.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where two ranges of one file overlap; then nothing is copied. After other errors the range may hold
    /// any mixture of old and new bytes.
    pub fn copy_range(
        &self,
        from: &File,
        from_offset: u64,
        to: &File,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        let ours = |file: &File| Arc::ptr_eq(&self.inner, &file.open().inner);
        if !ours(from) || !ours(to) {
            let text = "both files must have been opened by this client, or one that was made from it";
            return Err(Error::new("CopyRange", ErrorKind::Status(Status::CrossDevice), text).on(&to.name()));
        }
        let _operation = self.operation();
        copy::copy_range(from, from_offset, to, to_offset, bytes).map_err(|error| error.on(&to.name()))
    }

    /// The space that files take on their servers, in bytes, all asked at once: in three round trips, however many they are, two
    /// for files that are open. What is no file, or gone, takes none; a file whose servers cannot all be asked, as many as its size.
    pub fn allocated_bytes<'a>(&self, attrs: impl IntoIterator<Item = &'a Attr>) -> Result<Vec<u64>> {
        let attrs: Vec<&Attr> = attrs.into_iter().collect();
        let known = self.allocated_bytes_known(attrs.iter().copied())?;
        Ok(attrs.iter().zip(known).map(|(attr, known)| known.unwrap_or(attr.size)).collect())
    }

    /// As [`Client::allocated_bytes`]; `None` for a file whose servers cannot all be asked.
    pub fn allocated_bytes_known<'a>(
        &self,
        attrs: impl IntoIterator<Item = &'a Attr>,
    ) -> Result<Vec<Option<u64>>> {
        let _operation = self.operation();
        size::allocated_bytes(&self.inner, &self.caller, attrs.into_iter())
    }

    /// Begins an operation of the calling thread that consists of several calls: together they have the time of one
    /// ([`ConnectOptions::retry_timeout_ms`]), until it is dropped. Within another it has the time of that one.
    pub fn operation(&self) -> Operation {
        self.inner.operation()
    }

    /// The servers that the present operation of the calling thread has waited for, each for how long at most, the longest first;
    /// none that it waited for only a moment.
    pub fn servers_waited_for(&self) -> Vec<(String, Duration)> {
        let session = self.inner.session();
        let named = |(index, wait): (usize, Duration)| {
            let (_, server) = session.servers().nth(index)?;
            Some((server.describe(None), wait))
        };
        waits::longest().into_iter().filter_map(named).collect()
    }

    /// The servers that are known to be dead.
    pub fn dead_servers(&self) -> Vec<DeadServer> {
        let session = self.inner.session();
        let dead = |(index, server): (usize, &Server)| {
            let obituary = server.obituary()?;
            Some(DeadServer {
                server: server.describe(None),
                index,
                since_unix_s: obituary.since_unix_s,
                cause: obituary.cause,
            })
        };
        session.listed().filter_map(dead).collect()
    }

    /// Looks whether a dead server is back, for `wait` at most; it is asked again from then on. For a thread that does so every so
    /// often: others do not from the first call on.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] while it is not back.
    pub fn probe(&self, dead: &DeadServer, wait: Duration) -> Result<()> {
        self.inner.probe_server(dead.index, wait)
    }

    /// Some thread calls [`Client::probe`] every so often, so that nobody who needs a dead server has to.
    pub fn leave_probing_to_others(&self) {
        self.inner.leave_probing_to_others();
    }

    /// Tells the metadata server which files were closed by [`File::close_later`], if it has not been told. Does not wait for
    /// the reply.
    pub fn send_closes(&self) {
        closing::send_all(&self.inner);
    }

    /// Space and files of the whole cluster, of the I/O servers that answer soon: without those that are dead.
    ///
    /// # Errors
    /// Also where no I/O server answers.
    pub fn statfs(&self) -> Result<StatFs> {
        let _operation = self.operation();
        let io = self.inner.session().listed_of(Role::Io);
        let is_in_use = |server: &Server| server.info().state == server_state::ACTIVE;
        let io = io.filter(|(_, server)| is_in_use(server));
        let requests = io.map(|(index, _)| (index, SpaceRequest {}));
        let patience = SPACE_PATIENCE.min(self.inner.options.patience() / 2);
        let spaces = batch::ask_all(&self.inner, requests, Some(patience));
        let files = self.meta(&FileCountRequest {})?.files;
        let mut all = StatFs { space_bytes: 0, free_bytes: 0, available_bytes: 0, files };
        let any = spaces.iter().any(Result::is_ok);
        let mut counted = HashSet::new();
        for space in spaces {
            let space = match space {
                Err(error) if any && error.kind() == ErrorKind::Unreachable => continue,
                space => space?,
            };
            if space.disk_id != [0; 16] && !counted.insert(space.disk_id) {
                continue;
            }
            all.space_bytes += space.space_bytes;
            all.free_bytes += space.free_bytes;
            all.available_bytes += space.available_bytes;
        }
        Ok(all)
    }

    /// Makes durable what anybody has written to any file so far, whether it is open or closed, and all names, attributes and sizes that
    /// were acknowledged so far.
    ///
    /// # Errors
    /// The first one; all servers and files are tried. Also where a server has lost changes, of whatever file, since this client came to
    /// it or has synced all before, and this client has closed files there that it had not synced. A server that is dead is an error
    /// only then.
    pub fn sync_all(&self) -> Result<()> {
        let _operation = self.operation();
        let mut failed = sync_all_contents(&self.inner).err();
        for held in self.inner.held.all().into_iter().filter(|held| held.is_for_writing()) {
            if let Err(error) = sync_contents(&self.inner, &held) {
                failed.get_or_insert(error);
            }
        }
        self.sync_names()?;
        failed.map_or(Ok(()), Err)
    }

    /// Reports what this client's open files have written, and makes durable all names, attributes and sizes that were acknowledged so
    /// far: what fsync(2) of a directory asks for.
    pub fn sync_names(&self) -> Result<()> {
        let _operation = self.operation();
        for held in self.inner.held.all() {
            held.report_to(&self.inner)?;
        }
        let meta = self.inner.session().listed_of(Role::Meta);
        let replies = batch::ask_all(&self.inner, meta.map(|(index, _)| (index, SyncMetaRequest {})), None);
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Notices whether the connection to the metadata server is lost, if files are locked, and makes it again, so that the locks
    /// hold. Reads and writes of files with locks do that too; a program that holds locks and does neither for more than a few
    /// seconds may call this now and then, for it is given up otherwise if the server is started again meanwhile.
    pub fn keep_locks(&self) -> Result<()> {
        self.inner.look_after_locks()
    }

    /// Waits for changes by others of what this client was told since it watches; for those who cache it. The server
    /// answers when there are some, and after a few seconds. `epoch` and `acknowledged` are those of the last reply, 0 at first.
    /// While a client watches, others' changes are not acknowledged to them before it has acknowledged them here, or
    /// [`weft_wire::limits::LEASE_MS`] are over since it was told.
    /// With `at_once` it is answered without waiting.
    pub fn watch(&self, epoch: u64, acknowledged: u64, at_once: bool) -> Result<WatchReply> {
        self.meta(&WatchRequest { epoch, acknowledged, at_once, end: false })
    }

    /// Watches no longer: this client believes nothing any more of what it was told.
    pub fn end_watch(&self) -> Result<()> {
        let request = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: true };
        let requests = [(self.inner.meta(), request)];
        let replies = batch::ask_all(&self.inner, requests, Some(STATUS_PATIENCE));
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Counts how often the metadata server was reached anew: over no connection that was there before, or another run of it.
    /// What it was told before may not be known to it any more.
    pub fn meta_arrivals(&self) -> u64 {
        self.inner.meta_arrivals()
    }

    /// What every server is doing, or why it does not say; metadata servers first.
    pub fn server_status(&self, with_clients: bool) -> Vec<(ServerInfo, Result<StatusReply>)> {
        let servers: Vec<_> = self.inner.session().listed().collect();
        let requests = servers.iter().map(|(index, _)| (*index, StatusRequest { with_clients }));
        let replies = batch::ask_all(&self.inner, requests, Some(STATUS_PATIENCE));
        servers.iter().map(|(_, server)| (*server.info()).clone()).zip(replies).collect()
    }

    /// Shared memory for I/O without a copy on the servers' host.
    pub fn alloc(&self, bytes: usize) -> Result<Arena> {
        Arena::new(&self.inner, bytes)
    }

    /// Time of a round trip of `echo` to the server with this name.
    pub fn ping(&self, server: &str, echo: &[u8]) -> Result<Duration> {
        let mut servers = self.inner.session().listed();
        let (index, _) = servers.find(|(_, one)| one.info().name == server).ok_or_else(|| {
            let text = format!("the cluster has no server `{server}`");
            Error::new("Ping", ErrorKind::Invalid, text)
        })?;
        let request = PingRequest { echo: echo.to_vec() };
        let begin = Instant::now();
        batch::ask(&self.inner, index, &request)?;
        Ok(begin.elapsed())
    }
}

/// Why the connections to a server are not over RDMA, where they are not.
fn why_not_rdma(server: &Server, lanes: &[Arc<Lane>]) -> Option<String> {
    let kinds = || lanes.iter().map(|lane| lane.kind());
    if lanes.is_empty() || kinds().any(|kind| matches!(kind, LinkKind::Verbs { .. })) {
        return None;
    }
    let is_shared = kinds().any(|kind| matches!(kind, LinkKind::ShmDirect | LinkKind::ShmStaged { .. }));
    Some(match server.fallback() {
        _ if is_shared => "it is on this host, where shared memory is faster".into(),
        Some(reason) => reason,
        None if server.info().addresses(endpoint::RDMA).next().is_none() => {
            "the cluster file has no RDMA address of it".into()
        }
        None => "another transport was asked for".into(),
    })
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client {{ url: {} }}", self.url())
    }
}
