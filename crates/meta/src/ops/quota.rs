//! Quotas as operators and writers meet them: limits, what is used, directory trees, and grants to writers.
//!
//! A *tree* is a directory with a quota and all below it. Each inode in it has the number of that directory, which new ones take
//! from their directory. Trees do not contain each other, a directory does not move out of one or into one (programs that
//! move then copy), and a hard link does not lead into another. What is there when a directory becomes a tree is marked in pages,
//! directory by directory, from above: what is made meanwhile is marked by its directory.

use crate::MetaError;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, ROOT_INO};
use crate::keys;
use crate::ledger::Counting;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::opens::Effect;
use crate::quota::{
    EVERYONE, LimitRecord, Limits, OverSince, QuotaEffect, Stored, Subject, Used, encode_limit, encode_state,
    limit_key, shown,
};

/// How far usage is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaState {
    /// No limit was ever set, and nothing is counted.
    Off,
    /// It is being counted: so many inodes of about so many are.
    Counting {
        /// Counted so far.
        counted: u64,
        /// All.
        inodes: u64,
    },
    /// It is exact.
    On,
}

/// Usage and limits of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRow {
    /// Whose.
    pub subject: Subject,
    /// What it has.
    pub used: Used,
    /// Bytes that writers may still add to files without asking.
    pub reserved_bytes: u64,
    /// The limits that count.
    pub limits: Option<Limits>,
    /// Whether they are its own.
    pub is_own: bool,
    /// Since when it is over the soft ones.
    pub over: OverSince,
}

/// A tree whose limits are its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSpace {
    /// Its limits.
    pub limits: Limits,
    /// What is used of them.
    pub used: Used,
}

/// A page of a directory that was marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePage {
    /// The subdirectories in it, which are marked, but not what is in them.
    pub directories: Vec<u64>,
    /// Entries of the page.
    pub entries: u32,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<u64>,
}

impl<E: Engine> Op<'_, E> {
    /// How far writers of the file may extend it: at least to `end` if that is given, which is then promised to them. `None`: as far as
    /// they like.
    ///
    /// # Errors
    /// `Quota` if a limit is in the way.
    pub fn grant(&mut self, ino: u64, end: Option<u64>) -> Result<Option<u64>, MetaError> {
        if self.ns.ledger.is_off() {
            return Ok(None);
        }
        let (owner, file_bytes) = self.need(ino)?.charge();
        let bound = self.ns.ledger.bound(ino, owner, file_bytes, end)?;
        if let Some(end) = bound {
            self.effect(Effect::Quota(QuotaEffect::Grant { ino, end }));
        }
        Ok(bound)
    }

    /// A file has this size by a truncation: those who write to it ask anew before they extend it.
    pub(crate) fn cut_grant(&mut self, ino: u64, file_bytes: u64) {
        if !self.ns.ledger.is_off() {
            self.effect(Effect::Quota(QuotaEffect::Cut { ino, end: file_bytes }));
        }
    }

    /// Sets the limits of a subject, or takes them away. Usage is counted from the first time on.
    ///
    /// # Errors
    /// `Stale` for a tree that is none.
    pub fn set_limits(&mut self, subject: Subject, limits: Option<Limits>) -> Result<(), MetaError> {
        self.attempt(|op| {
            if let Subject::Tree(ino) = subject
                && limits.is_some()
                && op.need_dir(ino)?.tree != ino
            {
                return Err(MetaError::Invalid("the directory is not marked as a tree with a quota"));
            }
            let over =
                if limits.is_some() { op.ns.ledger.standing(subject).over } else { OverSince::default() };
            let record = LimitRecord { limits, over };
            match limits {
                Some(_) => op.put(limit_key(subject), encode_limit(&record)),
                None => op.delete(limit_key(subject)),
            }
            op.effect(Effect::Quota(QuotaEffect::Limit { subject, record }));
            if op.ns.ledger.is_off() {
                op.count_usage_anew();
            }
            Ok(())
        })
    }

    /// Has all usage counted anew, with the steps of [`Namespace::count_usage`].
    pub fn count_usage_anew(&mut self) {
        self.put(keys::SUPER_QUOTA, encode_state(Stored::Counting));
        self.effect(Effect::Quota(QuotaEffect::Count));
    }

    /// Marks what is in the directory `dir` as of the tree `to` (0: of none) instead of `from`, after the cookie `after`, and the
    /// directory itself. Begin with the tree's own directory, and go on with the directories that are returned.
    ///
    /// # Errors
    /// `NotSupported` if there is another tree in it, or it is in one.
    pub fn mark_tree(
        &mut self,
        dir: u64,
        (from, to): (u64, u64),
        after: u64,
        entries_max: usize,
    ) -> Result<TreePage, MetaError> {
        self.attempt(|op| {
            let inode = op.need_dir(dir)?;
            let tree = from.max(to);
            if tree == ROOT_INO {
                return Err(MetaError::Invalid(
                    "the root directory cannot be a tree: set limits of users or groups",
                ));
            }
            if dir != tree && inode.tree != to {
                // It has left the tree since it was named.
                return Ok(TreePage { directories: Vec::new(), entries: 0, next: None });
            }
            op.mark(inode, from, to)?;
            let prefix = keys::numbered(keys::ORDER, dir);
            let records = op.records_after(&prefix, &keys::order(dir, after), entries_max)?;
            let mut page = TreePage { directories: Vec::new(), entries: records.len() as u32, next: None };
            for (key, value) in &records {
                let (Entry { ino, cookie, .. }, _) = Entry::decode_order(key, value)?;
                page.next = (records.len() == entries_max).then_some(cookie);
                let Some(inode) = op.inode(ino)? else { continue };
                if inode.is_dir() {
                    page.directories.push(ino);
                }
                op.mark(inode, from, to)?;
            }
            Ok(page)
        })
    }

    fn mark(&mut self, mut inode: Inode, from: u64, to: u64) -> Result<(), MetaError> {
        if inode.tree == to {
            return Ok(());
        }
        if inode.tree != from && !inode.is_dir() {
            // It has a name in another tree, too, and counts there.
            return Ok(());
        }
        if inode.tree != from {
            return Err(MetaError::NotSupported("directory trees with quotas within each other"));
        }
        inode.tree = to;
        self.put_inode(inode);
        Ok(())
    }

    /// Puts an inode that is moved from one directory to another into the tree of the new one.
    ///
    /// # Errors
    /// `OtherTree` for a directory, and a file with other names.
    pub(crate) fn move_to_tree(&mut self, inode: &mut Inode, tree: u64) -> Result<(), MetaError> {
        let is_root = inode.is_dir() && inode.tree == inode.ino;
        if inode.tree == tree || is_root && tree == 0 {
            return Ok(());
        }
        if inode.is_dir() || inode.nlink > 1 {
            return Err(MetaError::OtherTree);
        }
        inode.tree = tree;
        Ok(())
    }

    /// A directory that is a tree with a quota is gone.
    pub(crate) fn drop_tree(&mut self, inode: &Inode) {
        if inode.is_dir() && inode.tree == inode.ino {
            let subject = Subject::Tree(inode.ino);
            self.delete(limit_key(subject));
            self.effect(Effect::Quota(QuotaEffect::Limit { subject, record: LimitRecord::default() }));
        }
    }

    /// The tree that an inode is in, if its limits are its size for statfs.
    pub fn tree_space(&mut self, ino: u64) -> Option<TreeSpace> {
        if self.ns.ledger.is_off() || ino == 0 {
            return None;
        }
        let tree = self.inode(ino).ok()??.tree;
        let row = self.ns.quota_of(Subject::Tree(tree));
        let limits = row.limits.filter(|limits| limits.in_statfs)?;
        Some(TreeSpace { limits, used: row.used })
    }
}

impl<E: Engine> Namespace<E> {
    /// How far usage is known.
    pub fn quota_state(&self) -> QuotaState {
        match self.ledger.counting {
            Counting::Off => QuotaState::Off,
            Counting::Below(_) => QuotaState::Counting {
                counted: self.ledger.owners().map(|(_, used)| used.files).sum(),
                inodes: self.count.now(),
            },
            Counting::Done => QuotaState::On,
        }
    }

    /// Up to `max` subjects that use something or have limits and are to be shown, in order, from `from` on, `inclusive` or not.
    pub fn quotas(
        &self,
        from: Subject,
        inclusive: bool,
        max: usize,
        is_shown: impl Fn(&Subject) -> bool,
    ) -> Vec<QuotaRow> {
        let all = self.ledger.standings().into_iter().map(|(subject, _)| subject);
        let rest = all.filter(|subject| *subject > from || inclusive && *subject == from);
        rest.filter(is_shown).take(max).map(|subject| self.quota_of(subject)).collect()
    }

    /// Usage and limits of one subject.
    pub fn quota_of(&self, subject: Subject) -> QuotaRow {
        let standing = self.ledger.standing(subject);
        let is_everyone = matches!(subject, Subject::User(EVERYONE) | Subject::Group(EVERYONE));
        QuotaRow {
            subject,
            used: standing.used.shown(),
            reserved_bytes: shown(standing.reserved_bytes),
            limits: self.ledger.limits_of(subject),
            is_own: is_everyone || standing.limits.is_some(),
            over: standing.over,
        }
    }
}
