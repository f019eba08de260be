//! Requests: which mechanism, and what it needs.

use weft_verbs::{Device, Fabric, MemoryPiece};
use weft_wire::messages::{MemoryRun, RemoteKey};
use weft_wire::{HEADER_BYTES, Header, Wire, flags};

use crate::channel::request_fault;
use crate::error::LinkError;
use crate::link::{Bulk, BulkMemory};
use crate::registration::Pinned;
use crate::runs::{Cursor, MemoryRuns};
use crate::verbs::choose::{Direction, Transfer, choose};
use crate::verbs::envelope::ENVELOPE_BYTES;
use crate::verbs::keys::describe;
use crate::verbs::sizes::FAST_HEAD_BYTES;

use super::*;

impl<F: Fabric> Inner<F> {
    /// A message in parts, with the caller's data behind `head`.
    fn start(&mut self, head: Vec<u8>, data: (MemoryRuns, u64), way: Way, pending: Pending<F::Device>) {
        let request_id = pending.request_id;
        self.pending.push(pending);
        let (data, data_bytes) = data;
        self.outgoing.push_back(Outgoing { request_id, head, data, data_bytes, sent: 0, way });
    }

    fn pending(&self, request_id: u64, memory: MemoryRuns, bytes: u64) -> Pending<F::Device> {
        Pending {
            request_id,
            memory,
            bytes,
            delivered_bytes: 0,
            described_put: false,
            staging: None,
            fast: None,
            windows: Windows::None,
            moved: None,
            pinned: None,
            sent: false,
            waits_for: None,
            reply: None,
        }
    }

    /// # Safety
    /// As for [`Link::submit`].
    pub(super) unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        self.check_open()?;
        let in_use = self.pending.iter().any(|pending| pending.request_id == header.request_id);
        if self.request_credits == 0 {
            return Err(LinkError::NoCredit { peer: self.peer.clone() });
        }
        if let Some(what) = request_fault(&header, body, in_use) {
            return Err(LinkError::Request { peer: self.peer.clone(), what });
        }
        let (mut memory, direction) = match bulk {
            Bulk::None => (MemoryRuns::new().into(), Direction::Get),
            Bulk::Put(memory) => (memory, Direction::Put),
            Bulk::Get(memory) => (memory, Direction::Get),
        };
        let bytes = self.segments.resolve(&mut memory.runs)?;
        let (mechanism, pinned) = self.mechanism(direction, &memory.runs, bytes, HEADER_BYTES + body.len());
        if bytes > 0 {
            self.adapter.transfers.add(mechanism);
        }
        match (mechanism, pinned) {
            (Mechanism::Inline, _) => self.submit_inline(header, body, direction, memory.runs, bytes),
            (Mechanism::Fast, pinned) => match direction {
                Direction::Get => self.submit_fast(header, body, memory.runs, bytes, pinned),
                Direction::Put => self.submit_staged(header, body, memory.runs, bytes),
            },
            (Mechanism::Remote, pinned) => {
                // SAFETY: as the caller promises.
                unsafe { self.submit_remote(header, body, direction, &memory, bytes, pinned) }?;
            }
            (Mechanism::Lend, pinned) => {
                // SAFETY: as the caller promises.
                unsafe { self.submit_moved(header, body, direction, memory, bytes, pinned) }?;
            }
        }
        self.request_credits -= 1;
        self.flush()
    }

    /// Chooses; with the registration of the memory where it has one and it counts.
    fn mechanism(
        &self,
        direction: Direction,
        runs: &[MemoryRun],
        bytes: u64,
        head_bytes: usize,
    ) -> (Mechanism, Option<Pinned<F::Device>>) {
        let (thresholds, forced) = (self.options.thresholds(), self.options.mechanism);
        let between = bytes > thresholds.inline_bytes_max && bytes <= thresholds.fast_bytes_max;
        let may_be_fast = between || forced.is_some();
        let pinned = if may_be_fast && bytes > 0 {
            self.adapter.cache.check_if_registered(runs, direction == Direction::Put)
        } else {
            None
        };
        let registered = pinned.is_some();
        let fast_free = match direction {
            Direction::Put => !self.staging_free.is_empty(),
            Direction::Get => {
                let source_free = registered || !self.staging_free.is_empty();
                !self.fast_free.is_empty() && source_free && ENVELOPE_BYTES + head_bytes <= FAST_HEAD_BYTES
            }
        };
        let pieces = runs.iter().map(|run| run.count).sum();
        let lent = self.lends && self.lent_pieces_max(direction) > 1;
        let transfer = Transfer { direction, bytes, pieces, registered, fast_free, lent };
        (choose(&transfer, &thresholds, forced), pinned)
    }

    fn submit_inline(
        &mut self,
        header: Header,
        body: &[u8],
        direction: Direction,
        runs: MemoryRuns,
        bytes: u64,
    ) {
        let (data, memory) = match direction {
            Direction::Get => ((runs, bytes), (MemoryRuns::new(), 0)),
            Direction::Put => ((MemoryRuns::new(), 0), (runs, bytes)),
        };
        self.adapter.transfers.copied(data.1 as usize);
        let head = head_of(header, body, &[], data.1);
        let pending = self.pending(header.request_id, memory.0, memory.1);
        self.start(head, data, Way::Parts { binds: VecDeque::new() }, pending);
    }

    /// A write into a Fast buffer of the server's.
    fn submit_fast(
        &mut self,
        header: Header,
        body: &[u8],
        runs: MemoryRuns,
        bytes: u64,
        pinned: Option<Pinned<F::Device>>,
    ) {
        let Some(buffer) = self.fast_free.pop() else {
            return self.submit_inline(header, body, Direction::Get, runs, bytes);
        };
        let pieces_max = self.adapter.device.limits().send_pieces_max.saturating_sub(1);
        let pieces = pinned.as_ref().and_then(|pinned| gathered(pinned, &runs, bytes, pieces_max));
        let way = match (pieces, self.staging_free.pop()) {
            (Some(pieces), staging) => {
                self.staging_free.extend(staging);
                Way::FastGathered { buffer, pieces }
            }
            (None, Some(staging)) => {
                self.adapter.transfers.copied(bytes as usize);
                Way::FastCopied { buffer, staging }
            }
            (None, None) => {
                self.fast_free.push(buffer);
                return self.submit_inline(header, body, Direction::Get, runs, bytes);
            }
        };
        let head = head_of(header, body, &[], bytes);
        let mut pending = self.pending(header.request_id, MemoryRuns::new(), 0);
        (pending.fast, pending.pinned) = (Some(buffer), pinned);
        self.start(head, (runs, bytes), way, pending);
    }

    /// A read through a staging slot of the link's.
    fn submit_staged(&mut self, mut header: Header, body: &[u8], runs: MemoryRuns, bytes: u64) {
        let Some(slot) = self.staging_free.pop() else {
            return self.submit_inline(header, body, Direction::Put, runs, bytes);
        };
        let address = self.staging.base(slot).as_ptr() as u64;
        let region = RemoteKey { address, bytes, remote_key: self.staging.remote_key() };
        let run = MemoryRun { segment: 1, address, bytes, stride_bytes: 0, count: 1 };
        let told = weft_wire::messages::RemoteKeys { keys: vec![region], runs: vec![run], keys_end: false };
        header.flags |= flags::REMOTE_MEMORY;
        let head = head_of(header, body, &told.to_bytes(), 0);
        let mut pending = self.pending(header.request_id, runs, bytes);
        (pending.staging, pending.described_put) = (Some(slot), true);
        self.start(head, (MemoryRuns::new(), 0), Way::Parts { binds: VecDeque::new() }, pending);
    }

    /// The server reads or writes the caller's memory.
    ///
    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn submit_remote(
        &mut self,
        mut header: Header,
        body: &[u8],
        direction: Direction,
        memory: &BulkMemory,
        bytes: u64,
        pinned: Option<Pinned<F::Device>>,
    ) -> Result<(), LinkError> {
        let write = direction == Direction::Put;
        // SAFETY: as the caller promises.
        let pinned = unsafe { self.registered(memory, write, pinned) }?;
        let regions: Vec<RemoteKey> = pinned
            .regions()
            .iter()
            .map(|region| RemoteKey {
                address: region.address,
                bytes: region.bytes,
                remote_key: if self.adapter.windows { region.local_key } else { region.remote_key },
            })
            .collect();
        let mut told = describe(&memory.runs, &regions)?;
        let (windows, binds) =
            if self.adapter.windows { self.window_each(&mut told, write)? } else { Default::default() };
        header.flags |= flags::REMOTE_MEMORY;
        let head = head_of(header, body, &told.to_bytes(), 0);
        let place = if write { memory.runs.clone() } else { MemoryRuns::new() };
        let mut pending = self.pending(header.request_id, place, if write { bytes } else { 0 });
        (pending.pinned, pending.described_put) = (Some(pinned), write);
        pending.windows = windows;
        self.start(head, (MemoryRuns::new(), 0), Way::Parts { binds }, pending);
        Ok(())
    }

    /// This side reads or writes units that the server lends.
    ///
    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn submit_moved(
        &mut self,
        mut header: Header,
        body: &[u8],
        direction: Direction,
        memory: BulkMemory,
        bytes: u64,
        pinned: Option<Pinned<F::Device>>,
    ) -> Result<(), LinkError> {
        let read = direction == Direction::Put;
        // SAFETY: as the caller promises.
        let pinned = unsafe { self.registered(&memory, read, pinned) }?;
        let told = self.lent_memory(&memory.runs, bytes, direction);
        header.flags |= flags::REMOTE_MEMORY | flags::LENT_MEMORY;
        let head = head_of(header, body, &told.to_bytes(), 0);
        let place = if read { memory.runs.clone() } else { MemoryRuns::new() };
        let mut pending = self.pending(header.request_id, place, if read { bytes } else { 0 });
        (pending.pinned, pending.described_put) = (Some(pinned), read);
        pending.moved = Some(Moved::new(memory.runs, bytes, direction));
        self.start(head, (MemoryRuns::new(), 0), Way::Parts { binds: VecDeque::new() }, pending);
        Ok(())
    }

    /// The memory's registrations, made if it has none; `write`: it is written to.
    ///
    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn registered(
        &self,
        memory: &BulkMemory,
        write: bool,
        known: Option<Pinned<F::Device>>,
    ) -> Result<Pinned<F::Device>, LinkError> {
        if let Some(pinned) = known {
            return Ok(pinned);
        }
        // SAFETY: as the caller promises.
        let pinned = unsafe { self.adapter.cache.pin_bulk(memory, write) };
        pinned.map_err(|error| LinkError::Register { peer: self.peer.clone(), source: error.into() })
    }
}

/// Header, body and a payload of the link's own; `data_bytes` of the caller's come behind.
fn head_of(mut header: Header, body: &[u8], payload: &[u8], data_bytes: u64) -> Vec<u8> {
    header.body_bytes = body.len() as u32;
    header.payload_bytes = payload.len() as u64 + data_bytes;
    let mut head = Vec::with_capacity(HEADER_BYTES + body.len() + payload.len());
    head.extend_from_slice(&header.encode());
    head.extend_from_slice(body);
    head.extend_from_slice(payload);
    head
}

/// The caller's pieces with their keys, if there are no more than one work request can hold.
fn gathered<D: Device>(
    pinned: &Pinned<D>,
    runs: &[MemoryRun],
    bytes: u64,
    pieces_max: usize,
) -> Option<Vec<MemoryPiece>> {
    let mut pieces: Vec<MemoryPiece> = Vec::new();
    let mut all = true;
    Cursor::default().walk(runs, bytes, |_, address, bytes| {
        let region = pinned.find(address, bytes);
        all = pieces.len() < pieces_max && region.is_some();
        pieces.extend(region.map(|region| MemoryPiece {
            address,
            bytes: bytes as u32,
            local_key: region.local_key,
        }));
        all
    });
    all.then_some(pieces)
}
