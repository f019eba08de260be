//! Methods that are compared, and ways of access.

use serde::{Deserialize, Serialize};
use weft_client::{AccessOptions, IoStats, Method, Movement, Sieving};
use weft_wire::messages::io_flags;

/// How noncontiguous data is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// A request for each piece, one after the other (multiple I/O).
    Multiple,
    /// Large contiguous requests and copies at the client.
    ClientSieve,
    /// List I/O whose servers access each piece by itself.
    Each,
    /// List I/O whose servers always sieve.
    Sieve,
    /// List I/O whose servers go through mapped pages where data is cached.
    Mapped,
    /// A message for each piece of memory.
    Messages,
    /// One message from and to packed memory.
    Pack,
    /// Straight from and to the pieces of memory.
    Direct,
    /// A request for each piece, all started at once.
    AtOnce,
    /// List I/O as it is by default: servers and client choose.
    List,
}

impl How {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            How::Multiple => "multiple I/O",
            How::ClientSieve => "client sieving",
            How::Each => "list, each",
            How::Sieve => "list, sieve",
            How::Mapped => "list, mapped",
            How::Messages => "multiple messages",
            How::Pack => "pack",
            How::Direct => "direct",
            How::AtOnce => "all at once",
            How::List => "list",
        }
    }

    /// As the client library is told.
    pub fn options(self) -> AccessOptions {
        let options = AccessOptions::default();
        match self {
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

    /// What servers that follow it say they have done.
    pub fn server_method(self) -> Option<u32> {
        match self {
            How::Each => Some(io_flags::ACCESS_EACH),
            How::Sieve => Some(io_flags::ACCESS_SIEVE),
            How::Mapped => Some(io_flags::ACCESS_MAPPED),
            _ => None,
        }
    }

    /// Whether it is one of the plans among which [`How::List`] chooses.
    pub fn is_plan(self) -> bool {
        matches!(self, How::Each | How::Sieve | How::Mapped | How::Messages | How::Pack | How::Direct)
    }
}

/// What is done to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// A new file is written.
    Write,
    /// It is read.
    Read,
    /// What it has is written over.
    Rewrite,
}

impl Way {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Way::Write => "write",
            Way::Read => "read",
            Way::Rewrite => "rewrite",
        }
    }
}

/// What an access cost, summed over the processes (NC, table 6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests to servers.
    pub requests: u64,
    /// Bytes of the messages of these requests, without the data.
    pub request_bytes: u64,
    /// Reads of data files.
    pub server_reads: u64,
    /// Writes of data files.
    pub server_writes: u64,
    /// Bytes that these reads and writes touched.
    pub accessed_bytes: u64,
    /// Bytes of data that went between clients and servers.
    pub moved_bytes: u64,
    /// Time that the servers worked on it.
    pub busy_ns: u64,
    /// Ways of access that the servers used: bits `ACCESS_*` of the protocol.
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
            methods: stats.methods,
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
