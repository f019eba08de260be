//! What a check finds.

use crate::current::name_of;
use weft_layout::Layout;
use weft_meta::{Finding, SizeFound};
use weft_wire::limits::FINDING_TEXT_BYTES_MAX;
use weft_wire::messages::{ClusterMapReply, FindingInfo};

/// Something that is wrong.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Name(Finding),
    /// The data files have another size than is recorded.
    Size {
        found: SizeFound,
        recorded: u64,
        missing_on: Option<String>,
        path: Option<String>,
    },
    /// What these servers had of the file is gone: with a storage that was replaced, or from the one that they have.
    Lost {
        ino: u64,
        path: Option<String>,
        servers: Vec<u16>,
        replaced: bool,
    },
    /// Data files of no inode: server and size of each, and how the file was striped, if they tell.
    NoInode {
        ino: u64,
        parts: Vec<(u16, u64)>,
        layout: Option<Layout>,
    },
    /// A data file on a server that has no part of the file, or of an inode that has no data. It is kept
    /// where the names may have forgotten what it is.
    Stray {
        ino: u64,
        server: u16,
        kept: bool,
    },
}

impl Found {
    /// The file that it is of, and where its path is kept, if it is a matter of a file's data.
    pub fn file(&mut self) -> Option<(u64, &mut Option<String>)> {
        match self {
            Found::Size { found, path, .. } => Some((found.ino, path)),
            Found::Lost { ino, path, .. } => Some((*ino, path)),
            _ => None,
        }
    }

    /// Whether a repair gives data up that a file had.
    pub fn is_loss(&self) -> bool {
        match self {
            Found::Size { found, recorded, .. } => found.bytes < *recorded,
            Found::Lost { .. } => true,
            _ => false,
        }
    }

    /// As it is reported.
    pub fn info(&self, map: &ClusterMapReply) -> FindingInfo {
        let name = |id: &u16| name_of(map, *id);
        let mut text = match self {
            Found::Name(finding) => finding.damage.to_string(),
            Found::Size { found, recorded, missing_on: None, path } => format!(
                "{} has {recorded} bytes, but its data files have {}",
                file_name(found.ino, path),
                found.bytes
            ),
            Found::Size { found, recorded, missing_on: Some(server), path } => format!(
                "{} has {recorded} bytes, but its data file on {server} is missing; the others have {}",
                file_name(found.ino, path),
                found.bytes
            ),
            Found::Lost { ino, path, servers, replaced } => {
                let names: Vec<_> = servers.iter().map(name).collect();
                let why = match replaced {
                    true => {
                        "the server's storage was replaced, or the file was removed after the backup that the names are from"
                    }
                    false => "a data file there is missing, too short, or that of another file",
                };
                format!("{} has lost data on {}: {why}", file_name(*ino, path), names.join(", "))
            }
            Found::NoInode { ino, parts, layout } => {
                let names: Vec<_> =
                    parts.iter().map(|(id, bytes)| format!("{} ({bytes} bytes)", name(id))).collect();
                let order = match layout {
                    None if parts.len() > 1 => {
                        "; they do not tell how it was striped, so its bytes may be out of order"
                    }
                    _ => "",
                };
                let servers = names.join(", ");
                format!("there are data files of inode {ino}, which does not exist, on {servers}{order}")
            }
            Found::Stray { ino, server, kept } => {
                let kept = match kept {
                    true => "; it may be of a time after the backup that the names are from, and is kept",
                    false => "",
                };
                format!(
                    "there is a data file of inode {ino} on {}, which has no part of it{kept}",
                    name(server)
                )
            }
        };
        if self.is_loss() {
            text.push_str("; restore the file from a copy, or give the lost part up with weft fsck --repair --accept-loss");
        }
        let mut end = text.len().min(FINDING_TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        let repairable = match self {
            Found::Name(finding) => finding.damage.is_repairable(),
            Found::Stray { kept: true, .. } => false,
            found => !found.is_loss(),
        };
        FindingInfo { text, repairable }
    }
}

fn file_name(ino: u64, path: &Option<String>) -> String {
    path.clone().unwrap_or_else(|| format!("inode {ino} (no name)"))
}
