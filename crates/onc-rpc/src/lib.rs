//! Remote procedure calls as NFS uses them (ONC RPC, RFC 5531), as bytes: no I/O, no clock.
//!
//! ```text
//!   TCP:  │ mark: last, bytes │ fragment │ mark │ fragment │ …      a record is one message     record.rs
//!
//!   call:  xid · 0 · 2 · program · version · procedure · credential · verifier · arguments     call.rs
//!   reply: xid · 1 · accepted or denied · …                             · results              reply.rs
//! ```
//!
//! Over RDMA a header with lists of memory takes the place of the mark (rdma.rs). Three programs that go with
//! NFS have their bodies here: the port mapper, the lock manager and the status monitor (portmap.rs, nlm.rs,
//! nsm.rs).
//!
//! Numbers are big-endian words of four bytes; what is not a multiple of four is padded with zeros (XDR, RFC
//! 4506: [`xdr`]). The results of a procedure and its arguments are the business of who serves or calls it.
//!
//! Every length is checked against what is there before anything is allocated.

pub mod auth;
pub mod call;
pub mod nlm;
pub mod nsm;
pub mod portmap;
pub mod rdma;
pub mod record;
pub mod reply;
pub mod xdr;

pub use auth::{AuthStat, AuthSys, Credential};
pub use call::{CallError, CallHeader};
pub use reply::{RPC_VERSION, Refusal};
