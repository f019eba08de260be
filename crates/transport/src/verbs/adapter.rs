//! A client's adapter, as its links see it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_verbs::{Fabric, VerbsError};

use super::counts::Transfers;
use super::envelope::Rejection;
use crate::error::LinkError;
use crate::registration::RegistrationCache;

/// An adapter that links were made over.
pub(super) struct Adapter<F: Fabric> {
    pub device: Arc<F::Device>,
    pub cache: RegistrationCache<F::Device>,
    pub transfers: Arc<Transfers>,
    /// Its registrations have no remote keys: each request binds windows.
    pub windows: bool,
}

impl<F: Fabric> Clone for Adapter<F> {
    fn clone(&self) -> Self {
        let Adapter { device, cache, transfers, windows } = self;
        Adapter {
            device: device.clone(),
            cache: cache.clone(),
            transfers: transfers.clone(),
            windows: *windows,
        }
    }
}

/// Of the seam's words, with the server's reason where it refused.
pub(super) fn connect_error(address: SocketAddr, error: VerbsError) -> LinkError {
    let text = match &error {
        VerbsError::Rejected { private_data, .. } => Rejection::text(private_data).to_string(),
        other => other.to_string(),
    };
    LinkError::Connect { peer: format!("server {address} over RDMA"), source: io::Error::other(text) }
}
