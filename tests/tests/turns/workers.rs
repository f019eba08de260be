//! Threads of which one works at a time.

use std::sync::mpsc::{Sender, channel};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// They end when it is dropped.
pub struct Workers(Vec<Sender<Job>>);

impl Workers {
    /// As many threads as there are beginnings, each of which does its own first.
    pub fn new(beginnings: Vec<Job>) -> Workers {
        let start = |beginning: Job| {
            let (sender, jobs) = channel::<Job>();
            thread::spawn(move || {
                beginning();
                jobs.iter().for_each(|job| job());
            });
            sender
        };
        Workers(beginnings.into_iter().map(start).collect())
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What `job` returns on the thread of this number.
    pub fn run<T: Send + 'static>(&self, number: usize, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result) = channel();
        let job = move || sender.send(job()).expect("somebody waits for it");
        self.0[number].send(Box::new(job)).expect("the thread runs");
        result.recv().expect("a job does not panic")
    }
}
