//! Connections over the network: which transport, and what to do where it does not work.
//!
//! | asked for | the server has a Unix socket here | else, it has RDMA addresses and this host an adapter | else |
//! | --- | --- | --- | --- |
//! | `auto` | shared memory | RDMA | TCP |
//! | `shm` | shared memory or an error | an error | an error |
//! | `rdma` | RDMA | RDMA or an error | an error |
//! | `tcp` | TCP | TCP | TCP |
//!
//! `auto` tries the next transport where one fails, and keeps the reason. A rail that fails gives way to the other
//! rails. An address at which nobody answers, or another server does, gives way to the other addresses: a server that
//! moves has its old addresses behind its new ones. All attempts together have the time of one; those that are left
//! keep a share of it.

use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_transport::{Link, LinkError, ShmOptions, TcpOptions, connect_shm, connect_tcp};
use weft_wire::messages::{Endpoint, ServerInfo, endpoint};
use weft_wire::security::Key;

use super::{Dial, Dialled, Fallback, Greet, Transport, Wish, is_of_another_cluster};
use crate::deadline::{self, Operation};
use crate::error::{Error, ErrorKind};
use crate::rails::Rails;
use crate::rdma::RdmaSource;
use crate::wait::lock;

/// How long a connection over RDMA may take to come about where something else is at hand: another rail, or TCP.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one attempt of TCP may take, which needs nothing but the network and the other kernel: what is tried after an outage is
/// not to wait for the end of an attempt that began before.
const TCP_CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Over TCP, Unix sockets and RDMA.
pub struct NetworkDial {
    transport: Transport,
    timeout: Duration,
    /// What is shown before there is an RDMA connection; `None`: this client has no key, and is served over Unix sockets only.
    knock: Option<Key>,
    rdma: Arc<RdmaSource>,
    /// By the servers' names; with the addresses that they are of.
    rails: Mutex<HashMap<String, (Vec<String>, Rails)>>,
}

impl Dial for NetworkDial {
    fn dial(&self, server: &ServerInfo, wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        match self.transport {
            _ if self.knock.is_none() => self.without_key(server, greet),
            Transport::Tcp => self.tcp(server, greet),
            Transport::Shm => self.shm(server, greet),
            Transport::Rdma => self.rdma(server, wish, greet),
            // A rail is wished for where others are in use: nothing else takes its place.
            Transport::Auto if wish.rail.is_some() => self.rdma(server, wish, greet),
            Transport::Auto => self.auto(server, wish, greet),
        }
    }
}

impl NetworkDial {
    /// Gives every connection up after `timeout`.
    pub fn new(
        transport: Transport,
        timeout: Duration,
        knock: Option<Key>,
        rdma: Arc<RdmaSource>,
    ) -> NetworkDial {
        NetworkDial { transport, timeout, knock, rdma, rails: Mutex::default() }
    }

    fn without_key(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        if is_here(server) && matches!(self.transport, Transport::Auto | Transport::Shm) {
            return self.shm(server, greet);
        }
        let text = "without a key a client is served over the Unix socket of a server on its own host only; get a key \
                    (weft help keys)";
        Err(Error::new("connect", ErrorKind::Configuration, text).at_server(&server.name))
    }

    fn auto(&self, server: &ServerInfo, wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let mut failures = Failures::default();
        if is_here(server) {
            let attempt = self.share(2);
            let dialled = self.shm(server, greet);
            drop(attempt);
            match dialled {
                Ok(dialled) => return Ok(dialled),
                Err(error) => failures.add("shared memory", &error),
            }
        }
        if server.addresses(endpoint::RDMA).next().is_some() {
            let attempt = self.share(2);
            let dialled = self.rdma(server, wish, greet);
            drop(attempt);
            match dialled {
                Ok(dialled) => return Ok(Dialled { fallback: failures.fallback(), ..dialled }),
                Err(error) => failures.add("RDMA", &error),
            }
        }
        match self.tcp(server, greet) {
            Ok(dialled) => Ok(Dialled { fallback: failures.fallback(), ..dialled }),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.with_rails(server, Rails::forget_failures);
                let causes = std::iter::once(error.detail().to_string()).chain(failures.causes);
                Err(unreachable(server, causes.collect()))
            }
            Err(error) => Err(error),
        }
    }

    fn shm(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        if server.socket_path().is_empty() {
            let text =
                "it has no Unix socket, which shared memory needs; connect with transport auto, rdma or tcp";
            return Err(Error::new("connect", ErrorKind::Configuration, text).at_server(&server.name));
        }
        let left = || deadline::left(self.timeout);
        let connect = |path: &str, greet: &mut Greet<'_>| {
            let failed = |error: LinkError| unreachable(server, vec![error.to_string()]);
            let mut link = connect_shm(Path::new(path), ShmOptions::default(), left()).map_err(failed)?;
            let proven = greet(&mut link)?;
            link.set_up(left()).map_err(failed)?;
            Ok(Dialled::new(Box::new(link), proven))
        };
        self.first_that_answers(server, endpoint::SOCKET, greet, &connect)
    }

    fn tcp(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        if server.addresses(endpoint::TCP).next().is_none() {
            return Err(unreachable(server, vec!["the cluster's map has no TCP address of it".into()]));
        }
        let connect = |address, left: Duration| -> Result<Box<dyn Link>, LinkError> {
            Ok(Box::new(connect_tcp(address, &TcpOptions::default(), left.min(TCP_CONNECT_TIMEOUT))?))
        };
        let connect = |address: &str, greet: &mut Greet<'_>| {
            let mut link = self.reach(address, &connect).map_err(|cause| unreachable(server, vec![cause]))?;
            let proven = greet(&mut *link)?;
            Ok(Dialled::new(link, proven))
        };
        self.first_that_answers(server, endpoint::TCP, greet, &connect)
    }

    /// Connects to the first address of a transport at which the server itself answers.
    fn first_that_answers(
        &self,
        server: &ServerInfo,
        transport: u8,
        greet: &mut Greet<'_>,
        connect: &dyn Fn(&str, &mut Greet<'_>) -> Result<Dialled, Error>,
    ) -> Result<Dialled, Error> {
        let addresses = server.addresses(transport);
        let mut left_to_try = addresses.clone().count();
        let (mut causes, mut others) = (Vec::new(), None);
        for address in addresses {
            let attempt = self.share(left_to_try);
            left_to_try -= 1;
            let dialled = connect(address, greet);
            drop(attempt);
            match dialled {
                Ok(dialled) => {
                    let endpoint = Some(Endpoint::new(transport, address));
                    return Ok(Dialled { endpoint, ..dialled });
                }
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    causes.push(error.detail().to_string())
                }
                Err(error) if is_of_another_cluster(&error) => others = Some(error),
                Err(error) => return Err(error),
            }
        }
        match others {
            Some(error) if causes.is_empty() => Err(error),
            others => {
                causes.extend(others.map(|error| error.detail().to_string()));
                Err(unreachable(server, causes))
            }
        }
    }

    fn rdma(&self, server: &ServerInfo, wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let configuration =
            |text: String| Error::new("connect", ErrorKind::Configuration, text).at_server(&server.name);
        let addresses: Vec<&str> = server.addresses(endpoint::RDMA).collect();
        if addresses.is_empty() {
            let text = "it listens on no RDMA address; give it one in the cluster file, or connect with transport auto or tcp";
            return Err(configuration(text.into()));
        }
        let rdma = self.rdma.get().map_err(configuration)?;
        let options = self.rdma.options().for_connection(self.knock.as_ref(), wish.traffic);
        let optional = wish.rail.is_some() || self.transport == Transport::Auto;
        let timeout = if optional { self.timeout.min(OPTIONAL_TIMEOUT) } else { self.timeout };
        let connect = |address, left: Duration| rdma.connect(address, &options, left.min(timeout));
        let must = self.transport == Transport::Rdma;
        let rails = self.with_rails(server, |rails| rails.choose(wish.rail, must, Instant::now()));
        for (at, rail) in rails.iter().copied().enumerate() {
            let _attempt = self.share(rails.len() - at);
            let greeted =
                self.reach(addresses[rail], &connect).and_then(|mut link| match greet(&mut *link) {
                    Ok(proven) => Ok(Ok(Dialled::new(link, proven))),
                    Err(error) if error.kind() == ErrorKind::Unreachable => Err(error.detail().to_string()),
                    Err(error) => Ok(Err(error)),
                });
            match greeted {
                Ok(dialled) => {
                    let dialled = dialled?;
                    self.with_rails(server, |rails| rails.note_success(rail));
                    let endpoint = Some(Endpoint::new(endpoint::RDMA, addresses[rail]));
                    return Ok(Dialled { rail, endpoint, ..dialled });
                }
                Err(cause) => {
                    self.with_rails(server, |rails| rails.note_failure(rail, Instant::now(), cause));
                }
            }
        }
        Err(unreachable(server, vec![self.with_rails(server, |rails| rails.causes())]))
    }

    /// Connects to what a name of the cluster's map stands for.
    fn reach(
        &self,
        address: &str,
        connect: &dyn Fn(SocketAddr, Duration) -> Result<Box<dyn Link>, LinkError>,
    ) -> Result<Box<dyn Link>, String> {
        let resolved: Vec<SocketAddr> = address
            .to_socket_addrs()
            .map_err(|error| format!("cannot look up {address}: {error}"))?
            .collect();
        let mut causes = Vec::new();
        for (at, address) in resolved.iter().copied().enumerate() {
            let _attempt = self.share(resolved.len() - at);
            let left = deadline::left(self.timeout);
            match connect(address, left) {
                Ok(link) => return Ok(link),
                Err(error) => causes.push(error.to_string()),
            }
        }
        Err(causes.join("; "))
    }

    /// The share of one of so many that are left to be tried.
    fn share(&self, left_to_try: usize) -> Operation {
        Operation::part(deadline::left(self.timeout) / left_to_try.max(1) as u32)
    }

    fn with_rails<T>(&self, server: &ServerInfo, act: impl FnOnce(&mut Rails) -> T) -> T {
        let mut all = lock(&self.rails);
        let addresses = server.addresses(endpoint::RDMA);
        let anew = || {
            let addresses: Vec<String> = addresses.clone().map(str::to_string).collect();
            let rails = Rails::new(server.id, addresses.len());
            (addresses, rails)
        };
        let (known, rails) = all.entry(server.name.clone()).or_insert_with(anew);
        if !addresses.clone().eq(known.iter()) {
            (*known, *rails) = anew();
        }
        act(rails)
    }
}

/// What did not work on the way to the transport in use.
#[derive(Default)]
struct Failures {
    causes: Vec<String>,
    may_mend: bool,
}

impl Failures {
    fn add(&mut self, transport: &str, error: &Error) {
        self.causes.push(format!("not over {transport}: {}", error.detail()));
        self.may_mend |= error.kind() == ErrorKind::Unreachable;
    }

    fn fallback(self) -> Option<Fallback> {
        let Failures { causes, may_mend } = self;
        (!causes.is_empty()).then(|| Fallback { reason: causes.join("; "), may_mend })
    }
}

/// Whether the server may be on this host.
fn is_here(server: &ServerInfo) -> bool {
    server.addresses(endpoint::SOCKET).any(|path| Path::new(path).exists())
}

fn unreachable(server: &ServerInfo, causes: Vec<String>) -> Error {
    Error::new("connect", ErrorKind::Unreachable, causes.join("; ")).at_server(&server.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{Adapters, Rdma, RdmaOptions, Refusal};
    use crate::testing::some_link;
    use crate::traffic::Traffic;
    use std::net::TcpListener;
    use weft_transport::{VerbsOptions, VerbsStatus};
    use weft_wire::Status;
    use weft_wire::messages::{ProveReply, server_role};

    /// Adapters that reach every address but some.
    #[derive(Default)]
    struct Pretended {
        missing: Option<String>,
        unreachable: Mutex<Vec<u16>>,
        /// Ports that were dialled, with the types of service.
        dialled: Mutex<Vec<(u16, u8)>>,
    }

    impl Adapters for Pretended {
        fn names(&self) -> Result<Vec<String>, String> {
            self.missing.clone().map_or(Ok(vec!["pretended0".into()]), Err)
        }
        fn connect(
            &self,
            address: SocketAddr,
            options: &VerbsOptions,
            _timeout: Duration,
        ) -> Result<Box<dyn Link>, LinkError> {
            lock(&self.dialled).push((address.port(), options.class.0));
            if lock(&self.unreachable).contains(&address.port()) {
                let source = std::io::Error::other("no path to it");
                return Err(LinkError::Connect { peer: address.to_string(), source });
            }
            Ok(some_link())
        }
        fn register(&self, _address: usize, _bytes: usize) -> Result<(), Refusal> {
            Ok(())
        }
        fn unregister(&self, _address: usize) {}
        fn status(&self) -> VerbsStatus {
            VerbsStatus::default()
        }
    }

    fn dialler(transport: Transport, pretended: &Arc<Pretended>) -> NetworkDial {
        let options = RdmaOptions { tos: "1:2:3:4".parse().unwrap(), ..RdmaOptions::default() };
        let rdma = RdmaSource::new(options, Some(Rdma::of(pretended.clone())));
        NetworkDial::new(transport, Duration::from_secs(1), Some(Key([1; 32])), Arc::new(rdma))
    }

    /// A server with these RDMA ports, and a TCP port that somebody listens on.
    fn server(rdma_ports: &[u16]) -> (ServerInfo, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = Endpoint::new(endpoint::TCP, listener.local_addr().unwrap().to_string());
        let rdma = |port| Endpoint::new(endpoint::RDMA, format!("127.0.0.1:{port}"));
        let endpoints = std::iter::once(tcp).chain(rdma_ports.iter().map(rdma)).collect();
        let server = ServerInfo::new(0, "io0", server_role::IO, endpoints);
        (server, listener)
    }

    fn dial(dialler: &NetworkDial, server: &ServerInfo, rail: Option<usize>) -> Result<Dialled, Error> {
        let proven = ProveReply {
            cluster_id: [1; 16],
            server_name: server.name.clone(),
            epoch: 1,
            credits: 4,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        dialler.dial(server, &Wish { traffic: Traffic::Bulk, rail }, &mut |_| Ok(proven.clone()))
    }

    fn kind(dialled: &Dialled) -> String {
        dialled.link.kind().to_string()
    }

    #[test]
    fn of_several_addresses_the_first_counts_at_which_the_server_answers() {
        let dialler = dialler(Transport::Tcp, &Arc::default());
        let (mut server, _first) = server(&[]);
        let (second, _second) = super::tests::server(&[]);
        server.endpoints.extend(second.endpoints);
        let proven = || ProveReply {
            cluster_id: [1; 16],
            server_name: "io0".into(),
            epoch: 1,
            credits: 4,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        let wish = Wish { traffic: Traffic::Bulk, rail: None };
        let mut greeted = Vec::new();
        let mut dial = |server: &ServerInfo, kinds: &[Option<ErrorKind>]| {
            let mut kinds = kinds.iter();
            dialler.dial(server, &wish, &mut |link| {
                greeted.push(link.peer().to_string());
                match kinds.next().expect("an answer for each address") {
                    None => Ok(proven()),
                    Some(kind) => Err(Error::new("connect", *kind, "somebody else")),
                }
            })
        };
        for other in
            [ErrorKind::Unreachable, ErrorKind::Untrusted, ErrorKind::Status(Status::Unauthenticated)]
        {
            let dialled = dial(&server, &[Some(other), None]).unwrap();
            assert_eq!(dialled.endpoint.as_ref(), server.endpoints.last());
        }
        assert_eq!(dial(&server, &[None]).unwrap().endpoint.as_ref(), server.endpoints.first());
        let both = [Some(ErrorKind::Untrusted), Some(ErrorKind::Unreachable)];
        assert_eq!(dial(&server, &both).err().unwrap().kind(), ErrorKind::Unreachable, "it may come back");
        let both = [Some(ErrorKind::Untrusted); 2];
        assert_eq!(dial(&server, &both).err().unwrap().kind(), ErrorKind::Untrusted);
        let refused = [Some(ErrorKind::Status(Status::Access))];
        assert_eq!(
            dial(&server, &refused).err().unwrap().status(),
            Some(Status::Access),
            "by the server itself"
        );
        assert_eq!(greeted.len(), 3 * 2 + 1 + 2 + 2 + 1);
    }

    #[test]
    fn rdma_is_taken_where_both_sides_have_it_and_told_what_the_traffic_is() {
        let pretended = Arc::new(Pretended::default());
        let (server, _listener) = server(&[7]);
        let dialled = dial(&dialler(Transport::Auto, &pretended), &server, None).unwrap();
        assert_eq!((kind(&dialled).as_str(), dialled.fallback), ("memory", None));
        assert_eq!(*lock(&pretended.dialled), [(7, 3)]);
    }

    #[test]
    fn without_adapters_it_is_tcp_and_why_is_kept_but_not_tried_again() {
        let missing = Some("librdmacm.so.1 cannot be loaded".to_string());
        let pretended = Arc::new(Pretended { missing, ..Pretended::default() });
        let (server, _listener) = server(&[7]);
        let dialled = dial(&dialler(Transport::Auto, &pretended), &server, None).unwrap();
        assert!(kind(&dialled).starts_with("tcp"));
        let fallback = dialled.fallback.unwrap();
        assert_eq!(fallback.reason, "not over RDMA: librdmacm.so.1 cannot be loaded");
        assert!(!fallback.may_mend && lock(&pretended.dialled).is_empty());
        let error = dial(&dialler(Transport::Rdma, &pretended), &server, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("librdmacm.so.1 cannot be loaded"), "{error}");
    }

    #[test]
    fn an_adapter_that_does_not_get_there_may_do_so_later() {
        let pretended = Arc::new(Pretended::default());
        lock(&pretended.unreachable).push(7);
        let (server, listener) = server(&[7]);
        let auto = dialler(Transport::Auto, &pretended);
        let fallback = dial(&auto, &server, None).unwrap().fallback.unwrap();
        assert!(fallback.may_mend && fallback.reason.contains("no path to it"), "{fallback:?}");
        drop(listener);
        let error = dial(&auto, &server, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        for part in ["io0", "refused", "not over RDMA"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        lock(&pretended.unreachable).clear();
        assert_eq!(dial(&auto, &server, None).unwrap().fallback, None, "the server was down, not its rail");
    }

    #[test]
    fn nobody_asks_for_rdma_where_it_is_not_wanted_or_the_server_has_none() {
        let pretended = Arc::new(Pretended::default());
        let (with, _first) = server(&[7]);
        let (without, _second) = server(&[]);
        for (transport, server) in [(Transport::Tcp, &with), (Transport::Auto, &without)] {
            let dialled = dial(&dialler(transport, &pretended), server, None).unwrap();
            assert!(kind(&dialled).starts_with("tcp") && dialled.fallback.is_none());
        }
        let error = dial(&dialler(Transport::Rdma, &pretended), &without, None).err().unwrap();
        assert!(error.to_string().contains("listens on no RDMA address"), "{error}");
        assert!(lock(&pretended.dialled).is_empty());
    }

    #[test]
    fn connections_are_spread_over_rails_and_the_ones_that_work_do_the_rest() {
        let pretended = Arc::new(Pretended::default());
        let (server, _listener) = server(&[7, 8]);
        for transport in [Transport::Rdma, Transport::Auto] {
            lock(&pretended.unreachable).clear();
            let dialler = dialler(transport, &pretended);
            let rails =
                |times| (0..times).map(|_| dial(&dialler, &server, None).unwrap().rail).collect::<Vec<_>>();
            assert_eq!(rails(4), [0, 1, 0, 1]);
            assert_eq!(dial(&dialler, &server, Some(1)).unwrap().rail, 1);
            lock(&pretended.unreachable).push(8);
            assert_eq!(rails(4), [0; 4]);
            lock(&pretended.dialled).clear();
            let error = dial(&dialler, &server, Some(1)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unreachable, "nothing else takes the place of a rail");
        }
    }
}
