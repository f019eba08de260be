//! A request's memory as it is told to the server: keys, and runs within them. Pure.
//!
//! ```text
//!   registered    [■■■■■■■■■■■■ key 5 ■■■■■■■■■]          [■■■ key 9 ■■■]
//!   pieces           [run 1 .. .. .. ]  [run 2]              [run 3]
//!   told          keys: 5, 9       runs: 1 in 1, 2 in 1, 3 in 2
//!   narrow           [■■■■■■■■■■■■■■■■■■■■]                  [■■■]            for windows
//! ```

use weft_rdma::RemotePiece;
use weft_wire::limits::{MEMORY_RUNS_MAX, REMOTE_KEYS_MAX};
use weft_wire::messages::{MemoryRun, RemoteKey, RemoteKeys};

use crate::error::RunsError;
use crate::runs::{Cursor, MemoryRuns, span, tidy};

/// Describes tidy runs, all of them in `regions`, which are sorted by address and may overlap.
pub(super) fn describe(runs: &[MemoryRun], regions: &[RemoteKey]) -> Result<RemoteKeys, RunsError> {
    let mut told = RemoteKeys { keys: Vec::new(), runs: Vec::with_capacity(runs.len()), keys_end: false };
    let mut places = Places::new(regions);
    for run in runs {
        let (low, end) = span(run).ok_or(RunsError::Overflow)?;
        match places.region(low, end) {
            Some(at) if end <= regions[at].address + regions[at].bytes => {
                let segment = places.name(at, &mut told.keys);
                told.runs.push(MemoryRun { segment, ..*run });
            }
            _ => describe_pieces(run, &mut places, &mut told)?,
        }
        if told.runs.len() > MEMORY_RUNS_MAX || told.keys.len() > REMOTE_KEYS_MAX {
            return Err(RunsError::TooMany(told.runs.len().max(told.keys.len())));
        }
    }
    Ok(told)
}

/// Describes a run whose pieces lie in several regions, piece by piece.
fn describe_pieces(run: &MemoryRun, places: &mut Places<'_>, told: &mut RemoteKeys) -> Result<(), RunsError> {
    let (mut result, bytes) = (Ok(()), run.bytes * run.count);
    Cursor::default().walk(std::slice::from_ref(run), bytes, |_, mut address, mut bytes| {
        while bytes > 0 && result.is_ok() {
            let Some(at) = places.region(address, address + bytes) else {
                result = Err(RunsError::NotRegistered);
                break;
            };
            let part = bytes.min(places.end(at) - address);
            let segment = places.name(at, &mut told.keys);
            told.runs.push(MemoryRun { segment, address, bytes: part, stride_bytes: 0, count: 1 });
            if told.runs.len() > MEMORY_RUNS_MAX {
                result = Err(RunsError::TooMany(told.runs.len()));
            }
            address += part;
            bytes -= part;
        }
        result.is_ok()
    });
    result
}

/// Makes each key's memory just what the runs with it span.
pub(super) fn narrow(told: &mut RemoteKeys) -> Result<(), RunsError> {
    let mut spans = vec![(u64::MAX, 0); told.keys.len()];
    for run in &told.runs {
        let (low, end) = span(run).ok_or(RunsError::Overflow)?;
        let key = usize::from(run.segment).checked_sub(1).and_then(|at| spans.get_mut(at));
        let (first, last) = key.ok_or(RunsError::UnknownSegment(run.segment))?;
        (*first, *last) = (low.min(*first), end.max(*last));
    }
    for (key, (first, last)) in told.keys.iter_mut().zip(spans) {
        (key.address, key.bytes) = (first, last.saturating_sub(first));
    }
    Ok(())
}

/// Regions, and the numbers that they were given.
struct Places<'a> {
    regions: &'a [RemoteKey],
    /// The furthest end of a region and those before it.
    ends: Vec<u64>,
    used: Vec<u16>,
}

impl<'a> Places<'a> {
    fn new(regions: &'a [RemoteKey]) -> Places<'a> {
        let ends = regions.iter().scan(0, |furthest: &mut u64, region| {
            *furthest = (*furthest).max(region.address + region.bytes);
            Some(*furthest)
        });
        Places { regions, ends: ends.collect(), used: vec![0; regions.len()] }
    }

    fn end(&self, at: usize) -> u64 {
        self.regions[at].address + self.regions[at].bytes
    }

    /// A region in which all of a range lies, or else the one with most of its beginning.
    fn region(&self, low: u64, end: u64) -> Option<usize> {
        let begun = self.regions.partition_point(|region| region.address <= low);
        let mut best: Option<usize> = None;
        for at in (0..begun).rev().take_while(|at| self.ends[*at] > low) {
            if self.end(at) >= end {
                return Some(at);
            }
            if self.end(at) > best.map_or(low, |best| self.end(best)) {
                best = Some(at);
            }
        }
        best
    }

    fn name(&mut self, at: usize, keys: &mut Vec<RemoteKey>) -> u16 {
        if self.used[at] == 0 && keys.len() < u16::MAX as usize {
            keys.push(self.regions[at].clone());
            self.used[at] = keys.len() as u16;
        }
        self.used[at]
    }
}

/// A client's memory, checked.
#[derive(Debug)]
pub(super) struct Described {
    keys: Vec<RemoteKey>,
    runs: MemoryRuns,
    bytes: u64,
    keys_end: bool,
}

impl Described {
    /// Checks what a client has told.
    pub(super) fn accept(told: RemoteKeys) -> Result<Described, RunsError> {
        let RemoteKeys { keys, mut runs, keys_end } = told;
        if runs.len() > MEMORY_RUNS_MAX || keys.len() > REMOTE_KEYS_MAX {
            return Err(RunsError::TooMany(runs.len().max(keys.len())));
        }
        let bytes = tidy(&mut runs)?;
        for run in &runs {
            let segment = run.segment;
            let key = usize::from(segment).checked_sub(1).and_then(|at| keys.get(at));
            let key = key.ok_or(RunsError::UnknownSegment(segment))?;
            let key_end = key.address.checked_add(key.bytes).ok_or(RunsError::Overflow)?;
            let (low, end) = span(run).ok_or(RunsError::Overflow)?;
            if low < key.address || end > key_end {
                return Err(RunsError::OutsideSegment(segment));
            }
        }
        Ok(Described { keys, runs, bytes, keys_end })
    }

    /// All of it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The key that is to end with the request's reply.
    pub(super) fn last_key(&self) -> Option<u32> {
        self.keys.last().filter(|_| self.keys_end).map(|key| key.remote_key)
    }

    /// The pieces of a part of the share, which lies within [`Described::bytes`].
    pub(super) fn pieces(&self, share_offset: u64, bytes: u64) -> Vec<RemotePiece> {
        let mut pieces = Vec::new();
        Cursor::at(&self.runs, share_offset).walk(&self.runs, bytes, |segment, address, bytes| {
            let remote_key = self.keys[usize::from(segment) - 1].remote_key;
            pieces.push(RemotePiece { address, bytes, remote_key });
            true
        });
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_wire::Wire;

    fn run(segment: u16, address: u64, bytes: u64, stride_bytes: i64, count: u64) -> MemoryRun {
        MemoryRun { segment, address, bytes, stride_bytes, count }
    }

    fn key(address: u64, bytes: u64, remote_key: u32) -> RemoteKey {
        RemoteKey { address, bytes, remote_key }
    }

    #[test]
    fn a_run_in_one_region_stays_a_run() {
        let regions = [key(0, 1000, 5), key(5000, 100, 9)];
        let told = describe(&[run(0, 100, 10, 20, 30), run(0, 5000, 100, 0, 1)], &regions).unwrap();
        assert_eq!(told.runs, [run(1, 100, 10, 20, 30), run(2, 5000, 100, 0, 1)]);
        assert_eq!(told.keys, regions);
        assert_eq!(describe(&[run(0, 2000, 1, 0, 1)], &regions), Err(RunsError::NotRegistered));
    }

    #[test]
    fn narrow_keys_are_what_the_runs_span() {
        let regions = [key(0, 1000, 5), key(5000, 100, 9)];
        let runs = [run(0, 100, 10, 20, 3), run(0, 5010, 20, 0, 1), run(0, 400, 50, -60, 4)];
        let mut told = describe(&runs, &regions).unwrap();
        narrow(&mut told).unwrap();
        assert_eq!(told.keys, [key(100, 350, 5), key(5010, 20, 9)]);
        let runs = told.runs.clone();
        assert_eq!(
            Described::accept(told).unwrap().bytes(),
            runs.iter().map(|run| run.bytes * run.count).sum()
        );
    }

    #[test]
    fn lies_are_refused() {
        let accept = |keys: &[RemoteKey], runs: &[MemoryRun]| {
            Described::accept(RemoteKeys { keys: keys.to_vec(), runs: runs.to_vec(), keys_end: false })
                .map(|told| told.bytes())
        };
        let keys = [key(1000, 100, 5)];
        assert_eq!(accept(&keys, &[run(1, 1000, 10, 45, 3)]), Ok(30));
        assert_eq!(accept(&keys, &[run(1, 1000, 10, 46, 3)]), Err(RunsError::OutsideSegment(1)));
        assert_eq!(accept(&keys, &[run(1, 999, 10, 0, 1)]), Err(RunsError::OutsideSegment(1)));
        assert_eq!(accept(&keys, &[run(0, 1000, 10, 0, 1)]), Err(RunsError::UnknownSegment(0)));
        assert_eq!(accept(&keys, &[run(2, 1000, 10, 0, 1)]), Err(RunsError::UnknownSegment(2)));
        assert_eq!(accept(&[key(u64::MAX, 2, 1)], &[run(1, u64::MAX, 1, 0, 1)]), Err(RunsError::Overflow));
        let many = vec![keys[0].clone(); REMOTE_KEYS_MAX + 1];
        assert!(matches!(accept(&many, &[]), Err(RunsError::TooMany(_))));
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn what_is_told_is_what_was_meant(
            parts in proptest::collection::vec((1u64..40, 0u64..20, 1u64..6, any::<bool>()), 1..8),
            cuts in proptest::collection::vec(1u64..300, 1..30),
            from in 0u64..200,
        ) {
            let mut runs: MemoryRuns = parts.iter().enumerate().map(|(at, (bytes, gap, count, down))| {
                let stride = (bytes + gap) as i64;
                run(0, 1000 * (at as u64 + 1), *bytes, if *down { -stride } else { stride }, *count)
            }).collect();
            let bytes = tidy(&mut runs).unwrap();
            // Regions that touch each other, at arbitrary places.
            let (mut regions, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                regions.push(key(at, *cut, at as u32));
                at += cut;
                if at > 10_000 {
                    break;
                }
            }
            let mut told = describe(&runs, &regions).unwrap();
            let wide = told.keys.clone();
            narrow(&mut told).unwrap();
            for (wide, narrow) in wide.iter().zip(&told.keys) {
                prop_assert!(narrow.bytes > 0 && narrow.address >= wide.address);
                prop_assert!(narrow.address + narrow.bytes <= wide.address + wide.bytes);
            }
            let told = Described::accept(told).unwrap();
            prop_assert_eq!(told.bytes(), bytes);
            let from = from.min(bytes);
            let mut meant = Vec::new();
            Cursor::at(&runs, from).walk(&runs, bytes - from, |_, address, bytes| {
                meant.extend(address..address + bytes);
                true
            });
            let mut pieces = Vec::new();
            for piece in told.pieces(from, bytes - from) {
                let region = regions.iter().find(|region| region.remote_key == piece.remote_key).unwrap();
                prop_assert!(piece.address >= region.address && piece.address + piece.bytes <= region.address + region.bytes);
                pieces.extend(piece.address..piece.address + piece.bytes);
            }
            prop_assert_eq!(pieces, meant);
        }
    }

    /// Memory that is accepted can be walked, and no piece of it is outside of its keys.
    #[test]
    fn damaged_keys_are_refused_or_hold_all_pieces() {
        let keys = vec![key(1000, 100, 5), key(5000, 70, 9)];
        let told =
            RemoteKeys { keys, runs: vec![run(1, 1000, 10, 45, 3), run(2, 5000, 7, 0, 1)], keys_end: true };
        weft_test_fuzz::run("keys", &[told.to_bytes()], |bytes| {
            let Ok(told) = RemoteKeys::from_bytes(bytes) else { return };
            let keys = told.keys.clone();
            let _ = narrow(&mut told.clone());
            let Ok(described) = Described::accept(told) else { return };
            // Walking takes as long as there are pieces.
            for piece in described.pieces(0, described.bytes().min(1000)) {
                let holds = |key: &RemoteKey| {
                    let begin = piece.address.checked_sub(key.address);
                    piece.remote_key == key.remote_key
                        && begin.is_some_and(|begin| begin + piece.bytes <= key.bytes)
                };
                assert!(keys.iter().any(holds), "{piece:?} in {keys:?}");
            }
        });
    }
}
