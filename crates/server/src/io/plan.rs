//! Which way the pieces of a unit are accessed: what the client asked for, or what the cost model expects to be cheapest for
//! this unit in the state that the data file is in.
//!
//! ```text
//!   pieces of the unit ─► all in memory, at addresses?  ─┐
//!                      ─► how much is in the page cache? ─┼─► shape ─► model ─► each | sieve | mapped
//!                      ─► groups that sieving would read ─┘
//! ```

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use weft_layout::Extent;
use weft_storage::cost::{Choice, Corrections, CostModel, Group, Method, WindowShape, choose, sieve_groups};
use weft_storage::{DataFile, Disk, MappedPieces};
use weft_wire::messages::io_flags;

/// Longest extent that sieving accesses at once.
pub(super) const SIEVE_BYTES_MAX: u64 = 512 << 10;
/// Pieces longer than this on average are not copied from and to mapped pages, unless that was asked for: a system call for
/// each costs less than entering its pages.
const MAPPED_PIECE_BYTES_MAX: u64 = 128 << 10;
/// Up to this length all of a range is looked up in the page cache; of longer ones some pieces are.
const LOOK_BYTES_MAX: u64 = 4 << 20;
const LOOK_PIECES: usize = 8;

/// How a unit is accessed.
pub(super) struct Plan {
    pub method: Method,
    /// What sieving accesses; empty where the method is another.
    pub groups: Vec<Group>,
    /// The pieces at addresses, where the method is `Mapped`.
    pub mapped: Option<MappedPieces>,
    /// Whether something has to come from a device first.
    pub waits: bool,
    /// What the choice was made from; `None` where there was none to make.
    pub chosen: Option<(WindowShape, Choice)>,
}

impl Plan {
    fn simple(method: Method) -> Plan {
        Plan { method, groups: Vec::new(), mapped: None, waits: true, chosen: None }
    }
}

/// What does not change from unit to unit of a request.
pub(super) struct Planner<'a> {
    pub model: Arc<CostModel>,
    pub corrections: &'a RefCell<Corrections>,
    pub write: bool,
    pub sync: bool,
    pub wish: Option<Method>,
    /// A unit's pages were not in memory: those of the next ones are not looked for, which would cost each of them as much again.
    pub not_in_memory: Cell<bool>,
}

/// The flag by which a request asks for a way of access, and a reply tells that it was used.
pub(super) fn flag_of(method: Method) -> u32 {
    match method {
        Method::Each => io_flags::ACCESS_EACH,
        Method::Sieve => io_flags::ACCESS_SIEVE,
        Method::Mapped => io_flags::ACCESS_MAPPED,
    }
}

/// The way of access that a request's flags ask for.
pub(super) fn wish(flags: u32) -> Option<Method> {
    Method::ALL.into_iter().find(|method| flags & io_flags::ACCESS == flag_of(*method))
}

impl Planner<'_> {
    /// The plan for `pieces` of a data file of `local_bytes`.
    pub fn plan<D: Disk>(&self, file: &DataFile<D>, pieces: &[Extent], local_bytes: u64) -> Plan {
        if pieces.len() < 2 || self.wish == Some(Method::Each) {
            return Plan::simple(Method::Each);
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        let span = span(pieces);
        let mappable = match self.wish {
            Some(wish) => wish == Method::Mapped,
            None => bytes <= MAPPED_PIECE_BYTES_MAX * pieces.len() as u64,
        };
        // A write beyond the end would not make the file longer.
        let within = !(self.write && span.end() > local_bytes);
        let mapped = if mappable && within { self.mapped(file, pieces) } else { None };
        let cached_fraction = if mapped.is_some() { 1.0 } else { cached_fraction(file, pieces, span) };
        let waits = cached_fraction < 1.0;
        let groups = match (self.wish, &mapped) {
            (Some(Method::Mapped), _) => Vec::new(),
            (Some(_), _) => sieve_groups(pieces.iter().copied(), SIEVE_BYTES_MAX, SIEVE_BYTES_MAX),
            (None, _) => {
                let gap_bytes_max = self.model.gap_bytes_max(self.write, cached_fraction >= 0.5);
                sieve_groups(pieces.iter().copied(), gap_bytes_max, SIEVE_BYTES_MAX)
            }
        };
        if let Some(wish) = self.wish {
            let method = if wish == Method::Mapped && mapped.is_none() { Method::Each } else { wish };
            return Plan { method, groups, mapped, waits, chosen: None };
        }
        let shape = WindowShape {
            sync: self.sync,
            cached_fraction,
            mappable: mapped.is_some(),
            pages_to_enter: mapped.as_ref().map_or(0, MappedPieces::pages_to_enter),
            ..WindowShape::of(self.write, pieces, &groups, local_bytes)
        };
        let choice = choose(&self.model, &self.corrections.borrow(), &shape);
        let mapped = mapped.filter(|_| choice.method == Method::Mapped);
        Plan { method: choice.method, groups, mapped, waits, chosen: Some((shape, choice)) }
    }

    /// The pieces at addresses, if all of them are in memory and those of units before were.
    pub fn mapped<D: Disk>(&self, file: &DataFile<D>, pieces: &[Extent]) -> Option<MappedPieces> {
        if self.not_in_memory.get() && self.wish.is_none() {
            return None;
        }
        let mapped = file.mapped(pieces);
        self.not_in_memory.set(mapped.is_none());
        mapped
    }

    /// Notes what a unit took. Returns that beside what it was expected to take, where the model chose.
    pub fn observe(&self, plan: &Plan, took: Duration) -> Option<Outcome> {
        let (shape, choice) = plan.chosen.as_ref()?;
        let prediction = choice.prediction(plan.method)?;
        let (cached, took_ns) = (shape.is_cached(), took.as_nanos() as f64);
        let mut corrections = self.corrections.borrow_mut();
        let expected_ns = prediction.cost_ns * corrections.factor(plan.method, self.write, cached);
        corrections.observe(plan.method, self.write, cached, prediction.cost_ns, took_ns);
        Some(Outcome { method: plan.method, expected_ns: expected_ns as u64, took_ns: took_ns as u64 })
    }
}

/// What a unit took, and what it was expected to take by the method that the model chose for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub method: Method,
    pub expected_ns: u64,
    pub took_ns: u64,
}

/// The smallest extent around pieces.
pub(super) fn span(pieces: &[Extent]) -> Extent {
    let begin = pieces.iter().map(|piece| piece.offset).min().unwrap_or(0);
    let end = pieces.iter().map(Extent::end).max().unwrap_or(0);
    Extent::new(begin, end - begin)
}

/// How much of the pieces is in the page cache, about.
fn cached_fraction<D: Disk>(file: &DataFile<D>, pieces: &[Extent], span: Extent) -> f64 {
    if span.bytes <= LOOK_BYTES_MAX {
        if file.resident(span) {
            return 1.0;
        }
        let cached_bytes = file.cached_bytes(span).unwrap_or(0);
        return (cached_bytes as f64 / span.bytes as f64).min(1.0);
    }
    let step = pieces.len().div_ceil(LOOK_PIECES);
    let looked_at = pieces.iter().step_by(step);
    let cached = looked_at.clone().filter(|piece| file.resident(**piece)).count();
    cached as f64 / looked_at.count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_reactor::{Reactor, ReactorOptions};
    use weft_storage::{DataFiles, DiskEngine, Identity, LocalDisk, MemDisk};

    fn planner(corrections: &RefCell<Corrections>, write: bool, wish: Option<Method>) -> Planner<'_> {
        Planner {
            model: Arc::default(),
            corrections,
            write,
            sync: false,
            wish,
            not_in_memory: Cell::new(false),
        }
    }

    fn strided(count: u64, bytes: u64, stride: u64) -> Vec<Extent> {
        (0..count).map(|at| Extent::new(at * stride, bytes)).collect()
    }

    #[test]
    fn one_piece_and_a_wish_need_no_choice() {
        let files = DataFiles::new(MemDisk::new(1 << 20));
        let file = files.create(1).unwrap();
        let corrections = RefCell::default();
        let method =
            |wish, pieces: &[Extent]| planner(&corrections, false, wish).plan(&file, pieces, 0).method;
        assert_eq!(method(None, &strided(1, 10, 0)), Method::Each);
        assert_eq!(method(Some(Method::Sieve), &strided(2, 10, 100)), Method::Sieve);
        assert_eq!(
            method(Some(Method::Mapped), &strided(2, 10, 100)),
            Method::Each,
            "nothing is mapped here"
        );
        assert_eq!(method(Some(Method::Each), &strided(1000, 10, 100)), Method::Each);
    }

    #[test]
    fn small_cached_pieces_are_mapped_but_not_written_beyond_the_end() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let identity = Identity { cluster_id: [1; 16], server_id: 0 };
        weft_storage::Directory::format(directory.path(), &identity, &[2; 16]).unwrap();
        let files = DataFiles::new(LocalDisk::open(directory.path(), &identity, DiskEngine::Plain).unwrap());
        let file = files.create(1).unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            file.write(0, &vec![7; 1 << 20]).await.unwrap();
        });
        let corrections = RefCell::default();
        let plan =
            |write, pieces: &[Extent], local| planner(&corrections, write, None).plan(&file, pieces, local);
        let sparse = strided(200, 64, 5000);
        assert_eq!(plan(false, &sparse, 1 << 20).method, Method::Mapped);
        assert_eq!(plan(true, &sparse, 1 << 20).method, Method::Mapped);
        let beyond = strided(250, 64, 5000);
        assert_ne!(plan(true, &beyond, 1 << 20).method, Method::Mapped);
        assert!(!plan(true, &beyond, 1 << 20).waits);
    }
}
