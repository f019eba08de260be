//! How far predictions were from what windows cost.

use super::window::Method;

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
