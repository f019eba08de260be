//! Whether the servers of a cluster are ready.

use super::directory::{log_of, url_of};
use super::ports;
use super::run_state::find;
use anyhow::Result;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, Url};
use weft_server::config::Member;
use weft_server::{CLIENT_KEY_FILE, ClusterConfig, ServerConfig};

/// How long servers have to become ready.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often that is checked.
pub(super) const READY_POLL: Duration = Duration::from_millis(10);

/// The report of a server in its log while it opens its storage. After a crash, or with very many files, that takes time.
pub const OPENING: &str = "is still opening its storage";
/// How often a server says so.
pub const OPENING_EVERY: Duration = Duration::from_secs(5);
/// An older report does not count: the server may hang.
const OPENING_FRESH: Duration = Duration::from_secs(15);
/// How often the progress is printed.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How often logs are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The part of a log in which its last line is looked for.
const TAIL_BYTES: u64 = 4096;

/// How long to wait for servers: [`READY_TIMEOUT`], again and again as long as one of them reports that it is opening its storage.
pub(super) struct Patience {
    deadline: Instant,
    look_at: Instant,
    tell_at: Instant,
}

impl Patience {
    pub(super) fn new() -> Patience {
        let now = Instant::now();
        Patience { deadline: now + READY_TIMEOUT, look_at: now + LOOK_EVERY, tell_at: now + TELL_EVERY }
    }

    /// Whether to go on waiting for these servers, which are not ready for this reason. Tells the user now and then.
    pub(super) fn lasts(&mut self, dir: &Path, names: &[String], reason: &str) -> bool {
        let now = Instant::now();
        if now < self.look_at {
            return true;
        }
        self.look_at = now + LOOK_EVERY;
        let report = |name: &String| Some(format!("{name} {}", opening_report(&log_of(dir, name))?));
        let opening = names.iter().find_map(report);
        if opening.is_some() {
            self.deadline = now + READY_TIMEOUT;
        }
        if now >= self.tell_at {
            self.tell_at = now + TELL_EVERY;
            eprintln!("weft: waiting: {}", opening.as_deref().unwrap_or(reason));
        }
        now < self.deadline
    }
}

/// The report of a server, if the newest line of its log says that it is opening its storage.
fn opening_report(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let meta = file.metadata().ok()?;
    if meta.modified().ok()?.elapsed().unwrap_or_default() > OPENING_FRESH {
        return None;
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let last = tail.trim_end().lines().next_back()?;
    last.find(OPENING).map(|at| last[at..].to_owned())
}

/// Checks whether servers are ready.
pub(super) struct Readiness<'a> {
    config: &'a ClusterConfig,
    url: Url,
    /// `None` if it can only be checked whether servers listen: without a client key, or if some servers are
    /// on other machines, which may not run.
    options: Option<ConnectOptions>,
}

impl Readiness<'_> {
    pub(super) fn new<'a>(config: &'a ClusterConfig, dir: &Path) -> Result<Readiness<'a>> {
        let key_file = dir.join(CLIENT_KEY_FILE);
        let can_ask =
            key_file.exists() && !config.servers.iter().map(Member::Server).any(ports::is_elsewhere);
        let key = can_ask.then(|| weft_client::read_key_file(&key_file)).transpose()?;
        let options = key.map(|key| ConnectOptions {
            key: Some(key),
            retry_timeout_ms: 0,
            ..ConnectOptions::default()
        });
        Ok(Readiness { config, url: Url::parse(&url_of(config))?, options })
    }

    /// Why one of these servers is not ready.
    pub(super) fn lacks(&self, names: &[String]) -> Option<String> {
        let (gateways, servers): (Vec<_>, Vec<_>) = names
            .iter()
            .cloned()
            .partition(|name| matches!(self.config.member(name), Ok(Member::Gateway(_))));
        let lacks_servers = if servers.is_empty() { None } else { self.servers_lack(&servers) };
        lacks_servers.or_else(|| self.does_not_listen(&gateways))
    }

    /// The same of servers, which can be asked.
    fn servers_lack(&self, names: &[String]) -> Option<String> {
        let Some(options) = &self.options else { return self.does_not_listen(names) };
        match Client::connect(&self.url, options.clone()) {
            Ok(client) => {
                let answers = client.server_status(false).into_iter();
                let mut meant = answers.filter(|(server, _)| names.contains(&server.name));
                meant.find_map(|(_, answer)| answer.err()).map(|error| error.to_string())
            }
            Err(error) if self.config.meta_servers().any(|meta| self.is_awaited(meta, names)) => {
                Some(error.to_string())
            }
            Err(_) => self.does_not_listen(names),
        }
    }

    /// Whether a server runs or is being started.
    fn is_awaited(&self, server: &ServerConfig, names: &[String]) -> bool {
        names.contains(&server.name) || !matches!(find(self.config, None, Member::Server(server)), Ok(None))
    }

    fn does_not_listen(&self, names: &[String]) -> Option<String> {
        let meant = |member: &Member<'_>| names.iter().any(|name| name == member.name());
        self.config.members().filter(meant).find_map(|member| {
            let address = &member.addresses()[0];
            let deaf = |error| format!("{} does not listen at {address}: {error}", member.name());
            TcpStream::connect(address).err().map(deaf)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_a_fresh_last_line_is_a_report() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        assert_eq!(opening_report(&log), None);
        let report = format!("2027-01-31 meta0: {OPENING}, 5 s so far\n");
        std::fs::write(&log, "x".repeat(10_000) + "\n" + &report).expect("there is room");
        assert_eq!(opening_report(&log), Some(format!("{OPENING}, 5 s so far")));
        let mut file = File::options().append(true).open(&log).expect("it is ours");
        writeln!(file, "serves").expect("there is room");
        assert_eq!(opening_report(&log), None);
        file.write_all(report.as_bytes()).expect("there is room");
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        file.set_modified(hour_ago).expect("it is ours");
        assert_eq!(opening_report(&log), None);
    }
}
