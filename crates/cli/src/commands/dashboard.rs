//! `weft dashboard`

use super::stats::parse_seconds;
use crate::busy_files::Paths;
use crate::dashboard::{self, Data, Gate, History, Point};
use crate::doctor::system::{ServerState, SystemFacts, states};
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
    /// Where to listen. A name here is one that browsers may use.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7480")]
    listen: String,
    /// Seconds between two looks at the servers.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = parse_seconds)]
    interval: f64,
    /// How many hours are remembered.
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
        history: History::of_hours(args.hours),
        client,
    };
    let mut wait = Duration::from_millis(200);
    let set = |watch: &mut Watch| {
        let data = watch.look()?;
        *text.lock().unwrap_or_else(PoisonError::into_inner) = data;
        anyhow::Ok(())
    };
    std::thread::sleep(wait);
    set(&mut watch)?;
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
        let begun = Instant::now();
        std::thread::sleep(wait);
        set(&mut watch)?;
        wait = Duration::from_secs_f64(args.interval).saturating_sub(begun.elapsed() - wait);
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
    /// Asks all servers, and says what the page shows then.
    fn look(&mut self) -> Result<String> {
        let now = Look::at(&self.client);
        let mut load = Load::between(&self.before, &now);
        self.paths.fill(&self.client, &mut load.files);
        let states = states(&self.client, &now, 1);
        self.before = now;
        let now_s = weft_host::unix_s();
        self.history.add(point(now_s, &load, &states));
        let servers = dashboard::servers(&load, &states);
        let facts = SystemFacts {
            url: self.url.clone(),
            servers: Ok(states),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(serde_json::to_string(&Data {
            url: &self.url,
            now_s,
            interval_s: self.interval_s,
            servers,
            clients: dashboard::busiest(&load),
            clients_count: load.clients.len(),
            files: load.files.into_iter().take(FIND_INODES_MAX).collect(),
            alarms: dashboard::alarms(&facts),
            history: &self.history,
        })?)
    }
}

fn point(at_s: u64, load: &Load, states: &[ServerState]) -> Point {
    let total = load.total();
    let slowest = |role: &str| {
        let of_role =
            states.iter().filter(|state| state.status.as_ref().is_ok_and(|status| status.role == role));
        let times = of_role.filter_map(|state| state.round_trip).map(|time| time.as_secs_f64() * 1e6);
        times.fold(0.0, f64::max)
    };
    Point {
        at_s,
        operations_per_s: total.operations_per_s,
        errors_per_s: total.errors_per_s,
        read_bytes_per_s: total.read_bytes_per_s,
        written_bytes_per_s: total.written_bytes_per_s,
        meta_us: slowest("meta"),
        io_us: slowest("io"),
    }
}
