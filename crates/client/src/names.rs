//! Names and attributes: one call of the metadata server each. `start.rs` has those that need not be waited
//! for.

use weft_wire::messages::{
    AccessRequest, Attr, CAPABILITY_XATTR, FLAGS_XATTR, FileKind, GetXattrRequest, InodeRequest, LayoutWish,
    LinkRequest, ListXattrsRequest, LookupRequest, MkdirRequest, MknodRequest, ReadDirReply, ReadDirRequest,
    ReadlinkRequest, RemoveXattrRequest, RenameRequest, RmdirRequest, SetAttrRequest, SetLayoutRequest,
    SetXattrRequest, SymlinkRequest, Time, UnlinkRequest, attr_valid,
};
use weft_wire::{Added, Status};

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::report;
use crate::size;
use crate::{At, Client, ReadDir, Result, SetAttr, SetTime};

impl Client {
    /// Attributes of what a name leads to; `follow`: of what a symbolic link at its end points to.
    pub fn stat<'a>(&self, at: impl Into<At<'a>>, follow: bool) -> Result<Attr> {
        let at = at.into();
        self.attr(&self.lookup_request(&at, follow), &at)
    }

    pub(crate) fn lookup_request(&self, at: &At<'_>, follow: bool) -> LookupRequest {
        LookupRequest { caller: self.caller_owned(), at: at.to_wire(), follow }
    }

    pub(crate) fn inode_request(&self, ino: u64) -> InodeRequest {
        InodeRequest { caller: self.caller_owned(), ino }
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        self.attr(&self.inode_request(ino), &At::ino(ino))
    }

    /// Changes attributes; returns them as they are then.
    pub fn setattr<'a>(&self, at: impl Into<At<'a>>, follow: bool, changes: &SetAttr) -> Result<Attr> {
        let at = at.into();
        let request = self.setattr_request(&at, follow, changes);
        let attr = self.attr(&request, &at)?;
        self.note_times_set(attr.ino, changes);
        Ok(attr)
    }

    /// As [`Client::setattr`], of a file that this client's open files may have written to: what they wrote
    /// is reported before, with the same message. Either both take effect or none does.
    pub fn report_and_setattr(&self, ino: u64, changes: &SetAttr) -> Result<Attr> {
        let _operation = self.operation();
        let up_to_date = self.report_and_change(ino, changes).and_then(|mut attr| {
            size::bring_up_to_date(&self.inner, &self.caller, std::iter::once(&mut attr))?;
            Ok(attr)
        });
        up_to_date.map_err(|error| error.on(&At::ino(ino)))
    }

    /// As [`Client::report_and_setattr`], for who does not want the attributes: no I/O server is asked for the size.
    pub fn report_and_set(&self, ino: u64, changes: &SetAttr) -> Result<()> {
        let _operation = self.operation();
        self.report_and_change(ino, changes).map(drop).map_err(|error| error.on(&At::ino(ino)))
    }

    fn report_and_change(&self, ino: u64, changes: &SetAttr) -> Result<Attr> {
        let request = self.setattr_request(&At::ino(ino), false, changes);
        batch::reap(&self.inner);
        let attr = report::report_with(&self.inner, ino, request)?;
        self.note_times_set(ino, changes);
        Ok(attr)
    }

    /// A time set by hand is not to be overwritten by a report of what was written before.
    pub(crate) fn note_times_set(&self, ino: u64, changes: &SetAttr) {
        if changes.mtime.is_some() {
            self.inner.held.of(ino).iter().for_each(|held| held.note_time_set());
        }
    }

    pub(crate) fn setattr_request(&self, at: &At<'_>, follow: bool, changes: &SetAttr) -> SetAttrRequest {
        let zero = Time { seconds: 0, nanoseconds: 0 };
        let time = |change: &Option<SetTime>, to: u32, now: u32| match change {
            None => (0, zero.clone()),
            Some(SetTime::Now) => (now, zero.clone()),
            Some(SetTime::To(time)) => (to, time.clone()),
        };
        let (atime_valid, atime) = time(&changes.atime, attr_valid::ATIME, attr_valid::ATIME_NOW);
        let (mtime_valid, mtime) = time(&changes.mtime, attr_valid::MTIME, attr_valid::MTIME_NOW);
        let given = |given: bool, bit: u32| if given { bit } else { 0 };
        let valid = given(changes.mode.is_some(), attr_valid::MODE)
            | given(changes.uid.is_some(), attr_valid::UID)
            | given(changes.gid.is_some(), attr_valid::GID)
            | atime_valid
            | mtime_valid;
        SetAttrRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            follow,
            valid,
            mode: changes.mode.unwrap_or(0),
            uid: changes.uid.unwrap_or(0),
            gid: changes.gid.unwrap_or(0),
            atime,
            mtime,
            report: None,
        }
    }

    /// Makes a directory; `mode` has the umask applied.
    pub fn mkdir<'a>(&self, at: impl Into<At<'a>>, mode: u32) -> Result<Attr> {
        self.make_directory(at.into(), mode, None)
    }

    /// Makes a directory with a default layout for what is created in it.
    pub fn mkdir_with_layout<'a>(
        &self,
        at: impl Into<At<'a>>,
        mode: u32,
        layout: &LayoutWish,
    ) -> Result<Attr> {
        self.make_directory(at.into(), mode, Some(layout.clone()))
    }

    fn make_directory(&self, at: At<'_>, mode: u32, layout: Option<LayoutWish>) -> Result<Attr> {
        self.attr(
            &MkdirRequest {
                caller: self.caller_owned(),
                at: at.to_wire(),
                mode,
                layout,
                with_dir: Added(false),
            },
            &at,
        )
    }

    /// Makes a named pipe, a socket's name or a device.
    pub fn mknod<'a>(&self, at: impl Into<At<'a>>, kind: FileKind, mode: u32, rdev: u32) -> Result<Attr> {
        let at = at.into();
        self.attr(
            &MknodRequest {
                caller: self.caller_owned(),
                at: at.to_wire(),
                kind,
                mode,
                rdev,
                with_dir: Added(false),
            },
            &at,
        )
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink<'a>(&self, at: impl Into<At<'a>>, target: &[u8]) -> Result<Attr> {
        let at = at.into();
        let target = target.to_vec();
        self.attr(
            &SymlinkRequest { caller: self.caller_owned(), at: at.to_wire(), target, with_dir: Added(false) },
            &at,
        )
    }

    /// Where a symbolic link points.
    pub fn readlink<'a>(&self, at: impl Into<At<'a>>) -> Result<Vec<u8>> {
        let at = at.into();
        let reply = self.meta(&ReadlinkRequest { caller: self.caller_owned(), at: at.to_wire() });
        reply.map(|reply| reply.target).map_err(|error| error.on(&at))
    }

    /// Gives what `from` leads to another name; `follow`: what a symbolic link at the end of `from` points
    /// to.
    pub fn link<'a, 'b>(&self, from: impl Into<At<'a>>, follow: bool, to: impl Into<At<'b>>) -> Result<Attr> {
        let (from, to) = (from.into(), to.into());
        let request = LinkRequest {
            caller: self.caller_owned(),
            from: from.to_wire(),
            follow,
            to: to.to_wire(),
            with_dir: Added(false),
        };
        self.attr(&request, &format_args!("{from} to {to}"))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink<'a>(&self, at: impl Into<At<'a>>) -> Result<()> {
        self.unlink_in(at).map(drop)
    }

    /// As [`Client::unlink`]; returns the directory's attributes after it, if this client watches and `at` is
    /// one name in a directory that is given by number.
    pub fn unlink_in<'a>(&self, at: impl Into<At<'a>>) -> Result<Option<Attr>> {
        let at = at.into();
        let reply = self.meta(&UnlinkRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            with_dir: Added(false),
        });
        reply.map(|reply| reply.parent).map_err(|error| error.on(&at))
    }

    /// Removes an empty directory.
    pub fn rmdir<'a>(&self, at: impl Into<At<'a>>) -> Result<()> {
        let at = at.into();
        let reply = self.meta(&RmdirRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            with_dir: Added(false),
        });
        reply.map(drop).map_err(|error| error.on(&at))
    }

    /// Moves a name; `flags` are [`weft_wire::messages::rename_flags`].
    pub fn rename<'a, 'b>(&self, from: impl Into<At<'a>>, to: impl Into<At<'b>>, flags: u32) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let request = RenameRequest {
            caller: self.caller_owned(),
            from: from.to_wire(),
            to: to.to_wire(),
            flags,
            with_dirs: Added(false),
        };
        self.meta(&request).map(drop).map_err(|error| error.on(&format_args!("{from} to {to}")))
    }

    /// One page of a directory; `after` is 0 or the cookie of the last entry seen, `entries_max` at most
    /// [`weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX`]. `until` is that of the listing's first page, for which it is 0: what was
    /// made since then is left out.
    pub fn read_dir_page(
        &self,
        ino: u64,
        (after, until): (u64, u64),
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReadDirReply> {
        self.page(ino, (after, until), entries_max, with_attrs).map_err(|error| error.on(&At::ino(ino)))
    }

    pub(crate) fn page(
        &self,
        ino: u64,
        (after, until): (u64, u64),
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReadDirReply> {
        let request = ReadDirRequest { caller: self.caller_owned(), ino, after, entries_max, with_attrs };
        let _operation = self.operation();
        let mut page = cut_off(self.meta(&request)?, until);
        let attrs = page.entries.iter_mut().filter_map(|entry| entry.attr.as_mut());
        size::bring_up_to_date(&self.inner, &self.caller, attrs)?;
        Ok(page)
    }

    /// All entries of a directory, with attributes: one request for some hundreds of them.
    pub fn read_dir<'a>(&self, at: impl Into<At<'a>>) -> Result<ReadDir> {
        self.list(&at.into(), true)
    }

    /// All entries of a directory, without attributes.
    pub fn read_names<'a>(&self, at: impl Into<At<'a>>) -> Result<ReadDir> {
        self.list(&at.into(), false)
    }

    fn list(&self, at: &At<'_>, with_attrs: bool) -> Result<ReadDir> {
        let attr = self.meta(&self.lookup_request(at, true)).map_err(|error| error.on(at))?.attr;
        if attr.kind != FileKind::Directory {
            return Err(Error::new("ReadDir", ErrorKind::Status(Status::NotDirectory), "").on(at));
        }
        Ok(ReadDir::new(self.clone(), attr.ino, at.to_string(), with_attrs))
    }

    /// Whether the caller may; `mask`: 4 read, 2 write, 1 execute, 0 only whether it is there.
    pub fn access<'a>(&self, at: impl Into<At<'a>>, follow: bool, mask: u32) -> Result<()> {
        let at = at.into();
        let request = AccessRequest { caller: self.caller_owned(), at: at.to_wire(), follow, mask };
        self.meta(&request).map(drop).map_err(|error| error.on(&at))
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let request = GetXattrRequest { caller: self.caller_owned(), ino, name: name.to_vec() };
        self.meta(&request).map(|reply| reply.value).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Sets an extended attribute; `flags`: 1: it must not be there, 2: it must.
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        if name == CAPABILITY_XATTR {
            // The report of a write takes it away: those before it are reported first.
            let opens = self.inner.held.of(ino);
            opens
                .iter()
                .try_for_each(|held| held.report_known_to(&self.inner).map(drop))
                .map_err(|error| error.on(&At::ino(ino)))?;
        }
        let (name, value) = (name.to_vec(), value.to_vec());
        let request = SetXattrRequest { caller: self.caller_owned(), ino, name, value, flags };
        self.meta(&request).map(drop).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Flags of a file or directory, as `FS_IOC_GETFLAGS` has them: append-only (0x20), immutable (0x10), and others.
    pub fn flags(&self, ino: u64) -> Result<u32> {
        let value = self.get_xattr(ino, FLAGS_XATTR)?;
        let bits = value.as_slice().try_into().map_err(|_| {
            let text = format!("flags of {} bytes", value.len());
            Error::new("GetXattr", ErrorKind::Protocol, text).on(&At::ino(ino))
        })?;
        Ok(u32::from_le_bytes(bits))
    }

    /// Sets [`Client::flags`]. Root alone makes a file append-only or immutable, and undoes it.
    pub fn set_flags(&self, ino: u64, flags: u32) -> Result<()> {
        self.set_xattr(ino, FLAGS_XATTR, &flags.to_le_bytes(), 0)
    }

    /// Names of the extended attributes.
    pub fn list_xattrs(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let request = ListXattrsRequest { caller: self.caller_owned(), ino };
        self.meta(&request).map(|reply| reply.names).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        let request = RemoveXattrRequest { caller: self.caller_owned(), ino, name: name.to_vec() };
        self.meta(&request).map(drop).map_err(|error| error.on(&At::ino(ino)))
    }

    /// Sets a directory's default layout, or that of a file while it was never written; `None` removes a
    /// directory's.
    pub fn set_layout<'a>(&self, at: impl Into<At<'a>>, layout: Option<&LayoutWish>) -> Result<Attr> {
        let at = at.into();
        let layout = layout.cloned();
        self.attr(&SetLayoutRequest { caller: self.caller_owned(), at: at.to_wire(), layout }, &at)
    }
}

/// A page of a listing that goes up to `until`, or for 0 is the listing's first page.
pub(crate) fn cut_off(mut page: ReadDirReply, until: u64) -> ReadDirReply {
    if until > 0 {
        page.until = Added(until);
    }
    let until = page.until.0;
    if until > 0 && page.entries.last().is_some_and(|last| last.cookie >= until) {
        page.entries.retain(|entry| entry.cookie < until);
        page.end = true;
    }
    page
}
