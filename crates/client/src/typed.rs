//! Typed reads and writes: each side is described by a [`Datatype`] instead of listed, as MPI-IO does it.
//!
//! ```text
//!   memory    Elements { count: 2, datatype: a column of 3 }      #..#..#..  #..#..#..     from `base` on
//!   file      Place::Elements { offset, a block of 2 by 3 }       ....###...###....
//!             Place::View { position }                            as many bytes, where the view of the file has them
//! ```

use weft_layout::{Datatype, Regions};

use crate::Result;
use crate::error::{Error, ErrorKind};
use crate::file::File;
use crate::pending::PendingRaw;

/// `count` elements of a type, each an extent of the type after the one before.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    /// How many.
    pub count: u64,
    /// Of what.
    pub datatype: &'a Datatype,
}

impl Elements<'_> {
    fn regions(&self, side: &str, offset: u64) -> Result<Regions> {
        self.datatype.regions(offset, self.count).map_err(|error| {
            Error::new(
                "typed",
                ErrorKind::Invalid,
                format!("the {side}'s type, {} times: {error}", self.count),
            )
        })
    }
}

/// Which bytes of the file a typed call is about.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Elements of a type.
    Elements {
        /// Where the first one is.
        offset: u64,
        /// What is there.
        elements: Elements<'a>,
    },
    /// As many bytes as there are in memory, in the view that is set, or in the whole file.
    View {
        /// Where in the view they begin.
        position: u64,
    },
}

impl File {
    /// What [`File::read_typed`] moves: the regions of memory, as addresses, and of the file.
    ///
    /// # Errors
    /// Where a type reaches below 0 or beyond 2^63.
    pub fn typed_regions(
        &self,
        base: *const u8,
        memory: Elements<'_>,
        file: Place<'_>,
    ) -> Result<(Regions, Regions)> {
        let regions = || {
            let memory = memory.regions("memory", base as u64)?;
            let file = match file {
                Place::Elements { offset, elements } => elements.regions("file", offset)?,
                Place::View { position } => self.view_regions(position, memory.total_bytes())?,
            };
            Ok((memory, file))
        };
        regions().map_err(|error: Error| error.on(&self.name()))
    }

    /// Reads elements in the file into elements in memory, the first of which is at `base`. Both sides must
    /// have the same number of bytes.
    ///
    /// As [`File::read_raw`] it returns the number of bytes below the end of the file, and fills the memory
    /// of the others with zeros unless the file's side is one contiguous range.
    ///
    /// # Safety
    /// The memory is writable and nobody else's until this returns.
    pub unsafe fn read_typed(&self, base: *mut u8, memory: Elements<'_>, file: Place<'_>) -> Result<u64> {
        let (memory, file) = self.typed_regions(base, memory, file)?;
        // SAFETY: the caller's promise.
        unsafe { self.read_raw(std::ptr::null_mut(), &memory, &file) }
    }

    /// Writes elements in memory, the first of which is at `base`, to elements in the file.
    ///
    /// # Safety
    /// The memory is readable and does not change until this returns.
    pub unsafe fn write_typed(&self, base: *const u8, memory: Elements<'_>, file: Place<'_>) -> Result<u64> {
        let (memory, file) = self.typed_regions(base, memory, file)?;
        // SAFETY: the caller's promise.
        unsafe { self.write_raw(std::ptr::null(), &memory, &file) }
    }

    /// Begins a [`File::read_typed`].
    ///
    /// # Safety
    /// The memory is writable and nobody else's until the result was waited for or dropped.
    pub unsafe fn start_read_typed(
        &self,
        base: *mut u8,
        memory: Elements<'_>,
        file: Place<'_>,
    ) -> Result<PendingRaw> {
        let (memory, file) = self.typed_regions(base, memory, file)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.start_read_raw(std::ptr::null_mut(), &memory, &file) })
    }

    /// Begins a [`File::write_typed`].
    ///
    /// # Safety
    /// The memory is readable and does not change until the result was waited for or dropped.
    pub unsafe fn start_write_typed(
        &self,
        base: *const u8,
        memory: Elements<'_>,
        file: Place<'_>,
    ) -> Result<PendingRaw> {
        let (memory, file) = self.typed_regions(base, memory, file)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.start_write_raw(std::ptr::null(), &memory, &file) })
    }
}
