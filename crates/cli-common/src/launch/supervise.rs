//! Restarts servers that die.
//!
//! ```text
//!   a server ends ─► stopped by `weft down --only`, or ended in order ─► stays stopped
//!                 ─► exit code 78: it refuses to start                ─► given up at once
//!                 ─► anything else ─► restarted after 1, 2, 4 … 30 s; 5 deaths within a minute: given up
//! ```
//!
//! run.json says which servers should run. Other commands change it, and send SIGUSR1 to make this process
//! read it. A server that is given up is reported and left stopped. The others keep running, so that their
//! data stays available.

use super::cluster::{Ended, LocalCluster};
use super::directory::log_of;
use super::locking::lock;
use super::options::Lifetime;
use super::run_state::{RunState, find};
use super::signals::BlockedSignals;
use crate::{PERMANENT, Reported};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};
use weft_server::ClusterConfig;

const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// A server that ran this long was healthy. Earlier deaths do not count.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
const DEATHS_MAX: usize = 5;

/// The deaths of one server.
#[derive(Debug, Default)]
struct Deaths {
    recent: VecDeque<Instant>,
    next_delay: Option<Duration>,
}

impl Deaths {
    /// The delay before the restart; `None` to give up.
    fn count(&mut self, now: Instant, ran: Duration) -> Option<Duration> {
        let delay = if ran >= DEATHS_WITHIN { DELAY_MIN } else { self.next_delay.unwrap_or(DELAY_MIN) };
        self.next_delay = Some((2 * delay).min(DELAY_MAX));
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|death| now.duration_since(*death) >= DEATHS_WITHIN) {
            self.recent.pop_front();
        }
        (self.recent.len() < DEATHS_MAX).then_some(delay)
    }
}

fn too_often() -> String {
    format!("it died {DEATHS_MAX} times within {} s", DEATHS_WITHIN.as_secs())
}

struct Supervisor<'a> {
    cluster: LocalCluster,
    signals: &'a BlockedSignals,
    deaths: BTreeMap<String, Deaths>,
    /// The servers to restart, and when.
    due: Vec<(Instant, String)>,
    /// The signal that ends the supervisor.
    ending: Option<i32>,
    /// run.json was changed.
    look: bool,
    has_given_up: bool,
}

/// Supervises until the cluster ends or should end, and restarts servers that die. In the foreground a signal
/// stops the servers that this process started. In the background they keep running.
pub fn supervise(cluster: LocalCluster, signals: &BlockedSignals) -> Result<()> {
    let mut supervisor = Supervisor {
        cluster,
        signals,
        deaths: BTreeMap::new(),
        due: Vec::new(),
        ending: None,
        look: false,
        has_given_up: false,
    };
    while supervisor.ending.is_none() {
        for ended in supervisor.cluster.take_ended(|_| true) {
            supervisor.handle_end(&ended);
        }
        if std::mem::take(&mut supervisor.look) {
            supervisor.look_again();
        }
        supervisor.start_due();
        if supervisor.ending.is_none() && supervisor.cluster.watched.is_empty() && supervisor.due.is_empty() {
            return supervisor.end_without_servers();
        }
        supervisor.wait()?;
    }
    supervisor.end()
}

impl Supervisor<'_> {
    fn is_in_background(&self) -> bool {
        self.cluster.lifetime == Lifetime::Detached
    }

    fn log(&self, text: &str) {
        match self.is_in_background() {
            true => eprintln!("{} supervisor: {text}", weft_log::timestamp_now()),
            false => eprintln!("weft: {text}"),
        }
    }

    /// Waits for a signal, the end of a server, or the time of a restart.
    fn wait(&mut self) -> Result<()> {
        let signals = self.signals.descriptor().context("cannot wait for signals")?;
        let handles = self.cluster.watched.iter().map(|server| server.handle.as_fd());
        let mut polled: Vec<_> = std::iter::once(signals.as_fd())
            .chain(handles)
            .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let next = self.due.iter().map(|(when, _)| *when).min();
        let timeout_ms = next.map_or(-1, |when| {
            let left = when.saturating_duration_since(Instant::now());
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1)
        });
        // SAFETY: the descriptors and the array live through the call.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
        while self.take_signal(Duration::ZERO) {}
        Ok(())
    }

    /// Handles a signal, if one comes within this time.
    fn take_signal(&mut self, time: Duration) -> bool {
        match self.signals.wait_at_most(time) {
            None => return false,
            Some(libc::SIGUSR1) => self.look = true,
            Some(libc::SIGHUP) if self.is_in_background() => {
                if let Err(error) = super::background::log_to(&self.cluster.dir) {
                    self.log(&format!("{error:#}"));
                }
            }
            Some(signal) => self.ending = Some(signal),
        }
        true
    }

    /// Changes run.json. If that fails, this process continues with the state that it knows.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let dir = self.cluster.dir.clone();
        let lock = lock(&dir, &mut |time| {
            self.take_signal(time);
            self.ending.is_none()
        });
        if self.ending.is_some() {
            return None;
        }
        let read = lock.and_then(|lock| Ok((lock, RunState::load(&dir)?)));
        let _lock = match read {
            Ok((lock, state)) => {
                if let Some(state) = state {
                    self.cluster.state = state;
                }
                Some(lock)
            }
            Err(error) => {
                self.log(&format!("{error:#}"));
                None
            }
        };
        let changed = change(self);
        if let Err(error) = self.cluster.state.save(&dir) {
            self.log(&format!("{error:#}"));
        }
        Some(changed)
    }

    /// Decides whether to restart a server that has ended.
    fn handle_end(&mut self, ended: &Ended) {
        let now = Instant::now();
        let delay = self.deaths.entry(ended.name.clone()).or_default().count(now, ended.ran);
        let code = ended.status.and_then(|status| status.code());
        let decided = self.change(|this| {
            let Some(server) = this.cluster.state.server_mut(&ended.name) else {
                return ("it no longer belongs to this cluster".to_string(), None);
            };
            if server.wanted && server.process.pid != ended.pid {
                this.look = true;
                return ("it has been requested again".into(), None);
            }
            server.last_end = Some(ended.text.clone());
            if !server.wanted {
                return ("it was stopped on request".into(), None);
            }
            if code == Some(0) {
                server.wanted = false;
                return ("it was stopped on request and stays stopped".into(), None);
            }
            let why = match delay {
                _ if code == Some(i32::from(PERMANENT)) => "a restart would fail the same way".to_string(),
                Some(delay) => return (format!("it is restarted in {} s", delay.as_secs()), Some(delay)),
                None => too_often(),
            };
            server.given_up = true;
            (this.gives_up(&ended.name, &why), None)
        });
        let Some((decision, delay)) = decided else { return };
        self.log(&format!("server {} {}; {decision}", ended.name, ended.text));
        self.has_given_up |= self.cluster.state.server(&ended.name).is_some_and(|server| server.given_up);
        self.due.extend(delay.map(|delay| (now + delay, ended.name.clone())));
    }

    /// Restarts the servers that are due.
    fn start_due(&mut self) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = self.due.drain(..).partition(|(when, _)| *when <= now);
        self.due = later;
        for (_, name) in due {
            let Some(outcome) = self.change(|this| this.start(&name, true)) else { return };
            self.log_all(outcome);
        }
    }

    /// Starts servers that should run and do not: run.json, and maybe the cluster file, have changed.
    fn look_again(&mut self) {
        let outcomes = self.change(|this| {
            match ClusterConfig::load(&this.cluster.config.path) {
                Ok(config) => this.cluster.config = config,
                Err(error) => this.log(&format!("continues with the previous cluster file: {error}")),
            }
            let watched: Vec<_> = this.cluster.watched.iter().map(|server| server.name.clone()).collect();
            let servers = this.cluster.state.servers.iter();
            let missing =
                servers.filter(|server| server.wanted && !server.given_up && server.last_end.is_none());
            let missing: Vec<_> =
                missing.map(|server| server.name.clone()).filter(|name| !watched.contains(name)).collect();
            let start = |name: String| {
                this.deaths.remove(&name);
                this.due.retain(|(_, due)| *due != name);
                this.start(&name, false)
            };
            missing.into_iter().filter_map(start).collect::<Vec<_>>()
        });
        self.log_all(outcomes.into_iter().flatten());
    }

    /// Says that a server is given up, and what to do.
    fn gives_up(&self, name: &str, why: &str) -> String {
        let dir = self.cluster.dir.display();
        format!(
            "the supervisor gives up on it: {why}; when the cause is removed: weft up --dir {dir} --only {name} --detach"
        )
    }

    fn log_all(&self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.log(&text));
    }

    /// Starts a server that should run, unless somebody else has started it. The caller holds the lock, and logs
    /// what is returned once run.json says it, too: who reads the log may ask `weft status` next.
    #[must_use]
    fn start(&mut self, name: &str, is_restart: bool) -> Option<String> {
        if !self.cluster.state.server(name).is_some_and(|server| server.wanted) {
            return None;
        }
        let running =
            self.cluster.config.member(name).ok().and_then(|server| {
                find(&self.cluster.config, Some(&self.cluster.state), server).ok().flatten()
            });
        if let Some(found) = running {
            return Some(format!(
                "server {name} already runs as process {} and is not supervised, since it was started otherwise",
                found.process.pid
            ));
        }
        let spawned = self.cluster.spawn(name);
        let log = log_of(&self.cluster.dir, name);
        let server = self.cluster.state.server_mut(name)?;
        Some(match spawned {
            Ok(process) => {
                server.process = process;
                server.restarts += u32::from(is_restart);
                format!("server {name} was started as process {}; see {}", process.pid, log.display())
            }
            Err(error) => {
                let text = format!("cannot be started: {error:#}");
                server.last_end = Some(text.clone());
                let delay =
                    self.deaths.entry(name.to_string()).or_default().count(Instant::now(), Duration::ZERO);
                server.given_up = delay.is_none();
                self.has_given_up |= delay.is_none();
                self.due.extend(delay.map(|delay| (Instant::now() + delay, name.to_string())));
                let then = match delay {
                    Some(delay) => format!("it is tried again in {} s", delay.as_secs()),
                    None => self.gives_up(name, &too_often()),
                };
                format!("server {name} {text}; {then}")
            }
        })
    }

    /// Ends the supervisor if no server runs or will be restarted.
    fn end_without_servers(mut self) -> Result<()> {
        let text = "no supervised server is running any more";
        if self.is_in_background() {
            self.change(|this| this.cluster.state.supervisor = None);
            let given_up = self.cluster.state.servers.iter().filter(|server| server.given_up);
            let given_up: Vec<_> = given_up.map(|server| server.name.as_str()).collect();
            let given_up = match given_up.is_empty() {
                true => String::new(),
                false => format!(", and it has given up on {}", given_up.join(", ")),
            };
            self.log(&format!("{text}{given_up}; the supervisor ends"));
            return Ok(());
        }
        self.cluster.stop();
        match self.has_given_up {
            true => bail!("{text}"),
            false => Ok(()),
        }
    }

    fn end(mut self) -> Result<()> {
        if self.is_in_background() {
            // The command that ends this process, such as `weft down`, may still change run.json.
            self.log("ends; the servers keep running");
            return Ok(());
        }
        let failing = self.has_given_up || !self.due.is_empty();
        self.cluster.stop();
        if failing { Err(Reported.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_it_is_given_up() {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        let at = |s| start + Duration::from_secs(s);
        let died = |deaths: &mut Deaths, s| deaths.count(at(s), Duration::ZERO).map(|delay| delay.as_secs());
        for (s, delay) in [(0, Some(1)), (1, Some(2)), (3, Some(4)), (7, Some(8)), (15, None)] {
            assert_eq!(died(&mut deaths, s), delay, "at {s} s");
        }
    }

    #[test]
    fn one_that_dies_now_and_then_is_started_for_ever() {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        let mut delays = Vec::new();
        for number in 0..20 {
            let now = start + Duration::from_secs(20 * number);
            delays.push(deaths.count(now, Duration::from_secs(19)).expect("not given up").as_secs());
        }
        assert_eq!(delays[..7], [1, 2, 4, 8, 16, 30, 30]);
        // After a healthy minute it is restarted at once again.
        let now = start + Duration::from_secs(1000);
        assert_eq!(deaths.count(now, DEATHS_WITHIN), Some(DELAY_MIN));
    }
}
