//! Locks of NFS clients: the lock manager (NLM, version 4) and the status monitor (NSM).
//!
//! ```text
//!   LOCK ─► lock.rs ─► the metadata server, in a session of its own ─┬─ granted ─► table.rs
//!                                                                   └─ queued ──► BLOCKED; wait.rs asks on
//!   wait.rs: has it ─► GRANTED, to the client's lock manager ─► taken, or else given back
//!
//!   changes.rs: whether a client may write, by the locks that it has lost (lost.rs)
//!   store.rs: clients and what they have ─► after a restart: NOTIFY to clients, grace, reclaims (recovery.rs)
//! ```
//!
//! The locks are those of all clients of the cluster. An owner of NFS is one of this gateway's session there.
//! The session outlives the gateway for ten seconds, and a gateway that starts again goes on with it.
//!
//! Calls about one file run one after another. None of them waits for another client.

mod changes;
mod files;
mod lock;
mod lost;
mod recovery;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod wait;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weft_client::{Client, ConnectOptions, Url};
use weft_onc_rpc::nlm::{
    self, CancelArgs, LockArgs, LockResult, ShareArgs, Status, TestArgs, TestResult, UnlockArgs, procedure,
};
use weft_onc_rpc::nsm;
use weft_onc_rpc::xdr::{Reader, Writer, XdrError};
use weft_reactor::{LocalLock, Semaphore, spawn};

use crate::permits::Permits;
use crate::procedures::Files;
use crate::target::Sender;
use files::Entry;
use lost::LostLocks;
use store::{Held, Host, Store};
use table::Table;
use wait::Wait;

/// How long clients may reclaim after a restart.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(20);
/// Requests that the metadata server holds back for the session, which has eight exactly-once slots.
const HELD_BACK_MAX: usize = 3;
/// Calls to one client at a time.
const CALLBACKS_PER_ADDRESS: usize = 4;
/// Calls of the asynchronous kind from one client that are under way.
const MESSAGES_PER_ADDRESS: usize = 64;

/// How a gateway locks for its clients.
#[derive(Debug, Clone)]
pub struct LockOptions {
    /// Where what must be known after a restart is kept; of this gateway alone.
    pub directory: PathBuf,
    /// The cluster, which is connected to once more for locks.
    pub url: Url,
    /// How it is connected to; for anybody.
    pub connect: ConnectOptions,
    /// What the gateway calls itself when it tells clients of its restart.
    pub name: String,
    /// How long clients may reclaim after a restart.
    pub grace: Duration,
    /// The port of the port mappers of clients.
    pub mapper_port: u16,
}

/// The session at the metadata server.
struct Session {
    client: Client,
    /// An earlier start was in it, and may have left open files.
    is_resumed: bool,
}

/// Calls to and from an address.
struct Channel {
    callbacks: Semaphore,
    messages: Semaphore,
}

/// The locks of all clients of a gateway.
pub(crate) struct Locks {
    files: Rc<Files>,
    options: LockOptions,
    store: RefCell<Store>,
    session: RefCell<Session>,
    /// The number of this start.
    state: Cell<u32>,
    in_grace: Cell<bool>,
    is_stopped: Cell<bool>,
    table: RefCell<Table>,
    entries: RefCell<HashMap<u64, Rc<Entry>>>,
    waits: RefCell<HashMap<u64, Rc<Wait>>>,
    next_wait: Cell<u64>,
    held_back: Semaphore,
    /// Clients that are told of a restart.
    monitored: RefCell<HashSet<Host>>,
    monitoring: LocalLock<()>,
    /// What earlier starts may have left locked.
    left: RefCell<Vec<Held>>,
    /// What clients have lost, and neither locked again nor given up.
    lost: RefCell<LostLocks>,
    channels: RefCell<HashMap<IpAddr, Rc<Channel>>>,
}

/// How many there are of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockCounts {
    /// Clients that are known.
    pub clients: usize,
    /// Locks, and requests that wait for one.
    pub locks: usize,
    /// Requests that wait.
    pub waits: usize,
    /// Clients may reclaim what they had before a restart, and nobody gets a new lock.
    pub in_grace: bool,
}

fn packed(cookie: Vec<u8>, status: Status) -> Vec<u8> {
    LockResult { cookie, status }.write(Writer::new()).into_bytes()
}

/// Whether a call of NLM comes without waiting for results, and of which procedure it is then.
fn of_message(number: u32) -> Option<u32> {
    let is_message =
        (procedure::TEST + procedure::TO_MSG..procedure::GRANTED + procedure::TO_MSG).contains(&number);
    is_message.then(|| number - procedure::TO_MSG)
}

impl Locks {
    /// Goes on with what an earlier start left in the directory.
    ///
    /// # Errors
    /// The directory cannot be used, or the session not be made.
    pub(crate) fn start(files: &Rc<Files>, options: &LockOptions) -> io::Result<Rc<Locks>> {
        let (store, left) = Store::open(&options.directory)?;
        let (id, is_resumed) = left.session;
        let session = Session { client: join(files, options, id, left.state)?, is_resumed };
        let has_clients = !left.clients.is_empty();
        let locks = Rc::new(Locks {
            files: files.clone(),
            options: options.clone(),
            store: RefCell::new(store),
            session: RefCell::new(session),
            state: Cell::new(left.state),
            in_grace: Cell::new(has_clients),
            is_stopped: Cell::new(false),
            table: RefCell::default(),
            entries: RefCell::default(),
            waits: RefCell::default(),
            next_wait: Cell::new(u64::from(left.state) << 32),
            held_back: Semaphore::new(HELD_BACK_MAX),
            monitored: RefCell::new(left.clients.iter().cloned().collect()),
            monitoring: LocalLock::new(()),
            left: RefCell::new(left.held),
            lost: RefCell::default(),
            channels: RefCell::default(),
        });
        let permits: Weak<dyn Permits> = Rc::<Locks>::downgrade(&locks);
        *files.permits.borrow_mut() = Some(permits);
        locks.recover(left.clients);
        spawn(locks.clone().look_after());
        Ok(locks)
    }

    /// How many there are of what.
    pub(crate) fn counts(&self) -> LockCounts {
        let (clients, locks) = self.table.borrow().sizes();
        LockCounts { clients, locks, waits: self.waits.borrow().len(), in_grace: self.in_grace.get() }
    }

    fn channel(&self, address: IpAddr) -> Rc<Channel> {
        let mut channels = self.channels.borrow_mut();
        channels.retain(|_, channel| Rc::strong_count(channel) > 1);
        let new = || Channel {
            callbacks: Semaphore::new(CALLBACKS_PER_ADDRESS),
            messages: Semaphore::new(MESSAGES_PER_ADDRESS),
        };
        channels.entry(address).or_insert_with(|| Rc::new(new())).clone()
    }

    /// Does a call of the lock manager; `None` if there is no such procedure.
    ///
    /// # Errors
    /// The arguments are none.
    pub(crate) async fn nlm(
        self: &Rc<Self>,
        sender: &Sender,
        number: u32,
        args: &[u8],
    ) -> Result<Option<Vec<u8>>, XdrError> {
        if let Some(number) = of_message(number) {
            self.message(sender, number, args)?;
            return Ok(Some(Vec::new()));
        }
        let from = &mut Reader::new(args);
        Ok(Some(match number {
            procedure::NULL => Vec::new(),
            // This is a server only: nobody grants it anything.
            procedure::GRANTED => packed(TestArgs::read(from)?.cookie, Status::Denied),
            procedure::SHARE | procedure::UNSHARE => {
                let args = ShareArgs::read(from)?;
                let status = if number == procedure::SHARE { Status::DeniedNoLocks } else { Status::Granted };
                nlm::write_share_result(&LockResult { cookie: args.cookie, status }, 0, Writer::new())
                    .into_bytes()
            }
            procedure::FREE_ALL => {
                let host = Host::of(sender, &nlm::read_free_all(from)?);
                self.free(&host).await;
                Vec::new()
            }
            GRANTED_RES => {
                let result = LockResult::read(from)?;
                self.answered(sender, &result);
                Vec::new()
            }
            // Results of calls that are never made here.
            TEST_RES..GRANTED_RES | GRANTED_MSG => Vec::new(),
            number => match self.ask(sender, number, false, args).await? {
                Some(results) => results,
                None => return Ok(None),
            },
        }))
    }

    /// Does what has results of its own; `by_message`: they go in a call to the client.
    async fn ask(
        self: &Rc<Self>,
        sender: &Sender,
        number: u32,
        by_message: bool,
        args: &[u8],
    ) -> Result<Option<Vec<u8>>, XdrError> {
        let from = &mut Reader::new(args);
        Ok(Some(match number {
            procedure::TEST => {
                let TestArgs { cookie, exclusive, lock } = TestArgs::read(from)?;
                let outcome = self.test(sender, exclusive, &lock).await;
                TestResult { cookie, outcome }.write(Writer::new()).into_bytes()
            }
            procedure::LOCK | procedure::NM_LOCK => {
                let args = LockArgs::read(from)?;
                let cookie = args.cookie.clone();
                packed(cookie, self.lock(sender, args, number == procedure::LOCK, by_message).await)
            }
            procedure::CANCEL => {
                let CancelArgs { cookie, exclusive, lock, .. } = CancelArgs::read(from)?;
                packed(cookie, self.cancel(sender, exclusive, &lock).await)
            }
            procedure::UNLOCK => {
                let UnlockArgs { cookie, lock } = UnlockArgs::read(from)?;
                packed(cookie, self.unlock(sender, &lock).await)
            }
            _ => return Ok(None),
        }))
    }

    /// Begins what is answered by a call to the client. What comes beyond a number of them is dropped; the
    /// client sends it again.
    fn message(self: &Rc<Self>, sender: &Sender, number: u32, args: &[u8]) -> Result<(), XdrError> {
        // What makes no sense is refused at once.
        match number {
            procedure::TEST => TestArgs::read(&mut Reader::new(args)).map(drop)?,
            procedure::LOCK => LockArgs::read(&mut Reader::new(args)).map(drop)?,
            procedure::CANCEL => CancelArgs::read(&mut Reader::new(args)).map(drop)?,
            _ => UnlockArgs::read(&mut Reader::new(args)).map(drop)?,
        }
        let client = sender.peer.ip().to_canonical();
        let channel = self.channel(client);
        let Some(turn) = channel.messages.try_acquire(1) else { return Ok(()) };
        let (locks, sender, args) = (self.clone(), *sender, args.to_vec());
        spawn(async move {
            if let Ok(Some(results)) = locks.ask(&sender, number, true, &args).await {
                let number = number + procedure::TO_RES;
                if let Err(error) = locks.call_back(&channel, client, number, &results).await {
                    tracing::debug!(client = %sender.peer, %error, "the result of a lock call cannot be sent");
                }
            }
            drop(turn);
        });
        Ok(())
    }

    /// Does a call of the status monitor; `None` if there is no such procedure.
    ///
    /// # Errors
    /// The arguments are none.
    pub(crate) async fn nsm(
        self: &Rc<Self>,
        sender: &Sender,
        number: u32,
        args: &[u8],
    ) -> Result<Option<Vec<u8>>, XdrError> {
        let from = &mut Reader::new(args);
        let state = self.state.get();
        Ok(Some(match number {
            nsm::procedure::NULL => Vec::new(),
            nsm::procedure::STAT => {
                from.opaque(nsm::NAME_BYTES_MAX)?;
                nsm::write_result(true, state, Writer::new()).into_bytes()
            }
            // Monitoring for others is not done here.
            nsm::procedure::MON => {
                nsm::Monitor::read(from)?;
                nsm::write_result(false, state, Writer::new()).into_bytes()
            }
            nsm::procedure::UNMON | nsm::procedure::UNMON_ALL => Writer::new().u32(state).into_bytes(),
            nsm::procedure::SIMU_CRASH => Vec::new(),
            nsm::procedure::NOTIFY => {
                let change = nsm::Change::read(from)?;
                self.restarted(sender, &change.host).await;
                Vec::new()
            }
            _ => return Ok(None),
        }))
    }
}

const GRANTED_MSG: u32 = procedure::GRANTED + procedure::TO_MSG;
const TEST_RES: u32 = procedure::TEST + procedure::TO_RES;
const GRANTED_RES: u32 = procedure::GRANTED + procedure::TO_RES;

/// A client of the session. It connects when it is used.
fn join(files: &Files, options: &LockOptions, id: [u8; 16], state: u32) -> io::Result<Client> {
    // Odd numbers become all numbers, so that each start has other slots than the one before.
    let member = (state / 2) as u16;
    Client::join_session(&options.url, options.connect.clone(), files.client.map(), id, member)
        .map_err(|error| io::Error::other(format!("the session for locks cannot be made: {error}")))
}
