//! Which method an access uses, and what each of them is expected to cost.
//!
//! A pure function of what the processes have together, so all of them choose alike. Costs are processor time
//! that processes and servers share, or the time of the process that has most, whichever is longer; and what
//! nobody can share: rounds, requests that wait for each other, locks.

use std::fmt;

use crate::engine::Options;
use crate::learn::{Class, Learned};
use crate::memory::Direction;
use crate::summary::Totals;

/// A way to access pieces of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Each process: one access for each piece.
    Multiple,
    /// Each process: few large accesses around its pieces, and copies (data sieving).
    Sieve,
    /// All processes: exchange, then few large accesses.
    TwoPhase,
    /// Each process: one access that lists all pieces.
    List,
}

impl Method {
    /// All of them, in the order of predictions.
    pub const ALL: [Method; 4] = [Method::Multiple, Method::Sieve, Method::TwoPhase, Method::List];
    /// Which of them a collective access chooses from unless hints say otherwise, in the order of
    /// [`Method::ALL`]. Sieving is for those who ask for it: see docs/mpi.md.
    pub const AUTOMATIC: [bool; 4] = [false, false, true, true];

    /// Its name in hints and logs.
    pub fn name(self) -> &'static str {
        match self {
            Method::Multiple => "multiple",
            Method::Sieve => "sieve",
            Method::TwoPhase => "two_phase",
            Method::List => "list",
        }
    }

    /// The method with this name.
    pub fn named(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// Under what conditions an access is made; the same in all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions {
    /// Processes that take part; 1 for an access that is not collective.
    pub processes: u32,
    /// Nodes that they are on.
    pub nodes: u32,
    /// Processors that they and the servers share, over all nodes.
    pub processors: u32,
    /// Servers of the file.
    pub servers: u32,
    /// Bytes of a strip of the file.
    pub strip_bytes: u32,
    /// Which way.
    pub direction: Direction,
    /// Bytes of a buffer of data sieving.
    pub sieve_bytes: u64,
    /// What the first exchange costs beyond the others, in nanoseconds; 0 once it is paid.
    pub setup_ns: u64,
    /// How two-phase accesses are done.
    pub options: Options,
    /// Which methods may be used, in the order of [`Method::ALL`].
    pub allowed: [bool; 4],
}

/// What steps cost, in nanoseconds of a processor.
///
/// Measured, where nothing else is said, by programs with MPICH 4.0 and 1, 2 and 4 processes beside 4 servers
/// on 2 processors, over shared memory, to files in memory that were written before. Where a processor works,
/// its time is meant, of processes and servers together. Figures are medians of 10 calls or more; where there
/// are two ranges, the second one is from a machine that did other work at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// A request to a server, from its start to its end: 13 to 15 µs, then 23 to 24; one process makes 1,000.
    pub request_ns: f64,
    /// The part of it in which processors work: 12 to 17 µs with one process, 22 to 33 with 2 and 4.
    pub request_work_ns: f64,
    /// A byte between a client and a file, in pieces that are not packed: 0.15 to 0.18 ns, then 0.15 to 0.32.
    /// The first write of a byte takes 0.4 ns more by every method, which is left out.
    pub byte_ns: f64,
    /// A piece of list I/O, at the client and the server: 97 to 107 ns for 8 bytes, 60 to 75 for 64.
    pub list_piece_ns: f64,
    /// A byte of it, where pieces are small and so are packed: 0.25 to 0.35 ns for 1
    /// and 2 KiB, then 0.45 to 0.52.
    pub list_byte_ns: f64,
    /// A piece that data sieving copies: 25 to 37 ns for 8 and 64 bytes.
    pub copy_piece_ns: f64,
    /// A byte that is copied in memory: 0.28 ns in sieving pieces of 1 KiB.
    pub copy_byte_ns: f64,
    /// A piece that two-phase brings to its area and marks there: 5 to 8 ns for 8 bytes.
    pub exchange_piece_ns: f64,
    /// A byte of a message to another node. Not measured: a guess for a network of 25 Gbit/s.
    pub message_byte_ns: f64,
    /// A round of two-phase: barriers, and what begins and ends accesses. An access of one round by 2
    /// processes takes 0.15 to 0.18 ms with little data, of which requests are 0.05: half of the rest is this,
    /// half the next.
    pub round_ns: f64,
    /// What processes tell each other at the start and at the end of two-phase.
    pub agree_ns: f64,
    /// Either of these where a process waits for its turn on a processor: once for each process that there is
    /// on the average on one. An access of one round by 4 processes on 2 processors takes 0.26 to 0.58 ms with
    /// little data, of which requests are 0.05; the rest is 6 times this.
    pub crowded_ns: f64,
    /// The first exchange of a file beyond the others: processes of a node make the memory that they share.
    /// 0.5 to 0.8 ms with 2 processes; 1.1 to 9.5 with 4 on 2 processors, half of them below 2.6.
    pub setup_ns: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            request_ns: 20_000.0,
            request_work_ns: 25_000.0,
            byte_ns: 0.25,
            list_piece_ns: 90.0,
            list_byte_ns: 0.4,
            copy_piece_ns: 25.0,
            copy_byte_ns: 0.25,
            exchange_piece_ns: 6.0,
            message_byte_ns: 0.3,
            round_ns: 50_000.0,
            agree_ns: 50_000.0,
            crowded_ns: 60_000.0,
            setup_ns: 2e6,
        }
    }
}

/// What a method is expected to cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// By [`Costs`] alone, in nanoseconds: the longer one of `work_ns` and `longest_ns`, and `waits_ns`.
    pub model_ns: f64,
    /// With what was learned.
    pub ns: f64,
    /// Requests to servers, of all processes.
    pub requests: u64,
    /// The work of all processes and servers, shared out to processors.
    pub work_ns: f64,
    /// The work of the process that has most.
    pub longest_ns: f64,
    /// Waits of processes for each other, with [`Conditions::setup_ns`].
    pub waits_ns: f64,
}

/// Why a method was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is the cheapest.
    Cheapest,
    /// It is not much more expensive, and was not measured yet.
    Tried,
}

/// The method of an access, with what was expected of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The method.
    pub method: Method,
    /// Why.
    pub reason: Reason,
    /// In the order of [`Method::ALL`]; `None` where a method cannot be used.
    pub predictions: [Option<Prediction>; 4],
    /// Which of them it was chosen from.
    pub allowed: [bool; 4],
    /// What the access is like, for [`Learned`].
    pub(crate) class: Class,
}

impl Choice {
    /// What was expected of `method`.
    pub fn prediction(&self, method: Method) -> Option<Prediction> {
        self.predictions[method as usize]
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for method in Method::ALL {
            write!(f, "{:<10}", method.name())?;
            match self.prediction(method) {
                None => write!(f, "cannot be used")?,
                Some(Prediction { ns, requests, .. }) => {
                    write!(f, "{:>12.3} ms {:>9} requests", ns / 1e6, requests)?;
                }
            }
            match self.reason {
                _ if !self.allowed[method as usize] => writeln!(f, "  not considered")?,
                _ if method != self.method => writeln!(f)?,
                Reason::Cheapest => writeln!(f, "  chosen")?,
                Reason::Tried => writeln!(f, "  chosen, to measure it")?,
            }
        }
        Ok(())
    }
}

/// Methods that were never measured are tried if they are expected to cost at most this much more.
const TRIED_UP_TO: f64 = 1.5;

/// The cheapest method for an access of `totals`. List I/O where no method is allowed.
pub fn choose(totals: &Totals, conditions: &Conditions, costs: &Costs, learned: &Learned) -> Choice {
    let class = Class::of(totals, conditions.direction);
    let model = Model { totals, conditions, costs };
    let predictions = Method::ALL.map(|method| {
        let factor = learned.factor(class, method);
        Some(model.cost(method)?.prediction(factor))
    });
    let cost = |method: &Method| match predictions[*method as usize] {
        Some(prediction) if conditions.allowed[*method as usize] => prediction.ns,
        _ => f64::INFINITY,
    };
    let mut by_cost = Method::ALL;
    by_cost.reverse();
    by_cost.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let best = by_cost[0];
    let is_new =
        |method: &&Method| cost(method) <= TRIED_UP_TO * cost(&best) && !learned.knows(class, **method);
    let tried =
        by_cost[1..].iter().find(is_new).filter(|_| learned.knows(class, best) && cost(&best).is_finite());
    let (method, reason) = match tried {
        Some(method) => (*method, Reason::Tried),
        None => (best, Reason::Cheapest),
    };
    Choice { method, reason, predictions, allowed: conditions.allowed, class }
}

/// Mean bytes of pieces from which on they are coarse.
const COARSE_PIECE_BYTES: u64 = 64 << 10;

/// Whether so many pieces of so many bytes are so large that list I/O is always the method of choice. Then
/// processes need not tell each other what they access.
pub fn is_coarse(pieces: u64, bytes: u64) -> bool {
    pieces <= 1 || bytes / pieces >= COARSE_PIECE_BYTES
}

struct Model<'a> {
    totals: &'a Totals,
    conditions: &'a Conditions,
    costs: &'a Costs,
}

/// What a method takes, before anything was learned.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Of all processes and servers, shared out to processors.
    work_ns: f64,
    longest_ns: f64,
    waits_ns: f64,
    requests: u64,
}

impl Cost {
    fn prediction(self, factor: f64) -> Prediction {
        let Cost { work_ns, longest_ns, waits_ns, requests } = self;
        let model_ns = work_ns.max(longest_ns) + waits_ns;
        Prediction { model_ns, ns: model_ns * factor, requests, work_ns, longest_ns, waits_ns }
    }
}

/// Pieces below this are packed, as the client does over shared memory.
const PACKED_BELOW_BYTES: f64 = 16384.0;

impl Model<'_> {
    /// What a method costs; `None` if it cannot be used.
    fn cost(&self, method: Method) -> Option<Cost> {
        match method {
            Method::Multiple => Some(self.multiple()),
            Method::Sieve => Some(self.sieve()),
            Method::TwoPhase => self.two_phase(),
            Method::List => Some(self.list()),
        }
    }

    /// The processors' part of work that all of them share.
    fn shared(&self, work_ns: f64) -> f64 {
        let workers = self.conditions.processors.min(self.conditions.processes + self.conditions.servers);
        work_ns / f64::from(workers.max(1))
    }

    /// Pieces of the side that has more of them.
    fn pieces(&self) -> f64 {
        self.totals.pieces.max(self.totals.memory_pieces) as f64
    }

    /// How many servers a process has bytes on at most: one for each strip of what all of them access.
    fn servers_of_a_process(&self) -> u64 {
        let span_bytes = self.totals.span.map_or(0, |span| span.bytes);
        let strips = 1 + span_bytes / u64::from(self.conditions.strip_bytes.max(1));
        strips.min(self.conditions.servers.into())
    }

    /// On how many servers a piece is, on the average.
    fn servers_of_a_piece(&self) -> f64 {
        let piece_bytes = self.totals.bytes as f64 / self.pieces().max(1.0);
        let strips = 1.0 + piece_bytes / f64::from(self.conditions.strip_bytes.max(1));
        strips.min(f64::from(self.conditions.servers)).max(1.0)
    }

    fn multiple(&self) -> Cost {
        let (totals, costs) = (self.totals, self.costs);
        let work_ns = self.pieces() * costs.request_work_ns + totals.bytes as f64 * costs.byte_ns;
        let longest_ns =
            totals.pieces_max as f64 * costs.request_ns + totals.bytes_max as f64 * costs.byte_ns;
        Cost { work_ns: self.shared(work_ns), longest_ns, waits_ns: 0.0, requests: self.pieces() as u64 }
    }

    fn list(&self) -> Cost {
        let (totals, costs) = (self.totals, self.costs);
        let touched = (self.pieces() * self.servers_of_a_piece()) as u64;
        let requests = totals.active.saturating_mul(self.servers_of_a_process()).min(touched);
        let byte_ns = if self.is_packed() { costs.list_byte_ns } else { costs.byte_ns };
        let moved = |pieces: u64, bytes: u64| pieces as f64 * costs.list_piece_ns + bytes as f64 * byte_ns;
        let work_ns = moved(self.pieces() as u64, totals.bytes) + requests as f64 * costs.request_work_ns;
        let longest_ns = moved(totals.pieces_max, totals.bytes_max) / 2.0 + costs.request_ns;
        Cost { work_ns: self.shared(work_ns), longest_ns, waits_ns: 0.0, requests }
    }

    /// Whether pieces are small, on the average.
    fn is_packed(&self) -> bool {
        (self.totals.bytes as f64) < PACKED_BELOW_BYTES * self.pieces()
    }

    /// Reads; writes are not sieved by clients, but made one by one.
    fn sieve(&self) -> Cost {
        let (totals, costs) = (self.totals, self.costs);
        if self.conditions.direction == Direction::Write {
            return self.multiple();
        }
        let spans_ns = totals.spans_bytes as f64 * costs.byte_ns;
        let buffers = totals.spans_bytes.div_ceil(self.conditions.sieve_bytes.max(1)).max(totals.active);
        let requests = buffers.saturating_mul(self.servers_of_a_process());
        let copied =
            |pieces: f64, bytes: u64| pieces * costs.copy_piece_ns + bytes as f64 * costs.copy_byte_ns;
        let work_ns =
            spans_ns + requests as f64 * costs.request_work_ns + copied(self.pieces(), totals.bytes);
        let longest_ns = (spans_ns + buffers as f64 * costs.request_ns) / totals.active.max(1) as f64
            + copied(totals.pieces_max as f64, totals.bytes_max);
        Cost { work_ns: self.shared(work_ns), longest_ns, waits_ns: 0.0, requests }
    }

    fn two_phase(&self) -> Option<Cost> {
        let (totals, costs, conditions) = (self.totals, self.costs, self.conditions);
        if !totals.ascends || conditions.processes < 2 {
            return None;
        }
        let span_bytes = totals.span.map_or(0, |span| span.bytes);
        let aggregators = (conditions.processes as usize)
            .min(conditions.servers as usize)
            .min(conditions.options.aggregators_max)
            .max(1) as u64;
        let round_bytes = conditions.options.buffer_bytes.saturating_mul(aggregators).max(4096);
        let rounds = span_bytes.div_ceil(round_bytes);
        let requests = rounds.saturating_mul(conditions.servers.into());
        let density = (totals.bytes as f64 / span_bytes.max(1) as f64).min(1.0);
        let holes = match conditions.direction {
            Direction::Write => totals.pieces as f64 * (1.0 - density),
            Direction::Read => 0.0,
        };
        let accessed_bytes = match conditions.direction {
            Direction::Read if density >= 0.5 => span_bytes,
            _ => totals.bytes.min(span_bytes),
        };
        let remote = 1.0 - 1.0 / f64::from(conditions.nodes.max(1));
        let byte_ns = costs.copy_byte_ns + remote * (costs.message_byte_ns + costs.copy_byte_ns);
        let moved = |pieces: f64, bytes: u64| pieces * costs.exchange_piece_ns + bytes as f64 * byte_ns;
        let work_ns = moved(self.pieces(), totals.bytes)
            + accessed_bytes as f64 * costs.byte_ns
            + holes * costs.list_piece_ns
            + requests as f64 * costs.request_work_ns;
        let longest_ns = moved(totals.pieces_max as f64, totals.bytes_max) + costs.request_ns;
        let crowd = f64::from(conditions.processes) / f64::from(conditions.processors.max(1));
        let waits_ns = match crowd > 1.0 {
            true => (rounds as f64 + 2.0) * costs.crowded_ns * crowd,
            false => rounds as f64 * costs.round_ns + costs.agree_ns,
        };
        let waits_ns = waits_ns + conditions.setup_ns as f64;
        Some(Cost { work_ns: self.shared(work_ns), longest_ns, waits_ns, requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Extent;

    const CONDITIONS: Conditions = Conditions {
        processes: 4,
        nodes: 1,
        processors: 2,
        servers: 4,
        strip_bytes: 64 << 10,
        direction: Direction::Write,
        sieve_bytes: 4 << 20,
        setup_ns: 0,
        options: Options { buffer_bytes: 4 << 20, aggregators_max: usize::MAX, read_gap_bytes_max: 2048 },
        allowed: [true; 4],
    };

    /// Four processes with pieces of `piece_bytes` each in turn.
    fn interleaved(pieces: u64, piece_bytes: u64) -> Totals {
        let bytes = 4 * pieces * piece_bytes;
        Totals {
            active: 4,
            pieces: 4 * pieces,
            memory_pieces: 4,
            bytes,
            spans_bytes: 4 * (bytes - 3 * piece_bytes),
            pieces_max: pieces,
            bytes_max: bytes / 4,
            span: Some(Extent::new(0, bytes)),
            ascends: true,
            last_ns: 0,
        }
    }

    fn chosen(totals: &Totals, conditions: &Conditions) -> Method {
        choose(totals, conditions, &Costs::default(), &Learned::new()).method
    }

    #[test]
    fn tiny_interleaved_pieces_are_exchanged() {
        assert_eq!(chosen(&interleaved(1 << 20, 8), &CONDITIONS), Method::TwoPhase);
    }

    #[test]
    fn processes_that_crowd_or_exchange_once_do_so_for_more() {
        let totals = interleaved(1500, 8);
        let roomy = Conditions { processors: 4, ..CONDITIONS };
        assert_eq!(chosen(&totals, &roomy), Method::TwoPhase);
        assert_eq!(chosen(&totals, &CONDITIONS), Method::List);
        assert_eq!(chosen(&totals, &Conditions { setup_ns: 10_000_000, ..roomy }), Method::List);
    }

    #[test]
    fn large_or_few_pieces_are_not() {
        assert_eq!(chosen(&interleaved(16, 1 << 20), &CONDITIONS), Method::List);
        assert_eq!(chosen(&interleaved(2, 64), &CONDITIONS), Method::List);
    }

    #[test]
    fn coarse_pieces_are_never_exchanged() {
        for (processes, processors) in [(2, 2), (4, 2), (4, 64), (64, 2), (64, 16), (1024, 1024), (4096, 64)]
        {
            for (pieces, piece_bytes) in [(1, 8), (1, 1 << 20), (1, 64 << 10), (100, 64 << 10), (16, 1 << 20)]
            {
                let bytes = u64::from(processes) * pieces * piece_bytes;
                let totals = Totals {
                    active: processes.into(),
                    pieces: u64::from(processes) * pieces,
                    memory_pieces: processes.into(),
                    bytes,
                    pieces_max: pieces,
                    bytes_max: pieces * piece_bytes,
                    span: Some(Extent::new(0, bytes)),
                    ..interleaved(1, 1)
                };
                assert!(is_coarse(pieces, pieces * piece_bytes));
                for (direction, nodes) in [(Direction::Write, 1), (Direction::Read, 1), (Direction::Write, 2)]
                {
                    let conditions = Conditions {
                        processes,
                        processors,
                        nodes,
                        direction,
                        allowed: [false, false, true, true],
                        ..CONDITIONS
                    };
                    assert_eq!(chosen(&totals, &conditions), Method::List, "{conditions:?} {totals:?}");
                }
            }
        }
        assert!(!is_coarse(2, 1 << 10) && is_coarse(0, 0));
    }

    #[test]
    fn what_is_not_allowed_or_possible_is_not_chosen() {
        let totals = interleaved(1 << 20, 8);
        let descending = Totals { ascends: false, ..totals };
        assert_eq!(choose(&descending, &CONDITIONS, &Costs::default(), &Learned::new()).predictions[2], None);
        for method in Method::ALL {
            let mut allowed = [false; 4];
            allowed[method as usize] = true;
            assert_eq!(chosen(&totals, &Conditions { allowed, ..CONDITIONS }), method);
            assert_eq!(Method::named(method.name()), Some(method));
        }
        assert_eq!(chosen(&totals, &Conditions { allowed: [false; 4], ..CONDITIONS }), Method::List);
    }

    #[test]
    fn a_process_alone_does_not_exchange() {
        let one = Totals { active: 1, ..interleaved(1 << 18, 8) };
        let conditions = Conditions { processes: 1, ..CONDITIONS };
        let choice = choose(&one, &conditions, &Costs::default(), &Learned::new());
        assert_eq!(choice.prediction(Method::TwoPhase), None);
        assert_ne!(choice.method, Method::Multiple, "{choice}");
    }

    #[test]
    fn tiny_pieces_are_read_faster_by_sieving_than_by_list_and_never_written_so() {
        let read = Conditions { direction: Direction::Read, ..CONDITIONS };
        let prefers_sieve = |piece_bytes, conditions: &Conditions| {
            let totals = interleaved(1 << 16, piece_bytes);
            let choice = choose(&totals, conditions, &Costs::default(), &Learned::new());
            let of = |method| choice.prediction(method).unwrap().ns;
            of(Method::Sieve) < of(Method::List)
        };
        assert!(prefers_sieve(8, &read) && !prefers_sieve(1024, &read));
        assert!(!prefers_sieve(8, &CONDITIONS));
    }

    #[test]
    fn what_is_left_out_is_predicted_all_the_same() {
        let conditions = Conditions { allowed: Method::AUTOMATIC, ..CONDITIONS };
        let choice = choose(&interleaved(100, 8), &conditions, &Costs::default(), &Learned::new());
        assert!(Method::ALL.iter().all(|method| choice.prediction(*method).is_some()));
        assert_eq!(choice.to_string().matches("not considered").count(), 2, "{choice}");
        for Prediction { model_ns, work_ns, longest_ns, waits_ns, .. } in choice.predictions.iter().flatten()
        {
            assert_eq!(*model_ns, work_ns.max(*longest_ns) + waits_ns);
        }
    }

    #[test]
    fn what_was_measured_decides() {
        let totals = interleaved(1 << 20, 8);
        let mut learned = Learned::new();
        let conditions = Conditions { allowed: [false, false, true, true], ..CONDITIONS };
        let choose = |learned: &Learned| choose(&totals, &conditions, &Costs::default(), learned);
        let mut methods = Vec::new();
        for _ in 0..20 {
            let choice = choose(&learned);
            methods.push(choice.method);
            // On this machine two-phase takes twelve times as long as it should, list I/O as long as it should.
            let slow = if choice.method == Method::TwoPhase { 12.0 } else { 1.0 };
            let expected = choice.prediction(choice.method).unwrap().model_ns;
            learned.observe(&choice, (expected * slow) as u64);
        }
        assert_eq!(methods[0], Method::TwoPhase);
        assert_eq!(methods[15..], [Method::List; 5], "{methods:?}");
    }

    #[test]
    fn a_method_that_is_nearly_as_cheap_is_measured_too() {
        let totals = interleaved(4, 1 << 20);
        let costs = Costs { list_piece_ns: 0.0, ..Costs::default() };
        let mut learned = Learned::new();
        let mut tried = Vec::new();
        for _ in 0..50 {
            let choice = choose(&totals, &CONDITIONS, &costs, &learned);
            if choice.reason == Reason::Tried {
                tried.push(choice.method);
            }
            learned.observe(&choice, choice.prediction(choice.method).unwrap().model_ns as u64);
        }
        for method in &tried {
            assert_eq!(tried.iter().filter(|other| *other == method).count(), 2);
        }
        assert!(!tried.is_empty());
    }

    #[test]
    fn a_choice_is_a_line_for_each_method() {
        let text = choose(&interleaved(100, 8), &CONDITIONS, &Costs::default(), &Learned::new()).to_string();
        assert_eq!(text.lines().count(), 4);
        assert_eq!(text.lines().filter(|line| line.ends_with("chosen")).count(), 1);
    }
}
