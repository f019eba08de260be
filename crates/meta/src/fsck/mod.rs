//! Checking a whole store while it is used, and repairing it.
//!
//! Most rules tie few records together and are judged at one of them, within one turn of the metadata thread.
//! Three need a count over all entries: how many lead to an inode, how many a directory has, and how many of
//! these are directories. An [`Audit`] counts them in pages, and every commit meanwhile is counted in where
//! the pages have passed already:
//!
//! ```text
//!   keys     i.. i.. i.. n.. n.. n.. | n.. n.. n..        a commit renames n(1,"a") to n(9,"b"):
//!            counted                 ^ cursor             below the cursor: one less; above: will be seen
//! ```
//!
//! Once the cursor is at the end the counts are exact at every moment, so that nothing that clients do
//! meanwhile looks like damage, and a finding can be judged again just before it is treated. Then all records
//! are judged in pages, in turns as short.
//!
//! A [treatment](crate::Namespace::treat) is one operation of the namespace: judged again, then one atomic batch, or
//! nothing. Whatever it leaves for another to repair is found by the next check: checks and treatments are
//! repeated until nothing is found. What has lost its name comes to `lost+found` in the root directory, as
//! `#` and its inode number.

mod audit;
mod counts;
mod damage;
mod data;
mod judge;
mod repair;
#[cfg(test)]
mod tests;

pub use audit::{Finding, Progress};
pub use damage::Damage;
pub use data::{FileState, Owner, SizeFound};
pub use repair::Treatment;

pub(crate) use counts::Audit;
