//! Who has restarted, so that locks can be released or taken again (the status monitor's protocol, version 1:
//! Open Group, C702).
//!
//! ```text
//!   MON        host · who to tell · 16 bytes      ─► 0 or 1 · state      from the lock manager of the same host
//!   UNMON      host · who to tell                 ─► state
//!   NOTIFY     host · state                                              from a host that has restarted
//!   to whom MON named:  host · state · 16 bytes
//! ```
//!
//! A state is a number that grows with each restart, and is odd while a host is up.

use crate::xdr::{Reader, Writer, XdrError};

/// Its program number.
pub const PROGRAM: u32 = 100_024;
/// Its version.
pub const VERSION: u32 = 1;

/// Numbers of procedures.
pub mod procedure {
    /// Does nothing.
    pub const NULL: u32 = 0;
    /// Whether a host can be monitored.
    pub const STAT: u32 = 1;
    /// Monitors a host.
    pub const MON: u32 = 2;
    /// Ends that.
    pub const UNMON: u32 = 3;
    /// Ends it for all hosts.
    pub const UNMON_ALL: u32 = 4;
    /// Begins a new state, as by a restart.
    pub const SIMU_CRASH: u32 = 5;
    /// A host has restarted.
    pub const NOTIFY: u32 = 6;
}

/// Bytes of a name of a host.
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes that MON remembers for who is told.
pub const PRIVATE_BYTES: usize = 16;

/// A host and its state: the arguments of NOTIFY.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// As it calls itself.
    pub host: Vec<u8>,
    /// Its new state.
    pub state: u32,
}

impl Change {
    /// Takes it.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<Change, XdrError> {
        Ok(Change { host: from.opaque(NAME_BYTES_MAX)?.to_vec(), state: from.u32()? })
    }

    /// Puts it.
    pub fn write(&self, to: Writer) -> Writer {
        to.opaque(&self.host).u32(self.state)
    }
}

/// A host, and who is told when it restarts: the arguments of UNMON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Monitored {
    /// The host.
    pub host: Vec<u8>,
    /// Who is told: a host.
    pub listener: Vec<u8>,
    /// A program of it.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// A procedure of it.
    pub procedure: u32,
}

impl Monitored {
    /// Takes it.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<Monitored, XdrError> {
        Ok(Monitored {
            host: from.opaque(NAME_BYTES_MAX)?.to_vec(),
            listener: from.opaque(NAME_BYTES_MAX)?.to_vec(),
            program: from.u32()?,
            version: from.u32()?,
            procedure: from.u32()?,
        })
    }

    /// Puts it.
    pub fn write(&self, to: Writer) -> Writer {
        let to = to.opaque(&self.host).opaque(&self.listener);
        to.u32(self.program).u32(self.version).u32(self.procedure)
    }
}

/// The arguments of MON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Monitor {
    /// Whom to monitor for whom.
    pub monitored: Monitored,
    /// Comes back when the host restarts.
    pub private: [u8; PRIVATE_BYTES],
}

fn read_private(from: &mut Reader<'_>) -> Result<[u8; PRIVATE_BYTES], XdrError> {
    from.fixed(PRIVATE_BYTES)?.try_into().map_err(|_| XdrError::Short)
}

impl Monitor {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<Monitor, XdrError> {
        Ok(Monitor { monitored: Monitored::read(from)?, private: read_private(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        self.monitored.write(to).fixed(&self.private)
    }
}

/// The arguments of the call that MON has asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restarted {
    /// Which host has restarted.
    pub change: Change,
    /// Of MON.
    pub private: [u8; PRIVATE_BYTES],
}

impl Restarted {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<Restarted, XdrError> {
        Ok(Restarted { change: Change::read(from)?, private: read_private(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        self.change.write(to).fixed(&self.private)
    }
}

/// Puts the results of STAT and MON.
pub fn write_result(is_monitored: bool, state: u32, to: Writer) -> Writer {
    to.u32(u32::from(!is_monitored)).u32(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"\0\0\0\x05node7\0\0\0";
    const STATE: &[u8] = b"\0\0\0\x0b";
    const LISTENER: &[u8] = b"\0\0\0\x02me\0\0\0\x01\x86\xb5\0\0\0\x04\0\0\0\x10";
    const PRIVATE: &[u8; 16] = b"0123456789abcdef";

    #[test]
    fn bodies_are_as_the_protocol_has_them() {
        let change = Change { host: b"node7".to_vec(), state: 11 };
        let bytes = [HOST, STATE].concat();
        assert_eq!(change.write(Writer::new()).into_bytes(), bytes);
        assert_eq!(Change::read(&mut Reader::new(&bytes)), Ok(change.clone()));

        let monitored = Monitored {
            host: b"node7".to_vec(),
            listener: b"me".to_vec(),
            program: 100_021,
            version: 4,
            procedure: 16,
        };
        let monitor = Monitor { monitored, private: *PRIVATE };
        let bytes = [HOST, LISTENER, PRIVATE].concat();
        assert_eq!(monitor.write(Writer::new()).into_bytes(), bytes);
        assert_eq!(Monitor::read(&mut Reader::new(&bytes)), Ok(monitor));
        assert_eq!(Monitor::read(&mut Reader::new(&bytes[..bytes.len() - 1])), Err(XdrError::Short));

        let restarted = Restarted { change, private: *PRIVATE };
        let bytes = [HOST, STATE, PRIVATE].concat();
        assert_eq!(restarted.write(Writer::new()).into_bytes(), bytes);
        assert_eq!(Restarted::read(&mut Reader::new(&bytes)), Ok(restarted));
        assert_eq!(write_result(true, 11, Writer::new()).into_bytes(), b"\0\0\0\0\0\0\0\x0b");
        assert_eq!(write_result(false, 11, Writer::new()).into_bytes(), b"\0\0\0\x01\0\0\0\x0b");
    }

    #[test]
    fn any_bytes_are_bodies_or_not() {
        let seeds = [[HOST, LISTENER, PRIVATE].concat(), [HOST, STATE, PRIVATE].concat()];
        weft_test_fuzz::run("onc-nsm", &seeds, |bytes| {
            if let Ok(monitor) = Monitor::read(&mut Reader::new(bytes)) {
                let again = monitor.write(Writer::new()).into_bytes();
                assert_eq!(Monitor::read(&mut Reader::new(&again)), Ok(monitor));
            }
            if let Ok(restarted) = Restarted::read(&mut Reader::new(bytes)) {
                let again = restarted.write(Writer::new()).into_bytes();
                assert_eq!(Restarted::read(&mut Reader::new(&again)), Ok(restarted));
            }
        });
    }
}
