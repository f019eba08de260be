//! Keys of the terminal, one by one, while something is shown on it.

use std::io::{Error, IsTerminal, Result};
use std::mem::MaybeUninit;
use std::time::Instant;

/// Rows of a terminal that does not say how many it has.
const ROWS_DEFAULT: usize = 24;

/// Keys are read as they are pressed, until it is dropped. Ctrl-C is a key.
pub struct Keys {
    before: Option<libc::termios>,
}

impl Keys {
    /// From standard input; none where that is no terminal.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn read() -> Result<Keys> {
        if !std::io::stdin().is_terminal() {
            return Ok(Keys { before: None });
        }
        let mut before = MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: `before` is live and writable; all-zero bytes are a valid `termios`.
        let (result, before) = unsafe { (libc::tcgetattr(0, before.as_mut_ptr()), before.assume_init()) };
        if result != 0 {
            return Err(Error::last_os_error());
        }
        let mut now = before;
        now.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
        // SAFETY: `now` is live.
        if unsafe { libc::tcsetattr(0, libc::TCSANOW, &now) } != 0 {
            return Err(Error::last_os_error());
        }
        Ok(Keys { before: Some(before) })
    }

    /// The next key, if one is pressed before `until`.
    pub fn wait(&self, until: Instant) -> Option<u8> {
        let left = until.saturating_duration_since(Instant::now());
        if self.before.is_none() {
            std::thread::sleep(left);
            return None;
        }
        let mut waited = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is given.
        let ready = unsafe { libc::poll(&mut waited, 1, left.as_millis().min(i32::MAX as u128) as i32) };
        if ready <= 0 {
            return None;
        }
        let mut key = 0u8;
        // SAFETY: `key` is one byte.
        let read = unsafe { libc::read(0, (&raw mut key).cast(), 1) };
        // Its end is that of the program: nobody is there any more.
        Some(if read == 1 { key } else { b'q' })
    }

    /// Rows of the terminal.
    pub fn rows(&self) -> usize {
        // SAFETY: all-zero bytes are a valid `winsize`, and the call writes one.
        let size = unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            libc::ioctl(1, libc::TIOCGWINSZ, &mut size);
            size
        };
        if size.ws_row == 0 { ROWS_DEFAULT } else { size.ws_row.into() }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: `before` is live.
            unsafe { libc::tcsetattr(0, libc::TCSANOW, before) };
        }
    }
}
