//! The crate against models that do everything one byte at a time.

mod datatype;
mod generate;
mod partition;
mod regions;
mod stream;
mod striping;
mod view;
