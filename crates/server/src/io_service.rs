//! The table of an I/O server: which function does which operation.

use crate::answer::{Answer, Refusal};
use crate::identity::Session;
use crate::io::IoPart;
use crate::node::Node;
use crate::service::Service;
use crate::status;
use std::rc::Rc;
use weft_storage::Disk;
use weft_transport::ServerBulk;
use weft_wire::messages::{
    CalibrateRequest, Empty, RevokedReply, ScrubRequest, SetRevokedRequest, peer_role,
};
use weft_wire::{Class, Header, Op};

/// One thread's view of an I/O server.
pub(crate) struct IoService<D: Disk> {
    node: Rc<Node>,
    pub io: IoPart<D>,
}

impl<D: Disk> IoService<D> {
    pub fn new(node: Rc<Node>, io: IoPart<D>) -> Rc<IoService<D>> {
        Rc::new(IoService { node, io })
    }

    async fn calibrate(&self, session: &Session, request: CalibrateRequest) -> Result<Answer, Refusal> {
        if request.measure {
            session.identity.must_administer("have a server measure its costs")?;
        }
        self.io.calibrate(&self.node.shared.name, request).await
    }

    fn scrub(&self, session: &Session, body: &[u8]) -> Result<Answer, Refusal> {
        session.identity.must_administer("scrub data")?;
        let request: ScrubRequest = session.decode(Op::Scrub, body)?;
        Ok(Answer::of(&self.node.shared.scrub.answer(&request)))
    }
}

impl<D: Disk> Service for IoService<D> {
    fn node(&self) -> &Rc<Node> {
        &self.node
    }

    fn may_wait(&self, op: Op) -> bool {
        op.class() == Class::Bulk
    }

    fn loss_epoch(&self) -> u64 {
        self.io.loss_epoch_of_all()
    }

    async fn dispatch<B: ServerBulk>(
        &self,
        session: &Session,
        header: &Header,
        body: &[u8],
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        let (io, op) = (&self.io, header.op);
        self.node.admit(session, header).await?;
        match op {
            Op::Read => io.read(session.client, session.decode(op, body)?, bulk).await,
            Op::Write => io.write(session.client, session.decode(op, body)?, bulk).await,
            // In a box, so that a read or write is not as large as the largest of them.
            _ => Box::pin(self.dispatch_seldom(session, op, body, bulk)).await,
        }
    }
}

impl<D: Disk> IoService<D> {
    /// All but reads and writes.
    async fn dispatch_seldom<B: ServerBulk>(
        &self,
        session: &Session,
        op: Op,
        body: &[u8],
        bulk: &mut B,
    ) -> Result<Answer, Refusal> {
        use Op::*;
        let (node, io) = (&self.node, &self.io);
        match op {
            Hello | Prove => node.is_proven(),
            MemoryProbe | SegmentAdd | SegmentDrop => node.not_over_this_transport(op),
            Ping => Ok(node.ping(session.decode(op, body)?)),
            ClusterMap => node.cluster_map().await,
            Status => Ok(node.status(session, session.decode(op, body)?, Vec::new())),
            Space => io.space(status::space_of(&node.shared)),
            NotedLayouts => io.noted_layouts(session.decode(op, body)?).await,
            VouchEmpty => io.vouch_empty(session.decode(op, body)?).await,
            Read | Write => unreachable!("they are dispatched by themselves"),
            Sync => io.sync(session.decode(op, body)?).await,
            SyncAll => io.sync_all(session.decode(op, body)?).await,
            Size => io.size(session.decode(op, body)?),
            Truncate => io.truncate(session.decode(op, body)?).await,
            Punch => io.punch(session.decode(op, body)?).await,
            Allocate => io.allocate(session.decode(op, body)?).await,
            Explain => io.explain(session.decode(op, body)?, bulk).await,
            Calibrate => self.calibrate(session, session.decode(op, body)?).await,
            Scrub => self.scrub(session, body),
            Seek => io.seek(session.decode(op, body)?),
            Zero => io.zero(session.decode(op, body)?).await,
            CopyRange => io.copy_range(session.decode(op, body)?).await,
            RemoveObjects => io.remove_objects(session.decode(op, body)?).await,
            PlaceObject => io.place_object(session.decode(op, body)?).await,
            ListObjects => io.list_objects(session.decode(op, body)?, &node.shared.scrub),
            StatObjects => {
                let is_server = session.hello.role == peer_role::SERVER;
                io.stat_objects(session.decode(op, body)?, is_server).await
            }
            SetRevoked => {
                let request: SetRevokedRequest = session.decode(op, body)?;
                node.set_revoked(request.ids).map(|()| Answer::of(&Empty {}))
            }
            Revoked => Ok(Answer::of(&RevokedReply { ids: node.shared.revoked.ids() })),
            Register | ReplaceServer | AddServer | MoveServer | ListServers | NoteKey | ListKeys
            | RevokeKey | Backup | Check | Treat | Lookup | GetAttr | SetAttr | Create | CreateUnnamed
            | Open | Close | Report | Reopen | Mkdir | Mknod | Symlink | Readlink | Link | Unlink | Rmdir
            | Rename | ReadDir | Access | GetXattr | SetXattr | ListXattrs | RemoveXattr | SetLayout
            | Reserve | SetQuota | ListQuotas | MarkTree | CountUsage | FindPaths | TruncateBegin
            | TruncateCommit | Settle | FileCount | Lock | Unlock | GetLock | Append | ClaimLocks
            | FetchAdd | ReadSmall | WriteSmall | SyncSmall | Spread | SyncMeta | Watch => {
                node.not_here(op, "a metadata server")
            }
        }
    }
}
