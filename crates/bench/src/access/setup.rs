//! The state of a measurement: its cluster, its processes and its files; each method takes its turn on them.

use super::super::adapters::Asked;
use super::super::fleet::{Fleet, Phase};
use super::super::page_cache::{drop_data_files, is_memory, warm_memory};
use super::super::scratch::{Scratch, TRANSPORTS_DEFAULT, Testbed, scratch, usable};
use super::super::worker::Task;
use super::super::worker::measure::Block;
use super::method::Counters;
use super::pattern::{Case, Pattern};
use super::results::{Contest, Sample};
use super::task::{AccessTask, Place};
use anyhow::{Context, Result, bail};
use std::path::Path;
use weft_bench_args::{AccessArgs, How, Transport, Way};
use weft_cli_common::connections::at;
use weft_server::SyncMode;

/// Limit of pieces per process for methods with one request per piece, if a part of the pattern can be
/// measured.
const SINGLE_PIECES_MAX: u64 = 20_000;
/// This many pieces suffice for such methods: no further file is accessed to gain time.
const SINGLE_PIECES_ENOUGH: u64 = 4_000;
/// Upper limit of files that a case is applied to.
const ROUNDS_MAX: u64 = 32;

/// Who accesses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Local,
    Weft(Transport, How),
}

impl Turn {
    /// Whether it makes one request per piece, so that fewer pieces suffice.
    fn is_single(self) -> bool {
        let single = [How::Multiple, How::ClientSieve, How::Messages, How::AtOnce];
        matches!(self, Turn::Weft(_, how) if single.contains(&how))
    }
}

/// The state of a measurement.
pub struct Setup<'a> {
    args: &'a AccessArgs,
    ways: Vec<Way>,
    pub testbed: Testbed,
    scratch: Scratch,
    /// A directory in memory, if the scratch directory is not in memory.
    memory: Option<Scratch>,
    local_fleet: Fleet,
    fleets: Vec<(Transport, Fleet)>,
    writes: u64,
    /// The greatest number of bytes still cached after they should have been dropped.
    pub kept_bytes: u64,
}

impl<'a> Setup<'a> {
    pub fn new(cases: &[Case], args: &'a AccessArgs, ways: Vec<Way>) -> Result<Setup<'a>> {
        let most = |of: fn(&Pattern) -> u64| cases.iter().map(|case| of(&case.pattern)).max().unwrap_or(0);
        let (file_bytes, ranks) =
            (most(Pattern::file_bytes), most(|pattern| pattern.ranks() as u64) as usize);
        let needed_bytes = 2 * file_bytes.max(args.least_bytes);
        let scratch = scratch(&args.testbed.common, 2 * needed_bytes)?;
        let in_memory = is_memory(scratch.path())?;
        if args.uncached && in_memory {
            bail!(
                "{} is in memory, where data is always cached; give a --dir on a disk",
                scratch.path().display()
            );
        }
        let shm = Path::new("/dev/shm");
        let memory =
            if !in_memory && shm.is_dir() { Some(Scratch::new(Some(shm), needed_bytes)?) } else { None };
        let io = args.io.unwrap_or(4);
        let wanted = if args.transport.is_empty() { TRANSPORTS_DEFAULT } else { &args.transport };
        let url = args.testbed.url.as_deref();
        let (testbed, without) =
            Testbed::for_transports(url, &args.testbed.connect, &scratch, io, SyncMode::Nosync, wanted)?;
        let wanted = usable(wanted.to_vec(), |transport| *transport, &without)?.into_iter();
        let fleets = wanted.map(|transport| Ok((transport, Fleet::start(ranks)?))).collect::<Result<_>>()?;
        let local_fleet = Fleet::start(ranks)?;
        Ok(Setup { args, ways, testbed, scratch, memory, local_fleet, fleets, writes: 0, kept_bytes: 0 })
    }

    /// Measures a case by every method.
    pub fn measure(&mut self, case: &Case, methods: &[How]) -> Result<Vec<Contest>> {
        let transports: Vec<_> = self.fleets.iter().map(|(transport, _)| *transport).collect();
        let mut contests = Vec::new();
        for transport in &transports {
            for way in &self.ways {
                contests.push(Contest {
                    case: case.name.clone(),
                    transport: *transport,
                    way: *way,
                    local: Vec::new(),
                    methods: methods.iter().map(|how| (*how, Vec::new())).collect(),
                });
            }
        }
        self.prepare(case)?;
        for run in 0..self.args.testbed.common.runs {
            let local = self.turn(case, Turn::Local, false)?;
            for contest in &mut contests {
                contest.local.extend(
                    local.iter().filter(|(way, _)| *way == contest.way).map(|(_, sample)| sample.clone()),
                );
            }
            for transport in &transports {
                for turn in 0..methods.len() {
                    // Each repetition starts with another one, so that the order favours none.
                    let index = (turn + usize::from(run)) % methods.len();
                    let turn = Turn::Weft(*transport, methods[index]);
                    for (way, sample) in self.turn(case, turn, run == 0)? {
                        let contest = contests
                            .iter_mut()
                            .find(|contest| (contest.transport, contest.way) == (*transport, way));
                        contest.expect("there is one for every way").methods[index].1.push(sample);
                    }
                }
            }
        }
        self.finish(case)?;
        Ok(contests)
    }

    /// Creates the permanent file of a pattern that does not cover its file.
    fn prepare(&mut self, case: &Case) -> Result<()> {
        for turn in self.turns_with_known_file(case) {
            self.create(turn, &case.pattern)?;
            self.fill(turn, &case.pattern)?;
        }
        Ok(())
    }

    fn finish(&mut self, case: &Case) -> Result<()> {
        self.turns_with_known_file(case).into_iter().try_for_each(|turn| self.remove(turn, &case.pattern))
    }

    fn turns_with_known_file(&self, case: &Case) -> Vec<Turn> {
        let turns = [Turn::Local, Turn::Weft(self.fleets[0].0, How::List)];
        let has_one = |turn: &Turn| !case.pattern.covers_file() && !self.is_dropped(*turn);
        turns.into_iter().filter(has_one).collect()
    }

    /// Writes, reads and overwrites, as requested, and checks the contents.
    fn turn(&mut self, case: &Case, turn: Turn, check_rest: bool) -> Result<Vec<(Way, Sample)>> {
        let name = match turn {
            Turn::Local => "straight".to_string(),
            Turn::Weft(transport, how) => format!("{}, {}", transport.name(), how.name()),
        };
        self.take_turn(&case.pattern, turn, check_rest).with_context(|| format!("{}, {name}", case.name))
    }

    fn take_turn(&mut self, all: &Pattern, turn: Turn, check_rest: bool) -> Result<Vec<(Way, Sample)>> {
        let pattern = if turn.is_single() { all.at_most(SINGLE_PIECES_MAX) } else { all.clone() };
        if self.is_dropped(turn) {
            let mut samples = Vec::new();
            for way in self.ways.clone() {
                samples.push((way, self.uncached(&pattern, turn, way)?));
            }
            Ok(samples)
        } else if all.covers_file() {
            self.new_file(&pattern, turn)
        } else {
            self.known_file(&pattern, turn, check_rest && pattern == *all)
        }
    }

    /// Writes a new file, reads it and overwrites it.
    fn new_file(&mut self, pattern: &Pattern, turn: Turn) -> Result<Vec<(Way, Sample)>> {
        let mut samples = Vec::new();
        let mut salt = 0;
        self.create(turn, pattern)?;
        if self.ways.contains(&Way::Write) {
            salt = self.next_write();
            samples.push((Way::Write, self.access(turn, pattern, Way::Write, salt)?));
        } else {
            self.fill(turn, pattern)?;
        }
        if self.ways.contains(&Way::Read) {
            samples.push((Way::Read, self.access(turn, pattern, Way::Read, salt)?));
            self.check_memory(turn, pattern, salt)?;
        }
        if self.ways.contains(&Way::Rewrite) {
            salt = self.next_write();
            samples.push((Way::Rewrite, self.access(turn, pattern, Way::Rewrite, salt)?));
        }
        self.check_files(turn, pattern, salt)?;
        self.remove(turn, pattern)?;
        Ok(samples)
    }

    /// Overwrites parts of a permanent file, and reads them.
    fn known_file(&mut self, pattern: &Pattern, turn: Turn, check_rest: bool) -> Result<Vec<(Way, Sample)>> {
        let mut samples = Vec::new();
        let mut salt = 0;
        if self.ways.contains(&Way::Rewrite) {
            salt = self.next_write();
            samples.push((Way::Rewrite, self.access(turn, pattern, Way::Rewrite, salt)?));
        }
        if self.ways.contains(&Way::Read) {
            samples.push((Way::Read, self.access(turn, pattern, Way::Read, salt)?));
            self.check_memory(turn, pattern, salt)?;
        }
        if check_rest {
            self.check_files(turn, pattern, salt)?;
        }
        Ok(samples)
    }

    /// Does one access to a file of its own that was never read: pages that a server has mapped cannot be
    /// dropped from the page cache.
    fn uncached(&mut self, pattern: &Pattern, turn: Turn, way: Way) -> Result<Sample> {
        self.create(turn, pattern)?;
        let mut salt = 0;
        if way != Way::Write {
            self.fill(turn, pattern)?;
            self.kept_bytes = self.kept_bytes.max(drop_data_files(self.scratch.path())?);
        }
        if way != Way::Read {
            salt = self.next_write();
        }
        let sample = self.access(turn, pattern, way, salt)?;
        if way == Way::Read {
            self.check_memory(turn, pattern, salt)?;
        } else {
            self.check_files(turn, pattern, salt)?;
        }
        self.remove(turn, pattern)?;
        Ok(sample)
    }

    /// Whether the data is dropped from the page cache before the access.
    fn is_dropped(&self, turn: Turn) -> bool {
        self.args.uncached && turn != Turn::Local
    }

    fn next_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// The files of a turn.
    fn places(&self, turn: Turn, pattern: &Pattern) -> Vec<Place> {
        (0..self.rounds(turn, pattern))
            .map(|round| match turn {
                Turn::Local => Place::Local { path: self.local_dir().join(format!("straight-{round}")) },
                Turn::Weft(transport, how) => {
                    let path = self.testbed.dir.join(format!("access-{round}"));
                    Place::Weft { url: self.testbed.url(transport.name()), path, how }
                }
            })
            .collect()
    }

    fn rounds(&self, turn: Turn, pattern: &Pattern) -> u64 {
        if !pattern.covers_file() {
            return 1;
        }
        let rounds = self.args.least_bytes / pattern.bytes().max(1);
        let pieces = pattern.pieces() / pattern.ranks() as u64;
        let most = if turn.is_single() { SINGLE_PIECES_ENOUGH / pieces.max(1) } else { ROUNDS_MAX };
        rounds.min(most).clamp(1, ROUNDS_MAX)
    }

    fn local_dir(&self) -> &Path {
        self.memory.as_ref().unwrap_or(&self.scratch).path()
    }

    /// Creates the files, so that the clients only open them.
    fn create(&mut self, turn: Turn, pattern: &Pattern) -> Result<()> {
        let dir = if turn == Turn::Local { self.local_dir() } else { self.scratch.path() };
        warm_memory(dir, pattern.file_bytes() * self.rounds(turn, pattern))?;
        for place in self.places(turn, pattern) {
            match place {
                Place::Local { path } => {
                    std::fs::File::create(&path)
                        .with_context(|| format!("cannot make {}", path.display()))?;
                }
                Place::Weft { path, .. } => {
                    let options = weft_client::OpenOptions::new().write(true).create_new(true).mode(0o644);
                    self.testbed.client.open(at(&path), &options)?.close()?;
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, turn: Turn, pattern: &Pattern) -> Result<()> {
        for place in self.places(turn, pattern) {
            match place {
                Place::Local { path } => std::fs::remove_file(path)?,
                Place::Weft { path, .. } => self.testbed.client.unlink(at(&path))?,
            }
        }
        Ok(())
    }

    fn fleet(&mut self, turn: Turn) -> &mut Fleet {
        match turn {
            Turn::Local => &mut self.local_fleet,
            Turn::Weft(transport, _) => {
                let found = self.fleets.iter_mut().find(|(other, _)| *other == transport);
                &mut found.expect("a fleet was started for every transport").1
            }
        }
    }

    /// Makes every rank do a task.
    fn all(&mut self, turn: Turn, pattern: &Pattern, task: impl Fn(usize) -> AccessTask) -> Result<Phase> {
        let tasks: Vec<_> = (0..pattern.ranks()).map(|rank| Task::Access(task(rank))).collect();
        self.fleet(turn).run(&tasks)
    }

    fn access(&mut self, turn: Turn, pattern: &Pattern, way: Way, salt: u64) -> Result<Sample> {
        let (places, sync) = (self.places(turn, pattern), self.args.sync);
        let transport = match turn {
            Turn::Weft(transport, _) => transport,
            Turn::Local => Transport::Tcp,
        };
        let before = self.testbed.server_load_over(transport);
        let phase = self.all(turn, pattern, |rank| AccessTask::Do {
            places: places.clone(),
            pattern: pattern.clone(),
            rank,
            way,
            salt,
            sync,
        })?;
        let after = self.testbed.server_load_over(transport);
        let mut counters = Counters::default();
        phase.done.iter().for_each(|done| counters += done.counters);
        Ok(Sample {
            bytes: pattern.bytes() * self.rounds(turn, pattern),
            pieces: pattern.pieces() * self.rounds(turn, pattern),
            seconds: phase.seconds,
            client_cpu_s: phase.cpu_s,
            server_cpu_s: after.cpu_s - before.cpu_s,
            counters,
            asked: Asked::between(phase.adapters(), &before.adapters, &after.adapters),
        })
    }

    fn check_memory(&mut self, turn: Turn, pattern: &Pattern, salt: u64) -> Result<()> {
        self.all(turn, pattern, |rank| AccessTask::Check { pattern: pattern.clone(), rank, salt })?;
        Ok(())
    }

    /// Does write 0, in one piece.
    fn fill(&mut self, turn: Turn, pattern: &Pattern) -> Result<()> {
        let places = self.places(turn, pattern);
        self.all(turn, pattern, |rank| AccessTask::Fill {
            places: places.clone(),
            block: block(pattern, rank),
        })?;
        Ok(())
    }

    fn check_files(&mut self, turn: Turn, pattern: &Pattern, salt: u64) -> Result<()> {
        let mut places = self.places(turn, pattern);
        for place in &mut places {
            if let Place::Weft { how, .. } = place {
                *how = How::List;
            }
        }
        self.all(turn, pattern, |rank| AccessTask::CheckFiles {
            places: places.clone(),
            block: block(pattern, rank),
            pattern: pattern.clone(),
            salt,
        })?;
        Ok(())
    }
}

/// A rank's part of a file that each rank reads or writes in one piece.
fn block(pattern: &Pattern, rank: usize) -> Block {
    let (bytes, ranks) = (pattern.file_bytes(), pattern.ranks() as u64);
    let each = bytes.div_ceil(ranks);
    let offset = (rank as u64 * each).min(bytes);
    Block { offset, bytes: each.min(bytes - offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_whole_file() {
        let pattern = Pattern::Blocks { ranks: 4, blocks: 1, block_bytes: 7 };
        let blocks: Vec<_> =
            (0..4).map(|rank| block(&pattern, rank)).map(|block| (block.offset, block.bytes)).collect();
        assert_eq!(blocks, [(0, 7), (7, 7), (14, 7), (21, 7)]);
        let pattern = Pattern::Random { ranks: 3, pieces: 1, piece_bytes: 1, file_bytes: 10, seed: 1 };
        let blocks: Vec<_> =
            (0..3).map(|rank| block(&pattern, rank)).map(|block| (block.offset, block.bytes)).collect();
        assert_eq!(blocks, [(0, 4), (4, 4), (8, 2)]);
    }
}
