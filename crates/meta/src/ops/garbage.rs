//! What becomes of an inode without names: orphan while it is open, then garbage until its data files are gone.
//!
//! ```text
//!   unlink, open     inode nlink 0, u<ino>         last close:  inode deleted, g<ino> -> layout
//!   made unnamed     inode nlink 0, u<ino>         link: u<ino> deleted; last close without one: as above
//!   unlink, looked at   as if open                 a moment later, unless it is open then: the same
//!   unlink, closed   inode deleted, g<ino>         data files removed on the I/O servers: g<ino> deleted
//!                                                  except on these: g<ino> deleted, p<server><ino> for each
//!   p<server><ino>                                 removed there, too: deleted
//! ```
//!
//! So the metadata server asks a server that answers once for each data file, however long another one is down.
//!
//! A file never written has no data files and leaves no garbage record.

use crate::MetaError;
use crate::engine::{Engine, Room};
use crate::inode::{Inode, Timestamp, decode_layout};
use crate::keys;
use crate::lately::LatelyRemoved;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::opens::Effect;
use crate::orphan::Orphan;
use crate::shard::keys_of;
use weft_layout::Layout;

const POSTPONED_VERSION: u8 = 1;
/// Records handled in one batch.
const BATCH: usize = 256;

impl<E: Engine> Op<'_, E> {
    /// Takes the name in `dir` off `inode`, and stages what follows from it. If it was the last one, the inode is kept for a moment
    /// where `keep` says so of directory and inode.
    pub(crate) fn drop_link(
        &mut self,
        now: Timestamp,
        mut inode: Inode,
        dir: u64,
        keep: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(), MetaError> {
        inode.nlink -= 1;
        inode.ctime = now;
        if inode.nlink > 0 {
            self.put_inode(inode);
            return Ok(());
        }
        let fits = LatelyRemoved::takes(inode.size) && self.ns.engine.has_room(Room::Growth);
        let kept = fits && keep(dir, inode.ino);
        if kept {
            self.effect(Effect::Keep { ino: inode.ino, bytes: inode.size });
        }
        if kept || self.ns.grace || self.ns.opens.is_held(inode.ino) {
            self.put(keys::orphan(inode.ino), Orphan::Nameless.encode());
            self.put_inode(inode);
        } else {
            // It had a name until now, so it has no record of an orphan.
            self.purge_named(&inode)?;
        }
        Ok(())
    }

    /// Has an inode without a name be no orphan any more, for it gets its first name.
    ///
    /// # Errors
    /// `NotFound` unless it was made to get one.
    pub(crate) fn end_orphan(&mut self, ino: u64) -> Result<(), MetaError> {
        let key = keys::orphan(ino);
        let orphan = self.record(&key)?.map(|value| Orphan::decode(ino, &value)).transpose()?;
        if orphan != Some(Orphan::Linkable) {
            return Err(MetaError::NotFound);
        }
        self.delete(key);
        Ok(())
    }

    /// Whether an inode without a name goes when `ending` of `all` the holds on it end.
    pub(crate) fn is_last_hold(&self, ino: u64, ending: u32, all: u32) -> bool {
        ending == all && !self.ns.grace && !self.ns.opens.lately_removed.contains(ino)
    }

    /// Lets go of an inode that was kept for a moment.
    fn let_go(&mut self, ino: u64) -> Result<(), MetaError> {
        self.effect(Effect::LetGo { ino });
        let Some(inode) = self.inode(ino)?.filter(|inode| inode.nlink == 0) else { return Ok(()) };
        if self.ns.grace || self.ns.opens.file(ino).is_some() { Ok(()) } else { self.purge(&inode) }
    }

    /// Deletes an inode with all that hangs on it, and leaves the garbage record for its data.
    pub(crate) fn purge(&mut self, inode: &Inode) -> Result<(), MetaError> {
        self.purge_named(inode)?;
        if inode.nlink == 0 {
            self.delete(keys::orphan(inode.ino));
        }
        Ok(())
    }

    fn purge_named(&mut self, inode: &Inode) -> Result<(), MetaError> {
        if inode.xattrs > 0 {
            let prefix = keys::numbered(keys::XATTR, inode.ino);
            for (key, _) in self.records_after(&prefix, &prefix, usize::MAX)? {
                self.delete(key);
            }
        }
        if inode.small && inode.size > 0 {
            self.delete(keys::small(inode.ino));
            self.effect(Effect::Spread { ino: inode.ino, begins: false });
        }
        if let Some(layout) = inode.layout.filter(|_| inode.may_have_data()) {
            self.leave_garbage(inode.ino, &layout);
        }
        self.drop_tree(inode);
        self.drop_tail(inode.ino);
        self.drop_counters_of(inode.ino);
        self.delete_inode(inode.ino);
        Ok(())
    }

    /// Up to `max` removed files whose data files still have to go, with numbers above `after`.
    pub fn garbage(&mut self, after: u64, max: usize) -> Result<Vec<(u64, Layout)>, MetaError> {
        let page = self.records_after(&[keys::GARBAGE], &keys::garbage(after), max)?;
        page.iter()
            .map(|(key, value)| {
                Ok((keys::number_of(key).ok_or(MetaError::Stale)?, decode_layout(key, value)?))
            })
            .collect()
    }

    /// Notes that the data files of these are gone from all their servers, or [postponed](Op::postpone_removal).
    pub fn garbage_done(&mut self, inos: &[u64]) {
        for ino in inos {
            self.delete(keys::garbage(*ino));
        }
    }

    /// Notes that these data files are still to be removed on a server that does not answer.
    pub fn postpone_removal(&mut self, server: u16, inos: &[u64]) {
        for ino in inos {
            self.put(keys::postponed(server, *ino), vec![POSTPONED_VERSION]);
        }
    }

    /// Up to `max` data files that are still to be removed on a server, with numbers above `after`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn postponed_removals(&mut self, server: u16, after: u64, max: usize) -> Result<Vec<u64>, MetaError> {
        let after = keys::postponed(server, after);
        let page = self.records_after(&keys::postponed_on(server), &after, max)?;
        page.iter()
            .map(|(key, _)| keys::postponed_of(key).map(|(_, ino)| ino).ok_or(MetaError::Stale))
            .collect()
    }

    /// Notes that these data files are gone from a server, one of those that are `behind`. Returns how many files
    /// have none on any server now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn postponed_done(&mut self, server: u16, inos: &[u64], behind: &[u16]) -> Result<usize, MetaError> {
        let mut gone = 0;
        for ino in inos {
            self.delete(keys::postponed(server, *ino));
            gone += usize::from(!self.is_postponed(behind, *ino)?);
        }
        Ok(gone)
    }

    fn is_postponed(&mut self, servers: &[u16], ino: u64) -> Result<bool, MetaError> {
        for server in servers {
            if self.record(&keys::postponed(*server, ino))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Which of these inodes exist (orphans included).
    pub fn inodes_exist(&mut self, inos: &[u64]) -> Result<Vec<bool>, MetaError> {
        inos.iter().map(|ino| Ok(self.inode(*ino)?.is_some())).collect()
    }
}

impl<E: Engine> Op<'_, E> {
    /// The last key of the page of orphans and how many of them go; `None` if the page is empty.
    fn reap_page(&mut self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, usize)>, MetaError> {
        let page = self.records_between(from, to, BATCH)?;
        let Some((last, _)) = page.last().cloned() else { return Ok(None) };
        let mut reaped = 0;
        for (key, _) in page {
            let ino = keys::number_of(&key).ok_or(MetaError::Stale)?;
            match self.inode(ino)? {
                _ if self.ns.opens.is_held(ino) => continue,
                Some(inode) if inode.nlink == 0 => self.purge(&inode)?,
                _ => self.delete(key),
            }
            reaped += 1;
        }
        Ok(Some((last, reaped)))
    }
}

impl<E: Engine> Namespace<E> {
    /// Servers on which data files are still to be removed that did not answer when they were asked to.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn servers_behind(&self) -> Result<Vec<u16>, MetaError> {
        let mut servers = Vec::new();
        let (mut from, to) = (vec![keys::POSTPONED], keys::after_prefix(&[keys::POSTPONED]));
        while let Some(pair) = self.engine.scan(&from, &to).next() {
            let (server, _) = keys::postponed_of(&pair?.0).ok_or(MetaError::Stale)?;
            servers.push(server);
            from = keys::after_prefix(&keys::postponed_on(server));
        }
        Ok(servers)
    }

    /// Whether data files of this number are still to be removed.
    pub(crate) fn is_garbage(&self, ino: u64) -> Result<bool, MetaError> {
        let on_servers =
            self.servers_behind()?.into_iter().map(|server| keys::postponed(server, ino).to_vec());
        for key in std::iter::once(keys::garbage(ino).to_vec()).chain(on_servers) {
            if self.engine.get(&key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether many inodes are kept that were removed, so that the moment should be over before its time.
    pub fn keeps_many_removed(&self) -> bool {
        self.opens.lately_removed.is_full()
    }

    /// Lets go of up to `max` removed inodes that are old, in one commit; returns how many. After all of them the
    /// turn ends with [`turn_removed`](Namespace::turn_removed).
    pub fn let_go_of_removed(&mut self, max: usize) -> Result<usize, MetaError> {
        let old = self.opens.lately_removed.old(max);
        if old.is_empty() {
            return Ok(0);
        }
        self.change(|op| op.attempt(|op| old.iter().try_for_each(|ino| op.let_go(*ino))))?;
        Ok(old.len())
    }

    /// Removed inodes that were kept until now are old from now on.
    pub fn turn_removed(&mut self) {
        self.opens.lately_removed.turn();
    }

    /// Ends the time of grace after a restart: deletes unlinked files of a shard that no session has come back for,
    /// and lets sizes be settled again. Returns how many files went.
    pub fn reap_orphans(&mut self, shard: u16) -> Result<usize, MetaError> {
        self.grace = false;
        self.drop_old_tails(shard)?;
        self.drop_old_counters(shard)?;
        let mut reaped = 0;
        let (mut from, to) = keys_of(keys::ORPHAN, shard);
        loop {
            let (page, _) = self.change(|op| op.reap_page(&from, &to))?;
            let Some((last, reaped_here)) = page else { return Ok(reaped) };
            reaped += reaped_here;
            from = last;
            from.push(0);
        }
    }
}
