//! Closing, collectively: what all processes wrote is reported once, by the process that has the file open.

use std::sync::Arc;

use crate::error::Result;
use crate::file::{self, MpiFile};

/// Closes a file in all processes. The handle is gone also where it fails.
///
/// # Errors
/// To be raised with the handler of `MPI_FILE_NULL`, as the file has none any more.
pub fn close(file: Arc<MpiFile>) -> Result<()> {
    file::remove(file.shadow);
    let (mpi, comm, rank, mut shadow) = (file.mpi, file.comm, file.rank, file.shadow);
    let is_deleted = file.has_mode(mpi.numbers().mode_delete_on_close);
    let (client, path) = (file.client.clone(), file.place.path.clone());
    let result = close_here(file);
    let result = file::agree(mpi, comm, result);
    let result = result.and_then(|()| {
        if !is_deleted {
            return Ok(());
        }
        let delete =
            || if rank == 0 { client.unlink(path.as_str()).map(|()| 0).map_err(Into::into) } else { Ok(0) };
        file::share(mpi, comm, rank, 0, delete()).map(|_| ())
    });
    // SAFETY: the shadow is this file's, and the program's handle is not valid any more.
    unsafe { (mpi.f.file_close)(&mut shadow) };
    mpi.free_comm(comm);
    result
}

fn close_here(file: Arc<MpiFile>) -> Result<()> {
    match Arc::try_unwrap(file) {
        Ok(file) => Ok(file.file.close()?),
        // A request that the program has not waited for closes it when it ends.
        Err(file) => Ok(file.file.flush().map(|_| ())?),
    }
}

/// Tells process 0 what all have written so far.
pub fn reduce_written(file: &MpiFile) -> Result<()> {
    let flushed = file.file.flush().map(|_| ()).map_err(Into::into);
    file.agree(flushed)
}
