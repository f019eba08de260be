//! Random operations, compared one by one with a plain local directory.
//!
//! ```text
//!   WEFT_TEST_SEED=123 cargo test -p weft-tests --test random     repeats the operations of a run
//! ```
//!
//! First three clients take turns on one tree while servers are restarted between operations; then each works in a tree of its own
//! while servers are killed under all of them, so that every operation is interrupted and retried at some time.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::fmt::Debug;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, Error, File, OpenOptions, SetAttr, Transport, Url};
use weft_layout::{Extent, Level, Regions};
use weft_test_random::{Random, seed};
use weft_tests::{Served, temporary_dir, wait_until};
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{Attr, FileKind, rename_flags};

/// How long each half of the test works.
const WORK_TIME: Duration = Duration::from_secs(8);
/// Where writes begin at the latest: over several stripes of 64 KiB strips.
const OFFSET_MAX: u64 = 600_000;
const WRITE_BYTES_MAX: u64 = 300_000;
const HANDLES_MAX: usize = 4;
/// Operations told about when one differs.
const TOLD: usize = 60;

const PATHS: &[&str] = &[
    "a",
    "b",
    "c",
    "d0",
    "d1",
    "d0/a",
    "d0/b",
    "d0/e0",
    "d0/e1",
    "d0/e0/a",
    "d0/e0/b",
    "d1/a",
    "d1/b",
    "d1/e0",
    "d1/e0/a",
    "nowhere/a",
];
/// None leads out of the tree, which has other things around it on the local side.
const TARGETS: &[&str] = &["a", "b", "e0", "d0", "e0/a", "d1/e0", "missing"];

struct Handle {
    name: String,
    weft: File,
    local: fs::File,
}

/// A tree in Weft and its mirror.
struct World {
    clients: Vec<Client>,
    /// In Weft, without slashes around it.
    root: String,
    mirror: PathBuf,
    /// The mirror's file system has extended attributes (tmpfs since Linux 6.6).
    mirrors_xattrs: bool,
    random: Random,
    handles: Vec<Handle>,
    told: VecDeque<String>,
    operations: u64,
}

/// What happened on one side: a result, or an errno with words.
type Outcome<T> = Result<T, (i32, String)>;

fn weft_outcome<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|error| (error.errno(), error.to_string()))
}

fn local_outcome<T>(result: io::Result<T>) -> Outcome<T> {
    result.map_err(|error| (error.raw_os_error().unwrap_or(-1), error.to_string()))
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zeros in names")
}

fn checked(result: i64) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn has_xattrs(path: &Path) -> bool {
    let (path, name) = (c_path(path), c"user.tried");
    // SAFETY: two strings with an end; no bytes are passed.
    unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null(), 0, 0) == 0
            && libc::lremovexattr(path.as_ptr(), name.as_ptr()) == 0
    }
}

/// What stat(2) and Weft both tell of a file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    mode: u32,
    nlink: u64,
    size: u64,
}

fn local_kind(kind: fs::FileType) -> FileKind {
    match () {
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () if kind.is_fifo() => FileKind::Fifo,
        () => FileKind::File,
    }
}

impl Seen {
    /// Sizes of directories, and modes of links, mean nothing.
    fn new(kind: FileKind, mode: u32, nlink: u64, size: u64) -> Seen {
        let mode = if kind == FileKind::Symlink { 0 } else { mode & 0o7777 };
        Seen { kind, mode, nlink, size: if kind == FileKind::Directory { 0 } else { size } }
    }
    fn weft(attr: &Attr) -> Seen {
        Seen::new(attr.kind, attr.mode, attr.nlink.into(), attr.size)
    }
    fn local(data: &fs::Metadata) -> Seen {
        Seen::new(local_kind(data.file_type()), data.mode(), data.nlink(), data.size())
    }
}

impl World {
    fn new(clients: Vec<Client>, root: &str, mirror: PathBuf, seed: u64) -> World {
        clients[0].mkdir(root, 0o755).expect("a new tree");
        fs::create_dir_all(&mirror).expect("a new mirror");
        World {
            clients,
            root: root.to_string(),
            mirrors_xattrs: has_xattrs(&mirror),
            mirror,
            random: Random(seed),
            handles: Vec::new(),
            told: VecDeque::new(),
            operations: 0,
        }
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    #[track_caller]
    fn same<T: PartialEq + Debug>(&mut self, what: String, weft: Outcome<T>, local: Outcome<T>) {
        self.operations += 1;
        let equal = match (&weft, &local) {
            (Ok(weft), Ok(local)) => weft == local,
            (Err(weft), Err(local)) => weft.0 == local.0,
            _ => false,
        };
        let result = match &local {
            Ok(_) => "done".to_string(),
            Err((_, text)) => text.clone(),
        };
        self.tell(format!("{what}: {result}"));
        if !equal {
            let told: Vec<_> = self.told.iter().map(String::as_str).collect();
            panic!("{}\nweft:  {weft:?}\nlocal: {local:?}\noperation {}", told.join("\n"), self.operations);
        }
    }

    fn client(&mut self) -> Client {
        let index = self.random.below(self.clients.len() as u64) as usize;
        self.clients[index].clone()
    }

    /// A random name: in Weft, in the mirror, and for people.
    fn name(&mut self) -> (String, PathBuf, String) {
        let path = *self.random.choose(PATHS);
        (format!("{}/{path}", self.root), self.mirror.join(path), path.to_string())
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..12 => self.open(),
            12..28 => self.write(),
            28..44 => self.read(),
            44..48 => self.close(),
            48..52 => self.truncate(),
            52..59 => self.rename(),
            59..65 => self.unlink(),
            65..70 => self.mkdir(),
            70..74 => self.rmdir(),
            74..78 => self.read_dir(),
            78..81 => self.symlink(),
            81..84 => self.link(),
            84..91 => self.stat(),
            91..94 => self.chmod(),
            94..99 if self.mirrors_xattrs => self.xattr(),
            94..99 => self.stat(),
            _ => self.punch(),
        }
    }

    fn open(&mut self) {
        let (weft, local, name) = self.name();
        if self.handles.len() == HANDLES_MAX {
            self.close();
        }
        let (create, exclusive, cut) = (self.random.one_in(2), self.random.one_in(4), self.random.one_in(6));
        let create = create || exclusive;
        let mode = *self.random.choose(&[0o644, 0o600, 0o4755]);
        let wanted = OpenOptions::new().read(true).write(true).create(create).truncate(cut).mode(mode);
        let wanted = wanted.create_new(exclusive).create(create);
        let client = self.client();
        let mut weft = weft_outcome(client.open(&weft, &wanted)).map(Some);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(create).create_new(exclusive).truncate(cut).mode(mode);
        let mut local = local_outcome(options.open(local)).map(Some);
        if let (Ok(weft), Ok(local)) = (&mut weft, &mut local) {
            let (weft, local) = (weft.take().expect("opened"), local.take().expect("opened"));
            self.handles.push(Handle { name: name.clone(), weft, local });
        }
        let what = format!("open {name} create {create} exclusive {exclusive} truncate {cut} mode {mode:o}");
        self.same(what, weft.map(|_| ()), local.map(|_| ()));
    }

    fn handle(&mut self) -> Option<usize> {
        (!self.handles.is_empty()).then(|| self.random.below(self.handles.len() as u64) as usize)
    }

    fn close(&mut self) {
        let Some(index) = self.handle() else { return };
        let handle = self.handles.swap_remove(index);
        self.same(format!("close {}", handle.name), weft_outcome(handle.weft.close()), Ok(()));
    }

    /// Parts of a file that do not touch, and what they are for the client's call.
    fn regions(&mut self) -> (Regions, Vec<Extent>) {
        let offset = self.random.below(OFFSET_MAX);
        match self.random.below(3) {
            0 => {
                let bytes = self.random.below(WRITE_BYTES_MAX);
                (Regions::contiguous(offset, bytes), vec![Extent { offset, bytes }])
            }
            1 => {
                let mut extents = Vec::new();
                let mut at = offset;
                for _ in 0..self.random.below(40) {
                    at += self.random.below(9000);
                    let bytes = 1 + self.random.below(9000);
                    extents.push(Extent { offset: at, bytes });
                    at += bytes;
                }
                // Any order is allowed.
                for index in (1..extents.len()).rev() {
                    extents.swap(index, self.random.below(index as u64 + 1) as usize);
                }
                (Regions::list(extents.clone()), extents)
            }
            _ => {
                let block_bytes = 1 + self.random.below(3000);
                let inner = (1 + self.random.below(6), block_bytes + self.random.below(5000));
                let outer = (1 + self.random.below(6), inner.0 * inner.1 + self.random.below(20_000));
                let level = |(count, stride): (u64, u64)| Level { count, stride_bytes: stride as i64 };
                let regions = Regions::strided(offset, block_bytes, vec![level(outer), level(inner)]);
                let at = |index: u64| offset + index / inner.0 * outer.1 + index % inner.0 * inner.1;
                let blocks = 0..outer.0 * inner.0;
                (regions, blocks.map(|index| Extent { offset: at(index), bytes: block_bytes }).collect())
            }
        }
    }

    /// Where to cut a buffer into pieces.
    fn cuts(&mut self, bytes: usize) -> Vec<usize> {
        let count = self.random.below(12) as usize;
        let mut cuts: Vec<_> = (0..count).map(|_| self.random.below(bytes as u64 + 1) as usize).collect();
        cuts.extend([0, bytes]);
        cuts.sort();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn write(&mut self) {
        let Some(index) = self.handle() else { return };
        let (regions, extents) = self.regions();
        let bytes: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let data = self.random.bytes(bytes as usize);
        let lengths = self.cuts(data.len());
        let handle = &self.handles[index];
        let what = format!("write {} {regions:?}", handle.name);
        let weft = if let [Extent { offset, .. }] = extents[..] {
            handle.weft.write_at(&data, offset).map(|count| count as u64)
        } else {
            let mut rest = &data[..];
            let pieces: Vec<_> =
                lengths.iter().map(|length| IoSlice::new(rest.split_off(..*length).expect("cut"))).collect();
            handle.weft.write_list(&pieces, &regions)
        };
        let mut rest = &data[..];
        let local = extents.iter().try_for_each(|extent| {
            handle.local.write_all_at(rest.split_off(..extent.bytes as usize).expect("a part"), extent.offset)
        });
        self.same(what, weft_outcome(weft), local_outcome(local).map(|()| bytes));
    }

    fn read(&mut self) {
        let Some(index) = self.handle() else { return };
        let (regions, extents) = self.regions();
        let bytes: usize = extents.iter().map(|extent| extent.bytes as usize).sum();
        let lengths = self.cuts(bytes);
        let handle = &self.handles[index];
        let what = format!("read {} {regions:?}", handle.name);
        let (mut ours, mut theirs) = (vec![0xaa; bytes], vec![0; bytes]);
        let weft = if let [Extent { offset, .. }] = extents[..] {
            handle.weft.read_at(&mut ours, offset).map(|count| {
                ours[count..].fill(0);
                count as u64
            })
        } else {
            let mut rest = &mut ours[..];
            let mut pieces: Vec<_> = lengths
                .iter()
                .map(|length| IoSliceMut::new(rest.split_off_mut(..*length).expect("cut")))
                .collect();
            handle.weft.read_list(&mut pieces, &regions)
        };
        let mut rest = &mut theirs[..];
        let mut count = 0;
        for extent in &extents {
            let part = rest.split_off_mut(..extent.bytes as usize).expect("a part");
            count += read_all_at(&handle.local, part, extent.offset) as u64;
        }
        let differ = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        self.same(what, weft_outcome(weft).map(|count| (count, differ)), Ok((count, None)));
    }

    fn truncate(&mut self) {
        let size = self.random.below(OFFSET_MAX + WRITE_BYTES_MAX);
        if let Some(index) = self.handle().filter(|_| self.random.one_in(2)) {
            let handle = &self.handles[index];
            let what = format!("truncate open {} to {size}", handle.name);
            let (weft, local) = (handle.weft.truncate(size), handle.local.set_len(size));
            return self.same(what, weft_outcome(weft), local_outcome(local));
        }
        let (weft, local, name) = self.name();
        let weft = weft_outcome(self.client().truncate(&weft, size));
        // SAFETY: the path ends with a zero.
        let local = checked(unsafe { libc::truncate(c_path(&local).as_ptr(), size as i64) }.into());
        self.same(format!("truncate {name} to {size}"), weft, local_outcome(local).map(drop));
    }

    fn punch(&mut self) {
        let Some(index) = self.handle() else { return };
        let (offset, bytes) = (self.random.below(OFFSET_MAX), 1 + self.random.below(WRITE_BYTES_MAX));
        let handle = &self.handles[index];
        let what = format!("punch {} {offset} {bytes}", handle.name);
        let weft = handle.weft.punch(offset, bytes);
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&handle.local);
        // SAFETY: no memory is passed.
        let local = checked(unsafe { libc::fallocate(fd, flags, offset as i64, bytes as i64) }.into());
        self.same(what, weft_outcome(weft), local_outcome(local).map(drop));
    }

    fn rename(&mut self) {
        let (weft_from, local_from, from) = self.name();
        let (weft_to, local_to, to) = self.name();
        let flags = *self.random.choose(&[0, 0, 0, rename_flags::NOREPLACE, rename_flags::EXCHANGE]);
        let weft = weft_outcome(self.client().rename(&weft_from, &weft_to, flags));
        let (c_from, c_to) = (c_path(&local_from), c_path(&local_to));
        // SAFETY: the paths end with zeros.
        let local = checked(unsafe {
            libc::syscall(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                c_from.as_ptr(),
                libc::AT_FDCWD,
                c_to.as_ptr(),
                flags,
            )
        });
        self.same(format!("rename {from} {to} flags {flags}"), weft, local_outcome(local).map(drop));
    }

    fn unlink(&mut self) {
        let (weft, local, name) = self.name();
        let weft = weft_outcome(self.client().unlink(&weft));
        self.same(format!("unlink {name}"), weft, local_outcome(fs::remove_file(local)));
    }

    fn mkdir(&mut self) {
        let (weft, local, name) = self.name();
        let mode = *self.random.choose(&[0o755, 0o700, 0o1777]);
        let weft = weft_outcome(self.client().mkdir(&weft, mode));
        let local = fs::DirBuilder::new().mode(mode).create(local);
        self.same(format!("mkdir {name} mode {mode:o}"), weft.map(drop), local_outcome(local));
    }

    fn rmdir(&mut self) {
        let (weft, local, name) = self.name();
        let weft = weft_outcome(self.client().rmdir(&weft));
        self.same(format!("rmdir {name}"), weft, local_outcome(fs::remove_dir(local)));
    }

    fn read_dir(&mut self) {
        let (weft, local, name) = self.name();
        let client = self.client();
        let weft = list_weft(&client, &weft);
        self.same(format!("readdir {name}"), weft, list_local(&local));
    }

    fn symlink(&mut self) {
        let (weft, local, name) = self.name();
        let target = *self.random.choose(TARGETS);
        let weft = weft_outcome(self.client().symlink(&weft, target.as_bytes()));
        let local = std::os::unix::fs::symlink(target, local);
        self.same(format!("symlink {name} -> {target}"), weft.map(drop), local_outcome(local));
    }

    fn link(&mut self) {
        let (weft_from, local_from, from) = self.name();
        let (weft_to, local_to, to) = self.name();
        let weft = weft_outcome(self.client().link(&weft_from, false, &weft_to));
        let local = fs::hard_link(local_from, local_to);
        self.same(format!("link {from} {to}"), weft.map(drop), local_outcome(local));
    }

    fn stat(&mut self) {
        if let Some(index) = self.handle().filter(|_| self.random.one_in(3)) {
            let handle = &self.handles[index];
            let what = format!("stat open {}", handle.name);
            let (weft, local) = (weft_outcome(handle.weft.stat()), local_outcome(handle.local.metadata()));
            return self.same(what, weft.map(|attr| Seen::weft(&attr)), local.map(|data| Seen::local(&data)));
        }
        let (weft, local, name) = self.name();
        let follow = self.random.one_in(2);
        let client = self.client();
        let target = weft_outcome(client.readlink(&weft));
        let weft = weft_outcome(client.stat(&weft, follow)).map(|attr| Seen::weft(&attr));
        let data = if follow { fs::metadata(&local) } else { fs::symlink_metadata(&local) };
        let local_target = fs::read_link(&local).map(|target| target.as_os_str().as_bytes().to_vec());
        self.same(format!("readlink {name}"), target, local_outcome(local_target));
        let local = local_outcome(data).map(|data| Seen::local(&data));
        self.same(format!("stat {name} follow {follow}"), weft, local);
    }

    fn chmod(&mut self) {
        let (weft, local, name) = self.name();
        let mode = *self.random.choose(&[0o644, 0o400, 0o777, 0o2755, 0o1700]);
        let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let weft = weft_outcome(self.client().setattr(&weft, true, &changes));
        let local = fs::set_permissions(local, fs::Permissions::from_mode(mode));
        self.same(format!("chmod {name} {mode:o}"), weft.map(drop), local_outcome(local));
    }

    /// Of what is no symbolic link: those cannot have attributes of users.
    fn xattr(&mut self) {
        let (weft, local, name) = self.name();
        if !fs::symlink_metadata(&local).is_ok_and(|data| !data.is_symlink()) {
            return;
        }
        let client = self.client();
        let ino = client.stat(&weft, false).expect("the mirror has it").ino;
        let key = *self.random.choose(&["user.one", "user.two"]);
        let (path, c_key) = (c_path(&local), CString::new(key).expect("no zeros"));
        match self.random.below(4) {
            0 => {
                let flags = self.random.below(3) as i32;
                let length = self.random.below(200) as usize;
                let value = self.random.bytes(length);
                let weft = weft_outcome(client.set_xattr(ino, key.as_bytes(), &value, flags as u32));
                // SAFETY: the strings end with zeros, and the value is as long as said.
                let local = checked(i64::from(unsafe {
                    libc::lsetxattr(path.as_ptr(), c_key.as_ptr(), value.as_ptr().cast(), value.len(), flags)
                }));
                self.same(
                    format!("setxattr {name} {key} flags {flags}"),
                    weft,
                    local_outcome(local).map(drop),
                );
            }
            1 => {
                let weft = weft_outcome(client.remove_xattr(ino, key.as_bytes()));
                // SAFETY: the strings end with zeros.
                let local = checked(unsafe { libc::lremovexattr(path.as_ptr(), c_key.as_ptr()) }.into());
                self.same(format!("removexattr {name} {key}"), weft, local_outcome(local).map(drop));
            }
            2 => {
                let names = |mut names: Vec<Vec<u8>>| {
                    names.sort();
                    names
                };
                let weft = weft_outcome(client.list_xattrs(ino)).map(names);
                let mut all = vec![0u8; 4096];
                // SAFETY: the path ends with a zero, and the buffer is as long as said.
                let local =
                    checked(
                        unsafe { libc::llistxattr(path.as_ptr(), all.as_mut_ptr().cast(), all.len()) } as i64
                    );
                let split =
                    |bytes: &[u8]| bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>();
                let users = |names: Vec<Vec<u8>>| {
                    names.into_iter().filter(|name| name.starts_with(b"user.")).collect()
                };
                let local = local_outcome(local).map(|bytes| names(users(split(&all[..bytes]))));
                self.same(format!("listxattr {name}"), weft, local);
            }
            _ => {
                let weft = weft_outcome(client.get_xattr(ino, key.as_bytes()));
                let mut value = vec![0u8; 4096];
                // SAFETY: the strings end with zeros, and the buffer is as long as said.
                let local = checked(unsafe {
                    libc::lgetxattr(path.as_ptr(), c_key.as_ptr(), value.as_mut_ptr().cast(), value.len())
                } as i64);
                let local = local_outcome(local).map(|bytes| value[..bytes].to_vec());
                self.same(format!("getxattr {name} {key}"), weft, local);
            }
        }
    }

    /// The whole tree: names, attributes, links and contents.
    fn check_all(&mut self) {
        let (root, mirror) = (self.root.clone(), self.mirror.clone());
        self.check_dir(&root, &mirror);
    }

    fn check_dir(&mut self, weft_dir: &str, local_dir: &Path) {
        let client = self.client();
        let local = list_local(local_dir);
        self.same(format!("check {weft_dir}"), list_weft(&client, weft_dir), local.clone());
        for (name, kind) in local.expect("a directory of the mirror") {
            let name = String::from_utf8(name).expect("ASCII");
            let (weft, local) = (format!("{weft_dir}/{name}"), local_dir.join(&name));
            let seen = weft_outcome(client.stat(&weft, false)).map(|attr| Seen::weft(&attr));
            let data = fs::symlink_metadata(&local).expect("it was listed");
            self.same(format!("check {weft}"), seen, Ok(Seen::local(&data)));
            match kind {
                FileKind::Directory => self.check_dir(&weft, &local),
                FileKind::Symlink => {
                    let target = fs::read_link(&local).expect("a link").as_os_str().as_bytes().to_vec();
                    self.same(format!("check link {weft}"), weft_outcome(client.readlink(&weft)), Ok(target));
                }
                _ => {
                    let expected = fs::read(&local).expect("a file");
                    let mut found = vec![0xaa; expected.len() + 10];
                    let options = OpenOptions::new().read(true);
                    let read = client.open(&weft, &options).and_then(|file| file.read_at(&mut found, 0));
                    let differ = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                    let read = weft_outcome(read).map(|count| (count, differ));
                    self.same(format!("check contents of {weft}"), read, Ok((expected.len(), None)));
                }
            }
        }
    }
}

fn read_all_at(file: &fs::File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64).expect("a local file can be read") {
            0 => break,
            count => done += count,
        }
    }
    done
}

type Listing = BTreeMap<Vec<u8>, FileKind>;

fn list_weft(client: &Client, path: &str) -> Outcome<Listing> {
    let entries = weft_outcome(client.read_dir(path))?;
    entries.map(|entry| weft_outcome(entry).map(|entry| (entry.name, entry.kind))).collect()
}

fn list_local(path: &Path) -> Outcome<Listing> {
    let entries = local_outcome(fs::read_dir(path))?;
    let item = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().as_bytes().to_vec(), local_kind(entry.file_type()?)))
    };
    entries.map(|entry| local_outcome(item(entry))).collect()
}

fn restart(cluster: &mut Served, random: &mut Random) -> String {
    let name = random.choose(&cluster.names()).clone();
    if random.one_in(2) {
        cluster.crash(&name);
        return format!("--- {name} killed and started");
    }
    cluster.stop(&name);
    cluster.spawn(&name);
    cluster.wait_ready(&name);
    format!("--- {name} stopped and started")
}

/// Three clients take turns.
fn take_turns(cluster: &mut Served, transport: Transport, seed: u64) {
    let clients = (0..3).map(|_| cluster.client(transport)).collect();
    let mirror = cluster.scratch().join("mirror-turns");
    let mut world = World::new(clients, "turns", mirror, seed);
    let mut random = Random(seed ^ 77);
    let start = Instant::now();
    let mut next_restart = WORK_TIME / 8;
    while start.elapsed() < WORK_TIME {
        (0..20).for_each(|_| world.step());
        if start.elapsed() > next_restart {
            let what = restart(cluster, &mut random);
            world.tell(what);
            world.check_all();
            next_restart = start.elapsed() + WORK_TIME / 8;
        }
    }
    world.check_all();
    eprintln!("{transport}: {} operations of three clients in turn", world.operations);
}

/// Three clients at once, each in its own tree, on servers that are killed.
fn all_at_once(cluster: &mut Served, transport: Transport, seed: u64) {
    let stop = AtomicBool::new(false);
    let mut random = Random(seed ^ 99);
    let worlds: Vec<_> = (0..3)
        .map(|index| {
            let mirror = cluster.scratch().join(format!("mirror-{index}"));
            World::new(
                vec![cluster.client(transport)],
                &format!("own-{index}"),
                mirror,
                seed.wrapping_add(index),
            )
        })
        .collect();
    let work = |mut world: World| {
        while !stop.load(Ordering::Relaxed) {
            world.step();
        }
        world.check_all();
        world.operations
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || work(world))).collect();
        let start = Instant::now();
        while start.elapsed() < WORK_TIME && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(300 + random.below(700)));
            restart(cluster, &mut random);
        }
        stop.store(true, Ordering::Relaxed);
        let done: Vec<_> =
            threads.into_iter().map(|thread| thread.join().expect("a client that is right")).collect();
        eprintln!("{transport}: {done:?} operations of three clients at once");
    });
}

fn compare(transport: Transport) {
    // SAFETY: no preconditions. Modes of new files are compared, and Weft is told them without a mask.
    unsafe { libc::umask(0) };
    let seed = seed();
    let mut cluster = Served::start(3);
    take_turns(&mut cluster, transport, seed);
    all_at_once(&mut cluster, transport, seed);
}

#[test]
fn random_operations_match_a_local_directory_over_tcp() {
    compare(Transport::Tcp);
}

#[test]
fn random_operations_match_a_local_directory_over_shared_memory() {
    compare(Transport::Shm);
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn random_operations_match_a_local_directory_over_rdma() {
    compare(Transport::Rdma);
}

/// What two hosts tell each other by, below `$WEFT_TEST_SHARE`.
struct Meeting(PathBuf);

impl Meeting {
    /// Longest time that one waits for the other, which may have to boot.
    const WAIT: Duration = Duration::from_secs(240);

    fn place() -> Meeting {
        let share =
            std::env::var_os("WEFT_TEST_SHARE").expect("WEFT_TEST_SHARE is a directory of both hosts");
        Meeting(PathBuf::from(share).join("meeting"))
    }

    /// All at once, so that nobody reads half of it.
    fn say(&self, name: &str, text: &str) {
        fs::create_dir_all(&self.0).expect("a directory");
        let unfinished = self.0.join(format!("{name}.new"));
        fs::write(&unfinished, text).expect("it can be written");
        fs::rename(unfinished, self.0.join(name)).expect("it can be renamed");
    }

    fn hear(&self, name: &str) -> String {
        let path = self.0.join(name);
        wait_until(&format!("the other host says {name}"), Self::WAIT, || path.exists());
        fs::read_to_string(path).expect("it can be read")
    }
}

/// Says that it is over, however it ends.
struct Over<'a>(&'a Meeting);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.say("over", if std::thread::panicking() { "badly" } else { "well" });
    }
}

#[test]
#[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
fn a_host_serves_another_one() {
    let (meeting, cluster) = (Meeting::place(), Served::start(3));
    meeting.say("key", &fs::read_to_string(cluster.key_file()).expect("a key"));
    meeting.say("url", &cluster.url());
    assert_eq!(meeting.hear("over"), "well", "{}", cluster.logs());
}

#[test]
#[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
fn random_operations_on_another_host_match_a_local_directory() {
    // SAFETY: no preconditions. Modes of new files are compared, and Weft is told them without a mask.
    unsafe { libc::umask(0) };
    let meeting = Meeting::place();
    let over = Over(&meeting);
    let url = Url::parse(&meeting.hear("url")).expect("a URL");
    let key = IssuedKey::from_text(&meeting.hear("key")).expect("a key");
    let client = |_| {
        let options = ConnectOptions {
            key: Some(key.clone()),
            transport: Some(Transport::Rdma),
            ..ConnectOptions::default()
        };
        Client::connect(&url, options).expect("a connection")
    };
    let (seed, scratch) = (seed(), temporary_dir());
    let mut world = World::new((0..3).map(client).collect(), "turns", scratch.path().join("mirror"), seed);
    let start = Instant::now();
    while start.elapsed() < 2 * WORK_TIME {
        (0..20).for_each(|_| world.step());
    }
    world.check_all();
    eprintln!("{} operations of three clients in turn", world.operations);
    drop(over);
}
