//! What `WEFT_MPI_LOG=1` shows: lines on standard error, from each process.

use std::sync::OnceLock;

/// Whether the user asked for lines.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        std::env::var_os("WEFT_MPI_LOG").is_some_and(|value| !value.is_empty() && value != "0")
    })
}

/// Writes a line if the user asked for lines.
pub fn report(text: impl FnOnce() -> String) {
    if is_on() {
        eprintln!("weft-mpi[{}]: {}", std::process::id(), text());
    }
}
