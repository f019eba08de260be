//! Data files through power cuts.
//!
//! ```text
//!   cycle   image ─► disk ─► mounted ─► data files are changed and synced there, by both kinds of disk
//!                                            │ at random moments: what would a power cut leave now?
//!           images ◄─────────────────────────┘
//!   each    every file that was synced is there; each of its bytes is what it was then, or what was written there since;
//!           every checksum that is in force is that of its block; every mark has its data file, and no mark that was synced is gone
//!   some    are opened as storage again: a server lists and reads what the image has
//!   one     is where the next cycle begins
//! ```
//!
//! The disk is the one that the metadata store is tested on: it loses, tears and reorders whatever was not synced.
//! `WEFT_DATA_POWERCUT_IMAGES` says how many images there are to be.

#[path = "../common/mod.rs"]
mod common;
use common::{IDENTITY, plain_reactor, ring_reactor};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weft_layout::Extent;
use weft_power_cut::{
    Cut, Disk as CutDisk, History, Image, Recorder, Shared, data_files, from_environment, noise, scratch,
    written, zeroed,
};
use weft_storage::sums::format::{BLOCK_BYTES, RECORD_BYTES, REGION_BYTES, parse, sum_of};
use weft_storage::sums::{Scrubbed, SettleWhen};
use weft_storage::{DataFiles, Directory, Disk, DiskEngine, LocalDisk};
use weft_test_random::{Random, seed, seeds};

const IMAGES_DEFAULT: usize = 5000;
const IMAGES_PER_CYCLE: usize = 120;
const CHANGES_PER_CYCLE: u64 = 120;
/// Nothing is left alone before it is settled.
const NOW: SettleWhen = SettleWhen::NOW;
/// Files are at most this long, give or take a write.
const FILE_BYTES: u64 = 24 << 10;
/// Of these numbers the first two are in one directory, and the others in directories of their own.
const INOS: [u64; 5] = [2, 3, 0x300, 0x4_0000, 0x55_0000];

/// Where the storage directory is on the disk: as a server finds it whose directory has to be made, with those above.
fn storage_in(root: &Path) -> PathBuf {
    root.join("made/too")
}

/// Makes changes to data files, and notes in the history what they are before each, and what is durable after each sync.
struct Work<'a, D: Disk> {
    files: DataFiles<D>,
    history: &'a Shared,
    random: &'a mut Random,
    /// Every change is made durable before the next.
    sync_mode: bool,
    /// Files that were synced since they were made: they are marked.
    marked: BTreeSet<u64>,
}

impl<D: Disk> Work<'_, D> {
    async fn step(&mut self) {
        let ino = INOS[self.random.below(INOS.len() as u64) as usize];
        let before = self.history.now(ino);
        let old = before.as_deref().unwrap_or_default();
        let range = self.range(FILE_BYTES);
        match self.random.below(28) {
            0..5 => {
                let data = noise(self.random, range.bytes);
                self.history.change(ino, Some(written(old, range.offset, &data)));
                self.files.create(ino).unwrap().write(range.offset, &data).await.unwrap();
            }
            5..10 => self.sieve(ino, old).await,
            10..12 => {
                let bytes = self.random.below(FILE_BYTES);
                let mut new = old.to_vec();
                new.resize(bytes as usize, 0);
                // Cutting what is not there to nothing makes no file.
                self.history.change(ino, (before.is_some() || bytes > 0).then_some(new));
                self.files.truncate(ino, bytes).unwrap();
            }
            12 => {
                let new = zeroed(old, range.offset, range.bytes, true);
                self.history.change(ino, before.is_some().then_some(new));
                self.files.punch(ino, range.offset, range.bytes).unwrap();
            }
            13 => {
                let keep_size = self.random.one_in(2);
                let mut new = old.to_vec();
                extend(&mut new, range, keep_size);
                self.history.change(ino, Some(new));
                self.files.allocate(ino, range.offset, range.bytes, keep_size).unwrap();
            }
            14 => {
                let keep_size = self.random.one_in(2);
                self.history.change(ino, Some(zeroed(old, range.offset, range.bytes, keep_size)));
                self.files.zero(ino, range.offset, range.bytes, keep_size).unwrap();
            }
            15 => self.copy(ino, old, range).await,
            16 => {
                self.history.change(ino, None);
                self.marked.remove(&ino);
                if self.random.one_in(2) {
                    self.files.remove_all(&[ino]).await.unwrap();
                } else {
                    self.files.remove(ino).unwrap();
                }
                return;
            }
            20..25 => {
                self.files.settle(NOW, async |_| true).await.unwrap();
                return;
            }
            25..27 => {
                self.files.sync_marks().await.unwrap();
                self.marked.iter().for_each(|ino| self.history.is_marked(*ino));
                return;
            }
            27 => return assert_sound(&self.files, ino, "without any cut").await,
            _ => return self.sync(ino).await,
        }
        if self.sync_mode {
            self.sync(ino).await;
        }
    }

    async fn sync(&mut self, ino: u64) {
        let state = self.history.last_state(ino);
        self.files.sync(ino).await.unwrap();
        if self.history.now(ino).is_some() {
            self.history.is_durable(ino, state);
            self.marked.insert(ino);
        }
    }

    /// Pieces by one read and one write of the extent that they are in.
    async fn sieve(&mut self, ino: u64, old: &[u8]) {
        let extent = self.range(FILE_BYTES);
        let mut whole = vec![0; extent.bytes as usize];
        self.files.read_pieces(ino, &[extent], &mut whole).await.unwrap();
        let mut at = 0;
        while at < whole.len() {
            let piece = (1 + self.random.below(900) as usize).min(whole.len() - at);
            let noise = noise(self.random, piece as u64);
            whole[at..at + piece].copy_from_slice(&noise);
            at += piece + self.random.below(1200) as usize;
        }
        self.history.change(ino, Some(written(old, extent.offset, &whole)));
        self.files.create(ino).unwrap().write(extent.offset, &whole).await.unwrap();
    }

    async fn copy(&mut self, ino: u64, old: &[u8], range: Extent) {
        let from = INOS[self.random.below(INOS.len() as u64) as usize];
        let from_bytes = self.history.now(from).unwrap_or_default();
        let from_offset = self.random.below(FILE_BYTES);
        let end = (from_offset + range.bytes).min(from_bytes.len() as u64);
        if from == ino || from_offset >= end {
            return;
        }
        let data = &from_bytes[from_offset as usize..end as usize];
        self.history.change(ino, Some(written(old, range.offset, data)));
        let (source, target) = (self.files.open(from).unwrap().unwrap(), self.files.create(ino).unwrap());
        let mut done = 0;
        while done < data.len() as u64 {
            let left = data.len() as u64 - done;
            let copied = source.copy_some(from_offset + done, &target, range.offset + done, left).unwrap();
            assert!(copied > 0, "the source ends early");
            done += copied;
        }
    }

    fn range(&mut self, below: u64) -> Extent {
        let bytes = if self.random.one_in(3) { 9000 } else { 700 };
        Extent::new(self.random.below(below), 1 + self.random.below(bytes))
    }
}

fn extend(content: &mut Vec<u8>, range: Extent, keep_size: bool) {
    if !keep_size {
        content.resize(content.len().max(range.end() as usize), 0);
    }
}

/// Works on the data files of `disk`; the bytes in memory must be the history's.
async fn work<D: Disk>(disk: D, history: &Shared, random: &mut Random) {
    history.begin();
    let sync_mode = random.one_in(3);
    // Few handles and windows, so that files are opened anew all the time.
    let files = DataFiles::with_bounds(disk, 2, 2);
    let mut work = Work { files, history, random, sync_mode, marked: BTreeSet::new() };
    // A power cut in the middle of a removal may leave the sidecar without the data file, which is then expected. The removal is
    // asked for again, as by the metadata server.
    for ino in INOS.into_iter().filter(|ino| history.now(*ino).is_none()) {
        work.files.remove(ino).unwrap();
    }
    for _ in 0..CHANGES_PER_CYCLE {
        work.step().await;
    }
    for ino in INOS {
        let expected = history.now(ino);
        let mut found = vec![0; expected.as_ref().map_or(0, Vec::len)];
        work.files.read_pieces(ino, &[Extent::new(0, found.len() as u64)], &mut found).await.unwrap();
        assert!(found == expected.unwrap_or_default(), "file {ino:x} is wrong without any cut");
    }
}

/// A scrub finds nothing wrong, and leaves sums that fit.
async fn assert_sound<D: Disk>(files: &DataFiles<D>, ino: u64, label: &str) {
    let Scrubbed { wrong, damage, .. } = files.scrub(ino, false, &mut async |_| true).await.unwrap();
    assert!(wrong.is_empty() && damage.is_empty(), "{label}: file {ino:x}: {wrong:?} {damage:?}");
}

/// The marked inodes of an image.
fn marks(image: &Image) -> BTreeSet<u64> {
    const MARKS: [u8; 2] = [0x5a, 0xa5];
    let mut marked = BTreeSet::new();
    for (path, content) in image.files() {
        let Some((_, name)) = path.rsplit_once('/').filter(|(above, _)| above.contains("/held/")) else {
            continue;
        };
        let group = u64::from_str_radix(name, 16).unwrap();
        let marks = content.read(0, content.bytes as usize);
        marked.extend(
            (0u64..).zip(marks).filter(|(_, mark)| MARKS.contains(mark)).map(|(at, _)| group * 256 + at),
        );
    }
    marked
}

/// No sum that is in force is that of another block than the image has. Returns how many are in force.
fn check_sums(image: &Image, label: &str) -> usize {
    let data = data_files(image);
    let mut in_force = 0;
    for (path, sidecar) in image.files() {
        let Some((above, name)) = path.rsplit_once('/').filter(|(above, _)| above.contains("/sums/")) else {
            continue;
        };
        assert!(above.len() > 6, "{label}: {path}");
        let ino = u64::from_str_radix(name, 16).unwrap();
        let Some(data) = data.get(&ino) else { continue };
        for region in 0..sidecar.bytes.div_ceil(RECORD_BYTES as u64) {
            let record = sidecar.read(region * RECORD_BYTES as u64, RECORD_BYTES);
            let record = parse(&record, ino, region as u32);
            assert_eq!(record.damaged_granules, 0, "{label}: sidecar of file {ino:x}");
            for (block, sum) in record.sums.iter().enumerate().filter(|(_, sum)| **sum != 0) {
                let offset = region * REGION_BYTES + block as u64 * BLOCK_BYTES;
                let found = data.read(offset, BLOCK_BYTES as usize);
                assert!(offset < data.bytes, "{label}: file {ino:x}: a sum behind its end, of block {block}");
                assert_eq!(sum_of(&found), *sum, "{label}: file {ino:x}, block {block}");
                in_force += 1;
            }
        }
    }
    in_force
}

/// Mounts what `start` has left, works there, and returns the images.
fn cycle(start: &Image, random: &mut Random) -> (Vec<Cut>, History) {
    let disk = CutDisk::from_image(start);
    let recorder = Recorder::mount(disk, 0, Random(random.next()), IMAGES_PER_CYCLE);
    let history = Shared::after(start, recorder.durable.clone());
    let directory = storage_in(&recorder.directory());
    if !Directory::is_formatted(&directory) {
        Directory::format(&directory, &IDENTITY, &[5; 16]).unwrap();
    }
    if random.one_in(2) {
        let disk = LocalDisk::open(&directory, &IDENTITY, DiskEngine::Plain).unwrap();
        plain_reactor().run(work(disk, &history, random));
    } else {
        let disk = LocalDisk::open(&directory, &IDENTITY, DiskEngine::Ring).unwrap();
        ring_reactor().run(work(disk, &history, random));
    }
    (recorder.take_cuts(), history.into_history())
}

/// A server that starts on the image has its files, byte by byte.
fn reopen(cut: &Cut, label: &str) {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    cut.image.write_to(directory.path());
    if !Directory::is_formatted(&storage_in(&directory.path().join("store"))) {
        assert!(data_files(&cut.image).is_empty(), "{label}: data before the storage was whole");
        return;
    }
    let disk = LocalDisk::open(&storage_in(&directory.path().join("store")), &IDENTITY, DiskEngine::Plain)
        .unwrap_or_else(|error| panic!("{label}: {error}; files: {}", cut.image.listing()));
    let files = DataFiles::new(disk);
    let (objects, _) = files.list(None, 100).unwrap();
    assert_eq!(objects.len(), data_files(&cut.image).len(), "{label}");
    plain_reactor().run(async {
        for (ino, content) in data_files(&cut.image) {
            let mut found = vec![0; content.bytes as usize];
            assert_eq!(files.size(ino).unwrap(), content.bytes, "{label}: file {ino:x}");
            files.read_pieces(ino, &[Extent::new(0, content.bytes)], &mut found).await.unwrap();
            assert!(found == content.read(0, content.bytes as usize), "{label}: file {ino:x}");
            assert_sound(&files, ino, label).await;
            assert!(!files.has_lost(ino).unwrap(), "{label}: file {ino:x}");
        }
    });
}

#[test]
fn no_power_cut_loses_synced_data_or_shows_foreign_bytes() {
    let wanted =
        from_environment("WEFT_DATA_POWERCUT_IMAGES").map_or(IMAGES_DEFAULT, |images| images as usize);
    let begun = std::time::Instant::now();
    let (mut seen, mut cycles, mut in_force, mut marked) = (0, 0, 0, 0);
    for seed in seeds() {
        if seen >= wanted {
            break;
        }
        let mut random = Random(seed);
        let mut start = Image::default();
        // A chain of cuts, each in what the one before has left.
        for link in 0..3 {
            let (mut cuts, history) = cycle(&start, &mut random);
            cycles += 1;
            // Before storage was opened for the first time nothing is promised.
            cuts.retain(|cut| cut.durable > 0);
            for (number, cut) in cuts.iter().enumerate() {
                let label = format!("seed {seed}, cycle {link}, image {number} at event {}", cut.event);
                history.check(&cut.image, cut.durable as usize, &label);
                let marks = marks(&cut.image);
                history.check_marks(&marks, &cut.image, cut.durable as usize, &label);
                marked += marks.len();
                in_force += check_sums(&cut.image, &label);
                if number % 16 == 0 {
                    reopen(cut, &label);
                }
            }
            seen += cuts.len();
            let chosen = random.below(cuts.len() as u64) as usize;
            start = cuts.swap_remove(chosen).image;
        }
    }
    assert!(in_force > seen, "few sums are in force: {in_force}");
    assert!(marked > seen, "few files are marked: {marked}");
    println!(
        "{seen} images of {cycles} cycles, seeds {} and those that follow, in {:.1} s: nothing was lost, and {in_force} sums fitted",
        seed(),
        begun.elapsed().as_secs_f64()
    );
}

/// Files whose sync has failed, by either disk: the kernel takes the pages for clean, and the data files do not.
#[test]
fn a_failed_sync_is_counted_though_the_next_one_succeeds() {
    let recorder = Recorder::mount(CutDisk::new(), 0, Random(seed()), 0);
    async fn fails(disk: impl Disk, recorder: &Recorder) {
        let files = DataFiles::with_bounds(disk, 1, 1);
        let file = files.create(7).unwrap();
        file.write(0, b"lost").await.unwrap();
        recorder.disk.lock().unwrap().fail_sync_of = Some("0000000000000007");
        assert_eq!(file.sync().await.unwrap_err().errno(), libc::EIO);
        assert_eq!(file.losses(), 1);
        file.sync().await.unwrap();
        drop(file);
        // Its handle is given up for another file's.
        files.create(8).unwrap().write(0, b"whole").await.unwrap();
        files.sync(8).await.unwrap();
        assert_eq!((files.losses(7), files.losses(8)), (1, 0));
        files.create(7).unwrap().write(0, b"kept").await.unwrap();
        files.sync(7).await.unwrap();
        assert_eq!(files.losses(7), 1);
    }
    let (plain, ring) = (recorder.directory().join("plain"), recorder.directory().join("ring"));
    [&plain, &ring].iter().for_each(|at| Directory::format(at, &IDENTITY, &[5; 16]).unwrap());
    plain_reactor().run(fails(LocalDisk::open(&plain, &IDENTITY, DiskEngine::Plain).unwrap(), &recorder));
    ring_reactor().run(fails(LocalDisk::open(&ring, &IDENTITY, DiskEngine::Ring).unwrap(), &recorder));
}

/// Which names a failed sync of a directory has lost is not known, and a second one would succeed without them.
#[test]
fn after_a_failed_sync_of_a_directory_no_name_becomes_durable() {
    let recorder = Recorder::mount(CutDisk::new(), 0, Random(seed()), 0);
    async fn fails(disk: impl Disk, recorder: &Recorder) {
        let files = DataFiles::new(disk);
        files.create(1).unwrap().write(0, b"before").await.unwrap();
        files.sync(1).await.unwrap();
        files.create(2).unwrap().write(0, b"lost").await.unwrap();
        recorder.disk.lock().unwrap().fail_sync_of_directory = true;
        assert_eq!(files.sync(2).await.unwrap_err().errno(), libc::EIO);
        let error = files.sync(2).await.unwrap_err();
        assert!(error.to_string().contains("check the disk"), "{error}");
        files.create(3).unwrap().write(0, b"new").await.unwrap();
        files.sync(3).await.unwrap_err();
        // What has a durable name goes on.
        files.create(1).unwrap().write(0, b"after").await.unwrap();
        files.sync(1).await.unwrap();
    }
    let (plain, ring) = (recorder.directory().join("plain"), recorder.directory().join("ring"));
    [&plain, &ring].iter().for_each(|at| Directory::format(at, &IDENTITY, &[5; 16]).unwrap());
    plain_reactor().run(fails(LocalDisk::open(&plain, &IDENTITY, DiskEngine::Plain).unwrap(), &recorder));
    ring_reactor().run(fails(LocalDisk::open(&ring, &IDENTITY, DiskEngine::Ring).unwrap(), &recorder));
}
