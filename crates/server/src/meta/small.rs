//! Operations on small files: their bytes are read and written here, and go to an I/O server when they become too many.
//!
//! ```text
//!   a write beyond the bound ─► Spread ─► spread_begin ─► PlaceObject on the first I/O server ─► spread_end ─► reply
//!                                             │                                                      │
//!   writes of others meanwhile                └── wait ──────────────────────────────────────────────┴─► "striped"
//! ```
//!
//! An operation that needs a striped file is refused by the names with [`MetaError::Small`]. Then the file is spread, and the
//! operation is done again: see [`MetaPart::change_spread`].

use super::effects::{Effects, Failure};
use super::{Call, MetaPart, translate as t};
use crate::answer::{Answer, Refusal};
use crate::current::Peers;
use crate::peer::PeerError;
use crate::spent::{self, Part, during};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_layout::Layout;
use weft_meta::{Engine, MetaError, Op, SMALL_FILE_BYTES_MAX, Spread, Timestamp};
use weft_reactor::LocalLock;
use weft_wire::messages::*;
use weft_wire::{Header, Status, Wire};

/// How long an I/O server that cannot be reached is waited for, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

const _: () =
    assert!(weft_meta::SMALL_FILE_BYTES_MAX == weft_wire::limits::SMALL_FILE_BYTES_MAX, "one bound");

/// What spreading files needs.
#[derive(Default)]
pub(super) struct Spreading {
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
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Lets files be spread over these I/O servers.
    pub fn spread_over(&self, peers: Rc<Peers>) {
        let _ = self.spreading.peers.set(peers);
    }

    /// Reads bytes of a small file.
    pub fn read_small(&self, request: ReadSmallRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, if request.bytes > 0 { rights::READ } else { 0 })?;
        spent::note_ino(held.ino);
        let bytes = request.bytes.min(SMALL_FILE_BYTES_MAX);
        self.read(|op| {
            let read = op.read_small(held.ino, request.offset, u64::from(bytes))?;
            Ok(match read {
                Some(read) => {
                    ReadSmallReply { striped: false, file_bytes: read.file_bytes, data: read.bytes }
                }
                None => ReadSmallReply { striped: true, file_bytes: 0, data: Vec::new() },
            })
        })
    }

    /// Writes bytes of a small file.
    pub async fn write_small(&self, call: &Call, request: WriteSmallRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, rights::WRITE)?;
        spent::note_ino(held.ino);
        let answer = self
            .change_spread(call, |op, now, _| {
                let attr = op.write_small(now, held.ino, request.offset, &request.data, request.durable)?;
                Ok(WriteSmallReply { attr: attr.as_ref().map(t::attr) })
            })
            .await?;
        if request.durable {
            self.sync_all().await?;
        }
        Ok(answer)
    }

    /// Makes the bytes of a small file durable, and all that was acknowledged before.
    pub async fn sync_small(&self, call: &Call, request: SyncSmallRequest) -> Result<Answer, Refusal> {
        self.check(&request.capability, 0)?;
        let ino = request.capability.ino;
        let answer =
            self.change(call, |op, _, _| Ok(SyncSmallReply { striped: !op.sync_small(ino)? })).await?;
        self.sync_all().await?;
        Ok(answer)
    }

    /// Makes a file striped.
    pub async fn spread_file(&self, call: &Call, request: SpreadRequest) -> Result<Answer, Refusal> {
        self.check(&request.capability, 0)?;
        self.spread(call, request.capability.ino).await?;
        Ok(Answer::of(&Empty {}))
    }

    /// As [`MetaPart::change`]; a file that is too small for it is spread first.
    pub(super) async fn change_spread<R: Wire>(
        &self,
        call: &Call,
        run: impl Fn(&mut Op<'_, E>, Timestamp, &mut Effects) -> Result<R, Failure>,
    ) -> Result<Answer, Refusal> {
        let small = Cell::new(None);
        loop {
            let answer = self.change(call, |op, now, effects| {
                let done = run(op, now, effects);
                if let Err(Failure::Names(MetaError::Small { ino })) = &done {
                    small.set(Some(*ino));
                }
                done
            });
            match (answer.await, small.take()) {
                (Err(_), Some(ino)) => self.spread(call, ino).await?,
                (answer, _) => return answer,
            }
        }
    }

    /// Makes the file `ino` striped, once it is this task's turn.
    async fn spread(&self, call: &Call, ino: u64) -> Result<(), Refusal> {
        let turn = self
            .spreading
            .turns
            .borrow_mut()
            .entry(ino)
            .or_insert_with(|| Rc::new(LocalLock::new(())))
            .clone();
        let spread = {
            let _turn = turn.lock().await;
            self.spread_in_turn(call, ino).await
        };
        let is_last = |turn: &Rc<LocalLock<()>>| Rc::strong_count(turn) == 2;
        let mut turns = self.spreading.turns.borrow_mut();
        if turns.get(&ino).is_some_and(is_last) {
            turns.remove(&ino);
        }
        spread
    }

    async fn spread_in_turn(&self, call: &Call, ino: u64) -> Result<(), Refusal> {
        // It may be a part of a request whose reply is kept, which these are not.
        let call = &Call { header: Header { op: weft_wire::Op::Spread, ..call.header }, ..*call };
        let begun = RefCell::new(Spread::Done);
        self.change(call, |op, _, _| {
            *begun.borrow_mut() = op.spread_begin(ino)?;
            Ok(Empty {})
        })
        .await?;
        let Spread::Move { layout, bytes, durable } = begun.into_inner() else { return Ok(()) };
        if let Err(refusal) = self.place(ino, layout, bytes, durable).await {
            self.namespace.borrow_mut().spread_failed(ino);
            return Err(refusal);
        }
        self.change(call, |op, _, _| Ok(op.spread_end(ino, &layout).map(|()| Empty {})?)).await.map(drop)
    }

    /// Puts all bytes of a file into its first data file.
    async fn place(&self, ino: u64, layout: Layout, data: Vec<u8>, durable: bool) -> Result<(), Refusal> {
        let id = layout.server_id(0);
        let peer = self.spreading.peers.get().and_then(|peers| peers.get(id)).ok_or_else(|| {
            Refusal::new(
                Status::Io,
                format!("I/O server {id}, which has the file's first strip, is not in the cluster"),
            )
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
