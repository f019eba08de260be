//! stat, lstat, fstat, fstatat and statx.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use std::os::fd::AsRawFd;

pub fn define(table: &mut Table) {
    paths::existing(table, "stat", Kind::File, |path| stat(path).map(drop));
    paths::follows(table, "stat", Kind::File, |path| stat(path).map(drop));
    paths::existing(table, "lstat", Kind::Symlink, |path| lstat(path).map(drop));
    paths::at(table, "fstatat", Some(Kind::File), |fd, path| fstatat(fd, path, 0).map(drop));
    for kind in KINDS {
        table.case(format!("a {kind:?} is told as what it is, by all calls alike"), move || {
            make(kind, "x");
            let told = ok(lstat("x"));
            assert_eq!((told.kind, told.uid, told.gid), (kind, 0, 0));
            assert_eq!(told.nlink, if kind == Kind::Directory { 2 } else { 1 });
            assert_eq!(ok(fstatat(libc::AT_FDCWD, "x", libc::AT_SYMLINK_NOFOLLOW)), told);
            let fd = ok(open("x", libc::O_PATH | libc::O_NOFOLLOW));
            assert_eq!(ok(fstat(&fd)), told);
            assert_eq!(ok(fstatat(fd.as_raw_fd(), "", libc::AT_EMPTY_PATH)), told);
            let extended = ok(statx("x", libc::AT_SYMLINK_NOFOLLOW, libc::STATX_BASIC_STATS));
            assert_eq!((extended.stx_ino, extended.stx_size as i64), (told.ino, told.size));
            assert_eq!(u32::from(extended.stx_mode) & 0o7777, told.mode);
            assert_eq!((extended.stx_mtime.tv_sec, i64::from(extended.stx_mtime.tv_nsec)), told.mtime);
        });
        table.case(format!("the inode number of a {kind:?} stays, and is nobody else's"), move || {
            make(kind, "x");
            make(kind, "y");
            let ino = ok(lstat("x")).ino;
            assert_ne!(ino, ok(lstat("y")).ino);
            dir("d");
            ok(rename("x", "d/z"));
            assert_eq!(ok(lstat("d/z")).ino, ino);
            ok(lchown("d/z", 1, 1));
            assert_eq!(ok(lstat("d/z")).ino, ino);
        });
        table.case(format!("stat of a {kind:?} needs no permission for it"), move || {
            make(kind, "x");
            if kind != Kind::Symlink {
                ok(chmod("x", 0));
            }
            as_user(BOB, || ok(lstat("x")));
        });
    }
    for bytes in [0, 1, 4096, 100_000] {
        table.case(format!("{bytes} bytes written are its size at once"), move || {
            let fd = ok(open_mode("f", libc::O_CREAT | libc::O_WRONLY, 0o600));
            if bytes > 0 {
                ok(write(&fd, &vec![1; bytes]));
            }
            for told in [ok(fstat(&fd)), ok(lstat("f"))] {
                assert_eq!(told.size, bytes as i64);
            }
        });
    }
    table.case("blocks tell the space of a file in 512 bytes", || {
        file("f");
        assert_eq!(ok(lstat("f")).blocks, 0);
        file_with("f", &[1; 1 << 20]);
        ok(fsync(&ok(open("f", libc::O_RDONLY))));
        let blocks = ok(lstat("f")).blocks;
        assert!((2048..=4096 + 256).contains(&blocks), "{blocks}");
    });
    table.case("the preferred size of reads and writes is a power of two", || {
        file("f");
        let told = ok(lstat("f"));
        assert!(told.blksize >= 512 && (told.blksize as u64).is_power_of_two(), "{}", told.blksize);
    });
    table.case("one device for all of a tree", || {
        dir("d");
        file("d/f");
        assert_eq!(ok(lstat("d/f")).dev, ok(lstat(".")).dev);
    });
    table.case("the size of a symbolic link is its target's length", || {
        for target in ["t", "longer/target", &name_of(200)] {
            ok(symlink(target, "link"));
            assert_eq!(ok(lstat("link")).size, target.len() as i64);
            ok(unlink("link"));
        }
    });
    table.case("numbers of all files in a directory differ", || {
        let mut numbers = std::collections::BTreeSet::new();
        for number in 0..200 {
            file(format!("f{number}"));
            assert!(numbers.insert(ok(lstat(format!("f{number}"))).ino), "twice");
        }
    });
    table.case("statx tells a birth time not later than now, which stays", || {
        file("f");
        let born = ok(statx("f", 0, libc::STATX_BTIME));
        if born.stx_mask & libc::STATX_BTIME == 0 {
            return;
        }
        tick();
        file_with("f", b"new");
        ok(chmod("f", 0o600));
        let after = ok(statx("f", 0, libc::STATX_BTIME));
        assert_eq!(
            (after.stx_btime.tv_sec, after.stx_btime.tv_nsec),
            (born.stx_btime.tv_sec, born.stx_btime.tv_nsec)
        );
    });
    table.case("statx fails with EINVAL for flags that do not exist", || {
        file("f");
        err(statx("f", 0x4000_0000, libc::STATX_BASIC_STATS).map(drop), libc::EINVAL);
    });
    table.case("fstat of a file without a name: no links, all else as it was", || {
        file_with("f", b"text");
        let fd = ok(open("f", libc::O_RDWR));
        let before = ok(fstat(&fd));
        tick();
        ok(unlink("f"));
        let after = ok(fstat(&fd));
        assert!(after.ctime > before.ctime, "ctime");
        assert_eq!(after, Stat { nlink: 0, ctime: after.ctime, ..before });
    });
    table.case("the number of a directory's parent stays through renames", || {
        dir("a");
        dir("b");
        dir("a/c");
        assert_eq!(ok(lstat("a/c/..")).ino, ok(lstat("a")).ino);
        ok(rename("a/c", "b/c"));
        assert_eq!(ok(lstat("b/c/..")).ino, ok(lstat("b")).ino);
    });
}
