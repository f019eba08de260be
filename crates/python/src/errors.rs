//! Errors of the client as exceptions of Python, and waits that a signal ends.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use weft_client::{Error, ErrorKind};

thread_local! {
    /// Waits of this thread end when a signal's handler has raised an exception.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs `work` without the GIL. An exception of a signal's handler ends it where it waits.
///
/// # Errors
/// What the handler has raised, or what `work` met, about `path`.
pub(crate) fn released<T: Send>(
    py: Python<'_>,
    path: &OsStr,
    work: impl FnOnce() -> weft_client::Result<T> + Send,
) -> PyResult<T> {
    if !IS_WATCHED.replace(true) {
        weft_client::end_waits_when(has_raised);
    }
    let done = py.detach(work);
    match (done, RAISED.take()) {
        (Ok(done), None) => Ok(done),
        (_, Some(raised)) => Err(raised),
        (Err(error), None) => Err(exception(py, &error, path)),
    }
}

/// Whether a signal's handler has raised an exception, which [`released`] then raises.
pub(crate) fn has_raised() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    if is_raised {
        RAISED.set(raised);
    }
    is_raised
}

/// The exception that `weftfs.errors` makes of an error about `path`.
pub(crate) fn exception(py: Python<'_>, error: &Error, path: &OsStr) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if error.kind() == ErrorKind::Invalid && error.server().is_none() {
        return PyValueError::new_err(error.to_string());
    }
    let make = || {
        let make =
            MAKE.get_or_try_init(py, || py.import("weftfs.errors")?.getattr("make").map(Bound::unbind))?;
        make.bind(py).call1((error.errno(), error.detail(), path, error.server(), error.operation()))
    };
    make().map_or_else(|failure| failure, PyErr::from_value)
}
