//! Operations on attributes: reading and setting them, access, extended attributes, layouts, counts.

use super::quota::is_limited;
use super::translate as t;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use weft_meta::{At, Engine};
use weft_wire::messages::*;
use weft_wire::{Added, Status};

impl<E: Engine + 'static> MetaPart<E> {
    /// Attributes of an inode.
    pub fn get_attr(&self, call: &Call, request: InodeRequest) -> Result<Answer, Refusal> {
        self.look(call, |op, effects| {
            let attr = op.getattr(request.ino)?;
            self.leased_attr(op, effects, call, None, attr)
        })
    }

    /// Changes mode, owner and times, after what the client wrote before.
    pub async fn set_attr(&self, call: &Call, request: SetAttrRequest) -> Result<Answer, Refusal> {
        let change = t::set_attr(&request)?;
        if request.report.is_some() && !request.at.path.is_empty() {
            let text = "what was written is reported with a change of an inode that is given by number";
            return Err(Refusal::new(Status::Invalid, text));
        }
        let caller = t::caller(request.caller);
        self.change(call, |op, now, effects| {
            if let Some(report) = &request.report {
                op.report_write(now, call.session, request.at.dir, &t::write_report(report, now))?;
            }
            if is_limited(&caller) && (change.uid.is_some() || change.gid.is_some()) {
                op.limited();
            }
            let attr = op.setattr(&caller, now, t::at(&request.at), request.follow, &change)?;
            self.leased_attr(op, effects, call, None, attr)
        })
        .await
    }

    /// Whether the caller may.
    pub fn access(&self, request: AccessRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.read(|op| {
            op.access(&caller, t::at(&request.at), request.follow, request.mask)?;
            Ok(Empty {})
        })
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, call: &Call, request: GetXattrRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.look(call, |op, effects| {
            effects.lease(None, Some(request.ino));
            let value = op.get_xattr(&caller, At::ino(request.ino), false, &request.name)?;
            Ok(XattrReply { value })
        })
    }

    /// Names of the extended attributes.
    pub fn list_xattrs(&self, request: ListXattrsRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.read(|op| Ok(ListXattrsReply { names: op.list_xattrs(&caller, At::ino(request.ino), false)? }))
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, call: &Call, request: SetXattrRequest) -> Result<Answer, Refusal> {
        let mode = t::xattr_mode(request.flags)?;
        let caller = t::caller(request.caller);
        self.change(call, |op, now, _| {
            if is_limited(&caller) {
                op.limited();
            }
            let at = At::ino(request.ino);
            op.set_xattr(&caller, now, at, false, &request.name, &request.value, mode)?;
            Ok(Empty {})
        })
        .await
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, call: &Call, request: RemoveXattrRequest) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        self.change(call, |op, now, _| {
            op.remove_xattr(&caller, now, At::ino(request.ino), false, &request.name)?;
            Ok(Empty {})
        })
        .await
    }

    /// Sets a directory's default layout, or that of a file that was never written.
    pub async fn set_layout(&self, call: &Call, request: SetLayoutRequest) -> Result<Answer, Refusal> {
        let wish = t::layout_request(request.layout.as_ref());
        let caller = t::caller(request.caller);
        self.change(call, |op, now, _| {
            op.set_layout(&caller, now, t::at(&request.at), &wish)?;
            let attr = op.stat(&caller, t::at(&request.at), true)?;
            self.attr_reply(op, attr)
        })
        .await
    }

    /// Inodes in use.
    pub fn file_count(&self, request: FileCountRequest) -> Answer {
        let mut namespace = self.namespace.borrow_mut();
        let files = namespace.statfs().inodes;
        let tree = namespace.begin().tree_space(request.ino.0).map(|tree| TreeSpace {
            space_bytes: tree.limits.hard_bytes,
            used_bytes: tree.used.bytes,
            files_max: tree.limits.hard_files,
            files: tree.used.files,
        });
        Answer::of(&FileCountReply { files, tree: Added(tree) })
    }
}
