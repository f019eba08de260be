//! Depth, length and number of names.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    table.case("directories are nested deeper than one path can name", || {
        let name = name_of(200);
        for _ in 0..30 {
            dir(&name);
            ok(chdir(&name));
        }
        file_with("f", b"deep");
        assert_eq!(contents("f"), b"deep");
        for _ in 0..30 {
            ok(chdir(".."));
        }
        assert_eq!(ok(list(".")), [name]);
    });
    table.case("a hundred directories deep, `..` leads back", || {
        let top = ok(stat(".")).ino;
        for _ in 0..100 {
            dir("d");
            ok(chdir("d"));
        }
        ok(chdir("../".repeat(100)));
        assert_eq!(ok(stat(".")).ino, top);
    });
    for links in [1usize, 8, 39, 40] {
        table.case(format!("{links} symbolic links one after another are followed"), move || {
            file("link0");
            for number in 1..=links {
                ok(symlink(format!("link{}", number - 1), format!("link{number}")));
            }
            ok(stat(format!("link{links}")));
        });
    }
    for links in [41usize, 50, 100] {
        table.case(format!("{links} symbolic links one after another are ELOOP"), move || {
            file("link0");
            for number in 1..=links {
                ok(symlink(format!("link{}", number - 1), format!("link{number}")));
            }
            err(stat(format!("link{links}")), libc::ELOOP);
            ok(lstat(format!("link{links}")));
        });
    }
    for bytes in [1usize, 2, 100, 254, 255] {
        table.case(format!("a name of {bytes} bytes for every kind"), move || {
            for kind in KINDS {
                make(kind, &name_of(bytes));
                assert_eq!(ok(list(".")), [name_of(bytes)]);
                unmake(kind, &name_of(bytes));
            }
        });
    }
    table.case("a name of 255 bytes of two-byte characters", || {
        let name = format!("{}x", "ü".repeat(127));
        file(&name);
        assert_eq!(ok(list(".")), [name]);
    });
    table.case("many slashes are one", || {
        dir("d");
        file("d/f");
        ok(stat(".//d////f"));
        ok(stat("d/././/f"));
    });
    table.case("a target of 4095 bytes is followed", || {
        file("x");
        ok(symlink(path_of(4095, "x"), "link"));
        ok(stat("link"));
    });
    table.case("paths through `..` of a file are ENOTDIR", || {
        file("f");
        err(stat("f/.."), libc::ENOTDIR);
        err(stat("f/."), libc::ENOTDIR);
    });
    table.case("paths through `..` of what is missing are ENOENT", || {
        err(stat("missing/.."), libc::ENOENT);
    });
}
