//! Group, hints and atomicity of an open file.

use crate::abi::Handle;
use crate::error::Result;
use crate::file::{MpiFile, peers};
use crate::hints::{HINTS_BYTES_MAX, Hints};
use crate::sync::lock;

/// A new handle of the group of processes that opened the file.
pub fn group(file: &MpiFile) -> Result<Handle> {
    let mut group = Handle(0);
    let comm = peers(&mut lock(&file.team))?.comm();
    // SAFETY: it is written.
    file.mpi.check("MPI_Comm_group", unsafe { (file.mpi.f.comm_group)(comm, &mut group) })?;
    Ok(group)
}

/// A new info with the hints that are in force.
pub fn info(file: &MpiFile) -> Result<Handle> {
    let entries = lock(&file.hints).entries();
    file.mpi.new_info(&entries)
}

/// Changes hints, collectively. Those of process 0 count, so that all processes choose alike. The layout of a
/// file that exists stays.
pub fn set_info(file: &MpiFile, info: Handle) -> Result<()> {
    let hints = with_info(file, info);
    let mut text = hints.to_text().into_bytes();
    text.resize(HINTS_BYTES_MAX, b'\n');
    peers(&mut lock(&file.team))?.bcast(&mut text, 0)?;
    let hints = Hints::from_text(&String::from_utf8_lossy(&text)).in_force(&file.file.layout());
    file.file.set_access(hints.access());
    *lock(&file.hints) = hints;
    Ok(())
}

/// Whether an info changes hints of this process.
pub fn changes(file: &MpiFile, info: Handle) -> bool {
    with_info(file, info).in_force(&file.file.layout()) != *lock(&file.hints)
}

fn with_info(file: &MpiFile, info: Handle) -> Hints {
    let mut hints = lock(&file.hints).clone();
    hints.set_info(file.mpi, info);
    hints
}

/// Switches atomic mode, collectively.
pub fn set_atomicity(file: &MpiFile, is_atomic: bool) -> Result<()> {
    // Accesses from before it must not be under way in any process.
    file.same("MPI_File_set_atomicity", &[i64::from(is_atomic)])?;
    file.switch_atomic(is_atomic);
    Ok(())
}
