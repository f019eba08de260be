//! What was written through an open file, as it is told from process to process: see `shared.rs`.

/// What was written through a handle, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenEnd {
    /// The end of the furthest byte that was written.
    pub end_bytes: u64,
    /// Something was written that the file's time of modification is to show.
    pub touch: bool,
    /// A write failed, and may have come further: the I/O servers are to be asked for the end.
    pub unsure: bool,
}

impl WrittenEnd {
    /// What was written through two handles.
    pub fn and(self, other: WrittenEnd) -> WrittenEnd {
        WrittenEnd {
            end_bytes: self.end_bytes.max(other.end_bytes),
            touch: self.touch || other.touch,
            unsure: self.unsure || other.unsure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_put_together_in_any_order() {
        let one = WrittenEnd { end_bytes: 10, touch: true, unsure: false };
        let two = WrittenEnd { end_bytes: 30, touch: false, unsure: true };
        let both = WrittenEnd { end_bytes: 30, touch: true, unsure: true };
        assert_eq!((one.and(two), two.and(one)), (both, both));
        assert_eq!(one.and(WrittenEnd::default()), one);
    }
}
