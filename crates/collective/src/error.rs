//! Why a collective access failed.

use thiserror::Error;

/// The code of a process whose own request was not valid.
pub const INVALID_REQUEST: u32 = 0x7fff_ffff;

/// Why a collective access failed. All processes get an error when one of them does.
#[derive(Debug, Error)]
pub enum CollectiveError<E, P: std::error::Error> {
    /// This process failed: it could not begin, or its access to the file failed.
    #[error("the file could not be accessed")]
    Own(E),
    /// Memory and file regions of this process differ in size.
    #[error(
        "file regions of {file_bytes} bytes with memory regions of {memory_bytes}: both must be the same size"
    )]
    SizeMismatch {
        /// Bytes in the file regions.
        file_bytes: u64,
        /// Bytes in the memory regions.
        memory_bytes: u64,
    },
    /// Another process failed.
    #[error("process {rank} of this collective access failed with code {code}")]
    Other {
        /// Which one; if several failed, the last of them.
        rank: u32,
        /// Its [`ErrorCode`](crate::ErrorCode).
        code: u32,
    },
    /// Nothing was done: the bytes are so far from each other that most rounds would be empty. All processes
    /// get this error together, and can use list I/O.
    #[error("a two-phase access of {bytes} bytes would take {rounds} rounds; use list I/O")]
    Sparse {
        /// Rounds with bytes of any process.
        rounds: u64,
        /// Bytes of all processes.
        bytes: u64,
    },
    /// Another process sent something that makes no sense; it may run another version of this library.
    #[error(
        "process {rank} of this collective access sent what cannot be understood; run the same version of Weft everywhere"
    )]
    Protocol {
        /// Which one.
        rank: u32,
    },
    /// The processes cannot reach each other.
    #[error("the processes of a collective access could not exchange data")]
    Peers(#[source] P),
}

impl<E, P: std::error::Error> From<P> for CollectiveError<E, P> {
    fn from(error: P) -> Self {
        CollectiveError::Peers(error)
    }
}
