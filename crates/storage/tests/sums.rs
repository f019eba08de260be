//! Checksums of data files: what was written is found again whatever happens, and what was not written is never read.

mod common;

use common::{IDENTITY, on_disk, pattern, plain_disk, plain_reactor, ring_disk, ring_reactor};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use weft_layout::{Extent, Layout};
use weft_storage::sums::format::{BLOCK_BYTES, REGION_BYTES};
use weft_storage::sums::{DamageKind, Scrubbed, SettleWhen};
use weft_storage::{DataFiles, Disk, DiskEngine, LocalDisk, StorageError};

const NOW: SettleWhen = SettleWhen::NOW;
const INO: u64 = 0x12a;

fn path_of(directory: &TempDir, kind: &str, ino: u64) -> PathBuf {
    let place = ((ino >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
    directory.path().join(kind).join(format!("{:02x}/{:02x}/{ino:016x}", place >> 8, place & 0xff))
}

fn flip(path: &Path, bit: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).unwrap();
}

async fn settle<D: Disk>(files: &DataFiles<D>) {
    files.settle(NOW, async |_| true).await.unwrap();
    assert_eq!(files.unsettled_files(), 0);
}

async fn scrub<D: Disk>(files: &DataFiles<D>) -> Scrubbed {
    files.scrub(INO, false, &mut async |_| true).await.unwrap()
}

async fn read<D: Disk>(files: &DataFiles<D>, offset: u64, bytes: usize) -> Result<Vec<u8>, StorageError> {
    let mut to = vec![0; bytes];
    files.read_pieces(INO, &[Extent::new(offset, bytes as u64)], &mut to).await?;
    Ok(to)
}

fn run(future: impl Future<Output = ()>) {
    plain_reactor().run(future);
}

#[test]
fn a_data_file_that_has_sums_or_a_mark_and_is_gone_is_lost_until_it_is_given_up() {
    let layout = Layout::new(65536, 0, 1, 1).unwrap();
    let give_up: [fn(&DataFiles<LocalDisk>); 3] = [
        |files| files.truncate(INO, 0).unwrap(),
        |files| files.vouch_empty(INO).unwrap(),
        |files| assert!(!files.remove(INO).unwrap()),
    ];
    for (give_up, gone) in give_up
        .into_iter()
        .flat_map(|give_up| [&["data"][..], &["data", "held"], &["data", "sums"]].map(|gone| (give_up, gone)))
    {
        let directory = on_disk();
        run(async {
            let files = DataFiles::new(plain_disk(&directory));
            files.create(INO).unwrap().write(0, &pattern(3, 100_000)).await.unwrap();
            settle(&files).await;
        });
        for kind in gone {
            let number = if *kind == "held" { INO / 256 } else { INO };
            std::fs::remove_file(path_of(&directory, kind, number)).unwrap();
        }
        run(async {
            let files = DataFiles::new(plain_disk(&directory));
            let is_lost =
                |result: Result<(), StorageError>| matches!(result, Err(StorageError::Missing { ino: INO }));
            assert!(is_lost(read(&files, 0, 10).await.map(drop)), "{gone:?}");
            assert!(is_lost(files.size(INO).map(drop)) && files.has_lost(INO).unwrap());
            assert!(is_lost(files.truncate(INO, 50_001)));
            assert!(is_lost(files.punch(INO, 0, 100)));
            assert!(is_lost(files.allocate(INO, 10_000, 30_000, false)));
            assert!(is_lost(files.create(INO).map(drop)) && is_lost(files.create_in(INO, &layout).map(drop)));
            let told: Vec<_> = files.take_damage().into_iter().map(|damage| damage.kind).collect();
            assert_eq!(told, [DamageKind::Missing], "it is told once");
            let with_sums = files.missing_with_sums(None, 100).unwrap().0;
            let with_marks = files.missing_with_marks(None, 100).unwrap().0;
            assert_eq!(
                [with_sums, with_marks].map(|inos| inos == [INO]),
                [!gone.contains(&"sums"), !gone.contains(&"held")]
            );
            give_up(&files);
            assert!(!files.has_lost(INO).unwrap());
            files.truncate(INO, 60_000).unwrap();
            assert_eq!(read(&files, 0, 60_000).await.unwrap(), vec![0; 60_000]);
            files.create(INO).unwrap().write(4_000, &pattern(4, 100)).await.unwrap();
            assert_eq!(read(&files, 4_000, 100).await.unwrap(), pattern(4, 100));
            settle(&files).await;
            let found = scrub(&files).await;
            assert!(found.wrong.is_empty() && found.damage.is_empty(), "{found:?}");
        });
    }
}

#[test]
fn what_was_synced_in_any_way_must_be_there_without_sums() {
    let directory = on_disk();
    let [by_itself, with_all, never] = [INO, INO + 1, 0x4_0000];
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        files.sync_all().await.unwrap();
        files.create(by_itself).unwrap().write(0, &[1; 100]).await.unwrap();
        files.sync(by_itself).await.unwrap();
        // As many as are synced as a whole.
        for ino in (0..300).map(|number| with_all + number * 256) {
            files.create(ino).unwrap().write(0, &[1; 100]).await.unwrap();
        }
        files.sync_all().await.unwrap();
        files.create(never).unwrap().write(0, &[1; 100]).await.unwrap();
        drop(files);
        for ino in [by_itself, with_all, with_all + 299 * 256, never] {
            std::fs::remove_file(path_of(&directory, "data", ino)).unwrap();
        }
        let files = DataFiles::new(plain_disk(&directory));
        let lost = [by_itself, with_all, with_all + 299 * 256, never].map(|ino| files.has_lost(ino).unwrap());
        assert_eq!(lost, [true, true, true, false]);
        files.remove_all(&[by_itself, with_all]).await.unwrap();
        assert!(!files.has_lost(by_itself).unwrap() && !files.has_lost(with_all).unwrap());
    });
}

#[test]
fn a_synced_file_is_settled_before_its_time_until_it_changes_again() {
    let never = std::time::Duration::from_secs(1 << 30);
    let synced_ones =
        SettleWhen { idle: never, dirty: never, synced: Default::default(), bytes_max: u64::MAX };
    let settled =
        async |files: &DataFiles<LocalDisk>, when| files.settle(when, async |_| true).await.unwrap().files;
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        let file = files.create(INO).unwrap();
        file.write(0, &[1; 10_000]).await.unwrap();
        files.create(INO + 1).unwrap().write(0, &[2; 10_000]).await.unwrap();
        assert_eq!(settled(&files, synced_ones).await, 0, "none was synced");
        file.sync().await.unwrap();
        // Synced for less than a time that never comes.
        assert_eq!(settled(&files, SettleWhen { synced: never, ..synced_ones }).await, 0);
        assert_eq!(settled(&files, SettleWhen { bytes_max: 4096, ..synced_ones }).await, 0, "it is too long");
        assert_eq!(settled(&files, synced_ones).await, 1);
        assert!(path_of(&directory, "sums", INO).exists() && !path_of(&directory, "sums", INO + 1).exists());
        file.write(0, &[3; 10]).await.unwrap();
        assert_eq!(settled(&files, synced_ones).await, 0, "it has changed since");
        // A change that is under way when the sync begins is not part of it.
        let change = file.begin_change(&[Extent::new(20, 10)]).await.unwrap();
        file.sync().await.unwrap();
        drop(change);
        assert_eq!(settled(&files, synced_ones).await, 0);
        file.sync().await.unwrap();
        assert_eq!((settled(&files, synced_ones).await, files.unsettled_files()), (1, 1));
        assert_eq!(settled(&files, NOW).await, 1);
    });
}

#[test]
fn a_flipped_bit_is_an_error_of_its_block_until_that_is_written_again() {
    let directory = on_disk();
    let data = pattern(3, 100_000);
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        files.create(INO).unwrap().write(0, &data).await.unwrap();
        settle(&files).await;
    });
    flip(&path_of(&directory, "data", INO), 8 * 50_000 + 3);
    plain_reactor().run(async {
        let files = DataFiles::new(plain_disk(&directory));
        let block = 50_000 / BLOCK_BYTES;
        for (offset, bytes) in [(0, 100_000), (50_000, 1), (block * BLOCK_BYTES, 1), (49_000, 2000)] {
            match read(&files, offset, bytes).await.unwrap_err() {
                StorageError::Damaged { ino: INO, offset, bytes: BLOCK_BYTES } => {
                    assert_eq!(offset, block * BLOCK_BYTES);
                }
                error => panic!("{error}"),
            }
        }
        assert_eq!(files.take_damage().len(), 1, "it is told once");
        let before = (block * BLOCK_BYTES) as usize;
        assert!(read(&files, 0, before).await.unwrap() == data[..before]);
        assert_eq!(scrub(&files).await.wrong, [block]);
        // A part of it does not make the rest of it sound.
        let file = files.create(INO).unwrap();
        assert!(matches!(file.write(49_999, &[1]).await, Err(StorageError::Damaged { .. })));
        assert!(matches!(file.truncate(50_001), Err(StorageError::Damaged { .. })));
        file.write(block * BLOCK_BYTES, &[9; BLOCK_BYTES as usize]).await.unwrap();
        assert!(read(&files, block * BLOCK_BYTES, 4096).await.unwrap() == [9; 4096]);
        settle(&files).await;
        assert!(scrub(&files).await.wrong.is_empty());
    });
}

#[test]
fn what_was_compared_is_compared_again_when_it_comes_from_the_disk_again() {
    let directory = on_disk();
    ring_reactor().run(async {
        let files = DataFiles::new(ring_disk(&directory));
        let file = files.create(INO).unwrap();
        file.write(0, &pattern(1, 1 << 20)).await.unwrap();
        settle(&files).await;
        read(&files, 0, 1 << 20).await.unwrap();
        let compared = |count: &weft_storage::sums::SumsCounts| {
            count.verified_blocks.load(std::sync::atomic::Ordering::Relaxed)
        };
        let before = compared(files.sums_counts());
        read(&files, 0, 1 << 20).await.unwrap();
        assert_eq!(compared(files.sums_counts()), before, "it is in the page cache");
        let fd = file.raw_fd().unwrap();
        // SAFETY: drops clean pages of an open file from memory.
        unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
        read(&files, 0, 1 << 20).await.unwrap();
        assert_eq!(compared(files.sums_counts()), before + 256);
    });
}

#[test]
fn files_from_before_get_sums_by_a_scrub_and_holes_none() {
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        let file = files.create(INO).unwrap();
        file.write(0, &pattern(1, 10_000)).await.unwrap();
        file.write(3 * REGION_BYTES, &pattern(2, 5000)).await.unwrap();
    });
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        assert!(!path_of(&directory, "sums", INO).exists());
        let first = scrub(&files).await;
        assert_eq!((first.adopted_blocks, first.readopted_blocks), (3 + 2, 0));
        let again = scrub(&files).await;
        assert_eq!((again.adopted_blocks, again.compared_blocks), (0, 5));
        assert!(again.wrong.is_empty() && again.damage.is_empty());
        // Without its sidecar it is one that had sums.
        drop(files);
        std::fs::remove_file(path_of(&directory, "sums", INO)).unwrap();
        let files = DataFiles::new(plain_disk(&directory));
        let scrubbed = files.scrub(INO, true, &mut async |_| true).await.unwrap();
        assert_eq!(scrubbed.damage.len(), 1);
        assert_eq!(scrubbed.damage[0].kind, DamageKind::NoSums);
        assert_eq!((scrubbed.adopted_blocks, scrubbed.readopted_blocks), (5, 5));
    });
}

#[test]
fn a_data_file_that_was_cut_behind_the_servers_back_is_told() {
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        files.create(INO).unwrap().write(0, &pattern(1, 50_000)).await.unwrap();
        settle(&files).await;
        drop(files);
        let path = path_of(&directory, "data", INO);
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(8192).unwrap();
        let files = DataFiles::new(plain_disk(&directory));
        assert_eq!(scrub(&files).await.wrong, (2..13).collect::<Vec<_>>());
        assert!(files.take_damage().iter().all(|damage| damage.kind == DamageKind::Short));
        // A proper cut is none.
        files.truncate(INO, 8192).unwrap();
        settle(&files).await;
        assert!(scrub(&files).await.wrong.is_empty());
    });
}

#[test]
fn what_a_file_is_cut_by_first_thing_after_a_start_leaves_no_sums() {
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        let file = files.create(INO).unwrap();
        file.write(0, &pattern(1, 10_000)).await.unwrap();
        file.write(REGION_BYTES, &pattern(2, 10_000)).await.unwrap();
        settle(&files).await;
    });
    for cut in [REGION_BYTES, 0] {
        run(async {
            let files = DataFiles::new(plain_disk(&directory));
            let file = files.create(INO).unwrap();
            file.truncate(cut).unwrap();
            file.write(cut + 1, &[7; 10]).await.unwrap();
            assert_eq!(read(&files, cut, 11).await.unwrap(), [[0].as_slice(), &[7; 10]].concat());
            settle(&files).await;
            assert!(scrub(&files).await.wrong.is_empty());
        });
    }
}

#[test]
fn sidecars_and_marks_go_with_their_data_files() {
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        files.create(INO).unwrap().write(0, &pattern(1, 5000)).await.unwrap();
        settle(&files).await;
        let (data, sums) = (path_of(&directory, "data", INO), path_of(&directory, "sums", INO));
        assert!(sums.exists());
        assert_eq!(files.missing_with_marks(None, 100).unwrap(), (Vec::new(), None));
        files.remove(INO).unwrap();
        assert!(!sums.exists());
        files.create(INO).unwrap().write(0, &pattern(2, 5000)).await.unwrap();
        settle(&files).await;
        drop(files);
        std::fs::remove_file(data).unwrap();
        let files = DataFiles::new(plain_disk(&directory));
        // Neither a scrub nor a question removes what tells of the loss, and a removal does.
        assert_eq!(files.missing_with_sums(None, 100).unwrap().0, [INO]);
        assert!(sums.exists());
        files.remove(INO).unwrap();
        assert!(!sums.exists() && !files.has_lost(INO).unwrap());
        settle(&files).await;
        assert_eq!(files.missing_with_marks(None, 100).unwrap(), (Vec::new(), None));
    });
}

#[test]
fn a_data_file_that_ends_before_its_sums_has_no_size_and_loses_no_more() {
    for (kept, last) in [(8192, 50_000), (0, 4096), (REGION_BYTES, REGION_BYTES + 1)] {
        let directory = on_disk();
        run(async {
            let files = DataFiles::new(plain_disk(&directory));
            files.create(INO).unwrap().write(last - 1, &[7]).await.unwrap();
            settle(&files).await;
            drop(files);
            let path = path_of(&directory, "data", INO);
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(kept).unwrap();
            let files = DataFiles::new(plain_disk(&directory));
            let had = last.next_multiple_of(BLOCK_BYTES);
            for _ in 0..2 {
                match files.size(INO).unwrap_err() {
                    StorageError::Cut { ino: INO, bytes, had_bytes } => {
                        assert_eq!((bytes, had_bytes), (kept, had))
                    }
                    error => panic!("{error}"),
                }
            }
            assert!(files.has_lost(INO).unwrap());
            assert_eq!(files.take_damage().len(), 1, "it is told once");
            // At its old length it has zeros where data was.
            files.truncate(INO, had).unwrap();
            assert!(matches!(read(&files, last - 1, 1).await, Err(StorageError::Damaged { .. })));
            drop(files);
            let path = path_of(&directory, "data", INO);
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(kept).unwrap();
            let files = DataFiles::new(plain_disk(&directory));
            files.vouch_empty(INO).unwrap();
            assert_eq!(files.size(INO).unwrap(), kept);
        });
    }
}

#[test]
fn a_data_file_with_the_sums_of_another_inode_is_not_read_or_changed() {
    const OTHER: u64 = INO + 1;
    let directory = on_disk();
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        for ino in [INO, OTHER] {
            files.create(ino).unwrap().write(0, &pattern(ino, 50_000)).await.unwrap();
        }
        settle(&files).await;
    });
    for kind in ["data", "sums"] {
        let [one, other] = [INO, OTHER].map(|ino| path_of(&directory, kind, ino));
        let between = directory.path().join("between");
        std::fs::rename(&one, &between).unwrap();
        std::fs::rename(&other, &one).unwrap();
        std::fs::rename(&between, &other).unwrap();
    }
    run(async {
        let files = DataFiles::new(plain_disk(&directory));
        let is_foreign = |result: Result<(), StorageError>| {
            matches!(result, Err(StorageError::Foreign { ino: INO, other: OTHER }))
        };
        assert!(is_foreign(read(&files, 40_000, 10).await.map(drop)));
        assert!(is_foreign(files.size(INO).map(drop)) && files.has_lost(INO).unwrap());
        assert!(is_foreign(files.create(INO).unwrap().write(4096, &[1; 4096]).await));
        let found = scrub(&files).await;
        assert_eq!((found.adopted_blocks, found.damage[0].kind), (0, DamageKind::Foreign));
        files.truncate(INO, 0).unwrap();
        files.create(INO).unwrap().write(0, &[1; 10]).await.unwrap();
        assert_eq!(read(&files, 0, 10).await.unwrap(), [1; 10]);
        settle(&files).await;
        assert!(!files.has_lost(INO).unwrap() && files.has_lost(OTHER).unwrap());
    });
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, usize),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64),
    Copy(u64, u64, u64),
    Read(u64, usize),
    Settle,
    Scrub,
    Remove,
    /// The server is killed and started again.
    Kill,
    /// A bit of the sidecar changes while the server is down.
    FlipSum(u64),
    /// A bit of the data file does.
    FlipData(u64),
}

/// Around the beginning and the end of a region.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0u64..40_000, 1 => REGION_BYTES - 20_000..REGION_BYTES + 20_000]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (place(), 1usize..12_000).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => place().prop_map(Step::Truncate),
        1 => (place(), 1u64..20_000).prop_map(|(at, bytes)| Step::Punch(at, bytes)),
        1 => (place(), 1u64..20_000, any::<bool>()).prop_map(|(at, bytes, keep)| Step::Zero(at, bytes, keep)),
        1 => (place(), 1u64..20_000).prop_map(|(at, bytes)| Step::Allocate(at, bytes)),
        1 => (place(), place(), 1u64..9000).prop_map(|(from, to, bytes)| Step::Copy(from, to, bytes)),
        6 => (place(), 1usize..20_000).prop_map(|(at, bytes)| Step::Read(at, bytes)),
        5 => Just(Step::Settle),
        1 => Just(Step::Scrub),
        1 => Just(Step::Remove),
        3 => Just(Step::Kill),
        1 => any::<u64>().prop_map(Step::FlipSum),
        2 => any::<u64>().prop_map(Step::FlipData),
    ]
}

/// A data file and what it must be.
struct Model {
    bytes: Vec<u8>,
    /// A block with a flipped bit that had a sum.
    wrong: std::collections::BTreeSet<u64>,
    seed: u64,
}

impl Model {
    fn touches_wrong(&self, offset: u64, bytes: u64) -> bool {
        let blocks = offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES);
        self.wrong.range(blocks).next().is_some()
    }

    /// Whether a change leaves a part of a wrong block.
    fn leaves_wrong(&self, offset: u64, bytes: u64) -> bool {
        let size = self.bytes.len() as u64;
        self.wrong.iter().any(|block| {
            let (begin, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
            let touches = offset < end && offset + bytes > begin;
            touches && !(offset <= begin && offset + bytes >= end.min(size))
        })
    }

    fn change(&mut self, offset: u64, bytes: u64) {
        let blocks = offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES);
        self.wrong.retain(|block| !blocks.contains(block));
    }

    /// Sums go in granules: what was beside a change when the server was killed has none any more, and is what is there.
    fn forget_without_sums(&mut self, directory: &TempDir) {
        let Ok(found) = std::fs::read(path_of(directory, "data", INO)) else { return };
        for block in std::mem::take(&mut self.wrong) {
            if has_sum(directory, block) {
                self.wrong.insert(block);
            } else {
                let (begin, end) = (block as usize * 4096, (block as usize * 4096 + 4096).min(found.len()));
                self.bytes[begin..end].copy_from_slice(&found[begin..end]);
            }
        }
    }

    fn grow(&mut self, end: u64) {
        self.bytes.resize(self.bytes.len().max(end as usize), 0);
    }
}

fn is_damaged<T>(result: &Result<T, StorageError>) -> bool {
    matches!(result, Err(StorageError::Damaged { .. }))
}

/// Whether a block has a sum in force on disk.
fn has_sum(directory: &TempDir, block: u64) -> bool {
    let Ok(sidecar) = std::fs::read(path_of(directory, "sums", INO)) else { return false };
    let region = block * BLOCK_BYTES / REGION_BYTES;
    let begin = (region as usize * weft_storage::sums::format::RECORD_BYTES).min(sidecar.len());
    let end = (begin + weft_storage::sums::format::RECORD_BYTES).min(sidecar.len());
    let record = weft_storage::sums::format::parse(&sidecar[begin..end], INO, region as u32);
    record.sums.get((block % (REGION_BYTES / BLOCK_BYTES)) as usize).is_some_and(|sum| *sum != 0)
}

async fn play(directory: &TempDir, steps: &[Step]) {
    let open = || DataFiles::new(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain).unwrap());
    let mut files = Some(open());
    let mut model = Model { bytes: Vec::new(), wrong: Default::default(), seed: 0 };
    for step in steps {
        let current = files.as_ref().unwrap();
        model.seed += 1;
        let size = model.bytes.len() as u64;
        match *step {
            Step::Write(at, bytes) => {
                let data = pattern(model.seed, bytes);
                let written = current.create(INO).unwrap().write(at, &data).await;
                let refused = model.leaves_wrong(at, bytes as u64);
                assert_eq!(is_damaged(&written), refused, "{step:?}");
                if !refused {
                    written.unwrap();
                    model.grow(at + bytes as u64);
                    model.bytes[at as usize..at as usize + bytes].copy_from_slice(&data);
                    model.change(at, bytes as u64);
                }
            }
            Step::Truncate(at) => {
                let cut = current.truncate(INO, at);
                let refused = model.leaves_wrong(at, u64::MAX - at);
                assert_eq!(is_damaged(&cut), refused, "{step:?}");
                if !refused {
                    model.bytes.resize(at as usize, 0);
                    model.change(at, u64::MAX / 2);
                }
            }
            Step::Punch(at, bytes) | Step::Zero(at, bytes, _) => {
                let keeps = !matches!(step, Step::Zero(_, _, false));
                let done = match *step {
                    Step::Zero(..) => current.zero(INO, at, bytes, keeps),
                    _ => current.punch(INO, at, bytes),
                };
                let refused = model.leaves_wrong(at, bytes);
                assert_eq!(is_damaged(&done), refused, "{step:?}");
                if !refused {
                    let end = (at + bytes).min(size);
                    if at < end {
                        model.bytes[at as usize..end as usize].fill(0);
                        model.change(at, end - at);
                    }
                    if !keeps {
                        model.grow(at + bytes);
                    }
                }
            }
            Step::Allocate(at, bytes) => {
                current.allocate(INO, at, bytes, false).unwrap();
                model.grow(at + bytes);
            }
            Step::Copy(from, to, bytes) => {
                let bytes = bytes.min(size.saturating_sub(from));
                if bytes == 0 || from < to + bytes && to < from + bytes {
                    continue;
                }
                let file = current.create(INO).unwrap();
                let refused = model.touches_wrong(from, bytes) || model.leaves_wrong(to, bytes);
                let copied = file.copy_some(from, &file, to, bytes);
                assert_eq!(is_damaged(&copied), refused, "{step:?}");
                if !refused {
                    assert_eq!(copied.unwrap(), bytes);
                    let data = model.bytes[from as usize..(from + bytes) as usize].to_vec();
                    model.grow(to + bytes);
                    model.bytes[to as usize..(to + bytes) as usize].copy_from_slice(&data);
                    model.change(to, bytes);
                }
            }
            Step::Read(at, bytes) => {
                let found = read(current, at, bytes).await;
                assert_eq!(is_damaged(&found), model.touches_wrong(at, bytes as u64), "{step:?}");
                if let Ok(found) = found {
                    let wanted = |at: usize| model.bytes.get(at).copied().unwrap_or(0);
                    let differs = (0..bytes).find(|byte| found[*byte] != wanted(at as usize + byte));
                    assert_eq!(differs, None, "{step:?}");
                }
            }
            Step::Settle => settle(current).await,
            Step::Scrub => {
                let found = scrub(current).await.wrong;
                assert_eq!(found, model.wrong.iter().copied().collect::<Vec<_>>());
            }
            Step::Remove => {
                current.remove_all(&[INO]).await.unwrap();
                model = Model { bytes: Vec::new(), wrong: Default::default(), seed: model.seed };
            }
            Step::Kill => {
                drop(files.take());
                model.forget_without_sums(directory);
                files = Some(open());
            }
            Step::FlipSum(bit) => {
                let path = path_of(directory, "sums", INO);
                let bits = std::fs::metadata(&path).map_or(0, |found| found.len() * 8);
                if bits > 0 && model.wrong.is_empty() {
                    drop(files.take());
                    flip(&path, bit % bits);
                    files = Some(open());
                }
            }
            Step::FlipData(bit) => {
                // Holes of the file are left alone: nothing is there that could rot.
                let at = bit % (size * 8).max(1) / 8 % 60_000;
                if at < size
                    && has_sum(directory, at / BLOCK_BYTES)
                    && !model.wrong.contains(&(at / BLOCK_BYTES))
                {
                    drop(files.take());
                    flip(&path_of(directory, "data", INO), at * 8 + bit % 8);
                    model.wrong.insert(at / BLOCK_BYTES);
                    model.forget_without_sums(directory);
                    files = Some(open());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(weft_test_random::cases(150))]
    #[test]
    fn a_read_gives_what_was_written_or_says_what_is_damaged(steps in proptest::collection::vec(step(), 1..60)) {
        let memory = TempDir::new_in("/dev/shm").unwrap_or_else(|_| on_disk());
        plain_disk(&memory);
        run(play(&memory, &steps));
    }
}
