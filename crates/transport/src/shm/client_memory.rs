//! A client's memory as a server on the same host reaches it: the process behind the socket, and segments that it passed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use weft_wire::Status;
use weft_wire::limits::MEMORY_RUNS_MAX;

use crate::error::{ConnError, RunsError};
use crate::runs::{Cursor, IoVecs, MemoryRuns, span, tidy};
use crate::segment::{Mapping, map_passed};
use crate::socket::{checked, owned};
use crate::stream::ServerStream;

/// Segments that one connection may have.
const SEGMENTS_MAX: usize = 64;
/// Bytes of address space that they may take.
const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// The memory of a connection's client.
pub(super) struct ClientMemory {
    pub process: libc::pid_t,
    /// Becomes readable when the process ends.
    process_fd: Option<OwnedFd>,
    same_user: bool,
    /// The client's own memory was reached by a probe.
    pub reached: Cell<bool>,
    pub segments: RefCell<BTreeMap<u16, Rc<Mapping>>>,
    /// A page of a segment was gone: nothing that was moved through the mappings since is sure.
    pub is_gone: Cell<bool>,
}

impl ClientMemory {
    pub(super) fn new(credentials: &libc::ucred) -> ClientMemory {
        // SAFETY: no memory is passed, and the result is new.
        let process_fd =
            unsafe { owned(libc::syscall(libc::SYS_pidfd_open, credentials.pid, 0) as i32) }.ok();
        // SAFETY: no memory is passed.
        let same_user = credentials.uid == unsafe { libc::geteuid() };
        ClientMemory {
            process: credentials.pid,
            process_fd,
            same_user,
            reached: Cell::new(false),
            segments: RefCell::new(BTreeMap::new()),
            is_gone: Cell::new(false),
        }
    }

    /// Whether the process still has its end of the connection, so that it is the one that asked.
    pub(super) fn is_there(&self, stream: &ServerStream) -> bool {
        let Some(process_fd) = &self.process_fd else { return false };
        let mut entries = [
            libc::pollfd { fd: stream.fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 },
            libc::pollfd { fd: process_fd.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        ];
        // SAFETY: two live entries.
        let count = unsafe { libc::poll(entries.as_mut_ptr(), 2, 0) };
        count == 0 && !stream.is_closed()
    }

    /// Tries to read and write the 32 bytes of a probe.
    pub(super) fn probe(&self, stream: &ServerStream, address: u64) -> Result<([u8; 16], [u8; 16]), String> {
        if !self.same_user {
            return Err("the server runs as another user".into());
        }
        if self.process_fd.is_none() || !self.is_there(stream) {
            return Err("the server cannot see the client's process (another container?)".into());
        }
        let mut read = [0u8; 16];
        let mut written = [0u8; 16];
        weft_host::fill_random(&mut written).map_err(|error| error.to_string())?;
        let refused = |error: io::Error| format!("the kernel refuses process_vm access: {error}");
        for (local, at, direction) in
            [(&mut read, address, Direction::Get), (&mut written, address.wrapping_add(16), Direction::Put)]
        {
            let local = libc::iovec { iov_base: local.as_mut_ptr().cast(), iov_len: local.len() };
            let remote = libc::iovec { iov_base: at as usize as *mut _, iov_len: 16 };
            // SAFETY: the local piece is a live array of this function's.
            let moved =
                unsafe { process_vm(self.process, direction, &[local], &[remote]) }.map_err(refused)?;
            if moved != 16 {
                return Err("the probe's memory is not mapped".into());
            }
        }
        Ok((read, written))
    }

    pub(super) fn add_segment(
        &self,
        id: u16,
        bytes: u64,
        fd: Option<OwnedFd>,
    ) -> Result<(), (Status, String)> {
        let fd = fd.ok_or((Status::Malformed, "no descriptor came with the segment".to_string()))?;
        let mut segments = self.segments.borrow_mut();
        let mapped: u64 = segments.values().map(|mapping| mapping.bytes() as u64).sum();
        if id == 0 || segments.contains_key(&id) {
            return Err((Status::Invalid, format!("segment number {id} cannot be used")));
        }
        if segments.len() >= SEGMENTS_MAX || mapped.saturating_add(bytes) > SEGMENT_BYTES_MAX {
            return Err((
                Status::Limit,
                format!("a connection may have {SEGMENTS_MAX} segments of 1 TiB in all"),
            ));
        }
        let mapping = map_passed(fd.as_fd(), bytes).map_err(|text| (Status::Invalid, text))?;
        segments.insert(id, Rc::new(mapping));
        Ok(())
    }

    /// Checks what a request describes, and keeps the segments that it needs.
    pub(super) fn accept(&self, mut runs: MemoryRuns) -> Result<Described, RunsError> {
        if runs.len() > MEMORY_RUNS_MAX {
            return Err(RunsError::TooMany(runs.len()));
        }
        let bytes = tidy(&mut runs)?;
        let segments = self.segments.borrow();
        let mut mappings: Vec<(u16, Rc<Mapping>)> = Vec::new();
        for run in &mut runs {
            let id = run.segment;
            if id == 0 {
                if !self.reached.get() {
                    return Err(RunsError::UnknownSegment(0));
                }
                continue;
            }
            let mapping = segments.get(&id).ok_or(RunsError::UnknownSegment(id))?;
            let (_, end) = span(run).ok_or(RunsError::Overflow)?;
            if end > mapping.bytes() as u64 {
                return Err(RunsError::OutsideSegment(id));
            }
            // From here on the address is this process's own.
            run.address += mapping.base().as_ptr() as u64;
            if mappings.iter().all(|(known, _)| *known != id) {
                mappings.push((id, mapping.clone()));
            }
        }
        Ok(Described { runs, bytes, _mappings: mappings })
    }
}

/// Checked client memory: segment 0 has the client's addresses, others this process's.
pub(super) struct Described {
    pub runs: MemoryRuns,
    pub bytes: u64,
    /// Kept for the runs.
    _mappings: Vec<(u16, Rc<Mapping>)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Direction {
    /// Into the client's memory.
    Put,
    /// Out of it.
    Get,
}

/// # Safety
/// The local pieces are memory that may be read (put) or written (get) by a system call.
unsafe fn process_vm(
    process: libc::pid_t,
    direction: Direction,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> io::Result<usize> {
    let call = match direction {
        Direction::Put => libc::process_vm_writev,
        Direction::Get => libc::process_vm_readv,
    };
    // SAFETY: the kernel checks every address on both sides; what is local is as the caller promises.
    checked(unsafe { call(process, local.as_ptr(), local.len() as _, remote.as_ptr(), remote.len() as _, 0) })
}

impl Described {
    pub(super) fn check(
        &self,
        stream: &ServerStream,
        share_offset: u64,
        bytes: u64,
    ) -> Result<(), ConnError> {
        let end = share_offset.saturating_add(bytes);
        if end > self.bytes {
            return Err(ConnError::Range { peer: stream.peer_text(), bytes: self.bytes, end });
        }
        Ok(())
    }

    /// The place of a share offset, from the one where the unit before ended.
    pub(super) fn place(&self, cursor: (Cursor, u64), share_offset: u64) -> Cursor {
        let (mut at, offset) = cursor;
        if share_offset < offset {
            return Cursor::at(&self.runs, share_offset);
        }
        at.advance(&self.runs, share_offset - offset);
        at
    }

    /// Moves one batch: the next pieces of the client's, as many as lie in one process and fit one call.
    ///
    /// # Safety
    /// The local pieces are memory that may be read (put) or written (get) by a system call.
    pub(super) unsafe fn batch(
        &self,
        process: libc::pid_t,
        at: &Cursor,
        direction: Direction,
        local: &IoVecs,
    ) -> io::Result<usize> {
        let mut remote = IoVecs::new();
        let mut own = None;
        at.walk(&self.runs, local.bytes() as u64, |segment, address, bytes| {
            let is_own = segment != 0;
            if *own.get_or_insert(is_own) != is_own {
                return false;
            }
            remote.push(address as usize as *mut u8, bytes as usize)
        });
        // Memory in segments is mapped here; the kernel copies there too, for it notices pages that cannot be had.
        let process = if own == Some(true) { std::process::id() as libc::pid_t } else { process };
        // SAFETY: as the caller promises.
        let moved = unsafe { process_vm(process, direction, local.as_slice(), remote.as_slice()) }?;
        if moved == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(moved)
    }
}
