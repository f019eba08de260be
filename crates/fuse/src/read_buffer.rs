//! Memory that reads arrive in before they go to the kernel.
//!
//! It comes from [`Client::alloc`], so that a server on the same host puts its data there without a copy in between. The piece
//! that was given back last is lent first, whichever thread asks: it is still in the processor's cache.

use crate::fuser_adapter::REQUEST_BYTES_MAX;
use std::sync::{Mutex, PoisonError};
use weft_client::{Arena, Client};

/// Pieces that are not lent: at most one for each serving thread.
#[derive(Default)]
pub(crate) struct ReadBuffers(Mutex<Vec<Arena>>);

impl ReadBuffers {
    /// Lends `bytes` of memory to `use_it`; their contents are whatever was there.
    pub(crate) fn lend(&self, client: &Client, bytes: usize, use_it: impl FnOnce(&mut [u8])) {
        let free = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = free().pop().filter(|buffer| buffer.len() >= bytes);
        let buffer = waiting.or_else(|| client.alloc(bytes.max(REQUEST_BYTES_MAX as usize)).ok());
        match buffer {
            Some(mut buffer) => {
                use_it(&mut buffer[..bytes]);
                free().push(buffer);
            }
            None => use_it(&mut vec![0; bytes]),
        }
    }
}
