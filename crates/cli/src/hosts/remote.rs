//! Commands on other hosts, by ssh.
//!
//! A script goes to `sh -s` on its standard input: nothing of it is on a command line, so that keys in it are seen by nobody, and
//! the login shell of the user does not matter.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The command that runs another one on a host, whose name comes after it. No question may come up: nobody is asked.
const SSH_DEFAULT: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15";
/// Hosts that are asked at the same time.
const AT_ONCE: usize = 32;
/// The last lines of what failed on a host, for a message.
const LINES_SHOWN: usize = 6;

/// The words of a command that runs another one on a host.
pub fn ssh_words(command: Option<&str>) -> Vec<String> {
    command.unwrap_or(SSH_DEFAULT).split_whitespace().map(str::to_string).collect()
}

/// The way to a host.
#[derive(Debug, Clone, Copy)]
pub struct Remote<'a> {
    /// The command, in words.
    pub ssh: &'a [String],
    /// The host's name.
    pub host: &'a str,
}

impl Remote<'_> {
    fn command(&self, command: &str) -> Result<Command> {
        let (program, words) = self.ssh.split_first().context("the command of --ssh is empty")?;
        let mut ssh = Command::new(program);
        ssh.args(words).arg(self.host).arg(command);
        ssh.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(ssh)
    }

    fn end(&self, output: Output) -> Result<String> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        match lines.len() {
            0 => bail!("{} says nothing and ends with {}", self.ssh[0], output.status),
            count => {
                let last = lines[count.saturating_sub(LINES_SHOWN)..].join("; ");
                bail!("{}", last.trim_start_matches("weft: "))
            }
        }
    }

    /// Runs a script. Returns what it prints.
    ///
    /// # Errors
    /// The host cannot be reached, or the script fails: with what it said.
    pub fn script(&self, text: &str) -> Result<String> {
        let mut ssh = self.command("sh -s")?;
        let mut child =
            ssh.stdin(Stdio::piped()).spawn().with_context(|| format!("cannot run {}", self.ssh[0]))?;
        let mut input = child.stdin.take().expect("it is a pipe");
        // A host that fails early does not read all of it; why it fails is in its output.
        let _ = input.write_all(text.as_bytes());
        drop(input);
        self.end(child.wait_with_output()?)
    }

    /// Runs a command with a file as its standard input.
    ///
    /// # Errors
    /// As of [`script`](Remote::script).
    pub fn feed(&self, command: &str, file: &Path) -> Result<String> {
        let input = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut ssh = self.command(command)?;
        self.end(ssh.stdin(input).output().with_context(|| format!("cannot run {}", self.ssh[0]))?)
    }
}

/// Does the same for all, many at a time. The results are in the order of `items`.
pub fn on_each<T: Sync, R: Send>(items: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..items.len().min(AT_ONCE) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = act(item);
                    done.lock().expect("no thread panics with it").push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A word for a shell: quoted, whatever is in it.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a "host" that is this one.
    fn script(text: &str) -> Result<String> {
        let ssh = ["sh", "-c", "exec sh -c \"$2\"", "-"].map(str::to_string);
        Remote { ssh: &ssh, host: "a" }.script(text)
    }

    #[test]
    fn a_script_says_what_it_prints_or_why_it_fails() {
        assert_eq!(script("echo a; echo b >&2").unwrap(), "a\n");
        assert_eq!(script("echo 'weft: no room' >&2; exit 3").unwrap_err().to_string(), "no room");
        assert!(script("exit 3").unwrap_err().to_string().contains("exit status: 3"));
        assert!(Remote { ssh: &[], host: "a" }.script("").is_err());
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        for word in ["a", "a b", "it's", "$HOME `x` \"\\", ""] {
            assert_eq!(script(&format!("printf %s {}", quoted(word))).unwrap(), word);
        }
    }

    #[test]
    fn results_are_in_order() {
        let items: Vec<_> = (0..100).collect();
        assert_eq!(
            on_each(&items, |number| number * 2),
            (0..100).map(|number| number * 2).collect::<Vec<_>>()
        );
        assert!(on_each(&[0u8; 0], |_| ()).is_empty());
    }
}
