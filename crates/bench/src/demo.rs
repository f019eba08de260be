//! Copies a tree, and reads and writes a shared file, through the mount and with the library; the results are
//! one table.

use super::report::{Report, Row};
use super::scratch::{Testbed, scratch, weft_program};
use super::shared_file::{self, Case, Shape};
use anyhow::{Context, Result, bail};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use weft_bench_args::{DemoArgs, Memory, Transport};
use weft_cli_common::size::mib_per_s;

/// A copy of the tree.
struct Copied {
    mib_s: f64,
    client_cpu_s: f64,
    server_cpu_s: f64,
}

/// Runs the demonstration.
pub fn run(args: DemoArgs) -> Result<()> {
    let shape = Shape { clients: 4, bytes: args.bytes };
    let scratch = scratch(&args.common, 3 * 4 * args.bytes)?;
    let testbed = Testbed::existing(&args.url, &args.connect)?;
    let tree_bytes = tree_bytes(&args.source)?;
    let mut report =
        Report::new("demo", serde_json::json!({ "tree_bytes": tree_bytes, "file_bytes": 4 * args.bytes }));
    report.rows = copies(&args, &testbed, tree_bytes)?;
    let case = |transport, memory| Case { transport, memory };
    let cases = [
        case(Transport::Tcp, Memory::Any),
        case(Transport::Shm, Memory::Any),
        case(Transport::Shm, Memory::Alloc),
    ];
    let (rows, _) = shared_file::measure(&testbed, &scratch, &cases, shape, args.common.runs)?;
    report.rows.extend(
        rows.into_iter().map(|row| Row { what: format!("4 processes, one file, {}", row.what), ..row }),
    );
    report.print(&args.common)
}

fn copies(args: &DemoArgs, testbed: &Testbed, tree_bytes: u64) -> Result<Vec<Row>> {
    let weft = weft_program()?;
    let url = |name: &str| format!("{}/{name}", args.url.trim_end_matches('/'));
    let (source, local) = (&args.source, args.out.join("local"));
    let cp = |from: &Path, to: &Path| {
        let mut command = Command::new("cp");
        command.arg("-r").arg(from).arg(to);
        command
    };
    let weft_cp = |from: &str, to: &str| {
        let mut command = Command::new(&weft);
        command.args(["cp", "-r", "--quiet", from, to]);
        if let Some(key) = &args.connect.key {
            command.arg("--key").arg(key);
        }
        command
    };
    let text = |path: PathBuf| path.into_os_string().into_string().ok().context("a path that is not UTF-8");
    let time = |command| copy(args, testbed, tree_bytes, command);
    let limit = time(cp(source, &local))?;
    std::fs::remove_dir_all(&local)?;
    let named = [
        ("tree in, through the mount", time(cp(source, &args.mount.join("by-mount")))?),
        ("tree in, weft cp", time(weft_cp(&text(source.clone())?, &url("by-cp")))?),
        ("tree out, weft cp", time(weft_cp(&url("by-mount"), &text(args.out.join("by-cp"))?))?),
        ("tree out, through the mount", time(cp(&args.mount.join("by-cp"), &args.out.join("by-mount")))?),
    ];
    let row = |(name, copied): (&str, Copied)| {
        Row::new(name, "MiB/s", vec![copied.mib_s]).against("cp -r, local", &[limit.mib_s]).with_cpu(
            copied.client_cpu_s,
            copied.server_cpu_s,
            tree_bytes as f64,
        )
    };
    Ok(named.into_iter().map(row).collect())
}

fn copy(args: &DemoArgs, testbed: &Testbed, bytes: u64, mut command: Command) -> Result<Copied> {
    let client_cpu_s = || children_cpu_s() + process_cpu_s(args.mount_pid);
    let before = (client_cpu_s(), testbed.server_load().cpu_s);
    weft_cli_common::launch::end_with_parent(&mut command);
    let begun = Instant::now();
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    let seconds = begun.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(Copied {
        mib_s: mib_per_s(bytes, seconds),
        client_cpu_s: client_cpu_s() - before.0,
        server_cpu_s: testbed.server_load().cpu_s - before.1,
    })
}

fn tree_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { tree_bytes(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

/// Processor time of this process's children that have ended.
fn children_cpu_s() -> f64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills `usage`, which is valid when zero as well.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Processor time of another process; 0 if there is none.
fn process_cpu_s(pid: u32) -> f64 {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: results are written to live values.
    unsafe {
        if libc::clock_getcpuclockid(pid as i32, &mut clock) == 0 {
            libc::clock_gettime(clock, &mut time);
        }
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
