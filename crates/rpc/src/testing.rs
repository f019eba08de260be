//! What several tests need.

use weft_transport::{Link, MemoryFaults, MemoryHub};

/// A connection that nobody uses.
pub fn some_link() -> Box<dyn Link> {
    let (connector, _hub) = MemoryHub::new(MemoryFaults::default());
    Box::new(connector.connect().expect("the hub takes one connection"))
}
