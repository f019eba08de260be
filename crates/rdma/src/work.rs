//! Work of a channel: posted as there is room, and heard of when it has ended.
//!
//! | a protocol wants to | call |
//! | --- | --- |
//! | send a message, behind RDMA Writes that its data needs | [`Channel::room`], [`Channel::send`] |
//! | write or read the peer's memory, and wait | [`Channel::transfer`] |
//! | write more than fits one post with a message | [`Channel::write_before`] |
//! | bind a window before that | [`Writes::behind`] |
//! | bind or end memory windows | [`Channel::room`], [`Channel::add`], [`Channel::post`] |

use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use weft_reactor::Permit;
use weft_verbs::{Fabric, MemoryPiece, VerbsError, Work, WorkDone, WorkStatus};

use crate::batch::Batch;
use crate::chain::{Chain, Link, RemotePiece};
use crate::channel::{Channel, Ended};
use crate::held::Held;
use crate::pool::Slot;
use crate::schedule::Turn;

/// Work of one chain that is posted at once.
const BATCH: usize = 64;
/// How long work may take to be flushed.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// RDMA Writes, and binds of windows, that go before a message.
pub struct Writes<F: Fabric> {
    chain: Chain,
    /// Links from here on are still to be posted.
    first: usize,
    held: Option<Rc<Vec<Held<F>>>>,
    bind: Option<Work>,
}

impl<F: Fabric> Default for Writes<F> {
    fn default() -> Self {
        Writes { chain: Chain::default(), first: 0, held: None, bind: None }
    }
}

impl<F: Fabric> Writes<F> {
    /// Work requests that are still to be posted.
    pub fn len(&self) -> usize {
        self.links().len() + usize::from(self.bind.is_some())
    }

    /// Whether all are posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// With a bind of a window before them: that of what [`Channel::write_before`] gives.
    pub fn behind(self, bind: Work) -> Writes<F> {
        Writes { bind: Some(bind), ..self }
    }

    fn links(&self) -> &[Link] {
        &self.chain.links[self.first..]
    }
}

impl<F: Fabric> Channel<F> {
    /// Work may have ended, well or not; called by the port.
    pub(crate) fn take_ended(&self, done: &WorkDone) {
        match done.status {
            WorkStatus::Ok => {}
            WorkStatus::Flushed => self.fail(Ended::Closed),
            status => self.fail(Ended::Broken(format!("RDMA work failed: {status:?}"))),
        }
        self.note_ended(done.id);
    }

    /// The number of the last work that was posted.
    pub fn posted(&self) -> u64 {
        self.work.posted.get()
    }

    /// Whether work is under way.
    pub fn is_busy(&self) -> bool {
        self.work.ended.get() < self.work.posted.get()
    }

    /// Waits until work up to this number has ended, well or not.
    pub async fn work_ended(&self, number: u64) {
        std::future::poll_fn(|cx| {
            if self.work.ended.get() >= number {
                return Poll::Ready(());
            }
            self.work.waiters.borrow_mut().push((number, cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Waits for room for so many pieces of work.
    pub async fn room(&self, count: usize) -> Permit {
        self.room.acquire(count).await
    }

    /// The same, if there is room now.
    pub fn try_room(&self, count: usize) -> Option<Permit> {
        self.room.try_acquire(count)
    }

    /// Work requests that are posted at once.
    fn batch_max(&self) -> usize {
        BATCH.min(self.port().send_depth as usize / 2).max(1)
    }

    /// Adds work to a batch. With `signalled` its end, and that of all before it, is reported.
    pub fn add(
        &self,
        batch: &mut Batch,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        signalled: bool,
    ) {
        let number = self.posted() + batch.len() as u64 + 1;
        batch.add(number, work, pieces, signalled);
    }

    fn add_links(&self, batch: &mut Batch, chain: &Chain, links: &[Link], read: bool, signalled: bool) {
        for (at, link) in links.iter().enumerate() {
            let Link { remote_address, remote_key, .. } = *link;
            let work = if read {
                Work::Read { remote_address, remote_key }
            } else {
                Work::Write { remote_address, remote_key }
            };
            self.add(batch, work, chain.pieces(link).iter().copied(), signalled && at + 1 == links.len());
        }
    }

    /// Posts a batch in the room that was taken for just so much. Its last piece is signalled.
    ///
    /// # Errors
    /// The connection has ended.
    ///
    /// # Safety
    /// Memory of the batch stays as it is until [`Channel::work_ended`], or until `held` is dropped.
    pub unsafe fn post(&self, room: Permit, batch: &Batch, held: Vec<Held<F>>) -> Result<(), Ended> {
        room.forget();
        // SAFETY: as the caller promises.
        let result = self.with_endpoint(|endpoint| unsafe { batch.post(endpoint) });
        let posted = match &result {
            Some(Ok(())) => batch.len(),
            Some(Err(VerbsError::Post { posted, .. })) => *posted,
            _ => 0,
        };
        self.work.posted.set(self.posted() + posted as u64);
        self.room.add(batch.len() - posted);
        if posted > 0 {
            self.work.held.borrow_mut().push_back((self.posted(), held));
        }
        match result {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                self.fail(Ended::Broken(error.to_string()));
                Err(self.ended())
            }
            None => Err(self.ended()),
        }
    }

    /// Sends the first `bytes` of a slot, behind `writes`, with one ring of the doorbell, in the room that
    /// was taken for all of it. With `ends_key` the message ends the validity of that key of the peer.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(
        &self,
        room: Permit,
        writes: Writes<F>,
        slot: Slot<F::Device>,
        bytes: usize,
        ends_key: Option<u32>,
    ) -> Result<(), Ended> {
        let mut batch = Batch::default();
        writes.bind.into_iter().for_each(|bind| self.add(&mut batch, bind, [], false));
        self.add_links(&mut batch, &writes.chain, writes.links(), false, false);
        let work = ends_key.map_or(Work::Send, |remote_key| Work::SendInvalidate { remote_key });
        self.add(&mut batch, work, [slot.piece(bytes)], true);
        let held = writes.held.map(Held::Shared).into_iter().chain([Held::Slot(slot)]).collect();
        // SAFETY: the slot and what the writes hold live until the work has ended; they keep all its memory.
        unsafe { self.post(room, &batch, held) }
    }

    /// Waits until nothing is under way, where the adapter wants binds and invalidations to be alone; they are to
    /// be posted at once then.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn ready_to_bind(&self) -> Result<(), Ended> {
        while self.limits().binds_alone && self.is_busy() {
            self.work_ended(self.posted()).await;
        }
        self.check_open()
    }

    /// RDMA Writes of local pieces to the peer's memory, in their turn, to be posted by
    /// [`Channel::write_before`].
    ///
    /// # Safety
    /// The pieces stay as they are as long as `held` lives.
    pub async unsafe fn writes(
        &self,
        local: &[MemoryPiece],
        remote: impl IntoIterator<Item = RemotePiece>,
        held: Held<F>,
    ) -> Writes<F> {
        let chain = Chain::new(local, remote, self.limits().send_pieces_max);
        let turn = self.turn(local).await;
        let held = Some(Rc::new(vec![held, Held::Turn(turn)]));
        Writes { chain, first: 0, held, bind: None }
    }

    async fn turn(&self, local: &[MemoryPiece]) -> Turn {
        let bytes = local.iter().map(|piece| u64::from(piece.bytes)).sum();
        self.port().schedule.turn(self.number, bytes).await
    }

    /// Posts what is to be written before a message, but for an end of it that fits one post with the
    /// message; all of it, unless `joined`: the message can be posted at once.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn write_before(&self, writes: Vec<Writes<F>>, joined: bool) -> Result<Writes<F>, Ended> {
        let mut waiting = writes.into_iter().peekable();
        let most = self.batch_max();
        while let Some(mut writes) = waiting.next() {
            let kept = if joined && waiting.peek().is_none() { most } else { 0 };
            while writes.links().len() > kept {
                let links = &writes.links()[..writes.links().len().min(most)];
                let room = self.room(links.len()).await;
                let mut batch = Batch::default();
                self.add_links(&mut batch, &writes.chain, links, false, true);
                let held = writes.held.clone().map(Held::Shared).into_iter().collect();
                // SAFETY: what holds the memory is held until the end of this work too.
                unsafe { self.post(room, &batch, held) }?;
                writes.first += batch.len();
            }
            if kept > 0 {
                return Ok(writes);
            }
        }
        Ok(Writes::default())
    }

    /// Moves between local pieces and the peer's memory, in its turn, and waits for the end.
    ///
    /// # Errors
    /// The connection has ended.
    ///
    /// # Safety
    /// The pieces stay as they are, and for a read nobody else's, until this has returned or is dropped.
    pub async unsafe fn transfer(
        &self,
        local: &[MemoryPiece],
        remote: impl IntoIterator<Item = RemotePiece>,
        read: bool,
    ) -> Result<(), Ended> {
        let limits = self.limits();
        let pieces_max = if read { limits.read_pieces_max } else { limits.send_pieces_max };
        let chain = Chain::new(local, remote, pieces_max);
        let _turn = self.turn(local).await;
        let mut under_way = UnderWay { channel: self, number: 0 };
        // SAFETY: as the caller promises; if this is dropped, so is `under_way`, which ends the work.
        let posted = unsafe { self.post_chain(&chain, read, &mut under_way) }.await;
        let ended = under_way.end().await;
        posted.and(ended)
    }

    /// Posts a chain of Reads or Writes, in batches as there is room.
    ///
    /// # Safety
    /// The local pieces stay as they are until [`UnderWay`] is dropped, or the end of the work is known.
    async unsafe fn post_chain(
        &self,
        chain: &Chain,
        read: bool,
        under_way: &mut UnderWay<'_, F>,
    ) -> Result<(), Ended> {
        for links in chain.links.chunks(self.batch_max()) {
            let room = self.room(links.len()).await;
            let mut batch = Batch::default();
            self.add_links(&mut batch, chain, links, read, true);
            // SAFETY: as the caller promises.
            let posted = unsafe { self.post(room, &batch, Vec::new()) };
            under_way.number = self.posted();
            posted?;
        }
        Ok(())
    }

    /// Writes nothing to the peer, which its adapter has to acknowledge: what is broken shows. Where work is
    /// under way it shows as well, unless the queue pair stands still; then the connection ends. `still` is
    /// kept between calls.
    pub(crate) fn ask_whether_it_lives(&self, still: &mut Option<(u64, Instant)>) {
        if self.is_busy() {
            let ended = self.work.ended.get();
            let since =
                still.filter(|(before, _)| *before == ended).map_or_else(Instant::now, |(_, since)| since);
            *still = Some((ended, since));
            if since.elapsed() >= self.port().stall() {
                self.fail(Ended::Broken("the adapter does not end work that it was given".into()));
            }
            return;
        }
        *still = None;
        let Some(room) = self.try_room(1) else { return };
        let mut batch = Batch::default();
        self.add(&mut batch, Work::Write { remote_address: 0, remote_key: 0 }, [], true);
        // SAFETY: there is no memory.
        let _ = unsafe { self.post(room, &batch, Vec::new()) };
    }

    /// As [`Channel::work_ended`] without giving way, for a task that is dropped: the connection ends.
    fn end_work_now(&self, number: u64) {
        self.fail(Ended::Broken("a transfer was given up in the middle".into()));
        self.disconnect();
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while self.work.ended.get() < number {
            if self.port().poll().is_err() || Instant::now() > deadline {
                return self.destroy();
            }
        }
    }
}

/// Work in memory that a task has only lent: if the task is dropped before its end, the connection ends, and
/// the work with it, before the memory is anybody else's.
struct UnderWay<'a, F: Fabric> {
    channel: &'a Channel<F>,
    number: u64,
}

impl<F: Fabric> UnderWay<'_, F> {
    /// Waits for the end of the work.
    async fn end(self) -> Result<(), Ended> {
        self.channel.work_ended(self.number).await;
        self.channel.check_open()
    }
}

impl<F: Fabric> Drop for UnderWay<'_, F> {
    fn drop(&mut self) {
        if self.channel.work.ended.get() < self.number {
            self.channel.end_work_now(self.number);
        }
    }
}
