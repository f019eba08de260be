//! Measures operations on names per second.

use super::fleet::Fleet;
use super::limits::Samples;
use super::report::{Report, Row};
use super::scratch::{Scratch, Testbed};
use super::worker::Task;
use super::worker::names::NameOp;
use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_bench_args::MetaArgs;
use weft_cli_common::connections::at;
use weft_server::SyncMode;

const OPS: [(NameOp, &str); 3] =
    [(NameOp::Create, "creates"), (NameOp::Stat, "stats"), (NameOp::Unlink, "unlinks")];

/// The work of each client.
#[derive(Clone, Copy)]
struct Shape {
    clients: usize,
    threads: usize,
    files: usize,
}

/// Runs the measurement.
pub fn run(args: MetaArgs) -> Result<()> {
    let sync = if args.sync { SyncMode::Sync } else { SyncMode::Nosync };
    let shape = Shape {
        clients: args.clients.into(),
        threads: args.threads.unwrap_or(if args.sync { 16 } else { 1 }).into(),
        files: args.files.unwrap_or(if args.sync { 1600 } else { 5000 }) as usize,
    };
    let disk = args.sync.then(|| PathBuf::from("/var/tmp"));
    let scratch = Scratch::new(args.common.dir.as_deref().or(disk.as_deref()), 256 << 20)?;
    let testbed = Testbed::new(args.url.as_deref(), &args.connect, &scratch, 1, sync)?;
    let url = testbed.url(if args.tcp { "tcp" } else { "shm" });
    let (mut fleet, mut local_fleet) = (Fleet::start(shape.clients)?, Fleet::start(shape.clients)?);
    if let Some(dir) = &args.make {
        let made = make(&mut fleet, &testbed, &url, dir, shape)?;
        println!("{:.0} files, {made:.0} per s", shape.clients as f64 * shape.files as f64);
        return Ok(());
    }
    let (mut weft, mut local, mut mount) = (Samples::default(), Samples::default(), Samples::default());
    let mut fsyncs = Vec::new();
    for run in 0..args.common.runs {
        local_names(&mut local_fleet, scratch.path(), shape, &mut local)?;
        if let Some(dir) = &args.mount {
            local_names(&mut local_fleet, dir, shape, &mut mount)?;
        }
        if args.sync {
            fsyncs.push(fsync_rate(scratch.path())?);
        }
        let dir = testbed.dir.join(format!("names-{run}"));
        testbed.client.mkdir(at(&dir), 0o755)?;
        names(&mut fleet, &testbed, &url, &dir, shape, &mut weft)?;
        testbed.client.rmdir(at(&dir))?;
    }
    let parameters = serde_json::json!({
        "clients": shape.clients, "threads": shape.threads, "files": shape.files, "sync": args.sync,
        "transport": if args.tcp { "tcp" } else { "shm" },
    });
    let mut report = Report::new("meta", parameters);
    for (op, name) in OPS {
        let row = Row::new(name, "per s", weft.of(name).to_vec());
        report.rows.push(if args.sync && op != NameOp::Stat {
            row.against("fsync of 4 KiB, one process", &fsyncs)
        } else {
            row.against("local file system", local.of(name))
        });
    }
    for (_, name) in OPS.iter().filter(|_| args.mount.is_some()) {
        let row = Row::new(format!("{name}, mount"), "per s", mount.of(name).to_vec());
        report.rows.push(row.against(format!("{name} by the library"), weft.of(name)));
    }
    report.print(&args.common)
}

/// Creates files and leaves them. Returns the number of files per second.
fn make(fleet: &mut Fleet, testbed: &Testbed, url: &str, dir: &Path, shape: Shape) -> Result<f64> {
    testbed.client.mkdir(at(dir), 0o755)?;
    let task = |rank: usize| Task::Names {
        url: url.to_string(),
        dir: dir.join(format!("client-{rank}")),
        op: NameOp::Create,
        files: shape.files,
        threads: shape.threads,
    };
    for rank in 0..shape.clients {
        testbed.client.mkdir(at(&dir.join(format!("client-{rank}"))), 0o755)?;
    }
    let phase = fleet.run(&(0..shape.clients).map(task).collect::<Vec<_>>())?;
    Ok((shape.files * shape.clients) as f64 / phase.seconds)
}

fn names(
    fleet: &mut Fleet,
    testbed: &Testbed,
    url: &str,
    dir: &Path,
    shape: Shape,
    samples: &mut Samples,
) -> Result<()> {
    let dirs: Vec<_> = (0..shape.clients).map(|rank| dir.join(format!("client-{rank}"))).collect();
    for dir in &dirs {
        testbed.client.mkdir(at(dir), 0o755)?;
    }
    for (op, name) in OPS {
        let task = |dir: &PathBuf| Task::Names {
            url: url.to_string(),
            dir: dir.clone(),
            op,
            files: shape.files,
            threads: shape.threads,
        };
        let phase = fleet.run(&dirs.iter().map(task).collect::<Vec<_>>())?;
        samples.add(name, (shape.files * shape.clients) as f64 / phase.seconds);
    }
    dirs.iter().try_for_each(|dir| Ok(testbed.client.rmdir(at(dir))?))
}

fn local_names(fleet: &mut Fleet, dir: &Path, shape: Shape, samples: &mut Samples) -> Result<()> {
    let dirs: Vec<_> = (0..shape.clients).map(|rank| dir.join(format!("names-{rank}"))).collect();
    dirs.iter().try_for_each(std::fs::create_dir)?;
    for (op, name) in OPS {
        let task = |dir: &PathBuf| Task::LocalNames { dir: dir.clone(), op, files: shape.files };
        let phase = fleet.run(&dirs.iter().map(task).collect::<Vec<_>>())?;
        samples.add(name, (shape.files * shape.clients) as f64 / phase.seconds);
    }
    Ok(dirs.iter().try_for_each(std::fs::remove_dir)?)
}

/// Measures how often per second one process can append 4 KiB and make it durable.
fn fsync_rate(dir: &Path) -> Result<f64> {
    let path = dir.join("fsync");
    let file = File::create(&path)?;
    let begun = Instant::now();
    let mut count = 0u64;
    while count < 1000 && begun.elapsed() < Duration::from_secs(1) {
        file.write_all_at(&[1; 4096], count * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(rate)
}
