//! `weft calibrate`

use crate::exit::Failures;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::WeftPath;
use weft_cli_common::{output, size};
use weft_wire::messages::{CalibrateReply, Time};

/// The curves of a cost model and what each describes. A formula marks a curve of the published model.
const CURVES: [(&str, &str); 8] = [
    ("read_cached", "reads of cached data"),
    ("read_device", "reads: O_r + O_seek + s / B_r(s)"),
    ("write_cached", "writes onto cached pages"),
    ("write_device", "writes: O_w + O_seek + s / B_w(s)"),
    ("copy", "copies: s / B_mem"),
    ("mapped_read", "copies from mapped pages"),
    ("mapped_write", "copies to mapped pages"),
    ("sync", "making written data durable"),
];

/// Shows what disk accesses cost on each I/O server, as measured in its own directory at its first start.
///
/// From this cost model a server chooses, for each part of a request, between one access per piece, data
/// sieving and mapped pages. `weft explain` shows its choices. Measure again after you change a disk or a
/// machine. Servers keep serving meanwhile.
///
/// O, B and s are the overhead, the bandwidth and the size in the model of active data sieving by Wu, Wyckoff
/// and Panda. Their model has no cache; servers also count what is cached.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Measure again on every I/O server, which takes about a second each, and keep the result.
    #[arg(long)]
    measure: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows cost models, or measures them again.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let mut failures = Failures::default();
    let mut models = Vec::new();
    for (server, answer) in client.cost_models(args.measure) {
        models.extend(failures.ok(answer).map(|model| (server.name, model)));
    }
    if args.json {
        let servers: Vec<_> = models.iter().map(|(name, model)| as_json(name, model)).collect();
        output::print_json(&json!({ "url": place.url, "servers": servers }))?;
        return failures.result();
    }
    for (count, (names, model)) in group_equal(models).into_iter().enumerate() {
        if count > 0 {
            output::print_line("")?;
        }
        print(&names, &model)?;
    }
    failures.result()
}

/// Groups servers with the same model. Neighbours share one.
fn group_equal(models: Vec<(String, CalibrateReply)>) -> Vec<(String, CalibrateReply)> {
    let mut groups: Vec<(String, CalibrateReply)> = Vec::new();
    for (name, model) in models {
        match groups.iter_mut().find(|(_, other)| *other == model) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => groups.push((name, model)),
        }
    }
    groups
}

fn print(names: &str, model: &CalibrateReply) -> Result<()> {
    let when = match model.measured_s {
        0 => "not measured, default values".to_string(),
        seconds => {
            format!("measured {}", output::time_text(&Time { seconds, nanoseconds: 0 }, false))
        }
    };
    output::print_line(format!("{names}: {when}"))?;
    let sizes: BTreeSet<u64> =
        model.curves.iter().flat_map(|curve| &curve.points).map(|point| point.bytes).collect();
    let mut headings = vec!["time of one".to_string(), String::new()];
    headings.extend(sizes.iter().map(|bytes| size::format_bytes(*bytes)));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = output::table(&headings, &(2..headings.len()).collect::<Vec<_>>());
    for curve in &model.curves {
        let known = CURVES.iter().find(|(name, _)| *name == curve.name);
        let mut row = vec![curve.name.clone(), known.map_or("", |(_, what)| what).to_string()];
        row.extend(sizes.iter().map(|bytes| {
            let point = curve.points.iter().find(|point| point.bytes == *bytes);
            point.map_or(String::new(), |point| size::format_ns(point.ns))
        }));
        table.add_row(row);
    }
    output::print_table(&table)?;
    output::print_line(format!(
        "lock (O_lock + O_unlock) {}, first touch of a mapped page {} to read and {} to write, a new page {}",
        size::format_ns(model.lock_ns),
        size::format_ns(model.page_fault_ns),
        size::format_ns(model.page_fault_write_ns),
        size::format_ns(model.new_page_ns)
    ))?;
    output::print_line(format!(
        "gaps that sieving passes over: reads {} cached, {} from the device; writes {} and {}",
        size::format_bytes(model.read_gap_cached_bytes),
        size::format_bytes(model.read_gap_device_bytes),
        size::format_bytes(model.write_gap_cached_bytes),
        size::format_bytes(model.write_gap_device_bytes)
    ))
}

fn as_json(name: &str, model: &CalibrateReply) -> Value {
    let curves = model.curves.iter().map(|curve| {
        let points: Vec<_> = curve.points.iter().map(|point| json!([point.bytes, point.ns])).collect();
        (curve.name.clone(), Value::from(points))
    });
    json!({
        "server": name,
        "measured_s": model.measured_s,
        "new_page_ns": model.new_page_ns,
        "lock_ns": model.lock_ns,
        "page_fault_ns": model.page_fault_ns,
        "page_fault_write_ns": model.page_fault_write_ns,
        "read_gap_cached_bytes": model.read_gap_cached_bytes,
        "read_gap_device_bytes": model.read_gap_device_bytes,
        "write_gap_cached_bytes": model.write_gap_cached_bytes,
        "write_gap_device_bytes": model.write_gap_device_bytes,
        "curves": curves.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::Wire;

    #[test]
    fn servers_with_one_model_are_shown_together() {
        let one = CalibrateReply::sample(&mut 1);
        let other = CalibrateReply { lock_ns: 77, ..one.clone() };
        let models = [("io0", &one), ("io1", &other), ("io2", &one)];
        let groups = group_equal(models.map(|(name, model)| (name.to_string(), model.clone())).into());
        let names: Vec<&str> = groups.iter().map(|(names, _)| names.as_str()).collect();
        assert_eq!(names, ["io0, io2", "io1"]);
    }
}
