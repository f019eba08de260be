//! What cases expect, and the things that they make for it.

use crate::sys::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The superuser, in no group but its own.
pub const ROOT: User = User { uid: 0, gid: 0, groups: &[] };
/// Owner of most files of cases about permissions.
pub const ALICE: User = User { uid: 7001, gid: 7001, groups: &[] };
/// Has nothing to do with Alice.
pub const BOB: User = User { uid: 7002, gid: 7002, groups: &[] };
/// In Alice's group by a supplementary one.
pub const MEMBER: User = User { uid: 7003, gid: 7003, groups: &[7050, 7001] };
/// Alice, in a second group.
pub const ALICE_TOO: User = User { uid: 7001, gid: 7001, groups: &[7060] };
/// The group that `ALICE_TOO` is in besides her own.
pub const SECOND_GROUP: u32 = 7060;

/// The value; fails with the error otherwise.
#[track_caller]
pub fn ok<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Ok(value) => value,
        Err(errno) => panic!("failed with {errno:?}"),
    }
}

/// Fails unless the call failed with this error.
#[track_caller]
pub fn err<T>(outcome: Outcome<T>, expected: i32) {
    match outcome {
        Ok(_) => panic!("succeeded, where {:?} is due", Errno(expected)),
        Err(Errno(errno)) if errno == expected => {}
        Err(errno) => panic!("failed with {errno:?}, where {:?} is due", Errno(expected)),
    }
}

/// Fails unless the call failed with one of these errors.
#[track_caller]
pub fn err_of<T>(outcome: Outcome<T>, expected: &[i32]) {
    match outcome {
        Err(Errno(errno)) if expected.contains(&errno) => {}
        Err(errno) => panic!("failed with {errno:?}"),
        Ok(_) => panic!("succeeded"),
    }
}

/// Makes an empty file of mode 0644.
#[track_caller]
pub fn file(path: impl AsRef<[u8]>) {
    file_mode(path, 0o644);
}

/// Makes an empty file.
#[track_caller]
pub fn file_mode(path: impl AsRef<[u8]>, mode: u32) {
    ok(open_mode(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, mode));
}

/// Makes a file with contents, or replaces the contents.
#[track_caller]
pub fn file_with(path: impl AsRef<[u8]>, contents: &[u8]) {
    let fd = ok(open_mode(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, 0o644));
    assert_eq!(ok(write(&fd, contents)), contents.len());
}

/// Makes a directory of mode 0755.
#[track_caller]
pub fn dir(path: impl AsRef<[u8]>) {
    ok(mkdir(path, 0o755));
}

/// Makes a directory of this mode.
#[track_caller]
pub fn dir_mode(path: impl AsRef<[u8]>, mode: u32) {
    ok(mkdir(path, mode));
}

/// Makes a file of Alice's, of this mode.
#[track_caller]
pub fn alices_file(path: &str, mode: u32) {
    file_mode(path, 0o600);
    ok(lchown(path, ALICE.uid, ALICE.gid));
    ok(chmod(path, mode));
}

/// Makes a directory of Alice's, of this mode.
#[track_caller]
pub fn alices_dir(path: &str, mode: u32) {
    dir(path);
    ok(lchown(path, ALICE.uid, ALICE.gid));
    ok(chmod(path, mode));
}

/// The contents of a file.
#[track_caller]
pub fn contents(path: impl AsRef<[u8]>) -> Vec<u8> {
    let fd = ok(open(path, libc::O_RDONLY));
    let mut all = Vec::new();
    loop {
        let piece = ok(read(&fd, 65536));
        if piece.is_empty() {
            return all;
        }
        all.extend(piece);
    }
}

/// Whether something has this name.
pub fn exists(path: impl AsRef<[u8]>) -> bool {
    lstat(path).is_ok()
}

/// Every kind of inode that has a name.
pub const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block, Kind::Symlink];

/// All but directories.
pub const NOT_DIRECTORIES: [Kind; 6] =
    [Kind::File, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block, Kind::Symlink];

/// All but symbolic links.
pub const NOT_SYMLINKS: [Kind; 6] =
    [Kind::File, Kind::Directory, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block];

/// Makes something of this kind, of mode 0644 (directories 0755).
#[track_caller]
pub fn make(kind: Kind, path: &str) {
    match kind {
        Kind::File => file(path),
        Kind::Directory => dir(path),
        Kind::Symlink => ok(symlink("target", path)),
        Kind::Fifo => ok(mknod(path, libc::S_IFIFO | 0o644, 0)),
        Kind::Socket => ok(mknod(path, libc::S_IFSOCK | 0o644, 0)),
        Kind::Char => ok(mknod(path, libc::S_IFCHR | 0o644, libc::makedev(1, 3))),
        Kind::Block => ok(mknod(path, libc::S_IFBLK | 0o644, libc::makedev(7, 250))),
    }
}

/// Removes it again.
#[track_caller]
pub fn unmake(kind: Kind, path: &str) {
    match kind {
        Kind::Directory => ok(rmdir(path)),
        _ => ok(unlink(path)),
    }
}

/// How many times fewer names and rounds cases have than usual, where the number matters little.
static FEWER: AtomicUsize = AtomicUsize::new(1);

/// Sets for all cases what [`fewer`] divides by; before they are defined.
pub fn set_fewer(times: usize) {
    FEWER.store(times.max(1), Ordering::Relaxed);
}

/// So many names or rounds, or `--fewer` times fewer.
pub fn fewer(usual: usize) -> usize {
    usual / FEWER.load(Ordering::Relaxed)
}

/// Waits until any file system's clock shows another time: some go by timer ticks, of which the slowest take 10 ms.
pub fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(21));
}

/// Runs `change` a clock tick after what was before; returns what `path` was before and is after it.
#[track_caller]
pub fn around<T>(path: &str, change: impl FnOnce() -> T) -> (Stat, Stat) {
    let before = ok(lstat(path));
    tick();
    change();
    (before, ok(lstat(path)))
}

/// Fails unless `change` moves the change time of `path`, and the modification time if `modifies`.
#[track_caller]
pub fn touches(path: &str, modifies: bool, change: impl FnOnce()) {
    let (before, after) = around(path, change);
    assert!(
        after.ctime > before.ctime,
        "ctime of {path}: {:?} before, {:?} after",
        before.ctime,
        after.ctime
    );
    match modifies {
        true => assert!(after.mtime > before.mtime, "mtime of {path} stays {:?}", before.mtime),
        false => assert_eq!(after.mtime, before.mtime, "mtime of {path}"),
    }
}

/// Fails unless `change` leaves both times of `path` as they were.
#[track_caller]
pub fn touches_not<T>(path: &str, change: impl FnOnce() -> T) {
    let (before, after) = around(path, change);
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime), "mtime and ctime of {path}");
}

/// A name of so many bytes.
pub fn name_of(bytes: usize) -> String {
    "n".repeat(bytes)
}

/// A path of exactly so many bytes that leads, over `.`, to `last`.
pub fn path_of(bytes: usize, last: &str) -> String {
    let mut path = String::new();
    while path.len() + 2 + last.len() <= bytes {
        path.push_str("./");
    }
    if path.len() + last.len() < bytes {
        path.push('/');
    }
    path + last
}

/// In Alice's group by his own.
pub const COLLEAGUE: User = User { uid: 7004, gid: 7001, groups: &[] };

/// Classes of permission for what is Alice's: a name, one of the class, and where its bits are in a mode.
pub const CLASSES: [(&str, User, u32); 4] = [
    ("the owner", ALICE, 6),
    ("the group", COLLEAGUE, 3),
    ("a supplementary group", MEMBER, 3),
    ("anybody else", BOB, 0),
];

/// A mode with `bits` for the class at `shift`, and all other bits for the other classes: who looks at the wrong class
/// decides wrongly.
pub fn class_mode(shift: u32, bits: u32) -> u32 {
    let others = 7 & !bits;
    let all = others << 6 | others << 3 | others;
    all & !(7 << shift) | bits << shift
}
