//! Views of files: displacement, etype, filetype and data representation (MPI 4.0, 14.3).
//!
//! Offsets of MPI count etypes of the view; those below it count bytes: of the view ([`View`]), or of the file.

use std::ffi::CStr;

use weft_layout::{Regions, View};

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::types::Representation;

/// A view that is set.
pub struct FileView {
    /// The MPI of the process.
    pub mpi: &'static Mpi,
    /// Bytes from the beginning of the file.
    pub displacement: i64,
    /// A handle of its own.
    pub etype: Handle,
    /// A handle of its own.
    pub filetype: Handle,
    /// Bytes of an etype in the file.
    pub etype_bytes: u64,
    /// How data is represented in the file.
    pub representation: Representation,
    /// Its name.
    pub datarep: &'static CStr,
    /// The bytes that are seen.
    pub seen: Seen,
}

/// Which bytes a view shows.
pub enum Seen {
    /// All from the displacement on.
    All,
    /// Those of a filetype.
    Part(View),
    /// None: the filetype has no bytes, as that of a process without a share of an array.
    Nothing,
}

impl FileView {
    /// The view that a file is opened with.
    pub fn bytes(mpi: &'static Mpi) -> Result<FileView> {
        let byte = mpi.handles.byte;
        let (etype, filetype) = (mpi.dup_type(byte)?, mpi.dup_type(byte)?);
        Ok(FileView {
            mpi,
            displacement: 0,
            etype,
            filetype,
            etype_bytes: 1,
            representation: Representation::Native,
            datarep: c"native",
            seen: Seen::All,
        })
    }

    /// Where bytes of the view are in the file.
    pub fn regions(&self, position: u64, bytes: u64) -> Result<Regions> {
        match &self.seen {
            Seen::Part(view) => Ok(view.regions(position, bytes)?),
            Seen::Nothing if bytes == 0 => Ok(Regions::default()),
            Seen::Nothing => {
                let text = format!("{bytes} bytes of a view whose filetype has none");
                Err(MpiError::new(Class::Arg, text))
            }
            Seen::All => {
                let offset = position.checked_add(self.displacement as u64);
                let end = offset.and_then(|offset| offset.checked_add(bytes));
                match (offset, end) {
                    (Some(offset), Some(end)) if end <= i64::MAX as u64 => {
                        Ok(Regions::contiguous(offset, bytes))
                    }
                    _ => {
                        let text = format!("{bytes} bytes at {position} exceed offset 2^63");
                        Err(MpiError::new(Class::Arg, text))
                    }
                }
            }
        }
    }

    /// How many bytes of a file of this size the view shows.
    pub fn visible_bytes(&self, file_bytes: u64) -> u64 {
        match &self.seen {
            Seen::Part(view) => view.view_size(file_bytes),
            Seen::Nothing => 0,
            Seen::All => file_bytes.saturating_sub(self.displacement as u64),
        }
    }

    /// An offset in etypes, as bytes of the view.
    pub fn position(&self, offset: i64) -> Result<u64> {
        let position = u64::try_from(offset).ok().and_then(|offset| offset.checked_mul(self.etype_bytes));
        position.filter(|position| *position <= i64::MAX as u64).ok_or_else(|| {
            MpiError::new(Class::Arg, format!("offset {offset} in the file: it must be 0 to 2^63 bytes"))
        })
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        let mut is_finalized = 0;
        // SAFETY: it is written. After MPI_Finalize nothing else of MPI may be called.
        let code = unsafe { (self.mpi.f.finalized)(&mut is_finalized) };
        if code == 0 && is_finalized == 0 {
            self.mpi.free_type(self.etype);
            self.mpi.free_type(self.filetype);
        }
    }
}
