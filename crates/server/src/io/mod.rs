//! The I/O server's part: file bytes between clients and data files, one function per operation.
//!
//! ```text
//!   request ─► admit: capability, slot, this server's place in the layout
//!           ─► units.rs: the share of this slot, cut into units
//!           ─► read.rs / write.rs: unit by unit, by the shortest way there is to the client's memory
//!           ─► plan.rs: how the pieces of a unit are accessed ─► access.rs does it
//!
//!   way of a unit       when                                                     copies
//!   local               the client's memory is in this process (segments)        data file ─ client
//!   inline              the whole answer is small                                in the reply
//!   sendfile            TCP, in the page cache, pieces are long                  page cache ─ socket
//!   direct              in the page cache, pieces are not tiny                   page cache ─ client (process_vm), or socket
//!   buffered            else; network and disk of neighbouring units overlap     data file ─ buffer ─ client
//! ```
//!
//! Where this process copies (local, inline, buffered), a unit of many pieces is accessed piece by piece, by sieving, or through
//! mapped pages, as the cost model says ([`weft_storage::cost`]) or the request.

mod access;
mod copy;
mod explain;
mod memory;
mod objects;
mod plan;
mod read;
mod size;
mod transfer;
mod units;
pub(crate) mod work;
mod write;

use crate::answer::Refusal;
use crate::clock::unix_s;
use crate::config::SyncMode;
use crate::key_ring::KeyRing;
use crate::spent::{self, Part, during};
use plan::Planner;
use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use weft_layout::{ChainId, Extent, Layout};
use weft_storage::calibrate::Calibration;
use weft_storage::cost::{Corrections, Method};
use weft_storage::{BufferPool, DataFile, DataFiles, Disk};
use weft_transport::ConnError;
use weft_wire::Status;
use weft_wire::messages::{DataSize, LOSS_EPOCH_DURABLE, Time};
use weft_wire::security::{Capability, WriteBound};
use work::MethodCounters;

/// From this length on pieces that are to be accessed one by one are moved from mapped pages all the same.
const LONG_PIECE_BYTES: u64 = 16 << 10;
/// From this length on a piece is sent from the page cache by a system call of its own, which copies nothing; many shorter
/// ones are copied by one call.
const SENDFILE_PIECE_BYTES: u64 = 128 << 10;
/// From this length on pieces are moved between mapped pages and the client's memory by the kernel, many at once; what is
/// shorter is gathered in a buffer first.
const DIRECT_PIECE_BYTES: u64 = 512;

/// Everything that one thread of an I/O server serves from.
pub(crate) struct IoPart<D: Disk> {
    /// Shared by all threads of the server.
    pub files: DataFiles<D>,
    /// This thread's transfer buffers.
    pub pool: BufferPool,
    id: u16,
    keys: KeyRing,
    sync: SyncMode,
    /// Tells this start of the machine from others: a machine that stops takes unsynced writes with it.
    boot: u64,
    calibration: Calibration,
    corrections: RefCell<Corrections>,
    methods: MethodCounters,
}

/// Another number for each start of a machine.
fn boot_number(boot_id: [u8; 16]) -> u64 {
    let half = |begin: usize| u64::from_le_bytes(std::array::from_fn(|at| boot_id[begin + at]));
    half(0).rotate_left(17) ^ half(8)
}

impl<D: Disk> IoPart<D> {
    /// The part of the I/O server with this id.
    pub fn new(
        files: DataFiles<D>,
        pool: BufferPool,
        id: u16,
        keys: KeyRing,
        sync: SyncMode,
        calibration: Calibration,
        methods: MethodCounters,
    ) -> IoPart<D> {
        IoPart {
            files,
            pool,
            id,
            keys,
            sync,
            boot: boot_number(weft_host::boot_id()),
            calibration,
            corrections: RefCell::default(),
            methods,
        }
    }

    /// As on a machine whose present start has this identity.
    pub fn in_boot(self, boot_id: [u8; 16]) -> IoPart<D> {
        IoPart { boot: boot_number(boot_id), ..self }
    }

    fn planner(&self, write: bool, sync: bool, wish: Option<Method>) -> Planner<'_> {
        let sync = write && (sync || self.sync == SyncMode::Sync);
        Planner {
            model: self.calibration.model.get(),
            corrections: &self.corrections,
            write,
            sync,
            wish,
            not_in_memory: Cell::new(false),
        }
    }

    /// Whether this server has the data files of a chain.
    fn holds(&self, chain: ChainId) -> bool {
        chain.single_server() == self.id
    }

    /// Checks that `capability` gives `rights` now, and that this server has part `slot` of the file.
    fn admit(&self, capability: &Capability, rights: u32, slot: u16) -> Result<(u64, Layout), Refusal> {
        spent::note_ino(capability.ino);
        self.check(capability, rights)?;
        let layout = capability.layout;
        if slot >= layout.server_count() || !self.holds(layout.chain(slot)) {
            return Err(self.wrong_server(slot, &layout));
        }
        Ok((capability.ino, layout))
    }

    /// Checks that `capability` allows to write bytes below the `end` that is asked for.
    fn admit_end(&self, capability: &Capability, end: impl FnOnce() -> u64) -> Result<(), Refusal> {
        let WriteBound::End(bound) = capability.write_bound() else { return Ok(()) };
        let end = end();
        if end <= bound {
            return Ok(());
        }
        let text = format!(
            "the file counts for somebody who has a limit: it may be written up to byte {bound} now, not up to {end}; the \
             client has to reserve more first"
        );
        Err(Refusal::new(Status::Quota, text))
    }

    fn check(&self, capability: &Capability, rights: u32) -> Result<(), Refusal> {
        let now_s = unix_s();
        let checked = self.keys.check(capability, now_s, rights);
        checked.map_err(|error| {
            Refusal::of_capability(&format!("I/O server {}", self.id), capability, now_s, error)
        })
    }

    /// The same for operations on a whole data file.
    fn admit_any(&self, capability: &Capability) -> Result<u64, Refusal> {
        self.check(capability, 0)?;
        spent::note_ino(capability.ino);
        match capability.layout.slot_of_chain(ChainId::of_single(self.id)) {
            Some(_) => Ok(capability.ino),
            None => Err(self.wrong_server(0, &capability.layout)),
        }
    }

    fn wrong_server(&self, slot: u16, layout: &Layout) -> Refusal {
        let text = format!(
            "this is I/O server {}, which has not part {slot} of a file over {} of {} servers from {} on",
            self.id,
            layout.server_count(),
            layout.ring_servers(),
            layout.first_server()
        );
        Refusal::new(Status::WrongServer, text)
    }

    /// See [`DataSize::loss_epoch`].
    fn loss_epoch(&self, ino: u64) -> u64 {
        self.boot.wrapping_add(self.files.losses(ino)).max(LOSS_EPOCH_DURABLE + 1)
    }

    /// See [`SyncAllReply::loss_epoch`](weft_wire::messages::SyncAllReply::loss_epoch).
    pub fn loss_epoch_of_all(&self) -> u64 {
        self.boot.wrapping_add(self.files.losses_of_all())
    }

    fn data_size(&self, ino: u64, loss_epoch: u64) -> Result<DataSize, Refusal> {
        let Some(file) = self.files.open_unless_missing(ino)? else {
            return Ok(DataSize {
                local_bytes: 0,
                allocated_bytes: 0,
                mtime: Time { seconds: 0, nanoseconds: 0 },
                loss_epoch,
            });
        };
        let local_bytes = file.size()?;
        let (allocated_bytes, mtime) =
            file.raw_fd().and_then(examine).unwrap_or((local_bytes, Time { seconds: 0, nanoseconds: 0 }));
        Ok(DataSize { local_bytes, allocated_bytes, mtime, loss_epoch })
    }

    /// Makes a change durable where that is asked for, or is the server's mode. `loss_epoch` is that from before the change;
    /// returns the one for the answer.
    async fn settle(&self, file: Option<&DataFile<D>>, asked: bool, loss_epoch: u64) -> Result<u64, Refusal> {
        if !asked && self.sync != SyncMode::Sync {
            return Ok(loss_epoch);
        }
        if let Some(file) = file {
            during(Part::Sync, file.sync()).await?;
            if self.loss_epoch(file.ino()) != loss_epoch {
                let text = format!(
                    "data file {:016x} could not be written to the disk when another client synced it: write again, and have the disk checked",
                    file.ino()
                );
                return Err(Refusal::new(Status::Io, text));
            }
        }
        Ok(LOSS_EPOCH_DURABLE)
    }
}

/// Space that a file takes, and when it was last written.
fn examine(fd: RawFd) -> Option<(u64, Time)> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live and writable; the descriptor is open as long as the caller's handle.
    let result = unsafe { libc::fstat(fd, &mut stat) };
    let mtime = Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 };
    (result == 0).then_some((stat.st_blocks as u64 * 512, mtime))
}

/// The part of a range of the whole file that is in the data file of `slot`.
fn local_range(layout: &Layout, slot: u16, offset: u64, bytes: u64) -> Result<Extent, Refusal> {
    let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
    let end = end.ok_or_else(|| Refusal::new(Status::FileTooBig, "the range ends beyond 2^63"))?;
    let begin = layout.local_size(slot, offset);
    Ok(Extent { offset: begin, bytes: layout.local_size(slot, end) - begin })
}

/// What a failed movement of bulk data means for its request.
impl From<ConnError> for Refusal {
    fn from(error: ConnError) -> Refusal {
        let status = match &error {
            ConnError::ClientMemory { .. } => Status::Invalid,
            ConnError::Range { .. } => Status::Malformed,
            _ => Status::Io,
        };
        Refusal::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::io_part;
    use weft_reactor::{Reactor, ReactorOptions};
    use weft_storage::FaultPlan;

    #[test]
    fn a_sync_that_another_one_failed_before_makes_nothing_durable() {
        let plan = FaultPlan { failing_sync: Some(1), ..FaultPlan::default() };
        let part = io_part(0, SyncMode::Sync, plan);
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let file = part.files.create(7).unwrap();
            let before = part.loss_epoch(7);
            file.write(0, &[1; 100]).await.unwrap();
            file.sync().await.unwrap_err();
            let refusal = part.settle(Some(&file), false, before).await.unwrap_err();
            assert!(refusal.status == Status::Io && refusal.text.contains("write again"), "{}", refusal.text);
            let settled = part.settle(Some(&file), false, part.loss_epoch(7)).await.unwrap();
            assert_eq!(settled, LOSS_EPOCH_DURABLE);
        });
    }

    #[test]
    fn another_start_of_the_machine_is_another_epoch_of_every_file() {
        let mut part = io_part(0, SyncMode::Nosync, FaultPlan::default());
        let before = (part.loss_epoch(7), part.loss_epoch(8));
        part.boot = part.boot.wrapping_add(1 << 40);
        assert!(part.loss_epoch(7) != before.0 && part.loss_epoch(8) != before.1);
    }
}
