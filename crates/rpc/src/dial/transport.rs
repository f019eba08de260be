//! The list of transports that clients choose from.

use std::sync::Arc;

use super::rdma::Rdma;
use super::shm::Shm;
use super::tcp::Tcp;
use super::way::Way;
use crate::named;
use crate::rdma::RdmaSource;

macro_rules! transports {
    (|$source:ident| $($(#[doc = $doc:literal])* $transport:ident = $name:literal: $way:expr;)*) => {
        /// How messages and data travel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum Transport {
            /// Shared memory with servers on this host; with others RDMA where they and this host have it, else
            /// TCP.
            #[default]
            Auto,
            $($(#[doc = $doc])* $transport,)*
        }

        named!(Transport, "transport", Auto = "auto", $($transport = $name),*);

        /// All transports, those that `auto` prefers first.
        pub(super) fn ways($source: &Arc<RdmaSource>) -> Vec<(Transport, Box<dyn Way>)> {
            let mut ways = vec![$((Transport::$transport, Box::new($way) as Box<dyn Way>)),*];
            ways.sort_by_key(|(_, way)| way.rank());
            ways
        }
    };
}

// The C interface numbers transports by their places here.
transports! { |source|
    /// TCP with all.
    Tcp = "tcp": Tcp;
    /// Shared memory with all; connecting fails where a server is on another host.
    Shm = "shm": Shm;
    /// RDMA with all; connecting fails without it. Only the first question, for the cluster's map, takes the
    /// way that the URL names.
    Rdma = "rdma": Rdma::new(source);
}
