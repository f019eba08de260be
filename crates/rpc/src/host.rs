//! Random bytes of the kernel, with this library's error; and its clock.

use crate::error::{Error, ErrorKind};

pub use weft_host::since_boot;

/// Random bytes of the kernel.
///
/// # Errors
/// [`ErrorKind::Local`] where it gives none.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES], Error> {
    weft_host::random().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Error::new("connect", ErrorKind::Local(errno), format!("cannot get random bytes: {error}"))
    })
}
