//! What the kernel says of this host, and its random bytes.

use crate::error::{Error, ErrorKind};

/// Random bytes of the kernel's.
///
/// # Errors
/// [`ErrorKind::Local`] where it gives none.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES], Error> {
    let mut bytes = [0u8; BYTES];
    // SAFETY: the kernel fills a live buffer; so few bytes come whole or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
    if got == BYTES as isize {
        return Ok(bytes);
    }
    let error = std::io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Err(Error::new("connect", ErrorKind::Local(errno), format!("cannot get random bytes: {error}")))
}

/// The name of this host.
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the kernel writes at most the length given, less one for the end that is already there.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The kernel's boot identity; zeros where it cannot be had, which equals no server's.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0u8; 16];
    if digits.len() == 32 {
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            let digit = |ascii: u8| (ascii as char).to_digit(16).unwrap_or(0) as u8;
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
    }
    id
}
