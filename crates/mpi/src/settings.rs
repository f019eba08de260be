//! Group, hints and atomicity of an open file.

use crate::abi::Handle;
use crate::error::Result;
use crate::file::MpiFile;
use crate::sync::lock;

/// A new handle of the group of processes that opened the file.
pub fn group(file: &MpiFile) -> Result<Handle> {
    let mut group = Handle(0);
    // SAFETY: it is written.
    file.mpi.check("MPI_Comm_group", unsafe { (file.mpi.f.comm_group)(file.comm, &mut group) })?;
    Ok(group)
}

/// A new info with the hints that are in force.
pub fn info(file: &MpiFile) -> Result<Handle> {
    let entries = lock(&file.hints).entries();
    file.mpi.new_info(&entries)
}

/// Changes hints, collectively. The layout of a file that exists stays.
pub fn set_info(file: &MpiFile, info: Handle) -> Result<()> {
    let access = {
        let mut hints = lock(&file.hints);
        hints.set_info(file.mpi, info);
        *hints = hints.clone().in_force(&file.file.layout());
        hints.access()
    };
    file.file.set_access(access);
    Ok(())
}

/// Switches atomic mode, collectively.
pub fn set_atomicity(file: &MpiFile, is_atomic: bool) -> Result<()> {
    // Accesses from before it must not be under way in any process.
    file.mpi.barrier(file.comm)?;
    file.switch_atomic(is_atomic);
    Ok(())
}
