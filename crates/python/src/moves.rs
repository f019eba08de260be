//! What a call moves: regions of a file and of memory, made of the arguments of Python.

use crate::memory::Buffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use weft_client::Direction;
use weft_layout::{Axis, Extent, Region, Regions, array_regions};
use weft_wire::limits::REGION_LEVELS_MAX;

/// Memory by address, and the file by offset.
pub(crate) struct Move {
    pub(crate) memory: Regions,
    pub(crate) file: Regions,
}

/// An array in the file and one in memory, of the same shape. `strides` are those of the file, in bytes; `offset` is where its first
/// element is.
pub(crate) fn of_array(
    offset: u64,
    strides: &[i64],
    element_bytes: usize,
    buffer: &Buffer,
) -> PyResult<Move> {
    let (shape, memory_strides) = (buffer.shape(), buffer.strides());
    if shape.len() != strides.len() || buffer.item_bytes() != element_bytes {
        let text = format!(
            "the array in memory has {} dimensions of {} bytes per element, the one in the file {} of {element_bytes}",
            shape.len(),
            buffer.item_bytes(),
            strides.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let axes: Vec<Axis> = (shape.iter().zip(strides).zip(memory_strides))
        .map(|((count, file_stride_bytes), memory_stride_bytes)| Axis {
            count: *count as u64,
            file_stride_bytes: *file_stride_bytes,
            memory_stride_bytes: *memory_stride_bytes as i64,
        })
        .collect();
    let (file, memory) = array_regions(offset, buffer.address(), element_bytes as u64, &axes);
    checked(Move { memory, file })
}

/// Several arrays, one after the other: each with where its first element is in the file, its strides there, and its buffer.
pub(crate) fn of_arrays(offsets: &[u64], strides: &[Vec<i64>], buffers: &[Buffer]) -> PyResult<Move> {
    if offsets.len() != buffers.len() || strides.len() != buffers.len() {
        let text = format!(
            "{} offsets, {} strides and {} arrays: one of each for an array",
            offsets.len(),
            strides.len(),
            buffers.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let (mut memory, mut file) = (Parts::default(), Parts::default());
    for ((offset, strides), buffer) in offsets.iter().zip(strides).zip(buffers) {
        let one = of_array(*offset, strides, buffer.item_bytes(), buffer)?;
        memory.push(one.memory);
        file.push(one.file);
    }
    checked(Move { memory: memory.done(), file: file.done() })
}

/// Regions one after the other, with a single list for contiguous ones that follow each other.
#[derive(Default)]
struct Parts {
    all: Vec<Region>,
    contiguous: Vec<Extent>,
}

impl Parts {
    fn push(&mut self, regions: Regions) {
        for part in regions.parts {
            match part {
                Region::Contiguous(extent) => self.contiguous.push(extent),
                part => {
                    self.end_list();
                    self.all.push(part);
                }
            }
        }
    }

    fn end_list(&mut self) {
        let list = joined(std::mem::take(&mut self.contiguous));
        self.all.extend(list.parts.into_iter().filter(|part| part.total_bytes() > 0));
    }

    fn done(mut self) -> Regions {
        self.end_list();
        match self.all.is_empty() {
            true => Regions::contiguous(0, 0),
            false => Regions { parts: self.all },
        }
    }
}

/// Elements of `element_bytes` at any offsets of the file, and one after the other in memory.
pub(crate) fn of_offsets(offsets: &[i64], element_bytes: u64, buffer: &Buffer) -> PyResult<Move> {
    let extents = offsets.iter().map(|offset| Ok(Extent::new(not_negative(*offset)?, element_bytes)));
    let file = joined(extents.collect::<PyResult<Vec<Extent>>>()?);
    let_fit(Move { memory: Regions::contiguous(buffer.address(), buffer.bytes() as u64), file })
}

/// Ranges of the file, each with its offset and length, and buffers one after the other.
pub(crate) fn of_ranges(offsets: &[i64], lengths: &[i64], buffers: &[Buffer]) -> PyResult<Move> {
    let memory = buffers.iter().map(|buffer| Extent::new(buffer.address(), buffer.bytes() as u64));
    of_lists(offsets, lengths, memory.collect())
}

/// Ranges of the file, and of memory by address.
pub(crate) fn of_lists(offsets: &[i64], lengths: &[i64], memory: Vec<Extent>) -> PyResult<Move> {
    if offsets.len() != lengths.len() {
        let text = format!("{} offsets and {} lengths: one for each range", offsets.len(), lengths.len());
        return Err(PyValueError::new_err(text));
    }
    let extent = |(offset, length): (&i64, &i64)| -> PyResult<Extent> {
        Ok(Extent::new(not_negative(*offset)?, not_negative(*length)?))
    };
    let extents: PyResult<Vec<Extent>> = offsets.iter().zip(lengths).map(extent).collect();
    let_fit(Move { memory: joined(memory), file: joined(extents?) })
}

pub(crate) fn is_negative(number: i64) -> PyErr {
    PyValueError::new_err(format!("{number} is negative"))
}

fn not_negative(number: i64) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| is_negative(number))
}

/// Extents as a list, those joined that follow each other.
fn joined(extents: Vec<Extent>) -> Regions {
    let mut list: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents.into_iter().filter(|extent| extent.bytes > 0) {
        match list.last_mut() {
            Some(last) if last.end() == extent.offset => last.bytes += extent.bytes,
            _ => list.push(extent),
        }
    }
    match list.as_slice() {
        [] => Regions::contiguous(0, 0),
        [one] => Regions::contiguous(one.offset, one.bytes),
        _ => Regions::list(list),
    }
}

fn let_fit(wanted: Move) -> PyResult<Move> {
    let (memory, file) = (wanted.memory.total_bytes(), wanted.file.total_bytes());
    match memory == file {
        true => checked(wanted),
        false => Err(PyValueError::new_err(format!(
            "the ranges of the file have {file} bytes, the memory has {memory}"
        ))),
    }
}

fn checked(wanted: Move) -> PyResult<Move> {
    let check = |regions: &Regions| regions.validate(regions.part_count(), REGION_LEVELS_MAX);
    let wrong = check(&wanted.file).err().or_else(|| check(&wanted.memory).err());
    match wrong {
        None => Ok(wanted),
        Some(wrong) => Err(PyValueError::new_err(wrong.to_string())),
    }
}

impl Move {
    /// Moves it. Returns the bytes below the end of the file; a read fills the memory of the others with zeros.
    ///
    /// # Safety
    /// The memory is nobody else's until this returns, and can be written to where it is read into.
    pub(crate) unsafe fn run(
        &self,
        file: &weft_client::File,
        direction: Direction,
    ) -> weft_client::Result<u64> {
        // SAFETY: the caller's promise; the memory is given by address.
        let moved = unsafe { file.move_raw(direction, 0, &self.memory, None, &self.file) }?;
        if let Some(unfilled) = self.left_by_short_read(direction) {
            // SAFETY: the caller's promise.
            unsafe { zero_rest(unfilled, moved) };
        }
        Ok(moved)
    }

    /// The memory, where a read does not fill what is beyond the end of the file: of one contiguous range.
    pub(crate) fn left_by_short_read(&self, direction: Direction) -> Option<&Regions> {
        let is_one_range = matches!(self.file.parts.as_slice(), [Region::Contiguous(_)]);
        (direction == Direction::Read && is_one_range).then_some(&self.memory)
    }
}

/// Zeros all bytes of `memory`, which is given by address, but the first `moved` ones.
///
/// # Safety
/// The memory is nobody else's, and can be written to.
pub(crate) unsafe fn zero_rest(memory: &Regions, moved: u64) {
    let rest_bytes = memory.total_bytes().saturating_sub(moved);
    for extent in memory.window(moved, rest_bytes).extents() {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(extent.offset as *mut u8, 0, extent.bytes as usize) };
    }
}
