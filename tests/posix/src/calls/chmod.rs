//! chmod, fchmod and fchmodat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "chmod", Kind::File, |path| chmod(path, 0o600));
    paths::follows(table, "chmod", Kind::File, |path| chmod(path, 0o600));
    paths::at(table, "fchmodat", Some(Kind::File), |fd, path| fchmodat(fd, path, 0o600));
    for kind in NOT_SYMLINKS {
        table.case(format!("every mode can be set on a {kind:?}, and only ctime moves"), move || {
            make(kind, "x");
            for mode in [0, 0o111, 0o222, 0o444, 0o644, 0o755, 0o777, 0o1777, 0o2775, 0o4755, 0o7777] {
                ok(chmod("x", mode));
                assert_eq!(ok(lstat("x")).mode, mode, "mode");
            }
            touches("x", false, || ok(chmod("x", 0o640)));
            assert_eq!(ok(lstat("x")).kind, kind);
        });
        table.case(format!("the owner of a {kind:?} may, others get EPERM"), move || {
            make(kind, "x");
            ok(lchown("x", ALICE.uid, ALICE.gid));
            as_user(ALICE, || ok(chmod("x", 0o666)));
            for user in [BOB, MEMBER] {
                as_user(user, || touches_not("x", || err(chmod("x", 0o600), libc::EPERM)));
            }
            assert_eq!(ok(lstat("x")).mode, 0o666);
        });
    }
    table.case("the umask does not count", || {
        file("f");
        umask(0o777);
        ok(chmod("f", 0o666));
        assert_eq!(ok(stat("f")).mode, 0o666);
    });
    table.case("a symbolic link's target is changed, the link is not", || {
        file("f");
        ok(symlink("f", "link"));
        let before = ok(lstat("link"));
        ok(chmod("link", 0o611));
        assert_eq!(ok(stat("f")).mode, 0o611);
        assert_eq!(ok(lstat("link")).mode, before.mode);
    });
    table.case("all names of a file show the mode", || {
        file("f");
        ok(link("f", "g"));
        ok(chmod("f", 0o601));
        assert_eq!(ok(lstat("g")).mode, 0o601);
    });
    table.case("set-group-id falls where the owner is not in the file's group", || {
        for (path, kept) in [("foreign", false), ("own", true)] {
            file(path);
            ok(lchown(path, ALICE.uid, if kept { ALICE.gid } else { BOB.gid }));
            as_user(ALICE, || ok(chmod(path, 0o2755)));
            assert_eq!(ok(lstat(path)).mode, if kept { 0o2755 } else { 0o755 });
        }
    });
    table.case("set-group-id stays where the group is a supplementary one of the owner", || {
        file("f");
        ok(lchown("f", ALICE_TOO.uid, SECOND_GROUP));
        as_user(ALICE_TOO, || ok(chmod("f", 0o2755)));
        assert_eq!(ok(lstat("f")).mode, 0o2755);
    });
    table.case("root may set set-group-id for any group", || {
        alices_file("f", 0o600);
        ok(chmod("f", 0o6755));
        assert_eq!(ok(lstat("f")).mode, 0o6755);
    });
    table.case("a directory may be made sticky by its owner", || {
        alices_dir("d", 0o777);
        as_user(ALICE, || ok(chmod("d", 0o1777)));
        assert_eq!(ok(lstat("d")).mode, 0o1777);
    });
    table.case("fchmod changes the open file, whatever its access", || {
        file("f");
        for flags in [libc::O_RDONLY, libc::O_WRONLY] {
            let fd = ok(open("f", flags));
            ok(fchmod(&fd, 0o700 + flags as u32));
            assert_eq!(ok(fstat(&fd)).mode, 0o700 + flags as u32);
            assert_eq!(ok(lstat("f")).mode, 0o700 + flags as u32);
        }
    });
    table.case("fchmod works on a file without a name", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        ok(fchmod(&fd, 0o123));
        assert_eq!(ok(fstat(&fd)).mode, 0o123);
    });
    table.case("fchmod fails with EPERM for who does not own the file", || {
        alices_file("f", 0o666);
        let fd = ok(open("f", libc::O_RDWR));
        as_user(BOB, || err(fchmod(&fd, 0), libc::EPERM));
    });
    table.case("who loses permission keeps what he has open", || {
        alices_file("f", 0o600);
        as_user(ALICE, || {
            let fd = ok(open("f", libc::O_RDWR));
            ok(chmod("f", 0));
            assert_eq!(ok(write(&fd, b"x")), 1);
            assert_eq!(ok(pread(&fd, 1, 0)), b"x");
            err(open("f", libc::O_RDONLY), libc::EACCES);
        });
    });
}
