//! Connections over the network: which transport, and what to do where it does not work.
//!
//! | asked for | the server has a Unix socket here | else, it has RDMA addresses and this host an adapter | else |
//! | --- | --- | --- | --- |
//! | `auto` | shared memory | RDMA | TCP |
//! | `shm` | shared memory or an error | an error | an error |
//! | `rdma` | RDMA | RDMA or an error | an error |
//! | `tcp` | TCP | TCP | TCP |
//!
//! `auto` tries the next transport where one fails, and keeps the reason. A rail that fails gives way to the
//! other rails. An address at which nobody answers, or another server does, gives way to the other addresses:
//! a server that moves has its old addresses behind its new ones. All attempts together have the time of one;
//! those that are left keep a share of it.

use std::sync::Arc;
use std::time::Duration;

use weft_wire::messages::ServerInfo;
use weft_wire::security::Key;

use super::dialled::{Dial, Dialled, Fallback, Greet, Wish};
use super::transport::{Transport, ways};
use super::way::{Wanted, Way};
use crate::error::{Error, ErrorKind};
use crate::rdma::RdmaSource;

const WITHOUT_KEY: &str = "without a key a client is served over the Unix socket of a server on its own host only; \
                           get a key (weft help keys)";

/// Over every transport of the list in `transport.rs`.
pub struct NetworkDial {
    transport: Transport,
    timeout: Duration,
    /// What is shown before there is an RDMA connection; `None`: this client has no key, and is served over
    /// Unix sockets only.
    knock: Option<Key>,
    /// Those that `auto` prefers first.
    ways: Vec<(Transport, Box<dyn Way>)>,
}

impl Dial for NetworkDial {
    fn dial(&self, server: &ServerInfo, wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let must = self.transport != Transport::Auto;
        let knock = self.knock.as_ref();
        let wanted = &Wanted { server, wish, timeout: self.timeout, knock, must };
        let mut chosen = self.chosen();
        let way = match wish.rail {
            _ if knock.is_none() => {
                let way = chosen.find(|way| way.serves_keyless() && way.leads_to(server));
                Some(way.ok_or_else(|| wanted.impossible(WITHOUT_KEY))?)
            }
            _ if must => chosen.next(),
            // Nothing else takes the place of a rail.
            Some(_) => chosen.find(|way| way.has_rails()),
            None => None,
        };
        match way {
            Some(way) => way.dial(wanted, greet),
            None => self.auto(wanted, greet),
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
        NetworkDial { transport, timeout, knock, ways: ways(&rdma) }
    }

    /// The transports that were asked for.
    fn chosen(&self) -> impl Iterator<Item = &dyn Way> {
        let asked_for = |transport| self.transport == Transport::Auto || self.transport == transport;
        self.ways.iter().filter(move |(transport, _)| asked_for(*transport)).map(|(_, way)| &**way)
    }

    fn auto(&self, wanted: &Wanted<'_>, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let mut failures = Failures::default();
        let ((_, last), before) = self.ways.split_last().expect("there are transports");
        for (_, way) in before.iter().filter(|(_, way)| way.leads_to(wanted.server)) {
            let attempt = wanted.share(2);
            let dialled = way.dial(wanted, greet);
            drop(attempt);
            match dialled {
                Ok(dialled) => return Ok(Dialled { fallback: failures.fallback(), ..dialled }),
                Err(error) => failures.add(way.title(), &error),
            }
        }
        match last.dial(wanted, greet) {
            Ok(dialled) => Ok(Dialled { fallback: failures.fallback(), ..dialled }),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.ways.iter().for_each(|(_, way)| way.forget_failures(wanted.server));
                let causes = std::iter::once(error.detail().to_string()).chain(failures.causes);
                Err(wanted.unreachable(causes.collect()))
            }
            Err(error) => Err(error),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{Adapters, Rdma, RdmaOptions, Refusal};
    use crate::testing::some_link;
    use crate::traffic::Traffic;
    use crate::wait::lock;
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Mutex;
    use weft_transport::{Link, LinkError, VerbsOptions, VerbsStatus};
    use weft_wire::Status;
    use weft_wire::messages::{Endpoint, ProveReply, endpoint, server_role};

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
