//! Shared memory that a client owns and lends to servers on its host.
//!
//! It is a memfd of ordinary pages that can never shrink, so a client cannot make a server that maps it fault by cutting it. A
//! memfd of huge pages, of which there may be none left, and files of any other file system are refused. Pages may still be
//! missing where memory runs out: who copies from or to a segment goes through `weft_storage::guarded`, or has the kernel copy.
//! The server reads and writes its data files straight into it: no copy and no work for the client.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RunsError;
use crate::runs::{MemoryRuns, span, tidy};
use crate::socket::{checked, owned};

/// A mapping of a whole descriptor, readable and writable, shared.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory, reached only through raw pointers whose users see to their own order.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?, bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` has mapped; whoever holds pointers into it holds the mapping too.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Numbers of living segments of this process.
static NUMBERS: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A number that no living segment has; 0 is never given.
struct Number(u16);

impl Number {
    fn take() -> io::Result<Number> {
        let mut taken = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (1..=u16::MAX).find(|number| taken.binary_search(number).is_err());
        let number = free.ok_or_else(|| io::Error::other("65535 memory segments are in use; free some"))?;
        let at = taken.partition_point(|other| *other < number);
        taken.insert(at, number);
        Ok(Number(number))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut taken = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|number| *number != self.0);
    }
}

struct Inner {
    number: Number,
    mapping: Mapping,
    fd: OwnedFd,
}

/// Memory that servers on the same host can reach directly. Clones are the same memory; it is freed with the last one, links
/// to which it was added included.
#[derive(Clone)]
pub struct Segment {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment {{ id: {}, bytes: {} }}", self.id(), self.bytes())
    }
}

impl Segment {
    /// Makes a segment of zeros. Memory is taken as it is touched.
    ///
    /// # Errors
    /// Of the kernel; `InvalidInput` for 0 bytes.
    pub fn new(bytes: usize) -> io::Result<Segment> {
        if bytes == 0 || bytes > isize::MAX as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a segment cannot have {bytes} bytes"),
            ));
        }
        let number = Number::take()?;
        // SAFETY: a literal name; the result is new.
        let fd = unsafe {
            owned(libc::memfd_create(c"weft".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING))
        }?;
        // SAFETY: no memory is passed.
        unsafe {
            checked(libc::ftruncate(fd.as_raw_fd(), bytes as i64) as isize)?;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            checked(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) as isize)?;
        }
        let mapping = Mapping::new(fd.as_fd(), bytes)?;
        Ok(Segment { inner: Arc::new(Inner { number, mapping, fd }) })
    }

    /// Its number, not 0, unique among the living segments of this process.
    pub fn id(&self) -> u16 {
        self.inner.number.0
    }

    /// Where it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.inner.mapping.base()
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.inner.mapping.bytes()
    }

    /// Its memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }

    pub(crate) fn address(&self) -> u64 {
        self.base().as_ptr() as u64
    }
}

/// The segments that a link was told of.
#[derive(Default)]
pub(crate) struct KnownSegments {
    known: Vec<Known>,
}

struct Known {
    segment: Segment,
    /// The server has it.
    taken: bool,
}

impl KnownSegments {
    pub(crate) fn add(&mut self, segment: &Segment, taken: bool) {
        self.remove(segment.id());
        self.known.push(Known { segment: segment.clone(), taken });
    }

    /// Says whether it was known.
    pub(crate) fn remove(&mut self, id: u16) -> bool {
        let before = self.known.len();
        self.known.retain(|known| known.segment.id() != id);
        self.known.len() < before
    }

    pub(crate) fn set_taken(&mut self, id: u16) {
        if let Some(known) = self.known.iter_mut().find(|known| known.segment.id() == id) {
            known.taken = true;
        }
    }

    /// Checks a list, brings it into its shortest form with plain addresses, and returns its bytes.
    pub(crate) fn resolve(&self, runs: &mut MemoryRuns) -> Result<u64, RunsError> {
        for run in runs.iter_mut().filter(|run| run.segment != 0) {
            let segment = &self
                .known
                .iter()
                .find(|known| known.segment.id() == run.segment)
                .ok_or(RunsError::UnknownSegment(run.segment))?
                .segment;
            let (_, end) = span(run).ok_or(RunsError::Overflow)?;
            if end > segment.bytes() as u64 {
                return Err(RunsError::OutsideSegment(run.segment));
            }
            run.address += segment.address();
            run.segment = 0;
        }
        tidy(runs)
    }

    /// Names the segments in which runs with plain addresses lie, where the server has them. Says whether that is all of
    /// the runs.
    pub(crate) fn name(&self, runs: &mut MemoryRuns) -> bool {
        let mut all = true;
        for run in runs.iter_mut() {
            let inside = self.known.iter().filter(|known| known.taken).find(|known| {
                let (base, bytes) = (known.segment.address(), known.segment.bytes() as u64);
                span(run).is_some_and(|(low, end)| low >= base && end <= base + bytes)
            });
            match inside {
                Some(known) => {
                    run.address -= known.segment.address();
                    run.segment = known.segment.id();
                }
                None => all = false,
            }
        }
        all
    }
}

/// The kind of the file system that a descriptor's file is in (statfs(2)).
fn file_system(fd: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: plain data that the kernel fills.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        checked(libc::fstatfs(fd.as_raw_fd(), &mut stat) as isize)?;
        Ok(stat.f_type)
    }
}

/// Checks and maps a segment that a client has passed: it must be a memfd of ordinary pages that cannot shrink below `bytes`.
pub(crate) fn map_passed(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping, String> {
    let kind = file_system(fd).map_err(|error| format!("the descriptor cannot be examined: {error}"))?;
    if kind != libc::TMPFS_MAGIC {
        return Err(format!(
            "the descriptor is no memfd of ordinary pages: its file system is of kind {kind:#x}, not tmpfs"
        ));
    }
    // SAFETY: no memory is passed.
    let seals = checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } as isize)
        .map_err(|error| format!("the descriptor is no memfd: {error}"))?;
    if seals as i32 & libc::F_SEAL_SHRINK == 0 {
        return Err("the memfd is not sealed against shrinking".into());
    }
    // SAFETY: plain data that the kernel fills.
    let size = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        checked(libc::fstat(fd.as_raw_fd(), &mut stat) as isize).map_err(|error| error.to_string())?;
        stat.st_size as u64
    };
    if bytes == 0 || bytes > size {
        return Err(format!("a segment of {bytes} bytes was announced, the memfd has {size}"));
    }
    Mapping::new(fd, bytes as usize).map_err(|error| format!("the memfd cannot be mapped: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_cannot_shrink_and_numbers_are_used_again() {
        let segment = Segment::new(10_000).unwrap();
        assert_ne!(segment.id(), 0);
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::ftruncate(segment.fd().as_raw_fd(), 1) }, -1);
        assert!(map_passed(segment.fd(), 10_000).is_ok());
        assert!(map_passed(segment.fd(), 10_001).unwrap_err().contains("announced"));
    }

    fn memfd(flags: u32, bytes: i64) -> OwnedFd {
        // SAFETY: a literal name; the result is new.
        let fd = unsafe { owned(libc::memfd_create(c"test".as_ptr(), flags)) }.unwrap();
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes) }, 0);
        fd
    }

    #[test]
    fn what_is_no_sealed_memfd_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(map_passed(file.as_fd(), 4096).is_err());
        assert!(map_passed(memfd(libc::MFD_ALLOW_SEALING, 4096).as_fd(), 4096).is_err());
        let on_tmpfs = tempfile::tempfile_in("/dev/shm").unwrap();
        on_tmpfs.set_len(4096).unwrap();
        assert!(map_passed(on_tmpfs.as_fd(), 4096).is_err());
        assert!(map_passed(std::fs::File::open("/dev/zero").unwrap().as_fd(), 4096).is_err());
        assert!(map_passed(std::fs::File::open("/proc/self/mem").unwrap().as_fd(), 4096).is_err());
        assert!(Segment::new(0).is_err());
    }

    #[test]
    fn memory_of_huge_pages_is_refused() {
        // It is mapped without a page to back it, and touching it then raises SIGBUS.
        let huge = memfd(libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB, 4 << 20);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::fcntl(huge.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
        assert!(map_passed(huge.as_fd(), 4 << 20).unwrap_err().contains("ordinary pages"));
    }
}
