//! Treating one finding: judged again, then repaired in one batch.
//!
//! Where a record cannot be read it goes, and what it leaves without a name, or a count, is found by the next
//! check. An entry counts where its inode is missing and it says "directory", as the directory's own
//! entries are there then; else it goes. What has no name comes to `lost+found`.

use super::audit::Finding;
use super::counts::{Audit, Counts};
use super::damage::Damage;
use super::judge::Judge;
use crate::engine::{CommitSeq, Engine};
use crate::inode::{Entry, Inode, Kind, MODE_MASK, ROOT_INO, SIZE_MAX, Timestamp};
use crate::namespace::{COOKIES_END, Namespace};
use crate::op::Op;
use crate::orphan::Orphan;
use crate::{MetaError, keys};

/// Where things without a name come to, in the root directory.
const LOST_AND_FOUND: &str = "lost+found";

/// What became of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Repaired.
    Repaired,
    /// It no longer held.
    Gone,
    /// Left as it is: there is no way, or another finding must be treated first.
    Left,
}

impl<E: Engine> Namespace<E> {
    /// Treats a finding of the check with this number, if it still holds: in one batch, or not at all.
    /// Returns what a durable reply waits for too. `Stale` if the check is not under way (any more).
    pub fn treat(
        &mut self,
        number: u64,
        now: Timestamp,
        finding: &Finding,
    ) -> Result<(Treatment, CommitSeq), MetaError> {
        self.change(|op| {
            let audit = op.ns.audit.take_if(|audit| audit.number == number).ok_or(MetaError::Stale)?;
            let judged = op.ns.judge_again(&audit, finding);
            op.ns.audit = Some(audit);
            let (value, holds) = judged?;
            if !holds {
                return Ok(Treatment::Gone);
            }
            let (key, damage) = (&finding.key, &finding.damage);
            match op.attempt(|op| op.repair(now, key, value.as_deref(), damage))? {
                true => Ok(Treatment::Repaired),
                false => Ok(Treatment::Left),
            }
        })
    }

    /// The record at which something was found, as it is now, and whether the finding still holds.
    fn judge_again(&self, audit: &Audit, finding: &Finding) -> Result<(Option<Vec<u8>>, bool), MetaError> {
        let mut judge = Judge::new(self, audit);
        let value = self.engine.get(&finding.key)?;
        let mut damage = match &value {
            Some(value) => judge.record(&finding.key, value)?,
            None => Vec::new(),
        };
        if finding.key == keys::SUPER_FILES {
            damage.extend(judge.whole()?);
        }
        Ok((value, damage.contains(&finding.damage)))
    }
}

impl<E: Engine> Op<'_, E> {
    fn counts(&self, ino: u64) -> Counts {
        self.ns.audit.as_ref().map(|audit| audit.counts(ino)).unwrap_or_default()
    }

    /// Stages what repairs the damage at this record; says whether there is something.
    fn repair(
        &mut self,
        now: Timestamp,
        key: &[u8],
        value: Option<&[u8]>,
        damage: &Damage,
    ) -> Result<bool, MetaError> {
        match damage {
            Damage::Unreadable(_) if damage.is_repairable() => self.drop_record(key),
            Damage::Unreadable(_) | Damage::UnknownKey(_) => return Ok(false),
            Damage::NoRoot => self.make_directory(now, ROOT_INO, ROOT_INO, 0o755),
            Damage::MissingInode { dir, .. }
            | Damage::WrongKind { dir, .. }
            | Damage::BadName { dir, .. }
            | Damage::BadParent { dir, .. }
            | Damage::EntryWithoutDirectory { dir, .. } => {
                let name = key[9..].to_vec();
                let entry = Entry::decode(key, value.unwrap_or_default())?;
                return self.repair_entry(now, *dir, &name, entry, damage);
            }
            Damage::OrderMismatch { dir, .. } => self.repair_order(*dir, key, value.unwrap_or_default())?,
            Damage::LinkCount { ino, found, .. } => self.change(*ino, |inode| inode.nlink = *found)?,
            Damage::EntryCount { ino, found, .. } => self.change(*ino, |inode| inode.entries = *found)?,
            Damage::XattrCount { ino, found, .. } => self.change(*ino, |inode| inode.xattrs = *found)?,
            Damage::RootParent(_) => self.change(ROOT_INO, |root| root.parent = ROOT_INO)?,
            Damage::ManyNames { ino, .. } => return self.keep_one_name(*ino),
            Damage::NoName(ino) | Damage::Unreachable(ino) => {
                let inode = self.need(*ino)?;
                self.bring_to_lost_and_found(now, inode)?;
            }
            Damage::BadOrphan(ino) => self.repair_orphan(now, *ino)?,
            Damage::LeftOver(ino) => {
                let inode = self.need(*ino)?;
                self.purge(&inode)?;
            }
            Damage::SmallSize { ino, found, .. } => self.change(*ino, |inode| inode.size = *found)?,
            Damage::BytesOfNothing(_)
            | Damage::XattrOfNothing(_)
            | Damage::LiveGarbage(_)
            | Damage::ReplyOfNothing(_) => {
                self.drop_record(key);
            }
            Damage::BadInode(ino) => self.repair_inode(*ino)?,
            Damage::LayoutServers { ino, .. } => return self.lay_out_again(*ino),
            Damage::BeyondLease { number, .. } => {
                return Ok(self.raise_lease(key, value.unwrap_or_default(), *number));
            }
            Damage::InodeCount { recorded, found } => {
                self.correct_count(*found as i64 - *recorded as i64);
            }
        }
        Ok(true)
    }

    fn change(&mut self, ino: u64, change: impl FnOnce(&mut Inode)) -> Result<(), MetaError> {
        let mut inode = self.need(ino)?;
        change(&mut inode);
        self.put_inode(inode);
        Ok(())
    }

    /// Deletes a record, whatever is in it.
    fn drop_record(&mut self, key: &[u8]) {
        match (key[0], keys::number_of(key)) {
            (keys::INODE, Some(ino)) => self.stage_inode(ino, None),
            (keys::NAME, _) => self.stage_entry(key.to_vec(), None),
            _ => self.delete(key.to_vec()),
        }
    }

    /// Makes the inode of a directory whose entries are there.
    fn make_directory(&mut self, now: Timestamp, ino: u64, parent: u64, mode: u32) {
        let counts = self.counts(ino);
        let mut inode = Inode::new(ino, self.ns.incarnation, Kind::Directory, mode, 0, 0, now);
        inode.parent = parent;
        inode.entries = counts.names.into();
        inode.nlink = counts.subdirs.saturating_add(2);
        self.add_inode(inode);
    }

    fn repair_entry(
        &mut self,
        now: Timestamp,
        dir: u64,
        name: &[u8],
        entry: Entry,
        damage: &Damage,
    ) -> Result<bool, MetaError> {
        match damage {
            Damage::MissingInode { ino, .. } if entry.kind == Kind::Directory => {
                self.make_directory(now, *ino, dir, 0o700);
            }
            Damage::WrongKind { ino, .. } => {
                let kind = self.need(*ino)?.kind;
                self.put_entry(dir, name, Entry { kind, ..entry });
            }
            Damage::BadName { .. } => {
                self.delete_entry(dir, name, &entry);
                let better = format!("#{}.{}", entry.ino, entry.cookie);
                self.put_entry(dir, better.as_bytes(), entry);
            }
            // Its only name says where it is; of several, those elsewhere are wrong.
            Damage::BadParent { ino, .. } if *ino != ROOT_INO && self.counts(*ino).links == 1 => {
                self.change(*ino, |inode| inode.parent = dir)?;
            }
            // An entry that says so is treated first, and makes the directory where it belongs.
            Damage::EntryWithoutDirectory { .. } if self.inode(dir)?.is_none() => {
                if self.counts(dir).links > 0 {
                    return Ok(false);
                }
                self.make_directory(now, dir, ROOT_INO, 0o700);
                let inode = self.need(dir)?;
                self.bring_to_lost_and_found(now, inode)?;
            }
            _ => self.drop_entry(dir, name, &entry)?,
        }
        Ok(true)
    }

    /// Removes an entry and counts it off.
    fn drop_entry(&mut self, dir: u64, name: &[u8], entry: &Entry) -> Result<(), MetaError> {
        self.delete_entry(dir, name, entry);
        if let Some(mut above) = self.inode(dir)?.filter(Inode::is_dir) {
            above.entries = above.entries.saturating_sub(1);
            if entry.kind == Kind::Directory {
                above.nlink = above.nlink.saturating_sub(1);
            }
            self.put_inode(above);
        }
        Ok(())
    }

    /// What is found by name is right; what is only found by order gets its name back if that leads
    /// somewhere.
    fn repair_order(&mut self, dir: u64, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        if key[0] == keys::NAME {
            let name = &key[9..];
            let mut entry = Entry::decode(key, value)?;
            if self.is_taken(dir, name, &entry)? {
                entry.cookie = self.take_cookie();
            }
            self.put_entry(dir, name, entry);
            return Ok(());
        }
        let (entry, name) = Entry::decode_order(key, value)?;
        let leads_somewhere = self.inode(entry.ino)?.is_some_and(|inode| inode.kind == entry.kind);
        if leads_somewhere && self.inode(dir)?.is_some() && self.entry(dir, &name)?.is_none() {
            self.put_entry(dir, &name, entry);
        } else {
            self.delete(key.to_vec());
        }
        Ok(())
    }

    /// Whether the place of an entry in the listing is another one's.
    fn is_taken(&mut self, dir: u64, name: &[u8], entry: &Entry) -> Result<bool, MetaError> {
        let key = keys::order(dir, entry.cookie);
        let Some(value) = self.record(&key)? else { return Ok(false) };
        let Ok((_, other)) = Entry::decode_order(&key, &value) else { return Ok(false) };
        if other == name {
            return Ok(false);
        }
        Ok(self.entry(dir, &other)?.is_some_and(|found| found.cookie == entry.cookie))
    }

    /// Of a directory's names in its parent all but the first go; those elsewhere are findings of their own.
    fn keep_one_name(&mut self, ino: u64) -> Result<bool, MetaError> {
        let parent = self.need(ino)?.parent;
        let prefix = keys::numbered(keys::NAME, parent);
        let mut names = Vec::new();
        for (key, value) in self.records_after(&prefix, &prefix, usize::MAX)? {
            match Entry::decode(&key, &value) {
                Ok(entry) if entry.ino == ino => names.push((key[9..].to_vec(), entry)),
                _ => {}
            }
        }
        for (name, entry) in names.iter().skip(1) {
            self.drop_entry(parent, name, entry)?;
        }
        Ok(names.len() > 1)
    }

    fn repair_orphan(&mut self, now: Timestamp, ino: u64) -> Result<(), MetaError> {
        match self.inode(ino)? {
            Some(inode) if inode.nlink == 0 && self.ns.opens.is_held(ino) => {
                self.put(keys::orphan(ino), Orphan::Nameless.encode());
            }
            // Nothing says that it was to be removed.
            Some(inode) if inode.nlink == 0 => self.bring_to_lost_and_found(now, inode)?,
            _ => self.delete(keys::orphan(ino)),
        }
        Ok(())
    }

    /// Takes off an inode what its kind must not have, and gives it what it must.
    fn repair_inode(&mut self, ino: u64) -> Result<(), MetaError> {
        let mut inode = self.need(ino)?;
        if inode.kind == Kind::Symlink && inode.target.is_none() {
            self.delete_inode(ino);
            return Ok(());
        }
        if inode.kind == Kind::File && inode.layout.is_none() {
            inode.layout = Some(self.layout_for(ino, None, None)?);
            inode.dirty_size = true;
        }
        if inode.kind != Kind::File {
            inode.layout = None;
            inode.small = false;
        }
        inode.dirty_size &= !inode.small;
        if inode.kind != Kind::Symlink {
            inode.target = None;
        }
        if !inode.is_dir() {
            inode.default_layout = None;
        }
        if inode.size > SIZE_MAX {
            inode.size = 0;
            inode.dirty_size = inode.kind == Kind::File;
        }
        inode.mode &= MODE_MASK;
        for time in [&mut inode.atime, &mut inode.mtime, &mut inode.ctime, &mut inode.btime] {
            time.nanos = time.nanos.min(999_999_999);
        }
        self.put_inode(inode);
        Ok(())
    }

    /// A file that has no data yet may lie anywhere.
    fn lay_out_again(&mut self, ino: u64) -> Result<bool, MetaError> {
        let mut inode = self.need(ino)?;
        if inode.size > 0 || inode.may_have_data() {
            return Ok(false);
        }
        inode.layout = Some(self.layout_for(ino, None, None)?);
        self.put_inode(inode);
        Ok(true)
    }

    /// Takes care that the number, and none below it, is given out again; the commit writes the lease. An inode
    /// number of another shard is left alone, and so is a cookie that nobody can have counted to.
    fn raise_lease(&mut self, key: &[u8], value: &[u8], number: u64) -> bool {
        if key[0] != keys::INODE {
            if number >= COOKIES_END / 2 {
                return false;
            }
            self.ns.next_cookie = self.ns.next_cookie.max(number + 1);
        } else if !self.ns.go_on_behind(number) {
            return false;
        }
        self.put(key.to_vec(), value.to_vec());
        true
    }

    /// Gives an inode a name in `lost+found`: the only one it has then, or for a directory the one where its
    /// parent is.
    pub(super) fn bring_to_lost_and_found(
        &mut self,
        now: Timestamp,
        mut inode: Inode,
    ) -> Result<(), MetaError> {
        let mut above = self.lost_and_found(now)?;
        if above.ino == inode.ino {
            above = self.need(ROOT_INO)?;
        }
        let cookie = self.take_cookie();
        let mut name = format!("#{}", inode.ino);
        if self.entry(above.ino, name.as_bytes())?.is_some() {
            name = format!("{name}.{cookie}");
        }
        if inode.is_dir() {
            inode.parent = above.ino;
            above.nlink = above.nlink.saturating_add(1);
        } else {
            inode.nlink = 1;
        }
        above.entries += 1;
        self.put_entry(above.ino, name.as_bytes(), Entry { ino: inode.ino, kind: inode.kind, cookie });
        self.put_inode(above);
        self.put_inode(inode);
        Ok(())
    }

    /// The directory, made where it is missing; another name is taken where that one is something else.
    fn lost_and_found(&mut self, now: Timestamp) -> Result<Inode, MetaError> {
        for number in 0.. {
            let name = if number == 0 { LOST_AND_FOUND.into() } else { format!("{LOST_AND_FOUND}.{number}") };
            match self.entry(ROOT_INO, name.as_bytes())? {
                Some(entry) => match self.inode(entry.ino)? {
                    Some(inode) if inode.is_dir() && inode.parent == ROOT_INO => return Ok(inode),
                    _ => continue,
                },
                None => return self.make_lost_and_found(now, &name),
            }
        }
        Err(MetaError::NotFound)
    }

    fn make_lost_and_found(&mut self, now: Timestamp, name: &str) -> Result<Inode, MetaError> {
        let mut root = self.need_dir(ROOT_INO)?;
        let (ino, cookie) = (self.take_ino()?, self.take_cookie());
        let mut inode = Inode::new(ino, self.ns.incarnation, Kind::Directory, 0o700, 0, 0, now);
        inode.parent = ROOT_INO;
        root.entries += 1;
        root.nlink = root.nlink.saturating_add(1);
        self.put_entry(ROOT_INO, name.as_bytes(), Entry { ino, kind: Kind::Directory, cookie });
        self.put_inode(root);
        self.add_inode(inode.clone());
        Ok(inode)
    }
}
