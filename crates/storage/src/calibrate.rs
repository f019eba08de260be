//! Measuring the [`CostModel`] of a server in its own directory, and keeping it there.
//!
//! ```text
//!   DIR/cost-model.toml     what was measured: text, see docs/formats.md
//!   DIR/data/calibration    scratch file, without a name as soon as it is open, so gone after a crash too
//! ```
//!
//! At the first start the model is measured before the server serves: a fraction of a second, once in a
//! directory's life, and then every request is planned with what holds here. Servers whose directories
//! lie side by side on one file system would disturb each other: they measure one at a time (a lock on the
//! directory above), and one that finds a fresh model next door takes that.
//!
//! The module `measure` does the measuring.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cost::{CostModel, CurrentModel, Curve, CurveError};
use crate::directory::DATA_DIRECTORY;
use crate::measure::measure;

/// Name of the stored model in a server's directory.
pub const MODEL_FILE: &str = "cost-model.toml";
/// The version of its format.
pub const MODEL_VERSION: u32 = 1;

/// How long a server waits for its neighbours to measure, before it measures at the same time.
const TURN_TIME_MAX: Duration = Duration::from_secs(3);
/// A neighbour's model is taken if it is not older, in seconds.
const NEIGHBOUR_AGE_MAX_S: i64 = 3600;
/// Directories looked at beside one's own.
const NEIGHBOURS_MAX: usize = 64;

/// Why there is no stored model to go by.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It was never measured here.
    #[error("there is none yet")]
    Missing,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is no model, or one that makes no sense.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Another version wrote it.
    #[error("it has format version {found}, not {MODEL_VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It was measured with, or without, io_uring, and the server now runs the other way.
    #[error("it was measured with another disk engine")]
    Engine,
}

/// Where a server's model comes from.
#[derive(Debug)]
pub enum Origin {
    /// Stored at an earlier start.
    Stored,
    /// Measured now, in this time.
    Measured(Duration),
    /// Measured by the server in this directory, on the same file system.
    Neighbour(PathBuf),
    /// Not measured: the defaults are used.
    Default(io::Error),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Stored => f.write_str("the cost model of an earlier start is used"),
            Origin::Measured(time) => {
                write!(f, "measured what accesses cost here, in {} ms", time.as_millis())
            }
            Origin::Neighbour(path) => {
                write!(f, "took the cost model of {}, on the same file system", path.display())
            }
            Origin::Default(error) => {
                write!(f, "cannot measure what accesses cost here, and goes by defaults: {error}")
            }
        }
    }
}

/// A server's cost model with the place where it is measured and kept. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    /// What the server goes by.
    pub model: CurrentModel,
    place: Option<Arc<Place>>,
}

#[derive(Debug)]
struct Place {
    directory: PathBuf,
    with_ring: bool,
    /// Held while it is measured.
    measuring: Mutex<()>,
}

/// How a [`Calibration`] began.
#[derive(Debug)]
pub struct Begun {
    /// Where the model comes from.
    pub origin: Origin,
    /// Why the stored model is not used, unless there was none.
    pub rejected: Option<LoadError>,
    /// Why the model was not stored, if so: the next start measures again.
    pub unsaved: Option<io::Error>,
}

impl Calibration {
    /// Defaults, for data that is in no directory: nothing can be measured.
    pub fn fixed() -> Calibration {
        Calibration::default()
    }

    /// The model of an open storage directory: the stored one, a fresh one of a neighbour, or one measured now,
    /// which takes up to a second or so. `with_ring` says that reads wait through an io_uring.
    pub fn begin(directory: &Path, with_ring: bool) -> (Calibration, Begun) {
        let place = Place { directory: directory.to_path_buf(), with_ring, measuring: Mutex::new(()) };
        let (model, begun) = match load(directory, with_ring) {
            Ok(model) => (model, Begun { origin: Origin::Stored, rejected: None, unsaved: None }),
            Err(why) => {
                let _turn = turn(directory);
                let found = neighbour(directory, with_ring).map(Ok);
                let (model, origin) = match found.unwrap_or_else(|| measured(directory, with_ring)) {
                    Ok(found) => found,
                    Err(error) => (CostModel::default(), Origin::Default(error)),
                };
                let measured = !matches!(origin, Origin::Default(_));
                let unsaved = if measured { save(directory, with_ring, &model).err() } else { None };
                let rejected = (!matches!(why, LoadError::Missing)).then_some(why);
                (model, Begun { origin, rejected, unsaved })
            }
        };
        (Calibration { model: CurrentModel::new(model), place: Some(Arc::new(place)) }, begun)
    }

    /// Measures anew, stores the result and goes by it. Blocks for up to a few seconds: for a thread that serves
    /// nobody.
    ///
    /// # Errors
    /// Of the local file system; the present model then stays. [`io::ErrorKind::Unsupported`] if the data is in no
    /// directory, [`io::ErrorKind::WouldBlock`] while another measurement is under way.
    pub fn measure_anew(&self) -> io::Result<()> {
        let place = self.place.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let _measuring = match place.measuring.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(held) => held,
        };
        let _turn = turn(&place.directory);
        let (model, _) = measured(&place.directory, place.with_ring)?;
        save(&place.directory, place.with_ring, &model)?;
        self.model.replace(model);
        Ok(())
    }
}

/// The file's form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    measured_s: i64,
    io_uring: bool,
    page_fault_ns: u64,
    page_fault_write_ns: u64,
    new_page_ns: u64,
    lock_ns: u64,
    curves: StoredCurves,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCurves {
    read_cached: Vec<(u64, u64)>,
    read_device: Vec<(u64, u64)>,
    write_cached: Vec<(u64, u64)>,
    write_device: Vec<(u64, u64)>,
    copy: Vec<(u64, u64)>,
    mapped_read: Vec<(u64, u64)>,
    mapped_write: Vec<(u64, u64)>,
    sync: Vec<(u64, u64)>,
}

impl Stored {
    fn of(model: &CostModel, io_uring: bool) -> Stored {
        let points = |curve: &Curve| curve.points().to_vec();
        Stored {
            version: MODEL_VERSION,
            measured_s: model.measured_s,
            io_uring,
            page_fault_ns: model.page_fault_ns,
            page_fault_write_ns: model.page_fault_write_ns,
            new_page_ns: model.new_page_ns,
            lock_ns: model.lock_ns,
            curves: StoredCurves {
                read_cached: points(&model.read_cached),
                read_device: points(&model.read_device),
                write_cached: points(&model.write_cached),
                write_device: points(&model.write_device),
                copy: points(&model.copy),
                mapped_read: points(&model.mapped_read),
                mapped_write: points(&model.mapped_write),
                sync: points(&model.sync),
            },
        }
    }

    fn model(self) -> Result<CostModel, CurveError> {
        Ok(CostModel {
            read_cached: Curve::new(self.curves.read_cached)?,
            read_device: Curve::new(self.curves.read_device)?,
            write_cached: Curve::new(self.curves.write_cached)?,
            write_device: Curve::new(self.curves.write_device)?,
            copy: Curve::new(self.curves.copy)?,
            mapped_read: Curve::new(self.curves.mapped_read)?,
            mapped_write: Curve::new(self.curves.mapped_write)?,
            sync: Curve::new(self.curves.sync)?,
            page_fault_ns: self.page_fault_ns,
            page_fault_write_ns: self.page_fault_write_ns,
            new_page_ns: self.new_page_ns,
            lock_ns: self.lock_ns,
            measured_s: self.measured_s,
        })
    }
}

/// The model stored in `directory`.
///
/// # Errors
/// See [`LoadError`].
pub fn load(directory: &Path, with_ring: bool) -> Result<CostModel, LoadError> {
    let text = match fs::read_to_string(directory.join(MODEL_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LoadError::Missing),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(LoadError::Damaged("it is no text".into()));
        }
        result => result?,
    };
    let damaged = |error: &dyn std::fmt::Display| LoadError::Damaged(error.to_string());
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = toml::from_str(&text).map_err(|error| damaged(&error.message()))?;
    if version != MODEL_VERSION {
        return Err(LoadError::Version { found: version });
    }
    let stored: Stored = toml::from_str(&text).map_err(|error| damaged(&error.message()))?;
    if stored.io_uring != with_ring {
        return Err(LoadError::Engine);
    }
    stored.model().map_err(|error| damaged(&error))
}

/// Stores a model in `directory`, by rename. Nothing is synced: after a power failure it is measured again.
fn save(directory: &Path, with_ring: bool, model: &CostModel) -> io::Result<()> {
    let head = "# What accesses cost on this server: [bytes, nanoseconds] per access. Measured by weft;\n\
                # `weft calibrate --measure` measures anew, and so does the next start if this file is removed.\n";
    let text = toml::to_string(&Stored::of(model, with_ring)).map_err(io::Error::other)?;
    let temporary = directory.join("cost-model.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(head.as_bytes())?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, directory.join(MODEL_FILE))
}

/// A turn at measuring among the servers whose directories lie in the same one; it ends when the file is dropped.
/// Without one after some time, or where there is no locking, everybody measures at once.
fn turn(directory: &Path) -> Option<File> {
    let above = File::open(directory.canonicalize().ok()?.parent()?).ok()?;
    let deadline = Instant::now() + TURN_TIME_MAX;
    loop {
        // SAFETY: locks a descriptor that is open.
        if unsafe { libc::flock(above.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Some(above);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock || Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The fresh model of a directory beside this one, on the same file system.
fn neighbour(directory: &Path, with_ring: bool) -> Option<(CostModel, Origin)> {
    let own = directory.canonicalize().ok()?;
    let device_of = |path: &Path| Some(fs::metadata(path.join(DATA_DIRECTORY)).ok()?.dev());
    let device = device_of(&own)?;
    let oldest_s = now_s() - NEIGHBOUR_AGE_MAX_S;
    fs::read_dir(own.parent()?).ok()?.take(NEIGHBOURS_MAX).find_map(|entry| {
        let path = entry.ok()?.path();
        if path == own || device_of(&path) != Some(device) {
            return None;
        }
        let model = load(&path, with_ring).ok()?;
        (oldest_s..=now_s()).contains(&model.measured_s).then_some((model, Origin::Neighbour(path)))
    })
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

fn measured(directory: &Path, with_ring: bool) -> io::Result<(CostModel, Origin)> {
    let (model, time) = measure(directory, with_ring)?;
    Ok((CostModel { measured_s: now_s(), ..model }, Origin::Measured(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A storage directory as it is after it was opened, in `above`.
    fn storage(above: &Path, name: &str) -> PathBuf {
        let path = above.join(name);
        fs::create_dir_all(path.join(DATA_DIRECTORY)).unwrap();
        path
    }

    #[test]
    fn what_was_measured_is_used_again_and_by_the_server_next_door() {
        let above = tempfile::tempdir().unwrap();
        let (one, two) = (storage(above.path(), "one"), storage(above.path(), "two"));
        let (first, begun) = Calibration::begin(&one, false);
        assert!(matches!(begun.origin, Origin::Measured(_)), "{}", begun.origin);
        assert!(begun.rejected.is_none() && begun.unsaved.is_none());
        assert!(fs::read_dir(one.join(DATA_DIRECTORY)).unwrap().next().is_none(), "nothing stays behind");
        assert_ne!(first.model.get().measured_s, 0);

        let (again, begun) = Calibration::begin(&one, false);
        assert!(matches!(begun.origin, Origin::Stored));
        assert_eq!(again.model.get(), first.model.get());

        let (next_door, begun) = Calibration::begin(&two, false);
        assert!(matches!(begun.origin, Origin::Neighbour(path) if path.ends_with("one")));
        assert_eq!(next_door.model.get(), first.model.get());
        assert_eq!(load(&two, false).unwrap(), *first.model.get());
    }

    #[test]
    fn a_model_that_does_not_fit_is_measured_anew() {
        let above = tempfile::tempdir().unwrap();
        let path = storage(above.path(), "one");
        let stored = || {
            save(&path, false, &CostModel::default()).unwrap();
            fs::read_to_string(path.join(MODEL_FILE)).unwrap()
        };
        let text = stored();
        assert_eq!(load(&path, false).unwrap(), CostModel::default());
        assert!(matches!(load(&path, true), Err(LoadError::Engine)));
        let of = |text: &str| {
            fs::write(path.join(MODEL_FILE), text).unwrap();
            load(&path, false).unwrap_err()
        };
        assert!(matches!(of(&text.replace("version = 1", "version = 9")), LoadError::Version { found: 9 }));
        for damaged in ["", "version = 1", &text[..text.len() / 2], &text.replace("lock_ns", "clock_ns")] {
            assert!(matches!(of(damaged), LoadError::Damaged(_)), "{damaged}");
        }
        let falling = text.replacen("[4096, ", "[32, ", 1);
        assert!(matches!(of(&falling), LoadError::Damaged(why) if why.contains("does not rise")));
        let (calibration, begun) = Calibration::begin(&path, false);
        assert!(matches!(begun.rejected, Some(LoadError::Damaged(_))));
        assert_eq!(load(&path, false).unwrap(), *calibration.model.get());
    }

    #[test]
    fn measuring_anew_replaces_the_model() {
        let above = tempfile::tempdir().unwrap();
        let path = storage(above.path(), "one");
        save(&path, false, &CostModel::default()).unwrap();
        let (calibration, _) = Calibration::begin(&path, false);
        let clone = calibration.clone();
        assert_eq!(clone.model.get().measured_s, 0);
        calibration.measure_anew().unwrap();
        assert_ne!(clone.model.get().measured_s, 0);
        assert_eq!(load(&path, false).unwrap(), *clone.model.get());
        assert_eq!(Calibration::fixed().measure_anew().unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn without_a_place_to_measure_the_defaults_serve() {
        let above = tempfile::tempdir().unwrap();
        let (calibration, begun) = Calibration::begin(&above.path().join("missing"), false);
        assert!(matches!(begun.origin, Origin::Default(_)));
        assert_eq!(*calibration.model.get(), CostModel::default());
    }

    #[test]
    fn damaged_models_are_refused_or_loaded() {
        let above = tempfile::tempdir().unwrap();
        let path = storage(above.path(), "one");
        drop(Calibration::begin(&path, false));
        let right = fs::read(path.join(MODEL_FILE)).unwrap();
        weft_test_fuzz::run("cost-model", &[right], |bytes| {
            fs::write(path.join(MODEL_FILE), bytes).unwrap();
            let _ = load(&path, false);
        });
    }
}
