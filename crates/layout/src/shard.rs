//! The metadata server that owns an inode: the shard in the top 12 bits of its number. There is one shard today, 0.
//!
//! ```text
//!   bit  63 ──── 52 51 ─────────────────── 0
//!        │  shard  │  number in the shard  │     shard 0: inode 7 is 0x0000000000000007
//!        └─────────┴───────────────────────┘     shard 3: inode 7 is 0x0030000000000007
//! ```
//!
//! A shard hands out its own numbers. Names belong to the shard of their directory.

/// The bits of a number within its shard.
pub const NUMBER_BITS: u32 = 52;

/// The shard of the root directory. Its owner also keeps what exists once in the cluster.
pub const ROOT_SHARD: u16 = 0;

/// The shard that owns an inode.
pub const fn shard_of(ino: u64) -> u16 {
    (ino >> NUMBER_BITS) as u16
}

/// The smallest number of a shard, which no inode has.
pub const fn first_ino_of(shard: u16) -> u64 {
    (shard as u64) << NUMBER_BITS
}
