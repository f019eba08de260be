//! Makes a tree the same as another: what a pair of entries needs, and the walk over both trees.
//!
//! ```text
//!   source   a  b  c/         decide(a, a') = Keep     same size and time
//!   target   a'    c'/ d'     decide(b, –)  = Copy     a worker writes it apart, sets its times, renames it
//!                             decide(c, c') = Enter
//!                             decide(–, d') = Remove   with --delete, at the end, if the whole source could be read
//! ```
//!
//! A file's times are set before it gets its name. So a file that has the size and the time of its source has its contents,
//! whenever a sync is killed.

use super::apart::{Apart, is_apart};
use super::file::Goal;
use super::job::{Options, Pair};
use super::queue::{Queue, Task};
use super::side::{Kind, Meta, Side};
use super::{Copy, FinishDir};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use weft_cli_common::place::ends_with_slash;

/// What [`sync`](super::sync()) does.
#[derive(Default)]
pub struct Rules {
    /// Remove what the source does not have.
    pub delete: bool,
    /// Compare the contents of files of the same size, not their times.
    pub checksum: bool,
    /// What is left alone on both sides, and what is not all the same; the first that matches counts.
    pub patterns: Vec<Pattern>,
}

/// Names that are left out, or are not.
pub struct Pattern {
    glob: glob::Pattern,
    /// It is for paths below the source, not for names.
    of_path: bool,
    excludes: bool,
}

impl Pattern {
    /// From a glob. One with a slash is for the path below the source, others are for names in any directory.
    pub fn parse(glob: &str, excludes: bool) -> Result<Pattern, glob::PatternError> {
        let of_path = glob.trim_end_matches('/').contains('/');
        Ok(Pattern { glob: glob::Pattern::new(glob.trim_matches('/'))?, of_path, excludes })
    }

    fn matches(&self, path: &Path) -> bool {
        let options = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
        self.glob.matches_with(&path.to_string_lossy(), options)
    }
}

impl Rules {
    /// Whether something is left alone, by its path below the source.
    fn leaves_out(&self, below: &Path) -> bool {
        let name = below.file_name().map(Path::new).unwrap_or(below);
        let found =
            self.patterns.iter().find(|pattern| pattern.matches(if pattern.of_path { below } else { name }));
        found.is_some_and(|pattern| pattern.excludes)
    }
}

/// What an entry of the source needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing.
    Keep,
    /// Its attributes.
    Attributes,
    /// To be compared: same size, and times do not count.
    Compare,
    /// To be made, or made anew.
    Make,
    /// What is there is of another kind: it goes first.
    Replace,
}

/// What `source` needs to be at the target as well, where there is `target`.
pub(super) fn need(source: &Meta, target: Option<&Meta>, checksum: bool, owner: bool) -> Need {
    let Some(target) = target else { return Need::Make };
    if source.kind != target.kind {
        return Need::Replace;
    }
    let same_content = source.size == target.size && source.mtime() == target.mtime();
    match source.kind {
        Kind::File if checksum && source.size == target.size => Need::Compare,
        Kind::File if !same_content => Need::Make,
        Kind::Symlink if source.size != target.size => Need::Make,
        Kind::Symlink => Need::Compare,
        _ if source.has_same_attributes(target, owner) => Need::Keep,
        _ => Need::Attributes,
    }
}

/// Two directories that are to be the same.
struct Both {
    from: PathBuf,
    to: PathBuf,
    /// Below the source.
    below: PathBuf,
    from_meta: Meta,
    /// The target, if there is one.
    to_meta: Option<Meta>,
}

impl Copy<'_> {
    /// Walks over both trees; what is to be copied comes to `queue`, what is to be removed is returned.
    pub(super) fn walk_both(
        &self,
        pair: &Pair,
        rules: &Rules,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
    ) -> Vec<(PathBuf, Meta)> {
        let mut extra = Vec::new();
        let Some(from_meta) = self.note(&pair.from_side, &pair.from, pair.from_side.meta(&pair.from, true))
        else {
            return extra;
        };
        let to_meta = pair.to_side.meta(&pair.to, true).ok();
        if from_meta.kind != Kind::Directory {
            let done = self.sync_file_alone(pair, rules, from_meta, to_meta, queue);
            self.note(&pair.from_side, &pair.from, done);
            return extra;
        }
        if to_meta.as_ref().is_some_and(|there| there.kind != Kind::Directory) {
            let refused: Result<()> =
                Err(anyhow::anyhow!("is a file, and the source is a directory; remove it first"));
            self.note(&pair.to_side, &pair.to, refused);
            return extra;
        }
        let begin =
            Both { from: pair.from.clone(), to: pair.to.clone(), below: PathBuf::new(), from_meta, to_meta };
        let mut waiting = vec![begin];
        while let Some(both) = waiting.pop() {
            let inside = self.sync_directory(pair, rules, &both, queue, directories, &mut extra);
            if let Some(inside) = self.note(&pair.from_side, &both.from, inside) {
                waiting.extend(inside.into_iter().rev());
            }
        }
        extra
    }

    fn sync_file_alone(
        &self,
        pair: &Pair,
        rules: &Rules,
        meta: Meta,
        there: Option<Meta>,
        queue: &Queue,
    ) -> Result<()> {
        let mut to = pair.to.clone();
        let into_dir = there.is_some_and(|there| there.kind == Kind::Directory);
        if into_dir || ends_with_slash(&to) {
            if !into_dir && !self.options.dry_run {
                pair.to_side.make_dir(&to, 0o777)?;
            }
            to.push(pair.from.file_name().context("this is no name of a file")?);
        }
        // A link that is there is replaced, not what it points to.
        let there = pair.to_side.meta(&to, false).ok();
        let is_doubtful =
            there.as_ref().is_some_and(|there| pair.to_side.doubtful(&[(to.clone(), there.clone())])[0]);
        self.sync_entry(pair, rules, &pair.from, &to, meta, there, is_doubtful, &[], queue).map(drop)
    }

    /// Makes a directory the same, but for what is in its subdirectories, which are returned.
    fn sync_directory(
        &self,
        pair: &Pair,
        rules: &Rules,
        both: &Both,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
        extra: &mut Vec<(PathBuf, Meta)>,
    ) -> Result<Vec<Both>> {
        let Both { from, to, below, from_meta, to_meta } = both;
        let found = pair.from_side.list(from)?;
        let mut changed = self.make_directory(pair, rules, both)?;
        let mut there: BTreeMap<OsString, Meta> = match to_meta {
            Some(meta) if meta.kind == Kind::Directory => {
                let listed = pair.to_side.list(to);
                listed
                    .with_context(|| format!("cannot list {}", pair.to_side.display(to)))?
                    .into_iter()
                    .collect()
            }
            _ => BTreeMap::new(),
        };
        let begun: Vec<OsString> = there.keys().filter(|name| is_apart(name)).cloned().collect();
        let doubtful = self.doubtful(pair, rules, to, &found, &there);
        let mut inside = Vec::new();
        for (name, meta) in found {
            let under = below.join(&name);
            if rules.leaves_out(&under) || is_apart(&name) {
                there.remove(&name);
                continue;
            }
            let target = there.remove(&name);
            let is_doubtful = doubtful.contains(&name);
            let (from, to) = (from.join(&name), to.join(&name));
            if meta.kind == Kind::Directory {
                inside.push(Both { from, to, below: under, from_meta: meta, to_meta: target });
                continue;
            }
            let done = self.sync_entry(pair, rules, &from, &to, meta, target, is_doubtful, &begun, queue);
            changed |= self.note(&pair.from_side, &from, done) == Some(true);
        }
        for (name, meta) in there {
            // What a sync that was killed has left, and no file of the source goes on with.
            let is_left = is_apart(&name) && !self.is_resumed(&to.join(&name));
            if is_left || rules.delete && !is_apart(&name) && !rules.leaves_out(&below.join(&name)) {
                changed = true;
                extra.push((to.join(&name), meta));
            }
        }
        let same = to_meta.as_ref().is_some_and(|there| {
            from_meta.has_same_attributes(there, self.options.owner) && from_meta.mtime() == there.mtime()
        });
        if (changed || !same) && !self.options.dry_run {
            directories.push(FinishDir {
                side: pair.to_side.clone(),
                path: to.clone(),
                meta: from_meta.clone(),
            });
        }
        Ok(inside)
    }

    /// The files that seem to be the same, but of which a server has lost data, or cannot tell: they are compared. The servers are
    /// asked for the space of all files of a directory at once.
    fn doubtful(
        &self,
        pair: &Pair,
        rules: &Rules,
        to: &Path,
        found: &[(OsString, Meta)],
        there: &BTreeMap<OsString, Meta>,
    ) -> BTreeSet<OsString> {
        let seems_same = |(name, meta): &&(OsString, Meta)| {
            let needed = |target| need(meta, Some(target), rules.checksum, self.options.owner);
            meta.kind == Kind::File
                && there
                    .get(name)
                    .is_some_and(|target| matches!(needed(target), Need::Keep | Need::Attributes))
        };
        let same: Vec<(PathBuf, Meta)> =
            found.iter().filter(seems_same).map(|(name, _)| (to.join(name), there[name].clone())).collect();
        let doubtful = pair.to_side.doubtful(&same).into_iter();
        let names = doubtful.zip(&same).filter(|(is_doubtful, _)| *is_doubtful);
        names.filter_map(|(_, (path, _))| path.file_name().map(OsStr::to_owned)).collect()
    }

    /// Makes the directory at the target; whether it was not there.
    fn make_directory(&self, pair: &Pair, rules: &Rules, both: &Both) -> Result<bool> {
        match &both.to_meta {
            Some(there) if there.kind == Kind::Directory => return Ok(false),
            Some(_) => self.clear(pair, rules, &both.to, both.to_meta.as_ref())?,
            None => {}
        }
        self.told("make", &pair.to_side, &both.to);
        if !self.options.dry_run {
            pair.to_side.make_dir(&both.to, both.from_meta.mode & 0o777 | 0o700)?;
        }
        Ok(true)
    }

    /// Makes something that is no directory the same; whether anything in its directory changes.
    #[expect(clippy::too_many_arguments, reason = "an entry on both sides")]
    fn sync_entry(
        &self,
        pair: &Pair,
        rules: &Rules,
        from: &Path,
        to: &Path,
        meta: Meta,
        there: Option<Meta>,
        is_doubtful: bool,
        begun: &[OsString],
        queue: &Queue,
    ) -> Result<bool> {
        let need = need(&meta, there.as_ref(), rules.checksum || is_doubtful, self.options.owner);
        match (meta.kind, need) {
            (Kind::Other, _) => {
                self.skip("a device, socket or pipe", &pair.from_side, from);
                Ok(false)
            }
            (_, Need::Keep) => {
                self.same.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
            (_, Need::Attributes) => {
                self.told("set the attributes of", &pair.to_side, to);
                if !self.options.dry_run {
                    pair.to_side.set_meta(to, &meta, true, self.options.owner)?;
                }
                Ok(false)
            }
            (Kind::Symlink, need) => self.sync_link(pair, rules, from, to, &meta, there.as_ref(), need),
            (_, need) => {
                if need == Need::Replace {
                    self.clear(pair, rules, to, there.as_ref())?;
                }
                let file = Pair { from: from.to_owned(), to: to.to_owned(), ..pair.clone() };
                let goal = self.goal(&file, &meta, there.filter(|_| need != Need::Replace), begun);
                if need == Need::Compare {
                    self.bar.inc_length(meta.size);
                    queue.push_file(Task::Compare(file, meta, goal));
                    return Ok(false);
                }
                self.told("copy", &pair.to_side, to);
                if self.options.dry_run {
                    self.files.fetch_add(1, Ordering::Relaxed);
                    return Ok(false);
                }
                self.bar.inc_length(meta.size);
                queue.push_file(Task::File(file, meta, goal));
                Ok(true)
            }
        }
    }

    /// Where a file is written.
    fn goal(&self, file: &Pair, meta: &Meta, there: Option<Meta>, begun: &[OsString]) -> Goal {
        if there.is_none() && file.to_side.makes_at_once(meta.size) {
            return Goal::New;
        }
        let apart = Apart::of(file.to.file_name().unwrap_or(OsStr::new("")), meta);
        let units = begun.iter().filter_map(|name| apart.units_of(name)).max();
        if let Some(units) = units {
            self.resumed
                .lock()
                .expect("nobody panics with it")
                .insert(file.to.with_file_name(apart.name(units)));
        }
        Goal::Apart { apart, units, layout: there.and_then(|there| there.layout) }
    }

    fn is_resumed(&self, path: &Path) -> bool {
        self.resumed.lock().expect("nobody panics with it").contains(path)
    }

    #[expect(clippy::too_many_arguments, reason = "an entry on both sides")]
    fn sync_link(
        &self,
        pair: &Pair,
        rules: &Rules,
        from: &Path,
        to: &Path,
        meta: &Meta,
        there: Option<&Meta>,
        need: Need,
    ) -> Result<bool> {
        let target = pair.from_side.read_link(from)?;
        if need == Need::Compare && pair.to_side.read_link(to)? == target {
            self.same.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        self.told("link", &pair.to_side, to);
        self.files.fetch_add(1, Ordering::Relaxed);
        if self.options.dry_run {
            return Ok(false);
        }
        if need == Need::Replace {
            self.clear(pair, rules, to, there)?;
        }
        pair.to_side.make_symlink(&target, to)?;
        pair.to_side.set_meta(to, meta, true, self.options.owner)?;
        Ok(true)
    }

    /// Removes what is in the way of something of another kind.
    fn clear(&self, pair: &Pair, rules: &Rules, to: &Path, there: Option<&Meta>) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        match there.map(|there| there.kind) {
            Some(Kind::Directory) if rules.delete => self.remove_tree(&pair.to_side, to),
            Some(Kind::Directory) => {
                bail!("{} is a directory; --delete replaces it", pair.to_side.display(to))
            }
            _ => pair.to_side.remove(to),
        }
    }

    /// Removes what the source does not have.
    pub(super) fn remove_extra(&self, side: &Side, extra: Vec<(PathBuf, Meta)>) {
        for (path, meta) in extra {
            self.told("remove", side, &path);
            self.removed.fetch_add(1, Ordering::Relaxed);
            if self.options.dry_run {
                continue;
            }
            let removed = match meta.kind {
                Kind::Directory => self.remove_tree(side, &path),
                _ => side.remove(&path),
            };
            self.note(side, &path, removed);
        }
    }

    fn remove_tree(&self, side: &Side, top: &Path) -> Result<()> {
        let mut waiting = vec![(top.to_owned(), false)];
        while let Some((path, is_empty)) = waiting.pop() {
            if is_empty {
                side.remove_dir(&path)?;
                continue;
            }
            let entries = side.list(&path)?;
            waiting.push((path.clone(), true));
            for (name, meta) in entries {
                let path = path.join(name);
                match meta.kind {
                    Kind::Directory => waiting.push((path, false)),
                    _ => side.remove(&path)?,
                }
            }
        }
        Ok(())
    }
}

/// Refuses trees that are within each other.
pub(super) fn check(pair: &Pair, options: &Options) -> Result<()> {
    if pair.from_side.is_same(&pair.to_side)
        && (pair.to.starts_with(&pair.from) || pair.from.starts_with(&pair.to))
    {
        bail!("source and target are within each other");
    }
    debug_assert!(options.recursive && options.preserve);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(kind: Kind, size: u64, mtime_s: i64) -> Meta {
        Meta::sample(kind, size, mtime_s)
    }

    #[test]
    fn what_an_entry_needs() {
        let file = meta(Kind::File, 5, 100);
        for (target, checksum, expected) in [
            (None, false, Need::Make),
            (Some(meta(Kind::File, 5, 100)), false, Need::Keep),
            (Some(meta(Kind::File, 6, 100)), false, Need::Make),
            (Some(meta(Kind::File, 5, 101)), false, Need::Make),
            (Some(meta(Kind::File, 5, 101)), true, Need::Compare),
            (Some(meta(Kind::File, 6, 100)), true, Need::Make),
            (Some(meta(Kind::File, 5, 100).with_mode(0o600)), false, Need::Attributes),
            (Some(meta(Kind::Directory, 5, 100)), false, Need::Replace),
            (Some(meta(Kind::Symlink, 5, 100)), true, Need::Replace),
        ] {
            assert_eq!(need(&file, target.as_ref(), checksum, false), expected, "{target:?}");
        }
        let link = meta(Kind::Symlink, 5, 100);
        assert_eq!(need(&link, Some(&meta(Kind::Symlink, 5, 7)), false, false), Need::Compare);
        assert_eq!(need(&link, Some(&meta(Kind::Symlink, 4, 100)), false, false), Need::Make);
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let rules = |patterns: &[(&str, bool)]| Rules {
            patterns: patterns
                .iter()
                .map(|(glob, excludes)| Pattern::parse(glob, *excludes).unwrap())
                .collect(),
            ..Rules::default()
        };
        let left = |rules: &Rules, path: &str| rules.leaves_out(Path::new(path));
        let names = rules(&[("keep.o", false), ("*.o", true), ("cache", true)]);
        assert!(left(&names, "a.o") && left(&names, "d/e/a.o") && left(&names, "d/cache"));
        assert!(!left(&names, "d/keep.o") && !left(&names, "a.c"));
        let paths = rules(&[("/build", true), ("src/*.tmp", true), ("**/deep/x", true)]);
        assert!(!left(&paths, "d/build/x") && left(&paths, "src/a.tmp") && !left(&paths, "src/d/a.tmp"));
        assert!(left(&paths, "a/b/deep/x"));
        // A leading slash is the top of the source.
        assert!(left(&paths, "build"));
        assert!(Pattern::parse("a[", true).is_err());
    }
}
