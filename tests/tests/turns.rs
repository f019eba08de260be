//! Random system calls, each by turns through one of two mounts of a cluster, compared with the same in a plain local directory.
//!
//! ```text
//!   WEFT_TEST_SEED=123 cargo test -p weft-tests --test turns     repeats the operations of a run
//!   WEFT_TURNS_S=600 cargo test -p weft-tests --test turns  for ten minutes
//! ```
//!
//! Each call has returned before the next one begins, mostly on the other mount, whose kernel has seen all that there was before. So
//! whatever differs was cached for too long.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};
use weft_test_random::Random;
use weft_tests::Cluster;

const WORK_TIME: Duration = Duration::from_secs(10);
const HANDLES_MAX: usize = 6;
/// Operations told about when one differs.
const TOLD: usize = 40;
/// Few, so that one mount's operations meet the other's; the same name may be a file or a directory.
const NAMES: &[&str] = &["a", "b", "c", "d", "d/a", "d/b", "d/c", "d/e", "e", "e/a", "e/b"];
const OFFSETS: &[u64] = &[0, 1, 4095, 4096, 60_000];
const SIZES: &[u64] = &[0, 1, 4096, 5000, 100_000];
const LENGTHS: &[u64] = &[1, 10, 4096, 5000, 70_000];

#[derive(Debug, Clone)]
enum Op {
    /// With these flags of open(2); at the offset unless they have O_APPEND.
    Write {
        flags: i32,
        offset: u64,
        data: (u8, usize),
    },
    Read,
    Truncate(u64),
    Unlink,
    Rename(&'static str),
    Link(&'static str),
    Symlink(&'static str),
    ReadLink,
    Mkdir,
    Rmdir,
    Chmod(u32),
    Stat,
    List,
}

/// What an operation brought to light.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    /// Type and mode; links and size of what is no directory.
    Attributes(u32, u64, u64),
}

type Outcome = Result<Seen, i32>;

fn apply(root: &Path, name: &str, op: &Op) -> io::Result<Seen> {
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
        Op::Read => Seen::Bytes(fs::read(path)?),
        Op::Truncate(bytes) => {
            OpenOptions::new().write(true).open(path)?.set_len(*bytes)?;
            Seen::Done
        }
        Op::Unlink => done(fs::remove_file(path))?,
        Op::Rename(to) => done(fs::rename(path, root.join(to)))?,
        Op::Link(to) => done(fs::hard_link(path, root.join(to)))?,
        Op::Symlink(target) => done(symlink(target, path))?,
        Op::ReadLink => Seen::Bytes(fs::read_link(path)?.into_os_string().into_encoded_bytes()),
        Op::Mkdir => done(fs::create_dir(path))?,
        Op::Rmdir => done(fs::remove_dir(path))?,
        Op::Chmod(mode) => done(fs::set_permissions(path, fs::Permissions::from_mode(*mode)))?,
        Op::Stat => attributes(&fs::symlink_metadata(path)?),
        Op::List => {
            let mut names = fs::read_dir(path)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<String>>>()?;
            names.sort();
            Seen::Names(names)
        }
    })
}

fn done(result: io::Result<()>) -> io::Result<Seen> {
    result.map(|()| Seen::Done)
}

fn attributes(data: &fs::Metadata) -> Seen {
    let countable = if data.is_dir() { (0, 0) } else { (data.nlink(), data.size()) };
    Seen::Attributes(data.mode(), countable.0, countable.1)
}

/// An operation on an open file.
#[derive(Debug, Clone)]
enum OnHandle {
    Write { offset: u64, data: (u8, usize) },
    Read { offset: u64, bytes: usize },
    Truncate(u64),
    Stat,
    Sync,
}

fn apply_to(file: &File, op: &OnHandle) -> io::Result<Seen> {
    Ok(match op {
        OnHandle::Write { offset, data: (byte, length) } => {
            let count = file.write_at(&vec![*byte; *length], *offset)?;
            // The end of any descriptor tells others of what was written.
            drop(file.try_clone()?);
            Seen::Count(count)
        }
        OnHandle::Read { offset, bytes } => {
            let mut data = vec![0; *bytes];
            let read = file.read_at(&mut data, *offset)?;
            data.truncate(read);
            Seen::Bytes(data)
        }
        OnHandle::Truncate(bytes) => done(file.set_len(*bytes))?,
        OnHandle::Stat => attributes(&file.metadata()?),
        OnHandle::Sync => done(file.sync_all())?,
    })
}

fn outcome(result: io::Result<Seen>) -> Outcome {
    result.map_err(|error| errno(&error))
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

/// A name open in the local directory and on a mount.
struct Pair {
    name: &'static str,
    mount: usize,
    local: File,
    there: File,
}

struct World<'a> {
    local: &'a Path,
    mounts: [&'a Path; 2],
    open: Vec<Pair>,
    random: Random,
    told: VecDeque<String>,
}

impl World<'_> {
    fn same(&mut self, what: String, local: Outcome, there: Outcome) {
        let brief = format!("{local:?}").chars().take(60).collect::<String>();
        self.told.push_back(format!("{what}: {brief}"));
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
        if local != there {
            let before: Vec<_> = self.told.iter().map(String::as_str).collect();
            let text = |outcome: &Outcome| format!("{outcome:?}").chars().take(300).collect::<String>();
            panic!("{what}: {} locally, {} there\n{}", text(&local), text(&there), before.join("\n"));
        }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 => self.open_or_close(),
            1..=3 if !self.open.is_empty() => self.use_a_handle(),
            _ => self.use_a_name(),
        }
    }

    fn data(&mut self) -> (u8, usize) {
        (self.random.below(256) as u8, *self.random.choose(LENGTHS) as usize)
    }

    fn use_a_name(&mut self) {
        let mount = self.random.below(2) as usize;
        let name = *self.random.choose(NAMES);
        let other = *self.random.choose(NAMES);
        let op = match self.random.below(17) {
            0..=2 => {
                let how = [0, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND];
                let flags = *self.random.choose(&how) | *self.random.choose(&[libc::O_WRONLY, libc::O_RDWR]);
                Op::Write { flags, offset: *self.random.choose(OFFSETS), data: self.data() }
            }
            3 | 4 => Op::Read,
            5 => Op::Truncate(*self.random.choose(SIZES)),
            6 => Op::Unlink,
            7 => Op::Rename(other),
            8 => Op::Link(other),
            9 => Op::Symlink(other),
            10 => Op::ReadLink,
            11 => Op::Mkdir,
            12 => Op::Rmdir,
            13 => Op::Chmod(*self.random.choose(&[0o600, 0o644, 0o755])),
            14 | 15 => Op::Stat,
            _ => Op::List,
        };
        let root = self.mounts[mount];
        let mut there = outcome(apply(root, name, &op));
        if let (Op::Rename(to), Err(libc::ESTALE)) = (&op, &there)
            && self.open.iter().any(|pair| pair.mount == mount)
        {
            // docs/semantics.md: of a directory that the other mount has moved and that is in use here, until somebody has looked.
            [name, *to].iter().for_each(|name| drop(fs::symlink_metadata(root.join(name))));
            there = outcome(apply(root, name, &op));
        }
        let local = outcome(apply(self.local, name, &op));
        self.same(format!("mount {mount}: {name} {op:?}"), local, there);
    }

    fn open_or_close(&mut self) {
        if self.open.len() == HANDLES_MAX {
            let at = self.random.below(HANDLES_MAX as u64) as usize;
            let pair = self.open.swap_remove(at);
            return self.told.push_back(format!("mount {}: {} closed", pair.mount, pair.name));
        }
        let mount = self.random.below(2) as usize;
        let name = *self.random.choose(NAMES);
        let open = |root: &Path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(root.join(name))
        };
        let (local, there) = (open(self.local), open(self.mounts[mount]));
        let seen = |opened: &io::Result<File>| opened.as_ref().map(|_| Seen::Done).map_err(errno);
        self.same(format!("mount {mount}: {name} opened"), seen(&local), seen(&there));
        if let (Ok(local), Ok(there)) = (local, there) {
            self.open.push(Pair { name, mount, local, there });
        }
    }

    fn use_a_handle(&mut self) {
        let op = match self.random.below(6) {
            0 => OnHandle::Write { offset: *self.random.choose(OFFSETS), data: self.data() },
            1 | 2 => OnHandle::Read { offset: *self.random.choose(OFFSETS), bytes: 20_000 },
            3 => OnHandle::Truncate(*self.random.choose(SIZES)),
            4 => OnHandle::Stat,
            _ => OnHandle::Sync,
        };
        let at = self.random.below(self.open.len() as u64) as usize;
        let pair = &self.open[at];
        let (local, there) = (outcome(apply_to(&pair.local, &op)), outcome(apply_to(&pair.there, &op)));
        self.same(format!("mount {}: {} as it was opened, {op:?}", pair.mount, pair.name), local, there);
    }
}

#[test]
fn two_mounts_by_turns_are_like_one_local_directory() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + number("WEFT_TURNS_S").map_or(WORK_TIME, Duration::from_secs);
    let cluster = Cluster::start(2);
    let local = cluster.scratch("local");
    let mounts = [cluster.mount(), cluster.mount()];
    let mut world = World {
        local: &local,
        mounts: [mounts[0].path(), mounts[1].path()],
        open: Vec::new(),
        random: Random(weft_test_random::seed()),
        told: VecDeque::new(),
    };
    let mut steps = 0;
    while Instant::now() < until {
        world.step();
        steps += 1;
    }
    eprintln!("{steps} operations");
}
