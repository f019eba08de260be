//! What the processes of a communicator keep from one file to the next: a communicator of their own, and a
//! board in shared memory. Making both takes longer than to open a file.
//!
//! ```text
//!   open    process 0 chooses a free team of the communicator, or a number for a new one, and tells it by the door
//!           all take that team
//!   close   all give it back
//! ```
//!
//! A file that is open has its team for itself. The door is used by one open after the other: MPI forbids two
//! at once on one communicator. The teams of a communicator that is freed, or of all when MPI
//! is finalized, are freed: attributes of the program's communicators say when.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::peers::MpiPeers;
use crate::sync::lock;
use crate::turns;

/// The processes of an open file.
pub struct Team {
    /// How they reach each other.
    pub peers: MpiPeers,
    /// The communicator of the program: the value of its attribute.
    home: Option<usize>,
    number: u64,
}

/// Which team a file gets: a free one, or a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Of all teams of the communicator it alone has it.
    pub number: u64,
    /// Whether it is to be made.
    pub is_new: bool,
}

#[derive(Default)]
struct Pool {
    /// Of each communicator, by the value of its attribute.
    homes: HashMap<usize, Home>,
    next_home: usize,
    /// MPI is being finalized.
    has_ended: bool,
}

#[derive(Default)]
struct Home {
    door: Option<MpiPeers>,
    next_number: u64,
    free: Vec<(u64, MpiPeers)>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static GIVEN_BACK: Condvar = Condvar::new();
/// Another process gave the team back before, so this one is about to.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn pool<T>(body: impl FnOnce(&mut Pool) -> T) -> T {
    body(lock(&POOL).get_or_insert_default())
}

/// In process 0: the team of a file that is opened by the processes of `comm`.
pub fn choose(mpi: &'static Mpi, comm: Handle) -> Chosen {
    let home = home_of(mpi, comm);
    pool(|pool| {
        let Some(home) = home.and_then(|home| pool.homes.get_mut(&home)) else {
            return Chosen { number: 0, is_new: true };
        };
        match home.free.last() {
            Some((number, _)) => Chosen { number: *number, is_new: false },
            None => {
                home.next_number += 1;
                Chosen { number: home.next_number, is_new: true }
            }
        }
    })
}

/// Collective: the team that process 0 has chosen, just before.
pub fn take(mpi: &'static Mpi, comm: Handle, rank_and_size: (usize, usize), chosen: Chosen) -> Result<Team> {
    let (rank, size) = rank_and_size;
    let Chosen { number, is_new } = chosen;
    let home = if size > 1 { home_of(mpi, comm) } else { None };
    let peers = match (is_new, home) {
        (false, Some(home)) => wait_for(home, number)?,
        (false, None) => return Err(lost()),
        (true, _) if size == 1 => MpiPeers::alone(mpi),
        (true, _) => {
            make_door(mpi, comm, home, rank_and_size)?;
            let own = mpi.dup(comm)?;
            MpiPeers::new(mpi, own, rank, size).inspect_err(|_| mpi.free_comm(own))?
        }
    };
    Ok(Team { peers, home, number })
}

/// Collective: makes the door where there is none yet. Its communicator is the program's.
fn make_door(
    mpi: &'static Mpi,
    comm: Handle,
    home: Option<usize>,
    (rank, size): (usize, usize),
) -> Result<()> {
    let Some(home) =
        home.filter(|home| pool(|pool| pool.homes.get(home).is_some_and(|home| home.door.is_none())))
    else {
        return Ok(());
    };
    keep_door(home, MpiPeers::new(mpi, comm, rank, size)?);
    Ok(())
}

fn keep_door(home: usize, door: MpiPeers) {
    pool(|pool| {
        if let Some(home) = pool.homes.get_mut(&home) {
            home.door = Some(door);
        }
    });
}

/// Collective: bytes of process 0 to all processes of `comm`; by the door once there is one.
pub fn tell(mpi: &'static Mpi, comm: Handle, bytes: &mut [u8]) -> Result<()> {
    let home = home_of(mpi, comm);
    let door = home.and_then(|home| pool(|pool| pool.homes.get_mut(&home)?.door.take()));
    let (Some(home), Some(mut door)) = (home, door) else { return mpi.bcast(bytes, 0, comm) };
    let told = door.bcast(bytes, 0);
    keep_door(home, door);
    told
}

fn lost() -> MpiError {
    MpiError::new(
        Class::Intern,
        "processes do not agree on how they reach each other; is a file half closed?",
    )
}

/// Takes a free team. It may still be on its way here, as another thread closes its file.
fn wait_for(home: usize, number: u64) -> Result<MpiPeers> {
    let taken = |pool: &mut MutexGuard<'_, Option<Pool>>| {
        let free = &mut pool.get_or_insert_default().homes.get_mut(&home)?.free;
        let index = free.iter().position(|(other, _)| *other == number)?;
        Some(free.remove(index).1)
    };
    let mut pool = lock(&POOL);
    loop {
        if let Some(peers) = taken(&mut pool) {
            return Ok(peers);
        }
        let waited = GIVEN_BACK.wait_timeout(pool, WAIT_MAX);
        let (guard, timeout) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(lost());
        }
        pool = guard;
    }
}

/// Gives back the team of a file that all have closed.
pub fn give_back(team: Team) {
    let Team { mut peers, home, number } = team;
    peers.free_windows();
    let unwanted =
        pool(|pool| match home.filter(|_| !pool.has_ended).and_then(|home| pool.homes.get_mut(&home)) {
            Some(home) => {
                home.free.push((number, peers));
                None
            }
            None => Some(peers),
        });
    match unwanted {
        Some(peers) => peers.free(),
        None => GIVEN_BACK.notify_all(),
    }
}

/// The value of a communicator's attribute, which it gets here. `None` if MPI gives none.
fn home_of(mpi: &'static Mpi, comm: Handle) -> Option<usize> {
    let [of_comm, _] = keyvals(mpi)?;
    let (mut value, mut is_set) = (ptr::null_mut::<c_void>(), 0);
    // SAFETY: both are written.
    let code = unsafe { (mpi.f.comm_get_attr)(comm, of_comm, &mut value, &mut is_set) };
    if code == 0 && is_set != 0 {
        return Some(value as usize);
    }
    let home = pool(|pool| {
        pool.next_home += 1;
        (!pool.has_ended).then_some(pool.next_home)
    })?;
    // SAFETY: the value is a number.
    if unsafe { (mpi.f.comm_set_attr)(comm, of_comm, home as *mut c_void) } != 0 {
        return None;
    }
    pool(|pool| pool.homes.insert(home, Home::default()));
    Some(home)
}

/// The keys of attributes: of the program's communicators, and the one of `MPI_COMM_SELF` that tells when MPI
/// is finalized: its attributes are deleted first, while all of MPI can be used (MPI 4.0, 11.2.4).
fn keyvals(mpi: &'static Mpi) -> Option<[c_int; 2]> {
    static KEYVALS: OnceLock<Option<[c_int; 2]>> = OnceLock::new();
    *KEYVALS.get_or_init(|| {
        let mut keyvals = [0; 2];
        for (keyval, gone) in keyvals.iter_mut().zip([is_freed as _, is_finalized as _]) {
            // SAFETY: the functions are of the kinds that MPI asks for.
            let code = unsafe { (mpi.f.comm_create_keyval)(do_not_copy, gone, keyval, ptr::null_mut()) };
            (code == 0).then_some(())?;
        }
        let comm_self = mpi.handles.comm_self;
        // SAFETY: the value is not used.
        let code = unsafe { (mpi.f.comm_set_attr)(comm_self, keyvals[1], ptr::null_mut()) };
        (code == 0).then_some(keyvals)
    })
}

unsafe extern "C" fn do_not_copy(
    _comm: usize,
    _keyval: c_int,
    _extra: *mut c_void,
    _value: *mut c_void,
    _to: *mut c_void,
    is_copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI's place for the answer.
    unsafe { *is_copied = 0 };
    0
}

unsafe extern "C" fn is_freed(
    _comm: usize,
    _keyval: c_int,
    value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    let home = pool(|pool| pool.homes.remove(&(value as usize)));
    turns::without(|| free_all(home.into_iter().collect()));
    0
}

unsafe extern "C" fn is_finalized(
    _comm: usize,
    _keyval: c_int,
    _value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    let homes = pool(|pool| {
        pool.has_ended = true;
        let mut homes: Vec<_> = pool.homes.drain().collect();
        homes.sort_unstable_by_key(|(home, _)| *home);
        homes.into_iter().map(|(_, home)| home).collect()
    });
    turns::without(|| free_all(homes));
    0
}

/// All processes free them in the same order.
fn free_all(homes: Vec<Home>) {
    for mut home in homes {
        home.free.sort_unstable_by_key(|(number, _)| *number);
        home.free.into_iter().for_each(|(_, peers)| peers.free());
    }
}
