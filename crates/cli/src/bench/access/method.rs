//! Methods that are compared, and ways of access.

use serde::{Deserialize, Serialize};

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

    /// The bit of the servers' way of access that it asks for, as in the protocol's replies.
    pub fn server_method(self) -> Option<u8> {
        match self {
            How::Each => Some(1),
            How::Sieve => Some(2),
            How::Mapped => Some(4),
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
    /// Which ways of access the servers used, as in the protocol's replies.
    pub methods: u8,
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
