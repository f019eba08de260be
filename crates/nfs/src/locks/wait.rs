//! Locks that clients wait for.
//!
//! ```text
//!   queued ─► asked for again and again, some with replies that are held back ─► granted
//!          ─► GRANTED to the client ─┬─ taken
//!                                    ├─ no answer: again, and again
//!                                    └─ refused, or three times no answer: given back
//! ```
//!
//! A client that had no word of it asks again by itself, as Linux does every 30 seconds.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use weft_client::LockStep;
use weft_onc_rpc::nlm::{self, Lock, LockResult, TestArgs, procedure};
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_reactor::{Event, sleep, spawn, timeout};
use weft_wire::messages::LockState;

use super::files::{Entry, LockFile, Wanted};
use super::{Channel, Locks, Status};
use crate::outbound::{self, PATIENCE, Procedure};
use crate::target::Sender;

/// How often a lock is asked for whose reply is not held back.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How often it is looked whether a reply that is held back is still wanted.
const LEAVE_AGAIN: Duration = Duration::from_millis(100);
/// How long after the cluster could not be reached.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How often a client is told that it has a lock, and the time in between.
const TELLINGS: u32 = 3;
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// A lock that is waited for.
pub(super) struct Wait {
    wanted: Wanted,
    /// As the client has asked for it.
    lock: Lock,
    by_message: bool,
    entry: Rc<Entry>,
    file: Rc<LockFile>,
    channel: Rc<Channel>,
    /// Nobody wants it any more.
    cancelled: Cell<bool>,
    /// It is held; the client is being told.
    granted: Cell<bool>,
    /// The client knows.
    taken: Cell<bool>,
    /// The owner has asked for the same anew: it is not given back by this wait.
    superseded: Cell<bool>,
    /// What a GRANTED_RES has said.
    said: Cell<Option<Status>>,
    answered: Event,
}

impl Wait {
    pub(super) fn is_of(&self, pair: (u64, u64)) -> bool {
        self.wanted.pair == pair
    }
}

impl Locks {
    /// Begins to wait for a lock that is in the queue.
    pub(super) fn begin_wait(
        self: &Rc<Self>,
        wanted: Wanted,
        lock: Lock,
        by_message: bool,
        entry: &Rc<Entry>,
        file: Rc<LockFile>,
    ) {
        self.supersede_waits(&wanted);
        self.table.borrow_mut().wait(&wanted.host, true);
        let channel = self.channel(wanted.host.address);
        let wait = Rc::new(Wait {
            wanted,
            lock,
            by_message,
            entry: entry.clone(),
            file,
            channel,
            cancelled: Cell::new(false),
            granted: Cell::new(false),
            taken: Cell::new(false),
            superseded: Cell::new(false),
            said: Cell::new(None),
            answered: Event::new(),
        });
        let number = self.next_wait.replace(self.next_wait.get() + 1);
        self.waits.borrow_mut().insert(number, wait.clone());
        let locks = self.clone();
        spawn(async move {
            locks.wait(number, &wait).await;
            locks.waits.borrow_mut().remove(&number);
            locks.table.borrow_mut().wait(&wait.wanted.host, false);
            locks.forget_if_none(&wait.wanted);
            let entry = wait.entry.clone();
            drop(wait);
            locks.let_go(entry);
        });
    }

    async fn wait(&self, number: u64, wait: &Wait) {
        if !self.until_granted(wait).await {
            return;
        }
        let wanted = &wait.wanted;
        let turn = wait.entry.turn.lock().await;
        if wait.superseded.get() {
            return;
        }
        // Where it would take with it what the owner had before, it is kept until the owner unlocks that.
        let had_some = self.table.borrow().overlaps(wanted.pair, wanted.range);
        if !wait.cancelled.get() {
            let exclusive = Some(wanted.exclusive);
            self.table.borrow_mut().set(&wanted.host, wanted.pair, wanted.range, exclusive);
            self.lost.borrow_mut().end(wanted.pair, wanted.range);
            wait.granted.set(true);
            drop(turn);
            self.tell(number, wait).await;
            let _turn = wait.entry.turn.lock().await;
            if !wait.taken.get() && !wait.superseded.get() && !had_some {
                self.give_back_untaken(wait).await;
            }
        } else if !had_some {
            self.give_back_untaken(wait).await;
        }
    }

    async fn give_back_untaken(&self, wait: &Wait) {
        if self.give_back(&wait.entry, &wait.wanted).await.is_err() {
            let client = wait.wanted.host.address;
            tracing::warn!(%client, "a lock that nobody took cannot be given back");
        }
    }

    /// Asks until it is decided or cancelled. Whether the lock may be held.
    async fn until_granted(&self, wait: &Wait) -> bool {
        let wanted = &wait.wanted;
        loop {
            let held_back = self.held_back.try_acquire(1);
            let step = if held_back.is_some() { LockStep::Hold } else { LockStep::Queue };
            if wait.cancelled.get() {
                let leave = wait.file.start_lock_cancel_as(wanted.owner(), wanted.target(), wanted.kind());
                let _ = self.files.call(leave).await;
                return true;
            }
            match self.step_or_leave(wait, step).await {
                Ok(LockState::Granted) => return true,
                Ok(_) if step == LockStep::Hold => {}
                Ok(_) => sleep(ASK_AGAIN).await,
                Err(Status::DeniedGracePeriod | Status::DeniedNoLocks) if !wait.file.has_lost_locks() => {
                    sleep(AFTER_ERROR).await;
                }
                // The client asks again, and is told then.
                Err(_) => return false,
            }
        }
    }

    /// Asks once. A cancellation may have come to the metadata server before the request: it is sent again.
    async fn step_or_leave(&self, wait: &Wait, step: LockStep) -> Result<LockState, Status> {
        let wanted = &wait.wanted;
        let mut asking = pin!(self.step(&wait.file, wanted, step));
        loop {
            match timeout(LEAVE_AGAIN, asking.as_mut()).await {
                Ok(outcome) => return outcome,
                Err(_) if wait.cancelled.get() => {
                    let leave =
                        wait.file.start_lock_cancel_as(wanted.owner(), wanted.target(), wanted.kind());
                    drop(self.files.weft.finish(leave));
                }
                Err(_) => {}
            }
        }
    }

    /// Tells the client that it has the lock, until it says so.
    async fn tell(&self, number: u64, wait: &Wait) {
        for telling in 0..TELLINGS {
            if telling > 0 {
                sleep(TELL_AGAIN).await;
            }
            if wait.taken.get() || wait.cancelled.get() {
                return;
            }
            match self.granted(number, wait).await {
                Ok(Status::Granted) => return wait.taken.set(!wait.cancelled.get()),
                Ok(Status::DeniedGracePeriod) => {}
                Ok(_) => return,
                Err(error) => {
                    let client = wait.wanted.host.address;
                    tracing::debug!(%client, %error, "a client cannot be told that it has a lock");
                }
            }
        }
        let client = wait.wanted.host.address;
        tracing::info!(%client, "a client cannot be told that it has a lock: others get it");
    }

    /// One call of GRANTED; what the client says.
    async fn granted(&self, number: u64, wait: &Wait) -> io::Result<Status> {
        let cookie = number.to_be_bytes().to_vec();
        let (exclusive, lock) = (wait.wanted.exclusive, wait.lock.clone());
        let args = TestArgs { cookie, exclusive, lock }.write(Writer::new()).into_bytes();
        let address = wait.wanted.host.address;
        if !wait.by_message {
            let results = self.call_back(&wait.channel, address, procedure::GRANTED, &args).await?;
            let result = LockResult::read(&mut Reader::new(&results));
            return result.map(|result| result.status).map_err(io::Error::other);
        }
        self.call_back(&wait.channel, address, super::GRANTED_MSG, &args).await?;
        let late =
            |_| io::Error::new(io::ErrorKind::TimedOut, "the client has not said whether it takes the lock");
        timeout(PATIENCE, wait.answered.wait()).await.map_err(late)?;
        Ok(wait.said.get().unwrap_or(Status::Failed))
    }

    /// Calls the lock manager of a client.
    pub(super) async fn call_back(
        &self,
        channel: &Channel,
        address: IpAddr,
        number: u32,
        args: &[u8],
    ) -> io::Result<Vec<u8>> {
        let _turn = channel.callbacks.acquire(1).await;
        let mapper = SocketAddr::new(address, self.options.mapper_port);
        let port = outbound::port_of(mapper, nlm::PROGRAM, nlm::VERSION).await?;
        let procedure = Procedure { program: nlm::PROGRAM, version: nlm::VERSION, number };
        outbound::call(SocketAddr::new(address, port), procedure, args).await
    }

    /// A client says whether it takes a lock.
    pub(super) fn answered(&self, sender: &Sender, result: &LockResult) {
        let Ok(number) = result.cookie.as_slice().try_into().map(u64::from_be_bytes) else { return };
        if let Some(wait) = self.waits.borrow().get(&number)
            && wait.wanted.host.address == sender.peer.ip().to_canonical()
            && wait.granted.get()
        {
            wait.said.set(Some(result.status));
            wait.answered.set();
        }
    }

    /// What a LOCK is answered that is waited for already.
    pub(super) fn wait_known(&self, wanted: &Wanted) -> Option<Status> {
        let waits = self.waits.borrow();
        let is_same = |wait: &&Rc<Wait>| {
            wait.wanted.is_for(wanted) && wait.wanted.exclusive == wanted.exclusive && !wait.cancelled.get()
        };
        let wait = waits.values().find(is_same)?;
        if wait.granted.get() {
            wait.taken.set(true);
            return Some(Status::Granted);
        }
        Some(Status::Blocked)
    }

    /// An owner asks for a lock anew: waits for the same that were ended do not give it back.
    pub(super) fn supersede_waits(&self, wanted: &Wanted) {
        let waits = self.waits.borrow();
        waits.values().filter(|wait| wait.wanted.is_for(wanted)).for_each(|wait| wait.superseded.set(true));
    }

    /// Ends waits; how many. What is granted and not taken is given back.
    pub(super) fn cancel_waits(&self, is_meant: impl Fn(&Wanted) -> bool) -> usize {
        let waits = self.waits.borrow();
        let meant = waits.values().filter(|wait| is_meant(&wait.wanted) && !wait.taken.get());
        let mut count = 0;
        for wait in meant {
            count += 1;
            if wait.cancelled.replace(true) {
                continue;
            }
            let wanted = &wait.wanted;
            let leave = wait.file.start_lock_cancel_as(wanted.owner(), wanted.target(), wanted.kind());
            // It goes on by itself; a reply that is held back comes then.
            drop(self.files.weft.finish(leave));
        }
        count
    }
}
