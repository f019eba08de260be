//! Changes of others: what this mount and its kernel know of them is forgotten before they are acknowledged.

use super::{Coherence, PAGES_PATIENCE};
use crate::forgetting::Forgetting;
use crate::notify::{ALL_BYTES, Notes};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_wire::messages::{Change, changed};

/// How long names may wait for the kernel's locks before all names are forgotten instead.
const NAMES_PATIENCE: Duration = Duration::from_millis(2);
/// How long the kernel may take to make an inode known of which it was told.
const KNOWN_PATIENCE: Duration = Duration::from_secs(1);
const KNOWN_STEP: Duration = Duration::from_micros(200);

/// What else is to be forgotten when somebody has changed something: `None`: everything.
pub(crate) type OnChange = Box<dyn Fn(Option<(u64, bool)>) + Send + Sync>;

impl Coherence {
    /// Starts to watch. `on_change` is called for every change before it is acknowledged.
    pub(crate) fn start(self: &Arc<Self>, notes: Notes, on_change: OnChange) -> std::io::Result<()> {
        let notes = Arc::new(notes);
        let _ = self.notes.set(notes.clone());
        let _ = self.forgetting.set(Forgetting::start(&notes)?);
        let this = self.clone();
        self.watch.start(move |changes| this.forget(changes, &on_change))
    }

    fn forget(&self, changes: Option<&[Change]>, on_change: &OnChange) {
        let Some(changes) = changes else {
            self.forget_everything();
            return on_change(None);
        };
        let mut names = Vec::new();
        for change in changes {
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
        if !names.is_empty() && self.may_cache_names() {
            self.forget_names(&names);
        }
    }

    fn forget_inode(&self, ino: u64, data: bool) {
        let forget = self.nodes.lock(&ino).get_mut(&ino).map(|inode| inode.changed(data, Instant::now()));
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
        self.nodes.lock(&ino).get(&ino).is_some_and(|inode| inode.told_at().elapsed() < KNOWN_PATIENCE)
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
        if let Some(notes) = self.notes.get().filter(|_| self.may_cache_names()) {
            let _ = notes.all_names();
        }
    }
}
