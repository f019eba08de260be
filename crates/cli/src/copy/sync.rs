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
use super::side::{Kind, Meta};
use super::spot::{Dir, Ends, Parents, Shown, Spot};
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
        Kind::File if owner && source.has_rights_of_another_than(target) => Need::Make,
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
    ends: Ends,
    /// Below the source.
    below: PathBuf,
    from_meta: Meta,
    /// The target, if there is one.
    to_meta: Option<Meta>,
}

/// An entry of the source, and the target's entry of that name.
struct Found<'a> {
    meta: Meta,
    there: Option<Meta>,
    is_doubtful: bool,
    /// Incomplete copies in the target's directory.
    begun: &'a [OsString],
}

impl Copy<'_> {
    /// Walks over both trees; what is to be copied comes to `queue`, what is to be removed is returned.
    pub(super) fn walk_both(
        &self,
        pair: &Pair,
        rules: &Rules,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
    ) -> Vec<(Spot, Meta)> {
        let mut extra = Vec::new();
        let Some(ends) = self.note(pair, Ends::of(pair, &mut Parents::default())) else { return extra };
        let Some(from_meta) = self.note(&ends.from, ends.from.meta(true)) else { return extra };
        let to_meta = ends.to.meta(true).ok();
        if from_meta.kind != Kind::Directory {
            let done = self.sync_file_alone(pair, &ends, rules, from_meta, to_meta, queue);
            self.note(&ends.from, done);
            return extra;
        }
        if to_meta.as_ref().is_some_and(|there| there.kind != Kind::Directory) {
            let refused: Result<()> =
                Err(anyhow::anyhow!("is a file, and the source is a directory; remove it first"));
            self.note(&ends.to, refused);
            return extra;
        }
        let mut waiting = vec![Both { ends, below: PathBuf::new(), from_meta, to_meta }];
        while let Some(both) = waiting.pop() {
            let inside = self.sync_directory(rules, &both, queue, directories, &mut extra);
            waiting.extend(self.note(&both.ends.from, inside).into_iter().flatten().rev());
        }
        extra
    }

    fn sync_file_alone(
        &self,
        pair: &Pair,
        ends: &Ends,
        rules: &Rules,
        meta: Meta,
        there: Option<Meta>,
        queue: &Queue,
    ) -> Result<()> {
        let mut to = ends.to.clone();
        let into = there.filter(|there| there.kind == Kind::Directory);
        if into.is_some() || ends_with_slash(&pair.to) {
            let dir = match &into {
                Some(there) => to.open_dir(there)?,
                None if self.options.dry_run => to.missing_dir(),
                None => to.make_dir(0o777)?.1,
            };
            to = dir.spot(pair.from.file_name().context("this is no name of a file")?);
        }
        // A link that is there is replaced, not what it points to.
        let there = to.meta(false).ok();
        let is_doubtful = there.as_ref().is_some_and(|there| to.side().doubtful(&[there])[0]);
        let ends = Ends { from: ends.from.clone(), to };
        self.sync_entry(rules, ends, Found { meta, there, is_doubtful, begun: &[] }, queue).map(drop)
    }

    /// Makes a directory the same, but for what is in its subdirectories, which are returned.
    fn sync_directory(
        &self,
        rules: &Rules,
        both: &Both,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
        extra: &mut Vec<(Spot, Meta)>,
    ) -> Result<Vec<Both>> {
        let Both { ends, below, from_meta, to_meta } = both;
        let from = ends.from.open_dir(from_meta)?;
        let found = from.list()?;
        let (mut changed, to) = self.make_directory(rules, both)?;
        let mut there: BTreeMap<OsString, Meta> = match changed {
            false => to.list().with_context(|| format!("cannot list {}", to.shown()))?.into_iter().collect(),
            true => BTreeMap::new(),
        };
        let begun: Vec<OsString> = there.keys().filter(|name| is_apart(name)).cloned().collect();
        let doubtful = self.doubtful(rules, ends, &found, &there);
        let mut inside = Vec::new();
        for (name, meta) in found {
            let under = below.join(&name);
            if rules.leaves_out(&under) || is_apart(&name) {
                there.remove(&name);
                continue;
            }
            let target = there.remove(&name);
            let is_doubtful = doubtful.contains(&name);
            let ends = Ends { from: from.spot(&name), to: to.spot(name) };
            if meta.kind == Kind::Directory {
                inside.push(Both { ends, below: under, from_meta: meta, to_meta: target });
                continue;
            }
            let entry = Found { meta, there: target, is_doubtful, begun: &begun };
            let source = ends.from.clone();
            changed |= self.note(&source, self.sync_entry(rules, ends, entry, queue)) == Some(true);
        }
        for (name, meta) in there {
            // What a sync that was killed has left, and no file of the source goes on with.
            let spot = to.spot(&name);
            let is_left = is_apart(&name) && !self.is_resumed(&spot.path());
            if is_left || rules.delete && !is_apart(&name) && !rules.leaves_out(&below.join(&name)) {
                changed = true;
                extra.push((spot, meta));
            }
        }
        let same = to_meta.as_ref().is_some_and(|there| {
            from_meta.has_same_attributes(there, self.options.owner) && from_meta.mtime() == there.mtime()
        });
        if (changed || !same) && !self.options.dry_run {
            directories.push(FinishDir { dir: to, meta: from_meta.clone() });
        }
        Ok(inside)
    }

    /// The files that seem to be the same, but of which a server has lost data, or does not say: they are compared. The servers are
    /// asked about all files of a directory at once.
    fn doubtful(
        &self,
        rules: &Rules,
        ends: &Ends,
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
        let same: Vec<&OsString> = found.iter().filter(seems_same).map(|(name, _)| name).collect();
        let metas: Vec<&Meta> = same.iter().map(|name| &there[*name]).collect();
        let doubtful = ends.to.side().doubtful(&metas).into_iter();
        let names = doubtful.zip(same).filter(|(is_doubtful, _)| *is_doubtful);
        names.map(|(_, name)| name.clone()).collect()
    }

    /// Makes the directory at the target; whether it was not there.
    fn make_directory(&self, rules: &Rules, both: &Both) -> Result<(bool, Dir)> {
        let to = &both.ends.to;
        match &both.to_meta {
            Some(there) if there.kind == Kind::Directory => return Ok((false, to.open_dir(there)?)),
            Some(there) => self.clear(rules, to, Some(there))?,
            None => {}
        }
        self.told("make", to);
        let dir = match self.options.dry_run {
            true => to.missing_dir(),
            false => to.make_dir(both.from_meta.mode & 0o777 | 0o700)?.1,
        };
        Ok((true, dir))
    }

    /// Makes something that is no directory the same; whether anything in its directory changes.
    fn sync_entry(&self, rules: &Rules, ends: Ends, found: Found<'_>, queue: &Queue) -> Result<bool> {
        let Found { meta, there, is_doubtful, begun } = found;
        let need = need(&meta, there.as_ref(), rules.checksum || is_doubtful, self.options.owner);
        match (meta.kind, need, there) {
            (Kind::Other, ..) => {
                self.skip("a device, socket or pipe", &ends.from);
                Ok(false)
            }
            (_, Need::Keep, _) => {
                self.same.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
            (_, Need::Attributes, Some(there)) => {
                self.told("set the attributes of", &ends.to);
                if !self.options.dry_run {
                    ends.to.set_meta(there.id, &meta, self.options.owner)?;
                }
                Ok(false)
            }
            (Kind::Symlink, need, there) => self.sync_link(rules, &ends, &meta, there.as_ref(), need),
            (_, need, there) => {
                if need == Need::Replace {
                    self.clear(rules, &ends.to, there.as_ref())?;
                }
                let goal = self.goal(&ends.to, &meta, there.filter(|_| need != Need::Replace), begun);
                if need == Need::Compare {
                    self.bar.inc_length(meta.size);
                    queue.push_file(Task::Compare(ends, meta, goal));
                    return Ok(false);
                }
                self.told("copy", &ends.to);
                if self.options.dry_run {
                    self.files.fetch_add(1, Ordering::Relaxed);
                    return Ok(false);
                }
                self.bar.inc_length(meta.size);
                queue.push_file(Task::File(ends, meta, goal));
                Ok(true)
            }
        }
    }

    /// Where a file is written.
    fn goal(&self, to: &Spot, meta: &Meta, there: Option<Meta>, begun: &[OsString]) -> Goal {
        if there.is_none() && to.makes_at_once(meta.size) {
            return Goal::New;
        }
        let apart = Apart::of(to.file_name().unwrap_or(OsStr::new("")), meta);
        let units = begun.iter().filter_map(|name| apart.units_of(name)).max();
        if let Some(units) = units {
            let path = to.dir().spot(apart.name(units)).path();
            self.resumed.lock().expect("nobody panics with it").insert(path);
        }
        Goal::Apart { apart, units, layout: there.and_then(|there| there.layout) }
    }

    fn is_resumed(&self, path: &Path) -> bool {
        self.resumed.lock().expect("nobody panics with it").contains(path)
    }

    fn sync_link(
        &self,
        rules: &Rules,
        ends: &Ends,
        meta: &Meta,
        there: Option<&Meta>,
        need: Need,
    ) -> Result<bool> {
        let target = ends.from.read_link()?;
        if need == Need::Compare && ends.to.read_link()? == target {
            self.same.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        self.told("link", &ends.to);
        self.files.fetch_add(1, Ordering::Relaxed);
        if self.options.dry_run {
            return Ok(false);
        }
        if need == Need::Replace {
            self.clear(rules, &ends.to, there)?;
        }
        ends.to.make_symlink(&target, Some((meta, self.options.owner)))?;
        Ok(true)
    }

    /// Removes what is in the way of something of another kind.
    fn clear(&self, rules: &Rules, to: &Spot, there: Option<&Meta>) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        match there {
            Some(there) if there.kind == Kind::Directory && rules.delete => remove_tree(to, there),
            Some(there) if there.kind == Kind::Directory => {
                bail!("{} is a directory; --delete replaces it", to.shown())
            }
            _ => to.remove(),
        }
    }

    /// Removes what the source does not have.
    pub(super) fn remove_extra(&self, extra: Vec<(Spot, Meta)>) {
        for (spot, meta) in extra {
            self.told("remove", &spot);
            self.removed.fetch_add(1, Ordering::Relaxed);
            if self.options.dry_run {
                continue;
            }
            let removed = match meta.kind {
                Kind::Directory => remove_tree(&spot, &meta),
                _ => spot.remove(),
            };
            self.note(&spot, removed);
        }
    }
}

/// Removes a directory, which has these attributes, and everything in it.
fn remove_tree(top: &Spot, meta: &Meta) -> Result<()> {
    // Directories to be emptied have attributes, empty ones none.
    let mut steps = vec![(top.clone(), Some(meta.clone()))];
    while let Some((spot, meta)) = steps.pop() {
        let Some(meta) = meta else {
            spot.remove_dir()?;
            continue;
        };
        let dir = spot.open_dir(&meta)?;
        steps.push((spot, None));
        for (name, meta) in dir.list()? {
            match meta.kind {
                Kind::Directory => steps.push((dir.spot(name), Some(meta))),
                _ => dir.spot(name).remove()?,
            }
        }
    }
    Ok(())
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
        // The owner of the target may have changed its contents.
        let (program, changed) = (file.with_mode(0o4755), file.owned_by(1000));
        for (target, owner, expected) in [
            (&changed, true, Need::Make),
            (&changed, false, Need::Attributes),
            (&file, true, Need::Attributes),
            (&program, true, Need::Keep),
        ] {
            assert_eq!(need(&program, Some(target), false, owner), expected, "{target:?}");
        }
        assert_eq!(need(&program, Some(&changed), true, true), Need::Make);
        assert_eq!(need(&file, Some(&changed), false, true), Need::Attributes);
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
