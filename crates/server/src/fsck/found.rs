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
    },
    /// What this server had of the file was on a storage that is gone.
    Lost {
        ino: u64,
        server: u16,
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
    /// As it is reported.
    pub fn info(&self, map: &ClusterMapReply) -> FindingInfo {
        let name = |id: &u16| name_of(map, *id);
        let mut text = match self {
            Found::Name(finding) => finding.damage.to_string(),
            Found::Size { found, recorded, missing_on: None } => {
                format!("file {} has {recorded} bytes, but its data files have {}", found.ino, found.bytes)
            }
            Found::Size { found, recorded, missing_on: Some(server) } => format!(
                "file {} has {recorded} bytes, but its data file on {server} is missing; the others have {}",
                found.ino, found.bytes
            ),
            Found::Lost { ino, server } => format!(
                "file {ino} has lost the data that {} had of it: the server's storage was replaced, or the file was removed after \
                 the backup that the names are from; to find its name: find MOUNT -inum {ino}",
                name(server)
            ),
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
        let mut end = text.len().min(FINDING_TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        let repairable = match self {
            Found::Name(finding) => finding.damage.is_repairable(),
            Found::Lost { .. } | Found::Stray { kept: true, .. } => false,
            _ => true,
        };
        FindingInfo { text, repairable }
    }
}
