//! Views of files: displacement, etype, filetype and data representation (MPI 4.0, 14.3).
//!
//! Offsets of MPI count etypes of the view; those below it count bytes: of the view ([`View`]), or of the file.

use std::ffi::CStr;

use weft_layout::{Datatype, Regions, View, ViewError};

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::types::{self, Representation};

/// A view that is set.
pub struct FileView {
    /// The MPI of the process.
    pub mpi: &'static Mpi,
    /// Bytes from the beginning of the file.
    pub displacement: i64,
    /// Kept ([`types::keep_handle`]).
    pub etype: Handle,
    /// Kept.
    pub filetype: Handle,
    /// Bytes of an etype in the file.
    pub etype_bytes: u64,
    /// How data is represented in the file.
    pub representation: Representation,
    /// Its name.
    pub datarep: &'static CStr,
    /// The bytes that are seen.
    pub seen: Seen,
    /// Whether the pieces of any process are so small that an exchange could pay. Agreed when the view is set.
    pub is_fine: bool,
    /// Whether the view of any process overlaps itself. Agreed when the view is set. An exchange needs pieces in
    /// ascending order, so collective reads of such views use list I/O.
    pub overlaps: bool,
}

/// Which bytes a view shows.
pub enum Seen {
    /// All from the displacement on.
    All,
    /// Those of a filetype, again and again.
    Part(View),
    /// Those of a filetype once, of so many bytes: it reaches beyond its extent, as filetypes of PnetCDF do that are
    /// made of several subarrays, so its repetitions would overlap.
    Once(View, u64),
    /// None: the filetype has no bytes, as that of a process without a share of an array.
    Nothing,
}

impl FileView {
    /// The view that a file is opened with.
    pub fn bytes(mpi: &'static Mpi) -> Result<FileView> {
        Ok(FileView {
            mpi,
            displacement: 0,
            etype: mpi.handles.byte,
            filetype: mpi.handles.byte,
            etype_bytes: 1,
            representation: Representation::Native,
            datarep: c"native",
            seen: Seen::All,
            is_fine: false,
            overlaps: false,
        })
    }

    /// Where bytes of the view are in the file.
    pub fn regions(&self, position: u64, bytes: u64) -> Result<Regions> {
        match &self.seen {
            Seen::Part(view) => Ok(view.regions(position, bytes)?),
            Seen::Once(view, all) if position.checked_add(bytes).is_some_and(|end| end <= *all) => {
                Ok(view.regions(position, bytes)?)
            }
            Seen::Once(_, all) => {
                let text = format!(
                    "{bytes} bytes at {position} of a view whose filetype has {all} bytes and reaches beyond its extent: \
                     its repetitions would overlap; resize it"
                );
                Err(MpiError::new(Class::Arg, text))
            }
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
            Seen::Once(view, all) => view.view_size(file_bytes).min(*all),
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

impl Seen {
    /// Whether the same byte of the file is seen more than once.
    pub fn overlaps(&self) -> bool {
        matches!(self, Seen::Part(view) if view.overlaps())
    }

    /// Whether the pieces of a filetype are so small that an exchange could pay.
    pub fn is_fine(&self, filetype: &Datatype) -> Result<bool> {
        match self {
            Seen::All | Seen::Nothing => Ok(false),
            Seen::Part(_) | Seen::Once(..) => {
                Ok(!weft_collective::is_coarse(filetype.regions(0, 1)?.piece_count(), filetype.size_bytes()))
            }
        }
    }

    /// The bytes that a filetype shows from a displacement on. It may overlap itself if the file is only read (MPI 4.0, 14.3).
    pub fn through(filetype: &Datatype, displacement: u64, is_only_read: bool) -> Result<Seen> {
        let all_bytes = filetype.size_bytes();
        if all_bytes == 0 {
            return Ok(Seen::Nothing);
        }
        let is_whole = filetype.true_extent() == (0, all_bytes)
            && i64::try_from(all_bytes) == Ok(filetype.extent_bytes())
            && filetype.regions(0, 1)?.as_contiguous().is_some();
        if is_whole {
            return Ok(Seen::All);
        }
        let view = match is_only_read {
            true => View::for_reading(displacement, filetype.clone()),
            false => View::new(displacement, filetype.clone()),
        };
        match view {
            Ok(view) => Ok(Seen::Part(view)),
            Err(ViewError::Overlapping { span_bytes, .. }) => {
                let span_bytes = i64::try_from(span_bytes).unwrap_or(i64::MAX);
                let apart = Datatype::resized(filetype.lower_bound_bytes(), span_bytes, filetype)?;
                Ok(Seen::Once(View::new(displacement, apart)?, all_bytes))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        let mut is_finalized = 0;
        // SAFETY: it is written. After MPI_Finalize nothing else of MPI may be called.
        let code = unsafe { (self.mpi.f.finalized)(&mut is_finalized) };
        if code == 0 && is_finalized == 0 {
            types::release(self.mpi, self.etype);
            types::release(self.mpi, self.filetype);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filetype_beyond_its_extent_is_seen_once() {
        let (int, header) = (Datatype::bytes(4).unwrap(), Datatype::bytes(100).unwrap());
        let rows = Datatype::vector(8, 2, 4, &int).unwrap();
        let both = Datatype::structure(&[(0, 1, &header), (480, 1, &rows)]).unwrap();
        let short = Datatype::resized(0, 128, &both).unwrap();
        let Seen::Once(view, bytes) = Seen::through(&short, 10, false).unwrap() else {
            panic!("it is seen again")
        };
        assert_eq!(bytes, 100 + 64);
        assert_eq!(view.file_offset(100), Some(10 + 480));
    }

    #[test]
    fn a_filetype_without_gaps_shows_all_and_one_without_bytes_nothing() {
        let int = Datatype::bytes(4).unwrap();
        assert!(matches!(Seen::through(&int, 0, false), Ok(Seen::All)));
        assert!(matches!(Seen::through(&Datatype::contiguous(5, &int).unwrap(), 3, false), Ok(Seen::All)));
        assert!(matches!(Seen::through(&Datatype::bytes(0).unwrap(), 3, false), Ok(Seen::Nothing)));
        let gaps = Datatype::resized(0, 12, &int).unwrap();
        assert!(matches!(Seen::through(&gaps, 0, false), Ok(Seen::Part(_))));
    }
}
