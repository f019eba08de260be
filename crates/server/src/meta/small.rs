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
use super::quota::is_limited_by;
use super::{Call, MetaPart, translate as t};
use crate::answer::{Answer, Refusal};
use crate::config::SyncMode;
use crate::current::Peers;
use crate::spent;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_meta::{At, Engine, MetaError, Op, SMALL_FILE_BYTES_MAX, Spread, Timestamp};
use weft_wire::messages::*;
use weft_wire::{Added, Header, Wire};

const _: () =
    assert!(weft_meta::SMALL_FILE_BYTES_MAX == weft_wire::limits::SMALL_FILE_BYTES_MAX, "one bound");

impl<E: Engine + 'static> MetaPart<E> {
    /// Lets files be spread over these I/O servers.
    pub fn spread_over(&self, peers: Rc<Peers>) {
        self.spreading.over(peers);
    }

    /// Reads bytes of a small file.
    pub fn read_small(&self, request: ReadSmallRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, if request.bytes > 0 { rights::READ } else { 0 })?;
        spent::note_ino(held.ino);
        let bytes = request.bytes.min(SMALL_FILE_BYTES_MAX);
        let moved = Cell::new(0);
        let answer = self.read(|op| {
            let read = op.read_small(held.ino, request.offset, u64::from(bytes))?;
            Ok(match read {
                Some(read) => {
                    moved.set(read.bytes.len() as u64);
                    ReadSmallReply { striped: false, file_bytes: read.file_bytes, data: read.bytes }
                }
                None => ReadSmallReply { striped: true, file_bytes: 0, data: Vec::new() },
            })
        })?;
        Ok(Answer { moved_bytes: moved.get(), ..answer })
    }

    /// Writes bytes of a small file.
    pub async fn write_small(&self, call: &Call, request: WriteSmallRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, rights::WRITE)?;
        spent::note_ino(held.ino);
        let moved = Cell::new(0);
        let answer = self
            .change_spread(call, |op, now, _| {
                moved.set(0);
                if is_limited_by(&held) {
                    op.limited();
                }
                let Some(mut attr) = op.write_small(now, held.ino, request.offset, &request.data)? else {
                    return Ok(WriteSmallReply { attr: None, has_times: Added(false) });
                };
                // Who may not set times is told so when he asks for that alone. What fails here would take the write back.
                let owner = |times: &&NewTimes| times.caller.uid == 0 || times.caller.uid == attr.uid;
                let times = request.times.0.as_ref().filter(owner);
                if let Some(times) = times {
                    let (caller, change) = (t::caller(times.caller.clone()), t::new_times(times));
                    attr = op.setattr(&caller, now, At::ino(held.ino), false, &change)?;
                }
                moved.set(request.data.len() as u64);
                Ok(WriteSmallReply { attr: Some(t::attr(&attr)), has_times: Added(times.is_some()) })
            })
            .await?;
        if request.durable {
            self.sync_all().await?;
        }
        Ok(Answer { moved_bytes: moved.get(), ..answer })
    }

    /// Makes the bytes of a small file durable, and all that was acknowledged before.
    pub async fn sync_small(&self, request: SyncSmallRequest) -> Result<Answer, Refusal> {
        self.check(&request.capability, 0)?;
        let ino = request.capability.ino;
        // Before it is asked: if the file is spread meanwhile, its bytes go where they are durable.
        self.sync_all().await?;
        self.read(|op| Ok(SyncSmallReply { striped: op.small_bytes(ino)? == 0 }))
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
        let turn = self.spreading.turn(ino);
        let spread = {
            let _turn = turn.lock().await;
            self.spread_in_turn(call, ino).await
        };
        self.spreading.end(ino, &turn);
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
        let mut durable = durable || self.sync == SyncMode::Sync;
        let ended = Cell::new(false);
        while !ended.get() {
            if let Err(refusal) = self.spreading.place(ino, layout, bytes.clone(), durable).await {
                self.namespace.borrow_mut().spread_failed(ino);
                return Err(refusal);
            }
            self.change(call, |op, _, _| {
                ended.set(op.spread_end(ino, &layout, durable)?);
                Ok(Empty {})
            })
            .await?;
            durable = true;
        }
        Ok(())
    }
}
