//! Metadata calls that are begun, and waited for later: see [`PendingCall`]. Each is the call of `names.rs`
//! or `opening.rs` without `start_`.

use weft_wire::messages::{
    AccessRequest, Attr, AttrReply, DirChange, FileKind, LinkRequest, MkdirRequest, MknodRequest, OpenReply,
    ReadDirReply, ReadDirRequest, ReadlinkRequest, RenameRequest, RmdirRequest, SymlinkRequest,
    UnlinkRequest,
};
use weft_wire::{Added, Owned};

use crate::calls::{PendingCall, Plan};
use crate::error::{Error, ErrorKind};
use crate::names::cut_off;
use crate::opening::access_of;
use crate::{At, Client, File, OpenOptions, Result, SetAttr};

/// What a name that was made leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// Its attributes.
    pub attr: Attr,
    /// The directory before and after, of the same transaction: where it was given by number, and the servers
    /// are not of an earlier release.
    pub dir: Option<DirChange>,
}

impl Client {
    fn begin<T: 'static, R: Owned + 'static>(&self, plan: Plan<T, R>) -> PendingCall<T> {
        PendingCall::begin(&self.inner, &self.caller, plan)
    }

    /// Begins what leads to a result without sizes.
    fn start<T: 'static, R: Owned + 'static>(
        &self,
        request: R,
        on: &dyn std::fmt::Display,
        take: impl FnOnce(R::Reply) -> Result<T> + Send + 'static,
    ) -> PendingCall<T> {
        self.begin(Plan::new(request, on, take))
    }

    /// Begins what leads to attributes.
    fn start_attr<R: Owned<Reply = AttrReply> + 'static>(
        &self,
        request: R,
        on: &dyn std::fmt::Display,
    ) -> PendingCall<Attr> {
        self.begin(Plan { attrs: itself, ..Plan::new(request, on, |reply| Ok(reply.attr)) })
    }

    /// Begins what makes a name.
    fn start_made<R: Owned<Reply = AttrReply> + 'static>(
        &self,
        request: R,
        on: &dyn std::fmt::Display,
    ) -> PendingCall<Made> {
        let take = |reply: AttrReply| Ok(Made { attr: reply.attr, dir: reply.dir.0 });
        self.begin(Plan { attrs: |made: &mut Made| vec![&mut made.attr], ..Plan::new(request, on, take) })
    }

    /// Begins [`Client::stat`].
    pub fn start_stat<'a>(&self, at: impl Into<At<'a>>, follow: bool) -> PendingCall<Attr> {
        let at = at.into();
        self.start_attr(self.lookup_request(&at, follow), &at)
    }

    /// Begins [`Client::getattr`].
    pub fn start_getattr(&self, ino: u64) -> PendingCall<Attr> {
        self.start_attr(self.inode_request(ino), &At::ino(ino))
    }

    /// Begins [`Client::setattr`].
    pub fn start_setattr<'a>(
        &self,
        at: impl Into<At<'a>>,
        follow: bool,
        changes: &SetAttr,
    ) -> PendingCall<Attr> {
        let at = at.into();
        let (client, of) = (self.clone(), changes.clone());
        let take = move |reply: AttrReply| {
            client.note_times_set(reply.attr.ino, &of);
            Ok(reply.attr)
        };
        let request = self.setattr_request(&at, follow, changes);
        self.begin(Plan { attrs: itself, ..Plan::new(request, &at, take) })
    }

    /// Begins [`Client::open`], without truncation and [`OpenOptions::sync`], which take more than one call.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with these options, when it is waited for.
    pub fn start_open<'a>(&self, at: impl Into<At<'a>>, options: &OpenOptions) -> PendingCall<File> {
        let at = at.into();
        let failed = |error: Error| PendingCall::failed(&self.inner, &self.caller, error.on(&at));
        let access = match access_of(options) {
            Ok(access) if !options.truncate && !options.sync => access,
            Ok(_) => {
                let text =
                    "an open that is begun can neither truncate nor be durable; do that when it is over";
                return failed(Error::new("Open", ErrorKind::Invalid, text));
            }
            Err(error) => return failed(error),
        };
        let (client, of, name) = (self.clone(), options.clone(), at.to_string());
        let take = move |reply: OpenReply| client.opened(name, &of, access, reply);
        if options.create {
            let request = self.create_request(&at, options, access);
            return self.begin(Plan { is_open: true, ..Plan::new(request, &at, take) });
        }
        let closes = at.number().and_then(|ino| self.inner.closing().take_if_written(ino));
        let request = self.open_request(&at, options, access);
        self.begin(Plan { closes, is_open: true, ..Plan::new(request, &at, take) })
    }

    /// Begins [`Client::mkdir`].
    pub fn start_mkdir<'a>(&self, at: impl Into<At<'a>>, mode: u32) -> PendingCall<Made> {
        let at = at.into();
        let request = MkdirRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            mode,
            layout: None,
            with_dir: Added(true),
        };
        self.start_made(request, &at)
    }

    /// Begins [`Client::mknod`].
    pub fn start_mknod<'a>(
        &self,
        at: impl Into<At<'a>>,
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> PendingCall<Made> {
        let at = at.into();
        let request = MknodRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            kind,
            mode,
            rdev,
            with_dir: Added(true),
        };
        self.start_made(request, &at)
    }

    /// Begins [`Client::symlink`].
    pub fn start_symlink<'a>(&self, at: impl Into<At<'a>>, target: &[u8]) -> PendingCall<Made> {
        let at = at.into();
        let target = target.to_vec();
        let request =
            SymlinkRequest { caller: self.caller_owned(), at: at.to_wire(), target, with_dir: Added(true) };
        self.start_made(request, &at)
    }

    /// Begins [`Client::readlink`].
    pub fn start_readlink<'a>(&self, at: impl Into<At<'a>>) -> PendingCall<Vec<u8>> {
        let at = at.into();
        let request = ReadlinkRequest { caller: self.caller_owned(), at: at.to_wire() };
        self.start(request, &at, |reply| Ok(reply.target))
    }

    /// Begins [`Client::link`].
    pub fn start_link<'a, 'b>(
        &self,
        from: impl Into<At<'a>>,
        follow: bool,
        to: impl Into<At<'b>>,
    ) -> PendingCall<Made> {
        let (from, to) = (from.into(), to.into());
        let request = LinkRequest {
            caller: self.caller_owned(),
            from: from.to_wire(),
            follow,
            to: to.to_wire(),
            with_dir: Added(true),
        };
        self.start_made(request, &format_args!("{from} to {to}"))
    }

    /// Begins [`Client::unlink`]. Its result is the directory before and after, as in [`Made`].
    pub fn start_unlink<'a>(&self, at: impl Into<At<'a>>) -> PendingCall<Option<DirChange>> {
        let at = at.into();
        let request = UnlinkRequest { caller: self.caller_owned(), at: at.to_wire(), with_dir: Added(true) };
        self.start(request, &at, |reply| Ok(reply.dir.0))
    }

    /// Begins [`Client::rmdir`]. Its result is the directory before and after, as in [`Made`].
    pub fn start_rmdir<'a>(&self, at: impl Into<At<'a>>) -> PendingCall<Option<DirChange>> {
        let at = at.into();
        let request = RmdirRequest { caller: self.caller_owned(), at: at.to_wire(), with_dir: Added(true) };
        self.start(request, &at, |reply| Ok(reply.dir.0))
    }

    /// Begins [`Client::rename`]. Its result is the directories of the old and the new name before and after, as
    /// in [`Made`].
    pub fn start_rename<'a, 'b>(
        &self,
        from: impl Into<At<'a>>,
        to: impl Into<At<'b>>,
        flags: u32,
    ) -> PendingCall<[Option<DirChange>; 2]> {
        let (from, to) = (from.into(), to.into());
        let request = RenameRequest {
            caller: self.caller_owned(),
            from: from.to_wire(),
            to: to.to_wire(),
            flags,
            with_dirs: Added(true),
        };
        self.start(request, &format_args!("{from} to {to}"), |reply| Ok([reply.from.0, reply.to.0]))
    }

    /// Begins [`Client::access`].
    pub fn start_access<'a>(&self, at: impl Into<At<'a>>, follow: bool, mask: u32) -> PendingCall<()> {
        let at = at.into();
        let request = AccessRequest { caller: self.caller_owned(), at: at.to_wire(), follow, mask };
        self.start(request, &at, |_| Ok(()))
    }

    /// Begins [`Client::read_dir_page`].
    pub fn start_read_dir_page(
        &self,
        ino: u64,
        (after, until): (u64, u64),
        entries_max: u32,
        with_attrs: bool,
    ) -> PendingCall<ReadDirReply> {
        let request = ReadDirRequest { caller: self.caller_owned(), ino, after, entries_max, with_attrs };
        let attrs: fn(&mut ReadDirReply) -> Vec<&mut Attr> =
            |page| page.entries.iter_mut().filter_map(|entry| entry.attr.as_mut()).collect();
        self.begin(Plan { attrs, ..Plan::new(request, &At::ino(ino), move |page| Ok(cut_off(page, until))) })
    }
}

/// The attributes in attributes.
fn itself(attr: &mut Attr) -> Vec<&mut Attr> {
    vec![attr]
}
