//! Two connected ends, and memory for them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_verbs::{
    Access, CompletionQueue, Counts, Device, Endpoint, EndpointOptions, EndpointState, Fabric, Listener,
    MemoryPiece, Receives, Registration, SendWork, TrafficClass, VerbsError, Work, WorkDone, WorkStatus,
};

/// Longest time for anything to happen; adapters may be emulated.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which nothing is to happen.
pub const QUIET: Duration = Duration::from_millis(200);

/// Rights for everything.
pub const ALL: [Access; 3] = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ];

/// What the tests run between.
pub struct Hosts<F> {
    /// Listens.
    pub server: F,
    /// Connects.
    pub client: F,
    /// An address of the server's adapter.
    pub ip: IpAddr,
    /// Whether the adapter holds peers to the bounds of windows, and not only to those of the registrations
    /// behind them.
    pub exact_windows: bool,
}

impl<F: Fabric> Hosts<F> {
    /// A listener on a port of its own.
    pub fn listen(&self) -> F::Listener {
        self.server.listen(SocketAddr::new(self.ip, 0), 16).expect("the server's adapter has the address")
    }

    /// A client's endpoint that is not connected yet.
    pub fn resolve(&self, address: SocketAddr) -> F::Endpoint {
        self.client.resolve(address, TrafficClass::default(), TIMEOUT).expect("there is a way to the server")
    }

    /// Two connected ends with receive queues of their own.
    pub fn pair(&self) -> (End<F>, End<F>) {
        self.pair_with(&self.listen_with(self.listen()))
    }

    /// A listener that many pairs are made with.
    pub fn listen_with(&self, listener: F::Listener) -> Door<F> {
        Door { address: listener.address(), listener: listener.into() }
    }

    /// As [`Hosts::pair`], through a listener that stays: the client's end and the server's.
    pub fn pair_with(&self, door: &Door<F>) -> (End<F>, End<F>) {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let mut end = End::<F>::new(door.next());
                end.endpoint.accept(b"welcome").expect("the request is taken");
                end
            });
            let mut client = End::<F>::new(self.resolve(door.address));
            client.endpoint.connect(b"hello", TIMEOUT).expect("the server takes it");
            (client, accepting.join().expect("the server's side works"))
        })
    }
}

/// A listener, and its address.
pub struct Door<F: Fabric> {
    pub address: SocketAddr,
    pub listener: std::sync::Mutex<F::Listener>,
}

impl<F: Fabric> Door<F> {
    /// Waits for a request.
    pub fn next(&self) -> F::Endpoint {
        let mut listener = self.listener.lock().expect("no test has failed here");
        let start = Instant::now();
        loop {
            if let Some(endpoint) = listener.next().expect("the listener works") {
                return endpoint;
            }
            assert!(start.elapsed() < TIMEOUT, "nobody asks for a connection");
            is_readable(listener.fd(), TIMEOUT);
        }
    }
}

/// Waits for a descriptor.
pub fn is_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor is passed.
    unsafe { libc::poll(&mut waiting, 1, timeout.as_millis() as i32) > 0 }
}

/// What the tests' queue pairs have: as much as the adapter can in pieces, and little else.
pub fn options<D: Device>(device: &D) -> EndpointOptions {
    let limits = device.limits();
    EndpointOptions {
        send_depth: 64,
        pieces: limits.send_pieces_max.min(limits.read_pieces_max) as u32,
        inline_bytes: 64,
        reads_out: 4,
        reads_in: 4,
    }
}

/// Receives of a queue pair's own.
pub const RECEIVES: u32 = 64;

/// An endpoint with a completion queue of its own.
pub struct End<F: Fabric> {
    pub endpoint: F::Endpoint,
    pub queue: F::Queue,
    pub device: Arc<F::Device>,
    pub done: VecDeque<WorkDone>,
}

impl<F: Fabric> End<F> {
    pub fn new(endpoint: F::Endpoint) -> End<F> {
        End::with(endpoint, Receives::Own(RECEIVES))
    }

    pub fn with(mut endpoint: F::Endpoint, receives: Receives<'_, F::Shared>) -> End<F> {
        let device = endpoint.device();
        let queue = device.completion_queue(256).expect("a completion queue");
        endpoint.create_queue_pair(&options(&*device), &queue, receives).expect("a queue pair");
        assert_ne!(endpoint.queue_pair(), 0);
        End { endpoint, queue, device, done: VecDeque::new() }
    }

    /// Posts work, all of it.
    pub fn post(&mut self, chain: &[SendWork<'_>]) {
        // SAFETY: tests keep their memory until the work has ended, or is meant to fail.
        unsafe { self.endpoint.post_send(chain) }.expect("there is room in the queue");
    }

    /// Posts work whose end is told, and waits for it.
    pub fn run(&mut self, work: Work, pieces: &[MemoryPiece]) -> WorkDone {
        self.post(&[signalled(77, work, pieces)]);
        let done = self.next_done();
        assert_eq!(done.id, 77);
        done
    }

    /// As [`End::run`], for work that ends well.
    #[track_caller]
    pub fn run_well(&mut self, work: Work, pieces: &[MemoryPiece]) {
        let done = self.run(work, pieces);
        assert_eq!(done.status, WorkStatus::Ok, "{work:?}");
    }

    /// Posts a receive.
    pub fn receive(&mut self, id: u64, piece: MemoryPiece) {
        // SAFETY: as for sends.
        unsafe { self.endpoint.post_receive(&[(id, piece)]) }.expect("there is room for a receive");
    }

    /// What ended next; sleeps until then.
    #[track_caller]
    pub fn next_done(&mut self) -> WorkDone {
        self.next_done_within(TIMEOUT).expect("work ends")
    }

    /// What ended next, or that nothing did.
    pub fn next_done_within(&mut self, timeout: Duration) -> Option<WorkDone> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.done.pop_front().or_else(|| self.poll()) {
                return Some(done);
            }
            self.queue.arm().expect("the queue works");
            if let Some(done) = self.poll() {
                return Some(done);
            }
            let left = timeout.checked_sub(start.elapsed())?;
            if is_readable(self.queue.fd(), left) {
                self.queue.take_wakeups().expect("the queue works");
            }
        }
    }

    fn poll(&mut self) -> Option<WorkDone> {
        let mut done = Vec::new();
        self.queue.poll(&mut done, 16).expect("the queue works");
        self.done.extend(done);
        self.done.pop_front()
    }

    /// Waits until the connection is over, and says why.
    #[track_caller]
    pub fn wait_ended(&mut self) -> String {
        let start = Instant::now();
        loop {
            if let EndpointState::Ended(cause) = self.endpoint.state() {
                return cause;
            }
            assert!(start.elapsed() < TIMEOUT, "the connection does not end");
            is_readable(self.endpoint.event_fd(), TIMEOUT);
        }
    }

    /// Waits until an accepted connection stands.
    #[track_caller]
    pub fn wait_connected(&mut self) {
        let start = Instant::now();
        while self.endpoint.state() != EndpointState::Connected {
            assert!(start.elapsed() < TIMEOUT, "the connection does not stand");
            is_readable(self.endpoint.event_fd(), TIMEOUT);
        }
    }

    pub fn memory(&self, bytes: usize) -> Memory<F> {
        self.memory_for(bytes, &ALL)
    }

    pub fn memory_for(&self, bytes: usize, access: &[Access]) -> Memory<F> {
        Memory::<F>::new(&*self.device, bytes, access)
    }

    pub fn counts(&self) -> Counts {
        self.device.counters().counts()
    }
}

/// A message goes from one end to the other, and is looked at.
#[track_caller]
pub fn exchange<F: Fabric>(from: &mut End<F>, to: &mut End<F>, seed: u8) {
    let (sent, received) = (from.memory(100), to.memory(100));
    sent.fill(seed);
    to.receive(5, received.all());
    from.run_well(Work::Send, &[sent.all()]);
    let done = to.next_done();
    assert_eq!((done.id, done.status, done.bytes), (5, WorkStatus::Ok, 100));
    assert_eq!(received.bytes(), sent.bytes());
}

/// Work whose end is told.
pub fn signalled(id: u64, work: Work, pieces: &[MemoryPiece]) -> SendWork<'_> {
    SendWork { signalled: true, ..silent(id, work, pieces) }
}

/// Work whose end is not told if it goes well.
pub fn silent(id: u64, work: Work, pieces: &[MemoryPiece]) -> SendWork<'_> {
    SendWork { id, work, pieces, signalled: false, fenced: false, inline: false }
}

/// Memory of whole pages.
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(length: usize) -> Mapping {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory is asked for.
        let start = unsafe { libc::mmap(null_mut(), length, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Mapping { start: start.cast(), length }
    }

    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// Takes pages away. Their addresses stay taken, by a file that has no pages: whatever another thread
    /// maps meanwhile does not come to lie there. (Pages that may not be read would not do: the kernel pins
    /// them for an adapter all the same.)
    pub fn take_away(&self, offset: usize, length: usize) {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"nothing".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        // SAFETY: it was just opened, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: they are the mapping's own, and nobody uses them.
        let start =
            unsafe { libc::mmap(self.start.add(offset).cast(), length, rights, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
    }

    /// Has the first page only read.
    pub fn protect_front(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(self.start.cast(), 4096, libc::PROT_READ) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: they are the mapping's own.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Memory that an adapter knows.
pub struct Memory<F: Fabric> {
    // Ended in this order.
    pub registration: <F::Device as Device>::Registration,
    mapping: Mapping,
    length: usize,
}

impl<F: Fabric> Memory<F> {
    pub fn new(device: &F::Device, length: usize, access: &[Access]) -> Memory<F> {
        let access = access.iter().fold(Access::LOCAL_READ, |all, one| all | *one);
        let mapping = Mapping::new(length.next_multiple_of(4096));
        // SAFETY: the memory is looked at only through copies.
        let registration = unsafe { device.register(mapping.address(), length, access) };
        Memory { registration: registration.expect("memory is registered"), mapping, length }
    }

    pub fn address(&self) -> u64 {
        self.mapping.start as u64
    }

    pub fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    pub fn all(&self) -> MemoryPiece {
        self.piece(0, self.length)
    }

    pub fn piece(&self, offset: usize, length: usize) -> MemoryPiece {
        assert!(offset + length <= self.length);
        let address = self.address() + offset as u64;
        MemoryPiece { address, bytes: length as u32, local_key: self.registration.local_key() }
    }

    /// Writes something that differs from byte to byte and by seed.
    pub fn fill(&self, seed: u8) {
        let data: Vec<u8> = (0..self.length).map(|at| pattern(seed, at)).collect();
        self.put(&data);
    }

    /// Writes all of it.
    pub fn put(&self, data: &[u8]) {
        assert_eq!(self.length, data.len());
        // SAFETY: the mapping is as long.
        unsafe { copy_nonoverlapping(data.as_ptr(), self.mapping.start, self.length) };
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut data = vec![0; self.length];
        // SAFETY: the mapping is as long.
        unsafe { copy_nonoverlapping(self.mapping.start, data.as_mut_ptr(), self.length) };
        data
    }

    pub fn write_to(&self, offset: u64) -> Work {
        Work::Write { remote_address: self.address() + offset, remote_key: self.remote_key() }
    }

    pub fn read_from(&self, offset: u64) -> Work {
        Work::Read { remote_address: self.address() + offset, remote_key: self.remote_key() }
    }
}

/// A byte of [`Memory::fill`].
pub fn pattern(seed: u8, at: usize) -> u8 {
    (at as u32).wrapping_mul(31).wrapping_add(at as u32 >> 8) as u8 ^ seed
}

/// The system's error of a refused registration.
pub fn refusal<T>(result: Result<T, VerbsError>) -> Option<i32> {
    match result {
        Err(VerbsError::Register { source, .. }) => source.raw_os_error(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was registered"),
    }
}
