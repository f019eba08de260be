//! dup, fork and fcntl: descriptors that share one open file.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use std::os::fd::OwnedFd;

pub fn define(table: &mut Table) {
    table.case("both descriptors have one offset", || {
        file_with("f", b"0123456789");
        let one = ok(open("f", libc::O_RDWR));
        let two = ok(dup(&one));
        assert_eq!(ok(read(&one, 3)), b"012");
        assert_eq!(ok(read(&two, 3)), b"345");
        assert_eq!(ok(lseek(&one, 0, libc::SEEK_CUR)), 6);
        assert_eq!(ok(write(&two, b"xy")), 2);
        assert_eq!(ok(read(&one, 9)), b"89");
    });
    table.case("two opens have offsets of their own", || {
        file_with("f", b"0123456789");
        let (one, two) = (ok(open("f", libc::O_RDONLY)), ok(open("f", libc::O_RDONLY)));
        assert_eq!(ok(read(&one, 3)), b"012");
        assert_eq!(ok(read(&two, 3)), b"012");
    });
    table.case("one stays when the other is closed", || {
        file("f");
        let one = ok(open("f", libc::O_RDWR));
        let two = ok(dup(&one));
        ok(close(one));
        assert_eq!(ok(write(&two, b"abc")), 3);
        assert_eq!(contents("f"), b"abc");
    });
    table.case("a child shares the offset", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDONLY));
        in_process(|| assert_eq!(ok(read(&fd, 4)), b"0123"));
        assert_eq!(ok(read(&fd, 4)), b"4567");
    });
    table.case("what a child writes is there when it has ended", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        in_process(|| assert_eq!(ok(write(&fd, b"child")), 5));
        assert_eq!(ok(write(&fd, b"+parent")), 7);
        assert_eq!(contents("f"), b"child+parent");
    });
    table.case("F_GETFL tells how the file was opened", || {
        file("f");
        for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR | libc::O_APPEND] {
            let fd = ok(open("f", flags));
            let told = ok(fcntl(&fd, libc::F_GETFL, 0)) as i32;
            assert_eq!(told & (libc::O_ACCMODE | libc::O_APPEND), flags);
        }
    });
    table.case("F_SETFL turns appending on and off", || {
        file_with("f", b"base");
        let fd = ok(open("f", libc::O_RDWR));
        ok(fcntl(&fd, libc::F_SETFL, libc::O_APPEND));
        assert_eq!(ok(write(&fd, b"+1")), 2);
        assert_eq!(contents("f"), b"base+1");
        ok(fcntl(&fd, libc::F_SETFL, 0));
        ok(lseek(&fd, 0, libc::SEEK_SET));
        assert_eq!(ok(write(&fd, b"B")), 1);
        assert_eq!(contents("f"), b"Base+1");
    });
    for (name, access) in [("to write", libc::O_WRONLY), ("to read and write", libc::O_RDWR)] {
        table.case(format!("F_SETFL turns appending off in a file opened {name} with O_APPEND"), move || {
            file_with("f", b"base");
            let fd = ok(open("f", access | libc::O_APPEND));
            assert_eq!(ok(write(&fd, b"+1")), 2);
            ok(fcntl(&fd, libc::F_SETFL, 0));
            assert_eq!(ok(fcntl(&fd, libc::F_GETFL, 0)) as i32 & libc::O_APPEND, 0);
            assert_eq!(ok(pwrite(&fd, b"B", 0)), 1);
            ok(lseek(&fd, 1, libc::SEEK_SET));
            assert_eq!(ok(write(&fd, b"A")), 1);
            assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), 2);
            assert_eq!(contents("f"), b"BAse+1");
            ok(fcntl(&fd, libc::F_SETFL, libc::O_APPEND));
            assert_eq!(ok(write(&fd, b"+2")), 2);
            assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), 8);
            assert_eq!(contents("f"), b"BAse+1+2");
        });
    }
    table.case("copies of a descriptor share what F_SETFL changes, also with a child", || {
        file_with("f", b"base");
        let fd = ok(open("f", libc::O_RDWR | libc::O_APPEND));
        let copy = ok(dup(&fd));
        ok(fcntl(&copy, libc::F_SETFL, 0));
        assert_eq!(ok(pwrite(&fd, b"B", 0)), 1);
        in_process(|| {
            assert_eq!(ok(pwrite(&copy, b"A", 1)), 1);
            ok(fcntl(&fd, libc::F_SETFL, libc::O_APPEND));
        });
        assert_eq!(ok(write(&copy, b"+1")), 2);
        assert_eq!(contents("f"), b"BAse+1");
    });
    table.case("another open file keeps its own O_APPEND", || {
        file_with("f", b"base");
        let one = ok(open("f", libc::O_WRONLY | libc::O_APPEND));
        let two = ok(open("f", libc::O_WRONLY | libc::O_APPEND));
        ok(fcntl(&one, libc::F_SETFL, 0));
        assert_eq!(ok(write(&two, b"+1")), 2);
        assert_eq!(ok(write(&one, b"B")), 1);
        assert_eq!(contents("f"), b"Base+1");
    });
    table.case(
        "F_SETFL sets and clears O_NONBLOCK and O_NOATIME, and leaves O_SYNC and the access mode",
        || {
            file_with("f", b"base");
            let fd = ok(open("f", libc::O_RDWR | libc::O_SYNC));
            let changing = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME;
            let told = |fd: &OwnedFd| ok(fcntl(fd, libc::F_GETFL, 0)) as i32;
            ok(fcntl(&fd, libc::F_SETFL, changing | libc::O_WRONLY | libc::O_TRUNC));
            assert_eq!(told(&fd) & (changing | libc::O_ACCMODE), changing | libc::O_RDWR);
            ok(fcntl(&fd, libc::F_SETFL, 0));
            assert_eq!(told(&fd) & (changing | libc::O_ACCMODE), libc::O_RDWR);
            assert_eq!(told(&fd) & libc::O_SYNC, libc::O_SYNC);
            assert_eq!(contents("f"), b"base");
        },
    );
    table.case("F_SETFL gives O_NOATIME to nobody but the owner and root", || {
        file_with("f", b"base");
        ok(chmod("f", 0o666));
        as_user(BOB, || {
            let fd = ok(open("f", libc::O_RDONLY));
            err(fcntl(&fd, libc::F_SETFL, libc::O_NOATIME), libc::EPERM);
        });
    });
    table.case("FIONBIO is O_NONBLOCK", || {
        file_with("f", b"base");
        let fd = ok(open("f", libc::O_RDONLY));
        for (on, flag) in [(1, libc::O_NONBLOCK), (0, 0)] {
            ok(set_nonblocking(&fd, on));
            assert_eq!(ok(fcntl(&fd, libc::F_GETFL, 0)) as i32 & libc::O_NONBLOCK, flag);
        }
    });
}
