use proptest::prelude::*;
use weft_layout::{OFFSET_LIMIT, Partition, PartitionError, Regions};

use crate::generate::bytes_of;

fn partition() -> impl Strategy<Value = Partition> {
    (0u64..2000, 1u64..100, prop_oneof![Just(0u64), 0u64..200]).prop_map(|(offset, group_bytes, gap)| {
        Partition::new(offset, group_bytes, group_bytes + gap).unwrap()
    })
}

/// The file offsets of the first bytes of the view, found by looking at every byte of a file.
fn view_of(partition: &Partition, file_bytes: u64) -> Vec<u64> {
    let is_in_view =
        |&offset: &u64| (offset - partition.offset()) % partition.stride_bytes() < partition.group_bytes();
    (partition.offset()..file_bytes).filter(is_in_view).collect()
}

proptest! {
    #![proptest_config(weft_test_random::cases(48))]

    #[test]
    fn regions_are_the_bytes_of_the_view(partition in partition(), position in 0u64..3000, bytes in 0u64..3000) {
        let view = view_of(&partition, 2000 + 6000 * 200);
        let (start, end) = (position as usize, (position + bytes) as usize);
        let regions = partition.regions(position, bytes).unwrap();
        prop_assert!(regions.parts.len() <= 3);
        prop_assert_eq!(regions.validate(3, 1), Ok(()));
        prop_assert_eq!(bytes_of(&regions), &view[start..end]);
        prop_assert_eq!(partition.file_offset(position), Some(view[start]));
    }

    #[test]
    fn size_is_the_bytes_below_the_end_of_file(partition in partition(), file_bytes in 0u64..10_000) {
        prop_assert_eq!(partition.view_size(file_bytes), view_of(&partition, file_bytes).len() as u64);
    }
}

#[test]
fn what_is_contiguous_is_one_extent() {
    let all = Partition::new(100, 10, 10).unwrap();
    assert_eq!(all.regions(5, 1000), Ok(Regions::contiguous(105, 1000)));
    let groups = Partition::new(100, 10, 40).unwrap();
    assert_eq!(groups.regions(0, 10), Ok(Regions::contiguous(100, 10)));
}

#[test]
fn refuses_what_is_no_partition() {
    for (offset, group_bytes, stride_bytes) in
        [(0, 0, 4), (0, 5, 4), (OFFSET_LIMIT, 1, 1), (0, 1, OFFSET_LIMIT)]
    {
        let refusal = Partition::new(offset, group_bytes, stride_bytes).unwrap_err();
        assert_eq!(refusal, PartitionError::Parameters { offset, group_bytes, stride_bytes });
    }
}

#[test]
fn refuses_what_is_past_the_largest_offset() {
    let view = Partition::new(OFFSET_LIMIT - 25, 10, 20).unwrap();
    assert_eq!(view.regions(0, 15).map(|regions| regions.total_bytes()), Ok(15));
    assert_eq!(view.regions(0, 16), Err(PartitionError::OutOfRange { position: 0, bytes: 16 }));
    assert_eq!(view.regions(u64::MAX, 2), Err(PartitionError::OutOfRange { position: u64::MAX, bytes: 2 }));
    assert_eq!(view.regions(u64::MAX, 0).map(|regions| regions.is_empty()), Ok(true));
}
