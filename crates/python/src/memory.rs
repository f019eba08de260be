//! Memory of the program: what the buffer protocol gives, and memory that servers on this host reach.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Shared memory that servers on this host read and write directly. It has the buffer protocol.
#[pyclass(frozen, module = "weftfs._weftfs")]
pub(crate) struct Memory {
    arena: weft_client::Arena,
}

impl Memory {
    pub(crate) fn new(arena: weft_client::Arena) -> Memory {
        Memory { arena }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.arena.bytes()
    }

    /// # Safety
    /// Python calls it with a view to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let arena = &slf.get().arena;
        let (base, bytes) = (arena.base().as_ptr(), arena.bytes() as ffi::Py_ssize_t);
        // SAFETY: the memory is mapped for as long as the object lives, which the view holds.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast(), bytes, 0, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A buffer of the program, which cannot go or be resized while this lives.
pub(crate) struct Buffer(PyUntypedBuffer);

impl Buffer {
    /// Any object with the buffer protocol; to be written to where `is_filled`.
    pub(crate) fn of(object: &Bound<'_, PyAny>, is_filled: bool) -> PyResult<Buffer> {
        let buffer = PyUntypedBuffer::get(object)?;
        if is_filled && buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only: it cannot be read into"));
        }
        if buffer.suboffsets().is_some() {
            return Err(PyBufferError::new_err(
                "buffers with pointers in them (suboffsets) are not supported",
            ));
        }
        Ok(Buffer(buffer))
    }

    /// The same, with its bytes one after the other.
    pub(crate) fn contiguous(object: &Bound<'_, PyAny>, is_filled: bool) -> PyResult<Buffer> {
        let buffer = Buffer::of(object, is_filled)?;
        match buffer.0.is_c_contiguous() {
            true => Ok(buffer),
            false => Err(PyValueError::new_err(
                "the buffer is not C-contiguous; strided ones are read and written as arrays (weftfs.open_array)",
            )),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.buf_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len_bytes()
    }

    pub(crate) fn item_bytes(&self) -> usize {
        self.0.item_size()
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    pub(crate) fn strides(&self) -> &[isize] {
        self.0.strides()
    }
}
