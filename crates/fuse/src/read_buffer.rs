//! Memory that reads arrive in before they go to the kernel: one piece for each thread, kept.
//!
//! It comes from [`Client::alloc`], so that a server on the same host puts its data there without a copy in between.

use crate::fuser_adapter::REQUEST_BYTES_MAX;
use std::cell::RefCell;
use weft_client::{Arena, Client};

thread_local! {
    static BUFFER: RefCell<Option<Arena>> = const { RefCell::new(None) };
}

/// Lends `bytes` of this thread's memory to `use_it`; their contents are whatever was there.
pub(crate) fn with_read_buffer(client: &Client, bytes: usize, use_it: impl FnOnce(&mut [u8])) {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            *buffer = client.alloc(bytes.max(REQUEST_BYTES_MAX as usize)).ok();
        }
        match buffer {
            Some(buffer) => use_it(&mut buffer[..bytes]),
            None => use_it(&mut vec![0; bytes]),
        }
    });
}
