//! Hints: what a program wishes, and what is in force (MPI 4.0, 14.2.8; ROMIO's users guide).

use weft_client::{AccessOptions, Method as ClientMethod};
use weft_layout::Layout;
use weft_wire::messages::LayoutWish;

use crate::abi::Handle;
use crate::mpi::Mpi;
use crate::report::report;

/// How noncontiguous data is accessed (NC 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// What is expected to be fastest.
    #[default]
    Auto,
    /// A request for each piece.
    Multiple,
    /// Reads of the span of the pieces by the client.
    Sieve,
    /// Collective calls exchange data, and few processes access the file.
    TwoPhase,
    /// All pieces in one request to each server.
    List,
}

const METHODS: [(Method, &str); 5] = [
    (Method::Auto, "auto"),
    (Method::Multiple, "multiple"),
    (Method::Sieve, "sieve"),
    (Method::TwoPhase, "two_phase"),
    (Method::List, "list"),
];

impl Method {
    /// Its name in hints.
    pub fn name(self) -> &'static str {
        METHODS.iter().find(|(method, _)| *method == self).expect("all are listed").1
    }

    fn named(name: &str) -> Option<Method> {
        METHODS.iter().find(|(_, known)| *known == name).map(|(method, _)| *method)
    }
}

/// A choice of ROMIO's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// Always.
    Enable,
    /// Never.
    Disable,
    /// As is expected to be faster.
    #[default]
    Automatic,
}

impl Switch {
    fn named(name: &str) -> Option<Switch> {
        match name.to_ascii_lowercase().as_str() {
            "enable" | "true" => Some(Switch::Enable),
            "disable" | "false" => Some(Switch::Disable),
            "automatic" => Some(Switch::Automatic),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Switch::Enable => "enable",
            Switch::Disable => "disable",
            Switch::Automatic => "automatic",
        }
    }
}

/// Hints of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hints {
    /// `weft_method`.
    pub method: Method,
    /// `romio_cb_read`, `romio_cb_write`: collective buffering, that is, the exchange.
    pub cb_read: Switch,
    /// See `cb_read`.
    pub cb_write: Switch,
    /// `romio_ds_read`: sieving by the client.
    pub ds_read: Switch,
    /// `romio_ds_write`. There is no sieving of writes by the client: it would undo writes of others.
    pub ds_write: Switch,
    /// `cb_nodes`: processes that access the file in an exchange; 0: as many as the file has servers.
    pub cb_nodes: u32,
    /// `cb_buffer_size`: memory of each of them for a round.
    pub cb_buffer_bytes: u64,
    /// `ind_rd_buffer_size`: buffer of sieving by the client.
    pub sieve_bytes: u64,
    /// `striping_factor`, `striping_unit` and `start_iodevice`, of a file that is created.
    pub server_count: Option<u16>,
    /// See `server_count`.
    pub strip_bytes: Option<u32>,
    /// See `server_count`.
    pub first_server: Option<u16>,
    /// `weft_explain`: each collective choice is reported on standard error by process 0.
    pub explain: bool,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            method: Method::Auto,
            cb_read: Switch::Automatic,
            cb_write: Switch::Automatic,
            ds_read: Switch::Automatic,
            ds_write: Switch::Disable,
            cb_nodes: 0,
            cb_buffer_bytes: 1 << 20,
            sieve_bytes: AccessOptions::default().sieve_bytes,
            server_count: None,
            strip_bytes: None,
            first_server: None,
            explain: false,
        }
    }
}

/// Bounds of buffers.
const BUFFER_BYTES_MIN: u64 = 64 << 10;
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// The keys that are understood.
const KEYS: [&str; 14] = [
    "weft_method",
    "weft_explain",
    "romio_cb_read",
    "romio_cb_write",
    "romio_no_indep_rw",
    "romio_ds_read",
    "romio_ds_write",
    "cb_nodes",
    "cb_buffer_size",
    "ind_rd_buffer_size",
    "ind_wr_buffer_size",
    "striping_factor",
    "striping_unit",
    "start_iodevice",
];

impl Hints {
    /// Those of an info, and below them those of the file that `ROMIO_HINTS` names.
    pub fn given(mpi: &Mpi, info: Handle) -> Hints {
        let mut hints = Hints::default();
        if let Some(path) = std::env::var_os("ROMIO_HINTS").filter(|path| !path.is_empty()) {
            match std::fs::read_to_string(&path) {
                Ok(text) => hints.set_all(entries_of(&text)),
                Err(error) => report(|| format!("ROMIO_HINTS={}: {error}", path.to_string_lossy())),
            }
        }
        hints.set_info(mpi, info);
        hints
    }

    /// Changes those that an info has.
    pub fn set_info(&mut self, mpi: &Mpi, info: Handle) {
        let entries = KEYS.iter().filter_map(|key| Some((*key, mpi.info_value(info, key)?)));
        let entries: Vec<_> = entries.collect();
        self.set_all(entries.iter().map(|(key, value)| (*key, value.as_str())));
    }

    fn set_all<'a>(&mut self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (key, value) in entries {
            if self.set(key, value).is_none() {
                report(|| format!("the hint {key}={value} is ignored: the value makes no sense"));
            }
        }
    }

    /// Changes one; `None` if the value makes no sense. Unknown keys are somebody else's.
    pub fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let bytes = || value.parse::<u64>().ok().filter(|bytes| *bytes > 0);
        let buffer = || Some(bytes()?.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX));
        match key {
            "weft_method" => self.method = Method::named(value)?,
            "weft_explain" => self.explain = Switch::named(value)? == Switch::Enable,
            "romio_cb_read" => self.cb_read = Switch::named(value)?,
            "romio_cb_write" => self.cb_write = Switch::named(value)?,
            // Only the processes of the exchange open the file: here it costs the others nothing anyway.
            "romio_no_indep_rw" if Switch::named(value)? == Switch::Enable => {
                (self.cb_read, self.cb_write) = (Switch::Enable, Switch::Enable);
            }
            "romio_ds_read" => self.ds_read = Switch::named(value)?,
            // Understood, and never in force.
            "romio_ds_write" => drop(Switch::named(value)?),
            "cb_nodes" => self.cb_nodes = value.parse().ok().filter(|count| *count > 0)?,
            "cb_buffer_size" => self.cb_buffer_bytes = buffer()?,
            "ind_rd_buffer_size" => self.sieve_bytes = buffer()?,
            "ind_wr_buffer_size" => drop(bytes()?),
            "striping_factor" => {
                self.server_count = Some(at_most_u16(value.parse().ok().filter(|count| *count > 0)?))
            }
            "striping_unit" => self.strip_bytes = strip(bytes()?),
            "start_iodevice" => self.first_server = Some(at_most_u16(value.parse().ok()?)),
            _ => {}
        }
        Some(())
    }

    /// The layout of a new file, if any hint is about it. Hints are advice: a larger count is cut to the
    /// `server_count` I/O servers of the cluster, and the first server is taken modulo that number.
    pub fn layout_wish(&self, server_count: usize) -> Option<LayoutWish> {
        if (self.server_count, self.strip_bytes, self.first_server) == (None, None, None) {
            return None;
        }
        let servers = u16::try_from(server_count).unwrap_or(u16::MAX).max(1);
        Some(LayoutWish {
            strip_bytes: self.strip_bytes.unwrap_or(0),
            server_count: self.server_count.unwrap_or(0).min(servers),
            first_server_plus_1: self.first_server.map_or(0, |first| first % servers + 1),
        })
    }

    /// What is in force for a file of this layout.
    pub fn in_force(mut self, layout: &Layout) -> Hints {
        self.server_count = Some(layout.server_count());
        self.strip_bytes = Some(layout.strip_bytes());
        self.first_server = Some(layout.first_server());
        self
    }

    /// How a process accesses pieces by itself.
    pub fn access(&self) -> AccessOptions {
        let method = match self.method {
            Method::Multiple => ClientMethod::Multiple,
            Method::Sieve => ClientMethod::Sieve,
            Method::Auto if self.ds_read == Switch::Enable => ClientMethod::Sieve,
            Method::Auto | Method::TwoPhase | Method::List => ClientMethod::List,
        };
        AccessOptions { method, sieve_bytes: self.sieve_bytes, ..AccessOptions::default() }
    }

    /// All that `MPI_File_get_info` tells.
    pub fn entries(&self) -> Vec<(String, String)> {
        let numbers = [
            ("cb_buffer_size", Some(self.cb_buffer_bytes)),
            ("cb_nodes", Some(u64::from(self.cb_nodes)).filter(|count| *count > 0)),
            ("ind_rd_buffer_size", Some(self.sieve_bytes)),
            ("striping_factor", self.server_count.map(u64::from)),
            ("striping_unit", self.strip_bytes.map(u64::from)),
            ("start_iodevice", self.first_server.map(u64::from)),
        ];
        let words = [
            ("romio_cb_read", self.cb_read.name()),
            ("romio_cb_write", self.cb_write.name()),
            ("romio_ds_read", self.ds_read.name()),
            ("romio_ds_write", self.ds_write.name()),
            ("romio_no_indep_rw", "false"),
            ("weft_explain", if self.explain { "true" } else { "false" }),
            ("weft_method", self.method.name()),
            // What one process has written, another sees as soon as the call has returned, without
            // MPI_File_sync. HDF5 asks, and refuses independent writes otherwise.
            ("romio_visibility_immediate", "true"),
        ];
        let numbers = numbers.into_iter().filter_map(|(key, number)| Some((key.into(), number?.to_string())));
        numbers.chain(words.map(|(key, word)| (key.to_string(), word.to_string()))).collect()
    }
}

/// Room for [`Hints::to_text`].
pub const HINTS_BYTES_MAX: usize = 1024;

impl Hints {
    /// All of them, as [`Hints::from_text`] reads them.
    pub fn to_text(&self) -> String {
        let text: String = self.entries().iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        debug_assert!(text.len() <= HINTS_BYTES_MAX);
        text
    }

    /// Hints of another process.
    pub fn from_text(text: &str) -> Hints {
        let mut hints = Hints::default();
        hints.set_all(entries_of(text));
        hints
    }
}

/// The nearest number of servers that fits a layout.
fn at_most_u16(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// The nearest strip size that is allowed.
fn strip(bytes: u64) -> Option<u32> {
    let unit = u64::from(weft_layout::STRIP_BYTES_UNIT);
    let rounded = bytes.div_ceil(unit) * unit;
    u32::try_from(rounded.min(u64::from(weft_layout::STRIP_BYTES_MAX))).ok()
}

/// A file of hints: a key and a value in each line; `#` begins a comment.
fn entries_of(text: &str) -> Vec<(&str, &str)> {
    let line = |line: &'_ str| -> Option<(usize, usize)> {
        let line = line.split('#').next()?.trim();
        let (key, _) = line.split_once(char::is_whitespace)?;
        Some((key.len(), line.len()))
    };
    text.lines()
        .filter_map(|whole| {
            let (key_end, end) = line(whole)?;
            let whole = whole.trim_start();
            Some((&whole[..key_end], whole[key_end..end].trim()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read_and_told_again() {
        let mut hints = Hints::default();
        let given = [("weft_method", "two_phase"), ("cb_nodes", "3"), ("romio_cb_write", "enable")];
        hints.set_all(given);
        let told = hints.entries();
        for (key, value) in given {
            assert!(told.contains(&(key.to_string(), value.to_string())), "{key}: {told:?}");
        }
        assert!(told.contains(&("romio_visibility_immediate".into(), "true".into())));
    }

    #[test]
    fn hints_come_back_from_their_text() {
        let mut hints = Hints::default();
        hints.set_all([
            ("weft_method", "list"),
            ("cb_nodes", "4000000000"),
            ("romio_cb_read", "disable"),
            ("weft_explain", "true"),
            ("cb_buffer_size", "1073741824"),
            ("ind_rd_buffer_size", "1073741824"),
            ("striping_factor", "65535"),
            ("striping_unit", "1073741824"),
            ("start_iodevice", "65535"),
        ]);
        let text = hints.to_text();
        assert!(text.len() <= HINTS_BYTES_MAX, "{}", text.len());
        assert_eq!(Hints::from_text(&text), hints);
        assert_eq!(Hints::from_text(&Hints::default().to_text()), Hints::default());
    }

    #[test]
    fn whatever_a_text_has_the_hints_are_within_bounds() {
        weft_test_fuzz::run("mpi-hints", &[Hints::default().to_text().into_bytes()], |bytes| {
            let hints = Hints::from_text(&String::from_utf8_lossy(bytes));
            assert!((BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&hints.cb_buffer_bytes));
            assert!(hints.to_text().len() <= HINTS_BYTES_MAX);
        });
    }

    #[test]
    fn values_without_sense_change_nothing() {
        for (key, value) in [
            ("weft_method", "fast"),
            ("cb_nodes", "0"),
            ("cb_nodes", "-4"),
            ("cb_buffer_size", "much"),
            ("romio_cb_read", "perhaps"),
            ("striping_factor", "0"),
            ("start_iodevice", "-1"),
            ("striping_unit", "0"),
        ] {
            let mut hints = Hints::default();
            assert_eq!(hints.set(key, value), None, "{key}={value}");
            assert_eq!(hints, Hints::default(), "{key}={value}");
        }
        assert_eq!(Hints::default().set("somebody_elses", "x"), Some(()));
    }

    #[test]
    fn absurd_sizes_are_brought_within_bounds() {
        let mut hints = Hints::default();
        hints.set("cb_buffer_size", "1").unwrap();
        assert_eq!(hints.cb_buffer_bytes, BUFFER_BYTES_MIN);
        hints.set("cb_buffer_size", "99999999999999").unwrap();
        assert_eq!(hints.cb_buffer_bytes, BUFFER_BYTES_MAX);
        hints.set("striping_unit", "5000").unwrap();
        assert_eq!(hints.strip_bytes, Some(8192));
        hints.set("striping_factor", "100").unwrap();
        hints.set("start_iodevice", "5").unwrap();
        let wish = hints.layout_wish(4).unwrap();
        assert_eq!((wish.strip_bytes, wish.server_count, wish.first_server_plus_1), (8192, 4, 2));
        hints.set("striping_factor", "99999999999").unwrap();
        hints.set("start_iodevice", "99999999999").unwrap();
        let wish = hints.layout_wish(4).unwrap();
        assert_eq!((wish.server_count, wish.first_server_plus_1), (4, 65535 % 4 + 1));
        assert_eq!(Hints::default().layout_wish(4), None);
    }

    #[test]
    fn a_file_of_hints_has_comments_and_spaces() {
        let text = "# of the site\n  cb_nodes   4\nromio_cb_read enable # always\n\nalone\n";
        assert_eq!(entries_of(text), [("cb_nodes", "4"), ("romio_cb_read", "enable")]);
    }
}
