//! dup, fork and fcntl: descriptors that share one open file.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

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
}
