//! The choices: who moves data of replies, and how memory gets its keys.

/// Who moves replies that are too long for a message. WRITEs and long calls are read by the server in both designs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RdmaDesign {
    /// The server writes them into memory that calls offer (RFC 8166).
    #[default]
    ReadWrite,
    /// The client reads them from memory that replies expose, and says so (RFC 5666). The server must be of that design.
    ReadRead,
}

impl RdmaDesign {
    /// All, with their names in URLs.
    pub const ALL: [(RdmaDesign, &str); 2] =
        [(RdmaDesign::ReadWrite, "read-write"), (RdmaDesign::ReadRead, "read-read")];

    /// Its name in URLs.
    pub fn name(self) -> &'static str {
        RdmaDesign::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// From its name.
    pub fn of(name: &str) -> Option<RdmaDesign> {
        RdmaDesign::ALL.iter().find(|(_, known)| *known == name).map(|(design, _)| *design)
    }
}

/// How the caller's memory becomes known to the adapter, and to the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RdmaMemory {
    /// It is registered for each call.
    Each,
    /// It stays registered: calls that use it again find it. A server could use a key of an earlier call.
    #[default]
    Cached,
    /// It stays registered, and each call binds memory windows, whose keys end with it.
    Windows,
    /// Data are copied, from and into buffers that stay registered. The caller's memory has no keys.
    Copied,
}

impl RdmaMemory {
    /// All, with their names in URLs.
    pub const ALL: [(RdmaMemory, &str); 4] = [
        (RdmaMemory::Each, "each"),
        (RdmaMemory::Cached, "cached"),
        (RdmaMemory::Windows, "windows"),
        (RdmaMemory::Copied, "copied"),
    ];

    /// Its name in URLs.
    pub fn name(self) -> &'static str {
        RdmaMemory::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// From its name.
    pub fn of(name: &str) -> Option<RdmaMemory> {
        RdmaMemory::ALL.iter().find(|(_, known)| *known == name).map(|(memory, _)| *memory)
    }
}
