//! How a command ends when it fails: its exit code, and failures that were reported already.

use anyhow::Result;
use weft_cli_common::{Reported, output};

/// The command has reported its result and asks for this exit code.
#[derive(Debug, thiserror::Error)]
#[error("ended with {0}")]
pub struct Code(pub u8);

/// Counts failures while a command continues with the rest.
#[derive(Debug, Default)]
pub struct Failures {
    count: usize,
}

impl Failures {
    /// Reports one.
    pub fn report(&mut self, error: &anyhow::Error) {
        self.count += 1;
        eprintln!("weft: {}", output::error_text(error));
    }

    /// The value of a result. An error is reported.
    pub fn ok<T>(&mut self, result: Result<T, impl Into<anyhow::Error>>) -> Option<T> {
        result.map_err(|error| self.report(&error.into())).ok()
    }

    /// The command's result.
    pub fn result(self) -> Result<()> {
        if self.count == 0 { Ok(()) } else { Err(Reported.into()) }
    }
}
