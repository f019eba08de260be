//! A share cut into units: what is moved in one step, bounded in bytes and in pieces.
//!
//! ```text
//!   share          0 ........................ 2.5 MiB
//!   local runs     [ 1.5 MiB at 4 MiB ][ 1 MiB at 9 MiB ]
//!   units of 1 MiB [ 1 MiB ][ 0.5 + 0.5 MiB ][ 0.5 MiB ]
//! ```

use crate::answer::Refusal;
use weft_layout::{Extent, Layout, LocalRun, LocalRuns, Regions, local_runs, share_bytes};
use weft_wire::Status;
use weft_wire::limits::SHARE_BYTES_MAX;

/// Pieces of a data file in one unit: bounds its list to 64 KiB of memory, and the time of its task's turn.
const PIECES_MAX: usize = 4096;
/// Pieces of the whole file in one request: bounds the time of looking for this server's among them to about a second.
const REQUEST_PIECES_MAX: u64 = 1 << 28;

/// Up to so many pieces a share is counted in one go.
const COUNTED_PIECES_MAX: u64 = 1 << 14;
/// Pieces of the whole file that are looked at before the other tasks of the thread get their turn. Few of them, or none,
/// may be this server's.
const STEPS_PER_TURN: u32 = 1024;

/// The next run of at most `bytes_max` bytes, looked for in turns with the other tasks of the thread, until the client is gone.
async fn next_run(
    runs: &mut LocalRuns<'_>,
    bytes_max: u64,
    steps: &mut u32,
    is_gone: &dyn Fn() -> bool,
) -> Result<Option<LocalRun>, Refusal> {
    loop {
        if let Ok(found) = runs.next_within(bytes_max, steps) {
            return Ok(found);
        }
        if is_gone() {
            return Err(Refusal::new(Status::Io, "the client is gone"));
        }
        weft_reactor::yield_now().await;
        *steps = STEPS_PER_TURN;
    }
}

/// A part of a share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unit {
    /// Position in the share.
    pub share_offset: u64,
    /// Length.
    pub bytes: u64,
    /// Where it is in the data file, in share order.
    pub pieces: Vec<Extent>,
}

impl Unit {
    /// Cuts the first `bytes` off, at most all of them.
    pub fn split_front(&mut self, bytes: u64) -> Unit {
        if bytes >= self.bytes {
            return std::mem::take(self);
        }
        let mut front = Unit { share_offset: self.share_offset, bytes, pieces: Vec::new() };
        let (mut left, mut whole) = (bytes, 0);
        for piece in &mut self.pieces {
            if piece.bytes <= left {
                front.pieces.push(*piece);
                left -= piece.bytes;
                whole += 1;
                continue;
            }
            if left > 0 {
                front.pieces.push(Extent { offset: piece.offset, bytes: left });
                piece.offset += left;
                piece.bytes -= left;
            }
            break;
        }
        self.pieces.drain(..whole);
        self.share_offset += bytes;
        self.bytes -= bytes;
        front
    }

    /// Whether its pieces are long enough, on average, to be moved one by one.
    pub fn has_long_pieces(&self, bytes_min: u64) -> bool {
        self.bytes >= bytes_min * self.pieces.len() as u64
    }
}

/// The units of the first `end` bytes of a share, one after the other.
pub(super) struct Units<'a> {
    runs: LocalRuns<'a>,
    share_offset: u64,
    end: u64,
}

impl<'a> Units<'a> {
    pub fn new(layout: &Layout, slot: u16, regions: &'a Regions, end: u64) -> Units<'a> {
        Units { runs: local_runs(layout, slot, regions), share_offset: 0, end }
    }

    /// The next one, of at most `bytes_max`; `None` at the end.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn next_at_most(
        &mut self,
        bytes_max: u64,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Option<Unit>, Refusal> {
        let bytes_max = bytes_max.min(self.end - self.share_offset);
        let mut unit = Unit { share_offset: self.share_offset, ..Unit::default() };
        let mut steps = STEPS_PER_TURN;
        while unit.bytes < bytes_max && unit.pieces.len() < PIECES_MAX {
            let run = next_run(&mut self.runs, bytes_max - unit.bytes, &mut steps, is_gone).await?;
            let Some(run) = run else { break };
            unit.pieces.push(Extent { offset: run.local_offset, bytes: run.bytes });
            unit.bytes += run.bytes;
        }
        self.share_offset += unit.bytes;
        Ok((unit.bytes > 0).then_some(unit))
    }
}

/// A share as a whole, seen with a data file of `local_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// All of it.
    pub bytes: u64,
    /// Up to the last byte that lies below the end of the data file.
    pub filled_bytes: u64,
}

impl Share {
    /// Counted, where all of the share lies below the end of the data file, or none of it does; else by one pass over the
    /// regions, in turns with the other tasks of the thread where they have many pieces.
    ///
    /// # Errors
    /// More pieces or bytes than one request may have; or the client is gone.
    pub async fn of(
        layout: &Layout,
        slot: u16,
        regions: &Regions,
        local_bytes: u64,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Share, Refusal> {
        let pieces = regions.piece_count();
        if pieces > REQUEST_PIECES_MAX {
            let text =
                format!("{pieces} pieces of the file in one request, at most {REQUEST_PIECES_MAX}; cut it");
            return Err(Refusal::new(Status::TooBig, text));
        }
        let whole = regions.span().is_some_and(|span| layout.local_size(slot, span.end()) <= local_bytes);
        if pieces <= COUNTED_PIECES_MAX && (whole || local_bytes == 0) {
            let bytes = share_bytes(layout, slot, regions);
            check_bytes(bytes)?;
            return Ok(Share { bytes, filled_bytes: if whole { bytes } else { 0 } });
        }
        let mut share = Share { bytes: 0, filled_bytes: 0 };
        let (mut runs, mut steps) = (local_runs(layout, slot, regions), STEPS_PER_TURN);
        while let Some(run) = next_run(&mut runs, u64::MAX, &mut steps, is_gone).await? {
            share.bytes += run.bytes;
            check_bytes(share.bytes)?;
            if run.local_offset < local_bytes {
                share.filled_bytes = run.share_offset + run.bytes.min(local_bytes - run.local_offset);
            }
        }
        Ok(share)
    }
}

fn check_bytes(bytes: u64) -> Result<(), Refusal> {
    if bytes <= SHARE_BYTES_MAX {
        return Ok(());
    }
    let text = format!("more than {SHARE_BYTES_MAX} bytes on one server in one request; cut it");
    Err(Refusal::new(Status::TooBig, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_layout::Level;
    use weft_reactor::{Reactor, ReactorOptions};

    #[test]
    fn filled_ends_with_the_last_byte_that_the_file_has() {
        let layout = Layout::new(4096, 0, 1, 1).unwrap();
        let list = Regions::list([Extent::new(5000, 100), Extent::new(0, 50), Extent::new(4000, 500)]);
        let filled = |local_bytes| share(&layout, 0, &list, local_bytes).unwrap().filled_bytes;
        assert_eq!(filled(0), 0);
        assert_eq!(filled(10), 110);
        assert_eq!(filled(4100), 250);
        assert_eq!(filled(9000), 650);
    }

    #[test]
    fn a_request_that_is_too_big_is_refused_before_it_is_walked_through() {
        let layout = Layout::new(4096, 0, 2, 2).unwrap();
        let everywhere = Regions::strided(0, 1, vec![Level { count: 1 << 40, stride_bytes: 2 }]);
        let elsewhere = Regions::strided(4096, 1, vec![Level { count: 1 << 40, stride_bytes: 8192 }]);
        for regions in [everywhere, elsewhere, Regions::contiguous(0, 1 << 40)] {
            assert_eq!(share(&layout, 0, &regions, 0).unwrap_err().status, Status::TooBig);
        }
    }

    fn share(layout: &Layout, slot: u16, regions: &Regions, local_bytes: u64) -> Result<Share, Refusal> {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(Share::of(layout, slot, regions, local_bytes, &|| false))
    }

    /// Half a million pieces, none of them on this server.
    fn elsewhere() -> Regions {
        let levels =
            vec![Level { count: 1 << 10, stride_bytes: 0 }, Level { count: 1 << 9, stride_bytes: 8192 }];
        Regions::strided(4096, 1, levels)
    }

    #[test]
    fn others_get_their_turn_while_a_share_is_looked_for() {
        let layout = Layout::new(4096, 0, 2, 2).unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let turns = std::rc::Rc::new(std::cell::Cell::new(0u64));
            let counter = turns.clone();
            let other = weft_reactor::spawn(async move {
                loop {
                    counter.set(counter.get() + 1);
                    weft_reactor::yield_now().await;
                }
            });
            let regions = elsewhere();
            let share = Share::of(&layout, 0, &regions, 5000, &|| false).await.unwrap();
            assert_eq!(share, Share { bytes: 0, filled_bytes: 0 });
            let pieces = regions.piece_count();
            assert!(
                turns.get() >= pieces / u64::from(STEPS_PER_TURN) / 2,
                "{turns:?} turns in {pieces} pieces"
            );
            let before = turns.get();
            let mut units = Units::new(&layout, 0, &regions, 100);
            assert_eq!(units.next_at_most(100, &|| false).await, Ok(None));
            assert!(turns.get() > before + 100);
            other.cancel();
            assert_eq!(Share::of(&layout, 0, &regions, 5000, &|| true).await.unwrap_err().status, Status::Io);
        });
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn units_hold_the_runs_in_order(
            extents in proptest::collection::vec((0u64..100_000, 1u64..9_000), 1..20),
            steps in proptest::collection::vec(1u64..8_000, 1..20),
            slot in 0u16..3,
        ) {
            let layout = Layout::new(4096, 1, 3, 3).unwrap();
            let regions = Regions::list(extents.iter().map(|(at, bytes)| Extent::new(*at, *bytes)).collect::<Vec<_>>());
            let bytes_of = |pieces: &[Extent]| {
                pieces.iter().flat_map(|piece| piece.offset..piece.offset + piece.bytes).collect::<Vec<_>>()
            };
            let whole: Vec<Extent> =
                local_runs(&layout, slot, &regions).map(|run| Extent::new(run.local_offset, run.bytes)).collect();
            let end = share(&layout, slot, &regions, u64::MAX).unwrap().bytes;
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            let mut units = Units::new(&layout, slot, &regions, end);
            let (mut seen, mut steps) = (Vec::new(), steps.iter().cycle());
            while let Some(mut unit) = reactor.run(units.next_at_most(20_000, &|| false)).unwrap() {
                while unit.bytes > 0 {
                    let front = unit.split_front(*steps.next().unwrap());
                    prop_assert_eq!(front.share_offset, seen.len() as u64);
                    seen.extend(bytes_of(&front.pieces));
                    prop_assert_eq!(front.share_offset + front.bytes, seen.len() as u64);
                }
            }
            prop_assert_eq!(seen, bytes_of(&whole));
        }
    }
}
