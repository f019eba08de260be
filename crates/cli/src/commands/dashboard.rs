//! `weft dashboard`

use super::stats::parse_seconds;
use crate::busy_files::Paths;
use crate::dashboard::{self, Data, Gate, History};
use crate::doctor::system::{SystemFacts, states};
use crate::load::{Load, Look};
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;
use weft_client::Client;
use weft_metrics::{Endpoint, Request};
use weft_wire::limits::FIND_INODES_MAX;

/// Serves a page with servers, space, throughput, latency, clients, busy files and alarms of the last hours.
///
/// It asks the servers every few seconds, and remembers what they say for as long as it runs. The page needs nothing
/// from elsewhere.
///
/// It prints the URL of the page. The URL ends with a token, which is new at each start: who has it sees the page, with
/// paths of files, and others see nothing. Keep it to yourself. It is not encrypted on its way, so the page is for this
/// host unless you say --listen.
///
/// To see it from another host, leave `ssh -L 7480:127.0.0.1:7480 HOST` running there and open the same URL. With
/// another port, as in `-L 9000:127.0.0.1:7480`, replace the port in the URL. The page answers only under an address,
/// `localhost`, or the name that --listen gives (of 0.0.0.0, the name of this host), so that no web site can read it.
///
/// The list of clients takes an administrator's key (`weft help keys`).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Where to listen; if HOST is a name, browsers may use it.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7480")]
    listen: String,
    /// Seconds between two looks at the servers.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = parse_seconds)]
    interval: f64,
    /// How many hours are remembered: at most 4320 points, each of one look or the mean of several.
    #[arg(long, value_name = "HOURS", default_value_t = 6.0, value_parser = parse_hours)]
    hours: f64,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn parse_hours(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(hours) if (0.1..=720.0).contains(&hours) => Ok(hours),
        _ => Err("must be from 0.1 to 720 hours".into()),
    }
}

/// Serves the page.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let text = Arc::new(Mutex::new(String::new()));
    let mut watch = Watch {
        url: place.url,
        interval_s: args.interval,
        before: Look::at(&client),
        paths: Paths::new(),
        history: History::of_hours(args.hours, args.interval),
        client,
    };
    let set = |watch: &mut Watch, intervals: u64| {
        let data = watch.look(intervals)?;
        *text.lock().unwrap_or_else(PoisonError::into_inner) = data;
        anyhow::Ok(())
    };
    std::thread::sleep(FIRST_WAIT);
    let mut clock = Clock::new(Duration::from_secs_f64(args.interval));
    set(&mut watch, 1)?;
    let (served, gate) = (text.clone(), Arc::new(Gate::new(&args.listen)?));
    let gate_of_pages = gate.clone();
    let find = move |request: &Request| {
        let data = || served.lock().unwrap_or_else(PoisonError::into_inner);
        gate_of_pages.refusal(request).or_else(|| dashboard::document(&request.path, &data()))
    };
    let endpoint =
        Endpoint::serve(&args.listen, find).with_context(|| format!("cannot listen at {}", args.listen))?;
    output::print_line(gate.url(endpoint.address()))?;
    loop {
        let (wait, intervals) = clock.next(Instant::now());
        std::thread::sleep(wait);
        set(&mut watch, intervals)?;
    }
}

/// The time between the first two looks, after which there is something to show.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Moments of the same distance.
struct Clock {
    last: Instant,
    interval: Duration,
}

impl Clock {
    /// From now on.
    fn new(interval: Duration) -> Clock {
        Clock { last: Instant::now(), interval }
    }

    /// How long it is from `now` to the next moment, and how many intervals that is after the last one: more than one where a look
    /// took longer.
    fn next(&mut self, now: Instant) -> (Duration, u64) {
        let passed = now.saturating_duration_since(self.last).as_nanos() / self.interval.as_nanos().max(1);
        let intervals = u32::try_from(passed).unwrap_or(u32::MAX - 1) + 1;
        self.last += self.interval * intervals;
        (self.last.saturating_duration_since(now), intervals.into())
    }
}

/// What is watched.
struct Watch {
    client: Client,
    url: String,
    interval_s: f64,
    before: Look,
    paths: Paths,
    history: History,
}

impl Watch {
    /// Asks all servers, and says what the page shows then. The last look was that many intervals ago.
    fn look(&mut self, intervals: u64) -> Result<String> {
        let now_ms = weft_host::unix_us() / 1000;
        let now = Look::at(&self.client);
        let mut load = Load::between(&self.before, &now);
        self.paths.fill(&self.client, &mut load.files);
        let states = states(&self.client, &now, 1);
        self.before = now;
        self.history.add(now_ms, intervals, dashboard::point(&load, &states));
        let servers = dashboard::servers(&load, &states);
        let facts = SystemFacts {
            url: self.url.clone(),
            servers: Ok(states),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(serde_json::to_string(&Data {
            url: &self.url,
            now_ms,
            interval_s: self.interval_s,
            now: self.history.now(),
            capacity: load.capacity(),
            servers,
            clients: dashboard::busiest(&load),
            clients_count: load.clients.len(),
            ended: load.ended,
            internal: load.internal,
            files: load.files.into_iter().take(FIND_INODES_MAX).collect(),
            alarms: dashboard::alarms(&facts),
            history: self.history.series(),
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_on_a_grid_whatever_they_take() {
        let start = Instant::now();
        let mut clock = Clock { last: start, interval: Duration::from_secs(5) };
        let mut next = |after_ms| clock.next(start + Duration::from_millis(after_ms));
        assert_eq!(next(300), (Duration::from_millis(4700), 1));
        assert_eq!(next(5000), (Duration::from_secs(5), 1));
        assert_eq!(next(22_000), (Duration::from_secs(3), 3), "it took 12 s");
        assert_eq!(next(25_000), (Duration::from_secs(5), 1));
    }
}
