//! What making memory known to an adapter costs: T = a·pages + b, with an a and a b of its own for the
//! beginning and for the end of a registration (NC 4.3).
//!
//! ```text
//!   T │            ╱  a: every page is looked up, pinned and entered in the adapter's tables
//!     │        ╱
//!     │    ╱
//!   b ┼╱              b: system call, a command to the adapter, a key
//!     └────────────── pages
//! ```
//!
//! Both are measured on the adapter that is used, by a few registrations of one page and of 256.

use std::time::{Duration, Instant};

use weft_verbs::{Access, Device};

use super::page::page_bytes;

/// Registrations of either size that are timed.
const ROUNDS: usize = 9;
/// Pages of the larger.
const MANY_PAGES: u64 = 256;

/// The cost of one kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCost {
    /// a: nanoseconds for each page.
    pub page_ns: u64,
    /// b: nanoseconds for each call.
    pub call_ns: u64,
}

impl CallCost {
    /// T, in nanoseconds.
    pub fn of_ns(&self, pages: u64) -> u64 {
        self.page_ns.saturating_mul(pages).saturating_add(self.call_ns)
    }

    /// The line through the times for one page and for [`MANY_PAGES`].
    fn through(one: Duration, many: Duration) -> CallCost {
        let (one, many) = (one.as_nanos() as u64, many.as_nanos() as u64);
        let page_ns = many.saturating_sub(one) / (MANY_PAGES - 1);
        CallCost { page_ns, call_ns: one.saturating_sub(page_ns).max(1) }
    }
}

/// The cost of a registration from its beginning to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationCost {
    /// Of its beginning.
    pub register: CallCost,
    /// Of its end.
    pub deregister: CallCost,
}

impl RegistrationCost {
    /// What NC 4.3 measured on its adapters.
    pub const PAPER: RegistrationCost = RegistrationCost {
        register: CallCost { page_ns: 770, call_ns: 7420 },
        deregister: CallCost { page_ns: 230, call_ns: 1100 },
    };

    /// Both together for so many pages, in nanoseconds.
    pub fn of_ns(&self, pages: u64) -> u64 {
        self.register.of_ns(pages).saturating_add(self.deregister.of_ns(pages))
    }

    /// The a of both together.
    pub fn page_ns(&self) -> u64 {
        self.register.page_ns + self.deregister.page_ns
    }

    /// The b of both together.
    pub fn call_ns(&self) -> u64 {
        self.register.call_ns + self.deregister.call_ns
    }

    /// Measures an adapter: 18 registrations of memory that is there already, medians of their times. Takes a
    /// few milliseconds. Where it cannot be measured (the adapter refuses, no time passes),
    /// [`RegistrationCost::PAPER`].
    pub fn measure<D: Device>(device: &D) -> RegistrationCost {
        let memory = vec![1u8; (page_bytes() * (MANY_PAGES + 1)) as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(page_bytes());
        let timed = |pages| median_times(device, start, pages * page_bytes());
        match (timed(1), timed(MANY_PAGES)) {
            (Some(one), Some(many)) if !one.0.is_zero() => RegistrationCost {
                register: CallCost::through(one.0, many.0),
                deregister: CallCost::through(one.1, many.1),
            },
            _ => RegistrationCost::PAPER,
        }
    }
}

/// Median times of beginning and of ending a registration.
fn median_times<D: Device>(device: &D, address: u64, bytes: u64) -> Option<(Duration, Duration)> {
    let (mut begins, mut ends) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        // SAFETY: only sent from, and by nobody: the key is dropped at once.
        let registration =
            unsafe { device.register(address as usize, bytes as usize, Access::LOCAL_READ) }.ok()?;
        begins.push(begun.elapsed());
        let begun = Instant::now();
        drop(registration);
        ends.push(begun.elapsed());
    }
    begins.sort_unstable();
    ends.sort_unstable();
    Some((begins[ROUNDS / 2], ends[ROUNDS / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_times() {
        let cost = CallCost::through(Duration::from_nanos(8190), Duration::from_nanos(8190 + 255 * 770));
        assert_eq!(cost, RegistrationCost::PAPER.register);
        let odd = CallCost::through(Duration::from_nanos(500), Duration::from_nanos(400));
        assert_eq!(odd, CallCost { page_ns: 0, call_ns: 500 });
    }

    #[test]
    fn the_paper_s_hundred_buffers_take_a_millisecond() {
        let hundred_ns = 100 * RegistrationCost::PAPER.of_ns(1);
        assert!((900_000..1_100_000).contains(&hundred_ns), "NC 4.2 measured 1020 us: {hundred_ns}");
    }
}
