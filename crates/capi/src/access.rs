//! How reads and writes of pieces are carried out, and what they have cost.

use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, result, weft_file};
use std::ffi::c_int;
use weft_client::{AccessOptions, Method, Movement, Sieving};

/// `struct weft_access`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_access {
    /// Place in [`Method::ALL`].
    pub method: c_int,
    /// Place in [`Movement::ALL`].
    pub movement: c_int,
    /// Place in [`Sieving::ALL`].
    pub sieving: c_int,
    /// 0.
    pub reserved: c_int,
    /// Buffer of client-side sieving; 0: as by default.
    pub sieve_bytes: u64,
}

/// `struct weft_io_stats`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_io_stats {
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of these messages.
    pub request_bytes: u64,
    /// Bytes of file data that were moved.
    pub moved_bytes: u64,
    /// Accesses of servers that read.
    pub server_reads: u64,
    /// Accesses that wrote.
    pub server_writes: u64,
    /// Bytes of both.
    pub accessed_bytes: u64,
    /// Time of servers, in nanoseconds.
    pub busy_ns: u64,
    /// Ways that servers chose.
    pub methods: u64,
}

impl weft_access {
    fn options(&self) -> Outcome<AccessOptions> {
        let defaults = AccessOptions::default();
        Ok(AccessOptions {
            method: chosen("method", Method::ALL, self.method)?,
            movement: chosen("movement", Movement::ALL, self.movement)?,
            sieving: chosen("sieving", Sieving::ALL, self.sieving)?,
            sieve_bytes: if self.sieve_bytes == 0 { defaults.sieve_bytes } else { self.sieve_bytes },
        })
    }

    fn of(options: &AccessOptions) -> weft_access {
        weft_access {
            method: place(Method::ALL, options.method),
            movement: place(Movement::ALL, options.movement),
            sieving: place(Sieving::ALL, options.sieving),
            reserved: 0,
            sieve_bytes: options.sieve_bytes,
        }
    }
}

fn chosen<T: Copy>(what: &str, all: &[T], place: c_int) -> Outcome<T> {
    let found = usize::try_from(place).ok().and_then(|place| all.get(place));
    found.copied().ok_or_else(|| Failure::invalid(format!("{place} is no {what} of enum weft_{what}")))
}

fn place<T: PartialEq>(all: &[T], value: T) -> c_int {
    all.iter().position(|one| *one == value).expect("every value is in its table") as c_int
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `access` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_set_access(file: *const weft_file, access: *const weft_access) -> c_int {
    call("weft_set_access", || {
        // SAFETY: as the caller promises.
        let (file, access) = unsafe { (borrow(file)?, access.as_ref()) };
        file.file.set_access(access.map(weft_access::options).transpose()?.unwrap_or_default());
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `access` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_get_access(file: *const weft_file, access: *mut weft_access) -> c_int {
    call("weft_get_access", || {
        // SAFETY: as the caller promises.
        let (file, access) = unsafe { (borrow(file)?, result("access", access)?) };
        *access = weft_access::of(&file.file.access());
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `stats` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_get_io_stats(file: *const weft_file, stats: *mut weft_io_stats) -> c_int {
    call("weft_get_io_stats", || {
        // SAFETY: as the caller promises.
        let (file, place) = unsafe { (borrow(file)?, result("stats", stats)?) };
        let stats = file.file.io_stats();
        *place = weft_io_stats {
            requests: stats.requests,
            request_bytes: stats.request_bytes,
            moved_bytes: stats.moved_bytes,
            server_reads: stats.server_reads,
            server_writes: stats.server_writes,
            accessed_bytes: stats.accessed_bytes,
            busy_ns: stats.busy_ns,
            methods: stats.methods.into(),
        };
        Ok(0)
    })
}
