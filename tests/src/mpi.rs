//! MPI libraries of this machine, and the MPI-IO programs of `tests/mpi` with each.
//!
//! ```no_run
//! use weft_tests::mpi::{Job, Mpi, Place};
//! let cluster = weft_tests::Cluster::start(4);
//! let job = Job::new(Mpi::DebianMpich, "types", &Place::Weft(&cluster));
//! job.run().expect_ok();
//! ```
//!
//! A program is compiled once, into `target/mpi/programs`. A job that hangs is ended, and says where each of its processes was.
//! `WEFT_TEST_MPI_OWN=1` runs the programs with each MPI's own MPI-IO on a local directory, which proves the programs.

mod constants;
mod jobs;
mod known_bugs;
mod library;

pub use constants::{Constant, constants, differences};
pub use jobs::{Ended, Job, Place};
pub use library::Mpi;

use std::path::PathBuf;

/// Whether the programs run with the MPI's own MPI-IO.
pub fn is_own() -> bool {
    std::env::var_os("WEFT_TEST_MPI_OWN").is_some()
}

/// The library that takes over `MPI_File_*`: next to `$WEFT_BIN`, else built from this workspace.
pub fn mpi_library() -> PathBuf {
    let name = "libweft_mpi.so";
    match std::env::var_os("WEFT_BIN") {
        Some(given) => PathBuf::from(given).with_file_name(name),
        None => crate::built(&["weft-mpi"], name),
    }
}

/// The directory with mpi4py's own tests, from its source package.
pub fn mpi4py_tests() -> PathBuf {
    library::wheels().join("mpi4py").join("test")
}
