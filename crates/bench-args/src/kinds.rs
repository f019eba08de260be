//! The values of options.

use serde::{Deserialize, Serialize};

/// The transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA.
    Rdma,
}

impl Transport {
    /// The name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            Transport::Rdma => "rdma",
        }
    }
}

/// The memory of a client's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Memory {
    /// Ordinary memory.
    Any,
    /// Shared memory from weft_mem_alloc.
    Alloc,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Any => "any memory",
            Memory::Alloc => "weft_mem_alloc",
        })
    }
}

/// Whether an access is in one piece, in memory or in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Side {
    /// One piece.
    Contiguous,
    /// A piece per row.
    Noncontiguous,
}

/// The kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Write a new file.
    Write,
    /// Read it.
    Read,
    /// Overwrite it.
    Rewrite,
}

impl Way {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Way::Write => "write",
            Way::Read => "read",
            Way::Rewrite => "rewrite",
        }
    }
}

/// The method of noncontiguous access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// One request per piece, one after the other (multiple I/O).
    Multiple,
    /// Large contiguous requests and copies at the client.
    ClientSieve,
    /// List I/O; servers access each piece by itself.
    Each,
    /// List I/O; servers always sieve.
    Sieve,
    /// List I/O; servers use mapped pages where data is cached.
    Mapped,
    /// One message per piece of memory.
    Messages,
    /// One message, packed into or unpacked from contiguous memory.
    Pack,
    /// Directly from and to the pieces of memory.
    Direct,
    /// One request per piece, all started at once.
    AtOnce,
    /// List I/O with its defaults: servers and client choose.
    List,
}

impl How {
    /// The name in tables.
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
}
