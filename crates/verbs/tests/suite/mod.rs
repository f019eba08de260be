//! What every fabric does, real or pretended: one suite for all of them. A check panics when something is not so.
//!
//! Each check gets a [`Site`], makes the connections that it needs, and leaves nothing behind.

mod checks;
mod link;
mod memory;

pub use checks::checks;
pub use link::Site;
