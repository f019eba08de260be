//! New names: open with create, mkdir, mknod, symlink, link; and readlink. Files that have no name at first.

use crate::acl::UMASK_SHIFT;
use crate::caller::{Caller, SessionId};
use crate::engine::Engine;
use crate::flags::require_alterable;
use crate::inode::{Attr, Entry, Inode, Kind, LayoutRequest, MODE_MASK, SET_GID, Timestamp};
use crate::op::Op;
use crate::opens::Hold;
use crate::orphan::Orphan;
use crate::permission::{EXECUTE, READ, WRITE, require, require_change};
use crate::walk::{At, End, Follow, TARGET_BYTES_MAX, Walked, require_dir};
use crate::{MetaError, keys};

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing; registers the session as a writer.
    pub write: bool,
    /// With create: the name must be new, and a symbolic link there is not followed. Without a name: the file never gets one.
    pub exclusive: bool,
    /// Fail with `Loop` if the last name is a symbolic link.
    pub no_follow: bool,
    /// Of what is there: the permission to execute is asked for, instead of that to read.
    pub execute: bool,
    /// Every write goes to the end.
    pub append: bool,
}

/// What a file is made with if it does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewFile {
    /// Permission bits that remain after the umask; or those before it, and the umask shifted by [`UMASK_SHIFT`], which counts
    /// where the directory has no default access control list.
    pub mode: u32,
    /// Its layout, where it is not to be the directory's default.
    pub layout: Option<LayoutRequest>,
    /// Its bytes may lie with the inode while they are few.
    pub small: bool,
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Its attributes; the capability may allow what the flags asked for.
    pub attr: Attr,
    /// Whether this call made it.
    pub created: bool,
    /// How many bytes it may have and lie with its inode; 0 if it is striped.
    pub small_bytes: u32,
}

/// A new inode by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// Its attributes.
    pub attr: Attr,
}

/// A free name in a directory the caller may change.
struct Place {
    dir: Inode,
    name: Vec<u8>,
}

impl<E: Engine> Op<'_, E> {
    /// Opens an existing file and counts the session among its holders until `close`.
    pub fn open(
        &mut self,
        caller: &Caller,
        session: SessionId,
        at: At,
        flags: OpenFlags,
    ) -> Result<Opened, MetaError> {
        self.attempt(|op| {
            let follow = if flags.no_follow { Follow::BeforeSlash } else { Follow::Always };
            let inode = op.resolve(caller, at, follow)?;
            op.open_existing(caller, session, inode, flags)
        })
    }

    /// Opens a file, making it first if the name is free: one round trip.
    pub fn create(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        at: At,
        new: &NewFile,
        flags: OpenFlags,
    ) -> Result<Opened, MetaError> {
        let through = !(flags.exclusive || flags.no_follow);
        let follow = if through { Follow::NotBeforeSlash } else { Follow::Never };
        self.attempt(|op| match op.walk(caller, at, follow)? {
            Walked::Itself { .. } if flags.exclusive => Err(MetaError::Exists),
            Walked::Itself { inode, .. } => op.open_existing(caller, session, inode, flags),
            Walked::Name { slash: true, .. } => Err(MetaError::IsDirectory),
            Walked::Name { entry: Some(_), .. } if flags.exclusive => Err(MetaError::Exists),
            Walked::Name { entry: Some(entry), .. } => {
                let inode = op.need(entry.ino)?;
                op.open_existing(caller, session, inode, flags)
            }
            Walked::Name { dir, name, .. } => {
                require_change(caller, &dir)?;
                let place = Place { dir, name };
                op.create_and_open(caller, now, session, place, new, flags)
            }
        })
    }

    fn create_and_open(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        place: Place,
        new: &NewFile,
        flags: OpenFlags,
    ) -> Result<Opened, MetaError> {
        let inode = self.new_open_file(caller, now, session, &place.dir, new, flags)?;
        let small_bytes = self.small_bound(&inode);
        let attr = self.place(now, place, inode);
        Ok(Opened { attr, created: true, small_bytes })
    }

    /// Makes a file in a directory, without a name there, and opens it. Unless it is exclusive, `link` may give it one. It goes with
    /// its last open otherwise.
    pub fn create_unnamed(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        dir: At,
        new: &NewFile,
        flags: OpenFlags,
    ) -> Result<Opened, MetaError> {
        self.attempt(|op| {
            let follow = if flags.no_follow { Follow::BeforeSlash } else { Follow::Always };
            let dir = op.resolve(caller, dir, follow)?;
            require_dir(&dir)?;
            require_change(caller, &dir)?;
            let mut inode = op.new_open_file(caller, now, session, &dir, new, flags)?;
            inode.nlink = 0;
            let orphan = if flags.exclusive { Orphan::Nameless } else { Orphan::Linkable };
            op.put(keys::orphan(inode.ino), orphan.encode());
            let (attr, small_bytes) = (op.attr_of(&inode), op.small_bound(&inode));
            op.add_inode(inode);
            Ok(Opened { attr, created: true, small_bytes })
        })
    }

    /// A new file as the caller makes it in `dir`, held as the flags say.
    fn new_open_file(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        session: SessionId,
        dir: &Inode,
        new: &NewFile,
        flags: OpenFlags,
    ) -> Result<Inode, MetaError> {
        let mut inode = self.new_inode(caller, now, dir, Kind::File, new.mode)?;
        let default = dir.default_layout.as_ref();
        inode.layout = Some(self.layout_for(inode.ino, default, new.layout.as_ref())?);
        inode.small = new.small && self.ns.options.small_file_bytes > 0;
        if flags.write {
            inode.dirty_size = !inode.small;
            inode.epoch = 1;
            self.hold(inode.ino, session, Hold::Write);
        }
        if flags.read {
            self.hold(inode.ino, session, Hold::Read);
        }
        Ok(inode)
    }

    fn open_existing(
        &mut self,
        caller: &Caller,
        session: SessionId,
        mut inode: Inode,
        flags: OpenFlags,
    ) -> Result<Opened, MetaError> {
        match inode.kind {
            Kind::Symlink => return Err(MetaError::Loop),
            Kind::Directory if flags.write => return Err(MetaError::IsDirectory),
            _ => {}
        }
        let to_read = if flags.execute { EXECUTE } else { READ };
        let mask = if flags.read { to_read } else { 0 } | if flags.write { WRITE } else { 0 };
        require(caller, &inode, mask)?;
        if flags.write && !flags.append && inode.is_append_only() {
            return Err(MetaError::NotPermitted);
        }
        if inode.kind != Kind::File {
            return Ok(Opened { attr: self.attr_of(&inode), created: false, small_bytes: 0 });
        }
        if flags.read {
            self.hold(inode.ino, session, Hold::Read);
        }
        if flags.write && self.add_writer(session, &mut inode) {
            self.put_inode(inode.clone());
        }
        let small_bytes = self.small_bound(&inode);
        Ok(Opened { attr: self.attr_of(&inode), created: false, small_bytes })
    }

    /// Makes a directory.
    pub fn mkdir(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        mode: u32,
    ) -> Result<Created, MetaError> {
        self.attempt(|op| {
            let place = op.free_place(caller, at, true)?;
            let inode = op.new_inode(caller, now, &place.dir, Kind::Directory, mode)?;
            Ok(Created { attr: op.place(now, place, inode) })
        })
    }

    /// Makes a fifo, socket, device (with its number) or an empty file that is not opened.
    pub fn mknod(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        kind: Kind,
        mode: u32,
        rdev: u64,
    ) -> Result<Created, MetaError> {
        if matches!(kind, Kind::Directory | Kind::Symlink) {
            return Err(MetaError::Invalid("kind of node"));
        }
        self.attempt(|op| {
            let place = op.free_place(caller, at, false)?;
            if matches!(kind, Kind::Char | Kind::Block) && !caller.is_root() {
                return Err(MetaError::NotPermitted);
            }
            let mut inode = op.new_inode(caller, now, &place.dir, kind, mode)?;
            match kind {
                Kind::File => {
                    let layout = op.layout_for(inode.ino, place.dir.default_layout.as_ref(), None)?;
                    inode.layout = Some(layout);
                }
                Kind::Char | Kind::Block => inode.rdev = rdev,
                _ => {}
            }
            Ok(Created { attr: op.place(now, place, inode) })
        })
    }

    /// Makes a symbolic link to `target`, which need not exist.
    pub fn symlink(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        target: &[u8],
    ) -> Result<Created, MetaError> {
        if target.is_empty() {
            return Err(MetaError::NotFound);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(MetaError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(MetaError::Invalid("a target with a zero byte"));
        }
        self.attempt(|op| {
            let place = op.free_place(caller, at, false)?;
            let mut inode = op.new_inode(caller, now, &place.dir, Kind::Symlink, 0o777)?;
            inode.target = Some(target.into());
            Ok(Created { attr: op.place(now, place, inode) })
        })
    }

    /// The target of a symbolic link.
    pub fn readlink(&mut self, caller: &Caller, at: At) -> Result<Vec<u8>, MetaError> {
        let inode = self.resolve(caller, at, Follow::BeforeSlash)?;
        let target = inode.target.ok_or(MetaError::Invalid("not a symbolic link"))?;
        Ok(target.into_vec())
    }

    /// Gives an existing file the further name `to`, or one that was made without a name its first. Directories have one name only, and
    /// a file that has lost its last gets no other.
    pub fn link(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        from: At,
        follow: bool,
        to: At,
    ) -> Result<Attr, MetaError> {
        let follow = if follow { Follow::Always } else { Follow::BeforeSlash };
        self.attempt(|op| {
            let mut inode = op.resolve(caller, from, follow)?;
            // As in Linux, what is wrong with the new name is told before what is wrong with the old one's inode.
            let place = op.free_place(caller, to, false)?;
            if inode.is_dir() {
                return Err(MetaError::NotPermitted);
            }
            require_alterable(&inode)?;
            if inode.tree != place.dir.tree {
                return Err(MetaError::OtherTree);
            }
            if inode.nlink == 0 {
                op.end_orphan(inode.ino)?;
            }
            inode.nlink = inode.nlink.checked_add(1).ok_or(MetaError::TooManyLinks)?;
            inode.ctime = now;
            let cookie = op.take_cookie();
            op.add_entry(now, place, Entry { ino: inode.ino, kind: inode.kind, cookie });
            op.needs_room();
            op.put_inode(inode.clone());
            Ok(op.attr_of(&inode))
        })
    }

    /// The free last name of `at`, in a directory the caller may change.
    fn free_place(&mut self, caller: &Caller, at: At, for_dir: bool) -> Result<Place, MetaError> {
        match self.walk(caller, at, Follow::Never)? {
            Walked::Itself { end: End::Empty, .. } => Err(MetaError::NotFound),
            Walked::Itself { .. } | Walked::Name { entry: Some(_), .. } => Err(MetaError::Exists),
            Walked::Name { slash: true, .. } if !for_dir => Err(MetaError::NotFound),
            Walked::Name { dir, name, .. } => {
                require_change(caller, &dir)?;
                Ok(Place { dir, name })
            }
        }
    }

    /// A new inode as the caller makes it in `dir`, with what it takes of the directory's default access control list, or else
    /// without the bits of the umask: in a set-group-id directory it takes the directory's group, and
    /// a subdirectory the bit too.
    fn new_inode(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        dir: &Inode,
        kind: Kind,
        mode: u32,
    ) -> Result<Inode, MetaError> {
        let inherits = dir.mode & SET_GID != 0;
        let gid = if inherits { dir.gid } else { caller.gid };
        let ino = self.take_ino()?;
        let umask = mode >> UMASK_SHIFT & 0o777;
        let mut inode = Inode::new(ino, self.ns.incarnation, kind, mode & !umask, caller.uid, gid, now);
        inode.tree = dir.tree;
        if let Some(default) = dir.default_acl.as_ref().filter(|_| kind != Kind::Symlink) {
            (inode.acl, inode.mode) = default.inherited(mode & MODE_MASK);
        }
        if kind == Kind::Directory {
            inode.parent = dir.ino;
            inode.default_layout = dir.default_layout;
            inode.default_acl = dir.default_acl.clone();
            inode.mode |= if inherits { SET_GID } else { 0 };
        } else if inode.mode & (SET_GID | 0o010) == SET_GID | 0o010
            && !caller.is_root()
            && !caller.in_group(gid)
        {
            inode.mode &= !SET_GID;
        }
        Ok(inode)
    }

    /// Stages a new inode under its name.
    fn place(&mut self, now: Timestamp, mut place: Place, inode: Inode) -> Attr {
        let attr = self.attr_of(&inode);
        if inode.is_dir() {
            place.dir.nlink += 1;
        }
        let cookie = self.take_cookie();
        self.add_entry(now, place, Entry { ino: inode.ino, kind: inode.kind, cookie });
        self.add_inode(inode);
        attr
    }

    fn add_entry(&mut self, now: Timestamp, place: Place, entry: Entry) {
        let Place { mut dir, name } = place;
        dir.entries += 1;
        dir.mtime = now;
        dir.ctime = now;
        self.put_entry(dir.ino, &name, entry);
        self.put_inode(dir);
    }
}
