//! Operations on names: looking up, making, moving, removing, listing.

use super::effects::{Effects, Failure};
use super::quota::is_limited;
use super::translate as t;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use weft_meta::{Engine, Op};
use weft_wire::limits::{BODY_BYTES_MAX, DIRECTORY_PAGE_ENTRIES_MAX, FIND_INODES_MAX, PATH_BYTES_MAX};
use weft_wire::messages::*;
use weft_wire::{Added, body};

/// Left of a body for what a page of a directory has besides its entries.
const PAGE_OVERHEAD_BYTES: usize = 64;
/// Names that one request for paths looks at: a few milliseconds.
const FIND_ENTRIES_MAX: usize = 4096;

/// Whether it is one name in a directory that is given by number.
fn is_one_name(at: &At) -> bool {
    !at.path.is_empty() && !at.path.contains(&b'/')
}

/// The directory of a name before a change, where that is wanted. What is none fails by itself, later.
fn dir_before<E: Engine>(op: &mut Op<'_, E>, is_wanted: Added<bool>, at: &At) -> Option<Attr> {
    if !is_wanted.0 || !is_one_name(at) {
        return None;
    }
    op.getattr(at.dir).ok().map(|attr| t::attr(&attr))
}

/// It before and after.
fn dir_change<E: Engine>(
    op: &mut Op<'_, E>,
    before: Option<Attr>,
) -> Result<Added<Option<DirChange>>, Failure> {
    let Some(Attr { ino, size, mtime, ctime, .. }) = before else { return Ok(Added(None)) };
    let after = t::attr(&op.getattr(ino)?);
    Ok(Added(Some(DirChange { before: DirState { size, mtime, ctime }, after })))
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Paths of inodes, looked for in a part of all names.
    pub fn find_paths(&self, request: FindPathsRequest) -> Result<Answer, Refusal> {
        let FindPathsRequest { mut inodes, after } = request;
        inodes.truncate(FIND_INODES_MAX);
        self.read(|op| {
            let part = op.find_paths(&inodes, (after.dir, after.cookie), FIND_ENTRIES_MAX)?;
            let fits = |(_, path): &(u64, Vec<u8>)| path.len() <= PATH_BYTES_MAX;
            let found = part.found.into_iter().filter(fits);
            Ok(FindPathsReply {
                found: found.map(|(ino, path)| FoundPath { ino, path }).collect(),
                next: part.next.map(|(dir, cookie)| NamePlace { dir, cookie }),
            })
        })
    }

    /// The attributes at the end of a path.
    pub fn lookup(&self, call: &Call, request: LookupRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.look(call, |op, effects| {
            effects.lease(Some(&request.at), None);
            let attr = op.stat(&caller, t::at(&request.at), request.follow)?;
            self.leased_attr(op, effects, call, None, attr)
        })
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, request: ReadlinkRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.read(|op| Ok(ReadlinkReply { target: op.readlink(&caller, t::at(&request.at))? }))
    }

    /// A page of a directory.
    pub fn read_dir(&self, call: &Call, request: ReadDirRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        let entries_max = request.entries_max.clamp(1, DIRECTORY_PAGE_ENTRIES_MAX) as usize;
        let bytes_max = BODY_BYTES_MAX - PAGE_OVERHEAD_BYTES;
        self.look(call, |op, effects| {
            let with_attrs = request.with_attrs;
            let page = op.readdir(&caller, request.ino, request.after, entries_max, bytes_max, with_attrs)?;
            effects.lease(None, Some(request.ino));
            if with_attrs {
                effects.lease_all(page.entries.iter().map(|entry| entry.ino));
                // A kernel asks for attributes where a program goes on with the names.
                if effects.watches() {
                    op.keep_names(request.ino, &page);
                }
            }
            let entry = |entry: weft_meta::DirEntry| {
                let size_known = with_attrs && op.knows_size(call.session, entry.ino);
                let mut entry = t::entry(entry);
                entry
                    .attr
                    .iter_mut()
                    .for_each(|attr| attr.size_live &= !size_known || !self.watchers.watches(call.session));
                entry
            };
            let entries = page.entries.into_iter().map(entry).collect();
            Ok(ReadDirReply { entries, end: page.eof, parent: page.parent, until: Added(page.until) })
        })
    }

    /// Makes a directory, with a default layout where one is wished for.
    pub async fn mkdir(&self, call: &Call, request: MkdirRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, effects| {
            let dir = dir_before(op, request.with_dir, &request.at);
            if is_limited(&caller) {
                op.limited();
            }
            let made = op.mkdir(&caller, now, t::at(&request.at), request.mode)?;
            if request.layout.is_some() {
                let wish = t::layout_request(request.layout.as_ref());
                op.set_layout(&caller, now, weft_meta::At::ino(made.attr.ino), &wish)?;
            }
            let reply = self.leased_attr(op, effects, call, Some(&request.at), made.attr)?;
            Ok(AttrReply { dir: dir_change(op, dir)?, ..reply })
        })
        .await
    }

    /// Makes a special file.
    pub async fn mknod(&self, call: &Call, request: MknodRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        let kind = t::kind_from_wire(request.kind);
        let rdev = u64::from(request.rdev);
        self.change(call, |op, now, effects| {
            let dir = dir_before(op, request.with_dir, &request.at);
            if is_limited(&caller) {
                op.limited();
            }
            let made = op.mknod(&caller, now, t::at(&request.at), kind, request.mode, rdev)?;
            let reply = self.leased_attr(op, effects, call, Some(&request.at), made.attr)?;
            Ok(AttrReply { dir: dir_change(op, dir)?, ..reply })
        })
        .await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, call: &Call, request: SymlinkRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, effects| {
            let dir = dir_before(op, request.with_dir, &request.at);
            if is_limited(&caller) {
                op.limited();
            }
            let made = op.symlink(&caller, now, t::at(&request.at), &request.target)?;
            let reply = self.leased_attr(op, effects, call, Some(&request.at), made.attr)?;
            Ok(AttrReply { dir: dir_change(op, dir)?, ..reply })
        })
        .await
    }

    /// Makes a hard link.
    pub async fn link(&self, call: &Call, request: LinkRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, effects| {
            let dir = dir_before(op, request.with_dir, &request.to);
            let attr = op.link(&caller, now, t::at(&request.from), request.follow, t::at(&request.to))?;
            let reply = self.leased_attr(op, effects, call, Some(&request.to), attr)?;
            Ok(AttrReply { dir: dir_change(op, dir)?, ..reply })
        })
        .await
    }

    /// Removes a name that is not a directory's.
    pub async fn unlink(&self, call: &Call, request: UnlinkRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, effects| {
            // Of what a client removes itself it knows, but for a race that ends with the name missing, as it is then.
            let keep = |dir, ino| self.watchers.may_use(dir, ino, Some(call.session));
            let dir = dir_before(op, request.with_dir, &request.at);
            op.unlink_keeping(&caller, now, t::at(&request.at), keep)?;
            effects.lease(Some(&request.at), None);
            // Who has to ask again can look at the directory, too.
            effects.kept = Some(body::encode(&RemovedReply { parent: None, dir: Added(None) }));
            Ok(RemovedReply { parent: self.parent_attr(op, call, &request.at)?, dir: dir_change(op, dir)? })
        })
        .await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, call: &Call, request: RmdirRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, _| {
            let dir = dir_before(op, request.with_dir, &request.at);
            op.rmdir(&caller, now, t::at(&request.at))?;
            Ok(RmdirReply { dir: dir_change(op, dir)? })
        })
        .await
    }

    /// Moves a name; a file that it replaces loses one.
    pub async fn rename(&self, call: &Call, request: RenameRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        let mode = t::rename_mode(request.flags)?;
        self.change(call, |op, now, _| {
            let keep = |dir, ino| self.watchers.may_use(dir, ino, None);
            let [from, to] = [&request.from, &request.to].map(|at| dir_before(op, request.with_dirs, at));
            if is_limited(&caller) {
                op.limited();
            }
            op.rename_keeping(&caller, now, t::at(&request.from), t::at(&request.to), mode, keep)?;
            Ok(RenamedReply { from: dir_change(op, from)?, to: dir_change(op, to)? })
        })
        .await
    }

    /// As [`MetaPart::attr_reply`], with a lease on the inode, and on the directory of the name that leads there. A
    /// client that watches reports what it has written before it asks, so if it alone writes, the size is known.
    pub(super) fn leased_attr(
        &self,
        op: &mut Op<'_, E>,
        effects: &mut Effects,
        call: &Call,
        at: Option<&At>,
        attr: weft_meta::Attr,
    ) -> Result<AttrReply, Failure> {
        effects.lease(at, Some(attr.ino));
        let mut reply = self.attr_reply(op, attr)?;
        if effects.watches() && op.knows_size(call.session, attr.ino) {
            reply.attr.size_live = false;
        }
        Ok(reply)
    }

    /// For a client that watches: the attributes of the directory that it named by number, with one name in it.
    pub(super) fn parent_attr(
        &self,
        op: &mut Op<'_, E>,
        call: &Call,
        at: &At,
    ) -> Result<Option<Attr>, Failure> {
        if !self.watchers.watches(call.session) || !is_one_name(at) {
            return Ok(None);
        }
        Ok(Some(t::attr(&op.getattr(at.dir)?)))
    }

    /// Attributes as the reply has them: a directory with a default layout of its own shows it.
    pub(super) fn attr_reply(&self, op: &mut Op<'_, E>, attr: weft_meta::Attr) -> Result<AttrReply, Failure> {
        let mut reply = AttrReply { attr: t::attr(&attr), dir: Added(None) };
        if attr.kind == weft_meta::Kind::Directory {
            let info = op.get_layout(&weft_meta::Caller::root(), weft_meta::At::ino(attr.ino))?;
            if let weft_meta::LayoutInfo::Directory { effective, own: Some(_) } = info {
                reply.attr.layout = t::default_layout(&effective, self.ring_servers.get());
            }
        }
        Ok(reply)
    }
}
