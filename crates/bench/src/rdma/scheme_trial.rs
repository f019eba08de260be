//! The schemes of NC table 4 tried on an adapter, for measurements: how many registrations the rows of an array take,
//! and how long.
//!
//! ```text
//!   a 2048 x 2048 array of integers, 8 KiB a row         ▄▄▄▄····▄▄▄▄····▄▄▄▄····   1024 rows of 4 KiB are one process's
//!   ideal        all of it is registered already         0
//!   individual   each row                                1024 registrations of a page
//!   group        rows with the holes between them        1 of 2047 pages
//!   with holes   ten of the holes are no memory          1 that is refused, then 11
//! ```
//!
//! The registrations are made by the cache that transfers go through, without keeping any: `individual` is the same with
//! a cost model in which a hole is never worth it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use weft_transport::registration::{
    CallCost, ForeignMemory, PageRange, RegistrationCache, RegistrationCost, RegistrationOptions, Scheme,
    SchemeCost, paper_rows, scheme_cost,
};
use weft_verbs::Device;
use weft_wire::messages::MemoryRun;

/// Costs by which nothing is ever registered for its neighbours' sake.
const NEVER_JOINED: RegistrationCost = RegistrationCost {
    register: CallCost { page_ns: 1, call_ns: 0 },
    deregister: CallCost { page_ns: 0, call_ns: 0 },
};

/// What a scheme took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemeTrial {
    /// What it took by what the adapter counted; the cost is what the model says, with the costs measured on this adapter.
    pub counted: SchemeCost,
    /// Until everything was registered.
    pub register: Duration,
    /// Until nothing was.
    pub deregister: Duration,
}

/// An adapter on which schemes are tried.
pub struct SchemeTrials<D: Device> {
    device: Arc<D>,
    cost: RegistrationCost,
}

/// What a scheme takes by the costs that NC 4.3 gives.
pub fn paper_scheme_cost(scheme: Scheme) -> SchemeCost {
    let (rows, holes) = paper_rows(1 << 40);
    scheme_cost(scheme, &rows, &holes, &RegistrationCost::PAPER)
}

impl<D: Device> SchemeTrials<D> {
    /// Measures the adapter's costs.
    pub fn new(device: Arc<D>) -> SchemeTrials<D> {
        let cost = RegistrationCost::measure(&*device);
        SchemeTrials { device, cost }
    }

    /// What was measured, in nanoseconds: of a page and of a call, from the begin of a registration to its end.
    pub fn cost_ns(&self) -> (u64, u64) {
        (self.cost.page_ns(), self.cost.call_ns())
    }

    /// Registers the rows once, as a scheme does it, and lets them go.
    ///
    /// # Errors
    /// The adapter or the system refuses, for want of lockable memory mostly.
    pub fn once(&self, scheme: Scheme) -> anyhow::Result<SchemeTrial> {
        let array = Array::new(scheme).context("map an array")?;
        let cost = if scheme == Scheme::Individual { NEVER_JOINED } else { self.cost };
        let options = RegistrationOptions {
            cost: Some(cost),
            foreign: ForeignMemory::NotCached,
            ..RegistrationOptions::default()
        };
        let cache = RegistrationCache::new(self.device.clone(), options);
        if scheme == Scheme::Ideal {
            // SAFETY: the array outlives the cache.
            let added = unsafe { cache.add_arena(array.start, array.bytes) };
            added.context("register memory")?;
        }
        let (before, begun) = (self.device.counters().counts(), Instant::now());
        // SAFETY: the array outlives what is pinned, and no peer has a key of it.
        let pinned = unsafe { cache.pin(&array.rows, &[], false) }.context("register memory")?;
        let register = begun.elapsed();
        let begun = Instant::now();
        drop(pinned);
        let deregister = begun.elapsed();
        let counts = self.device.counters().counts().since(&before);
        drop(cache);
        let counted = SchemeCost {
            scheme,
            registrations: counts.registrations,
            refused: counts.registrations_refused,
            pages: counts.registered_pages,
            cost_ns: scheme_cost(scheme, &array.ranges, &array.holes, &self.cost).cost_ns,
        };
        Ok(SchemeTrial { counted, register, deregister })
    }
}

/// The array, with or without its holes.
struct Array {
    start: u64,
    bytes: u64,
    rows: Vec<MemoryRun>,
    ranges: Vec<PageRange>,
    holes: Vec<PageRange>,
    /// What is mapped of it.
    mapped: Vec<PageRange>,
}

impl Array {
    fn new(scheme: Scheme) -> std::io::Result<Array> {
        let bytes = paper_rows(0).0.last().map_or(0, |row| row.end);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory is asked for.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, rights, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the pages are the array's own; so they are there before a time is taken.
        unsafe { memory.cast::<u8>().write_bytes(1, bytes as usize) };
        let start = memory as u64;
        let (ranges, holes) = paper_rows(start);
        let row = |range: &PageRange| MemoryRun {
            segment: 0,
            address: range.start,
            bytes: range.bytes(),
            stride_bytes: 0,
            count: 1,
        };
        let rows = ranges.iter().map(row).collect();
        let all = PageRange { start, end: start + bytes };
        let mut array = Array { start, bytes, rows, ranges, holes, mapped: vec![all] };
        if scheme == Scheme::GroupWithHoles {
            array.make_holes();
        }
        Ok(array)
    }

    fn make_holes(&mut self) {
        let mut rest = self.mapped.remove(0);
        for hole in &self.holes {
            unmap(hole);
            self.mapped.push(PageRange { start: rest.start, end: hole.start });
            rest.start = hole.end;
        }
        self.mapped.push(rest);
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        self.mapped.iter().for_each(unmap);
    }
}

/// Ends a part of an array.
fn unmap(part: &PageRange) {
    // SAFETY: the part is mapped by an array, which does not use it any more.
    unsafe { libc::munmap(part.start as *mut libc::c_void, part.bytes() as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use weft_verbs::{Endpoint, Fabric, TrafficClass};
    use weft_verbs_double::{Pretend, PretendOptions};

    fn trials() -> SchemeTrials<<Pretend as Fabric>::Device> {
        let pretend = Pretend::new(PretendOptions::default());
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
        let endpoint = pretend.resolve(address, TrafficClass::default(), Duration::from_secs(1)).unwrap();
        // No time passes on this adapter, so that nothing can be measured: the paper's costs.
        SchemeTrials { device: endpoint.device(), cost: RegistrationCost::PAPER }
    }

    /// NC table 4: 0, 1024, 1 and 11 registrations.
    #[test]
    fn the_papers_registrations_are_counted() {
        let trials = trials();
        let expected = [
            (Scheme::Ideal, [0, 0, 0]),
            (Scheme::Individual, [1024, 0, 1024]),
            (Scheme::Group, [1, 0, 2047]),
            (Scheme::GroupWithHoles, [11, 1, 2037]),
        ];
        for (scheme, counts) in expected {
            let SchemeCost { registrations, refused, pages, .. } = trials.once(scheme).unwrap().counted;
            assert_eq!([registrations, refused, pages], counts, "{scheme:?}");
        }
    }

    #[test]
    fn what_is_counted_is_what_was_predicted() {
        let trials = trials();
        for scheme in [Scheme::Ideal, Scheme::Individual, Scheme::Group, Scheme::GroupWithHoles] {
            assert_eq!(trials.once(scheme).unwrap().counted, paper_scheme_cost(scheme));
        }
    }
}
