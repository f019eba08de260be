//! Memory of a serving thread.

use std::ops::{Deref, DerefMut};
use weft_client::{Arena, Client};

/// Largest read or write that the kernel sends: its own limit (`fs.fuse.max_pages_limit`) by default.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// From [`Client::alloc`] where that has some: there a server on the same host reads and writes without a copy in between.
pub(super) enum Memory {
    Shared(Arena),
    Own(Vec<u8>),
}

impl Memory {
    pub(super) fn new(client: &Client, bytes: usize) -> Memory {
        client.alloc(bytes).map_or_else(|_| Memory::Own(vec![0; bytes]), Memory::Shared)
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Memory::Shared(arena) => arena,
            Memory::Own(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Shared(arena) => arena,
            Memory::Own(bytes) => bytes,
        }
    }
}
