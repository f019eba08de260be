//! Memory that servers on this host reach without a copy.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use weft_transport::Segment;

use crate::error::{Error, ErrorKind};
use crate::inner::Inner;

/// Memory that servers on this host read files into, and write files from, directly: `weft_mem_alloc` in C. Over TCP it is
/// memory like any other.
///
/// It is zeros at first, is taken from the system as it is touched, and is given back on drop; no operation may be under way
/// on it then. A connection is told of it the first time that a request uses it. Forked children share it.
pub struct Arena {
    inner: Arc<Inner>,
    segment: Segment,
}

impl Arena {
    pub(crate) fn new(inner: &Arc<Inner>, bytes: usize) -> Result<Arena, Error> {
        let segment = Segment::new(bytes).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            Error::new(
                "alloc",
                ErrorKind::Local(errno),
                format!("no shared memory of {bytes} bytes: {error}"),
            )
        })?;
        inner.arenas.add(&segment);
        Ok(Arena { inner: inner.clone(), segment })
    }

    /// Where it begins; aligned to pages.
    pub fn base(&self) -> NonNull<u8> {
        self.segment.base()
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.segment.bytes()
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena {{ base: {:?}, bytes: {} }}", self.base(), self.bytes())
    }
}

impl Deref for Arena {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as the segment lives. Servers write to it only during operations, which borrow it
        // mutably or are unsafe to start.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base().as_ptr(), self.bytes()) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.inner.drop_arena(self.segment.id());
    }
}
