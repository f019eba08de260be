//! A window as the model sees it: its pieces, the groups that they fall into, and the ways to access them.

use weft_layout::Extent;

/// Page of the cache that the model reckons with, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Neighbouring pieces that one access covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// From the first piece's beginning to the last one's end.
    pub extent: Extent,
    /// How many pieces.
    pub pieces: u32,
    /// Their bytes; what is left of the extent is gaps.
    pub wanted_bytes: u64,
}

impl Group {
    /// Whether something lies between its pieces, so that it must be read before it is written.
    pub fn has_gaps(&self) -> bool {
        self.wanted_bytes < self.extent.bytes
    }
}

/// Groups pieces for sieving, in the order given: a group goes on while the next piece begins at its end or
/// at most `gap_bytes_max` behind it, and it stays within `group_bytes_max`. A piece before the group's end
/// (the list does not ascend, or overlaps) begins a new group; one longer than a group may be is one of its
/// own.
pub fn sieve_groups(
    pieces: impl IntoIterator<Item = Extent>,
    gap_bytes_max: u64,
    group_bytes_max: u64,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for piece in pieces {
        if let Some(group) = groups.last_mut() {
            let end = group.extent.offset + group.extent.bytes;
            let near = piece.offset.checked_sub(end).is_some_and(|gap| gap <= gap_bytes_max);
            let joined_bytes = (piece.offset + piece.bytes).wrapping_sub(group.extent.offset);
            if near && joined_bytes <= group_bytes_max && group.pieces < u32::MAX {
                group.extent.bytes = joined_bytes;
                group.pieces += 1;
                group.wanted_bytes += piece.bytes;
                continue;
            }
        }
        groups.push(Group { extent: piece, pieces: 1, wanted_bytes: piece.bytes });
    }
    groups
}

/// A way to access the pieces of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// One access per piece.
    Each,
    /// One access per group of pieces, and copies; for a write read, modify, write.
    Sieve,
    /// Copies from or to mapped pages of the data file.
    Mapped,
}

impl Method {
    /// All, the simplest first; the order of [`predictions`](super::Choice::predictions).
    pub const ALL: [Method; 3] = [Method::Each, Method::Sieve, Method::Mapped];
}

/// What the model has to know of a window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WindowShape {
    /// Whether it is written.
    pub write: bool,
    /// Whether what is written has to be durable when the request ends.
    pub sync: bool,
    /// Pieces, `N`.
    pub pieces: u64,
    /// Their bytes, `S_req`.
    pub wanted_bytes: u64,
    /// Groups of pieces that sieving would access, `G`.
    pub groups: u64,
    /// Bytes of all groups, gaps and all, `S_ds`.
    pub group_bytes: u64,
    /// Groups with gaps.
    pub gap_groups: u64,
    /// Their bytes, gaps and all.
    pub gap_group_bytes: u64,
    /// Pages that the pieces touch.
    pub pages: u64,
    /// How much of what the pieces touch is in the page cache, 0 to 1. What lies beyond the end of the data
    /// file needs no device either, and counts as cached.
    pub cached_fraction: f64,
    /// How much of the window lies beyond the end of the data file, 0 to 1: sieving does not read that.
    pub beyond_end_fraction: f64,
    /// Whether the pieces can be had from mapped pages.
    pub mappable: bool,
    /// Pages of the mapping that would have to be entered first.
    pub pages_to_enter: u64,
}

impl WindowShape {
    /// The shape of a window of `pieces` that fall into `groups`, in a data file of `local_bytes`, as if all
    /// of it were cached and nothing mapped: the caller sets what it knows of that.
    pub fn of(write: bool, pieces: &[Extent], groups: &[Group], local_bytes: u64) -> WindowShape {
        let mut shape = WindowShape {
            write,
            pieces: pieces.len() as u64,
            groups: groups.len() as u64,
            cached_fraction: 1.0,
            ..WindowShape::default()
        };
        let (mut next_page, mut beyond_bytes) = (0, 0);
        for piece in pieces {
            let end = piece.offset + piece.bytes;
            shape.wanted_bytes += piece.bytes;
            beyond_bytes += end.saturating_sub(local_bytes).min(piece.bytes);
            let (first_page, end_page) = (piece.offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            let already_counted = first_page + 1 == next_page;
            shape.pages += (end_page - first_page).saturating_sub(u64::from(already_counted));
            next_page = end_page;
        }
        for group in groups {
            shape.group_bytes += group.extent.bytes;
            if group.has_gaps() {
                shape.gap_groups += 1;
                shape.gap_group_bytes += group.extent.bytes;
            }
        }
        shape.beyond_end_fraction = beyond_bytes as f64 / shape.wanted_bytes.max(1) as f64;
        shape
    }

    /// Whether it counts as cached when costs are compared with predictions.
    pub fn is_cached(&self) -> bool {
        self.cached_fraction >= 0.5
    }
}
