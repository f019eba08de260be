//! Listening for RDMA connections. A stranger is sent away before it costs a queue pair.

use std::io;
use std::net::SocketAddr;

use weft_verbs::{Endpoint, Fabric, Listener, VerbsError};

use crate::protocol::Check;
use crate::watched::Watched;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Where connections are listened for, and who is let in.
#[derive(Clone)]
pub struct Place<F: Fabric, C: Check> {
    fabric: F,
    address: SocketAddr,
    check: C,
}

/// An address that is listened on. Connections queue up from now on.
pub struct Listening<F: Fabric, C: Check> {
    listener: F::Listener,
    place: Place<F, C>,
}

impl<F: Fabric, C: Check> Place<F, C> {
    /// An address of an RDMA adapter.
    pub fn new(fabric: &F, address: SocketAddr, check: C) -> Self {
        Place { fabric: fabric.clone(), address, check }
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens there.
    ///
    /// # Errors
    /// No adapter has the address, it is in use, or RDMA cannot be used.
    pub fn listen(mut self) -> Result<Listening<F, C>, VerbsError> {
        let listener = self.fabric.listen(self.address, BACKLOG)?;
        self.address = listener.address();
        Ok(Listening { listener, place: self })
    }
}

impl<F: Fabric, C: Check> Listening<F, C> {
    /// Where, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// To listen there again when this listener is of no more use: it goes with its adapter.
    pub fn place(&self) -> Place<F, C> {
        self.place.clone()
    }

    /// Puts it on the current reactor.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn acceptor(self) -> io::Result<Acceptor<F, C>> {
        let watched = Watched::new(self.listener.fd())?;
        Ok(Acceptor { watched, listening: self })
    }
}

/// A listened address on a reactor.
pub struct Acceptor<F: Fabric, C: Check> {
    watched: Watched,
    listening: Listening<F, C>,
}

/// Somebody who asks for a connection, and was checked. May be moved to another thread, for
/// [`crate::Ports::accept`].
pub struct Asked<F: Fabric, A> {
    pub(crate) endpoint: F::Endpoint,
    pub(crate) said: A,
}

impl<F: Fabric, A> Asked<F, A> {
    /// Who.
    pub fn peer(&self) -> SocketAddr {
        self.endpoint.peer()
    }
}

impl<F: Fabric, C: Check> Acceptor<F, C> {
    /// The next connection. Who does not pass the check is refused within.
    ///
    /// # Errors
    /// The listener is unusable.
    pub async fn next(&mut self) -> Result<Asked<F, C::Asked>, VerbsError> {
        let Listening { listener, place } = &mut self.listening;
        loop {
            match listener.next()? {
                Some(endpoint) => match place.check.check(endpoint.private_data()) {
                    Ok(said) => return Ok(Asked { endpoint, said }),
                    Err(reason) => endpoint.reject(&reason),
                },
                None => self.watched.readable().await,
            }
        }
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}
