//! Paths, links and the rules of rename; listing while the directory changes; replies kept for repetitions.

mod common;
use common::*;
use weft_meta::{
    At, Caller, Kind, MemEngine, Namespace, NamespaceOptions, NewFile, Once, OpenFlags, ROOT_INO, RenameMode,
};

fn tree() -> Namespace<MemEngine> {
    let mut ns = mem();
    let root = Caller::root();
    for dir in ["d", "d/e", "d/e/g", "empty", "full", "full/x"] {
        mkdir(&mut ns, &root, dir, 0o755).unwrap();
    }
    for file in ["f", "h", "d/f"] {
        mkfile(&mut ns, &root, file, 0o644).unwrap();
    }
    run(&mut ns, |op| op.link(&root, now(1), at("f"), true, at("f2"))).unwrap();
    for (target, path) in [
        ("/d/e", "abs"),
        ("e/..", "d/up"),
        ("loop2", "loop1"),
        ("loop1", "loop2"),
        ("gone", "dangling"),
        ("f", "tof"),
    ] {
        symlink(&mut ns, target, path);
    }
    ns
}

#[test]
fn paths() {
    let mut ns = tree();
    let ino = |ns: &mut Namespace<MemEngine>, path: &str| stat(ns, path).unwrap().ino;
    let (e, d, f) = (ino(&mut ns, "d/e"), ino(&mut ns, "d"), ino(&mut ns, "f"));
    let long_name = "n".repeat(256);
    let long_path = "./".repeat(2049);
    for (path, follow, expected) in [
        ("", false, Ok(ROOT_INO)),
        ("/", false, Ok(ROOT_INO)),
        ("..", false, Ok(ROOT_INO)),
        ("d//e/.", false, Ok(e)),
        ("d/e/../e/", false, Ok(e)),
        ("abs", true, Ok(e)),
        ("abs/", false, Ok(e)),
        ("abs/../f", false, Ok(ino(&mut ns, "d/f"))),
        ("d/up", true, Ok(d)),
        ("d/up/up/up/e", true, Ok(e)),
        ("tof", true, Ok(f)),
        ("tof/", false, Err("NotDirectory")),
        ("f/.", false, Err("NotDirectory")),
        ("f/x", false, Err("NotDirectory")),
        ("loop1", true, Err("Loop")),
        ("loop1/x", false, Err("Loop")),
        ("dangling", true, Err("NotFound")),
        ("no/x", false, Err("NotFound")),
        (long_name.as_str(), false, Err("NameTooLong")),
        (long_path.as_str(), false, Err("NameTooLong")),
        ("a\0b", false, Err("Invalid")),
    ] {
        let found = ns.begin().stat(&Caller::root(), at(path), follow);
        let found = found.map(|attr| attr.ino).map_err(|error| outcome::<()>(Err(error)));
        assert_eq!(found, expected, "{path}");
    }
    let below = At::new(d, "e/g");
    assert_eq!(ns.begin().stat(&Caller::root(), below, true).unwrap().ino, ino(&mut ns, "d/e/g"));
    assert_eq!(outcome(ns.begin().stat(&Caller::root(), At::ino(999_999), true)), "Stale");
    assert_eq!(ns.begin().readlink(&Caller::root(), at("abs")).unwrap(), b"/d/e");
    assert_eq!(outcome(ns.begin().readlink(&Caller::root(), at("f"))), "Invalid");
}

#[test]
fn links_do_not_make_a_walk_longer_than_any_path() {
    let mut ns = mem();
    let root = Caller::root();
    mkdir(&mut ns, &root, "d", 0o755).unwrap();
    mkfile(&mut ns, &root, "f", 0o644).unwrap();
    // 1400 names in each target, so that a few links ask for more than a path can.
    let there_and_back = "d/../".repeat(700);
    symlink(&mut ns, "f", "w0");
    for link in 1..=3 {
        symlink(&mut ns, &format!("{there_and_back}w{}", link - 1), &format!("w{link}"));
    }
    assert_eq!(outcome(ns.begin().stat(&root, at("w2"), true)), "ok");
    assert_eq!(outcome(ns.begin().stat(&root, at("w3"), true)), "Loop");
}

#[test]
fn forty_links_and_no_more() {
    let mut ns = mem();
    mkfile(&mut ns, &Caller::root(), "l0", 0o644).unwrap();
    for link in 1..=41 {
        symlink(&mut ns, &format!("l{}", link - 1), &format!("l{link}"));
    }
    assert_eq!(outcome(ns.begin().stat(&Caller::root(), at("l40"), true)), "ok");
    assert_eq!(outcome(ns.begin().stat(&Caller::root(), at("l41"), true)), "Loop");
}

#[test]
fn creating() {
    let mut ns = tree();
    let exclusive = OpenFlags { exclusive: true, ..WRITE };
    for (path, flags, expected) in [
        ("new", exclusive, Ok(true)),
        ("new", exclusive, Err("Exists")),
        ("new", WRITE, Ok(false)),
        ("dangling/", WRITE, Err("IsDirectory")),
        ("dangling", exclusive, Err("Exists")),
        ("dangling", WRITE, Ok(true)),
        ("gone", READ, Ok(false)),
        ("d", WRITE, Err("IsDirectory")),
        ("d/", WRITE, Err("IsDirectory")),
        ("new/", WRITE, Err("IsDirectory")),
        ("new/", exclusive, Err("IsDirectory")),
        ("other/", WRITE, Err("IsDirectory")),
        ("no/where", WRITE, Err("NotFound")),
        ("f/x", WRITE, Err("NotDirectory")),
        ("loop1", WRITE, Err("Loop")),
        ("loop1/", WRITE, Err("IsDirectory")),
    ] {
        let opened = create(&mut ns, S1, path, flags);
        let opened = opened.map(|opened| opened.created).map_err(|error| outcome::<()>(Err(error)));
        assert_eq!(opened, expected, "{path}");
    }
    let root = Caller::root();
    for (path, expected) in
        [("d", "Exists"), (".", "Exists"), ("tof", "Exists"), ("p/", "ok"), ("p/q/r", "NotFound")]
    {
        assert_eq!(outcome(mkdir(&mut ns, &root, path, 0o755)), expected, "mkdir {path}");
    }
    let target = "t".repeat(4096);
    assert_eq!(
        outcome(run(&mut ns, |op| op.symlink(&root, now(1), at("s"), target.as_bytes()))),
        "NameTooLong"
    );
    assert_eq!(outcome(run(&mut ns, |op| op.link(&root, now(1), at("d"), true, at("d2")))), "NotPermitted");
    assert_eq!(outcome(run(&mut ns, |op| op.link(&root, now(1), at("f"), true, at("h")))), "Exists");
    assert_eq!(stat(&mut ns, "f").unwrap().nlink, 2);
    sound(&ns);
}

#[test]
fn removing() {
    let mut ns = tree();
    let root = Caller::root();
    for (path, expected) in [
        ("d", "IsDirectory"),
        (".", "IsDirectory"),
        ("f/", "NotDirectory"),
        ("no", "NotFound"),
        ("tof", "ok"),
        ("f", "ok"),
        ("f2", "ok"),
        ("f2", "NotFound"),
    ] {
        assert_eq!(outcome(run(&mut ns, |op| op.unlink(&root, now(5), at(path)))), expected, "unlink {path}");
    }
    for (path, expected) in [
        ("d", "NotEmpty"),
        ("d/e/.", "Invalid"),
        ("d/e/..", "NotEmpty"),
        ("h", "NotDirectory"),
        ("abs", "NotDirectory"),
        ("no", "NotFound"),
        ("empty/", "ok"),
        ("empty", "NotFound"),
    ] {
        assert_eq!(outcome(run(&mut ns, |op| op.rmdir(&root, now(5), at(path)))), expected, "rmdir {path}");
    }
    assert_eq!(stat(&mut ns, "/").unwrap().mtime, now(5));
    sound(&ns);
}

#[test]
fn renaming() {
    use RenameMode::{Exchange, NoReplace, Replace};
    // from, to, mode -> outcome; each on a fresh tree
    for (from, to, mode, expected) in [
        ("f", "new", Replace, "ok"),
        ("f", "h", Replace, "ok"),
        ("f", "f2", Replace, "ok"),
        ("f", "f", Replace, "ok"),
        ("f", "d", Replace, "IsDirectory"),
        ("f", "new/", Replace, "NotDirectory"),
        ("f/", "new", Replace, "NotDirectory"),
        ("f", "h", NoReplace, "Exists"),
        ("f", "f", NoReplace, "Exists"),
        ("f", "d/new", NoReplace, "ok"),
        ("f", "no/new", Replace, "NotFound"),
        ("no", "new", Replace, "NotFound"),
        ("d", "new", Replace, "ok"),
        ("d/", "new/", Replace, "ok"),
        ("d/e", "e", Replace, "ok"),
        ("d", "empty", Replace, "ok"),
        ("d/e", "empty", Replace, "ok"),
        ("d", "full", Replace, "NotEmpty"),
        ("d", "f", Replace, "NotDirectory"),
        ("d", "d/e/new", Replace, "Invalid"),
        ("d", "d/new", Replace, "Invalid"),
        ("d", "d", Replace, "ok"),
        ("d/e/g", "d", Replace, "NotEmpty"),
        ("d/.", "new", Replace, "Busy"),
        ("d", "full/..", Replace, "Busy"),
        ("tof", "new", Replace, "ok"),
        ("f", "tof", Replace, "ok"),
        ("f", "d", Exchange, "ok"),
        ("d/e", "full", Exchange, "ok"),
        ("d/e", "d/f", Exchange, "ok"),
        ("f", "h", Exchange, "ok"),
        ("f", "f2", Exchange, "ok"),
        ("f", "new", Exchange, "NotFound"),
        ("d", "d/e", Exchange, "Invalid"),
        ("d/e/g", "d", Exchange, "Invalid"),
    ] {
        let mut ns = tree();
        let before = (stat(&mut ns, from), stat(&mut ns, to));
        let renamed = run(&mut ns, |op| op.rename(&Caller::root(), now(7), at(from), at(to), mode));
        assert_eq!(outcome(renamed), expected, "{from} -> {to} {mode:?}");
        sound(&ns);
        if let ("ok", (Ok(source), target)) = (expected, before) {
            assert_eq!(stat(&mut ns, to).unwrap().ino, source.ino, "{from} -> {to}");
            let same = target.as_ref().is_ok_and(|target| target.ino == source.ino);
            match stat(&mut ns, from) {
                Ok(left) if mode == Exchange => assert_eq!(left.ino, target.unwrap().ino),
                Ok(_) => assert!(same, "{from} is still there"),
                Err(_) => assert!(!same && mode != Exchange),
            }
        }
    }
}

#[test]
fn faults_of_paths_are_told_before_what_is_forbidden_and_that_before_faults_of_inodes() {
    use RenameMode::{Exchange, Replace};
    let root = Caller::root();
    let mut ns = mem();
    for (dir, mode) in [("sticky", 0o1777), ("sticky/d", 0o755), ("closed", 0o755), ("closed/d", 0o755)] {
        mkdir(&mut ns, &root, dir, mode).unwrap();
    }
    for file in ["sticky/f", "closed/f"] {
        mkfile(&mut ns, &root, file, 0o644).unwrap();
    }
    run(&mut ns, |op| op.link(&root, now(1), at("closed/f"), true, at("closed/f2"))).unwrap();
    let alice = user(10);
    for (path, unlinked, removed) in [
        ("sticky/f", "NotPermitted", "NotPermitted"),
        ("sticky/d", "NotPermitted", "NotPermitted"),
        ("closed/f", "Access", "Access"),
        ("closed/none", "NotFound", "NotFound"),
        ("closed/f/", "NotDirectory", "Access"),
        ("closed/d/", "IsDirectory", "Access"),
        ("closed/.", "IsDirectory", "Invalid"),
    ] {
        let by_unlink = run(&mut ns, |op| op.unlink(&alice, now(2), at(path)));
        let by_rmdir = run(&mut ns, |op| op.rmdir(&alice, now(2), at(path)));
        assert_eq!((outcome(by_unlink), outcome(by_rmdir)), (unlinked, removed), "{path}");
    }
    for (from, to, mode, expected) in [
        ("closed/none", "closed/x", Replace, "NotFound"),
        ("closed/f", "closed/x", Replace, "Access"),
        ("closed/f", "closed/x", Exchange, "NotFound"),
        ("closed/f", "closed/f2", Replace, "ok"),
        ("closed/f", "closed/f2/", Exchange, "NotDirectory"),
        ("closed/d", "closed/f/", Exchange, "NotDirectory"),
        ("closed/d", "closed/d/x", Replace, "Invalid"),
        ("closed/d", "closed/f", Replace, "Access"),
        ("sticky/d", "sticky/f", Replace, "NotPermitted"),
        ("closed/.", "nowhere/x", Replace, "NotFound"),
    ] {
        let renamed = run(&mut ns, |op| op.rename(&alice, now(2), at(from), at(to), mode));
        assert_eq!(outcome(renamed), expected, "{from} -> {to} {mode:?}");
    }
    for (path, expected) in [("closed/f", "Exists"), ("closed/x", "Access"), ("sticky/x", "NotPermitted")] {
        let made = run(&mut ns, |op| op.mknod(&alice, now(2), at(path), Kind::Char, 0o644, 1));
        assert_eq!(outcome(made), expected, "{path}");
    }
    sound(&ns);
}

#[test]
fn moving_a_directory_needs_write_permission_on_it() {
    let mut ns = mem();
    let owner = user(10);
    mkdir(&mut ns, &owner, "a", 0o755).unwrap();
    mkdir(&mut ns, &owner, "b", 0o755).unwrap();
    mkdir(&mut ns, &owner, "a/d", 0o555).unwrap();
    let same = run(&mut ns, |op| op.rename(&owner, now(1), at("a/d"), at("a/e"), RenameMode::Replace));
    assert_eq!(outcome(same), "ok", "its .. stays");
    let other = run(&mut ns, |op| op.rename(&owner, now(1), at("a/e"), at("b/e"), RenameMode::Replace));
    assert_eq!(outcome(other), "Access");
}

#[test]
fn a_failed_operation_stages_nothing() {
    let mut ns = tree();
    let mut op = ns.begin();
    assert_eq!(
        outcome(op.rename(&Caller::root(), now(1), at("d"), at("full"), RenameMode::Replace)),
        "NotEmpty"
    );
    let before = op.commit().unwrap();
    ns.begin().mkdir(&Caller::root(), now(1), at("dropped"), 0o755).unwrap();
    assert_eq!(ns.committed(), before);
    assert_eq!(outcome(stat(&mut ns, "dropped")), "NotFound");
}

#[test]
fn listing_while_the_directory_changes() {
    let mut ns = mem();
    let root = Caller::root();
    for file in 0..100 {
        mkfile(&mut ns, &root, &format!("old{file:03}"), 0o644).unwrap();
    }
    let mut names: Vec<String> = Vec::new();
    let mut after = 0;
    let mut round = 0;
    loop {
        let page = ns.begin().readdir(&root, ROOT_INO, after, 7, 1 << 20, true).unwrap();
        assert!(page.entries.len() <= 7);
        for entry in &page.entries {
            assert!(entry.cookie > after && entry.cookie >= 16);
            assert_eq!(entry.attr.as_ref().unwrap().ino, entry.ino);
            after = entry.cookie;
            names.push(String::from_utf8(entry.name.clone()).unwrap());
        }
        // Entries already listed vanish, some not yet listed too, and new ones appear.
        let done = &names[round * 7 % names.len()];
        let _ = run(&mut ns, |op| op.unlink(&root, now(2), at(done)));
        let _ = run(&mut ns, |op| op.unlink(&root, now(2), at(&format!("old{:03}", 99 - round))));
        if round < 5 {
            mkfile(&mut ns, &root, &format!("new{round}"), 0o644).unwrap();
        }
        round += 1;
        if page.eof {
            break;
        }
    }
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "nothing twice");
    let expected = (0..100 - round).map(|file| format!("old{file:03}"));
    for name in expected.filter(|name| name < &"old080".to_string()) {
        assert!(names.contains(&name), "{name} was there all the time");
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("new")).count(), 5);
    sound(&ns);
}

#[test]
fn entries_that_are_renamed_while_they_are_listed_are_met_once() {
    let mut ns = mem();
    let root = Caller::root();
    mkdir(&mut ns, &root, "dir", 0o755).unwrap();
    let dir = ns.begin().stat(&root, at("dir"), true).unwrap().ino;
    for file in 0..50 {
        mkfile(&mut ns, &root, &format!("dir/{file}"), 0o644).unwrap();
    }
    mkfile(&mut ns, &root, "outside", 0o644).unwrap();
    let (mut met, mut after) = (Vec::new(), 0);
    let until = ns.begin().readdir(&root, dir, 0, 1, 1 << 20, false).unwrap().until;
    while let Some(entry) = ns.begin().readdir(&root, dir, after, 1, 1 << 20, false).unwrap().entries.first()
    {
        let name = String::from_utf8(entry.name.clone()).unwrap();
        after = entry.cookie;
        run(&mut ns, |op| {
            let (from, to) = (format!("dir/{name}"), format!("dir/{name}-moved"));
            op.rename(&root, now(2), at(&from), at(&to), RenameMode::Replace)
        })
        .unwrap();
        met.push(name);
        assert!(met.len() <= 50, "{met:?}");
    }
    assert_eq!(met, (0..50).map(|file| file.to_string()).collect::<Vec<_>>());
    // What comes from elsewhere is new.
    run(&mut ns, |op| op.rename(&root, now(2), at("outside"), at("dir/inside"), RenameMode::Replace))
        .unwrap();
    let page = ns.begin().readdir(&root, dir, after, 9, 1 << 20, false).unwrap();
    assert_eq!(page.entries.len(), 1);
    assert!(page.entries[0].cookie >= until && page.until > page.entries[0].cookie);
    // What is replaced is gone, and what takes its name stays where it was.
    run(&mut ns, |op| op.rename(&root, now(2), at("dir/7-moved"), at("dir/3-moved"), RenameMode::Replace))
        .unwrap();
    let page = ns.begin().readdir(&root, dir, 0, 9, 1 << 20, false).unwrap();
    let names: Vec<_> =
        page.entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect();
    assert_eq!(names[..7], ["0", "1", "2", "4", "5", "6", "3"].map(|name| format!("{name}-moved")));
    sound(&ns);
}

/// Numbers close together, with gaps, twice, and far apart.
#[test]
fn a_listing_has_the_attributes_of_each_inode_whatever_is_in_the_caches() {
    let mut ns = mem();
    let root = Caller::root();
    mkdir(&mut ns, &root, "dir", 0o755).unwrap();
    let dir = stat(&mut ns, "dir").unwrap().ino;
    for file in 0..120u32 {
        mkfile(&mut ns, &root, &format!("dir/{file}"), 0o600 + file % 8).unwrap();
        for other in 0..if file > 90 { 5 } else { 0 } {
            mkfile(&mut ns, &root, &format!("far {file} {other}"), 0o644).unwrap();
        }
    }
    for file in (0..30).step_by(3).chain(40..50) {
        run(&mut ns, |op| op.unlink(&root, now(2), at(&format!("dir/{file}")))).unwrap();
    }
    run(&mut ns, |op| op.link(&root, now(3), at("dir/60"), true, at("dir/60 again"))).unwrap();
    for cached in [1, 50, 1000] {
        let options = NamespaceOptions { cached_inodes: cached, cached_entries: cached, ..options() };
        let open = || Namespace::open(ns.engine().fork(), options).unwrap();
        let (mut listed, mut looked_up) = (open(), open());
        stat(&mut listed, "dir/70").unwrap();
        let page = listed.begin().readdir(&root, dir, 0, 1000, 1 << 20, true).unwrap();
        listed.begin().keep_names(dir, &page);
        assert_eq!(page.entries.len(), 120 - 20 + 1);
        let path =
            |entry: &weft_meta::DirEntry| format!("dir/{}", String::from_utf8(entry.name.clone()).unwrap());
        for entry in &page.entries {
            let found = stat(&mut looked_up, &path(entry)).unwrap();
            assert_eq!(entry.attr, Some(found));
            assert_eq!(stat(&mut listed, &path(entry)).unwrap(), found);
        }
        for entry in &page.entries {
            run(&mut listed, |op| op.unlink(&root, now(4), at(&path(entry)))).unwrap();
            assert_eq!(outcome(stat(&mut listed, &path(entry))), "NotFound");
        }
        sound(&listed);
    }
}

#[test]
fn pages_keep_to_their_bytes_but_make_progress() {
    let mut ns = mem();
    for file in 0..10 {
        mkfile(&mut ns, &Caller::root(), &format!("{}{file}", "n".repeat(200)), 0o644).unwrap();
    }
    let page = ns.begin().readdir(&Caller::root(), ROOT_INO, 0, 100, 1000, true).unwrap();
    assert_eq!((page.entries.len(), page.eof), (2, false));
    let page = ns.begin().readdir(&Caller::root(), ROOT_INO, 0, 100, 1, true).unwrap();
    assert_eq!((page.entries.len(), page.eof), (1, false));
    let ino = mkdir(&mut ns, &user(5), "mine", 0o711).unwrap();
    assert_eq!(outcome(ns.begin().readdir(&user(6), ino, 0, 9, 9, true)), "Access");
    let page = ns.begin().readdir(&user(5), ino, 0, 9, 9, true).unwrap();
    assert_eq!((page.entries.len(), page.eof, page.parent), (0, true, ROOT_INO));
    let page = |ns: &mut Namespace<MemEngine>, with_attrs| {
        ns.begin().readdir(&Caller::root(), ROOT_INO, 0, 100, 1 << 20, with_attrs).unwrap()
    };
    let (with, mut without) = (page(&mut ns, true), page(&mut ns, false));
    assert!(without.entries.iter().all(|entry| entry.attr.is_none()), "nobody asked for them");
    without.entries.iter_mut().zip(&with.entries).for_each(|(bare, entry)| bare.attr = entry.attr);
    assert_eq!(without, with);
}

#[test]
fn a_repeated_request_gets_the_same_reply_even_after_a_kill() {
    let mut ns = fresh(MemEngine::new());
    let root = Caller::root();
    let new = NewFile { mode: 0o600, ..NewFile::default() };
    let flags = OpenFlags { exclusive: true, ..WRITE };
    let Once::Fresh(mut op) = ns.begin_once(now(1), S1, 3, 41).unwrap() else { panic!("new request") };
    let ino = op.create(&root, now(1), S1, at("f"), &new, flags).unwrap().attr.ino;
    op.commit_with_reply(&ino.to_le_bytes()).unwrap();
    let killed = ns.engine().fork();
    for mut ns in [ns, Namespace::open(killed, options()).unwrap()] {
        match ns.begin_once(now(2), S1, 3, 41).unwrap() {
            Once::Replay(reply) => assert_eq!(reply, ino.to_le_bytes()),
            Once::Fresh(_) => panic!("it has run"),
        }
        assert_eq!(outcome(ns.begin_once(now(2), S1, 3, 40).map(|_| ())), "Invalid", "a straggler");
        assert_eq!(outcome(ns.begin_once(now(2), S1, 5000, 1).map(|_| ())), "Invalid", "no such slot");
        for (session, slot, request) in [(S1, 3, 42), (S1, 4, 1), (S2, 3, 41)] {
            assert!(matches!(ns.begin_once(now(2), session, slot, request).unwrap(), Once::Fresh(_)));
        }
        run(&mut ns, |op| op.session_gone(S1)).unwrap();
        assert!(matches!(ns.begin_once(now(2), S1, 3, 41).unwrap(), Once::Fresh(_)), "forgotten");
    }
}

#[test]
fn replies_without_a_stored_effect_are_kept_in_memory() {
    let mut ns = fresh(MemEngine::new());
    let root = Caller::root();
    mkfile(&mut ns, &root, "f", 0o644).unwrap();
    let before = ns.committed();
    for _ in 0..2 {
        if let Once::Fresh(mut op) = ns.begin_once(now(1), S1, 0, 1).unwrap() {
            op.open(&root, S1, at("f"), READ).unwrap();
            op.commit_with_reply(b"open").unwrap();
        }
    }
    assert_eq!((ns.committed(), ns.statfs().open_files), (before, 1));
    let ino = stat(&mut ns, "f").unwrap().ino;
    run(&mut ns, |op| op.close(now(1), S1, ino, false, None)).unwrap();
    assert_eq!(ns.statfs().open_files, 0, "it was counted once");
}

#[test]
fn old_replies_of_unknown_sessions_are_dropped() {
    let mut ns = fresh(MemEngine::new());
    for (session, seconds) in [(S1, 10), (S2, 20)] {
        for slot in 0..300 {
            let Once::Fresh(mut op) = ns.begin_once(now(seconds), session, slot, 1).unwrap() else {
                panic!()
            };
            op.mkdir(&Caller::root(), now(1), at(&format!("{seconds}.{slot}")), 0o755).unwrap();
            op.commit_with_reply(b"r").unwrap();
        }
    }
    assert_eq!(ns.drop_old_replies(0, now(99)).unwrap(), 0, "the sessions are known");
    let mut ns = Namespace::open(ns.engine().fork(), options()).unwrap();
    assert_eq!(ns.drop_old_replies(0, now(15)).unwrap(), 300);
    assert!(matches!(ns.begin_once(now(2), S2, 7, 1).unwrap(), Once::Replay(_)));
    assert!(matches!(ns.begin_once(now(2), S1, 7, 1).unwrap(), Once::Fresh(_)));
}

#[test]
fn a_full_disk_refuses_growth_but_not_removal() {
    let mut ns = tree();
    let root = Caller::root();
    ns.engine().set_full(true);
    assert_eq!(outcome(mkdir(&mut ns, &root, "new", 0o755)), "NoSpace");
    assert_eq!(outcome(create(&mut ns, S1, "new", WRITE)), "NoSpace");
    assert_eq!(ns.statfs().open_files, 0, "what was refused is not open");
    assert_eq!(outcome(run(&mut ns, |op| op.link(&root, now(1), at("f"), true, at("new")))), "NoSpace");
    assert_eq!(outcome(run(&mut ns, |op| op.unlink(&root, now(1), at("f")))), "ok");
    assert_eq!(
        outcome(run(&mut ns, |op| op.rename(&root, now(1), at("h"), at("f"), RenameMode::Replace))),
        "ok"
    );
    ns.engine().set_full(false);
    assert_eq!(outcome(mkdir(&mut ns, &root, "new", 0o755)), "ok");
    sound(&ns);
}

#[test]
fn check_finds_planted_damage() {
    use weft_meta::{Batch, Damage, Engine, run_again};
    let mut ns = tree();
    ns.syncer().sync().unwrap();
    let clean = ns.engine().fork();
    let keys: Vec<_> = clean.scan(b"i", b"y").map(|pair| pair.unwrap().0).collect();
    assert!(keys.len() > 30);
    for key in keys.iter().filter(|key| matches!(key[0], b'i' | b'n' | b'o')) {
        let mut engine = clean.fork();
        let mut batch = Batch::default();
        batch.delete(key.clone());
        run_again(|| engine.commit(&batch)).unwrap();
        let ns = Namespace::open(engine, options()).unwrap();
        assert_ne!(ns.check().unwrap(), vec![], "without {key:?}");
        let mut engine = clean.fork();
        let mut batch = Batch::default();
        batch.put(key.clone(), [9, 9, 9]);
        run_again(|| engine.commit(&batch)).unwrap();
        let ns = Namespace::open(engine, options()).unwrap();
        let damage = ns.check().unwrap();
        assert!(damage.iter().any(|found| matches!(found, Damage::Unreadable(_))), "{key:?} overwritten");
    }
    let mut engine = clean.fork();
    let mut batch = Batch::default();
    batch.put([b"x".as_slice(), &77_777u64.to_be_bytes(), b"user.a"].concat(), [1]);
    batch.put([b"u".as_slice(), &stat(&mut ns, "f").unwrap().ino.to_be_bytes()].concat(), [1]);
    run_again(|| engine.commit(&batch)).unwrap();
    assert_eq!(Namespace::open(engine, options()).unwrap().check().unwrap().len(), 2);
}
