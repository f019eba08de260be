//! When the metadata server is told that files are closed.
//!
//! The kernel waits for nobody at the last close of a file, and what was written is reported before (`flush`). So the first file that
//! is closed in a while is closed at once, and those that follow it closely go together:
//!
//! ```text
//!   release  a │ b  c  d  …  │          e
//!   Close    a │             │ b c d …  e       sixteen of them, or what there is after GATHERING
//!              └─ GATHERING ─┘
//! ```
//!
//! What waits, for how long at most and what may not wait is [`File::close_later`]'s business. Here is only the clock: a thread that
//! sends what is left, for the library has none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_client::{Client, Error, File};

/// How long closed files are gathered.
const GATHERING: Duration = Duration::from_millis(2);
const STACK_BYTES: usize = 256 << 10;

/// The closed files of a mount.
pub(crate) struct Closing {
    client: Client,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// When files were last sent, or were to be.
    sent_at: Instant,
    /// Some are waiting, which the thread is to send.
    waiting: bool,
    ended: bool,
}

impl Closing {
    /// Of a mount with this client.
    pub(crate) fn new(client: &Client) -> Arc<Closing> {
        let sent_at = Instant::now();
        let state = Mutex::new(State { sent_at, waiting: false, ended: false });
        Arc::new(Closing { client: client.clone(), state, changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that sends what waits.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let this = self.clone();
        let thread = std::thread::Builder::new().name("weft-closing".into()).stack_size(STACK_BYTES);
        thread.spawn(move || this.send_in_time()).map(drop)
    }

    /// Closes a file.
    ///
    /// # Errors
    /// If what was written could not be reported.
    pub(crate) fn close(&self, file: File) -> Result<(), Error> {
        if file.close_later()? == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        if state.sent_at.elapsed() >= GATHERING || state.ended {
            state.sent_at = Instant::now();
            drop(state);
            self.client.send_closes();
        } else if !std::mem::replace(&mut state.waiting, true) {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Sends what waits, and lets nothing wait from now on.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
        self.client.send_closes();
    }

    fn send_in_time(&self) {
        let mut state = self.lock();
        loop {
            state = self
                .changed
                .wait_while(state, |state| !state.waiting && !state.ended)
                .unwrap_or_else(PoisonError::into_inner);
            if state.ended {
                return;
            }
            let due = state.sent_at + GATHERING;
            drop(state);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            state = self.lock();
            (state.waiting, state.sent_at) = (false, Instant::now());
            drop(state);
            self.client.send_closes();
            state = self.lock();
        }
    }
}
