//! What it takes to spread small files over I/O servers: who they are, and whose turn it is.

use crate::answer::Refusal;
use crate::current::Peers;
use crate::peer::PeerError;
use crate::spent::{Part, during};
use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_layout::Layout;
use weft_reactor::LocalLock;
use weft_wire::Status;
use weft_wire::messages::PlaceObjectRequest;

/// How long an I/O server that cannot be reached is waited for, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

/// What spreading files needs.
#[derive(Default)]
pub(crate) struct Spreading {
    peers: OnceCell<Rc<Peers>>,
    /// One at a time spreads a file.
    turns: RefCell<HashMap<u64, Rc<LocalLock<()>>>>,
    /// I/O servers of a release that cannot be given a small file's bytes.
    old_servers: RefCell<HashSet<u16>>,
}

impl Spreading {
    /// An I/O server has come, which speaks this version of the protocol.
    pub fn heard(&self, server: u16, version: u8) {
        let mut old_servers = self.old_servers.borrow_mut();
        match version < weft_wire::Op::PlaceObject.since() {
            true => old_servers.insert(server),
            false => old_servers.remove(&server),
        };
    }

    /// Whether new files may be small: all I/O servers can take their bytes when they grow.
    pub fn is_possible(&self) -> bool {
        self.old_servers.borrow().is_empty()
    }

    /// Lets files be spread over these I/O servers.
    pub fn over(&self, peers: Rc<Peers>) {
        let _ = self.peers.set(peers);
    }

    /// The turn of who spreads the file `ino`.
    pub fn turn(&self, ino: u64) -> Rc<LocalLock<()>> {
        self.turns.borrow_mut().entry(ino).or_insert_with(|| Rc::new(LocalLock::new(()))).clone()
    }

    /// A turn is over: it is forgotten, unless others wait for theirs.
    pub fn end(&self, ino: u64, turn: &Rc<LocalLock<()>>) {
        // One here, and one in the table.
        if Rc::strong_count(turn) == 2 {
            self.turns.borrow_mut().remove(&ino);
        }
    }

    /// Puts all bytes of a file into its first data file.
    pub async fn place(&self, ino: u64, layout: Layout, data: Vec<u8>, durable: bool) -> Result<(), Refusal> {
        let chain = layout.chain(0);
        let peer = self.peers.get().and_then(|peers| peers.of_chain(chain)).ok_or_else(|| {
            let text =
                format!("chain {chain}, which has the file's first strip, has no server in the cluster");
            Refusal::new(Status::Io, text)
        })?;
        let request = PlaceObjectRequest { ino, layout, durable, data };
        let give_up = Instant::now() + PATIENCE;
        loop {
            let (status, error) = match during(Part::Clients, peer.call(&request)).await {
                Ok(_) => return Ok(()),
                Err(PeerError::Unreachable { .. }) if Instant::now() < give_up => {
                    weft_reactor::sleep(RETRY).await;
                    continue;
                }
                Err(error @ PeerError::Refused { status, .. }) => (status, error),
                Err(error) => (Status::Io, error),
            };
            let text =
                format!("the file's bytes cannot go from the metadata server to its I/O server: {error}");
            return Err(Refusal::new(status, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_one_server_is_older_no_file_is_small() {
        let spreading = Spreading::default();
        assert!(spreading.is_possible());
        spreading.heard(0, 4);
        spreading.heard(1, 3);
        assert!(!spreading.is_possible());
        spreading.heard(1, 4);
        assert!(spreading.is_possible());
    }
}
