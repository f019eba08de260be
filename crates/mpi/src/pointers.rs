//! The individual and the shared pointer of a file, in etypes of its view (MPI 4.0, 14.4.3 and 14.4.4).
//!
//! The shared pointer is a counter that the metadata server keeps for the open file. There is no hidden file
//! and no lock: an access adds its etypes and begins where the counter was.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::error::{Class, MpiError, Result};
use crate::file::{MpiFile, peers};
use crate::sync::lock;

fn refuse_sequential(file: &MpiFile, what: &str) -> Result<()> {
    if !file.has_mode(file.mpi.numbers().mode_sequential) {
        return Ok(());
    }
    let text =
        format!("{what} of a file of MPI_MODE_SEQUENTIAL, which is accessed from the shared pointer on");
    Err(MpiError::new(Class::UnsupportedOperation, text))
}

/// The individual pointer before an access of this many etypes, which moves it on.
pub fn advance(file: &MpiFile, etypes: u64) -> Result<i64> {
    let mut position = lock(&file.position);
    let begin = *position;
    *position =
        i64::try_from(etypes).ok().and_then(|etypes| begin.checked_add(etypes)).ok_or_else(too_far)?;
    Ok(begin)
}

fn too_far() -> MpiError {
    MpiError::new(Class::Arg, "the pointer of the file would pass 2^63")
}

/// Where the individual pointer is.
pub fn position(file: &MpiFile) -> Result<i64> {
    refuse_sequential(file, "MPI_File_get_position")?;
    Ok(*lock(&file.position))
}

/// Moves the individual pointer.
pub fn seek(file: &MpiFile, offset: i64, whence: c_int) -> Result<()> {
    refuse_sequential(file, "MPI_File_seek")?;
    let mut position = lock(&file.position);
    *position = target(file, *position, offset, whence)?;
    Ok(())
}

/// Where a seek goes.
fn target(file: &MpiFile, current: i64, offset: i64, whence: c_int) -> Result<i64> {
    let numbers = file.mpi.numbers();
    let base = match whence {
        whence if whence == numbers.seek_set => 0,
        whence if whence == numbers.seek_cur => current,
        whence if whence == numbers.seek_end => {
            let view = file.view();
            let visible = view.visible_bytes(crate::sizes::size(file)? as u64);
            (visible / view.etype_bytes) as i64
        }
        other => return Err(MpiError::new(Class::Arg, format!("seek with the unknown whence {other}"))),
    };
    base.checked_add(offset).filter(|target| *target >= 0).ok_or_else(|| {
        MpiError::new(
            Class::Arg,
            format!("a seek by {offset} from {base} leads before the beginning of the file"),
        )
    })
}

/// The shared pointer before an access of this many etypes, which moves it on.
pub fn advance_shared(file: &MpiFile, etypes: u64) -> Result<i64> {
    let etypes = i64::try_from(etypes).map_err(|_| too_far())?;
    if etypes > 0 {
        file.has_moved_shared.store(true, Ordering::Release);
    }
    i64::try_from(file.file.fetch_add(etypes)?).map_err(|_| too_far())
}

/// Where this process's part of an ordered access begins: behind the parts of all processes of lower rank.
/// The last process moves the shared pointer, once for all.
pub fn advance_ordered(file: &MpiFile, etypes: u64) -> Result<i64> {
    let below = peers(&mut lock(&file.team))?.sum_below(etypes)?;
    let last = file.size - 1;
    let begin = match file.rank == last {
        true => below.checked_add(etypes).ok_or_else(too_far).and_then(|all| advance_shared(file, all)),
        false => Ok(0),
    };
    let begin = file.share(last, begin.map(|begin| begin as u64))?;
    i64::try_from(begin + below).map_err(|_| too_far())
}

/// Where the shared pointer is.
pub fn shared_position(file: &MpiFile) -> Result<i64> {
    refuse_sequential(file, "MPI_File_get_position_shared")?;
    advance_shared(file, 0)
}

/// Moves the shared pointer, collectively.
pub fn seek_shared(file: &MpiFile, offset: i64, whence: c_int) -> Result<()> {
    let numbers = file.mpi.numbers();
    file.same("MPI_File_seek_shared", &[offset, i64::from(whence)])?;
    file.in_first(|| {
        refuse_sequential(file, "MPI_File_seek_shared")?;
        let current = if whence == numbers.seek_cur { advance_shared(file, 0)? } else { 0 };
        let target = target(file, current, offset, whence)?;
        file.has_moved_shared.store(true, Ordering::Release);
        file.file.fetch_set(target as u64)?;
        Ok(0)
    })?;
    Ok(())
}

/// Moves the shared pointer to the beginning of a new view, collectively, if `has_moved` in any process.
pub fn reset_shared(file: &MpiFile, has_moved: bool) -> Result<()> {
    if !has_moved {
        return Ok(());
    }
    file.has_moved_shared.store(false, Ordering::Release);
    file.in_first(|| Ok(file.file.fetch_set(0)?)).map(|_| ())
}
