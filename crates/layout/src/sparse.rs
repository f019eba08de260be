//! Data and holes of a striped file, computed from those of its data files; and ranges of two files on the
//! same servers.
//!
//! ```text
//!   slot 0      |  d  |  .  |  d  |          d: data   .: hole
//!   slot 1      |  .  |  d  |                shorter than its share: after its end there is a hole
//!
//!   file        |  d  |  .  |  .  |  d  |  d  |  .  |
//!   next data from strip 1 on: strip 3; next hole from strip 3 on: strip 5
//! ```
//!
//! Every byte of a file is in one data file. So the file's next data is the first of its data files' next
//! data, converted to file offsets; likewise with holes. One parallel request to each server answers both.

use crate::Layout;

/// The next data and hole in one data file, in its own offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSeek {
    /// The first data at or after the requested offset; `None` if there is none.
    pub data_offset: Option<u64>,
    /// The first hole at or after it: at the latest the end of the data file, or the requested offset if that
    /// is after the end.
    pub hole_offset: u64,
    /// Size of the data file.
    pub local_bytes: u64,
}

/// The size of a file, from the sizes of its data files by slot.
pub fn file_size(layout: &Layout, local_bytes: impl Iterator<Item = u64>) -> u64 {
    local_bytes.zip(0..).map(|(bytes, slot)| layout.logical_size(slot, bytes)).max().unwrap_or(0)
}

/// The first data of the file at or after `offset`, from the results of its slots; `None` if there is none,
/// as at the end of the file.
///
/// ```
/// use weft_layout::{Layout, SlotSeek, next_data, next_hole};
///
/// // Two slots with strips of 4096 bytes: strips 0 and 3 have data, and the file ends with strip 3.
/// let layout = Layout::new(4096, 0, 2, 2)?;
/// let from_4096 = [
///     SlotSeek { data_offset: None, hole_offset: 4096, local_bytes: 4096 },
///     SlotSeek { data_offset: Some(4096), hole_offset: 0, local_bytes: 8192 },
/// ];
/// assert_eq!(next_data(&layout, 4096, &from_4096), Some(3 * 4096));
/// assert_eq!(next_hole(&layout, 4096, &from_4096), Some(4096));
/// # Ok::<(), weft_layout::LayoutError>(())
/// ```
pub fn next_data(layout: &Layout, offset: u64, slots: &[SlotSeek]) -> Option<u64> {
    let found =
        slots.iter().zip(0..).filter_map(|(at, slot)| Some(layout.logical_offset(slot, at.data_offset?)));
    found.min().filter(|found| *found >= offset && *found < size(layout, slots))
}

/// The first byte of a hole at or after `offset`, from the results of the file's slots. The end of the file
/// is a hole. `None` from the end of the file on.
pub fn next_hole(layout: &Layout, offset: u64, slots: &[SlotSeek]) -> Option<u64> {
    let size = size(layout, slots);
    let found = slots.iter().zip(0..).map(|(at, slot)| layout.logical_offset(slot, at.hole_offset));
    (offset < size).then(|| found.min().unwrap_or(size).clamp(offset, size))
}

fn size(layout: &Layout, slots: &[SlotSeek]) -> u64 {
    file_size(layout, slots.iter().map(|slot| slot.local_bytes))
}

/// The shift of slots between ranges of two files whose corresponding bytes are on the same servers: slot `s`
/// of the one corresponds to slot `(s + shift) % server_count` of the other. `None` if they are not on the
/// same servers.
///
/// ```
/// use weft_layout::{Layout, slot_shift};
///
/// let (one, other) = (Layout::new(4096, 0, 3, 3)?, Layout::new(4096, 1, 3, 3)?);
/// assert_eq!(slot_shift(&one, 100, &one, 3 * 4096 + 100), Some(0));
/// assert_eq!(slot_shift(&one, 100, &other, 100), None);
/// // The other file begins one server later: two strips on is the same server.
/// assert_eq!(slot_shift(&one, 100, &other, 2 * 4096 + 100), Some(2));
/// # Ok::<(), weft_layout::LayoutError>(())
/// ```
pub fn slot_shift(from: &Layout, from_offset: u64, to: &Layout, to_offset: u64) -> Option<u16> {
    let (strip, count) = (u64::from(from.strip_bytes()), u64::from(from.server_count()));
    let alike = from.strip_bytes() == to.strip_bytes() && from.server_count() == to.server_count();
    if !alike || from_offset % strip != to_offset % strip {
        return None;
    }
    let (from_strip, to_strip) = (from_offset / strip % count, to_offset / strip % count);
    let shift = ((to_strip + count - from_strip) % count) as u16;
    let together = |slot: u16| {
        let other = (u64::from(slot) + u64::from(shift)) % count;
        from.chain(slot) == to.chain(other as u16)
    };
    (0..from.server_count()).all(together).then_some(shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    /// A file as pages: which of them have data, and its size.
    #[derive(Debug, Clone)]
    struct Map {
        layout: Layout,
        pages: Vec<bool>,
        size: u64,
        /// Whether data files end after their last data, and not where the file's size allows.
        cut: bool,
    }

    impl Map {
        fn has_data(&self, offset: u64) -> bool {
            offset < self.size && self.pages[(offset / PAGE) as usize]
        }

        /// What a server reports of its data file, computed byte by byte.
        fn slot(&self, slot: u16, offset: u64) -> SlotSeek {
            let full = self.layout.local_size(slot, self.size);
            let has_data = |local: u64| self.has_data(self.layout.logical_offset(slot, local));
            let data_end = (0..full).rev().find(|local| has_data(*local)).map_or(0, |local| local + 1);
            let holds_end = self.layout.logical_size(slot, full) == self.size;
            let local_bytes = if self.cut && !holds_end { data_end } else { full };
            let begin = self.layout.local_size(slot, offset);
            SlotSeek {
                data_offset: (begin..local_bytes).find(|local| has_data(*local)),
                hole_offset: (begin..local_bytes)
                    .find(|local| !has_data(*local))
                    .unwrap_or(local_bytes.max(begin)),
                local_bytes,
            }
        }
    }

    fn map() -> impl Strategy<Value = Map> {
        let layout = (1u32..4, 0u16..4, 1u16..5).prop_map(|(strip_pages, first, count)| {
            Layout::new(strip_pages * PAGE as u32, first, count, 4).unwrap()
        });
        (layout, proptest::collection::vec(any::<bool>(), 1..24), 1..PAGE, any::<bool>()).prop_map(
            |(layout, pages, last_page_bytes, cut)| {
                let size = (pages.len() as u64 - 1) * PAGE + last_page_bytes;
                Map { layout, pages, size, cut }
            },
        )
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(64))]

        #[test]
        fn data_and_holes_are_those_of_a_map_of_bytes(map in map(), offsets in proptest::collection::vec(0u64..26 * PAGE, 8)) {
            for offset in offsets {
                let slots: Vec<SlotSeek> =
                    (0..map.layout.server_count()).map(|slot| map.slot(slot, offset)).collect();
                let data = (offset..map.size).find(|at| map.has_data(*at));
                prop_assert_eq!(next_data(&map.layout, offset, &slots), data);
                let hole = (offset..map.size).find(|at| !map.has_data(*at)).unwrap_or(map.size);
                prop_assert_eq!(next_hole(&map.layout, offset, &slots), (offset < map.size).then_some(hole));
            }
        }

        #[test]
        fn what_shifts_lies_on_the_same_servers(
            (strip, count) in (1u32..3, 1u16..6),
            (first, other_first) in (0u16..6, 0u16..6),
            (from_offset, to_offset) in (0u64..100_000, 0u64..100_000),
            aligned in any::<bool>(),
        ) {
            let layout = |first| Layout::new(strip * PAGE as u32, first, count, 6).unwrap();
            let (from, to) = (layout(first), layout(other_first));
            let to_offset = if aligned { to_offset - to_offset % PAGE + from_offset % PAGE } else { to_offset };
            let place = |layout: &Layout, offset: u64| {
                let (slot, local) = layout.local_offset(offset);
                (slot, layout.chain(slot), local)
            };
            let all = (0..12 * PAGE).step_by(97);
            let shift = slot_shift(&from, from_offset, &to, to_offset);
            let same = |at: u64| place(&from, from_offset + at).1 == place(&to, to_offset + at).1;
            match shift {
                None => prop_assert!(!all.into_iter().all(same) || from_offset % PAGE != to_offset % PAGE || count == 1),
                Some(shift) => {
                    for at in all {
                        let (one, other) = (place(&from, from_offset + at), place(&to, to_offset + at));
                        prop_assert_eq!(one.1, other.1);
                        prop_assert_eq!((one.0 + shift) % count, other.0);
                        // The bytes of a slot stay in order and adjacent.
                        let begins = (from.local_size(one.0, from_offset), to.local_size(other.0, to_offset));
                        prop_assert_eq!(one.2 - begins.0, other.2 - begins.1);
                    }
                }
            }
        }
    }
}
