//! Memory that a unit comes from or goes to: pieces of a buffer, or of a client's segment.
//!
//! A client's segment is touched in two ways only, for its pages may be gone at any time: by system calls, which say so, and by
//! copies within [`MemoryCursor::guarded`] (and those of mapped data files, which are guarded in `weft-storage`).

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use weft_storage::MemoryGone;

/// Pieces of memory in the order of the share. A client's may be changed by it at any time: they are copied, never looked at.
pub(super) type Memory = [(NonNull<u8>, usize)];

/// All of a buffer.
pub(super) fn memory_of(buffer: &mut [u8]) -> (NonNull<u8>, usize) {
    (NonNull::from(&mut *buffer).cast(), buffer.len())
}

/// A way through memory from front to back.
///
/// The memory has to stay where it is, readable or writable as the methods need it, while this is used.
pub(super) struct MemoryCursor<'a> {
    rest: &'a Memory,
    /// Of the first piece, already passed.
    passed: usize,
    /// Pieces of the last step.
    step: Vec<(NonNull<u8>, usize)>,
}

impl<'a> MemoryCursor<'a> {
    pub fn over(memory: &'a Memory) -> MemoryCursor<'a> {
        MemoryCursor { rest: memory, passed: 0, step: Vec::new() }
    }

    /// The same place, for another way from here.
    pub fn here(&self) -> MemoryCursor<'a> {
        MemoryCursor { rest: self.rest, passed: self.passed, step: Vec::new() }
    }

    /// The next `bytes` bytes.
    fn next(&mut self, mut bytes: usize) -> &Memory {
        self.step.clear();
        while bytes > 0
            && let Some((start, length)) = self.rest.first()
        {
            let part = bytes.min(length - self.passed);
            // SAFETY: `passed` is less than the piece's length.
            self.step.push((unsafe { start.add(self.passed) }, part));
            bytes -= part;
            self.passed += part;
            if self.passed == *length {
                self.rest = &self.rest[1..];
                self.passed = 0;
            }
        }
        &self.step
    }

    /// Runs `copy`, in which the memory from here on may be copied from and to.
    ///
    /// # Errors
    /// A page of it is gone.
    pub fn guarded(&mut self, copy: impl FnOnce(&mut Self)) -> Result<(), MemoryGone> {
        weft_storage::guarded(self.rest, || copy(self))
    }

    /// Copies into the next memory.
    pub fn put(&mut self, mut from: &[u8]) {
        for (start, bytes) in self.next(from.len()) {
            let (front, behind) = from.split_at(*bytes);
            // SAFETY: writable memory of this length, which no reference is to.
            unsafe { std::ptr::copy_nonoverlapping(front.as_ptr(), start.as_ptr(), *bytes) };
            from = behind;
        }
    }

    /// Copies out of the next memory.
    pub fn get(&mut self, mut to: &mut [u8]) {
        for (start, bytes) in self.next(to.len()) {
            let (front, behind) = to.split_at_mut(*bytes);
            // SAFETY: readable memory of this length.
            unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), front.as_mut_ptr(), *bytes) };
            to = behind;
        }
    }

    /// The next `bytes` bytes, for a system call to write to.
    pub fn slices_mut(&mut self, bytes: usize) -> Vec<IoSliceMut<'a>> {
        // SAFETY: writable memory that stays; what its owner does to it meanwhile is between it and itself, as only the kernel
        // touches the bytes.
        let slice = |(start, bytes): &(NonNull<u8>, usize)| unsafe {
            IoSliceMut::new(std::slice::from_raw_parts_mut(start.as_ptr(), *bytes))
        };
        self.next(bytes).iter().map(slice).collect()
    }

    /// The next `bytes` bytes, for a system call to read from.
    pub fn slices(&mut self, bytes: usize) -> Vec<IoSlice<'a>> {
        // SAFETY: as above, readable.
        let slice = |(start, bytes): &(NonNull<u8>, usize)| unsafe {
            IoSlice::new(std::slice::from_raw_parts(start.as_ptr(), *bytes))
        };
        self.next(bytes).iter().map(slice).collect()
    }
}

/// Fills what is behind the first `present` bytes with zeros.
pub(super) fn zero_rest(slices: &mut [IoSliceMut<'_>], mut present: usize) {
    for slice in slices {
        let there = present.min(slice.len());
        slice[there..].fill(0);
        present -= there;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_pieces_may_be_cut_differently() {
        let (mut first, mut second, mut third) = ([1u8, 2, 3], [4u8], [5u8, 6, 7, 8]);
        let memory = [memory_of(&mut first), memory_of(&mut second), memory_of(&mut third)];
        let mut cursor = MemoryCursor::over(&memory);
        let mut out = [0; 5];
        cursor.get(&mut out[..2]);
        cursor.get(&mut out[2..]);
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert_eq!(cursor.slices(10).iter().map(|slice| slice.to_vec()).collect::<Vec<_>>(), [[6, 7, 8]]);
        let mut cursor = MemoryCursor::over(&memory);
        cursor.put(&[9; 4]);
        cursor.put(&[8]);
        assert_eq!((first, second, third), ([9, 9, 9], [9], [8, 6, 7, 8]));
    }

    #[test]
    fn what_is_not_present_is_zeroed() {
        let (mut first, mut second) = ([1u8; 3], [1u8; 3]);
        zero_rest(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], 4);
        assert_eq!((first, second), ([1; 3], [1, 0, 0]));
    }
}
