//! What options choose among.

use serde::{Deserialize, Serialize};

/// How data travels.
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
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            Transport::Rdma => "rdma",
        }
    }
}

/// Where the bytes of a client are.
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

/// Whether one side of an access is in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Side {
    /// One piece.
    Contiguous,
    /// A piece per row.
    Noncontiguous,
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
}
