//! RDMA under test: over a pretended adapter, or over the one that `WEFT_TEST_RDMA` gives the address of.

use std::net::{IpAddr, SocketAddr};

use weft_reactor::spawn;
use weft_transport::registration::RegistrationOptions;
use weft_transport::*;
use weft_verbs::{Counts, Device, Endpoint, Fabric, RdmaCore, TrafficClass};
use weft_verbs_double::{Adapter, Delivery, Pretend, PretendOptions};

use super::{Ends, Fixture, PATIENCE, ServerThread, Zone, serve};

/// A fabric with a server's host and a client's.
pub trait Hosts: Sized {
    type Fabric: Fabric;

    /// The server's, the client's, and where the server's adapter is.
    fn make() -> (Self, Self::Fabric, Self::Fabric, IpAddr);

    /// What went wrong that nobody has seen.
    fn complaints(&self) -> Vec<String>;

    /// What was asked of all adapters.
    fn counts(&self) -> Counts;

    fn server_options() -> VerbsServerOptions {
        VerbsServerOptions::default()
    }
}

/// The usual options, with something else about ports.
pub fn ports(change: impl FnOnce(&mut PortOptions)) -> VerbsServerOptions {
    let mut options = VerbsServerOptions::default();
    change(&mut options.port);
    options
}

/// Two hosts with pretended adapters.
pub struct Pretended {
    pub server: Pretend,
    pub client: Pretend,
}

impl Pretended {
    pub fn with(options: PretendOptions, client: Adapter) -> (Self, Pretend, Pretend, IpAddr) {
        let server = Pretend::new(options);
        let client = server.another_host(vec![client]);
        let hosts = Pretended { server: server.clone(), client: client.clone() };
        (hosts, server, client, "127.0.0.1".parse().unwrap())
    }

    pub fn client_adapter() -> Adapter {
        Adapter::new("pretend1", "127.0.0.2".parse().unwrap())
    }
}

impl Hosts for Pretended {
    type Fabric = Pretend;

    fn make() -> (Self, Pretend, Pretend, IpAddr) {
        Pretended::with(PretendOptions::default(), Pretended::client_adapter())
    }

    fn complaints(&self) -> Vec<String> {
        self.server.complaints()
    }

    fn counts(&self) -> Counts {
        self.server.counts().plus(&self.client.counts())
    }
}

/// The same, where posted work is done late, and connections overtake each other.
pub struct Shuffled(Pretended);

impl Hosts for Shuffled {
    type Fabric = Pretend;

    fn make() -> (Self, Pretend, Pretend, IpAddr) {
        let options = PretendOptions { delivery: Delivery::Shuffled, ..PretendOptions::default() };
        let (hosts, server, client, ip) = Pretended::with(options, Pretended::client_adapter());
        (Shuffled(hosts), server, client, ip)
    }

    fn complaints(&self) -> Vec<String> {
        self.0.complaints()
    }

    fn counts(&self) -> Counts {
        self.0.counts()
    }
}

/// The same, with adapters that want binds to be posted alone.
pub struct BindsAlone(Pretended);

impl Hosts for BindsAlone {
    type Fabric = Pretend;

    fn make() -> (Self, Pretend, Pretend, IpAddr) {
        let (mut server, mut client) = (Adapter::default(), Pretended::client_adapter());
        (server.limits.binds_alone, client.limits.binds_alone) = (true, true);
        let adapters = vec![server];
        let options = PretendOptions { delivery: Delivery::Shuffled, adapters, ..PretendOptions::default() };
        let (hosts, server, client, ip) = Pretended::with(options, client);
        (BindsAlone(hosts), server, client, ip)
    }

    fn complaints(&self) -> Vec<String> {
        self.0.complaints()
    }

    fn counts(&self) -> Counts {
        self.0.counts()
    }
}

/// This host's adapter, for both sides.
pub struct Real {
    core: RdmaCore,
    address: SocketAddr,
}

impl Hosts for Real {
    type Fabric = RdmaCore;

    fn make() -> (Self, RdmaCore, RdmaCore, IpAddr) {
        let ip: IpAddr = std::env::var("WEFT_TEST_RDMA").unwrap().parse().unwrap();
        let core = RdmaCore::load().unwrap();
        (Real { core, address: SocketAddr::new(ip, 1) }, core, core, ip)
    }

    fn complaints(&self) -> Vec<String> {
        Vec::new()
    }

    fn counts(&self) -> Counts {
        let endpoint = self.core.resolve(self.address, TrafficClass::default(), PATIENCE).unwrap();
        endpoint.device().counters().counts()
    }

    fn server_options() -> VerbsServerOptions {
        // Also of what real adapters make of a write of nothing.
        ports(|port| port.keep_alive_ms = 20)
    }
}

/// `MECHANISM` 0 chooses, 1 to 3 always use one; 4 to 7 are these without memory windows; with 8 the client moves all data itself.
pub struct Verbs<H: Hosts, const MECHANISM: u8> {
    pub server: ServerThread,
    pub address: SocketAddr,
    pub hosts: H,
    pub client: VerbsClient<H::Fabric>,
    /// Whether a peer of this test takes receives that are others'.
    pub starves: bool,
}

/// Serves RDMA connections, with units in a zone.
fn serve_verbs<F: Fabric>((listening, options): (VerbsListening<F>, VerbsServerOptions), ends: Ends) {
    spawn(async move {
        let mut acceptor = listening.acceptor().unwrap();
        let thread = VerbsThread::new(options);
        let (base, bytes) = Zone::begin().memory();
        // SAFETY: the zone lives until this thread has ended.
        unsafe { thread.add_zone(base, bytes) }.unwrap();
        loop {
            // A listener ends with its adapter; its connections tell of it.
            let Ok(accepted) = acceptor.next().await else { return };
            let (thread, ends) = (thread.clone(), ends.clone());
            spawn(async move {
                match thread.accept(accepted).await {
                    Ok(conn) => serve(conn, ends).await,
                    Err(error) => ends.lock().unwrap().push(error.to_string()),
                }
            });
        }
    });
}

impl<H: Hosts, const MECHANISM: u8> Verbs<H, MECHANISM> {
    pub fn with(made: (H, H::Fabric, H::Fabric, IpAddr), options: VerbsServerOptions) -> Self {
        let (hosts, server, client, ip) = made;
        let listening = listen_verbs(&server, SocketAddr::new(ip, 0), VerbsKeys::none()).unwrap();
        let address = listening.address();
        let client = VerbsClient::new(client, RegistrationOptions::default());
        Verbs {
            server: ServerThread::spawn((listening, options), serve_verbs),
            address,
            hosts,
            client,
            starves: false,
        }
    }

    pub fn options() -> VerbsOptions {
        let mechanisms = [None, Some(Mechanism::Inline), Some(Mechanism::Fast), Some(Mechanism::Remote)];
        let lends = MECHANISM == 8;
        VerbsOptions {
            mechanism: if lends { Some(Mechanism::Lend) } else { mechanisms[usize::from(MECHANISM % 4)] },
            windows: MECHANISM < 4 || lends,
            ..VerbsOptions::default()
        }
    }
}

impl<H: Hosts, const MECHANISM: u8> Drop for Verbs<H, MECHANISM> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.hosts.complaints(), Vec::<String>::new());
            assert!(self.starves || self.hosts.counts().receiver_not_ready == 0);
        }
    }
}

impl<H: Hosts, const MECHANISM: u8> Fixture for Verbs<H, MECHANISM> {
    type Link = VerbsLink<H::Fabric>;

    fn start() -> Self {
        Verbs::with(H::make(), H::server_options())
    }

    fn connect_unproven(&self) -> VerbsLink<H::Fabric> {
        self.client.connect(self.address, &Self::options(), PATIENCE).unwrap()
    }
}
