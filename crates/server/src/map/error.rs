//! Why a map cannot become what was asked for.

/// Why a map cannot become what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The cluster file has lost a server.
    #[error(
        "the cluster file has {listed} I/O servers, but {name} (I/O server {id}) {why}: put it back into the file, at its place"
    )]
    Missing {
        /// How many I/O servers there are in the file.
        listed: usize,
        /// The one that is missing.
        name: String,
        /// Its id.
        id: u16,
        /// What binds it to the cluster.
        why: &'static str,
    },
    /// Servers have changed places in the cluster file.
    #[error(
        "the cluster file has {name} as I/O server {is}, and it is I/O server {was}: the order of servers is part of where files \
         are; put it back to its place"
    )]
    Reordered {
        /// Which server.
        name: String,
        /// Its id.
        was: u16,
        /// Its place in the file.
        is: u16,
    },
    /// A server of this name is there.
    #[error(
        "there is a server {name} at {address} already; choose another name, or move it: weft server move"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where that server is.
        address: String,
    },
    /// Another server is at this address.
    #[error("{address} is the address of {name}; give each server its own")]
    AddressTaken {
        /// The address.
        address: String,
        /// Whose it is.
        name: String,
    },
    /// No server has this name.
    #[error("the cluster has no server {name}; it has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// No server of the map has this id.
    #[error(
        "the map of the metadata server has no I/O server {id}: tell it of the server (weft help cluster)"
    )]
    NoSuchId {
        /// The id.
        id: u16,
    },
    /// What would come of it is no map.
    #[error("the map of the cluster cannot become that: {0}")]
    Unfit(String),
}

impl MapError {
    /// An I/O server that holds data is not in the file any more, which has `listed`.
    pub(crate) fn lost(listed: usize, name: &str, id: u16) -> MapError {
        MapError::Missing { listed, name: name.to_owned(), id, why: "holds data of this cluster" }
    }
}
