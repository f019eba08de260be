//! Work of a connection: posted as there is room, and heard of when it has ended.

use std::task::Poll;
use std::time::{Duration, Instant};

use weft_verbs::{Fabric, MemoryPiece, VerbsError, Work, WorkDone, WorkStatus};

use crate::error::ConnError;
use crate::verbs::batch::Batch;
use crate::verbs::chain::{Chain, Link};

use super::*;

impl<F: Fabric> ConnInner<F> {
    /// The end of sent work.
    pub(in crate::verbs) fn take_ended(&self, done: &WorkDone) {
        match done.status {
            WorkStatus::Ok => {}
            WorkStatus::Flushed => self.fail(Cause::Closed),
            status => self.fail(Cause::Broken(format!("RDMA work failed: {status:?}"))),
        }
        self.note_ended(done.id);
    }

    /// Work up to this number has ended: its slots are free, its tasks wake.
    pub(super) fn note_ended(&self, number: u64) {
        let before = self.ended.get();
        if number <= before {
            return;
        }
        self.ended.set(number);
        self.room.add((number - before) as usize);
        loop {
            let mut in_flight = self.in_flight.borrow_mut();
            if in_flight.front().is_none_or(|(work, _)| *work > number) {
                break;
            }
            let freed = in_flight.pop_front();
            drop(in_flight);
            drop(freed);
        }
        let mut waiters = self.work_waiters.borrow_mut();
        for (_, waker) in waiters.extract_if(.., |(work, _)| *work <= number) {
            waker.wake();
        }
    }

    /// Waits until work up to this number has ended, well or not.
    pub(super) async fn work_ended(&self, number: u64) {
        std::future::poll_fn(|cx| {
            if self.ended.get() >= number {
                return Poll::Ready(());
            }
            self.work_waiters.borrow_mut().push((number, cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Writes nothing to the client, which its adapter has to acknowledge: what is broken shows. Where work is under way it shows as
    /// well, unless the queue pair stands still; then the connection ends. `still` is kept between calls.
    pub(super) fn ask_whether_it_lives(&self, still: &mut Option<(u64, Instant)>) {
        let ended = self.ended.get();
        if ended < self.posted.get() {
            let since =
                still.filter(|(before, _)| *before == ended).map_or_else(Instant::now, |(_, since)| since);
            *still = Some((ended, since));
            if since.elapsed() >= Duration::from_millis(self.port.stall_ms) {
                self.fail(Cause::Broken("the adapter does not end work that it was given".into()));
            }
            return;
        }
        *still = None;
        let Some(room) = self.room.try_acquire(1) else { return };
        room.forget();
        let mut batch = Batch::default();
        self.add_work(&mut batch, Work::Write { remote_address: 0, remote_key: 0 }, [], true);
        // SAFETY: there is no memory.
        let _ = unsafe { self.post(&batch, Vec::new()) };
    }

    /// As [`ConnInner::work_ended`] without giving way, for a handler that is dropped: the connection ends.
    fn end_work_now(&self, number: u64) {
        self.fail(Cause::Broken("a transfer was given up in the middle".into()));
        self.disconnect();
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while self.ended.get() < number {
            if self.port.poll().is_err() || Instant::now() > deadline {
                return self.destroy();
            }
        }
    }

    /// Numbers for work, and the place in the queue that it was given room for.
    pub(super) fn add_work(
        &self,
        batch: &mut Batch,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        signalled: bool,
    ) -> u64 {
        let number = self.posted.get() + batch.len() as u64 + 1;
        batch.add(number, work, pieces, signalled);
        number
    }

    /// Posts a batch for which there is room, and whose last piece is signalled.
    ///
    /// # Safety
    /// Memory of the batch stays as it is until [`ConnInner::work_ended`] or `freed` is dropped.
    pub(super) unsafe fn post(&self, batch: &Batch, freed: Vec<Freed<F>>) -> Result<(), ConnError> {
        let result = match self.endpoint.borrow_mut().as_mut() {
            // SAFETY: as the caller promises.
            Some(endpoint) if !self.failed.is_set() => unsafe { batch.post(endpoint) }.map_err(Some),
            _ => Err(None),
        };
        let posted = match &result {
            Ok(()) => batch.len(),
            Err(Some(VerbsError::Post { posted, .. })) => *posted,
            Err(_) => 0,
        };
        self.posted.set(self.posted.get() + posted as u64);
        self.room.add(batch.len() - posted);
        if posted > 0 {
            self.in_flight.borrow_mut().push_back((self.posted.get(), freed));
        }
        if let Err(error) = result {
            if let Some(error) = error {
                self.fail(Cause::Broken(error.to_string()));
            }
            return Err(self.error());
        }
        Ok(())
    }

    /// Posts a chain of Reads or Writes, in batches as there is room.
    ///
    /// # Safety
    /// The local pieces stay as they are until [`UnderWay`] is dropped, or the end of the work is known.
    pub(in crate::verbs) async unsafe fn post_chain(
        &self,
        chain: &Chain,
        read: bool,
        under_way: &mut UnderWay<'_, F>,
    ) -> Result<(), ConnError> {
        for links in chain.links.chunks(self.batch_max()) {
            self.room.acquire(links.len()).await.forget();
            let mut batch = Batch::default();
            self.add_links(&mut batch, chain, links, read, true);
            // SAFETY: as the caller promises.
            let posted = unsafe { self.post(&batch, Vec::new()) };
            under_way.number = self.posted.get();
            posted?;
        }
        Ok(())
    }

    pub(super) fn batch_max(&self) -> usize {
        BATCH.min(self.port.send_depth as usize / 2).max(1)
    }

    pub(super) fn add_links(
        &self,
        batch: &mut Batch,
        chain: &Chain,
        links: &[Link],
        read: bool,
        signalled: bool,
    ) {
        for (at, link) in links.iter().enumerate() {
            let Link { remote_address, remote_key, .. } = *link;
            let work = if read {
                Work::Read { remote_address, remote_key }
            } else {
                Work::Write { remote_address, remote_key }
            };
            let last = signalled && at + 1 == links.len();
            self.add_work(batch, work, chain.pieces(link).iter().copied(), last);
        }
    }
}

/// Work in memory that a handler has only lent: if the handler is dropped before its end, the connection ends, and the work
/// with it, before the memory is anybody else's.
pub(in crate::verbs) struct UnderWay<'a, F: Fabric> {
    conn: &'a ConnInner<F>,
    number: u64,
}

impl<'a, F: Fabric> UnderWay<'a, F> {
    pub(in crate::verbs) fn new(conn: &'a ConnInner<F>) -> Self {
        UnderWay { conn, number: 0 }
    }

    /// Waits for the end of the work.
    pub(in crate::verbs) async fn end(self) -> Result<(), ConnError> {
        self.conn.work_ended(self.number).await;
        self.conn.check_open()
    }
}

impl<F: Fabric> Drop for UnderWay<'_, F> {
    fn drop(&mut self) {
        if self.conn.ended.get() < self.number {
            self.conn.end_work_now(self.number);
        }
    }
}
