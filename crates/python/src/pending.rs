//! Reads and writes that go on while the program does something else.

use crate::errors::{exception, released};
use crate::memory::Buffer;
use crate::moves::zero_rest;
use pyo3::prelude::*;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use weft_client::PendingRaw;
use weft_layout::Regions;

/// A read or write under way.
#[pyclass(frozen, module = "weftfs._weftfs")]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Memory in which a short read leaves something to be zeroed.
    unfilled: Option<Regions>,
    path: Arc<OsStr>,
}

/// The operation: any thread may go on with it, one at a time.
struct Raw(PendingRaw);

// SAFETY: what keeps it from being sent is the addresses of the pieces of memory, which are those of buffers that live longer. They
// mean the same in all threads.
unsafe impl Send for Raw {}

impl Raw {
    fn test(&mut self) -> bool {
        self.0.test()
    }

    fn wait(self) -> weft_client::Result<u64> {
        self.0.wait()
    }
}

enum State {
    Begun(Box<Raw>, Vec<Buffer>),
    Moved(u64),
    Failed(weft_client::Error),
    /// Somebody waits for it.
    Awaited,
}

impl Pending {
    /// It keeps the buffers until it is over.
    pub(crate) fn new(
        raw: PendingRaw,
        unfilled: Option<Regions>,
        buffers: Vec<Buffer>,
        path: Arc<OsStr>,
    ) -> Pending {
        Pending { unfilled, state: Mutex::new(State::Begun(Box::new(Raw(raw)), buffers)), path }
    }

    fn take(&self) -> State {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *state, State::Awaited)
    }

    fn put(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[pymethods]
impl Pending {
    /// Moves it forward without waiting, and says whether it is over.
    fn test(&self, py: Python<'_>) -> bool {
        match self.take() {
            State::Begun(mut raw, buffers) => {
                let is_over = py.detach(|| raw.test());
                self.put(State::Begun(raw, buffers));
                is_over
            }
            State::Awaited => false,
            state => {
                self.put(state);
                true
            }
        }
    }

    /// Waits for its end, and returns the number of bytes. It can be called again.
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        match self.take() {
            State::Begun(raw, buffers) => {
                let (path, mut ended) = (self.path.clone(), State::Awaited);
                let waited = released(py, &path, || {
                    let moved = raw.wait();
                    if let (Ok(moved), Some(unfilled)) = (&moved, &self.unfilled) {
                        // SAFETY: the buffers are held, and the operation is over.
                        unsafe { zero_rest(unfilled, *moved) };
                    }
                    ended = match &moved {
                        Ok(bytes) => State::Moved(*bytes),
                        Err(error) => State::Failed(error.clone()),
                    };
                    moved
                });
                drop(buffers);
                self.put(ended);
                waited
            }
            State::Awaited => Err(pyo3::exceptions::PyRuntimeError::new_err("another thread waits for it")),
            State::Moved(bytes) => {
                self.put(State::Moved(bytes));
                Ok(bytes)
            }
            State::Failed(error) => {
                let raised = exception(py, &error, &self.path);
                self.put(State::Failed(error));
                Err(raised)
            }
        }
    }
}

impl Drop for Pending {
    /// Waits for its end: the buffers may go then.
    fn drop(&mut self) {
        if let State::Begun(raw, buffers) = self.take() {
            Python::attach(|py| {
                let _ = py.detach(|| raw.wait());
                drop(buffers);
            });
        }
    }
}
