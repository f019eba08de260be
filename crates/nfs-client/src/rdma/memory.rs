//! The choice of how memory gets its keys.

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
