//! How far the holder of a capability may extend its file: a bound beside the rights, for quotas.

use crate::claims::Capability;
use crate::messages::rights;

/// Bits of [`Capability::rights`] beside the rights themselves. Servers of before quotas ignore them.
///
/// ```text
///   31 … 14              13 … 8             7         6        1 0
///   mantissa, 18 bits    exponent, 6 bits   bounded   exempt   rights
/// ```
const BOUNDED: u32 = 1 << 7;
const EXEMPT: u32 = 1 << 6;
const EXPONENT_SHIFT: u32 = 8;
const MANTISSA_SHIFT: u32 = 14;
const MANTISSA_BITS: u32 = u32::BITS - MANTISSA_SHIFT;

/// What of [`Capability::rights`] binds a writer to a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBound {
    /// The file counts for nobody who has a limit.
    None,
    /// Whoever opened it is not held to limits.
    Exempt,
    /// Bytes are written below this end only. More are allowed by [`Reserve`](crate::Op::Reserve).
    End(u64),
}

impl WriteBound {
    /// The bits for `rights`. An end is rounded down to 18 significant bits.
    pub fn bits(self) -> u32 {
        match self {
            WriteBound::None => 0,
            WriteBound::Exempt => EXEMPT,
            WriteBound::End(end) => {
                let exponent = (u64::BITS - end.leading_zeros()).saturating_sub(MANTISSA_BITS);
                BOUNDED | exponent << EXPONENT_SHIFT | ((end >> exponent) as u32) << MANTISSA_SHIFT
            }
        }
    }
}

impl Capability {
    /// The rights themselves, bits of [`crate::messages::rights`].
    pub fn access(&self) -> u32 {
        self.rights & (rights::READ | rights::WRITE)
    }

    /// How far its holder may extend the file.
    pub fn write_bound(&self) -> WriteBound {
        if self.rights & BOUNDED != 0 {
            let exponent = self.rights >> EXPONENT_SHIFT & 63;
            WriteBound::End(
                u64::from(self.rights >> MANTISSA_SHIFT).checked_shl(exponent).unwrap_or(u64::MAX),
            )
        } else if self.rights & EXEMPT != 0 {
            WriteBound::Exempt
        } else {
            WriteBound::None
        }
    }

    /// Whether bytes below `end` may be written.
    pub fn allows_end(&self, end: u64) -> bool {
        match self.write_bound() {
            WriteBound::End(bound) => end <= bound,
            WriteBound::None | WriteBound::Exempt => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_lies_beside_the_rights_and_is_never_beyond_what_was_given() {
        let with = |bound: WriteBound| {
            let rights = rights::WRITE | bound.bits();
            Capability { rights, ..crate::Wire::sample(&mut 0) }
        };
        for end in [0, 1, 4096, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 12_345_678_901, i64::MAX as u64] {
            let capability = with(WriteBound::End(end));
            let WriteBound::End(bound) = capability.write_bound() else { panic!("{end}") };
            assert!(bound <= end && end - bound <= end >> 17, "{end}: {bound}");
            assert_eq!(with(WriteBound::End(bound)).write_bound(), WriteBound::End(bound));
            assert!(capability.allows_end(bound) && !capability.allows_end(bound + 1));
            assert_eq!(capability.access(), rights::WRITE);
        }
        for bound in [WriteBound::None, WriteBound::Exempt] {
            assert_eq!(with(bound).write_bound(), bound);
            assert!(with(bound).allows_end(u64::MAX));
        }
        // Whatever bits there are, nothing overflows.
        assert_eq!(
            Capability { rights: u32::MAX, ..with(WriteBound::None) }.write_bound(),
            WriteBound::End(u64::from(u32::MAX >> MANTISSA_SHIFT) << 63)
        );
    }
}
