//! The seam to the processes that take part: an MPI communicator, or threads in tests.

use std::ptr::NonNull;

/// The processes of a collective access, as one of them sees them.
///
/// All methods that say *collective* are called by all processes (or all of a node) in the same order. The
/// engine calls them from one thread at a time.
pub trait Peers {
    /// What goes wrong between processes. It ends the call of this process at once; others may then wait for
    /// it, as the communicator is of no more use.
    type Error: std::error::Error;
    /// A message on its way.
    type Sending;
    /// A message that is expected.
    type Receiving;

    /// The number of this process, from 0.
    fn rank(&self) -> u32;

    /// The number of processes.
    fn size(&self) -> u32;

    /// The node of process `rank`: a number that is the same for processes that share memory, and the same
    /// whoever asks. Nodes have any different numbers.
    fn node_of(&self, rank: u32) -> u32;

    /// Collective: replaces each of `sums` by its sum over all processes (modulo 2^64), and each of `maxima`
    /// by its maximum. All processes have as many. Best in one operation: the engine has no other exchange
    /// before it chooses a method.
    fn allreduce(&mut self, sums: &mut [u64], maxima: &mut [u64]) -> Result<(), Self::Error>;

    /// Collective: the bytes of all processes, by rank. They may differ in length.
    fn allgather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Self::Error>;

    /// Begins to send `bytes` to process `to`, which is on another node or this one, but not this process.
    /// It must not wait until they are received. Messages from one process to another with the same `tag`
    /// arrive in the order in which they were sent. Tags are below 16.
    fn isend(&mut self, to: u32, tag: u32, bytes: Vec<u8>) -> Result<Self::Sending, Self::Error>;

    /// Begins to receive the next message with `tag` from process `from`, of at most `buffer.len()` bytes.
    /// The order of these calls says which message goes where, not the order in which they are waited for.
    fn irecv(&mut self, from: u32, tag: u32, buffer: Vec<u8>) -> Result<Self::Receiving, Self::Error>;

    /// Waits until a message is sent, and returns its buffer.
    fn sent(&mut self, sending: Self::Sending) -> Result<Vec<u8>, Self::Error>;

    /// Waits until a message is received, and returns its buffer, cut to its length. Other sends and receives
    /// of this process make progress meanwhile.
    fn received(&mut self, receiving: Self::Receiving) -> Result<Vec<u8>, Self::Error>;

    /// Collective over this node: waits until all its processes are here. What a process wrote to
    /// [windows](Peers::share) before, all see after it: besides the barrier this takes a fence of memory on
    /// both sides.
    fn node_barrier(&mut self) -> Result<(), Self::Error>;

    /// Collective: memory of `own_bytes` of each process, aligned to 64 bytes, that all processes of its node
    /// can read and write. Returns the windows of all processes of this node as rank and address here.
    /// A window of 0 bytes may have any address. Windows stay until the [`Peers`] are dropped, or until the
    /// next call, which replaces them.
    fn share(&mut self, own_bytes: usize) -> Result<Vec<(u32, NonNull<u8>)>, Self::Error>;
}
