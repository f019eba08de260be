//! Names in directories that were found once, on either side of a copy. A path that was typed is resolved at the beginning; what is
//! below is reached by the directory's descriptor or inode number, so that no link leads the copy out of its trees.

use super::side::{Kind, Meta, Side, Source, Target, errno_of, is_there, local_set, set_weft_meta};
use crate::local_dir::{How, IS_LINK, Links, LocalDir, REPLACED};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_cli_common::connections::at;
use weft_cli_common::place::last_component;
use weft_cli_common::tree;
use weft_client::{At, Client, OpenOptions};
use weft_wire::limits::SMALL_FILE_BYTES_MAX;
use weft_wire::messages::{FileKind, LayoutWish};

/// Up to this size a file in Weft is written with one message, see `small_file_bytes` in the cluster file.
const AT_ONCE_BYTES_MAX: u64 = 16 << 10;

/// Something that messages name.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

/// A directory that was found.
#[derive(Clone)]
pub struct Dir(Arc<Inner>);

struct Inner {
    side: Side,
    /// Its path in messages.
    path: PathBuf,
    place: Place,
}

enum Place {
    Local(LocalDir),
    /// By its inode number.
    Weft(Client, u64),
    /// A directory that does not exist: a missing parent, or one that a dry run would have made.
    Missing,
}

impl Dir {
    fn new(side: &Side, path: PathBuf, place: Place) -> Dir {
        Dir(Arc::new(Inner { side: side.clone(), path, place }))
    }

    /// The directory that an argument leads to.
    fn typed(side: &Side, path: &Path) -> Result<Dir> {
        let place = match side {
            Side::Local => {
                let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
                Place::Local(LocalDir::typed(here)?)
            }
            Side::Weft { client, .. } => {
                let attr = client.stat(at(path), true)?;
                if attr.kind != FileKind::Directory {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOTDIR).into());
                }
                Place::Weft(client.clone(), attr.ino)
            }
        };
        Ok(Dir::new(side, path.to_owned(), place))
    }

    /// The same for the parent of an argument, which may be missing.
    fn parent(side: &Side, path: &Path) -> Result<Dir> {
        match Dir::typed(side, path) {
            Err(error) if matches!(errno_of(&error), Some(libc::ENOENT | libc::ENOTDIR)) => {
                Ok(Dir::new(side, path.to_owned(), Place::Missing))
            }
            dir => dir,
        }
    }

    fn typed_spot(&self, name: &OsStr) -> Spot {
        Spot { dir: self.clone(), name: name.to_owned(), links: Links::Follow }
    }

    fn child(&self, path: PathBuf, place: Place) -> Dir {
        Dir::new(&self.0.side, path, place)
    }

    /// A name that was found in it, or is to be made.
    pub fn spot(&self, name: impl Into<OsString>) -> Spot {
        Spot { dir: self.clone(), name: name.into(), links: Links::Refuse }
    }

    /// As [`Dir::spot`], of a name that a server says.
    pub fn spot_of(&self, name: &OsStr) -> Result<Spot> {
        check_name(name)?;
        Ok(self.spot(name))
    }

    /// The entries, sorted by name.
    pub fn list(&self) -> Result<Vec<(OsString, Meta)>> {
        let found: Vec<(OsString, Meta)> = match &self.0.place {
            Place::Missing => return Err(missing()),
            Place::Local(dir) => {
                dir.list()?.into_iter().map(|(name, stat)| (name, Meta::from(&stat))).collect()
            }
            Place::Weft(client, ino) => {
                let entries = tree::list(client, At::ino(*ino).shown_as(&self.0.path))?.into_iter();
                entries.map(|entry| (entry.name, Meta::from(&entry.attr))).collect()
            }
        };
        found.iter().try_for_each(|(name, _)| check_name(name))?;
        Ok(found)
    }

    /// Sets its own mode and, with `times`, the times, and with `owner` the owner where permitted.
    pub(super) fn set_meta(&self, meta: &Meta, times: bool, owner: bool) -> Result<()> {
        match &self.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(dir.set_own(&local_set(meta, times, owner))?),
            Place::Weft(client, ino) => {
                let at = At::ino(*ino).shown_as(&self.0.path);
                set_weft_meta(meta, times, owner, |set| client.setattr(at.clone(), false, set).map(drop))
            }
        }
    }
}

impl Shown for Dir {
    fn shown(&self) -> String {
        self.0.side.display(&self.0.path)
    }
}

/// A name in a directory.
#[derive(Clone)]
pub struct Spot {
    dir: Dir,
    name: OsString,
    links: Links,
}

impl Spot {
    /// What an argument names. A link there is followed, and so are those on the way.
    pub fn typed(side: &Side, path: &Path) -> Result<Spot> {
        let (parent, name) = split(path);
        Ok(Dir::parent(side, parent).with_context(|| side.display(path))?.typed_spot(name))
    }

    /// The same name, whose links are not followed.
    pub(super) fn found(self) -> Spot {
        Spot { links: Links::Refuse, ..self }
    }

    pub(super) fn side(&self) -> &Side {
        &self.dir.0.side
    }

    /// The directory that it is in.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// For messages, and to tell spots of one side apart.
    pub fn path(&self) -> PathBuf {
        let dir = &self.dir.0.path;
        if self.name == "." && !dir.as_os_str().is_empty() { dir.clone() } else { dir.join(&self.name) }
    }

    /// Without slashes at its end; `None` for `.` and `..`.
    pub(super) fn file_name(&self) -> Option<&OsStr> {
        Path::new(&self.name).file_name()
    }

    /// Attributes. With `follow` a link is followed wherever it leads, to compare.
    pub fn meta(&self, follow: bool) -> Result<Meta> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(Meta::from(&dir.stat(&self.name, follow)?)),
            Place::Weft(client, dir) => {
                let path = self.path();
                Ok(Meta::from(&client.stat(self.at(*dir, &path), follow)?))
            }
        }
    }

    fn at<'a>(&'a self, dir: u64, path: &'a Path) -> At<'a> {
        At::child(dir, self.name.as_bytes()).shown_as(path)
    }

    /// The directory of this name, which has these attributes.
    pub fn open_dir(&self, meta: &Meta) -> Result<Dir> {
        let place = match &self.dir.0.place {
            Place::Missing => return Err(missing()),
            Place::Local(dir) if self.links == Links::Follow => Place::Local(dir.typed_child(&self.name)?),
            Place::Local(dir) => Place::Local(dir.child(&self.name, meta.id)),
            Place::Weft(client, _) => Place::Weft(client.clone(), meta.id.1),
        };
        Ok(self.dir.child(self.path(), place))
    }

    /// The directory that a dry run would have made.
    pub(super) fn missing_dir(&self) -> Dir {
        self.dir.child(self.path(), Place::Missing)
    }

    /// Makes a directory; whether it is new.
    pub fn make_dir(&self, mode: u32) -> Result<(bool, Dir)> {
        let made = match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => {
                dir.make_dir(&self.name, mode).map(Place::Local).map_err(anyhow::Error::from)
            }
            Place::Weft(client, dir) => {
                let path = self.path();
                let made = client.mkdir(self.at(*dir, &path), mode);
                made.map(|attr| Place::Weft(client.clone(), attr.ino)).map_err(anyhow::Error::from)
            }
        };
        match made {
            Ok(place) => Ok((true, self.dir.child(self.path(), place))),
            Err(error) => match self.meta(false) {
                Ok(there) if there.kind == Kind::Directory => Ok((false, self.open_dir(&there)?)),
                _ => Err(error.context(format!("cannot make the directory {}", self.shown()))),
            },
        }
    }

    /// Where a symbolic link points.
    pub fn read_link(&self) -> Result<PathBuf> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(dir.read_link(&self.name)?),
            Place::Weft(client, dir) => {
                let path = self.path();
                Ok(PathBuf::from(OsString::from_vec(client.readlink(self.at(*dir, &path))?)))
            }
        }
    }

    /// Makes a symbolic link, with owner and times if `kept` says whose. Replaces anything but a directory.
    pub fn make_symlink(&self, target: &Path, kept: Option<(&Meta, bool)>) -> Result<()> {
        if self.meta(false).is_ok_and(|there| there.kind != Kind::Directory) {
            self.remove()?;
        }
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => {
                let set = kept.map(|(meta, owner)| local_set(meta, true, owner)).unwrap_or_default();
                Ok(dir.make_symlink(target, &self.name, &set)?)
            }
            Place::Weft(client, dir) => {
                let path = self.path();
                let made = client.symlink(self.at(*dir, &path), target.as_os_str().as_bytes())?;
                let Some((meta, owner)) = kept else { return Ok(()) };
                let at = At::ino(made.ino).shown_as(&path);
                set_weft_meta(meta, true, owner, |set| client.setattr(at.clone(), false, set).map(drop))
            }
        }
    }

    /// Removes anything but a directory.
    pub(super) fn remove(&self) -> Result<()> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(dir.remove(&self.name)?),
            Place::Weft(client, dir) => Ok(client.unlink(self.at(*dir, &self.path()))?),
        }
    }

    /// Removes an empty directory.
    pub(super) fn remove_dir(&self) -> Result<()> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(dir.remove_dir(&self.name)?),
            Place::Weft(client, dir) => Ok(client.rmdir(self.at(*dir, &self.path()))?),
        }
    }

    /// Gives it another name in the same directory, in place of what has that name.
    pub(super) fn rename(&self, to: &OsStr) -> Result<Spot> {
        let renamed = self.dir.spot(to);
        match &self.dir.0.place {
            Place::Missing => return Err(missing()),
            Place::Local(dir) => dir.rename(&self.name, to)?,
            Place::Weft(client, dir) => {
                let (from, to) = (self.path(), renamed.path());
                client.rename(self.at(*dir, &from), renamed.at(*dir, &to), 0)?;
            }
        }
        Ok(renamed)
    }

    /// Sets mode, times and with `owner` the owner where permitted, of what was found here with the attributes `there`.
    pub(super) fn set_meta(&self, there: (u64, u64), meta: &Meta, owner: bool) -> Result<()> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(dir.set(&self.name, there, &local_set(meta, true, owner))?),
            Place::Weft(client, _) => {
                let path = self.path();
                let at = At::ino(there.1).shown_as(&path);
                set_weft_meta(meta, true, owner, |set| client.setattr(at.clone(), false, set).map(drop))
            }
        }
    }

    /// Opens a file for reading. `found`: it has to be the one that was found here before.
    pub(super) fn open(&self, found: Option<(u64, u64)>) -> Result<Source> {
        match &self.dir.0.place {
            Place::Missing => Err(missing()),
            Place::Local(dir) => Ok(Source::Local(dir.open(&self.name, self.links, found)?)),
            Place::Weft(client, dir) => {
                let options = OpenOptions::new().read(true).follow(self.links == Links::Follow);
                let file = client.open(self.at(*dir, &self.path()), &options)?;
                if found.is_some_and(|(_, ino)| ino != file.ino()) {
                    bail!(REPLACED);
                }
                Ok(Source::Weft { client: client.clone(), file })
            }
        }
    }

    /// Opens a local file for reading, which was found here with these attributes.
    pub fn open_local(&self, found: &Meta) -> Result<File> {
        match &self.dir.0.place {
            Place::Local(dir) => Ok(dir.open(&self.name, self.links, Some(found.id))?),
            _ => Err(missing()),
        }
    }

    /// Opens a local file for writing, emptied if it is there.
    pub fn create_local(&self, mode: u32) -> Result<File> {
        match &self.dir.0.place {
            Place::Local(dir) => Ok(dir.create(&self.name, mode, How::Empty, self.links)?),
            _ => Err(missing()),
        }
    }

    /// Whether a new file of this size is made with one message, so that no reader finds a part of it under its name.
    pub(super) fn makes_at_once(&self, bytes: u64) -> bool {
        matches!(self.side(), Side::Weft { .. }) && bytes <= AT_ONCE_BYTES_MAX
    }

    /// Opens a file for writing, as `how` says. Without a requested layout, a new file that is not small begins
    /// on the same server as `source` if that is in the same cluster. If the other parameters are the defaults too,
    /// servers can copy by themselves.
    pub(super) fn create(
        &self,
        mode: u32,
        how: How,
        layout: Option<&LayoutWish>,
        source: &Source,
    ) -> Result<Target> {
        let (client, dir) = match &self.dir.0.place {
            Place::Missing => return Err(missing()),
            Place::Local(dir) => {
                return Ok(Target::Local(dir.create(&self.name, mode, how, self.links)?));
            }
            Place::Weft(client, dir) => (client, *dir),
        };
        let is_large = source.bytes() > u64::from(SMALL_FILE_BYTES_MAX);
        let options = OpenOptions::new().write(true).mode(mode).striped(is_large);
        let beginning = || source.beginning_in(client).filter(|_| is_large);
        let layout = layout.cloned().or_else(beginning);
        let options = layout.into_iter().fold(options, OpenOptions::layout);
        let path = self.path();
        let file = self.create_in_weft(client, self.at(dir, &path), how, options)?;
        Ok(Target::Weft { client: client.clone(), file })
    }

    fn create_in_weft(
        &self,
        client: &Client,
        at: At<'_>,
        how: How,
        options: OpenOptions,
    ) -> Result<weft_client::File> {
        let new = options.clone().create_new(true);
        let there = options.clone().follow(false);
        match how {
            How::New => Ok(client.open(at, &new)?),
            How::Empty if self.links == Links::Follow => {
                Ok(client.open(at, &options.create(true).truncate(true))?)
            }
            How::Empty => match client.open(at.clone(), &there.truncate(true)) {
                Err(error) if error.errno() == libc::ENOENT => Ok(client.open(at, &new)?),
                Err(error) if error.errno() == libc::ELOOP => bail!(IS_LINK),
                file => Ok(file?),
            },
            How::Fresh => match client.open(at.clone(), &new).map_err(anyhow::Error::from) {
                Err(error) if is_there(&error) => {
                    self.remove()?;
                    Ok(client.open(at, &new)?)
                }
                made => made,
            },
            How::GoOn => {
                let file = client.open(at, &there)?;
                // Another name may belong to another user's file.
                if file.attr().nlink != 1 || file.attr().kind != FileKind::File {
                    bail!(REPLACED);
                }
                Ok(file)
            }
        }
    }
}

impl Shown for Spot {
    fn shown(&self) -> String {
        self.side().display(&self.path())
    }
}

impl Shown for super::Pair {
    fn shown(&self) -> String {
        self.from_side.display(&self.from)
    }
}

fn missing() -> anyhow::Error {
    std::io::Error::from_raw_os_error(libc::ENOENT).into()
}

/// Refuses a name by which a server would lead a copy out of its directory.
fn check_name(name: &OsStr) -> Result<()> {
    match name.as_bytes() {
        b"" | b"." | b".." => bail!("`{}` is the name of an entry, and cannot be", name.display()),
        bytes if bytes.contains(&b'/') => {
            bail!("`{}` is the name of an entry, and has a slash", name.display())
        }
        _ => Ok(()),
    }
}

/// Both ends of the copy of one thing.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) from: Spot,
    pub(super) to: Spot,
}

impl Ends {
    pub(super) fn of(pair: &super::Pair, parents: &mut Parents) -> Result<Ends> {
        let to = Parents::typed(&mut parents.to, &pair.to_side, &pair.to)?;
        let to = if pair.is_in_dir { to.found() } else { to };
        Ok(Ends { from: Parents::typed(&mut parents.from, &pair.from_side, &pair.from)?, to })
    }
}

/// The directories of the last source and of the last target. The next ones are often in the same.
#[derive(Default)]
pub(super) struct Parents {
    from: Option<Dir>,
    to: Option<Dir>,
}

impl Parents {
    /// As [`Spot::typed`].
    fn typed(last: &mut Option<Dir>, side: &Side, path: &Path) -> Result<Spot> {
        let (parent, name) = split(path);
        let known = last.take().filter(|dir| dir.0.path == parent && dir.0.side.is_same(side));
        let dir = match known {
            Some(dir) => dir,
            None => Dir::parent(side, parent).with_context(|| side.display(path))?,
        };
        Ok(last.insert(dir).typed_spot(name))
    }
}

/// The directory of a path, and the last name with the slashes behind it.
fn split(path: &Path) -> (&Path, &OsStr) {
    let bytes = path.as_os_str().as_bytes();
    let last = last_component(path);
    if last.is_empty() {
        return (path, OsStr::new(if bytes.is_empty() { "" } else { "." }));
    }
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let (parent, name) = bytes.split_at(end - last.len());
    (Path::new(OsStr::from_bytes(parent)), OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_leads_out_of_its_directory() {
        for name in ["", ".", "..", "a/b", "../a", "/a"] {
            assert!(check_name(OsStr::new(name)).is_err(), "{name}");
        }
        check_name(OsStr::new("...")).unwrap();
    }

    #[test]
    fn a_path_is_a_name_in_a_directory() {
        for (path, parent, name) in [
            ("f", "", "f"),
            ("./f", "./", "f"),
            ("/a/b//c//", "/a/b//", "c//"),
            ("/a/..", "/a/", ".."),
            ("a/.", "a/", "."),
            ("/", "/", "."),
            ("", "", ""),
        ] {
            assert_eq!(split(Path::new(path)), (Path::new(parent), OsStr::new(name)), "{path}");
        }
    }
}
