//! How much one call moves at most, as FSINFO tells clients (RFC 1813, 3.3.19).

/// Data of one READ or WRITE.
pub(crate) const IO_BYTES_MAX: u32 = 1 << 20;
/// The result of one READDIR or READDIRPLUS.
pub(crate) const DIRECTORY_BYTES_MAX: u32 = 256 << 10;
/// The longest file: offsets are those of off_t.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
