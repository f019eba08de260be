//! A server as far as these tests need one: it writes into memory of this process and reads from it, through keys.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, Fabric, Listener, MemoryPiece, Receives,
    Registration, SendWork, TrafficClass, Work, WorkStatus,
};
use weft_verbs_double::{Pretend, PretendDevice, PretendEndpoint, PretendQueue, PretendRegistration};

/// What one transfer moves at most.
pub const BYTES_MAX: usize = 1 << 20;
const OPTIONS: EndpointOptions =
    EndpointOptions { send_depth: 16, pieces: 1, inline_bytes: 0, reads_out: 4, reads_in: 4 };

/// Both ends of a connection, and the memory of the server's.
pub struct Peer {
    client: PretendEndpoint,
    server: PretendEndpoint,
    queue: PretendQueue,
    _client_queue: PretendQueue,
    buffer: Vec<u8>,
    registration: PretendRegistration,
}

impl Peer {
    pub fn new(fabric: &Pretend) -> Peer {
        let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let mut listener = fabric.listen(here, 1).unwrap();
        let mut client =
            fabric.resolve(listener.address(), TrafficClass::default(), Duration::from_secs(1)).unwrap();
        let client_queue = client.device().completion_queue(16).unwrap();
        client.create_queue_pair(&OPTIONS, &client_queue, Receives::Own(1)).unwrap();
        let (server, queue) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| client.connect(&[], Duration::from_secs(10)).unwrap());
            let mut server = loop {
                if let Some(server) = listener.next().unwrap() {
                    break server;
                }
                std::thread::yield_now();
            };
            let queue = server.device().completion_queue(16).unwrap();
            server.create_queue_pair(&OPTIONS, &queue, Receives::Own(1)).unwrap();
            server.accept(&[]).unwrap();
            connecting.join().unwrap();
            (server, queue)
        });
        let buffer = vec![0; BYTES_MAX];
        // SAFETY: the buffer lives as long as the registration, and is used by `transfer` only.
        let registration = unsafe {
            server.device().register(buffer.as_ptr() as usize, BYTES_MAX, Access::LOCAL_WRITE).unwrap()
        };
        Peer { client, server, queue, _client_queue: client_queue, buffer, registration }
    }

    pub fn device(&self) -> Arc<PretendDevice> {
        self.client.device()
    }

    /// Writes bytes to an address.
    pub fn put(&mut self, address: u64, key: u32, bytes: &[u8]) {
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        self.transfer(Work::Write { remote_address: address, remote_key: key }, bytes.len());
    }

    /// Reads bytes from an address.
    pub fn get(&mut self, address: u64, key: u32, bytes: &mut [u8]) {
        self.transfer(Work::Read { remote_address: address, remote_key: key }, bytes.len());
        bytes.copy_from_slice(&self.buffer[..bytes.len()]);
    }

    fn transfer(&mut self, work: Work, bytes: usize) {
        let local_key = self.registration.local_key();
        let piece = MemoryPiece { address: self.buffer.as_ptr() as u64, bytes: bytes as u32, local_key };
        let work = SendWork { id: 1, work, pieces: &[piece], signalled: true, fenced: false, inline: false };
        // SAFETY: the buffer is registered, and nobody else uses it until the end of the work, which is waited for.
        unsafe { self.server.post_send(&[work]).unwrap() };
        let mut done = Vec::new();
        while done.is_empty() {
            self.queue.poll(&mut done, 1).unwrap();
        }
        assert_eq!(done[0].status, WorkStatus::Ok, "{work:?}");
    }
}
