//! The part of an aggregator: it knows which bytes of its areas belong to whom, and accesses the file.

use weft_layout::{Extent, Regions};

use crate::cover::{Cover, Sides, sides};
use crate::memory::{Direction, Memory};
use crate::plan::Plan;
use crate::store::Store;
use crate::walk::{AreaRun, ShareWalk};

/// The areas of an aggregator, and what all processes have there.
pub(crate) struct Aggregator<'a, S: Store> {
    plan: &'a Plan,
    /// Its slots, each with the bytes that are wanted in the current round.
    slots: Vec<(u16, Cover)>,
    /// The start of its window.
    window: *mut u8,
    /// What each process has, by rank.
    sources: Vec<Source<'a>>,
    /// Accesses that have begun.
    pending: Vec<Access<S::Pending>>,
    /// How the last accesses ended, since the last look.
    pub ended: Ended<S::Error>,
}

/// How the aggregator is told the bytes of a process.
pub(crate) enum Told<'a> {
    /// It has none.
    Nothing,
    /// Its regions, and whether they are ascending.
    Regions(&'a Regions, bool),
    /// Round by round.
    Lists,
}

/// What the aggregator knows of the bytes of a process.
enum Source<'a> {
    Nothing,
    /// Its regions, walked twice: to know what to access, and to move messages.
    Regions {
        cover: Vec<ShareWalk<'a>>,
        moves: Vec<ShareWalk<'a>>,
    },
    /// Lists of rounds, oldest first.
    Lists(Vec<(u64, Vec<Vec<AreaRun>>)>),
}

struct Access<T> {
    pending: T,
    bytes: u64,
    file: Regions,
}

/// What accesses said at their end.
#[derive(Debug)]
pub(crate) struct Ended<E> {
    /// The first error.
    pub error: Option<E>,
    /// Whether a read was short: it reached the end of the file.
    pub is_short: bool,
    /// The end of the last byte that was below the end of the file.
    pub data_end: u64,
}

impl<'a, S: Store> Aggregator<'a, S> {
    /// The `index`-th aggregator, whose window is at `window`; `told`: of each process, by rank.
    pub fn new(
        plan: &'a Plan,
        index: usize,
        window: *mut u8,
        told: impl Iterator<Item = Told<'a>>,
    ) -> Aggregator<'a, S> {
        let empty = Cover::new(plan.rounds.area_bytes());
        let slots: Vec<(u16, Cover)> = plan.slots_of(index).map(|slot| (slot, empty.clone())).collect();
        let source = |told: Told<'a>| match told {
            Told::Nothing => Source::Nothing,
            Told::Regions(regions, ascends) => {
                let walk = |(slot, _): &(u16, Cover)| {
                    ShareWalk::new(&plan.layout, &plan.rounds, *slot, regions, ascends)
                };
                let walks: Vec<ShareWalk<'a>> = slots.iter().map(walk).collect();
                Source::Regions { cover: walks.clone(), moves: walks }
            }
            Told::Lists => Source::Lists(Vec::new()),
        };
        let sources = told.map(source).collect();
        let ended = Ended { error: None, is_short: false, data_end: 0 };
        Aggregator { plan, slots, window, sources, pending: Vec::new(), ended }
    }

    /// The bytes of each slot's area that are used in `round`.
    pub fn rooms(&self, round: u64) -> Vec<u64> {
        let range = |slot| self.plan.rounds.local_range(&self.plan.layout, slot, round);
        self.slots.iter().map(|(slot, _)| range(*slot).bytes).collect()
    }

    /// Notes the lists of process `rank` for `round`.
    pub fn take_lists(&mut self, rank: u32, round: u64, lists: Vec<Vec<AreaRun>>) {
        if let Source::Lists(rounds) = &mut self.sources[rank as usize] {
            rounds.push((round, lists));
        }
    }

    /// Adds the bytes of process `rank` in `round` to those that are wanted.
    pub fn want(&mut self, rank: u32, round: u64) {
        match &mut self.sources[rank as usize] {
            Source::Nothing => {}
            Source::Regions { cover, .. } => {
                for (walk, (_, wanted)) in cover.iter_mut().zip(&mut self.slots) {
                    walk.round(round, |run| wanted.add(&run));
                }
            }
            Source::Lists(rounds) => {
                let lists = rounds.iter().find(|(of, _)| *of == round);
                for (runs, (_, wanted)) in lists.iter().flat_map(|(_, lists)| lists).zip(&mut self.slots) {
                    runs.iter().for_each(|run| wanted.add(run));
                }
            }
        }
    }

    /// Wants all bytes of `span` of the file that are in the areas in `round`.
    pub fn want_all(&mut self, span: Extent, round: u64) {
        for (slot, wanted) in &mut self.slots {
            let range = self.plan.rounds.local_range(&self.plan.layout, *slot, round);
            let local = |offset| self.plan.layout.local_size(*slot, offset);
            let begin = local(span.offset).max(range.offset);
            let end = local(span.end()).min(range.end());
            if begin < end {
                let area_offset = begin - range.offset;
                let bytes = end - begin;
                wanted.add(&AreaRun { area_offset, bytes, stride_bytes: 0, count: 1, stream_offset: 0 });
            }
        }
    }

    /// Number of bytes of process `rank` in `round`, which were not moved yet.
    pub fn bytes_of(&self, rank: u32, round: u64) -> u64 {
        match &self.sources[rank as usize] {
            Source::Nothing => 0,
            Source::Regions { moves, .. } => moves.iter().map(|walk| walk.bytes_in(round)).sum(),
            Source::Lists(rounds) => {
                let lists = rounds.iter().find(|(of, _)| *of == round);
                let runs = lists.iter().flat_map(|(_, lists)| lists.iter().flatten());
                runs.map(AreaRun::total_bytes).sum()
            }
        }
    }

    /// Moves the bytes of process `rank` in `round` between a message and the areas of `buffer`.
    ///
    /// # Safety
    /// The message has room for [`bytes_of`](Aggregator::bytes_of), and nobody else touches these bytes of
    /// the areas meanwhile.
    pub unsafe fn move_message(
        &mut self,
        direction: Direction,
        rank: u32,
        round: u64,
        buffer: usize,
        message: *mut u8,
    ) {
        let mut message = Memory::Packed { next: message };
        let window = self.window;
        let area = |index: usize| window.wrapping_add(self.plan.area_at(buffer, index));
        match &mut self.sources[rank as usize] {
            Source::Nothing => {}
            Source::Regions { moves, .. } => {
                for (index, walk) in moves.iter_mut().enumerate() {
                    let area = area(index);
                    // SAFETY: runs of walks are within the area; the caller's promise for the message.
                    walk.round(round, |run| unsafe { message.transfer(direction, area, &run) });
                }
            }
            Source::Lists(rounds) => {
                let lists = rounds.iter().find(|(of, _)| *of == round);
                for (index, runs) in lists.iter().flat_map(|(_, lists)| lists).enumerate() {
                    for run in runs {
                        // SAFETY: the decoder checked that runs are within the area; the caller's promise.
                        unsafe { message.transfer(direction, area(index), run) };
                    }
                }
            }
        }
    }

    /// Forgets the lists of `round` and earlier ones.
    pub fn forget_lists(&mut self, round: u64) {
        for source in &mut self.sources {
            if let Source::Lists(rounds) = source {
                rounds.retain(|(of, _)| *of > round);
            }
        }
    }

    /// Begins to access what is wanted in `round`, one access for each slot, and wants nothing afterwards.
    /// Gaps of up to `gap_bytes_max` are accessed too. Begins nothing after an error.
    ///
    /// # Safety
    /// Nobody else uses the areas of `buffer` until the accesses were [waited for](Aggregator::wait); for a
    /// write, others may read them.
    pub unsafe fn start(
        &mut self,
        store: &mut S,
        direction: Direction,
        round: u64,
        buffer: usize,
        gap_bytes_max: u64,
    ) {
        for (index, (slot, wanted)) in self.slots.iter_mut().enumerate() {
            let sides = sides(&self.plan.rounds, *slot, round, wanted, gap_bytes_max);
            wanted.clear();
            if sides.bytes == 0 || self.ended.error.is_some() {
                continue;
            }
            let area = self.window.wrapping_add(self.plan.area_at(buffer, index));
            let Sides { memory, file, bytes } = sides;
            let kept = file.clone();
            // SAFETY: the caller's promise.
            let begun = unsafe {
                match direction {
                    Direction::Write => store.start_write(area, memory, file),
                    Direction::Read => store.start_read(area, memory, file),
                }
            };
            match begun {
                Ok(pending) => self.pending.push(Access { pending, bytes, file: kept }),
                Err(error) => self.ended.error = Some(error),
            }
        }
    }

    /// Waits for all accesses that have begun.
    pub fn wait(&mut self, store: &mut S) {
        for access in self.pending.drain(..) {
            match store.wait(access.pending) {
                Ok(bytes) => self.ended.note(bytes, access.bytes, &access.file),
                Err(error) => {
                    self.ended.error.get_or_insert(error);
                }
            }
        }
    }

    /// Lets the accesses that have begun make progress.
    pub fn progress(&mut self, store: &mut S) {
        for access in &mut self.pending {
            store.progress(&mut access.pending);
        }
    }
}

impl<E> Ended<E> {
    fn note(&mut self, bytes: u64, wanted_bytes: u64, file: &Regions) {
        self.is_short |= bytes < wanted_bytes;
        let last = bytes.checked_sub(1).and_then(|last| file.extents_from(last).next_at_most(1));
        self.data_end = self.data_end.max(last.map_or(0, |last| last.end()));
    }
}
