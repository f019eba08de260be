//! Servers in this process, over the memory transport, over RDMA that is only pretended, and over sockets, with a client that
//! follows a script.

/// Makes tests of functions over a way to the server.
macro_rules! over_all_ways {
    ($($test:ident)*) => {
        over_all_ways!(@way memory Memory: $($test)*);
        over_all_ways!(@way rdma Pretended: $($test)*);
    };
    (@way $module:ident $way:ident: $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test::<crate::tests::ways::$way>();
            })*
        }
    };
}

mod calls;
mod data;
mod explain;
mod failure;
mod identities;
mod locks;
mod maps;
mod names;
mod sessions;
mod sockets;
mod storages;
mod support;
mod ways;

pub(crate) use support::{config, hello_of_a_server, io_part, shared};
