//! The connection to the kernel: its requests, by whichever way they come, served by [`WeftFs`](crate::fs::WeftFs).
//!
//! ```text
//!                      ┌ device: threads that read and write /dev/fuse ┐
//!   greet() ─► serve() ┤                                               ├─► Dispatcher ─► WeftFs
//!                      └ ring: threads with an io_uring, some for each ┘        │
//!                        processor, where the kernel offers it                  └─► Answer: how the reply goes back
//! ```
//!
//! **Device.** Two system calls a request, and one of several sleeping threads is woken, wherever it runs.
//!
//! **Ring.** One system call gives a reply and takes the next request, and a request is served on the processor where it was made.
//! See [`weft_fuse_wire::ring`]. What the kernel forgets, and interrupts, come through the device still.
//!
//! A thread serves one request at a time and waits for the servers meanwhile. Threads of the device that wait for long, for a server
//! that does not answer, are replaced (`crew.rs`), so that others are served, and interrupts heard of. Only a lock that has to be waited for is given to
//! another thread, so that whoever is to unlock is served.

pub(crate) mod answer;
mod crew;
mod device;
mod dispatch;
mod memory;
mod panics;
mod ring;

pub(crate) use dispatch::Dispatcher;

use crate::options::{MountOptions, RingUse};
use crew::Crew;
use device::Device;
use memory::REQUEST_BYTES_MAX;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use weft_fuse_wire::init::{Agreement, Offer, VERSION, VERSION_LEAST, capability};
use weft_fuse_wire::{Header, opcode};

/// How long what the kernel forgets may gather beside a ring, where nothing that is in a hurry comes through the device but interrupts.
const GATHERING: Duration = Duration::from_millis(2);
/// Threads of a ring in all, where there are many processors.
const RING_THREADS_MAX: usize = 512;

const RING_MISSING: &str = "FUSE over io_uring is not to be had: it needs Linux 6.14, Y in \
    /sys/module/fuse/parameters/enable_uring (as root: echo Y > …), and a process that may use io_uring; or mount without \
    --ring require";

/// What is asked of the kernel where it has it.
const WISHES: u64 = capability::ASYNC_READ
    | capability::BIG_WRITES
    | capability::ATOMIC_O_TRUNC
    | capability::EXPORT_SUPPORT
    | capability::AUTO_INVAL_DATA
    | capability::ASYNC_DIO
    | capability::DO_READDIRPLUS
    | capability::READDIRPLUS_AUTO
    | capability::PARALLEL_DIROPS
    | capability::HANDLE_KILLPRIV_V2
    | capability::CACHE_SYMLINKS
    | capability::POSIX_LOCKS
    | capability::FLOCK_LOCKS
    | capability::DONT_MASK
    | capability::DIRECT_IO_ALLOW_MMAP;

/// A connection whose first request has been answered.
pub(crate) struct Connection {
    device: Arc<File>,
    /// See [`MountOptions::threads`].
    threads: usize,
    ring: bool,
}

impl Connection {
    /// Agrees with the kernel on what each can.
    pub(crate) fn greet(device: OwnedFd, options: &MountOptions) -> io::Result<Connection> {
        let device = Device::new(Arc::new(device.into()));
        let mut request = vec![0; device::REQUEST_BYTES_MIN];
        loop {
            let bytes = device.receive(&mut request)?.ok_or(io::ErrorKind::NotConnected)?;
            let header = Header::decode(&request[..bytes]).map_err(io::Error::other)?;
            if header.opcode != opcode::INIT {
                return Err(io::Error::other("the first request of the kernel is not INIT"));
            }
            let offer = Offer::decode(&request[Header::BYTES..bytes]).map_err(io::Error::other)?;
            if offer.version < VERSION_LEAST {
                device.reply(header.unique, Err(libc::EPROTO), &[]);
                let (major, minor) = offer.version;
                return Err(io::Error::other(format!(
                    "this kernel's FUSE has version {major}.{minor}; {}.{} is needed (Linux 4.20)",
                    VERSION_LEAST.0, VERSION_LEAST.1
                )));
            }
            let has_ring = offer.capabilities & capability::OVER_IO_URING != 0;
            let ring = options.ring != RingUse::Never && has_ring && ring::works();
            if options.ring == RingUse::Require && !ring {
                device.reply(header.unique, Err(libc::EPROTO), &[]);
                return Err(io::Error::other(RING_MISSING));
            }
            let mut wishes = WISHES;
            // It has the kernel ask for access control lists and check permissions by them, also without `default_permissions`.
            wishes |= if options.identities.kernel_checks() { capability::POSIX_ACL } else { 0 };
            wishes |= if ring { capability::OVER_IO_URING } else { 0 };
            let agreement = Agreement {
                // The kernel offers what its backing device has; a greater read-ahead is set there after mounting.
                read_ahead_bytes_max: offer.read_ahead_bytes_max.min(REQUEST_BYTES_MAX),
                capabilities: offer.capabilities & wishes,
                background_max: options.max_background,
                request_bytes_max: REQUEST_BYTES_MAX,
            };
            device.reply(header.unique, Ok(()), &agreement.encode(offer.version));
            // A kernel of a later major version asks again, by ours.
            if offer.version.0 == VERSION.0 {
                return Ok(Connection { device: device.into_file(), threads: options.threads.max(1), ring });
            }
        }
    }

    /// A second way to the kernel, for notes.
    pub(crate) fn notes(&self) -> Arc<File> {
        self.device.clone()
    }

    /// Serves requests until the connection ends, or cannot be served any more.
    pub(crate) fn serve(self, dispatcher: Dispatcher) -> io::Result<()> {
        let dispatcher = Arc::new(dispatcher);
        let (ended, ends) = mpsc::channel();
        let start = |name: String, serve: Box<dyn FnOnce() -> io::Result<()> + Send>| {
            let ended = ended.clone();
            let serve = move || {
                let outcome = catch_unwind(AssertUnwindSafe(serve));
                let panicked = |panic: Box<dyn std::any::Any + Send>| {
                    let what = panics::text_of(&*panic);
                    Err(io::Error::other(format!("a serving thread panicked: {what}; mount it again")))
                };
                ended.send(outcome.unwrap_or_else(panicked))
            };
            std::thread::Builder::new().name(name).spawn(serve).map(drop)
        };
        let crew = Crew::new();
        let (from_device, gathering) = if self.ring { (1, Some(GATHERING)) } else { (self.threads, None) };
        for thread in 0..from_device {
            let device = Device::new(self.device.clone()).cloned();
            let dispatcher = dispatcher.clone();
            let serve = match self.ring {
                true => Box::new(move || device.serve(&dispatcher, gathering, || true)) as Box<_>,
                false => {
                    let crew = crew.clone();
                    Box::new(move || crew.serve(&device, &dispatcher)) as Box<_>
                }
            };
            start(format!("weft-fuse-{thread}"), serve)?;
        }
        if self.ring {
            let queues = ring::queues();
            let share = (RING_THREADS_MAX / queues).clamp(1, self.threads);
            for (queue, thread) in (0..queues).flat_map(|queue| (0..share).map(move |thread| (queue, thread)))
            {
                let (device, dispatcher) = (self.device.clone(), dispatcher.clone());
                let serve = move || ring::serve(device, queue as u16, &dispatcher);
                start(format!("weft-ring-{queue}.{thread}"), Box::new(serve))?;
            }
        }
        drop(ended);
        // The first that cannot go on ends all.
        while let Ok(outcome) = ends.recv() {
            outcome?;
        }
        Ok(())
    }
}
