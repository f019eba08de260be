//! Times system calls on a mount while something happens to a server. `bench/dead-server.sh` uses it.
//!
//! ```text
//!   standard input   before      dies             dead      back         (end)
//!   ─────────────────┼───────────┼────────────────┼─────────┼────────────┼──►
//!   reader           ─ ─ ─ ─ ─ ─ ─────── ETIMEDOUT ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
//!   …
//! ```
//!
//! A call belongs to the phase in which it begins. Each kind of call has its own thread, once in a directory
//! whose files need the server and once in a directory whose files do not.

use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_bench_args::CallsArgs;
use weft_cli_common::output;

/// Bytes of one read or write.
const IO_BYTES: usize = 64 << 10;
const FILE_BYTES: u64 = 8 << 20;
/// Files of the directory that is listed.
const LISTED: usize = 10;
/// Pause between two calls that move no data, and after a call that failed at once.
const PAUSE: Duration = Duration::from_millis(5);

/// One call.
struct Sample {
    kind: &'static str,
    needs: bool,
    phase: usize,
    begun: Instant,
    took: Duration,
    errno: i32,
}

/// State shared by all threads.
#[derive(Default)]
struct Bench {
    phase: AtomicUsize,
    is_over: AtomicBool,
    samples: Mutex<Vec<Sample>>,
}

/// State of one thread.
struct Caller {
    bench: Arc<Bench>,
    dir: PathBuf,
    needs: bool,
    samples: Vec<Sample>,
}

impl Caller {
    fn is_over(&self) -> bool {
        self.bench.is_over.load(Ordering::Relaxed)
    }

    /// Makes and times a call. Returns its result if it succeeded.
    fn call<T>(&mut self, kind: &'static str, call: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let (phase, begun) = (self.bench.phase.load(Ordering::Relaxed), Instant::now());
        let result = call();
        let errno = result.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        self.samples.push(Sample { kind, needs: self.needs, phase, begun, took: begun.elapsed(), errno });
        if errno != 0 {
            std::thread::sleep(PAUSE);
        }
        result.ok()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut all = self.bench.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut self.samples);
    }
}

/// Runs the measurement.
pub fn run(args: CallsArgs) -> Result<()> {
    for dir in [&args.needs, &args.spared] {
        prepare(dir).with_context(|| format!("cannot prepare {}", dir.display()))?;
    }
    let bench = Arc::new(Bench::default());
    let loads: [fn(&mut Caller); 6] = [read, write, make_and_remove, list, examine, open];
    let of_dirs = [(&args.needs, true), (&args.spared, false)];
    let mut plan: Vec<_> =
        loads.iter().flat_map(|load| of_dirs.map(|(dir, needs)| (*load, dir, needs))).collect();
    plan.push((names, &args.spared, false));
    plan.push((space, &args.spared, false));
    let threads: Vec<_> = plan
        .into_iter()
        .map(|(load, dir, needs)| {
            let mut caller = Caller { bench: bench.clone(), dir: dir.clone(), needs, samples: Vec::new() };
            std::thread::spawn(move || {
                while !caller.is_over() {
                    load(&mut caller);
                }
            })
        })
        .collect();
    let mut phases = vec![("start".to_owned(), Instant::now())];
    for line in io::stdin().lock().lines() {
        phases.push((line?, Instant::now()));
        bench.phase.store(phases.len() - 1, Ordering::Relaxed);
    }
    bench.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread that makes calls has panicked"))?;
    }
    let samples = std::mem::take(&mut *bench.samples.lock().unwrap_or_else(PoisonError::into_inner));
    report(&args, &phases[1..], &samples)
}

fn prepare(dir: &Path) -> io::Result<()> {
    for name in ["read", "write"] {
        let file = File::create(dir.join(name))?;
        (0..FILE_BYTES / IO_BYTES as u64)
            .try_for_each(|at| file.write_all_at(&[7; IO_BYTES], at * IO_BYTES as u64))?;
    }
    fs::create_dir(dir.join("listed"))?;
    (0..LISTED).try_for_each(|at| fs::write(dir.join(format!("listed/f{at}")), [7; 1000]))
}

/// Opens a file. Retries until it succeeds, since it fails while a server is down that opening needs.
fn open_with(caller: &mut Caller, name: &str, options: &OpenOptions) -> Option<File> {
    let path = caller.dir.join(name);
    caller.call("open", || options.open(&path))
}

fn read(caller: &mut Caller) {
    let options = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).clone();
    let Some(file) = open_with(caller, "read", &options) else { return };
    let mut memory = vec![0u8; IO_BYTES + 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    let mut at = 0;
    while !caller.is_over() {
        let buffer = &mut memory[aligned..aligned + IO_BYTES];
        caller.call("read", || file.read_exact_at(buffer, at));
        at = (at + IO_BYTES as u64) % FILE_BYTES;
    }
}

fn write(caller: &mut Caller) {
    let Some(file) = open_with(caller, "write", OpenOptions::new().write(true)) else { return };
    for number in 0u64.. {
        if caller.is_over() {
            return;
        }
        let at = number * IO_BYTES as u64 % FILE_BYTES;
        caller.call("write", || file.write_all_at(&[8; IO_BYTES], at));
        if number % 32 == 31 {
            caller.call("fsync", || file.sync_data());
        }
    }
}

fn make_and_remove(caller: &mut Caller) {
    let path = caller.dir.join("made");
    if let Some(mut file) = caller.call("create", || File::create_new(&path)) {
        caller.call("write, small", || file.write_all(&[1; 4096]));
        caller.call("close", || close(file));
    }
    caller.call("unlink", || fs::remove_file(&path));
    std::thread::sleep(PAUSE);
}

fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: nobody else owns the descriptor any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn list(caller: &mut Caller) {
    let dir = caller.dir.join("listed");
    caller.call("ls -l", || fs::read_dir(&dir)?.try_for_each(|entry| entry?.metadata().map(drop)));
    std::thread::sleep(PAUSE);
}

fn examine(caller: &mut Caller) {
    for name in ["read", "write", "listed/f1"] {
        let path = caller.dir.join(name);
        caller.call("stat", || fs::metadata(&path));
    }
    std::thread::sleep(PAUSE);
}

fn open(caller: &mut Caller) {
    if let Some(file) = open_with(caller, "listed/f2", OpenOptions::new().read(true)) {
        caller.call("close", || close(file));
    }
    std::thread::sleep(PAUSE);
}

fn names(caller: &mut Caller) {
    let [one, two] = ["one", "two"].map(|name| caller.dir.join(name));
    caller.call("mkdir", || fs::create_dir(&one));
    caller.call("rename", || fs::rename(&one, &two));
    caller.call("rmdir", || fs::remove_dir(&two));
    std::thread::sleep(PAUSE);
}

fn space(caller: &mut Caller) {
    let dir = File::open(&caller.dir);
    caller.call("df", || {
        let dir = dir?;
        // SAFETY: all-zero bytes are a valid `statvfs`, which is live and writable; the descriptor is open.
        match unsafe { libc::fstatvfs(dir.as_raw_fd(), &mut std::mem::zeroed()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    std::thread::sleep(PAUSE);
}

/// Calls of one kind in one phase.
struct Row {
    phase: String,
    kind: &'static str,
    needs: bool,
    calls: usize,
    failed: usize,
    p99: Duration,
    max: Duration,
    /// Time from the beginning of the phase to the end of the last call that failed or took over 1 s.
    trouble_until: Option<Duration>,
    errors: Vec<String>,
}

const TROUBLE: Duration = Duration::from_secs(1);

fn row(
    (number, phase, begun): (usize, &str, Instant),
    kind: &'static str,
    needs: bool,
    samples: &[Sample],
) -> Option<Row> {
    let mine: Vec<&Sample> =
        samples.iter().filter(|one| one.phase == number && one.kind == kind && one.needs == needs).collect();
    let mut took: Vec<Duration> = mine.iter().map(|one| one.took).collect();
    took.sort();
    let max = *took.last()?;
    let failed = mine.iter().filter(|one| one.errno != 0);
    let mut errors: Vec<i32> = failed.clone().map(|one| one.errno).collect();
    errors.sort();
    errors.dedup();
    let trouble = mine.iter().filter(|one| one.errno != 0 || one.took > TROUBLE);
    Some(Row {
        phase: phase.to_owned(),
        kind,
        needs,
        calls: mine.len(),
        failed: failed.count(),
        p99: took[(took.len() - 1) * 99 / 100],
        max,
        trouble_until: trouble.map(|one| (one.begun + one.took).saturating_duration_since(begun)).max(),
        errors: errors.into_iter().map(|errno| io::Error::from_raw_os_error(errno).to_string()).collect(),
    })
}

fn report(args: &CallsArgs, phases: &[(String, Instant)], samples: &[Sample]) -> Result<()> {
    let mut kinds: Vec<&'static str> = samples.iter().map(|one| one.kind).collect();
    kinds.sort();
    kinds.dedup();
    let mut rows = Vec::new();
    for (at, (phase, begun)) in phases.iter().enumerate() {
        for needs in [true, false] {
            rows.extend(kinds.iter().filter_map(|kind| row((at + 1, phase, *begun), kind, needs, samples)));
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    if args.json {
        let json = |row: &Row| {
            serde_json::json!({
                "phase": row.phase, "call": row.kind, "needs": row.needs, "calls": row.calls, "failed": row.failed,
                "p99_ms": ms(row.p99), "max_ms": ms(row.max), "trouble_until_ms": row.trouble_until.map(ms), "errors": row.errors,
            })
        };
        return output::print_json(&rows.iter().map(json).collect::<Vec<_>>());
    }
    let headings =
        ["phase", "needs it", "call", "calls", "failed", "p99 ms", "max ms", "trouble until s", "errors"];
    let mut table = output::table(&headings, &[3, 4, 5, 6, 7]);
    for row in &rows {
        table.add_row([
            row.phase.clone(),
            if row.needs { "yes" } else { "no" }.into(),
            row.kind.into(),
            row.calls.to_string(),
            row.failed.to_string(),
            format!("{:.1}", ms(row.p99)),
            format!("{:.1}", ms(row.max)),
            row.trouble_until.map(|time| format!("{:.1}", time.as_secs_f64())).unwrap_or_default(),
            row.errors.join(", "),
        ]);
    }
    output::print_table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_in_the_phase_in_which_they_began() {
        let begun = Instant::now();
        let sample = |phase, took_ms, errno| Sample {
            kind: "read",
            needs: true,
            phase,
            begun: begun + Duration::from_millis(100),
            took: Duration::from_millis(took_ms),
            errno,
        };
        let samples = [sample(1, 5, 0), sample(1, 4000, libc::ETIMEDOUT), sample(2, 1, 0)];
        let row = |phase| row((phase, "dies", begun), "read", true, &samples);
        let first = row(1).expect("there are calls");
        assert_eq!((first.calls, first.failed, first.max.as_millis()), (2, 1, 4000));
        assert_eq!(first.trouble_until, Some(Duration::from_millis(4100)));
        assert!(row(2).is_some_and(|row| row.trouble_until.is_none()) && row(3).is_none());
    }
}
