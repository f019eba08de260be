//! Times single operations between two ends of one connection, both in this process.
//!
//! ```text
//!   here ── post ──► adapter ──► adapter ──► there          the time is from posting to the completion here;
//!   here ◄──────────── completion ───────────────           by then the receiver has consumed a message
//! ```

use anyhow::{Context, Result, bail};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, EndpointState, Fabric, Listener, MemoryPiece,
    Receives, Registration, SendWork, TrafficClass, VerbsError, Work, WorkDone, WorkStatus,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const DEPTH: u32 = 64;
const INLINE_BYTES: u32 = 256;

/// An operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A message whose bytes are inline in the work request.
    SendInline,
    /// A message from registered memory.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Write with immediate data.
    WriteImmediate,
    /// RDMA Read.
    Read,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 5] = [
        Operation::SendInline,
        Operation::Send,
        Operation::Write,
        Operation::WriteImmediate,
        Operation::Read,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Operation::SendInline => "send, in the work request",
            Operation::Send => "send",
            Operation::Write => "RDMA Write",
            Operation::WriteImmediate => "RDMA Write with immediate",
            Operation::Read => "RDMA Read",
        }
    }

    /// Whether it consumes a receive.
    fn receives(self) -> bool {
        !matches!(self, Operation::Write | Operation::Read)
    }
}

/// An end, its completion queue, and memory that is registered for both sides.
struct End<F: Fabric> {
    // Dropped in this order.
    endpoint: F::Endpoint,
    queue: F::Queue,
    registration: <F::Device as Device>::Registration,
    memory: Vec<u8>,
}

/// Both ends.
pub struct Pair<F: Fabric> {
    here: End<F>,
    there: End<F>,
}

impl<F: Fabric> End<F> {
    fn new(mut endpoint: F::Endpoint, memory_bytes: usize) -> Result<End<F>> {
        let device: Arc<F::Device> = endpoint.device();
        let queue = device.completion_queue(4 * DEPTH)?;
        let options = EndpointOptions {
            send_depth: DEPTH,
            pieces: 1,
            inline_bytes: INLINE_BYTES,
            reads_out: device.limits().reads_out_max.min(4),
            reads_in: device.limits().reads_in_max.min(4),
        };
        endpoint.create_queue_pair(&options, &queue, Receives::Own(DEPTH))?;
        let memory = vec![1u8; memory_bytes];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: the memory is not accessed here, and is freed after its registration.
        let registration = unsafe { device.register(memory.as_ptr() as usize, memory.len(), access) }?;
        Ok(End { endpoint, queue, registration, memory })
    }

    fn piece(&self, bytes: usize) -> MemoryPiece {
        let address = self.memory.as_ptr() as u64;
        MemoryPiece { address, bytes: bytes as u32, local_key: self.registration.local_key() }
    }

    /// Waits for one completion, by busy-polling: other processes may work meanwhile.
    fn wait(&mut self) -> Result<()> {
        let (begun, mut done): (_, Vec<WorkDone>) = (Instant::now(), Vec::new());
        while begun.elapsed() < TIMEOUT {
            self.queue.poll(&mut done, 1)?;
            match done.first().map(|done| done.status) {
                Some(WorkStatus::Ok) => return Ok(()),
                Some(status) => bail!("an operation of the adapter failed: {status:?}"),
                None => std::thread::yield_now(),
            }
        }
        bail!("an operation of the adapter does not complete")
    }
}

impl<F: Fabric> Pair<F> {
    /// Connects two ends over the adapter with this address, each with this much memory.
    pub fn connect(fabric: &F, address: IpAddr, memory_bytes: usize) -> Result<Pair<F>> {
        let mut listener = fabric.listen(SocketAddr::new(address, 0), 1)?;
        let to = listener.address();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(move || accept::<F>(&mut listener, memory_bytes));
            let endpoint = fabric.resolve(to, TrafficClass::default(), TIMEOUT)?;
            let mut here = End::<F>::new(endpoint, memory_bytes)?;
            here.endpoint.connect(b"", TIMEOUT)?;
            let there = accepting.join().expect("accepting does not panic")?;
            Ok(Pair { here, there })
        })
    }

    /// Times one operation. `None` if the adapter cannot take this many bytes inline.
    pub fn once(&mut self, operation: Operation, bytes: usize) -> Result<Option<Duration>> {
        let inline = operation == Operation::SendInline;
        if inline && bytes as u64 > u64::from(self.here.endpoint.inline_bytes()) {
            return Ok(None);
        }
        let (remote_address, remote_key) =
            (self.there.memory.as_ptr() as u64, self.there.registration.remote_key());
        let work = match operation {
            Operation::SendInline | Operation::Send => Work::Send,
            Operation::Write => Work::Write { remote_address, remote_key },
            Operation::WriteImmediate => Work::WriteImmediate { remote_address, remote_key, immediate: 1 },
            Operation::Read => Work::Read { remote_address, remote_key },
        };
        if operation.receives() {
            let piece = self.there.piece(bytes);
            // SAFETY: the memory belongs to the end, and nobody else uses it.
            unsafe { self.there.endpoint.post_receive(&[(1, piece)]) }?;
        }
        let pieces = [self.here.piece(bytes)];
        let work = SendWork { id: 1, work, pieces: &pieces, signalled: true, fenced: false, inline };
        let begun = Instant::now();
        // SAFETY: as above; the completion is waited for.
        unsafe { self.here.endpoint.post_send(&[work]) }?;
        self.here.wait()?;
        let took = begun.elapsed();
        if operation.receives() {
            self.there.wait()?;
        }
        Ok(Some(took))
    }
}

/// Accepts one connection.
fn accept<F: Fabric>(listener: &mut F::Listener, memory_bytes: usize) -> Result<End<F>> {
    let begun = Instant::now();
    let is_late = || begun.elapsed() > TIMEOUT;
    let endpoint = loop {
        match listener.next()? {
            Some(endpoint) => break endpoint,
            None if is_late() => bail!("no connection request arrived"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut end = End::<F>::new(endpoint, memory_bytes)?;
    end.endpoint.accept(b"")?;
    loop {
        match end.endpoint.state() {
            EndpointState::Connected => return Ok(end),
            EndpointState::Ended(cause) => bail!("the connection ended: {cause}"),
            EndpointState::Accepting if is_late() => bail!("the connection was not established"),
            EndpointState::Accepting => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Times of registering and of deregistering this many buffers of this size, `stride` apart, all at once.
pub fn registration_times<D: Device>(
    device: &D,
    memory: &[u8],
    buffers: usize,
    bytes: usize,
    stride_bytes: usize,
) -> Result<(Duration, Duration)> {
    let start = (memory.as_ptr() as usize).next_multiple_of(4096);
    let end = start + (buffers - 1) * stride_bytes + bytes;
    assert!(end <= memory.as_ptr() as usize + memory.len(), "buffers lie in the memory");
    let begun = Instant::now();
    let register = |at: usize| {
        // SAFETY: nobody has the keys, so nothing accesses the memory.
        unsafe { device.register(start + at * stride_bytes, bytes, Access::LOCAL_READ) }
    };
    let registrations: Result<Vec<_>, VerbsError> = (0..buffers).map(register).collect();
    let registrations = registrations.context("raise the limit on locked memory (ulimit -l)")?;
    let took = begun.elapsed();
    let begun = Instant::now();
    drop(registrations);
    Ok((took, begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use weft_verbs_double::{Pretend, PretendOptions};

    #[test]
    fn every_operation_ends_and_is_counted() {
        let pretend = Pretend::new(PretendOptions::default());
        let mut pair = Pair::connect(&pretend, IpAddr::V4(Ipv4Addr::LOCALHOST), 8192).unwrap();
        let before = pretend.counts();
        for operation in Operation::ALL {
            assert!(pair.once(operation, 100).unwrap().is_some(), "{operation:?}");
        }
        assert!(pair.once(Operation::SendInline, 8192).unwrap().is_none());
        let counts = pretend.counts().since(&before);
        assert_eq!((counts.sends, counts.writes, counts.writes_immediate, counts.reads), (2, 1, 1, 1));
        assert_eq!(counts.receiver_not_ready, 0);
    }

    #[test]
    fn buffers_are_registered_and_let_go() {
        let pretend = Pretend::new(PretendOptions::default());
        let pair = Pair::connect(&pretend, IpAddr::V4(Ipv4Addr::LOCALHOST), 4096).unwrap();
        let device = pair.here.endpoint.device();
        let before = pretend.counts();
        registration_times(&*device, &vec![1; 64 << 10], 5, 4096, 8192).unwrap();
        let counts = pretend.counts().since(&before);
        assert_eq!((counts.registrations, counts.registered_pages, counts.deregistrations), (5, 5, 5));
    }
}
