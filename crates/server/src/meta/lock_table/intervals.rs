//! Locked ranges of any owners, found by the bytes that they overlap: a tree by first byte, balanced by random priorities, that
//! knows the greatest last byte below each node.
//!
//! ```text
//!               [20–29] max 99
//!              /              \
//!      [0–9] max 9        [40–99] max 99        overlaps of 30–50: nothing on the left reaches 30, so one path is walked
//! ```

use super::Owner;
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

/// One range and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub first: u64,
    pub last: u64,
    pub owner: Owner,
}

impl Interval {
    fn key(&self) -> (u64, u64, Owner) {
        (self.first, self.owner.id, self.owner)
    }
}

#[derive(Debug)]
struct Node {
    interval: Interval,
    max_last: u64,
    priority: u64,
    left: Link,
    right: Link,
}

type Link = Option<Box<Node>>;

/// Ordered by first byte, then by the number of the owner. An owner has no two that begin at one byte.
#[derive(Debug)]
pub(super) struct Intervals {
    root: Link,
    random: u64,
}

impl Default for Intervals {
    fn default() -> Intervals {
        // A client that knew the priorities could choose its ranges so that the tree is a list.
        Intervals { root: None, random: RandomState::new().build_hasher().finish() | 1 }
    }
}

impl Intervals {
    pub fn insert(&mut self, interval: Interval) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (max_last, priority) = (interval.last, self.random);
        let node = Box::new(Node { interval, max_last, priority, left: None, right: None });
        let (left, right) = split(self.root.take(), &interval);
        self.root = merge(merge(left, Some(node)), right);
    }

    pub fn remove(&mut self, interval: &Interval) {
        remove(&mut self.root, interval);
    }

    /// The first that overlaps these bytes and is `meant`; adds the nodes that were looked at to `work`.
    pub fn find(
        &self,
        (first, last): (u64, u64),
        work: &Cell<u64>,
        mut meant: impl FnMut(&Interval) -> bool,
    ) -> Option<Interval> {
        find(&self.root, (first, last), work, &mut meant)
    }
}

fn update(node: &mut Node) {
    let below = [&node.left, &node.right].into_iter().flatten().map(|child| child.max_last);
    node.max_last = below.fold(node.interval.last, u64::max);
}

/// What comes before `at`, and the rest.
fn split(link: Link, at: &Interval) -> (Link, Link) {
    let Some(mut node) = link else { return (None, None) };
    if node.interval.key() < at.key() {
        let (left, right) = split(node.right.take(), at);
        node.right = left;
        update(&mut node);
        (Some(node), right)
    } else {
        let (left, right) = split(node.left.take(), at);
        node.left = right;
        update(&mut node);
        (left, Some(node))
    }
}

/// All of `left` comes before all of `right`.
fn merge(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, other) | (other, None) => other,
        (Some(one), Some(mut other)) if one.priority < other.priority => {
            other.left = merge(Some(one), other.left.take());
            update(&mut other);
            Some(other)
        }
        (Some(mut one), other) => {
            one.right = merge(one.right.take(), other);
            update(&mut one);
            Some(one)
        }
    }
}

fn remove(link: &mut Link, interval: &Interval) {
    let Some(node) = link else { return };
    if node.interval.key() == interval.key() {
        let (left, right) = (node.left.take(), node.right.take());
        *link = merge(left, right);
        return;
    }
    let child = if interval.key() < node.interval.key() { &mut node.left } else { &mut node.right };
    remove(child, interval);
    update(node);
}

fn find(
    link: &Link,
    (first, last): (u64, u64),
    work: &Cell<u64>,
    meant: &mut impl FnMut(&Interval) -> bool,
) -> Option<Interval> {
    let node = link.as_ref().filter(|node| node.max_last >= first)?;
    work.set(work.get() + 1);
    if let Some(found) = find(&node.left, (first, last), work, meant) {
        return Some(found);
    }
    if node.interval.first > last {
        return None;
    }
    if node.interval.last >= first && meant(&node.interval) {
        return Some(node.interval);
    }
    find(&node.right, (first, last), work, meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_meta::SessionId;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn overlaps_are_those_of_a_sorted_list(
            steps in proptest::collection::vec((0u64..40, 0u64..12, 0u64..4, any::<bool>()), 0..120),
            asked in proptest::collection::vec((0u64..52, 0u64..20), 8),
        ) {
            let (mut tree, mut list, work) = (Intervals::default(), Vec::<Interval>::new(), Cell::new(0));
            for (first, bytes, id, adds) in steps {
                let interval = Interval { first, last: first + bytes, owner: Owner { session: SessionId([0; 16]), id } };
                let at = list.iter().position(|other| other.key() == interval.key());
                match (at, adds) {
                    (None, true) => {
                        tree.insert(interval);
                        list.push(interval);
                    }
                    (Some(at), false) => tree.remove(&list.swap_remove(at)),
                    _ => {}
                }
            }
            list.sort_by_key(Interval::key);
            for (first, bytes) in asked {
                let last = first + bytes;
                let expected = list.iter().filter(|one| one.first <= last && one.last >= first).copied();
                let mut found = Vec::new();
                tree.find((first, last), &work, |interval| {
                    found.push(*interval);
                    false
                });
                prop_assert_eq!(found, expected.collect::<Vec<_>>());
            }
        }
    }
}
