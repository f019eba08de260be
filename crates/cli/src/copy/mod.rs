//! Copies trees between a local file system and Weft, or between two Weft file systems, several files at
//! once.
//!
//! ```text
//!   walk (this thread)                       queue                       workers
//!   makes directories, copies links    ──► file, file, file, … ──► open both ends; a large file becomes
//!                                            ▲                     chunks, which go back to the front
//!                                            └──── chunk, chunk ◄──┘
//!   at the end: modes and times of directories, deepest first
//! ```
//!
//! Holes stay holes: a local source reports where its data is (SEEK_DATA), and blocks of zeros are not
//! written. A failure is recorded, and the rest is still copied.
//!
//! [`copy_part`] copies between a part of a Weft file and a local file.

mod apart;
mod block;
mod file;
mod job;
mod queue;
mod side;
mod spot;
mod stream;
mod sync;

pub use apart::random_name;
pub use block::copy_part;
pub use job::{Existing, Options, Outcome, Pair};
pub use side::{Kind, Side};
pub use spot::Spot;
pub use stream::{from_stdin, to_stdout};
pub use sync::{Pattern, Rules};

use anyhow::{Context, Result, bail};
use apart::{Apart, UNIT_BYTES};
use file::{Goal, OpenFile};
use indicatif::ProgressBar;
use queue::{FILES_AHEAD_MAX, Queue, Task};
use side::Meta;
use spot::{Dir, Ends, Parents, Shown};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_cli_common::place::ends_with_slash;

/// How many sources may wait to be copied if there are more than that.
const SOURCES_OPEN_MAX: usize = 16;

/// State shared by the walk and the workers.
struct Copy<'a> {
    options: &'a Options,
    bar: &'a ProgressBar,
    files: AtomicU64,
    same: AtomicU64,
    removed: AtomicU64,
    bytes: AtomicU64,
    failed: Mutex<Vec<String>>,
    /// Incomplete copies that are gone on with.
    resumed: Mutex<HashSet<PathBuf>>,
}

/// A directory whose mode and times are set at the end.
struct FinishDir {
    dir: Dir,
    meta: Meta,
}

/// Copies all pairs. `bar` counts the bytes.
pub fn copy(pairs: Vec<Pair>, options: &Options, bar: &ProgressBar) -> Outcome {
    // Each source may have a directory of its own, which is open until the source is copied.
    let files_ahead_max =
        if pairs.len() > SOURCES_OPEN_MAX { SOURCES_OPEN_MAX.max(2 * options.jobs) } else { FILES_AHEAD_MAX };
    let walk = |copy: &Copy<'_>, queue: &Queue, directories: &mut Vec<FinishDir>| {
        let (mut made, mut parents) = (HashMap::new(), Parents::default());
        for pair in pairs {
            let ends = once(&pair, &mut made).and_then(|()| Ends::of(&pair, &mut parents));
            if let Some(ends) = copy.note(&pair, ends) {
                copy.walk(&pair, ends, queue, directories);
            }
        }
    };
    Copy::new(options, bar).run(files_ahead_max, walk, |_| {})
}

/// Makes the target of a pair the same as its source.
///
/// # Errors
/// The two are within each other. What fails on the way is in the outcome.
pub fn sync(pair: &Pair, rules: &Rules, options: &Options, bar: &ProgressBar) -> Result<Outcome> {
    sync::check(pair, options)?;
    let extra = Cell::new(Vec::new());
    let walk = |copy: &Copy<'_>, queue: &Queue, directories: &mut Vec<FinishDir>| {
        extra.set(copy.walk_both(pair, rules, queue, directories));
    };
    let copied = |copy: &Copy<'_>| match copy.has_failed() {
        false => copy.remove_extra(extra.take()),
        true if extra.take().is_empty() => {}
        true => {
            bar.suspend(|| eprintln!("weft: nothing is removed, since not everything was read and copied"))
        }
    };
    Ok(Copy::new(options, bar).run(FILES_AHEAD_MAX, walk, copied))
}

/// Refuses a second source for one name: the first one's copy would be lost.
fn once(pair: &Pair, made: &mut HashMap<PathBuf, PathBuf>) -> Result<()> {
    let is_dir = || pair.to_side.meta(&pair.to, true).is_ok_and(|there| there.kind == Kind::Directory);
    match made.insert(pair.to.clone(), pair.from.clone()) {
        Some(first) if !is_dir() => bail!(
            "is not copied: {} was just made from {}",
            pair.to_side.display(&pair.to),
            pair.from_side.display(&first)
        ),
        _ => Ok(()),
    }
}

/// Refuses a target that cannot be what a source is, before anything is made.
fn may_begin(pair: &Pair, meta: &Meta) -> Result<()> {
    let Pair { from_side, to_side, to, .. } = pair;
    if meta.kind != Kind::Directory {
        if ends_with_slash(to) {
            bail!("{} is not a directory", to_side.display(to));
        }
        return Ok(());
    }
    if !from_side.is_same(to_side) {
        return Ok(());
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut above = if to_side.meta(to, true).is_ok() { to.clone() } else { parent.to_owned() };
    let mut below = None;
    while let Ok(there) = to_side.meta(&above, true) {
        if there.id == meta.id {
            bail!("cannot be copied into itself ({})", to_side.display(to));
        }
        // The root is its own parent.
        if below == Some(there.id) {
            break;
        }
        below = Some(there.id);
        above.push("..");
    }
    Ok(())
}

impl<'a> Copy<'a> {
    fn new(options: &'a Options, bar: &'a ProgressBar) -> Copy<'a> {
        Copy {
            options,
            bar,
            files: 0.into(),
            same: 0.into(),
            removed: 0.into(),
            bytes: 0.into(),
            failed: Mutex::default(),
            resumed: Mutex::default(),
        }
    }

    /// `walk` finds what is to be copied; `copied` follows when it is.
    fn run(
        self,
        files_ahead_max: usize,
        walk: impl FnOnce(&Copy<'a>, &Queue, &mut Vec<FinishDir>),
        copied: impl FnOnce(&Copy<'a>),
    ) -> Outcome {
        let (copy, queue) = (self, Queue::new(files_ahead_max));
        let mut directories = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..copy.options.jobs {
                scope.spawn(|| copy.work(&queue));
            }
            walk(&copy, &queue, &mut directories);
            queue.walk_is_over();
        });
        copied(&copy);
        let (preserve, owner) = (copy.options.preserve, copy.options.owner);
        for directory in directories.into_iter().rev() {
            copy.note(&directory.dir, directory.dir.set_meta(&directory.meta, preserve, owner));
        }
        Outcome {
            files: copy.files.into_inner(),
            same: copy.same.into_inner(),
            removed: copy.removed.into_inner(),
            bytes: copy.bytes.into_inner(),
            failed: copy.failed.into_inner().unwrap_or_default(),
        }
    }
}

impl Copy<'_> {
    fn note<T>(&self, what: &impl Shown, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let text = weft_cli_common::output::error_text(&error.context(what.shown()));
                self.bar.suspend(|| eprintln!("weft: {text}"));
                self.failed.lock().expect("no thread panics while it notes a failure").push(text);
                None
            }
        }
    }

    fn has_failed(&self) -> bool {
        !self.failed.lock().expect("no thread panics while it notes a failure").is_empty()
    }

    /// Says what is done.
    fn told(&self, what: &str, to: &impl Shown) {
        if self.options.verbose {
            let text = weft_cli_common::output::visible_lines(&format!("{what} {}", to.shown()));
            self.bar.suspend(|| println!("{text}"));
        }
    }

    /// Says what is left out.
    fn skip(&self, what: &str, from: &impl Shown) {
        let text = format!("{} is {what}, and left out", from.shown());
        let text = weft_cli_common::output::visible_lines(&text);
        self.bar.suspend(|| eprintln!("weft: {text}"));
    }

    fn walk(&self, pair: &Pair, ends: Ends, queue: &Queue, directories: &mut Vec<FinishDir>) {
        let found = ends.from.meta(!self.options.recursive);
        let found = found.and_then(|meta| may_begin(pair, &meta).map(|()| meta));
        let Some(meta) = self.note(&ends.from, found) else { return };
        let mut found = vec![(ends, meta)];
        while let Some((ends, meta)) = found.pop() {
            let inside = self.walk_one(&ends, meta, queue, directories);
            found.extend(self.note(&ends.from, inside).into_iter().flatten().rev());
        }
    }

    /// Copies directories and links at once and queues files. Returns the entries of a directory.
    fn walk_one(
        &self,
        ends: &Ends,
        meta: Meta,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
    ) -> Result<Vec<(Ends, Meta)>> {
        match meta.kind {
            Kind::Directory if !self.options.recursive => {
                bail!("is a directory; use -r to copy it with everything in it")
            }
            Kind::Directory => return self.walk_directory(ends, &meta, directories),
            Kind::Symlink => self.copy_link(ends, &meta)?,
            Kind::File => {
                let Some(goal) = self.goal_of_copy(&ends.to, &meta)? else {
                    self.same.fetch_add(1, Ordering::Relaxed);
                    return Ok(Vec::new());
                };
                self.bar.inc_length(meta.size);
                queue.push_file(Task::File(ends.clone(), meta, goal));
            }
            Kind::Other => bail!("is a device, socket or pipe; these are not copied"),
        }
        Ok(Vec::new())
    }

    fn walk_directory(
        &self,
        ends: &Ends,
        meta: &Meta,
        directories: &mut Vec<FinishDir>,
    ) -> Result<Vec<(Ends, Meta)>> {
        let wanted = meta.mode & 0o7777 & !self.options.umask;
        let (fresh, to) = ends.to.make_dir(wanted | 0o700)?;
        if self.options.preserve || (fresh && wanted | 0o700 != wanted) {
            let mode = if self.options.preserve { meta.mode } else { wanted };
            directories.push(FinishDir { dir: to.clone(), meta: meta.with_mode(mode) });
        }
        let from = ends.from.open_dir(meta)?;
        let inside = from.list()?.into_iter();
        Ok(inside.map(|(name, meta)| (Ends { from: from.spot(&name), to: to.spot(name) }, meta)).collect())
    }

    fn copy_link(&self, ends: &Ends, meta: &Meta) -> Result<()> {
        let Ends { from, to } = ends;
        let target = from.read_link()?;
        let is_same =
            |there: Meta| there.id == meta.id || from.meta(true).is_ok_and(|end| end.id == there.id);
        if from.side().is_same(to.side())
            && [false, true].into_iter().filter_map(|follow| to.meta(follow).ok()).any(is_same)
        {
            bail!("source and target are the same file");
        }
        to.make_symlink(&target, self.options.preserve.then_some((meta, self.options.owner)))?;
        self.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Where a file is written: one that is there keeps its inode, a new one gets its name when it is complete. `None`: one that is
    /// there stays.
    fn goal_of_copy(&self, to: &Spot, meta: &Meta) -> Result<Option<Goal>> {
        let existing = self.options.existing;
        if existing == Existing::Overwrite && to.makes_at_once(meta.size) {
            return Ok(Some(Goal::New));
        }
        if let Ok(there) = to.meta(false) {
            let newer = || {
                (meta.mtime().seconds, meta.mtime().nanoseconds)
                    > (there.mtime().seconds, there.mtime().nanoseconds)
            };
            return Ok(match existing {
                Existing::Keep => None,
                Existing::Update if !newer() => None,
                _ => Some(Goal::InPlace),
            });
        }
        let Some(name) = to.file_name().filter(|_| !to.makes_at_once(meta.size)) else {
            return Ok(Some(Goal::New));
        };
        let apart = Apart::of(name, meta);
        let units = match meta.size > UNIT_BYTES {
            true => {
                let listed = to.dir().list().unwrap_or_default();
                listed.iter().filter_map(|(name, _)| apart.units_of(name)).max()
            }
            false => None,
        };
        Ok(Some(Goal::Apart { apart, units, layout: None }))
    }

    /// Copies a file if it differs from the one that is there.
    fn compare(&self, ends: Ends, meta: Meta, goal: Goal) -> Option<(Ends, Meta, Goal)> {
        let same = file::are_same(&ends, &meta, &mut |_| {});
        let Some(there) = self.note(&ends.from, same)? else {
            self.told("copy", &ends.to);
            return Some((ends, meta, goal));
        };
        self.bar.inc(meta.size);
        self.same.fetch_add(1, Ordering::Relaxed);
        if !self.options.dry_run {
            self.note(&ends.to, ends.to.set_meta(there, &meta, self.options.owner));
        }
        None
    }

    fn work(&self, queue: &Queue) {
        let mut buffer = file::buffer();
        while let Some(task) = queue.take() {
            match task {
                Task::Compare(ends, meta, goal) => {
                    let differs = self.compare(ends, meta, goal);
                    if let Some((ends, meta, goal)) = differs {
                        match self.options.dry_run {
                            true => drop(self.files.fetch_add(1, Ordering::Relaxed)),
                            false => queue.push_again(Task::File(ends, meta, goal)),
                        }
                    }
                }
                Task::File(ends, meta, goal) => {
                    let open = OpenFile::open(&ends, meta, goal, self.options)
                        .with_context(|| format!("to {}", ends.to.shown()));
                    if let Some(open) = self.note(&ends.from, open) {
                        queue.push_chunks(file::chunks(open));
                    }
                }
                Task::Chunk(chunk) => {
                    let done = chunk.copy(&mut buffer, &mut |bytes, written| {
                        self.bar.inc(bytes);
                        self.bytes.fetch_add(written, Ordering::Relaxed);
                    });
                    let (failed, from) = (done.is_err(), &chunk.ends().from);
                    self.note(from, done);
                    if let Some(finished) = chunk.finish(failed, self.options)
                        && self.note(from, finished).is_some()
                    {
                        self.files.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            queue.done();
        }
    }
}
