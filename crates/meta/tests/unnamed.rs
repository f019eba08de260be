//! Files that are made without a name: what they are before they get one, how they get it, and when they go.

mod common;
use common::*;
use weft_meta::{
    At, Attr, Caller, Engine, Limits, MemEngine, MetaError, Namespace, NewFile, Once, OpenFlags, SetAttr,
    Subject, UMASK_SHIFT, Used, WriteReport, XattrMode,
};

const EXCLUSIVE: OpenFlags = OpenFlags { exclusive: true, ..WRITE };

fn make_by<E: Engine>(
    ns: &mut Namespace<E>,
    caller: &Caller,
    dir: &str,
    new: &NewFile,
    flags: OpenFlags,
) -> Result<Attr, MetaError> {
    run(ns, |op| op.create_unnamed(caller, now(1), S1, at(dir), new, flags)).map(|opened| opened.attr)
}

/// A file without a name that S1 has open to write.
fn make<E: Engine>(ns: &mut Namespace<E>, dir: &str, flags: OpenFlags) -> u64 {
    make_by(ns, &Caller::root(), dir, &NewFile { mode: 0o600, ..NewFile::default() }, flags).unwrap().ino
}

fn link<E: Engine>(ns: &mut Namespace<E>, ino: u64, to: &str) -> &'static str {
    outcome(run(ns, |op| op.link(&Caller::root(), now(4), At::ino(ino), false, at(to))))
}

fn close<E: Engine>(ns: &mut Namespace<E>, ino: u64, end: u64) {
    let report = WriteReport { max_end: end, mtime: Some(now(3)) };
    run(ns, |op| op.close(now(3), S1, ino, true, Some(&report))).unwrap();
}

fn garbage<E: Engine>(ns: &mut Namespace<E>) -> Vec<u64> {
    ns.begin().garbage(0, 9).unwrap().iter().map(|(ino, _)| *ino).collect()
}

fn restart(ns: &Namespace<MemEngine>) -> Namespace<MemEngine> {
    Namespace::open(ns.engine().fork(), options()).unwrap()
}

#[test]
fn it_is_a_file_that_no_directory_has_until_a_link_gives_it_a_name() {
    let mut ns = mem();
    mkdir(&mut ns, &Caller::root(), "d", 0o755).unwrap();
    let (before, inodes) = (stat(&mut ns, "d").unwrap(), ns.statfs().inodes);
    let ino = make(&mut ns, "d", WRITE);
    assert_eq!((stat(&mut ns, "d").unwrap(), ns.statfs().inodes), (before, inodes + 1));
    assert_eq!(ns.begin().getattr(ino).unwrap().nlink, 0);
    sound(&ns);
    assert_eq!(link(&mut ns, ino, "d/f"), "ok");
    let named = stat(&mut ns, "d/f").unwrap();
    assert_eq!(
        (named.ino, named.nlink, named.ctime, stat(&mut ns, "d").unwrap().mtime),
        (ino, 1, now(4), now(4))
    );
    assert_eq!(link(&mut ns, ino, "d/f"), "Exists");
    assert_eq!(link(&mut ns, ino, "g"), "ok", "and another, as any file");
    sound(&ns);
    close(&mut ns, ino, 100);
    assert_eq!((stat(&mut ns, "g").unwrap().nlink, stat(&mut ns, "g").unwrap().size), (2, 100));
    assert_eq!(garbage(&mut ns), []);
    sound(&ns);
}

#[test]
fn a_last_name_that_is_lost_does_not_come_back() {
    let mut ns = mem();
    let ino = make(&mut ns, "/", WRITE);
    assert_eq!(link(&mut ns, ino, "f"), "ok");
    run(&mut ns, |op| op.unlink(&Caller::root(), now(5), at("f"))).unwrap();
    assert_eq!(link(&mut ns, ino, "f"), "NotFound");
    sound(&ns);
    close(&mut ns, ino, 100);
    assert_eq!((garbage(&mut ns), link(&mut ns, ino, "f")), (vec![ino], "Stale"));
    sound(&ns);
}

#[test]
fn an_exclusive_one_gets_no_name() {
    let mut ns = mem();
    let ino = make(&mut ns, "/", EXCLUSIVE);
    assert_eq!(link(&mut ns, ino, "f"), "NotFound");
    sound(&ns);
    close(&mut ns, ino, 100);
    assert_eq!(garbage(&mut ns), [ino]);
    sound(&ns);
}

#[test]
fn a_link_that_fails_leaves_it_as_it_is() {
    let mut ns = mem();
    let ino = make(&mut ns, "/", WRITE);
    mkfile(&mut ns, &Caller::root(), "taken", 0o600).unwrap();
    assert_eq!((link(&mut ns, ino, "taken"), link(&mut ns, ino, "no/f")), ("Exists", "NotFound"));
    assert_eq!((link(&mut ns, ino, "f"), link(&mut ns, ino, "g")), ("ok", "ok"));
    sound(&ns);
}

#[test]
fn it_goes_with_its_last_open_or_its_session() {
    let mut ns = mem();
    let inodes = ns.statfs().inodes;
    let [closed, lost, twice] = [(); 3].map(|()| make(&mut ns, "/", WRITE));
    close(&mut ns, closed, 100);
    assert_eq!((garbage(&mut ns), ns.statfs().inodes), (vec![closed], inodes + 2));
    run(&mut ns, |op| op.open(&Caller::root(), S2, At::ino(twice), READ)).unwrap();
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert_eq!(garbage(&mut ns), [closed, lost], "the other is open to somebody else");
    run(&mut ns, |op| op.close(now(7), S2, twice, false, None)).unwrap();
    assert_eq!((garbage(&mut ns), ns.statfs().inodes), (vec![closed, lost, twice], inodes));
    sound(&ns);
}

#[test]
fn after_a_restart_it_is_there_for_who_comes_back_and_collected_otherwise() {
    let mut ns = mem();
    let [kept, named, left] = [(); 3].map(|()| make(&mut ns, "/", WRITE));
    let never = make(&mut ns, "/", EXCLUSIVE);
    let mut later = restart(&ns);
    for ino in [kept, named, never] {
        run(&mut later, |op| op.reopen(S1, ino, true)).unwrap();
    }
    assert_eq!(link(&mut later, named, "named"), "ok");
    assert_eq!(later.reap_orphans(0).unwrap(), 1);
    assert_eq!(garbage(&mut later), [left]);
    assert_eq!((link(&mut later, kept, "kept"), link(&mut later, never, "never")), ("ok", "NotFound"));
    sound(&later);
    for ino in [kept, named, never] {
        close(&mut later, ino, 100);
    }
    assert_eq!(garbage(&mut later), [left, never]);
    assert_eq!(
        (stat(&mut later, "named").unwrap().ino, stat(&mut later, "kept").unwrap().ino),
        (named, kept)
    );
    sound(&later);
}

#[test]
fn a_repeated_request_makes_one_file_also_on_a_server_that_was_killed() {
    let mut ns = mem();
    let ask = |ns: &mut Namespace<MemEngine>| {
        weft_meta::run_again(|| match ns.begin_once(now(1), S1, 4, 7)? {
            Once::Replay(reply) => Ok::<_, MetaError>(reply),
            Once::Fresh(mut op) => {
                let root = Caller::root();
                let opened = op.create_unnamed(&root, now(1), S1, at("/"), &NewFile::default(), WRITE)?;
                let reply = opened.attr.ino.to_le_bytes().to_vec();
                op.commit_with_reply(&reply)?;
                Ok(reply)
            }
        })
        .unwrap()
    };
    let (first, inodes) = (ask(&mut ns), ns.statfs().inodes);
    assert_eq!((ask(&mut ns), ns.statfs().inodes), (first.clone(), inodes));
    let mut later = restart(&ns);
    assert_eq!((ask(&mut later), later.statfs().inodes), (first, inodes));
    sound(&later);
}

#[test]
fn the_directory_decides_who_may_and_what_the_file_begins_with() {
    let mut ns = mem();
    let root = Caller::root();
    let plain = NewFile { mode: 0o666 | 0o027 << UMASK_SHIFT, ..NewFile::default() };
    mkdir(&mut ns, &root, "closed", 0o755).unwrap();
    mkfile(&mut ns, &root, "file", 0o666).unwrap();
    symlink(&mut ns, "open", "to-open");
    mkdir(&mut ns, &root, "open", 0o777).unwrap();
    let by = |ns: &mut Namespace<MemEngine>, dir| outcome(make_by(ns, &user(7), dir, &plain, WRITE));
    assert_eq!((by(&mut ns, "closed"), by(&mut ns, "file")), ("Access", "NotDirectory"));
    assert_eq!((by(&mut ns, "none"), by(&mut ns, "to-open")), ("NotFound", "ok"));
    let no_follow = OpenFlags { no_follow: true, ..WRITE };
    assert_eq!(outcome(make_by(&mut ns, &user(7), "to-open", &plain, no_follow)), "NotDirectory");
    let made = make_by(&mut ns, &user(7), "open", &plain, WRITE).unwrap();
    assert_eq!((made.mode, made.uid, made.gid), (0o640, 7, 7), "without the bits of the umask");

    let group = SetAttr { mode: Some(0o2777), gid: Some(9), ..SetAttr::default() };
    run(&mut ns, |op| op.setattr(&root, now(2), at("open"), true, &group)).unwrap();
    assert_eq!(make_by(&mut ns, &user(7), "open", &plain, WRITE).unwrap().gid, 9);

    // A list that says what mode 0750 says: version 2, then owner, group and others.
    let list =
        [[2, 0, 0, 0], [1, 0, 7, 0], [255; 4], [4, 0, 5, 0], [255; 4], [32, 0, 0, 0], [255; 4]].concat();
    let name = b"system.posix_acl_default";
    run(&mut ns, |op| op.set_xattr(&root, now(2), at("open"), true, name, &list, XattrMode::Any)).unwrap();
    let new = NewFile { mode: 0o666 | 0o777 << UMASK_SHIFT, ..NewFile::default() };
    assert_eq!(make_by(&mut ns, &user(7), "open", &new, WRITE).unwrap().mode, 0o640, "instead of the umask");
    sound(&ns);
}

#[test]
fn a_small_one_keeps_its_bytes_with_the_inode() {
    let mut ns = mem();
    let new = NewFile { small: true, ..NewFile::default() };
    let [named, gone] = [(); 2].map(|()| make_by(&mut ns, &Caller::root(), "/", &new, WRITE).unwrap().ino);
    for ino in [named, gone] {
        run(&mut ns, |op| op.write_small(now(2), ino, 0, b"text")).unwrap();
    }
    assert_eq!(link(&mut ns, named, "f"), "ok");
    close(&mut ns, named, 4);
    close(&mut ns, gone, 4);
    assert_eq!((stat(&mut ns, "f").unwrap().size, garbage(&mut ns)), (4, vec![]));
    assert!(ns.begin().getattr(gone).is_err());
    sound(&ns);
}

#[test]
fn quotas_count_it_and_a_tree_keeps_it() {
    let mut ns = mem();
    mkdir(&mut ns, &Caller::root(), "t", 0o777).unwrap();
    let tree = stat(&mut ns, "t").unwrap().ino;
    run(&mut ns, |op| op.mark_tree(tree, (0, tree), 0, 9)).unwrap();
    for subject in [Subject::User(7), Subject::Tree(tree)] {
        let limits = Limits { hard_files: 3, ..Limits::default() };
        run(&mut ns, |op| op.set_limits(subject, Some(limits))).unwrap();
    }
    while ns.count_usage(3).unwrap() {}
    let make = |ns: &mut Namespace<MemEngine>| {
        run(ns, |op| {
            op.limited();
            op.create_unnamed(&user(7), now(1), S1, at("t"), &NewFile::default(), WRITE)
        })
    };
    let files = |ns: &Namespace<MemEngine>, subject| {
        let Used { files, .. } = ns.quota_of(subject).used;
        files
    };
    let ino = make(&mut ns).unwrap().attr.ino;
    assert_eq!((files(&ns, Subject::User(7)), files(&ns, Subject::Tree(tree))), (1, 2));
    make(&mut ns).unwrap();
    assert_eq!(outcome(make(&mut ns)), "Quota");
    assert_eq!((link(&mut ns, ino, "elsewhere"), link(&mut ns, ino, "t/f")), ("OtherTree", "ok"));
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert_eq!((files(&ns, Subject::User(7)), files(&ns, Subject::Tree(tree))), (1, 2), "the other is gone");
    sound(&ns);
}
