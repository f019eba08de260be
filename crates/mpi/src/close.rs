//! Closing, collectively: what all processes wrote is reported once, by the process that has the file open.
//!
//! ```text
//!   all         the greatest end that any has written: one reduction
//!   process 0   one Close at the metadata server, with that end; removes the file where it was asked to
//!   others      no message
//!   all         hear of the result: when the call returns, the file is closed
//! ```

use std::sync::Arc;

use weft_client::WrittenEnd;

use crate::error::Result;
use crate::file::{self, MpiFile};
use crate::mpi::Reduce;
use crate::stats::{self, Stats};
use crate::sync::lock;

/// Closes a file in all processes. The handle is gone also where it fails.
///
/// # Errors
/// To be raised with the handler of `MPI_FILE_NULL`, as the file has none any more.
pub fn close(file: Arc<MpiFile>) -> Result<()> {
    file::remove(file.shadow);
    let (mpi, comm, rank, shadow) = (file.mpi, file.comm, file.rank, file.shadow);
    let is_deleted = file.has_mode(mpi.numbers().mode_delete_on_close);
    let (client, path) = (file.client.clone(), file.place.path.clone());
    show_stats(&file)?;
    if let Some(engine) = lock(&file.engine).take() {
        engine.free();
    }
    let others = written_by_all(&file)?;
    let close = || {
        close_first(file, &others)?;
        if is_deleted {
            client.unlink(path.as_str())?;
        }
        Ok(0)
    };
    let result = if rank == 0 { close() } else { Ok(0) };
    let result = file::share(mpi, comm, rank, 0, result);
    mpi.close_shadow(shadow);
    mpi.free_comm(comm);
    result.map(|_| ())
}

fn close_first(file: Arc<MpiFile>, others: &WrittenEnd) -> Result<()> {
    match Arc::try_unwrap(file) {
        Ok(file) => Ok(file.file.close_shared(others)?),
        // A request that the program has not waited for closes it when it ends.
        Err(file) => {
            file.file.note_written(others);
            Ok(file.file.flush().map(|_| ())?)
        }
    }
}

/// What all processes have written and not yet reported.
fn written_by_all(file: &MpiFile) -> Result<WrittenEnd> {
    let own = file.file.written_end();
    let mut maxima = [own.end_bytes, u64::from(own.touch), u64::from(own.unsure)];
    file.mpi.allreduce(&mut maxima, Reduce::Max, file.comm)?;
    let [end_bytes, touch, unsure] = maxima;
    Ok(WrittenEnd { end_bytes, touch: touch != 0, unsure: unsure != 0 })
}

/// Lets the process that has the file open report what all have written so far.
pub fn reduce_written(file: &MpiFile) -> Result<()> {
    let others = written_by_all(file)?;
    if file.rank == 0 {
        file.file.note_written(&others);
    }
    Ok(())
}

fn show_stats(file: &MpiFile) -> Result<()> {
    // All processes of a program have the same environment, but process 0 decides.
    let are_wanted = file.in_first(|| Ok(u64::from(Stats::are_wanted())))?;
    if are_wanted == 0 {
        return Ok(());
    }
    let mut sums: [u64; stats::COUNT] = file.stats.numbers(&file.file.io_stats());
    file.mpi.allreduce(&mut sums, Reduce::Sum, file.comm)?;
    if file.rank == 0 {
        crate::report::say(Stats::lines(&file.place.path, file.size, &sums).trim_end());
    }
    Ok(())
}
