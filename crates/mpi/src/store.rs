//! The open file, as the engine of collective accesses sees it.

use weft_client::{Direction, File, PendingRaw};
use weft_collective::{ErrorCode, Store};
use weft_layout::{Layout, Regions};

use crate::error::{MpiError, Result};

/// See [`Store`].
pub struct FileStore<'a> {
    /// The file.
    pub file: &'a File,
}

/// An error whose class other processes get to know.
pub struct StoreError(pub MpiError);

impl ErrorCode for StoreError {
    fn code(&self) -> u32 {
        self.0.class as u32
    }
}

impl Store for FileStore<'_> {
    type Error = StoreError;
    type Pending = PendingRaw;

    fn layout(&self) -> Layout {
        self.file.layout()
    }

    unsafe fn start_write(
        &mut self,
        base: *const u8,
        memory: Regions,
        file: Regions,
    ) -> std::result::Result<PendingRaw, StoreError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.file.start_raw(Direction::Write, base as u64, memory, None, file) })
    }

    unsafe fn start_read(
        &mut self,
        base: *mut u8,
        memory: Regions,
        file: Regions,
    ) -> std::result::Result<PendingRaw, StoreError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.file.start_raw(Direction::Read, base as u64, memory, None, file) })
    }

    fn wait(&mut self, pending: PendingRaw) -> std::result::Result<u64, StoreError> {
        let waited: Result<u64> = pending.wait().map_err(Into::into);
        waited.map_err(StoreError)
    }

    fn progress(&mut self, pending: &mut PendingRaw) {
        pending.test();
    }
}
