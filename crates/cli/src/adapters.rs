//! The RDMA adapters that this process uses, as text and as JSON.

use anyhow::Result;
use serde_json::{Value, json};
use weft_cli_common::{output, size};
use weft_client::{RdmaAdapter, RdmaStatus, TransportInUse};

/// Prints the adapters in use, and why RDMA is not used for some servers.
pub fn print(status: &RdmaStatus, transports: &[TransportInUse]) -> Result<()> {
    output::print_line(match &status.unavailable {
        Some(reason) => format!("RDMA here: not available: {reason}"),
        None => format!("RDMA here: {}", status.names.join(", ")),
    })?;
    for reason in reasons(transports) {
        output::print_line(format!("  {reason}"))?;
    }
    for adapter in &status.in_use {
        output::print_line(format!("  {}", adapter_line(adapter)))?;
    }
    match &status.refusal {
        Some(reason) => output::print_line(format!("  not registered by name: {reason}")),
        None => Ok(()),
    }
}

/// Why servers are not reached by RDMA: each reason once, with its servers.
fn reasons(transports: &[TransportInUse]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in transports {
        let Some(reason) = &one.why_not_rdma else { continue };
        match groups.iter_mut().find(|(other, _)| other == reason) {
            Some((_, servers)) => servers.push(&one.server),
            None => groups.push((reason, vec![&one.server])),
        }
    }
    groups.iter().map(|(reason, servers)| format!("not for {}: {reason}", servers.join(", "))).collect()
}

fn number(numbers: &[(&'static str, u64)], name: &str) -> u64 {
    numbers.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number)
}

fn adapter_line(adapter: &RdmaAdapter) -> String {
    let registered = |name| number(&adapter.registrations, name);
    let count = |name| number(&adapter.counts, name);
    format!(
        "{} ({}): {} registered by name, {} by use ({}; {} hits, {} misses); {} sends, {} writes, {} reads, \
         {} completions, {} wake-ups",
        adapter.name,
        adapter.link_layer,
        size::format_bytes(registered("arena_bytes")),
        size::format_bytes(registered("bytes")),
        adapter.foreign,
        registered("hits"),
        registered("misses"),
        count("sends"),
        count("writes") + count("writes_immediate"),
        count("reads"),
        count("completions"),
        count("wakeups"),
    )
}

/// The same as JSON.
pub fn as_json(status: &RdmaStatus) -> Value {
    let numbers = |numbers: &[(&'static str, u64)]| {
        let numbers = numbers.iter().map(|(name, number)| (name.to_string(), Value::from(*number)));
        Value::Object(numbers.collect())
    };
    let adapter = |adapter: &RdmaAdapter| {
        json!({
            "name": adapter.name,
            "link_layer": adapter.link_layer,
            "foreign_memory": adapter.foreign,
            "pieces_max": adapter.pieces_max,
            "windows": adapter.windows,
            "registrations": numbers(&adapter.registrations),
            "counts": numbers(&adapter.counts),
        })
    };
    json!({
        "available": status.unavailable.is_none(),
        "reason": status.unavailable,
        "refusal": status.refusal,
        "names": status.names,
        "in_use": status.in_use.iter().map(adapter).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(server: &str, why_not_rdma: Option<&str>) -> TransportInUse {
        TransportInUse {
            server: server.into(),
            role: "io",
            transport: Some("tcp cubic".into()),
            fallback: None,
            why_not_rdma: why_not_rdma.map(str::to_string),
            connections: 1,
            credits: Vec::new(),
        }
    }

    #[test]
    fn a_reason_is_said_once_for_all_servers_that_it_is_true_of() {
        let all = [reached("io0", Some("no route")), reached("io1", None), reached("io2", Some("no route"))];
        assert_eq!(reasons(&all), ["not for io0, io2: no route"]);
    }

    #[test]
    fn an_adapter_is_a_line_and_json_has_every_number() {
        let adapter = RdmaAdapter {
            name: "rxe0".into(),
            link_layer: "RoCE".into(),
            foreign: "watched".into(),
            pieces_max: 30,
            windows: false,
            registrations: vec![("arena_bytes", 4096), ("bytes", 8192), ("hits", 7), ("misses", 1)],
            counts: vec![("sends", 5), ("writes", 2), ("writes_immediate", 1)],
        };
        let line = adapter_line(&adapter);
        assert!(
            line.starts_with("rxe0 (RoCE): 4.0 KiB registered by name, 8.0 KiB by use (watched; 7 hits"),
            "{line}"
        );
        assert!(line.contains("5 sends, 3 writes, 0 reads"), "{line}");
        let status = RdmaStatus {
            unavailable: None,
            refusal: None,
            names: vec!["rxe0".into()],
            in_use: vec![adapter],
        };
        let json = as_json(&status);
        assert_eq!(json["in_use"][0]["registrations"]["hits"], 7);
        assert_eq!((&json["available"], &json["reason"]), (&Value::Bool(true), &Value::Null));
    }
}
