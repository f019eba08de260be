//! The processes of an open file, as the engine of collective accesses sees them: an MPI communicator, and
//! shared memory within a node.
//!
//! MPI can make shared memory, too. But that takes a tenth of a second where processes are more than
//! processors, as its blocking functions wait at full speed.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use weft_collective::Peers;

use crate::abi::Handle;
use crate::board::{self, Board, TOLD_BYTES_MAX};
use crate::error::{Class, MpiError, Result};
use crate::mpi::{Mpi, Reduce, STATUS_WORDS, count};
use crate::report::report;
use crate::shared::{self, Shared};

/// See [`Peers`].
pub struct MpiPeers {
    mpi: &'static Mpi,
    comm: Handle,
    rank: usize,
    size: usize,
    /// Of each process, the least rank of its node.
    nodes: Vec<u32>,
    /// Of all hosts.
    processors: u32,
    /// Of the processes of this node; `None` where this one is alone on it.
    board: Option<Board>,
    windows: Vec<Shared>,
}

/// Up to so many processes send all numbers to all, which is one operation for sums and maxima.
const GATHERED_MAX: usize = 128;

impl MpiPeers {
    /// This process, for a file that no other has opened.
    pub fn alone(mpi: &'static Mpi) -> MpiPeers {
        let (comm, processors) = (mpi.handles.comm_self, online_processors() as u32);
        MpiPeers { mpi, comm, rank: 0, size: 1, nodes: vec![0], processors, board: None, windows: Vec::new() }
    }

    /// Collective: the processes of `comm`, which is theirs alone.
    pub fn new(mpi: &'static Mpi, comm: Handle, rank: usize, size: usize) -> Result<MpiPeers> {
        let key = weft_host::random::<8>().map_or(0, u64::from_ne_bytes);
        let file = shared::file(board::bytes(size));
        let fd = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
        let mut shared = match &file {
            Ok(_) => Shared::of(this_process(), fd, board::bytes(size)),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        if let Ok(shared) = &shared {
            Board::key(shared).store(key, Ordering::Release);
        }
        let own = [this_host(), online_processors(), this_process(), fd, key];
        let all = gather(mpi, &own, comm, size)?;
        let all: Vec<&[u64]> = all.chunks_exact(own.len()).collect();
        let first = |own: &&[u64]| all.iter().position(|other| other[0] == own[0]).unwrap_or(rank);
        let firsts: Vec<usize> = all.iter().map(first).collect();
        let of_first = |(rank, first): (usize, &usize)| (rank == *first).then(|| all[rank][1] as u32);
        let processors = firsts.iter().enumerate().filter_map(of_first).sum();
        if firsts[rank] != rank {
            let first = all[firsts[rank]];
            shared = Shared::of(first[2], first[3], board::bytes(size)).and_then(|shared| {
                let is_meant = Board::key(&shared).load(Ordering::Acquire) == first[4];
                if is_meant { Ok(shared) } else { Err(io::ErrorKind::InvalidData.into()) }
            });
        }
        let mut failed = [u64::from(shared.is_err())];
        mpi.allreduce(&mut failed, Reduce::Max, comm)?;
        // All have mapped it.
        drop(file);
        let mut nodes: Vec<u32> = firsts.iter().map(|first| *first as u32).collect();
        let mut board = None;
        match shared {
            Ok(shared) if failed[0] == 0 => {
                let index = nodes[..rank].iter().filter(|node| **node == nodes[rank]).count();
                let count = nodes.iter().filter(|node| **node == nodes[rank]).count();
                board = (count > 1).then(|| Board::new(shared, index, count));
            }
            shared => {
                if let Err(error) = shared {
                    report(|| format!("processes of this host share no memory: {error}; they send messages"));
                }
                nodes = (0..size as u32).collect();
            }
        }
        Ok(MpiPeers { mpi, comm, rank, size, nodes, processors, board, windows: Vec::new() })
    }

    /// The communicator.
    pub fn comm(&self) -> Handle {
        self.comm
    }

    /// Collective: frees the communicator, and all that is shared.
    pub fn free(self) {
        if self.size > 1 {
            self.mpi.free_comm(self.comm);
        }
    }

    /// Frees the memory of [`Peers::share`].
    pub fn free_windows(&mut self) {
        self.windows.clear();
    }

    /// Collective: each number becomes the greatest of all processes.
    pub fn max(&mut self, numbers: &mut [u64]) -> Result<()> {
        self.allreduce(&mut [], numbers)
    }

    /// Collective: each number becomes the sum of all processes.
    pub fn sum(&mut self, numbers: &mut [u64]) -> Result<()> {
        self.allreduce(numbers, &mut [])
    }

    /// Collective: the sum of `value` over all processes of lower rank.
    pub fn sum_below(&mut self, value: u64) -> Result<u64> {
        let (rank, mut index, mut below) = (self.rank, 0, 0u64);
        let add = |_: usize, told: &[u8]| {
            if index < rank {
                below = below.wrapping_add(number_at(told, 0));
            }
            index += 1;
        };
        match self.exchange_here(&value.to_ne_bytes(), add) {
            true => Ok(below),
            false => self.mpi.sum_below(value, self.rank, self.comm),
        }
    }

    /// Collective: bytes of process `root`, of which all know the number.
    pub fn bcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        let (is_root, mut index, length) = (self.rank == root, 0, bytes.len());
        let own = if is_root { bytes.to_vec() } else { Vec::new() };
        let take = |_: usize, told: &[u8]| {
            if index == root && !is_root {
                bytes.copy_from_slice(told);
            }
            index += 1;
        };
        if length <= TOLD_BYTES_MAX && self.exchange_here(&own, take) {
            return Ok(());
        }
        self.mpi.bcast(bytes, root, self.comm)
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> u32 {
        self.nodes.iter().collect::<BTreeSet<_>>().len() as u32
    }

    /// The processors of all hosts. The same number in all processes, which decide by it.
    pub fn processor_count(&self) -> u32 {
        self.processors
    }

    /// Tells all processes by the board, if all are on this node; see [`Board::exchange`].
    fn exchange_here(&mut self, own: &[u8], mut each: impl FnMut(usize, &[u8])) -> bool {
        if self.size == 1 {
            each(own.len(), own);
            return true;
        }
        let (mpi, comm, rank) = (self.mpi, self.comm, self.rank);
        match self.board.as_mut().filter(|board| board.count() == self.size) {
            Some(board) => {
                board.exchange(own, || mpi.progress(comm, rank), each);
                true
            }
            None => false,
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

/// A number of those that a process has told.
fn number_at(told: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(told[8 * index..][..8].try_into().expect("8 bytes"))
}

fn this_process() -> u64 {
    u64::from(std::process::id())
}

/// Adds numbers of a process to sums, and takes maxima.
fn reduce(sums: &mut [u64], maxima: &mut [u64], theirs: impl IntoIterator<Item = u64>) {
    let mut theirs = theirs.into_iter();
    for (sum, theirs) in sums.iter_mut().zip(&mut theirs) {
        *sum = sum.wrapping_add(theirs);
    }
    for (maximum, theirs) in maxima.iter_mut().zip(&mut theirs) {
        *maximum = (*maximum).max(theirs);
    }
}

/// A number that other hosts do not have, nor containers whose processes have numbers of their own.
fn this_host() -> u64 {
    let mut hash = DefaultHasher::new();
    let numbers = std::fs::read_link("/proc/self/ns/pid").ok();
    (weft_host::boot_id(), weft_host::name(), numbers).hash(&mut hash);
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
        let own: Vec<u8> = sums.iter().chain(&*maxima).flat_map(|number| number.to_ne_bytes()).collect();
        let (mut all_sums, mut all_maxima) = (vec![0; sums.len()], vec![0; maxima.len()]);
        let add = |_: usize, told: &[u8]| {
            reduce(&mut all_sums, &mut all_maxima, (0..told.len() / 8).map(|index| number_at(told, index)));
        };
        if own.len() <= TOLD_BYTES_MAX && self.exchange_here(&own, add) {
            sums.copy_from_slice(&all_sums);
            maxima.copy_from_slice(&all_maxima);
            return Ok(());
        }
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
            reduce(sums, maxima, numbers.iter().copied());
        }
        Ok(())
    }

    fn allgather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut told, mut fits) = (Vec::with_capacity(self.size), true);
        let add = |length: usize, bytes: &[u8]| {
            fits &= length <= TOLD_BYTES_MAX;
            told.push(bytes.to_vec());
        };
        if self.exchange_here(own, add) && fits {
            return Ok(told);
        }
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
        let (mpi, comm, rank) = (self.mpi, self.comm, self.rank);
        if let Some(board) = &mut self.board {
            board.exchange(&[], || mpi.progress(comm, rank), |_, _| {});
        }
        Ok(())
    }

    fn share(&mut self, own_bytes: usize) -> Result<Vec<(u32, NonNull<u8>)>> {
        self.windows.clear();
        let is_shared = own_bytes > 0 && self.board.is_some();
        let file = if is_shared { shared::file(own_bytes).map(Some) } else { Ok(None) };
        let fd = file.as_ref().ok().and_then(Option::as_ref).map_or(u64::MAX, |file| file.as_raw_fd() as u64);
        let told = [own_bytes as u64, this_process(), fd].map(u64::to_ne_bytes).concat();
        let told = self.allgather(&told)?;
        let mut failed = file.as_ref().err().map(io::Error::to_string);
        let mut shared = Vec::new();
        for (rank, told) in told.iter().enumerate() {
            let [bytes, process, fd] = [0, 1, 2].map(|index| number_at(told, index));
            if bytes == 0 || self.nodes[rank] != self.nodes[self.rank] {
                continue;
            }
            let window = match (&self.board, fd) {
                (None, _) => Shared::own(bytes as usize),
                // It has failed there, which all are told below.
                (Some(_), u64::MAX) => continue,
                (Some(_), fd) => Shared::of(process, fd, bytes as usize),
            };
            match window {
                Ok(window) => {
                    shared.push((rank as u32, window.base()));
                    self.windows.push(window);
                }
                Err(error) => failed = failed.or(Some(error.to_string())),
            }
        }
        let mut any = [u64::from(failed.is_some())];
        self.allreduce(&mut [], &mut any)?;
        // All have mapped it.
        drop(file);
        if any[0] == 0 {
            return Ok(shared);
        }
        self.windows.clear();
        let reason = failed.unwrap_or("another process has failed".into());
        let text =
            format!("memory that processes of a node share: {reason}; a smaller cb_buffer_size takes less");
        Err(MpiError::new(Class::NoMem, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes_are_reduced_elementwise() {
        let (mut sums, mut maxima) = ([0u64; 2], [0u64; 2]);
        for theirs in [[1, u64::MAX, 5, 3], [2, 3, 4, 8]] {
            reduce(&mut sums, &mut maxima, theirs);
        }
        assert_eq!((sums, maxima), ([3, 2], [5, 8]));
    }
}
