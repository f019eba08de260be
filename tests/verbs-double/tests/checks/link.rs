//! Two ends of a connection, with memory.

use super::memory::Mapping;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, EndpointState, Fabric, Listener, MemoryPiece,
    Receives, Registration, SendWork, TrafficClass, Work, WorkDone,
};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Memory of an end.
pub const MEMORY_BYTES: usize = 256 * 1024;

/// Where a suite runs: two hosts, which may be the same.
pub struct Site<F: Fabric> {
    /// The one that asks.
    pub client: F,
    /// The one that is asked.
    pub server: F,
    /// An address of the server's, with a port of 0.
    pub address: SocketAddr,
}

/// One end: a connection, its completion queue, and memory that is registered with all rights.
pub struct Side<F: Fabric> {
    pub endpoint: F::Endpoint,
    pub queue: F::Queue,
    pub device: Arc<F::Device>,
    pub registration: Option<<F::Device as Device>::Registration>,
    pub memory: Mapping,
}

impl<F: Fabric> Side<F> {
    fn new(endpoint: F::Endpoint) -> Side<F> {
        const DEPTH: u32 = 512;
        let queue = endpoint.device().completion_queue(DEPTH).expect("a completion queue");
        Side::with_queue(endpoint, queue)
    }

    fn with_queue(endpoint: F::Endpoint, queue: F::Queue) -> Side<F> {
        let device = endpoint.device();
        let memory = Mapping::new(MEMORY_BYTES);
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        if device.limits().windows {
            access = access | Access::WINDOW_BIND;
        }
        let registration = register::<F>(&device, &memory, access);
        Side { endpoint, queue, device, registration: Some(registration), memory }
    }

    /// A piece of its memory.
    pub fn piece(&self, offset: usize, bytes: usize) -> MemoryPiece {
        let local_key = self.registration.as_ref().expect("a registration").local_key();
        MemoryPiece { address: self.remote_address(offset), bytes: bytes as u32, local_key }
    }

    pub fn remote_address(&self, offset: usize) -> u64 {
        (self.memory.address() + offset) as u64
    }

    pub fn remote_key(&self) -> u32 {
        self.registration.as_ref().expect("a registration").remote_key()
    }

    /// Posts one piece of work, signalled.
    pub fn post(&mut self, id: u64, work: Work, pieces: &[MemoryPiece]) {
        self.post_as(SendWork { id, work, pieces, signalled: true, fenced: false, inline: false });
    }

    pub fn post_as(&mut self, work: SendWork<'_>) {
        // SAFETY: the checks keep memory until their work has ended.
        unsafe { self.endpoint.post_send(&[work]) }.expect("posting");
    }

    /// Posts a receive into its memory.
    pub fn receive(&mut self, id: u64, offset: usize, bytes: usize) {
        let piece = self.piece(offset, bytes);
        // SAFETY: as above.
        unsafe { self.endpoint.post_receive(&[(id, piece)]) }.expect("posting a receive");
    }

    /// Waits for the end of `count` pieces of work.
    pub fn wait(&mut self, count: usize) -> Vec<WorkDone> {
        wait_for(&mut self.queue, count)
    }

    /// Waits for the end of one.
    pub fn wait_one(&mut self) -> WorkDone {
        self.wait(1)[0]
    }

    /// Nothing more ends for a while.
    pub fn assert_quiet(&mut self) {
        const WHILE: Duration = Duration::from_millis(50);
        let mut done = Vec::new();
        let until = Instant::now() + WHILE;
        while Instant::now() < until {
            self.queue.poll(&mut done, 16).expect("polling");
            assert_eq!(done, [], "nothing was to end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the connection stands or has ended, as is asked.
    pub fn wait_state(&mut self, wanted: impl Fn(&EndpointState) -> bool) -> EndpointState {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.endpoint.state();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < until, "the connection is {state:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Registers all of a mapping.
pub fn register<F: Fabric>(
    device: &F::Device,
    memory: &Mapping,
    access: Access,
) -> <F::Device as Device>::Registration {
    // SAFETY: a mapping of the test's is looked at only by volatile copies.
    unsafe { device.register(memory.address(), MEMORY_BYTES, access) }.expect("registering")
}

/// Waits for the end of `count` pieces of work in a queue.
pub fn wait_for(queue: &mut impl CompletionQueue, count: usize) -> Vec<WorkDone> {
    let until = Instant::now() + PATIENCE;
    let mut done = Vec::new();
    while done.len() < count {
        let most = count - done.len();
        queue.poll(&mut done, most).expect("polling");
        assert!(Instant::now() < until, "only {done:?} of {count} ended");
        if done.len() < count {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    done
}

/// Sizes of the queue pairs of the checks.
pub const OPTIONS: EndpointOptions =
    EndpointOptions { send_depth: 64, pieces: 4, inline_bytes: 64, reads_out: 4, reads_in: 4 };

/// Waits for somebody to ask for a connection.
pub fn next<F: Fabric>(listener: &mut F::Listener) -> F::Endpoint {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(endpoint) = listener.next().expect("listening") {
            return endpoint;
        }
        assert!(Instant::now() < until, "nobody asks");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The two ends of a new connection, each with receives of its own: the client, and the server.
pub fn connected<F: Fabric>(site: &Site<F>) -> (Side<F>, Side<F>) {
    connected_with(site, |_| None)
}

/// The same; the server may receive from a shared queue.
pub fn connected_with<'a, F: Fabric>(
    site: &Site<F>,
    shared: impl Fn(&F::Device) -> Option<&'a F::Shared>,
) -> (Side<F>, Side<F>) {
    connect(site, shared, Side::new)
}

/// The same; the client's work ends in `queue`.
pub fn connected_through<F: Fabric>(site: &Site<F>, queue: F::Queue) -> (Side<F>, Side<F>) {
    connect(site, |_| None, move |endpoint| Side::with_queue(endpoint, queue))
}

fn connect<'a, F: Fabric>(
    site: &Site<F>,
    shared: impl Fn(&F::Device) -> Option<&'a F::Shared>,
    client: impl FnOnce(F::Endpoint) -> Side<F> + Send,
) -> (Side<F>, Side<F>) {
    const RECEIVES: u32 = 64;
    let mut listener = site.server.listen(site.address, 8).expect("listening");
    let address = listener.address();
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let endpoint =
                site.client.resolve(address, TrafficClass::default(), PATIENCE).expect("resolving");
            let mut side = client(endpoint);
            side.endpoint
                .create_queue_pair(&OPTIONS, &side.queue, Receives::Own(RECEIVES))
                .expect("a queue pair");
            side.endpoint.connect(b"may I?", PATIENCE).expect("connecting");
            side
        });
        let endpoint = next::<F>(&mut listener);
        assert!(endpoint.private_data().starts_with(b"may I?"));
        let mut side = Side::<F>::new(endpoint);
        let receives = shared(&side.device).map_or(Receives::Own(RECEIVES), Receives::Shared);
        side.endpoint.create_queue_pair(&OPTIONS, &side.queue, receives).expect("a queue pair");
        side.endpoint.accept(b"you may").expect("accepting");
        let client = asking.join().expect("the side that asks");
        assert!(client.endpoint.private_data().starts_with(b"you may"));
        side.wait_state(|state| *state == EndpointState::Connected);
        (client, side)
    })
}
