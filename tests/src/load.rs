//! Client processes that work until they are told to stop, and what was acknowledged to them.

use crate::{Served, end_with_parent, target_dir, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time without any progress of a client, through a restart of its server.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(150);

/// The program, which cargo builds with the tests.
pub fn weft_load() -> PathBuf {
    target_dir().join("weft-load")
}

/// A running `weft-load` (see its source for what it can do). Dies with the thread that started it.
#[derive(Debug)]
pub struct Load {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    errors: Arc<Mutex<String>>,
}

impl Load {
    /// Starts one on a cluster: what to do, with which transport, and with which further words.
    pub fn start(cluster: &Served, what: &str, transport: &str, words: &[&str]) -> Load {
        Load::start_through(Command::new(weft_load()), cluster, what, transport, words)
    }

    /// As [`start`](Load::start), by a command that runs [`weft_load`] with further words.
    pub fn start_through(
        mut command: Command,
        cluster: &Served,
        what: &str,
        transport: &str,
        words: &[&str],
    ) -> Load {
        let url = format!("{}?transport={transport}", cluster.url());
        command.args([what, &url]).arg(cluster.key_file()).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_parent(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (lines, errors) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let (out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (into_lines, into_errors) = (lines.clone(), errors.clone());
        let readers = vec![
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    into_lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            }),
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = err.read_to_string(&mut text);
                *into_errors.lock().unwrap_or_else(PoisonError::into_inner) = text;
            }),
        ];
        Load { child, lines, readers, errors }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that was acknowledged so far.
    pub fn acknowledged(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has ended, whyever.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits until `more` further operations were acknowledged.
    #[track_caller]
    pub fn wait_progress(&mut self, more: usize) {
        let count = |load: &Load| load.lines.lock().unwrap_or_else(PoisonError::into_inner).len();
        let wanted = count(self) + more;
        wait_until("a client goes on", PROGRESS_TIMEOUT, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.join_readers();
                panic!("a client ended with {status}: {}", self.error_text());
            }
            count(self) >= wanted
        });
    }

    /// Lets it end in order; returns all that was acknowledged.
    #[track_caller]
    pub fn finish(mut self) -> Vec<String> {
        let status = self.end();
        assert!(status.success(), "a client ended with {status}: {}", self.error_text());
        self.acknowledged()
    }

    /// Waits for its end; returns its status and what it said on standard error.
    pub fn end_and_error(mut self) -> (ExitStatus, String) {
        let status = self.end();
        (status, self.error_text())
    }

    /// Ends it with SIGKILL; returns all that was acknowledged.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("a child can be killed");
        self.end();
        self.acknowledged()
    }

    fn end(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("a child can be waited for");
        self.join_readers();
        status
    }

    fn join_readers(&mut self) {
        self.readers.drain(..).for_each(|reader| reader.join().expect("it only reads"));
    }

    fn error_text(&self) -> String {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
