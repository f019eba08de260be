//! A directory of a gateway and one of this host, to which the same is done.

mod compare;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use compare::{compare_attr, errno_of, set_times};
use weft_nfs_client::{
    Change, Cookie, CreateHow, Created, Error, FileHandle, NfsClient, Node, SetAttr, SetTime, Stable, Time,
};
use weft_test_random::Random;

/// Names in every directory.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Offsets are below, so that files have holes and several strips.
const OFFSETS: u64 = 200_000;
/// Levels of directories below the top.
const DEPTH_MAX: usize = 4;
/// What was done last, to be told when something is different.
const TOLD: usize = 12;

/// Both directories, and the clients that use the gateway's by turns.
pub struct Pair {
    clients: Vec<NfsClient>,
    top: FileHandle,
    local: PathBuf,
    random: Random,
    done: Vec<String>,
    /// Files that were found at some time, and stay what they are while they are moved and removed.
    held: Vec<(FileHandle, fs::File)>,
    pub least_stable: Stable,
}

type Remote<T> = Result<T, Error>;

impl Pair {
    pub fn new(clients: Vec<NfsClient>, top: FileHandle, local: PathBuf, seed: u64) -> Pair {
        let (random, least_stable) = (Random(seed), Stable::Unstable);
        Pair { clients, top, local, random, done: Vec::new(), held: Vec::new(), least_stable }
    }

    /// Does so many things to both.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.random.below(20) {
                0..=2 => self.create(),
                3 => self.mkdir(),
                4 => self.symlink_or_node(),
                5 => self.remove(),
                6 => self.rename(),
                7 => self.link(),
                8..=10 => self.write(),
                11..=12 => self.read(),
                13..=14 => self.set(),
                15 => self.list(),
                16 => self.use_held(),
                17 => self.hold(),
                _ => self.look(),
            }
        }
    }

    /// The whole tree, as this client sees it.
    pub fn check_by(&mut self, client: NfsClient) {
        self.clients = vec![client];
        let mut left = vec![PathBuf::new()];
        while let Some(dir) = left.pop() {
            self.list_dir(&dir, 8192, true);
            for path in self.below(&dir) {
                let (handle, meta) = (self.handle(&path), self.meta(&path).unwrap());
                self.same_attr(&path, &handle, &meta);
                if meta.is_dir() {
                    left.push(path);
                } else if meta.is_file() {
                    let mut data = vec![0; meta.len() as usize + 1];
                    let bytes = self.client().read_all(&handle, 0, &mut data, 4).unwrap();
                    self.agree(data[..bytes] == fs::read(self.local.join(&path)).unwrap(), "data");
                }
            }
        }
    }

    fn client(&mut self) -> &NfsClient {
        let number = self.random.below(self.clients.len() as u64) as usize;
        &self.clients[number]
    }

    fn note(&mut self, text: String) {
        self.done.push(text);
        if self.done.len() > TOLD {
            self.done.remove(0);
        }
    }

    #[track_caller]
    fn agree(&self, is_same: bool, what: &str) {
        assert!(is_same, "{what}; done last: {:#?}", self.done);
    }

    /// Whether both succeeded: then what they gave. Else both failed, and for the same reason; `also`: errors of
    /// the gateway that are as good.
    #[track_caller]
    fn both<T, U>(&self, remote: Remote<T>, local: io::Result<U>, also: &[i32]) -> Option<(T, U)> {
        match (remote, local) {
            (Ok(remote), Ok(local)) => Some((remote, local)),
            (Err(remote), Err(local)) => {
                let (there, here) = (remote.errno(), errno_of(&local));
                self.agree(there == here || also.contains(&there), &format!("{remote}; here {local}"));
                None
            }
            (Err(remote), Ok(_)) => panic!("only there: {remote}; done last: {:#?}", self.done),
            (Ok(_), Err(local)) => panic!("only here: {local}; done last: {:#?}", self.done),
        }
    }

    fn meta(&self, path: &Path) -> io::Result<fs::Metadata> {
        fs::symlink_metadata(self.local.join(path))
    }

    /// Paths of what is in a local directory.
    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.local.join(dir)).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| dir.join(entry.unwrap().file_name())).collect();
        paths.sort();
        paths
    }

    /// All paths, the top's among them.
    fn paths(&self) -> Vec<PathBuf> {
        let (mut paths, mut next) = (vec![PathBuf::new()], 0);
        while next < paths.len() {
            if self.meta(&paths[next]).unwrap().is_dir() {
                paths.extend(self.below(&paths[next]));
            }
            next += 1;
        }
        paths
    }

    fn path_of(&mut self, is_wanted: impl Fn(&fs::Metadata) -> bool) -> Option<PathBuf> {
        let paths: Vec<PathBuf> =
            self.paths().into_iter().filter(|path| is_wanted(&self.meta(path).unwrap())).collect();
        (!paths.is_empty()).then(|| self.random.choose(&paths).clone())
    }

    fn any_file(&mut self) -> Option<PathBuf> {
        self.path_of(fs::Metadata::is_file)
    }

    /// A directory and a name in it, which may be too long.
    fn place(&mut self) -> (PathBuf, String) {
        let dirs: Vec<PathBuf> =
            self.paths().into_iter().filter(|path| self.meta(path).unwrap().is_dir()).collect();
        let name = if self.random.one_in(60) { "n".repeat(256) } else { self.name() };
        (self.random.choose(&dirs).clone(), name)
    }

    fn name(&mut self) -> String {
        (*self.random.choose(&NAMES)).to_string()
    }

    fn handle(&mut self, path: &Path) -> FileHandle {
        path.iter().fold(self.top.clone(), |dir, name| {
            let found = self.client().lookup(&dir, name.as_encoded_bytes());
            found.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done)).handle
        })
    }

    fn same_attr(&mut self, path: &Path, handle: &FileHandle, meta: &fs::Metadata) {
        let attr = self.client().getattr(handle);
        let attr = attr.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done));
        let different = compare_attr(&attr, meta);
        self.agree(different.is_none(), &format!("{}: {different:?}", path.display()));
    }

    /// What a reply says of a directory after a change.
    fn same_dir(&mut self, dir: &Path, change: &Change) {
        let after = change.after.expect("attributes afterwards are told");
        let different = compare_attr(&after, &self.meta(dir).unwrap());
        self.agree(different.is_none(), &format!("after {}: {different:?}", dir.display()));
    }

    /// Something was made in both.
    fn made(&mut self, dir: &Path, name: &str, created: &Created) {
        self.same_dir(dir, &created.dir);
        let path = dir.join(name);
        let meta = self.meta(&path).unwrap();
        let different = compare_attr(&created.attr.expect("attributes of it"), &meta);
        self.agree(different.is_none(), &format!("made {}: {different:?}", path.display()));
        let handle = created.handle.clone().expect("a handle of it");
        let found = self.handle(&path);
        self.agree(found == handle, "one handle");
    }

    fn create(&mut self) {
        let (dir, name) = self.place();
        let (at, parent) = (self.local.join(&dir).join(&name), self.handle(&dir));
        let mode = 0o600 | self.random.below(0o200) as u32;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        match self.random.below(3) {
            0 => {
                let size_bytes = self.random.one_in(2).then_some(0);
                self.note(format!("create {dir:?} {name}, size {size_bytes:?}"));
                let how = CreateHow::Unchecked(SetAttr { size_bytes, ..set });
                let remote = self.client().create(&parent, name.as_bytes(), &how);
                let was_there = fs::symlink_metadata(&at).is_ok();
                let here = make_unchecked(&at, mode, size_bytes);
                if let Some((created, ())) = self.both(remote, here, &[]) {
                    if was_there && size_bytes.is_some() {
                        self.set_times_of(&dir.join(&name));
                    }
                    let attr = created.attr.expect("attributes of it");
                    self.agree(attr.size_bytes == fs::metadata(&at).unwrap().len(), "size");
                    self.same_dir(&dir, &created.dir);
                }
            }
            1 => {
                self.note(format!("create {dir:?} {name}, new"));
                let remote = self.client().create(&parent, name.as_bytes(), &CreateHow::Guarded(set));
                if let Some((created, ())) = self.both(remote, make_new(&at, mode), &[]) {
                    self.made(&dir, &name, &created);
                }
            }
            _ => {
                let verifier = self.random.next().to_be_bytes();
                self.note(format!("create {dir:?} {name}, exclusive"));
                let how = CreateHow::Exclusive(verifier);
                let remote = self.client().create(&parent, name.as_bytes(), &how);
                if let Some((created, ())) = self.both(remote, make_new(&at, 0), &[]) {
                    self.same_dir(&dir, &created.dir);
                    let again = self.client().create(&parent, name.as_bytes(), &how);
                    self.agree(again.is_ok_and(|again| again.handle == created.handle), "the same verifier");
                    self.set_times_of(&dir.join(&name));
                }
            }
        }
    }

    fn mkdir(&mut self) {
        let (dir, name) = self.place();
        if dir.iter().count() >= DEPTH_MAX {
            return;
        }
        let (at, parent) = (self.local.join(&dir).join(&name), self.handle(&dir));
        let mode = 0o700 | self.random.below(0o100) as u32;
        self.note(format!("mkdir {dir:?} {name}"));
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let remote = self.client().mkdir(&parent, name.as_bytes(), &set);
        let here = fs::create_dir(&at).and_then(|()| set_mode(&at, mode));
        if let Some((created, ())) = self.both(remote, here, &[]) {
            self.made(&dir, &name, &created);
        }
    }

    fn symlink_or_node(&mut self) {
        let (dir, name) = self.place();
        let (at, parent) = (self.local.join(&dir).join(&name), self.handle(&dir));
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let (remote, here) = if self.random.one_in(2) {
            let target = "t/".repeat(1 + self.random.below(100) as usize);
            self.note(format!("symlink {dir:?} {name}"));
            let remote = self.client().symlink(&parent, name.as_bytes(), target.as_bytes(), &set);
            (remote, std::os::unix::fs::symlink(target, &at))
        } else {
            self.note(format!("mknod {dir:?} {name}"));
            let remote = self.client().mknod(&parent, name.as_bytes(), Node::Fifo, &set);
            (remote, make_fifo(&at).and_then(|()| set_mode(&at, 0o644)))
        };
        if let Some((created, ())) = self.both(remote, here, &[]) {
            self.made(&dir, &name, &created);
        }
    }

    fn remove(&mut self) {
        let (dir, name) = self.place();
        let (at, parent) = (self.local.join(&dir).join(&name), self.handle(&dir));
        let (remote, here) = if self.random.one_in(2) {
            self.note(format!("remove {dir:?} {name}"));
            (self.client().remove(&parent, name.as_bytes()), fs::remove_file(&at))
        } else {
            self.note(format!("rmdir {dir:?} {name}"));
            (self.client().rmdir(&parent, name.as_bytes()), fs::remove_dir(&at))
        };
        if let Some((change, ())) = self.both(remote, here, &[]) {
            self.same_dir(&dir, &change);
        }
    }

    fn rename(&mut self) {
        let ((dir, name), (to_dir, to_name)) = (self.place(), self.place());
        let (from, to) = (self.local.join(&dir).join(&name), self.local.join(&to_dir).join(&to_name));
        let (parent, to_parent) = (self.handle(&dir), self.handle(&to_dir));
        self.note(format!("rename {dir:?} {name} to {to_dir:?} {to_name}"));
        let remote = self.client().rename((&parent, name.as_bytes()), (&to_parent, to_name.as_bytes()));
        // Which of two reasons is told is not laid down.
        let also =
            [libc::EEXIST, libc::ENOTEMPTY, libc::EINVAL, libc::EISDIR, libc::ENOTDIR, libc::ENAMETOOLONG];
        if let Some(((old, new), ())) = self.both(remote, fs::rename(&from, &to), &also)
            // Both may have moved.
            && self.meta(&dir).is_ok()
            && self.meta(&to_dir).is_ok()
        {
            self.same_dir(&dir, &old);
            self.same_dir(&to_dir, &new);
        }
    }

    fn link(&mut self) {
        let Some(path) = self.path_of(|meta| !meta.is_dir() || meta.len() % 7 == 0) else { return };
        let (dir, name) = self.place();
        let (file, parent) = (self.handle(&path), self.handle(&dir));
        self.note(format!("link {path:?} to {dir:?} {name}"));
        let remote = self.client().link(&file, &parent, name.as_bytes());
        let here = fs::hard_link(self.local.join(&path), self.local.join(&dir).join(&name));
        let also = [libc::EISDIR, libc::EINVAL, libc::EEXIST, libc::EPERM, libc::ENAMETOOLONG];
        if let Some(((attr, change), ())) = self.both(remote, here, &also) {
            self.same_dir(&dir, &change);
            let different = compare_attr(&attr.expect("attributes of it"), &self.meta(&path).unwrap());
            self.agree(different.is_none(), &format!("linked {path:?}: {different:?}"));
        }
    }

    fn stable(&mut self) -> Stable {
        let stable = *self.random.choose(&[Stable::Unstable, Stable::Unstable, Stable::Data, Stable::File]);
        stable.max(self.least_stable)
    }

    fn write(&mut self) {
        let Some(path) = self.any_file() else { return };
        let (handle, stable) = (self.handle(&path), self.stable());
        let longest = *self.random.choose(&[10, 5000, 100_000]);
        let (offset, bytes) = (self.random.below(OFFSETS), 1 + self.random.below(longest) as usize);
        let data = self.random.bytes(bytes);
        self.note(format!("write {path:?} {bytes} bytes at {offset}, {stable:?}"));
        let mut left = &data[..];
        while !left.is_empty() {
            let at = offset + (bytes - left.len()) as u64;
            let written = self.client().write(&handle, at, left, stable);
            let written = written.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done));
            self.agree(written.stable >= stable, "as safe as was asked for");
            left = &left[written.bytes..];
        }
        let file = fs::OpenOptions::new().write(true).open(self.local.join(&path)).unwrap();
        file.write_all_at(&data, offset).unwrap();
        if self.random.one_in(4) {
            self.note(format!("commit {path:?}"));
            let committed = self.client().commit(&handle, 0, 0).unwrap();
            let different = compare_attr(&committed.change.after.unwrap(), &self.meta(&path).unwrap());
            self.agree(different.is_none(), &format!("committed: {different:?}"));
        }
    }

    fn read(&mut self) {
        let Some(path) = self.any_file() else { return };
        let handle = self.handle(&path);
        let here = fs::read(self.local.join(&path)).unwrap();
        let longest = *self.random.choose(&[10, 5000, 300_000]);
        let (offset, bytes) = (self.random.below(OFFSETS), 1 + self.random.below(longest) as usize);
        self.note(format!("read {path:?} {bytes} bytes at {offset} of {}", here.len()));
        let mut buffer = vec![0; bytes];
        let read = self.client().read(&handle, offset, &mut buffer);
        let read = read.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done));
        let from = here.len().min(offset as usize);
        let expected = &here[from..here.len().min(from + bytes)];
        self.agree(buffer[..read.bytes] == *expected, &format!("data: {} bytes", read.bytes));
        self.agree(!read.is_end || from + read.bytes == here.len(), "the end is not here");
        self.agree(read.is_end || read.bytes == bytes, "the end is here");
    }

    fn set(&mut self) {
        let Some(path) = self.path_of(|meta| !meta.file_type().is_symlink()) else { return };
        match self.random.below(3) {
            0 => {
                let mode = 0o700 | self.random.below(0o100) as u32;
                self.note(format!("mode of {path:?} {mode:o}"));
                let change = self.set_attr(&path, SetAttr { mode: Some(mode), ..SetAttr::default() });
                set_mode(&self.local.join(&path), mode).unwrap();
                self.same_dir(&path, &change);
            }
            1 => self.set_times_of(&path),
            _ => {
                let Some(path) = self.any_file() else { return };
                let bytes = self.random.below(OFFSETS);
                self.note(format!("size of {path:?} {bytes}"));
                self.set_attr(&path, SetAttr { size_bytes: Some(bytes), ..SetAttr::default() });
                let file = fs::OpenOptions::new().write(true).open(self.local.join(&path)).unwrap();
                file.set_len(bytes).unwrap();
                // Whether a size that was there already changes times is not laid down.
                self.set_times_of(&path);
            }
        }
    }

    fn set_attr(&mut self, path: &Path, set: SetAttr) -> Change {
        let handle = self.handle(path);
        let change = self.client().setattr(&handle, &set, None);
        change.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done))
    }

    /// Sets old times, which stay until something changes.
    fn set_times_of(&mut self, path: &Path) {
        let [atime, mtime] = [0, 0].map(|_| Time {
            seconds: self.random.below(900_000_000) as u32,
            nanoseconds: self.random.below(1_000_000_000) as u32,
        });
        self.note(format!("times of {path:?}"));
        let set = SetAttr { atime: SetTime::At(atime), mtime: SetTime::At(mtime), ..SetAttr::default() };
        let change = self.set_attr(path, set);
        set_times(&self.local.join(path), atime, mtime);
        self.same_dir(path, &change);
    }

    fn list(&mut self) {
        let (dir, _) = self.place();
        let (bytes, is_plus) = (400 + self.random.below(4000) as u32, self.random.one_in(2));
        self.list_dir(&dir, bytes, is_plus);
    }

    fn list_dir(&mut self, dir: &Path, bytes: u32, is_plus: bool) {
        let handle = self.handle(dir);
        self.note(format!("list {dir:?}"));
        let (mut names, mut from) = (BTreeSet::new(), Cookie::default());
        loop {
            let page = match is_plus {
                true => self.client().readdirplus(&handle, from, bytes),
                false => self.client().readdir(&handle, from, bytes),
            };
            let page = page.unwrap_or_else(|error| panic!("{error}; done last: {:#?}", self.done));
            for entry in page.entries {
                let name = String::from_utf8(entry.name).unwrap();
                if let Some(attr) = entry.attr.filter(|_| name != "." && name != "..") {
                    let different = compare_attr(&attr, &self.meta(&dir.join(&name)).unwrap());
                    self.agree(different.is_none(), &format!("listed {name}: {different:?}"));
                }
                self.agree(names.insert(name), "a name is listed once");
            }
            from = page.next;
            if page.is_end {
                break;
            }
        }
        let here: BTreeSet<String> = self
            .below(dir)
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_string())
            .chain([".".to_string(), "..".to_string()])
            .collect();
        self.agree(names == here, &format!("names: {names:?}, here {here:?}"));
    }

    fn look(&mut self) {
        let (dir, name) = self.place();
        let (path, parent) = (dir.join(&name), self.handle(&dir));
        self.note(format!("look at {path:?}"));
        let remote = self.client().lookup(&parent, name.as_bytes());
        if let Some((found, meta)) = self.both(remote, self.meta(&path), &[]) {
            let different = compare_attr(&found.attr.expect("attributes of it"), &meta);
            self.agree(different.is_none(), &format!("found: {different:?}"));
            self.same_attr(&path, &found.handle, &meta);
            let remote = self.client().readlink(&found.handle);
            let here = fs::read_link(self.local.join(&path));
            if let Some((there, here)) = self.both(remote, here, &[]) {
                self.agree(there == here.as_os_str().as_encoded_bytes(), "target of a link");
            }
        }
    }

    fn hold(&mut self) {
        let Some(path) = self.any_file() else { return };
        let at = self.local.join(&path);
        let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(at).unwrap();
        let handle = self.handle(&path);
        self.held.push((handle, file));
        if self.held.len() > 8 {
            self.held.remove(0);
        }
    }

    /// A file by a handle of earlier, wherever it may be now.
    fn use_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let number = self.random.below(self.held.len() as u64) as usize;
        let (handle, meta) = (self.held[number].0.clone(), self.held[number].1.metadata().unwrap());
        self.note(format!("held {}", handle.path()));
        match self.client().getattr(&handle) {
            Ok(attr) => {
                let different = compare_attr(&attr, &meta);
                self.agree(different.is_none(), &format!("held: {different:?}"));
            }
            Err(error) => {
                self.agree(meta.nlink() == 0 && error.errno() == libc::ESTALE, &format!("held: {error}"));
            }
        }
    }
}

fn set_mode(at: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(at, fs::Permissions::from_mode(mode))
}

fn make_new(at: &Path, mode: u32) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).open(at)?;
    set_mode(at, mode)
}

/// A new file, or one that is there, perhaps emptied.
fn make_unchecked(at: &Path, mode: u32, size_bytes: Option<u64>) -> io::Result<()> {
    match fs::symlink_metadata(at) {
        Ok(meta) if meta.is_file() => match size_bytes {
            Some(bytes) => fs::OpenOptions::new().write(true).open(at)?.set_len(bytes),
            None => Ok(()),
        },
        Ok(meta) => {
            assert!(meta.is_dir() || meta.file_type().is_symlink() || meta.file_type().is_fifo());
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
        Err(_) => make_new(at, mode),
    }
}

fn make_fifo(at: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a string that ends.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o644) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
