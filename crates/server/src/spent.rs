//! What a request waits for: added up while its handler runs, for the line that says why it was slow.
//!
//! ```text
//!   serving(request) ─ poll ─► CURRENT = request ─► handler … during(Part::Disk, write) … ─► request = CURRENT
//! ```
//!
//! A thread serves many requests in turns, so the one whose handler is being polled is the current one. Times come from the coarse
//! clock: they cost a few nanoseconds and are exact to a tick. What goes on at the same time (a unit comes in while the one before is
//! written) counts for both.

use pin_project_lite::pin_project;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use weft_log::coarse_ms;

/// What a request may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Confirmation,
    Clients,
    Buffers,
    Receive,
    Send,
    Turn,
    Disk,
    Sync,
    Mounts,
}

impl Part {
    const ALL: [Part; 9] = [
        Part::Confirmation,
        Part::Clients,
        Part::Buffers,
        Part::Receive,
        Part::Send,
        Part::Turn,
        Part::Disk,
        Part::Sync,
        Part::Mounts,
    ];

    fn words(self) -> &'static str {
        match self {
            Part::Confirmation => "waiting for the other servers to confirm this one's storage",
            Part::Clients => "waiting for clients that come back after a restart",
            Part::Buffers => "waiting for buffers",
            Part::Receive => "receiving data",
            Part::Send => "sending data",
            Part::Turn => "waiting for others that write there",
            Part::Disk => "disk",
            Part::Sync => "sync",
            Part::Mounts => "waiting for other mounts' acknowledgement",
        }
    }
}

/// A request that is being served.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    /// Its id in all logs.
    pub trace: u64,
    /// What it is about; 0 where that is not known.
    pub ino: u64,
    parts_ms: [u32; Part::ALL.len()],
    /// Since when it waits for each part, of the coarse clock; 0: it does not.
    since_ms: [u64; Part::ALL.len()],
}

thread_local! {
    static CURRENT: RefCell<Option<Request>> = const { RefCell::new(None) };
}

impl Request {
    /// One that has waited for nothing yet.
    pub fn new(trace: u64) -> Request {
        Request { trace, ..Request::default() }
    }

    /// Waits for this from now on.
    pub fn begin(&mut self, part: Part, now_ms: u64) {
        let since = &mut self.since_ms[part as usize];
        if *since == 0 {
            *since = now_ms;
        }
    }

    /// Does not wait for this any more.
    fn end(&mut self, part: Part) {
        self.since_ms[part as usize] = 0;
    }

    /// With what it waits for now.
    pub fn so_far(mut self, now_ms: u64) -> Request {
        for part in Part::ALL {
            let since_ms = std::mem::take(&mut self.since_ms[part as usize]);
            if since_ms > 0 {
                self.add(part, now_ms.saturating_sub(since_ms));
            }
        }
        self
    }

    #[cfg(test)]
    pub fn ms(&self, part: Part) -> u32 {
        self.parts_ms[part as usize]
    }

    /// Has waited so long for this.
    pub fn add(&mut self, part: Part, ms: u64) {
        let sum = &mut self.parts_ms[part as usize];
        *sum = sum.saturating_add(ms.min(u64::from(u32::MAX)) as u32);
    }
}

/// Where the time of a request went that took so long in all.
pub(crate) struct Account(pub Request, pub u64);

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account(request, took_ms) = self;
        let mut known_ms = 0;
        for part in Part::ALL {
            let ms = request.parts_ms[part as usize];
            if ms > 0 {
                write!(f, "{} {ms} ms, ", part.words())?;
                known_ms += u64::from(ms);
            }
        }
        write!(f, "else {} ms", took_ms.saturating_sub(known_ms))
    }
}

/// Runs the handler of `request`, and shows it to `waits` whenever it has to wait.
pub(crate) async fn serving<F: Future>(
    request: &mut Request,
    mut handler: Pin<&mut F>,
    waits: impl Fn(&Request),
) -> F::Output {
    std::future::poll_fn(|context| {
        let before = CURRENT.replace(Some(*request));
        let polled = handler.as_mut().poll(context);
        if let Some(now) = CURRENT.replace(before) {
            *request = now;
        }
        if polled.is_pending() {
            waits(request);
        }
        polled
    })
    .await
}

fn change(change: impl FnOnce(&mut Request)) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(request) = current {
            change(request);
        }
    });
}

pin_project! {
    /// See [`during`].
    pub(crate) struct During<F> {
        #[pin]
        work: F,
        part: Part,
        // `None` until it is polled.
        begun_ms: Option<u64>,
        waits: bool,
    }
}

/// Waits for `work`, which the current request needs. It is a type of its own, since an `async fn` would hold `work` twice.
pub(crate) fn during<F: Future>(part: Part, work: F) -> During<F> {
    During { work, part, begun_ms: None, waits: false }
}

impl<F: Future> Future for During<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let part = *this.part;
        let begun_ms = *this.begun_ms.get_or_insert_with(coarse_ms);
        let polled = this.work.poll(context);
        if polled.is_pending() {
            if !std::mem::replace(this.waits, true) {
                change(|request| request.begin(part, begun_ms));
            }
            return polled;
        }
        let ms = coarse_ms().saturating_sub(begun_ms);
        if *this.waits || ms > 0 {
            change(|request| {
                request.end(part);
                request.add(part, ms);
            });
        }
        polled
    }
}

/// The current request is about this inode.
pub(crate) fn note_ino(ino: u64) {
    change(|request| request.ino = ino);
}

/// The inode of the current request; 0: not known.
pub(crate) fn ino() -> u64 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |request| request.ino))
}

/// Id of the current request; 0: there is none.
pub(crate) fn trace() -> u64 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |request| request.trace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::pin::pin;
    use std::time::Duration;
    use weft_reactor::{Reactor, ReactorOptions};

    async fn handler(ino: u64, part: Part, ms: u64) -> u64 {
        note_ino(ino);
        during(part, weft_reactor::sleep(Duration::from_millis(ms))).await;
        weft_reactor::yield_now().await;
        trace()
    }

    #[test]
    fn requests_that_are_served_in_turns_keep_their_times_apart() {
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let (mut one, mut two) = (Request::new(1), Request::new(2));
            let (first, second) = (pin!(handler(7, Part::Disk, 120)), pin!(handler(8, Part::Mounts, 60)));
            let traces =
                crate::both::both(serving(&mut one, first, |_| ()), serving(&mut two, second, |_| ())).await;
            assert_eq!((traces, one.ino, two.ino, trace()), ((1, 2), 7, 8, 0));
            let spent = |request: Request, part: Part| request.parts_ms[part as usize];
            assert!(
                (100..1000).contains(&spent(one, Part::Disk)) && spent(one, Part::Mounts) == 0,
                "{one:?}"
            );
            assert!((40..1000).contains(&spent(two, Part::Mounts)) && spent(two, Part::Disk) == 0, "{two:?}");
        });
    }

    #[test]
    fn a_request_that_waits_says_what_for() {
        let first = Cell::new(None);
        let note = |request: &Request| first.set(first.get().or(Some(*request)));
        let mut request = Request::new(1);
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            serving(&mut request, pin!(handler(7, Part::Sync, 60)), note).await;
        });
        let waiting = first.get().unwrap();
        assert_eq!((waiting.ino, waiting.ms(Part::Sync)), (7, 0));
        let so_far_ms = waiting.so_far(coarse_ms() + 1000).ms(Part::Sync);
        assert!((1040..2000).contains(&so_far_ms), "{so_far_ms}");
        assert_eq!(request.so_far(coarse_ms() + 1000).ms(Part::Sync), request.ms(Part::Sync), "it is over");
    }

    #[test]
    fn an_account_adds_up() {
        let mut request = Request::new(1);
        request.add(Part::Disk, 1800);
        request.add(Part::Receive, 12);
        assert_eq!(Account(request, 1832).to_string(), "receiving data 12 ms, disk 1800 ms, else 20 ms");
        assert_eq!(Account(Request::new(1), 5).to_string(), "else 5 ms");
    }
}
