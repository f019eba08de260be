//! The operations, by subject. Each is one function of [`Op`](crate::Op): it checks, then stages one batch.

pub(crate) mod append;
pub(crate) mod attr;
pub(crate) mod counter;
pub(crate) mod create;
pub(crate) mod garbage;
pub(crate) mod layout;
pub(crate) mod once;
pub(crate) mod paths;
pub(crate) mod quota;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod size;
pub(crate) mod small;
pub(crate) mod xattr;
