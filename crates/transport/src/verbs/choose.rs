//! By which mechanism the data of a request moves (IB 3.4, 4.1). Pure.
//!
//! ```text
//!   bytes        0 … inline        … fast                  … any
//!   a write      in the message    Fast RDMA Write         the server's RDMA Reads
//!   a read       in the reply      Fast buffer, copied     the server's RDMA Writes
//!                                  (registered: Remote)
//! ```
//!
//! What would be described to the server is lent instead where it is in many short pieces: the server would
//! need a work request for each of them, a client that has a unit of the server's gathers as many as its
//! adapter takes into one.

/// A way for the data of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// In the messages themselves, copied at both ends.
    Inline,
    /// Through a registered buffer of the connection: the client writes a request and its data to the server
    /// at once; the server writes what was read into the client's link.
    Fast,
    /// The server reads or writes the client's registered memory.
    Remote,
    /// The server lends its units, and the client writes or reads them.
    Lend,
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
    /// Fewest pieces with which a unit is lent; 0: none is.
    pub lend_pieces_min: u64,
}

/// The longest pieces, on average, for which units are lent: longer ones fill work requests of a server's
/// well enough.
pub(super) const LEND_PIECE_BYTES_MAX: u64 = 16 << 10;

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub direction: Direction,
    pub bytes: u64,
    /// Pieces of its memory.
    pub pieces: u64,
    /// Its memory is registered already, and in pieces that one work request can hold.
    pub registered: bool,
    /// A Fast buffer is free for it.
    pub fast_free: bool,
    /// The server lends, and this adapter gathers.
    pub lent: bool,
}

/// Chooses. A mechanism that is asked for is used wherever it can be.
pub(super) fn choose(
    transfer: &Transfer,
    thresholds: &Thresholds,
    asked_for: Option<Mechanism>,
) -> Mechanism {
    let Transfer { direction, bytes, pieces, registered, fast_free, lent } = *transfer;
    let fits_messages = bytes <= thresholds.message_data_bytes_max;
    let fits_fast = fast_free && bytes <= thresholds.fast_bytes_max;
    let is_many = thresholds.lend_pieces_min > 0 && pieces >= thresholds.lend_pieces_min;
    let is_short = bytes <= pieces.saturating_mul(LEND_PIECE_BYTES_MAX);
    match asked_for {
        _ if bytes == 0 => Mechanism::Inline,
        Some(Mechanism::Inline) if fits_messages => Mechanism::Inline,
        Some(Mechanism::Fast) if fits_fast => Mechanism::Fast,
        Some(Mechanism::Lend) if lent => Mechanism::Lend,
        Some(_) => Mechanism::Remote,
        None if bytes <= thresholds.inline_bytes_max && fits_messages => Mechanism::Inline,
        None if fits_fast && !(registered && direction == Direction::Put) => Mechanism::Fast,
        None if lent && is_many && is_short => Mechanism::Lend,
        None => Mechanism::Remote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLDS: Thresholds = Thresholds {
        inline_bytes_max: 4096,
        fast_bytes_max: 65_536,
        message_data_bytes_max: 65_536,
        lend_pieces_min: 128,
    };

    fn chosen(direction: Direction, bytes: u64, registered: bool, fast_free: bool) -> Mechanism {
        choose(
            &Transfer { direction, bytes, pieces: 1, registered, fast_free, lent: true },
            &THRESHOLDS,
            None,
        )
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
        let transfer = |bytes, fast_free| {
            let (direction, registered) = (Direction::Get, false);
            Transfer { direction, bytes, pieces: 1, registered, fast_free, lent: fast_free }
        };
        let forced =
            |mechanism, bytes, fast_free| choose(&transfer(bytes, fast_free), &THRESHOLDS, Some(mechanism));
        assert_eq!(forced(Mechanism::Inline, 65_536, true), Mechanism::Inline);
        assert_eq!(forced(Mechanism::Inline, 65_537, true), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Fast, 1, true), Mechanism::Fast);
        assert_eq!(forced(Mechanism::Fast, 1, false), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Remote, 1, true), Mechanism::Remote);
        assert_eq!(forced(Mechanism::Remote, 0, true), Mechanism::Inline);
        assert_eq!(forced(Mechanism::Lend, 1, true), Mechanism::Lend);
        assert_eq!(forced(Mechanism::Lend, 1, false), Mechanism::Remote, "where nothing is lent");
    }

    #[test]
    fn many_short_pieces_are_moved_by_the_client() {
        let transfer = |pieces, bytes, lent| {
            let (direction, registered) = (Direction::Put, true);
            Transfer { direction, bytes, pieces, registered, fast_free: true, lent }
        };
        let chosen = |pieces, bytes, lent| choose(&transfer(pieces, bytes, lent), &THRESHOLDS, None);
        assert_eq!(chosen(768, 768 * 1024, true), Mechanism::Lend);
        assert_eq!(chosen(768, 768 * 1024, false), Mechanism::Remote);
        assert_eq!(chosen(127, 127 * 1024, true), Mechanism::Remote);
        assert_eq!(chosen(128, 128 * 16_384, true), Mechanism::Lend);
        assert_eq!(chosen(128, 128 * 16_384 + 1, true), Mechanism::Remote);
        let never = Thresholds { lend_pieces_min: 0, ..THRESHOLDS };
        assert_eq!(choose(&transfer(768, 768 * 1024, true), &never, None), Mechanism::Remote);
    }
}
