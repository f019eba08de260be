//! Processes that lock as a test tells them (`src/bin/weft-locker.rs` has the language).

use crate::{end_with_parent, target_dir, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longest time for an answer, through a restart of a server with its time of grace.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The program, which cargo builds with the tests.
pub fn weft_locker() -> PathBuf {
    target_dir().join("weft-locker")
}

/// A running one. Dies with the thread that started it.
#[derive(Debug)]
pub struct Locker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Default for Locker {
    fn default() -> Self {
        Locker::start()
    }
}

impl Locker {
    /// Starts one that has nothing open.
    pub fn start() -> Locker {
        Locker::start_by(Command::new(weft_locker()))
    }

    /// The same, by a command that becomes the program.
    pub fn start_by(mut command: Command) -> Locker {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_parent(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, answers) = channel();
        let out = child.stdout.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let orders = child.stdin.take();
        Locker { child, orders, answers }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something, and does not wait for it.
    pub fn send(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("it runs");
        writeln!(orders, "{order}").expect("it listens");
    }

    /// What it says next.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.answers.recv_timeout(ANSWER_TIMEOUT).expect("it answers in time")
    }

    /// Whether it has said nothing more so far.
    pub fn is_busy(&mut self) -> bool {
        self.answers.try_recv().is_err()
    }

    /// Tells it to do something, and returns what it says to that.
    #[track_caller]
    pub fn ask(&mut self, order: &str) -> String {
        self.send(order);
        self.answer()
    }

    /// As [`ask`](Locker::ask), for what must succeed.
    #[track_caller]
    pub fn must(&mut self, order: &str) {
        assert_eq!(self.ask(order), "ok", "{order}");
    }

    /// As [`ask`](Locker::ask), for what must fail with an errno.
    #[track_caller]
    pub fn must_fail(&mut self, order: &str, errno: i32) {
        assert_eq!(self.ask(order), format!("errno {errno}"), "{order}");
    }

    /// Ends it with SIGKILL, and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        let mut gone = false;
        wait_until("a killed process ends", ANSWER_TIMEOUT, || {
            gone = gone || self.child.try_wait().expect("a child can be waited for").is_some();
            gone
        });
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
