//! The layout of a file as it is kept beside its data file, for recovery.
//!
//! ```text
//!   version 1 (1 byte)   strip bytes (4)   first server (2)   servers (2)   ring (2)      little-endian
//! ```

use weft_layout::Layout;

const NOTE_VERSION: u8 = 1;

/// The note of a layout.
pub(crate) fn note_of(layout: &Layout) -> Vec<u8> {
    let mut note = vec![NOTE_VERSION];
    note.extend_from_slice(&layout.strip_bytes().to_le_bytes());
    for number in [layout.first_server(), layout.server_count(), layout.ring_servers()] {
        note.extend_from_slice(&number.to_le_bytes());
    }
    note
}

/// `None`: no layout, or one of a version to come.
pub(crate) fn layout_in(note: &[u8]) -> Option<Layout> {
    let [NOTE_VERSION, numbers @ ..] = note else { return None };
    let (strip_bytes, rest) = numbers.split_first_chunk()?;
    let (first, rest) = rest.split_first_chunk()?;
    let (servers, rest) = rest.split_first_chunk()?;
    let ring: [u8; 2] = rest.try_into().ok()?;
    let [first, servers, ring] = [*first, *servers, ring].map(u16::from_le_bytes);
    Layout::new(u32::from_le_bytes(*strip_bytes), first, servers, ring).ok()
}
