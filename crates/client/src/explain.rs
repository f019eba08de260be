//! What a request would cost, asked of the servers that would serve it, and the models by which they know.

use std::sync::Arc;

use weft_layout::Regions;
use weft_wire::messages::{
    CalibrateReply, CalibrateRequest, ExplainReply, ExplainRequest, PlanReport, ReadRequest, ScrubReply,
    ScrubRequest, ServerInfo, io_flags,
};
use weft_wire::{Request, VERSIONS, body};

use crate::access::Method;
use crate::batch;
use crate::call::BulkRequest;
use crate::file::File;
use crate::open_file::OpenFile;
use crate::server::Role;
use crate::window::{Common, Direction, Memory, Share, Source, check};
use crate::{Client, Result};

/// How one server would serve its part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlan {
    /// Its name.
    pub server: String,
    /// Its place among the servers of the file.
    pub slot: u16,
    /// Requests that it would be sent.
    pub requests: u64,
    /// Bytes of these messages: header and body, without data.
    pub request_bytes: u64,
    /// What it plans for all of them together.
    pub plan: ExplainReply,
}

impl File {
    /// How every server would read, or write, its part of these regions as the file and the servers' caches
    /// are now. No data is touched. The servers are asked with the very requests that list I/O would send
    /// them; a file that is written with [`OpenOptions::sync`](crate::OpenOptions::sync) is explained so.
    pub fn explain(&self, regions: &Regions, write: bool) -> Result<Vec<ServerPlan>> {
        let direction = if write { Direction::Write } else { Direction::Read };
        let open = self.open();
        open.check_access(direction)?;
        explain(open, regions, write).map_err(|error| error.on(&open.name))
    }
}

fn explain(open: &Arc<OpenFile>, regions: &Regions, write: bool) -> Result<Vec<ServerPlan>> {
    let memory = Regions::contiguous(0, regions.total_bytes());
    let memory = Memory::Regions(&memory);
    check(regions, memory)?;
    open.inner.keep_alive(&open.held)?;
    let access = crate::AccessOptions { method: Method::List, ..open.access() };
    let flags = if write && open.sync { io_flags::SYNC } else { 0 };
    let reach = open.reach(regions);
    let capability = open.held.capability();
    let common = Common::new(
        open.inner.clone(),
        Direction::Read,
        &capability,
        flags,
        access.movement,
        reach,
        Arc::default(),
    );
    // SAFETY: the shares are those of a read and none is submitted, so that no memory is touched.
    let mut windows = unsafe { Source::new(common, &access, 0, memory, regions) };
    let mut plans: Vec<ServerPlan> = Vec::new();
    while let Some(window) = windows.next() {
        ask(open, &window.shares, write, &mut plans)?;
    }
    plans.sort_by_key(|plan| plan.slot);
    Ok(plans)
}

/// Asks about one window and adds the answers.
fn ask(open: &Arc<OpenFile>, shares: &[Share], write: bool, plans: &mut Vec<ServerPlan>) -> Result<()> {
    let layout = open.held.layout;
    let server_of = |share: &Share| open.inner.io(layout.chain(share.slot));
    let request_of = |share: &Share| {
        let body = body::decode_of_version(VERSIONS.1, &share.body()).expect("a message that was just made");
        let ReadRequest { capability, slot, flags, regions } = body;
        ExplainRequest { capability, slot, write, flags, regions }
    };
    let requests: Result<Vec<_>> =
        shares.iter().map(|share| Ok((server_of(share)?, request_of(share)))).collect();
    let replies = batch::ask_all(&open.inner, requests?, None);
    for (share, reply) in shares.iter().zip(replies) {
        let (reply, server) = (reply?, server_of(share)?);
        let message_bytes = share.message_bytes();
        match plans.iter_mut().find(|plan| plan.slot == share.slot) {
            Some(plan) => {
                plan.requests += 1;
                plan.request_bytes += message_bytes;
                add(&mut plan.plan, &reply);
            }
            None => plans.push(ServerPlan {
                server: open.inner.session().server(server).info().name.clone(),
                slot: share.slot,
                requests: 1,
                request_bytes: message_bytes,
                plan: reply,
            }),
        }
    }
    Ok(())
}

/// Adds up numbers from a server, which are not trusted to stay small.
fn add_up<const N: usize>(numbers: [(&mut u64, u64); N]) {
    for (sum, more) in numbers {
        *sum = sum.saturating_add(more);
    }
}

fn add(sum: &mut ExplainReply, more: &ExplainReply) {
    add_up([
        (&mut sum.pieces, more.pieces),
        (&mut sum.bytes, more.bytes),
        (&mut sum.windows, more.windows),
        (&mut sum.single_windows, more.single_windows),
        (&mut sum.groups, more.groups),
        (&mut sum.cached_bytes, more.cached_bytes),
        (&mut sum.chosen_cost_ns, more.chosen_cost_ns),
    ]);
    sum.local_bytes = sum.local_bytes.max(more.local_bytes);
    for more in &more.plans {
        match sum.plans.iter_mut().find(|plan| plan.method == more.method) {
            Some(plan) => add_plan(plan, more),
            None => sum.plans.push(more.clone()),
        }
    }
}

fn add_plan(sum: &mut PlanReport, more: &PlanReport) {
    add_up([
        (&mut sum.chosen_windows, more.chosen_windows),
        (&mut sum.possible_windows, more.possible_windows),
        (&mut sum.cost_ns, more.cost_ns),
        (&mut sum.accesses, more.accesses),
        (&mut sum.accessed_bytes, more.accessed_bytes),
    ]);
}

impl Client {
    /// Asks every I/O server about its scrub, or to begin or end one; `known`: findings that are known
    /// already, by server in the order of [`Client::server_status`].
    pub fn scrub(
        &self,
        action: u8,
        bytes_per_s: u64,
        known: &[u32],
    ) -> Vec<(ServerInfo, Result<ScrubReply>)> {
        self.ask_io_servers(|number| {
            let known = known.get(number).copied().unwrap_or(0);
            ScrubRequest { action, bytes_per_s, known }
        })
    }

    /// The cost model of every I/O server, measured anew first if `measure` says so, or why it does not tell.
    /// Measuring takes a second or so per server and holds up nobody.
    pub fn cost_models(&self, measure: bool) -> Vec<(ServerInfo, Result<CalibrateReply>)> {
        self.ask_io_servers(|_| CalibrateRequest { measure })
    }

    /// Asks all I/O servers at once, the one with this number in the order of their ids this.
    fn ask_io_servers<R: Request>(
        &self,
        request: impl Fn(usize) -> R,
    ) -> Vec<(ServerInfo, Result<R::Reply>)> {
        let session = self.inner.session();
        let servers: Vec<_> = session.listed_of(Role::Io).collect();
        let requests = servers.iter().enumerate().map(|(number, (index, _))| (*index, request(number)));
        let replies = batch::ask_all(&self.inner, requests, None);
        let infos = servers.iter().map(|(_, server)| (*server.info()).clone());
        infos.zip(replies).collect()
    }
}
