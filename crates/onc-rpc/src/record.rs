//! Records on a stream (RFC 5531, 11): each message is a record, in one or more fragments.

/// Bytes of a mark.
pub const MARK_BYTES: usize = 4;

/// What begins a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The record ends with this fragment.
    pub is_last: bool,
    /// Bytes of the fragment, without the mark; less than 2 GiB.
    pub bytes: u32,
}

const LAST: u32 = 1 << 31;

impl Mark {
    /// On the wire.
    pub fn to_bytes(self) -> [u8; MARK_BYTES] {
        let last = if self.is_last { LAST } else { 0 };
        (last | (self.bytes & !LAST)).to_be_bytes()
    }

    /// From the wire.
    pub fn of(bytes: [u8; MARK_BYTES]) -> Mark {
        let word = u32::from_be_bytes(bytes);
        Mark { is_last: word & LAST != 0, bytes: word & !LAST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_bit_and_a_length() {
        let mark = Mark { is_last: true, bytes: 0x1234 };
        assert_eq!(mark.to_bytes(), [0x80, 0, 0x12, 0x34]);
        assert_eq!(Mark::of(mark.to_bytes()), mark);
        assert_eq!(Mark::of([0, 0, 0, 9]), Mark { is_last: false, bytes: 9 });
    }
}
