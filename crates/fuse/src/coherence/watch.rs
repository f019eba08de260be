//! The watch: changes of others come in its replies, and are forgotten here before the next one acknowledges them.

use super::{Coherence, PAGES_PATIENCE};
use crate::forgetting::Forgetting;
use crate::notify::{ALL_BYTES, Notes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_wire::messages::{Change, WatchReply, changed};

/// How long names may wait for the kernel's locks before all names are forgotten instead.
const NAMES_PATIENCE: Duration = Duration::from_millis(2);
/// How long the kernel may take to make an inode known of which it was told.
const KNOWN_PATIENCE: Duration = Duration::from_secs(1);
const KNOWN_STEP: Duration = Duration::from_micros(200);
/// Pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// What else is to be forgotten when somebody has changed something: `None`: everything.
pub(crate) type OnChange = Box<dyn Fn(Option<(u64, bool)>) + Send + Sync>;

impl Coherence {
    /// Starts to watch. `on_change` is called for every change before it is acknowledged.
    pub(crate) fn start(self: &Arc<Self>, notes: Notes, on_change: OnChange) -> std::io::Result<()> {
        let notes = Arc::new(notes);
        let _ = self.notes.set(notes.clone());
        let _ = self.forgetting.set(Forgetting::start(&notes)?);
        let this = self.clone();
        std::thread::Builder::new().name("weft-watch".into()).spawn(move || this.watch(&on_change))?;
        Ok(())
    }

    /// Believes nothing any more, and tells the server so.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.standing.store(0, Ordering::SeqCst);
        // If the server does not hear of it, the lease ends by itself.
        let _ = self.client.end_watch();
    }

    fn watch(&self, on_change: &OnChange) {
        let (mut epoch, mut acknowledged, mut at_once) = (0, 0, true);
        // Whether all that was told until now has been heard: what the server has answered may be lost with an error.
        let mut heard_all = true;
        while !self.ending.load(Ordering::SeqCst) {
            let arrivals = self.client.meta_arrivals();
            let asked_at = self.begin.elapsed().as_nanos() as u64;
            match self.client.watch(epoch, acknowledged, at_once) {
                Ok(reply) => {
                    self.hear(&reply, on_change);
                    if std::mem::replace(&mut heard_all, true) {
                        self.watched_at.store(asked_at, Ordering::SeqCst);
                    } else {
                        // The next one is asked at once, and counts.
                        (epoch, acknowledged) = (reply.epoch, reply.last);
                        continue;
                    }
                    (epoch, acknowledged) = (reply.epoch, reply.last);
                    // The server knows this client as one that watches; but is it the one that others of its requests went to?
                    let stands =
                        arrivals == self.client.meta_arrivals() && !self.ending.load(Ordering::SeqCst);
                    self.standing.store(if stands { arrivals + 1 } else { 0 }, Ordering::SeqCst);
                    at_once = !stands;
                }
                Err(_) => {
                    heard_all = false;
                    self.standing.store(0, Ordering::SeqCst);
                    at_once = true;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn hear(&self, reply: &WatchReply, on_change: &OnChange) {
        if !reply.reset && reply.changes.is_empty() {
            return;
        }
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        if reply.reset {
            self.forget_everything();
            return on_change(None);
        }
        let mut names = Vec::new();
        for change in &reply.changes {
            if change.what & (changed::ATTRIBUTES | changed::DATA) != 0 {
                let data = change.what & changed::DATA != 0;
                if let Some(directory) = self.directories.lock(&change.ino).get_mut(&change.ino) {
                    directory.attributes_are_over();
                }
                on_change(Some((change.ino, data)));
                self.forget_inode(change.ino, data);
            }
            if change.what & (changed::NAME | changed::ALL_NAMES) != 0 {
                if let Some(directory) = self.directories.lock(&change.ino).get_mut(&change.ino) {
                    directory.names = None;
                }
                names.push(change);
            }
        }
        if !names.is_empty() && self.names_may_be_believed() {
            self.forget_names(&names);
        }
    }

    fn forget_inode(&self, ino: u64, data: bool) {
        let forget = self.nodes.lock(&ino).get_mut(&ino).map(|belief| belief.changed(data, Instant::now()));
        let Some(forget) = forget.filter(|forget| forget.attributes || forget.pages) else { return };
        let Some(notes) = self.notes.get() else { return };
        let node = self.node(ino);
        // One note for attributes and pages: each makes answers that are under way worthless to the kernel.
        let mut known = if forget.pages {
            self.forget_pages(ino, ALL_BYTES, PAGES_PATIENCE)
        } else {
            notes.inode(node, None)
        };
        while !known && self.was_told_lately(ino) {
            std::thread::sleep(KNOWN_STEP);
            known = notes.inode(node, None);
        }
    }

    fn was_told_lately(&self, ino: u64) -> bool {
        self.nodes.lock(&ino).get(&ino).is_some_and(|belief| belief.told_at().elapsed() < KNOWN_PATIENCE)
    }

    fn forget_names(&self, names: &[&Change]) {
        let (Some(notes), Some(forgetting)) = (self.notes.get(), self.forgetting.get()) else { return };
        let at_once = names.iter().any(|name| name.what & changed::ALL_NAMES != 0 || self.is_busy(name.ino));
        let one_by_one = names.iter().map(|name| (self.node(name.ino), name.name.clone()));
        if at_once || !forgetting.names(one_by_one, NAMES_PATIENCE) {
            let _ = notes.all_names();
        }
    }

    fn forget_everything(&self) {
        for ino in self.directories.keys() {
            if let Some(directory) = self.directories.lock(&ino).get_mut(&ino) {
                directory.attributes_are_over();
                directory.names = None;
            }
        }
        for ino in self.nodes.keys() {
            self.forget_inode(ino, true);
        }
        if let Some(notes) = self.notes.get().filter(|_| self.names_may_be_believed()) {
            let _ = notes.all_names();
        }
    }
}
