//! Calls over RDMA: RPC-over-RDMA, version 1 (RFC 8166, RFC 8797).
//!
//! ```text
//!   listen.rs      an address ─► private data ─► Accepting ─► a connection
//!   connection.rs  a message ─► header, credits ─► a task for each call ─► Service::call
//!   chunks.rs      where a call is: inline, and in chunks that are read            ┐ pure
//!   call.rs        reads them; the payload straight into a buffer of its own       │
//!   room.rs        where its reply goes: inline, write chunk, reply chunk          ├ pure
//!   reply.rs       writes them, and sends the message behind them                  │
//!   credits.rs     how many calls a client may have under way                      ┘ pure
//!   memory.rs      between buffers here and a client's memory
//!   exposures.rs   which replies a client may read                                     ─ pure
//!   exposed.rs     their keys, until the client has read them
//!   options.rs     the choices
//! ```
//!
//! The server reads and writes the memory of clients, and none of its own is exposed (the Read-Write design of
//! Noronha, Chai, Talpey and Panda, *Better NFS through RDMA and Efficient Memory Registration*, 2007).
//! A payload moves between a client's memory and a [`Buffer`](crate::Buffer) in registered zones, without a
//! copy. The zones are registered once and used again; nothing is registered for a call, unless that is chosen
//! ([`RdmaMemory`]).
//!
//! [`RdmaDesign::ReadRead`] is the paper's other design: a reply for which a call has no room stays in memory of the
//! server, with a key for the client, which reads it and then sends RDMA_DONE. What is unsafe about it:
//!
//! * A key has 32 bits. Who guesses or keeps one reads what is in that memory, for as long as the key is valid: with the
//!   pool that is the whole zone, and other clients' data in it.
//! * A client that never sends RDMA_DONE holds memory of the server: [`Limits::exposed_bytes`] at most, and for
//!   [`Limits::stall`] at most.
//!
//! Each call takes two receives then, for it and for its RDMA_DONE: half as many calls are granted. RDMA_DONE that names
//! no exposed reply ends the connection.
//!
//! A client that breaks the protocol so that its call can be named gets ERR_CHUNK or ERR_VERS. One that sends
//! more calls than it was granted, or bytes that are no call, is cut off. A key that is wrong ends the
//! connection, as the adapters see to it.

mod call;
mod chunks;
mod connection;
mod credits;
mod exposed;
mod exposures;
mod listen;
mod memory;
mod options;
mod reply;
mod room;

use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use weft_buffers::{BufferPool, ZoneKeeper};
use weft_log::once_a_minute;
use weft_rdma::{PortOptions, PortStatus, Ports};
use weft_reactor::{sleep, spawn};
use weft_verbs::Fabric;

pub use listen::RdmaListener;
pub use options::{RdmaDesign, RdmaMemory, RdmaOptions};

use crate::limits::Limits;

/// The longest message here, in both directions: what clients of Linux send and take.
const MESSAGE_BYTES: usize = 4096;
/// Zones of payloads that are registered from the start to the end. With the messages' buffers they fit the
/// 8 MiB that a process may usually lock.
const ZONES_KEPT: usize = 1;
/// How often it is looked for zones that nobody uses.
const LOOK: Duration = Duration::from_secs(1);

/// RDMA of a server's thread: its adapters, and the memory of payloads. Clones are the same.
pub struct Rdma<F: Fabric> {
    pub(crate) ports: Ports<F>,
    pub(crate) pool: BufferPool,
    options: RdmaOptions,
}

impl<F: Fabric> Clone for Rdma<F> {
    fn clone(&self) -> Rdma<F> {
        Rdma { ports: self.ports.clone(), pool: self.pool.clone(), options: self.options }
    }
}

impl<F: Fabric> Rdma<F> {
    /// On the current reactor. Adapters are opened when the first connection over them comes.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(limits: &Limits, options: RdmaOptions) -> io::Result<Rdma<F>> {
        let exposes = options.design == RdmaDesign::ReadRead;
        let with_windows = options.memory == RdmaMemory::Windows;
        let port_options = PortOptions {
            message_bytes: MESSAGE_BYTES,
            sends: 128,
            bounces: 2,
            windows: exposes && with_windows,
            remote_read: exposes && !with_windows,
            zone_registration: options.memory.zone_registration(),
            ..PortOptions::default()
        };
        let ports = Ports::new(port_options);
        let pool = BufferPool::new(limits.memory_bytes)?;
        pool.keep_zones(ZONES_KEPT, Rc::new(Zones { ports: ports.clone() }));
        spawn({
            let pool = pool.clone();
            async move {
                loop {
                    sleep(LOOK).await;
                    pool.shrink_idle();
                }
            }
        });
        Ok(Rdma { ports, pool, options })
    }

    /// The adapters that connections came over.
    pub fn status(&self) -> Vec<PortStatus> {
        self.ports.live().iter().map(|port| port.status()).collect()
    }
}

/// Makes the pool's memory known to the adapters.
struct Zones<F: Fabric> {
    ports: Ports<F>,
}

impl<F: Fabric> ZoneKeeper for Zones<F> {
    fn begin(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool keeps it mapped until its end, and uses it for payloads alone.
        let registered = unsafe { self.ports.add_zone(start.as_ptr(), bytes) };
        if let Err(error) = registered
            && once_a_minute("register a zone of payloads")
        {
            tracing::warn!(
                "data of clients over RDMA are copied: {error}; raise the limit of locked memory (ulimit -l)"
            );
        }
    }

    fn end(&self, start: NonNull<u8>, _bytes: usize) {
        self.ports.remove_zone(start.as_ptr());
    }
}
