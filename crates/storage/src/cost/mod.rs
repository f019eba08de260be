//! What accesses cost here, and the choice of how a window of pieces is accessed: active data sieving with
//! a cost model (NC, section 5.1), made to know the page cache. No I/O, no clock.
//!
//! ```text
//!   a window of a share, in a data file      [aa]....[bb].[cc]..............................[dd]
//!
//!   each     one access per piece             aa      bb   cc                                dd
//!   sieve    one per group, and copies        aa....bb.cc                                    dd
//!   mapped   copies from or to mapped pages   aa      bb   cc    (no access at all)          dd
//! ```
//!
//! A gap is bridged iff passing over it costs less than one more access ([`CostModel::gap_bytes_max`]), so
//! `groups` lie between "all pieces" and "one big access". A write by sieving reads each group that has
//! gaps, changes it and writes it back under a lock.
//!
//! With NC's names, `N` pieces of `S = S_req / N` bytes in `G` groups of `D = S_ds / G` bytes, and
//! `cost(s) = O + s / B(s)` read off a measured [`Curve`]:
//!
//! ```text
//!   T_read  = N r(S)                    r, w: cost of an access, from the cached and the device curve
//!   T_write = N w(S)                    in proportion to what is cached
//!   T_dsr   = G r(D) + N copy(S)
//!   T_dsw   = G' (r(D') + O_lock) + N copy(S) + G w_cached(D)      G', D': groups with gaps only
//!             and for both writes, pages added to the file * new_page
//!   T_map   = N mapped(S) + pages to enter * page_fault
//! ```
//!
//! Several pieces in one page that is not cached wait for the device once: the first pays for it. What a
//! window cost is compared with what was predicted, and [`Corrections`] carry the ratio into the next choice.

mod choice;
mod corrections;
mod curve;
mod model;
mod window;

pub use choice::{Choice, Prediction, choose, predict};
pub use corrections::Corrections;
pub use curve::{CURVE_POINTS_MAX, Curve, CurveError};
pub use model::{CostModel, CurrentModel, GAP_BYTES_MAX};
pub use window::{Group, Method, WindowShape, sieve_groups};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_layout::Extent;

    fn strided(pieces: u64, bytes: u64, stride: u64) -> Vec<Extent> {
        (0..pieces).map(|at| Extent::new(at * stride, bytes)).collect()
    }

    fn shape(write: bool, cached: f64, pieces: &[Extent]) -> WindowShape {
        let gap = CostModel::default().gap_bytes_max(write, cached > 0.5);
        let groups = sieve_groups(pieces.iter().copied(), gap, 1 << 20);
        WindowShape { cached_fraction: cached, ..WindowShape::of(write, pieces, &groups, u64::MAX) }
    }

    fn chosen(shape: &WindowShape) -> Method {
        choose(&CostModel::default(), &Corrections::new(), shape).method
    }

    #[test]
    fn a_curve_is_linear_between_its_points() {
        let curve = Curve::new(vec![(100, 50), (200, 50), (400, 250)]).unwrap();
        let costs: Vec<f64> = [0, 100, 150, 300, 400, 600].map(|bytes| curve.cost_ns(bytes)).to_vec();
        assert_eq!(costs, [50.0, 50.0, 50.0, 150.0, 250.0, 450.0]);
        assert_eq!(curve.overhead_ns(), 50.0);
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        assert_eq!(Curve::new(vec![(1, 1)]), Err(CurveError::Count(1)));
        assert_eq!(Curve::new((1..=33).map(|n| (n, n)).collect()), Err(CurveError::Count(33)));
        assert_eq!(Curve::new(vec![(1, 1), (1, 2)]), Err(CurveError::Size(1)));
        assert_eq!(Curve::new(vec![(1, 2), (2, 3), (3, 1)]), Err(CurveError::Cost(2)));
        let smooth = Curve::measured(vec![(1, 2), (2, 9), (3, 7), (4, 8), (5, 20)]).unwrap();
        assert_eq!(smooth.points(), [(1, 2), (2, 8), (3, 8), (4, 8), (5, 20)]);
    }

    #[test]
    fn gaps_are_bridged_up_to_the_bound() {
        let pieces = [(0, 10), (15, 5), (20, 10), (36, 4), (100, 50), (90, 5)];
        let groups = sieve_groups(pieces.map(|(at, bytes)| Extent::new(at, bytes)), 5, 40);
        let seen: Vec<_> = groups.iter().map(|g| (g.extent.offset, g.extent.bytes, g.pieces)).collect();
        assert_eq!(seen, [(0, 30, 3), (36, 4, 1), (100, 50, 1), (90, 5, 1)]);
        assert_eq!((groups[0].wanted_bytes, groups[0].has_gaps()), (25, true));
        assert!(!groups[2].has_gaps());
    }

    #[test]
    fn a_gap_pays_as_long_as_it_costs_less_than_an_access() {
        let model = CostModel::default();
        let gap = model.gap_bytes_max(false, true);
        assert!(gap as f64 * model.read_cached.ns_per_byte() <= model.read_cached.overhead_ns());
        assert!((gap + 2) as f64 * model.read_cached.ns_per_byte() > model.read_cached.overhead_ns());
        assert!(model.gap_bytes_max(false, false) > gap);
        let free = Curve::new(vec![(1, 100), (1 << 20, 100)]).unwrap();
        assert_eq!(CostModel { read_cached: free, ..model }.gap_bytes_max(false, true), GAP_BYTES_MAX);
    }

    #[test]
    fn pages_are_counted_once() {
        let of = |pieces: &[Extent]| WindowShape::of(false, pieces, &[], 10_000);
        assert_eq!(of(&strided(64, 64, 128)).pages, 2);
        assert_eq!(of(&strided(3, 2, 4095)).pages, 2);
        let beyond = of(&[Extent::new(0, 8192), Extent::new(9_000, 2_000)]);
        assert_eq!((beyond.pages, beyond.wanted_bytes), (3, 10_192));
        assert_eq!(beyond.beyond_end_fraction, 1_000.0 / 10_192.0);
    }

    #[test]
    fn one_piece_is_one_access() {
        for (write, cached) in [(false, 1.0), (false, 0.0), (true, 1.0), (true, 0.0)] {
            assert_eq!(chosen(&shape(write, cached, &[Extent::new(5, 1 << 20)])), Method::Each);
        }
    }

    #[test]
    fn many_small_pieces_are_sieved_and_large_ones_are_not() {
        for (write, cached) in [(false, 1.0), (false, 0.0), (true, 1.0), (true, 0.0)] {
            assert_eq!(
                chosen(&shape(write, cached, &strided(1024, 64, 256))),
                Method::Sieve,
                "{write} {cached}"
            );
            assert_eq!(chosen(&shape(write, cached, &strided(8, 256 << 10, 1 << 20))), Method::Each);
        }
    }

    #[test]
    fn small_cached_pieces_are_copied_from_mapped_pages_where_that_can_be() {
        let sparse = strided(1024, 64, 3000);
        let mapped = WindowShape { mappable: true, ..shape(false, 1.0, &sparse) };
        assert_eq!(chosen(&mapped), Method::Mapped);
        let to_enter = WindowShape { pages_to_enter: 100_000, ..mapped };
        assert_ne!(chosen(&to_enter), Method::Mapped);
        assert_eq!(predict(&CostModel::default(), &shape(false, 1.0, &sparse))[2], None);
    }

    #[test]
    fn a_write_reads_only_groups_with_gaps() {
        let model = CostModel::default();
        let touching = strided(100, 64, 64);
        let dense = predict(&model, &shape(true, 1.0, &touching))[1].unwrap();
        assert_eq!((dense.accesses, dense.accessed_bytes), (1, 6400));
        let holed = predict(&model, &shape(true, 1.0, &strided(100, 64, 128)))[1].unwrap();
        assert_eq!((holed.accesses, holed.accessed_bytes), (2, 2 * (99 * 128 + 64)));
        let fresh = WindowShape { beyond_end_fraction: 1.0, ..shape(true, 1.0, &strided(100, 64, 128)) };
        assert_eq!(predict(&model, &fresh)[1].unwrap().accesses, 1);
    }

    #[test]
    fn gaps_beyond_the_end_take_pages_too() {
        // Writing over 5 KiB costs less than one more access, but not if the pages between have to be made.
        let sparse = strided(100, 64, 5 << 10);
        let groups = sieve_groups(sparse.iter().copied(), 8 << 10, 1 << 20);
        let fresh = WindowShape::of(true, &sparse, &groups, 0);
        assert_eq!((fresh.beyond_end_fraction, fresh.groups), (1.0, 1));
        let model = CostModel { new_page_ns: 0, ..CostModel::default() };
        assert_eq!(choose(&model, &Corrections::new(), &fresh).method, Method::Sieve);
        let model = CostModel { new_page_ns: 2_000, ..model };
        assert_eq!(choose(&model, &Corrections::new(), &fresh).method, Method::Each);
        let [each, sieve, _] = predict(&model, &fresh).map(Option::unwrap_or_default);
        assert!(each.cost_ns < sieve.cost_ns);
    }

    #[test]
    fn equal_costs_go_to_the_simplest() {
        let curve = || Curve::new(vec![(1, 0), (2, 0)]).unwrap();
        let free = CostModel {
            read_cached: curve(),
            read_device: curve(),
            copy: curve(),
            mapped_read: curve(),
            ..CostModel::default()
        };
        let shape = WindowShape { mappable: true, ..shape(false, 1.0, &strided(10, 64, 128)) };
        assert_eq!(choose(&free, &Corrections::new(), &shape).method, Method::Each);
    }

    #[test]
    fn a_slow_machine_slows_all_methods_alike() {
        let mut corrections = Corrections::new();
        for _ in 0..2000 {
            corrections.observe(Method::Sieve, false, true, 100.0, 300.0);
        }
        for method in Method::ALL {
            assert!((corrections.factor(method, false, true) - 3.0).abs() < 0.1);
            assert_eq!(corrections.factor(method, true, true), 1.0);
            assert_eq!(corrections.factor(method, false, false), 1.0);
        }
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn groups_hold_all_pieces_in_order(
            steps in proptest::collection::vec((0u64..3000, 0u64..5000), 0..60),
            gap_max in 0u64..4000,
            group_max in 1u64..20_000,
        ) {
            let mut at = 0;
            let pieces: Vec<Extent> = steps.iter().map(|(gap, bytes)| {
                at += gap + bytes;
                Extent::new(at - bytes, *bytes)
            }).collect();
            let groups = sieve_groups(pieces.iter().copied(), gap_max, group_max);
            let mut rest = pieces.iter();
            for group in &groups {
                let within: Vec<_> = rest.by_ref().take(group.pieces as usize).collect();
                prop_assert_eq!(group.wanted_bytes, within.iter().map(|piece| piece.bytes).sum::<u64>());
                prop_assert_eq!(group.extent.offset, within[0].offset);
                let last = within.last().unwrap();
                prop_assert_eq!(group.extent.offset + group.extent.bytes, last.offset + last.bytes);
                prop_assert!(group.extent.bytes <= group_max || within.len() == 1);
                for pair in within.windows(2) {
                    prop_assert!(pair[1].offset - pair[0].offset - pair[0].bytes <= gap_max);
                }
            }
            prop_assert!(rest.next().is_none());
        }

        #[test]
        fn any_shape_gets_finite_costs_and_the_least_of_them(
            steps in proptest::collection::vec((0u64..100_000, 1u64..100_000), 1..60),
            write: bool, sync: bool, mappable: bool, cached in 0f64..=1.0, pages_to_enter in 0u64..1000,
        ) {
            let mut at = 0;
            let pieces: Vec<Extent> = steps.iter().map(|(gap, bytes)| {
                at += gap + bytes;
                Extent::new(at - bytes, *bytes)
            }).collect();
            let shape = WindowShape { sync, mappable, pages_to_enter, ..shape(write, cached, &pieces) };
            let choice = choose(&CostModel::default(), &Corrections::new(), &shape);
            let total = |method| choice.prediction(method).map(|p: Prediction| p.cost_ns + p.sync_ns);
            let chosen_ns = total(choice.method).unwrap();
            prop_assert!(chosen_ns.is_finite() && chosen_ns > 0.0);
            for method in Method::ALL {
                prop_assert!(total(method).is_none_or(|ns| ns >= chosen_ns));
            }
        }

        #[test]
        fn corrections_are_bounded_and_converge(
            noise in proptest::collection::vec((0usize..3, any::<f64>(), any::<f64>()), 0..200),
            true_ratio in 0.26f64..3.9,
        ) {
            let mut corrections = Corrections::new();
            for (method, predicted, observed) in noise {
                let before = corrections.factor(Method::ALL[method], true, false);
                corrections.observe(Method::ALL[method], true, false, predicted, observed);
                let moved = corrections.factor(Method::ALL[method], true, false) / before;
                prop_assert!((0.95..1.05).contains(&moved));
                for method in Method::ALL {
                    prop_assert!((0.25..=4.0).contains(&corrections.factor(method, true, false)));
                }
            }
            for _ in 0..200 {
                corrections.observe(Method::Each, true, false, 1000.0, 1000.0 * true_ratio);
            }
            let factor = corrections.factor(Method::Each, true, false);
            prop_assert!((factor / true_ratio - 1.0).abs() < 0.01, "{} for {}", factor, true_ratio);
        }

        #[test]
        fn a_method_that_once_looked_bad_gets_another_try(bad in 1.5f64..100.0) {
            let mut corrections = Corrections::new();
            for _ in 0..100 {
                corrections.observe(Method::Sieve, false, true, 1.0, bad);
            }
            for _ in 0..1000 {
                corrections.observe(Method::Each, false, true, 1.0, 1.0);
            }
            prop_assert!(corrections.factor(Method::Sieve, false, true) < 1.05);
        }
    }
}
