//! The rounds of a two-phase access: exchange and access to the file, at the same time.
//!
//! ```text
//!   write   process       copy 0 ─┐      copy 1 ─┐      copy 2 ─┐
//!           node barrier          ┴              ┴              ┴
//!           aggregator            └ write 0 ──── └ write 1 ──── └ write 2 ──
//!
//!   read    aggregator    read 0 ─┐ read 1 ─────┐ read 2 ─────┐
//!           node barrier          ┴             ┴             ┴
//!           process               └ copy 0      └ copy 1      └ copy 2
//! ```
//!
//! There is one barrier of the node in each round. It says that the buffer of this round is full, and that
//! the other one is free: before it, an aggregator waits for its last access, and a process has copied all of
//! the round before. Processes of other nodes are synchronised by their messages.

use weft_layout::Extent;

use crate::aggregator::Aggregator;
use crate::codec::{Announced, decode_runs};
use crate::memory::Direction;
use crate::own::Own;
use crate::peers::Peers;
use crate::plan::{BUFFERS, Plan};
use crate::rounds::RoundSet;
use crate::store::Store;

/// Lists of a round that are longer come in a second message.
const LIST_MESSAGE_BYTES: usize = 64 << 10;

/// Buffers that are kept for later messages.
const SPARE_MAX: usize = 64;

/// What messages are about.
mod tag {
    pub const LISTS: u32 = 1;
    pub const LISTS_REST: u32 = 2;
    pub const BYTES: u32 = 3;
}

/// One process in a two-phase access.
pub(crate) struct TwoPhase<'c, 'a, P: Peers, S: Store> {
    pub peers: &'c mut P,
    pub store: &'c mut S,
    pub plan: &'a Plan,
    /// By rank: what each process announced, and its rounds.
    pub announced: &'a [Announced],
    pub rounds_of: &'c [RoundSet],
    /// Where the windows of aggregators are, by their number; `None` on other nodes.
    pub windows: Vec<Option<*mut u8>>,
    /// The request of this process, if it has one.
    pub own: Option<Own<'a>>,
    /// The part of this process as an aggregator, if it is one.
    pub aggregator: Option<Aggregator<'a, S>>,
    /// Bytes of the file that are read as a whole, whoever wants them.
    pub dense: Option<Extent>,
    /// Gaps that are read rather than left out.
    pub gap_bytes_max: u64,
    /// Messages that may not have been sent yet.
    pub sending: Vec<P::Sending>,
    /// Buffers of earlier messages.
    pub spare: Vec<Vec<u8>>,
    /// A process that sent what cannot be understood.
    pub nonsense_from: Option<u32>,
}

impl<P: Peers, S: Store> TwoPhase<'_, '_, P, S> {
    /// Goes through `rounds`. An error of the file does not end this: all processes go through all rounds.
    pub fn run(&mut self, direction: Direction, rounds: &RoundSet) -> Result<(), P::Error> {
        match direction {
            Direction::Write => self.write(rounds)?,
            Direction::Read => self.read(rounds)?,
        }
        self.finish_sending(0)?;
        self.wait_for_file();
        Ok(())
    }

    fn write(&mut self, rounds: &RoundSet) -> Result<(), P::Error> {
        for (number, round) in rounds.iter().enumerate() {
            let buffer = number % BUFFERS;
            let sent_before = self.sending.len();
            let lists = self.expect_lists(round)?;
            self.send_lists(round)?;
            self.give(round, buffer)?;
            self.take_lists(round, lists)?;
            self.gather(round, buffer)?;
            self.wait_for_file();
            self.peers.node_barrier()?;
            self.start(Direction::Write, round, buffer);
            self.finish_sending(self.sending.len() - sent_before)?;
        }
        Ok(())
    }

    fn read(&mut self, rounds: &RoundSet) -> Result<(), P::Error> {
        let mut following = rounds.iter();
        self.prepare_read(following.next())?;
        if let Some(first) = rounds.iter().next() {
            self.start(Direction::Read, first, 0);
        }
        for (number, round) in rounds.iter().enumerate() {
            let buffer = number % BUFFERS;
            let next = following.next();
            let sent_before = self.sending.len();
            self.prepare_read(next)?;
            self.wait_for_file();
            self.peers.node_barrier()?;
            if let Some(next) = next {
                self.start(Direction::Read, next, (number + 1) % BUFFERS);
            }
            let expected = self.expect_bytes(round)?;
            self.scatter(round, buffer)?;
            self.get(round, buffer)?;
            self.take_bytes(round, expected)?;
            self.finish_sending(self.sending.len() - sent_before)?;
        }
        Ok(())
    }

    /// Learns what is wanted in `round` before it is read.
    fn prepare_read(&mut self, round: Option<u64>) -> Result<(), P::Error> {
        let Some(round) = round else { return Ok(()) };
        let lists = self.expect_lists(round)?;
        self.send_lists(round)?;
        self.take_lists(round, lists)?;
        let Some(aggregator) = &mut self.aggregator else { return Ok(()) };
        match self.dense {
            Some(span) => aggregator.want_all(span, round),
            None => (0..).zip(self.rounds_of).for_each(|(rank, rounds)| {
                if rounds.has(round) {
                    aggregator.want(rank, round);
                }
            }),
        }
        Ok(())
    }

    /// Begins to receive the lists of a round.
    fn expect_lists(&mut self, round: u64) -> Result<Vec<(u32, P::Receiving)>, P::Error> {
        let me = self.peers.rank();
        let mut expected = Vec::new();
        if self.aggregator.is_none() {
            return Ok(expected);
        }
        for rank in (0..self.peers.size()).filter(|rank| *rank != me) {
            if self.sends_lists(rank, me) && self.has_bytes(rank, round) {
                let buffer = spare(&mut self.spare, LIST_MESSAGE_BYTES as u64);
                expected.push((rank, self.peers.irecv(rank, tag::LISTS, buffer)?));
            }
        }
        Ok(expected)
    }

    /// Tells the aggregators what this process has in a round, where they cannot know.
    fn send_lists(&mut self, round: u64) -> Result<(), P::Error> {
        let me = self.peers.rank();
        let has_bytes = self.has_bytes(me, round);
        for (number, rank) in self.plan.aggregators.iter().enumerate() {
            if !has_bytes || !self.sends_lists(me, *rank) {
                continue;
            }
            let Some(own) = &mut self.own else { return Ok(()) };
            let lists = own.lists(self.plan.slots_of(number), round);
            let mut first = (lists.len() as u64).to_le_bytes().to_vec();
            let (begin, rest) = lists.split_at(lists.len().min(LIST_MESSAGE_BYTES - first.len()));
            first.extend(begin);
            self.sending.push(self.peers.isend(*rank, tag::LISTS, first)?);
            if !rest.is_empty() {
                self.sending.push(self.peers.isend(*rank, tag::LISTS_REST, rest.to_vec())?);
            }
        }
        Ok(())
    }

    /// Receives the lists of a round.
    fn take_lists(&mut self, round: u64, expected: Vec<(u32, P::Receiving)>) -> Result<(), P::Error> {
        for (rank, receiving) in expected {
            let message = self.peers.received(receiving)?;
            let lists = self.whole_lists(rank, message)?;
            let Some(aggregator) = &mut self.aggregator else { continue };
            match lists.and_then(|lists| decode_runs(&lists, &aggregator.rooms(round)).ok()) {
                Some(lists) => aggregator.take_lists(rank, round, lists),
                None => self.nonsense_from = Some(rank),
            }
        }
        Ok(())
    }

    /// The lists that begin with the first message, which says how long they are.
    fn whole_lists(&mut self, rank: u32, mut first: Vec<u8>) -> Result<Option<Vec<u8>>, P::Error> {
        let Some((length, begin)) = first.split_first_chunk() else { return Ok(None) };
        let rest = u64::from_le_bytes(*length).checked_sub(begin.len() as u64);
        // A run takes at most 40 bytes, and there is at most one for each byte.
        let rest_max = 40 * (self.plan.window_bytes() as u64 + 1);
        let Some(rest) = rest.filter(|rest| *rest <= rest_max) else { return Ok(None) };
        first.drain(..length.len());
        if rest > 0 {
            let receiving = self.peers.irecv(rank, tag::LISTS_REST, vec![0; rest as usize])?;
            first.extend(self.peers.received(receiving)?);
        }
        Ok(Some(first))
    }

    /// Brings the bytes of this process to the areas, or sends them there.
    fn give(&mut self, round: u64, buffer: usize) -> Result<(), P::Error> {
        let me = self.peers.rank();
        if !self.has_bytes(me, round) {
            return Ok(());
        }
        for number in self.turn() {
            let Some(own) = &mut self.own else { return Ok(()) };
            if let Some(window) = self.windows[number] {
                for (index, slot) in self.plan.slots_of(number).enumerate() {
                    let area = window.wrapping_add(self.plan.area_at(buffer, index));
                    // SAFETY: the caller promised the memory; the window has this area, and since the last
                    // barrier of the node it is not accessed but by processes that write their bytes.
                    unsafe { own.copy(Direction::Write, slot, round, area) };
                }
                self.progress();
                continue;
            }
            let mut message = self.spare.pop().unwrap_or_default();
            message.clear();
            for slot in self.plan.slots_of(number) {
                // SAFETY: the caller promised the memory.
                unsafe { own.pack(slot, round, &mut message) };
            }
            if !message.is_empty() || own.sends_lists() {
                let rank = self.plan.aggregators[number];
                self.sending.push(self.peers.isend(rank, tag::BYTES, message)?);
            }
        }
        Ok(())
    }

    /// Notes what all processes have in a round, and takes the bytes of those on other nodes.
    fn gather(&mut self, round: u64, buffer: usize) -> Result<(), P::Error> {
        let Some(aggregator) = &mut self.aggregator else { return Ok(()) };
        let mut expected = Vec::new();
        let node = self.peers.node_of(self.peers.rank());
        for (rank, rounds) in (0..).zip(self.rounds_of) {
            if !rounds.has(round) {
                continue;
            }
            if self.peers.node_of(rank) != node {
                let bytes = aggregator.bytes_of(rank, round);
                if bytes > 0 || matches!(self.announced[rank as usize], Announced::Lists) {
                    let buffer = spare(&mut self.spare, bytes);
                    expected.push((rank, bytes, self.peers.irecv(rank, tag::BYTES, buffer)?));
                }
            }
            aggregator.want(rank, round);
            aggregator.progress(self.store);
        }
        for (rank, bytes, receiving) in expected {
            let mut message = self.peers.received(receiving)?;
            if message.len() as u64 != bytes {
                self.nonsense_from = Some(rank);
                continue;
            }
            let direction = Direction::Write;
            // SAFETY: the message has all bytes. The areas are those of this aggregator, and since the last
            // barrier of the node nobody touches them but processes that write their bytes.
            unsafe { aggregator.move_message(direction, rank, round, buffer, message.as_mut_ptr()) };
            self.spare.push(message);
        }
        aggregator.forget_lists(round);
        Ok(())
    }

    /// Begins to receive the bytes of this process that are read by aggregators of other nodes.
    fn expect_bytes(&mut self, round: u64) -> Result<Vec<(usize, P::Receiving)>, P::Error> {
        let mut expected = Vec::new();
        let has_bytes = self.has_bytes(self.peers.rank(), round);
        let Some(own) = self.own.as_ref().filter(|_| has_bytes) else { return Ok(expected) };
        for (number, rank) in self.plan.aggregators.iter().enumerate() {
            if self.windows[number].is_some() {
                continue;
            }
            let bytes = own.bytes_in(self.plan.slots_of(number), round);
            if bytes > 0 || own.sends_lists() {
                let buffer = spare(&mut self.spare, bytes);
                expected.push((number, self.peers.irecv(*rank, tag::BYTES, buffer)?));
            }
        }
        Ok(expected)
    }

    /// Sends the bytes of a round to processes of other nodes.
    fn scatter(&mut self, round: u64, buffer: usize) -> Result<(), P::Error> {
        let Some(aggregator) = &mut self.aggregator else { return Ok(()) };
        let node = self.peers.node_of(self.peers.rank());
        for (rank, rounds) in (0..).zip(self.rounds_of) {
            if self.peers.node_of(rank) == node || !rounds.has(round) {
                continue;
            }
            let bytes = aggregator.bytes_of(rank, round);
            if bytes == 0 && !matches!(self.announced[rank as usize], Announced::Lists) {
                continue;
            }
            let mut message = spare(&mut self.spare, bytes);
            let direction = Direction::Read;
            // SAFETY: the message has room for all bytes; the areas are read by all and written by nobody.
            unsafe { aggregator.move_message(direction, rank, round, buffer, message.as_mut_ptr()) };
            self.sending.push(self.peers.isend(rank, tag::BYTES, message)?);
            aggregator.progress(self.store);
        }
        aggregator.forget_lists(round);
        Ok(())
    }

    /// Copies the bytes of this process from the areas of this node.
    fn get(&mut self, round: u64, buffer: usize) -> Result<(), P::Error> {
        if !self.has_bytes(self.peers.rank(), round) {
            return Ok(());
        }
        for number in self.turn() {
            let (Some(own), Some(window)) = (&mut self.own, self.windows[number]) else { continue };
            for (index, slot) in self.plan.slots_of(number).enumerate() {
                let area = window.wrapping_add(self.plan.area_at(buffer, index));
                // SAFETY: the caller promised the memory; the window has this area, and until the next
                // barrier of the node nobody writes to it.
                unsafe { own.copy(Direction::Read, slot, round, area) };
            }
            self.progress();
        }
        Ok(())
    }

    /// Takes the bytes of this process that come from other nodes.
    fn take_bytes(&mut self, round: u64, expected: Vec<(usize, P::Receiving)>) -> Result<(), P::Error> {
        for (number, receiving) in expected {
            let mut message = self.peers.received(receiving)?;
            let Some(own) = &mut self.own else { continue };
            let mut rest = &mut message[..];
            // SAFETY: the caller promised the memory.
            let is_complete =
                self.plan.slots_of(number).all(|slot| unsafe { own.unpack(slot, round, &mut rest) });
            if !is_complete || !rest.is_empty() {
                self.nonsense_from = Some(self.plan.aggregators[number]);
            }
            self.spare.push(message);
        }
        Ok(())
    }

    fn start(&mut self, direction: Direction, round: u64, buffer: usize) {
        let gap_bytes_max = match direction {
            Direction::Read => self.gap_bytes_max,
            Direction::Write => 0,
        };
        if let Some(aggregator) = &mut self.aggregator {
            // SAFETY: the barrier of the node passed: all bytes of a write are there, all of the last read
            // from this buffer were copied; nobody writes to it until the access was waited for.
            unsafe { aggregator.start(self.store, direction, round, buffer, gap_bytes_max) };
        }
    }

    fn wait_for_file(&mut self) {
        if let Some(aggregator) = &mut self.aggregator {
            aggregator.wait(self.store);
        }
    }

    fn progress(&mut self) {
        if let Some(aggregator) = &mut self.aggregator {
            aggregator.progress(self.store);
        }
    }

    /// Waits until at most `keep` messages are not sent, the latest ones.
    fn finish_sending(&mut self, keep: usize) -> Result<(), P::Error> {
        let over = self.sending.len().saturating_sub(keep);
        for sending in self.sending.drain(..over) {
            let buffer = self.peers.sent(sending)?;
            if self.spare.len() < SPARE_MAX {
                self.spare.push(buffer);
            }
        }
        Ok(())
    }

    fn has_bytes(&self, rank: u32, round: u64) -> bool {
        self.rounds_of[rank as usize].has(round)
    }

    /// Whether process `rank` sends its lists to the aggregator `to`.
    fn sends_lists(&self, rank: u32, to: u32) -> bool {
        let is_near = self.peers.node_of(rank) == self.peers.node_of(to);
        rank != to && needs_lists(self.announced, self.dense, rank, is_near)
    }

    /// The aggregators, each process beginning with another one.
    fn turn(&self) -> impl Iterator<Item = usize> + use<P, S> {
        let (count, first) = (self.plan.aggregators.len(), self.peers.rank() as usize);
        (0..count).map(move |step| (first + step) % count)
    }
}

/// Whether an aggregator must be told what process `rank` has in each round. Where all is read, those of its
/// own node, which copy by themselves, need not tell it.
fn needs_lists(announced: &[Announced], dense: Option<Extent>, rank: u32, is_near: bool) -> bool {
    matches!(announced[rank as usize], Announced::Lists) && !(is_near && dense.is_some())
}

/// A buffer of `bytes`, one that was used before if there is one.
fn spare(spare: &mut Vec<Vec<u8>>, bytes: u64) -> Vec<u8> {
    let mut buffer = spare.pop().unwrap_or_default();
    buffer.resize(bytes as usize, 0);
    buffer
}
