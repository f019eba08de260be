//! A client of a cluster: how it is made, and what concerns all of its files.

use std::sync::Arc;
use std::time::Duration;

use weft_wire::messages::{
    Attr, AttrReply, Caller, ClusterMapReply, SyncMetaRequest, WatchReply, WatchRequest,
};
use weft_wire::{Owned, Status};

use crate::batch;
use crate::copy::{Copied, Copy};
use crate::deadline::Operation;
use crate::dial::Dial;
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::open_file::{check_remembered, sync_all_contents, sync_contents};
use crate::rdma::Rdma;
use crate::server::Role;
use crate::size;
use crate::{Arena, At, ConnectOptions, File, Result, Url};

/// How long the metadata server may take to confirm the end of a watch.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// A connection to a cluster, on somebody's behalf. Clones share the connections; all methods may be called
/// by many threads at once, and after a fork, in parent and child.
///
/// Errors of all methods: [`ErrorKind::Status`] with the server's reason, [`ErrorKind::Unreachable`] when a
/// server was lost and did not come back within [`ConnectOptions::retry_timeout_ms`].
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    pub(crate) caller: Arc<Caller>,
}

impl Client {
    /// Connects to the cluster that has the server of `url`, and learns its other servers. They are connected
    /// to when they are needed.
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

    /// As [`Client::connect`], where the cluster's map is known from another process or from before a fork:
    /// nothing is asked until it is needed. A map that is old by then is brought up to date when it does not
    /// suffice.
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

    /// As [`Client::connect_with_map`], as one of several processes that hold locks together: the session
    /// `id`, any 16 bytes that no other has, lives as long as one of them is connected. Of 64 processes that
    /// are in it at the same time each is another `member`. Locks of [`LockOwner::Other`](crate::LockOwner)
    /// are theirs in common, and what one of them has locked others can unlock; after a restart of the
    /// metadata server each comes back for what it has locked itself. Files of this client must not be
    /// dropped while others are to keep their locks: closing a file ends all locks that the session has on
    /// it.
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

    pub(crate) fn caller_owned(&self) -> Caller {
        (*self.caller).clone()
    }

    pub(crate) fn meta<R: Owned>(&self, request: &R) -> Result<R::Reply> {
        batch::reap(&self.inner);
        batch::ask(&self.inner, request)
    }

    /// As [`Client::meta`], of what `at` names: if that is a file by its number, behind the closes of it that
    /// wait.
    pub(crate) fn meta_behind_closes<R: Owned>(&self, at: &At<'_>, request: &R) -> Result<R::Reply> {
        match at.number() {
            Some(ino) => {
                batch::reap(&self.inner);
                self.inner.closing().ask_behind(&self.inner, ino, request, None)
            }
            None => self.meta(request),
        }
    }

    /// Asks for attributes and brings their size up to date.
    pub(crate) fn attr<R: Owned<Reply = AttrReply>>(
        &self,
        request: &R,
        on: &dyn std::fmt::Display,
    ) -> Result<Attr> {
        let _operation = self.operation();
        let attr = || {
            let mut attr = self.meta(request)?.attr;
            size::bring_up_to_date(&self.inner, &self.caller, std::iter::once(&mut attr))?;
            Ok(attr)
        };
        attr().map_err(|error: Error| error.on(on))
    }

    /// Cuts or extends a file to `file_bytes`; what is added reads as zeros.
    pub fn truncate<'a>(&self, at: impl Into<At<'a>>, file_bytes: u64) -> Result<()> {
        let _operation = self.operation();
        let at = at.into();
        size::truncate(&self.inner, &self.caller, &at, None, file_bytes, None).map_err(|error| error.on(&at))
    }

    /// Copies `bytes` bytes from `from_offset` of one file to `to_offset` of another, or of the same one,
    /// holes as holes; the number of bytes, fewer than asked for only at the end of `from`. Where both ranges
    /// lie alike on the servers, these copy among their own data files and no byte comes here.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where two ranges of one file overlap; then nothing is copied. After other
    /// errors the range may hold any mixture of old and new bytes.
    pub fn copy_range(
        &self,
        from: &File,
        from_offset: u64,
        to: &File,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        self.copy_range_of(from, from_offset, None, to, to_offset, bytes).map(|copied| copied.bytes)
    }

    /// As [`Client::copy_range`], of a file of which it is known that it has `from_bytes` now; otherwise its
    /// servers are asked.
    ///
    /// # Errors
    /// As of [`Client::copy_range`].
    pub fn copy_range_of(
        &self,
        from: &File,
        from_offset: u64,
        from_bytes: Option<u64>,
        to: &File,
        to_offset: u64,
        bytes: u64,
    ) -> Result<Copied> {
        let ours = |file: &File| Arc::ptr_eq(&self.inner, &file.open().inner);
        if !ours(from) || !ours(to) {
            let text = "both files must have been opened by this client, or one that was made from it";
            return Err(Error::new("CopyRange", ErrorKind::Status(Status::CrossDevice), text).on(&to.name()));
        }
        let _operation = self.operation();
        Copy { from, from_offset, to, to_offset, bytes }.run(from_bytes).map_err(|error| error.on(&to.name()))
    }

    /// The space that files take on their servers, in bytes, all asked at once: in three round trips, however
    /// many they are, two for files that are open. What is no file, or gone, takes none; a file whose servers
    /// cannot all be asked, as many as its size.
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

    /// Begins an operation of the calling thread that consists of several calls: together they have the time
    /// of one ([`ConnectOptions::retry_timeout_ms`]), until it is dropped. Within another it has the time of
    /// that one.
    pub fn operation(&self) -> Operation {
        self.inner.operation()
    }

    /// Tells the metadata server which files were closed by [`File::close_later`], if it has not been told.
    /// Does not wait for the reply.
    pub fn send_closes(&self) {
        self.inner.closing().send_all(&self.inner);
    }

    /// Makes durable what anybody has written to any file so far, whether it is open or closed, and all
    /// names, attributes and sizes that were acknowledged so far.
    ///
    /// # Errors
    /// The first one; all servers and files are tried. Also where a server has lost changes, of whatever
    /// file, since this client came to it or has synced all before, and this client has closed files there
    /// that it had not synced. A server that is dead is an error only then.
    pub fn sync_all(&self) -> Result<()> {
        let _operation = self.operation();
        // First, so that small files that are spread from now on are durable where they go.
        let mut failed = self.sync_names().err();
        if let Err(error) = sync_all_contents(&self.inner) {
            failed.get_or_insert(error);
        }
        for held in self.inner.held.all().into_iter().filter(|held| held.is_for_writing()) {
            if let Err(error) = sync_contents(&self.inner, &held) {
                failed.get_or_insert(error);
            }
        }
        self.sync_names()?;
        for held in self.inner.held.all().into_iter().filter(|held| held.is_for_writing()) {
            if let Err(error) = check_remembered(&self.inner, &held) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Reports what this client's open files have written, and makes durable all names, attributes and sizes
    /// that were acknowledged so far: what fsync(2) of a directory asks for.
    pub fn sync_names(&self) -> Result<()> {
        let _operation = self.operation();
        for held in self.inner.held.all() {
            held.report_to(&self.inner)?;
        }
        let meta = self.inner.session().listed_of(Role::Meta);
        let replies = batch::ask_all(&self.inner, meta.map(|(index, _)| (index, SyncMetaRequest {})), None);
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Notices whether the connection to the metadata server is lost, if files are locked, and makes it
    /// again, so that the locks hold. Reads and writes of files with locks do that too; a program that holds
    /// locks and does neither for more than a few seconds may call this now and then, for it is given up
    /// otherwise if the server is started again meanwhile. What was unlocked while the server was away is told to it
    /// now.
    pub fn keep_locks(&self) -> Result<()> {
        self.inner.look_after_locks()?;
        self.inner.settle_locks().map(drop)
    }

    /// Whether this client has never lost a lock, and the metadata server has confirmed a moment ago that it has its locks.
    /// Sends no request: [`Client::keep_locks`] does.
    pub fn holds_locks(&self) -> bool {
        let book = &self.inner.locks;
        !book.has_lost_any() && book.is_confirmed(crate::host::since_boot())
    }

    /// The shards of the name space. Each has a metadata server of its own, which is watched by itself.
    pub fn shards(&self) -> Vec<u16> {
        self.inner.session().owners().map(|(shard, _)| shard).collect()
    }

    /// Waits until others change something of a shard that this client has asked for; for clients that cache it. The
    /// server answers when there are some, and after a few seconds. `epoch` and `acknowledged` are those of the
    /// last reply of the shard, 0 at first. While a client watches, the server delays the acknowledgement of others'
    /// changes until this client has acknowledged them here, or until [`weft_wire::limits::LEASE_MS`] have passed.
    /// With `at_once` the server answers without waiting.
    pub fn watch(&self, shard: u16, epoch: u64, acknowledged: u64, at_once: bool) -> Result<WatchReply> {
        batch::reap(&self.inner);
        let request = WatchRequest { epoch, acknowledged, at_once, end: false };
        batch::ask_server(&self.inner, self.inner.owner(shard), &request)
    }

    /// Watches no longer: this client holds no leases any more.
    pub fn end_watch(&self) -> Result<()> {
        let request = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: true };
        let owners = self.inner.session().owners();
        let requests = owners.map(|(_, owner)| (owner, request.clone()));
        let replies = batch::ask_all(&self.inner, requests, Some(END_PATIENCE));
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// How often the metadata server of a shard was reached over no connection that was there before, or in another
    /// run of it. After that it may not know any more what it told this client.
    pub fn arrivals(&self, shard: u16) -> u64 {
        self.inner.arrivals(shard)
    }

    /// Shared memory for I/O without a copy on the servers' host.
    pub fn alloc(&self, bytes: usize) -> Result<Arena> {
        Arena::new(&self.inner, bytes)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client {{ url: {} }}", self.url())
    }
}
