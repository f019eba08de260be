//! List I/O: many pieces of memory and many of the file in one operation, each side cut in its own way.
//!
//! ```text
//!   memory     [---- 6 ----] [-- 4 --]          arrays of addresses and lengths (NC 3.1), and optionally the
//!   file       [2] [---- 5 ----] [ 3 ]          allocations that the memory pieces are parts of (IB 5)
//! ```
//!
//! All forms become one [`Request`], so that conversion and checks are in one place.

use crate::files::position;
use crate::guard::{Failure, Outcome, call};
use crate::handles::{array, borrow, weft_file};
use crate::pending::weft_op;
use libc::{off_t, size_t, ssize_t};
use std::ffi::c_void;
use weft_client::Direction;
use weft_layout::{Extent, Level, Regions};

/// What to move: memory by address, file by offset.
pub(crate) struct Request {
    pub(crate) memory: Regions,
    /// What the pieces of memory are parts of, where that is said.
    pub(crate) allocations: Option<Vec<Extent>>,
    pub(crate) file: Regions,
}

/// Two arrays of the caller's, of as many values each.
struct Cut<Offset, Length> {
    count: size_t,
    offsets: *const Offset,
    lengths: *const Length,
}

type MemoryCut = Cut<*const c_void, size_t>;
type FileCut = Cut<i64, i64>;

impl<Offset: Copy, Length: Copy> Cut<Offset, Length> {
    /// The pieces, as `extent` makes them of an offset and a length, or says what is wrong with these.
    ///
    /// # Safety
    /// The arrays have as many values as said.
    unsafe fn extents(
        &self,
        what: &str,
        extent: impl Fn(Offset, Length) -> Result<Extent, &'static str>,
    ) -> Outcome<Vec<Extent>> {
        // SAFETY: as the caller promises.
        let (offsets, lengths) =
            unsafe { (array(self.offsets, self.count)?, array(self.lengths, self.count)?) };
        let pieces = offsets.iter().zip(lengths).enumerate();
        let extents = pieces.map(|(index, (offset, length))| {
            extent(*offset, *length)
                .map_err(|wrong| Failure::invalid(format!("piece {index} of the {what} {wrong}")))
        });
        extents.collect()
    }
}

fn memory_extent(address: *const c_void, bytes: size_t) -> Result<Extent, &'static str> {
    match address.is_null() && bytes != 0 {
        true => Err("is at NULL"),
        false => Ok(Extent::new(address as u64, bytes as u64)),
    }
}

fn file_extent(offset: i64, bytes: i64) -> Result<Extent, &'static str> {
    match (u64::try_from(offset), u64::try_from(bytes)) {
        (Ok(offset), Ok(bytes)) => Ok(Extent::new(offset, bytes)),
        (Err(_), _) => Err("has a negative offset"),
        _ => Err("has a negative length"),
    }
}

/// Pieces as a list; or, where all are as long and as far apart as the first two, as the pattern that they
/// are, which travels in a few bytes.
fn regions(extents: Vec<Extent>) -> Regions {
    let apart = |pair: &[Extent]| pair[1].offset.wrapping_sub(pair[0].offset) as i64;
    let is_alike =
        |first: &[Extent], pair: &[Extent]| pair[1].bytes == first[0].bytes && apart(pair) == apart(first);
    match extents.get(..2) {
        Some(first) if extents.len() > 2 && extents.windows(2).all(|pair| is_alike(first, pair)) => {
            let level = Level { count: extents.len() as u64, stride_bytes: apart(first) };
            Regions::strided(first[0].offset, first[0].bytes, [level])
        }
        _ => Regions::list(extents),
    }
}

impl Request {
    /// One piece on both sides.
    pub(crate) fn plain(buffer: *const c_void, bytes: size_t, offset: off_t) -> Outcome<Request> {
        if buffer.is_null() && bytes != 0 {
            return Err(Failure::new(libc::EFAULT, "the buffer is NULL"));
        }
        Ok(Request {
            memory: Regions::contiguous(buffer as u64, bytes as u64),
            allocations: None,
            file: Regions::contiguous(position(offset)?, bytes as u64),
        })
    }

    /// # Safety
    /// The arrays have as many values as said.
    unsafe fn lists(memory: MemoryCut, allocations: Option<MemoryCut>, file: FileCut) -> Outcome<Request> {
        // SAFETY: as the caller promises.
        let (memory, file) =
            unsafe { (memory.extents("memory", memory_extent)?, file.extents("file", file_extent)?) };
        let file = regions(file);
        let Some(allocations) = allocations else {
            return Ok(Request { memory: regions(memory), allocations: None, file });
        };
        // SAFETY: as the caller promises.
        let allocations = unsafe { allocations.extents("allocations", memory_extent)? };
        // Piece by piece, so that one does not become part of a larger one that is in no allocation.
        Ok(Request { memory: Regions::list(memory), allocations: Some(allocations), file })
    }

    /// # Safety
    /// `file` is a handle; the memory is as [`weft_client::File::move_raw`] wants it.
    pub(crate) unsafe fn run(self, file: *const weft_file, direction: Direction) -> Outcome<ssize_t> {
        let Request { memory, allocations, file: regions } = self;
        // SAFETY: as the caller promises.
        let moved =
            unsafe { borrow(file)?.file.move_raw(direction, 0, &memory, allocations.as_deref(), &regions)? };
        Ok(moved as ssize_t)
    }

    /// # Safety
    /// As for [`run`](Request::run), until the operation has ended.
    pub(crate) unsafe fn start(self, file: *const weft_file, direction: Direction) -> Outcome<*mut weft_op> {
        let Request { memory, allocations, file: regions } = self;
        // SAFETY: as the caller promises.
        let pending =
            unsafe { borrow(file)?.file.start_raw(direction, 0, memory, allocations.as_deref(), regions) };
        Ok(weft_op::started(pending))
    }
}

/// Defines, for one thing to do with a [`Request`], the function for lists and the one for lists in known
/// allocations.
macro_rules! list_functions {
    ($($plain:ident, $allocated:ident: $action:ident($direction:ident) -> $returned:ty;)*) => { $(
        /// See weft.h.
        ///
        /// # Safety
        /// `file` is a handle; the arrays have as many values as said; the memory is valid for what is done
        /// with it until that has ended.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $plain(
            file: *const weft_file,
            memory_count: size_t,
            memory_offsets: *const *const c_void,
            memory_lengths: *const size_t,
            file_count: size_t,
            file_offsets: *const i64,
            file_lengths: *const i64,
        ) -> $returned {
            let memory = Cut { count: memory_count, offsets: memory_offsets, lengths: memory_lengths };
            let regions = Cut { count: file_count, offsets: file_offsets, lengths: file_lengths };
            // SAFETY: as the caller promises.
            call(stringify!($plain), || unsafe { Request::lists(memory, None, regions)?.$action(file, Direction::$direction) })
        }

        /// See weft.h.
        ///
        /// # Safety
        /// `file` is a handle; the arrays have as many values as said; the memory is valid for what is done
        /// with it until that has ended.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $allocated(
            file: *const weft_file,
            memory_count: size_t,
            memory_offsets: *const *const c_void,
            memory_lengths: *const size_t,
            allocation_count: size_t,
            allocation_offsets: *const *const c_void,
            allocation_lengths: *const size_t,
            file_count: size_t,
            file_offsets: *const i64,
            file_lengths: *const i64,
        ) -> $returned {
            let memory = Cut { count: memory_count, offsets: memory_offsets, lengths: memory_lengths };
            let allocations =
                Cut { count: allocation_count, offsets: allocation_offsets, lengths: allocation_lengths };
            let regions = Cut { count: file_count, offsets: file_offsets, lengths: file_lengths };
            // SAFETY: as the caller promises.
            call(stringify!($allocated), || unsafe {
                Request::lists(memory, Some(allocations), regions)?.$action(file, Direction::$direction)
            })
        }
    )* };
}

list_functions! {
    weft_readv_list, weft_readv_list_alloc: run(Read) -> ssize_t;
    weft_writev_list, weft_writev_list_alloc: run(Write) -> ssize_t;
    weft_start_readv_list, weft_start_readv_list_alloc: start(Read) -> *mut weft_op;
    weft_start_writev_list, weft_start_writev_list_alloc: start(Write) -> *mut weft_op;
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Region;

    #[test]
    fn regular_lists_become_patterns() {
        let list =
            |offsets: &[u64], bytes| offsets.iter().map(|at| Extent::new(*at, bytes)).collect::<Vec<_>>();
        let parts = |extents: &[Extent]| regions(extents.to_vec()).parts;
        for offsets in [&[0, 10, 20, 30][..], &[90, 50, 10], &[7, 7, 7], &[0, 4, 8]] {
            let extents = list(offsets, 4);
            assert!(matches!(parts(&extents)[..], [Region::Strided { .. }]), "{offsets:?}");
            let single = |extents: &[Extent]| -> Vec<u64> {
                extents.iter().flat_map(|extent| extent.offset..extent.end()).collect()
            };
            let extents_of = |parts: Vec<Region>| Regions { parts }.extents().collect::<Vec<_>>();
            assert_eq!(single(&extents_of(parts(&extents))), single(&extents), "{offsets:?}");
        }
        for offsets in [&[][..], &[5], &[5, 10], &[0, 10, 21]] {
            assert_eq!(parts(&list(offsets, 4)), [Region::List(list(offsets, 4))]);
        }
        let uneven = [list(&[0, 10], 4), list(&[20], 5)].concat();
        assert_eq!(parts(&uneven), [Region::List(uneven.clone())]);
    }
}
