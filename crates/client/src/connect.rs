//! Making a client: from a URL, from a map that is known, or over connections that a simulation makes.

use std::sync::Arc;

use weft_rpc::fork::PerProcess;
use weft_rpc::rpc::{Rpc, Setup};
use weft_wire::messages::ClusterMapReply;

use crate::dial::{Dial, FirstServer, NetworkDial};
use crate::error::Error;
use crate::greet::Identity;
use crate::held::HeldFiles;
use crate::inner::Inner;
use crate::key_files;
use crate::lock_book::LockBook;
use crate::rdma::{Rdma, RdmaSource};
use crate::restore::Reopener;
use crate::{ConnectOptions, Url};

/// A session that other processes are in: its id, and this process's number in it.
pub(crate) type Member = ([u8; 16], u16);

impl Inner {
    /// Asks the server of the URL for the cluster's map. Other RDMA than this host's is given in tests.
    pub(crate) fn connect(url: &Url, options: ConnectOptions, rdma: Option<Rdma>) -> Result<Inner, Error> {
        let first = FirstServer { socket: url.socket(), host: url.host(), port: url.port() };
        let timeout = options.calls(url).connect_timeout();
        let identity = match options.identity(url) {
            // A mistyped server has no key either; say that it cannot be reached.
            Err(error) if key_files::is_missing(&error) => {
                first.reach(timeout).map_err(|error| error.on(url))?;
                return Err(error);
            }
            identity => identity?,
        };
        let map = first.fetch_map(&identity, timeout).map_err(|error| error.on(url))?;
        Inner::over_network(url, options, identity, Arc::new(map), (rdma, None))
    }

    /// With a map that is known, as a process has it from another, in a session of its own or as a `member`
    /// of one. Nothing is asked before the first request.
    pub(crate) fn with_map(
        url: &Url,
        options: ConnectOptions,
        map: Arc<ClusterMapReply>,
        member: Option<Member>,
    ) -> Result<Inner, Error> {
        let identity = options.identity(url)?;
        Inner::over_network(url, options, identity, map, (None, member))
    }

    fn over_network(
        url: &Url,
        options: ConnectOptions,
        identity: Identity,
        map: Arc<ClusterMapReply>,
        (rdma, member): (Option<Rdma>, Option<Member>),
    ) -> Result<Inner, Error> {
        let transport = options.find_transport(url)?;
        let rdma = Arc::new(RdmaSource::new(options.find_rdma(url)?, rdma));
        let timeout = options.calls(url).connect_timeout();
        let dial = NetworkDial::new(transport, timeout, identity.knock().cloned(), rdma.clone());
        Inner::over(url, &options, identity, map, (Box::new(dial), Some(rdma)), member)
    }

    /// With a map that is known, and connections made by a dial with its RDMA.
    pub(crate) fn over(
        url: &Url,
        options: &ConnectOptions,
        identity: Identity,
        map: Arc<ClusterMapReply>,
        (dial, rdma): (Box<dyn Dial>, Option<Arc<RdmaSource>>),
        member: Option<Member>,
    ) -> Result<Inner, Error> {
        let held = Arc::new(HeldFiles::default());
        let locks = Arc::new(LockBook::new(member.is_some()));
        let restore = Box::new(Reopener { held: held.clone(), locks: locks.clone() });
        let options = options.calls(url);
        Ok(Inner {
            url: url.clone(),
            rpc: Rpc::new(Setup { options, identity, map, dial, rdma, restore, member })?,
            held,
            locks,
            pack_pool: Arc::default(),
            of_process: PerProcess::default(),
        })
    }
}
