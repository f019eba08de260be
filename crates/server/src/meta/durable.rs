//! Group commit: one fsync for all operations that committed while the one before it ran.
//!
//! ```text
//!   metadata thread                      sync thread
//!   commit 1, wait(1) ──── wanted 1 ───► sync() …
//!   commit 2, wait(2) ──── wanted 2        …
//!   commit 3, wait(3) ──── wanted 3        … covers 1: reply 1 leaves
//!                                        sync() … covers 3: replies 2 and 3 leave
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weft_meta::{CommitSeq, EngineError, Syncer};
use weft_reactor::{Event, MailSender, Mailbox, mailbox};

/// The metadata thread's side. Dropping it ends the sync thread.
pub(crate) struct Durability {
    shared: Arc<Shared>,
    durable: RefCell<Result<CommitSeq, String>>,
    waiters: RefCell<Vec<(CommitSeq, Rc<Event>)>>,
    failed: Event,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: CommitSeq,
    stopping: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the sync thread tells the metadata thread: how far all is durable.
type Progress = Result<CommitSeq, EngineError>;

impl Durability {
    /// Starts the sync thread, and the task that hears of its progress.
    pub fn start(syncer: Box<dyn Syncer>) -> std::io::Result<Rc<Durability>> {
        let shared = Arc::new(Shared::default());
        let (sender, progress) = mailbox(1024);
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("weft-sync".into())
                .spawn(move || sync_thread(&shared, syncer.as_ref(), &sender))?
        };
        let durability = Rc::new(Durability {
            shared,
            durable: RefCell::new(Ok(0)),
            waiters: RefCell::default(),
            failed: Event::new(),
            thread: Some(thread),
        });
        weft_reactor::spawn(hear(Rc::downgrade(&durability), progress));
        Ok(durability)
    }

    /// Asks for all up to `seq` to be made durable, without waiting.
    pub fn want(&self, seq: CommitSeq) {
        let mut state = self.shared.lock();
        if state.wanted < seq {
            state.wanted = seq;
            self.shared.changed.notify_one();
        }
    }

    /// Waits until all up to `seq` is durable.
    pub async fn wait(&self, seq: CommitSeq) -> Result<(), String> {
        loop {
            match &*self.durable.borrow() {
                Ok(durable) if *durable >= seq => return Ok(()),
                Ok(_) => {}
                Err(reason) => return Err(reason.clone()),
            }
            let event = Rc::new(Event::new());
            self.waiters.borrow_mut().push((seq, event.clone()));
            self.want(seq);
            event.wait().await;
        }
    }

    /// Waits until a sync has failed, and says why: nothing will become durable any more.
    pub async fn failure(&self) -> String {
        self.failed.wait().await;
        self.durable.borrow().clone().err().unwrap_or_default()
    }

    fn progressed(&self, progress: Progress) {
        let durable = progress.map_err(|error| error.to_string());
        let upto = *durable.as_ref().unwrap_or(&CommitSeq::MAX);
        *self.durable.borrow_mut() = durable;
        if upto == CommitSeq::MAX {
            self.failed.set();
        }
        self.waiters.borrow_mut().retain(|(seq, event)| {
            if *seq <= upto {
                event.set();
            }
            *seq > upto
        });
    }
}

impl Drop for Durability {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the sync thread has been printed by it; there is nobody to pass it on to here.
            let _ = thread.join();
        }
    }
}

async fn hear(durability: std::rc::Weak<Durability>, mut progress: Mailbox<Progress>) {
    while let Some(news) = progress.receive().await {
        let Some(durability) = durability.upgrade() else { return };
        durability.progressed(news);
    }
}

fn sync_thread(shared: &Shared, syncer: &dyn Syncer, progress: &MailSender<Progress>) {
    let mut durable = 0;
    loop {
        let mut state = shared.lock();
        while state.wanted <= durable && !state.stopping {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let last = state.stopping;
        drop(state);
        let news = syncer.sync();
        let failed = news.is_err();
        durable = *news.as_ref().unwrap_or(&durable);
        if progress.send(news).is_err() || failed || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use weft_reactor::{Reactor, ReactorOptions, spawn};

    #[derive(Default)]
    struct Slow {
        committed: Arc<AtomicU64>,
        syncs: Arc<AtomicU64>,
        fails: bool,
    }

    impl Syncer for Slow {
        fn sync(&self) -> Result<CommitSeq, EngineError> {
            let covered = self.committed.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            self.syncs.fetch_add(1, Ordering::SeqCst);
            if self.fails { Err(EngineError::Poisoned) } else { Ok(covered) }
        }
    }

    #[test]
    fn many_waiters_share_few_syncs() {
        let slow = Slow::default();
        let (committed, syncs) = (slow.committed.clone(), slow.syncs.clone());
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let durability = Durability::start(Box::new(slow)).unwrap();
            let mut waiting = Vec::new();
            for seq in 1..=100 {
                committed.store(seq, Ordering::SeqCst);
                let durability = durability.clone();
                waiting.push(spawn(async move { durability.wait(seq).await }));
            }
            for waiter in waiting {
                waiter.await.unwrap();
            }
        });
        assert!(syncs.load(Ordering::SeqCst) <= 4, "{syncs:?}");
    }

    #[test]
    fn a_failed_sync_fails_all_who_wait() {
        let slow = Slow { fails: true, ..Slow::default() };
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let durability = Durability::start(Box::new(slow)).unwrap();
            assert!(durability.wait(1).await.unwrap_err().contains("restart"));
            assert!(durability.wait(2).await.is_err());
        });
    }
}
