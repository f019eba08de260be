//! What one operation writes: no key is written by all creates, or by all removals, so that two of them in different
//! directories need not wait for each other.

use std::collections::BTreeSet;
use weft_meta::{
    Batch, Caller, CommitSeq, Engine, EngineError, MemEngine, Namespace, NewFile, Once, Op, Room, Scan,
    Syncer,
};

mod common;
use common::{S1, WRITE, at, fresh, mkdir, now, sound};

/// An engine that keeps its last batch.
#[derive(Default)]
struct Watched {
    engine: MemEngine,
    last: Batch,
}

impl Engine for Watched {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.engine.get(key)
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a> {
        self.engine.scan(from, to)
    }

    fn hold_view(&mut self) -> Result<(), EngineError> {
        self.engine.hold_view()
    }

    fn view<'a>(&'a self, from: &[u8]) -> Option<Scan<'a>> {
        self.engine.view(from)
    }

    fn drop_view(&mut self) {
        self.engine.drop_view();
    }

    fn commit(&mut self, batch: &Batch) -> Result<CommitSeq, EngineError> {
        self.last = batch.clone();
        self.engine.commit(batch)
    }

    fn committed(&self) -> CommitSeq {
        self.engine.committed()
    }

    fn has_room(&mut self, room: Room) -> bool {
        self.engine.has_room(room)
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        self.engine.syncer()
    }
}

const DIRECTORIES: u64 = 20;
/// About as long as the reply to a create.
const REPLY: [u8; 164] = [7; 164];

fn change<T>(ns: &mut Namespace<Watched>, request: u64, run: impl Fn(&mut Op<'_, Watched>) -> T) -> T {
    let slot = (request % 1000) as u32;
    let Once::Fresh(mut op) = ns.begin_once(now(1), S1, slot, request).unwrap() else { panic!("it is new") };
    let result = run(&mut op);
    op.commit_with_reply(&REPLY).unwrap();
    result
}

/// Keys of the last batch, and how many bytes it has.
fn written(ns: &Namespace<Watched>) -> (BTreeSet<Vec<u8>>, usize) {
    let last = &ns.engine().last;
    let bytes = last.writes().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len)).sum();
    (last.writes().map(|(key, _)| key.to_vec()).collect(), bytes)
}

fn common(all: &[(BTreeSet<Vec<u8>>, usize)]) -> Vec<String> {
    let (first, _) = &all[0];
    let in_all = first.iter().filter(|key| all.iter().all(|(keys, _)| keys.contains(*key)));
    in_all.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[test]
fn no_key_is_written_by_every_create_or_by_every_removal() {
    let mut ns = fresh(Watched::default());
    let root = Caller::root();
    (0..DIRECTORIES).for_each(|dir| drop(mkdir(&mut ns, &root, &format!("d{dir}"), 0o755)));
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let path = |dir: u64| format!("d{dir}/file");
    let mut creates = Vec::new();
    for dir in 0..DIRECTORIES {
        let opened = change(&mut ns, dir + 1, |op| op.create(&root, now(1), S1, at(&path(dir)), &new, WRITE));
        creates.push(written(&ns));
        let ino = opened.unwrap().attr.ino;
        change(&mut ns, 100 + dir, |op| op.close(now(1), S1, ino, true, None)).unwrap();
    }
    let mut removals = Vec::new();
    for dir in 0..DIRECTORIES {
        change(&mut ns, 200 + dir, |op| op.unlink(&root, now(1), at(&path(dir)))).unwrap();
        removals.push(written(&ns));
    }
    for (what, all) in [("create", &creates), ("removal", &removals)] {
        let (keys, bytes) = &all[1];
        eprintln!("one {what}: {} keys, {bytes} bytes", keys.len());
        assert_eq!(common(all), Vec::<String>::new(), "written by every {what}");
    }
    sound(&ns);
}
