//! libweft: the C interface of the client library. `include/weft.h` documents every function.
//!
//! ```text
//!   C caller ──► extern "C" fn ──► guard::call ──► safe code over weft_client ──► servers
//!                                     │ error: errno, and its whole text for weft_last_error()
//!                                     └ panic: EIO; it never crosses into C
//! ```
//!
//! A handle is a pointer to a boxed value of ours; NULL is refused with `EBADF`. Pointers that are neither
//! NULL nor from this library are the caller's fault, as with libc.

mod access;
mod bytes;
mod directories;
mod files;
mod guard;
mod handles;
mod lists;
mod locks;
mod memory;
mod names;
mod pending;
mod shared;
mod types;

pub use access::*;
pub use bytes::*;
pub use directories::*;
pub use files::*;
pub use guard::{weft_last_error, weft_strerror, weft_version};
pub use handles::*;
pub use lists::*;
pub use locks::*;
pub use memory::*;
pub use names::*;
pub use pending::*;
pub use shared::*;
pub use types::*;
