//! Completion queues and shared receive queues.

use super::bindings::*;
use super::device::RdmaDevice;
use super::library::{Owned, outcome, set_nonblocking};
use crate::{
    CompletionQueue, Counters, Device, MemoryPiece, SharedReceives, VerbsError, WorkDone, WorkKind,
    WorkStatus,
};
use libc::{c_int, c_uint};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;

/// Completions taken, and receives posted, in one call of the driver.
const BATCH: usize = 32;

/// A completion queue; endpoints that report to it keep it alive.
pub(super) struct Completions {
    // Dropped in this order.
    queue: Owned<ibv_cq>,
    channel: Owned<ibv_comp_channel>,
    device: Arc<RdmaDevice>,
}

impl Completions {
    fn new(device: Arc<RdmaDevice>, depth: u32) -> io::Result<Completions> {
        let library = device.library();
        // SAFETY: the context is live.
        let channel = unsafe {
            Owned::take(library, (library.ibv_create_comp_channel)(device.context()), |library, channel| {
                (library.ibv_destroy_comp_channel)(channel)
            })?
        };
        // SAFETY: the channel is live.
        set_nonblocking(unsafe { (*channel.as_ptr()).fd })?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        let vector = device.completion_vector();
        // SAFETY: the context and the channel are live, and the channel is destroyed after the queue.
        let queue = unsafe {
            let queue =
                (library.ibv_create_cq)(device.context(), depth, null_mut(), channel.as_ptr(), vector);
            Owned::take(library, queue, |library, queue| (library.ibv_destroy_cq)(queue))?
        };
        Ok(Completions { queue, channel, device })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }
}

/// A completion queue that one thread uses at a time.
pub struct RdmaQueue {
    pub(super) completions: Arc<Completions>,
}

impl RdmaQueue {
    pub(super) fn new(device: Arc<RdmaDevice>, depth: u32) -> Result<RdmaQueue, VerbsError> {
        let completions = Completions::new(device.clone(), depth)
            .map_err(|source| device.error("create a completion queue", source))?;
        Ok(RdmaQueue { completions: Arc::new(completions) })
    }

    fn device(&self) -> &RdmaDevice {
        &self.completions.device
    }

    /// Takes at most `most` completions, in one call of the driver.
    fn poll_batch(&self, done: &mut Vec<WorkDone>, most: usize) -> Result<usize, VerbsError> {
        let mut ended = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let device = self.device();
        let poll = device.operations().poll_cq.expect("every driver has it");
        let room = most.min(BATCH) as c_int;
        // SAFETY: the queue is live, and the buffer has space.
        let found = unsafe { poll(self.completions.as_ptr(), room, ended.as_mut_ptr().cast()) };
        let Ok(found) = usize::try_from(found) else {
            let source = io::Error::from_raw_os_error(found.checked_neg().unwrap_or(libc::EIO));
            return Err(device.error("poll a completion queue", source));
        };
        for one in &ended[..found] {
            // SAFETY: the driver has filled in this many.
            done.push(translate(unsafe { one.assume_init_ref() }, device.invalidated_flags()));
        }
        let starved = |one: &&WorkDone| one.status == WorkStatus::ReceiverNotReady;
        let starved = done[done.len() - found..].iter().filter(starved).count();
        Counters::add(&device.counters().receiver_not_ready, starved as u64);
        Counters::add(&device.counters().completions, found as u64);
        Ok(found)
    }
}

impl CompletionQueue for RdmaQueue {
    fn poll(&mut self, done: &mut Vec<WorkDone>, most: usize) -> Result<(), VerbsError> {
        Counters::add(&self.device().counters().polls, 1);
        let mut left = most;
        while left > 0 {
            let found = self.poll_batch(done, left)?;
            if found < left.min(BATCH) {
                break;
            }
            left -= found;
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        let arm = self.device().operations().req_notify_cq.expect("every driver has it");
        // SAFETY: the queue is live.
        outcome(unsafe { arm(self.completions.as_ptr(), 0) })
            .map_err(|source| self.device().error("arm a completion queue", source))
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.completions.channel.as_ptr()).fd }
    }

    fn take_wakeups(&mut self) -> Result<u32, VerbsError> {
        let library = self.device().library();
        let (mut queue, mut context) = (null_mut(), null_mut());
        let channel = self.completions.channel.as_ptr();
        let mut wakeups = 0;
        let end = loop {
            // SAFETY: the channel is live; its descriptor does not wait.
            match outcome(unsafe { (library.ibv_get_cq_event)(channel, &mut queue, &mut context) }) {
                Ok(()) => wakeups += 1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        if wakeups > 0 {
            // SAFETY: the channel has this one queue, and this many events were taken.
            unsafe { (library.ibv_ack_cq_events)(self.completions.as_ptr(), wakeups) };
        }
        Counters::add(&self.device().counters().wakeups, wakeups.into());
        let nothing_more = end.kind() == io::ErrorKind::WouldBlock;
        if nothing_more { Ok(wakeups) } else { Err(self.device().error("take wake-ups", end)) }
    }
}

/// Translates a completion. Any of `invalidated_flags` means that a key was invalidated.
fn translate(ended: &ibv_wc, invalidated_flags: c_uint) -> WorkDone {
    let status = status(ended.status);
    let kind = match ended.opcode {
        _ if status != WorkStatus::Ok => WorkKind::Sent,
        IBV_WC_RECV_RDMA_WITH_IMM => WorkKind::ReceivedImmediate(u32::from_be(ended.imm_data)),
        IBV_WC_RECV if ended.wc_flags & invalidated_flags != 0 => {
            WorkKind::ReceivedInvalidate(ended.imm_data)
        }
        IBV_WC_RECV => WorkKind::Received,
        _ => WorkKind::Sent,
    };
    WorkDone { id: ended.wr_id, queue_pair: ended.qp_num, kind, status, bytes: ended.byte_len }
}

fn status(number: c_uint) -> WorkStatus {
    match number {
        IBV_WC_SUCCESS => WorkStatus::Ok,
        IBV_WC_WR_FLUSH_ERR => WorkStatus::Flushed,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => WorkStatus::LocalProtection,
        IBV_WC_REM_ACCESS_ERR => WorkStatus::RemoteAccess,
        IBV_WC_RETRY_EXC_ERR => WorkStatus::RetriesExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => WorkStatus::ReceiverNotReady,
        other => WorkStatus::Other(other),
    }
}

/// A shared receive queue; endpoints that receive from it keep it alive.
pub(super) struct SharedQueue {
    queue: Owned<ibv_srq>,
    device: Arc<RdmaDevice>,
}

impl SharedQueue {
    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.queue.as_ptr()
    }
}

/// A receive queue that many endpoints share.
pub struct RdmaShared {
    pub(super) shared: Arc<SharedQueue>,
}

impl RdmaShared {
    pub(super) fn new(device: Arc<RdmaDevice>, depth: u32) -> Result<RdmaShared, VerbsError> {
        let library = device.library();
        let attr = ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut wanted = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain is live.
        let queue = unsafe {
            Owned::take(library, (library.ibv_create_srq)(device.domain(), &mut wanted), |library, queue| {
                (library.ibv_destroy_srq)(queue)
            })
        };
        let queue = queue.map_err(|source| device.error("create a shared receive queue", source))?;
        Ok(RdmaShared { shared: Arc::new(SharedQueue { queue, device }) })
    }
}

impl SharedReceives for RdmaShared {
    unsafe fn post(&self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError> {
        let device = &self.shared.device;
        let post = device.operations().post_srq_recv.expect("every driver with shared queues has it");
        // SAFETY: the queue is live, and the buffers are as the caller promises.
        post_receives(device, receives, |first, refused| unsafe {
            post(self.shared.as_ptr(), first, refused)
        })
    }
}

/// Posts receives in batches. `post` gets the first receive of each list, and returns the one that was
/// refused.
pub(super) fn post_receives(
    device: &RdmaDevice,
    receives: &[(u64, MemoryPiece)],
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), VerbsError> {
    let mut posted = 0;
    for batch in receives.chunks(BATCH) {
        // SAFETY: all zeros are a valid value.
        let mut requests: [ibv_recv_wr; BATCH] = unsafe { zeroed() };
        let first = requests.as_mut_ptr();
        for (index, (id, piece)) in batch.iter().enumerate() {
            let is_last = index + 1 == batch.len();
            requests[index] = ibv_recv_wr {
                wr_id: *id,
                next: if is_last { null_mut() } else { first.wrapping_add(index + 1) },
                sg_list: (&raw const *piece).cast_mut().cast(),
                num_sge: 1,
            };
        }
        let mut refused = null_mut();
        let result = outcome(post(first, &mut refused));
        let taken = if result.is_ok() { batch.len() } else { position(first, refused, batch.len()) };
        posted += taken;
        Counters::add(&device.counters().receives, taken as u64);
        result.map_err(|source| VerbsError::Post { device: device.name().to_string(), posted, source })?;
    }
    Ok(())
}

/// The index of the refused one in a list of `count` from `first` on.
pub(super) fn position<T>(first: *mut T, refused: *mut T, count: usize) -> usize {
    if refused.is_null() {
        return 0;
    }
    ((refused as usize).saturating_sub(first as usize) / size_of::<T>()).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: c_uint, opcode: c_uint, flags: c_uint, data: u32) -> WorkDone {
        // SAFETY: all zeros are a valid value.
        let zero: ibv_wc = unsafe { zeroed() };
        let ended = ibv_wc {
            wr_id: 7,
            status,
            opcode,
            wc_flags: flags,
            imm_data: data,
            qp_num: 3,
            byte_len: 9,
            ..zero
        };
        translate(&ended, IBV_WC_WITH_INV)
    }

    #[test]
    fn completions_are_translated() {
        let received = ended(IBV_WC_SUCCESS, IBV_WC_RECV, 0, 0);
        assert_eq!((received.id, received.queue_pair, received.bytes), (7, 3, 9));
        assert_eq!(received.kind, WorkKind::Received);
        assert_eq!(
            ended(IBV_WC_SUCCESS, IBV_WC_RECV, IBV_WC_WITH_INV, 5).kind,
            WorkKind::ReceivedInvalidate(5)
        );
        let told = ended(IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 1 << 1, 5_u32.to_be());
        assert_eq!(told.kind, WorkKind::ReceivedImmediate(5));
        let flushed = ended(IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, 0);
        assert_eq!((flushed.kind, flushed.status), (WorkKind::Sent, WorkStatus::Flushed));
        assert_eq!(ended(21, 0, 0, 0).status, WorkStatus::Other(21));
    }

    #[test]
    fn the_refused_one_is_found() {
        let mut list = [0_u64; 4];
        let first = list.as_mut_ptr();
        assert_eq!(position(first, first.wrapping_add(3), 4), 3);
        assert_eq!(position(first, null_mut(), 4), 0);
    }
}
