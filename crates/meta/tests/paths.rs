//! From inodes to paths: each inode with a name is found, in parts of any length, under a name that it has.

mod common;
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use weft_meta::{MemEngine, Namespace, ROOT_INO, RenameMode};

/// All of `inodes` that have a path, looked for in parts of so many entries; the number of parts, too.
fn find(ns: &mut Namespace<MemEngine>, inodes: &[u64], part: usize) -> (HashMap<u64, String>, usize) {
    let (mut all, mut place, mut parts) = (HashMap::new(), Some((0, 0)), 0);
    while let Some(after) = place {
        let found = run(ns, |op| op.find_paths(inodes, after, part)).unwrap();
        parts += 1;
        all.extend(found.found.into_iter().map(|(ino, path)| (ino, String::from_utf8(path).unwrap())));
        place = found.next;
    }
    (all, parts)
}

#[test]
fn a_file_is_found_where_it_was_moved_and_not_once_it_is_removed() {
    let mut ns = mem();
    mkdir(&mut ns, &user(0), "/a", 0o755).unwrap();
    mkdir(&mut ns, &user(0), "/a/b", 0o755).unwrap();
    mkfile(&mut ns, &user(0), "/a/b/c", 0o644).unwrap();
    let ino = stat(&mut ns, "/a/b/c").unwrap().ino;
    let dir = stat(&mut ns, "/a/b").unwrap().ino;
    let (found, _) = find(&mut ns, &[ino, dir, ROOT_INO, 999], 2);
    let expected = [(ino, "/a/b/c"), (dir, "/a/b"), (ROOT_INO, "/")];
    assert_eq!(found, expected.into_iter().map(|(ino, path)| (ino, path.to_owned())).collect());
    run(&mut ns, |op| op.rename(&user(0), now(2), at("/a/b/c"), at("/d"), RenameMode::Replace)).unwrap();
    assert_eq!(find(&mut ns, &[ino], 1).0[&ino], "/d");
    run(&mut ns, |op| op.unlink(&user(0), now(3), at("/d"))).unwrap();
    assert_eq!(find(&mut ns, &[ino], 1).0.len(), 0);
}

#[test]
fn looking_ends_once_all_are_found() {
    let mut ns = mem();
    for at in 0..100 {
        mkfile(&mut ns, &user(0), &format!("/{at:03}"), 0o644).unwrap();
    }
    let first = stat(&mut ns, "/000").unwrap().ino;
    assert_eq!(find(&mut ns, &[first], 10).1, 1);
    assert_eq!(find(&mut ns, &[first, 999], 10).1, 11);
    assert_eq!(find(&mut ns, &[], 10), (HashMap::new(), 1));
}

proptest! {
    #![proptest_config(weft_test_random::cases(64))]
    #[test]
    fn each_inode_is_found_under_a_name_that_it_has(
        made in prop::collection::vec((0usize..12, prop::bool::ANY), 1..40),
        part in 1usize..9,
    ) {
        let mut ns = mem();
        let mut dirs = vec![String::new()];
        let mut paths: HashMap<u64, BTreeSet<String>> = HashMap::new();
        for (number, (place, is_dir)) in made.into_iter().enumerate() {
            let path = format!("{}/n{number}", dirs[place % dirs.len()]);
            if is_dir {
                mkdir(&mut ns, &user(0), &path, 0o755).unwrap();
                dirs.push(path.clone());
            } else {
                mkfile(&mut ns, &user(0), &path, 0o644).unwrap();
            }
            paths.entry(stat(&mut ns, &path).unwrap().ino).or_default().insert(path.clone());
            if !is_dir && place % 3 == 0 {
                let other = format!("{}/l{number}", dirs[place % dirs.len()]);
                run(&mut ns, |op| op.link(&user(0), now(2), at(&path), false, at(&other))).unwrap();
                paths.entry(stat(&mut ns, &path).unwrap().ino).or_default().insert(other);
            }
        }
        let inodes: Vec<u64> = paths.keys().copied().collect();
        let (found, _) = find(&mut ns, &inodes, part);
        prop_assert_eq!(found.len(), inodes.len());
        for (ino, path) in found {
            prop_assert!(paths[&ino].contains(&path), "{} is not {:?}", path, paths[&ino]);
        }
    }
}
