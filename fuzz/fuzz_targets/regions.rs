//! Regions from outside, once accepted, can be walked, cut and intersected with any layout without overflow, and every
//! way of walking agrees with the others.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_layout::{Layout, Regions, local_runs, local_runs_from, memory_runs, pieces};
use weft_wire::Wire;

const STEPS_MAX: usize = 1000;

fuzz_target!(|input: (u8, &[u8])| {
    let (shape, bytes) = input;
    let Ok(regions) = Regions::from_bytes(bytes) else { return };
    assert_eq!(regions.to_bytes(), bytes, "there is one encoding");
    let total_bytes = regions.total_bytes();
    let middle = total_bytes / 2;
    let window = regions.window(middle, total_bytes);
    assert_eq!(window.total_bytes(), total_bytes - middle);
    let (mut whole, mut cut) = (regions.extents_from(middle), window.extents());
    for _ in 0..STEPS_MAX {
        assert_eq!(whole.next_at_most(64), cut.next_at_most(64));
    }
    let count = u16::from(shape % 5) + 1;
    let layout = Layout::new(4096 << (shape % 8), 0, count, count).expect("a good layout");
    for slot in 0..count {
        walk_share(&layout, slot, &regions);
    }
});

fn walk_share(layout: &Layout, slot: u16, regions: &Regions) {
    // Walking takes as long as there are pieces; a server refuses what has too many.
    if regions.piece_count() > 1 << 16 {
        return;
    }
    let mut share_offset = 0;
    for (number, run) in local_runs(layout, slot, regions).take(STEPS_MAX).enumerate() {
        assert_eq!(run.share_offset, share_offset);
        if number % 100 == 99 {
            assert_eq!(local_runs_from(layout, slot, regions, share_offset).next(), Some(run));
        }
        share_offset += run.bytes;
    }
    let memory = Regions::contiguous(0, regions.total_bytes());
    let mut places = memory_runs(layout, slot, regions, &memory).expect("sides of one size");
    for piece in pieces(layout, slot, regions).take(STEPS_MAX) {
        let place = places.next_at_most(piece.bytes).expect("memory for every piece");
        assert_eq!((place.offset, place.bytes), (piece.stream_offset, piece.bytes));
    }
}
