//! The queue of work for the copying threads.

use super::file::{Chunk, Goal};
use super::side::Meta;
use super::spot::Ends;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// How many files the walk may be ahead of the workers.
pub(super) const FILES_AHEAD_MAX: usize = 4096;

/// A piece of work.
pub(super) enum Task {
    /// A file that was found, with the attributes of the source, and where it is written.
    File(Ends, Meta, Goal),
    /// A file that is copied if it differs from the one that is there, which has the same size.
    Compare(Ends, Meta, Goal),
    /// A part of a file that is open.
    Chunk(Chunk),
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    walking: bool,
    /// Tasks taken and not done. They may still add more.
    under_way: usize,
}

/// First in, first out, but chunks of open files come before files that are not open.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    files_ahead_max: usize,
}

impl Queue {
    pub(super) fn new(files_ahead_max: usize) -> Queue {
        let state = Mutex::new(State { walking: true, ..State::default() });
        Queue { state, changed: Condvar::new(), files_ahead_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the queue")
    }

    /// Adds a file of the walk. Waits while the workers are far behind.
    pub(super) fn push_file(&self, task: Task) {
        let state = self.lock();
        let mut state = self
            .changed
            .wait_while(state, |state| state.tasks.len() >= self.files_ahead_max)
            .expect("no thread panics while it holds the queue");
        state.tasks.push_back(task);
        self.changed.notify_all();
    }

    /// Adds a file, from a worker. Never waits.
    pub(super) fn push_again(&self, task: Task) {
        self.lock().tasks.push_front(task);
        self.changed.notify_all();
    }

    /// Adds chunks, from a worker. Never waits.
    pub(super) fn push_chunks(&self, chunks: Vec<Chunk>) {
        let mut state = self.lock();
        for chunk in chunks.into_iter().rev() {
            state.tasks.push_front(Task::Chunk(chunk));
        }
        self.changed.notify_all();
    }

    pub(super) fn walk_is_over(&self) {
        self.lock().walking = false;
        self.changed.notify_all();
    }

    /// Takes the next task; `None` if there will be no more.
    pub(super) fn take(&self) -> Option<Task> {
        let state = self.lock();
        let mut state = self
            .changed
            .wait_while(state, |state| state.tasks.is_empty() && (state.walking || state.under_way > 0))
            .expect("no thread panics while it holds the queue");
        let task = state.tasks.pop_front()?;
        state.under_way += 1;
        self.changed.notify_all();
        Some(task)
    }

    /// Marks a task as done.
    pub(super) fn done(&self) {
        self.lock().under_way -= 1;
        self.changed.notify_all();
    }
}
