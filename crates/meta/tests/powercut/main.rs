//! The embedded engine through power cuts.
//!
//! ```text
//!   cycle   image ─► disk ─► mounted ─► the engine opens its store there; names change, syncs run beside
//!                                            │ at random moments: what would a power cut leave now?
//!           images ◄─────────────────────────┘
//!   each    written to a directory ─► opened ─► sound? its tree = the tree after some number of changes,
//!           at least as many as had been acknowledged as durable when the image was taken?
//!   one     is where the next cycle begins: so cuts during recovery come about too
//! ```
//!
//! `WEFT_POWERCUT_IMAGES` says how many images there are to be (a few by default). What changes, and what must be there, is in `names.rs`.

#[path = "../common/mod.rs"]
mod common;
mod names;

use common::*;
use names::{Model, Work};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use weft_meta::{
    Caller, CommitSeq, EngineError, FjallEngine, FjallOptions, MetaError, Namespace, Syncer, XattrMode,
};
use weft_power_cut::{Cut, Disk, Image, Recorder, from_environment, scratch};
use weft_test_random::{Random, seed, seeds};

const IMAGES_DEFAULT: usize = 60;
const IMAGES_PER_CYCLE: usize = 12;
const BIG: &[u8] = b"user.big";

type Names = Namespace<FjallEngine>;

/// Small tables, so that they are written out and compacted all the time. Each time the kernel is another one.
fn open_engine(directory: &Path) -> Result<FjallEngine, EngineError> {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    open_engine_in(directory, BOOTS.fetch_add(1, Ordering::SeqCst))
}

fn open_engine_in(directory: &Path, boot: u64) -> Result<FjallEngine, EngineError> {
    let boot_id = u128::from(boot).to_be_bytes();
    FjallEngine::open(
        directory,
        &FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, boot_id, ..FjallOptions::default() },
    )
}

fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut value: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    value.truncate(bytes);
    value
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A thread that syncs whenever it is told to, and notes how many changes are durable then.
struct SyncThread {
    ask: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl SyncThread {
    /// The changes begin after the commit `first`; `before` of them were made in earlier cycles.
    fn start(syncer: Box<dyn Syncer>, durable: Arc<AtomicI64>, first: CommitSeq, before: i64) -> SyncThread {
        let (ask, asked) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                while asked.try_recv().is_ok() {}
                let covered = syncer.sync().expect("no sync fails here");
                durable.fetch_max(before + covered.saturating_sub(first) as i64, Ordering::SeqCst);
            }
        });
        SyncThread { ask, thread }
    }

    fn end(self) {
        drop(self.ask);
        self.thread.join().expect("the sync thread ends well");
    }
}

/// Where a cycle begins: an image, and the states that changes have led through so far. State 0 is the empty tree.
struct Start {
    image: Image,
    states: Vec<Model>,
    durable: i64,
    next_request: u64,
}

/// Opens the store on the mounted disk, changes names, and returns the images with all states, and the number of the next request.
fn cycle(start: Start, random: &mut Random, changes: u64) -> (Vec<Cut>, Vec<Model>, u64) {
    let Start { image, mut states, durable, next_request } = start;
    let recorder =
        Recorder::mount(Disk::from_image(&image), durable, Random(random.next()), IMAGES_PER_CYCLE);
    let engine = open_engine(&recorder.directory()).unwrap();
    let mut ns = if Namespace::is_formatted(&engine).unwrap() {
        Namespace::open(engine, common::options()).unwrap()
    } else {
        fresh(engine)
    };
    if stat(&mut ns, "d").is_err() {
        let root = mkdir(&mut ns, &Caller::root(), "d", 0o755).unwrap();
        ns.syncer().sync().unwrap();
        recorder.durable.store(0, Ordering::SeqCst);
        states = vec![Model::new(root)];
    }
    let (first, before) = (ns.committed(), states.len() as i64 - 1);
    let sync = SyncThread::start(ns.syncer(), recorder.durable.clone(), first, before);
    let model = states.last().expect("there is a first state").clone();
    let mut work = Work { ns: &mut ns, random, model, states, next_request };
    work.restart();
    for _ in 0..changes {
        work.step();
        if work.random.one_in(16) {
            sync.ask.send(()).unwrap();
        }
    }
    sync.end();
    let Work { states, next_request, .. } = work;
    drop(ns);
    (recorder.take_cuts(), states, next_request)
}

/// Opens an image, and says after how many changes it is; -1 where its making had not ended.
fn check(cut: &Cut, states: &[Model], label: &str, then_use: bool) -> i64 {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    cut.image.write_to(directory.path());
    let store = directory.path().join("store");
    let engine = open_engine(&store)
        .unwrap_or_else(|error| panic!("{label}: {error}; files: {}", cut.image.listing()));
    if !Namespace::is_formatted(&engine).unwrap() {
        assert_eq!(cut.durable, -1, "{label}: the file system is gone; files: {}", cut.image.listing());
        return -1;
    }
    let mut ns = Namespace::open(engine, common::options()).unwrap();
    assert_eq!(ns.check().unwrap(), vec![], "{label}");
    if stat(&mut ns, "d").is_err() {
        assert_eq!(cut.durable, -1, "{label}: the directory is gone");
        return -1;
    }
    // Of several states with the same replies all but one differ in something else.
    let alike = states.iter().enumerate().rev().filter(|(_, state)| state.is_answered_by(&mut ns));
    let alike: Vec<(usize, &Model)> = alike.collect();
    let compared: Vec<_> = alike.iter().map(|(at, state)| (*at, state.compare(&mut ns))).collect();
    let mut same = alike.iter().zip(&compared).filter(|(_, (_, same))| same.is_ok()).map(|(alike, _)| *alike);
    let (mut at, state) =
        same.next().unwrap_or_else(|| panic!("{label}: all is as after no number of changes: {compared:#?}"));
    if then_use {
        mkfile(&mut ns, &Caller::root(), "d/after", 0o644).unwrap();
        ns.syncer().sync().unwrap();
        drop(ns);
        ns = Namespace::open(open_engine(&store).unwrap(), common::options()).unwrap();
        assert_eq!(ns.check().unwrap(), vec![], "{label}, used");
        run(&mut ns, |op| op.unlink(&Caller::root(), now(2), common::at("d/after"))).unwrap();
        ns.reap_orphans(0).unwrap();
    } else {
        let places = state.append_to_all(&mut ns);
        let with_places =
            std::iter::once((at, state)).chain(same).find(|(_, state)| state.places() == places);
        at = with_places.unwrap_or_else(|| panic!("{label}: wrong places for appends: {places:?}")).0;
    }
    assert!(at as i64 >= cut.durable, "{label}: {} changes were durable, {at} are there", cut.durable);
    at as i64
}

#[test]
fn no_power_cut_loses_what_was_acknowledged() {
    let images = from_environment("WEFT_POWERCUT_IMAGES").map_or(IMAGES_DEFAULT, |images| images as usize);
    let (mut seen, mut cycles) = (0, 0);
    for seed in seeds() {
        if seen >= images {
            break;
        }
        let mut random = Random(seed);
        let mut start =
            Start { image: Image::default(), states: vec![Model::default()], durable: -1, next_request: 2 };
        // A chain of cuts, each in what the one before has left.
        for link in 0..3 {
            // Now and then more than a journal is filled, so that there is another.
            let changes = if seed % 8 == 5 && link == 0 { 9000 } else { 100 + random.below(500) };
            let (mut cuts, states, next_request) = cycle(start, &mut random, changes);
            cycles += 1;
            let mut ends = Vec::new();
            for (number, cut) in cuts.iter().enumerate() {
                let label = format!("seed {seed}, cycle {link}, image {number} at event {}", cut.event);
                ends.push(check(cut, &states, &label, number % 4 == 0));
            }
            seen += cuts.len();
            let chosen = random.below(cuts.len() as u64) as usize;
            let (cut, end) = (cuts.swap_remove(chosen), ends[chosen]);
            let states = states[..=end.max(0) as usize].to_vec();
            start = Start { image: cut.image, states, durable: end.min(cut.durable.max(-1)), next_request };
        }
    }
    println!("{seen} images of {cycles} cycles, seeds {} and those that follow: nothing was lost", seed());
}

/// A sync that fails takes what it was to write for written ever after. So nothing more is accepted, and when the store is
/// opened again, what only the page cache has is written again before anything is built on it.
#[test]
fn after_a_failed_sync_the_store_ends_and_a_new_start_makes_good() {
    let recorder = Recorder::mount(Disk::new(), -1, Random(seed()), 0);
    let directory = recorder.directory();
    let boot = u64::MAX;
    let mut ns = fresh(open_engine_in(&directory, boot).unwrap());
    mkdir(&mut ns, &Caller::root(), "d", 0o755).unwrap();
    let syncer = ns.syncer();
    syncer.sync().unwrap();
    mkfile(&mut ns, &Caller::root(), "d/unsure", 0o644).unwrap();
    recorder.disk.lock().unwrap().fail_sync_of = Some(".jnl");
    assert!(matches!(syncer.sync(), Err(EngineError::Store { .. })));
    assert!(matches!(syncer.sync(), Err(EngineError::Poisoned)), "a second sync must not count as success");
    let refused = mkfile(&mut ns, &Caller::root(), "d/refused", 0o644);
    assert!(matches!(refused, Err(MetaError::Engine(EngineError::Poisoned))));
    drop(ns);

    let cut = |seed: u64| {
        let image = recorder.disk.lock().unwrap().cut(&mut Random(seed));
        let cut = tempfile::tempdir_in(scratch()).unwrap();
        image.write_to(cut.path());
        let engine =
            open_engine(&cut.path().join("store")).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let ns = Namespace::open(engine, common::options()).unwrap();
        sound(&ns);
        (ns, cut)
    };
    let mut ns = Namespace::open(open_engine_in(&directory, boot).unwrap(), common::options()).unwrap();
    assert!(stat(&mut ns, "d/unsure").is_ok(), "the page cache has it");
    mkfile(&mut ns, &Caller::root(), "d/after", 0o644).unwrap();
    ns.syncer().sync().unwrap();
    for seed in seeds().take(8) {
        let (mut ns, _cut) = cut(seed);
        assert!(stat(&mut ns, "d/after").is_ok() && stat(&mut ns, "d/unsure").is_ok(), "seed {seed}");
    }
}

/// A new start after a kill notes how much of the journal is durable. It has made so much durable before: a power cut at any moment
/// of the start leaves nothing that is taken for damage.
#[test]
fn a_power_cut_while_a_start_makes_good_is_not_taken_for_damage() {
    const EVENTS_MAX: usize = 1000;
    for seed in seeds().take(12) {
        let recorder = Recorder::mount(Disk::new(), -1, Random(seed), EVENTS_MAX);
        let directory = recorder.directory();
        let boot = u64::MAX - seed;
        let mut ns = fresh(open_engine_in(&directory, boot).unwrap());
        let syncer = ns.syncer();
        syncer.sync().unwrap();
        for number in 0..20 {
            mkfile(&mut ns, &Caller::root(), &format!("unsure{number}"), 0o644).unwrap();
        }
        recorder.disk.lock().unwrap().fail_sync_of = Some(".jnl");
        assert!(syncer.sync().is_err());
        drop(ns);
        recorder.take_cuts();
        // From here on there is an image of every event.
        recorder.disk.lock().unwrap().events = 0;
        let engine = open_engine_in(&directory, boot).unwrap();
        for cut in recorder.take_cuts() {
            let directory = tempfile::tempdir_in(scratch()).unwrap();
            cut.image.write_to(directory.path());
            let engine = open_engine(&directory.path().join("store"))
                .unwrap_or_else(|error| panic!("seed {seed}, event {}: {error}", cut.event));
            sound(&Namespace::open(engine, common::options()).unwrap());
        }
        drop(engine);
    }
}

/// fjall syncs the journal too, before it writes a table out. When that sync is the one that is told of an error, the next
/// one of ours must be told as well, though the kernel has the pages for clean by then.
#[test]
fn a_failed_sync_of_the_library_is_one_of_ours() {
    let recorder = Recorder::mount(Disk::new(), -1, Random(seed()), 0);
    let mut ns = fresh(open_engine(&recorder.directory()).unwrap());
    mkfile(&mut ns, &Caller::root(), "f", 0o644).unwrap();
    let syncer = ns.syncer();
    syncer.sync().unwrap();
    recorder.disk.lock().unwrap().fail_sync_of = Some(".jnl");
    let failed = || recorder.disk.lock().unwrap().fail_sync_of.is_none();
    // Until a table is full and fjall syncs the journal, or has ended by it.
    let mut number = 0;
    wait_until("fjall has synced the journal", || {
        number += 1;
        let value = value(number, 60_000);
        let set = run(&mut ns, |op| {
            op.set_xattr(&Caller::root(), now(2), at("f"), true, BIG, &value, XattrMode::Any)
        });
        assert!(set.is_ok() || failed());
        failed()
    });
    assert!(syncer.sync().is_err(), "the journal's pages were lost");
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 60, "{what}: not after 60 s");
        std::thread::yield_now();
    }
}

/// Whatever of a store's making had happened, the next start makes one or finds it whole.
#[test]
fn a_store_whose_making_was_interrupted_is_made_again() {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    let store = directory.path().join("store");
    drop(open_engine(&store).unwrap());
    assert!(!store.join("new").exists());
    // It is written when the making has ended.
    std::fs::remove_file(store.join("journal.state")).unwrap();
    std::fs::remove_file(store.join("version")).unwrap();
    std::fs::create_dir_all(store.join("new/keyspaces")).unwrap();
    drop(fresh(open_engine(&store).unwrap()));
    std::fs::remove_file(store.join("version")).unwrap();
    for without in ["weft.lock", "journal.state"] {
        std::fs::remove_file(store.join(without)).unwrap();
        let error = open_engine(&store).err().expect("a store with data is not made anew").to_string();
        assert!(error.contains("version"), "{error}");
    }
}
