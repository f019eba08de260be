//! A cluster on this machine: one child process per server, and a file that records them.
//!
//! ```text
//!   DIR/weft.toml      the cluster file: servers, addresses, defaults
//!   DIR/cluster.key    the secret; DIR/client.key, issued with it, is this host's key
//!   DIR/meta0, io0 …   the servers' data
//!   DIR/log/io0.log    each server's log
//!   DIR/run.json       process ids and start times while the cluster runs
//! ```
//!
//! Servers run `weft serve` of this program, or of another one. In the foreground they die with their parent,
//! however it ends. Detached servers have a session of their own. So does their supervisor, the `weft up`
//! that started them and stays in the background. If the supervisor is killed the servers keep running, and
//! the next `weft up --detach` supervises them.
//!
//! ```text
//!   start       starting servers that do not run           survey      which servers run
//!   directory   cluster file, keys, storages               readiness   whether servers are ready
//!   cluster     the processes of this process              locking     the lock of the directory
//!   run_state   run.json: what should run, what runs       holder      which process holds a server's lock
//!   supervise   restarting servers that die                stop        weft down
//!   gateway     adding an NFS gateway
//!   hand_over   asking the supervisor to start servers     background  continuing in the background
//! ```

mod background;
mod cluster;
mod directory;
mod gateway;
mod hand_over;
mod holder;
mod locking;
mod options;
mod ports;
mod process;
mod readiness;
mod run_state;
mod signals;
mod start;
mod stop;
mod supervise;
mod survey;

pub use background::{Background, Side, fork, log_to};
pub use cluster::{LocalCluster, News, STOP_TIMEOUT, end_with_parent};
pub use directory::{CLUSTER_FILE, NEW_FILE, PORT_DEFAULT, free_bytes, install_client_key, url_of};
pub use hand_over::hand_over;
pub use locking::lock_to_edit;
pub use options::{Lifetime, StartOptions};
pub use ports::{PortLock, free_address, is_elsewhere};
pub use process::{Ending, ProcessHandle, ProcessId};
pub use readiness::{OPENING, OPENING_EVERY};
pub use run_state::{Found, RunState, RunningServer, find};
pub use signals::BlockedSignals;
pub use start::{is_supervised, restart_one, start, start_one};
pub use stop::{Down, stop};
pub use supervise::supervise;
