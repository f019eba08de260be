//! Which memory to register together: pure.
//!
//! ```text
//!   pieces    ▄▄   ▄▄   ▄▄                                 ▄▄   ▄▄
//!   pages    [──] [──] [──]                               [──] [──]        sorted, rounded to pages, touching ones merged
//!   groups   [────────────]      a hole too wide to be    [───────]        a hole is registered too where that costs less
//!                                worth it                                  than another registration
//! ```
//!
//! The cost of a registration is T = a·pages + b, so what joining two neighbours costs depends only on the
//! hole between them: a·(pages of the hole) more for its pages, b less for the registration that is saved.
//! They are joined if a·hole < b. Every hole is decided for itself, so the sum is the least that there is:
//! with the figures of the paper, holes of up to eight pages are registered with their neighbours, and 768
//! rows of an array one page apart are one registration.
//!
//! Whether a hole is mapped at all is not known here: a group is tried, and if the system refuses it the true
//! holes are asked for (`holes`) and it is planned again without them.

use std::ops::Range;

use super::cost::RegistrationCost;
use super::page::page_bytes;

/// Whole pages, by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    /// The first page's address.
    pub start: u64,
    /// The end of the last.
    pub end: u64,
}

impl PageRange {
    /// The pages that hold a piece of memory; `None` at the end of the address space.
    pub fn around(address: u64, bytes: u64) -> Option<PageRange> {
        let page_bytes = page_bytes();
        let end = address.checked_add(bytes)?.checked_next_multiple_of(page_bytes)?;
        Some(PageRange { start: address - address % page_bytes, end })
    }

    /// How much that is.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// How many.
    pub fn pages(&self) -> u64 {
        self.bytes() / page_bytes()
    }

    /// Whether all of the other lies in it.
    pub fn contains(&self, other: &PageRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether they share a page.
    pub fn overlaps(&self, other: &PageRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Neighbours that are registered as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// All of it.
    pub range: PageRange,
    /// Which of the planned ranges.
    pub parts: Range<usize>,
}

/// Sorts ranges, and makes one of those that touch.
pub fn merge(mut ranges: Vec<PageRange>) -> Vec<PageRange> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

/// Cuts ranges that are larger than one registration may be.
pub fn cut(ranges: Vec<PageRange>, bytes_max: u64) -> Vec<PageRange> {
    let bytes_max = (bytes_max - bytes_max % page_bytes()).max(page_bytes());
    if ranges.iter().all(|range| range.bytes() <= bytes_max) {
        return ranges;
    }
    let parts = |range: PageRange| {
        (range.start..range.end)
            .step_by(bytes_max as usize)
            .map(move |start| PageRange { start, end: range.end.min(start + bytes_max) })
    };
    ranges.into_iter().flat_map(parts).collect()
}

/// Groups ranges that [`merge`] and [`cut`] have put in order. `may_join` refuses holes that must not be
/// registered.
pub fn plan(
    ranges: &[PageRange],
    cost: &RegistrationCost,
    bytes_max: u64,
    may_join: impl Fn(&PageRange) -> bool,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, range) in ranges.iter().enumerate() {
        if let Some(last) = groups.last_mut() {
            let hole = PageRange { start: last.range.end, end: range.start };
            let is_worth = cost.page_ns().saturating_mul(hole.pages()) < cost.call_ns();
            if is_worth && range.end - last.range.start <= bytes_max && may_join(&hole) {
                last.range.end = range.end;
                last.parts.end = at + 1;
                continue;
            }
        }
        groups.push(Group { range: *range, parts: at..at + 1 });
    }
    groups
}

/// What registering and deregistering the groups costs, in nanoseconds.
pub fn cost_ns(groups: &[Group], cost: &RegistrationCost) -> u64 {
    groups.iter().map(|group| cost.of_ns(group.range.pages())).fold(0, u64::saturating_add)
}

/// The cases of NC table 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Everything is registered already.
    Ideal,
    /// Every buffer for itself.
    Individual,
    /// Optimistic group registration.
    Group,
    /// The same, with holes in which no memory is: refused, the system asked, registered in parts.
    GroupWithHoles,
}

/// What one of them takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemeCost {
    /// Which.
    pub scheme: Scheme,
    /// Registrations that were made.
    pub registrations: u64,
    /// Registrations that the system refused.
    pub refused: u64,
    /// Pages of those that were made.
    pub pages: u64,
    /// All of it, by the cost model, in nanoseconds.
    pub cost_ns: u64,
}

/// Asking the system for the mapped ranges around one hole, in nanoseconds (NC 4.3: 70 µs for 1000 holes).
const QUERY_HOLE_NS: u64 = 70;

/// The buffers of NC 6.4: the 1024 rows of 4 KiB that one of four processes has of a 2048×2048 array of
/// integers, from `base` on, and the places of ten holes (the pages after every 93rd row) for
/// [`Scheme::GroupWithHoles`].
pub fn paper_rows(base: u64) -> (Vec<PageRange>, Vec<PageRange>) {
    let row = |number: u64| PageRange { start: base + number * 8192, end: base + number * 8192 + 4096 };
    let hole = |number: u64| PageRange { start: row(number).end, end: row(number + 1).start };
    ((0..1024).map(row).collect(), (1..=10).map(|at| hole(at * 93 - 1)).collect())
}

/// A row of NC table 4: what a scheme takes for rows (in order, none touching) with holes in which no memory
/// is.
pub fn scheme_cost(
    scheme: Scheme,
    rows: &[PageRange],
    holes: &[PageRange],
    cost: &RegistrationCost,
) -> SchemeCost {
    let of = |groups: Vec<Group>| SchemeCost {
        scheme,
        registrations: groups.len() as u64,
        refused: 0,
        pages: groups.iter().map(|group| group.range.pages()).sum(),
        cost_ns: cost_ns(&groups, cost),
    };
    let any = |_: &PageRange| true;
    match scheme {
        Scheme::Ideal => of(Vec::new()),
        Scheme::Individual => of(plan(rows, cost, 0, any)),
        Scheme::Group => of(plan(rows, cost, u64::MAX, any)),
        Scheme::GroupWithHoles => {
            let tried = plan(rows, cost, u64::MAX, any);
            let mapped = |gap: &PageRange| !holes.iter().any(|hole| hole.overlaps(gap));
            let mut made = of(plan(rows, cost, u64::MAX, mapped));
            for group in tried {
                let inside: Vec<_> = holes.iter().filter(|hole| group.range.overlaps(hole)).collect();
                if let Some(first) = inside.first() {
                    // Pages are pinned one after the other up to the hole, and let go.
                    let pinned = PageRange { start: group.range.start, end: first.start };
                    made.refused += 1;
                    made.cost_ns += cost.of_ns(pinned.pages()) + QUERY_HOLE_NS * inside.len() as u64;
                }
            }
            made
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::CallCost;
    use proptest::prelude::*;

    fn ranges(pages: &[(u64, u64)]) -> Vec<PageRange> {
        let page_bytes = page_bytes();
        pages.iter().map(|(at, n)| PageRange { start: at * page_bytes, end: (at + n) * page_bytes }).collect()
    }

    fn cost(page_ns: u64, call_ns: u64) -> RegistrationCost {
        let none = CallCost { page_ns: 0, call_ns: 0 };
        RegistrationCost { register: CallCost { page_ns, call_ns }, deregister: none }
    }

    /// The least cost of all ways to cut a list of ranges into groups.
    fn least_ns(ranges: &[PageRange], cost: &RegistrationCost) -> u64 {
        let cuts = ranges.len().saturating_sub(1);
        let price = |mask: u32| {
            let (mut sum, mut start) = (0, 0);
            for at in 0..ranges.len() {
                if at == cuts || mask & (1 << at) != 0 {
                    let whole = PageRange { start: ranges[start].start, end: ranges[at].end };
                    sum += cost.of_ns(whole.pages());
                    start = at + 1;
                }
            }
            sum
        };
        (0..1u32 << cuts).map(price).min().unwrap_or(0)
    }

    #[test]
    fn rows_of_one_array_are_one_registration() {
        for row_bytes in [8, 3000, 4096, 5000, 10_240] {
            let rows = (0..768u64).map(|row| PageRange::around((1 << 30) + row * 10_240, row_bytes).unwrap());
            let rows = merge(rows.collect());
            assert_eq!(plan(&rows, &RegistrationCost::PAPER, u64::MAX, |_| true).len(), 1, "{row_bytes}");
        }
    }

    #[test]
    fn a_piece_at_the_end_of_the_address_space_has_no_pages() {
        assert_eq!(PageRange::around(u64::MAX - 10, 20), None);
        assert_eq!(PageRange::around(u64::MAX - 10, 5), None);
        assert_eq!(PageRange::around(4095, 2), Some(PageRange { start: 0, end: 8192 }));
    }

    #[test]
    fn what_is_too_large_for_one_registration_is_cut() {
        let page = page_bytes();
        assert_eq!(cut(ranges(&[(1, 5)]), 2 * page + 5), ranges(&[(1, 2), (3, 2), (5, 1)]));
        let groups = plan(&ranges(&[(0, 1), (2, 1), (4, 1)]), &cost(1, 100), 3 * page, |_| true);
        assert_eq!(groups.iter().map(|group| group.parts.clone()).collect::<Vec<_>>(), [0..2, 2..3]);
    }

    /// NC table 4 has overheads of 227 µs for 2047 pages as one registration: a tenth of the page costs given
    /// in NC 4.3, which is what later adapters take too. The table's transfer is 4 MiB at 1010 MB/s.
    #[test]
    fn the_paper_s_table_comes_out() {
        let mut cost = RegistrationCost::PAPER;
        cost.register.page_ns /= 10;
        cost.deregister.page_ns /= 10;
        let transfer_ns = 4_000_000_000 / 1010;
        let (rows, holes) = paper_rows(1 << 40);
        let of = |scheme| scheme_cost(scheme, &rows, &holes, &cost);
        let (ideal, individual) = (of(Scheme::Ideal), of(Scheme::Individual));
        assert_eq!((ideal.registrations, ideal.cost_ns), (0, 0));
        assert_eq!((individual.registrations, individual.pages), (1024, 1024));
        assert!(individual.cost_ns > transfer_ns, "worse than the transfer itself");
        let group = of(Scheme::Group);
        assert_eq!((group.registrations, group.pages, group.refused), (1, 2047, 0));
        assert!(group.cost_ns * 100 <= transfer_ns * 6, "{} ns", group.cost_ns);
        let holed = of(Scheme::GroupWithHoles);
        assert_eq!((holed.registrations, holed.pages, holed.refused), (11, 2037, 1));
        assert!(holed.cost_ns * 100 <= transfer_ns * 13, "{} ns", holed.cost_ns);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn no_other_grouping_costs_less(
            gaps in proptest::collection::vec((1u64..6, 1u64..12), 0..10),
            page_ns in 0u64..200,
            call_ns in 1u64..1000,
        ) {
            let mut at = 0;
            let pages: Vec<_> = gaps.iter().map(|(hole, n)| { at += hole + n; (at - n, *n) }).collect();
            let (ranges, cost) = (ranges(&pages), cost(page_ns, call_ns));
            let groups = plan(&ranges, &cost, u64::MAX, |_| true);
            prop_assert_eq!(cost_ns(&groups, &cost), least_ns(&ranges, &cost));
            let covered: Vec<_> = groups.iter().flat_map(|group| group.parts.clone()).collect();
            prop_assert_eq!(covered, (0..ranges.len()).collect::<Vec<_>>());
            for group in &groups {
                prop_assert!(ranges[group.parts.clone()].iter().all(|range| group.range.contains(range)));
            }
        }

        #[test]
        fn merging_keeps_every_page_once(pieces in proptest::collection::vec((0u64..200_000, 1u64..9000), 0..40)) {
            let around = |(address, bytes): &(u64, u64)| PageRange::around(*address, *bytes).unwrap();
            let merged = merge(pieces.iter().map(around).collect());
            prop_assert!(merged.windows(2).all(|pair| pair[0].end < pair[1].start));
            for page in 0..64 {
                let is_wanted = |(address, bytes): &(u64, u64)| {
                    address / page_bytes() <= page && page * page_bytes() < address + bytes
                };
                let address = page * page_bytes();
                let is_kept = merged.iter().any(|range| range.start <= address && address < range.end);
                prop_assert_eq!(is_kept, pieces.iter().any(is_wanted));
            }
        }
    }
}
