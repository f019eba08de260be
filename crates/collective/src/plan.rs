//! Who serves what: aggregators, their slots, and the places of areas in their windows.
//!
//! ```text
//!   5 slots, 2 aggregators       window of aggregator 0                    of aggregator 1
//!                                | slot 0 | slot 2 | slot 4 |  buffer 0    | slot 1 | slot 3 |        |
//!                                | slot 0 | slot 2 | slot 4 |  buffer 1    | slot 1 | slot 3 |        |
//! ```
//!
//! A slot has one aggregator, so no two of them access the same server's share. Buffers alternate from round
//! to round.

use weft_layout::Layout;

use crate::rounds::Rounds;

/// Buffers of an aggregator: one is exchanged while the other one is accessed.
pub(crate) const BUFFERS: usize = 2;

/// What all processes know of an access, and compute alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub layout: Layout,
    pub rounds: Rounds,
    /// Ranks of the aggregators.
    pub aggregators: Vec<u32>,
    /// Slots of an aggregator at most.
    slots_max: usize,
}

impl Plan {
    /// A plan with up to `aggregators_max` aggregators among processes whose nodes are `nodes`, each with a
    /// buffer of `buffer_bytes`.
    pub fn new(layout: &Layout, nodes: &[u32], aggregators_max: usize, buffer_bytes: u64) -> Plan {
        let slots = usize::from(layout.server_count());
        let count = slots.min(nodes.len()).min(aggregators_max).max(1);
        let slots_max = slots.div_ceil(count);
        let rounds = Rounds::new(layout, buffer_bytes / slots_max as u64);
        Plan { layout: *layout, rounds, aggregators: spread(nodes, count), slots_max }
    }

    /// The slots of the `aggregator`-th aggregator.
    pub fn slots_of(&self, aggregator: usize) -> impl Iterator<Item = u16> + use<> {
        (aggregator as u16..self.layout.server_count()).step_by(self.aggregators.len())
    }

    /// Which aggregator a process is.
    pub fn aggregator_of(&self, rank: u32) -> Option<usize> {
        self.aggregators.iter().position(|aggregator| *aggregator == rank)
    }

    /// Bytes of an aggregator's window.
    pub fn window_bytes(&self) -> usize {
        BUFFERS * self.slots_max * self.rounds.area_bytes() as usize
    }

    /// Where the area of an aggregator's `index`-th slot is in its window.
    pub fn area_at(&self, buffer: usize, index: usize) -> usize {
        (buffer * self.slots_max + index) * self.rounds.area_bytes() as usize
    }
}

/// `count` ranks, one from each node in turn.
fn spread(nodes: &[u32], count: usize) -> Vec<u32> {
    let mut by_node: Vec<(u32, Vec<u32>)> = Vec::new();
    for (node, rank) in nodes.iter().zip(0..) {
        match by_node.iter_mut().find(|(known, _)| known == node) {
            Some((_, ranks)) => ranks.push(rank),
            None => by_node.push((*node, vec![rank])),
        }
    }
    let turns = 0..nodes.len();
    let all = turns.flat_map(|turn| by_node.iter().filter_map(move |(_, ranks)| ranks.get(turn).copied()));
    all.take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregators_are_spread_over_nodes() {
        assert_eq!(spread(&[7, 7, 7, 3, 3], 4), [0, 3, 1, 4]);
        assert_eq!(spread(&[1, 1], 2), [0, 1]);
    }

    #[test]
    fn every_slot_has_one_aggregator_and_areas_of_its_own() {
        for (slots, processes, aggregators_max) in [(5, 2, 9), (3, 8, 8), (4, 4, 2), (7, 3, 1)] {
            let layout = Layout::new(4096, 0, slots, slots).unwrap();
            let plan = Plan::new(&layout, &vec![0; processes], aggregators_max, 1 << 16);
            let mut served: Vec<u16> =
                (0..plan.aggregators.len()).flat_map(|aggregator| plan.slots_of(aggregator)).collect();
            served.sort_unstable();
            assert_eq!(served, (0..slots).collect::<Vec<_>>());
            let mut areas: Vec<usize> = (0..BUFFERS)
                .flat_map(|buffer| (0..plan.slots_of(0).count()).map(move |index| (buffer, index)))
                .map(|(buffer, index)| plan.area_at(buffer, index))
                .collect();
            areas.sort_unstable();
            let area_bytes = plan.rounds.area_bytes() as usize;
            assert!(areas.windows(2).all(|pair| pair[1] - pair[0] >= area_bytes));
            assert!(areas.last().unwrap() + area_bytes <= plan.window_bytes());
        }
    }
}
