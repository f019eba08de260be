//! Operations of RDMA adapters during a measurement, on both sides.

use super::amounts::{Amounts, Took};
use super::numbers;
use std::collections::BTreeMap;
use weft_cli_common::output;
use weft_client::Client;
use weft_wire::messages::StatusReply;

/// Counters by name. They only grow.
pub type Counts = BTreeMap<String, u64>;

/// The operations of the clients' adapters and of the servers'.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    client: BTreeMap<String, f64>,
    server: BTreeMap<String, f64>,
}

/// Counters of this process's adapters; empty if none is in use.
pub fn of_client(client: &Client) -> Counts {
    let mut counts = Counts::new();
    for adapter in client.rdma_status().in_use {
        for (name, count) in adapter.counts {
            *counts.entry(name.to_string()).or_default() += count;
        }
    }
    counts
}

/// Counters of the servers' adapters.
pub fn of_servers(servers: &[StatusReply]) -> Counts {
    let mut counts = Counts::new();
    for adapter in servers.iter().flat_map(|status| &status.rdma.adapters) {
        for gauge in adapter.counts.iter().filter(|gauge| !LEVELS.contains(&gauge.name.as_str())) {
            *counts.entry(gauge.name.clone()).or_default() += gauge.value;
        }
    }
    counts
}

/// The increase between two readings.
pub fn since(now: &Counts, before: &Counts) -> Counts {
    let added = |(name, count): (&String, &u64)| {
        let added = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (added > 0).then(|| (name.clone(), added))
    };
    now.iter().filter_map(added).collect()
}

impl Asked {
    /// The operations that clients report, and those of the servers between two readings.
    pub fn between<'a>(clients: impl Iterator<Item = &'a Counts>, before: &Counts, after: &Counts) -> Asked {
        let mut asked = Asked::default();
        clients.for_each(|counts| asked.add_client(counts));
        asked.add_server(&since(after, before));
        asked
    }

    /// Adds the operations of a client.
    fn add_client(&mut self, counts: &Counts) {
        add(&mut self.client, counts);
    }

    /// Adds the operations of the servers.
    fn add_server(&mut self, counts: &Counts) {
        add(&mut self.server, counts);
    }

    /// Divides by the number of transfers.
    pub fn divided(mut self, transfers: f64) -> Asked {
        self.client.values_mut().chain(self.server.values_mut()).for_each(|amount| *amount /= transfers);
        self
    }

    /// The amounts by side and name: "client sends".
    pub fn amounts(&self) -> Amounts {
        let sides = [("client", &self.client), ("server", &self.server)];
        let named = sides.into_iter().flat_map(|(side, amounts)| {
            amounts.iter().map(move |(name, amount)| (format!("{side} {}", name.replace('_', " ")), *amount))
        });
        named.filter(|(name, _)| !QUIET.iter().any(|quiet| name.ends_with(quiet))).collect()
    }
}

/// Values that servers report of their adapters that are not counters: they rise and fall.
const LEVELS: [&str; 5] =
    ["connections", "zone_bytes", "fast_buffer_bytes", "under_way_bytes", "waiting_transfers"];

/// Counters of polling, which say nothing about the work.
const QUIET: [&str; 1] = ["polls"];

/// Counters that are printed, in this order for each side. The others repeat their information. JSON has all.
const PRINTED: [&str; 16] = [
    "inline requests",
    "fast requests",
    "remote requests",
    "sends",
    "writes immediate",
    "writes",
    "reads",
    "binds",
    "doorbells",
    "completions",
    "wakeups",
    "registrations",
    "registered pages",
    "sent bytes",
    "read bytes",
    "copied bytes",
];

/// A table with a row per transfer, and the operations of both sides.
pub fn table(all: &[Took]) -> comfy_table::Table {
    let side = |took: &Took, side: &str| {
        let amount = |name: &&'static str| {
            let name: &'static str = name;
            Some((name, *took.amounts.get(&format!("{side} {name}"))?))
        };
        let text = |(name, amount): (&str, f64)| format!("{} {name}", numbers::count(amount));
        PRINTED.iter().filter_map(amount).map(text).collect::<Vec<_>>().join(", ")
    };
    let mut table = output::table(&["", "clients", "servers"], &[]);
    for took in all {
        table.add_row([took.what.clone(), side(took, "client"), side(took, "server")]);
    }
    table
}

fn add(sum: &mut BTreeMap<String, f64>, counts: &Counts) {
    for (name, count) in counts {
        *sum.entry(name.clone()).or_default() += *count as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, count)| (name.to_string(), *count)).collect()
    }

    #[test]
    fn what_was_added_is_told_by_side() {
        let before = counts(&[("sends", 5), ("reads", 2)]);
        let now = counts(&[("sends", 25), ("reads", 2), ("sent_bytes", 40), ("polls", 9)]);
        let mut asked = Asked::default();
        asked.add_client(&since(&now, &before));
        asked.add_server(&counts(&[("writes", 20), ("receives", 5)]));
        let amounts = asked.divided(10.0).amounts();
        let expected = [
            ("client sends", 2.0),
            ("client sent bytes", 4.0),
            ("server writes", 2.0),
            ("server receives", 0.5),
        ];
        assert_eq!(amounts, expected.map(|(name, amount)| (name.to_string(), amount)).into());
        let took = Took { what: "one".into(), amounts };
        let table = table(&[took]).to_string();
        assert!(
            table.contains("2 sends") && table.contains("2 writes") && !table.contains("receives"),
            "{table}"
        );
    }
}
