//! One process of the checker (tests/tests/checker.rs): does random operations on files that it owns for a round, and compares every
//! byte with a model.
//!
//! ```text
//!   weft-check INDEX WORKERS SEED MODELS mount DIRECTORY
//!   weft-check INDEX WORKERS SEED MODELS library URL KEY
//!
//!   standard input     "3\n"      begin round 3                 the checker sends it when all have ended round 2
//!   standard output    "3\n"      round 3 has ended, its files are closed, their models written
//! ```
//!
//! In a round a process owns the whole of one file, and some regions of the file `shared`: whole pages that lie across strips.
//! In the next round these are another process's: what it finds must be what this one has left. Models are local files.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use weft_client::{Client, ConnectOptions, Error, OpenOptions, Url};
use weft_layout::{Extent, Regions};
use weft_test_random::Random;
use weft_tests::check::{Mapping, REGION_BYTES, REGIONS, SHARED, own_name};

/// Operations on a region, or on an own file, in one round.
const STEPS: u64 = 24;
/// Own files rarely grow beyond it: several stripes.
const OWN_BYTES: u64 = 1_500_000;
/// Operations told about when one goes wrong.
const TOLD: usize = 40;
const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;

/// A result, or an errno with words.
type Outcome<T> = Result<T, (i32, String)>;

fn of_weft<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|error| (error.errno(), error.to_string()))
}

fn of_system<T>(result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| (error.raw_os_error().unwrap_or(-1), error.to_string()))
}

fn of_call(result: i64) -> Outcome<u64> {
    of_system(u64::try_from(result).map_err(|_| std::io::Error::last_os_error()))
}

/// How this process reaches the files.
enum Way {
    Mount(PathBuf),
    Library(Client),
}

impl Way {
    fn open(&self, name: &str, create: bool) -> Outcome<Open<'_>> {
        Ok(match self {
            Way::Mount(dir) => {
                let options =
                    fs::OpenOptions::new().read(true).write(true).create(create).truncate(false).clone();
                Open::Mount(of_system(options.open(dir.join(name)))?, dir.join(name))
            }
            Way::Library(client) => {
                let options = OpenOptions::new().read(true).write(true).create(create);
                Open::Library(of_weft(client.open(&*format!("/{name}"), &options))?, client)
            }
        })
    }
}

enum Open<'a> {
    Mount(fs::File, PathBuf),
    Library(weft_client::File, &'a Client),
}

impl Open<'_> {
    fn read(&self, offset: u64, bytes: usize) -> Outcome<Vec<u8>> {
        let mut data = vec![0xee; bytes];
        let mut done = 0;
        while done < bytes {
            let (rest, at) = (&mut data[done..], offset + done as u64);
            let read = match self {
                Open::Mount(file, _) => of_system(file.read_at(rest, at))?,
                Open::Library(file, _) => of_weft(file.read_at(rest, at))?,
            };
            done += read;
            if read == 0 {
                break;
            }
        }
        data.truncate(done);
        Ok(data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        match self {
            Open::Mount(file, _) => of_system(file.write_all_at(data, offset)),
            Open::Library(file, _) => of_weft(file.write_at(data, offset)).map(drop),
        }
    }

    /// Reads pieces in one call where there is one for this.
    fn read_list(&self, pieces: &[Extent]) -> Outcome<Vec<u8>> {
        match self {
            Open::Mount(..) => {
                let parts = pieces.iter().map(|piece| self.read(piece.offset, piece.bytes as usize));
                Ok(parts.collect::<Outcome<Vec<_>>>()?.concat())
            }
            Open::Library(file, _) => {
                let mut data = vec![0xee; pieces.iter().map(|piece| piece.bytes as usize).sum()];
                let memory = &mut [IoSliceMut::new(&mut data)];
                of_weft(file.read_list(memory, &Regions::list(pieces.to_vec())))?;
                Ok(data)
            }
        }
    }

    fn write_list(&self, pieces: &[Extent], data: &[u8]) -> Outcome<()> {
        match self {
            Open::Mount(..) => {
                let mut rest = data;
                pieces.iter().try_for_each(|piece| {
                    let (now, later) = rest.split_at(piece.bytes as usize);
                    rest = later;
                    self.write(piece.offset, now)
                })
            }
            Open::Library(file, _) => {
                of_weft(file.write_list(&[IoSlice::new(data)], &Regions::list(pieces.to_vec()))).map(drop)
            }
        }
    }

    fn fallocate(&self, mode: i32, offset: u64, bytes: u64) -> Outcome<()> {
        match self {
            Open::Mount(file, _) => {
                // SAFETY: no memory is passed.
                let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
                of_call(done.into()).map(drop)
            }
            Open::Library(file, _) => of_weft(file.fallocate(mode, offset, bytes)),
        }
    }

    /// Copies from this file to another of the same way; of the bytes, only `there` are below the end of this one.
    fn copy(&self, offset: u64, to: &Open<'_>, to_offset: u64, bytes: u64, there: u64) -> Outcome<u64> {
        match (self, to) {
            (Open::Mount(from, _), Open::Mount(to, _)) => {
                let (mut at, mut to_at, mut done) = (offset as i64, to_offset as i64, 0);
                // The kernel may stop anywhere. To go on behind the end would find what was copied, in a copy within one file.
                while done == 0 || done < there {
                    // SAFETY: two live offsets.
                    let copied = of_call(unsafe {
                        let rest = if done == 0 { bytes } else { there - done } as usize;
                        libc::copy_file_range(from.as_raw_fd(), &mut at, to.as_raw_fd(), &mut to_at, rest, 0)
                    } as i64)?;
                    done += copied;
                    if copied == 0 {
                        break;
                    }
                }
                Ok(done)
            }
            (Open::Library(from, client), Open::Library(to, _)) => {
                of_weft(client.copy_range(from, offset, to, to_offset, bytes))
            }
            _ => unreachable!("a process has one way"),
        }
    }

    /// `None`: ENXIO.
    fn seek(&self, offset: u64, whence: i32) -> Outcome<Option<u64>> {
        match self {
            Open::Mount(file, _) => {
                // SAFETY: no memory is passed.
                match of_call(unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) }) {
                    Err((libc::ENXIO, _)) => Ok(None),
                    found => found.map(Some),
                }
            }
            Open::Library(file, _) if whence == libc::SEEK_DATA => of_weft(file.seek_data(offset)),
            Open::Library(file, _) => of_weft(file.seek_hole(offset)),
        }
    }

    fn truncate(&self, bytes: u64) -> Outcome<()> {
        match self {
            Open::Mount(file, _) => of_system(file.set_len(bytes)),
            Open::Library(file, _) => of_weft(file.truncate(bytes)),
        }
    }

    fn append(&self, data: &[u8]) -> Outcome<()> {
        match self {
            Open::Mount(_, path) => of_system(
                fs::OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(data)),
            ),
            Open::Library(file, _) => of_weft(file.append(data)).map(drop),
        }
    }

    fn sync(&self) -> Outcome<()> {
        match self {
            Open::Mount(file, _) => of_system(file.sync_all()),
            Open::Library(file, _) => of_weft(file.sync_data()),
        }
    }

    fn size(&self) -> Outcome<u64> {
        match self {
            Open::Mount(file, _) => of_system(file.metadata().map(|data| data.len())),
            Open::Library(file, _) => of_weft(file.stat().map(|attr| attr.size)),
        }
    }

    fn close(self) -> Outcome<()> {
        match self {
            Open::Mount(file, _) => {
                // As the drop of a file says nothing of errors. SAFETY: nobody else has the descriptor.
                of_call(unsafe { libc::close(file.into_raw_fd()) }.into()).map(drop)
            }
            Open::Library(file, _) => of_weft(file.close()),
        }
    }
}

struct Worker {
    index: u64,
    workers: u64,
    seed: u64,
    models: PathBuf,
    round: u64,
    told: VecDeque<String>,
    random: Random,
}

/// What a process may change in a file: bytes from `base` on. An own file may change its size too.
struct Part<'a> {
    file: Open<'a>,
    name: String,
    base: u64,
    model: Vec<u8>,
    whole: bool,
}

impl Worker {
    fn fail(&self, text: &str) -> ! {
        let told: Vec<_> = self.told.iter().map(String::as_str).collect();
        let (index, round, seed) = (self.index, self.round, self.seed);
        eprintln!("{}\nprocess {index}, round {round}, seed {seed}: {text}", told.join("\n"));
        std::process::exit(1);
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    fn must<T>(&self, what: &str, outcome: Outcome<T>) -> T {
        outcome.unwrap_or_else(|(errno, text)| self.fail(&format!("{what}: errno {errno}: {text}")))
    }

    fn same(&self, what: &str, found: &[u8], expected: &[u8], offset: u64) {
        if found == expected {
            return;
        }
        let differs = |(found, expected): (&u8, &u8)| found != expected;
        let all = found.iter().zip(expected).filter(|pair| differs(*pair)).count();
        let first = found.iter().zip(expected).position(differs).unwrap_or(found.len().min(expected.len()));
        let (bytes, wanted) = (found.len(), expected.len());
        let show = |of: &[u8]| of[first.min(of.len())..of.len().min(first + 16)].to_vec();
        self.fail(&format!(
            "{what}: {bytes} bytes of {wanted}, {all} differ, the first at {} of the file: found {:02x?}, expected {:02x?}",
            offset + first as u64, show(found), show(expected)
        ));
    }

    fn range(&mut self, bytes: u64) -> (u64, u64) {
        let offset = self.random.below(bytes.max(1));
        let most = if self.random.one_in(3) { bytes } else { 20_000.min(bytes) };
        let length = 1 + self.random.below(most.max(1));
        // Often whole pages or blocks: these go other ways.
        let grain = *self.random.choose(&[1, 1, 512, 4096]);
        (offset / grain * grain, length.next_multiple_of(grain))
    }

    /// A range in the part; of an own file also some way behind its end.
    fn place(&mut self, part: &Part<'_>) -> (u64, u64) {
        let all = if part.whole { OWN_BYTES.max(part.model.len() as u64) } else { part.model.len() as u64 };
        let (offset, bytes) = self.range(all);
        if part.whole { (offset, bytes.min(300_000)) } else { (offset, bytes.min(all - offset)) }
    }

    /// Pieces in order that do not touch.
    fn pieces(&mut self, part: &Part<'_>) -> Vec<Extent> {
        let (mut at, bytes) = self.place(part);
        let end = at + bytes;
        let mut pieces = Vec::new();
        while at < end && pieces.len() < 60 {
            let bytes = (1 + self.random.below(700)).min(end - at);
            pieces.push(Extent { offset: at, bytes });
            at += bytes + 1 + self.random.below(2000);
        }
        pieces
    }

    fn step(&mut self, part: &mut Part<'_>) {
        match self.random.below(if part.whole { 24 } else { 20 }) {
            0..3 => self.write(part),
            3..6 => self.read(part),
            6 => self.write_list(part),
            7 => self.read_list(part),
            8 => self.change_space(part),
            9 => self.change_space(part),
            10..12 => self.copy(part),
            12..15 => self.map_shared(part),
            15 => self.map_private(part),
            16..18 => self.seek(part),
            18 => self.sync(part),
            19 => self.check(part),
            20 => self.truncate(part),
            21 => self.append(part),
            22 => self.size(part),
            _ => self.overlap(part),
        }
    }

    fn write(&mut self, part: &mut Part<'_>) {
        let (at, bytes) = self.place(part);
        let data = self.random.bytes(bytes as usize);
        self.tell(format!("{} write {} +{bytes}", part.name, part.base + at));
        self.must("write", part.file.write(part.base + at, &data));
        part.put(at, &data);
    }

    fn read(&mut self, part: &mut Part<'_>) {
        let (at, bytes) = self.place(part);
        self.tell(format!("{} read {} +{bytes}", part.name, part.base + at));
        let found = self.must("read", part.file.read(part.base + at, bytes as usize));
        self.same("read", &found, part.get(at, bytes), part.base + at);
    }

    fn write_list(&mut self, part: &mut Part<'_>) {
        let pieces = self.pieces(part);
        let data = self.random.bytes(pieces.iter().map(|piece| piece.bytes as usize).sum());
        self.tell(format!(
            "{} write {} pieces from {}",
            part.name,
            pieces.len(),
            part.base + pieces[0].offset
        ));
        self.must("write list", part.file.write_list(&part.in_file(&pieces), &data));
        let mut rest = &data[..];
        for piece in pieces {
            let (now, later) = rest.split_at(piece.bytes as usize);
            part.put(piece.offset, now);
            rest = later;
        }
    }

    fn read_list(&mut self, part: &mut Part<'_>) {
        let mut pieces = self.pieces(part);
        pieces.retain(|piece| piece.end() <= part.model.len() as u64);
        self.tell(format!("{} read {} pieces", part.name, pieces.len()));
        let found = self.must("read list", part.file.read_list(&part.in_file(&pieces)));
        let expected: Vec<u8> =
            pieces.iter().flat_map(|piece| part.get(piece.offset, piece.bytes).iter().copied()).collect();
        self.same("read list", &found, &expected, part.base + pieces.first().map_or(0, |piece| piece.offset));
    }

    fn change_space(&mut self, part: &mut Part<'_>) {
        let (at, bytes) = self.place(part);
        let keep = if part.whole && self.random.one_in(2) { 0 } else { KEEP_SIZE };
        let mode = *self.random.choose(&[
            keep,
            libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE,
            libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE,
            libc::FALLOC_FL_ZERO_RANGE | keep,
        ]);
        self.tell(format!("{} fallocate {mode:#x} {} +{bytes}", part.name, part.base + at));
        self.must("fallocate", part.file.fallocate(mode, part.base + at, bytes));
        if mode & KEEP_SIZE == 0 {
            part.model.resize(part.model.len().max((at + bytes) as usize), 0);
        }
        if mode & !KEEP_SIZE != 0 {
            let end = part.model.len().min((at + bytes) as usize);
            part.model[(at as usize).min(end)..end].fill(0);
        }
    }

    fn copy(&mut self, part: &mut Part<'_>) {
        let ((from, bytes), (mut to, _)) = (self.place(part), self.place(part));
        if self.random.one_in(2) {
            // Often at the same place of a stripe of another strip.
            to = to / 196_608 * 196_608 + from % 196_608;
        }
        let bytes = if part.whole { bytes } else { bytes.min((part.model.len() as u64).saturating_sub(to)) };
        if bytes == 0 || from < to + bytes && to < from + bytes {
            return;
        }
        let data = part.get(from, bytes).to_vec();
        self.tell(format!("{} copy {} to {} +{bytes}", part.name, part.base + from, part.base + to));
        let copied = part.file.copy(part.base + from, &part.file, part.base + to, bytes, data.len() as u64);
        let copied = self.must("copy", copied);
        if copied != data.len() as u64 {
            self.fail(&format!("{copied} bytes copied of {}", data.len()));
        }
        part.put(to, &data);
    }

    /// Changes bytes through a mapping, in turns with reads and writes by calls. Without msync they go when it is unmapped.
    fn map_shared(&mut self, part: &mut Part<'_>) {
        let Open::Mount(file, _) = &part.file else { return self.read(part) };
        if part.model.is_empty() {
            return;
        }
        self.tell(format!("{} map {} +{}", part.name, part.base, part.model.len()));
        let mut mapping = self.must("map", of_system(Mapping::shared(file, part.base, part.model.len())));
        for _ in 0..1 + self.random.below(4) {
            let (at, bytes) = self.range(part.model.len() as u64);
            let bytes = bytes.min(part.model.len() as u64 - at);
            match self.random.below(4) {
                0 | 1 => {
                    let data = self.random.bytes(bytes as usize);
                    self.tell(format!("{} through the mapping {} +{bytes}", part.name, part.base + at));
                    mapping.put(at as usize, &data);
                    part.put(at, &data);
                }
                2 => {
                    let data = self.random.bytes(bytes as usize);
                    self.tell(format!("{} mapped, write {} +{bytes}", part.name, part.base + at));
                    self.must("write", part.file.write(part.base + at, &data));
                    part.put(at, &data);
                }
                _ => {
                    let found = self.must("read", part.file.read(part.base + at, bytes as usize));
                    self.same("read of mapped", &found, part.get(at, bytes), part.base + at);
                }
            }
            let (at, bytes) = self.range(part.model.len() as u64);
            let bytes = bytes.min(part.model.len() as u64 - at);
            self.same(
                "mapping",
                &mapping.get(at as usize, bytes as usize),
                part.get(at, bytes),
                part.base + at,
            );
        }
        if self.random.one_in(2) {
            self.tell(format!("{} msync", part.name));
            self.must("msync", of_system(mapping.sync()));
        }
    }

    /// A private mapping shows the file, and what is written to it stays there.
    fn map_private(&mut self, part: &mut Part<'_>) {
        let Open::Mount(file, _) = &part.file else { return self.read(part) };
        if part.model.is_empty() {
            return;
        }
        self.tell(format!("{} map privately", part.name));
        let mut mapping = self.must("map", of_system(Mapping::private(file, part.base, part.model.len())));
        let (at, bytes) = self.range(part.model.len() as u64);
        let bytes = bytes.min(part.model.len() as u64 - at);
        self.same(
            "private mapping",
            &mapping.get(at as usize, bytes as usize),
            part.get(at, bytes),
            part.base + at,
        );
        mapping.put(at as usize, &vec![0xaa; bytes as usize]);
        drop(mapping);
        let found = self.must("read", part.file.read(part.base + at, bytes as usize));
        self.same("read behind a private mapping", &found, part.get(at, bytes), part.base + at);
    }

    /// What is said to be a hole is zeros, up to the next data.
    fn seek(&mut self, part: &mut Part<'_>) {
        let size = part.model.len() as u64;
        let at = self.random.below(size.max(1));
        self.tell(format!("{} seek from {}", part.name, part.base + at));
        let zeros = |worker: &Worker, what: &str, from: u64, to: Option<u64>| {
            let to = to.map_or(part.base + size, |to| to.min(part.base + size));
            let (from, to) = ((from - part.base).min(size), to.saturating_sub(part.base));
            if from < to && part.model[from as usize..to as usize].iter().any(|byte| *byte != 0) {
                worker.fail(&format!("{what}: {from}..{to} of the part is said to be a hole, and is none"));
            }
        };
        let data = self.must("seek data", part.file.seek(part.base + at, libc::SEEK_DATA));
        zeros(self, "next data", part.base + at, data);
        let hole = self.must("seek hole", part.file.seek(part.base + at, libc::SEEK_HOLE));
        if hole.is_none() != (at >= size && part.whole) && size > 0 {
            self.fail(&format!("next hole of {at}: {hole:?}"));
        }
        if let Some(hole) = hole.filter(|hole| *hole < part.base + size) {
            let data = self.must("seek data", part.file.seek(hole, libc::SEEK_DATA));
            zeros(self, "hole", hole, data);
        }
    }

    fn sync(&mut self, part: &mut Part<'_>) {
        self.tell(format!("{} fsync", part.name));
        self.must("fsync", part.file.sync());
    }

    fn truncate(&mut self, part: &mut Part<'_>) {
        let bytes = self.place(part).0;
        self.tell(format!("{} truncate {bytes}", part.name));
        self.must("truncate", part.file.truncate(bytes));
        part.model.resize(bytes as usize, 0);
    }

    fn append(&mut self, part: &mut Part<'_>) {
        let bytes = 1 + self.random.below(50_000);
        let data = self.random.bytes(bytes as usize);
        self.tell(format!("{} append {bytes} at {}", part.name, part.model.len()));
        self.must("append", part.file.append(&data));
        part.model.extend_from_slice(&data);
    }

    fn size(&mut self, part: &mut Part<'_>) {
        let found = self.must("stat", part.file.size());
        if found != part.model.len() as u64 {
            self.fail(&format!("size {found}, expected {}", part.model.len()));
        }
    }

    fn overlap(&mut self, part: &mut Part<'_>) {
        if part.model.len() < 100 {
            return;
        }
        let copied = part.file.copy(0, &part.file, 50, 100, 100);
        if !matches!(copied, Err((libc::EINVAL, _))) {
            self.fail(&format!("a copy between ranges that overlap: {copied:?}"));
        }
    }

    /// All of the part.
    fn check(&mut self, part: &mut Part<'_>) {
        self.tell(format!("{} read all", part.name));
        let more = if part.whole { 100 } else { 0 };
        let found = self.must("read", part.file.read(part.base, part.model.len() + more));
        self.same("all", &found, &part.model, part.base);
    }

    fn model(&self, name: &str) -> PathBuf {
        self.models.join(name)
    }

    fn work_on(&mut self, way: &Way, name: &str, base: u64, whole: bool) {
        let model = self.model(name);
        let model_bytes = match whole {
            true => fs::read(&model).expect("a model"),
            false => {
                let mut bytes = vec![0; REGION_BYTES as usize];
                let file = fs::File::open(&model).expect("a model");
                file.read_exact_at(&mut bytes, base).expect("a model is as long as its file");
                bytes
            }
        };
        let file = self.must("open", way.open(name, false));
        let mut part = Part { file, name: format!("{name}@{base}"), base, model: model_bytes, whole };
        self.check(&mut part);
        for _ in 0..STEPS {
            self.step(&mut part);
            if self.random.one_in(12) {
                self.tell(format!("{} reopen", part.name));
                let old = std::mem::replace(&mut part.file, self.must("open", way.open(name, false)));
                self.must("close", old.close());
            }
        }
        self.check(&mut part);
        let Part { file, model: bytes, .. } = part;
        self.must("close", file.close());
        match whole {
            true => fs::write(&model, bytes).expect("a model can be written"),
            false => {
                let file = fs::OpenOptions::new().write(true).open(&model).expect("a model");
                file.write_all_at(&bytes, base).expect("a model can be written");
            }
        }
    }

    fn work(&mut self, way: &Way, round: u64) {
        self.round = round;
        self.told.clear();
        self.random = Random(self.seed ^ (round << 8) ^ self.index);
        self.random.next();
        // Regions go round by other steps than own files, so that every process meets every other one's.
        for region in 0..REGIONS {
            if (region + round * (1 + region / self.workers)) % self.workers == self.index {
                self.work_on(way, SHARED, region * REGION_BYTES, false);
            }
        }
        self.work_on(way, &own_name((self.index + round) % self.workers), 0, true);
    }
}

impl Part<'_> {
    fn put(&mut self, at: u64, data: &[u8]) {
        let (begin, end) = (at as usize, at as usize + data.len());
        if data.is_empty() {
            return;
        }
        self.model.resize(self.model.len().max(end), 0);
        self.model[begin..end].copy_from_slice(data);
    }

    fn get(&self, at: u64, bytes: u64) -> &[u8] {
        let end = self.model.len().min((at + bytes) as usize);
        &self.model[end.min(at as usize)..end]
    }

    fn in_file(&self, pieces: &[Extent]) -> Vec<Extent> {
        pieces.iter().map(|piece| Extent { offset: self.base + piece.offset, ..*piece }).collect()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse().expect("a number");
    let way = match arguments[4].as_str() {
        "mount" => Way::Mount(PathBuf::from(&arguments[5])),
        _ => {
            let key = Some(weft_client::read_key_file(arguments[6].as_ref()).expect("a key"));
            let url = Url::parse(&arguments[5]).expect("a URL");
            let options = ConnectOptions { key, ..ConnectOptions::default() };
            Way::Library(Client::connect(&url, options).expect("a connection"))
        }
    };
    let mut worker = Worker {
        index: number(0),
        workers: number(1),
        seed: number(2),
        models: PathBuf::from(&arguments[3]),
        round: 0,
        told: VecDeque::new(),
        random: Random(number(2)),
    };
    for line in std::io::stdin().lock().lines() {
        let round = line.expect("a line").parse().expect("a round");
        worker.work(&way, round);
        println!("{round}");
        std::io::stdout().flush().expect("somebody reads");
    }
}
