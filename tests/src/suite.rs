//! The rules of POSIX for file systems (`tests/posix`), run in a directory.

use crate::{built, expect_success};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is otherwise everywhere in Weft. In docs/semantics.md.
pub const ACCESS_TIMES: (&str, &str) = (
    "read: reading moves the access time of a file read the first time after a change",
    "access times are not kept: each read would be a change of the metadata",
);

/// What is otherwise on a mount.
pub const ON_THE_MOUNT: &[(&str, &str)] = &[ACCESS_TIMES];

/// The program with the cases, in the profile of the running test.
pub fn weft_posix() -> PathBuf {
    built(&["weft-posix"], "weft-posix")
}

/// Runs all cases in `dir`; panics with what failed. Exceptions must fail.
pub fn all_hold(dir: &Path, exceptions: &[(&str, &str)], without: &[(&str, &str)]) {
    all_hold_by(Command::new(weft_posix()), dir, exceptions, without);
}

/// The same, where `command` runs the cases.
pub fn all_hold_by(mut command: Command, dir: &Path, exceptions: &[(&str, &str)], without: &[(&str, &str)]) {
    for (option, list) in [("--except", exceptions), ("--without", without)] {
        for (name, reason) in list {
            command.arg(option).arg(format!("{name}={reason}"));
        }
    }
    println!("{}", expect_success("weft-posix", &command.arg(dir).output().expect("weft-posix can be run")));
}
