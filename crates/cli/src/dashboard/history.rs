//! The last hours, in steps of the same length: of one interval between two looks, or of several, if there are too many.
//!
//! ```text
//!   look     1     2     3 (late)  5     6           a late look is the mean of all intervals since the one before
//!   step  ├─────┼─────┼─────┼─────┼─────┼─────┤      no step is missing
//!                                          ▲ now     the last point is always the last look itself
//! ```

use serde::Serialize;
use std::collections::VecDeque;

/// Steps that are kept: 6 hours of looks every 5 seconds.
const STEPS: usize = 4320;

/// All servers together at one look.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Point {
    /// Operations of all servers, per second.
    pub operations_per_s: f64,
    /// Of these, those that failed.
    pub errors_per_s: f64,
    /// Bytes of files read from all servers, per second.
    pub read_bytes_per_s: f64,
    /// Bytes of files written.
    pub written_bytes_per_s: f64,
    /// A round trip to the slowest metadata server; `None` if none answers.
    pub meta_us: Option<f64>,
    /// A round trip to the slowest I/O server; `None` if none answers.
    pub io_us: Option<f64>,
}

impl Point {
    /// The mean of some looks.
    fn of(points: &[Point]) -> Point {
        let mean = |value: fn(&Point) -> Option<f64>| {
            let values = || points.iter().filter_map(value);
            let count = values().count();
            (count > 0).then(|| rounded(values().sum::<f64>() / count as f64))
        };
        Point {
            operations_per_s: mean(|point| Some(point.operations_per_s)).unwrap_or(0.0),
            errors_per_s: mean(|point| Some(point.errors_per_s)).unwrap_or(0.0),
            read_bytes_per_s: mean(|point| Some(point.read_bytes_per_s)).unwrap_or(0.0),
            written_bytes_per_s: mean(|point| Some(point.written_bytes_per_s)).unwrap_or(0.0),
            meta_us: mean(|point| point.meta_us),
            io_us: mean(|point| point.io_us),
        }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// See the module's header.
#[derive(Debug)]
pub struct History {
    interval_ms: u64,
    /// Looks in a step.
    looks: usize,
    steps: VecDeque<Point>,
    /// Those of the step that is not over.
    begun: Vec<Point>,
    /// The last one, and when it was.
    last: Point,
    last_ms: u64,
}

/// What the page gets of it. Points are as far apart as the steps; the last one was at `last_ms`.
#[derive(Debug, Serialize)]
pub struct Series {
    /// Milliseconds of a step.
    pub step_ms: u64,
    /// When the last point was, in milliseconds since 1970.
    pub last_ms: u64,
    /// The values of the points, in order.
    pub columns: Columns,
}

/// The values of [`Point`]s: all of one kind together, which is shorter.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Columns {
    operations_per_s: Vec<f64>,
    errors_per_s: Vec<f64>,
    read_bytes_per_s: Vec<f64>,
    written_bytes_per_s: Vec<f64>,
    meta_us: Vec<Option<f64>>,
    io_us: Vec<Option<f64>>,
}

impl Columns {
    fn of(points: impl Iterator<Item = Point>) -> Columns {
        let mut columns = Columns::default();
        for point in points {
            columns.operations_per_s.push(point.operations_per_s);
            columns.errors_per_s.push(point.errors_per_s);
            columns.read_bytes_per_s.push(point.read_bytes_per_s);
            columns.written_bytes_per_s.push(point.written_bytes_per_s);
            columns.meta_us.push(point.meta_us);
            columns.io_us.push(point.io_us);
        }
        columns
    }
}

impl History {
    /// Of so many hours, with a look each `interval_s`.
    pub fn of_hours(hours: f64, interval_s: f64) -> History {
        let looks = (hours * 3600.0 / interval_s / STEPS as f64 - 1e-9).ceil().max(1.0) as usize;
        History {
            interval_ms: (interval_s * 1000.0).round() as u64,
            looks,
            steps: VecDeque::new(),
            begun: Vec::new(),
            last: Point::default(),
            last_ms: 0,
        }
    }

    /// Adds what was seen, at `at_ms`, as the mean of that many intervals; the oldest steps go.
    pub fn add(&mut self, at_ms: u64, intervals: u64, point: Point) {
        (self.last, self.last_ms) = (Point::of(&[point]), at_ms);
        let all = STEPS * self.looks;
        for _ in 0..intervals.min(all as u64) {
            self.begun.push(point);
            if self.begun.len() == self.looks {
                self.steps.push_back(Point::of(&self.begun));
                self.begun.clear();
            }
        }
        while self.steps.len() > STEPS {
            self.steps.pop_front();
        }
    }

    /// The last look.
    pub fn now(&self) -> Point {
        self.last
    }

    /// All of it, with the last look as the last point.
    pub fn series(&self) -> Series {
        let over = self.steps.len() - usize::from(self.begun.is_empty() && !self.steps.is_empty());
        let points = self.steps.iter().take(over).copied().chain([self.last]);
        Series {
            step_ms: self.interval_ms * self.looks as u64,
            last_ms: self.last_ms,
            columns: Columns::of(points),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(operations_per_s: f64) -> Point {
        Point { operations_per_s, ..Point::default() }
    }

    fn operations(history: &History) -> Vec<f64> {
        history.series().columns.operations_per_s
    }

    #[test]
    fn every_look_is_a_point_and_a_late_one_leaves_no_gap() {
        let mut history = History::of_hours(6.0, 5.0);
        history.add(1000, 1, point(1.0));
        history.add(6000, 1, point(2.0));
        history.add(21_000, 3, point(4.04));
        assert_eq!(operations(&history), [1.0, 2.0, 4.0, 4.0, 4.0]);
        let series = history.series();
        assert_eq!((series.step_ms, series.last_ms), (5000, 21_000));
        assert_eq!(Some(&history.now().operations_per_s), series.columns.operations_per_s.last());
    }

    #[test]
    fn many_looks_are_means_of_some_and_the_last_is_itself() {
        let mut history = History::of_hours(12.0, 2.0);
        assert_eq!(history.series().step_ms, 10_000);
        for (at, value) in [1.0, 1.0, 1.0, 1.0, 6.0, 7.0, 9.0].into_iter().enumerate() {
            history.add(1000 * at as u64, 1, point(value));
        }
        assert_eq!(operations(&history), [2.0, 9.0]);
        (0..3).for_each(|_| history.add(9000, 1, point(10.0)));
        assert_eq!(operations(&history), [2.0, 10.0], "the last look, not the mean of its step");
        history.add(11_000, 1, point(3.0));
        assert_eq!(operations(&history), [2.0, 9.2, 3.0]);
    }

    #[test]
    fn a_time_without_an_answer_is_no_time_of_0() {
        let mut history = History::of_hours(12.0, 2.0);
        let with = |io_us| Point { io_us, ..Point::default() };
        for io_us in [Some(10.0), None, Some(20.0), None, None] {
            history.add(0, 1, with(io_us));
        }
        history.add(0, 1, with(None));
        assert_eq!(history.series().columns.io_us, [Some(15.0), None]);
    }

    #[test]
    fn the_oldest_steps_go() {
        let mut history = History::of_hours(6.0, 5.0);
        (0..6000).for_each(|at| history.add(at, 1, point(at as f64)));
        let kept = operations(&history);
        assert_eq!((kept.len(), kept[0], kept[STEPS - 1]), (STEPS, 1680.0, 5999.0));
        history.add(0, u64::MAX, point(7.0));
        assert_eq!(operations(&history), vec![7.0; STEPS], "after a long sleep");
    }
}
