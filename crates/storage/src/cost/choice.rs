//! What each method is expected to cost for a window, and which one is chosen.

use super::corrections::Corrections;
use super::curve::Curve;
use super::model::CostModel;
use super::window::{Method, PAGE_BYTES, WindowShape};

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
