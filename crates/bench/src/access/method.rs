//! The methods that are compared, and what they cost.

use serde::{Deserialize, Serialize};
use weft_bench_args::How;
use weft_client::{AccessOptions, IoStats, Method, Movement, Sieving};
use weft_wire::messages::io_flags;

/// The client library's options for a method.
pub fn options_of(how: How) -> AccessOptions {
    let options = AccessOptions::default();
    match how {
        How::Multiple => AccessOptions { method: Method::Multiple, ..options },
        How::ClientSieve => AccessOptions { method: Method::Sieve, ..options },
        How::Each => AccessOptions { sieving: Sieving::Each, ..options },
        How::Sieve => AccessOptions { sieving: Sieving::Sieve, ..options },
        How::Mapped => AccessOptions { sieving: Sieving::Mapped, ..options },
        How::Messages => AccessOptions { movement: Movement::Multiple, ..options },
        How::Pack => AccessOptions { movement: Movement::Pack, ..options },
        How::Direct => AccessOptions { movement: Movement::Direct, ..options },
        How::AtOnce | How::List => options,
    }
}

/// The access method that servers report when they follow it.
pub fn server_method(how: How) -> Option<u32> {
    match how {
        How::Each => Some(io_flags::ACCESS_EACH),
        How::Sieve => Some(io_flags::ACCESS_SIEVE),
        How::Mapped => Some(io_flags::ACCESS_MAPPED),
        _ => None,
    }
}

/// Whether [`How::List`] may choose this method.
pub fn is_plan(how: How) -> bool {
    matches!(how, How::Each | How::Sieve | How::Mapped | How::Messages | How::Pack | How::Direct)
}

/// What an access cost, summed over the processes (NC, table 6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests to servers.
    pub requests: u64,
    /// Bytes of these requests, without data.
    pub request_bytes: u64,
    /// Reads of data files.
    pub server_reads: u64,
    /// Writes of data files.
    pub server_writes: u64,
    /// Bytes that these reads and writes accessed.
    pub accessed_bytes: u64,
    /// Bytes of data moved between clients and servers.
    pub moved_bytes: u64,
    /// Time that the servers worked on the requests.
    pub busy_ns: u64,
    /// Access methods that the servers used: bits `ACCESS_*` of the protocol.
    pub methods: u32,
}

impl From<IoStats> for Counters {
    fn from(stats: IoStats) -> Counters {
        Counters {
            requests: stats.requests,
            request_bytes: stats.request_bytes,
            server_reads: stats.server_reads,
            server_writes: stats.server_writes,
            accessed_bytes: stats.accessed_bytes,
            moved_bytes: stats.moved_bytes,
            busy_ns: stats.busy_ns,
            methods: stats.methods as u32,
        }
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.requests += other.requests;
        self.request_bytes += other.request_bytes;
        self.server_reads += other.server_reads;
        self.server_writes += other.server_writes;
        self.accessed_bytes += other.accessed_bytes;
        self.moved_bytes += other.moved_bytes;
        self.busy_ns += other.busy_ns;
        self.methods |= other.methods;
    }
}
