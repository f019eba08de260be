//! The entrance: one two-phase access of all processes.

use weft_layout::{Extent, Regions};

use crate::aggregator::{Aggregator, Told};
use crate::codec::{Announced, Announcement};
use crate::error::{CollectiveError, INVALID_REQUEST};
use crate::memory::Direction;
use crate::own::Own;
use crate::peers::Peers;
use crate::plan::Plan;
use crate::rounds::RoundSet;
use crate::store::{ErrorCode, Store};
use crate::summary::Totals;
use crate::two_phase::TwoPhase;

/// How two-phase accesses are done; the same in all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of one buffer of an aggregator; it has two. Rounded to strips or pages. Buffers of all
    /// aggregators that stay in the caches are best: pieces of several processes meet in the same lines.
    pub buffer_bytes: u64,
    /// Aggregators at most. There are not more than servers or processes.
    pub aggregators_max: usize,
    /// Bytes that are read between two wanted ones rather than left out.
    pub read_gap_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { buffer_bytes: 1 << 20, aggregators_max: usize::MAX, read_gap_bytes_max: 2048 }
    }
}

/// The part of one process in an access.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What the offsets of `memory` count from.
    pub base: *mut u8,
    /// The bytes in memory. They do not overlap for a read.
    pub memory: &'a Regions,
    /// The bytes of the file, as many.
    pub file: &'a Regions,
}

/// Two-phase accesses to one open file. It keeps the windows of the node from one access to the next.
#[derive(Debug, Default)]
pub struct Collective {
    options: Options,
    windows: Option<Windows>,
}

#[derive(Debug)]
struct Windows {
    aggregators: Vec<u32>,
    bytes: usize,
    /// Those of this node, by number of aggregator.
    bases: Vec<Option<*mut u8>>,
}

// SAFETY: the addresses are of shared memory, which any thread may use; the engine is used by one at a time.
unsafe impl Send for Windows {}

/// Empty rounds per round that is needed, before an access is called sparse.
const EMPTY_ROUNDS_MAX: u64 = 16;
/// So few rounds are never sparse.
const SPARSE_ROUNDS_MIN: u64 = 1024;

/// What an access of this process returns.
pub type Outcome<P, S> = Result<u64, CollectiveError<<S as Store>::Error, <P as Peers>::Error>>;

impl Collective {
    /// Accesses as `options` say.
    pub fn new(options: Options) -> Collective {
        Collective { options, windows: None }
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Changes the options from the next access on; the same in all processes.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Collective: reads or writes the requests of all processes in two phases. `totals` are those of all
    /// requests. A process that cannot take part gives its error as the request; all processes then get an
    /// error. A process with nothing to do gives empty regions.
    ///
    /// Returns the number of bytes of this process's request that were written, or that are below the end of
    /// the file; those beyond it are zeros. If the caller knows how long the file is, `file_bytes` says so.
    /// After an error any bytes may have been moved.
    ///
    /// Where requests of a write overlap, each byte of the file is one of those that were written there.
    ///
    /// # Safety
    /// The regions of the request are valid, and its memory is as the [`Request`] says: for a write readable
    /// and unchanging, for a read writable and nobody else's. The windows of [`Peers::share`] are used by
    /// nobody else.
    pub unsafe fn two_phase<P: Peers, S: Store>(
        &mut self,
        peers: &mut P,
        store: &mut S,
        direction: Direction,
        request: Result<Request<'_>, S::Error>,
        totals: &Totals,
        file_bytes: Option<u64>,
    ) -> Outcome<P, S> {
        let nothing = Regions::default();
        let (request, mut failed) = checked(request, &nothing);
        let nodes: Vec<u32> = (0..peers.size()).map(|rank| peers.node_of(rank)).collect();
        let plan =
            Plan::new(&store.layout(), &nodes, self.options.aggregators_max, self.options.buffer_bytes);
        let ascends = request.file.is_ascending();
        let intervals = plan.rounds.intervals_of(request.file, ascends);
        let announcement = Announcement::of(request.file, ascends, intervals);
        let (announced, rounds_of) = announce(peers, &plan, &announcement)?;
        let rounds = RoundSet::union(rounds_of.iter().flat_map(RoundSet::intervals).copied().collect());
        refuse_sparse(&plan, &rounds, totals)?;

        let windows = self.windows(peers, &plan)?;
        let rank = peers.rank();
        let told = announced.iter().zip(0..).map(|(announced, of)| match announced {
            Announced::Nothing => Told::Nothing,
            _ if of == rank => Told::Regions(request.file, ascends),
            Announced::Regions { regions, ascends } => Told::Regions(regions, *ascends),
            Announced::Lists => Told::Lists,
        });
        let index = plan.aggregator_of(rank);
        let aggregator = index.and_then(|index| Some(Aggregator::new(&plan, index, windows[index]?, told)));
        let sends_lists = announcement.bytes == Announced::Lists;
        let own = (announcement.bytes != Announced::Nothing)
            .then(|| Own::new(&plan, &request, ascends, sends_lists));
        let mut access = TwoPhase {
            peers,
            store,
            plan: &plan,
            announced: &announced,
            rounds_of: &rounds_of,
            windows,
            own,
            aggregator,
            dense: dense_span(direction, totals),
            gap_bytes_max: self.options.read_gap_bytes_max,
            sending: Vec::new(),
            spare: Vec::new(),
            nonsense_from: None,
        };
        access.run(direction, &rounds)?;
        let nonsense = access.nonsense_from.map(|rank| CollectiveError::Protocol { rank });
        let mut end = End::default();
        if let Some(aggregator) = access.aggregator {
            let ended = aggregator.ended;
            failed = failed.or(ended.error.map(CollectiveError::Own));
            end = End { is_short: ended.is_short, data_end: ended.data_end };
        }
        let end = finish(peers, failed.or(nonsense), end)?;
        Ok(match (direction, file_bytes) {
            (Direction::Read, Some(file_bytes)) => bytes_below(request.file, file_bytes),
            (Direction::Read, None) if end.is_short => bytes_below(request.file, end.data_end),
            _ => request.file.total_bytes(),
        })
    }

    /// Where the windows of aggregators of this node are.
    fn windows<P: Peers>(&mut self, peers: &mut P, plan: &Plan) -> Result<Vec<Option<*mut u8>>, P::Error> {
        let bytes = plan.window_bytes();
        let fit = |windows: &&Windows| windows.aggregators == plan.aggregators && windows.bytes >= bytes;
        if let Some(windows) = self.windows.as_ref().filter(fit) {
            return Ok(windows.bases.clone());
        }
        self.windows = None;
        let own_bytes = if plan.aggregator_of(peers.rank()).is_some() { bytes } else { 0 };
        let shared = peers.share(own_bytes)?;
        let base = |rank: &u32| Some(shared.iter().find(|(of, _)| of == rank)?.1.as_ptr());
        let bases: Vec<Option<*mut u8>> = plan.aggregators.iter().map(base).collect();
        self.windows = Some(Windows { aggregators: plan.aggregators.clone(), bytes, bases: bases.clone() });
        Ok(bases)
    }
}

/// The request if it is valid; else nothing, and why.
fn checked<'a, E, P: std::error::Error>(
    request: Result<Request<'a>, E>,
    nothing: &'a Regions,
) -> (Request<'a>, Option<CollectiveError<E, P>>) {
    let none = Request { base: std::ptr::null_mut(), memory: nothing, file: nothing };
    match request {
        Err(error) => (none, Some(CollectiveError::Own(error))),
        Ok(request) => {
            let (file_bytes, memory_bytes) = (request.file.total_bytes(), request.memory.total_bytes());
            match file_bytes == memory_bytes {
                true => (request, None),
                false => (none, Some(CollectiveError::SizeMismatch { file_bytes, memory_bytes })),
            }
        }
    }
}

/// What all processes access, and in which rounds, by rank.
type All = (Vec<Announced>, Vec<RoundSet>);

/// Tells all processes what this one accesses, and returns what they do, and in which rounds.
fn announce<E, P: Peers>(
    peers: &mut P,
    plan: &Plan,
    own: &Announcement,
) -> Result<All, CollectiveError<E, P::Error>> {
    let (mut announced, mut rounds_of) = (Vec::new(), Vec::new());
    for (rank, bytes) in (0..).zip(peers.allgather(&own.encode())?) {
        let decoded = Announcement::decode(&bytes).ok();
        let is_valid =
            |decoded: &Announcement| decoded.intervals.iter().all(|(_, last)| *last <= plan.rounds.last());
        let decoded = decoded.filter(is_valid).ok_or(CollectiveError::Protocol { rank })?;
        announced.push(decoded.bytes);
        rounds_of.push(RoundSet::union(decoded.intervals));
    }
    Ok((announced, rounds_of))
}

fn refuse_sparse<E, P: std::error::Error>(
    plan: &Plan,
    rounds: &RoundSet,
    totals: &Totals,
) -> Result<(), CollectiveError<E, P>> {
    let round_bytes = plan.rounds.area_bytes() * u64::from(plan.layout.server_count());
    let rounds_max = (totals.bytes / round_bytes).saturating_mul(EMPTY_ROUNDS_MAX).max(SPARSE_ROUNDS_MIN);
    match rounds.count() <= rounds_max {
        true => Ok(()),
        false => Err(CollectiveError::Sparse { rounds: rounds.count(), bytes: totals.bytes }),
    }
}

/// The span of all bytes, if it is read as a whole: what is wanted is at least half of it.
fn dense_span(direction: Direction, totals: &Totals) -> Option<Extent> {
    totals.span.filter(|span| direction == Direction::Read && totals.bytes >= span.bytes / 2)
}

/// Where the file ended for reads.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    is_short: bool,
    data_end: u64,
}

/// Waits for all processes. An error if one of them failed, else where the file ended for any of them.
fn finish<E: ErrorCode, P: Peers>(
    peers: &mut P,
    failed: Option<CollectiveError<E, P::Error>>,
    end: End,
) -> Result<End, CollectiveError<E, P::Error>> {
    let code = failed.as_ref().map(|error| match error {
        CollectiveError::Own(error) => error.code(),
        _ => INVALID_REQUEST,
    });
    let status = code.map_or(0, |code| u64::from(code.max(1)) << 32 | u64::from(peers.rank()));
    let mut maxima = [status, u64::from(end.is_short), end.data_end];
    peers.allreduce(&mut [], &mut maxima)?;
    let [status, is_short, data_end] = maxima;
    match failed {
        Some(error) => Err(error),
        None if status != 0 => {
            Err(CollectiveError::Other { rank: status as u32, code: (status >> 32) as u32 })
        }
        None => Ok(End { is_short: is_short != 0, data_end }),
    }
}

/// Number of bytes of valid regions below `end`.
fn bytes_below(regions: &Regions, end: u64) -> u64 {
    if !regions.is_ascending() {
        return regions.extents().map(|extent| end.saturating_sub(extent.offset).min(extent.bytes)).sum();
    }
    let mut runs = regions.strided_runs();
    runs.skip_below(end);
    let begun = runs.peek().map_or(0, |run| end.saturating_sub(run.offset));
    runs.stream_offset() + begun
}
