//! The memory of a request: regions, or the program's own list of pieces, which is used as it is.

use std::io::{IoSlice, IoSliceMut};

use libc::iovec;
use weft_layout::{Extent, Extents, OFFSET_LIMIT, Regions};
use weft_wire::limits::REGION_LEVELS_MAX;

use crate::error::{Error, ErrorKind};

/// Where the bytes of a request are in memory.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// At these offsets from a base.
    Regions(&'a Regions),
    /// At these addresses.
    Pieces(&'a [iovec]),
}

/// A position in it.
pub(crate) enum MemoryWalk<'a> {
    Regions(Extents<'a>),
    Pieces {
        /// What is left of the current one.
        current: Extent,
        next: std::slice::Iter<'a, iovec>,
    },
}

pub(super) fn invalid(text: String) -> Error {
    Error::new("cut", ErrorKind::Invalid, text)
}

/// Checks one side of a request.
pub(super) fn check_side(side: &str, regions: &Regions) -> Result<(), Error> {
    let valid = regions.validate(usize::MAX, REGION_LEVELS_MAX);
    valid.map_err(|error| invalid(format!("bad {side} regions: {error}")))
}

impl<'a> Memory<'a> {
    /// How many bytes it has, if it makes sense.
    pub(super) fn check(self) -> Result<u64, Error> {
        match self {
            Memory::Regions(regions) => check_side("memory", regions).map(|()| regions.total_bytes()),
            Memory::Pieces(pieces) => {
                let is_outside = |piece: &iovec| piece.iov_len > 0 && extent_of(piece).end() > OFFSET_LIMIT;
                let bytes = bytes_of(pieces);
                match pieces.iter().position(is_outside) {
                    Some(at) => Err(invalid(format!("piece {at} of the memory reaches beyond 2^63"))),
                    None if bytes >= OFFSET_LIMIT => {
                        Err(invalid("the pieces of memory are of 2^63 bytes or more".to_string()))
                    }
                    None => Ok(bytes),
                }
            }
        }
    }

    pub(crate) fn walk(self) -> MemoryWalk<'a> {
        match self {
            Memory::Regions(regions) => MemoryWalk::Regions(regions.extents()),
            Memory::Pieces(pieces) => MemoryWalk::Pieces { current: Extent::new(0, 0), next: pieces.iter() },
        }
    }
}

impl MemoryWalk<'_> {
    /// The next piece, or its first `bytes_max` bytes; `None` at the end.
    pub(crate) fn next_at_most(&mut self, bytes_max: u64) -> Option<Extent> {
        let (current, next) = match self {
            MemoryWalk::Regions(extents) => return extents.next_at_most(bytes_max),
            MemoryWalk::Pieces { current, next } => (current, next),
        };
        if current.bytes == 0 {
            *current = extent_of(next.find(|piece| piece.iov_len > 0)?);
        }
        let taken = Extent::new(current.offset, current.bytes.min(bytes_max));
        *current = Extent::new(taken.end(), current.bytes - taken.bytes);
        Some(taken)
    }
}

/// A piece by its address.
pub(crate) fn extent_of(piece: &iovec) -> Extent {
    Extent::new(piece.iov_base as u64, piece.iov_len as u64)
}

/// Bytes of all pieces. Saturates.
pub(crate) fn bytes_of(pieces: &[iovec]) -> u64 {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.iov_len as u64))
}

/// Buffers to write from as the system has them.
pub(crate) fn pieces_of<'a>(buffers: &'a [IoSlice<'_>]) -> &'a [iovec] {
    // SAFETY: the standard library promises the same representation.
    unsafe { std::slice::from_raw_parts(buffers.as_ptr().cast(), buffers.len()) }
}

/// Buffers to read into as the system has them.
pub(crate) fn pieces_to_fill<'a>(buffers: &'a mut [IoSliceMut<'_>]) -> &'a [iovec] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(buffers.as_ptr().cast(), buffers.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64, bytes: usize) -> iovec {
        iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes }
    }

    #[test]
    fn a_list_is_walked_as_the_regions_that_say_the_same() {
        let pieces = [piece(100, 5), piece(0, 0), piece(200, 7), piece(300, 1)];
        let list = Regions::list(pieces.iter().map(extent_of).collect::<Vec<_>>());
        for bytes_max in [1, 3, 100] {
            let all = |memory: Memory<'_>| {
                let mut walk = memory.walk();
                std::iter::from_fn(move || walk.next_at_most(bytes_max)).collect::<Vec<_>>()
            };
            assert_eq!(all(Memory::Pieces(&pieces)), all(Memory::Regions(&list)), "{bytes_max}");
        }
    }

    #[test]
    fn pieces_that_no_memory_has_are_refused() {
        let error = Memory::Pieces(&[piece(0, 9), piece(u64::MAX - 4, 3)]).check().unwrap_err();
        assert!(error.to_string().contains("piece 1 of the memory"), "{error}");
        assert!(Memory::Pieces(&[piece(1, 1 << 62), piece(1, 1 << 62)]).check().is_err());
        assert_eq!(Memory::Pieces(&[piece(u64::MAX, 0), piece(1, 7)]).check().unwrap(), 7);
    }
}
