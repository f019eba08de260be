//! Packages of the programs under test.

use crate::mpi::mpi_library;
use crate::{c_library, expect_success, preload_library, weft_bin};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a package (`deb`, `rpm` or `tarball`) of what this test's profile has built. Returns the files: the package is the first.
pub fn package(kind: &str, to: &Path) -> Vec<PathBuf> {
    let (weft, _, _, _) = (weft_bin(), preload_library(), c_library(), mpi_library());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut make = Command::new(root.join("scripts/package.sh"));
    make.arg(kind)
        .env("BUILT", weft.parent().expect("it is in a directory"))
        .env("DIST", to)
        .env("PACK", "gzip")
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .current_dir(root);
    let output = make.output().unwrap_or_else(|error| panic!("{make:?}: {error}"));
    expect_success(&format!("{make:?}"), &output).lines().map(Into::into).collect()
}
