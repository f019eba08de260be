//! The seam to the file.

use weft_layout::{Layout, Regions};

/// A number for an error that other processes get to know.
pub trait ErrorCode {
    /// The number, such as an errno. Any but 0, and below 2^31.
    fn code(&self) -> u32;
}

/// The open file of a collective access, as one process has it.
pub trait Store {
    /// What goes wrong with it.
    type Error: ErrorCode;
    /// An access that has begun. It ends when it is waited for.
    type Pending;

    /// How the file is striped; the same in all processes.
    fn layout(&self) -> Layout;

    /// Begins to write `memory`, whose offsets count from `base`, to `file`. Both have as many bytes, and
    /// those of the file are ascending and on one server.
    ///
    /// # Safety
    /// The memory does not change until the access was waited for.
    unsafe fn start_write(
        &mut self,
        base: *const u8,
        memory: Regions,
        file: Regions,
    ) -> Result<Self::Pending, Self::Error>;

    /// Begins to read `file` into `memory`, as [`Store::start_write`] writes. What is beyond the end of the
    /// file is zeros.
    ///
    /// # Safety
    /// The memory is nobody else's until the access was waited for.
    unsafe fn start_read(
        &mut self,
        base: *mut u8,
        memory: Regions,
        file: Regions,
    ) -> Result<Self::Pending, Self::Error>;

    /// Waits until the access is over. Returns the number of its bytes below the end of the file, which are
    /// the first ones of it, as the file's bytes are ascending.
    fn wait(&mut self, pending: Self::Pending) -> Result<u64, Self::Error>;

    /// Lets `pending` make progress without waiting. Called now and then while bytes are exchanged.
    fn progress(&mut self, pending: &mut Self::Pending) {
        let _ = pending;
    }
}
