//! Servers in this process, over the memory transport and over sockets, with a client that follows a script.

mod data;
mod explain;
mod names;
mod sessions;
mod sockets;
mod support;
