//! Changes of names and attributes of every kind, and what the store must have after any number of them.
//!
//! ```text
//!   commit    1      2       3        4         …      each is one change with the reply that is kept for it
//!   model     ●──────●───────●────────●─────────●      states: what the store has after each commit
//!   image                    ▲ all is as in one state: names, attributes and kept replies
//! ```
//!
//! A state has the tree, files without a name that are open, what is known of sizes, places of appends, files whose data is still to be
//! removed, and kept replies. Who has which file open is in memory only: a power cut takes it.

use crate::common::*;
use crate::{BIG, Names, hash_of, value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use weft_meta::{
    Caller, FjallEngine, Kind, MetaError, NewFile, Once, Op, OpenFlags, RenameMode, SetAttr, WriteReport,
    XattrMode,
};
use weft_test_random::Random;

const SLOTS: u64 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    kind: Kind,
    mode: u32,
    value: Option<u64>,
    links: u32,
    /// Of a directory.
    names: BTreeMap<String, u64>,
    size: u64,
    /// The size is to be asked of the I/O servers.
    live: bool,
    /// Data files may be there though the size is known.
    written: bool,
    /// The end of the places given to appends.
    tail: Option<u64>,
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Node {
        let names = BTreeMap::new();
        Node { kind, mode, value: None, links: 1, names, size: 0, live: false, written: false, tail: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Read,
    /// `sure`: what the writer reports is all that was written since the size was known.
    Write {
        sure: bool,
    },
}

/// What the store must have.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The directory in which all happens.
    root: u64,
    /// By inode number.
    nodes: BTreeMap<u64, Node>,
    garbage: BTreeSet<u64>,
    /// By slot, the request that was answered last.
    replies: BTreeMap<u32, u64>,
    holds: BTreeMap<u64, Hold>,
}

/// What a name leads to: inode number, kind, mode, links, size, whether that is live, value.
type Shown = (u64, Kind, u32, u32, u64, bool, Option<u64>);

impl Model {
    /// An empty directory.
    pub fn new(root: u64) -> Model {
        let nodes = BTreeMap::from([(root, Node::new(Kind::Directory, 0o755))]);
        Model { root, nodes, ..Model::default() }
    }

    fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).expect("it is there")
    }

    /// The directory of a path's last name, the name, and what is there.
    fn find(&self, path: &str) -> Option<(u64, String, Option<u64>)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut dir = self.root;
        for part in above.split('/').filter(|part| !part.is_empty()) {
            dir = *self.nodes[&dir].names.get(part)?;
        }
        Some((dir, name.to_string(), self.nodes[&dir].names.get(name).copied()))
    }

    fn at(&self, path: &str) -> Option<u64> {
        self.find(path)?.2
    }

    fn put_name(&mut self, path: &str, ino: u64) {
        let (dir, name, _) = self.find(path).expect("the store has found it");
        self.node(dir).names.insert(name, ino);
    }

    fn take_name(&mut self, path: &str) -> u64 {
        let (dir, name, _) = self.find(path).expect("the store has found it");
        self.node(dir).names.remove(&name).expect("the store has found it")
    }

    fn add(&mut self, path: &str, ino: u64, kind: Kind, mode: u32) {
        self.nodes.insert(ino, Node::new(kind, mode));
        self.put_name(path, ino);
    }

    fn drop_link(&mut self, ino: u64) {
        let held = self.holds.contains_key(&ino);
        let node = self.node(ino);
        node.links -= 1;
        if node.links == 0 && !held {
            self.purge(ino);
        }
    }

    fn purge(&mut self, ino: u64) {
        let node = self.nodes.remove(&ino).expect("it is there");
        if node.kind == Kind::File && (node.written || node.live) {
            self.garbage.insert(ino);
        }
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) {
        let (source, target) = (self.at(from).expect("the store has found it"), self.at(to));
        if target == Some(source) {
            return;
        }
        if let (Some(target), RenameMode::Exchange) = (target, mode) {
            self.put_name(from, target);
            // A path through a directory that has just moved would lead elsewhere; the store refuses these.
            self.put_name(to, source);
            return;
        }
        if target.is_some() {
            let target = self.take_name(to);
            self.drop_link(target);
        }
        self.put_name(to, source);
        let (dir, name, _) = self.find(from).expect("the store has found it");
        self.node(dir).names.remove(&name);
    }

    fn open(&mut self, ino: u64, write: bool) {
        let node = self.node(ino);
        let hold = if write { Hold::Write { sure: !node.live } } else { Hold::Read };
        node.live |= write;
        self.holds.insert(ino, hold);
    }

    fn report(&mut self, ino: u64, end: u64) {
        let node = self.node(ino);
        node.size = node.size.max(end);
        node.written |= end > 0;
    }

    fn close(&mut self, ino: u64, report: Option<u64>) {
        let hold = self.holds.remove(&ino).expect("it was open");
        if let Hold::Write { sure } = hold {
            report.into_iter().for_each(|end| self.report(ino, end));
            let node = self.node(ino);
            node.live = !(sure && report.is_some());
            node.tail = None;
        }
        if self.nodes[&ino].links == 0 {
            self.purge(ino);
        }
    }

    fn begin_truncation(&mut self, ino: u64, size: u64, data_work: bool) {
        let node = self.node(ino);
        if data_work {
            node.live = true;
            node.tail = None;
        } else {
            node.size = size;
        }
    }

    fn end_truncation(&mut self, ino: u64, size: u64) {
        let hold = self.holds.get_mut(&ino);
        let mut writes = false;
        if let Some(Hold::Write { sure }) = hold {
            (*sure, writes) = (true, true);
        }
        let node = self.node(ino);
        node.size = size;
        node.live = writes;
        node.written = true;
    }

    /// Nobody has anything open, and replies are forgotten.
    fn end_session(&mut self) {
        for (ino, hold) in std::mem::take(&mut self.holds) {
            if self.nodes[&ino].links == 0 {
                self.purge(ino);
            } else if let Hold::Write { .. } = hold {
                self.node(ino).tail = None;
            }
        }
        self.replies.clear();
    }

    /// By path.
    fn tree(&self) -> BTreeMap<String, Shown> {
        let mut tree = BTreeMap::new();
        let mut waiting = vec![(String::new(), self.root)];
        while let Some((above, dir)) = waiting.pop() {
            for (name, ino) in &self.nodes[&dir].names {
                let path = format!("{above}/{name}");
                tree.insert(path.clone(), self.shown(*ino));
                if self.nodes[ino].kind == Kind::Directory {
                    waiting.push((path, *ino));
                }
            }
        }
        tree
    }

    fn shown(&self, ino: u64) -> Shown {
        let node = &self.nodes[&ino];
        let (links, size) = match node.kind {
            Kind::Directory => {
                let is_directory = |ino: &&u64| self.nodes[*ino].kind == Kind::Directory;
                (2 + node.names.values().filter(is_directory).count() as u32, node.names.len() as u64)
            }
            _ => (node.links, node.size),
        };
        (ino, node.kind, node.mode, links, size, node.live, node.value)
    }

    /// Whether the store has the replies of this state, and no later ones.
    pub fn is_answered_by(&self, ns: &mut Names) -> bool {
        (0..SLOTS as u32).all(|slot| match self.replies.get(&slot) {
            Some(request) => {
                matches!(ns.begin_once(now(3), S1, slot, *request), Ok(Once::Replay(reply)) if reply == reply_of(*request))
            }
            // The first request that there can be is repeated.
            None => matches!(ns.begin_once(now(3), S1, slot, 1), Ok(Once::Fresh(_))),
        })
    }

    /// Compares all that the store has with this state, of whose replies it has.
    pub fn compare(&self, ns: &mut Names) -> Result<(), String> {
        let same = |what: &str, there: &dyn Debug, expected: &dyn Debug| {
            let (there, expected) = (format!("{there:?}"), format!("{expected:?}"));
            if there == expected { Ok(()) } else { Err(format!("{what}: {there}, not {expected}")) }
        };
        same("tree", &tree_of(ns, self.root), &self.tree())?;
        for (ino, node) in self.nodes.iter().filter(|(_, node)| node.links == 0) {
            let attr =
                ns.begin().getattr(*ino).map_err(|error| format!("{ino}, which has no name: {error}"))?;
            let there = (attr.nlink, attr.size, attr.size_live);
            same("a file without a name", &there, &(0, node.size, node.live))?;
        }
        // Beside these the root has an inode.
        same("inodes", &ns.statfs().inodes, &(self.nodes.len() as u64 + 1))?;
        let garbage = ns.begin().garbage(0, usize::MAX).unwrap();
        let garbage: BTreeSet<u64> = garbage.into_iter().map(|(ino, _)| ino).collect();
        same("garbage", &garbage, &self.garbage)
    }

    /// The places that the next appends get, by file.
    pub fn places(&self) -> BTreeMap<u64, u64> {
        let files = self.nodes.iter().filter(|(_, node)| node.kind == Kind::File);
        files.map(|(ino, node)| (*ino, node.tail.unwrap_or(0))).collect()
    }

    /// Appends to every file, and returns the places. The store is another one afterwards.
    pub fn append_to_all(&self, ns: &mut Names) -> BTreeMap<u64, u64> {
        let mut append = |ino: u64| {
            let epoch = run(ns, |op| op.reopen(S1, ino, true)).unwrap().epoch;
            let place = run(ns, |op| op.append_place(S1, ino, 1, 0, epoch)).unwrap();
            (ino, place.offset.expect("nobody truncates it"))
        };
        self.places().into_keys().map(&mut append).collect()
    }
}

fn reply_of(request: u64) -> [u8; 8] {
    request.to_le_bytes()
}

fn tree_of(ns: &mut Names, root: u64) -> BTreeMap<String, Shown> {
    let caller = Caller::root();
    let mut tree = BTreeMap::new();
    let mut waiting = vec![(String::new(), root)];
    while let Some((above, dir)) = waiting.pop() {
        let mut after = 0;
        loop {
            let page = ns.begin().readdir(&caller, dir, after, 100, 1 << 16, true).unwrap();
            for entry in page.entries {
                after = entry.cookie;
                let path = format!("{above}/{}", String::from_utf8(entry.name).unwrap());
                let value = match ns.begin().get_xattr(&caller, at(&format!("d{path}")), true, BIG) {
                    Ok(value) => Some(hash_of(&value)),
                    Err(MetaError::NoXattr) => None,
                    Err(error) => panic!("{path}: {error}"),
                };
                let attr = entry.attr.expect("it was asked for");
                if attr.kind == Kind::Directory {
                    waiting.push((path.clone(), attr.ino));
                }
                tree.insert(
                    path,
                    (attr.ino, attr.kind, attr.mode, attr.nlink, attr.size, attr.size_live, value),
                );
            }
            if page.eof {
                break;
            }
        }
    }
    tree
}

/// Makes changes, and notes what the store has after each commit.
pub struct Work<'a> {
    pub ns: &'a mut Names,
    pub random: &'a mut Random,
    pub model: Model,
    pub states: Vec<Model>,
    /// Numbers of requests go up, also over cycles.
    pub next_request: u64,
}

impl Work<'_> {
    /// As clients do after a restart: some come back for what they had open, and the time of grace ends.
    pub fn restart(&mut self) {
        for (ino, hold) in std::mem::take(&mut self.model.holds) {
            if self.random.one_in(2) {
                let write = hold != Hold::Read;
                self.change(|op| op.reopen(S1, ino, write), |model, _| model.open(ino, write));
            }
        }
        let committed = self.ns.committed();
        let states = self.states.len();
        self.ns.reap_orphans(0).unwrap();
        let model = &mut self.model;
        let writes = |ino: &u64| matches!(model.holds.get(ino), Some(Hold::Write { .. }));
        let old: Vec<u64> = model
            .nodes
            .iter()
            .filter(|(ino, node)| node.tail.is_some() && !writes(ino))
            .map(|(ino, _)| *ino)
            .collect();
        if !old.is_empty() {
            old.into_iter().for_each(|ino| model.node(ino).tail = None);
            self.states.push(model.clone());
        }
        let gone: Vec<u64> = model
            .nodes
            .iter()
            .filter(|(ino, node)| node.links == 0 && !model.holds.contains_key(ino))
            .map(|(ino, _)| *ino)
            .collect();
        if !gone.is_empty() {
            gone.into_iter().for_each(|ino| model.purge(ino));
            self.states.push(model.clone());
        }
        assert_eq!(self.ns.committed() - committed, (self.states.len() - states) as u64);
    }

    /// Runs one operation as a request of some slot. One that is refused changes nothing.
    fn change<T>(
        &mut self,
        run: impl FnOnce(&mut Op<FjallEngine>) -> Result<T, MetaError>,
        apply: impl FnOnce(&mut Model, &T),
    ) -> Option<T> {
        let (slot, request) = (self.random.below(SLOTS) as u32, self.next_request);
        self.next_request += 1;
        let committed = self.ns.committed();
        let Once::Fresh(mut op) = self.ns.begin_once(now(1), S1, slot, request).unwrap() else {
            panic!("request {request} has an answer before it was made")
        };
        let result = run(&mut op).ok()?;
        let commits = op.commit_with_reply(&reply_of(request)).unwrap() - committed;
        apply(&mut self.model, &result);
        if commits > 0 {
            assert_eq!(commits, 1);
            self.model.replies.insert(slot, request);
            self.states.push(self.model.clone());
        }
        Some(result)
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.random.below(3);
        let names: Vec<&str> = (0..depth).map(|_| ["a", "b", "c"][self.random.below(3) as usize]).collect();
        names.join("/")
    }

    /// A file that is open for writing, if there is one.
    fn writing(&mut self) -> Option<u64> {
        let writers = |(ino, hold): (&u64, &Hold)| matches!(hold, Hold::Write { .. }).then_some(*ino);
        let writers: Vec<u64> = self.model.holds.iter().filter_map(writers).collect();
        let chosen = self.random.below(writers.len() as u64) as usize;
        writers.get(chosen).copied()
    }

    pub fn step(&mut self) {
        let root = Caller::root();
        let (one, other) = (self.path(), self.path());
        let (path, to) = (format!("d/{one}"), format!("d/{other}"));
        let mode = 0o600 | self.random.below(0o100) as u32;
        let bytes = self.random.below(100_000);
        match self.random.below(44) {
            0..5 => {
                self.change(
                    |op| op.mknod(&root, now(1), at(&path), Kind::File, mode, 0),
                    |model, made| model.add(&one, made.attr.ino, Kind::File, mode),
                );
            }
            5..8 => {
                let flags = OpenFlags { exclusive: true, ..WRITE };
                let new = NewFile { mode, ..NewFile::default() };
                self.change(
                    |op| op.create(&root, now(1), S1, at(&path), &new, flags),
                    |model, made| {
                        model.add(&one, made.attr.ino, Kind::File, mode);
                        model.open(made.attr.ino, true);
                    },
                );
            }
            8..13 => {
                self.change(
                    |op| op.mkdir(&root, now(1), at(&path), mode),
                    |model, made| model.add(&one, made.attr.ino, Kind::Directory, mode),
                );
            }
            13..15 => {
                self.change(
                    |op| op.unlink(&root, now(1), at(&path)),
                    |model, _| {
                        let ino = model.take_name(&one);
                        model.drop_link(ino);
                    },
                );
            }
            15..17 => {
                self.change(
                    |op| op.rmdir(&root, now(1), at(&path)),
                    |model, _| {
                        let ino = model.take_name(&one);
                        model.purge(ino);
                    },
                );
            }
            17..23 => {
                let modes =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let how = modes[self.random.below(4) as usize];
                self.change(
                    |op| op.rename(&root, now(1), at(&path), at(&to), how),
                    |model, _| model.rename(&one, &other, how),
                );
            }
            23..25 => {
                self.change(
                    |op| op.link(&root, now(1), at(&path), false, at(&to)),
                    |model, _| {
                        let ino = model.at(&one).expect("the store has found it");
                        model.put_name(&other, ino);
                        model.node(ino).links += 1;
                    },
                );
            }
            25 => {
                let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.change(
                    |op| op.setattr(&root, now(1), at(&path), false, &change),
                    |model, attr| model.node(attr.ino).mode = mode,
                );
            }
            26..30 => {
                let bytes = if self.random.one_in(2) { 60_000 } else { bytes as usize % 9000 };
                let value = value(self.random.next(), bytes);
                self.change(
                    |op| op.set_xattr(&root, now(1), at(&path), true, BIG, &value, XattrMode::Any),
                    |model, ()| {
                        let ino = model.at(&one).expect("the store has found it");
                        model.node(ino).value = Some(hash_of(&value));
                    },
                );
            }
            30..33 => self.open(&one, &path),
            33..35 => {
                let Some(ino) = self.writing() else { return };
                let report = WriteReport { max_end: bytes, mtime: None };
                self.change(
                    |op| op.report_write(now(1), S1, ino, &report),
                    |model, _| model.report(ino, bytes),
                );
            }
            35..37 => self.close(bytes),
            37..40 => {
                let Some(ino) = self.writing() else { return };
                let epoch = self.ns.begin().getattr(ino).unwrap().epoch;
                let size = self.random.below(50_000);
                self.change(
                    |op| op.append_place(S1, ino, bytes, size, epoch),
                    |model, place| {
                        let offset = place.offset.expect("nobody truncates it");
                        model.node(ino).tail = Some(offset + bytes);
                    },
                );
            }
            40..42 => self.truncate(&path, bytes),
            42 => self.settle(&one, bytes),
            _ if self.random.one_in(8) => {
                let garbage: Vec<u64> =
                    self.ns.begin().garbage(0, 3).unwrap().into_iter().map(|(ino, _)| ino).collect();
                self.change(
                    |op| {
                        op.garbage_done(&garbage);
                        Ok(())
                    },
                    |model, ()| garbage.iter().for_each(|ino| assert!(model.garbage.remove(ino))),
                );
            }
            _ => self.end_session(),
        }
    }

    fn open(&mut self, one: &str, path: &str) {
        let Some(ino) = self.model.at(one).filter(|ino| !self.model.holds.contains_key(ino)) else { return };
        if self.model.nodes[&ino].kind != Kind::File {
            return;
        }
        let write = !self.random.one_in(3);
        let flags = if write { WRITE } else { READ };
        self.change(|op| op.open(&Caller::root(), S1, at(path), flags), |model, _| model.open(ino, write));
    }

    fn close(&mut self, end: u64) {
        let open: Vec<u64> = self.model.holds.keys().copied().collect();
        let Some(ino) = open.get(self.random.below(open.len() as u64) as usize).copied() else { return };
        let write = self.model.holds[&ino] != Hold::Read;
        let end = (write && !self.random.one_in(4)).then_some(end);
        let report = end.map(|max_end| WriteReport { max_end, mtime: None });
        self.change(
            |op| op.close(now(1), S1, ino, write, report.as_ref()),
            |model, ()| model.close(ino, end),
        );
    }

    /// Two commits where data files have to be cut in between.
    fn truncate(&mut self, path: &str, size: u64) {
        let size = if self.random.one_in(3) { 0 } else { size };
        let begun = self.change(
            |op| op.truncate_begin(&Caller::root(), now(1), S1, at(path), size),
            |model, begun| model.begin_truncation(begun.attr.ino, size, begun.data_work),
        );
        if let Some(begun) = begun.filter(|begun| begun.data_work) {
            let (ino, epoch) = (begun.attr.ino, begun.attr.epoch);
            self.change(
                |op| op.truncate_commit(now(1), S1, ino, size, epoch),
                |model, _| model.end_truncation(ino, size),
            );
        }
    }

    fn settle(&mut self, one: &str, size: u64) {
        let Some(ino) = self.model.at(one).filter(|ino| !self.model.holds.contains_key(ino)) else { return };
        if !self.model.nodes[&ino].live {
            return;
        }
        let epoch = self.ns.begin().getattr(ino).unwrap().epoch;
        self.change(
            |op| op.settle(ino, size, None, epoch),
            |model, _| {
                let node = model.node(ino);
                (node.size, node.live, node.written) = (size, false, true);
            },
        );
    }

    /// No reply is kept for this one: it ends those that have one.
    fn end_session(&mut self) {
        let committed = self.ns.committed();
        run(self.ns, |op| op.session_gone(S1)).unwrap();
        self.model.end_session();
        if self.ns.committed() > committed {
            self.states.push(self.model.clone());
        }
    }
}
