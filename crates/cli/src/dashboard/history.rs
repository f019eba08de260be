//! The last hours, in steps of the same length: each is the mean of what was seen in it.

use serde::Serialize;
use std::collections::VecDeque;

/// Steps that are kept: what a screen can show.
const STEPS: usize = 720;

/// What is remembered of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Point {
    /// Its time, in seconds since 1970.
    pub at_s: u64,
    /// Operations of all servers, per second.
    pub operations_per_s: f64,
    /// Of these, those that failed.
    pub errors_per_s: f64,
    /// Bytes of files read from all servers, per second.
    pub read_bytes_per_s: f64,
    /// Bytes of files written.
    pub written_bytes_per_s: f64,
    /// A round trip to the metadata server.
    pub meta_us: f64,
    /// A round trip to the slowest I/O server.
    pub io_us: f64,
}

impl Point {
    fn values(&mut self) -> [&mut f64; 6] {
        [
            &mut self.operations_per_s,
            &mut self.errors_per_s,
            &mut self.read_bytes_per_s,
            &mut self.written_bytes_per_s,
            &mut self.meta_us,
            &mut self.io_us,
        ]
    }

    /// The mean of this, of `count` points, and one more.
    fn with(mut self, count: u32, mut other: Point) -> Point {
        let (old, new) = (f64::from(count), f64::from(count + 1));
        for (value, more) in self.values().into_iter().zip(other.values()) {
            *value = (*value * old + *more) / new;
        }
        self
    }
}

/// See the module's header.
#[derive(Debug, Serialize)]
pub struct History {
    /// Seconds of a step.
    pub step_s: u64,
    points: VecDeque<Point>,
    /// Points in the last step.
    #[serde(skip)]
    in_last: u32,
}

impl History {
    /// Of so many hours.
    pub fn of_hours(hours: f64) -> History {
        let step_s = ((hours * 3600.0 / STEPS as f64).ceil() as u64).max(1);
        History { step_s, points: VecDeque::new(), in_last: 0 }
    }

    /// Adds what was seen; the oldest step goes.
    pub fn add(&mut self, point: Point) {
        let step = point.at_s - point.at_s % self.step_s;
        let point = Point { at_s: step, ..point };
        match self.points.back_mut() {
            // A clock that was set back adds to the present step.
            Some(last) if last.at_s >= step => {
                *last = last.with(self.in_last, point);
                self.in_last += 1;
            }
            _ => {
                self.points.push_back(point);
                self.in_last = 1;
            }
        }
        while self.points.len() > STEPS {
            self.points.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_s: u64, operations_per_s: f64) -> Point {
        Point { at_s, operations_per_s, ..Point::default() }
    }

    #[test]
    fn a_step_is_the_mean_of_what_was_seen_in_it() {
        let mut history = History::of_hours(2.0);
        assert_eq!(history.step_s, 10);
        for (at_s, operations) in [(100, 1.0), (104, 2.0), (108, 6.0), (111, 5.0), (95, 7.0)] {
            history.add(point(at_s, operations));
        }
        let kept: Vec<_> = history.points.iter().map(|point| (point.at_s, point.operations_per_s)).collect();
        assert_eq!(kept, [(100, 3.0), (110, 6.0)]);
    }

    #[test]
    fn the_oldest_steps_go() {
        let mut history = History::of_hours(0.1);
        (0..2000).for_each(|at_s| history.add(point(at_s, 1.0)));
        assert_eq!((history.points.len(), history.points[0].at_s), (720, 1280));
    }
}
