use proptest::collection::vec;
use proptest::prelude::*;
use weft_layout::{Datatype, Extent, OFFSET_LIMIT, Order, Partition, Region, View, ViewError};

use crate::generate::bytes_of;

/// A filetype whose bytes ascend: blocks with gaps, nested and repeated, with room at its end.
fn filetype() -> impl Strategy<Value = Datatype> {
    let bytes = (1u64..8).prop_map(|bytes| Datatype::bytes(bytes).unwrap());
    bytes.prop_recursive(3, 10, 3, |of| {
        let repeated = (of.clone(), 1u64..30, 1u64..3, 0i64..9).prop_map(|(of, count, block, gap)| {
            let stride = of.extent_bytes() * block as i64 + gap;
            Datatype::hvector(count, block, stride, &of).unwrap()
        });
        let fields = vec((0i64..9, of.clone()), 1..5).prop_map(|fields| {
            let mut end = 0;
            let place = |(gap, of): &(i64, Datatype)| {
                let at = end + gap - of.lower_bound_bytes();
                end += gap + of.extent_bytes();
                at
            };
            let places: Vec<i64> = fields.iter().map(place).collect();
            let placed: Vec<_> = places.iter().zip(&fields).map(|(at, field)| (*at, 1, &field.1)).collect();
            Datatype::structure(&placed).unwrap()
        });
        let tile = (vec((1u64..4, 0u64..2, 0u64..2), 1..3), any::<bool>(), of.clone()).prop_map(
            |(axes, is_c, of)| {
                let dims: Vec<u64> =
                    axes.iter().map(|(count, before, after)| count + before + after).collect();
                let starts: Vec<u64> = axes.iter().map(|axis| axis.1).collect();
                let counts: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
                let order = if is_c { Order::C } else { Order::Fortran };
                Datatype::subarray(&dims, &starts, &counts, order, &of).unwrap()
            },
        );
        let spaced = (of, -9i64..9, 0i64..20).prop_map(|(of, before, room)| {
            let (lowest, span_bytes) = of.true_extent();
            Datatype::resized(lowest + before, span_bytes as i64 + room, &of).unwrap()
        });
        prop_oneof![repeated, fields, tile, spaced]
    })
}

/// A view, its filetype, and where in the file its bytes are, up to `file_bytes`.
fn view_with_model(file_bytes: u64) -> impl Strategy<Value = (View, Datatype, Vec<u64>)> {
    (0u64..300, filetype()).prop_filter_map("a filetype that is no view", move |(displacement, filetype)| {
        let view = View::new(displacement, filetype.clone()).ok()?;
        let tiles = file_bytes / filetype.extent_bytes() as u64 + 2;
        let one = bytes_of(&filetype.regions(1 << 40, 1).ok()?);
        let at = |tile: u64| displacement + tile * filetype.extent_bytes() as u64;
        let model = (0..tiles).flat_map(|tile| one.iter().map(move |byte| byte + at(tile) - (1 << 40)));
        let model: Vec<u64> = model.take_while(|byte| *byte < file_bytes).collect();
        Some((view, filetype, model))
    })
}

proptest! {
    #![proptest_config(weft_test_random::cases(256))]

    #[test]
    fn a_view_is_its_filetype_again_and_again(
        (view, filetype, model) in view_with_model(6000), at in 0.0..1.0f64, length in 0.0..1.0f64,
    ) {
        let start = (model.len() as f64 * at) as usize;
        let bytes = ((model.len() - start) as f64 * length) as usize;
        let regions = view.regions(start as u64, bytes as u64).unwrap();
        prop_assert_eq!(bytes_of(&regions), &model[start..start + bytes]);
        prop_assert_eq!(regions.validate(usize::MAX, 16), Ok(()));
        let parts = 3 * windows_parts_max(&filetype) + 1;
        prop_assert!(regions.part_count() <= parts, "{} parts of {filetype:?}", regions.part_count());
        prop_assert_eq!(view.file_offset(start as u64), model.get(start).copied().or(view.file_offset(start as u64)));
    }

    #[test]
    fn size_is_the_bytes_below_the_end_of_file((view, _, model) in view_with_model(3000), file_bytes in 0u64..3000) {
        let below = model.iter().filter(|byte| **byte < file_bytes).count();
        prop_assert_eq!(view.view_size(file_bytes), below as u64);
    }

    #[test]
    fn a_view_for_reading_may_overlap_itself(
        blocks in vec((0i64..12, 1u64..9), 1..6), room in -30i64..20, displacement in 0u64..50, file_bytes in 0u64..400,
    ) {
        let byte = Datatype::bytes(1).unwrap();
        let mut at = 0;
        let places: Vec<(i64, u64)> = blocks.iter().map(|(step, bytes)| { at += step; (at, *bytes) }).collect();
        let plain = Datatype::hindexed(&places, &byte).unwrap();
        let filetype = Datatype::resized(0, (at + 9 + room).max(1), &plain).unwrap();
        let view = View::for_reading(displacement, filetype.clone()).unwrap();
        prop_assert_eq!(view.overlaps(), View::new(displacement, filetype.clone()).is_err());
        let one: Vec<u64> = places.iter().flat_map(|(at, bytes)| *at as u64..*at as u64 + bytes).collect();
        let stride = filetype.extent_bytes() as u64;
        let model: Vec<u64> = (0..500u64)
            .flat_map(|tile| one.iter().map(move |byte| displacement + tile * stride + byte))
            .take(600)
            .collect();
        let (start, bytes) = (model.len() / 3, model.len() / 2);
        let regions = view.regions(start as u64, bytes as u64).unwrap();
        prop_assert_eq!(bytes_of(&regions), &model[start..start + bytes]);
        let below = model.iter().take_while(|byte| **byte < file_bytes).count();
        prop_assert!(below == model.len() || view.view_size(file_bytes) == below as u64);
    }

    #[test]
    fn a_partition_is_a_view(
        offset in 0u64..100, group_bytes in 1u64..20, gap in 0u64..20, position in 0u64..500, bytes in 0u64..500,
    ) {
        let partition = Partition::new(offset, group_bytes, group_bytes + gap).unwrap();
        let view = View::from(partition);
        prop_assert_eq!(view.regions(position, bytes).unwrap(), partition.regions(position, bytes).unwrap());
        prop_assert_eq!(view.file_offset(position), partition.file_offset(position));
        prop_assert_eq!(view.view_size(bytes), partition.view_size(bytes));
        let group = Datatype::bytes(group_bytes).unwrap();
        let filetype = Datatype::resized(0, (group_bytes + gap) as i64, &group).unwrap();
        prop_assert_eq!(View::new(offset, filetype).unwrap(), view);
    }
}

/// The most parts a window of one instance may have.
fn windows_parts_max(filetype: &Datatype) -> usize {
    fn of_part(part: &Region) -> usize {
        match part {
            Region::Strided { levels, .. } => 2 * levels.len() + 3,
            Region::Repeat { body, .. } => 3 * body.parts.iter().map(of_part).sum::<usize>() + 2,
            _ => 1,
        }
    }
    filetype.regions(1 << 40, 1).unwrap().parts.iter().map(of_part).sum()
}

#[test]
fn any_length_is_a_handful_of_parts() {
    let element = Datatype::bytes(24).unwrap();
    let tile = Datatype::subarray(&[1536, 2048], &[768, 1024], &[768, 1024], Order::C, &element).unwrap();
    let view = View::new(4096, tile).unwrap();
    assert_eq!(view.regions(0, 768 * 1024 * 24).unwrap().parts.len(), 1);
    assert!(view.regions(5, 1 << 50).unwrap().parts.len() <= 5);
    let fields = Datatype::indexed(&[(0, 1), (2, 1), (7, 3)], &element).unwrap();
    let view = View::new(0, Datatype::resized(0, 4096, &fields).unwrap()).unwrap();
    assert_eq!(view.regions(5, 1 << 50).unwrap().part_count(), 4);
}

#[test]
fn refuses_what_is_no_view() {
    let int = Datatype::bytes(4).unwrap();
    let resized = |lower, extent| Datatype::resized(lower, extent, &int).unwrap();
    assert_eq!(View::new(0, Datatype::bytes(0).unwrap()), Err(ViewError::Empty));
    let before = Datatype::hindexed(&[(-4, 1)], &int).unwrap();
    assert_eq!(View::new(3, before.clone()), Err(ViewError::Displaced { displacement: 3, lowest: -4 }));
    assert!(View::new(4, before).is_ok());
    for back in [
        Datatype::hindexed(&[(8, 1), (0, 1)], &int),
        Datatype::hindexed(&[(0, 1), (3, 1)], &int),
        Datatype::hvector(4, 1, -8, &int),
        Datatype::hvector(4, 1, 3, &int),
        Datatype::hvector(100, 1, 12, &Datatype::hindexed(&[(0, 1), (6, 2)], &int).unwrap()),
        Datatype::hvector(3, 1, 20, &Datatype::hvector(4, 1, 8, &int).unwrap()),
    ] {
        let roomy = Datatype::resized(0, 1 << 20, &back.unwrap()).unwrap();
        assert_eq!(View::new(1 << 20, roomy), Err(ViewError::NotAscending));
    }
    let falling = Datatype::hindexed(&[(8, 1), (0, 1)], &int).unwrap();
    assert_eq!(View::for_reading(0, falling), Err(ViewError::Descending));
    let standing = ViewError::Overlapping { span_bytes: 4, extent_bytes: 0 };
    assert_eq!(View::for_reading(0, resized(0, 0)), Err(standing));
    assert!(View::for_reading(0, resized(0, 3)).unwrap().regions(1 << 61, 1).is_ok());
    assert!(View::for_reading(0, resized(0, 3)).unwrap().regions(u64::MAX - 8, 2).is_err());
    let overlapping = ViewError::Overlapping { span_bytes: 4, extent_bytes: 3 };
    assert_eq!(View::new(0, resized(0, 3)), Err(overlapping));
    assert!(View::new(0, resized(-7, 4)).is_ok());
}

#[test]
fn refuses_what_is_past_the_largest_offset() {
    let filetype = Datatype::resized(0, 20, &Datatype::bytes(10).unwrap()).unwrap();
    let view = View::new(OFFSET_LIMIT - 25, filetype).unwrap();
    assert_eq!(view.regions(0, 15).map(|regions| regions.total_bytes()), Ok(15));
    assert_eq!(view.regions(0, 16), Err(ViewError::OutOfRange { position: 0, bytes: 16 }));
    assert_eq!(view.regions(u64::MAX, 2), Err(ViewError::OutOfRange { position: u64::MAX, bytes: 2 }));
    assert_eq!(view.regions(u64::MAX, 0).map(|regions| regions.is_empty()), Ok(true));
    assert_eq!(view.file_offset(15), None);
}

/// The last byte of a long list is found without walking all tiles before it.
#[test]
fn far_positions_are_cheap() {
    let blocks: Vec<(i64, u64)> = (0..5).map(|at| (at * at, 1)).collect();
    let record = Datatype::resized(0, 64, &Datatype::indexed(&blocks, &Datatype::bytes(2).unwrap()).unwrap());
    let view = View::new(0, record.unwrap()).unwrap();
    let position = 10 * (1 << 50) + 9;
    assert_eq!(view.file_offset(position), Some((1 << 56) + 33));
    assert_eq!(view.view_size((1 << 56) + 33), position);
    let regions = view.regions(position, 2).unwrap();
    let expected = [Extent::new((1 << 56) + 33, 1), Extent::new((1 << 56) + 64, 1)];
    assert_eq!(regions.extents().collect::<Vec<_>>(), expected);
}
