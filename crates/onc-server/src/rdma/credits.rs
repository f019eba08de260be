//! How many calls a client may have under way (RFC 8166, 3.3). Pure.
//!
//! Each reply says how many. The client is held to the most that it was ever told: what it sent before it saw a
//! smaller number is right.

/// The credits of a connection.
#[derive(Debug)]
pub(super) struct Credits {
    under_way: u32,
    told: u32,
}

/// More calls came than were granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl Credits {
    /// A client that was told nothing yet may send so many.
    pub(super) fn new(at_first: u32) -> Credits {
        Credits { under_way: 0, told: at_first.max(1) }
    }

    /// The most that the client was ever told.
    pub(super) fn told(&self) -> u32 {
        self.told
    }

    /// Calls that are not answered yet.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// A call has come.
    pub(super) fn begin(&mut self) -> Result<(), Overrun> {
        if self.under_way >= self.told {
            return Err(Overrun);
        }
        self.under_way += 1;
        Ok(())
    }

    /// A call is about to be answered, or will not be.
    pub(super) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// What a reply grants a client that wants `wanted`, of which there is room for `room`: at least 1, since
    /// with 0 it could never call again.
    pub(super) fn grant(&mut self, wanted: u32, room: u32) -> u32 {
        let granted = wanted.min(room).max(1);
        self.told = self.told.max(granted);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_is_within_what_is_wanted_and_what_there_is_and_never_nothing() {
        let mut credits = Credits::new(4);
        let granted = [(32, 6), (5, 32), (0, 32), (u32::MAX, 32), (7, 0)];
        assert_eq!(granted.map(|(wanted, room)| credits.grant(wanted, room)), [6, 5, 1, 32, 1]);
    }

    #[test]
    fn a_client_is_held_to_the_most_that_it_was_told() {
        let mut credits = Credits::new(1);
        assert_eq!((credits.begin(), credits.begin()), (Ok(()), Err(Overrun)));
        credits.end();
        credits.grant(3, 8);
        credits.grant(2, 8);
        assert!((0..3).all(|_| credits.begin().is_ok()), "the smaller grant may not have arrived");
        assert_eq!((credits.begin(), credits.under_way()), (Err(Overrun), 3));
    }
}
