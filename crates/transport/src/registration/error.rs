//! Why memory was not registered.

use weft_verbs::VerbsError;

/// Why memory was not registered.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// A piece lies beyond the end of the address space.
    #[error("a piece of memory wraps around the address space")]
    Overflow,
    /// A piece is named by a segment; addresses are needed.
    #[error("a piece of memory is given as an offset in segment {0}, not by its address")]
    Segment(u16),
    /// The program has no such memory.
    #[error(
        "the memory at {address:#x} ({bytes} bytes from there) is not {needed}; the buffer of the request is wrong"
    )]
    NotMapped {
        /// Where it is missing.
        address: u64,
        /// What is left of the piece from there on.
        bytes: u64,
        /// "mapped", or "writable".
        needed: &'static str,
    },
    /// The adapter or the system has no room for more.
    #[error(
        "no more memory can be registered, and none that is cached is unused: {0}; raise the limit (ulimit -l)"
    )]
    Limit(#[source] VerbsError),
    /// An arena begins at this address already.
    #[error("the memory at {0:#x} is registered already")]
    ArenaExists(u64),
    /// The cache is that of the parent process.
    #[error("this process was forked from the one that opened the adapter; open it anew")]
    Forked,
    /// Another error of the adapter's.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

impl PinError {
    /// As an error number of the system.
    pub fn errno(&self) -> i32 {
        match self {
            PinError::Overflow | PinError::Segment(_) => libc::EINVAL,
            PinError::NotMapped { .. } => libc::EFAULT,
            PinError::Limit(_) => libc::ENOMEM,
            PinError::ArenaExists(_) => libc::EEXIST,
            PinError::Device(VerbsError::Register { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            PinError::Forked | PinError::Device(_) => libc::EIO,
        }
    }
}
