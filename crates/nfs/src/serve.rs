//! A gateway on a thread of its own, with its listeners.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::NFS_PROGRAM as Procedure;
use weft_onc_rpc::xdr::{Reader, XdrError};
use weft_onc_rpc::{CallHeader, Credential as Shown, Refusal};
use weft_onc_server::{
    Counts, Limits, Needs, Peer, Placed, Rdma, RdmaListener, RdmaOptions, Reply, Results, Server, Service,
};
use weft_reactor::{MailSender, Mailbox, Reactor, ReactorOptions, mailbox, sleep, spawn};
use weft_verbs::{Fabric, RdmaCore, VerbsError};

use crate::args;
use crate::credential::Credential;
use crate::datagrams;
use crate::export::ExportOptions;
use crate::gateway::{Call, Gateway, GatewayCounts, GatewayOptions, NFS_PROGRAM, Outcome, VERSION};
use crate::procedures::limits::{DIRECTORY_BYTES_MAX, IO_BYTES_MAX};
use crate::rpcbind::{Registration, mappers_for};
use crate::target::Sender;

/// The port where nothing else is said.
pub const PORT_DEFAULT: u16 = 2049;
/// How long calls that are under way may take when a gateway is stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Requests to a gateway's thread that wait.
const REQUESTS_MAX: usize = 64;

enum Control {
    Exports(Vec<ExportOptions>, mpsc::Sender<()>),
    Counts(mpsc::Sender<GatewayCounts>),
    Clients(mpsc::Sender<Vec<Peer>>),
    Mounts(mpsc::Sender<Vec<(IpAddr, String)>>),
    Stop,
}

/// The port of NFS over RDMA where nothing else is said (RFC 5666, 8).
pub const RDMA_PORT_DEFAULT: u16 = 20049;

/// Where a gateway listens.
pub struct Listeners<F: Fabric = RdmaCore> {
    /// For NFS, MOUNT and locks over TCP.
    pub tcp: Vec<TcpListener>,
    /// For NFS over RDMA; clients mount and lock over TCP.
    pub rdma: Vec<RdmaListener<F>>,
    /// How NFS over RDMA is served.
    pub rdma_options: RdmaOptions,
}

impl Listeners {
    /// Over TCP alone.
    pub fn tcp(tcp: Vec<TcpListener>) -> Listeners {
        Listeners { tcp, rdma: Vec::new(), rdma_options: RdmaOptions::default() }
    }
}

/// Listens on an address of an adapter.
///
/// # Errors
/// RDMA cannot be used here, no adapter has the address, or it is in use.
pub fn listen_rdma(address: SocketAddr) -> Result<RdmaListener<RdmaCore>, VerbsError> {
    RdmaListener::bind(&RdmaCore::load()?, address)
}

/// A gateway that is serving. Dropping it stops it.
pub struct Serving {
    control: MailSender<Control>,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    rdma_addresses: Vec<SocketAddr>,
}

impl Serving {
    /// Serves NFS, MOUNT, and locks if they are wanted, on these listeners, by a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started, or has no descriptors.
    pub fn start<F: Fabric>(options: GatewayOptions, listeners: Listeners<F>) -> io::Result<Serving> {
        let addresses = listeners.tcp.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let rdma_addresses = listeners.rdma.iter().map(RdmaListener::address).collect();
        let (control, requests) = mailbox(REQUESTS_MAX);
        let (started, starts) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nfs-gateway".into())
            .spawn(move || run(&options, listeners, requests, &started))?;
        let serving = Serving { control, thread: Some(thread), addresses, rdma_addresses };
        starts.recv().map_err(|_| io::Error::other("the gateway's thread has ended"))??;
        Ok(serving)
    }

    /// Where it listens over TCP.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where it listens over RDMA.
    pub fn rdma_addresses(&self) -> &[SocketAddr] {
        &self.rdma_addresses
    }

    /// From now on these are exported.
    pub fn set_exports(&self, exports: Vec<ExportOptions>) {
        let (answer, answered) = mpsc::channel();
        let _ = self.control.send(Control::Exports(exports, answer));
        // Nothing comes once the thread has ended.
        let _ = answered.recv();
    }

    /// What was done so far; nothing once the thread has ended.
    pub fn counts(&self) -> GatewayCounts {
        let (answer, answered) = mpsc::channel();
        let _ = self.control.send(Control::Counts(answer));
        answered.recv().unwrap_or_default()
    }

    /// Who is connected.
    pub fn clients(&self) -> Vec<Peer> {
        let (answer, answered) = mpsc::channel();
        let _ = self.control.send(Control::Clients(answer));
        answered.recv().unwrap_or_default()
    }

    /// Which clients have said that they mount which paths. One that vanishes says nothing.
    pub fn mounts(&self) -> Vec<(IpAddr, String)> {
        let (answer, answered) = mpsc::channel();
        let _ = self.control.send(Control::Mounts(answer));
        answered.recv().unwrap_or_default()
    }

    /// Answers what is under way, makes durable what was written, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.control.send(Control::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the gateway's thread has panicked");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

fn run<F: Fabric>(
    options: &GatewayOptions,
    listeners: Listeners<F>,
    requests: Mailbox<Control>,
    started: &mpsc::Sender<io::Result<()>>,
) {
    let begin = || Reactor::new(ReactorOptions::default());
    let reactor = match begin() {
        Ok(reactor) => reactor,
        Err(error) => return drop(started.send(Err(error))),
    };
    reactor.run(async {
        match Gateway::new(options) {
            Ok(gateway) => {
                let server = Server::new(gateway.clone(), Limits::default());
                let places: Vec<_> =
                    listeners.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect();
                if options.locks.is_some() {
                    listeners.tcp.iter().for_each(|listener| serve_datagrams(&gateway, listener));
                }
                if let Err(error) = listen(&server, listeners) {
                    return drop(started.send(Err(error)));
                }
                let _ = started.send(Ok(()));
                let mappers = options.rpcbind.map_or_else(Vec::new, |by_ipv4| mappers_for(by_ipv4, &places));
                let begin = |(mapper, port)| Registration::begin(mapper, port, options.locks.is_some());
                let registrations: Vec<_> = mappers.into_iter().map(|mapper| spawn(begin(mapper))).collect();
                control(&gateway, &server, requests).await;
                for registration in registrations {
                    registration.await.end().await;
                }
                end(&gateway, &server).await;
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
}

fn listen<F: Fabric>(server: &Server<Gateway>, listeners: Listeners<F>) -> io::Result<()> {
    for listener in listeners.tcp {
        let server = server.clone();
        spawn(async move {
            if let Err(error) = server.listen(listener).await {
                tracing::error!(%error, "a listener of NFS cannot be waited for");
            }
        });
    }
    if listeners.rdma.is_empty() {
        return Ok(());
    }
    let rdma = Rdma::new(&Limits::default(), listeners.rdma_options)?;
    for listener in listeners.rdma {
        let (server, rdma) = (server.clone(), rdma.clone());
        spawn(async move { server.listen_rdma(&rdma, listener).await });
    }
    Ok(())
}

/// Serves lock calls in datagrams, too, where a listener is.
fn serve_datagrams(gateway: &Rc<Gateway>, listener: &TcpListener) {
    let socket = match listener.local_addr().and_then(UdpSocket::bind) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(
                "lock calls and restarts of clients are not heard in datagrams: {error}. A client of Linux that \
                 restarts keeps its locks until the gateway restarts, too"
            );
            return;
        }
    };
    let gateway = gateway.clone();
    spawn(async move {
        if let Err(error) = datagrams::serve(gateway, socket).await {
            tracing::error!(%error, "datagrams of lock calls cannot be waited for");
        }
    });
}

async fn control(gateway: &Gateway, server: &Server<Gateway>, mut requests: Mailbox<Control>) {
    while let Some(request) = requests.receive().await {
        match request {
            Control::Exports(exports, answer) => {
                gateway.set_exports(&exports);
                let _ = answer.send(());
            }
            Control::Counts(answer) => {
                let Counts { rdma_read_bytes, rdma_written_bytes, .. } = server.counts();
                let Counts { rdma_exposed_replies, rdma_exposed_bytes, .. } = server.counts();
                let Counts { rdma_exposed_now_bytes, rdma_exposed_us, copied_bytes, .. } = server.counts();
                let _ = answer.send(GatewayCounts {
                    rdma_read_bytes,
                    rdma_written_bytes,
                    rdma_exposed_replies,
                    rdma_exposed_bytes,
                    rdma_exposed_now_bytes,
                    rdma_exposed_us,
                    copied_bytes,
                    ..gateway.counts()
                });
            }
            Control::Clients(answer) => drop(answer.send(server.peers())),
            Control::Mounts(answer) => drop(answer.send(gateway.mounts())),
            Control::Stop => return,
        }
    }
}

async fn end(gateway: &Gateway, server: &Server<Gateway>) {
    server.stop();
    let begun = Instant::now();
    let is_busy = || !server.peers().is_empty() || gateway.counts().under_way > 0;
    while is_busy() && begun.elapsed() < STOP_PATIENCE {
        sleep(Duration::from_millis(5)).await;
    }
    gateway.close().await;
}

/// Bytes of data that a call brings, and that its reply may have.
fn needs_of(header: &CallHeader, arguments: &[u8]) -> Result<Needs, XdrError> {
    let known = |payload, reply_bytes: u32| Needs::Known { payload, reply_bytes: reply_bytes as usize };
    let mut from = Reader::new(arguments);
    if (header.program, header.version) != (NFS_PROGRAM, VERSION) {
        return Ok(known(None, 0));
    }
    Ok(match Procedure::try_from(header.procedure) {
        Ok(Procedure::NFSPROC3_WRITE) => {
            let write = args::write(&mut from)?;
            known(Some(Placed { at: from.position(), bytes: write.data_bytes as usize }), 0)
        }
        Ok(Procedure::NFSPROC3_READ) => {
            args::handle(&mut from)?;
            from.u64()?;
            known(None, from.u32()?.min(IO_BYTES_MAX))
        }
        Ok(Procedure::NFSPROC3_READDIR | Procedure::NFSPROC3_READDIRPLUS) => known(None, DIRECTORY_BYTES_MAX),
        _ => known(None, 0),
    })
}

impl Service for Gateway {
    fn needs(&self, header: &CallHeader, arguments: &[u8]) -> Needs {
        match needs_of(header, arguments) {
            Ok(needs) => needs,
            Err(XdrError::Short) => Needs::More,
            Err(XdrError::Wrong) => Needs::Known { payload: None, reply_bytes: 0 },
        }
    }

    fn call(self: Rc<Self>, call: weft_onc_server::Call) -> Pin<Box<dyn Future<Output = Reply>>> {
        Box::pin(async move {
            let credential = match &call.header.credential {
                Shown::Sys(sys) => Some(Credential::new(sys.uid, sys.gid, &sys.groups)),
                Shown::None => None,
            };
            let sender = Sender { peer: call.peer, credential };
            let CallHeader { xid, program, version, procedure, .. } = call.header;
            let (args, payload, buffers) = (&call.arguments[..], call.payload, call.buffers);
            let call = Call { xid, program, version, procedure, args, payload, buffers };
            Gateway::call(&self, &sender, call).await.into()
        })
    }
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Reply {
        match outcome {
            Outcome::Done { head, data } => Reply::Results(Results { before: head, data }),
            Outcome::NoProgram => Reply::Refused(Refusal::NoProgram),
            Outcome::Versions { low, high } => Reply::Refused(Refusal::Versions { low, high }),
            Outcome::NoProcedure => Reply::Refused(Refusal::NoProcedure),
            Outcome::BadArguments => Reply::Refused(Refusal::Arguments),
        }
    }
}
