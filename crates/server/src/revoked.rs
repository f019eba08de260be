//! Keys that are revoked, and the connections that end with their keys.
//!
//! ```text
//!   metadata server   its store has the list              ──SetRevoked──► I/O server   DIR/revoked-keys has the list
//!        │ put back from a copy: it asks first      ◄──Revoked────
//!        │ handshake: a revoked or expired key is refused                     │ the same
//!        └ guards of each thread: connections of such keys are closed         └ the same
//! ```

use crate::identity::Identity;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use weft_wire::keys::{id_from_text, id_text};

/// Name of the list in an I/O server's directory.
const REVOKED_FILE: &str = "revoked-keys";
/// First line of it.
const FIRST_LINE: &str = "weft-revoked-keys 1";
/// How often each thread looks whether a key in use has ended.
const LOOK: Duration = Duration::from_millis(250);

/// The ids of all revoked keys, shared by the threads of a server.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    ids: RwLock<BTreeSet<[u8; 16]>>,
    /// Where they are kept; `None`: the store of the metadata server does it.
    path: Option<PathBuf>,
}

impl Revoked {
    /// As kept in an I/O server's directory.
    ///
    /// # Errors
    /// The list is there and cannot be read.
    pub fn load(directory: &Path) -> io::Result<Revoked> {
        let path = directory.join(REVOKED_FILE);
        let ids = match fs::read_to_string(&path) {
            Ok(text) => parse(&text).ok_or_else(|| {
                let text = format!("{} is damaged; restore it, or remove it and restart the metadata server, which sends the list again", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        Ok(Revoked { ids: RwLock::new(ids), path: Some(path) })
    }

    /// All of them.
    pub fn ids(&self) -> Vec<[u8; 16]> {
        self.ids.read().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// From now on these are, too; for a list that is kept elsewhere.
    pub fn add(&self, ids: &BTreeSet<[u8; 16]>) {
        self.ids.write().unwrap_or_else(PoisonError::into_inner).extend(ids);
    }

    /// Whether a key is among them.
    pub fn contains(&self, id: &[u8; 16]) -> bool {
        self.ids.read().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// From now on these are all.
    ///
    /// # Errors
    /// They hold, but cannot be kept for the next start.
    pub fn set(&self, ids: impl IntoIterator<Item = [u8; 16]>) -> io::Result<()> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        let mut known = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if *known == ids {
            return Ok(());
        }
        *known = ids;
        match &self.path {
            Some(path) => save(path, &known),
            None => Ok(()),
        }
    }
}

fn parse(text: &str) -> Option<BTreeSet<[u8; 16]>> {
    let mut lines = text.strip_suffix("end\n")?.lines();
    (lines.next() == Some(FIRST_LINE)).then(|| lines.map(id_from_text).collect()).flatten()
}

/// Replaces the file as a whole, and makes it durable.
fn save(path: &Path, ids: &BTreeSet<[u8; 16]>) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let lines: String = ids.iter().map(|id| id_text(id) + "\n").collect();
    file.write_all(format!("{FIRST_LINE}\n{lines}end\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The connections of one thread that a key was shown on.
#[derive(Default)]
pub(crate) struct Guards {
    guarded: RefCell<HashMap<u64, Guarded>>,
    next: Cell<u64>,
    looking: Cell<bool>,
}

struct Guarded {
    identity: Identity,
    close: Box<dyn Fn()>,
    cause: Rc<Cell<Option<&'static str>>>,
}

/// A connection among the [`Guards`], until it is dropped.
pub(crate) struct Guard {
    guards: Rc<Guards>,
    number: u64,
    cause: Rc<Cell<Option<&'static str>>>,
}

impl Guard {
    /// Why the connection was closed, if its key has ended.
    pub fn cause(&self) -> Option<&'static str> {
        self.cause.get()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.guards.guarded.borrow_mut().remove(&self.number);
    }
}

impl Guards {
    /// Has `close` called when the key of `identity` ends.
    pub fn add(self: &Rc<Self>, identity: &Identity, close: impl Fn() + 'static) -> Guard {
        let number = self.next.replace(self.next.get() + 1);
        let cause = Rc::new(Cell::new(None));
        if identity.key().is_some() {
            let guarded =
                Guarded { identity: identity.clone(), close: Box::new(close), cause: cause.clone() };
            self.guarded.borrow_mut().insert(number, guarded);
        }
        Guard { guards: self.clone(), number, cause }
    }

    /// Looks again and again while there are such connections.
    pub fn keep_looking(self: &Rc<Self>, look: impl Fn(&Guards) + 'static) {
        if self.guarded.borrow().is_empty() || self.looking.replace(true) {
            return;
        }
        let guards = self.clone();
        weft_reactor::spawn(async move {
            while !guards.guarded.borrow().is_empty() {
                weft_reactor::sleep(LOOK).await;
                look(&guards);
            }
            guards.looking.set(false);
        });
    }

    /// Closes the connections whose keys have ended; `ended` says why, if one has.
    pub fn close_ended(&self, ended: impl Fn(&Identity) -> Option<&'static str>) {
        for guarded in self.guarded.borrow().values() {
            if guarded.cause.get().is_none()
                && let Some(cause) = ended(&guarded.identity)
            {
                guarded.cause.set(Some(cause));
                (guarded.close)();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_survives_a_restart_and_damage_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let revoked = Revoked::load(directory.path()).unwrap();
        assert!(!revoked.contains(&[1; 16]));
        revoked.set([[1; 16], [2; 16]]).unwrap();
        assert!(revoked.contains(&[1; 16]) && !revoked.contains(&[3; 16]));
        let again = Revoked::load(directory.path()).unwrap();
        assert!(again.contains(&[1; 16]) && again.contains(&[2; 16]) && !again.contains(&[3; 16]));
        again.set([]).unwrap();
        assert!(!Revoked::load(directory.path()).unwrap().contains(&[1; 16]));
        revoked.set([[7; 16]]).unwrap();
        let path = directory.path().join(REVOKED_FILE);
        let text = fs::read_to_string(&path).unwrap();
        for cut in 0..text.len() {
            fs::write(&path, &text[..cut]).unwrap();
            assert!(Revoked::load(directory.path()).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn damaged_lists_are_none() {
        let right = format!("{FIRST_LINE}\n{}\n{}\nend\n", id_text(&[1; 16]), id_text(&[0xab; 16]));
        assert_eq!(parse(&right).unwrap().len(), 2);
        weft_test_fuzz::run("revoked", &[right.into_bytes()], |bytes| {
            let _ = std::str::from_utf8(bytes).map(parse);
        });
    }
}
