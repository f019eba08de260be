//! Locks of this library.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex; what a thread that panicked left is used as it is.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
