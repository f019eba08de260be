//! How far predictions were from what accesses took.

use crate::choose::{Choice, Method};
use crate::memory::Direction;
use crate::summary::Totals;

/// Accesses of one class are expected to be off by the same factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(usize);

/// Mean bytes of a piece from which on the next class begins.
const PIECE_CLASSES: [u64; 5] = [16, 128, 1024, 8192, 65536];
/// Bytes of all processes, likewise.
const SIZE_CLASSES: [u64; 2] = [256 << 10, 16 << 20];
const CLASSES: usize = 2 * (PIECE_CLASSES.len() + 1) * (SIZE_CLASSES.len() + 1);

impl Class {
    pub fn of(totals: &Totals, direction: Direction) -> Class {
        let pieces = totals.pieces.max(totals.memory_pieces).max(1);
        let piece = PIECE_CLASSES.partition_point(|bytes| *bytes <= totals.bytes / pieces);
        let size = SIZE_CLASSES.partition_point(|bytes| *bytes <= totals.bytes);
        let writes = usize::from(direction == Direction::Write);
        Class((writes * (SIZE_CLASSES.len() + 1) + size) * (PIECE_CLASSES.len() + 1) + piece)
    }
}

/// The ratios of what accesses took to what was predicted, by method and kind of access.
///
/// All processes keep the same: they note times that are reduced over all of them ([`Totals::last_ns`]). A
/// ratio stays within 1/16 and 16. The better one of the first two times sets it, as the first one is often
/// that of a cold start; every later one moves it by a quarter of the distance. A method that was not measured
/// is taken to be off a little in the direction of those that were.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    ratios: [[Ratio; 4]; CLASSES],
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Ratio {
    /// The logarithm to base 2.
    log: f64,
    /// How often it was observed.
    times: u32,
}

impl Default for Learned {
    fn default() -> Learned {
        Learned::new()
    }
}

impl Learned {
    /// Greatest logarithm of a ratio.
    const BOUND: f64 = 4.0;
    /// Share of a later observation in the ratio.
    const GAIN: f64 = 0.25;
    /// Share of the others' ratios in that of a method that was not measured. If it were all, a wrong model
    /// would keep its favourite; if it were none, a slow machine would make every other method look good.
    const SHARED: f64 = 0.25;

    /// Nothing yet.
    pub fn new() -> Learned {
        Learned { ratios: [[Ratio::default(); 4]; CLASSES] }
    }

    /// Notes that the access of `choice` took `ns`: the longest time of any process, the same in all of them.
    pub fn observe(&mut self, choice: &Choice, ns: u64) {
        let Some(prediction) = choice.prediction(choice.method) else { return };
        let observed = (ns as f64 / prediction.model_ns).log2().clamp(-Self::BOUND, Self::BOUND);
        if !observed.is_finite() {
            return;
        }
        let ratio = &mut self.ratios[choice.class.0][choice.method as usize];
        ratio.log = match ratio.times {
            0 => observed,
            1 => ratio.log.min(observed),
            _ => ratio.log + (observed - ratio.log) * Self::GAIN,
        };
        ratio.times = ratio.times.saturating_add(1);
    }

    /// By what a prediction is to be multiplied.
    pub(crate) fn factor(&self, class: Class, method: Method) -> f64 {
        let ratios = &self.ratios[class.0];
        let known = || ratios.iter().filter(|ratio| ratio.times > 0);
        let mean = || known().map(|ratio| ratio.log).sum::<f64>() / known().count().max(1) as f64;
        let partly = || mean() * Self::SHARED;
        let own = Some(ratios[method as usize]).filter(|ratio| ratio.times > 0);
        own.map_or_else(partly, |ratio| ratio.log).exp2()
    }

    /// Whether a method was measured often enough.
    pub(crate) fn knows(&self, class: Class, method: Method) -> bool {
        self.ratios[class.0][method as usize].times > 1
    }
}
