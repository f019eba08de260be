//! Looks for dead servers to be back, so that nobody who needs one has to, and says in the log what becomes of them.

use crate::fs::WeftFs;
use crate::trouble;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weft_client::{Client, DeadServer};

const STACK_BYTES: usize = 512 << 10;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a server may take to answer one.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// Probes as long as `fs` is there.
pub(crate) fn start(fs: &Arc<WeftFs>) {
    let client = fs.client().clone();
    let fs: Weak<WeftFs> = Arc::downgrade(fs);
    let probe = move || {
        let mut known = Vec::new();
        while let Some(fs) = fs.upgrade() {
            look(fs.client(), &mut known);
            drop(fs);
            std::thread::sleep(LOOK_EVERY);
        }
    };
    let thread = std::thread::Builder::new().name("weft-probe".into()).stack_size(STACK_BYTES);
    // Without it, those who need a dead server look for it themselves.
    if thread.spawn(probe).is_ok() {
        client.leave_probing_to_others();
    }
}

/// Probes all dead servers at once, and says which of them are new, or back.
fn look(client: &Client, known: &mut Vec<DeadServer>) {
    let dead = client.dead_servers();
    let among = |all: &[DeadServer], one: &DeadServer| all.iter().any(|other| other.server == one.server);
    dead.iter().filter(|one| !among(known, one)).for_each(trouble::is_dead);
    std::thread::scope(|scope| {
        for one in &dead {
            let probe = move || drop(client.probe(one, LOOK_WAIT));
            let thread = std::thread::Builder::new().name("weft-probe-one".into()).stack_size(STACK_BYTES);
            // Where no thread can be started, it is probed the next time.
            let _ = thread.spawn_scoped(scope, probe);
        }
    });
    let still = client.dead_servers();
    known.iter().chain(&dead).filter(|one| !among(&still, one)).fold(
        Vec::new(),
        |mut said: Vec<&str>, one| {
            if !said.contains(&one.server.as_str()) {
                trouble::is_back(one);
                said.push(&one.server);
            }
            said
        },
    );
    *known = still.into_iter().filter(|one| among(&dead, one)).collect();
}
