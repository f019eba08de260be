//! What accesses cost here, and the choice of how a window of pieces is accessed: active data sieving with
//! a cost model (NC, section 5.1), made to know the page cache. No I/O, no clock.
//!
//! ```text
//!   a window of a share, in a data file      [aa]....[bb].[cc]..............................[dd]
//!
//!   each     one access per piece             aa      bb   cc                                dd
//!   sieve    one per group, and copies        aa....bb.cc                                    dd
//!   mapped   copies from or to mapped pages   aa      bb   cc    (no access at all)          dd
//! ```
//!
//! A gap is bridged iff passing over it costs less than one more access ([`CostModel::gap_bytes_max`]), so
//! `groups` lie between "all pieces" and "one big access". A write by sieving reads each group that has
//! gaps, changes it and writes it back under a lock.
//!
//! With NC's names, `N` pieces of `S = S_req / N` bytes in `G` groups of `D = S_ds / G` bytes, and
//! `cost(s) = O + s / B(s)` read off a measured [`Curve`]:
//!
//! ```text
//!   T_read  = N r(S)                    r, w: cost of an access, from the cached and the device curve
//!   T_write = N w(S)                    in proportion to what is cached
//!   T_dsr   = G r(D) + N copy(S)
//!   T_dsw   = G' (r(D') + O_lock) + N copy(S) + G w_cached(D)      G', D': groups with gaps only
//!             and for both writes, pages added to the file * new_page
//!   T_map   = N mapped(S) + pages to enter * page_fault
//! ```
//!
//! Several pieces in one page that is not cached wait for the device once: the first pays for it. What a
//! window cost is compared with what was predicted, and [`Corrections`] carry the ratio into the next choice.

use std::sync::{Arc, PoisonError, RwLock};

use weft_layout::Extent;

/// Page of the cache that the model reckons with, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Points of a curve at most.
pub const CURVE_POINTS_MAX: usize = 32;
/// No gap longer than this is bridged, whatever the model says, in bytes.
pub const GAP_BYTES_MAX: u64 = 256 << 10;

/// What an operation on `bytes` bytes costs in nanoseconds, for some sizes, and in between.
///
/// In NC's terms, with `cost(s) = O + s / B(s)`: [`Curve::overhead_ns`] is `O`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(u64, u64)>,
}

/// Why points are not a [`Curve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    /// Fewer than two points, or more than [`CURVE_POINTS_MAX`].
    #[error("a curve has 2 to {CURVE_POINTS_MAX} points, not {0}")]
    Count(usize),
    /// A size that is not above the one before.
    #[error("the size of point {0} does not rise")]
    Size(usize),
    /// A cost below that of a smaller size.
    #[error("the cost at point {0} falls")]
    Cost(usize),
}

impl Curve {
    /// The curve through `(bytes, ns)`, sizes rising, costs not falling.
    ///
    /// # Errors
    /// See [`CurveError`].
    pub fn new(points: Vec<(u64, u64)>) -> Result<Curve, CurveError> {
        if !(2..=CURVE_POINTS_MAX).contains(&points.len()) {
            return Err(CurveError::Count(points.len()));
        }
        for (at, pair) in points.windows(2).enumerate() {
            if pair[1].0 <= pair[0].0 {
                return Err(CurveError::Size(at + 1));
            }
            if pair[1].1 < pair[0].1 {
                return Err(CurveError::Cost(at + 1));
            }
        }
        Ok(Curve { points })
    }

    /// The curve near measured points: a cost that came out below that of a smaller size, which is noise, and
    /// those that it contradicts get the mean of all of them (isotonic regression by pooling).
    ///
    /// # Errors
    /// As [`Curve::new`], but for the costs.
    pub fn measured(points: Vec<(u64, u64)>) -> Result<Curve, CurveError> {
        // Neighbours with the same cost: (their sum, how many).
        let mut pools: Vec<(u64, u64)> = Vec::new();
        for (_, ns) in &points {
            pools.push((*ns, 1));
            while let [.., (low, low_count), (high, high_count)] = pools[..]
                && low * high_count > high * low_count
            {
                pools.pop();
                *pools.last_mut().expect("there were two") = (low + high, low_count + high_count);
            }
        }
        let costs = pools.iter().flat_map(|(sum, count)| (0..*count).map(move |_| sum / count));
        Curve::new(points.iter().map(|(bytes, _)| *bytes).zip(costs).collect())
    }

    /// The points, sizes rising.
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }

    /// The cost for `bytes` in nanoseconds: linear between points, like the first point below it, with the
    /// last slope beyond the last.
    pub fn cost_ns(&self, bytes: u64) -> f64 {
        let points = &self.points;
        if bytes <= points[0].0 {
            return points[0].1 as f64;
        }
        let above = points.partition_point(|(size, _)| *size < bytes).min(points.len() - 1);
        let ((low, low_ns), (high, high_ns)) = (points[above - 1], points[above]);
        let slope = (high_ns - low_ns) as f64 / (high - low) as f64;
        low_ns as f64 + slope * (bytes - low) as f64
    }

    /// `O`: what an access costs however small it is, in nanoseconds.
    pub fn overhead_ns(&self) -> f64 {
        self.points[0].1 as f64
    }

    /// What one more byte costs in a long access, in nanoseconds.
    pub fn ns_per_byte(&self) -> f64 {
        const SHORT: u64 = 16 << 10;
        const LONG: u64 = 256 << 10;
        (self.cost_ns(LONG) - self.cost_ns(SHORT)) / (LONG - SHORT) as f64
    }
}

/// What a server's accesses cost, measured in its own directory. All curves are per access or per piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostModel {
    /// One `preadv` from the page cache.
    pub read_cached: Curve,
    /// One read of what is not cached, about 32 of them under way at once, until it is with the reader.
    pub read_device: Curve,
    /// One `pwritev` onto cached pages.
    pub write_cached: Curve,
    /// One `pwritev` onto pages that are not cached, where a page written in part is read first.
    pub write_device: Curve,
    /// One piece copied within memory, as one of many that are gathered or scattered.
    pub copy: Curve,
    /// One piece copied out of mapped pages that are entered already.
    pub mapped_read: Curve,
    /// One piece copied into mapped pages that are entered already.
    pub mapped_write: Curve,
    /// Making this many bytes, just written, durable.
    pub sync: Curve,
    /// Entering one page of a mapping to read it, as one of many pages side by side, in nanoseconds.
    pub page_fault_ns: u64,
    /// The same to write it.
    pub page_fault_write_ns: u64,
    /// What a page costs that a write adds to a file, beyond the write, in nanoseconds.
    pub new_page_ns: u64,
    /// Taking and leaving the lock of a range, in nanoseconds.
    pub lock_ns: u64,
    /// When it was measured, seconds since 1970; 0: never, these are defaults.
    pub measured_s: i64,
}

impl Default for CostModel {
    /// What accesses cost in a small virtual machine with a virtual disk, about: good until measured.
    fn default() -> CostModel {
        let curve = |points: &[(u64, u64)]| Curve::new(points.to_vec()).expect("rising points");
        CostModel {
            read_cached: curve(&[(64, 480), (4 << 10, 900), (64 << 10, 4_000), (1 << 20, 45_000)]),
            read_device: curve(&[
                (64, 120_000),
                (64 << 10, 125_000),
                (256 << 10, 310_000),
                (1 << 20, 1_200_000),
            ]),
            write_cached: curve(&[(64, 800), (4 << 10, 1_200), (64 << 10, 5_000), (1 << 20, 70_000)]),
            write_device: curve(&[
                (64, 65_000),
                (4 << 10, 120_000),
                (64 << 10, 135_000),
                (256 << 10, 170_000),
            ]),
            copy: curve(&[(64, 3), (512, 11), (4 << 10, 75), (64 << 10, 1_000), (1 << 20, 19_000)]),
            mapped_read: curve(&[(64, 5), (512, 12), (4 << 10, 85), (64 << 10, 1_100), (1 << 20, 19_500)]),
            mapped_write: curve(&[(64, 5), (512, 12), (4 << 10, 90), (64 << 10, 1_250), (1 << 20, 20_000)]),
            sync: curve(&[(4 << 10, 110_000), (256 << 10, 170_000), (1 << 20, 420_000)]),
            page_fault_ns: 150,
            page_fault_write_ns: 500,
            new_page_ns: 1_000,
            lock_ns: 50,
            measured_s: 0,
        }
    }
}

impl CostModel {
    /// The longest gap between two pieces that is better passed over than begun anew after, in bytes.
    /// In a write, what is passed over is read and written.
    pub fn gap_bytes_max(&self, write: bool, cached: bool) -> u64 {
        let read = if cached { &self.read_cached } else { &self.read_device };
        let (mut saved_ns, mut byte_ns) = (read.overhead_ns(), read.ns_per_byte());
        if write {
            saved_ns += self.write_cached.overhead_ns() + self.lock_ns as f64;
            byte_ns += self.write_cached.ns_per_byte();
        }
        // A slope of zero gives infinity, and `as` then the bound.
        ((saved_ns / byte_ns) as u64).min(GAP_BYTES_MAX)
    }
}

/// The model that a server goes by now; clones are the same. A new measurement replaces it while requests run.
#[derive(Debug, Clone, Default)]
pub struct CurrentModel {
    model: Arc<RwLock<Arc<CostModel>>>,
}

impl CurrentModel {
    /// To begin with `model`.
    pub fn new(model: CostModel) -> CurrentModel {
        CurrentModel { model: Arc::new(RwLock::new(Arc::new(model))) }
    }

    /// The model as it is now. Take it once per request.
    pub fn get(&self) -> Arc<CostModel> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests from now on go by `model`.
    pub fn replace(&self, model: CostModel) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
    }
}

/// Neighbouring pieces that one access covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// From the first piece's beginning to the last one's end.
    pub extent: Extent,
    /// How many pieces.
    pub pieces: u32,
    /// Their bytes; what is left of the extent is gaps.
    pub wanted_bytes: u64,
}

impl Group {
    /// Whether something lies between its pieces, so that it must be read before it is written.
    pub fn has_gaps(&self) -> bool {
        self.wanted_bytes < self.extent.bytes
    }
}

/// Groups pieces for sieving, in the order given: a group goes on while the next piece begins at its end or
/// at most `gap_bytes_max` behind it, and it stays within `group_bytes_max`. A piece before the group's end
/// (the list does not ascend, or overlaps) begins a new group; one longer than a group may be is one of its own.
pub fn sieve_groups(
    pieces: impl IntoIterator<Item = Extent>,
    gap_bytes_max: u64,
    group_bytes_max: u64,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for piece in pieces {
        if let Some(group) = groups.last_mut() {
            let end = group.extent.offset + group.extent.bytes;
            let near = piece.offset.checked_sub(end).is_some_and(|gap| gap <= gap_bytes_max);
            let joined_bytes = (piece.offset + piece.bytes).wrapping_sub(group.extent.offset);
            if near && joined_bytes <= group_bytes_max && group.pieces < u32::MAX {
                group.extent.bytes = joined_bytes;
                group.pieces += 1;
                group.wanted_bytes += piece.bytes;
                continue;
            }
        }
        groups.push(Group { extent: piece, pieces: 1, wanted_bytes: piece.bytes });
    }
    groups
}

/// A way to access the pieces of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// One access per piece.
    Each,
    /// One access per group of pieces, and copies; for a write read, modify, write.
    Sieve,
    /// Copies from or to mapped pages of the data file.
    Mapped,
}

impl Method {
    /// All, the simplest first; the order of [`Choice::predictions`].
    pub const ALL: [Method; 3] = [Method::Each, Method::Sieve, Method::Mapped];
}

/// What the model has to know of a window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WindowShape {
    /// Whether it is written.
    pub write: bool,
    /// Whether what is written has to be durable when the request ends.
    pub sync: bool,
    /// Pieces, `N`.
    pub pieces: u64,
    /// Their bytes, `S_req`.
    pub wanted_bytes: u64,
    /// Groups of pieces that sieving would access, `G`.
    pub groups: u64,
    /// Bytes of all groups, gaps and all, `S_ds`.
    pub group_bytes: u64,
    /// Groups with gaps.
    pub gap_groups: u64,
    /// Their bytes, gaps and all.
    pub gap_group_bytes: u64,
    /// Pages that the pieces touch.
    pub pages: u64,
    /// How much of what the pieces touch is in the page cache, 0 to 1. What lies beyond the end of the data
    /// file needs no device either, and counts as cached.
    pub cached_fraction: f64,
    /// How much of the window lies beyond the end of the data file, 0 to 1: sieving does not read that.
    pub beyond_end_fraction: f64,
    /// Whether the pieces can be had from mapped pages.
    pub mappable: bool,
    /// Pages of the mapping that would have to be entered first.
    pub pages_to_enter: u64,
}

impl WindowShape {
    /// The shape of a window of `pieces` that fall into `groups`, in a data file of `local_bytes`, as if all
    /// of it were cached and nothing mapped: the caller sets what it knows of that.
    pub fn of(write: bool, pieces: &[Extent], groups: &[Group], local_bytes: u64) -> WindowShape {
        let mut shape = WindowShape {
            write,
            pieces: pieces.len() as u64,
            groups: groups.len() as u64,
            cached_fraction: 1.0,
            ..WindowShape::default()
        };
        let (mut next_page, mut beyond_bytes) = (0, 0);
        for piece in pieces {
            let end = piece.offset + piece.bytes;
            shape.wanted_bytes += piece.bytes;
            beyond_bytes += end.saturating_sub(local_bytes).min(piece.bytes);
            let (first_page, end_page) = (piece.offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            let already_counted = first_page + 1 == next_page;
            shape.pages += (end_page - first_page).saturating_sub(u64::from(already_counted));
            next_page = end_page;
        }
        for group in groups {
            shape.group_bytes += group.extent.bytes;
            if group.has_gaps() {
                shape.gap_groups += 1;
                shape.gap_group_bytes += group.extent.bytes;
            }
        }
        shape.beyond_end_fraction = beyond_bytes as f64 / shape.wanted_bytes.max(1) as f64;
        shape
    }

    /// Whether it counts as cached when costs are compared with predictions.
    pub fn is_cached(&self) -> bool {
        self.cached_fraction >= 0.5
    }
}

/// What a method is expected to cost for a window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prediction {
    /// Time until the window is moved, in nanoseconds.
    pub cost_ns: f64,
    /// What it adds to the sync at the end of the request, in nanoseconds; 0 unless that was asked for.
    pub sync_ns: f64,
    /// Accesses to the data file.
    pub accesses: u64,
    /// Bytes that they read and write.
    pub accessed_bytes: u64,
}

/// The method for a window, with what was expected of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The cheapest.
    pub method: Method,
    /// By the model alone, without corrections, in the order of [`Method::ALL`]; `None` where it cannot be used.
    pub predictions: [Option<Prediction>; 3],
}

impl Choice {
    /// What was expected of `method`.
    pub fn prediction(&self, method: Method) -> Option<Prediction> {
        self.predictions[method as usize]
    }
}

/// The cheapest way to access a window; the simplest of those that cost the same.
pub fn choose(model: &CostModel, corrections: &Corrections, shape: &WindowShape) -> Choice {
    let predictions = predict(model, shape);
    let mut best = (Method::Each, f64::INFINITY);
    for method in Method::ALL {
        let Some(prediction) = predictions[method as usize] else { continue };
        let factor = corrections.factor(method, shape.write, shape.is_cached());
        let cost_ns = prediction.cost_ns * factor + prediction.sync_ns;
        if cost_ns < best.1 {
            best = (method, cost_ns);
        }
    }
    Choice { method: best.0, predictions }
}

/// What every method is expected to cost, in the order of [`Method::ALL`]; a few multiplications.
pub fn predict(model: &CostModel, shape: &WindowShape) -> [Option<Prediction>; 3] {
    let costs = Costs { model, shape, cached: shape.cached_fraction.clamp(0.0, 1.0) };
    [Some(costs.each()), Some(costs.sieve()), shape.mappable.then(|| costs.mapped())]
}

struct Costs<'a> {
    model: &'a CostModel,
    shape: &'a WindowShape,
    cached: f64,
}

impl Costs<'_> {
    fn each(&self) -> Prediction {
        let shape = self.shape;
        let (cached, device) = match shape.write {
            false => (&self.model.read_cached, &self.model.read_device),
            true => (&self.model.write_cached, &self.model.write_device),
        };
        let piece_bytes = mean(shape.wanted_bytes, shape.pieces);
        Prediction {
            cost_ns: self.pieces_ns(cached, device, piece_bytes) + self.new_pages_ns(shape.pages),
            sync_ns: self.sync_ns(shape.pages * PAGE_BYTES),
            accesses: shape.pieces,
            accessed_bytes: shape.wanted_bytes,
        }
    }

    fn sieve(&self) -> Prediction {
        let (shape, model) = (self.shape, self.model);
        let copies_ns = shape.pieces as f64 * model.copy.cost_ns(mean(shape.wanted_bytes, shape.pieces));
        let read_ns = |groups: u64, bytes: u64| {
            let mean_bytes = mean(bytes, groups);
            let cached_ns = model.read_cached.cost_ns(mean_bytes);
            let device_ns = model.read_device.cost_ns(mean_bytes);
            groups as f64 * (self.cached * cached_ns + (1.0 - self.cached) * device_ns)
        };
        if !shape.write {
            return Prediction {
                cost_ns: read_ns(shape.groups, shape.group_bytes) + copies_ns,
                sync_ns: 0.0,
                accesses: shape.groups,
                accessed_bytes: shape.group_bytes,
            };
        }
        let present = 1.0 - shape.beyond_end_fraction.clamp(0.0, 1.0);
        let read_groups = (shape.gap_groups as f64 * present).ceil() as u64;
        let read_bytes = (shape.gap_group_bytes as f64 * present) as u64;
        let locks_ns = shape.gap_groups as f64 * model.lock_ns as f64;
        // Groups without gaps are written without a look at what was there.
        let plain_groups = shape.groups - shape.gap_groups;
        let plain_bytes = shape.group_bytes - shape.gap_group_bytes;
        let plain_device_ns = model.write_device.cost_ns(mean(plain_bytes, plain_groups));
        let plain_cached_ns = model.write_cached.cost_ns(mean(plain_bytes, plain_groups));
        let plain_ns =
            plain_groups as f64 * (self.cached * plain_cached_ns + (1.0 - self.cached) * plain_device_ns);
        let gap_ns = shape.gap_groups as f64
            * model.write_cached.cost_ns(mean(shape.gap_group_bytes, shape.gap_groups));
        // What lies in gaps is written, too, and takes pages.
        let pages = (shape.group_bytes / PAGE_BYTES).max(shape.pages);
        let write_ns = locks_ns + copies_ns + gap_ns + plain_ns;
        Prediction {
            cost_ns: read_ns(read_groups, read_bytes) + write_ns + self.new_pages_ns(pages),
            sync_ns: self.sync_ns(pages * PAGE_BYTES),
            accesses: read_groups + shape.groups,
            accessed_bytes: read_bytes + shape.group_bytes,
        }
    }

    fn mapped(&self) -> Prediction {
        let shape = self.shape;
        let (curve, fault_ns) = match shape.write {
            false => (&self.model.mapped_read, self.model.page_fault_ns),
            true => (&self.model.mapped_write, self.model.page_fault_write_ns),
        };
        let piece_bytes = mean(shape.wanted_bytes, shape.pieces);
        let enter_ns = (shape.pages_to_enter * fault_ns) as f64;
        Prediction {
            cost_ns: self.pieces_ns(curve, &self.model.read_device, piece_bytes) + enter_ns,
            sync_ns: self.sync_ns(shape.pages * PAGE_BYTES),
            accesses: 0,
            accessed_bytes: shape.wanted_bytes,
        }
    }

    /// All pieces by the curve of cached ones, but for those that first touch a page that is not cached.
    fn pieces_ns(&self, cached: &Curve, device: &Curve, piece_bytes: u64) -> f64 {
        let waiting = self.shape.pieces.min(self.shape.pages) as f64 * (1.0 - self.cached);
        let ready = self.shape.pieces as f64 - waiting;
        ready * cached.cost_ns(piece_bytes) + waiting * device.cost_ns(piece_bytes)
    }

    /// The share of `pages` that a write adds to the file.
    fn new_pages_ns(&self, pages: u64) -> f64 {
        if !self.shape.write {
            return 0.0;
        }
        self.shape.beyond_end_fraction.clamp(0.0, 1.0) * (pages * self.model.new_page_ns) as f64
    }

    /// Only what grows with the bytes: there is one sync, whatever the method.
    fn sync_ns(&self, dirty_bytes: u64) -> f64 {
        if !(self.shape.sync && self.shape.write) {
            return 0.0;
        }
        self.model.sync.ns_per_byte() * dirty_bytes as f64
    }
}

fn mean(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

/// How far what windows cost was from what the model said, per method, for reads and writes, cached and not:
/// moving ratios, kept by each thread of a server for itself.
///
/// Only the ratios of methods to each other matter for a choice, so a method that is not used drifts to the
/// ratio of the one that is. A machine that is slow at the moment then slows all methods alike instead of
/// driving the choice to the ones that were not tried, and a method that once looked bad gets its next try.
/// Every ratio stays within 1/4 and 4, and one observation moves it by 5 % at most.
#[derive(Debug, Clone, Default)]
pub struct Corrections {
    /// Logarithms to base 2.
    ratios: [[f32; 3]; 4],
}

impl Corrections {
    /// Greatest logarithm of a ratio.
    const BOUND: f32 = 2.0;
    /// Share of an observation in the ratio of its method.
    const GAIN: f32 = 1.0 / 16.0;
    /// What an observation may at most differ from the ratio, as a logarithm.
    const STEP: f32 = 1.0;
    /// Share of the used method's ratio that goes into those of the others.
    const DRIFT: f32 = 1.0 / 256.0;

    /// No corrections.
    pub fn new() -> Corrections {
        Corrections::default()
    }

    /// By what the model's prediction is to be multiplied: from 1/4 to 4.
    pub fn factor(&self, method: Method, write: bool, cached: bool) -> f64 {
        f64::from(self.ratios[Self::class(write, cached)][method as usize].exp2())
    }

    /// Notes that a window that was predicted to cost `predicted_ns` cost `observed_ns`.
    pub fn observe(
        &mut self,
        method: Method,
        write: bool,
        cached: bool,
        predicted_ns: f64,
        observed_ns: f64,
    ) {
        let observed = (observed_ns / predicted_ns).log2() as f32;
        if !observed.is_finite() {
            return;
        }
        let ratios = &mut self.ratios[Self::class(write, cached)];
        let used = ratios[method as usize];
        let used = used + (observed - used).clamp(-Self::STEP, Self::STEP) * Self::GAIN;
        let used = used.clamp(-Self::BOUND, Self::BOUND);
        for ratio in ratios.iter_mut() {
            *ratio += (used - *ratio) * Self::DRIFT;
        }
        ratios[method as usize] = used;
    }

    fn class(write: bool, cached: bool) -> usize {
        usize::from(write) * 2 + usize::from(cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strided(pieces: u64, bytes: u64, stride: u64) -> Vec<Extent> {
        (0..pieces).map(|at| Extent::new(at * stride, bytes)).collect()
    }

    fn shape(write: bool, cached: f64, pieces: &[Extent]) -> WindowShape {
        let gap = CostModel::default().gap_bytes_max(write, cached > 0.5);
        let groups = sieve_groups(pieces.iter().copied(), gap, 1 << 20);
        WindowShape { cached_fraction: cached, ..WindowShape::of(write, pieces, &groups, u64::MAX) }
    }

    fn chosen(shape: &WindowShape) -> Method {
        choose(&CostModel::default(), &Corrections::new(), shape).method
    }

    #[test]
    fn a_curve_is_linear_between_its_points() {
        let curve = Curve::new(vec![(100, 50), (200, 50), (400, 250)]).unwrap();
        let costs: Vec<f64> = [0, 100, 150, 300, 400, 600].map(|bytes| curve.cost_ns(bytes)).to_vec();
        assert_eq!(costs, [50.0, 50.0, 50.0, 150.0, 250.0, 450.0]);
        assert_eq!(curve.overhead_ns(), 50.0);
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        assert_eq!(Curve::new(vec![(1, 1)]), Err(CurveError::Count(1)));
        assert_eq!(Curve::new((1..=33).map(|n| (n, n)).collect()), Err(CurveError::Count(33)));
        assert_eq!(Curve::new(vec![(1, 1), (1, 2)]), Err(CurveError::Size(1)));
        assert_eq!(Curve::new(vec![(1, 2), (2, 3), (3, 1)]), Err(CurveError::Cost(2)));
        let smooth = Curve::measured(vec![(1, 2), (2, 9), (3, 7), (4, 8), (5, 20)]).unwrap();
        assert_eq!(smooth.points(), [(1, 2), (2, 8), (3, 8), (4, 8), (5, 20)]);
    }

    #[test]
    fn gaps_are_bridged_up_to_the_bound() {
        let pieces = [(0, 10), (15, 5), (20, 10), (36, 4), (100, 50), (90, 5)];
        let groups = sieve_groups(pieces.map(|(at, bytes)| Extent::new(at, bytes)), 5, 40);
        let seen: Vec<_> = groups.iter().map(|g| (g.extent.offset, g.extent.bytes, g.pieces)).collect();
        assert_eq!(seen, [(0, 30, 3), (36, 4, 1), (100, 50, 1), (90, 5, 1)]);
        assert_eq!((groups[0].wanted_bytes, groups[0].has_gaps()), (25, true));
        assert!(!groups[2].has_gaps());
    }

    #[test]
    fn a_gap_pays_as_long_as_it_costs_less_than_an_access() {
        let model = CostModel::default();
        let gap = model.gap_bytes_max(false, true);
        assert!(gap as f64 * model.read_cached.ns_per_byte() <= model.read_cached.overhead_ns());
        assert!((gap + 2) as f64 * model.read_cached.ns_per_byte() > model.read_cached.overhead_ns());
        assert!(model.gap_bytes_max(false, false) > gap);
        let free = Curve::new(vec![(1, 100), (1 << 20, 100)]).unwrap();
        assert_eq!(CostModel { read_cached: free, ..model }.gap_bytes_max(false, true), GAP_BYTES_MAX);
    }

    #[test]
    fn pages_are_counted_once() {
        let of = |pieces: &[Extent]| WindowShape::of(false, pieces, &[], 10_000);
        assert_eq!(of(&strided(64, 64, 128)).pages, 2);
        assert_eq!(of(&strided(3, 2, 4095)).pages, 2);
        let beyond = of(&[Extent::new(0, 8192), Extent::new(9_000, 2_000)]);
        assert_eq!((beyond.pages, beyond.wanted_bytes), (3, 10_192));
        assert_eq!(beyond.beyond_end_fraction, 1_000.0 / 10_192.0);
    }

    #[test]
    fn one_piece_is_one_access() {
        for (write, cached) in [(false, 1.0), (false, 0.0), (true, 1.0), (true, 0.0)] {
            assert_eq!(chosen(&shape(write, cached, &[Extent::new(5, 1 << 20)])), Method::Each);
        }
    }

    #[test]
    fn many_small_pieces_are_sieved_and_large_ones_are_not() {
        for (write, cached) in [(false, 1.0), (false, 0.0), (true, 1.0), (true, 0.0)] {
            assert_eq!(
                chosen(&shape(write, cached, &strided(1024, 64, 256))),
                Method::Sieve,
                "{write} {cached}"
            );
            assert_eq!(chosen(&shape(write, cached, &strided(8, 256 << 10, 1 << 20))), Method::Each);
        }
    }

    #[test]
    fn small_cached_pieces_are_copied_from_mapped_pages_where_that_can_be() {
        let sparse = strided(1024, 64, 3000);
        let mapped = WindowShape { mappable: true, ..shape(false, 1.0, &sparse) };
        assert_eq!(chosen(&mapped), Method::Mapped);
        let to_enter = WindowShape { pages_to_enter: 100_000, ..mapped };
        assert_ne!(chosen(&to_enter), Method::Mapped);
        assert_eq!(predict(&CostModel::default(), &shape(false, 1.0, &sparse))[2], None);
    }

    #[test]
    fn a_write_reads_only_groups_with_gaps() {
        let model = CostModel::default();
        let touching = strided(100, 64, 64);
        let dense = predict(&model, &shape(true, 1.0, &touching))[1].unwrap();
        assert_eq!((dense.accesses, dense.accessed_bytes), (1, 6400));
        let holed = predict(&model, &shape(true, 1.0, &strided(100, 64, 128)))[1].unwrap();
        assert_eq!((holed.accesses, holed.accessed_bytes), (2, 2 * (99 * 128 + 64)));
        let fresh = WindowShape { beyond_end_fraction: 1.0, ..shape(true, 1.0, &strided(100, 64, 128)) };
        assert_eq!(predict(&model, &fresh)[1].unwrap().accesses, 1);
    }

    #[test]
    fn gaps_beyond_the_end_take_pages_too() {
        // Writing over 5 KiB costs less than one more access, but not if the pages between have to be made.
        let sparse = strided(100, 64, 5 << 10);
        let groups = sieve_groups(sparse.iter().copied(), 8 << 10, 1 << 20);
        let fresh = WindowShape::of(true, &sparse, &groups, 0);
        assert_eq!((fresh.beyond_end_fraction, fresh.groups), (1.0, 1));
        let model = CostModel { new_page_ns: 0, ..CostModel::default() };
        assert_eq!(choose(&model, &Corrections::new(), &fresh).method, Method::Sieve);
        let model = CostModel { new_page_ns: 2_000, ..model };
        assert_eq!(choose(&model, &Corrections::new(), &fresh).method, Method::Each);
        let [each, sieve, _] = predict(&model, &fresh).map(Option::unwrap_or_default);
        assert!(each.cost_ns < sieve.cost_ns);
    }

    #[test]
    fn equal_costs_go_to_the_simplest() {
        let curve = || Curve::new(vec![(1, 0), (2, 0)]).unwrap();
        let free = CostModel {
            read_cached: curve(),
            read_device: curve(),
            copy: curve(),
            mapped_read: curve(),
            ..CostModel::default()
        };
        let shape = WindowShape { mappable: true, ..shape(false, 1.0, &strided(10, 64, 128)) };
        assert_eq!(choose(&free, &Corrections::new(), &shape).method, Method::Each);
    }

    #[test]
    fn a_slow_machine_slows_all_methods_alike() {
        let mut corrections = Corrections::new();
        for _ in 0..2000 {
            corrections.observe(Method::Sieve, false, true, 100.0, 300.0);
        }
        for method in Method::ALL {
            assert!((corrections.factor(method, false, true) - 3.0).abs() < 0.1);
            assert_eq!(corrections.factor(method, true, true), 1.0);
            assert_eq!(corrections.factor(method, false, false), 1.0);
        }
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn groups_hold_all_pieces_in_order(
            steps in proptest::collection::vec((0u64..3000, 0u64..5000), 0..60),
            gap_max in 0u64..4000,
            group_max in 1u64..20_000,
        ) {
            let mut at = 0;
            let pieces: Vec<Extent> = steps.iter().map(|(gap, bytes)| {
                at += gap + bytes;
                Extent::new(at - bytes, *bytes)
            }).collect();
            let groups = sieve_groups(pieces.iter().copied(), gap_max, group_max);
            let mut rest = pieces.iter();
            for group in &groups {
                let within: Vec<_> = rest.by_ref().take(group.pieces as usize).collect();
                prop_assert_eq!(group.wanted_bytes, within.iter().map(|piece| piece.bytes).sum::<u64>());
                prop_assert_eq!(group.extent.offset, within[0].offset);
                let last = within.last().unwrap();
                prop_assert_eq!(group.extent.offset + group.extent.bytes, last.offset + last.bytes);
                prop_assert!(group.extent.bytes <= group_max || within.len() == 1);
                for pair in within.windows(2) {
                    prop_assert!(pair[1].offset - pair[0].offset - pair[0].bytes <= gap_max);
                }
            }
            prop_assert!(rest.next().is_none());
        }

        #[test]
        fn any_shape_gets_finite_costs_and_the_least_of_them(
            steps in proptest::collection::vec((0u64..100_000, 1u64..100_000), 1..60),
            write: bool, sync: bool, mappable: bool, cached in 0f64..=1.0, pages_to_enter in 0u64..1000,
        ) {
            let mut at = 0;
            let pieces: Vec<Extent> = steps.iter().map(|(gap, bytes)| {
                at += gap + bytes;
                Extent::new(at - bytes, *bytes)
            }).collect();
            let shape = WindowShape { sync, mappable, pages_to_enter, ..shape(write, cached, &pieces) };
            let choice = choose(&CostModel::default(), &Corrections::new(), &shape);
            let total = |method| choice.prediction(method).map(|p: Prediction| p.cost_ns + p.sync_ns);
            let chosen_ns = total(choice.method).unwrap();
            prop_assert!(chosen_ns.is_finite() && chosen_ns > 0.0);
            for method in Method::ALL {
                prop_assert!(total(method).is_none_or(|ns| ns >= chosen_ns));
            }
        }

        #[test]
        fn corrections_are_bounded_and_converge(
            noise in proptest::collection::vec((0usize..3, any::<f64>(), any::<f64>()), 0..200),
            true_ratio in 0.26f64..3.9,
        ) {
            let mut corrections = Corrections::new();
            for (method, predicted, observed) in noise {
                let before = corrections.factor(Method::ALL[method], true, false);
                corrections.observe(Method::ALL[method], true, false, predicted, observed);
                let moved = corrections.factor(Method::ALL[method], true, false) / before;
                prop_assert!((0.95..1.05).contains(&moved));
                for method in Method::ALL {
                    prop_assert!((0.25..=4.0).contains(&corrections.factor(method, true, false)));
                }
            }
            for _ in 0..200 {
                corrections.observe(Method::Each, true, false, 1000.0, 1000.0 * true_ratio);
            }
            let factor = corrections.factor(Method::Each, true, false);
            prop_assert!((factor / true_ratio - 1.0).abs() < 0.01, "{} for {}", factor, true_ratio);
        }

        #[test]
        fn a_method_that_once_looked_bad_gets_another_try(bad in 1.5f64..100.0) {
            let mut corrections = Corrections::new();
            for _ in 0..100 {
                corrections.observe(Method::Sieve, false, true, 1.0, bad);
            }
            for _ in 0..1000 {
                corrections.observe(Method::Each, false, true, 1.0, 1.0);
            }
            prop_assert!(corrections.factor(Method::Sieve, false, true) < 1.05);
        }
    }
}
