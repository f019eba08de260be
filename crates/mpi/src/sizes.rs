//! Sizes of files, and durability.

use std::sync::atomic::Ordering;

use crate::error::{Class, MpiError, Result};
use crate::file::MpiFile;

/// The size now, whoever writes.
pub fn size(file: &MpiFile) -> Result<i64> {
    i64::try_from(file.file.stat()?.size)
        .map_err(|_| MpiError::new(Class::Intern, "a file beyond 2^63 bytes"))
}

fn checked(file: &MpiFile, what: &str, bytes: i64) -> Result<u64> {
    let numbers = file.mpi.numbers();
    if file.has_mode(numbers.mode_sequential) {
        let text = format!("{what} of a file of MPI_MODE_SEQUENTIAL");
        return Err(MpiError::new(Class::UnsupportedOperation, text));
    }
    if file.has_mode(numbers.mode_rdonly) {
        return Err(MpiError::new(Class::ReadOnly, format!("{what} of a file opened with MPI_MODE_RDONLY")));
    }
    u64::try_from(bytes).map_err(|_| MpiError::new(Class::Arg, format!("{what} to {bytes} bytes")))
}

/// Cuts or extends the file, collectively.
pub fn set_size(file: &MpiFile, bytes: i64) -> Result<()> {
    file.same("MPI_File_set_size", &[bytes])?;
    // What others have written before they called this must not count after it.
    crate::close::reduce_written(file)?;
    let bytes = file.in_first(|| {
        let bytes = checked(file, "MPI_File_set_size", bytes)?;
        file.file.truncate(bytes)?;
        Ok(bytes)
    })?;
    file.file.note_size(bytes);
    file.known_bytes.fetch_min(bytes, Ordering::AcqRel);
    Ok(())
}

/// Reserves space, collectively; the file gets at least so large.
pub fn preallocate(file: &MpiFile, bytes: i64) -> Result<()> {
    file.same("MPI_File_preallocate", &[bytes])?;
    file.in_first(|| {
        let bytes = checked(file, "MPI_File_preallocate", bytes)?;
        if bytes > 0 {
            file.file.allocate(0, bytes, false)?;
        }
        Ok(0)
    })?;
    Ok(())
}

/// Makes durable what all processes have written, collectively. What was written is visible without it.
pub fn sync(file: &MpiFile) -> Result<()> {
    if file.has_mode(file.mpi.numbers().mode_rdonly) {
        return Err(MpiError::new(Class::ReadOnly, "MPI_File_sync of a file opened with MPI_MODE_RDONLY"));
    }
    crate::close::reduce_written(file)?;
    // Servers make durable what any client has written. But only who wrote is told where that was lost.
    let has_written = file.file.written_end().touch;
    let contents = if has_written { file.file.sync_contents().map_err(Into::into) } else { Ok(()) };
    file.agree(contents)?;
    file.in_first(|| {
        file.file.sync_data()?;
        Ok(0)
    })?;
    Ok(())
}
