//! symlink and symlinkat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::creating(table, "symlink", |path| symlink("target", path));
    paths::refuses_existing(table, "symlink", |path| symlink("target", path));
    paths::owned(table, "symlink", |path| symlink("target", path));
    paths::at(table, "symlinkat", None, |fd, path| symlinkat("target", fd, path));
    for bytes in [1usize, 2, 59, 60, 63, 64, 255, 256, 1000, 1023, 1024, 2047, 2048, 4000, 4095] {
        table.case(format!("a target of {bytes} bytes is kept"), move || {
            let target = "0123456789/".bytes().cycle().take(bytes).collect::<Vec<_>>();
            ok(symlink(&target, "link"));
            assert_eq!(ok(readlink("link")), target);
            let stat = ok(lstat("link"));
            assert_eq!(
                (stat.size, stat.kind, stat.mode, stat.nlink),
                (bytes as i64, Kind::Symlink, 0o777, 1)
            );
        });
    }
    table.case("ENAMETOOLONG for a target of 4096 bytes", || {
        err(symlink(name_of(4096), "link"), libc::ENAMETOOLONG);
        assert!(!exists("link"));
    });
    table.case("ENOENT for an empty target", || err(symlink("", "link"), libc::ENOENT));
    table.case("ENOENT where a slash follows the name", || err(symlink("t", "link/"), libc::ENOENT));
    table.case("any bytes are a target", || {
        for target in [&b"\xff\xfe\x01"[..], b"//", b"a b\n", b"../..", b"."] {
            ok(symlink(target, "link"));
            assert_eq!(ok(readlink("link")), target);
            ok(unlink("link"));
        }
    });
    table.case("times of a new link are now, and equal", || {
        file("before");
        tick();
        ok(symlink("t", "link"));
        let stat = ok(lstat("link"));
        assert!(stat.mtime > ok(lstat("before")).mtime);
        assert_eq!((stat.atime, stat.mtime), (stat.mtime, stat.ctime));
    });
    table.case("a relative target starts at the link's directory", || {
        dir("d");
        file_with("d/f", b"inner");
        file_with("f", b"outer");
        ok(symlink("f", "d/link"));
        ok(symlink("../f", "d/up"));
        assert_eq!(contents("d/link"), b"inner");
        assert_eq!(contents("d/up"), b"outer");
    });
    table.case("a whole target starts at the root", || {
        file_with("f", b"text");
        ok(symlink(format!("{}/f", ok(getcwd())), "link"));
        assert_eq!(contents("link"), b"text");
    });
    table.case("names on the way of a target are checked", || {
        alices_dir("private", 0o700);
        file_mode("private/f", 0o666);
        ok(symlink("private/f", "link"));
        as_user(BOB, || err(open("link", libc::O_RDONLY), libc::EACCES));
        as_user(ALICE, || ok(open("link", libc::O_RDONLY)));
    });
    table.case("a target with a slash at the end must be a directory", || {
        file("f");
        dir("d");
        ok(symlink("f/", "to-file"));
        ok(symlink("d/", "to-dir"));
        err(stat("to-file"), libc::ENOTDIR);
        ok(stat("to-dir"));
    });
}
