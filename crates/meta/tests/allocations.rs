//! How often the operations that come most often ask for memory, over the embedded engine: none of them may become careless unnoticed.
//!
//! Counted on the thread that runs the operations, so that the engine's own threads do not matter.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weft_meta::{
    Caller, FjallEngine, FjallOptions, MetaError, Namespace, NamespaceOptions, NewFile, Once, Op, WriteReport,
};

mod common;
use common::{S1, WRITE, at, now};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no count any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Files of each round; the first round fills what grows with use.
const FILES: u64 = 1000;
const ROUNDS: u64 = 3;
/// About as long as the reply to a create.
const REPLY: [u8; 164] = [7; 164];

struct Client {
    ns: Namespace<FjallEngine>,
    request: u64,
}

impl Client {
    /// Runs an operation once, as a server does, and keeps its reply.
    fn change<T>(&mut self, run: impl FnOnce(&mut Op<FjallEngine>) -> Result<T, MetaError>) -> T {
        self.request += 1;
        let Once::Fresh(mut op) = self.ns.begin_once(now(1), S1, 0, self.request).unwrap() else {
            panic!("a new request has not run")
        };
        let result = run(&mut op).unwrap();
        op.commit_with_reply(&REPLY).unwrap();
        result
    }
}

/// Allocations of each call, on average.
fn each(mut call: impl FnMut(&str)) -> f64 {
    let names: Vec<String> = (0..FILES).map(|file| format!("directory/with-some-name-{file:05}")).collect();
    let before = COUNT.get();
    names.iter().for_each(|name| call(name));
    (COUNT.get() - before) as f64 / FILES as f64
}

#[test]
fn common_operations_ask_for_memory_a_few_times_only() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = FjallEngine::open(directory.path(), &FjallOptions::default()).unwrap();
    Namespace::format(&mut engine, [9; 16], &Caller::root(), now(0)).unwrap();
    let ns = Namespace::open(engine, NamespaceOptions::default()).unwrap();
    let mut client = Client { ns, request: 0 };
    let root = Caller::root();
    client.change(|op| op.mkdir(&root, now(1), at("directory"), 0o755));
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    for round in 1..=ROUNDS {
        let mut open = Vec::with_capacity(FILES as usize);
        let create = each(|name| {
            let opened = client.change(|op| op.create(&root, now(1), S1, at(name), &new, WRITE));
            open.push(opened.attr.ino);
        });
        let mut inos = open.into_iter();
        let close = each(|_| {
            let ino = inos.next().unwrap();
            client.change(|op| op.close(now(1), S1, ino, true, Some(&WriteReport::default())));
        });
        let stat = each(|name| {
            client.ns.begin().stat(&root, at(name), false).unwrap();
        });
        let unlink = each(|name| {
            client.change(|op| op.unlink(&root, now(1), at(name)));
        });
        eprintln!("round {round}: create {create:.1}, close {close:.1}, stat {stat:.1}, unlink {unlink:.1}");
        if round == ROUNDS {
            assert!(create < 22.0 && close < 8.0 && stat < 1.5 && unlink < 18.0);
        }
    }
}
