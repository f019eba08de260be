//! The store under the namespace: what it needs of one (`seam.rs`), and the two that there are.
//!
//! ```text
//!   seam.rs   Engine, Syncer        batch.rs   Batch: the writes of one commit
//!     ├─ mem.rs                     in memory, for tests and the simulator
//!     └─ fjall.rs                   the embedded store
//!          creation, tables         making it; its directories, checked before it is opened
//!          journal, record          its journals, and how far the newest is written and synced
//!          syncer, space            durability on another thread; room on the disk
//! ```

mod batch;
mod creation;
mod fjall;
mod journal;
mod mem;
mod record;
mod seam;
mod space;
mod syncer;
mod tables;

pub use self::fjall::{FjallEngine, FjallOptions};
pub use batch::Batch;
pub use mem::MemEngine;
pub use seam::{CommitSeq, Engine, Pair, Room, Scan, Syncer};
