//! Threads and locks in a process that may fork.

use std::io;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Locks what another thread may have had locked when this process was forked.
pub fn lock_after_fork<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, String> {
    for _ in 0..1000 {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err("the process was forked while a watcher was being made".into())
}

/// A thread without signals.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: sets are plain data that these calls fill; the thread that is made inherits the mask.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        thread
    }
}
