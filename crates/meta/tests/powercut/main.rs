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
//! `WEFT_POWERCUT_IMAGES` says how many images there are to be (a few by default), `WEFT_POWERCUT_SEED` with which seed
//! it begins. A failure names its seed.

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod recorder;

use common::*;
use disk::{Disk, Image, Random};
use recorder::{Cut, Recorder};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use weft_meta::{
    Caller, CommitSeq, EngineError, FjallEngine, FjallOptions, MetaError, Namespace, Op, RenameMode, SetAttr,
    Syncer, XattrMode,
};

const IMAGES_DEFAULT: usize = 60;
const IMAGES_PER_CYCLE: usize = 12;
/// With this many files, changes meet each other.
const NAMES: u64 = 40;
const BIG: &[u8] = b"user.big";

type Names = Namespace<FjallEngine>;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Small tables, so that they are written out and compacted all the time. Each time the kernel is another one.
fn open_engine(directory: &Path) -> Result<FjallEngine, EngineError> {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    open_engine_in(directory, BOOTS.fetch_add(1, Ordering::SeqCst))
}

fn open_engine_in(directory: &Path, boot: u64) -> Result<FjallEngine, EngineError> {
    let boot_id = u128::from(boot).to_be_bytes();
    FjallEngine::open(directory, &FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, boot_id })
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct File {
    mode: u32,
    value: Option<u64>,
}

/// What the tree must be: the files by number, and which of them each name leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    next_file: u64,
}

#[derive(Debug, Clone)]
enum Change {
    Create(String, u32),
    Remove(String),
    Rename(String, String),
    Link(String, String),
    Chmod(String, u32),
    SetValue(String, u64, usize),
}

impl Change {
    fn random(random: &mut Random) -> Change {
        let mut name = || format!("f{}", random.below(NAMES));
        let (one, other) = (name(), name());
        match random.below(12) {
            0..3 => Change::Create(one, 0o600 | random.below(0o100) as u32),
            3 => Change::Remove(one),
            4..6 => Change::Rename(one, other),
            6 => Change::Link(one, other),
            7 => Change::Chmod(one, random.below(0o1000) as u32),
            8 => Change::SetValue(one, random.next(), 60_000),
            _ => Change::SetValue(one, random.next(), random.below(9000) as usize),
        }
    }

    /// In the namespace; a change that is refused changes nothing.
    fn run(&self, op: &mut Op<FjallEngine>) -> Result<(), MetaError> {
        let (root, now) = (Caller::root(), now(1));
        let path = |name: &String| format!("d/{name}");
        match self {
            Change::Create(name, mode) => {
                op.mknod(&root, now, at(&path(name)), weft_meta::Kind::File, *mode, 0).map(drop)
            }
            Change::Remove(name) => op.unlink(&root, now, at(&path(name))).map(drop),
            Change::Rename(from, to) => {
                op.rename(&root, now, at(&path(from)), at(&path(to)), RenameMode::Replace).map(drop)
            }
            Change::Link(from, to) => op.link(&root, now, at(&path(from)), false, at(&path(to))).map(drop),
            Change::Chmod(name, mode) => {
                let change = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                op.setattr(&root, now, at(&path(name)), false, &change).map(drop)
            }
            Change::SetValue(name, seed, bytes) => {
                let value = value(*seed, *bytes);
                op.set_xattr(&root, now, at(&path(name)), true, BIG, &value, XattrMode::Any)
            }
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Change::Create(name, mode) => {
                model.names.insert(name.clone(), model.next_file);
                model.files.insert(model.next_file, File { mode: *mode, value: None });
                model.next_file += 1;
            }
            Change::Remove(name) => drop(model.names.remove(name)),
            Change::Rename(from, to) => {
                let file = model.names[from];
                // Two names of one file stay as they are.
                if model.names.get(to) != Some(&file) {
                    model.names.remove(from);
                    model.names.insert(to.clone(), file);
                }
            }
            Change::Link(from, to) => drop(model.names.insert(to.clone(), model.names[from])),
            Change::Chmod(name, mode) => model.file(name).mode = *mode,
            Change::SetValue(name, seed, bytes) => {
                model.file(name).value = Some(hash_of(&value(*seed, *bytes)));
            }
        }
        let used: Vec<u64> = model.names.values().copied().collect();
        model.files.retain(|number, _| used.contains(number));
    }
}

impl Model {
    fn file(&mut self, name: &str) -> &mut File {
        let number = self.names[name];
        self.files.get_mut(&number).expect("names lead to files")
    }

    /// By what a look at the tree tells.
    fn tree(&self) -> Tree {
        let of = |number: &u64| {
            let links = self.names.values().filter(|other| *other == number).count() as u32;
            (self.files[number].clone(), links)
        };
        self.names.iter().map(|(name, number)| (name.clone(), of(number))).collect()
    }
}

/// Name, file, links.
type Tree = BTreeMap<String, (File, u32)>;

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

/// The tree in a store; `None` where its making had not come so far.
fn tree_of(ns: &mut Names) -> Option<Tree> {
    let root = Caller::root();
    let dir = ns.begin().stat(&root, at("d"), true).ok()?.ino;
    let mut tree = Tree::new();
    let mut after = 0;
    loop {
        let page = ns.begin().readdir(&root, dir, after, 100, 1 << 16, true).unwrap();
        for entry in page.entries {
            after = entry.cookie;
            let name = String::from_utf8(entry.name).unwrap();
            let read = ns.begin().get_xattr(&root, at(&format!("d/{name}")), true, BIG);
            let value = match read {
                Ok(value) => Some(hash_of(&value)),
                Err(MetaError::NoXattr) => None,
                Err(error) => panic!("{name}: {error}"),
            };
            let attr = entry.attr.expect("it was asked for");
            tree.insert(name, (File { mode: attr.mode, value }, attr.nlink));
        }
        if page.eof {
            return Some(tree);
        }
    }
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
}

/// Opens the store on the mounted disk, changes names, and returns the images with all states.
fn cycle(start: Start, random: &mut Random, changes: u64) -> (Vec<Cut>, Vec<Model>) {
    let Start { image, mut states, durable } = start;
    let recorder =
        Recorder::mount(Disk::from_image(&image), durable, Random(random.next()), IMAGES_PER_CYCLE);
    let engine = open_engine(&recorder.directory()).unwrap();
    let mut ns = if Namespace::is_formatted(&engine).unwrap() {
        Namespace::open(engine, common::options()).unwrap()
    } else {
        fresh(engine)
    };
    if stat(&mut ns, "d").is_err() {
        mkdir(&mut ns, &Caller::root(), "d", 0o755).unwrap();
        ns.syncer().sync().unwrap();
        recorder.durable.store(0, Ordering::SeqCst);
    }
    let (first, before) = (ns.committed(), states.len() as i64 - 1);
    let sync = SyncThread::start(ns.syncer(), recorder.durable.clone(), first, before);
    let mut model = states.last().expect("there is a first state").clone();
    for _ in 0..changes {
        let change = Change::random(random);
        let committed = ns.committed();
        if run(&mut ns, |op| change.run(op)).is_ok() && ns.committed() > committed {
            change.apply(&mut model);
            states.push(model.clone());
        }
        if random.one_in(16) {
            sync.ask.send(()).unwrap();
        }
    }
    sync.end();
    drop(ns);
    (recorder.take_cuts(), states)
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
    let Some(tree) = tree_of(&mut ns) else {
        assert_eq!(cut.durable, -1, "{label}: the directory is gone");
        return -1;
    };
    let states = states.iter().enumerate();
    let found = states.rev().find(|(_, state)| state.names.len() == tree.len() && state.tree() == tree);
    let (at, _) = found.unwrap_or_else(|| panic!("{label}: the tree is that after no number of changes"));
    assert!(at as i64 >= cut.durable, "{label}: {} changes were durable, {at} are there", cut.durable);
    if then_use {
        mkfile(&mut ns, &Caller::root(), "after", 0o644).unwrap();
        ns.syncer().sync().unwrap();
        drop(ns);
        let mut ns = Namespace::open(open_engine(&store).unwrap(), common::options()).unwrap();
        assert_eq!(ns.check().unwrap(), vec![], "{label}, used");
        assert!(stat(&mut ns, "after").is_ok() && tree_of(&mut ns) == Some(tree), "{label}, used");
    }
    at as i64
}

/// In memory where there is such a place.
fn scratch() -> std::path::PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

#[test]
fn no_power_cut_loses_what_was_acknowledged() {
    let images = from_environment("WEFT_POWERCUT_IMAGES").map_or(IMAGES_DEFAULT, |images| images as usize);
    let first_seed = from_environment("WEFT_POWERCUT_SEED").unwrap_or(1);
    let (mut seen, mut cycles, mut seed) = (0, 0, first_seed);
    while seen < images {
        let mut random = Random(seed);
        let mut start = Start { image: Image::default(), states: vec![Model::default()], durable: -1 };
        // A chain of cuts, each in what the one before has left.
        for link in 0..3 {
            // Now and then more than a journal is filled, so that there is another.
            let changes = if seed % 8 == 5 && link == 0 { 9000 } else { 100 + random.below(500) };
            let (mut cuts, states) = cycle(start, &mut random, changes);
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
            start = Start { image: cut.image, states, durable: end.min(cut.durable.max(-1)) };
        }
        seed += 1;
    }
    println!("{seen} images of {cycles} cycles, seeds {first_seed} to {}: nothing was lost", seed - 1);
}

/// A sync that fails takes what it was to write for written ever after. So nothing more is accepted, and when the store is
/// opened again, what only the page cache has is written again before anything is built on it.
#[test]
fn after_a_failed_sync_the_store_ends_and_a_new_start_makes_good() {
    let recorder = Recorder::mount(Disk::new(), -1, Random(7), 0);
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

    let mut ns = Namespace::open(open_engine_in(&directory, boot).unwrap(), common::options()).unwrap();
    assert!(stat(&mut ns, "d/unsure").is_ok(), "the page cache has it");
    mkfile(&mut ns, &Caller::root(), "d/after", 0o644).unwrap();
    ns.syncer().sync().unwrap();
    for seed in 0..8 {
        let image = recorder.disk.lock().unwrap().cut(&mut Random(seed));
        let cut = tempfile::tempdir_in(scratch()).unwrap();
        image.write_to(cut.path());
        let mut ns =
            Namespace::open(open_engine(&cut.path().join("store")).unwrap(), common::options()).unwrap();
        sound(&ns);
        assert!(stat(&mut ns, "d/after").is_ok() && stat(&mut ns, "d/unsure").is_ok(), "seed {seed}");
    }
}

/// fjall syncs the journal too, before it writes a table out. When that sync is the one that is told of an error, the next
/// one of ours must be told as well, though the kernel has the pages for clean by then.
#[test]
fn a_failed_sync_of_the_library_is_one_of_ours() {
    let recorder = Recorder::mount(Disk::new(), -1, Random(9), 0);
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
