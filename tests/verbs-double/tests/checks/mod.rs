//! What the pretended fabric does, in every mode of it. A check panics when something is not so.
//!
//! Each check gets a [`Site`], makes the connections that it needs, and leaves nothing behind.

mod all;
mod link;
mod memory;

pub use all::checks;
pub use link::{OPTIONS, Side, Site, connected, connected_through};
