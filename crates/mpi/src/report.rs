//! What `WEFT_MPI_LOG=1` shows: lines on standard error, from each process.

use std::io::Write;
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
        say(&format!("weft-mpi[{}]: {}", std::process::id(), text()));
    }
}

/// Writes a line on standard error at once, so that those of several processes do not run into each other.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
