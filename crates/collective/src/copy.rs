//! Copies equal pieces at equal distances, without a call per piece where they are small.

/// Larger pieces are copied by a call each.
const SMALL_BYTES_MAX: usize = 128;

/// Copies `count` pieces of `bytes` each, at distances of `to_stride` and `from_stride`.
///
/// # Safety
/// All pieces are valid for reads at `from` and for writes at `to`, and the two sides do not overlap. Nobody
/// else writes to either meanwhile.
#[inline]
pub(crate) unsafe fn copy_pieces(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
    bytes: usize,
    count: usize,
) {
    let is_dense = to_stride == bytes as isize && from_stride == bytes as isize;
    if is_dense || (count == 1 && bytes > SMALL_BYTES_MAX) {
        // SAFETY: the caller's promise; the pieces are adjacent on both sides.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, bytes * count) };
    }
    let sides = Sides { to, to_stride, from, from_stride, count };
    // SAFETY: the caller's promise.
    unsafe { sides.copy(bytes) }
}

struct Sides {
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
    count: usize,
}

/// Calls `fixed` with the size as a constant where it is one of these, else `other`.
macro_rules! by_size {
    ($sides:ident, $bytes:ident, $($fixed:literal)*, $other:expr) => {
        match $bytes {
            $($fixed => $sides.fixed::<$fixed>(),)*
            _ => $other,
        }
    };
}

impl Sides {
    /// # Safety
    /// As for [`copy_pieces`].
    unsafe fn copy(self, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            by_size!(
                self, bytes,
                1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 40 48 64,
                match bytes {
                    33..=64 => self.ends::<32>(bytes),
                    65..=SMALL_BYTES_MAX => self.ends::<64>(bytes),
                    _ => self.any(bytes),
                }
            )
        }
    }

    /// # Safety
    /// As for [`copy_pieces`], with pieces of `BYTES`.
    unsafe fn fixed<const BYTES: usize>(self) {
        // SAFETY: the caller's promise.
        self.each(|to, from| unsafe { std::ptr::copy_nonoverlapping(from, to, BYTES) });
    }

    /// Copies the first and the last `END` bytes, which may overlap.
    ///
    /// # Safety
    /// As for [`copy_pieces`], with pieces of `bytes`, from `END` to twice as many.
    unsafe fn ends<const END: usize>(self, bytes: usize) {
        // SAFETY: the caller's promise; both ends are in the piece.
        self.each(|to, from| unsafe {
            std::ptr::copy_nonoverlapping(from, to, END);
            std::ptr::copy_nonoverlapping(from.add(bytes - END), to.add(bytes - END), END);
        });
    }

    /// # Safety
    /// As for [`copy_pieces`].
    unsafe fn any(self, bytes: usize) {
        // SAFETY: the caller's promise.
        self.each(|to, from| unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) });
    }

    /// Calls `copy` with the two places of each piece.
    #[inline(always)]
    fn each(self, copy: impl Fn(*mut u8, *const u8)) {
        let (mut to, mut from) = (self.to, self.from);
        for _ in 0..self.count {
            copy(to, from);
            to = to.wrapping_offset(self.to_stride);
            from = from.wrapping_offset(self.from_stride);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_test_random::{Random, seed};

    #[test]
    fn pieces_of_every_size_arrive_where_they_belong() {
        let mut random = Random(seed());
        for bytes in 1..200usize {
            for (to_gap, from_gap) in [(0, 0), (0, 7), (5, 0), (3, 11)] {
                let count = 1 + random.below(9) as usize;
                let (to_stride, from_stride) = (bytes + to_gap, bytes + from_gap);
                let from = random.bytes(from_stride * count);
                let mut to = random.bytes(to_stride * count);
                let mut expected = to.clone();
                for piece in 0..count {
                    expected[piece * to_stride..][..bytes]
                        .copy_from_slice(&from[piece * from_stride..][..bytes]);
                }
                // SAFETY: both sides have room for `count` strides, and are different vectors.
                unsafe {
                    copy_pieces(
                        to.as_mut_ptr(),
                        to_stride as isize,
                        from.as_ptr(),
                        from_stride as isize,
                        bytes,
                        count,
                    );
                }
                assert_eq!(to, expected, "{count} pieces of {bytes}, gaps {to_gap} and {from_gap}");
            }
        }
    }
}
