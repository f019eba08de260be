//! Measures listings of one large directory.

use super::fleet::Fleet;
use super::limits::Samples;
use super::report::Report;
use super::scratch::{Scratch, Testbed};
use super::worker::Task;
use super::worker::names::NameOp;
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;
use weft_bench_args::ListArgs;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_client::ReadDir;
use weft_server::SyncMode;

/// Threads that make files.
const MAKERS: usize = 8;

/// Runs the measurement.
pub fn run(args: ListArgs) -> Result<()> {
    let common = &args.testbed.common;
    let scratch = Scratch::new(common.dir.as_deref(), 256 << 20)?;
    let testbed =
        Testbed::new(args.testbed.url.as_deref(), &args.testbed.connect, &scratch, 1, SyncMode::Nosync)?;
    let url = testbed.url(if args.tcp { "tcp" } else { "shm" });
    let mut fleet = Fleet::start(1)?;
    let made = args.path.is_none().then(|| testbed.dir.join("many"));
    if let Some(dir) = &made {
        testbed.client.mkdir(at(dir), 0o755)?;
        fleet.run(&[names(&url, dir, NameOp::Create, args.entries)])?;
    }
    let dir = args.path.or_else(|| made.clone()).expect("one of both is given");
    let client = Connections::new(&ConnectArgs::default()).client(&url)?;
    let mut samples = Samples::default();
    let (entries, first) = timed(|| weft(client.read_dir(at(&dir))?))?;
    samples.add("names and attributes, first time", entries as f64 / first);
    let local = scratch.path().join("many");
    fs::create_dir(&local)?;
    (0..entries).try_for_each(|number| fs::File::create(local.join(format!("{number}"))).map(drop))?;
    for _ in 0..common.runs {
        let mut add = |name: &str, list: &dyn Fn() -> Result<usize>| -> Result<()> {
            let (found, seconds) = timed(list)?;
            ensure!(found == entries, "{name}: {found} entries, and before {entries}");
            samples.add(name, entries as f64 / seconds);
            Ok(())
        };
        add("names", &|| weft(client.read_names(at(&dir))?))?;
        add("names and attributes", &|| weft(client.read_dir(at(&dir))?))?;
        add("readdir, local", &|| Ok(fs::read_dir(&local)?.map_while(Result::ok).count()))?;
        add("readdir and fstatat, local", &|| local_attributes(&local))?;
    }
    if let Some(dir) = &made {
        fleet.run(&[names(&url, dir, NameOp::Unlink, args.entries)])?;
        testbed.client.rmdir(at(dir))?;
    }
    let parameters =
        serde_json::json!({ "entries": entries, "transport": if args.tcp { "tcp" } else { "shm" } });
    let mut report = Report::new("list", parameters);
    report.rows = samples.rows("per s");
    report.print(common)
}

fn names(url: &str, dir: &Path, op: NameOp, files: u32) -> Task {
    Task::Names { url: url.to_string(), dir: dir.to_path_buf(), op, files: files as usize, threads: MAKERS }
}

/// What is listed, and the seconds that it took.
fn timed(list: impl FnOnce() -> Result<usize>) -> Result<(usize, f64)> {
    let begun = Instant::now();
    let entries = list()?;
    Ok((entries, begun.elapsed().as_secs_f64()))
}

fn weft(mut entries: ReadDir) -> Result<usize> {
    let count = entries.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
    Ok(count)
}

fn local_attributes(dir: &Path) -> Result<usize> {
    let mut count = 0;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        bytes += entry?.metadata()?.size();
        count += 1;
    }
    ensure!(bytes == 0, "the files are not empty");
    Ok(count)
}
