//! Where a file's bytes go: per file at its creation, per directory as the default of what is made below it.

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::flags::require_alterable;
use crate::inode::{Kind, LayoutRequest, Timestamp};
use crate::op::Op;
use crate::walk::{At, Follow};
use weft_layout::Layout;

/// What `get_layout` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutInfo {
    /// The layout of a file.
    File(Layout),
    /// The default of a directory, completed by the cluster's; `own` is what was set on the directory itself or
    /// inherited when it was made.
    Directory {
        /// What new files get.
        effective: LayoutRequest,
        /// What is stored with the directory.
        own: Option<LayoutRequest>,
    },
}

impl LayoutRequest {
    /// This request, completed by `other` where it says nothing.
    fn or(&self, other: &LayoutRequest) -> LayoutRequest {
        LayoutRequest {
            strip_bytes: self.strip_bytes.or(other.strip_bytes),
            server_count: self.server_count.or(other.server_count),
            first_server: self.first_server.or(other.first_server),
        }
    }
}

impl<E: Engine> Op<'_, E> {
    /// The layout of a file, or the default of a directory.
    pub fn get_layout(&mut self, caller: &Caller, at: At) -> Result<LayoutInfo, MetaError> {
        let inode = self.resolve(caller, at, Follow::Always)?;
        match (inode.kind, inode.layout) {
            (Kind::Directory, _) => Ok(LayoutInfo::Directory {
                effective: inode.default_layout.unwrap_or_default().or(&self.cluster_default()),
                own: inode.default_layout,
            }),
            (_, Some(layout)) => Ok(LayoutInfo::File(layout)),
            _ => Err(MetaError::Invalid("only files and directories have a layout")),
        }
    }

    /// Sets the layout of a file that is empty, was never written and is not open for writing, or the default of a
    /// directory (an empty request: back to the cluster's).
    pub fn set_layout(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        request: &LayoutRequest,
    ) -> Result<LayoutInfo, MetaError> {
        self.attempt(|op| {
            let mut inode = op.resolve(caller, at, Follow::Always)?;
            if !caller.owns(&inode) {
                return Err(MetaError::NotPermitted);
            }
            require_alterable(&inode)?;
            let layout = op.layout_for(inode.ino, None, Some(request))?;
            match inode.kind {
                Kind::Directory => {
                    inode.default_layout = (*request != LayoutRequest::default()).then_some(*request);
                }
                Kind::File if inode.size > 0 || inode.may_have_data() => {
                    return Err(MetaError::Busy(
                        "a file that was written, or is being written, keeps its layout",
                    ));
                }
                Kind::File if op.ns.opens.has_writers(inode.ino) => {
                    return Err(MetaError::Busy("a file that is open for writing keeps its layout"));
                }
                Kind::File => {
                    inode.layout = Some(layout);
                    inode.small = false;
                }
                _ => return Err(MetaError::Invalid("only files and directories have a layout")),
            }
            inode.ctime = now;
            let ino = inode.ino;
            op.put_inode(inode);
            op.get_layout(caller, At::ino(ino))
        })
    }

    /// The layout of file `ino`: the request, else the directory's default, else the cluster's. Defaults bend to the
    /// servers there are; a request that cannot be met fails. Without a first server, files start on different ones.
    pub(crate) fn layout_for(
        &self,
        ino: u64,
        default: Option<&LayoutRequest>,
        request: Option<&LayoutRequest>,
    ) -> Result<Layout, MetaError> {
        let ring = self.ns.options.ring_servers.max(1);
        let asked = request.copied().unwrap_or_default();
        if asked.server_count.is_some_and(|count| count > ring) {
            return Err(MetaError::Invalid("more servers than the cluster has"));
        }
        if asked.first_server.is_some_and(|first| first >= ring) {
            return Err(MetaError::Invalid("no such first server"));
        }
        let wish = asked.or(&default.copied().unwrap_or_default()).or(&self.cluster_default());
        let strip_bytes = wish.strip_bytes.unwrap_or(self.ns.options.strip_bytes);
        let count = match wish.server_count.unwrap_or(0) {
            0 => ring,
            count => count.min(ring),
        };
        let first = wish.first_server.map_or((ino % u64::from(ring)) as u16, |first| first % ring);
        Layout::new(strip_bytes, first, count, ring)
            .map_err(|_| MetaError::Invalid("strip size: a multiple of 4096 from 4 KiB to 1 GiB"))
    }
}
