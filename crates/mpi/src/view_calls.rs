//! Setting and showing views.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use weft_layout::Datatype;

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::file::MpiFile;
use crate::sync::lock;
use crate::types::{Representation, datatype_of, external_datatype_of, keep_handle};
use crate::view::{FileView, Seen};

/// What a program asks for.
pub struct Asked {
    /// Where the view begins, in bytes.
    pub displacement: i64,
    /// The unit of offsets.
    pub etype: Handle,
    /// What the view shows, again and again.
    pub filetype: Handle,
    /// The data representation.
    pub datarep: Vec<u8>,
    /// Hints.
    pub info: Handle,
}

/// Sets a view, collectively. Both pointers go to its beginning.
///
/// # Errors
/// In all processes where any has one; the view stays as it was.
pub fn set_view(file: &MpiFile, asked: &Asked) -> Result<()> {
    let view = new_view(file, asked);
    let kind = |view: &FileView| view.datarep.to_bytes().first().map_or(0, |letter| i64::from(*letter));
    let arguments = view.as_ref().map_or([0, 0], |view| [kind(view), view.etype_bytes as i64]);
    let flags = [
        file.has_moved_shared.load(Ordering::Acquire),
        view.as_ref().is_ok_and(|view| view.is_fine),
        view.as_ref().is_ok_and(|view| view.overlaps),
        file.rank == 0 && crate::settings::changes(file, asked.info),
    ];
    let result = view.as_ref().map(|_| ()).map_err(Clone::clone);
    let what = "MPI_File_set_view, data representation or etype,";
    let [has_moved, is_fine, overlaps, has_hints] = file.agree_on(result, flags, what, &arguments)?;
    if has_hints {
        crate::settings::set_info(file, asked.info)?;
    }
    let mut view = view?;
    (view.is_fine, view.overlaps) = (is_fine, overlaps);
    file.replace_view(view);
    *lock(&file.position) = 0;
    crate::pointers::reset_shared(file, has_moved)
}

fn new_view(file: &MpiFile, asked: &Asked) -> Result<FileView> {
    let mpi = file.mpi;
    let (representation, datarep) = match asked.datarep.to_ascii_lowercase().as_slice() {
        b"native" => (Representation::Native, c"native"),
        // All of the cluster's clients are little endian and have the same sizes of types.
        b"internal" => (Representation::Native, c"internal"),
        b"external32" => (Representation::External32, c"external32"),
        other => {
            let text = format!(
                "data representation `{}`: Weft knows native, internal and external32",
                String::from_utf8_lossy(other)
            );
            return Err(MpiError::new(Class::UnsupportedDatarep, text));
        }
    };
    let is_sequential = file.has_mode(mpi.numbers().mode_sequential);
    let displacement = match asked.displacement {
        displacement if displacement == i64::from(mpi.numbers().displacement_current) && is_sequential => {
            // The shared pointer's place in the view so far.
            let at = crate::pointers::advance_shared(file, 0)?;
            byte_offset(file, at)?
        }
        displacement if displacement >= 0 && !is_sequential => displacement,
        _ if is_sequential => {
            let text = "a file of MPI_MODE_SEQUENTIAL takes MPI_DISPLACEMENT_CURRENT only";
            return Err(MpiError::new(Class::Arg, text));
        }
        displacement => {
            return Err(MpiError::new(
                Class::Arg,
                format!("the displacement {displacement} of a view is negative"),
            ));
        }
    };
    let read = |handle| match representation {
        Representation::Native => datatype_of(mpi, handle),
        // The first call checks that the type can be used at all.
        Representation::External32 => {
            datatype_of(mpi, handle).and_then(|_| external_datatype_of(mpi, handle))
        }
    };
    let (etype, filetype) = (read(asked.etype)?, read(asked.filetype)?);
    check_types(&etype, &filetype)?;
    let seen = Seen::through(&filetype, displacement as u64, file.has_mode(mpi.numbers().mode_rdonly))?;
    let (is_fine, overlaps) = (seen.is_fine(&filetype)?, seen.overlaps());
    let etype_bytes = etype.size_bytes();
    let (etype, filetype) = (keep_handle(mpi, asked.etype)?, keep_handle(mpi, asked.filetype)?);
    Ok(FileView {
        mpi,
        displacement,
        etype,
        filetype,
        etype_bytes,
        representation,
        datarep,
        seen,
        is_fine,
        overlaps,
    })
}

fn check_types(etype: &Datatype, filetype: &Datatype) -> Result<()> {
    let (etype_bytes, filetype_bytes) = (etype.size_bytes(), filetype.size_bytes());
    if filetype_bytes.checked_rem(etype_bytes) != Some(0) {
        let text = format!(
            "a view with an etype of {etype_bytes} bytes and a filetype of {filetype_bytes}: the filetype must be \
             made of etypes"
        );
        return Err(MpiError::new(Class::Arg, text));
    }
    Ok(())
}

/// What `MPI_File_get_view` tells.
pub struct Told {
    /// Bytes from the beginning of the file.
    pub displacement: i64,
    /// A new handle.
    pub etype: Handle,
    /// A new handle.
    pub filetype: Handle,
    /// The data representation.
    pub datarep: &'static CStr,
}

/// The view that is set. The handles are the program's to free, but for those of predefined types.
pub fn get_view(file: &MpiFile) -> Result<Told> {
    let view = file.view();
    let (etype, filetype) = (keep_handle(file.mpi, view.etype)?, keep_handle(file.mpi, view.filetype)?);
    Ok(Told { displacement: view.displacement, etype, filetype, datarep: view.datarep })
}

/// Where an offset of the view is in the file, in bytes.
pub fn byte_offset(file: &MpiFile, offset: i64) -> Result<i64> {
    let view = file.view();
    let regions = view.regions(view.position(offset)?, 1)?;
    let first = regions.extents().next().map_or(0, |extent| extent.offset);
    i64::try_from(first).map_err(|_| MpiError::new(Class::Arg, "an offset beyond 2^63"))
}

/// The extent of a type in the file (MPI 4.0, 14.5.1).
pub fn type_extent(file: &MpiFile, datatype: Handle) -> Result<i64> {
    let view = file.view();
    match view.representation {
        Representation::Native => Ok(file.mpi.type_sizes(datatype)?.extent_bytes),
        Representation::External32 => Ok(external_datatype_of(file.mpi, datatype)?.extent_bytes()),
    }
}
