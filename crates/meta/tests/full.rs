//! The embedded engine on a disk that somebody else fills: what cannot be written is refused, what was acknowledged stays, and
//! the engine goes on by itself.
//!
//! The test runs itself again in a mount namespace with a small disk; where there can be none, it says so and ends.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weft_meta::{Batch, Engine, EngineError, FjallEngine, FjallOptions, Room};
use weft_test_needs::Need;

const DISK: &str = "WEFT_META_SMALL_DISK";
const MIB: usize = 1 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Runs a test of this file again with a disk of so many bytes; `None` in the process that has it, with its directory.
fn on_small_disk(test: &str, bytes: usize) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(DISK) {
        return Some(PathBuf::from(disk));
    }
    if !Need::MountNamespaces.is_met() {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    // SAFETY: no preconditions.
    let flags = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
    let script =
        format!("mount -t tmpfs -o size={bytes} tmpfs {} || exit 99; exec \"$@\"", scratch.path().display());
    let status = Command::new("unshare")
        .args([flags, "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(DISK, scratch.path())
        .status()
        .unwrap();
    assert!(status.success(), "{test} ended with {status}");
    None
}

fn options() -> FjallOptions {
    FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 256 << 10, ..FjallOptions::default() }
}

fn open(disk: &Path) -> FjallEngine {
    FjallEngine::open(&disk.join("names"), &options()).unwrap()
}

/// What the disk has left, taken by somebody else.
fn fill(disk: &Path) {
    let mut hog = std::fs::OpenOptions::new().create(true).append(true).open(disk.join("hog")).unwrap();
    for bytes in [MIB, 4096] {
        while hog.write_all(&vec![7; bytes]).is_ok() {}
    }
}

fn empty(disk: &Path) {
    std::fs::remove_file(disk.join("hog")).unwrap();
}

fn contents(engine: &FjallEngine) -> Model {
    engine.scan(&[0], &[255]).map(Result::unwrap).collect()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Puts a value as the namespace does, with the engine's leave.
fn put(engine: &mut FjallEngine, model: &mut Model, number: u64, bytes: usize) -> bool {
    engine.has_room(Room::Growth) && commit(engine, model, number, Some(vec![number as u8; bytes]))
}

/// One key is changed in store and model, or in neither.
fn commit(engine: &mut FjallEngine, model: &mut Model, number: u64, value: Option<Vec<u8>>) -> bool {
    let mut batch = Batch::default();
    match &value {
        Some(value) => batch.put(key(number), value),
        None => batch.delete(key(number)),
    }
    match engine.commit(&batch) {
        Ok(_) => match value {
            Some(value) => drop(model.insert(key(number), value)),
            None => drop(model.remove(&key(number))),
        },
        Err(EngineError::Full) => return false,
        Err(error) => panic!("{error}"),
    }
    true
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: not after 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_disk_that_others_fill_stops_growth_only_while_it_is_full() {
    let Some(disk) = on_small_disk("a_disk_that_others_fill_stops_growth_only_while_it_is_full", 48 * MIB)
    else {
        return;
    };
    let mut engine = open(&disk);
    let mut model = Model::new();
    (0..3000).for_each(|number| assert!(put(&mut engine, &mut model, number, 300)));
    for round in 0..3u64 {
        fill(&disk);
        wait_until("growth is refused", || !engine.has_room(Room::Growth));
        // Removals and changes find what they need, and tables that are due to be written out are not.
        for number in 0..800 {
            assert!(engine.has_room(Room::Removal));
            assert!(commit(&mut engine, &mut model, round * 900 + number, None), "removal {number}");
        }
        assert_eq!(contents(&engine), model);
        engine.syncer().sync().unwrap();
        if round == 1 {
            drop(engine);
            engine = open(&disk);
            assert_eq!(contents(&engine), model, "it opens on a full disk");
            assert!(commit(&mut engine, &mut model, 2999, Some(vec![round as u8; 10])));
        }
        empty(&disk);
        wait_until("there is room again", || engine.has_room(Room::Growth));
        (0..1500).for_each(|number| assert!(put(&mut engine, &mut model, 10_000 + number, 300)));
    }
    drop(engine);
    assert_eq!(contents(&open(&disk)), model);
}

/// A worker that meets the full disk tells by the next commit, when there is room again.
#[test]
fn growth_goes_on_though_a_worker_tells_late_that_the_disk_was_full() {
    let test = "growth_goes_on_though_a_worker_tells_late_that_the_disk_was_full";
    let Some(disk) = on_small_disk(test, 48 * MIB) else { return };
    let mut engine = open(&disk);
    let mut model = Model::new();
    for round in 0..5u64 {
        wait_until("there is room", || engine.has_room(Room::Growth));
        fill(&disk);
        // A table in memory is full, and there is no room to write it out. The journal has blocks ahead.
        (0..4).for_each(|number| assert!(commit(&mut engine, &mut model, number, Some(vec![0; 100 << 10]))));
        std::thread::sleep(Duration::from_millis(200));
        empty(&disk);
        wait_until("there is room again", || engine.has_room(Room::Growth));
        for number in 0..100 {
            assert!(put(&mut engine, &mut model, round * 1000 + number, 300), "round {round}: {number}");
        }
    }
    drop(engine);
    assert_eq!(contents(&open(&disk)), model);
}

/// Nobody asks for room first, so that fjall's workers, and commits, meet the full disk.
#[test]
fn what_a_full_disk_refuses_leaves_nothing_behind() {
    let Some(disk) = on_small_disk("what_a_full_disk_refuses_leaves_nothing_behind", 48 * MIB) else {
        return;
    };
    let mut engine = open(&disk);
    let mut model = Model::new();
    for round in 0..4u64 {
        fill(&disk);
        let mut number = round * 100_000;
        let mut refused = 0;
        while refused < 20 {
            number += 1;
            let value = vec![number as u8; 200 + (number % 7) as usize * 700];
            refused += u64::from(!commit(&mut engine, &mut model, number, Some(value)));
        }
        assert_eq!(contents(&engine), model, "round {round}");
        // As a killed process leaves it.
        let left = tempfile::tempdir().unwrap();
        let copied = Command::new("cp")
            .args(["-r", "--sparse=always"])
            .arg(disk.join("names"))
            .arg(left.path())
            .status()
            .unwrap();
        assert!(copied.success());
        assert_eq!(contents(&open(left.path())), model, "round {round}, killed");
        if round % 2 == 1 {
            drop(engine);
            engine = open(&disk);
        }
        empty(&disk);
        wait_until("there is room again", || engine.has_room(Room::Growth));
        let keys: Vec<u64> = (round * 100_000..=number).collect();
        for number in keys {
            assert!(commit(&mut engine, &mut model, number, None));
        }
        // While tables are compacted, growth may be refused for a moment.
        wait_until("a record finds room", || put(&mut engine, &mut model, 7, 1000));
        assert_eq!(contents(&engine), model, "round {round}, after");
    }
}

/// Small as it is, the store has the disk to itself: it fills it, is emptied, and can be filled again.
#[test]
fn a_store_that_has_filled_its_disk_can_be_emptied() {
    let Some(disk) = on_small_disk("a_store_that_has_filled_its_disk_can_be_emptied", 24 * MIB) else {
        return;
    };
    let mut engine = open(&disk);
    let mut model = Model::new();
    let mut counts = Vec::new();
    for round in 0..3u64 {
        let mut number = round * 1_000_000;
        // Numbers in other places, so that the values are not alike.
        let value = |number: u64| {
            (0..100u64).map(|at| (number.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8).collect()
        };
        let mut fill = |engine: &mut FjallEngine, number: &mut u64| {
            while engine.has_room(Room::Growth) && commit(engine, &mut model, *number, Some(value(*number))) {
                *number += 1;
            }
        };
        // While tables are compacted, growth may be refused for a moment.
        wait_until("more than 20,000 records find room", || {
            fill(&mut engine, &mut number);
            number > round * 1_000_000 + 20_000
        });
        counts.push(number - round * 1_000_000);
        assert_eq!(contents(&engine), model);
        for number in round * 1_000_000..number {
            assert!(commit(&mut engine, &mut model, number, None), "removal {number} of {counts:?}");
        }
        wait_until("there is room again", || engine.has_room(Room::Growth));
        assert!(model.is_empty() && contents(&engine).is_empty());
    }
    println!("{counts:?} records filled the disk");
}
