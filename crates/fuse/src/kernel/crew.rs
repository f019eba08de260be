//! Threads that read the device: as many as are wanted are free, however many wait.
//!
//! ```text
//!   wanted 2     1  2            both free
//!                1w 2 3          1 has waited for a while: 3 takes its place
//!                1w 2w 3 4       so has 2
//!                1  2w 3 4       1 is served, and free; who finds one too many free after a request ends: 3 or 4
//! ```

use super::device::Device;
use super::dispatch::Dispatcher;
use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// The most that take the place of others.
const SUBSTITUTES_MAX: usize = 512;

thread_local! {
    /// The request that this thread serves waits for long.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
struct Counts {
    substitutes: usize,
    waiting: usize,
}

impl Counts {
    /// One more waits; whether somebody is to take its place.
    fn begin_wait(&mut self) -> bool {
        self.waiting += 1;
        let is_short = self.substitutes < self.waiting && self.substitutes < SUBSTITUTES_MAX;
        self.substitutes += usize::from(is_short);
        is_short
    }

    /// Whether a substitute that has served a request is one too many, and ends.
    fn ends(&mut self) -> bool {
        let is_one_too_many = self.substitutes > self.waiting;
        self.substitutes -= usize::from(is_one_too_many);
        is_one_too_many
    }
}

/// See the module.
pub(super) struct Crew {
    counts: Mutex<Counts>,
}

impl Crew {
    pub(super) fn new() -> Arc<Crew> {
        Arc::new(Crew { counts: Mutex::default() })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Counts) -> T) -> T {
        act(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves requests until the connection ends, and has others do so while this thread waits.
    pub(super) fn serve(self: &Arc<Self>, device: &Device, dispatcher: &Arc<Dispatcher>) -> io::Result<()> {
        self.serve_as(device, dispatcher, false)
    }

    fn serve_as(
        self: &Arc<Self>,
        device: &Device,
        dispatcher: &Arc<Dispatcher>,
        is_substitute: bool,
    ) -> io::Result<()> {
        let (crew, own_device, own_dispatcher) = (self.clone(), device.clone(), dispatcher.clone());
        dispatcher.end_waits_of_this_thread(move || {
            if !WAITS.replace(true) && crew.with(Counts::begin_wait) {
                crew.start_substitute(&own_device, &own_dispatcher);
            }
        });
        device.serve(dispatcher, None, || {
            if WAITS.replace(false) {
                self.with(|counts| counts.waiting -= 1);
            }
            !is_substitute || !self.with(Counts::ends)
        })
    }

    fn start_substitute(self: &Arc<Self>, device: &Device, dispatcher: &Arc<Dispatcher>) {
        let (crew, device, dispatcher) = (self.clone(), device.clone(), dispatcher.clone());
        let serve = move || {
            // Those that are there from the beginning tell if the connection cannot be served any more.
            let _ = crew.serve_as(&device, &dispatcher, true);
        };
        if std::thread::Builder::new().name("weft-fuse-more".into()).spawn(serve).is_err() {
            self.with(|counts| counts.substitutes -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_replaced_and_who_is_one_too_many_ends() {
        let mut counts = Counts::default();
        assert!(counts.begin_wait() && counts.begin_wait());
        assert!(!counts.ends(), "two wait, and two are in their place");
        counts.waiting -= 1;
        assert!(counts.ends() && !counts.ends());
        counts.waiting -= 1;
        assert!(counts.ends());
        assert_eq!((counts.substitutes, counts.waiting), (0, 0));
    }

    #[test]
    fn there_is_an_end_to_substitutes() {
        let mut counts = Counts::default();
        let started = (0..2 * SUBSTITUTES_MAX).filter(|_| counts.begin_wait()).count();
        assert_eq!(started, SUBSTITUTES_MAX);
    }
}
