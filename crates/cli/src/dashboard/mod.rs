//! The page of `weft dashboard`: what it shows, and its history.
//!
//! ```text
//!   every few seconds: all servers are asked ─► Load, alarms ─► History ─► one JSON document ─┐
//!   a browser: GET /  the page, once;  GET /data.json  again and again  ◄── Gate ◄────────────┘
//! ```
//!
//! The page needs nothing from elsewhere, and shows text of servers and clients as text.

mod gate;
mod history;

pub use gate::Gate;
pub use history::{History, Point, Series};

use crate::busy_files::FileLoad;
use crate::doctor::system::{ServerState, SystemFacts};
use crate::doctor::{Finding, Findings, Level};
use crate::load::{Capacity, ClientLoad, EndedLoad, InternalLoad, Load, ServerLoad};
use serde::Serialize;
use weft_metrics::{Document, OK};

/// Clients in the document, the busiest first.
const CLIENTS_MAX: usize = 50;

/// What the page shows. Everything in it is of the same look.
#[derive(Debug, Serialize)]
pub struct Data<'a> {
    /// The file system.
    pub url: &'a str,
    /// When servers were asked, in milliseconds since 1970.
    pub now_ms: u64,
    /// Seconds between two looks.
    pub interval_s: f64,
    /// All servers together; the last point of the history.
    pub now: Point,
    /// Space for the data of files.
    pub capacity: Capacity,
    /// All servers.
    pub servers: Vec<Server>,
    /// The busiest clients.
    pub clients: Vec<ClientLoad>,
    /// All clients.
    pub clients_count: usize,
    /// What clients did that have ended since the last look.
    pub ended: Vec<EndedLoad>,
    /// Connections that are no client's.
    pub internal: InternalLoad,
    /// The busiest files.
    pub files: Vec<FileLoad>,
    /// What is not as it should be, the worst first.
    pub alarms: Vec<Finding>,
    /// The last hours.
    pub history: Series,
}

/// A server.
#[derive(Debug, Serialize)]
pub struct Server {
    /// What it does.
    #[serde(flatten)]
    pub load: ServerLoad,
    /// Time since its start; 0 if it does not answer.
    pub uptime_ms: u64,
    /// Its version.
    pub version: String,
    /// Time of a round trip of an empty request.
    pub round_trip_us: Option<f64>,
}

/// The servers, with what each does.
pub fn servers(load: &Load, states: &[ServerState]) -> Vec<Server> {
    let of = |load: &ServerLoad| {
        let state = states.iter().find(|state| state.name == load.server);
        let status = state.and_then(|state| state.status.as_ref().ok());
        Server {
            load: load.clone(),
            uptime_ms: status.map_or(0, |status| status.uptime_ms),
            version: status.map_or(String::new(), |status| status.version.clone()),
            round_trip_us: state.and_then(|state| state.round_trip).map(|time| time.as_secs_f64() * 1e6),
        }
    };
    load.servers.iter().map(of).collect()
}

/// The busiest clients.
pub fn busiest(load: &Load) -> Vec<ClientLoad> {
    load.clients.iter().take(CLIENTS_MAX).cloned().collect()
}

/// All servers together.
pub fn point(load: &Load, states: &[ServerState]) -> Point {
    let total = load.total();
    let slowest = |role: &str| {
        let of_role = states.iter().filter(|state| state.role == role);
        of_role.filter_map(|state| state.round_trip).map(|time| time.as_secs_f64() * 1e6).reduce(f64::max)
    };
    Point {
        operations_per_s: total.operations_per_s,
        errors_per_s: total.errors_per_s,
        read_bytes_per_s: total.read_bytes_per_s,
        written_bytes_per_s: total.written_bytes_per_s,
        meta_us: slowest("meta"),
        io_us: slowest("io"),
    }
}

/// What `weft doctor` would say of the file system that is more than a note.
pub fn alarms(facts: &SystemFacts) -> Vec<Finding> {
    let mut findings = Findings::default();
    facts.judge(&mut findings);
    let mut alarms: Vec<_> = findings.0.into_iter().filter(|one| one.level >= Level::Warning).collect();
    alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.level));
    alarms
}

/// The document of a path, with the present data.
pub fn document(path: &str, data: &str) -> Option<Document> {
    match path {
        "/" => Some(Document {
            status: OK,
            kind: "text/html; charset=utf-8",
            head: "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                   connect-src 'self'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\
                   Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n",
            text: include_str!("page.html").to_owned(),
        }),
        "/data.json" => Some(Document {
            status: OK,
            kind: "application/json",
            head: "Cache-Control: no-store\r\n",
            text: data.to_owned(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else() {
        let page = document("/", "").unwrap();
        assert!(
            !page.text.contains("http://")
                && !page.text.contains("https://")
                && !page.text.contains("innerHTML")
        );
        assert!(page.head.contains("default-src 'none'"));
        assert_eq!(document("/data.json", "{}").unwrap().text, "{}");
        assert_eq!(document("/other", "{}"), None);
    }
}
