use proptest::prelude::*;
use weft_layout::{ChainId, Layout, LayoutError};

use crate::generate::layout;

/// Deals the bytes of a file of `logical_size` bytes out, one by one: their slots and local offsets, and the
/// local sizes.
fn dealt(layout: &Layout, logical_size: u64) -> (Vec<(u16, u64)>, Vec<u64>) {
    let mut local_sizes = vec![0; layout.server_count().into()];
    let mut slot = 0;
    let mut places = Vec::new();
    for offset in 0..logical_size {
        if offset > 0 && offset % u64::from(layout.strip_bytes()) == 0 {
            slot = (slot + 1) % layout.server_count();
        }
        let local_size = &mut local_sizes[usize::from(slot)];
        places.push((slot, *local_size));
        *local_size += 1;
    }
    (places, local_sizes)
}

proptest! {
    #![proptest_config(weft_test_random::cases(64))]

    #[test]
    fn every_byte_is_where_dealing_puts_it(layout in layout(), logical_size in 0u64..100_000) {
        let (places, local_sizes) = dealt(&layout, logical_size);
        for (offset, &(slot, local_offset)) in (0..).zip(&places) {
            prop_assert_eq!(layout.local_offset(offset), (slot, local_offset));
            prop_assert_eq!(layout.slot_of(offset), slot);
            prop_assert_eq!(layout.logical_offset(slot, local_offset), offset);
        }
        for (slot, &local_size) in (0..).zip(&local_sizes) {
            prop_assert_eq!(layout.local_size(slot, logical_size), local_size);
            let last = places.iter().rposition(|&(s, _)| s == slot);
            prop_assert_eq!(layout.logical_size(slot, local_size), last.map_or(0, |last| last as u64 + 1));
        }
        let end = (0..layout.server_count()).map(|slot| layout.logical_size(slot, local_sizes[usize::from(slot)])).max();
        prop_assert_eq!(end, Some(logical_size));
    }

    #[test]
    fn maps_are_inverse_up_to_the_largest_offset(layout in layout(), offset in 0u64..1 << 63) {
        let (slot, local_offset) = layout.local_offset(offset);
        prop_assert_eq!(layout.logical_offset(slot, local_offset), offset);
        prop_assert_eq!(layout.local_size(slot, offset), local_offset);
        prop_assert_eq!(layout.logical_size(slot, local_offset + 1), offset + 1);
    }

    #[test]
    fn slots_and_chains_are_inverse(layout in layout()) {
        let slots: Vec<_> = (0..layout.ring_servers()).map(|chain| layout.slot_of_chain(ChainId(chain))).collect();
        prop_assert_eq!(slots.iter().flatten().count(), usize::from(layout.server_count()));
        for slot in 0..layout.server_count() {
            prop_assert_eq!(slots[usize::from(layout.chain(slot).0)], Some(slot));
        }
        prop_assert_eq!(layout.slot_of_chain(ChainId(layout.ring_servers())), None);
    }
}

#[test]
fn refuses_what_is_no_layout() {
    for strip_bytes in [0, 1, 4095, 4097, (1 << 30) + 4096] {
        assert_eq!(Layout::new(strip_bytes, 0, 1, 1), Err(LayoutError::StripBytes { strip_bytes }));
    }
    assert_eq!(
        Layout::new(4096, 0, 0, 3),
        Err(LayoutError::ServerCount { server_count: 0, ring_servers: 3 })
    );
    assert_eq!(
        Layout::new(4096, 0, 4, 3),
        Err(LayoutError::ServerCount { server_count: 4, ring_servers: 3 })
    );
    assert_eq!(
        Layout::new(4096, 3, 1, 3),
        Err(LayoutError::FirstServer { first_server: 3, ring_servers: 3 })
    );
}

#[test]
fn largest_layout_does_not_overflow() {
    let layout = Layout::new(1 << 30, u16::MAX - 1, u16::MAX, u16::MAX).unwrap();
    let (slot, local_offset) = layout.local_offset((1 << 63) - 1);
    assert_eq!(layout.logical_offset(slot, local_offset), (1 << 63) - 1);
    assert_eq!(layout.chain(u16::MAX - 1), ChainId(u16::MAX - 2));
    assert_eq!(layout.logical_offset(0, u64::MAX), u64::MAX);
    assert_eq!(layout.local_size(u16::MAX, u64::MAX), 0);
}
