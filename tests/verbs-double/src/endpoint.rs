//! Connections: how they come about and end, and posting to them.
//!
//! ```text
//!   client: Idle ─ connect ─► Asking ──────────────────────────────► Connected ─► Ended
//!   server:                   Asked (Listener::next) ─ accept ─► Accepting ─► Connected ─► Ended
//! ```

use crate::engine::errno;
use crate::fabric::{Pretend, PretendDevice, forked};
use crate::queues::{PretendQueue, PretendShared};
use crate::state::{End, Network, Pair, ReceivesFrom, Standing, State};
use crate::wakeup::Wakeup;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_verbs::{
    Counters, Device, Endpoint, EndpointOptions, EndpointState, Listener, MemoryPiece, Receives, SendWork,
    VerbsError,
};

/// What the connection manager has room for when a connection is asked for.
const ASK_BYTES: usize = 56;
/// When it is accepted.
const ACCEPT_BYTES: usize = 196;
/// When it is refused.
const REFUSE_BYTES: usize = 148;

/// One end of a pretended reliable connection.
pub struct PretendEndpoint {
    network: Arc<Network>,
    device: Arc<PretendDevice>,
    number: u32,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Vec<u8>,
    wakeup: Arc<Wakeup>,
    has_pair: bool,
    inline_bytes: u32,
}

impl PretendEndpoint {
    pub(crate) fn new(
        network: Arc<Network>,
        device: Arc<PretendDevice>,
        number: u32,
        (local, peer): (SocketAddr, SocketAddr),
        private_data: Vec<u8>,
        wakeup: Arc<Wakeup>,
    ) -> PretendEndpoint {
        PretendEndpoint {
            network,
            device,
            number,
            local,
            peer,
            private_data,
            wakeup,
            has_pair: false,
            inline_bytes: 0,
        }
    }

    fn failed(&self, cause: &str) -> VerbsError {
        VerbsError::Connect { address: self.peer, cause: cause.to_string() }
    }

    fn not_posted(&self, posted: usize, source: std::io::Error) -> VerbsError {
        VerbsError::Post { device: self.device.name().to_string(), posted, source }
    }

    fn fits(&self, options: &EndpointOptions) -> bool {
        let limits = self.device.limits();
        let within = |amount: u32, most: u32| amount > 0 && amount <= most;
        within(options.send_depth, limits.send_depth_max)
            && within(options.pieces, limits.send_pieces_max as u32)
            && options.reads_out <= limits.reads_out_max
            && options.reads_in <= limits.reads_in_max
    }

    /// Asks whoever listens at the peer's address.
    fn ask(&self, state: &mut State, private_data: &[u8]) -> Result<(), VerbsError> {
        let number = self.number;
        let peer = self.peer;
        let find_adapter = |state: &State| {
            state.adapters.iter().position(|known| known.addresses.contains(&peer.ip()) && known.works())
        };
        let adapter =
            find_adapter(state).ok_or_else(|| self.failed("the adapter of the address does not answer"))?;
        let host = state.adapters[adapter].host;
        let other = state.number();
        let wakeup = Arc::new(Wakeup::new().map_err(|error| self.failed(&error.to_string()))?);
        let hears = |listening: &&mut crate::state::Listening| {
            let at = listening.address;
            listening.host == host
                && at.port() == peer.port()
                && (at.ip() == peer.ip() || at.ip().is_unspecified())
        };
        let Some(listening) = state.listening.values_mut().find(hears) else {
            return Err(self.failed("nobody listens there"));
        };
        if listening.waiting.len() >= listening.backlog.max(1) as usize {
            return Err(self.failed("too many wait there already"));
        }
        listening.waiting.push_back(other);
        listening.wakeup.ring();
        state.ends.insert(
            other,
            End {
                adapter,
                local: peer,
                peer: self.local,
                private_data: padded(private_data, ASK_BYTES),
                standing: Standing::Asked,
                other: Some(number),
                wakeup,
                pair: None,
                severed: false,
            },
        );
        if let Some(end) = state.ends.get_mut(&number) {
            end.other = Some(other);
            end.standing = Standing::Asking;
        }
        Ok(())
    }
}

fn padded(private_data: &[u8], bytes: usize) -> Vec<u8> {
    let mut padded = private_data.to_vec();
    padded.resize(bytes, 0);
    padded
}

impl Endpoint for PretendEndpoint {
    type Device = PretendDevice;
    type Queue = PretendQueue;
    type Shared = PretendShared;

    fn device(&self) -> Arc<PretendDevice> {
        self.device.clone()
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn create_queue_pair(
        &mut self,
        options: &EndpointOptions,
        queue: &PretendQueue,
        receives: Receives<'_, PretendShared>,
    ) -> Result<(), VerbsError> {
        const WHAT: &str = "create a queue pair";
        let Ok(mut state) = self.network.enter() else { return Err(self.device.error(WHAT, libc::EPERM)) };
        let index = self.device.index();
        if state.adapters[index].removed {
            return Err(self.device.error(WHAT, libc::ENODEV));
        }
        let queue_fits = state.queues.get(&queue.number()).is_some_and(|queue| queue.adapter == index);
        let (receives, receives_fit) = match receives {
            Receives::Own(depth) => {
                let fits = depth <= self.device.limits().send_depth_max;
                (ReceivesFrom::Own { depth, used: 0, posted: VecDeque::new() }, fits)
            }
            Receives::Shared(shared) => {
                let number = shared.number();
                let fits = state.shared.get(&number).is_some_and(|shared| shared.adapter == index);
                (ReceivesFrom::Shared(number), fits)
            }
        };
        if !queue_fits || !receives_fit || self.has_pair || !self.fits(options) {
            return Err(self.device.error(WHAT, libc::EINVAL));
        }
        let Some(end) = state.ends.get_mut(&self.number) else {
            return Err(self.device.error(WHAT, libc::EINVAL));
        };
        let inline_bytes = options.inline_bytes.min(self.device.inline_bytes_max());
        end.pair = Some(Pair {
            options: EndpointOptions { inline_bytes, ..*options },
            queue: queue.number(),
            receives,
            sends: VecDeque::new(),
            begun: 0,
            places_used: 0,
            unreported: 0,
            reads_under_way: 0,
            waits: false,
            failing: false,
            failed: false,
        });
        self.has_pair = true;
        self.inline_bytes = inline_bytes;
        Ok(())
    }

    fn connect(&mut self, private_data: &[u8], timeout: Duration) -> Result<(), VerbsError> {
        if private_data.len() > ASK_BYTES || !self.has_pair {
            return Err(self.failed("too much private data, or no queue pair"));
        }
        let until = Instant::now() + timeout;
        let network = self.network.clone();
        let mut state = network.enter().map_err(|error| self.failed(&error.to_string()))?;
        if state.ends.get(&self.number).is_some_and(|end| end.standing != Standing::Idle) {
            return Err(self.failed("it was asked for before"));
        }
        self.ask(&mut state, private_data)?;
        loop {
            let Some(end) = state.ends.get_mut(&self.number) else { return Err(self.failed("it is gone")) };
            match end.standing.clone() {
                Standing::Connected => break,
                Standing::Refused(private_data) => {
                    return Err(VerbsError::Rejected { address: self.peer, private_data });
                }
                Standing::Ended(cause) => return Err(self.failed(&cause)),
                _ => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let other = end.other;
                end.standing = Standing::Ended("no answer in time".to_string());
                if let Some(other) = other {
                    state.hang_up(other, "the other side has given up");
                }
                return Err(self.failed("no answer in time"));
            }
            state = network.wait(state, left);
        }
        let Some(end) = state.ends.get(&self.number) else { return Err(self.failed("it is gone")) };
        self.private_data = end.private_data.clone();
        let other = end.other;
        let accepting = other.and_then(|other| state.ends.get_mut(&other));
        if let Some(other) = accepting.filter(|other| other.standing == Standing::Accepting) {
            other.standing = Standing::Connected;
            other.wakeup.ring();
        }
        Ok(())
    }

    fn accept(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        if private_data.len() > ACCEPT_BYTES || !self.has_pair {
            return Err(self.failed("too much private data, or no queue pair"));
        }
        let mut state = self.network.enter().map_err(|error| self.failed(&error.to_string()))?;
        let end = state.ends.get_mut(&self.number).filter(|end| end.standing == Standing::Asked);
        let Some(other) = end.and_then(|end| end.other) else {
            return Err(self.failed("the other side has given up"));
        };
        let Some(asking) = state.ends.get_mut(&other).filter(|other| other.standing == Standing::Asking)
        else {
            return Err(self.failed("the other side has given up"));
        };
        asking.private_data = padded(private_data, ACCEPT_BYTES);
        asking.standing = Standing::Connected;
        if let Some(end) = state.ends.get_mut(&self.number) {
            end.standing = Standing::Accepting;
        }
        self.network.tell();
        Ok(())
    }

    fn reject(self, private_data: &[u8]) {
        let Ok(mut state) = self.network.enter() else { return };
        state.refuse_asking(self.number, private_data);
        self.network.tell();
        drop(state);
    }

    fn event_fd(&self) -> RawFd {
        self.wakeup.fd()
    }

    fn state(&mut self) -> EndpointState {
        let Ok(mut state) = self.network.enter() else {
            return EndpointState::Ended("it is the parent process's".to_string());
        };
        self.wakeup.take();
        let standing = state.ends.get(&self.number).map(|end| end.standing.clone());
        match standing {
            Some(Standing::Connected) => EndpointState::Connected,
            Some(Standing::Ended(cause)) => {
                state.fail(self.number);
                EndpointState::Ended(cause)
            }
            Some(Standing::Refused(_)) => EndpointState::Ended("it was refused".to_string()),
            Some(Standing::Idle | Standing::Asking | Standing::Asked | Standing::Accepting) => {
                EndpointState::Accepting
            }
            None => EndpointState::Ended("it is gone".to_string()),
        }
    }

    fn disconnect(&mut self) {
        let Ok(mut state) = self.network.enter() else { return };
        state.say_goodbye(self.number);
        state.fail(self.number);
        state.run();
        self.network.tell();
    }

    unsafe fn post_send(&mut self, chain: &[SendWork<'_>]) -> Result<(), VerbsError> {
        if chain.is_empty() {
            return Ok(());
        }
        let mut state = self.network.enter().map_err(|error| self.not_posted(0, error))?;
        let mut posted = 0;
        let mut refused = None;
        for item in chain {
            // SAFETY: as the caller says.
            if let Err(error) = unsafe { state.post(self.number, item) } {
                refused = Some(self.not_posted(posted, error));
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            let state = &mut *state;
            let pieces = chain[..posted].iter().map(|item| item.pieces.len() as u64).sum();
            let adapter = &mut state.adapters[self.device.index()];
            adapter.charged.posting(&state.costs, posted as u64, pieces);
            Counters::add(&adapter.counters.doorbells, 1);
        }
        state.run();
        refused.map_or(Ok(()), Err)
    }

    unsafe fn post_receive(&mut self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError> {
        let mut state = self.network.enter().map_err(|error| self.not_posted(0, error))?;
        let state = &mut *state;
        let index = self.device.index();
        if state.adapters[index].removed {
            return Err(self.not_posted(0, errno(libc::ENODEV)));
        }
        let Some(end) = state.ends.get_mut(&self.number) else {
            return Err(self.not_posted(0, errno(libc::EINVAL)));
        };
        let other = end.other;
        let Some(Pair { receives: ReceivesFrom::Own { depth, used, posted }, failed, .. }) = &mut end.pair
        else {
            return Err(self.not_posted(0, errno(libc::EINVAL)));
        };
        let taken = receives.len().min((*depth - *used) as usize);
        *used += taken as u32;
        posted.extend(&receives[..taken]);
        let failed = *failed;
        let adapter = &mut state.adapters[index];
        adapter.charged.posting(&state.costs, taken as u64, taken as u64);
        Counters::add(&adapter.counters.receives, taken as u64);
        if failed {
            state.flush(self.number);
        }
        if let Some(other) = other {
            state.receive_came(other);
        }
        state.run();
        match taken == receives.len() {
            true => Ok(()),
            false => Err(self.not_posted(taken, errno(libc::ENOMEM))),
        }
    }

    fn queue_pair(&self) -> u32 {
        if self.has_pair { self.number } else { 0 }
    }

    fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }
}

impl Drop for PretendEndpoint {
    fn drop(&mut self) {
        let Ok(mut state) = self.network.enter() else { return };
        state.refuse_asking(self.number, &[]);
        state.say_goodbye(self.number);
        state.ends.remove(&self.number);
        if state.memory.has_windows(self.number) {
            state.complaints.push(format!("queue pair {} ended with windows bound on it", self.number));
        }
        state.run();
        self.network.tell();
    }
}

impl State {
    /// Refuses a connection that was asked for and not accepted.
    fn refuse_asking(&mut self, number: u32, private_data: &[u8]) {
        let Some(end) = self.ends.get_mut(&number).filter(|end| end.standing == Standing::Asked) else {
            return;
        };
        end.standing = Standing::Ended("it was refused".to_string());
        let other = end.other;
        let Some(asking) = other.and_then(|other| self.ends.get_mut(&other)) else { return };
        if asking.standing == Standing::Asking {
            asking.standing = Standing::Refused(padded(private_data, REFUSE_BYTES));
        }
    }

    /// Ends a connection from this side, and tells the other.
    fn say_goodbye(&mut self, number: u32) {
        let other = self.ends.get(&number).and_then(|end| end.other);
        self.hang_up(number, "this side said goodbye");
        if let Some(other) = other {
            self.hang_up(other, "the other side said goodbye");
        }
    }
}

/// An address that is listened on.
pub struct PretendListener {
    fabric: Pretend,
    network: Arc<Network>,
    number: u32,
    address: SocketAddr,
    wakeup: Arc<Wakeup>,
}

impl PretendListener {
    pub(crate) fn new(
        fabric: Pretend,
        network: Arc<Network>,
        number: u32,
        address: SocketAddr,
        wakeup: Arc<Wakeup>,
    ) -> PretendListener {
        PretendListener { fabric, network, number, address, wakeup }
    }
}

impl Listener for PretendListener {
    type Endpoint = PretendEndpoint;

    fn fd(&self) -> RawFd {
        self.wakeup.fd()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn next(&mut self) -> Result<Option<PretendEndpoint>, VerbsError> {
        let number = {
            let mut state = self.network.enter().map_err(|_| forked())?;
            let Some(listening) = state.listening.get_mut(&self.number) else { return Ok(None) };
            if listening.gone {
                let source = std::io::Error::from_raw_os_error(libc::ENODEV);
                return Err(VerbsError::Listen { address: self.address, source });
            }
            let next = listening.waiting.pop_front();
            if listening.waiting.is_empty() {
                listening.wakeup.take();
            }
            next
        };
        Ok(number.and_then(|number| self.fabric.endpoint(number)))
    }
}

impl Drop for PretendListener {
    fn drop(&mut self) {
        let Ok(mut state) = self.network.enter() else { return };
        let Some(listening) = state.listening.remove(&self.number) else { return };
        for waiting in listening.waiting {
            state.refuse_asking(waiting, &[]);
            state.ends.remove(&waiting);
        }
        self.network.tell();
    }
}
