//! An open file of Weft's in an MPI program, and the table that finds it by its handle.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use weft_client::{Client, Direction, File};

use crate::engine::Engine;
use crate::error::{Class, MpiError, Result};
use crate::hints::Hints;
use crate::mpi::Mpi;
use crate::peers::MpiPeers;
use crate::place::Place;
use crate::stats::Stats;
use crate::sync::lock;
use crate::teams::Team;
use crate::view::FileView;

/// The kinds of pointers by which split collectives begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitPointer {
    /// `_at_all`
    At,
    /// `_all`
    Individual,
    /// `_ordered`
    Ordered,
}

/// What tells which calls of split collectives belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitKind {
    /// Read or write.
    pub direction: Direction,
    /// Where.
    pub pointer: SplitPointer,
}

/// A split collective that was begun.
pub struct Split {
    /// By which function.
    pub kind: SplitKind,
    /// The address of the first element.
    pub buffer: usize,
    /// Bytes of the program's data that were moved.
    pub bytes: u64,
}

/// An open file.
pub struct MpiFile {
    /// The MPI of the process.
    pub mpi: &'static Mpi,
    /// The program's handle: a file of its own MPI.
    pub shadow: usize,
    /// The processes that opened it, until it is closed. Locked while they wait for each other, as collective
    /// calls on one file have an order.
    pub team: Mutex<Option<Team>>,
    /// This one.
    pub rank: usize,
    /// Their number.
    pub size: usize,
    /// The mode it was opened with.
    pub amode: c_int,
    /// The connection.
    pub client: Client,
    /// The file. Process 0 has it open at the metadata server; the others use it under that open.
    pub file: File,
    /// Where it is.
    pub place: Place,
    /// What the program asked for, and what is in force.
    pub hints: Mutex<Hints>,
    view: Mutex<Arc<FileView>>,
    /// The individual pointer, in etypes of the view.
    pub position: Mutex<i64>,
    is_atomic: AtomicBool,
    /// The split collective that is under way.
    pub split: Mutex<Option<Split>>,
    /// What collective accesses keep.
    pub engine: Mutex<Engine>,
    /// Whether this process has used the shared pointer since it was last set to 0.
    pub has_moved_shared: AtomicBool,
    /// The file was at least so long when somebody looked.
    pub known_bytes: AtomicU64,
    /// Counters.
    pub stats: Stats,
    /// Whether they are shown when it is closed: as process 0 was asked.
    pub shows_stats: bool,
}

/// What an open file begins with.
pub struct Opened {
    /// See [`MpiFile`].
    pub mpi: &'static Mpi,
    /// See [`MpiFile`].
    pub shadow: usize,
    /// See [`MpiFile`].
    pub shows_stats: bool,
    /// Rank and number of processes.
    pub rank_and_size: (usize, usize),
    /// See [`MpiFile`].
    pub amode: c_int,
    /// See [`MpiFile`].
    pub client: Client,
    /// See [`MpiFile`].
    pub file: File,
    /// See [`MpiFile`].
    pub place: Place,
    /// See [`MpiFile`].
    pub hints: Hints,
    /// Where the pointers begin, in bytes.
    pub position: i64,
}

impl MpiFile {
    /// An open file with the view of all bytes.
    pub fn new(opened: Opened) -> Result<MpiFile> {
        let view = FileView::bytes(opened.mpi)?;
        Ok(MpiFile {
            mpi: opened.mpi,
            shadow: opened.shadow,
            team: Mutex::default(),
            shows_stats: opened.shows_stats,
            rank: opened.rank_and_size.0,
            size: opened.rank_and_size.1,
            amode: opened.amode,
            client: opened.client,
            file: opened.file,
            place: opened.place,
            hints: Mutex::new(opened.hints),
            view: Mutex::new(Arc::new(view)),
            position: Mutex::new(opened.position),
            is_atomic: AtomicBool::new(false),
            split: Mutex::default(),
            engine: Mutex::default(),
            has_moved_shared: AtomicBool::new(false),
            known_bytes: AtomicU64::new(0),
            stats: Stats::default(),
        })
    }

    /// Whether the mode has a bit.
    pub fn has_mode(&self, bit: c_int) -> bool {
        self.amode & bit != 0
    }

    /// The view that is set.
    pub fn view(&self) -> Arc<FileView> {
        lock(&self.view).clone()
    }

    /// Sets the view.
    pub fn replace_view(&self, view: FileView) {
        *lock(&self.view) = Arc::new(view);
    }

    /// Whether atomic mode is on.
    pub fn is_atomic(&self) -> bool {
        self.is_atomic.load(Ordering::Acquire)
    }

    /// Switches atomic mode.
    pub fn switch_atomic(&self, is_atomic: bool) {
        self.is_atomic.store(is_atomic, Ordering::Release);
    }

    /// Carries out a part of a collective operation in process 0 alone, and tells its result to all.
    pub fn in_first(&self, body: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let result = if self.rank == 0 { body() } else { Ok(0) };
        self.share(0, result)
    }

    /// The result of all processes: an error where any has one, of the class that any has.
    pub fn agree(&self, result: Result<()>) -> Result<()> {
        self.agree_on(result, [], "", &[]).map(|[]| ())
    }

    /// That all processes give the same arguments, which MPI demands. They wait for each other.
    pub fn same(&self, what: &str, arguments: &[i64]) -> Result<()> {
        self.agree_on(Ok(()), [], what, arguments).map(|[]| ())
    }

    /// As [`MpiFile::agree`] and [`MpiFile::same`], by one reduction; which of `flags` are set in any process.
    pub fn agree_on<const FLAGS: usize>(
        &self,
        result: Result<()>,
        flags: [bool; FLAGS],
        what: &str,
        arguments: &[i64],
    ) -> Result<[bool; FLAGS]> {
        agree(peers(&mut lock(&self.team))?, result, flags, what, arguments)
    }

    /// Tells the result of process `root` to all.
    pub fn share(&self, root: usize, result: Result<u64>) -> Result<u64> {
        share(peers(&mut lock(&self.team))?, self.rank, root, result)
    }
}

/// The processes of an open file.
pub fn peers(team: &mut Option<Team>) -> Result<&mut MpiPeers> {
    let peers = team.as_mut().map(|team| &mut team.peers);
    peers.ok_or_else(|| MpiError::new(Class::File, "the file is being closed by another thread"))
}

/// Tells the result of process `root` to all.
pub fn share(peers: &mut MpiPeers, rank: usize, root: usize, result: Result<u64>) -> Result<u64> {
    let text = result.as_ref().err().map_or(String::new(), |error| error.text.clone());
    let mut header = [0u8; 24];
    if rank == root {
        let class = result.as_ref().err().map_or(0, |error| error.class as u64);
        let numbers = [class, *result.as_ref().unwrap_or(&0), text.len() as u64];
        for (place, number) in header.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
    }
    peers.bcast(&mut header, root)?;
    let number = |at: usize| u64::from_ne_bytes(header[8 * at..][..8].try_into().expect("8 bytes"));
    if number(0) == 0 {
        return Ok(number(1));
    }
    let mut text = text.into_bytes();
    text.resize(number(2) as usize, 0);
    peers.bcast(&mut text, root)?;
    match result {
        Err(error) => Err(error),
        Ok(_) => Err(MpiError::new(Class::from_u64(number(0)), String::from_utf8_lossy(&text))),
    }
}

/// An error where any process has one, or where `arguments` are not the same in all; else which of `flags` are
/// set in any process. All processes have as many.
pub fn agree<const FLAGS: usize>(
    peers: &mut MpiPeers,
    result: Result<()>,
    flags: [bool; FLAGS],
    what: &str,
    arguments: &[i64],
) -> Result<[bool; FLAGS]> {
    let mut maxima = vec![result.as_ref().err().map_or(0, |error| error.class as u64)];
    maxima.extend(flags.map(u64::from));
    maxima.extend(arguments.iter().flat_map(|argument| [*argument as u64, !*argument as u64]));
    peers.max(&mut maxima)?;
    result?;
    if maxima[0] != 0 {
        let text = "another process of the communicator failed; its own error says why";
        return Err(MpiError::new(Class::from_u64(maxima[0]), text));
    }
    if !maxima[1 + FLAGS..].chunks_exact(2).all(|pair| pair[0] == !pair[1]) {
        let text = format!("{what} with other arguments in other processes; they must be the same");
        return Err(MpiError::new(Class::NotSame, text));
    }
    Ok(std::array::from_fn(|index| maxima[1 + index] != 0))
}

type Table = RwLock<HashMap<usize, Arc<MpiFile>>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::default)
}

/// The file of a handle, if it is Weft's.
pub fn of_handle(handle: usize) -> Option<Arc<MpiFile>> {
    table().read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&handle).cloned()
}

/// Adds an open file.
pub fn add(file: MpiFile) -> usize {
    let handle = file.shadow;
    lock(&CLOSED).retain(|closed| *closed != handle);
    table().write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(handle, Arc::new(file));
    handle
}

/// Takes a file out.
pub fn remove(handle: usize) {
    table().write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&handle);
    let mut closed = lock(&CLOSED);
    if closed.len() == CLOSED_MAX {
        closed.remove(0);
    }
    closed.push(handle);
}

/// Handles that were closed last. The program's MPI may give one to another file, whose opening clears them.
static CLOSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
const CLOSED_MAX: usize = 64;

/// Whether a handle was one of Weft's.
pub fn was_closed(handle: usize) -> bool {
    lock(&CLOSED).contains(&handle)
}

/// The program's MPI opens a file.
pub fn forget_closed() {
    lock(&CLOSED).clear();
}
