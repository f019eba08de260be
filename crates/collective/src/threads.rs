//! Processes that are threads, and a file that is a vector: for tests and measurements without MPI.
//!
//! ```
//! use weft_collective::threads::{World, VectorFile};
//! use weft_collective::{Collective, Direction, Options, Request, Summary};
//! use weft_layout::{Layout, Level, Regions};
//!
//! let file = VectorFile::new(Layout::new(4096, 0, 2, 2).unwrap(), Vec::new());
//! // Three processes write every third pair of bytes.
//! World::new(&[0, 0, 1]).run(|mut peers| {
//!     let rank = weft_collective::Peers::rank(&peers);
//!     let mut data = vec![rank as u8 + 1; 20];
//!     let memory = Regions::contiguous(0, 20);
//!     let mine = Regions::strided(2 * u64::from(rank), 2, [Level { count: 10, stride_bytes: 6 }]);
//!     let totals = Summary::new(&memory, &mine, 0, 3).reduce(&mut peers).unwrap();
//!     let request = Request { base: data.as_mut_ptr(), memory: &memory, file: &mine };
//!     let mut collective = Collective::new(Options::default());
//!     // SAFETY: the memory is this thread's.
//!     let written = unsafe {
//!         let (store, direction) = (&mut file.open(rank), Direction::Write);
//!         collective.two_phase(&mut peers, store, direction, Ok(request), &totals, None)
//!     };
//!     assert_eq!(written.unwrap(), 20);
//! });
//! assert_eq!(file.bytes(), [1, 1, 2, 2, 3, 3].repeat(10));
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use weft_layout::{Layout, Regions};

use crate::memory::Direction;
use crate::peers::Peers;
use crate::store::{ErrorCode, Store};

/// A process that waits longer for others has found a fault of the engine.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Some processes that are threads.
#[derive(Debug)]
pub struct World {
    nodes: Vec<u32>,
    all: Meeting,
    of_node: HashMap<u32, Meeting>,
    mail: Mutex<HashMap<Way, Mail>>,
    mail_came: Condvar,
    windows: Mutex<Vec<Window>>,
}

/// From, to, tag.
type Way = (u32, u32, u32);

/// Messages of one way by number.
#[derive(Debug, Default)]
struct Mail {
    sent: u64,
    expected: u64,
    arrived: HashMap<u64, Vec<u8>>,
}

/// Memory that all threads write to.
#[derive(Debug)]
struct Window(Vec<u64>);

impl World {
    /// As many processes as there are `nodes`, each on the node with that number.
    pub fn new(nodes: &[u32]) -> World {
        let mut of_node: HashMap<u32, Meeting> = HashMap::new();
        for node in nodes {
            of_node.entry(*node).or_default().size += 1;
        }
        World {
            nodes: nodes.to_vec(),
            all: Meeting { size: nodes.len(), ..Meeting::default() },
            of_node,
            mail: Mutex::default(),
            mail_came: Condvar::new(),
            windows: Mutex::default(),
        }
    }

    /// Runs `process` in a thread for each of them. Returns what they return, by rank.
    ///
    /// # Panics
    /// If one of them does.
    pub fn run<T: Send>(&self, process: impl Fn(ThreadPeers<'_>) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let start = |rank| {
                let (process, world) = (&process, self);
                scope.spawn(move || process(ThreadPeers { world, rank }))
            };
            let threads: Vec<_> = (0..self.nodes.len() as u32).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    }

    /// Number of messages that were sent.
    pub fn messages(&self) -> u64 {
        lock(&self.mail).values().map(|mail| mail.sent).sum()
    }

    /// Number of barriers and other exchanges of all processes, and of the one node where there were most.
    pub fn meetings(&self) -> (u64, u64) {
        let of_nodes = self.of_node.values().map(Meeting::held);
        (self.all.held(), of_nodes.max().unwrap_or(0))
    }
}

/// A place where threads meet again and again, and exchange bytes.
#[derive(Debug, Default)]
struct Meeting {
    size: usize,
    state: Mutex<MeetingState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct MeetingState {
    number: u64,
    arrived: Vec<(u32, Vec<u8>)>,
    result: Arc<Vec<(u32, Vec<u8>)>>,
}

impl Meeting {
    fn held(&self) -> u64 {
        lock(&self.state).number
    }

    /// Waits for all; what they brought, by rank.
    fn exchange(&self, rank: u32, own: Vec<u8>) -> Arc<Vec<(u32, Vec<u8>)>> {
        let mut state = lock(&self.state);
        state.arrived.push((rank, own));
        if state.arrived.len() == self.size {
            let mut all = std::mem::take(&mut state.arrived);
            all.sort_unstable_by_key(|(rank, _)| *rank);
            state.result = Arc::new(all);
            state.number += 1;
            self.over.notify_all();
            return state.result.clone();
        }
        let number = state.number;
        wait_until(state, &self.over, |state| (state.number != number).then(|| state.result.clone()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `found` returns something.
///
/// # Panics
/// If that takes longer than [`WAIT_MAX`].
fn wait_until<T, R>(
    mut guard: MutexGuard<'_, T>,
    changed: &Condvar,
    mut found: impl FnMut(&mut T) -> Option<R>,
) -> R {
    let end = Instant::now() + WAIT_MAX;
    loop {
        if let Some(found) = found(&mut guard) {
            return found;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a process waits for others that do not come");
        guard = changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// One process of a [`World`].
#[derive(Debug)]
pub struct ThreadPeers<'w> {
    world: &'w World,
    rank: u32,
}

impl ThreadPeers<'_> {
    fn meeting_of_node(&self) -> &Meeting {
        &self.world.of_node[&self.node_of(self.rank)]
    }
}

/// Threads cannot lose each other.
impl Peers for ThreadPeers<'_> {
    type Error = Infallible;
    type Sending = ();
    type Receiving = (Way, u64, Vec<u8>);

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.world.nodes.len() as u32
    }

    fn node_of(&self, rank: u32) -> u32 {
        self.world.nodes[rank as usize]
    }

    fn allreduce(&mut self, sums: &mut [u64], maxima: &mut [u64]) -> Result<(), Infallible> {
        let own = sums.iter().chain(maxima.iter()).flat_map(|value| value.to_le_bytes()).collect();
        let all = self.world.all.exchange(self.rank, own);
        sums.fill(0);
        maxima.fill(0);
        for (_, bytes) in all.iter() {
            let mut values = bytes
                .chunks_exact(8)
                .map(|value| u64::from_le_bytes(value.try_into().expect("a chunk of eight bytes")));
            sums.iter_mut().zip(&mut values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
            maxima.iter_mut().zip(&mut values).for_each(|(maximum, value)| *maximum = value.max(*maximum));
        }
        Ok(())
    }

    fn allgather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Infallible> {
        let all = self.world.all.exchange(self.rank, own.to_vec());
        Ok(all.iter().map(|(_, bytes)| bytes.clone()).collect())
    }

    fn isend(&mut self, to: u32, tag: u32, bytes: Vec<u8>) -> Result<(), Infallible> {
        assert!(to != self.rank && tag < 16, "a message from {} to {to} with tag {tag}", self.rank);
        let mut mail = lock(&self.world.mail);
        let way = mail.entry((self.rank, to, tag)).or_default();
        way.arrived.insert(way.sent, bytes);
        way.sent += 1;
        self.world.mail_came.notify_all();
        Ok(())
    }

    fn irecv(&mut self, from: u32, tag: u32, buffer: Vec<u8>) -> Result<Self::Receiving, Infallible> {
        let mut mail = lock(&self.world.mail);
        let way = (from, self.rank, tag);
        let expected = &mut mail.entry(way).or_default().expected;
        *expected += 1;
        Ok((way, *expected - 1, buffer))
    }

    fn sent(&mut self, _: ()) -> Result<Vec<u8>, Infallible> {
        Ok(Vec::new())
    }

    fn received(&mut self, (way, number, mut buffer): Self::Receiving) -> Result<Vec<u8>, Infallible> {
        let mail = lock(&self.world.mail);
        let message = wait_until(mail, &self.world.mail_came, |mail| {
            mail.get_mut(&way).and_then(|mail| mail.arrived.remove(&number))
        });
        let room = buffer.len();
        assert!(message.len() <= room, "{} bytes from {way:?}, room for {room}", message.len());
        buffer.truncate(message.len());
        buffer.copy_from_slice(&message);
        Ok(buffer)
    }

    fn node_barrier(&mut self) -> Result<(), Infallible> {
        self.meeting_of_node().exchange(self.rank, Vec::new());
        Ok(())
    }

    fn share(&mut self, own_bytes: usize) -> Result<Vec<(u32, NonNull<u8>)>, Infallible> {
        // What was in windows before does not matter: begin with other values than 0.
        let mut window = Window(vec![0xa5a5_a5a5_a5a5_a5a5; own_bytes.div_ceil(8) + 8]);
        let address = window.0.as_mut_ptr().cast::<u8>();
        let aligned = address.wrapping_add(address.align_offset(64)) as u64;
        lock(&self.world.windows).push(window);
        let all = self.meeting_of_node().exchange(self.rank, aligned.to_le_bytes().to_vec());
        let address = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("an address")) as *mut u8;
        Ok(all.iter().filter_map(|(rank, bytes)| Some((*rank, NonNull::new(address(bytes))?))).collect())
    }
}

/// A file in memory, striped as its layout says.
#[derive(Debug)]
pub struct VectorFile {
    layout: Layout,
    bytes: Mutex<Vec<u8>>,
    accesses: Mutex<Vec<Access>>,
    faults: Mutex<Faults>,
}

/// What goes wrong, and when bytes are moved.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    /// The number of the access that fails.
    at: Option<usize>,
    /// Whether it fails when it is waited for, not when it begins.
    late: bool,
    /// Whether bytes are moved when an access is waited for, not when it begins.
    moves_late: bool,
}

/// An access to a [`VectorFile`] that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The process.
    pub rank: u32,
    /// Which way.
    pub direction: Direction,
    /// The server's slot.
    pub slot: u16,
    /// Bytes.
    pub bytes: u64,
    /// Pieces in the file, at most.
    pub pieces: u64,
}

/// A fault that a test asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("access {0} fails, as it was told to")]
pub struct Fault(pub usize);

impl ErrorCode for Fault {
    fn code(&self) -> u32 {
        5
    }
}

impl VectorFile {
    /// A file with these bytes.
    pub fn new(layout: Layout, bytes: Vec<u8>) -> VectorFile {
        let (bytes, accesses, faults) = (Mutex::new(bytes), Mutex::default(), Mutex::default());
        VectorFile { layout, bytes, accesses, faults }
    }

    /// Lets the access with this number fail, counted over all processes; with `late` when it is waited for.
    pub fn fail_at(&self, number: usize, late: bool) {
        let mut faults = lock(&self.faults);
        (faults.at, faults.late) = (Some(number), late);
    }

    /// Moves bytes when accesses are waited for instead of when they begin.
    pub fn move_late(&self) {
        lock(&self.faults).moves_late = true;
    }

    /// The file as process `rank` has it.
    pub fn open(&self, rank: u32) -> VectorStore<'_> {
        VectorStore { file: self, rank }
    }

    /// What is in it.
    pub fn bytes(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }

    /// All accesses that were begun.
    pub fn accesses(&self) -> Vec<Access> {
        lock(&self.accesses).clone()
    }
}

/// A [`VectorFile`] that one process has opened.
#[derive(Debug)]
pub struct VectorStore<'f> {
    file: &'f VectorFile,
    rank: u32,
}

/// An access that has begun.
#[derive(Debug)]
pub struct VectorPending {
    number: usize,
    direction: Direction,
    base: *mut u8,
    memory: Regions,
    file: Regions,
    moved: Option<u64>,
}

impl VectorStore<'_> {
    fn begin(
        &self,
        direction: Direction,
        base: *mut u8,
        memory: Regions,
        file: Regions,
    ) -> Result<VectorPending, Fault> {
        assert!(file.is_ascending() && file.total_bytes() == memory.total_bytes());
        let layout = &self.file.layout;
        let slot = file.extents().next().map_or(0, |extent| layout.slot_of(extent.offset));
        let bytes = weft_layout::share_bytes(layout, slot, &file);
        assert_eq!(bytes, file.total_bytes(), "all bytes are on one server");
        let number = {
            let mut accesses = lock(&self.file.accesses);
            let pieces = file.piece_count();
            accesses.push(Access { rank: self.rank, direction, slot, bytes, pieces });
            accesses.len() - 1
        };
        let faults = *lock(&self.file.faults);
        if faults.at == Some(number) && !faults.late {
            return Err(Fault(number));
        }
        let mut pending = VectorPending { number, direction, base, memory, file, moved: None };
        if !faults.moves_late {
            pending.moved = Some(self.transfer(&pending));
        }
        Ok(pending)
    }

    /// Moves the bytes. Returns how many are below the end.
    fn transfer(&self, access: &VectorPending) -> u64 {
        let mut bytes = lock(&self.file.bytes);
        let mut memory = access.memory.extents();
        let mut below = 0;
        for extent in access.file.extents() {
            let mut offset = extent.offset as usize;
            while offset < extent.end() as usize {
                let Some(place) = memory.next_at_most(extent.end() - offset as u64) else { return below };
                let count = place.bytes as usize;
                let here = access.base.wrapping_add(place.offset as usize);
                // SAFETY: who began the access promised memory that is valid until it is waited for.
                unsafe {
                    match access.direction {
                        Direction::Write => {
                            if bytes.len() < offset + count {
                                bytes.resize(offset + count, 0);
                            }
                            here.copy_to(bytes[offset..].as_mut_ptr(), count);
                            below += count as u64;
                        }
                        Direction::Read => {
                            let there = bytes.len().saturating_sub(offset).min(count);
                            here.write_bytes(0, count);
                            if there > 0 {
                                here.copy_from(bytes[offset..].as_ptr(), there);
                            }
                            below += there as u64;
                        }
                    }
                }
                offset += count;
            }
        }
        below
    }
}

impl Store for VectorStore<'_> {
    type Error = Fault;
    type Pending = VectorPending;

    fn layout(&self) -> Layout {
        self.file.layout
    }

    unsafe fn start_write(
        &mut self,
        base: *const u8,
        memory: Regions,
        file: Regions,
    ) -> Result<VectorPending, Fault> {
        self.begin(Direction::Write, base.cast_mut(), memory, file)
    }

    unsafe fn start_read(
        &mut self,
        base: *mut u8,
        memory: Regions,
        file: Regions,
    ) -> Result<VectorPending, Fault> {
        self.begin(Direction::Read, base, memory, file)
    }

    fn wait(&mut self, pending: VectorPending) -> Result<u64, Fault> {
        let faults = *lock(&self.file.faults);
        if faults.at == Some(pending.number) {
            return Err(Fault(pending.number));
        }
        Ok(pending.moved.unwrap_or_else(|| self.transfer(&pending)))
    }
}
