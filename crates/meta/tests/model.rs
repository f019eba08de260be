//! Random operations on the namespace, compared with a plain tree in memory; restarts and crashes at any point.

mod common;
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use weft_meta::{
    At, Caller, Engine, FjallEngine, FjallOptions, Kind, MemEngine, Namespace, NewFile, OpenFlags, ROOT_INO,
    RenameMode, SetAttr, WriteReport,
};

#[derive(Debug, Clone)]
enum Action {
    Create(String, u32, u64),
    Mkdir(String, u32),
    Symlink(String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
    Chmod(String, u32),
    Truncate(String, u64),
    Restart,
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4).prop_map(|names| names.join("/"))
}

fn action() -> impl Strategy<Value = Action> {
    let mode = prop::sample::select(vec![RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
    prop_oneof![
        4 => (path(), 0..0o1000u32, 0..5000u64).prop_map(|(path, mode, size)| Action::Create(path, mode, size)),
        4 => (path(), 0..0o1000u32).prop_map(|(path, mode)| Action::Mkdir(path, mode)),
        1 => path().prop_map(Action::Symlink),
        2 => (path(), path()).prop_map(|(from, to)| Action::Link(from, to)),
        2 => path().prop_map(Action::Unlink),
        2 => path().prop_map(Action::Rmdir),
        5 => (path(), path(), mode).prop_map(|(from, to, mode)| Action::Rename(from, to, mode)),
        1 => (path(), 0..0o1000u32).prop_map(|(path, mode)| Action::Chmod(path, mode)),
        1 => (path(), 0..5000u64).prop_map(|(path, size)| Action::Truncate(path, size)),
        1 => Just(Action::Restart),
    ]
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    mode: u32,
    size: u64,
    links: u32,
    children: BTreeMap<String, usize>,
}

/// The tree, written as plainly as can be. Node 0 is the root.
#[derive(Debug, Clone)]
struct Model {
    nodes: Vec<Node>,
}

type Outcome = Result<(), &'static str>;

impl Model {
    fn new() -> Model {
        Model {
            nodes: vec![Node {
                kind: Kind::Directory,
                mode: 0o777,
                size: 0,
                links: 1,
                children: BTreeMap::new(),
            }],
        }
    }

    /// The directory that holds the last name, the name, and the node there.
    fn find(&self, path: &str) -> Result<(usize, String, Option<usize>), &'static str> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = 0;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            at = *self.nodes[at].children.get(part).ok_or("NotFound")?;
            match self.nodes[at].kind {
                Kind::Directory => {}
                Kind::Symlink => return Err("NotFound"), // all of them dangle
                _ => return Err("NotDirectory"),
            }
        }
        Ok((at, name.to_string(), self.nodes[at].children.get(name).copied()))
    }

    fn add(&mut self, path: &str, kind: Kind, mode: u32, size: u64) -> Outcome {
        let (dir, name, node) = self.find(path)?;
        if node.is_some() {
            return Err("Exists");
        }
        self.nodes.push(Node { kind, mode, size, links: 1, children: BTreeMap::new() });
        let new = self.nodes.len() - 1;
        self.nodes[dir].children.insert(name, new);
        Ok(())
    }

    fn remove(&mut self, path: &str, want_dir: bool) -> Outcome {
        let (dir, name, node) = self.find(path)?;
        let node = node.ok_or("NotFound")?;
        match (self.nodes[node].kind == Kind::Directory, want_dir) {
            (true, false) => return Err("IsDirectory"),
            (false, true) => return Err("NotDirectory"),
            _ => {}
        }
        if !self.nodes[node].children.is_empty() {
            return Err("NotEmpty");
        }
        self.nodes[dir].children.remove(&name);
        self.nodes[node].links -= 1;
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Outcome {
        let (_, _, node) = self.find(from)?;
        let node = node.ok_or("NotFound")?;
        let (dir, name, taken) = self.find(to)?;
        if taken.is_some() {
            return Err("Exists");
        }
        if self.nodes[node].kind == Kind::Directory {
            return Err("NotPermitted");
        }
        self.nodes[dir].children.insert(name, node);
        self.nodes[node].links += 1;
        Ok(())
    }

    fn contains(&self, ancestor: usize, node: usize) -> bool {
        ancestor == node || self.nodes[ancestor].children.values().any(|child| self.contains(*child, node))
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Outcome {
        let (from_dir, from_name, source) = self.find(from)?;
        let (to_dir, to_name, target) = self.find(to)?;
        let source = source.ok_or("NotFound")?;
        let is_dir = |node: usize| self.nodes[node].kind == Kind::Directory;
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err("Exists"),
            (None, RenameMode::Exchange) => return Err("NotFound"),
            _ => {}
        }
        if self.contains(source, to_dir) {
            return Err("Invalid");
        }
        if target == Some(source) {
            return Ok(());
        }
        if target.is_some_and(|target| self.contains(target, from_dir)) {
            return Err(if mode == RenameMode::Exchange { "Invalid" } else { "NotEmpty" });
        }
        if let (Some(target), RenameMode::Exchange) = (target, mode) {
            self.nodes[from_dir].children.insert(from_name, target);
            self.nodes[to_dir].children.insert(to_name, source);
            return Ok(());
        }
        if let Some(target) = target {
            match (is_dir(source), is_dir(target)) {
                (true, false) => return Err("NotDirectory"),
                (false, true) => return Err("IsDirectory"),
                _ if !self.nodes[target].children.is_empty() => return Err("NotEmpty"),
                _ => self.nodes[target].links -= 1,
            }
        }
        self.nodes[from_dir].children.remove(&from_name);
        self.nodes[to_dir].children.insert(to_name, source);
        Ok(())
    }

    fn apply(&mut self, action: &Action) -> Outcome {
        match action {
            Action::Create(path, mode, size) => self.add(path, Kind::File, *mode, *size),
            Action::Mkdir(path, mode) => self.add(path, Kind::Directory, *mode, 0),
            Action::Symlink(path) => self.add(path, Kind::Symlink, 0o777, 4),
            Action::Link(from, to) => self.link(from, to),
            Action::Unlink(path) => self.remove(path, false),
            Action::Rmdir(path) => self.remove(path, true),
            Action::Rename(from, to, mode) => self.rename(from, to, *mode),
            Action::Chmod(path, mode) => {
                let node = self.find(path)?.2.ok_or("NotFound")?;
                self.nodes[node].mode = *mode;
                Ok(())
            }
            Action::Truncate(path, size) => {
                let node = self.find(path)?.2.ok_or("NotFound")?;
                match self.nodes[node].kind {
                    Kind::Directory => Err("IsDirectory"),
                    Kind::Symlink => Err("NotFound"),
                    _ => {
                        self.nodes[node].size = *size;
                        Ok(())
                    }
                }
            }
            Action::Restart => Ok(()),
        }
    }
}

fn create_and_write<E: Engine>(
    ns: &mut Namespace<E>,
    path: &str,
    mode: u32,
    size: u64,
) -> Result<(), weft_meta::MetaError> {
    let flags = OpenFlags { exclusive: true, ..WRITE };
    let new = NewFile { mode, ..NewFile::default() };
    let opened = run(ns, |op| op.create(&Caller::root(), now(1), S1, at(path), &new, flags))?;
    let report = WriteReport { max_end: size, mtime: None };
    run(ns, |op| op.close(now(1), S1, opened.attr.ino, true, Some(&report)))
}

fn truncate<E: Engine>(ns: &mut Namespace<E>, path: &str, size: u64) -> Result<(), weft_meta::MetaError> {
    let begun = run(ns, |op| op.truncate_begin(&Caller::root(), now(1), S1, at(path), size))?;
    if begun.data_work {
        let attr = begun.attr;
        run(ns, |op| op.truncate_commit(now(1), S1, attr.ino, size, attr.epoch))?;
    }
    Ok(())
}

fn apply<E: Engine>(ns: &mut Namespace<E>, action: &Action) -> Outcome {
    let root = Caller::root();
    let result = match action {
        Action::Create(path, mode, size) => create_and_write(ns, path, *mode, *size),
        Action::Mkdir(path, mode) => mkdir(ns, &root, path, *mode).map(drop),
        Action::Symlink(path) => run(ns, |op| op.symlink(&root, now(1), at(path), b"gone")).map(drop),
        Action::Link(from, to) => run(ns, |op| op.link(&root, now(1), at(from), false, at(to))).map(drop),
        Action::Unlink(path) => run(ns, |op| op.unlink(&root, now(1), at(path))).map(drop),
        Action::Rmdir(path) => run(ns, |op| op.rmdir(&root, now(1), at(path))).map(drop),
        Action::Rename(from, to, mode) => {
            run(ns, |op| op.rename(&root, now(1), at(from), at(to), *mode)).map(drop)
        }
        Action::Chmod(path, mode) => {
            let change = SetAttr { mode: Some(*mode), ..SetAttr::default() };
            run(ns, |op| op.setattr(&root, now(1), at(path), false, &change)).map(drop)
        }
        Action::Truncate(path, size) => truncate(ns, path, *size),
        Action::Restart => Ok(()),
    };
    result.map_err(|error| outcome::<()>(Err(error)))
}

/// Compares the whole tree, and that names of one file in the model are names of one inode.
fn compare<E: Engine>(ns: &mut Namespace<E>, model: &Model) -> Result<(), TestCaseError> {
    let mut inos: HashMap<usize, u64> = HashMap::new();
    let mut waiting = vec![(0, ROOT_INO)];
    while let Some((node, ino)) = waiting.pop() {
        let expected = &model.nodes[node];
        let mut listed = BTreeMap::new();
        let mut after = 0;
        loop {
            let page = ns.begin().readdir(&Caller::root(), ino, after, 2, 4096, true).unwrap();
            for entry in page.entries {
                after = entry.cookie;
                listed.insert(String::from_utf8(entry.name).unwrap(), entry.attr.unwrap());
            }
            if page.eof {
                break;
            }
        }
        prop_assert_eq!(listed.keys().collect::<Vec<_>>(), expected.children.keys().collect::<Vec<_>>());
        for (name, child) in &expected.children {
            let (attr, want) = (listed[name], &model.nodes[*child]);
            prop_assert_eq!(*inos.entry(*child).or_insert(attr.ino), attr.ino);
            prop_assert_eq!(
                (attr.kind, attr.mode, attr.size_live),
                (want.kind, want.mode, false),
                "{}",
                name
            );
            let by_name = ns.begin().stat(&Caller::root(), At::new(ino, name), false).unwrap();
            prop_assert_eq!(by_name, attr);
            if want.kind == Kind::Directory {
                let subdirs =
                    want.children.values().filter(|child| model.nodes[**child].kind == Kind::Directory);
                prop_assert_eq!(attr.nlink as usize, 2 + subdirs.count());
                waiting.push((*child, attr.ino));
            } else {
                prop_assert_eq!((attr.size, attr.nlink), (want.size, want.links), "{}", name);
            }
        }
    }
    prop_assert_eq!(ns.check().unwrap(), vec![]);
    Ok(())
}

fn matches_the_model<E: Engine>(
    mut ns: Namespace<E>,
    actions: &[Action],
    restart: impl Fn(Namespace<E>) -> Namespace<E>,
) -> Result<Namespace<E>, TestCaseError> {
    let mut model = Model::new();
    for action in actions {
        if let Action::Restart = action {
            ns = restart(ns);
            ns.reap_orphans(0).unwrap();
        }
        prop_assert_eq!(apply(&mut ns, action), model.apply(action), "{:?}", action);
    }
    compare(&mut ns, &model)?;
    Ok(ns)
}

proptest! {
    #![proptest_config(weft_test_random::cases(200))]

    #[test]
    fn the_namespace_in_memory_is_a_tree(actions in prop::collection::vec(action(), 1..120)) {
        matches_the_model(mem(), &actions, |ns| Namespace::open(ns.engine().fork(), options()).unwrap())?;
    }

    /// Whatever suffix of the unsynced commits a power cut takes, what is left is sound.
    #[test]
    fn every_crash_leaves_a_sound_namespace(
        actions in prop::collection::vec(action(), 1..60),
        synced in 0..60usize,
    ) {
        let mut ns = mem();
        for (index, action) in actions.iter().enumerate() {
            if index == synced {
                ns.syncer().sync().unwrap();
            }
            let _ = apply(&mut ns, action);
            // A file that stays open, so that orphans and dirty sizes are among what is lost.
            if index % 5 == 0 {
                let _ = create(&mut ns, S2, "b", WRITE);
            }
        }
        for kept in 0..=ns.engine().unsynced() {
            let mut crashed = match Namespace::open(ns.engine().after_crash(kept), options()) {
                Ok(crashed) => crashed,
                Err(error) => { prop_assert!(kept < 1, "{}", error); continue }
            };
            prop_assert_eq!(crashed.check().unwrap(), vec![], "kept {}", kept);
            crashed.reap_orphans(0).unwrap();
            mkfile(&mut crashed, &Caller::root(), "after the crash", 0o644).unwrap();
            prop_assert_eq!(crashed.check().unwrap(), vec![], "kept {}, then used", kept);
        }
    }
}

proptest! {
    #![proptest_config(weft_test_random::cases(16))]

    #[test]
    fn the_namespace_on_disk_is_a_tree(actions in prop::collection::vec(action(), 1..120)) {
        let directory = tempfile::tempdir().unwrap();
        let engine = || {
            let options = FjallOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20, ..FjallOptions::default() };
            FjallEngine::open(directory.path(), &options).unwrap()
        };
        matches_the_model(fresh(engine()), &actions, |ns| {
            drop(ns);
            Namespace::open(engine(), options()).unwrap()
        })?;
    }
}

#[test]
fn the_engine_in_memory_is_formatted_once() {
    let mut engine = MemEngine::new();
    assert!(!Namespace::is_formatted(&engine).unwrap());
    assert!(Namespace::open(engine.fork(), options()).is_err());
    Namespace::format(&mut engine, [4; 16], &Caller::root(), now(0)).unwrap();
    assert!(Namespace::format(&mut engine, [5; 16], &Caller::root(), now(0)).is_err());
    assert_eq!(Namespace::open(engine, options()).unwrap().cluster_uuid(), [4; 16]);
}
