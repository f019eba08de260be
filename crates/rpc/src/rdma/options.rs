//! How RDMA is used: sizes, mechanisms, the registration cache, and what the network is told of each kind of
//! traffic.
//!
//! Every option has a name, by which it can be set in a URL (`?rdma-mechanism=fast`) and in the environment
//! (`WEFT_RDMA=mechanism=fast,tos=0:0:32:8`):
//!
//! | name | value | meaning |
//! | --- | --- | --- |
//! | `mechanism` | `auto`, `inline`, `fast`, `remote`, `lend` | how data moves (IB 3.2.3); other than `auto` for comparisons |
//! | `lend-pieces` | number | data in so many short pieces is moved by this side, into and out of units that the server lends (NC 4.1) |
//! | `inline-bytes` | size | data of up to this size travels in the message itself |
//! | `fast-bytes` | size | data of up to this size goes through Fast RDMA buffers (IB 4.1) |
//! | `cache-bytes`, `cache-entries` | size, number | what stays registered after it was used |
//! | `foreign` | `watched`, `not-cached` | what happens to memory that nobody registered by name (IB 3.3.3) |
//! | `cost` | `a:b` | what registering a page and a call of it take, in ns, instead of measuring it (NC 4.3) |
//! | `verify` | `on`, `off` | check every hit of the registration cache against the system |
//! | `tos` | number, or four as `m:s:b:g` | type of service for metadata, small, bulk and background traffic (IB 3.4) |

use weft_transport::registration::{self, CallCost, RegistrationCost, RegistrationOptions};
use weft_transport::{LinkTraits, Mechanism, VerbsOptions};
use weft_verbs::TrafficClass;
use weft_wire::security::Key;

use crate::named;
use crate::traffic::Traffic;

/// How data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RdmaMechanism {
    /// By size, and by whether the memory is registered.
    #[default]
    Auto,
    /// In the messages.
    Inline,
    /// Through Fast RDMA buffers, as far as these reach.
    Fast,
    /// By RDMA of the server, from and to the memory itself.
    Remote,
    /// By RDMA of this side, into and out of memory that the server lends.
    Lend,
}

/// What happens to memory that was not registered by name, between two requests that use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ForeignMemory {
    /// It stays registered, and the system tells when it is unmapped.
    #[default]
    Watched,
    /// It is registered for each request.
    NotCached,
}

named!(
    RdmaMechanism,
    "mechanism",
    Auto = "auto",
    Inline = "inline",
    Fast = "fast",
    Remote = "remote",
    Lend = "lend"
);
named!(ForeignMemory, "treatment of foreign memory", Watched = "watched", NotCached = "not-cached");

/// Numbers by which the network tells kinds of traffic apart: types of service, of which adapters make
/// service levels and priorities. 0 is the network's own choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RdmaTos {
    /// Of connections to metadata servers.
    pub metadata: u8,
    /// Of small reads and writes.
    pub small: u8,
    /// Of others.
    pub bulk: u8,
    /// Of clients that work in the background.
    pub background: u8,
}

impl RdmaTos {
    /// Of one kind of traffic.
    pub fn of(&self, traffic: Traffic) -> u8 {
        match traffic {
            Traffic::Metadata => self.metadata,
            Traffic::Small => self.small,
            Traffic::Bulk => self.bulk,
            Traffic::Background => self.background,
        }
    }

    /// Whether small reads and writes need connections of their own.
    pub fn separates_small(&self) -> bool {
        self.small != self.bulk
    }
}

impl std::fmt::Display for RdmaTos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}:{}", self.metadata, self.small, self.bulk, self.background)
    }
}

impl std::str::FromStr for RdmaTos {
    type Err = String;
    fn from_str(text: &str) -> Result<RdmaTos, String> {
        let wrong = || {
            format!(
                "`{text}` is no type of service (0 to 255, or four of them: METADATA:SMALL:BULK:BACKGROUND)"
            )
        };
        let numbers: Vec<u8> =
            text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        match numbers[..] {
            [all] => Ok(RdmaTos { metadata: all, small: all, bulk: all, background: all }),
            [metadata, small, bulk, background] => Ok(RdmaTos { metadata, small, bulk, background }),
            _ => Err(wrong()),
        }
    }
}

/// How RDMA is used. [`Default`] is right for most.
///
/// The registration cache is one for the whole process: its limits are those of the first connection that
/// uses RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaOptions {
    /// How data moves.
    pub mechanism: RdmaMechanism,
    /// Data of up to this size travels in the message.
    pub inline_bytes_max: u64,
    /// Data of up to this size goes through Fast RDMA buffers.
    pub fast_bytes_max: u64,
    /// Data in at least so many pieces, of at most 16 KiB on average, is moved by this side into and out of
    /// memory that the server lends, where both adapters can; 0: never.
    pub lend_pieces_min: u64,
    /// Bytes that stay registered after they were used.
    pub cache_bytes_max: u64,
    /// Registrations that stay.
    pub cache_entries_max: usize,
    /// What happens to memory that was not registered by name.
    pub foreign: ForeignMemory,
    /// Nanoseconds that registering takes for each page and for each call, by which pieces are grouped;
    /// measured where not given.
    pub registration_cost_ns: Option<(u64, u64)>,
    /// Check every hit of the registration cache against the system. Slow: for finding faults.
    pub verify: bool,
    /// Servers get at memory by keys that end with each request, where the adapter has memory windows.
    pub windows: bool,
    /// What the network is told.
    pub tos: RdmaTos,
}

impl Default for RdmaOptions {
    fn default() -> RdmaOptions {
        let (connection, registration) = (VerbsOptions::default(), RegistrationOptions::default());
        RdmaOptions {
            mechanism: RdmaMechanism::Auto,
            inline_bytes_max: connection.inline_bytes_max,
            fast_bytes_max: connection.fast_bytes_max,
            lend_pieces_min: connection.lend_pieces_min,
            cache_bytes_max: registration.bytes_max,
            cache_entries_max: registration.entries_max,
            foreign: ForeignMemory::Watched,
            registration_cost_ns: None,
            verify: registration.verify,
            windows: connection.windows,
            tos: RdmaTos::default(),
        }
    }
}

impl RdmaOptions {
    /// Names of the options.
    pub const NAMES: [&str; 11] = [
        "mechanism",
        "inline-bytes",
        "fast-bytes",
        "lend-pieces",
        "cache-bytes",
        "cache-entries",
        "foreign",
        "cost",
        "verify",
        "windows",
        "tos",
    ];

    /// For a connection: `key` is the cluster's for clients.
    pub fn for_connection(&self, key: Option<&Key>, traffic: Traffic) -> VerbsOptions {
        VerbsOptions {
            key: key.cloned(),
            class: TrafficClass(self.tos.of(traffic)),
            inline_bytes_max: self.inline_bytes_max,
            fast_bytes_max: self.fast_bytes_max,
            mechanism: match self.mechanism {
                RdmaMechanism::Auto => None,
                RdmaMechanism::Inline => Some(Mechanism::Inline),
                RdmaMechanism::Fast => Some(Mechanism::Fast),
                RdmaMechanism::Remote => Some(Mechanism::Remote),
                RdmaMechanism::Lend => Some(Mechanism::Lend),
            },
            lend_pieces_min: self.lend_pieces_min,
            windows: self.windows,
            ..VerbsOptions::default()
        }
    }

    /// What suits a connection with these options.
    pub fn traits(&self) -> LinkTraits {
        self.for_connection(None, Traffic::Bulk).traits()
    }

    /// How the data of a request moves, if its memory, in so many pieces, is not registered yet.
    pub fn mechanism_for(&self, bytes: u64, pieces: u64, write: bool) -> Mechanism {
        self.for_connection(None, Traffic::Bulk).mechanism_for(bytes, pieces, write)
    }

    /// For the registration cache.
    pub fn for_registration(&self) -> RegistrationOptions {
        RegistrationOptions {
            bytes_max: self.cache_bytes_max,
            entries_max: self.cache_entries_max,
            foreign: match self.foreign {
                ForeignMemory::Watched => registration::ForeignMemory::Watched,
                ForeignMemory::NotCached => registration::ForeignMemory::NotCached,
            },
            verify: self.verify,
            cost: self.registration_cost_ns.map(|(page_ns, call_ns)| RegistrationCost {
                register: CallCost { page_ns, call_ns },
                deregister: CallCost { page_ns: 0, call_ns: 0 },
            }),
            ..RegistrationOptions::default()
        }
    }

    /// Sets the option of this name; see the table in `weft help rdma`.
    ///
    /// # Errors
    /// Says what is wrong with name or value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "mechanism" => self.mechanism = value.parse()?,
            "inline-bytes" => self.inline_bytes_max = size(value)?,
            "fast-bytes" => self.fast_bytes_max = size(value)?,
            "lend-pieces" => {
                self.lend_pieces_min = value.parse().map_err(|_| format!("`{value}` is no number"))?;
            }
            "cache-bytes" => self.cache_bytes_max = size(value)?,
            "cache-entries" => {
                self.cache_entries_max = value.parse().map_err(|_| format!("`{value}` is no number"))?;
            }
            "foreign" => self.foreign = value.parse()?,
            "cost" => self.registration_cost_ns = Some(cost(value)?),
            "verify" => self.verify = switch(value)?,
            "windows" => self.windows = switch(value)?,
            "tos" => self.tos = value.parse()?,
            _ => return Err(format!("there is no RDMA option `{name}` ({})", RdmaOptions::NAMES.join(", "))),
        }
        Ok(())
    }

    /// Sets options as they stand in the environment: `NAME=VALUE`, with commas between.
    ///
    /// # Errors
    /// As [`RdmaOptions::set`].
    pub fn set_all(&mut self, text: &str) -> Result<(), String> {
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) =
                option.split_once('=').ok_or_else(|| format!("`{option}` is not written NAME=VALUE"))?;
            self.set(name.trim(), value.trim()).map_err(|reason| format!("{name}: {reason}"))?;
        }
        Ok(())
    }
}

/// Two numbers with a colon between.
fn cost(text: &str) -> Result<(u64, u64), String> {
    let numbers =
        text.split_once(':').and_then(|(page, call)| Some((page.parse().ok()?, call.parse().ok()?)));
    numbers.ok_or_else(|| format!("`{text}` is no cost (nanoseconds of a page and of a call, as 770:7420)"))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

/// Bytes, or with K, M or G behind the number, units of 1024, its square and its cube.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size (4096, 64K, 1M)"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is beyond 2^64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_can_be_set_by_its_name() {
        let mut options = RdmaOptions::default();
        options
            .set_all(
                "mechanism=fast, inline-bytes=1K,fast-bytes=64K,lend-pieces=9,cache-bytes=1G,cache-entries=7,\
                 foreign=not-cached,cost=770:7420,verify=on,windows=off,tos=1:2:3:4",
            )
            .unwrap();
        let tos = RdmaTos { metadata: 1, small: 2, bulk: 3, background: 4 };
        let expected = RdmaOptions {
            mechanism: RdmaMechanism::Fast,
            inline_bytes_max: 1024,
            fast_bytes_max: 65536,
            lend_pieces_min: 9,
            cache_bytes_max: 1 << 30,
            cache_entries_max: 7,
            foreign: ForeignMemory::NotCached,
            registration_cost_ns: Some((770, 7420)),
            verify: true,
            windows: false,
            tos,
        };
        assert_eq!(options, expected);
        assert_eq!(tos.to_string().parse(), Ok(tos));
        assert_eq!("9".parse::<RdmaTos>().unwrap().background, 9);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("speed=11", "there is no RDMA option `speed` (mechanism, inline-bytes"),
            ("mechanism=owl", "mechanism: `owl` is not a mechanism (auto, inline, fast, remote, lend)"),
            ("inline-bytes=many", "`many` is no size"),
            ("cache-bytes=99999999999G", "beyond 2^64"),
            ("cost=770", "`770` is no cost"),
            ("verify=yes", "neither on nor off"),
            ("tos=1:2", "METADATA:SMALL:BULK:BACKGROUND"),
            ("tos=256", "`256` is no type of service"),
            ("verify", "not written NAME=VALUE"),
        ] {
            let error = RdmaOptions::default().set_all(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
