//! opendir, readdir, seekdir and rewinddir.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use std::collections::BTreeSet;

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
}

pub fn define(table: &mut Table) {
    paths::existing(table, "opendir", Kind::Directory, |path| Directory::open(path).map(drop));
    paths::follows(table, "opendir", Kind::Directory, |path| Directory::open(path).map(drop));
    for kind in NOT_DIRECTORIES.into_iter().filter(|kind| *kind != Kind::Symlink) {
        table.case(format!("ENOTDIR for a {kind:?}"), move || {
            make(kind, "x");
            err(Directory::open("x").map(drop), libc::ENOTDIR);
        });
    }
    for kind in KINDS {
        table.case(format!("a {kind:?} is listed with its inode number and kind"), move || {
            dir("d");
            make(kind, "d/x");
            let entries = ok(ok(Directory::open("d")).rest());
            let entry = entries.iter().find(|entry| entry.name == b"x").expect("it is listed");
            let expected = match kind {
                Kind::File => libc::DT_REG,
                Kind::Directory => libc::DT_DIR,
                Kind::Symlink => libc::DT_LNK,
                Kind::Fifo => libc::DT_FIFO,
                Kind::Socket => libc::DT_SOCK,
                Kind::Char => libc::DT_CHR,
                Kind::Block => libc::DT_BLK,
            };
            assert_eq!((entry.ino, entry.kind), (ok(lstat("d/x")).ino, expected));
        });
    }
    table.case("`.` and `..` are listed once, with their inode numbers", || {
        dir("d");
        dir("d/e");
        let entries = ok(ok(Directory::open("d/e")).rest());
        let numbers = |name: &[u8]| -> Vec<u64> {
            entries.iter().filter(|entry| entry.name == name).map(|entry| entry.ino).collect()
        };
        assert_eq!(numbers(b"."), [ok(lstat("d/e")).ino]);
        assert_eq!(numbers(b".."), [ok(lstat("d")).ino]);
        assert_eq!(entries.len(), 2);
    });
    for (name, count) in [("0", 0), ("1", 1), ("10", 10), ("300", 300), ("thousands of", fewer(3000))] {
        table.case(format!("{name} names are listed, each once"), move || {
            dir("d");
            for number in 0..count {
                file(format!("d/a-name-of-some-length-{number}"));
            }
            let mut listed = ok(list("d"));
            assert_eq!(listed.len(), count);
            listed.dedup();
            assert_eq!(listed.len(), count);
        });
    }
    table.case("long names are listed whole", || {
        dir("d");
        for number in 0..100 {
            file(format!("d/{}", name_of(155 + number)));
        }
        let mut lengths: Vec<_> = ok(list("d")).iter().map(String::len).collect();
        lengths.sort();
        assert_eq!(lengths, (155..255).collect::<Vec<_>>());
    });
    table.case("rewinddir starts again, and sees what is new", || {
        dir("d");
        file("d/a");
        let stream = ok(Directory::open("d"));
        assert_eq!(ok(stream.rest()).len(), 3);
        file("d/b");
        stream.rewind();
        assert_eq!(ok(stream.rest()).len(), 4);
    });
    table.case("seekdir goes back to where telldir was", || {
        dir("d");
        let count = fewer(500);
        for number in 0..count {
            file(format!("d/{number:04}"));
        }
        let stream = ok(Directory::open("d"));
        let all = ok(stream.rest());
        for at in [0, 1, 2, count / 5, count / 2, count - 1, count + 1] {
            stream.seek(all[at].position);
            assert_eq!(names(&ok(stream.rest())), names(&all[at + 1..]), "after entry {at}");
        }
    });
    table.case("removing all names while listing loses none", || {
        dir("d");
        let count = fewer(700);
        for number in 0..count {
            file(format!("d/f{number}"));
        }
        let stream = ok(Directory::open("d"));
        let mut seen = BTreeSet::new();
        while let Some(entry) = ok(stream.read()) {
            if entry.name != b"." && entry.name != b".." {
                ok(unlinkat(stream.fd(), &entry.name, 0));
                assert!(seen.insert(entry.name), "twice");
            }
        }
        assert_eq!((seen.len(), ok(list("d")).len()), (count, 0));
    });
    table.case("names that stay are listed once while others come and go", || {
        dir("d");
        let (staying, coming) = (fewer(400), fewer(2000));
        for number in 0..staying {
            file(format!("d/stay{number}"));
        }
        let stream = ok(Directory::open("d"));
        let mut stayed = BTreeSet::new();
        let mut count = 0;
        while let Some(entry) = ok(stream.read()) {
            count += 1;
            if count < coming {
                file(format!("d/new{count}"));
            }
            if count > 10 && count < coming {
                ok(unlink(format!("d/new{}", count - 10)));
            }
            if entry.name.starts_with(b"stay") {
                assert!(stayed.insert(entry.name), "twice");
            }
        }
        assert_eq!(stayed.len(), staying);
    });
    table.case("a removed directory that is open lists nothing more", || {
        dir("d");
        let stream = ok(Directory::open("d"));
        ok(rmdir("d"));
        stream.rewind();
        let rest = ok(stream.rest());
        assert!(rest.iter().all(|entry| entry.name == b"." || entry.name == b".."), "{rest:?}");
    });
    table.case("permission to read is needed at opening, not after", || {
        alices_dir("d", 0o700);
        as_user(ALICE, || {
            file("d/a");
            let stream = ok(Directory::open("d"));
            ok(chmod("d", 0));
            assert_eq!(ok(stream.rest()).len(), 3);
            err(Directory::open("d").map(drop), libc::EACCES);
        });
    });
    table.case("fdopendir lists an open directory after its rename", || {
        dir("d");
        file("d/a");
        let fd = ok(open("d", libc::O_RDONLY | libc::O_DIRECTORY));
        ok(rename("d", "e"));
        assert_eq!(ok(ok(Directory::of(fd)).rest()).len(), 3);
    });
    table.case("listing leaves modification and change time", || {
        dir("d");
        file("d/a");
        touches_not("d", || ok(list("d")));
    });
    table.case("names are told apart by every byte", || {
        dir("d");
        for name in ["a", "A", "a ", "ä", "a\u{308}", "a.", ".a"] {
            file(format!("d/{name}"));
        }
        assert_eq!(ok(list("d")).len(), 7);
    });
}
