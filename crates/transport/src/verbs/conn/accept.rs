//! Taking a connection.

use std::cell::RefCell;
use std::io::{self};
use std::rc::Rc;
use std::time::Duration;

use weft_reactor::{Event, spawn, timeout};
use weft_verbs::{Access, Device, Endpoint, EndpointOptions, Fabric, Receives};
use weft_wire::limits::HANDSHAKE_TIMEOUT_MS;
use weft_wire::{VERSIONS, negotiate};

use crate::error::{ConnError, FrameError};
use crate::verbs::FAST_BYTES;
use crate::verbs::credits::Credits;
use crate::verbs::envelope::{Accepting, FastBuffers, MESSAGE_BYTES, Rejection};
use crate::verbs::lend::{LENT_MAX, LENT_READS};
use crate::verbs::listen::{VerbsAccepted, Watched};
use crate::verbs::memory::Slots;
use crate::verbs::thread::{Port, VerbsServerOptions, VerbsThread};

use super::*;

impl<F: Fabric> VerbsThread<F> {
    /// Takes a connection; over an adapter that is new to this thread its queues are made first.
    ///
    /// # Errors
    /// There is no room for it, the adapter failed, or the client gave up meanwhile. The client is told where it can be.
    pub async fn accept(&self, accepted: VerbsAccepted<F>) -> Result<VerbsConn<F>, ConnError> {
        let address = accepted.endpoint.peer().to_string();
        let (inner, watched) = self.make(accepted).map_err(|error| match error {
            NotTaken::Full => ConnError::Stream {
                peer: format!("client {address} (verbs)"),
                source: FrameError::Io(io::Error::other("there is no room for a further RDMA connection")),
            },
            NotTaken::Failed(text) => ConnError::Stream {
                peer: format!("client {address} (verbs)"),
                source: FrameError::Io(io::Error::other(text)),
            },
        })?;
        let stands = Rc::new(Event::new());
        let keep_alive = Duration::from_millis(self.inner.options.keep_alive_ms.max(1).into());
        spawn(watch(inner.clone(), watched, stands.clone(), keep_alive));
        let conn = VerbsConn { end: Rc::new(ConnEnd { inner: inner.clone() }) };
        let limit = Duration::from_millis(HANDSHAKE_TIMEOUT_MS);
        let stood = timeout(limit, either(stands.wait(), inner.failed.wait())).await;
        match stood {
            Ok(true) => Ok(conn),
            _ => Err(inner.error()),
        }
    }

    /// Makes the queue pair and says yes.
    fn make(&self, accepted: VerbsAccepted<F>) -> Result<(Rc<ConnInner<F>>, Watched), NotTaken> {
        let VerbsAccepted { mut endpoint, asking, key } = accepted;
        let port = match self.port(endpoint.device()) {
            Ok(port) => port,
            Err(error) => return Err(internal(endpoint, error.to_string())),
        };
        let window = if port.is_full() { None } else { port.shares.borrow_mut().join() };
        let Some(window) = window else {
            endpoint.reject(&Rejection::Busy.encode());
            return Err(NotTaken::Full);
        };
        let credits = Credits::new(asking.receives, window);
        let fast = match set_up(&mut endpoint, &port, &self.inner.options) {
            Ok(fast) => fast,
            Err(error) => {
                port.shares.borrow_mut().leave(&credits);
                return Err(internal(endpoint, error));
            }
        };
        let lending = if self.inner.options.lends { Lending::new(&*port.device) } else { None };
        let version = negotiate(VERSIONS, asking.versions).unwrap_or(VERSIONS.1);
        let accepting = Accepting {
            version,
            lent_max: lending.as_ref().map_or(0, |_| LENT_MAX as u8),
            receives: window as u16,
            message_bytes: MESSAGE_BYTES as u32,
            fast: fast.as_ref().map_or_else(FastBuffers::default, |fast| FastBuffers {
                count: fast.slots.count() as u16,
                bytes: FAST_BYTES as u32,
                remote_key: fast.slots.remote_key(),
                address: fast.slots.base(0).as_ptr() as u64,
            }),
        };
        let inner = ConnInner::new(endpoint, port, credits, fast, lending);
        let failed = |text: String| NotTaken::Failed(text);
        let mut endpoint = inner.endpoint.borrow_mut();
        let endpoint = endpoint.as_mut().ok_or_else(|| failed("it is gone".into()))?;
        endpoint.accept(&accepting.encode(&key, &asking.nonce)).map_err(|error| failed(error.to_string()))?;
        let watched = Watched::new(endpoint.event_fd()).map_err(|error| failed(error.to_string()))?;
        Ok((inner.clone(), watched))
    }
}

/// Why a connection was not taken.
enum NotTaken {
    Full,
    Failed(String),
}

fn internal(endpoint: impl Endpoint, text: String) -> NotTaken {
    endpoint.reject(&Rejection::Internal.encode());
    NotTaken::Failed(text)
}

/// Queue pair and Fast buffers.
fn set_up<F: Fabric>(
    endpoint: &mut F::Endpoint,
    port: &Rc<Port<F>>,
    options: &VerbsServerOptions,
) -> Result<Option<Rc<Fast<F::Device>>>, String> {
    let limits = port.device.limits();
    let endpoint_options = EndpointOptions {
        send_depth: port.send_depth,
        pieces: limits.send_pieces_max.max(limits.read_pieces_max) as u32,
        inline_bytes: 0,
        reads_out: limits.reads_out_max,
        reads_in: LENT_READS.min(limits.reads_in_max),
    };
    endpoint
        .create_queue_pair(&endpoint_options, &port.queue.borrow(), Receives::Shared(&port.shared))
        .map_err(|error| error.to_string())?;
    let count = port.take_fast(options);
    if count == 0 {
        return Ok(None);
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    match Slots::new(&*port.device, FAST_BYTES, count.into(), access) {
        Ok(slots) => Ok(Some(Rc::new(Fast { slots, used: RefCell::new(vec![false; count.into()]) }))),
        // Without them small writes are slower, and nothing else.
        Err(_) => {
            port.fast_bytes.set(port.fast_bytes.get() - u64::from(count) * FAST_BYTES as u64);
            Ok(None)
        }
    }
}
