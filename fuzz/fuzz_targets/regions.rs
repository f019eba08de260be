//! Regions from outside, once accepted, can be walked and intersected with any layout without overflow.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_layout::{Layout, Regions, local_runs};
use weft_wire::Wire;

fuzz_target!(|input: (u8, &[u8])| {
    let (shape, bytes) = input;
    let Ok(regions) = Regions::from_bytes(bytes) else { return };
    let count = u16::from(shape % 5) + 1;
    let layout = Layout::new(4096 << (shape % 8), 0, count, count).expect("a good layout");
    for slot in 0..count {
        let mut share_offset = 0;
        for run in local_runs(&layout, slot, &regions).take(1000) {
            assert_eq!(run.share_offset, share_offset);
            share_offset += run.bytes;
        }
    }
});
