//! Damage of every kind, planted in a small tree: it is found, repaired, and nothing else is touched; and a
//! tree that is used while it is checked shows none.

use super::{Damage, Finding, Treatment};
use crate::caller::{Caller, SessionId};
use crate::engine::{Batch, Engine, MemEngine};
use crate::inode::{Entry, Inode, Kind, ROOT_INO, Timestamp};
use crate::namespace::{Namespace, NamespaceOptions, encode_number};
use crate::walk::At;
use crate::{MetaError, RenameMode, WriteReport, XattrMode, keys};
use weft_layout::Layout;

const NOW: Timestamp = Timestamp { seconds: 9, nanos: 0 };
/// Rounds of check and repair until nothing is found.
const ROUNDS_MAX: usize = 8;

fn at(path: &str) -> At<'_> {
    At::new(ROOT_INO, path)
}

fn run<T>(
    ns: &mut Namespace<MemEngine>,
    run: impl Fn(&mut crate::Op<'_, MemEngine>) -> Result<T, MetaError>,
) -> T {
    ns.change(run).unwrap().0
}

fn open(engine: MemEngine) -> Namespace<MemEngine> {
    let options = NamespaceOptions { ring_servers: 2, ..NamespaceOptions::default() };
    let mut ns = Namespace::open(engine, options).unwrap();
    // Reaping would repair some of what is planted.
    ns.grace = false;
    ns
}

/// `a/b/c` are directories, `a/f` and `a/b/g` are files, `a/f` is `also` too, `a/link` a symbolic link.
fn tree() -> Namespace<MemEngine> {
    let mut engine = MemEngine::new();
    Namespace::format(&mut engine, [1; 16], &Caller::root(), NOW).unwrap();
    let mut ns = open(engine);
    let root = Caller::root();
    for dir in ["a", "a/b", "a/b/c"] {
        run(&mut ns, |op| op.mkdir(&root, NOW, at(dir), 0o755));
    }
    for file in ["a/f", "a/b/g"] {
        run(&mut ns, |op| op.mknod(&root, NOW, at(file), Kind::File, 0o644, 0));
    }
    run(&mut ns, |op| op.link(&root, NOW, at("a/f"), false, at("also")));
    run(&mut ns, |op| op.symlink(&root, NOW, at("a/link"), b"f"));
    run(&mut ns, |op| op.set_xattr(&root, NOW, at("a/f"), true, b"user.x", b"1", XattrMode::Any));
    assert_eq!(ns.check().unwrap(), vec![]);
    // From now on every operation is run twice, repairs too.
    ns.engine.set_conflicting();
    ns
}

/// What damage is planted with.
struct Planter {
    ns: Namespace<MemEngine>,
    batch: Batch,
}

impl Planter {
    fn ino(&mut self, path: &str) -> u64 {
        self.ns.begin().stat(&Caller::root(), at(path), false).unwrap().ino
    }

    fn inode(&mut self, path: &str) -> Inode {
        let key = keys::inode(self.ino(path));
        Inode::decode(&key, &self.ns.engine.get(&key).unwrap().unwrap()).unwrap()
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(path);
        change(&mut inode);
        self.put_inode(inode);
    }

    fn put_inode(&mut self, inode: Inode) {
        self.batch.put_encoded(keys::inode(inode.ino), &inode);
    }

    fn entry(&mut self, dir: &str, name: &str) -> (u64, Entry) {
        let dir = self.ino(dir);
        let key = keys::name(dir, name.as_bytes());
        (dir, Entry::decode(&key, &self.ns.engine.get(&key).unwrap().unwrap()).unwrap())
    }

    fn put_entry(&mut self, dir: u64, name: &[u8], entry: Entry) {
        self.batch.put_encoded(keys::name(dir, name), &entry);
        self.batch.put(keys::order(dir, entry.cookie), entry.encode_order(name));
    }

    fn remove_entry(&mut self, dir: &str, name: &str) {
        let (dir, entry) = self.entry(dir, name);
        self.batch.delete(keys::name(dir, name.as_bytes()));
        self.batch.delete(keys::order(dir, entry.cookie));
    }
}

fn plant(plant: impl FnOnce(&mut Planter)) -> Namespace<MemEngine> {
    let mut planter = Planter { ns: tree(), batch: Batch::default() };
    plant(&mut planter);
    let mut engine = planter.ns.engine.fork();
    crate::run_again(|| engine.commit(&planter.batch)).unwrap();
    open(engine)
}

fn audit(ns: &mut Namespace<MemEngine>) -> Vec<Finding> {
    ns.begin_audit(1);
    let mut findings = Vec::new();
    loop {
        let step = ns.step_audit(1, 3).unwrap();
        findings.extend(step.findings);
        if step.finished {
            return findings;
        }
    }
}

/// Checks and treats until nothing is found that can be repaired; returns all that was found, and what is
/// left.
fn repair(ns: &mut Namespace<MemEngine>) -> (Vec<Damage>, Vec<Damage>) {
    let mut found = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let findings = audit(ns);
        found.extend(findings.iter().map(|finding| finding.damage.clone()));
        let mut repaired = 0;
        for finding in &findings {
            let (treatment, _) = ns.treat(1, NOW, finding).unwrap();
            repaired += u32::from(treatment == Treatment::Repaired);
            if treatment == Treatment::Repaired {
                let (again, _) = ns.treat(1, NOW, finding).unwrap();
                assert_ne!(again, Treatment::Repaired, "{finding:?} is treated once");
            }
        }
        if repaired == 0 {
            let left = findings.into_iter().map(|finding| finding.damage).collect();
            return (found, left);
        }
    }
    panic!("still not clean: {found:#?}");
}

fn has(ns: &mut Namespace<MemEngine>, path: &str) -> bool {
    ns.begin().stat(&Caller::root(), at(path), false).is_ok()
}

/// Plants, and checks that `expected` is found and all is repaired; `whole` must be there afterwards.
fn case(planted: impl FnOnce(&mut Planter), expected: impl Fn(&Damage) -> bool, whole: &[&str]) {
    let mut ns = plant(planted);
    let direct = ns.check().unwrap();
    let (found, left) = repair(&mut ns);
    assert!(direct.iter().any(&expected) && found.iter().any(&expected), "{found:#?}");
    assert_eq!(left, vec![], "{found:#?}");
    assert_eq!(ns.check().unwrap(), vec![]);
    for path in whole {
        assert!(has(&mut ns, path), "{path} is gone: {found:#?}");
    }
    // What is in memory is what is on the disk.
    let mut ns = open(ns.engine.fork());
    assert_eq!(ns.check().unwrap(), vec![]);
    whole.iter().for_each(|path| assert!(has(&mut ns, path), "{path}"));
}

macro_rules! is {
    ($pattern:pat) => {
        |damage: &Damage| matches!(damage, $pattern)
    };
}

const ALL: [&str; 7] = ["a", "a/b", "a/b/c", "a/f", "a/b/g", "also", "a/link"];

#[test]
fn inodes_are_repaired() {
    case(|p| p.change("a/f", |f| f.nlink = 7), is!(Damage::LinkCount { recorded: 7, found: 2, .. }), &ALL);
    case(|p| p.change("a", |a| a.nlink = 9), is!(Damage::LinkCount { recorded: 9, found: 3, .. }), &ALL);
    case(|p| p.change("a", |a| a.entries = 0), is!(Damage::EntryCount { recorded: 0, found: 3, .. }), &ALL);
    case(|p| p.change("a/f", |f| f.xattrs = 0), is!(Damage::XattrCount { recorded: 0, found: 1, .. }), &ALL);
    case(|p| p.change("a/f", |f| f.xattrs = 5), is!(Damage::XattrCount { recorded: 5, found: 1, .. }), &ALL);
    case(|p| p.change("a/f", |f| f.layout = None), is!(Damage::BadInode(_)), &ALL);
    case(|p| p.change("a/b/g", |g| g.mtime.nanos = u32::MAX), is!(Damage::BadInode(_)), &ALL);
    case(|p| p.change("a/b/g", |g| g.size = u64::MAX), is!(Damage::BadInode(_)), &ALL);
    case(|p| p.change("a/link", |l| l.target = None), is!(Damage::BadInode(_)), &ALL[..6]);
    let beyond = Layout::new(4096, 0, 9, 9).unwrap();
    case(
        |p| p.change("a/f", |f| f.layout = Some(beyond)),
        is!(Damage::LayoutServers { ring_servers: 9, servers: 2, .. }),
        &ALL,
    );
    case(|p| p.change("a/b/c", |c| c.parent = 77), is!(Damage::BadParent { recorded: 77, .. }), &ALL);
    case(|p| p.change("/", |root| root.parent = 2), is!(Damage::RootParent(2)), &ALL);
    let broken = |p: &mut Planter, path: &str| {
        let ino = p.ino(path);
        p.batch.put(keys::inode(ino), [99, 1, 2]);
    };
    case(|p| broken(p, "a/b/g"), is!(Damage::Unreadable(_)), &["a/b", "a/b/c", "a/f"]);
    // A directory's entries are there, so it is made again where its name is.
    case(|p| broken(p, "a/b"), is!(Damage::Unreadable(_)), &ALL);
    case(|p| broken(p, "/"), is!(Damage::Unreadable(_)), &ALL);
    case(|p| p.batch.delete(keys::inode(ROOT_INO)), is!(Damage::NoRoot), &ALL);
}

#[test]
fn names_are_repaired() {
    let without = |p: &mut Planter, path: &str| {
        let ino = p.ino(path);
        p.batch.delete(keys::inode(ino));
    };
    case(|p| without(p, "a/b/g"), is!(Damage::MissingInode { .. }), &["a/b/c", "a/f"]);
    case(|p| without(p, "a/b"), is!(Damage::MissingInode { .. }), &ALL);
    case(
        |p| {
            let (dir, entry) = p.entry("a", "f");
            p.put_entry(dir, b"f", Entry { kind: Kind::Fifo, ..entry });
        },
        is!(Damage::WrongKind { .. }),
        &ALL,
    );
    for name in [&b""[..], b"x/y", b"."] {
        case(
            |p| {
                let (dir, entry) = p.entry("/", "also");
                p.remove_entry("/", "also");
                p.put_entry(dir, name, entry);
            },
            is!(Damage::BadName { .. }),
            &ALL[..5],
        );
    }
    case(
        |p| {
            let (dir, entry) = p.entry("a", "f");
            p.batch.delete(keys::order(dir, entry.cookie));
        },
        is!(Damage::OrderMismatch { .. }),
        &ALL,
    );
    case(
        |p| {
            let (dir, _) = p.entry("a", "f");
            p.batch.delete(keys::name(dir, b"f"));
        },
        is!(Damage::OrderMismatch { .. }),
        &ALL,
    );
    // Two entries with one place in the listing.
    case(
        |p| {
            let (dir, f) = p.entry("a", "f");
            let (_, link) = p.entry("a", "link");
            p.batch.delete(keys::order(dir, f.cookie));
            p.batch.put_encoded(keys::name(dir, b"f"), &Entry { cookie: link.cookie, ..f });
        },
        is!(Damage::OrderMismatch { .. }),
        &ALL,
    );
    for kind in [keys::NAME, keys::ORDER] {
        case(
            |p| {
                let (dir, entry) = p.entry("a", "f");
                let key = if kind == keys::NAME {
                    keys::name(dir, b"f")
                } else {
                    keys::order(dir, entry.cookie).to_vec()
                };
                p.batch.put(key, [1, 2, 3]);
            },
            is!(Damage::Unreadable(_)),
            &ALL,
        );
    }
    case(
        |p| {
            let (file, target) = (p.ino("a/f"), p.ino("a/b/g"));
            p.put_entry(file, b"below", Entry { ino: target, kind: Kind::File, cookie: 5000 });
        },
        is!(Damage::EntryWithoutDirectory { .. }),
        &ALL,
    );
    case(
        |p| {
            let target = p.ino("a/f");
            p.put_entry(4000, b"below", Entry { ino: target, kind: Kind::File, cookie: 5000 });
        },
        is!(Damage::EntryWithoutDirectory { dir: 4000, .. }),
        &["a/f", "lost+found/#4000/below"],
    );
    case(
        |p| {
            let (dir, entry) = p.entry("a", "f");
            p.remove_entry("a", "f");
            p.put_entry(dir, b"f", Entry { cookie: 1 << 40, ..entry });
        },
        is!(Damage::BeyondLease { .. }),
        &ALL,
    );
    case(
        |p| {
            let mut inode = p.inode("a/b/g");
            let (dir, entry) = p.entry("a/b", "g");
            p.batch.delete(keys::inode(inode.ino));
            inode.ino = 1 << 40;
            p.put_entry(dir, b"g", Entry { ino: inode.ino, ..entry });
            p.put_inode(inode);
        },
        is!(Damage::BeyondLease { .. }),
        &ALL,
    );
}

#[test]
fn numbers_that_nobody_can_have_counted_to_end_no_server() {
    let huge = |key: &'static [u8]| {
        let mut engine = tree().engine.fork();
        let mut batch = Batch::default();
        batch.put(key, encode_number(u64::MAX - 7));
        crate::run_again(|| engine.commit(&batch)).unwrap();
        Namespace::open(engine, NamespaceOptions { ring_servers: 2, ..NamespaceOptions::default() }).map(drop)
    };
    for key in [keys::SUPER_INCARNATION, keys::SUPER_COOKIE_LEASE] {
        assert!(huge(key).unwrap_err().to_string().contains("too large"));
    }
    huge(keys::SUPER_INO_LEASE).unwrap();

    let mut ns = plant(|p| {
        let (dir, entry) = p.entry("a", "f");
        p.remove_entry("a", "f");
        p.put_entry(dir, b"f", Entry { cookie: u64::MAX, ..entry });
    });
    let (found, left) = repair(&mut ns);
    assert!(found.iter().any(|damage| matches!(damage, Damage::BeyondLease { .. })), "{found:?}");
    assert_eq!(left.len(), 1, "{left:?}");
    run(&mut ns, |op| op.mkdir(&Caller::root(), NOW, at("new"), 0o755));
}

#[test]
fn directories_are_brought_back_into_the_tree() {
    // Without its name, but with what is in it.
    case(
        |p| p.remove_entry("a", "b"),
        is!(Damage::NoName(_)),
        &["lost+found/#3/c", "lost+found/#3/g", "a/f"],
    );
    case(|p| p.remove_entry("a/b", "g"), is!(Damage::NoName(_)), &["a/b/c", "lost+found/#6"]);
    // A circle: b is only in c, which is in b.
    case(
        |p| {
            let (_, entry) = p.entry("a", "b");
            let c = p.ino("a/b/c");
            p.remove_entry("a", "b");
            p.put_entry(c, b"b", entry);
            p.change("a/b", |b| b.parent = c);
        },
        is!(Damage::Unreachable(_)),
        &["a/f"],
    );
    // Two names in two directories, and two in one.
    case(
        |p| {
            let (_, entry) = p.entry("a/b", "c");
            p.put_entry(ROOT_INO, b"again", Entry { cookie: 5000, ..entry });
        },
        is!(Damage::ManyNames { found: 2, .. }),
        &ALL,
    );
    case(
        |p| {
            let (dir, entry) = p.entry("a/b", "c");
            p.put_entry(dir, b"again", Entry { cookie: 5000, ..entry });
        },
        is!(Damage::ManyNames { found: 2, .. }),
        &["a/b/g", "a/f"],
    );
    case(
        |p| {
            let a = p.ino("a");
            p.put_entry(a, b"root", Entry { ino: ROOT_INO, kind: Kind::Directory, cookie: 5000 });
        },
        is!(Damage::BadParent { ino: ROOT_INO, .. }),
        &ALL,
    );
    // Where lost+found is something else, another one is made.
    let mut ns = plant(|p| {
        p.remove_entry("a/b", "g");
        let (_, entry) = p.entry("/", "also");
        p.remove_entry("/", "also");
        p.put_entry(ROOT_INO, b"lost+found", entry);
    });
    assert_eq!(repair(&mut ns).1, vec![]);
    assert!(has(&mut ns, "lost+found.1/#6") && has(&mut ns, "a/f"));
}

#[test]
fn other_records_are_repaired() {
    case(
        |p| {
            let key = keys::orphan(p.ino("a/f"));
            p.batch.put(key, [1]);
        },
        is!(Damage::BadOrphan(_)),
        &ALL,
    );
    case(|p| p.batch.put(keys::orphan(4000), [1]), is!(Damage::BadOrphan(4000)), &ALL);
    case(|p| p.batch.put(keys::orphan(4000), [2]), is!(Damage::BadOrphan(4000)), &ALL);
    case(|p| p.batch.put(keys::orphan(4000), [3]), is!(Damage::Unreadable(_)), &ALL);
    case(
        |p| {
            p.remove_entry("a/b", "g");
            p.change("a/b/g", |g| g.nlink = 0);
        },
        is!(Damage::BadOrphan(_)),
        &["lost+found/#6"],
    );
    case(
        |p| {
            let layout = Layout::new(4096, 0, 1, 2).unwrap();
            let key = keys::garbage(p.ino("a/f"));
            p.batch.put(key, crate::inode::encode_layout(&layout));
        },
        is!(Damage::LiveGarbage(_)),
        &ALL,
    );
    case(
        |p| {
            let key = keys::postponed(1, p.ino("a/f"));
            p.batch.put(key, [1]);
        },
        is!(Damage::LiveGarbage(_)),
        &ALL,
    );
    case(|p| p.batch.put(keys::garbage(4000), [7]), is!(Damage::Unreadable(_)), &ALL);
    case(|p| p.batch.put(keys::xattr(4000, b"user.y"), [1, 2]), is!(Damage::XattrOfNothing(4000)), &ALL);
    case(|p| p.batch.put(keys::small(4000), [1, 2]), is!(Damage::BytesOfNothing(4000)), &ALL);
    case(
        |p| {
            let key = keys::small(p.ino("a/f"));
            p.batch.put(key, [1, 2]);
        },
        is!(Damage::BytesOfNothing(_)),
        &ALL,
    );
    let small = |size, bytes: &'static [u8]| {
        move |p: &mut Planter| {
            let key = keys::small(p.ino("a/f"));
            p.change("a/f", |f| (f.small, f.size) = (true, size));
            if !bytes.is_empty() {
                p.batch.put(key, bytes);
            }
        }
    };
    case(small(3, &[1, 8, 8]), is!(Damage::SmallSize { recorded: 3, found: 2, .. }), &ALL);
    case(small(3, &[]), is!(Damage::SmallSize { recorded: 3, found: 0, .. }), &ALL);
    case(small(1, &[7, 8]), is!(Damage::Unreadable(_)), &ALL);
    case(|p| p.change("a/b", |b| b.small = true), is!(Damage::BadInode(_)), &ALL);
    case(|p| p.batch.put(keys::reply(0, SessionId([7; 16]), 3), [9]), is!(Damage::Unreadable(_)), &ALL);
    case(|p| p.batch.put(b"rshort", [9]), is!(Damage::ReplyOfNothing(_)), &ALL);
    case(
        |p| p.batch.put(keys::SUPER_FILES, encode_number(3)),
        is!(Damage::InodeCount { recorded: 3, .. }),
        &ALL,
    );
    // What a newer version may have written is left alone, and told.
    let mut ns = plant(|p| p.batch.put(b"zkey", [9]));
    let (_, left) = repair(&mut ns);
    assert!(matches!(left[..], [Damage::UnknownKey(_)]) && !left[0].is_repairable(), "{left:?}");
}

#[test]
fn an_unlinked_inode_that_nobody_holds_is_removed() {
    let mut ns = tree();
    let session = SessionId([5; 16]);
    let flags = crate::OpenFlags { read: true, ..Default::default() };
    run(&mut ns, |op| op.open(&Caller::root(), session, at("a/b/g"), flags));
    run(&mut ns, |op| op.unlink(&Caller::root(), NOW, at("a/b/g")));
    assert_eq!(ns.check().unwrap(), vec![], "it is open");
    let mut later = open(ns.engine.fork());
    assert!(matches!(later.check().unwrap()[..], [Damage::LeftOver(_)]));
    assert_eq!(repair(&mut later).1, vec![]);
}

#[test]
fn a_file_that_never_had_a_name_is_no_damage_while_somebody_holds_it() {
    let mut ns = tree();
    let (root, session) = (Caller::root(), SessionId([5; 16]));
    let flags = crate::OpenFlags { write: true, ..Default::default() };
    let new = crate::NewFile::default();
    let [kept, named] = [(); 2]
        .map(|()| run(&mut ns, |op| op.create_unnamed(&root, NOW, session, at("a/b"), &new, flags)).attr.ino);
    ns.begin_audit(1);
    assert_eq!(ns.step_audit(1, 1).unwrap().findings, vec![]);
    run(&mut ns, |op| op.link(&root, NOW, At::ino(named), false, at("a/b/named")));
    loop {
        let step = ns.step_audit(1, 100).unwrap();
        assert_eq!(step.findings, vec![], "one gets its name during the check");
        if step.finished {
            break;
        }
    }
    let mut later = open(ns.engine.fork());
    assert_eq!(later.check().unwrap(), vec![Damage::LeftOver(kept)], "nobody holds it");
    assert_eq!(repair(&mut later).1, vec![]);
    assert!(later.begin().getattr(kept).is_err() && later.begin().getattr(named).is_ok());
}

/// Whatever is done between the steps of a check, it finds nothing.
#[test]
fn a_check_beside_changes_finds_nothing() {
    let root = Caller::root();
    for seed in weft_test_random::seeds().take(60) {
        let mut ns = tree();
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        ns.begin_audit(1);
        loop {
            let step = ns.step_audit(1, 1 + below(4) as usize).unwrap();
            assert_eq!(step.findings, vec![], "seed {seed}");
            if step.finished {
                break;
            }
            // More is made than the check looks at only for a while.
            let grows = ns.statfs().inodes < 60;
            for _ in 0..3 {
                let dirs = ["", "a/", "a/b/", "a/b/c/", "n1/"];
                let (one, other) = (below(5) as usize, below(5) as usize);
                let (one, other) =
                    (format!("{}n{}", dirs[one], below(4)), format!("{}n{}", dirs[other], below(4)));
                let chosen = below(8);
                // What the rules refuse changes nothing.
                let _ = ns.change(|op| match chosen {
                    0 if grows => op.mkdir(&root, NOW, at(&one), 0o755).map(drop),
                    1 | 2 if grows => op.mknod(&root, NOW, at(&one), Kind::File, 0o644, 0).map(drop),
                    3 => op.link(&root, NOW, at(&one), false, at(&other)).map(drop),
                    4 => op.unlink(&root, NOW, at(&one)).map(drop),
                    5 => op.rmdir(&root, NOW, at(&one)).map(drop),
                    6 => op.rename(&root, NOW, at(&one), at(&other), RenameMode::Exchange).map(drop),
                    _ => op.rename(&root, NOW, at(&one), at(&other), RenameMode::Replace).map(drop),
                });
            }
        }
    }
}

#[test]
fn a_size_is_taken_only_while_nobody_has_written_since() {
    let mut ns = tree();
    let session = SessionId([5; 16]);
    let flags = crate::OpenFlags { write: true, ..Default::default() };
    let state = |ns: &Namespace<MemEngine>| {
        let (files, next) = ns.files_after(0, 100).unwrap();
        assert_eq!((files.len(), next), (2, None));
        files[1]
    };
    let before = state(&ns);
    assert!(before.is_settled && !before.may_have_data);
    let found = super::SizeFound { ino: before.ino, epoch: before.epoch, bytes: 500 };
    run(&mut ns, |op| op.open(&Caller::root(), session, at("a/b/g"), flags));
    assert!(!state(&ns).is_settled);
    assert!(!ns.take_size(&found).unwrap().0, "somebody writes");
    let report = WriteReport { max_end: 100, mtime: None };
    run(&mut ns, |op| op.close(NOW, session, found.ino, true, Some(&report)));
    assert!(state(&ns).is_settled);
    assert!(!ns.take_size(&found).unwrap().0, "somebody has written");
    let found = super::SizeFound { epoch: state(&ns).epoch, ..found };
    assert!(ns.take_size(&found).unwrap().0);
    assert_eq!(state(&ns).bytes, 500);
    assert!(!ns.take_size(&found).unwrap().0, "once");
}

#[test]
fn data_without_an_inode_gets_one() {
    let mut ns = tree();
    let layout = ns.default_layout_of(50).unwrap();
    assert!(!ns.adopt_data(NOW, 1 << 50, &layout, 10).unwrap().0, "the number was never given out");
    let taken = ns.begin().stat(&Caller::root(), at("a/f"), false).unwrap().ino;
    assert!(!ns.adopt_data(NOW, taken, &layout, 10).unwrap().0, "there is one");
    let gone = ns.begin().stat(&Caller::root(), at("a/b/g"), false).unwrap().ino;
    run(&mut ns, |op| op.unlink(&Caller::root(), NOW, at("a/b/g")));
    assert!(ns.adopt_data(NOW, gone, &layout, 10).unwrap().0);
    let name = format!("lost+found/#{gone}");
    assert_eq!(ns.begin().stat(&Caller::root(), at(&name), false).unwrap().size, 10);
    assert_eq!(ns.check().unwrap(), vec![]);
}

/// Any record in place of any other: the store opens or not, is checked, listed and read without a panic. The first two bytes of
/// an input choose the record whose value the rest replaces.
#[test]
fn damaged_records_are_found_or_refused() {
    let mut sound = tree();
    let session = SessionId([7; 16]);
    let flags = crate::OpenFlags { read: true, write: true, ..Default::default() };
    run(&mut sound, |op| op.open(&Caller::root(), session, at("a/b/g"), flags));
    let mut records: Vec<_> = sound.engine.scan(&[0], &[255]).collect::<Result<_, _>>().unwrap();
    // Of kinds that this tree has none of.
    let counter = keys::counter(&crate::CounterId { ino: 5, session, number: 3 });
    let others: [&[u8]; 7] = [
        &keys::orphan(5),
        &keys::reply(0, session, 0),
        &keys::server(1),
        &keys::append_tail(5),
        &counter,
        &keys::run(7),
        &keys::issued(&[9; 16]),
    ];
    records.extend(others.map(|key| (key.into(), [1; 60].into())));
    let replaced = |number: usize, value: &[u8]| [&(number as u16).to_le_bytes()[..], value].concat();
    let right: Vec<_> =
        records.iter().enumerate().map(|(number, (_, value))| replaced(number, value.as_ref())).collect();
    weft_test_fuzz::run("records", &right, |bytes| {
        let Some((number, value)) = bytes.split_first_chunk() else { return };
        let (key, _) = &records[usize::from(u16::from_le_bytes(*number)) % records.len()];
        let mut engine = sound.engine.fork();
        let mut batch = Batch::default();
        batch.put(key.clone(), value);
        crate::run_again(|| engine.commit(&batch)).unwrap();
        let options = NamespaceOptions { ring_servers: 2, ..NamespaceOptions::default() };
        let Ok(mut ns) = Namespace::open(engine, options) else { return };
        let _ = (ns.check(), ns.servers());
        for path in ["a/f", "a/b/g", "a/link", "a/b/c"] {
            let _ = ns.begin().stat(&Caller::root(), at(path), true);
        }
    });
}
