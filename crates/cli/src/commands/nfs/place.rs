//! Arguments that all subcommands have: servers, and whom the calls are for. And how files look in the output.

use anyhow::Result;
use serde_json::{Value, json};
use weft_cli_common::output;
use weft_nfs_client::{Attr, ConnectOptions, FileKind, NfsClient, NfsUrl, Time, own_credential};
use weft_wire::messages as weft;

/// How to connect.
#[derive(Debug, Clone, clap::Args)]
pub struct ConnectArgs {
    /// Act as this user [default: the user of this process].
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Act with this group [default: the group of this process].
    #[arg(long, value_name = "GID")]
    gid: Option<u32>,
    /// A further group; may be repeated, up to 16 [default: those of this process].
    #[arg(long, value_name = "GID")]
    group: Vec<u32>,
    /// Give up calls that the server does not answer for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Wait for a lost server for ever.
    #[arg(long, conflicts_with = "timeout")]
    hard: bool,
}

impl ConnectArgs {
    /// As the client takes them.
    pub fn options(&self) -> ConnectOptions {
        let mut credential = own_credential();
        credential.uid = self.uid.unwrap_or(credential.uid);
        credential.gid = self.gid.unwrap_or(credential.gid);
        if !self.group.is_empty() {
            credential.groups.clone_from(&self.group);
        } else if self.uid.is_some() {
            credential.groups.clear();
        }
        let give_up_ms = (!self.hard).then_some(self.timeout * 1000);
        ConnectOptions { credential: Some(credential), give_up_ms, ..ConnectOptions::default() }
    }

    /// Connects to the server of a URL.
    pub fn connect(&self, text: &str) -> Result<(NfsClient, NfsUrl)> {
        let url = NfsUrl::parse(text)?;
        let client = NfsClient::connect(&url, &self.options())?;
        Ok((client, url))
    }
}

/// The kind as Weft's output has it.
pub fn kind(kind: FileKind) -> weft::FileKind {
    match kind {
        FileKind::File => weft::FileKind::File,
        FileKind::Directory => weft::FileKind::Directory,
        FileKind::Block => weft::FileKind::Block,
        FileKind::Character => weft::FileKind::Character,
        FileKind::Symlink => weft::FileKind::Symlink,
        FileKind::Socket => weft::FileKind::Socket,
        FileKind::Fifo => weft::FileKind::Fifo,
    }
}

/// A time as text.
pub fn time_text(time: Time, full: bool) -> String {
    let time = weft::Time { seconds: time.seconds.into(), nanoseconds: time.nanoseconds };
    output::time_text(&time, full)
}

/// Attributes as JSON.
pub fn attr_json(path: &str, attr: &Attr) -> Value {
    let seconds = |time: Time| f64::from(time.seconds) + f64::from(time.nanoseconds) / 1e9;
    json!({
        "path": path,
        "ino": attr.fileid,
        "kind": output::kind_text(kind(attr.kind)),
        "mode": format!("{:04o}", attr.mode & 0o7777),
        "uid": attr.uid,
        "gid": attr.gid,
        "nlink": attr.nlink,
        "bytes": attr.size_bytes,
        "allocated_bytes": attr.used_bytes,
        "atime_s": seconds(attr.atime),
        "mtime_s": seconds(attr.mtime),
        "ctime_s": seconds(attr.ctime),
    })
}

/// A name as text.
pub fn name_text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
