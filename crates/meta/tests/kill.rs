//! The embedded engine under kill -9 and under power cuts that tear the journal.
//!
//! The test runs itself again as a child that creates, renames and removes files as fast as it can and prints each
//! number once its commit has returned; the parent kills it at some point and looks at what is there.

mod common;
use common::*;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use weft_meta::{Caller, FjallEngine, FjallOptions, Namespace, RenameMode, XattrMode};

const CHILD_DIRECTORY: &str = "WEFT_META_KILL_DIRECTORY";
/// How often the process is killed; `WEFT_KILL_CYCLES` says otherwise.
const CYCLES_DEFAULT: u64 = 24;
/// Cycles with the same store.
const CYCLES_PER_STORE: u64 = 12;

fn open(directory: &Path) -> Namespace<FjallEngine> {
    open_in_boot(directory, FjallOptions::default().boot_id)
}

fn open_in_boot(directory: &Path, boot_id: [u8; 16]) -> Namespace<FjallEngine> {
    let options =
        FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, boot_id, ..FjallOptions::default() };
    let engine = FjallEngine::open(directory, &options).unwrap();
    if Namespace::is_formatted(&engine).unwrap() {
        Namespace::open(engine, common::options()).unwrap()
    } else {
        fresh(engine)
    }
}

/// Three commits for each number: after the last one, `kept` holds the file and `passing` does not.
fn work(ns: &mut Namespace<FjallEngine>, number: u64) {
    let root = Caller::root();
    let (passing, kept) = (format!("passing/{number}"), format!("kept/{number}"));
    mkfile(ns, &root, &passing, 0o644).unwrap();
    run(ns, |op| op.link(&root, now(1), at(&passing), false, at(&format!("kept/{number}.link")))).unwrap();
    run(ns, |op| op.rename(&root, now(2), at(&passing), at(&kept), RenameMode::NoReplace)).unwrap();
}

#[test]
fn child_that_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let mut ns = open(Path::new(&directory));
    for name in ["kept", "passing"] {
        let _ = mkdir(&mut ns, &Caller::root(), name, 0o755);
    }
    let first = ns.next_ino();
    let mut out = std::io::stderr();
    for number in first.. {
        work(&mut ns, number);
        writeln!(out, "done {number}").unwrap();
    }
}

/// Runs the child until it has said `left` numbers, kills it, and returns all that it has said.
fn run_and_kill(directory: &Path, mut left: u64) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_that_is_killed", "--exact", "--nocapture"])
        .env(CHILD_DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    // What the pipe still holds after the kill was acknowledged too.
    while let Some(Ok(line)) = lines.next() {
        acknowledged.extend(line.strip_prefix("done ").and_then(|number| number.parse::<u64>().ok()));
        if left > 0 {
            left -= 1;
            if left == 0 {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    acknowledged
}

#[test]
fn a_killed_process_loses_nothing_it_has_committed() {
    let cycles = std::env::var("WEFT_KILL_CYCLES").map_or(CYCLES_DEFAULT, |cycles| cycles.parse().unwrap());
    let (mut directory, mut acknowledged) = (tempfile::tempdir().unwrap(), Vec::new());
    let mut files = 0;
    for cycle in 0..cycles {
        if cycle % CYCLES_PER_STORE == 0 {
            (directory, acknowledged) = (tempfile::tempdir().unwrap(), Vec::new());
        }
        let said = run_and_kill(directory.path(), 1 + cycle * 397 % 1000);
        files += said.len();
        acknowledged.extend(said);
        let mut ns = open(directory.path());
        sound(&ns);
        for number in &acknowledged {
            let attr = stat(&mut ns, &format!("kept/{number}")).unwrap();
            assert_eq!(attr.nlink, 2, "cycle {cycle}, file {number}");
            assert!(stat(&mut ns, &format!("passing/{number}")).is_err());
        }
    }
    println!("{cycles} kills, {files} files acknowledged: none was lost");
}

fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_store(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A power cut leaves some pages of the journal unwritten since the last sync: they read as zeros. Whatever they
/// are, the store opens, is sound, and holds what was synced.
#[test]
fn a_torn_journal_opens_and_keeps_what_was_synced() {
    const PAGE: u64 = 4096;
    let scratch = tempfile::tempdir().unwrap();
    let live = scratch.path().join("live");
    let mut ns = open(&live);
    for name in ["kept", "passing"] {
        mkdir(&mut ns, &Caller::root(), name, 0o755).unwrap();
    }
    (0..40).for_each(|number| work(&mut ns, number));
    ns.syncer().sync().unwrap();
    let journal = std::fs::read(live.join("0.jnl")).unwrap();
    let synced = journal.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    (40..60).for_each(|number| work(&mut ns, number));
    let big = |op: &mut weft_meta::Op<_>| {
        op.set_xattr(&Caller::root(), now(3), at("kept/50"), true, b"user.big", &[7; 20_000], XattrMode::Any)
    };
    run(&mut ns, big).unwrap();
    (60..80).for_each(|number| work(&mut ns, number));
    let image = scratch.path().join("image");
    copy_store(&live, &image);
    let journal = std::fs::read(image.join("0.jnl")).unwrap();
    let end = journal.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    assert!(end > synced + 4 * PAGE);
    drop(ns);
    // Of the preallocated zeros after the last batch, a few are enough to copy around.
    let journal = std::fs::OpenOptions::new().write(true).open(image.join("0.jnl")).unwrap();
    journal.set_len(end).unwrap();
    journal.set_len(end + 16 * PAGE).unwrap();

    let first_page = synced.div_ceil(PAGE) * PAGE;
    let zeros = |from: u64, to: u64| (from, to.min(end));
    let lost_pages = (first_page..end)
        .step_by(PAGE as usize)
        .flat_map(|page| [zeros(page, page + PAGE), zeros(page, end)]);
    let torn_bytes = (synced..end).step_by(611).map(|byte| zeros(byte, end));
    for (from, to) in lost_pages.chain(torn_bytes) {
        let torn = scratch.path().join("torn");
        let _ = std::fs::remove_dir_all(&torn);
        copy_store(&image, &torn);
        let mut file = std::fs::OpenOptions::new().write(true).open(torn.join("0.jnl")).unwrap();
        file.seek(SeekFrom::Start(from)).unwrap();
        file.write_all(&vec![0; (to - from) as usize]).unwrap();
        drop(file);
        let mut ns = open_in_boot(&torn, [1; 16]);
        assert!(ns.engine().torn_bytes() > 0 || to == end, "zeros {from}..{to}");
        sound(&ns);
        for number in 0..40 {
            assert!(
                stat(&mut ns, &format!("kept/{number}")).is_ok(),
                "zeros {from}..{to}: {number} was synced"
            );
        }
        work(&mut ns, 1_000_000);
        sound(&ns);
    }
}
