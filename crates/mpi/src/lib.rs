//! MPI-IO on Weft for programs as they are: all functions on files of MPI, whichever MPI a program has.
//!
//! ```text
//!   program ── MPI_File_open("weft:/a") ──► libweft_mpi ──► weft-client ──► servers
//!      │                                        │ handles, datatypes, messages between processes
//!      └────────── MPI_Send, … ───────────► libmpi (MPICH, Open MPI, the ABI of MPI 5)
//!                                               ▲
//!              MPI_File_open("/local/b") ───────┘ passed on
//! ```
//!
//! The library is preloaded (`weft run`, `LD_PRELOAD`) or linked (`-lweft_mpi`). It exports the functions on
//! files ([`entry`]), is linked to no MPI, and finds the one of the process when it is first called
//! ([`find`]). One table for each family of MPIs has what differs between them ([`abi`]).
//!
//! A file of Weft's has a *shadow*: a file of the program's own MPI, opened on `/dev/null`, whose handle the
//! program gets. So conversions of handles, error handlers and Fortran work by themselves, and every
//! function that Weft does not offer meets a valid file.
//!
//! | step | module |
//! | --- | --- |
//! | is the name one of Weft's? | [`place`] |
//! | one open at the metadata server, whatever the number of processes | [`open`], [`close`] |
//! | an MPI datatype becomes one of `weft-layout`, as it is built, and is never flattened | [`types`] |
//! | what a view shows, and offsets in it | [`view`], [`view_calls`], [`pointers`] |
//! | every read and write | [`access`], [`job`] |
//! | reads and writes that go on: requests, split collectives | [`request`], [`split`] |
//! | conversion to external32 | [`external`] |
//! | choosing a way together, exchanging data | [`collective`], [`engine`], [`peers`], [`store`] |
//! | hints, counters | [`hints`], [`stats`] |
//! | making and freeing handles of the program's MPI | [`turns`] |
//!
//! No lock is held while processes wait for each other or for a server, but the program's own order of calls
//! on one file: two threads that use the individual pointer of one file take turns.

pub mod abi;
pub mod access;
pub mod clients;
pub mod close;
pub mod collective;
#[cfg(test)]
mod double;
pub mod engine;
pub mod entry;
pub mod error;
pub mod external;
pub mod file;
pub mod find;
pub mod functions;
mod guard;
pub mod hints;
pub mod job;
pub mod mpi;
pub mod open;
pub mod peers;
pub mod place;
pub mod pointers;
pub mod report;
pub mod request;
pub mod settings;
pub mod sizes;
pub mod split;
pub mod stats;
pub mod store;
pub mod sync;
pub mod turns;
pub mod types;
pub mod view;
pub mod view_calls;
