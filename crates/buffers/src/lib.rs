//! Memory for data on its way: bounded, page-aligned, fair among those who use it. Servers have it for units
//! of transfers; it depends on nothing of Weft's, so that a client may have it too.
//!
//! Each thread has one pool, a single mapping cut up by the buddy method: a block of
//! 2 MiB is halved until a half would be too small, and halves that are free again are joined.
//!
//! ```text
//!   |      2 MiB, given      |  512K given  | 256K | 256K given |       1 MiB, free      | ...
//! ```
//!
//! **Fairness.** The bound on what one client may hold moves with what is free (Choudhury and Hahne,
//! "Dynamic queue length thresholds for multiple bursty traffic classes in shared-memory switches",
//! IEEE/ACM Transactions on Networking 6(2), 1998): a client may hold at most [`SHARE_OF_FREE`] times
//! the bytes that nobody holds. A client alone thus gets two thirds of the pool, `n` busy clients get
//! `2/(2n+1)` each, and a newcomer always finds a part free. Within that, waiters are served in order;
//! one that is over its share is passed by.
//!
//! **Short memory.** A buffer may be smaller than was asked for, down to 64 KiB, when the client's
//! share or the free memory is short: a transfer goes on in smaller units instead of waiting.
//!
//! **No deadlock.** A task that holds a buffer must not wait for another one: it asks with
//! [`BufferPool::try_take_more`], which never waits. Then every waiter holds nothing, and whoever holds
//! something can finish and give it back.
//!
//! **Zones.** Buffers for RDMA are registered memory, pre-registered and reused (IB 3.3.2). There, zones are
//! lists of buffers of one size each, 64 KiB to 2 MiB; a transfer takes from the list of its size, then of a
//! larger one, and is cut into smaller ones where there is none. The buddy method does the same and moves
//! memory between the lists: the smallest free block that fits, else half of a larger one, else less than was
//! asked for; joining the halves undoes the fragments. What is registered is the block of 2 MiB, the *zone*:
//! with [`BufferPool::keep_zones`] memory comes and goes by whole zones, and a [`ZoneKeeper`] is notified
//! before a zone is used and before it goes.
//!
//! ```text
//!   zone 0, kept from the start │ zone 1, begun when 0 was full │ zone 2, ended after a long idleness │ zone 3, never used
//! ```

mod mapping;
mod pool;

pub use mapping::Mapping;
pub use pool::{Buffer, BufferPool, PoolStats, SHARE_OF_FREE, ZoneKeeper};

/// Smallest buffer that a [`BufferPool`] gives, in bytes.
pub const BUFFER_BYTES_MIN: usize = 64 << 10;

/// Largest buffer that a [`BufferPool`] gives, in bytes. It is the longest unit of a pipelined transfer: long
/// enough that a unit's fixed costs are under a percent.
pub const BUFFER_BYTES_MAX: usize = 2 << 20;

const _: () = assert!(BUFFER_BYTES_MIN.is_power_of_two() && BUFFER_BYTES_MAX.is_power_of_two());
