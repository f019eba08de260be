//! What the data files of a file come to: whose they are, and how many bytes they have.

use super::found::Found;
use std::collections::{BTreeMap, HashMap};
use weft_layout::{ChainId, Layout};
use weft_meta::{FileState, Owner, SizeFound};
use weft_wire::messages::ClusterMapReply;

/// Strip size for a file that is made of a single data file, where it means nothing.
const STRIP_BYTES: u32 = 1 << 20;

/// Whether a data file on this server is no part of what its inode is.
pub(crate) fn is_nobodys(owner: &Owner, server: u16) -> bool {
    match owner {
        Owner::File(file) => file.layout.slot_of_chain(ChainId::of_single(server)).is_none(),
        Owner::Other | Owner::Nothing => true,
        Owner::Unsettled => false,
    }
}

/// The layout that a file has whose data files are on these servers, as far as can be told.
pub(crate) fn layout_over(parts: &[(u16, u64)], usual: &Layout) -> Layout {
    let ring = usual.ring_servers();
    let of_one = parts.first().filter(|_| parts.len() == 1);
    let one = of_one.and_then(|(id, _)| Layout::new(STRIP_BYTES, *id, 1, ring).ok());
    let all = || Layout::new(usual.strip_bytes(), 0, ring, ring).unwrap_or(*usual);
    let fits = parts.iter().all(|(id, _)| usual.slot_of_chain(ChainId::of_single(*id)).is_some());
    one.unwrap_or_else(|| if fits { *usual } else { all() })
}

/// Sizes of data files, by inode and server.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub parts: HashMap<(u64, u16), u64>,
    /// Inodes with the servers that have lost data of them.
    pub has_lost: BTreeMap<u64, Vec<u16>>,
}

impl Sizes {
    /// The size that a file's data files come to, and the server with its recorded last byte if that has
    /// none.
    pub fn of(&self, file: &FileState) -> (u64, Option<u16>) {
        let layout = &file.layout;
        let part = |slot| self.parts.get(&(file.ino, layout.chain(slot).single_server())).copied();
        let ends = (0..layout.server_count()).map(|slot| layout.logical_size(slot, part(slot).unwrap_or(0)));
        let has_last = |slot: &u16| {
            file.bytes > 0 && layout.logical_size(*slot, layout.local_size(*slot, file.bytes)) == file.bytes
        };
        let last = (0..layout.server_count()).find(has_last);
        let missing =
            last.filter(|slot| part(*slot).is_none()).map(|slot| layout.chain(slot).single_server());
        (ends.max().unwrap_or(0), missing)
    }

    /// A server that must have had bytes of the file, has none, and may not be taken for having had none.
    pub fn lost(&self, file: &FileState, lost_below: &BTreeMap<u16, u64>) -> Option<u16> {
        let layout = &file.layout;
        let servers = (0..layout.server_count()).map(|slot| (slot, layout.chain(slot).single_server()));
        let mut lost = servers.filter(|(slot, id)| {
            lost_below.get(id).is_some_and(|below| file.ino < *below)
                && layout.local_size(*slot, file.bytes) > 0
                && !self.parts.contains_key(&(file.ino, *id))
        });
        lost.next().map(|(_, id)| id)
    }

    /// What is wrong with a file whose size is not the one recorded.
    pub fn finding(&self, file: &FileState, map: &ClusterMapReply) -> Found {
        let (bytes, missing) = self.of(file);
        let name = |id: u16| map.io_server(id).map(|server| server.name.clone());
        Found::Size {
            found: SizeFound { ino: file.ino, epoch: file.epoch, bytes },
            recorded: file.bytes,
            missing_on: missing.and_then(name),
            path: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> FileState {
        let layout = Layout::new(4096, 1, 3, 4).unwrap();
        FileState { ino: 7, layout, bytes, may_have_data: true, is_settled: true, epoch: 1 }
    }

    #[test]
    fn a_size_is_the_greatest_end_and_the_missing_server_has_the_last_byte() {
        // Strips: 0 on server 1, 1 on server 2, 2 on server 3.
        let mut sizes = Sizes { parts: HashMap::from([((7, 1), 4096), ((7, 2), 10)]), ..Sizes::default() };
        assert_eq!(sizes.of(&file(4106)), (4106, None));
        assert_eq!(sizes.of(&file(9000)), (4106, Some(3)));
        sizes.parts.insert((7, 3), 1);
        assert_eq!(sizes.of(&file(9000)), (8193, None));
        assert_eq!(Sizes::default().of(&file(0)), (0, None));
    }

    #[test]
    fn data_is_lost_where_a_replaced_server_must_have_had_some() {
        let sizes = Sizes { parts: HashMap::from([((7, 1), 4096)]), ..Sizes::default() };
        let replaced = |id, below| BTreeMap::from([(id, below)]);
        assert_eq!(sizes.lost(&file(9000), &replaced(2, 8)), Some(2));
        assert_eq!(sizes.lost(&file(9000), &replaced(2, 7)), None, "it is younger than the storage");
        assert_eq!(sizes.lost(&file(9000), &replaced(1, 8)), None, "it is there");
        assert_eq!(sizes.lost(&file(4096), &replaced(2, 8)), None, "it has no byte there");
        assert_eq!(sizes.lost(&file(9000), &replaced(0, 8)), None, "it has no part of the file");
    }

    #[test]
    fn data_files_become_a_file_that_reaches_them_all() {
        let usual = Layout::new(4096, 1, 2, 4).unwrap();
        let one = layout_over(&[(3, 50)], &usual);
        assert_eq!((one.server_count(), one.chain(0).single_server()), (1, 3));
        assert_eq!(layout_over(&[(1, 50), (2, 5)], &usual), usual);
        let all = layout_over(&[(1, 50), (0, 5)], &usual);
        assert_eq!((all.server_count(), all.strip_bytes()), (4, 4096));
    }

    #[test]
    fn data_is_nobodys_where_its_file_has_no_part() {
        let owner = Owner::File(file(1));
        assert!(is_nobodys(&owner, 0) && !is_nobodys(&owner, 2));
        assert!(is_nobodys(&Owner::Nothing, 2) && !is_nobodys(&Owner::Unsettled, 2));
    }
}
