//! mknod and mkfifo.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

const KINDS_MADE: [(&str, u32, Kind); 5] = [
    ("a file", libc::S_IFREG, Kind::File),
    ("a fifo", libc::S_IFIFO, Kind::Fifo),
    ("a socket", libc::S_IFSOCK, Kind::Socket),
    ("a character device", libc::S_IFCHR, Kind::Char),
    ("a block device", libc::S_IFBLK, Kind::Block),
];

pub fn define(table: &mut Table) {
    paths::creating(table, "mkfifo", |path| mkfifo(path, 0o644));
    paths::refuses_existing(table, "mkfifo", |path| mkfifo(path, 0o644));
    paths::owned(table, "mkfifo", |path| mkfifo(path, 0o644));
    paths::creating(table, "mknod of a file", |path| mknod(path, libc::S_IFREG | 0o644, 0));
    paths::refuses_existing(table, "mknod of a file", |path| mknod(path, libc::S_IFREG | 0o644, 0));
    paths::owned(table, "mknod of a socket", |path| mknod(path, libc::S_IFSOCK | 0o644, 0));
    for (name, kind_bits, kind) in KINDS_MADE {
        table.case(format!("{name} is made with its mode, one link and no contents"), move || {
            for mode in [0, 0o644, 0o777, 0o4755, 0o2755, 0o1644] {
                let path = format!("x{mode:o}");
                ok(mknod(&path, kind_bits | mode, libc::makedev(1, 3)));
                let stat = ok(lstat(&path));
                assert_eq!((stat.kind, stat.mode, stat.nlink, stat.size), (kind, mode, 1, 0));
            }
        });
        table.case(format!("times of {name} are now, and equal"), move || {
            file("before");
            tick();
            ok(mknod("x", kind_bits | 0o644, 0));
            let stat = ok(lstat("x"));
            assert!(stat.mtime > ok(lstat("before")).mtime);
            assert_eq!((stat.atime, stat.mtime), (stat.mtime, stat.ctime));
        });
        table.case(format!("ENOENT where a slash follows the name of {name}"), move || {
            err(mknod("x/", kind_bits | 0o644, 0), libc::ENOENT);
        });
        let special = matches!(kind, Kind::Char | Kind::Block);
        table.case(
            format!("who is not root {} {name}", if special { "cannot make" } else { "makes" }),
            move || {
                let outcome = as_user(BOB, || mknod("x", kind_bits | 0o644, libc::makedev(1, 3)));
                if special { err(outcome, libc::EPERM) } else { ok(outcome) }
            },
        );
    }
    for (major, minor) in [(0, 1), (1, 3), (7, 250), (255, 255), (4095, 1_048_575)] {
        table.case(format!("device number {major}:{minor} is kept"), move || {
            for kind in [libc::S_IFCHR, libc::S_IFBLK] {
                let path = format!("x{kind}");
                ok(mknod(&path, kind | 0o600, libc::makedev(major, minor)));
                assert_eq!(ok(lstat(&path)).rdev, libc::makedev(major, minor));
            }
        });
    }
    table.case("kind 0 is a file", || {
        ok(mknod("x", 0o640, 0));
        assert_eq!((ok(lstat("x")).kind, ok(lstat("x")).mode), (Kind::File, 0o640));
    });
    table.case("EPERM for a directory, EINVAL for what is no kind", || {
        err(mknod("x", libc::S_IFDIR | 0o755, 0), libc::EPERM);
        err(mknod("x", 0o150_000 | 0o755, 0), libc::EINVAL);
        assert!(!exists("x"));
    });
    table.case("a fifo passes bytes between processes", || {
        ok(mkfifo("x", 0o666));
        let reader = ok(open("x", libc::O_RDONLY | libc::O_NONBLOCK));
        in_process(|| {
            let writer = ok(open("x", libc::O_WRONLY));
            assert_eq!(ok(write(&writer, b"through")), 7);
        });
        assert_eq!(ok(read(&reader, 99)), b"through");
        assert_eq!(ok(stat("x")).size, 0);
    });
    table.case("ENXIO where nobody reads a fifo", || {
        ok(mkfifo("x", 0o666));
        err(open("x", libc::O_WRONLY | libc::O_NONBLOCK), libc::ENXIO);
    });
    table.case("a fifo's mode decides who opens it", || {
        ok(mkfifo("x", 0o600));
        as_user(BOB, || err(open("x", libc::O_RDONLY | libc::O_NONBLOCK), libc::EACCES));
    });
    table.case("a socket is bound to a name, and others connect to it", || {
        let listener = std::os::unix::net::UnixListener::bind("s").expect("a socket");
        assert_eq!(ok(lstat("s")).kind, Kind::Socket);
        in_process(|| drop(std::os::unix::net::UnixStream::connect("s").expect("a connection")));
        drop(listener);
    });
    table.case("ENXIO for opening a socket", || {
        make(Kind::Socket, "s");
        err(open("s", libc::O_RDONLY), libc::ENXIO);
    });
}
