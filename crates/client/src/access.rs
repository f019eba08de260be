//! How reads and writes of pieces are carried out, and what they cost.
//!
//! ```text
//!   method     List       one request per server and window, whatever the number of pieces
//!              Multiple   one request per piece of the file, one after the other
//!              Sieve      the span of the pieces is read into a buffer here, and the pieces copied out of it
//!
//!   movement   Multiple   one request per piece of memory
//!              Pack       pieces ◄─copy─► buffer ◄── one contiguous transfer ──► server
//!              Direct     pieces ◄─────────────── gathered and scattered ──────► server
//! ```
//!
//! List I/O is what Weft is for; the other two methods are those of ROMIO (NC 2.3), so that they can be
//! compared and offered to programs that ask for them. The three movements are those of NC 4.1.

use weft_rpc::named;
use weft_wire::messages::{IoWork, io_flags};

/// The smallest buffer for sieving.
const SIEVE_BYTES_MIN: u64 = 4096;
/// The largest.
const SIEVE_BYTES_MAX: u64 = 64 << 20;

/// How the pieces of a request reach the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Lists and patterns of pieces in bounded requests to all servers at once.
    #[default]
    List,
    /// A plain contiguous request for each piece of the file, one after the other.
    Multiple,
    /// Reads: contiguous reads of up to [`AccessOptions::sieve_bytes`], out of which the pieces are copied,
    /// one after the other. Writes: as [`Method::Multiple`], as in ROMIO over PVFS (NC 6.5), for reading,
    /// changing and writing back what lies between the pieces would undo what others write there meanwhile.
    Sieve,
}

/// How memory in pieces is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Movement {
    /// By packing where pieces are so small that this was measured to be faster on the transport, else
    /// directly.
    #[default]
    Auto,
    /// One request for each piece of memory.
    Multiple,
    /// Through a buffer in which each server's part is contiguous.
    Pack,
    /// Straight between the pieces and the servers.
    Direct,
}

/// How servers are to access their data files for pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sieving {
    /// As their cost model says.
    #[default]
    Auto,
    /// Once for each piece.
    Each,
    /// In few large accesses, of which the pieces are copied.
    Sieve,
    /// Through mapped pages.
    Mapped,
}

/// How reads and writes of an open file are carried out. [`Default`] is right for most.
///
/// Requests that are contiguous in the file and in memory are the same whatever is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessOptions {
    /// How the pieces of a request reach the servers.
    pub method: Method,
    /// How memory in pieces is moved.
    pub movement: Movement,
    /// How servers access their data files.
    pub sieving: Sieving,
    /// Buffer of [`Method::Sieve`], in bytes; brought to between 4 KiB and 64 MiB.
    pub sieve_bytes: u64,
}

impl Default for AccessOptions {
    fn default() -> AccessOptions {
        AccessOptions {
            method: Method::default(),
            movement: Movement::default(),
            sieving: Sieving::default(),
            sieve_bytes: 4 << 20,
        }
    }
}

impl AccessOptions {
    /// With the size of the buffer in its bounds.
    pub(crate) fn bounded(self) -> AccessOptions {
        AccessOptions { sieve_bytes: self.sieve_bytes.clamp(SIEVE_BYTES_MIN, SIEVE_BYTES_MAX), ..self }
    }
}

impl Sieving {
    /// What the servers are told.
    pub(crate) fn io_flags(self) -> u32 {
        match self {
            Sieving::Auto => 0,
            Sieving::Each => io_flags::ACCESS_EACH,
            Sieving::Sieve => io_flags::ACCESS_SIEVE,
            Sieving::Mapped => io_flags::ACCESS_MAPPED,
        }
    }
}

named!(Method, "method", List = "list", Multiple = "multiple", Sieve = "sieve");
named!(Movement, "movement", Auto = "auto", Multiple = "multiple", Pack = "pack", Direct = "direct");
named!(Sieving, "way of sieving", Auto = "auto", Each = "each", Sieve = "sieve", Mapped = "mapped");

/// What the reads and writes of an open file have cost (NC, table 6): sums over all that are over. In C it is
/// `struct weft_io_stats`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoStats {
    /// Requests to read or write that were answered.
    pub requests: u64,
    /// Bytes of these messages: header and body, without data.
    pub request_bytes: u64,
    /// Bytes of file data moved between servers and this client.
    pub moved_bytes: u64,
    /// Accesses of the servers to their data files that read.
    pub server_reads: u64,
    /// Accesses that wrote.
    pub server_writes: u64,
    /// Bytes of both.
    pub accessed_bytes: u64,
    /// Time that servers were at it, summed over servers, in nanoseconds.
    pub busy_ns: u64,
    /// Ways of access that were used: the bits `ACCESS_*` of [`weft_wire::messages::io_flags`].
    pub methods: u64,
}

impl IoStats {
    pub(crate) fn add_request(&mut self, request_bytes: u64, moved_bytes: u64, work: &IoWork) {
        self.add(&IoStats {
            requests: 1,
            request_bytes,
            moved_bytes,
            server_reads: work.reads,
            server_writes: work.writes,
            accessed_bytes: work.accessed_bytes,
            busy_ns: work.busy_ns,
            methods: work.methods.into(),
        });
    }

    /// Adds another's sums. They come from servers, and so are not trusted to stay small.
    pub(crate) fn add(&mut self, other: &IoStats) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.requests, other.requests);
        add(&mut self.request_bytes, other.request_bytes);
        add(&mut self.moved_bytes, other.moved_bytes);
        add(&mut self.server_reads, other.server_reads);
        add(&mut self.server_writes, other.server_writes);
        add(&mut self.accessed_bytes, other.accessed_bytes);
        add(&mut self.busy_ns, other.busy_ns);
        self.methods |= other.methods;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        Method::ALL.iter().for_each(|method| assert_eq!(method.to_string().parse(), Ok(*method)));
        Movement::ALL.iter().for_each(|movement| assert_eq!(movement.to_string().parse(), Ok(*movement)));
        Sieving::ALL.iter().for_each(|sieving| assert_eq!(sieving.to_string().parse(), Ok(*sieving)));
        let error = "lists".parse::<Method>().unwrap_err();
        assert_eq!(error, "`lists` is not a method (list, multiple, sieve)");
    }

    #[test]
    fn a_buffer_of_no_size_gets_one() {
        let tiny = AccessOptions { sieve_bytes: 0, ..AccessOptions::default() };
        assert_eq!(tiny.bounded().sieve_bytes, SIEVE_BYTES_MIN);
    }
}
