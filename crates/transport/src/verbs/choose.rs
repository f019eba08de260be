//! By which mechanism the data of a request moves (IB 3.4, 4.1). Pure.
//!
//! ```text
//!   bytes        0 … inline        … fast                  … any
//!   a write      in the message    Fast RDMA Write         the server's RDMA Reads
//!   a read       in the reply      Fast buffer, copied     the server's RDMA Writes
//!                                  (registered: Remote)
//! ```

/// A way for the data of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// In the messages themselves, copied at both ends.
    Inline,
    /// Through a registered buffer of the connection: the client writes a request and its data to the server at once; the server
    /// writes what was read into the client's link.
    Fast,
    /// The server reads or writes the client's registered memory.
    Remote,
}

/// Whose data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The server fetches it: a write of a file.
    Get,
    /// The server brings it: a read.
    Put,
}

/// Sizes up to which a mechanism is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thresholds {
    pub inline_bytes_max: u64,
    pub fast_bytes_max: u64,
    /// The most that the peer takes inline.
    pub message_data_bytes_max: u64,
}

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub direction: Direction,
    pub bytes: u64,
    /// Its memory is registered already, and in pieces that one work request can hold.
    pub registered: bool,
    /// A Fast buffer is free for it.
    pub fast_free: bool,
}

/// Chooses. A mechanism that is asked for is used wherever it can be.
pub(super) fn choose(
    transfer: &Transfer,
    thresholds: &Thresholds,
    asked_for: Option<Mechanism>,
) -> Mechanism {
    let Transfer { direction, bytes, registered, fast_free } = *transfer;
    let fits_messages = bytes <= thresholds.message_data_bytes_max;
    let fits_fast = fast_free && bytes <= thresholds.fast_bytes_max;
    match asked_for {
        _ if bytes == 0 => Mechanism::Inline,
        Some(Mechanism::Inline) if fits_messages => Mechanism::Inline,
        Some(Mechanism::Fast) if fits_fast => Mechanism::Fast,
        Some(_) => Mechanism::Remote,
        None if bytes <= thresholds.inline_bytes_max && fits_messages => Mechanism::Inline,
        None if fits_fast && !(registered && direction == Direction::Put) => Mechanism::Fast,
        None => Mechanism::Remote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: Thresholds =
        Thresholds { inline_bytes_max: 4096, fast_bytes_max: 65_536, message_data_bytes_max: 65_536 };

    fn chosen(direction: Direction, bytes: u64, registered: bool, fast_free: bool) -> Mechanism {
        choose(&Transfer { direction, bytes, registered, fast_free }, &THRESHOLDS, None)
    }

    #[test]
    fn small_is_inline_medium_fast_and_large_remote() {
        for direction in [Direction::Get, Direction::Put] {
            assert_eq!(chosen(direction, 0, false, false), Mechanism::Inline);
            assert_eq!(chosen(direction, 4096, true, true), Mechanism::Inline);
            assert_eq!(chosen(direction, 4097, false, true), Mechanism::Fast);
            assert_eq!(chosen(direction, 4097, false, false), Mechanism::Remote);
            assert_eq!(chosen(direction, 65_537, false, true), Mechanism::Remote);
        }
        assert_eq!(chosen(Direction::Put, 60_000, true, true), Mechanism::Remote);
        assert_eq!(chosen(Direction::Get, 60_000, true, true), Mechanism::Fast);
    }

    #[test]
    fn what_is_asked_for_is_used_where_it_can_be() {
        let transfer =
            |bytes, fast_free| Transfer { direction: Direction::Get, bytes, registered: false, fast_free };
        let forced =
            |mechanism, bytes, fast_free| choose(&transfer(bytes, fast_free), &THRESHOLDS, Some(mechanism));
        assert_eq!(forced(Mechanism::Inline, 65_536, true), Mechanism::Inline);
        assert_eq!(forced(Mechanism::Inline, 65_537, true), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Fast, 1, true), Mechanism::Fast);
        assert_eq!(forced(Mechanism::Fast, 1, false), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Remote, 1, true), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Remote, 0, true), Mechanism::Inline);
    }
}
