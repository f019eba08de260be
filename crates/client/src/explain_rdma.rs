//! What a request would take over RDMA on this side: registrations, mechanisms, work requests.
//!
//! ```text
//!   memory in pieces ─► pages ─► groups by T = a·pages + b          registrations, and what they cost the first time
//!   shares of servers ─► bytes, pieces ─► mechanism                 and for what servers write and read themselves:
//!                                └─► one work request for each piece, in units of 1 MiB; for what this side moves into and
//!                                    out of lent units, one for as many pieces as the adapter gathers
//! ```
//!
//! It is worked out by the functions that requests go through, with the costs of this host's adapter where
//! one is in use, and with those of NC 4.3 else. Nothing is moved or registered.

use std::sync::Arc;

use weft_layout::{Extent, Regions};
use weft_transport::registration::{self, PageRange, RegistrationCost};
use weft_transport::{Mechanism, lent_work_requests};
use weft_wire::limits::UNIT_BYTES_MAX;

use crate::access::Method;
use crate::error::{Error, ErrorKind};
use crate::file::File;
use crate::open_file::OpenFile;
use crate::rdma::RdmaOptions;
use crate::reach::Reach;
use crate::window::{Common, Direction, Memory, Share, Source, check, runs};
use crate::{AccessOptions, Result};

/// Bytes that a server moves at a time.
const UNIT_BYTES: u64 = UNIT_BYTES_MAX as u64;
/// Longest pieces of one registration, where no adapter says otherwise.
const REGISTRATION_BYTES_MAX: u64 = 1 << 40;
/// Pieces of one work request, where no adapter says otherwise.
const WORK_PIECES_MAX: usize = 30;

/// What a request takes over RDMA on this side.
#[derive(Debug, Clone, PartialEq)]
pub struct RdmaPlan {
    /// The adapter whose costs were used; `None`: those of NC 4.3.
    pub adapter: Option<String>,
    /// What registering and deregistering costs: for each page, and for each call, in nanoseconds.
    pub page_ns: u64,
    /// See [`RdmaPlan::page_ns`].
    pub call_ns: u64,
    /// Pieces of memory.
    pub pieces: u64,
    /// Registrations, once for all servers, if nothing of the memory is registered yet.
    pub registrations: u64,
    /// Pages of them.
    pub pages: u64,
    /// What they cost.
    pub cost_ns: u64,
    /// What it would cost to register every piece by itself.
    pub individual_ns: u64,
    /// The servers' parts.
    pub servers: Vec<RdmaServerPlan>,
}

/// One server's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaServerPlan {
    /// Its name.
    pub server: String,
    /// Its place among the servers of the file.
    pub slot: u16,
    /// Requests that it would be sent.
    pub requests: u64,
    /// Of them, those whose data travels in messages, …
    pub inline: u64,
    /// … through Fast RDMA buffers, …
    pub fast: u64,
    /// … by RDMA of the server, …
    pub remote: u64,
    /// … and by RDMA of this side, into and out of memory that the server lends.
    pub lent: u64,
    /// Of them, those that are packed into one piece first.
    pub packed: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Pieces of memory.
    pub pieces: u64,
    /// RDMA Writes or Reads of the server, or of this side on lent memory, and writes into the server's Fast
    /// RDMA buffers.
    pub work_requests: u64,
}

impl File {
    /// What a read or write of these regions takes over RDMA, whether the file's servers are reached by it or
    /// not. Offsets of `memory` and `allocations` count from `base`; without allocations, every piece is
    /// taken for one of its own.
    ///
    /// # Errors
    /// The two sides do not match, or a piece is in none of the allocations.
    pub fn explain_rdma(
        &self,
        base: u64,
        memory: &Regions,
        allocations: &[Extent],
        regions: &Regions,
        write: bool,
    ) -> Result<RdmaPlan> {
        let open = self.open();
        let request = Request { base, memory, allocations, regions, write };
        request.explain(open).map_err(|error| error.on(&open.name))
    }
}

/// What is asked about.
struct Request<'a> {
    base: u64,
    memory: &'a Regions,
    allocations: &'a [Extent],
    regions: &'a Regions,
    write: bool,
}

impl Request<'_> {
    fn explain(&self, open: &Arc<OpenFile>) -> Result<RdmaPlan> {
        let memory = Memory::Regions(self.memory);
        check(self.regions, memory)?;
        let rdma = open.inner.rdma.as_ref();
        let options = rdma.map(|rdma| rdma.options().clone()).unwrap_or_default();
        let measured = rdma.and_then(|rdma| rdma.cost());
        let cost = measured.as_ref().map_or(RegistrationCost::PAPER, |(_, cost)| *cost);
        let ranges = self.ranges()?;
        let individual_ns = ranges.iter().map(|range| cost.of_ns(range.pages())).fold(0, u64::saturating_add);
        let pieces = self.memory.extents().count() as u64;
        let merged = registration::merge(if self.allocations.is_empty() { ranges } else { self.arrays()? });
        let groups = registration::plan(&merged, &cost, REGISTRATION_BYTES_MAX, |_| true);
        Ok(RdmaPlan {
            adapter: measured.map(|(adapter, _)| adapter),
            page_ns: cost.page_ns(),
            call_ns: cost.call_ns(),
            pieces,
            registrations: groups.len() as u64,
            pages: groups.iter().map(|group| group.range.pages()).sum(),
            cost_ns: registration::cost_ns(&groups, &cost),
            individual_ns,
            servers: self.servers(open, &options)?,
        })
    }

    /// The pages of every piece.
    fn ranges(&self) -> Result<Vec<PageRange>> {
        self.memory.extents().map(|piece| pages(self.base, &piece)).collect()
    }

    /// The pages of the allocations.
    fn arrays(&self) -> Result<Vec<PageRange>> {
        self.allocations.iter().map(|allocation| pages(self.base, allocation)).collect()
    }

    fn servers(&self, open: &Arc<OpenFile>, options: &RdmaOptions) -> Result<Vec<RdmaServerPlan>> {
        let reach = Reach { traits: options.traits(), ..Reach::default() };
        let access = AccessOptions { method: Method::List, ..open.access() };
        let rdma = open.inner.rdma.as_ref();
        let pieces_max = rdma.and_then(|rdma| rdma.pieces_max(self.write)).unwrap_or(WORK_PIECES_MAX);
        let capability = open.held.capability();
        // A read, also where a write is meant: nothing is gathered into buffers then.
        let common = Common::new(
            open.inner.clone(),
            Direction::Read,
            &capability,
            0,
            access.movement,
            reach,
            Arc::default(),
        );
        // SAFETY: the shares are those of a read and none is submitted, so that no memory is touched.
        let mut windows =
            unsafe { Source::new(common, &access, self.base, Memory::Regions(self.memory), self.regions) };
        let mut plans: Vec<RdmaServerPlan> = Vec::new();
        while let Some(window) = windows.next() {
            for share in &window.shares {
                let at = match plans.iter().position(|plan| plan.slot == share.slot) {
                    Some(at) => at,
                    None => {
                        let server = open.inner.io(open.held.layout.chain(share.slot))?;
                        let server = open.inner.session().server(server).info().name.clone();
                        plans.push(RdmaServerPlan::new(server, share.slot));
                        plans.len() - 1
                    }
                };
                plans[at].add(share, options, self.write, pieces_max);
            }
        }
        plans.sort_by_key(|plan| plan.slot);
        Ok(plans)
    }
}

impl RdmaServerPlan {
    fn new(server: String, slot: u16) -> RdmaServerPlan {
        let [requests, inline, fast, remote, lent, packed, bytes, pieces, work_requests] = [0; 9];
        RdmaServerPlan {
            server,
            slot,
            requests,
            inline,
            fast,
            remote,
            lent,
            packed,
            bytes,
            pieces,
            work_requests,
        }
    }

    fn add(&mut self, share: &Share, options: &RdmaOptions, write: bool, pieces_max: usize) {
        self.requests += 1;
        self.bytes += share.bytes;
        let pieces = runs::piece_count(share.runs());
        self.pieces += pieces;
        self.packed += u64::from(share.is_packed());
        match options.mechanism_for(share.bytes, if share.is_packed() { 1 } else { pieces }, write) {
            Mechanism::Inline => self.inline += 1,
            Mechanism::Fast => {
                self.fast += 1;
                self.work_requests += 1;
            }
            Mechanism::Remote => {
                self.remote += 1;
                self.work_requests += work(share, |pieces| pieces.len() as u64);
            }
            Mechanism::Lend => {
                self.lent += 1;
                self.work_requests += work(share, |pieces| lent_work_requests(pieces, pieces_max));
            }
        }
    }
}

/// Work requests for the data of a share that is moved in units, by those of a unit for the lengths of its
/// pieces.
fn work(share: &Share, of_unit: impl Fn(&[u64]) -> u64) -> u64 {
    let units = (0..share.bytes).step_by(UNIT_BYTES as usize);
    let pieces_of = |unit: u64| {
        if share.is_packed() {
            return of_unit(&[UNIT_BYTES.min(share.bytes - unit)]);
        }
        let mut pieces = Vec::new();
        runs::walk(share.runs(), unit, unit + UNIT_BYTES, |_, bytes| pieces.push(bytes as u64));
        of_unit(&pieces)
    };
    units.map(pieces_of).sum()
}

fn pages(base: u64, piece: &Extent) -> Result<PageRange> {
    PageRange::around(base.wrapping_add(piece.offset), piece.bytes).ok_or_else(|| {
        let text = format!("{} bytes of memory at {:#x} are beyond its end", piece.bytes, piece.offset);
        Error::new("explain", ErrorKind::Invalid, text)
    })
}
