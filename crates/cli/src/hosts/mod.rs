//! A cluster on several hosts, started and stopped from one of them over ssh.
//!
//! ```text
//!   DIR/                   on the host where `weft up --hosts` is called
//!     weft.toml, cluster.key, client.key      the cluster file of all servers, and keys
//!     hosts.json                              which hosts there are, and how they are reached
//!   DIR/HOST/              on each host: a directory of `weft up`, for its servers
//!     weft.toml, cluster.key, client.key      copies
//!     io0/, log/, run.json                    storages, logs, processes
//!     bin/weft                                the program, where the host does not have this version
//! ```
//!
//! The host's name is part of the path so that a directory that all hosts share works too.
//!
//! ```text
//!   up     probe all ─► cluster file and keys ─► the metadata server's host ─► the other hosts ─► mounts
//!   down   unmount everywhere ─► stop everywhere [─► remove]
//! ```
//!
//! A host that is named in addition gets an I/O server: the cluster grows.
//!
//! Nothing is changed before all hosts have answered. Whatever fails afterwards is undone: a new cluster is removed, one that was
//! complete before is stopped.

mod down;
mod names;
mod place;
mod probe;
mod record;
mod remote;
mod scripts;
mod up;

pub use down::{Down, down};
pub use names::{Hosts, parse};
pub use place::Wanted;
pub use record::Record;
pub use remote::ssh_words;
pub use scripts::Removal;
pub use up::{statuses, up};
