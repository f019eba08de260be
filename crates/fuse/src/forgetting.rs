//! Has the kernel forget what may wait for its locks, on threads of their own: one for names, one for pages.

use crate::notify::Notes;
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The two threads. They end with it.
pub(crate) struct Forgetting {
    names: Sender<Work>,
    pages: Sender<Work>,
    /// Threads of programs for which a directory is still to be dropped.
    dropping: Arc<Mutex<HashSet<u32>>>,
}

/// A piece of work for one of them.
enum Work {
    Name {
        dir_node: u64,
        name: Vec<u8>,
    },
    /// A directory's name, for this thread of a program.
    Directory {
        dir_node: u64,
        name: Vec<u8>,
        thread: u32,
    },
    Pages {
        node: u64,
        bytes: Range<u64>,
        known: Sender<bool>,
    },
    /// All before it is done.
    Done(Sender<()>),
}

impl Forgetting {
    /// Starts the threads.
    pub(crate) fn start(notes: &Arc<Notes>) -> io::Result<Forgetting> {
        let dropping = Arc::<Mutex<HashSet<u32>>>::default();
        let worker = |name: &str| {
            let (sender, work) = channel();
            let (notes, dropping) = (notes.clone(), dropping.clone());
            std::thread::Builder::new().name(name.into()).spawn(move || run(&notes, &dropping, &work))?;
            Ok::<_, io::Error>(sender)
        };
        Ok(Forgetting { names: worker("weft-names")?, pages: worker("weft-pages")?, dropping })
    }

    /// Has pages and attributes forgotten; whether the kernel knows the inode, as far as it has answered.
    pub(crate) fn pages(&self, node: u64, bytes: Range<u64>, patience: Duration) -> bool {
        let (known, answer) = channel();
        let _ = self.pages.send(Work::Pages { node, bytes, known });
        answer.recv_timeout(patience).unwrap_or(true)
    }

    /// Has names forgotten, each with the node of its directory; whether that is done.
    pub(crate) fn names(&self, names: impl Iterator<Item = (u64, Vec<u8>)>, patience: Duration) -> bool {
        for (dir_node, name) in names {
            let _ = self.names.send(Work::Name { dir_node, name });
        }
        self.names_done(patience)
    }

    /// Has a directory dropped from where it was, before `thread` is told where it is; whether that is done.
    pub(crate) fn directory(&self, dir_node: u64, name: &[u8], thread: u32, patience: Duration) -> bool {
        self.dropping.lock().unwrap_or_else(PoisonError::into_inner).insert(thread);
        let _ = self.names.send(Work::Directory { dir_node, name: name.to_vec(), thread });
        self.names_done(patience)
    }

    /// Waits for what [`Forgetting::directory`] could not do for `thread` before.
    pub(crate) fn finish_directories(&self, thread: u32, patience: Duration) {
        if self.dropping.lock().unwrap_or_else(PoisonError::into_inner).contains(&thread) {
            self.names_done(patience);
        }
    }

    fn names_done(&self, patience: Duration) -> bool {
        let (sender, done) = channel();
        let _ = self.names.send(Work::Done(sender));
        done.recv_timeout(patience).is_ok()
    }
}

fn run(notes: &Notes, dropping: &Mutex<HashSet<u32>>, work: &Receiver<Work>) {
    while let Ok(work) = work.recv() {
        match work {
            Work::Name { dir_node, name } => notes.name(dir_node, &name),
            Work::Directory { dir_node, name, thread } => {
                notes.drop_name(dir_node, &name);
                dropping.lock().unwrap_or_else(PoisonError::into_inner).remove(&thread);
            }
            Work::Pages { node, bytes, known } => drop(known.send(notes.inode(node, Some(bytes)))),
            Work::Done(sender) => drop(sender.send(())),
        }
    }
}
