//! The servers of a cluster, as files and programs see them.

use weft_wire::Status;

use crate::error::{Error, ErrorKind};
use crate::inner::Inner;

impl Inner {
    /// The I/O server of this chain, which a layout names.
    pub(crate) fn io(&self, chain: u16) -> Result<usize, Error> {
        let session = self.session();
        if let Some(index) = session.chain_index(chain) {
            return Ok(index);
        }
        self.follow_chain(chain);
        session.chain_index(chain).ok_or_else(|| {
            let text = format!(
                "the file is on I/O server {chain}, which the cluster's map (version {}) does not have; weft server ls \
                 says which there are",
                session.map_version()
            );
            Error::new("connect", ErrorKind::Status(Status::Lost), text)
        })
    }
}
