//! What new files get: a layout, if one is requested, and permission bits without those of the umask.

use anyhow::{Result, anyhow, bail};
use weft_cli_common::size::parse_bytes;
use weft_wire::messages::LayoutWish;

/// Layout of new files.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LayoutArgs {
    /// Strip size: consecutive bytes on one server; a multiple of 4K.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    strip_bytes: Option<u64>,
    /// Number of I/O servers.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    /// Id of the first I/O server [default: the metadata server spreads files over all].
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(..65535))]
    first: Option<u16>,
}

impl LayoutArgs {
    /// The requested layout; `None` if no option was given.
    pub fn wish(&self) -> Result<Option<LayoutWish>> {
        if self.strip_bytes.is_none() && self.servers.is_none() && self.first.is_none() {
            return Ok(None);
        }
        let strip_bytes = u32::try_from(self.strip_bytes.unwrap_or(0))
            .map_err(|_| anyhow!("--strip-bytes is too large; at most 1G"))?;
        if self.strip_bytes == Some(0) {
            bail!("--strip-bytes is 0; 256K is a good value");
        }
        Ok(Some(LayoutWish {
            strip_bytes,
            server_count: self.servers.unwrap_or(0),
            first_server_plus_1: self.first.map_or(0, |first| first + 1),
        }))
    }
}

/// The umask of this process.
pub fn umask() -> u32 {
    // SAFETY: umask only exchanges a number. No other thread of this program creates files in between.
    unsafe {
        let mask = libc::umask(0o022);
        libc::umask(mask);
        mask
    }
}
