//! The procedures, against a cluster in this process.

mod directories;
mod files;
mod known;
mod nested;
mod rfc;
mod rights;

use std::net::SocketAddr;

use nfs3_types::nfs3::{Nfs3Option, Nfs3Result, fattr3, nfs_fh3, nfsstat3, sattr3};

use super::*;
use crate::credential::Credential;
use crate::export::{ExportOptions, Rule};
use crate::network::Network;
use crate::target::Sender;
use crate::testing::Cluster;
use weft_gateway::Squash;
use weft_onc_server::Buffers;
use weft_reactor::{Reactor, ReactorOptions};
use weft_wire::messages::FileKind;
use weft_wire::security::Key;

/// A gateway without its network.
pub(super) struct Gateway {
    pub(super) files: Files,
}

pub(super) const USER: u32 = 1000;

pub(super) fn sender(uid: u32) -> Sender {
    let peer = SocketAddr::from(([127, 0, 0, 1], 700));
    Sender { peer, credential: Some(Credential::new(uid, uid, &[])) }
}

pub(super) fn root() -> Sender {
    sender(0)
}

fn rule(squash: Squash) -> Rule {
    let mut rule = Rule::for_clients(Network::ANY);
    rule.identities.squash = squash;
    rule
}

/// Runs `test` with a gateway that exports these directories.
pub(super) fn with_exports(cluster: &Cluster, exports: &[ExportOptions], test: impl AsyncFnOnce(Gateway)) {
    run(cluster.client(), &cluster.key, exports, test);
}

/// As [`with_gateway`], of a cluster that another thread has.
pub(super) fn with_client(client: Client, key: &Key, test: impl AsyncFnOnce(Gateway)) {
    run(client, key, &[export("/", Squash::None)], test);
}

fn run(client: Client, key: &Key, exports: &[ExportOptions], test: impl AsyncFnOnce(Gateway)) {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.run(async {
        let keys = HandleKeys::of_cluster(std::slice::from_ref(key));
        let files = Files::start(&client, exports, &keys).unwrap();
        let opens = files.opens.clone();
        test(Gateway { files }).await;
        opens.close_everything().await;
    });
}

pub(super) fn export(path: &str, squash: Squash) -> ExportOptions {
    ExportOptions { path: path.into(), rules: vec![rule(squash)] }
}

/// Runs `test` with a gateway that exports everything to everybody, root included.
pub(super) fn with_gateway(cluster: &Cluster, test: impl AsyncFnOnce(Gateway)) {
    with_exports(cluster, &[export("/", Squash::None)], test);
}

impl Gateway {
    /// The handle of an export's root.
    pub(super) async fn root(&self) -> Vec<u8> {
        let exports = self.files.exports.borrow().clone();
        // The longest path comes first.
        let export = exports.iter().last().unwrap();
        let ino = self.files.root_of(export).await.unwrap();
        bytes(&export.handle(&self.files.keys, ino, FileKind::Directory))
    }

    pub(super) async fn find(&self, dir: &[u8], name: &str) -> Result<(Vec<u8>, fattr3), nfsstat3> {
        match self.files.lookup(&root(), dir, name.as_bytes()).await {
            Nfs3Result::Ok(found) => Ok((bytes(&found.object), found.obj_attributes.unwrap())),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    pub(super) async fn attr(&self, object: &[u8]) -> Result<fattr3, nfsstat3> {
        match self.files.getattr(&root(), object).await {
            Nfs3Result::Ok(found) => Ok(found.obj_attributes),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }
}

pub(super) fn bytes(handle: &nfs_fh3) -> Vec<u8> {
    handle.data.to_vec()
}

pub(super) fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

/// The status of a result.
pub(super) fn status<T, E>(result: &Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => *status,
    }
}
