//! The processes of an open file, as the engine of collective accesses sees them: an MPI communicator.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr::{self, NonNull};

use weft_collective::Peers;

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::{Mpi, Reduce, STATUS_WORDS, count};

/// See [`Peers`].
pub struct MpiPeers {
    mpi: &'static Mpi,
    comm: Handle,
    rank: usize,
    size: usize,
    /// The processes of this node, once they have to share memory.
    node: Option<Node>,
    /// Of each process, the least rank of its host, or of its node once that is known.
    nodes: Vec<u32>,
    /// Of all hosts.
    processors: u32,
    window: Option<Handle>,
}

struct Node {
    comm: Handle,
    /// Of each process of the node, its rank in the communicator of all.
    ranks: Vec<usize>,
}

/// Up to so many processes send all numbers to all, which is one operation for sums and maxima.
const GATHERED_MAX: usize = 128;
/// Windows begin at multiples of this.
const ALIGNMENT: usize = 64;

impl MpiPeers {
    /// Collective: the processes of `comm`, which stays the caller's.
    pub fn new(mpi: &'static Mpi, comm: Handle, rank: usize, size: usize) -> Result<MpiPeers> {
        let gathered = gather(mpi, &[this_host(), online_processors()], comm, size)?;
        let hosts: Vec<u64> = gathered.iter().copied().step_by(2).collect();
        let first = |host: &u64| hosts.iter().position(|other| other == host).unwrap_or(rank);
        let firsts: Vec<usize> = hosts.iter().map(first).collect();
        let of_first =
            |(rank, first): (usize, &usize)| (rank == *first).then(|| gathered[2 * rank + 1] as u32);
        let processors = firsts.iter().enumerate().filter_map(of_first).sum();
        let nodes = firsts.into_iter().map(|first| first as u32).collect();
        Ok(MpiPeers { mpi, comm, rank, size, node: None, nodes, processors, window: None })
    }

    /// Collective: finds out which processes can share memory, before they first do. It is slow: MPI makes a
    /// communicator.
    pub fn find_node(&mut self) -> Result<()> {
        if self.node.is_some() {
            return Ok(());
        }
        let mpi = self.mpi;
        mpi.barrier(self.comm)?;
        let node = mpi.node_of(self.comm, self.rank)?;
        let (_, node_size) = mpi.rank_and_size(node)?;
        let ranks = gather(mpi, &[self.rank as u64], node, node_size)?;
        let ranks: Vec<usize> = ranks.into_iter().map(|rank| rank as usize).collect();
        let least = ranks.iter().copied().min().unwrap_or(self.rank);
        let nodes = gather(mpi, &[least as u64], self.comm, self.size)?;
        self.nodes = nodes.into_iter().map(|node| node as u32).collect();
        self.node = Some(Node { comm: node, ranks });
        Ok(())
    }

    /// Whether that was done.
    pub fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// All processes.
    pub fn process_count(&self) -> u32 {
        self.size as u32
    }

    fn node(&self) -> Result<&Node> {
        self.node
            .as_ref()
            .ok_or_else(|| MpiError::new(Class::Intern, "the processes of the node are not known"))
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> u32 {
        self.nodes.iter().collect::<BTreeSet<_>>().len() as u32
    }

    /// The processors of all hosts. The same number in all processes, which decide by it.
    pub fn processor_count(&self) -> u32 {
        self.processors
    }

    /// Collective: gives back windows and communicators.
    pub fn free(mut self) {
        self.free_window();
        if let Some(node) = self.node {
            self.mpi.free_comm(node.comm);
        }
    }

    fn free_window(&mut self) {
        if let Some(mut window) = self.window.take() {
            // SAFETY: it was made here, and its memory is not used any more.
            unsafe {
                (self.mpi.f.win_unlock_all)(window);
                (self.mpi.f.win_free)(&mut window);
            }
        }
    }

    fn synchronise(&self) -> Result<()> {
        match self.window {
            // SAFETY: it is a window of this library's.
            Some(window) => self.mpi.check("MPI_Win_sync", unsafe { (self.mpi.f.win_sync)(window) }),
            None => Ok(()),
        }
    }

    /// Waits for a message; its bytes.
    fn wait(&self, request: Handle) -> Result<usize> {
        let (mut status, mut bytes) = ([0u64; STATUS_WORDS], 0);
        self.mpi.wait(request, &mut status)?;
        // SAFETY: the status was written.
        unsafe { (self.mpi.f.get_count)(status.as_ptr().cast(), self.mpi.handles.byte, &mut bytes) };
        Ok(usize::try_from(bytes).unwrap_or(0))
    }
}

/// A number that other hosts do not have.
fn this_host() -> u64 {
    let mut hash = DefaultHasher::new();
    (weft_host::boot_id(), weft_host::name()).hash(&mut hash);
    hash.finish()
}

/// The processors of this host, whichever this process is bound to.
fn online_processors() -> u64 {
    // SAFETY: no preconditions.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u64::try_from(count).unwrap_or(1).max(1)
}

/// The numbers of all processes, by rank; all have as many.
fn gather(mpi: &Mpi, own: &[u64], comm: Handle, size: usize) -> Result<Vec<u64>> {
    let mut all = vec![0u64; own.len() * size];
    let (numbers, kind) = (count(own.len())?, mpi.handles.uint64);
    let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
    // SAFETY: there are this many numbers here, and room for those of all.
    mpi.collective("MPI_Iallgather", |request| unsafe {
        (mpi.f.iallgather)(from, numbers, kind, to, numbers, kind, comm, request)
    })?;
    Ok(all)
}

impl Peers for MpiPeers {
    type Error = MpiError;
    type Sending = (Handle, Vec<u8>);
    type Receiving = (Handle, Vec<u8>);

    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn size(&self) -> u32 {
        self.size as u32
    }

    fn node_of(&self, rank: u32) -> u32 {
        self.nodes[rank as usize]
    }

    fn allreduce(&mut self, sums: &mut [u64], maxima: &mut [u64]) -> Result<()> {
        if sums.is_empty() {
            return self.mpi.allreduce(maxima, Reduce::Max, self.comm);
        }
        if self.size > GATHERED_MAX {
            self.mpi.allreduce(sums, Reduce::Sum, self.comm)?;
            return self.mpi.allreduce(maxima, Reduce::Max, self.comm);
        }
        let own = [&*sums, &*maxima].concat();
        let all = gather(self.mpi, &own, self.comm, self.size)?;
        sums.fill(0);
        for numbers in all.chunks_exact(own.len()) {
            let (theirs_sums, theirs_maxima) = numbers.split_at(sums.len());
            for (sum, theirs) in sums.iter_mut().zip(theirs_sums) {
                *sum = sum.wrapping_add(*theirs);
            }
            for (maximum, theirs) in maxima.iter_mut().zip(theirs_maxima) {
                *maximum = (*maximum).max(*theirs);
            }
        }
        Ok(())
    }

    fn allgather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = gather(self.mpi, &[own.len() as u64], self.comm, self.size)?;
        let counts: Result<Vec<c_int>> = lengths.iter().map(|length| count(*length as usize)).collect();
        let counts = counts?;
        let mut places = Vec::with_capacity(self.size);
        let mut total = 0usize;
        for length in &lengths {
            places.push(count(total)?);
            total += *length as usize;
        }
        let mut all = vec![0u8; total];
        let (byte, mpi, own_count) = (self.mpi.handles.byte, self.mpi, count(own.len())?);
        // SAFETY: there is room for the bytes of all, at their places.
        mpi.collective("MPI_Iallgatherv", |request| unsafe {
            (mpi.f.iallgatherv)(
                own.as_ptr().cast(),
                own_count,
                byte,
                all.as_mut_ptr().cast(),
                counts.as_ptr(),
                places.as_ptr(),
                byte,
                self.comm,
                request,
            )
        })?;
        let mut rest = all.as_slice();
        let take = |length: &u64| {
            let (first, behind) = rest.split_at(*length as usize);
            rest = behind;
            first.to_vec()
        };
        Ok(lengths.iter().map(take).collect())
    }

    fn isend(&mut self, to: u32, tag: u32, bytes: Vec<u8>) -> Result<(Handle, Vec<u8>)> {
        let mut request = Handle(0);
        let (data, length) = (bytes.as_ptr().cast(), count(bytes.len())?);
        let (byte, to, tag) = (self.mpi.handles.byte, to as c_int, tag as c_int);
        // SAFETY: the bytes stay where they are until the message is sent.
        let code = unsafe { (self.mpi.f.isend)(data, length, byte, to, tag, self.comm, &mut request) };
        self.mpi.check("MPI_Isend", code)?;
        Ok((request, bytes))
    }

    fn irecv(&mut self, from: u32, tag: u32, mut buffer: Vec<u8>) -> Result<(Handle, Vec<u8>)> {
        let mut request = Handle(0);
        let (data, length) = (buffer.as_mut_ptr().cast(), count(buffer.len())?);
        let (byte, from, tag) = (self.mpi.handles.byte, from as c_int, tag as c_int);
        // SAFETY: the buffer stays where it is until the message is received.
        let code = unsafe { (self.mpi.f.irecv)(data, length, byte, from, tag, self.comm, &mut request) };
        self.mpi.check("MPI_Irecv", code)?;
        Ok((request, buffer))
    }

    fn sent(&mut self, (request, bytes): (Handle, Vec<u8>)) -> Result<Vec<u8>> {
        self.wait(request)?;
        Ok(bytes)
    }

    fn received(&mut self, (request, mut buffer): (Handle, Vec<u8>)) -> Result<Vec<u8>> {
        let bytes = self.wait(request)?;
        buffer.truncate(bytes);
        Ok(buffer)
    }

    fn node_barrier(&mut self) -> Result<()> {
        self.synchronise()?;
        self.mpi.barrier(self.node()?.comm)?;
        self.synchronise()
    }

    fn share(&mut self, own_bytes: usize) -> Result<Vec<(u32, NonNull<u8>)>> {
        self.free_window();
        let (mut base, mut window) = (ptr::null_mut::<c_void>(), Handle(0));
        let bytes = own_bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
        let (none, node, f) = (self.mpi.handles.info_null, self.node()?.comm, &self.mpi.f);
        // SAFETY: the base and the window are written.
        let code = unsafe { (f.win_allocate_shared)(bytes as isize, 1, none, node, &mut base, &mut window) };
        self.mpi.check("MPI_Win_allocate_shared", code).map_err(|error| {
            let text = format!("{bytes} bytes of memory for processes of this node: {}", error.text);
            MpiError::new(Class::NoMem, text)
        })?;
        self.window = Some(window);
        // SAFETY: it was made above.
        self.mpi.check("MPI_Win_lock_all", unsafe { (f.win_lock_all)(0, window) })?;
        let mut shared = Vec::with_capacity(self.node()?.ranks.len());
        for (of, rank) in self.node()?.ranks.iter().enumerate() {
            let (mut bytes, mut unit, mut base) = (0isize, 0, ptr::null_mut::<c_void>());
            // SAFETY: all are written.
            let code = unsafe { (f.win_shared_query)(window, of as c_int, &mut bytes, &mut unit, &mut base) };
            self.mpi.check("MPI_Win_shared_query", code)?;
            let base = base.cast::<u8>();
            // Mappings begin at pages, so this is the same place in all processes.
            let aligned = base.wrapping_add(base.align_offset(ALIGNMENT));
            shared.push((*rank as u32, NonNull::new(aligned).unwrap_or(NonNull::dangling())));
        }
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use std::cell::RefCell;

    const ALL: Handle = Handle(100);
    const NODE: Handle = Handle(101);

    thread_local! {
        /// The calls that this process, the second of four, has made of its MPI.
        static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    fn note(call: &'static str) {
        CALLS.with_borrow_mut(|calls| calls.push(call));
    }

    unsafe extern "C" fn test(_request: *mut Handle, is_done: *mut c_int, _status: *mut c_void) -> c_int {
        // SAFETY: as MPI_Test is called.
        unsafe { *is_done = 1 };
        0
    }

    unsafe extern "C" fn rank(comm: Handle, rank: *mut c_int) -> c_int {
        // SAFETY: as MPI_Comm_rank is called.
        unsafe { *rank = if comm == NODE { 0 } else { 1 } };
        0
    }

    unsafe extern "C" fn size(comm: Handle, size: *mut c_int) -> c_int {
        // SAFETY: as MPI_Comm_size is called.
        unsafe { *size = if comm == NODE { 2 } else { 4 } };
        0
    }

    extern "C" fn barrier(comm: Handle, _request: *mut Handle) -> c_int {
        note(if comm == ALL { "barrier of all" } else { "barrier of the node" });
        0
    }

    unsafe extern "C" fn split(
        comm: Handle,
        kind: c_int,
        key: c_int,
        _info: Handle,
        node: *mut Handle,
    ) -> c_int {
        assert_eq!((comm, kind, key), (ALL, crate::abi::MPICH.numbers.comm_type_shared, 1));
        note("split");
        // SAFETY: as MPI_Comm_split_type is called.
        unsafe { *node = NODE };
        0
    }

    extern "C" fn free(comm: *mut Handle) -> c_int {
        // SAFETY: as MPI_Comm_free is called.
        note(if unsafe { *comm } == NODE { "free of the node" } else { "free of another" });
        0
    }

    /// All four are on one host; the first and the third share memory, and the second and the fourth.
    unsafe extern "C" fn gather(
        from: *const u64,
        count: c_int,
        _kind: Handle,
        to: *mut u64,
        _to_count: c_int,
        _to_kind: Handle,
        comm: Handle,
        _request: *mut Handle,
    ) -> c_int {
        // SAFETY: as MPI_Iallgather is called, with so many numbers of each process.
        let (own, all) = unsafe {
            let processes = if comm == NODE { 2 } else { 4 };
            let count = count as usize;
            (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count * processes))
        };
        match (comm, own) {
            (NODE, [1]) => all.copy_from_slice(&[1, 3]),
            (ALL, [1]) => all.copy_from_slice(&[0, 1, 0, 1]),
            (ALL, [_host, _processors]) => all.copy_from_slice(&own.repeat(4)),
            other => panic!("{other:?} is gathered"),
        }
        0
    }

    fn peers() -> MpiPeers {
        let functions = [
            ("PMPI_Test", test as *const () as usize),
            ("PMPI_Comm_rank", rank as *const () as usize),
            ("PMPI_Comm_size", size as *const () as usize),
            ("PMPI_Ibarrier", barrier as *const () as usize),
            ("PMPI_Comm_split_type", split as *const () as usize),
            ("PMPI_Comm_free", free as *const () as usize),
            ("PMPI_Iallgather", gather as *const () as usize),
        ];
        // SAFETY: each has the parameters of the function of its name.
        MpiPeers::new(unsafe { double::mpi(&functions) }, ALL, 1, 4).unwrap()
    }

    #[test]
    fn before_memory_is_shared_hosts_are_taken_for_nodes() {
        let peers = peers();
        assert!(!peers.has_node() && peers.node().is_err());
        assert_eq!((peers.process_count(), peers.node_count()), (4, 1));
        assert_eq!(u64::from(peers.processor_count()), online_processors());
        peers.free();
        assert_eq!(CALLS.take(), Vec::<&str>::new());
    }

    #[test]
    fn who_shares_memory_is_found_out_once_and_the_communicator_given_back() {
        let mut peers = peers();
        peers.find_node().unwrap();
        peers.find_node().unwrap();
        assert!(peers.has_node());
        assert_eq!(peers.node().unwrap().ranks, [1, 3]);
        assert_eq!((0..4).map(|rank| Peers::node_of(&peers, rank)).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(peers.node_count(), 2);
        peers.node_barrier().unwrap();
        peers.free();
        // All come together first: MPI itself would wait at full speed.
        assert_eq!(CALLS.take(), ["barrier of all", "split", "barrier of the node", "free of the node"]);
    }
}
