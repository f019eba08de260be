//! Operations on names.

use crate::outcome::{Seen, attributes, done};
use crate::sys;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use weft_test_random::Random;

/// Few, so that one mount's operations meet the other's; the same name may be a file or a directory.
pub const NAMES: &[&str] = &["a", "b", "c", "d", "d/a", "d/b", "d/c", "d/e", "e", "e/a", "e/b"];
const DIRECTORIES: &[&str] = &["d", "d", "e", "d/e"];
/// Before and behind a name: mostly nothing. No link leads out of the directory, so neither does any of these.
const AROUND: &[(&str, &str)] =
    &[("./", ""), ("d/../", ""), ("e//", ""), ("", "/"), ("", "/."), ("", "/../a")];
pub const OFFSETS: &[u64] = &[0, 1, 4095, 4096, 60_000, 130_000];
pub const SIZES: &[u64] = &[0, 1, 4096, 5000, 100_000, 200_000];
pub const LENGTHS: &[u64] = &[1, 10, 4096, 5000, 70_000];
const MODES: &[u32] = &[0o600, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o2777, 0o2666, 0o6777, 0o1777];
const USERS: &[u32] = &[0, crate::USER];
const XATTRS: &[&str] = &["user.a", "user.b", "trusted.a"];
const XATTR_BYTES: &[usize] = &[0, 1, 100, 1000];

#[derive(Debug, Clone)]
pub enum Op {
    /// With these flags of open(2); at the offset unless they have O_APPEND.
    Write {
        flags: i32,
        offset: u64,
        data: (u8, usize),
    },
    Read,
    Truncate(u64),
    Unlink,
    /// With these flags of renameat2(2).
    Rename(String, u32),
    Link(String),
    Symlink(&'static str),
    ReadLink,
    Mkdir,
    Rmdir,
    Chmod(u32),
    Chown(u32, u32),
    Times(i64),
    SetXattr {
        name: &'static str,
        data: (u8, usize),
        flags: i32,
    },
    Xattr(&'static str),
    RemoveXattr(&'static str),
    Xattrs,
    Stat,
    StatTarget,
    List,
}

impl Op {
    /// Looks at what it is about. The kernel decides by what it saw last whose file it is, and where a directory is
    /// (docs/semantics.md).
    pub fn look(&self, root: &Path, name: &str) {
        let other = match self {
            Op::Rename(to, _) | Op::Link(to) => to,
            _ => name,
        };
        for name in [name, other] {
            let path = root.join(name);
            let parent = path.parent().map(Path::to_path_buf);
            parent.into_iter().for_each(|parent| drop(fs::metadata(parent)));
            drop((fs::symlink_metadata(&path), fs::metadata(path)));
        }
    }
}

/// A name, sometimes in other words.
pub fn some_name(random: &mut Random) -> String {
    let name = *random.choose(NAMES);
    if random.one_in(10) {
        let (before, behind) = *random.choose(AROUND);
        format!("{before}{name}{behind}")
    } else {
        name.to_string()
    }
}

fn word(random: &mut Random, of: &[&'static str]) -> &'static str {
    let &word = random.choose(of);
    word
}

/// Bytes to write: which, and how many.
pub fn some_data(random: &mut Random) -> (u8, usize) {
    (random.below(256) as u8, *random.choose(LENGTHS) as usize)
}

/// A time long ago, which nothing but a call that sets times leaves.
pub fn some_time(random: &mut Random) -> i64 {
    1 + random.below(1000) as i64
}

/// An operation on some name. There are directories for most of the time.
pub fn some_op(random: &mut Random) -> (String, Op) {
    if random.one_in(6) {
        return ((*random.choose(DIRECTORIES)).to_string(), Op::Mkdir);
    }
    (some_name(random), some_op_of_any(random))
}

fn some_op_of_any(random: &mut Random) -> Op {
    let how = [
        0,
        libc::O_CREAT,
        libc::O_CREAT | libc::O_EXCL,
        libc::O_CREAT | libc::O_TRUNC,
        libc::O_TRUNC,
        libc::O_APPEND,
        libc::O_NOFOLLOW,
    ];
    match random.below(25) {
        0..=2 => {
            let flags = *random.choose(&how) | *random.choose(&[libc::O_WRONLY, libc::O_RDWR]);
            Op::Write { flags, offset: *random.choose(OFFSETS), data: some_data(random) }
        }
        3 | 4 => Op::Read,
        5 => Op::Truncate(*random.choose(SIZES)),
        6 => Op::Unlink,
        7 => Op::Rename(some_name(random), 0),
        8 => Op::Rename(some_name(random), *random.choose(&[libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE])),
        9 => Op::Link(some_name(random)),
        10 => Op::Symlink(word(random, NAMES)),
        11 => Op::ReadLink,
        12 => Op::Mkdir,
        13 => Op::Rmdir,
        14 => Op::Chmod(*random.choose(MODES)),
        15 => Op::Chown(*random.choose(USERS), *random.choose(USERS)),
        16 => Op::Times(some_time(random)),
        17 => {
            let flags = *random.choose(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
            let data = (random.below(256) as u8, *random.choose(XATTR_BYTES));
            Op::SetXattr { name: word(random, XATTRS), data, flags }
        }
        18 => Op::Xattr(word(random, XATTRS)),
        19 => Op::RemoveXattr(word(random, XATTRS)),
        20 => Op::Xattrs,
        21 | 22 => Op::Stat,
        23 => Op::StatTarget,
        _ => Op::List,
    }
}

pub fn apply(root: &Path, name: &str, op: &Op) -> io::Result<Seen> {
    let path = root.join(name);
    Ok(match op {
        Op::Write { flags, offset, data: (byte, length) } => {
            let access = flags & libc::O_ACCMODE;
            let file = OpenOptions::new()
                .read(access == libc::O_RDWR)
                .write(true)
                .mode(0o644)
                .custom_flags(flags & !libc::O_ACCMODE)
                .open(path)?;
            let data = vec![*byte; *length];
            match flags & libc::O_APPEND {
                0 => Seen::Count(file.write_at(&data, *offset)?),
                _ => Seen::Count(io::Write::write(&mut &file, &data)?),
            }
        }
        Op::Read => Seen::bytes(fs::read(path)?),
        Op::Truncate(bytes) => {
            OpenOptions::new().write(true).open(path)?.set_len(*bytes)?;
            Seen::Done
        }
        Op::Unlink => done(fs::remove_file(path))?,
        Op::Rename(to, 0) => done(fs::rename(path, root.join(to)))?,
        Op::Rename(to, flags) => done(sys::rename_with(&path, &root.join(to), *flags))?,
        Op::Link(to) => done(fs::hard_link(path, root.join(to)))?,
        Op::Symlink(target) => done(symlink(target, path))?,
        Op::ReadLink => Seen::bytes(fs::read_link(path)?.into_os_string().into_encoded_bytes()),
        Op::Mkdir => done(fs::create_dir(path))?,
        Op::Rmdir => done(fs::remove_dir(path))?,
        Op::Chmod(mode) => {
            if !sys::is_root() {
                // docs/semantics.md: whether a user may set a bit, the kernel says by the group that it saw last.
                let _ = fs::metadata(&path);
            }
            done(fs::set_permissions(path, fs::Permissions::from_mode(*mode)))?
        }
        Op::Chown(user, group) => done(chown(path, Some(*user), Some(*group)))?,
        Op::Times(seconds) => done(sys::set_times(&path, *seconds))?,
        Op::SetXattr { name, data: (byte, length), flags } => {
            done(sys::set_xattr(&path, name, &vec![*byte; *length], *flags))?
        }
        Op::Xattr(name) => Seen::bytes(sys::xattr(&path, name)?),
        Op::RemoveXattr(name) => done(sys::remove_xattr(&path, name))?,
        Op::Xattrs => Seen::names(sys::xattrs(&path)?),
        Op::Stat => attributes(&fs::symlink_metadata(path)?),
        Op::StatTarget => attributes(&fs::metadata(path)?),
        Op::List => {
            let named = |entry: fs::DirEntry| {
                let kind = entry.file_type()?;
                let mark = if kind.is_dir() {
                    "/"
                } else if kind.is_symlink() {
                    "@"
                } else {
                    ""
                };
                Ok(format!("{}{mark}", entry.file_name().to_string_lossy()))
            };
            Seen::names(fs::read_dir(path)?.map(|entry| named(entry?)).collect::<io::Result<_>>()?)
        }
    })
}
