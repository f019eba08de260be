//! Memory that servers of the same host reach directly, and memory that adapters know.

use crate::guard::{Failure, call};
use crate::handles::{borrow, weft_fs};
use libc::size_t;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex, PoisonError};
use weft_client::Arena;

/// What was allocated and not freed, by address.
static ARENAS: LazyLock<Mutex<HashMap<usize, Arena>>> = LazyLock::new(Mutex::default);

/// See weft.h.
///
/// # Safety
/// `fs` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_mem_alloc(fs: *const weft_fs, bytes: size_t) -> *mut c_void {
    call("weft_mem_alloc", || {
        // SAFETY: as the caller promises.
        let client = unsafe { &borrow(fs)?.client };
        let arena = client.alloc(bytes.max(1))?;
        let address = arena.base().as_ptr();
        ARENAS.lock().unwrap_or_else(PoisonError::into_inner).insert(address as usize, arena);
        Ok(address.cast())
    })
}

/// See weft.h.
///
/// # Safety
/// `memory` is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_mem_free(memory: *mut c_void) -> c_int {
    call("weft_mem_free", || {
        if memory.is_null() {
            return Ok(0);
        }
        match ARENAS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(memory as usize)) {
            Some(_arena) => Ok(0),
            None => Err(Failure::invalid("this memory is not from weft_mem_alloc, or was freed before")),
        }
    })
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle; the memory is writable, and stays mapped until it is unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_mem_register(fs: *const weft_fs, memory: *mut c_void, bytes: size_t) -> c_int {
    call("weft_mem_register", || {
        // SAFETY: as the caller promises.
        unsafe {
            borrow(fs)?;
            weft_client::register_memory(memory.cast(), bytes)?;
        }
        Ok(0)
    })
}

/// See weft.h.
#[unsafe(no_mangle)]
pub extern "C" fn weft_mem_unregister(memory: *mut c_void) -> c_int {
    call("weft_mem_unregister", || {
        weft_client::unregister_memory(memory.cast())?;
        Ok(0)
    })
}
