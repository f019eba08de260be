//! Data files against a plain map of byte vectors, over all disks, with reopening.

mod common;

use std::collections::HashMap;
use std::io::IoSlice;

use common::{on_disk, pattern, plain_disk, plain_reactor, ring_disk, ring_reactor};
use proptest::prelude::*;
use weft_reactor::Reactor;
use weft_storage::{DataFiles, Disk, Extent, FaultDisk, FaultPlan, MemDisk};

#[derive(Debug, Clone)]
enum Step {
    Write { ino: u64, offset: u64, bytes: usize, seed: u64 },
    Read { ino: u64, offset: u64, bytes: usize },
    Pieces { ino: u64, pieces: Vec<(u64, u64)> },
    Truncate { ino: u64, bytes: u64 },
    Punch { ino: u64, offset: u64, bytes: u64 },
    Allocate { ino: u64, offset: u64, bytes: u64, keep_size: bool },
    Remove { ino: u64 },
    Sync { ino: u64 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let ino = 1u64..6;
    let offset = prop_oneof![0u64..100, 0u64..20_000];
    let bytes = prop_oneof![0u64..100, 0u64..20_000];
    prop_oneof![
        4 => (ino.clone(), offset.clone(), bytes.clone(), any::<u64>())
            .prop_map(|(ino, offset, bytes, seed)| Step::Write { ino, offset, bytes: bytes as usize, seed }),
        3 => (ino.clone(), offset.clone(), bytes.clone())
            .prop_map(|(ino, offset, bytes)| Step::Read { ino, offset, bytes: bytes as usize }),
        2 => (ino.clone(), prop::collection::vec((offset.clone(), 0u64..3000), 0..12))
            .prop_map(|(ino, pieces)| Step::Pieces { ino, pieces }),
        2 => (ino.clone(), offset.clone()).prop_map(|(ino, bytes)| Step::Truncate { ino, bytes }),
        1 => (ino.clone(), offset.clone(), bytes.clone())
            .prop_map(|(ino, offset, bytes)| Step::Punch { ino, offset, bytes }),
        1 => (ino.clone(), offset, bytes, any::<bool>())
            .prop_map(|(ino, offset, bytes, keep_size)| Step::Allocate { ino, offset, bytes, keep_size }),
        1 => ino.clone().prop_map(|ino| Step::Remove { ino }),
        1 => ino.prop_map(|ino| Step::Sync { ino }),
        1 => Just(Step::Reopen),
    ]
}

type Model = HashMap<u64, Vec<u8>>;

fn grow(file: &mut Vec<u8>, end: u64) {
    if file.len() < end as usize {
        file.resize(end as usize, 0);
    }
}

async fn apply<D: Disk>(files: &DataFiles<D>, model: &mut Model, step: &Step) {
    match step.clone() {
        Step::Write { ino, offset, bytes, seed } => {
            let data = pattern(seed, bytes);
            let (left, right) = data.split_at(bytes / 3);
            let mut from = [IoSlice::new(left), IoSlice::new(right)];
            files.write_vectored(ino, offset, &mut from).await.unwrap();
            if bytes > 0 {
                let file = model.entry(ino).or_default();
                grow(file, offset + bytes as u64);
                file[offset as usize..][..bytes].copy_from_slice(&data);
            }
        }
        Step::Read { ino, offset, bytes } => {
            let mut to = vec![0xee; bytes];
            let count =
                files.read_vectored(ino, offset, &mut [std::io::IoSliceMut::new(&mut to)]).await.unwrap();
            let file = model.get(&ino).map(Vec::as_slice).unwrap_or_default();
            let expected = file.get(offset as usize..).unwrap_or_default();
            assert_eq!(count, expected.len().min(bytes));
            assert!(to[..count] == expected[..count]);
        }
        Step::Pieces { ino, pieces } => {
            let file = model.get(&ino).map(Vec::as_slice).unwrap_or_default();
            let mut expected = Vec::new();
            for (offset, bytes) in &pieces {
                let part = file.get(*offset as usize..).unwrap_or_default();
                let part = &part[..part.len().min(*bytes as usize)];
                expected.extend(part);
                expected.resize(expected.len() + *bytes as usize - part.len(), 0);
            }
            let extents: Vec<Extent> =
                pieces.iter().map(|(offset, bytes)| Extent { offset: *offset, bytes: *bytes }).collect();
            let mut to = vec![0xee; expected.len()];
            files.read_pieces(ino, &extents, &mut to).await.unwrap();
            assert!(to == expected);
        }
        Step::Truncate { ino, bytes } => {
            files.truncate(ino, bytes).unwrap();
            if bytes > 0 || model.contains_key(&ino) {
                model.entry(ino).or_default().resize(bytes as usize, 0);
            }
        }
        Step::Punch { ino, offset, bytes } => {
            files.punch(ino, offset, bytes).unwrap();
            if let Some(file) = model.get_mut(&ino) {
                let size = file.len() as u64;
                file[offset.min(size) as usize..(offset + bytes).min(size) as usize].fill(0);
            }
        }
        Step::Allocate { ino, offset, bytes, keep_size } => {
            files.allocate(ino, offset, bytes, keep_size).unwrap();
            if bytes > 0 {
                let file = model.entry(ino).or_default();
                grow(file, if keep_size { 0 } else { offset + bytes });
            }
        }
        Step::Remove { ino } => {
            assert_eq!(files.remove(ino).unwrap(), model.remove(&ino).is_some());
        }
        Step::Sync { ino } => files.sync(ino).await.unwrap(),
        Step::Reopen => {}
    }
}

fn check<D: Disk>(files: &DataFiles<D>, model: &Model) {
    for ino in 1..6 {
        assert_eq!(files.size(ino).unwrap(), model.get(&ino).map_or(0, |file| file.len() as u64));
    }
    let mut listed = Vec::new();
    let mut cursor = None;
    loop {
        let (page, next) = files.list(cursor, 2).unwrap();
        listed.extend(page.iter().map(|object| (object.ino, object.bytes)));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    listed.sort_unstable();
    let mut expected: Vec<_> = model.iter().map(|(ino, file)| (*ino, file.len() as u64)).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert!(files.stats().open_files <= 3);
}

fn run<D: Disk>(reactor: &Reactor, steps: &[Step], mut open: impl FnMut() -> D) {
    let mut model = Model::new();
    // Fewer handles than files, so that handles are put out.
    let mut files = DataFiles::with_bounds(open(), 3, 2);
    for step in steps {
        if matches!(step, Step::Reopen) {
            drop(files);
            files = DataFiles::with_bounds(open(), 3, 2);
        }
        reactor.run(apply(&files, &mut model, step));
        check(&files, &model);
    }
}

proptest! {
    #![proptest_config(weft_test_random::cases(60))]

    #[test]
    fn data_files_are_like_byte_vectors(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let (plain, ring) = (plain_reactor(), ring_reactor());
        let directory = on_disk();
        run(&plain, &steps, || plain_disk(&directory));
        let directory = on_disk();
        run(&ring, &steps, || ring_disk(&directory));
        let memory = MemDisk::new(1 << 30);
        run(&plain, &steps, || memory.clone());
        let memory = MemDisk::new(1 << 30);
        let plan = FaultPlan { seed, short_per_mille: 500, ..FaultPlan::default() };
        run(&plain, &steps, || FaultDisk::new(memory.clone(), plan));
    }
}
