//! Failures in words of users: what could not be done, the typed path, and why.

use crate::place::WeftPath;
use std::fmt;
use weft_client::Error;

/// A failure of the client library that names what the user asked for, and not what the library did for it.
#[derive(Debug, thiserror::Error)]
pub struct Failed {
    what: String,
    /// The library's error.
    pub error: Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.error.reason())
    }
}

/// Results of the client library.
pub trait Told<T> {
    /// Says that `what` was not done to a file: "cannot remove weft:/a: no such file or directory".
    fn told(self, what: &str, place: &WeftPath) -> anyhow::Result<T>;

    /// The same, where more than one path is involved: "cannot …".
    fn told_as(self, what: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T> Told<T> for weft_client::Result<T> {
    fn told(self, what: &str, place: &WeftPath) -> anyhow::Result<T> {
        self.told_as(|| format!("{what} {}", place.typed()))
    }

    fn told_as(self, what: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| Failed { what: what(), error }.into())
    }
}

/// The error of the client library behind a failure.
pub fn cause(error: &anyhow::Error) -> Option<&Error> {
    error.downcast_ref::<Error>().or_else(|| Some(&error.downcast_ref::<Failed>()?.error))
}
