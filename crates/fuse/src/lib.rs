//! Mounts a Weft file system through FUSE.
//!
//! [`mount()`] serves a mount until it is unmounted; [`umount()`] ends one. [`MountOptions`] says how. In the kernel's mount
//! table the source is the URL (`weft://host:port/path`) and the type `fuse.weft`.

mod attach;
mod background;
mod closing;
mod coherence;
mod directory;
mod ending;
mod forgetting;
mod fs;
mod kernel;
mod kernel_cache;
mod locks;
mod lookups;
mod metrics;
mod mount;
mod notify;
mod options;
mod outcome;
mod places;
mod probing;
mod read_ahead;
mod read_buffer;
mod refills;
mod set_id;
mod signals;
mod slow;
mod trouble;
mod umount;
mod unchanged;
mod wake;

pub use mount::mount;
pub use options::{CacheMode, MountError, MountOptions, RingUse};
pub use umount::{umount, umount_by_force, umount_lazy};
pub use weft_gateway::{IdMap, IdMapError, Identities, Squash};
