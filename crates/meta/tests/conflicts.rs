//! An operation that meets a conflict is run again, and only its last run has an effect.

use std::cell::Cell;
use weft_meta::{Caller, EngineError, MetaError, NewFile, Once, run_again};

mod common;
use common::{S1, S2, WRITE, at, create, mem, now, run, sound, stat};

#[test]
fn an_operation_is_run_until_its_commit_meets_no_conflict() {
    let mut ns = mem();
    let runs = Cell::new(0);
    let before = ns.committed();
    let made = run(&mut ns, |op| {
        runs.set(runs.get() + 1);
        op.mkdir(&Caller::root(), now(1), at("d"), 0o755)
    });
    assert_eq!((made.is_ok(), runs.get(), ns.committed()), (true, 2, before + 1));
    assert!(stat(&mut ns, "d").is_ok());
    sound(&ns);
}

#[test]
fn a_conflict_that_does_not_end_is_an_error_in_the_end() {
    let runs = Cell::new(0);
    let ended = run_again(|| {
        runs.set(runs.get() + 1);
        Err::<(), MetaError>(EngineError::Conflict.into())
    });
    assert!(ended.unwrap_err().to_string().contains("try again"));
    assert!((10..1000).contains(&runs.get()), "{}", runs.get());
}

/// The first commit is refused; what the operation would have counted, kept and replied is not there.
#[test]
fn a_run_that_was_not_committed_leaves_nothing() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    let counts = ns.statfs();
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    for name in ["f", "g"] {
        let Once::Fresh(mut op) = ns.begin_once(now(2), S2, 0, 1).unwrap() else { panic!("it has not run") };
        op.create(&Caller::root(), now(2), S2, at(name), &new, WRITE).unwrap();
        let refused = op.commit_with_reply(b"reply").unwrap_err();
        assert!(matches!(refused, MetaError::Engine(EngineError::Conflict)), "{refused}");
        let after = ns.statfs();
        assert_eq!((after.inodes, after.open_files), (counts.inodes, counts.open_files));
        assert!(!ns.is_open_by(ino, S2) && ns.failure().is_none());
        let Once::Fresh(mut op) = ns.begin_once(now(2), S2, 0, 1).unwrap() else { panic!("it has not run") };
        op.unlink(&Caller::root(), now(2), at("f")).unwrap();
        // The second commit of an operation is taken.
        run(&mut ns, |op| op.open(&Caller::root(), S1, at("f"), WRITE)).ok();
    }
    sound(&ns);
}
