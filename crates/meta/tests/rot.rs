//! Damage to the files of a store that nothing has torn: it is refused when the store is opened, or found when it is read, or
//! does no harm. Never are the contents other than they were, and never is anything cut off or removed.
//!
//! ```text
//!   store ─► bits flipped, a file cut or removed ─► opened ─► refused, and its files are as before
//!                                                         ─► read whole: an error, or the contents of before
//! ```
//!
//! `WEFT_ROT_FLIPS` says how many bits are flipped.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use weft_meta::{Batch, Engine, EngineError, FjallEngine, FjallOptions};
use weft_test_random::{Random, seed, seeds};

const FLIPS_DEFAULT: usize = 400;
const BOOT: [u8; 16] = [1; 16];
const LATER_BOOT: [u8; 16] = [2; 16];

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn open_in(directory: &Path, boot_id: [u8; 16]) -> Result<FjallEngine, EngineError> {
    FjallEngine::open(
        directory,
        &FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 128 << 10, boot_id, ..FjallOptions::default() },
    )
}

fn contents(engine: &FjallEngine) -> Result<Contents, EngineError> {
    let all: Contents = engine.scan(&[0], &[255]).collect::<Result<_, _>>()?;
    for (key, value) in &all {
        assert_eq!(engine.get(key)?.as_ref(), Some(value), "scans and reads tell the same");
    }
    Ok(all)
}

fn put(engine: &mut FjallEngine, random: &mut Random, batches: u64) {
    for _ in 0..batches {
        let mut batch = Batch::default();
        for _ in 0..1 + random.next() % 4 {
            let key = format!("k{:05}", random.next() % 900);
            match random.next() % 5 {
                0 => batch.delete(key),
                _ => {
                    let bytes = (0..random.next() % 400).map(|_| random.next() as u8).collect::<Vec<_>>();
                    batch.put(key, bytes);
                }
            }
        }
        engine.commit(&batch).unwrap();
    }
}

/// A store with tables and a journal, closed in order, and what it holds.
fn store(directory: &Path) -> Contents {
    let mut random = Random(seed());
    for _ in 0..3 {
        put(&mut open_in(directory, BOOT).unwrap(), &mut random, 700);
    }
    let mut engine = open_in(directory, BOOT).unwrap();
    put(&mut engine, &mut random, 150);
    contents(&engine).unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, target).unwrap();
    }
}

/// All files but the locks and what is noted of the journal.
fn image(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let is_kept = |path: &PathBuf| !path.ends_with("weft.lock") && !path.ends_with("lock");
    files(directory)
        .into_iter()
        .filter(is_kept)
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// Opens a damaged store; the contents, or what was said.
fn read_damaged(directory: &Path, boot: [u8; 16]) -> Result<Contents, String> {
    let before = image(directory);
    let opened = catch_unwind(AssertUnwindSafe(|| open_in(directory, boot)));
    let refused = match opened {
        Err(_) => "fjall has panicked".to_string(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(engine)) => {
            let read = catch_unwind(AssertUnwindSafe(|| contents(&engine)));
            return match read {
                Ok(read) => read.map_err(|error| error.to_string()),
                Err(_) => Err("fjall has panicked".into()),
            };
        }
    };
    let after = image(directory);
    for (path, bytes) in &before {
        let now = after.iter().find(|(other, _)| other == path).unwrap_or_else(|| panic!("{path:?} is gone"));
        assert!(
            now.1 == *bytes || path.ends_with("journal.state"),
            "{path:?} was changed, though: {refused}"
        );
    }
    Err(refused)
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn flipped_bits_anywhere_are_refused_or_found_or_harmless() {
    let scratch = tempfile::tempdir().unwrap();
    let (sound, damaged) = (scratch.path().join("sound"), scratch.path().join("damaged"));
    let expected = store(&sound);
    let files = files(&sound);
    assert!(
        files.iter().any(|path| path.to_string_lossy().contains("keyspaces/1/tables/")),
        "there are tables"
    );
    let (mut refused, mut harmless) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for seed in seeds().take(number("WEFT_ROT_FLIPS", FLIPS_DEFAULT)) {
        copy(&sound, &damaged);
        let mut random = Random(seed);
        // Small files are as likely as large ones.
        let path = &files[(random.next() % files.len() as u64) as usize];
        let name = path.strip_prefix(&sound).unwrap();
        let mut bytes = std::fs::read(path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let at = (random.next() % bytes.len() as u64) as usize;
        let many = if seed % 4 == 0 { 8.min(bytes.len() - at) } else { 1 };
        bytes[at..at + many].iter_mut().for_each(|byte| *byte ^= 1 << (random.next() % 8));
        std::fs::write(damaged.join(name), bytes).unwrap();
        let kind = name.components().next_back().unwrap().as_os_str().to_string_lossy().into_owned();
        match read_damaged(&damaged, BOOT) {
            Ok(found) => {
                assert!(found == expected, "seed {seed}: other contents with {name:?} flipped at byte {at}");
                *harmless.entry(kind).or_default() += 1;
            }
            Err(_) => *refused.entry(kind).or_default() += 1,
        }
    }
    println!("refused or found: {refused:?}; harmless: {harmless:?}");
}

/// The engine would take memory for as many sections as it says there are.
#[test]
fn a_table_of_contents_that_says_too_much_is_refused_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    let (sound, damaged) = (scratch.path().join("sound"), scratch.path().join("damaged"));
    store(&sound);
    let mut tables = files(&sound);
    tables.retain(|path| path.to_string_lossy().contains("/tables/"));
    assert!(tables.len() > 1, "{tables:?}");
    for path in tables {
        copy(&sound, &damaged);
        let name = path.strip_prefix(&sound).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let magic = bytes.windows(4).rposition(|four| four == b"TOC!").expect("every archive has one");
        bytes[magic + 7] ^= 0x40;
        std::fs::write(damaged.join(name), bytes).unwrap();
        let said = read_damaged(&damaged, BOOT).expect_err("it says that there are a billion sections");
        assert!(said.contains("table of contents") && said.contains(&name.display().to_string()), "{said}");
    }
}

#[test]
fn a_missing_or_shortened_file_is_refused_or_harmless() {
    let scratch = tempfile::tempdir().unwrap();
    let (sound, damaged) = (scratch.path().join("sound"), scratch.path().join("damaged"));
    let expected = store(&sound);
    for path in files(&sound) {
        let name = path.strip_prefix(&sound).unwrap();
        let bytes = path.metadata().unwrap().len();
        for left in [None, Some(0), Some(bytes / 2), Some(bytes.saturating_sub(1))] {
            copy(&sound, &damaged);
            match left {
                None => std::fs::remove_file(damaged.join(name)).unwrap(),
                Some(left) => {
                    let file = std::fs::OpenOptions::new().write(true).open(damaged.join(name)).unwrap();
                    file.set_len(left).unwrap();
                }
            }
            if let Ok(found) = read_damaged(&damaged, BOOT) {
                assert!(found == expected, "other contents with {left:?} bytes left of {name:?}");
            }
        }
    }
}

fn damage(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    file.write_all_at(&bytes.map(|byte| byte ^ 0x55), at).unwrap();
}

fn batch(number: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(format!("name {number:04}"), vec![number as u8; 100]);
    batch
}

fn commit(engine: &mut FjallEngine, numbers: std::ops::Range<u64>) {
    for number in numbers {
        engine.commit(&batch(number)).unwrap();
    }
}

/// The length of what a journal holds.
fn journal_bytes(directory: &Path) -> u64 {
    let bytes = std::fs::read(directory.join("0.jnl")).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1
}

#[test]
fn damage_in_the_journal_of_a_server_that_ended_in_order_is_refused_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let mut engine = open_in(&store, BOOT).unwrap();
    commit(&mut engine, 0..7);
    drop(engine);
    let end = journal_bytes(&store);
    for at in [0, end / 3, end - 60, end - 8] {
        let damaged = scratch.path().join("damaged");
        copy(&store, &damaged);
        damage(&damaged.join("0.jnl"), at);
        for boot in [BOOT, LATER_BOOT] {
            let said = read_damaged(&damaged, boot).expect_err("all of it was synced");
            assert!(
                said.contains("0.jnl is damaged at byte") && said.contains("nothing was changed"),
                "{said}"
            );
        }
    }
}

/// The way out that docs/semantics.md tells: what is before the damage is kept.
#[test]
fn a_damaged_journal_can_be_cut_by_hand() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let mut engine = open_in(&store, BOOT).unwrap();
    commit(&mut engine, 0..7);
    drop(engine);
    damage(&store.join("0.jnl"), journal_bytes(&store) / 3);
    let Err(EngineError::Damaged { offset: Some(offset), .. }) = open_in(&store, BOOT) else {
        panic!("it is not refused")
    };
    let file = std::fs::OpenOptions::new().write(true).open(store.join("0.jnl")).unwrap();
    file.set_len(offset).unwrap();
    std::fs::remove_file(store.join("journal.state")).unwrap();
    let engine = open_in(&store, BOOT).unwrap();
    assert_eq!(contents(&engine).unwrap().len(), 2);
}

/// A killed process leaves at most its last commit torn, since the page cache is whole.
#[test]
fn damage_after_a_kill_is_refused_and_a_torn_last_commit_is_cut() {
    let scratch = tempfile::tempdir().unwrap();
    let (live, left) = (scratch.path().join("live"), scratch.path().join("left"));
    let mut engine = open_in(&live, BOOT).unwrap();
    commit(&mut engine, 0..20);
    engine.syncer().sync().unwrap();
    commit(&mut engine, 20..39);
    // Commits are noted every 10 ms.
    std::thread::sleep(std::time::Duration::from_millis(10));
    commit(&mut engine, 39..40);
    let end = journal_bytes(&live);
    for at in (0..end - 8).step_by(97) {
        copy(&live, &left);
        damage(&left.join("0.jnl"), at);
        read_damaged(&left, BOOT).expect_err("commits were acknowledged");
    }
    // The next commit had begun.
    let begun = [&[1, 1, 0, 0, 0][..], &[99, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 1]].concat();
    for bytes in 1..begun.len() {
        copy(&live, &left);
        let file = std::fs::OpenOptions::new().write(true).open(left.join("0.jnl")).unwrap();
        file.write_all_at(&begun[..bytes], end).unwrap();
        let engine = open_in(&left, BOOT).unwrap();
        assert!(engine.torn_bytes() > 0);
        assert_eq!(contents(&engine).unwrap().len(), 40);
    }
}

/// After a power cut only what was synced must be sound; pages of the rest may be there in any choice.
#[test]
fn damage_before_the_last_sync_is_refused_after_a_power_cut() {
    let scratch = tempfile::tempdir().unwrap();
    let (live, left) = (scratch.path().join("live"), scratch.path().join("left"));
    let mut engine = open_in(&live, BOOT).unwrap();
    commit(&mut engine, 0..20);
    engine.syncer().sync().unwrap();
    let synced = journal_bytes(&live);
    commit(&mut engine, 20..40);
    let end = journal_bytes(&live);
    for at in (0..end - 8).step_by(97) {
        copy(&live, &left);
        damage(&left.join("0.jnl"), at);
        match read_damaged(&left, LATER_BOOT) {
            Ok(found) => assert!(at + 8 > synced && found.len() >= 20, "byte {at} of {synced}"),
            Err(said) => {
                assert!(at < synced && said.contains("had been synced"), "byte {at} of {synced}: {said}")
            }
        }
    }
}

/// Replies that the store keeps have capabilities in them.
#[test]
fn only_the_owner_may_read_a_store() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    drop(open_in(&directory, BOOT).unwrap());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let private = || {
        assert_eq!(mode(&directory), 0o700);
        for path in files(&directory) {
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700), "{path:?}");
        }
    };
    private();
    for path in files(&directory) {
        std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    drop(open_in(&directory, BOOT).unwrap());
    private();
}
