//! A client that changes files in all ways there are, and notes what they are.

use std::collections::BTreeMap;
use std::io::IoSlice;
use weft_client::{AccessOptions, Client, File, OpenOptions, Sieving};
use weft_layout::{Extent, Regions};
use weft_power_cut::{Shared, noise, written, zeroed};
use weft_test_random::Random;
use weft_wire::messages::LayoutWish;

const STRIP_BYTES: usize = super::STRIP_BYTES as usize;
const CHANGES: u64 = 60;
const FILE_BYTES: u64 = 30_000;
const OPEN_FILES: usize = 4;

fn path_of(number: u64) -> String {
    format!("/f{number}")
}

/// A file that is open.
struct Opened {
    number: u64,
    file: File,
    /// Every write is durable when it returns.
    sync: bool,
}

/// Changes files, and notes in the history what they are before each change, and what is durable after it.
struct Work<'a> {
    client: &'a Client,
    history: &'a Shared,
    random: &'a mut Random,
    /// All that is acknowledged is durable.
    sync_mode: bool,
    files: Vec<Opened>,
    next: u64,
}

/// Changes files of a cluster, all of whose changes are durable when acknowledged in `sync_mode`.
pub fn work(client: &Client, history: &Shared, random: &mut Random, sync_mode: bool) {
    history.begin();
    let mut work = Work { client, history, random, sync_mode, files: Vec::new(), next: 0 };
    for _ in 0..CHANGES {
        work.step();
    }
    drop(work.files);
    for (number, bytes) in &files_of(client) {
        assert!(history.now(*number).as_ref() == Some(bytes), "file {number} is wrong without any cut");
    }
}

/// Any of the ways in which servers access pieces.
fn access(random: &mut Random) -> AccessOptions {
    let all = [Sieving::Auto, Sieving::Each, Sieving::Sieve, Sieving::Mapped];
    let sieving = all[random.below(all.len() as u64) as usize];
    AccessOptions { sieving, ..AccessOptions::default() }
}

impl Work<'_> {
    fn step(&mut self) {
        if self.files.is_empty() || self.files.len() < OPEN_FILES && self.random.one_in(6) {
            return self.create();
        }
        let at = self.random.below(self.files.len() as u64) as usize;
        let Opened { number, ref file, sync } = self.files[at];
        let old = self.history.now(number).expect("it is open");
        let range = range(self.random);
        // A write with O_SYNC makes itself durable, not what others have written to other servers.
        let sync = sync && self.history.is_all_durable(number);
        let is_durable = match self.random.below(20) {
            0..6 => {
                let data = noise(self.random, range.bytes);
                self.history.change(number, Some(written(&old, range.offset, &data)));
                file.write_at(&data, range.offset).unwrap();
                sync
            }
            6..9 => {
                let pieces = pieces(self.random);
                let data = noise(self.random, pieces.iter().map(|piece| piece.bytes).sum());
                let (mut new, mut from) = (old, 0);
                for piece in &pieces {
                    let to = from + piece.bytes as usize;
                    new = written(&new, piece.offset, &data[from..to]);
                    from = to;
                }
                self.history.change(number, Some(new));
                file.write_list(&[IoSlice::new(&data)], &Regions::list(pieces)).unwrap();
                sync
            }
            9 => {
                let bytes = self.random.below(FILE_BYTES);
                let mut new = old.clone();
                new.resize(bytes as usize, 0);
                if let Some(torn) = torn(&old, &new) {
                    self.history.change(number, Some(torn));
                }
                self.history.change(number, Some(new));
                file.truncate(bytes).unwrap();
                false
            }
            10 => {
                self.history.change(number, Some(zeroed(&old, range.offset, range.bytes, true)));
                file.punch(range.offset, range.bytes).unwrap();
                false
            }
            11 => {
                let keep_size = self.random.one_in(2);
                self.history.change(number, Some(zeroed(&old, range.offset, range.bytes, keep_size)));
                file.zero(range.offset, range.bytes, keep_size).unwrap();
                false
            }
            12 => {
                let from = &self.files[self.random.below(self.files.len() as u64) as usize];
                let source = self.history.now(from.number).expect("it is open");
                // Ranges that lie alike, which the servers copy themselves.
                let end = range.end().min(source.len() as u64);
                if from.number == number || range.offset >= end {
                    return;
                }
                let data = &source[range.offset as usize..end as usize];
                self.history.change(number, Some(written(&old, range.offset, data)));
                self.client
                    .copy_range(&from.file, range.offset, file, range.offset, end - range.offset)
                    .unwrap();
                false
            }
            13 => return self.close(at),
            14 => return self.remove(at),
            15 => return self.sync_all(),
            _ => {
                file.sync_data().unwrap();
                true
            }
        };
        if is_durable || self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
    }

    fn create(&mut self) {
        let (number, sync) = (self.next, self.random.one_in(4));
        self.next += 1;
        // A file with a wish is striped from the beginning; others are small until they grow.
        let is_striped = self.random.one_in(2);
        let first_server_plus_1 = if is_striped { 1 + (number % 2) as u16 } else { 0 };
        let layout = LayoutWish { strip_bytes: 0, server_count: 0, first_server_plus_1 };
        let options =
            OpenOptions::new().read(true).write(true).create_new(true).create(true).sync(sync).layout(layout);
        self.history.change(number, Some(Vec::new()));
        let file = self.client.open(path_of(number).as_str(), &options).unwrap();
        if self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
        file.set_access(access(self.random));
        self.files.push(Opened { number, file, sync });
    }

    fn sync_all(&self) {
        self.client.sync_all().unwrap();
        // Also what was closed, or removed.
        for number in 0..self.next {
            self.history.is_durable(number, self.history.last_state(number));
        }
    }

    /// Closes a file, and mostly opens it again; else all is made durable.
    fn close(&mut self, at: usize) {
        let Opened { number, file, .. } = self.files.swap_remove(at);
        file.close().unwrap();
        if self.random.one_in(2) {
            let sync = self.random.one_in(3);
            let options = OpenOptions::new().read(true).write(true).sync(sync);
            let file = self.client.open(path_of(number).as_str(), &options).unwrap();
            file.set_access(access(self.random));
            self.files.push(Opened { number, file, sync });
        } else {
            // No open file leads to it any more.
            self.sync_all();
        }
    }

    fn remove(&mut self, at: usize) {
        let Opened { number, file, .. } = self.files.swap_remove(at);
        let open = self.random.one_in(2).then_some(file);
        self.history.change(number, None);
        self.client.unlink(path_of(number).as_str()).unwrap();
        if self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
        drop(open);
    }
}

/// What a power cut may leave of a file that is cut to end within a hole, where two servers have it: the server
/// with the new end may have less than that, and has to grow. If the cut keeps what the other server did and loses
/// that, the file ends with its last byte that was written, or with the strip before.
fn torn(old: &[u8], new: &[u8]) -> Option<Vec<u8>> {
    let strip = new.len() / STRIP_BYTES * STRIP_BYTES;
    let written = new.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    let kept = strip.max(written);
    (new.len() < old.len() && kept < new.len()).then(|| new[..kept].to_vec())
}

fn range(random: &mut Random) -> Extent {
    let bytes = if random.one_in(3) { 12_000 } else { 800 };
    Extent::new(random.below(FILE_BYTES), 1 + random.below(bytes))
}

/// Pieces near each other, so that servers sieve them.
fn pieces(random: &mut Random) -> Vec<Extent> {
    let mut at = random.below(FILE_BYTES);
    let mut piece = || {
        let piece = Extent::new(at, 1 + random.below(300));
        at = piece.end() + random.below(200);
        piece
    };
    (0..30).map(|_| piece()).collect()
}

/// The files of a cluster, by number.
pub fn files_of(client: &Client) -> BTreeMap<u64, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in client.read_dir("/").unwrap() {
        let name = String::from_utf8(entry.unwrap().name).unwrap();
        let number = name.strip_prefix('f').and_then(|number| number.parse().ok());
        let number = number.unwrap_or_else(|| panic!("nobody has made {name}"));
        let file = client.open(format!("/{name}").as_str(), &OpenOptions::new().read(true)).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        // The size that a close has reported may be there without the data, which nobody has synced.
        let read = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(read);
        files.insert(number, bytes);
    }
    files
}
