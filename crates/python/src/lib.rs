//! The native part of the Python package `weftfs`.
//!
//! ```text
//!   a[10:20, :, ::3]          weftfs/_array.py    which elements: an offset and strides
//!        │
//!   File.move_array           here                the GIL is released; both sides become regions (weft-layout)
//!        │
//!   weft_client::File         crates/client       one descriptor for each server
//! ```
//!
//! It has no threads: whoever waits does the work, without the GIL. A forked child connects anew when it first uses what it has
//! from its parent.

mod client;
mod errors;
mod file;
mod memory;
mod moves;
mod pending;

use pyo3::prelude::*;

#[pymodule]
fn _weftfs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::Client>()?;
    module.add_class::<file::File>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<pending::Pending>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
