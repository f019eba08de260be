//! Calls into this library: a panic does not unwind into the program, which is C or Fortran.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call. A panic is a defect of this library: it is reported by the standard hook, and the process ends,
/// since other processes may wait for this one.
pub fn call<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        eprintln!("weft-mpi: a defect of this library, see above; the program cannot go on");
        std::process::abort()
    })
}
