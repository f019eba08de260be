//! Reads and writes that say what the memory is part of.
//!
//! A transport that must register memory before a server can reach it does so once for an array, if it knows
//! of it, instead of once for each of thousands of rows (NC 4.2.1). Only the program knows.

use std::sync::Arc;

use weft_layout::{Extent, Region, Regions};
use weft_transport::Allocation;

use crate::Result;
use crate::error::{Error, ErrorKind};
use crate::file::File;
use crate::window::Direction;

/// Checks that every piece of memory lies in the allocations (in one, or in some that touch); offsets of both
/// count from `base`.
///
/// # Errors
/// Names the first piece that does not.
fn check(base: u64, memory: &Regions, allocations: &[Extent]) -> Result<Arc<[Allocation]>> {
    let mut sorted = allocations.to_vec();
    sorted.sort_unstable_by_key(|allocation| allocation.offset);
    // They may overlap and touch: what they cover together, as far as it goes without a gap.
    let mut covered: Vec<Extent> = Vec::new();
    for allocation in sorted {
        match covered.last_mut() {
            Some(last) if allocation.offset <= last.end() => {
                last.bytes = last.bytes.max(allocation.end() - last.offset);
            }
            _ => covered.push(allocation),
        }
    }
    let is_inside = |piece: &Extent| {
        let begun = covered.partition_point(|extent| extent.offset <= piece.offset);
        begun > 0 && covered[begun - 1].end() >= piece.end()
    };
    for (number, part) in memory.parts.iter().enumerate() {
        let outside = match part {
            Region::List(extents) => {
                extents.iter().find(|piece| piece.bytes > 0 && !is_inside(piece)).copied()
            }
            pattern => {
                let pattern = Regions::from(pattern.clone());
                // One within one array needs no walk over its pieces.
                let inside = pattern.span().is_none_or(|span| is_inside(&span));
                if inside { None } else { pattern.extents().find(|piece| !is_inside(piece)) }
            }
        };
        if let Some(piece) = outside {
            let text = format!(
                "a piece of the memory ({} bytes at {:#x}, in part {number}) is in none of the {} allocations",
                piece.bytes,
                base.wrapping_add(piece.offset),
                allocations.len()
            );
            return Err(Error::new("allocations", ErrorKind::Invalid, text));
        }
    }
    let at = |extent: &Extent| Allocation { address: base.wrapping_add(extent.offset), bytes: extent.bytes };
    Ok(allocations.iter().map(at).collect())
}

impl File {
    /// As [`File::read_raw`], saying what the pieces of memory are parts of: each lies in `allocations` (in
    /// one, or in some that touch), whose offsets count from `base` too.
    ///
    /// # Errors
    /// Those of [`File::read_raw`], and if a piece is in none of them; nothing is moved then.
    ///
    /// # Safety
    /// The memory is writable and nobody else's until this returns.
    pub unsafe fn read_raw_in(
        &self,
        base: *mut u8,
        memory: &Regions,
        allocations: &[Extent],
        file: &Regions,
    ) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.move_raw(Direction::Read, base as u64, memory, Some(allocations), file) }
    }

    /// As [`File::write_raw`], saying what the pieces of memory are parts of.
    ///
    /// # Errors
    /// As for [`File::read_raw_in`].
    ///
    /// # Safety
    /// The memory is readable and does not change until this returns.
    pub unsafe fn write_raw_in(
        &self,
        base: *const u8,
        memory: &Regions,
        allocations: &[Extent],
        file: &Regions,
    ) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.move_raw(Direction::Write, base as u64, memory, Some(allocations), file) }
    }

    /// What the memory is part of, none where that is not known.
    pub(crate) fn checked(
        &self,
        base: u64,
        memory: &Regions,
        allocations: Option<&[Extent]>,
    ) -> Result<Arc<[Allocation]>> {
        let Some(allocations) = allocations else { return Ok(Arc::default()) };
        let valid = memory.validate(usize::MAX, weft_wire::limits::REGION_LEVELS_MAX).map_err(|error| {
            Error::new("allocations", ErrorKind::Invalid, format!("bad memory regions: {error}"))
        });
        let checked = valid.and_then(|()| check(base, memory, allocations));
        checked.map_err(|error| error.on(&self.open().name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Level;

    fn list(extents: &[(u64, u64)]) -> Vec<Extent> {
        extents.iter().map(|(offset, bytes)| Extent::new(*offset, *bytes)).collect()
    }

    #[test]
    fn every_piece_lies_in_an_allocation() {
        let inside = |memory: &[(u64, u64)], allocations: &[(u64, u64)]| {
            check(0, &Regions::list(list(memory)), &list(allocations)).is_ok()
        };
        assert!(inside(&[(100, 5), (10, 10)], &[(0, 50), (100, 5)]));
        assert!(inside(&[(70, 10)], &[(60, 5), (0, 100), (65, 1)]), "a later one is shorter");
        assert!(inside(&[(7, 0)], &[]), "nothing is anywhere");
        assert!(inside(&[(0, 10), (10, 10)], &[(0, 10), (10, 10)]), "arrays that happen to touch");
        assert!(!inside(&[(10, 10)], &[(0, 19)]));
        assert!(!inside(&[(10, 10)], &[(11, 100)]));
        assert!(!inside(&[(10, 10)], &[(0, 15), (16, 15)]));
        let rows = Regions::strided(10, 8, [Level { count: 1 << 40, stride_bytes: 100 }]);
        assert!(check(0, &rows, &list(&[(0, 101 << 40)])).is_ok(), "looked at as a whole");
    }

    #[test]
    fn the_piece_outside_is_named() {
        let memory = Regions::list(list(&[(0, 5), (90, 20)]));
        let error = check(0x1000, &memory, &list(&[(0, 100)])).unwrap_err().to_string();
        assert!(error.contains("(20 bytes at 0x105a, in part 0) is in none of the 1 allocations"), "{error}");
    }
}
