//! Joins adjacent runs: turns a stream of fine-grained runs into the longest ones.

use std::convert::Infallible;

/// A run of bytes that may continue in the next one.
pub(crate) trait Run: Sized {
    /// Length of the run.
    fn bytes(&self) -> u64;
    /// Appends `next` if it begins where this run ends. Returns whether it did.
    fn join(&mut self, next: &Self) -> bool;
    /// Cuts the first `bytes` off and returns them.
    fn split_front(&mut self, bytes: u64) -> Self;
}

/// Reads `source` one run ahead and joins adjacent runs.
#[derive(Debug, Clone)]
pub(crate) struct Joined<I, R> {
    source: I,
    /// The run to begin the next one with: read ahead, or cut off.
    pending: Option<R>,
}

impl<I: Iterator, R: Run + From<I::Item>> Joined<I, R> {
    pub(crate) fn new(source: I) -> Self {
        Joined { source, pending: None }
    }

    /// Begins with `first`, which `source` continues.
    pub(crate) fn starting_with(first: R, source: I) -> Self {
        Joined { source, pending: Some(first) }
    }

    /// The next run, as long as possible.
    pub(crate) fn next_run(&mut self) -> Option<R> {
        self.next_at_most(u64::MAX)
    }

    /// The next run, or its first `max_bytes` bytes if it is longer; the rest comes next. Looks no further
    /// ahead than it must.
    pub(crate) fn next_at_most(&mut self, max_bytes: u64) -> Option<R> {
        match self.next_with(max_bytes, |source| Ok::<_, Infallible>(source.next())) {
            Ok(run) => run,
            Err(never) => match never {},
        }
    }

    /// As [`Joined::next_at_most`], with `next` to read the source, which may give up for now: what was
    /// joined until then begins the next run.
    pub(crate) fn next_with<E>(
        &mut self,
        max_bytes: u64,
        mut next: impl FnMut(&mut I) -> Result<Option<I::Item>, E>,
    ) -> Result<Option<R>, E> {
        if max_bytes == 0 {
            return Ok(None);
        }
        let mut run = match self.pending.take() {
            Some(run) => run,
            None => match next(&mut self.source)? {
                Some(item) => R::from(item),
                None => return Ok(None),
            },
        };
        while run.bytes() < max_bytes {
            let item = match next(&mut self.source) {
                Ok(Some(item)) => R::from(item),
                Ok(None) => return Ok(Some(run)),
                Err(error) => {
                    self.pending = Some(run);
                    return Err(error);
                }
            };
            if !run.join(&item) {
                self.pending = Some(item);
                return Ok(Some(run));
            }
        }
        if run.bytes() == max_bytes {
            return Ok(Some(run));
        }
        let front = run.split_front(max_bytes);
        self.pending = Some(run);
        Ok(Some(front))
    }
}
