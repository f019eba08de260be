//! Memory windows that are bound again and again: to make one costs a system call, to bind it a work request.

use weft_verbs::{Device, VerbsError, Window};

/// Windows without a valid key that are kept.
const KEPT: usize = 64;

/// Windows of an adapter that have no valid key.
pub struct FreeWindows<D: Device> {
    free: Vec<D::Window>,
}

impl<D: Device> Default for FreeWindows<D> {
    fn default() -> Self {
        FreeWindows { free: Vec::new() }
    }
}

impl<D: Device> FreeWindows<D> {
    /// A window, and the key that its next bind makes valid.
    ///
    /// # Errors
    /// None is free, and the adapter has no more.
    pub fn take(&mut self, device: &D) -> Result<(u32, D::Window), VerbsError> {
        let mut window = self.free.pop().map_or_else(|| device.window(), Ok)?;
        Ok((window.next_key(), window))
    }

    /// Takes back one whose key has ended.
    pub fn give_back(&mut self, window: D::Window) {
        if self.free.len() < KEPT {
            self.free.push(window);
        }
    }

    /// Lets go of all of them.
    pub fn clear(&mut self) {
        self.free.clear();
    }
}
