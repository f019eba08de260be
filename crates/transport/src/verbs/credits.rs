//! Who may send how much (IB 3.3.1). Pure.
//!
//! A credit is one receive that the other side has posted and keeps for this connection. Every message takes
//! one and brings what its sender has to give; when messages go one way only, the other side sends a message
//! of credits alone.
//!
//! ```text
//!   window 8:   promised 3 (the peer may still use them) │ held 2 (received, not dealt with) │ owed 3 (to be promised)
//! ```
//!
//! * The last credit is kept for a message of credits alone, so that two sides that both have much to say
//!   never wait for each other: a side whose peer is down to one has two or more to give, and can say so.
//! * Credits alone are sent only when they are two or more, and more than what is promised: each such message
//!   costs one receive and brings two, so that two idle sides fall silent.
//!
//! A server's receives are shared by all connections of a thread: its port says how large a window is
//! ([`weft_rdma::Channel::adjust_window`]).

/// A peer used what it was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overrun;

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credits {
    may_send: u32,
    window: u32,
    promised: u32,
    held: u32,
}

impl Credits {
    /// With `may_send` receives promised by the peer, and `window` promised to it.
    pub(super) fn new(may_send: u16, window: u32) -> Credits {
        Credits { may_send: may_send.into(), window, promised: window, held: 0 }
    }

    /// The peer's message came, with credits in it.
    pub(super) fn received(&mut self, credits: u16) -> Result<(), Overrun> {
        let may_send = self.may_send + u32::from(credits);
        if self.promised == 0 || may_send > u32::from(u16::MAX) {
            return Err(Overrun);
        }
        self.promised -= 1;
        self.held += 1;
        self.may_send = may_send;
        Ok(())
    }

    /// A message was dealt with, and its receive is posted again.
    pub(super) fn dealt_with(&mut self) {
        self.held -= 1;
    }

    /// Whether a part of a message may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.may_send > 1
    }

    fn owed(&self) -> u32 {
        self.window.saturating_sub(self.promised + self.held)
    }

    /// Whether a message of credits alone is to be sent.
    pub(super) fn wants_to_tell(&self) -> bool {
        self.may_send > 0 && self.owed() >= 2 && self.owed() > self.promised
    }

    /// Takes a credit for a message; returns what it brings the peer.
    pub(super) fn spend(&mut self) -> u16 {
        debug_assert!(self.may_send > 0);
        self.may_send = self.may_send.saturating_sub(1);
        let owed = self.owed().min(u16::MAX.into());
        self.promised += owed;
        owed as u16
    }

    /// What of the window is with the peer or held here.
    pub(super) fn in_use(&self) -> u32 {
        self.promised + self.held
    }

    /// The window has grown, or shrunk as far as it was not in use.
    pub(super) fn set_window(&mut self, window: u32) {
        self.window = window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use weft_rdma::{Shares, WINDOW_MIN};

    /// Two ends and the network between them; the second is a server's.
    struct Model {
        ends: [Credits; 2],
        /// Messages on their way to an end: the credits in them, and whether they are more than that.
        on_the_way: [VecDeque<(u16, bool)>; 2],
        to_send: [u32; 2],
        /// Received and not dealt with.
        waiting: [u32; 2],
        told: u32,
        shares: Shares,
    }

    impl Model {
        fn new(window: u32, to_send: [u32; 2]) -> Model {
            let mut shares = Shares::new(64);
            assert_eq!(shares.join(), Some(WINDOW_MIN));
            let ends = [Credits::new(WINDOW_MIN as u16, window), Credits::new(window as u16, WINDOW_MIN)];
            let on_the_way = [VecDeque::new(), VecDeque::new()];
            Model { ends, on_the_way, to_send, waiting: [0; 2], told: 0, shares }
        }

        /// Does one thing at one end if there is something of the kind to do.
        fn step(&mut self, end: usize, kind: u8) -> bool {
            let peer = 1 - end;
            match kind {
                0 if self.to_send[end] > 0 && self.ends[end].may_send() => {
                    let credits = self.ends[end].spend();
                    self.to_send[end] -= 1;
                    self.on_the_way[peer].push_back((credits, true));
                }
                1 if !self.on_the_way[end].is_empty() => {
                    let (credits, message) = self.on_the_way[end].pop_front().unwrap();
                    self.ends[end].received(credits).expect("no overrun");
                    if message {
                        self.waiting[end] += 1;
                    } else {
                        self.ends[end].dealt_with();
                    }
                }
                2 if self.waiting[end] > 0 => {
                    self.waiting[end] -= 1;
                    self.ends[end].dealt_with();
                    if end == 1 {
                        let end = &mut self.ends[1];
                        end.window = self.shares.adjust(end.window, end.in_use());
                    }
                }
                3 if self.ends[end].wants_to_tell() => {
                    let credits = self.ends[end].spend();
                    self.on_the_way[peer].push_back((credits, false));
                    self.told += 1;
                }
                _ => return false,
            }
            for end in 0..2 {
                let credits = &self.ends[end];
                assert!(credits.promised + credits.held <= credits.window, "{credits:?}");
                let used = self.on_the_way[end].len() as u32;
                let promised: u32 =
                    self.on_the_way[1 - end].iter().map(|(credits, _)| u32::from(*credits)).sum();
                assert_eq!(self.ends[1 - end].may_send + used + promised, credits.promised);
            }
            true
        }
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn everything_arrives_nothing_overruns_and_silence_follows(
            window in WINDOW_MIN..40,
            to_send in [0u32..300, 0u32..300],
            order in proptest::collection::vec((0usize..2, 0u8..4), 0..2000),
        ) {
            let mut model = Model::new(window, to_send);
            for (end, kind) in order {
                model.step(end, kind);
            }
            let mut steps = 0;
            while (0..8).any(|way| model.step(way / 4, (way % 4) as u8)) {
                steps += 1;
                prop_assert!(steps < 10_000, "it does not fall silent");
            }
            prop_assert_eq!(model.to_send, [0, 0]);
            prop_assert!(model.told <= to_send[0] + to_send[1] + 4, "{} messages of credits alone", model.told);
        }
    }

    #[test]
    fn who_uses_more_than_it_was_given_is_found_out() {
        let mut credits = Credits::new(4, 4);
        for _ in 0..4 {
            credits.received(0).unwrap();
        }
        assert_eq!(credits.received(0), Err(Overrun));
        assert_eq!(Credits::new(4, 4).received(u16::MAX), Err(Overrun));
    }
}
