//! Directories of this machine in which others may change names meanwhile. A path is resolved once; everything below it is reached
//! by descriptors and follows no symbolic link.
//!
//! ```text
//!   typed path ──► descriptor of the top            stays open
//!                    └─ a/b/c                        opened for each operation, beneath the top and through no link, and compared
//!                         │                          with the inode that a/b/c was when it was listed
//!                         └─ name                    openat, mkdirat, renameat, unlinkat, … on that descriptor
//! ```
//!
//! So a walk keeps one descriptor per top open, however deep and wide the tree is. The owner of a directory who swaps it for a link, or
//! for another directory, makes the operation fail. Root copies trees of users in this way.

use rustix::fs::{
    self, AtFlags, CWD, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Device and inode.
pub type Id = (u64, u64);

/// The kernel takes paths shorter than this (`PATH_MAX`); a deeper one is walked in pieces.
const PIECE_BYTES_MAX: usize = 4000;
/// What chmod(2) sets.
const MODE_BITS: RawMode = 0o7777;

pub const REPLACED: &str = "was replaced by something else while it was being copied; try again";
pub const IS_LINK: &str = "is a symbolic link; only links that are given as arguments are followed";

fn replaced() -> io::Error {
    io::Error::other(REPLACED)
}

/// The identity of what these attributes are of.
pub fn id_of(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

/// Whether a link at the end of a name is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// The name was given as an argument: its link is followed.
    Follow,
    /// The name was found: a link is not what was looked for.
    Refuse,
}

/// How a file is opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is emptied, or made.
    Empty,
    /// It is made, and must not be there.
    New,
    /// It is made; what has the name goes.
    Fresh,
    /// An incomplete copy that is there keeps its contents.
    GoOn,
}

/// Attributes to be set, each only where it is given.
#[derive(Debug, Clone, Default)]
pub struct Set {
    /// Owner and group. Not permitted is no error.
    pub owner: Option<(u32, u32)>,
    /// Permission bits. Symbolic links have none.
    pub mode: Option<u32>,
    /// Access and modification.
    pub times: Option<[Timespec; 2]>,
}

/// A directory: a descriptor that stays open, the path below it, and the inode at that path.
#[derive(Debug, Clone)]
pub struct LocalDir {
    top: Arc<OwnedFd>,
    below: PathBuf,
    id: Id,
}

/// A directory's descriptor, for names in it.
enum Handle<'a> {
    Top(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for Handle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Handle::Top(fd) => *fd,
            Handle::Below(fd) => fd.as_fd(),
        }
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl LocalDir {
    /// The directory that a path leads to, links included.
    pub fn typed(path: &Path) -> io::Result<LocalDir> {
        LocalDir::top(fs::openat(CWD, path, DIRECTORY, Mode::empty())?)
    }

    fn top(fd: OwnedFd) -> io::Result<LocalDir> {
        let id = id_of(&fs::fstat(&fd)?);
        Ok(LocalDir { top: Arc::new(fd), below: PathBuf::new(), id })
    }

    /// The directory of a name that was found with this identity. It is opened when it is used.
    pub fn child(&self, name: &OsStr, id: Id) -> LocalDir {
        LocalDir { top: self.top.clone(), below: self.below.join(name), id }
    }

    /// The directory that a name given as an argument leads to, links included.
    pub fn typed_child(&self, name: &OsStr) -> io::Result<LocalDir> {
        LocalDir::top(fs::openat(self.handle()?, name, DIRECTORY, Mode::empty())?)
    }

    fn handle(&self) -> io::Result<Handle<'_>> {
        if self.below.as_os_str().is_empty() {
            return Ok(Handle::Top(self.top.as_fd()));
        }
        let opened = match open_beneath(self.top.as_fd(), &self.below, open_piece) {
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => return Err(replaced()),
            opened => opened?,
        };
        if id_of(&fs::fstat(&opened)?) != self.id {
            return Err(replaced());
        }
        Ok(Handle::Below(opened))
    }

    /// Names with their attributes, sorted. Links are not followed.
    pub fn list(&self) -> io::Result<Vec<(OsString, Stat)>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = fs::openat(self.handle()?, ".", flags, Mode::empty())?;
        let mut found = Vec::new();
        let mut entries = fs::Dir::new(listed)?;
        while let Some(entry) = entries.read() {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            match fs::statat(entries.fd()?, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {}
                stat => found.push((name, stat?)),
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Attributes of a name; with `follow`, of what a link leads to.
    pub fn stat(&self, name: &OsStr, follow: bool) -> io::Result<Stat> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(fs::statat(self.handle()?, name, flags)?)
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        let target = fs::readlinkat(self.handle()?, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Makes a symbolic link, and gives it owner and times.
    pub fn make_symlink(&self, target: &Path, name: &OsStr, set: &Set) -> io::Result<()> {
        let handle = self.handle()?;
        fs::symlinkat(target, &handle, name)?;
        set_at(handle.as_fd(), name, set, is_symlink)
    }

    /// Makes a directory.
    pub fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<LocalDir> {
        let (handle, name) = (self.handle()?, without_slash(name));
        fs::mkdirat(&handle, name, Mode::from_raw_mode(mode))?;
        let made = fs::openat(&handle, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(self.child(name, id_of(&fs::fstat(made)?)))
    }

    /// Removes anything but a directory.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(self.handle()?, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(self.handle()?, name, AtFlags::REMOVEDIR)?)
    }

    /// Gives something in this directory another name, in place of what has that name.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let handle = self.handle()?;
        Ok(fs::renameat(&handle, from, &handle, to)?)
    }

    /// Opens a file for reading; an error if the name leads to something else than what was found before.
    pub fn open(&self, name: &OsStr, links: Links, found: Option<Id>) -> io::Result<File> {
        let opened = open_file(self.handle()?.as_fd(), name, OFlags::RDONLY, links)?;
        let stat = fs::fstat(&opened)?;
        if found.is_some_and(|found| found != id_of(&stat)) {
            return Err(replaced());
        }
        refuse_special(&stat)?;
        Ok(opened.into())
    }

    /// Opens a file for writing.
    pub fn create(&self, name: &OsStr, mode: u32, how: How, links: Links) -> io::Result<File> {
        let handle = self.handle()?;
        let (handle, mode) = (handle.as_fd(), Mode::from_raw_mode(mode));
        let make = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            fs::openat(handle, name, flags, mode)
        };
        let file = match how {
            How::New => make()?,
            How::Empty if links == Links::Follow => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
                fs::openat(handle, name, flags, mode)?
            }
            How::Empty => match open_file(handle, name, OFlags::WRONLY, links) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => make()?,
                there => {
                    let there = there?;
                    refuse_special(&fs::fstat(&there)?)?;
                    fs::ftruncate(&there, 0)?;
                    there
                }
            },
            How::Fresh => match make() {
                Err(Errno::EXIST) => {
                    fs::unlinkat(handle, name, AtFlags::empty())?;
                    make()?
                }
                made => made?,
            },
            How::GoOn => {
                let there = open_file(handle, name, OFlags::WRONLY, Links::Refuse)?;
                let stat = fs::fstat(&there)?;
                refuse_special(&stat)?;
                // Another name may belong to another user's file.
                if stat.st_nlink != 1 {
                    return Err(replaced());
                }
                there
            }
        };
        Ok(file.into())
    }

    /// Sets attributes of what was found under a name.
    pub fn set(&self, name: &OsStr, found: Id, set: &Set) -> io::Result<()> {
        set_at(self.handle()?.as_fd(), name, set, |stat| id_of(stat) == found)
    }

    /// Sets its own attributes.
    pub fn set_own(&self, set: &Set) -> io::Result<()> {
        set_at(self.handle()?.as_fd(), OsStr::new("."), set, |_| true)
    }
}

/// Sets attributes of an open file.
pub fn set_open(file: &File, set: &Set) -> io::Result<()> {
    if let Some((uid, gid)) = set.owner {
        permitted(fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))?;
    }
    if let Some(mode) = set.mode {
        fs::fchmod(file, Mode::from_raw_mode(mode & MODE_BITS))?;
    }
    if let Some(times) = set.times {
        fs::futimens(file, &timestamps(times))?;
    }
    Ok(())
}

/// Attributes of an open file.
pub fn stat_open(file: &File) -> io::Result<Stat> {
    Ok(fs::fstat(file)?)
}

/// Attributes of what a path leads to.
pub fn stat_typed(path: &Path, follow: bool) -> io::Result<Stat> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    Ok(fs::statat(CWD, path, flags)?)
}

/// A slash at the end of a name would follow a link.
fn without_slash(name: &OsStr) -> &OsStr {
    let bytes = name.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    OsStr::from_bytes(&bytes[..end])
}

/// Sets attributes of what a name leads to, if that is as expected. Links are not followed.
fn set_at(dir: BorrowedFd<'_>, name: &OsStr, set: &Set, is_right: impl Fn(&Stat) -> bool) -> io::Result<()> {
    let opened = fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fs::fstat(&opened)?;
    if !is_right(&stat) {
        return Err(replaced());
    }
    if let Some((uid, gid)) = set.owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        permitted(fs::chownat(&opened, "", uid, gid, AtFlags::EMPTY_PATH))?;
    }
    if let Some(mode) = set.mode.filter(|_| !is_symlink(&stat)) {
        set_mode(dir, name, &opened, &stat, Mode::from_raw_mode(mode & MODE_BITS))?;
    }
    if let Some(times) = set.times {
        let times = timestamps(times);
        match fs::utimensat(&opened, "", &times, AtFlags::EMPTY_PATH) {
            // Linux before 5.8.
            Err(Errno::INVAL | Errno::NOENT) => {
                fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            set => set?,
        }
    }
    Ok(())
}

/// A descriptor by `O_PATH` takes no fchmod(2); its name in /proc is another way to the same inode.
fn set_mode(dir: BorrowedFd<'_>, name: &OsStr, opened: &OwnedFd, stat: &Stat, mode: Mode) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    match fs::chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), mode) {
        // No /proc here.
        Err(Errno::NOENT) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = fs::openat(dir, name, flags, Mode::empty())?;
            match id_of(&fs::fstat(&file)?) == id_of(stat) {
                true => Ok(fs::fchmod(&file, mode)?),
                false => Err(replaced()),
            }
        }
        set => Ok(set?),
    }
}

fn timestamps([last_access, last_modification]: [Timespec; 2]) -> Timestamps {
    Timestamps { last_access, last_modification }
}

/// A user who may not give files away keeps them.
fn permitted(set: rustix::io::Result<()>) -> io::Result<()> {
    match set {
        Err(Errno::PERM | Errno::ACCESS) => Ok(()),
        set => Ok(set?),
    }
}

fn is_symlink(stat: &Stat) -> bool {
    fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::Symlink
}

fn refuse_special(stat: &Stat) -> io::Result<()> {
    match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::RegularFile => Ok(()),
        _ => Err(replaced()),
    }
}

/// Opens a file that is there. Does not wait for the other end of a pipe.
fn open_file(dir: BorrowedFd<'_>, name: &OsStr, access: OFlags, links: Links) -> io::Result<OwnedFd> {
    let nofollow = if links == Links::Refuse { OFlags::NOFOLLOW } else { OFlags::empty() };
    let flags = access | nofollow | OFlags::CLOEXEC;
    match fs::openat(dir, name, flags | OFlags::NONBLOCK, Mode::empty()) {
        // A file with a lease, whose holder has to give it back.
        Err(Errno::AGAIN) => Ok(fs::openat(dir, name, flags, Mode::empty())?),
        Err(Errno::LOOP) if links == Links::Refuse => Err(io::Error::other(IS_LINK)),
        opened => Ok(opened?),
    }
}

type OpenPiece = fn(BorrowedFd<'_>, &Path) -> rustix::io::Result<OwnedFd>;

/// Opens a directory below another, through no symbolic link.
fn open_beneath(top: BorrowedFd<'_>, below: &Path, open: OpenPiece) -> rustix::io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let mut piece = PathBuf::new();
    let mut components = below.components().peekable();
    while let Some(component) = components.next() {
        piece.push(component);
        let longer =
            |next: &Component<'_>| piece.as_os_str().len() + 1 + next.as_os_str().len() <= PIECE_BYTES_MAX;
        if !components.peek().is_some_and(longer) {
            at = Some(open(at.as_ref().map_or(top, AsFd::as_fd), &piece)?);
            piece.clear();
        }
    }
    at.ok_or(Errno::NOENT)
}

fn open_piece(dir: BorrowedFd<'_>, piece: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match fs::openat2(dir, piece, DIRECTORY, Mode::empty(), resolve) {
        // Linux before 5.6, or a filter of system calls that does not know it.
        Err(Errno::NOSYS | Errno::PERM) => open_by_components(dir, piece),
        opened => opened,
    }
}

fn open_by_components(dir: BorrowedFd<'_>, piece: &Path) -> rustix::io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for component in piece.components() {
        let Component::Normal(name) = component else { return Err(Errno::XDEV) };
        let from = at.as_ref().map_or(dir, AsFd::as_fd);
        at = Some(fs::openat(from, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?);
    }
    at.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs as real;
    use std::os::unix::fs::{MetadataExt, symlink};
    use tempfile::TempDir;

    const EVERY_HOW: [How; 4] = [How::Empty, How::New, How::Fresh, How::GoOn];

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    /// `t/d` is found, and `outside` has the same names.
    fn found() -> (TempDir, LocalDir) {
        let dir = tempfile::tempdir().unwrap();
        for top in ["t/d", "outside"] {
            let top = dir.path().join(top);
            real::create_dir_all(top.join("sub")).unwrap();
            real::write(top.join("f"), "x").unwrap();
            symlink("f", top.join("l")).unwrap();
        }
        let top = LocalDir::typed(&dir.path().join("t")).unwrap();
        let d = top.child(name("d"), id_of(&top.stat(name("d"), false).unwrap()));
        (dir, d)
    }

    fn names(path: &Path) -> Vec<(OsString, (u64, u32, i64, i64))> {
        let entries = real::read_dir(path).unwrap().map(Result::unwrap);
        let mut all: Vec<_> = entries
            .map(|entry| {
                let meta = entry.metadata().unwrap();
                (entry.file_name(), (meta.ino(), meta.mode(), meta.ctime(), meta.ctime_nsec()))
            })
            .collect();
        all.sort();
        all
    }

    /// All that can be done in a directory fails.
    fn assert_closed(d: &LocalDir, file: Id) {
        let set = Set { owner: Some((7, 7)), mode: Some(0o777), times: None };
        let f = name("f");
        let failed = [
            d.list().is_err(),
            d.stat(f, false).is_err(),
            d.read_link(name("l")).is_err(),
            d.make_symlink(Path::new("x"), name("new"), &set).is_err(),
            d.make_dir(name("new"), 0o777).is_err(),
            d.remove(f).is_err(),
            d.remove_dir(name("sub")).is_err(),
            d.rename(f, name("g")).is_err(),
            d.open(f, Links::Refuse, None).is_err(),
            d.set(f, file, &set).is_err(),
            d.set_own(&set).is_err(),
        ];
        assert_eq!(failed, [true; 11]);
        for how in EVERY_HOW {
            assert!(d.create(f, 0o666, how, Links::Refuse).is_err(), "{how:?}");
            assert!(d.create(name("new"), 0o666, how, Links::Refuse).is_err(), "{how:?}");
        }
    }

    #[test]
    fn nothing_is_done_behind_a_directory_that_was_swapped() {
        let (dir, d) = found();
        let (t, outside) = (dir.path().join("t"), dir.path().join("outside"));
        let file = real::metadata(outside.join("f")).map(|meta| (meta.dev(), meta.ino())).unwrap();
        let before = names(&outside);
        real::rename(t.join("d"), t.join("was")).unwrap();
        symlink(&outside, t.join("d")).unwrap();
        assert_closed(&d, file);
        assert_eq!(names(&outside), before);
        // Another directory.
        real::remove_file(t.join("d")).unwrap();
        real::rename(&outside, t.join("d")).unwrap();
        assert_closed(&d, file);
        assert_eq!(names(&t.join("d")), before);
        // It is back.
        real::rename(t.join("d"), &outside).unwrap();
        real::rename(t.join("was"), t.join("d")).unwrap();
        assert_eq!(d.list().unwrap().len(), 3);
    }

    #[test]
    fn a_link_is_no_file_unless_it_was_given() {
        let (dir, d) = found();
        let place = dir.path().join("t/d");
        for links in [Links::Refuse, Links::Follow] {
            let opened = [
                d.open(name("l"), links, None).is_ok(),
                d.create(name("l"), 0o666, How::Empty, links).is_ok(),
            ];
            assert_eq!(opened, [links == Links::Follow; 2], "{links:?}");
        }
        assert!(d.create(name("l"), 0o666, How::GoOn, Links::Refuse).is_err());
        assert!(d.create(name("l"), 0o666, How::New, Links::Follow).is_err());
        assert_eq!(real::read_link(place.join("l")).unwrap(), Path::new("f"));
        d.create(name("l"), 0o666, How::Fresh, Links::Refuse).unwrap();
        assert!(real::symlink_metadata(place.join("l")).unwrap().is_file(), "it was replaced");
    }

    #[test]
    fn a_file_is_the_one_that_was_found() {
        let (dir, d) = found();
        let place = dir.path().join("t/d");
        let id = id_of(&d.stat(name("f"), false).unwrap());
        d.open(name("f"), Links::Refuse, Some(id)).unwrap();
        let set = Set { mode: Some(0o4755), ..Set::default() };
        d.set(name("f"), id, &set).unwrap();
        assert_eq!(real::metadata(place.join("f")).unwrap().mode() & 0o7777, 0o4755);
        real::write(place.join("other"), "y").unwrap();
        real::rename(place.join("other"), place.join("f")).unwrap();
        assert!(d.open(name("f"), Links::Refuse, Some(id)).is_err());
        assert!(d.set(name("f"), id, &set).is_err());
        assert_ne!(real::metadata(place.join("f")).unwrap().mode() & 0o7777, 0o4755);
        // A second name may belong to another user's file.
        real::hard_link(place.join("f"), place.join("again")).unwrap();
        assert!(d.create(name("f"), 0o666, How::GoOn, Links::Refuse).is_err());
    }

    #[test]
    fn a_pipe_is_refused_without_waiting() {
        let (dir, d) = found();
        let pipe = std::ffi::CString::new(dir.path().join("t/d/p").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o666) }, 0);
        assert!(d.open(name("p"), Links::Refuse, None).is_err());
        assert!(d.create(name("p"), 0o666, How::Empty, Links::Refuse).is_err());
        assert!(d.create(name("p"), 0o666, How::GoOn, Links::Refuse).is_err());
    }

    #[test]
    fn directories_are_found_below_the_longest_path() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = LocalDir::typed(dir.path()).unwrap();
        let long = "n".repeat(250);
        for _ in 0..40 {
            at = at.make_dir(name(&long), 0o700).unwrap();
        }
        at.create(name("f"), 0o600, How::New, Links::Refuse).unwrap();
        assert_eq!(at.list().unwrap()[0].0, "f");
        for open in [open_piece as OpenPiece, open_by_components] {
            let opened = open_beneath(at.top.as_fd(), &at.below, open).unwrap();
            assert_eq!(id_of(&fs::fstat(opened).unwrap()), at.id);
        }
        symlink(&long, dir.path().join("link")).unwrap();
        for (path, open) in
            [("link", open_piece as OpenPiece), ("link", open_by_components), ("..", open_by_components)]
        {
            open_beneath(at.top.as_fd(), Path::new(path), open).map(drop).unwrap_err();
        }
    }
}
