//! What a check finds.

use crate::current::name_of;
use std::collections::BTreeMap;
use weft_layout::Layout;
use weft_meta::{Finding, SizeFound};
use weft_wire::limits::FINDING_TEXT_BYTES_MAX;
use weft_wire::messages::{ClusterMapReply, FindingInfo};

/// Something that is wrong.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// A record of names; `paths` has those of the inodes that it is about.
    Name { finding: Finding, paths: BTreeMap<u64, String> },
    /// The data files have another size than is recorded.
    Size { found: SizeFound, recorded: u64, missing_on: Option<String>, path: Option<String> },
    /// What these servers had of the file is gone: with a storage that was replaced, or from the one that they have.
    Lost { ino: u64, path: Option<String>, servers: Vec<u16>, replaced: bool },
    /// Data files of no inode: server and size of each, and how the file was striped, if they tell.
    NoInode { ino: u64, parts: Vec<(u16, u64)>, layout: Option<Layout> },
    /// A data file on a server that has no part of the file, or of an inode that has no data. It is kept
    /// where the names may have forgotten what it is.
    Stray { ino: u64, server: u16, kept: bool, path: Option<String> },
}

impl Found {
    /// The inodes that it is about, whose paths are looked for.
    pub fn inos(&self) -> Vec<u64> {
        match self {
            Found::Name { finding, .. } => finding.damage.inos(),
            Found::Size { found, .. } => vec![found.ino],
            Found::Lost { ino, .. } | Found::Stray { ino, .. } => vec![*ino],
            Found::NoInode { .. } => Vec::new(),
        }
    }

    /// Takes the paths of its inodes.
    pub fn name(&mut self, all: &BTreeMap<u64, String>) {
        let inos = self.inos();
        let known = |ino: &u64| all.get(ino).cloned();
        match self {
            Found::Name { paths, .. } => {
                paths.extend(inos.into_iter().filter_map(|ino| Some((ino, known(&ino)?))));
            }
            Found::Size { path, .. } | Found::Lost { path, .. } | Found::Stray { path, .. } => {
                *path = known(&inos[0]);
            }
            Found::NoInode { .. } => {}
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
            Found::Name { finding, paths } => with_paths(finding.damage.to_string(), paths),
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
            Found::Stray { ino, server, kept, path } => {
                let kept = match kept {
                    true => "; it may be of a time after the backup that the names are from, and is kept",
                    false => "",
                };
                format!(
                    "there is a data file of {} on {}, which has no part of it{kept}",
                    file_name(*ino, path),
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
            Found::Name { finding, .. } => finding.damage.is_repairable(),
            Found::Stray { kept: true, .. } => false,
            found => !found.is_loss(),
        };
        FindingInfo { text, repairable }
    }
}

fn file_name(ino: u64, path: &Option<String>) -> String {
    path.clone().unwrap_or_else(|| format!("inode {ino} (no name)"))
}

/// Replaces inode numbers in a text by paths, where these are known.
fn with_paths(mut text: String, paths: &BTreeMap<u64, String>) -> String {
    for (ino, path) in paths {
        for (words, kept) in [("directory", "directory "), ("file", "file "), ("inode", "")] {
            let number = format!("{words} {ino}");
            let is_whole =
                |at: usize| !text[at + number.len()..].starts_with(|next: char| next.is_ascii_digit());
            if let Some(at) = text.match_indices(&number).map(|(at, _)| at).find(|at| is_whole(*at)) {
                text.replace_range(at..at + number.len(), &format!("{kept}{path}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stand_for_numbers() {
        let paths = [(7, "/a".to_owned()), (71, "/a/b".to_owned())].into();
        for (text, expected) in [
            ("inode 7 counts 2 links, but has 1", "/a counts 2 links, but has 1"),
            ("inode 71 has no name", "/a/b has no name"),
            ("inode 711 has no name", "inode 711 has no name"),
            (
                "entry \"b\" of directory 7 leads to inode 71, which",
                "entry \"b\" of directory /a leads to /a/b, which",
            ),
            ("small file 71 is of 3 bytes", "small file /a/b is of 3 bytes"),
            ("directory 7 counts 71 entries, but has 7", "directory /a counts 71 entries, but has 7"),
        ] {
            assert_eq!(with_paths(text.to_owned(), &paths), expected);
        }
    }
}
