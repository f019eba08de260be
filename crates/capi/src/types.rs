//! Types: patterns of bytes that are described, not listed; and reads, writes and views by them.
//!
//! A `weft_type` is a boxed [`Datatype`]. Both sides of a typed call become
//! [`Regions`](weft_layout::Regions), memory by address; from there on it is like a list.

use crate::files::position;
use crate::guard::{Failure, Outcome, call};
use crate::handles::{array, borrow, give, take, weft_file};
use crate::lists::Request;
use crate::pending::weft_op;
use libc::{off_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};
use weft_client::{Direction, Elements, Place};
use weft_layout::{Datatype, DatatypeError, Order, Partition, View};

/// A type (`weft_type`).
#[allow(non_camel_case_types)]
pub struct weft_type {
    datatype: Datatype,
}

/// `struct weft_partition`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_partition {
    /// Where the first group begins.
    pub offset: u64,
    /// Bytes seen of every stride.
    pub group_bytes: u64,
    /// From one group to the next.
    pub stride_bytes: u64,
}

/// Runs a constructor for the C function `name`.
fn make(name: &str, body: impl FnOnce() -> Outcome<Result<Datatype, DatatypeError>>) -> *mut weft_type {
    call(name, || {
        let datatype = body()?.map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(give(weft_type { datatype }))
    })
}

/// The type behind a handle.
///
/// # Safety
/// It is NULL or a handle.
unsafe fn datatype<'a>(handle: *const weft_type) -> Outcome<&'a Datatype> {
    // SAFETY: as the caller promises.
    match unsafe { handle.as_ref() } {
        Some(handle) => Ok(&handle.datatype),
        None => Err(Failure::invalid("the type is NULL")),
    }
}

/// See weft.h.
#[unsafe(no_mangle)]
pub extern "C" fn weft_type_bytes(bytes: u64) -> *mut weft_type {
    make("weft_type_bytes", || Ok(Datatype::bytes(bytes)))
}

/// See weft.h.
///
/// # Safety
/// `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_contiguous(count: u64, element: *const weft_type) -> *mut weft_type {
    // SAFETY: as the caller promises.
    make("weft_type_contiguous", || Ok(Datatype::contiguous(count, unsafe { datatype(element)? })))
}

/// See weft.h.
///
/// # Safety
/// `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_vector(
    count: u64,
    block_count: u64,
    stride_elements: i64,
    element: *const weft_type,
) -> *mut weft_type {
    make("weft_type_vector", || {
        // SAFETY: as the caller promises.
        Ok(Datatype::vector(count, block_count, stride_elements, unsafe { datatype(element)? }))
    })
}

/// See weft.h.
///
/// # Safety
/// `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_hvector(
    count: u64,
    block_count: u64,
    stride_bytes: i64,
    element: *const weft_type,
) -> *mut weft_type {
    make("weft_type_hvector", || {
        // SAFETY: as the caller promises.
        Ok(Datatype::hvector(count, block_count, stride_bytes, unsafe { datatype(element)? }))
    })
}

/// Displacements with the number of elements at each.
///
/// # Safety
/// The arrays have `count` values.
unsafe fn blocks(
    count: size_t,
    displacements: *const i64,
    block_counts: *const u64,
) -> Outcome<Vec<(i64, u64)>> {
    // SAFETY: as the caller promises.
    let (displacements, counts) = unsafe { (array(displacements, count)?, array(block_counts, count)?) };
    Ok(displacements.iter().copied().zip(counts.iter().copied()).collect())
}

/// See weft.h.
///
/// # Safety
/// The arrays have `count` values; `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_indexed(
    count: size_t,
    displacements: *const i64,
    block_counts: *const u64,
    element: *const weft_type,
) -> *mut weft_type {
    // SAFETY: as the caller promises.
    make("weft_type_indexed", || unsafe {
        Ok(Datatype::indexed(&blocks(count, displacements, block_counts)?, datatype(element)?))
    })
}

/// See weft.h.
///
/// # Safety
/// The arrays have `count` values; `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_hindexed(
    count: size_t,
    displacements: *const i64,
    block_counts: *const u64,
    element: *const weft_type,
) -> *mut weft_type {
    // SAFETY: as the caller promises.
    make("weft_type_hindexed", || unsafe {
        Ok(Datatype::hindexed(&blocks(count, displacements, block_counts)?, datatype(element)?))
    })
}

/// See weft.h.
///
/// # Safety
/// The arrays have `count` values, and those of `types` are handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_struct(
    count: size_t,
    displacements: *const i64,
    block_counts: *const u64,
    types: *const *const weft_type,
) -> *mut weft_type {
    make("weft_type_struct", || {
        // SAFETY: as the caller promises.
        let (blocks, types) = unsafe { (blocks(count, displacements, block_counts)?, array(types, count)?) };
        let field = |((displacement, count), handle): ((i64, u64), &*const weft_type)| {
            // SAFETY: as the caller promises.
            Ok((displacement, count, unsafe { datatype(*handle)? }))
        };
        let fields = blocks.into_iter().zip(types).map(field).collect::<Outcome<Vec<_>>>()?;
        Ok(Datatype::structure(&fields))
    })
}

/// See weft.h.
///
/// # Safety
/// The arrays have `dimensions` values; `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_subarray(
    dimensions: size_t,
    dims: *const u64,
    starts: *const u64,
    counts: *const u64,
    order: c_int,
    element: *const weft_type,
) -> *mut weft_type {
    make("weft_type_subarray", || {
        let order = match order {
            0 => Order::C,
            1 => Order::Fortran,
            _ => return Err(Failure::invalid("the order is WEFT_ORDER_C or WEFT_ORDER_FORTRAN")),
        };
        // SAFETY: as the caller promises.
        unsafe {
            let (dims, starts) = (array(dims, dimensions)?, array(starts, dimensions)?);
            Ok(Datatype::subarray(dims, starts, array(counts, dimensions)?, order, datatype(element)?))
        }
    })
}

/// See weft.h.
///
/// # Safety
/// `element` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_resized(
    lower_bound_bytes: i64,
    extent_bytes: i64,
    element: *const weft_type,
) -> *mut weft_type {
    make("weft_type_resized", || {
        // SAFETY: as the caller promises.
        Ok(Datatype::resized(lower_bound_bytes, extent_bytes, unsafe { datatype(element)? }))
    })
}

/// See weft.h.
///
/// # Safety
/// `handle` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_size(handle: *const weft_type) -> i64 {
    // SAFETY: as the caller promises.
    call("weft_type_size", || Ok(unsafe { datatype(handle)? }.size_bytes() as i64))
}

/// See weft.h.
///
/// # Safety
/// `handle` is NULL or a handle; the results are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_extent(
    handle: *const weft_type,
    lower_bound_bytes: *mut i64,
    extent_bytes: *mut i64,
) -> c_int {
    call("weft_type_extent", || {
        // SAFETY: as the caller promises.
        let (datatype, lower, extent) =
            unsafe { (datatype(handle)?, lower_bound_bytes.as_mut(), extent_bytes.as_mut()) };
        lower.into_iter().for_each(|lower| *lower = datatype.lower_bound_bytes());
        extent.into_iter().for_each(|extent| *extent = datatype.extent_bytes());
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `handle` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_type_free(handle: *mut weft_type) -> c_int {
    call("weft_type_free", || {
        if !handle.is_null() {
            // SAFETY: as the caller promises.
            drop(unsafe { take(handle)? });
        }
        Ok(0)
    })
}

/// What a typed call says of one file.
struct Typed {
    memory: *const c_void,
    memory_count: u64,
    memory_type: *const weft_type,
    offset: off_t,
    file_count: u64,
    file_type: *const weft_type,
}

impl Typed {
    /// # Safety
    /// The types are NULL or handles.
    unsafe fn request(&self, file: *const weft_file) -> Outcome<Request> {
        // SAFETY: as the caller promises.
        let (file, memory_type) = unsafe { (borrow(file)?, datatype(self.memory_type)?) };
        let offset = position(self.offset)?;
        let memory = Elements { count: self.memory_count, datatype: memory_type };
        let place = if self.file_type.is_null() {
            if self.file_count != 0 {
                return Err(Failure::invalid("file_count is not 0, and file_type is NULL"));
            }
            Place::View { position: offset }
        } else {
            // SAFETY: as the caller promises.
            let datatype = unsafe { datatype(self.file_type)? };
            Place::Elements { offset, elements: Elements { count: self.file_count, datatype } }
        };
        let (memory, file) = file.file.typed_regions(self.memory as *mut u8, memory, place)?;
        Ok(Request { memory, allocations: None, file })
    }
}

/// Defines a function that does something with typed memory.
macro_rules! typed_functions {
    ($($name:ident: $action:ident($direction:ident), $memory:ty => $returned:ty;)*) => { $(
        /// See weft.h.
        ///
        /// # Safety
        /// `file` and the types are handles; the memory is valid for what is done with it until that has
        /// ended.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            file: *const weft_file,
            memory: $memory,
            memory_count: u64,
            memory_type: *const weft_type,
            offset: off_t,
            file_count: u64,
            file_type: *const weft_type,
        ) -> $returned {
            let typed = Typed { memory, memory_count, memory_type, offset, file_count, file_type };
            // SAFETY: as the caller promises.
            call(stringify!($name), || unsafe { typed.request(file)?.$action(file, Direction::$direction) })
        }
    )* };
}

typed_functions! {
    weft_read_typed: run(Read), *mut c_void => ssize_t;
    weft_write_typed: run(Write), *const c_void => ssize_t;
    weft_start_read_typed: start(Read), *mut c_void => *mut weft_op;
    weft_start_write_typed: start(Write), *const c_void => *mut weft_op;
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `handle` NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_set_view(
    file: *const weft_file,
    displacement: off_t,
    handle: *const weft_type,
) -> c_int {
    call("weft_set_view", || {
        // SAFETY: as the caller promises.
        let (file, datatype) = unsafe { (borrow(file)?, handle.as_ref()) };
        let displacement = position(displacement)?;
        let view = datatype.map(|handle| View::new(displacement, handle.datatype.clone()));
        file.file.set_view(view.transpose().map_err(|error| Failure::invalid(error.to_string()))?);
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `partition` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_set_partition(
    file: *const weft_file,
    partition: *const weft_partition,
) -> c_int {
    call("weft_set_partition", || {
        // SAFETY: as the caller promises.
        let (file, partition) = unsafe { (borrow(file)?, partition.as_ref()) };
        let partition = partition
            .map(|view| Partition::new(view.offset, view.group_bytes, view.stride_bytes))
            .transpose()
            .map_err(|error| Failure::invalid(error.to_string()))?;
        file.file.set_view(partition.map(View::from));
        Ok(0)
    })
}
