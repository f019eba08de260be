//! One suite over every engine: atomic batches, ordered scans, durability, and a random comparison with a map.

use proptest::prelude::*;
use std::collections::BTreeMap;
use weft_meta::{Batch, Engine, FjallEngine, FjallOptions, MemEngine};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all<E: Engine>(engine: &E) -> Model {
    engine.scan(&[0], &[255]).map(Result::unwrap).collect()
}

fn batch(writes: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in writes {
        match value {
            Some(value) => batch.put(*key, *value),
            None => batch.delete(*key),
        }
    }
    batch
}

fn conforms<E: Engine>(mut engine: E) -> E {
    assert_eq!(engine.committed(), 0);
    assert_eq!(engine.get(b"a").unwrap(), None);
    assert_eq!(engine.commit(&batch(&[("a", Some("1")), ("b", Some("2")), ("c", Some("3"))])).unwrap(), 1);
    assert_eq!(engine.get(b"b").unwrap(), Some(b"2".to_vec()));
    assert_eq!(engine.commit(&batch(&[("b", None), ("a", Some("9")), ("missing", None)])).unwrap(), 2);
    assert_eq!(engine.get(b"b").unwrap(), None);
    assert_eq!(engine.commit(&batch(&[("d", Some("x")), ("d", None), ("d", Some("y"))])).unwrap(), 3);
    let scan = |engine: &E, from: &str, to: &str| {
        let keys = engine.scan(from.as_bytes(), to.as_bytes()).map(|pair| pair.unwrap().0);
        String::from_utf8(keys.flatten().collect()).unwrap()
    };
    assert_eq!(scan(&engine, "a", "d"), "ac", "the end is not included");
    assert_eq!(scan(&engine, "b", "z"), "cd");
    assert_eq!(scan(&engine, "z", "a"), "");
    assert_eq!(engine.get(b"d").unwrap(), Some(b"y".to_vec()), "the last write of a key wins");
    let syncer = engine.syncer();
    let covered = std::thread::spawn(move || syncer.sync().unwrap()).join().unwrap();
    assert_eq!((covered, engine.committed()), (3, 3));
    engine
}

fn small() -> FjallOptions {
    FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, ..FjallOptions::default() }
}

#[test]
fn the_engine_in_memory_conforms() {
    conforms(MemEngine::new());
}

#[test]
fn the_embedded_engine_conforms_and_finds_its_data_again() {
    let directory = tempfile::tempdir().unwrap();
    let before = all(&conforms(FjallEngine::open(directory.path(), &small()).unwrap()));
    let engine = FjallEngine::open(directory.path(), &small()).unwrap();
    assert_eq!(all(&engine), before);
    let second = FjallEngine::open(directory.path(), &small());
    assert!(second.is_err(), "only one process may have it open");
}

#[test]
fn a_crash_keeps_a_prefix_of_what_was_not_synced() {
    let mut engine = MemEngine::new();
    engine.commit(&batch(&[("a", Some("1"))])).unwrap();
    engine.syncer().sync().unwrap();
    engine.commit(&batch(&[("a", Some("2")), ("b", Some("2"))])).unwrap();
    engine.commit(&batch(&[("c", Some("3"))])).unwrap();
    let fork = engine.fork();
    engine.commit(&batch(&[("a", None)])).unwrap();
    assert_eq!((engine.unsynced(), fork.unsynced()), (3, 2));
    assert_eq!(all(&engine.after_crash(0)).len(), 1);
    assert_eq!(all(&engine.after_crash(1)).len(), 2);
    assert_eq!(all(&engine.after_crash(2)), all(&fork));
    assert_eq!(all(&engine.after_crash(3)), all(&engine));
}

/// Enough data for several memory tables: flushes and compactions happen under the reads.
#[test]
fn the_embedded_engine_holds_more_than_its_memory_table() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = FjallEngine::open(directory.path(), &small()).unwrap();
    let syncer = engine.syncer();
    let mut model = Model::new();
    for round in 0..6_000u32 {
        let key = (round.wrapping_mul(2_654_435_761) % 2_000).to_be_bytes().to_vec();
        let value = vec![round as u8; 1000];
        let mut batch = Batch::default();
        batch.put(key.clone(), value.clone());
        assert_eq!(engine.commit(&batch).unwrap(), u64::from(round) + 1);
        model.insert(key, value);
        if round % 1000 == 0 {
            assert_eq!(syncer.sync().unwrap(), u64::from(round) + 1);
        }
    }
    assert_eq!(all(&engine), model);
    drop(engine);
    assert_eq!(all(&FjallEngine::open(directory.path(), &small()).unwrap()), model);
}

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<(u8, Option<u8>)>),
    Scan(u8, u8),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec((1..40u8, prop::option::of(any::<u8>())), 1..8).prop_map(Step::Commit),
        2 => (0..40u8, 0..45u8).prop_map(|(from, to)| Step::Scan(from, to)),
        1 => Just(Step::Reopen),
    ]
}

fn matches_a_map<E: Engine>(
    mut engine: E,
    steps: &[Step],
    reopen: impl Fn(E) -> E,
) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Commit(writes) => {
                let mut batch = Batch::default();
                for (key, value) in writes {
                    match value {
                        Some(value) => {
                            batch.put([*key], [*value; 3]);
                            model.insert(vec![*key], vec![*value; 3]);
                        }
                        None => {
                            batch.delete([*key]);
                            model.remove([*key].as_slice());
                        }
                    }
                }
                engine.commit(&batch).unwrap();
            }
            Step::Scan(from, to) => {
                let found: Model = engine.scan(&[*from], &[*to]).map(Result::unwrap).collect();
                let expected: Model = model
                    .iter()
                    .filter(|(key, _)| (*from..*to).contains(&key[0]))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                prop_assert_eq!(found, expected);
            }
            Step::Reopen => engine = reopen(engine),
        }
        for key in 1..40u8 {
            prop_assert_eq!(engine.get(&[key]).unwrap(), model.get([key].as_slice()).cloned());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(weft_test_random::cases(24))]

    #[test]
    fn engines_match_a_map(steps in prop::collection::vec(step(), 1..40)) {
        matches_a_map(MemEngine::new(), &steps, |engine| engine.after_crash(engine.unsynced()))?;
        let directory = tempfile::tempdir().unwrap();
        let open = || FjallEngine::open(directory.path(), &small()).unwrap();
        matches_a_map(open(), &steps, |engine| { drop(engine); open() })?;
    }
}
