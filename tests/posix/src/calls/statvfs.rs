//! statvfs, fstatvfs and pathconf.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "statvfs", Kind::File, |path| statvfs(path).map(drop));
    paths::follows(table, "statvfs", Kind::File, |path| statvfs(path).map(drop));
    table.case("numbers of blocks and files make sense", || {
        let told = ok(statvfs("."));
        assert!(told.f_bsize.is_power_of_two() && told.f_frsize.is_power_of_two());
        assert!(told.f_blocks > 0);
        assert!(told.f_bavail <= told.f_bfree && told.f_bfree <= told.f_blocks);
        assert!(told.f_ffree <= told.f_files && told.f_favail <= told.f_files);
        assert_eq!(told.f_namemax, 255);
    });
    table.case("fstatvfs tells the same", || {
        file("f");
        let (one, two) = (ok(statvfs("f")), ok(fstatvfs(&ok(open("f", libc::O_RDONLY)))));
        assert_eq!((one.f_bsize, one.f_frsize, one.f_namemax), (two.f_bsize, two.f_frsize, two.f_namemax));
    });
    for kind in [Kind::File, Kind::Directory, Kind::Fifo] {
        table.case(format!("any user may ask by a {kind:?}"), move || {
            make(kind, "x");
            ok(chmod("x", 0));
            as_user(BOB, || ok(statvfs("x")));
        });
    }
    table.case("pathconf tells limits that hold", || {
        assert_eq!(ok(pathconf(".", libc::_PC_NAME_MAX)), 255);
        assert_eq!(ok(pathconf(".", libc::_PC_PATH_MAX)), 4096);
        assert_eq!(ok(pathconf(".", libc::_PC_NO_TRUNC)), 1);
        assert_eq!(ok(pathconf(".", libc::_PC_CHOWN_RESTRICTED)), 1);
    });
}
