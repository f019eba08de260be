//! An open file.

use crate::errors::{has_raised, released};
use crate::memory::Buffer;
use crate::moves::{self, Move};
use crate::pending::Pending;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::ffi::OsStr;
use std::sync::{Arc, RwLock};
use weft_client::{Direction, LockKind, LockTarget, LockWait};
use weft_layout::Extent;

/// An open file: reads and writes at offsets. `weftfs.File` adds what Python's files have.
#[pyclass(frozen, module = "weftfs._weftfs")]
pub(crate) struct File {
    file: RwLock<Option<Arc<weft_client::File>>>,
    path: Arc<OsStr>,
}

impl File {
    pub(crate) fn new(file: weft_client::File, path: &OsStr) -> File {
        File { file: RwLock::new(Some(Arc::new(file))), path: path.into() }
    }

    /// The file, unless it is closed.
    pub(crate) fn open(&self) -> PyResult<Arc<weft_client::File>> {
        let file = self.file.read().map_err(|_| PyValueError::new_err("the file is not usable any more"))?;
        file.clone().ok_or_else(|| PyValueError::new_err(format!("{} is closed", self.path.display())))
    }

    /// Runs `work` on the file without the GIL.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&weft_client::File) -> weft_client::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.open()?;
        released(py, &self.path, || work(&file))
    }

    fn run_move(&self, py: Python<'_>, direction: Direction, wanted: &Move) -> PyResult<u64> {
        // SAFETY: the buffers are held by who calls this, and programs that change them meanwhile get what they ask for, as with
        // any file of Python's.
        self.run(py, |file| unsafe { wanted.run(file, direction) })
    }

    fn start_move(&self, direction: Direction, wanted: Move, buffers: Vec<Buffer>) -> PyResult<Pending> {
        let file = self.open()?;
        let unfilled = wanted.left_by_short_read(direction).cloned();
        // SAFETY: what is pending keeps the buffers until it is over.
        let raw = unsafe { file.start_raw(direction, 0, wanted.memory, None, wanted.file) };
        Ok(Pending::new(raw, unfilled, buffers, self.path.clone()))
    }
}

fn direction(is_write: bool) -> Direction {
    if is_write { Direction::Write } else { Direction::Read }
}

/// Bytes that are not set as yet, and where they are.
fn new_bytes(py: Python<'_>, nbytes: usize) -> PyResult<(Bound<'_, PyBytes>, u64)> {
    let size = isize::try_from(nbytes).unwrap_or(isize::MAX);
    // SAFETY: what cannot be is refused with an exception; the object is new and nobody else's.
    unsafe {
        let raw = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let object = Bound::from_owned_ptr_or_err(py, raw)?.cast_into_unchecked::<PyBytes>();
        let address = ffi::PyBytes_AsString(object.as_ptr()) as u64;
        Ok((object, address))
    }
}

fn piece(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes }
}

fn buffers_of(objects: &Bound<'_, PyAny>, is_filled: bool) -> PyResult<Vec<Buffer>> {
    match objects.cast::<PyList>() {
        Ok(list) => list.iter().map(|object| Buffer::contiguous(&object, is_filled)).collect(),
        Err(_) => Ok(vec![Buffer::contiguous(objects, is_filled)?]),
    }
}

fn arrays_of(objects: &[Bound<'_, PyAny>], is_filled: bool) -> PyResult<Vec<Buffer>> {
    objects.iter().map(|object| Buffer::of(object, is_filled)).collect()
}

#[pymethods]
impl File {
    #[getter]
    fn path(&self) -> &OsStr {
        &self.path
    }

    #[getter]
    fn closed(&self) -> bool {
        self.open().is_err()
    }

    #[getter]
    fn ino(&self) -> PyResult<u64> {
        Ok(self.open()?.ino())
    }

    /// strip_bytes, servers, first_server.
    #[getter]
    fn layout(&self) -> PyResult<(u32, u16, u16)> {
        let layout = self.open()?.layout();
        Ok((layout.strip_bytes(), layout.server_count(), layout.first_server()))
    }

    fn read_at<'py>(&self, py: Python<'py>, offset: u64, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (object, address) = new_bytes(py, nbytes)?;
        // SAFETY: the memory is that of the object, which lives longer.
        let read =
            self.run(py, |file| unsafe { file.read_pieces(&[piece(address, nbytes)], Some(offset)) })?;
        match read == nbytes {
            true => Ok(object),
            // The rest was never set.
            false => Ok(PyBytes::new(py, &object.as_bytes()[..read])),
        }
    }

    fn readinto_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::contiguous(buffer, true)?;
        let (address, bytes) = (buffer.address(), buffer.bytes());
        // SAFETY: the buffer is held until this returns.
        self.run(py, |file| unsafe { file.read_pieces(&[piece(address, bytes)], Some(offset)) })
    }

    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::contiguous(data, false)?;
        let (address, bytes) = (buffer.address(), buffer.bytes());
        // SAFETY: the buffer is held until this returns.
        self.run(py, |file| unsafe { file.write_pieces(&[piece(address, bytes)], Some(offset)) })
    }

    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let buffer = Buffer::contiguous(data, false)?;
        let (address, bytes) = (buffer.address(), buffer.bytes());
        self.run(py, |file| {
            // SAFETY: the buffer is held until this returns.
            file.append(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) })
        })
    }

    /// What is beyond the end of the file is zeros.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        offsets: Vec<i64>,
        lengths: Vec<i64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut objects = Vec::with_capacity(lengths.len());
        let mut memory = Vec::with_capacity(lengths.len());
        for length in &lengths {
            let nbytes = usize::try_from(*length).map_err(|_| moves::is_negative(*length))?;
            let (object, address) = new_bytes(py, nbytes)?;
            objects.push(object);
            memory.push(Extent::new(address, nbytes as u64));
        }
        self.run_move(py, Direction::Read, &moves::of_lists(&offsets, &lengths, memory)?)?;
        Ok(objects)
    }

    fn move_ranges(
        &self,
        py: Python<'_>,
        write: bool,
        offsets: Vec<i64>,
        lengths: Vec<i64>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let buffers = buffers_of(buffers, !write)?;
        self.run_move(py, direction(write), &moves::of_ranges(&offsets, &lengths, &buffers)?)
    }

    fn start_ranges(
        &self,
        write: bool,
        offsets: Vec<i64>,
        lengths: Vec<i64>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Pending> {
        let buffers = buffers_of(buffers, !write)?;
        let wanted = moves::of_ranges(&offsets, &lengths, &buffers)?;
        self.start_move(direction(write), wanted, buffers)
    }

    /// `offsets` is a contiguous buffer of 64-bit integers.
    fn move_offsets(
        &self,
        py: Python<'_>,
        write: bool,
        offsets: &Bound<'_, PyAny>,
        element_bytes: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let buffer = Buffer::contiguous(buffer, !write)?;
        let offsets = pyo3::buffer::PyBuffer::<i64>::get(offsets)?.to_vec(py)?;
        self.run_move(py, direction(write), &moves::of_offsets(&offsets, element_bytes, &buffer)?)
    }

    fn move_array(
        &self,
        py: Python<'_>,
        write: bool,
        offset: u64,
        strides: Vec<i64>,
        element_bytes: usize,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let buffer = Buffer::of(buffer, !write)?;
        self.run_move(py, direction(write), &moves::of_array(offset, &strides, element_bytes, &buffer)?)
    }

    fn start_array(
        &self,
        write: bool,
        offset: u64,
        strides: Vec<i64>,
        element_bytes: usize,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Pending> {
        let buffer = Buffer::of(buffer, !write)?;
        let wanted = moves::of_array(offset, &strides, element_bytes, &buffer)?;
        self.start_move(direction(write), wanted, vec![buffer])
    }

    /// Several arrays by one operation: where each begins, its strides in the file, and its memory.
    fn move_arrays(
        &self,
        py: Python<'_>,
        write: bool,
        offsets: Vec<u64>,
        strides: Vec<Vec<i64>>,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let buffers = arrays_of(&buffers, !write)?;
        self.run_move(py, direction(write), &moves::of_arrays(&offsets, &strides, &buffers)?)
    }

    fn start_arrays(
        &self,
        write: bool,
        offsets: Vec<u64>,
        strides: Vec<Vec<i64>>,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Pending> {
        let buffers = arrays_of(&buffers, !write)?;
        let wanted = moves::of_arrays(&offsets, &strides, &buffers)?;
        self.start_move(direction(write), wanted, buffers)
    }

    /// What each server would do to read or write the elements of an array: a list of dictionaries.
    fn explain_array<'py>(
        &self,
        py: Python<'py>,
        write: bool,
        offset: u64,
        shape: Vec<u64>,
        strides: Vec<i64>,
        element_bytes: u64,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let axes: Vec<_> = shape
            .iter()
            .zip(&strides)
            .map(|(count, stride)| weft_layout::Axis {
                count: *count,
                file_stride_bytes: *stride,
                memory_stride_bytes: 0,
            })
            .collect();
        let (regions, _) = weft_layout::array_regions(offset, 0, element_bytes, &axes);
        let plans = self.run(py, |file| file.explain(&regions, write))?;
        let row = |plan: weft_client::ServerPlan| {
            let row = PyDict::new(py);
            row.set_item("server", plan.server)?;
            row.set_item("requests", plan.requests)?;
            row.set_item("request_bytes", plan.request_bytes)?;
            row.set_item("pieces", plan.plan.pieces)?;
            row.set_item("bytes", plan.plan.bytes)?;
            row.set_item("expected_us", plan.plan.chosen_cost_ns as f64 / 1e3)?;
            let chosen = plan.plan.plans.iter().filter(|plan| plan.chosen_windows > 0);
            row.set_item("methods", chosen.map(|plan| method(plan.method)).collect::<Vec<_>>())?;
            Ok(row)
        };
        plans.into_iter().map(row).collect()
    }

    /// What its reads and writes took so far.
    fn io_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.open()?.io_stats();
        let row = PyDict::new(py);
        row.set_item("requests", stats.requests)?;
        row.set_item("request_bytes", stats.request_bytes)?;
        row.set_item("moved_bytes", stats.moved_bytes)?;
        Ok(row)
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |file| Ok(file.stat()?.size))
    }

    /// Where the first data, or hole, is from `offset` on; None if there is none.
    fn seek_part(&self, py: Python<'_>, offset: u64, is_data: bool) -> PyResult<Option<u64>> {
        self.run(py, |file| if is_data { file.seek_data(offset) } else { file.seek_hole(offset) })
    }

    fn truncate(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        self.run(py, |file| file.truncate(nbytes))
    }

    fn allocate(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<()> {
        self.run(py, |file| file.allocate(offset, nbytes, false))
    }

    fn punch(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<()> {
        self.run(py, |file| file.punch(offset, nbytes))
    }

    /// Tells the metadata server how far was written.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |file| file.flush().map(drop))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |file| file.sync_data())
    }

    /// Whether it was granted.
    fn lock(&self, py: Python<'_>, exclusive: bool, wait: bool, range: Option<(u64, u64)>) -> PyResult<bool> {
        let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
        let target = target(range);
        self.run(py, |file| {
            let how = if wait { LockWait::Until(&has_raised) } else { LockWait::Never };
            match file.lock(target, kind, how) {
                Ok(()) => Ok(true),
                Err(error) if error.errno() == libc::EAGAIN && !wait => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn unlock(&self, py: Python<'_>, range: Option<(u64, u64)>) -> PyResult<()> {
        self.run(py, |file| file.unlock(target(range)))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.file.write().ok().and_then(|mut file| file.take());
        let Some(file) = taken.and_then(Arc::into_inner) else { return Ok(()) };
        released(py, &self.path, || file.close())
    }
}

fn target(range: Option<(u64, u64)>) -> LockTarget {
    range.map_or(LockTarget::Whole, |(first, end)| LockTarget::range(first..end))
}

fn method(bit: u32) -> &'static str {
    use weft_wire::messages::io_flags;
    match bit {
        io_flags::ACCESS_EACH => "each",
        io_flags::ACCESS_SIEVE => "sieve",
        io_flags::ACCESS_MAPPED => "mapped",
        _ => "other",
    }
}
