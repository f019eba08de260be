//! Waiting for the replies to a batch: busy-polling, then sleeping, and giving up servers that are silent.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::detached::reap_ready;
use super::requests::Batch;
use crate::call::{Call, SILENCE_MIN, State};
use crate::deadline::{self, LOOK_EVERY};
use crate::lane::Lane;
use crate::options::Options;
use crate::rpc::Rpc;
use crate::wait::{POLLED_INLINE, PollSet, Waker};

/// A server is not asked sooner whether it lives.
const PING_AFTER_MIN: Duration = Duration::from_millis(100);
/// How long a server may be silent about requests that were given up, and whose time is over.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

impl Batch {
    /// Whether a signal may end the wait although the options say to wait for ever.
    fn waits_in_vain(&self, rpc: &Rpc) -> bool {
        rpc.options.hard && self.calls.iter().any(|call| rpc.is_failing(call.server))
    }

    /// Whether it is time to ask whether the wait, which began to sleep at `begin`, is to end.
    fn is_look_due(&mut self, begin: Instant) -> bool {
        let now = Instant::now();
        let looked_at = self.looked_at.get_or_insert(begin);
        let is_due = now.saturating_duration_since(*looked_at) >= LOOK_EVERY;
        *looked_at = if is_due { now } else { *looked_at };
        is_due
    }

    /// Ends those that can do without an answer, and have waited for long enough.
    fn end_hasty(&mut self, rpc: &Rpc) {
        let now = Instant::now();
        let is_over = |call: &Call| {
            let unanswered = call.sent().filter(|(_, answer, _)| !answer.is_ready());
            unanswered.and_then(|(.., since)| call.hasty_end(since)).is_some_and(|end| end <= now)
        };
        if !self.calls.iter().any(is_over) {
            return;
        }
        self.progress();
        for call in self.calls.iter_mut().filter(|call| is_over(call)) {
            let since = call.sent().map_or(now, |(.., since)| since);
            rpc.note_failure(call.server, since, "no answer", false);
            let error = call.timed_out(rpc, "no answer");
            drop(call.leave(error));
        }
    }

    /// Whom to wake for this batch's answers, and when to look again at the latest.
    fn prepare_sleep(&self, waker: &Arc<Waker>, now: Instant, options: &Options) -> Instant {
        let reply_timeout = Duration::from_millis(options.reply_timeout_ms);
        let mut wake_at = now + reply_timeout;
        for call in &self.calls {
            match &call.state {
                State::Sent { answer, since, .. } => {
                    answer.wake_on_ready(waker);
                    wake_at = wake_at.min(*since + reply_timeout).min(now + ping_after(options));
                    let end = call.hasty_end(*since).or(call.end).filter(|end| *end > now);
                    wake_at = end.map_or(wake_at, |end| wake_at.min(end));
                }
                State::Ready { not_before } => wake_at = wake_at.min(not_before.unwrap_or(now)),
                State::Done(_) => wake_at = now,
            }
        }
        wake_at
    }

    /// Gives up connections whose servers have been silent for too long, and asks others whether they live.
    fn cut_silent(&self, rpc: &Rpc) {
        let now = Instant::now();
        let options = &rpc.options;
        for call in self.calls.iter().filter(|call| call.hasty.is_none()) {
            let Some((lane, answer, since)) = call.sent() else { continue };
            let waited = now.saturating_duration_since(since);
            if answer.is_ready() || waited < ping_after(options).min(options.reply_timeout()) {
                continue;
            }
            let silent = now.saturating_duration_since(lane.silent_since().max(since));
            let is_over = match options.hard {
                true => silent >= options.patience(),
                false => call.is_over_at(now) && silent >= (options.patience() / 2).max(SILENCE_MIN),
            };
            if is_over || waited > options.reply_timeout() {
                rpc.note_failure(call.server, since, "no answer", is_over);
                lane.give_up(&format!("no answer for {} ms", waited.as_millis()));
            } else if silent >= ping_after(options) {
                lane.ping(rpc.session().next_request_id());
            }
        }
    }
}

/// After which silence a server is asked whether it lives.
fn ping_after(options: &Options) -> Duration {
    (options.patience() / 4).max(PING_AFTER_MIN)
}

/// Waits until something may have happened to one of the batches.
pub fn rest(batches: &mut [(&Rpc, &mut Batch)]) {
    if !watch(batches) {
        sleep(batches);
    }
}

/// Busy-polls the lanes for a moment instead of sleeping. Says whether something came.
fn watch(batches: &[(&Rpc, &mut Batch)]) -> bool {
    let spin_us = batches.iter().map(|(rpc, _)| rpc.options.spin_us).min().unwrap_or(0);
    let is_bulky = |batch: &Batch| batch.bulky || batch.calls.iter().any(|call| call.sent().is_none());
    if spin_us == 0 || batches.iter().any(|(_, batch)| is_bulky(batch)) || !watching_helps() {
        return false;
    }
    let end = Instant::now() + Duration::from_micros(spin_us.into());
    loop {
        // On a machine with more to do than processors the server may be waiting for this one.
        std::thread::yield_now();
        batches.iter().for_each(|(_, batch)| batch.progress());
        let came = batches.iter().any(|(_, batch)| batch.any_ready());
        if came || Instant::now() >= end {
            note_watching(came);
            return came;
        }
    }
}

/// Sleeps until something may have happened to one of the batches, and ends what is over.
fn sleep(batches: &mut [(&Rpc, &mut Batch)]) {
    let is_looked_after = deadline::is_looked_after();
    let begin = Instant::now();
    sleep_at_most(batches, is_looked_after.then_some(LOOK_EVERY));
    let is_signalled =
        batches.iter().any(|(rpc, batch)| batch.waits_in_vain(rpc)) && deadline::was_signalled();
    for (rpc, batch) in batches {
        if is_looked_after && batch.is_look_due(begin) && deadline::is_interrupted()
            || is_signalled && batch.waits_in_vain(rpc)
        {
            batch.interrupt(rpc);
        }
        batch.end_hasty(rpc);
    }
}

/// Sleeps until something may have happened to one of the batches, for `longest` at most.
pub(super) fn sleep_at_most(batches: &[(&Rpc, &mut Batch)], longest: Option<Duration>) {
    let waker = Waker::current();
    let mut set = PollSet::new();
    let left = prepare(batches, &waker, longest, &mut set);
    if left.is_zero() && batches.iter().any(|(_, batch)| batch.any_ready()) {
        return waker.awake(false);
    }
    let signalled = set.sleep(&waker, left.as_micros().div_ceil(1000) as u64);
    waker.awake(signalled);
    batches.iter().for_each(|(rpc, batch)| batch.cut_silent(rpc));
}

/// The lanes that they wait on, each once.
fn lanes_of<'a>(batches: &'a [(&Rpc, &mut Batch)]) -> SmallVec<[&'a Arc<Lane>; POLLED_INLINE]> {
    let mut lanes: SmallVec<[&Arc<Lane>; POLLED_INLINE]> = SmallVec::new();
    for lane in batches.iter().flat_map(|(_, batch)| batch.lanes_waited_on()) {
        if !lanes.iter().any(|known| Arc::ptr_eq(known, lane)) {
            lanes.push(lane);
        }
    }
    lanes
}

/// Lets all lanes that they wait on send and receive, each once. Frees slots of requests that nobody waits for.
pub fn progress(batches: &[(&Rpc, &mut Batch)]) {
    let mut last: Option<&Rpc> = None;
    for (rpc, _) in batches {
        if !last.is_some_and(|last| std::ptr::eq(last, *rpc)) {
            reap_ready(rpc);
        }
        last = Some(*rpc);
    }
    lanes_of(batches).iter().for_each(|lane| lane.progress());
}

/// Prepares a sleep: from here on this thread is woken for replies that others receive. Adds the lanes to
/// `set`, and says how long to sleep at most; not at all where a reply is there.
fn prepare(
    batches: &[(&Rpc, &mut Batch)],
    waker: &Arc<Waker>,
    longest: Option<Duration>,
    set: &mut PollSet,
) -> Duration {
    let now = Instant::now();
    let wake_times = batches.iter().map(|(rpc, batch)| batch.prepare_sleep(waker, now, &rpc.options));
    let wake_at = wake_times.chain(longest.map(|longest| now + longest)).min().unwrap_or(now);
    let lanes = lanes_of(batches);
    lanes.iter().for_each(|lane| lane.flush());
    lanes.iter().for_each(|lane| lane.prepare_sleep());
    waker.about_to_sleep();
    if batches.iter().any(|(_, batch)| batch.any_ready()) {
        return Duration::ZERO;
    }
    lanes.iter().for_each(|lane| set.add(lane.fd(), lane.wants_write()));
    wake_at.saturating_duration_since(now)
}

/// For a program with an event loop of its own: adds to `set` what this thread is to wait for with `poll(2)`
/// or the like, and says for how long at most. After that wait it calls [`after_poll`], and looks at its
/// batches.
pub fn before_poll(batches: &[(&Rpc, &mut Batch)], set: &mut Vec<libc::pollfd>) -> Duration {
    let waker = Waker::current();
    let mut lanes = PollSet::new();
    let longest = deadline::is_looked_after().then_some(LOOK_EVERY);
    let left = prepare(batches, &waker, longest, &mut lanes);
    set.extend(lanes.entries(&waker));
    waker.longest_sleep(left)
}

/// See [`before_poll`].
pub fn after_poll(batches: &[(&Rpc, &mut Batch)]) {
    Waker::current().awake(true);
    progress(batches);
    batches.iter().for_each(|(rpc, batch)| batch.cut_silent(rpc));
}

impl Drop for Batch {
    /// Memory of requests that are under way must not be given back to its owner before they are over.
    fn drop(&mut self) {
        while self.calls.iter().any(Call::lends) {
            self.progress();
            self.lanes_waited_on().for_each(|lane| lane.prepare_sleep());
            if !self.calls.iter().any(Call::lends) {
                return;
            }
            let now = Instant::now();
            for call in self.calls.iter().filter(|call| call.lends() && call.is_over_at(now)) {
                if let Some((lane, _, since)) = call.sent() {
                    let silent_since = lane.silent_since().max(since);
                    if now.saturating_duration_since(silent_since) >= DROP_PATIENCE {
                        lane.give_up("no answer to a request that nobody waits for any more");
                    }
                }
            }
            let waker = Waker::current();
            let mut set = PollSet::new();
            self.lanes_waited_on().for_each(|lane| set.add(lane.fd(), lane.wants_write()));
            const LOOK_AGAIN_MS: u64 = 100;
            let signalled = set.sleep(&waker, LOOK_AGAIN_MS);
            waker.awake(signalled);
        }
    }
}

thread_local! {
    /// Waits in which this thread does not watch, now and after the next time that it did not help.
    static NOT_WATCHING: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

const NOT_WATCHING_MAX: u32 = 64;

fn watching_helps() -> bool {
    let (left, step) = NOT_WATCHING.get();
    NOT_WATCHING.set((left.saturating_sub(1), step));
    left == 0
}

fn note_watching(helped: bool) {
    let (_, step) = NOT_WATCHING.get();
    let step = if helped { 0 } else { (step * 2).clamp(1, NOT_WATCHING_MAX) };
    NOT_WATCHING.set((step, step));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    pub(super) fn watching_stops_where_it_does_not_help_and_is_tried_again() {
        NOT_WATCHING.set((0, 0));
        assert!(watching_helps());
        let mut tries = 0;
        for _ in 0..1000 {
            if watching_helps() {
                tries += 1;
                note_watching(false);
            }
        }
        assert!((10..40).contains(&tries), "{tries}");
        note_watching(true);
        assert!(watching_helps() && watching_helps());
    }
}
