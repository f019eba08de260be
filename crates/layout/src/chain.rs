//! The I/O servers that hold the same data files.

use std::fmt;

/// The number of a chain. A layout names chains, and the map of the cluster says which servers are in each: so a file
/// stays where it is while servers come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub u16);

impl ChainId {
    /// The chain of a server in a cluster where each I/O server has one: the two have the same number.
    pub const fn of_single(server: u16) -> ChainId {
        ChainId(server)
    }

    /// The only server of this chain in such a cluster.
    pub const fn single_server(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
