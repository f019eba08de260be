//! Quotas: usage stays what a count of all inodes says, limits hold, and trees keep to themselves.

mod common;
use common::*;
use proptest::prelude::*;
use weft_meta::{
    At, Caller, Engine, Limits, MemEngine, Namespace, NewFile, QuotaRow, QuotaState, RenameMode, SetAttr,
    Subject, Used, WriteReport, XattrMode, run_again,
};

fn bytes(hard_bytes: u64) -> Option<Limits> {
    Some(Limits { hard_bytes, ..Limits::default() })
}

fn files(hard_files: u64) -> Option<Limits> {
    Some(Limits { hard_files, ..Limits::default() })
}

fn limit<E: Engine>(ns: &mut Namespace<E>, subject: Subject, limits: Option<Limits>) {
    run(ns, |op| op.set_limits(subject, limits)).unwrap();
    while ns.count_usage(3).unwrap() {}
}

fn all<E: Engine>(ns: &Namespace<E>) -> Vec<QuotaRow> {
    ns.quotas(Subject::User(0), true, 1000, |_| true)
}

fn used<E: Engine>(ns: &Namespace<E>, subject: Subject) -> (u64, u64) {
    let Used { bytes, files } = ns.quota_of(subject).used;
    (bytes, files)
}

/// Creates a file as a user who is held to limits, and says how that went.
fn make<E: Engine>(ns: &mut Namespace<E>, uid: u32, path: &str, small: bool) -> Result<u64, &'static str> {
    let new = NewFile { mode: 0o666, small, ..NewFile::default() };
    let made = run(ns, |op| {
        op.limited();
        let opened = op.create(&user(uid), now(1), S1, at(path), &new, WRITE)?;
        op.grant(opened.attr.ino, None)?;
        Ok(opened.attr.ino)
    });
    made.map_err(|error| outcome::<()>(Err(error)))
}

fn write_small<E: Engine>(ns: &mut Namespace<E>, ino: u64, bytes: usize) -> &'static str {
    outcome(run(ns, |op| {
        op.limited();
        op.write_small(now(2), ino, 0, &vec![1; bytes])
    }))
}

fn close<E: Engine>(ns: &mut Namespace<E>, ino: u64, end: u64) {
    let report = WriteReport { max_end: end, mtime: Some(now(3)) };
    run(ns, |op| op.close(now(3), S1, ino, true, Some(&report))).unwrap();
}

fn set_tree<E: Engine>(ns: &mut Namespace<E>, path: &str, pages: usize) -> Result<u64, &'static str> {
    let tree = stat(ns, path).unwrap().ino;
    mark(ns, tree, (0, tree), pages).map(|()| tree)
}

fn mark<E: Engine>(
    ns: &mut Namespace<E>,
    tree: u64,
    marks: (u64, u64),
    entries: usize,
) -> Result<(), &'static str> {
    let mut waiting = vec![tree];
    while let Some(dir) = waiting.pop() {
        let mut after = Some(0);
        while let Some(from) = after {
            let page = run(ns, |op| op.mark_tree(dir, marks, from, entries));
            let page = page.map_err(|error| outcome::<()>(Err(error)))?;
            waiting.extend(page.directories);
            after = page.next;
        }
    }
    Ok(())
}

/// Usage as it is and as a count from the beginning finds it.
fn same_as_counted<E: Engine>(ns: &mut Namespace<E>) {
    let shown = |ns: &Namespace<E>| -> Vec<QuotaRow> { all(ns) };
    let kept = shown(ns);
    run(ns, |op| {
        op.count_usage_anew();
        Ok(())
    })
    .unwrap();
    assert!(ns.is_counting_usage());
    while ns.count_usage(2).unwrap() {}
    assert_eq!(shown(ns), kept);
}

#[test]
fn nothing_is_counted_until_a_limit_is_set_and_then_all_that_is_there() {
    let mut ns = mem();
    let ino = make(&mut ns, 7, "before", true).unwrap();
    assert_eq!(write_small(&mut ns, ino, 100), "ok");
    assert_eq!((ns.quota_state(), used(&ns, Subject::User(7))), (QuotaState::Off, (0, 0)));
    run(&mut ns, |op| op.set_limits(Subject::User(7), bytes(150))).unwrap();
    assert_eq!(ns.quota_state(), QuotaState::Counting { counted: 0, inodes: 2 });
    assert_eq!(write_small(&mut ns, ino, 200), "ok", "limits hold when the count is done");
    assert!(ns.count_usage(1).unwrap());
    assert!(!ns.count_usage(5).unwrap());
    assert_eq!((ns.quota_state(), used(&ns, Subject::User(7))), (QuotaState::On, (200, 1)));
    assert_eq!(write_small(&mut ns, ino, 201), "Quota");
    assert_eq!(write_small(&mut ns, ino, 200), "ok", "no more than before");
}

fn set_xattr<E: Engine>(ns: &mut Namespace<E>, path: &str, name: &str, bytes: usize) -> &'static str {
    let value = vec![1; bytes];
    outcome(run(ns, |op| {
        op.limited();
        let name = name.as_bytes();
        op.set_xattr(&Caller::root(), now(2), at(path), true, name, &value, XattrMode::Any)
    }))
}

fn remove_xattr<E: Engine>(ns: &mut Namespace<E>, path: &str, name: &str) -> &'static str {
    outcome(run(ns, |op| op.remove_xattr(&Caller::root(), now(2), at(path), true, name.as_bytes())))
}

#[test]
fn extended_attributes_count_as_space_of_their_inode() {
    let mut ns = mem();
    mkdir(&mut ns, &user(7), "d", 0o777).unwrap();
    make(&mut ns, 7, "d/f", true).unwrap();
    assert_eq!(set_xattr(&mut ns, "d/f", "user.before", 100), "ok");
    limit(&mut ns, Subject::User(7), bytes(1000));
    assert_eq!(used(&ns, Subject::User(7)), (111, 2), "eleven bytes of the name, and the value");
    assert_eq!(set_xattr(&mut ns, "d/f", "user.more", 881), "Quota");
    assert_eq!(set_xattr(&mut ns, "d/f", "user.more", 880), "ok");
    assert_eq!((used(&ns, Subject::User(7)), used(&ns, Subject::Group(7))), ((1000, 2), (1000, 2)));
    assert_eq!(set_xattr(&mut ns, "d", "user.a", 1), "Quota", "a directory's count, too");
    assert_eq!(set_xattr(&mut ns, "d/f", "user.more", 80), "ok", "a shorter value in its place");
    assert_eq!(used(&ns, Subject::User(7)), (200, 2));
    same_as_counted(&mut ns);
    // They go with their inode: into a tree, to another owner, and away.
    let tree = set_tree(&mut ns, "d", 9).unwrap();
    limit(&mut ns, Subject::Tree(tree), bytes(210));
    assert_eq!(used(&ns, Subject::Tree(tree)), (200, 2));
    assert_eq!(set_xattr(&mut ns, "d", "user.tree", 2), "Quota");
    let change = SetAttr { uid: Some(8), ..SetAttr::default() };
    run(&mut ns, |op| op.setattr(&Caller::root(), now(2), at("d/f"), true, &change)).unwrap();
    assert_eq!((used(&ns, Subject::User(7)), used(&ns, Subject::User(8))), ((0, 1), (200, 1)));
    assert_eq!(remove_xattr(&mut ns, "d/f", "user.before"), "ok");
    assert_eq!(used(&ns, Subject::Tree(tree)), (89, 2));
    same_as_counted(&mut ns);
    assert_eq!(remove_xattr(&mut ns, "d/f", "user.more"), "ok");
    assert_eq!(used(&ns, Subject::User(8)), (0, 1));
    assert_eq!(set_xattr(&mut ns, "d/f", "user.last", 50), "ok");
    same_as_counted(&mut ns);
    run(&mut ns, |op| op.unlink(&Caller::root(), now(1), at("d/f"))).unwrap();
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    same_as_counted(&mut ns);
}

/// The release before kept usage without extended attributes.
#[test]
fn usage_of_the_release_before_is_counted_again() {
    let mut ns = mem();
    make(&mut ns, 7, "f", true).unwrap();
    limit(&mut ns, Subject::User(7), files(50));
    assert_eq!(set_xattr(&mut ns, "f", "user.x", 100), "ok");
    let mut engine = ns.engine().fork();
    let mut batch = weft_meta::Batch::default();
    batch.put(b"squota", vec![1, 1, 0, 0, 0]);
    for pair in ns.engine().scan(b"q", b"r") {
        let (key, _) = pair.unwrap();
        batch.put(key, [&[1][..], &[0; 16]].concat());
    }
    run_again(|| engine.commit(&batch)).unwrap();
    let mut again = Namespace::open(engine, options()).unwrap();
    assert!(matches!(again.quota_state(), QuotaState::Counting { .. }));
    while again.count_usage(1).unwrap() {}
    assert_eq!(used(&again, Subject::User(7)), (106, 1));
    sound(&again);
}

/// Their sizes come to more than 2^64.
#[test]
fn usage_comes_back_exactly_after_huge_sparse_files() {
    let mut ns = mem();
    limit(&mut ns, Subject::User(8), files(100));
    let before = (used(&ns, Subject::User(7)), used(&ns, Subject::Group(7)));
    let paths: Vec<_> = (0..5).map(|number| format!("sparse{number}")).collect();
    for path in &paths {
        let ino = make(&mut ns, 7, path, false).unwrap();
        close(&mut ns, ino, i64::MAX as u64 - 5);
    }
    same_as_counted(&mut ns);
    for path in &paths {
        run(&mut ns, |op| op.unlink(&user(7), now(1), at(path))).unwrap();
    }
    assert_eq!((used(&ns, Subject::User(7)), used(&ns, Subject::Group(7))), before);
    same_as_counted(&mut ns);
}

#[test]
fn a_limit_of_files_holds_for_every_kind_and_falls_when_one_is_removed() {
    let mut ns = mem();
    limit(&mut ns, Subject::User(7), files(3));
    make(&mut ns, 7, "f", true).unwrap();
    let limited = |ns: &mut Namespace<MemEngine>, path: &str| {
        outcome(run(ns, |op| {
            op.limited();
            op.symlink(&user(7), now(1), at(path), b"x")
        }))
    };
    mkdir(&mut ns, &user(7), "d", 0o755).unwrap();
    assert_eq!(limited(&mut ns, "l"), "ok");
    assert_eq!(limited(&mut ns, "m"), "Quota");
    assert_eq!(make(&mut ns, 7, "g", true), Err("Quota"));
    assert_eq!(
        stat(&mut ns, "g").map(|attr| attr.ino).map_err(|error| outcome::<()>(Err(error))),
        Err("NotFound")
    );
    run(&mut ns, |op| op.link(&user(7), now(1), at("f"), false, at("h"))).unwrap();
    run(&mut ns, |op| op.unlink(&user(7), now(1), at("l"))).unwrap();
    make(&mut ns, 7, "g", true).unwrap();
    // Who is not held to limits, and another user.
    mkdir(&mut ns, &user(7), "e", 0o755).unwrap();
    make(&mut ns, 8, "i", true).unwrap();
    same_as_counted(&mut ns);
    sound(&ns);
}

#[test]
fn writers_of_a_striped_file_get_no_more_than_is_left_and_it_comes_back() {
    let mut ns = mem();
    limit(&mut ns, Subject::User(7), bytes(1 << 20));
    let ino = make(&mut ns, 7, "f", false).unwrap();
    let grant = |ns: &mut Namespace<MemEngine>, ino, end| {
        run(ns, |op| op.grant(ino, Some(end))).map_err(|error| outcome::<()>(Err(error)))
    };
    let bound = grant(&mut ns, ino, 900_000).unwrap().unwrap();
    assert!((900_000..=1 << 20).contains(&bound));
    assert_eq!(ns.quota_of(Subject::User(7)).reserved_bytes, bound);
    let other = make(&mut ns, 7, "g", false).unwrap();
    assert_eq!(grant(&mut ns, other, 200_000), Err("Quota"));
    close(&mut ns, ino, 800_000);
    assert_eq!(used(&ns, Subject::User(7)), (800_000, 2));
    assert!(ns.quota_of(Subject::User(7)).reserved_bytes < 10_000, "only what the open of the other gave");
    grant(&mut ns, other, 200_000).unwrap();
    // A writer that is given up may have written as far as it was allowed to.
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert!(ns.quota_of(Subject::User(7)).reserved_bytes >= 200_000);
    let attr = ns.begin().getattr(other).unwrap();
    run(&mut ns, |op| op.settle(other, 150_000, None, attr.epoch)).unwrap();
    assert_eq!(
        (used(&ns, Subject::User(7)), ns.quota_of(Subject::User(7)).reserved_bytes),
        ((950_000, 2), 0)
    );
    same_as_counted(&mut ns);
}

#[test]
fn a_truncation_is_held_to_the_limit_before_data_files_are_extended() {
    let mut ns = mem();
    limit(&mut ns, Subject::User(7), bytes(1_000_000));
    let ino = make(&mut ns, 7, "f", false).unwrap();
    let extend = |ns: &mut Namespace<MemEngine>, size| {
        outcome(run(ns, |op| {
            op.limited();
            let begun = op.truncate_begin(&user(7), now(2), S1, At::ino(ino), size)?;
            if begun.data_work { op.grant(ino, Some(size)).map(drop) } else { Ok(()) }
        }))
    };
    assert_eq!(extend(&mut ns, 1_000_001), "Quota");
    assert_eq!(extend(&mut ns, 1_000_000), "ok");
}

#[test]
fn what_is_given_away_counts_for_who_gets_it() {
    let mut ns = mem();
    limit(&mut ns, Subject::Group(9), bytes(100));
    let ino = make(&mut ns, 7, "f", true).unwrap();
    assert_eq!(write_small(&mut ns, ino, 101), "ok");
    let give = |ns: &mut Namespace<MemEngine>, checked: bool| {
        let change = SetAttr { gid: Some(9), ..SetAttr::default() };
        outcome(run(ns, |op| {
            if checked {
                op.limited();
            }
            op.setattr(&Caller::root(), now(2), at("f"), true, &change)
        }))
    };
    assert_eq!(give(&mut ns, true), "Quota");
    assert_eq!(give(&mut ns, false), "ok", "root is not held to it");
    assert_eq!((used(&ns, Subject::Group(9)), used(&ns, Subject::Group(7))), ((101, 1), (0, 0)));
}

#[test]
fn a_tree_is_marked_page_by_page_and_keeps_to_itself() {
    let mut ns = mem();
    for path in ["t", "t/a", "t/a/b", "o"] {
        mkdir(&mut ns, &user(7), path, 0o777).unwrap();
    }
    for path in ["t/1", "t/2", "t/3", "t/a/4", "t/a/b/5", "o/6"] {
        let ino = make(&mut ns, 7, path, true).unwrap();
        assert_eq!(write_small(&mut ns, ino, 10), "ok");
        close(&mut ns, ino, 10);
    }
    let tree = set_tree(&mut ns, "t", 2).unwrap();
    limit(&mut ns, Subject::Tree(tree), bytes(70));
    assert_eq!(used(&ns, Subject::Tree(tree)), (50, 8));
    let ino = make(&mut ns, 7, "t/a/new", true).unwrap();
    assert_eq!((write_small(&mut ns, ino, 21), write_small(&mut ns, ino, 20)), ("Quota", "ok"));
    // A file moves and takes its bytes along, a directory does not.
    let rename = |ns: &mut Namespace<MemEngine>, from, to| {
        outcome(run(ns, |op| {
            op.limited();
            op.rename(&user(7), now(3), at(from), at(to), RenameMode::Replace)
        }))
    };
    assert_eq!(rename(&mut ns, "o/6", "t/6"), "Quota");
    assert_eq!(rename(&mut ns, "t/1", "o/1"), "ok");
    assert_eq!(rename(&mut ns, "o/6", "t/6"), "ok");
    assert_eq!(used(&ns, Subject::Tree(tree)), (70, 9));
    assert_eq!((rename(&mut ns, "t/a", "o/a"), rename(&mut ns, "o", "t/o")), ("OtherTree", "OtherTree"));
    assert_eq!(rename(&mut ns, "t/a/b", "t/b"), "ok");
    assert_eq!(rename(&mut ns, "t", "u"), "ok", "the tree as a whole");
    let link = |ns: &mut Namespace<MemEngine>, from, to| {
        outcome(run(ns, |op| op.link(&user(7), now(3), at(from), false, at(to))))
    };
    assert_eq!((link(&mut ns, "u/2", "o/2"), link(&mut ns, "u/2", "u/a/2")), ("OtherTree", "ok"));
    assert_eq!(rename(&mut ns, "u/2", "o/2"), "OtherTree", "its other name stays there");
    assert_eq!(
        (set_tree(&mut ns, "u/a", 9), set_tree(&mut ns, "/", 9)),
        (Err("NotSupported"), Err("Invalid"))
    );
    assert_eq!(ns.begin().path_of(tree).unwrap().as_deref(), Some(&b"/u"[..]));
    same_as_counted(&mut ns);
    sound(&ns);
    // No tree any more.
    mark(&mut ns, tree, (tree, 0), 2).unwrap();
    assert_eq!(used(&ns, Subject::Tree(tree)), (0, 0));
    assert_eq!(rename(&mut ns, "u/a", "o/a"), "ok");
    same_as_counted(&mut ns);
}

#[test]
fn a_tree_that_is_removed_takes_its_limits_along() {
    let mut ns = mem();
    mkdir(&mut ns, &user(7), "t", 0o777).unwrap();
    let tree = set_tree(&mut ns, "t", 9).unwrap();
    limit(&mut ns, Subject::Tree(tree), bytes(70));
    run(&mut ns, |op| op.rmdir(&user(7), now(3), at("t"))).unwrap();
    assert_eq!(ns.quota_of(Subject::Tree(tree)).limits, None);
    assert!(all(&ns).iter().all(|row| row.subject != Subject::Tree(tree)));
    sound(&ns);
}

#[test]
fn a_store_that_was_served_without_quotas_meanwhile_is_counted_again() {
    let mut engine = MemEngine::new();
    Namespace::format(&mut engine, [9; 16], &Caller::root(), now(0)).unwrap();
    let open = |engine: &MemEngine| Namespace::open(engine.fork(), options()).unwrap();
    let mut ns = open(&engine);
    limit(&mut ns, Subject::User(0), files(50));
    mkdir(&mut ns, &Caller::root(), "d", 0o755).unwrap();
    let engine = ns.engine().fork();
    let mut again = open(&engine);
    assert_eq!((again.quota_state(), used(&again, Subject::User(0))), (QuotaState::On, (0, 2)));
    assert_eq!(again.quota_of(Subject::User(0)).limits, files(50));
    same_as_counted(&mut again);
    // A run that did not keep usage: its number is not the one that is stored.
    let mut engine = ns.engine().fork();
    let mut batch = weft_meta::Batch::default();
    batch.put(b"sincarnation", [&[1][..], &9u64.to_le_bytes()].concat());
    engine.commit(&batch).unwrap();
    assert!(matches!(open(&engine).quota_state(), QuotaState::Counting { .. }));
}

#[derive(Debug, Clone)]
enum Step {
    Make(u32, u8, bool),
    Write(u8, usize),
    Grow(u8, u64),
    Close(u8, u64),
    Gone,
    Settle(u8, u64),
    Unlink(u8),
    Rename(u8, u8, bool),
    Link(u8, u8),
    Give(u8, u32, u32),
    Mkdir(u8),
    Mark(u8, bool),
    Xattr(u8, u8, Option<usize>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..18u8;
    let size = 0..30_000u64;
    let step = prop_oneof![
        (1..4u32, name.clone(), any::<bool>()).prop_map(|(uid, name, small)| Step::Make(uid, name, small)),
        (name.clone(), 0..16_000usize).prop_map(|(name, bytes)| Step::Write(name, bytes)),
        (name.clone(), size.clone()).prop_map(|(name, end)| Step::Grow(name, end)),
        (name.clone(), size.clone()).prop_map(|(name, end)| Step::Close(name, end)),
        Just(Step::Gone),
        (name.clone(), size).prop_map(|(name, end)| Step::Settle(name, end)),
        name.clone().prop_map(Step::Unlink),
        (name.clone(), name.clone(), any::<bool>()).prop_map(|(from, to, swap)| Step::Rename(from, to, swap)),
        (name.clone(), name.clone()).prop_map(|(from, to)| Step::Link(from, to)),
        (name.clone(), 1..4u32, 1..4u32).prop_map(|(name, uid, gid)| Step::Give(name, uid, gid)),
        name.clone().prop_map(Step::Mkdir),
        (0..3u8, any::<bool>()).prop_map(|(dir, on)| Step::Mark(dir, on)),
        (name, 0..3u8, prop::option::of(0..9_000usize))
            .prop_map(|(name, of, bytes)| Step::Xattr(name, of, bytes)),
    ];
    prop::collection::vec(step, 1..60)
}

/// Names in three directories.
fn path(name: u8) -> String {
    format!("d{}/{}", name % 3, name / 3)
}

fn take<E: Engine>(ns: &mut Namespace<E>, step: &Step) {
    let root = Caller::root();
    let ino_of =
        |ns: &mut Namespace<E>, name: u8| stat(ns, &path(name)).map(|attr| attr.ino).unwrap_or(u64::MAX);
    let _ = match step {
        Step::Make(uid, name, small) => make(ns, *uid, &path(*name), *small).map(drop).is_ok(),
        Step::Write(name, bytes) => {
            let ino = ino_of(ns, *name);
            write_small(ns, ino, *bytes) == "ok"
        }
        Step::Grow(name, end) => {
            let ino = ino_of(ns, *name);
            run(ns, |op| op.grant(ino, Some(*end))).is_ok()
        }
        Step::Close(name, end) => {
            let ino = ino_of(ns, *name);
            let report = WriteReport { max_end: *end, mtime: None };
            run(ns, |op| op.close(now(3), S1, ino, true, Some(&report))).is_ok()
        }
        Step::Gone => run(ns, |op| op.session_gone(S1)).is_ok(),
        Step::Settle(name, size) => {
            let ino = ino_of(ns, *name);
            let epoch = ns.begin().getattr(ino).map_or(0, |attr| attr.epoch);
            run(ns, |op| op.settle(ino, *size, None, epoch)).is_ok()
        }
        Step::Unlink(name) => run(ns, |op| op.unlink(&root, now(4), at(&path(*name)))).is_ok(),
        Step::Rename(from, to, swap) => {
            let mode = if *swap { RenameMode::Exchange } else { RenameMode::Replace };
            run(ns, |op| op.rename(&root, now(5), at(&path(*from)), at(&path(*to)), mode)).is_ok()
        }
        Step::Link(from, to) => {
            run(ns, |op| op.link(&root, now(5), at(&path(*from)), false, at(&path(*to)))).is_ok()
        }
        Step::Give(name, uid, gid) => {
            let change = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
            run(ns, |op| op.setattr(&root, now(6), at(&path(*name)), true, &change)).is_ok()
        }
        Step::Mkdir(name) => mkdir(ns, &user(u32::from(*name % 3) + 1), &path(*name), 0o777).is_ok(),
        Step::Xattr(name, of, bytes) => {
            let (path, of) = (path(*name), format!("user.{of}"));
            let outcome = match bytes {
                Some(bytes) => set_xattr(ns, &path, &of, *bytes),
                None => remove_xattr(ns, &path, &of),
            };
            outcome == "ok"
        }
        Step::Mark(dir, on) => {
            let tree = stat(ns, &format!("d{dir}")).unwrap().ino;
            mark(ns, tree, if *on { (0, tree) } else { (tree, 0) }, 2).is_ok()
        }
    };
}

proptest! {
    #![proptest_config(weft_test_random::cases(64))]
    #[test]
    fn usage_is_what_a_count_finds_whatever_is_done(steps in steps()) {
        let mut ns = mem();
        for dir in ["d0", "d1", "d2"] {
            mkdir(&mut ns, &user(1), dir, 0o777).unwrap();
        }
        limit(&mut ns, Subject::User(1), bytes(60_000));
        limit(&mut ns, Subject::Group(2), bytes(80_000));
        for step in &steps {
            take(&mut ns, step);
        }
        same_as_counted(&mut ns);
        // With no writer left, and all sizes known, nothing is reserved.
        run(&mut ns, |op| op.session_gone(S1)).unwrap();
        for name in 0..18 {
            take(&mut ns, &Step::Settle(name, 5));
        }
        let reserved: Vec<_> = all(&ns).into_iter().filter(|row| row.reserved_bytes > 0).collect();
        prop_assert_eq!(reserved, vec![]);
        same_as_counted(&mut ns);
        sound(&ns);
    }
}
