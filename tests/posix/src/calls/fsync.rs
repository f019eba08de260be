//! fsync, fdatasync, syncfs and close.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

type Sync = fn(&std::os::fd::OwnedFd) -> Outcome;

pub fn define(table: &mut Table) {
    let calls: [(&str, Sync); 3] = [("fsync", fsync), ("fdatasync", fdatasync), ("syncfs", syncfs)];
    for (name, sync) in calls {
        for (access, flags) in
            [("to read", libc::O_RDONLY), ("to write", libc::O_WRONLY), ("for both", libc::O_RDWR)]
        {
            table.case(format!("{name} works on a file open {access}"), move || {
                file_with("f", b"before");
                let fd = ok(open("f", flags));
                if flags != libc::O_RDONLY {
                    ok(write(&fd, b"behind"));
                }
                ok(sync(&fd));
                assert_eq!(contents("f").len(), 6);
            });
        }
        table.case(format!("{name} works on a directory"), move || {
            dir("d");
            file("d/f");
            ok(sync(&ok(open("d", libc::O_RDONLY))));
        });
        table.case(format!("{name} works on a file without a name"), move || {
            file("f");
            let fd = ok(open("f", libc::O_RDWR));
            ok(unlink("f"));
            ok(write(&fd, b"still"));
            ok(sync(&fd));
            assert_eq!(ok(pread(&fd, 9, 0)), b"still");
        });
    }
    for kind in [Kind::Fifo, Kind::Char] {
        table.case(format!("fsync fails with EINVAL for a {kind:?}"), move || {
            if kind == Kind::Char && ok(statvfs(".")).f_flag & libc::ST_NODEV != 0 {
                return;
            }
            make(kind, "x");
            let fd = ok(open("x", libc::O_RDWR | libc::O_NONBLOCK));
            err(fsync(&fd), libc::EINVAL);
        });
    }
    table.case("a file is closed without complaint after writing, and has all", || {
        file("f");
        let fd = ok(open("f", libc::O_WRONLY));
        ok(write(&fd, &[7; 100_000]));
        ok(close(fd));
        assert_eq!(ok(stat("f")).size, 100_000);
    });
    for (name, flag) in [("O_SYNC", libc::O_SYNC), ("O_DSYNC", libc::O_DSYNC)] {
        table.case(format!("{name} writes as always"), move || {
            let fd = ok(open_mode("f", libc::O_RDWR | libc::O_CREAT | flag, 0o644));
            assert_eq!(ok(write(&fd, b"synced")), 6);
            assert_eq!(ok(pread(&fd, 9, 0)), b"synced");
        });
    }
}
