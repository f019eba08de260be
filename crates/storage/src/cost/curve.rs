//! A cost that was measured at some sizes, and what lies in between.

/// Points of a curve at most.
pub const CURVE_POINTS_MAX: usize = 32;

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
