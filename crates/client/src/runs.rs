//! Memory pieces as runs of equal pieces at equal distances.
//!
//! ```text
//!   pieces   |ab|  |cd|  |ef|  |ghij|  |kl|          3 × 2 bytes every 4, 1 × 4 bytes, 1 × 2 bytes
//!   runs     {2 bytes, every 4, 3 times} {4 bytes} {2 bytes}
//! ```

use weft_layout::Extent;
use weft_wire::messages::MemoryRun;

/// More runs than one request may describe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Describes pieces at offsets from `base`, in their order, by at most `runs_max` runs.
pub(crate) fn memory_runs(
    base: u64,
    pieces: impl Iterator<Item = Extent>,
    runs_max: usize,
) -> Result<Vec<MemoryRun>, TooMany> {
    let mut runs: Vec<MemoryRun> = Vec::new();
    for piece in pieces {
        let address = base.wrapping_add(piece.offset);
        if let Some(run) = runs.last_mut()
            && continues(run, address, piece.bytes)
        {
            run.stride_bytes =
                if run.count == 1 { address.wrapping_sub(run.address) as i64 } else { run.stride_bytes };
            run.count += 1;
            continue;
        }
        if runs.len() == runs_max {
            return Err(TooMany);
        }
        runs.push(MemoryRun {
            segment: 0,
            address,
            bytes: piece.bytes,
            stride_bytes: piece.bytes as i64,
            count: 1,
        });
    }
    Ok(runs)
}

/// Whether a piece is the next of a run; the second piece of a run may be anywhere and sets its stride.
fn continues(run: &MemoryRun, address: u64, bytes: u64) -> bool {
    let expected = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(run.count));
    run.bytes == bytes && (run.count == 1 || address == expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expand(runs: &[MemoryRun]) -> Vec<Extent> {
        let pieces = runs.iter().flat_map(|run| {
            (0..run.count).map(|at| Extent {
                offset: run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(at)),
                bytes: run.bytes,
            })
        });
        pieces.collect()
    }

    #[test]
    fn a_striped_buffer_is_one_run() {
        let pieces = (0..256).map(|at| Extent { offset: 65536 + at * 262144, bytes: 65536 });
        let runs = memory_runs(1 << 30, pieces, 1).unwrap();
        let address = (1 << 30) + 65536;
        assert_eq!(runs, [MemoryRun { segment: 0, address, bytes: 65536, stride_bytes: 262144, count: 256 }]);
    }

    #[test]
    fn the_bound_holds() {
        let pieces: Vec<_> =
            (0..9u64).map(|at| Extent { offset: at * at * 100, bytes: 1 + at % 2 }).collect();
        assert_eq!(memory_runs(0, pieces.iter().copied(), 8), Err(TooMany));
        assert_eq!(memory_runs(0, pieces.iter().copied(), 9).unwrap().len(), 9);
    }

    proptest! {
        #[test]
        fn runs_say_exactly_what_the_pieces_said(
            base in 0u64..1 << 40,
            pieces in proptest::collection::vec((0u64..64, 1u64..4), 0..80),
        ) {
            let pieces: Vec<_> =
                pieces.into_iter().map(|(offset, bytes)| Extent { offset: offset * 8, bytes }).collect();
            let runs = memory_runs(base, pieces.iter().copied(), usize::MAX).unwrap();
            let moved: Vec<_> = pieces.iter().map(|p| Extent { offset: base + p.offset, bytes: p.bytes }).collect();
            prop_assert_eq!(expand(&runs), moved);
            prop_assert!(runs.len() <= pieces.len());
        }
    }
}
