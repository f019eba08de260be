//! The file mode creation mask.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

type Create = fn(&str, u32) -> Outcome;

pub fn define(table: &mut Table) {
    let calls: [(&str, Create); 5] = [
        ("open", |path, mode| open_mode(path, libc::O_CREAT | libc::O_WRONLY, mode).map(|_| ())),
        ("creat", |path, mode| creat(path, mode).map(|_| ())),
        ("mkdir", |path, mode| mkdir(path, mode)),
        ("mkfifo", |path, mode| mkfifo(path, mode)),
        ("mknod", |path, mode| mknod(path, libc::S_IFSOCK | mode, 0)),
    ];
    for (name, create) in calls {
        for mask in [0, 0o022, 0o027, 0o077, 0o123, 0o777] {
            table.case(format!("{name} under umask {mask:03o}"), move || {
                umask(mask);
                for mode in [0o777, 0o666, 0o640, 0o421, 0] {
                    let path = format!("x-{mode:o}");
                    ok(create(&path, mode));
                    assert_eq!(ok(lstat(&path)).mode, mode & !mask, "mode {mode:o}");
                }
            });
        }
    }
    table.case("a symbolic link has mode 0777 whatever the umask", || {
        umask(0o777);
        ok(symlink("t", "link"));
        assert_eq!(ok(lstat("link")).mode, 0o777);
    });
    table.case("umask returns the mask before", || {
        umask(0o137);
        assert_eq!(umask(0), 0o137);
    });
}
