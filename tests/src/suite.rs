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

const NO_OPEN: &str =
    "NFSv3 has no open: the client gives a removed file that is open another name, and removes that at close";
const NO_OPEN_DIRECTORY: &str =
    "NFSv3 has no open: each READDIR and GETATTR of a directory is checked, and fails once it is removed";
const UNSIGNED_TIMES: &str =
    "NFSv3 has 32 bits for seconds from 1970 on; Linux takes the nearest it can say, without a fraction";
const NOT_EXECUTED: &str =
    "Linux's client says that of what is neither a file nor a directory nothing is executed";
const ENTRIES: &str =
    "NFSv3's ACCESS says whether entries may be changed, which takes search of the directory as well";
const WRITER: &str =
    "Linux's client writes as the user who opened the file, and sees later what the server made of the mode";

/// What is otherwise by NFS with Linux's client. In docs/nfs.md.
pub fn by_nfs() -> Vec<(String, &'static str)> {
    let single = [
        ACCESS_TIMES,
        ("link: a file whose last name is gone gets no new one", NO_OPEN),
        ("read: a file without a name is read and written on", NO_OPEN),
        ("readdir: permission to read is needed at opening, not after", NO_OPEN_DIRECTORY),
        ("rename: a replaced file that is open lives on", NO_OPEN),
        (
            "rmdir: a removed working directory: nothing can be made in it, and it has no links",
            NO_OPEN_DIRECTORY,
        ),
        ("rmdir: an open directory can be removed and a new one take its name", NO_OPEN_DIRECTORY),
        (
            "rmdir: an open directory that was removed has its time of change still, and no names",
            NO_OPEN_DIRECTORY,
        ),
        ("rmdir: attributes of an open directory that was removed can be changed", NO_OPEN_DIRECTORY),
        ("stat: fstat of a file without a name: no links, all else as it was", NO_OPEN),
        ("unlink: an open file lives on until it is closed", NO_OPEN),
        ("write: set-id bits that were set while the file is open fall too", WRITER),
    ];
    let single = single.map(|(name, reason)| (name.to_string(), reason));
    let times = [
        "0.000000001",
        "-1.000000000",
        "-1.500000000",
        "-2000000000.000000007",
        "second 4294967296, after 2038",
    ];
    let times = ["utimensat", "futimens"]
        .into_iter()
        .flat_map(|call| times.map(|time| format!("utimensat: {call} to {time}")));
    let classes = ["the owner", "the group", "a supplementary group", "anybody else"];
    let access = |what: &str, all_bits: &[u32], reason: &'static str| {
        let pairs = classes.iter().flat_map(|class| all_bits.iter().map(move |bits| (class, bits)));
        let name = |(class, bits)| {
            format!("access: {class} may with {what} what mode bits {bits} of the class say, and no more")
        };
        pairs.map(|pair| (name(pair), reason)).collect::<Vec<_>>()
    };
    let execution = access("what is neither", &[1, 3, 5, 7], NOT_EXECUTED);
    let entries = access("a directory", &[2, 6], ENTRIES);
    single
        .into_iter()
        .chain(times.map(|name| (name, UNSIGNED_TIMES)))
        .chain(execution)
        .chain(entries)
        .collect()
}

/// Groups of cases about what NFSv3 does not have at all.
pub const NOT_IN_NFS: &[(&str, &str)] = &[
    ("acl", "NFSv3 has no access control lists"),
    ("renameat2", "NFSv3's RENAME has no flags"),
    ("xattr", "NFSv3 has no extended attributes"),
];

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
