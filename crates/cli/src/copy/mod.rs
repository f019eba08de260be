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

mod block;
mod file;
mod job;
mod queue;
mod side;

pub use block::copy_part;
pub use job::{Options, Outcome, Pair};
pub use side::{Kind, Side};

use anyhow::{Context, Result, bail};
use file::OpenFile;
use indicatif::ProgressBar;
use queue::{Queue, Task};
use side::Meta;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// State shared by the walk and the workers.
struct Copy<'a> {
    options: &'a Options,
    bar: &'a ProgressBar,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: Mutex<Vec<String>>,
}

/// A directory whose mode and times are set at the end.
struct FinishDir {
    side: Side,
    path: PathBuf,
    meta: Meta,
}

/// Copies all pairs. `bar` counts the bytes.
pub fn copy(pairs: Vec<Pair>, options: &Options, bar: &ProgressBar) -> Outcome {
    let copy = Copy { options, bar, files: 0.into(), bytes: 0.into(), failed: Mutex::default() };
    let queue = Queue::new();
    let mut directories = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| copy.work(&queue));
        }
        for pair in pairs {
            copy.walk(pair, &queue, &mut directories);
        }
        queue.walk_is_over();
    });
    for directory in directories.into_iter().rev() {
        let set = directory.side.set_meta(&directory.path, &directory.meta, options.preserve);
        copy.note(&directory.side, &directory.path, set);
    }
    Outcome {
        files: copy.files.into_inner(),
        bytes: copy.bytes.into_inner(),
        failed: copy.failed.into_inner().unwrap_or_default(),
    }
}

impl Copy<'_> {
    fn note<T>(&self, side: &Side, path: &Path, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let text =
                    weft_cli_common::output::visible_lines(&format!("{}: {error:#}", side.display(path)));
                self.bar.suspend(|| eprintln!("weft: {text}"));
                self.failed.lock().expect("no thread panics while it notes a failure").push(text);
                None
            }
        }
    }

    fn walk(&self, pair: Pair, queue: &Queue, directories: &mut Vec<FinishDir>) {
        let Some(meta) =
            self.note(&pair.from_side, &pair.from, pair.from_side.meta(&pair.from, !self.options.recursive))
        else {
            return;
        };
        let mut found = vec![(pair.from.clone(), pair.to.clone(), meta)];
        while let Some((from, to, meta)) = found.pop() {
            let result = self.walk_one(&pair, &from, &to, meta, queue, directories);
            if let Some(Some(entries)) = self.note(&pair.from_side, &from, result) {
                let inside =
                    entries.into_iter().rev().map(|(name, meta)| (from.join(&name), to.join(&name), meta));
                found.extend(inside);
            }
        }
    }

    /// Copies directories and links at once and queues files. Returns the entries of a directory.
    fn walk_one(
        &self,
        pair: &Pair,
        from: &Path,
        to: &Path,
        meta: Meta,
        queue: &Queue,
        directories: &mut Vec<FinishDir>,
    ) -> Result<Option<Vec<(std::ffi::OsString, Meta)>>> {
        match meta.kind {
            Kind::Directory if !self.options.recursive => {
                bail!("is a directory; use -r to copy it with everything in it")
            }
            Kind::Directory => {
                if pair.from_side.is_same(&pair.to_side) && to.starts_with(from) {
                    bail!("cannot be copied into itself ({})", pair.to_side.display(to));
                }
                let wanted = meta.mode & 0o7777 & !self.options.umask;
                let fresh = pair.to_side.make_dir(to, wanted | 0o700)?;
                if self.options.preserve || (fresh && wanted | 0o700 != wanted) {
                    let mode = if self.options.preserve { meta.mode } else { wanted };
                    let meta = meta.with_mode(mode);
                    directories.push(FinishDir { side: pair.to_side.clone(), path: to.to_owned(), meta });
                }
                Ok(Some(pair.from_side.list(from)?))
            }
            Kind::Symlink => {
                let target = pair.from_side.read_link(from)?;
                pair.to_side.make_symlink(&target, to)?;
                if self.options.preserve {
                    pair.to_side.set_meta(to, &meta, true)?;
                }
                self.files.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Kind::File => {
                self.bar.inc_length(meta.size);
                queue.push_file(Task::File {
                    from_side: pair.from_side.clone(),
                    from: from.to_owned(),
                    to_side: pair.to_side.clone(),
                    to: to.to_owned(),
                    meta,
                });
                Ok(None)
            }
            Kind::Other => bail!("is a device, socket or pipe; these are not copied"),
        }
    }

    fn work(&self, queue: &Queue) {
        let mut buffer = file::buffer();
        while let Some(task) = queue.take() {
            match task {
                Task::File { from_side, from, to_side, to, meta } => {
                    let open = OpenFile::open(&from_side, &from, &to_side, &to, meta, self.options)
                        .with_context(|| format!("to {}", to_side.display(&to)));
                    if let Some(open) = self.note(&from_side, &from, open) {
                        queue.push_chunks(file::chunks(open));
                    }
                }
                Task::Chunk(chunk) => {
                    let done = chunk.copy(&mut buffer, &mut |bytes, written| {
                        self.bar.inc(bytes);
                        self.bytes.fetch_add(written, Ordering::Relaxed);
                    });
                    let failed = done.is_err();
                    self.note(chunk.source_side(), chunk.source_path(), done);
                    if let Some(finished) = chunk.finish(failed, self.options)
                        && self.note(chunk.source_side(), chunk.source_path(), finished).is_some()
                    {
                        self.files.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            queue.done();
        }
    }
}
