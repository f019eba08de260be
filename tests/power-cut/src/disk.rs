//! A disk that knows what a power cut would leave.
//!
//! Every file and directory has what is *durable*, what it is *now*, and the changes between the two:
//!
//! ```text
//!   write, zero, set_len    pending of the file   until fsync or fdatasync of that file
//!   create, unlink          pending of the directory    until fsync of that directory
//!   rename                  pending of both       one change: it is durable in both or in none
//! ```
//!
//! An image takes what is durable and, of what is pending, what chance chooses: each write may be there, torn at
//! sectors, or missing; each change of names may be there or not. A failed sync leaves what is now, forgets that it is
//! pending, and tells every handle that was open once: as Linux does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use weft_test_random::Random;

/// The inode number of a disk's root directory.
pub const ROOT: u64 = 1;
const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: usize = 512;

/// Bytes by page; a page that is not there is zeros.
#[derive(Clone, Default)]
pub struct Content {
    pages: BTreeMap<u64, Arc<[u8; PAGE_BYTES as usize]>>,
    /// The length.
    pub bytes: u64,
}

impl Content {
    /// What is there of a range.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.bytes.min(offset.saturating_add(length as u64));
        let mut out = vec![0; end.saturating_sub(offset) as usize];
        let mut at = offset;
        while at < end {
            let (page, within) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let part = (PAGE_BYTES as usize - within).min((end - at) as usize);
            if let Some(page) = self.pages.get(&page) {
                let to = (at - offset) as usize;
                out[to..to + part].copy_from_slice(&page[within..within + part]);
            }
            at += part as u64;
        }
        out
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let position = offset + at as u64;
            let within = (position % PAGE_BYTES) as usize;
            let part = (PAGE_BYTES as usize - within).min(data.len() - at);
            let page =
                self.pages.entry(position / PAGE_BYTES).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(page)[within..within + part].copy_from_slice(&data[at..at + part]);
            at += part;
        }
        self.bytes = self.bytes.max(offset + data.len() as u64);
    }

    fn zero(&mut self, offset: u64, bytes: u64) {
        let (mut at, end) = (offset, self.bytes.min(offset.saturating_add(bytes)));
        while at < end {
            let within = (at % PAGE_BYTES) as usize;
            let part = (PAGE_BYTES as usize - within).min((end - at) as usize);
            if let Some(page) = self.pages.get_mut(&(at / PAGE_BYTES)) {
                Arc::make_mut(page)[within..within + part].fill(0);
            }
            at += part as u64;
        }
    }

    fn set_len(&mut self, bytes: u64) {
        if bytes < self.bytes {
            drop(self.pages.split_off(&bytes.div_ceil(PAGE_BYTES)));
            if let Some(last) = self.pages.get_mut(&(bytes / PAGE_BYTES)) {
                Arc::make_mut(last)[(bytes % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.bytes = bytes;
    }
}

#[derive(Clone)]
enum Change {
    Write(u64, Arc<[u8]>),
    Zero(u64, u64),
    SetLen(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Change::Write(offset, data) => content.write(*offset, data),
            Change::Zero(offset, bytes) => content.zero(*offset, *bytes),
            Change::SetLen(bytes) => content.set_len(*bytes),
        }
    }
}

#[derive(Clone, Default)]
struct Entries {
    names: BTreeMap<String, u64>,
}

/// A change of one directory's names; the halves of a rename have the same number.
#[derive(Clone)]
struct Rename {
    number: u64,
    removed: Option<String>,
    added: Option<(String, u64)>,
}

impl Rename {
    fn names(&self) -> impl Iterator<Item = &String> {
        self.removed.iter().chain(self.added.iter().map(|(name, _)| name))
    }

    fn apply(&self, entries: &mut Entries) {
        if let Some(name) = &self.removed {
            entries.names.remove(name);
        }
        if let Some((name, ino)) = &self.added {
            entries.names.insert(name.clone(), *ino);
        }
    }
}

/// What a name leads to.
pub enum Node {
    /// A file.
    File(File),
    /// A directory.
    Directory(Directory),
}

/// A file, as it is durable and as it is now.
#[derive(Default)]
pub struct File {
    durable: Content,
    /// As who uses the disk sees it.
    pub now: Content,
    pending: Vec<Change>,
}

/// A directory, as it is durable and as it is now.
#[derive(Default)]
pub struct Directory {
    durable: Entries,
    now: Entries,
    pending: Vec<Rename>,
}

/// The files of a store as a power cut has left them, by path.
#[derive(Clone, Default)]
pub struct Image {
    directories: Vec<String>,
    files: Vec<(String, Content)>,
}

impl Image {
    /// One file in the root directory.
    pub fn of_file(name: &str, bytes: &[u8]) -> Image {
        let mut content = Content::default();
        content.write(0, bytes);
        Image { directories: Vec::new(), files: vec![(name.to_string(), content)] }
    }

    /// Writes the files below `to`, which must be empty.
    pub fn write_to(&self, to: &Path) {
        use std::os::unix::fs::FileExt;
        for directory in &self.directories {
            std::fs::create_dir_all(to.join(directory)).unwrap();
        }
        for (path, content) in &self.files {
            let file = std::fs::File::create(to.join(path)).unwrap();
            file.set_len(content.bytes).unwrap();
            for (page, bytes) in &content.pages {
                let offset = page * PAGE_BYTES;
                let part = PAGE_BYTES.min(content.bytes.saturating_sub(offset)) as usize;
                file.write_all_at(&bytes[..part], offset).unwrap();
            }
        }
    }

    /// The files, by path.
    pub fn files(&self) -> &[(String, Content)] {
        &self.files
    }

    /// What there is, for the message of a failure.
    pub fn listing(&self) -> String {
        self.files.iter().map(|(path, content)| format!("{path} ({} bytes) ", content.bytes)).collect()
    }
}

/// How the pending changes of an image are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// None is there.
    Lost,
    /// All are there.
    Kept,
    /// The first ones are, in the order in which they were made; the last one of them is torn.
    InOrder,
    /// Each for itself, whole, torn or missing.
    Each,
}

/// See the module's header.
#[derive(Default)]
pub struct Disk {
    /// Files and directories by inode number.
    pub nodes: HashMap<u64, Node>,
    next_ino: u64,
    next_change: u64,
    next_handle: u64,
    /// Open handles: the file, and whether it has an error to be told of.
    handles: HashMap<u64, (u64, bool)>,
    /// The next sync of a file whose name ends so fails.
    pub fail_sync_of: Option<&'static str>,
    /// The next sync of a directory fails.
    pub fail_sync_of_directory: bool,
    /// All reads of files fail.
    pub fail_reads: bool,
    /// All writes to files fail.
    pub fail_writes: bool,
    /// Directories below the root's only one that are on machines of their own. A power cut takes some of these, and leaves of the
    /// others what is now. Where none is named, it takes everything.
    pub machines: Vec<String>,
    /// Bytes that are written whole or not at all, at their multiples. A file system needs that of its device: ext4 cannot be
    /// mounted with half a superblock, which is in two sectors of one block. `None`: a write is torn anywhere.
    pub whole_bytes: Option<usize>,
    /// Changes and syncs so far.
    pub events: u64,
}

impl Disk {
    /// With an empty root directory.
    pub fn new() -> Disk {
        let nodes = HashMap::from([(ROOT, Node::Directory(Directory::default()))]);
        Disk { nodes, next_ino: ROOT + 1, ..Disk::default() }
    }

    /// A disk on which all of `image` is durable.
    pub fn from_image(image: &Image) -> Disk {
        let mut disk = Disk::new();
        for path in &image.directories {
            let (parent, name) = disk.place(path);
            disk.make(parent, &name, Node::Directory(Directory::default()));
        }
        for (path, content) in &image.files {
            let (parent, name) = disk.place(path);
            let file = File { durable: content.clone(), now: content.clone(), pending: Vec::new() };
            disk.make(parent, &name, Node::File(file));
        }
        let inos: Vec<u64> = disk.nodes.keys().copied().collect();
        inos.into_iter().for_each(|ino| disk.settle_names(ino));
        disk
    }

    fn place(&self, path: &str) -> (u64, String) {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut ino = ROOT;
        for part in above.split('/').filter(|part| !part.is_empty()) {
            ino = self.lookup(ino, part).expect("directories come before what is in them");
        }
        (ino, name.to_string())
    }

    /// The file of this number.
    pub fn file(&mut self, ino: u64) -> Option<&mut File> {
        match self.nodes.get_mut(&ino) {
            Some(Node::File(file)) => Some(file),
            _ => None,
        }
    }

    fn directory(&mut self, ino: u64) -> &mut Directory {
        match self.nodes.get_mut(&ino) {
            Some(Node::Directory(directory)) => directory,
            _ => panic!("{ino} is no directory"),
        }
    }

    /// What a name leads to.
    pub fn lookup(&self, parent: u64, name: &str) -> Option<u64> {
        match self.nodes.get(&parent) {
            Some(Node::Directory(directory)) => directory.now.names.get(name).copied(),
            _ => None,
        }
    }

    /// The names in a directory.
    pub fn names(&self, ino: u64) -> Vec<(String, u64)> {
        match self.nodes.get(&ino) {
            Some(Node::Directory(directory)) => {
                directory.now.names.iter().map(|(name, ino)| (name.clone(), *ino)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn rename_half(&mut self, number: u64, dir: u64, removed: Option<String>, added: Option<(String, u64)>) {
        let change = Rename { number, removed, added };
        let directory = self.directory(dir);
        change.apply(&mut directory.now);
        directory.pending.push(change);
    }

    fn change_number(&mut self) -> u64 {
        self.next_change += 1;
        self.next_change
    }

    /// Gives something new a name.
    pub fn make(&mut self, parent: u64, name: &str, node: Node) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.nodes.insert(ino, node);
        let number = self.change_number();
        self.rename_half(number, parent, None, Some((name.to_string(), ino)));
        ino
    }

    /// Takes a name away.
    pub fn remove(&mut self, parent: u64, name: &str) {
        let number = self.change_number();
        self.rename_half(number, parent, Some(name.to_string()), None);
    }

    /// Moves a name, and replaces what has the new one.
    pub fn rename(&mut self, from: u64, name: &str, to: u64, new_name: &str) {
        let ino = self.lookup(from, name).expect("the kernel has looked it up");
        let number = self.change_number();
        let added = Some((new_name.to_string(), ino));
        if from == to {
            self.rename_half(number, from, Some(name.to_string()), added);
        } else {
            self.rename_half(number, from, Some(name.to_string()), None);
            self.rename_half(number, to, None, added);
        }
    }

    /// Writes to a file.
    pub fn write(&mut self, ino: u64, offset: u64, data: &[u8]) {
        if let Some(file) = self.file(ino) {
            let change = Change::Write(offset, data.into());
            change.apply(&mut file.now);
            file.pending.push(change);
        }
    }

    /// Zeros, as far as the file goes.
    pub fn zero(&mut self, ino: u64, offset: u64, bytes: u64) {
        if let Some(file) = self.file(ino) {
            let change = Change::Zero(offset, bytes);
            change.apply(&mut file.now);
            file.pending.push(change);
        }
    }

    /// Sets the length of a file.
    pub fn set_len(&mut self, ino: u64, bytes: u64) {
        if let Some(file) = self.file(ino) {
            let change = Change::SetLen(bytes);
            change.apply(&mut file.now);
            file.pending.push(change);
        }
    }

    /// A handle of a file.
    pub fn open(&mut self, ino: u64) -> u64 {
        self.next_handle += 1;
        self.handles.insert(self.next_handle, (ino, false));
        self.next_handle
    }

    /// Gives a handle back.
    pub fn close(&mut self, handle: u64) {
        self.handles.remove(&handle);
    }

    /// Syncs a file by one of its handles; says whether that went well, as this handle is told.
    pub fn sync_file(&mut self, ino: u64, handle: u64) -> bool {
        let fails = self.fail_sync_of.is_some_and(|ending| self.is_named(ino, ending));
        if fails {
            self.fail_sync_of = None;
            self.handles.values_mut().filter(|(of, _)| *of == ino).for_each(|(_, told)| *told = true);
        }
        let Some(file) = self.file(ino) else { return true };
        let pending = std::mem::take(&mut file.pending);
        if !fails {
            pending.iter().for_each(|change| change.apply(&mut file.durable));
        }
        match self.handles.get_mut(&handle) {
            Some((_, told)) => !std::mem::take(told),
            None => true,
        }
    }

    fn is_named(&self, ino: u64, ending: &str) -> bool {
        self.nodes.values().any(|node| match node {
            Node::Directory(directory) => {
                directory.now.names.iter().any(|(name, of)| *of == ino && name.ends_with(ending))
            }
            Node::File(_) => false,
        })
    }

    /// Syncs a directory; says whether that went well. Names that a failed sync loses are lost for good.
    pub fn sync_directory(&mut self, ino: u64) -> bool {
        if std::mem::take(&mut self.fail_sync_of_directory) {
            self.directory(ino).pending.clear();
            return false;
        }
        let numbers = self.directory(ino).pending.iter().map(|change| change.number).collect();
        let numbers = self.with_earlier_of_the_same_names(numbers);
        self.settle_names(ino);
        // The other halves of renames out of, or into, this directory.
        for node in self.nodes.values_mut() {
            if let Node::Directory(directory) = node {
                let (durable, pending) =
                    directory.pending.drain(..).partition(|change| numbers.contains(&change.number));
                directory.pending = pending;
                let durable: Vec<Rename> = durable;
                durable.iter().for_each(|change| change.apply(&mut directory.durable));
            }
        }
        true
    }

    /// These changes, and those before them of the same names: in whichever order directories are synced, what one name leads to is
    /// changed in the order in which it was.
    fn with_earlier_of_the_same_names(&self, mut numbers: HashSet<u64>) -> HashSet<u64> {
        loop {
            let mut earlier = Vec::new();
            for node in self.nodes.values() {
                let Node::Directory(directory) = node else { continue };
                let mut names = HashSet::new();
                for change in directory.pending.iter().rev() {
                    if numbers.contains(&change.number) {
                        names.extend(change.names());
                    } else if change.names().any(|name| names.contains(name)) {
                        earlier.push(change.number);
                    }
                }
            }
            if earlier.is_empty() {
                return numbers;
            }
            numbers.extend(earlier);
        }
    }

    fn settle_names(&mut self, ino: u64) {
        if let Some(Node::Directory(directory)) = self.nodes.get_mut(&ino) {
            let pending = std::mem::take(&mut directory.pending);
            pending.iter().for_each(|change| change.apply(&mut directory.durable));
        }
    }

    /// What a power cut now could leave.
    pub fn cut(&self, random: &mut Random) -> Image {
        let (first, chances) = (random.below(self.machines.len() as u64) as usize, 2);
        let taken: Vec<bool> =
            (0..self.machines.len()).map(|at| at == first || random.one_in(chances)).collect();
        let is_spared = |machine: &str| {
            self.machines.iter().position(|name| name == machine).is_some_and(|at| !taken[at])
        };
        let data = fate(random);
        let names = fate(random);
        let first_lost = random.below(self.next_change + 2);
        let coin = random.next();
        let survives = |change: &Rename| match names {
            Fate::Lost => false,
            Fate::Kept => true,
            Fate::InOrder => change.number < first_lost,
            Fate::Each => Random(coin ^ change.number).one_in(2),
        };
        self.image(is_spared, survives, |file| cut_file(file, data, self.whole_bytes, random))
    }

    /// The worst that a power cut of these machines can leave now: nothing that was not synced. The other machines keep all.
    pub fn worst_cut(&self, machines: &[&str]) -> Image {
        let is_spared = |machine: &str| !machines.contains(&machine);
        self.image(is_spared, |_| false, |file| file.durable.clone())
    }

    /// An image: all that spared machines have now; of the others the durable part, the renames that survive, and what `cut`
    /// leaves of each file.
    fn image(
        &self,
        is_spared: impl Fn(&str) -> bool,
        survives: impl Fn(&Rename) -> bool,
        mut cut: impl FnMut(&File) -> Content,
    ) -> Image {
        let is_spared = |path: &str| is_spared(path.split('/').nth(1).unwrap_or_default());
        let mut image = Image::default();
        let mut waiting = vec![(ROOT, String::new())];
        while let Some((ino, path)) = waiting.pop() {
            let Some(Node::Directory(directory)) = self.nodes.get(&ino) else { continue };
            let mut entries = directory.durable.clone();
            let spared = is_spared(&path);
            directory
                .pending
                .iter()
                .filter(|change| spared || survives(change))
                .for_each(|change| change.apply(&mut entries));
            for (name, ino) in entries.names {
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                match &self.nodes[&ino] {
                    Node::Directory(_) => {
                        image.directories.push(path.clone());
                        waiting.push((ino, path));
                    }
                    Node::File(file) if is_spared(&path) => image.files.push((path, file.now.clone())),
                    Node::File(file) => image.files.push((path, cut(file))),
                }
            }
        }
        image
    }
}

fn fate(random: &mut Random) -> Fate {
    match random.below(8) {
        0 => Fate::Lost,
        1 => Fate::Kept,
        2..5 => Fate::InOrder,
        _ => Fate::Each,
    }
}

fn cut_file(file: &File, fate: Fate, whole_bytes: Option<usize>, random: &mut Random) -> Content {
    let mut content = file.durable.clone();
    let pending = &file.pending;
    match fate {
        Fate::Lost => {}
        Fate::Kept => pending.iter().for_each(|change| change.apply(&mut content)),
        Fate::InOrder => {
            let kept = random.below(pending.len() as u64 + 1) as usize;
            pending[..kept].iter().for_each(|change| change.apply(&mut content));
            if let Some(Change::Write(offset, data)) = pending.get(kept) {
                let end = *offset as usize + random.below(data.len() as u64 + 1) as usize;
                let end = whole_bytes.map_or(end, |whole| end / whole * whole);
                content.write(*offset, &data[..end.saturating_sub(*offset as usize)]);
            }
        }
        Fate::Each => {
            for change in pending {
                match (random.below(3), change) {
                    (0, _) => {}
                    (1, Change::Write(offset, data)) => {
                        tear(&mut content, *offset, data, whole_bytes.unwrap_or(SECTOR_BYTES), random);
                    }
                    _ => change.apply(&mut content),
                }
            }
        }
    }
    // The length may have reached the disk though the bytes have not: they read as zeros.
    if content.bytes < file.now.bytes && random.one_in(3) {
        content.set_len(file.now.bytes);
    }
    content
}

/// Writes some of the parts that are written whole.
fn tear(content: &mut Content, offset: u64, data: &[u8], whole_bytes: usize, random: &mut Random) {
    let mut at = 0;
    while at < data.len() {
        let to_boundary = whole_bytes - (offset as usize + at) % whole_bytes;
        let part = to_boundary.min(data.len() - at);
        if random.one_in(2) {
            content.write(offset + at as u64, &data[at..at + part]);
        }
        at += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_writes_whole_is_never_torn() {
        const WHOLE_BYTES: usize = 4096;
        let superblock = Change::Write(1024, [1; 1024].into());
        let pending = vec![superblock, Change::Write(4096, [2; 3 * WHOLE_BYTES].into())];
        let file = File { durable: Content::default(), now: Content::default(), pending };
        let mut random = Random(weft_test_random::seed());
        for round in 0..1000 {
            let fate = if round % 2 == 0 { Fate::InOrder } else { Fate::Each };
            let content = cut_file(&file, fate, Some(WHOLE_BYTES), &mut random);
            let mut bytes = content.read(0, 4 * WHOLE_BYTES);
            bytes.resize(4 * WHOLE_BYTES, 0);
            let is_whole = |part: &[u8]| part.iter().all(|byte| *byte == part[0]);
            assert!(is_whole(&bytes[1024..2048]) && bytes.chunks(WHOLE_BYTES).skip(1).all(is_whole));
        }
    }

    #[test]
    fn a_name_that_was_removed_before_another_took_it_is_not_removed_after() {
        let mut disk = Disk::new();
        let inside = disk.make(ROOT, "inside", Node::Directory(Directory::default()));
        disk.make(ROOT, "name", Node::File(File::default()));
        disk.sync_directory(ROOT);
        let new = disk.make(inside, "new", Node::File(File::default()));
        disk.remove(ROOT, "name");
        disk.rename(inside, "new", ROOT, "name");
        // The rename is durable in both of its directories.
        disk.sync_directory(inside);
        disk.sync_directory(ROOT);
        let image = disk.cut(&mut Random(weft_test_random::seed()));
        assert_eq!(disk.lookup(ROOT, "name"), Some(new));
        assert_eq!(image.files.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["name"]);
    }
}
