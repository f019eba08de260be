//! One request of the kernel for the log: its id, how it ended, and whom it waited for where it was slow.

use crate::kernel::answer::{Answer, Later};
use crate::metrics::Metrics;
use crate::outcome::{Errno, Outcome};
use std::cell::Cell;
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_fuse_wire::Header;
use weft_log::{Budget, coarse_ms};

/// Lines in a minute.
const LINES_PER_MINUTE: u32 = 30;
static BUDGET: Budget = Budget::new(LINES_PER_MINUTE);

/// A request that is being served.
pub(crate) struct Served {
    begun_ms: u64,
    /// Where it is to be told.
    begun: Option<Instant>,
    /// When its reply left.
    replied_ms: Cell<Option<u64>>,
    errno: Cell<i32>,
    replied_bytes: Cell<usize>,
    /// It needs no reply, or another thread gives it.
    handed_on: Cell<bool>,
}

impl Served {
    /// It begins now. `timed`: somebody counts how long it takes.
    pub(crate) fn begin(timed: bool) -> Served {
        Served {
            begun_ms: coarse_ms(),
            begun: (timed || tracing::enabled!(tracing::Level::DEBUG)).then(Instant::now),
            replied_ms: Cell::new(None),
            errno: Cell::new(0),
            replied_bytes: Cell::new(0),
            handed_on: Cell::new(false),
        }
    }

    /// `answer`, which is noted when it is given.
    pub(crate) fn answer<'a, A: Answer>(&'a self, answer: A) -> Noted<'a, A> {
        Noted { answer, served: self }
    }

    fn replied(&self, errno: i32, bytes: usize) {
        self.replied_ms.set(Some(coarse_ms()));
        self.errno.set(errno);
        self.replied_bytes.set(bytes);
    }

    /// Whether this thread has replied, or does not have to.
    pub(crate) fn is_in_good_hands(&self) -> bool {
        self.replied_ms.get().is_some() || self.handed_on.get()
    }

    /// Notes an error that the kernel is about to get, because the serving ended without a reply.
    pub(crate) fn failed(&self, errno: i32) {
        self.replied(errno, 0);
    }

    /// Counts it, if it is over.
    pub(crate) fn count(&self, metrics: &Metrics, name: &'static str) {
        let (Some(_), Some(begun)) = (self.replied_ms.get(), self.begun) else { return };
        metrics.done(name, self.errno.get(), begun.elapsed());
        if name == "read" {
            metrics.read(self.replied_bytes.get());
        }
    }

    /// It is over, unless another thread is to reply. From `slow_ms` on it was slow; 0: it never is.
    pub(crate) fn end(self, client: &Client, header: &Header, name: &'static str, slow_ms: u64, trace: u64) {
        let Some(replied_ms) = self.replied_ms.get() else { return };
        let (ino, pid, errno) = (header.node, header.pid, self.errno.get());
        if let Some(begun) = self.begun.filter(|_| tracing::enabled!(tracing::Level::DEBUG)) {
            let us = begun.elapsed().as_micros() as u64;
            tracing::debug!(call = name, ino, pid, errno, us, trace, "done");
        }
        let took_ms = replied_ms - self.begun_ms;
        if slow_ms == 0 || took_ms < slow_ms {
            return;
        }
        let Some(left_out) = BUDGET.take() else { return };
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = format!("{}({pid})", program.trim_end());
        let waits = client.servers_waited_for();
        let waited = match waits.is_empty() {
            true => "it waited for no server".to_owned(),
            false => {
                let wait = |(server, wait): &(String, Duration)| format!("{server} {} ms", wait.as_millis());
                format!("it waited for {}", waits.iter().map(wait).collect::<Vec<_>>().join(", "))
            }
        };
        let more = match left_out {
            0 => String::new(),
            count => format!("; {count} more since the last such line"),
        };
        tracing::warn!(
            call = name,
            ino,
            program,
            errno,
            took_ms,
            trace,
            "slow system call: {name} took {took_ms} ms: {waited}{more}"
        );
    }
}

/// See [`Served::answer`].
pub(crate) struct Noted<'a, A> {
    answer: A,
    served: &'a Served,
}

impl<A: Answer> Answer for Noted<'_, A> {
    fn body(&mut self) -> &mut [u8] {
        self.answer.body()
    }

    fn send(self, outcome: Outcome<usize>) {
        let (errno, bytes) = outcome.as_ref().map_or_else(|Errno(errno)| (*errno, 0), |bytes| (0, *bytes));
        self.answer.send(outcome);
        self.served.replied(errno, bytes);
    }

    fn send_data(self, data: &[u8]) {
        self.answer.send_data(data);
        self.served.replied(0, data.len());
    }

    fn at_once(&mut self) {
        self.answer.at_once();
    }

    fn none(self) {
        self.served.handed_on.set(true);
        self.answer.none();
    }

    fn later(self) -> Later {
        self.served.handed_on.set(true);
        self.answer.later()
    }
}
