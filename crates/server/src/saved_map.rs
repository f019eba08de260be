//! The last map that an I/O server was told, in its directory: after a restart it finds a metadata server that has moved meanwhile, and
//! tells clients of it.
//!
//! ```text
//!   weft-map:   "weft-map 1\n" │ CRC-32C, 4 bytes │ ClusterMapReply, as on the wire
//! ```

use crate::log;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use weft_wire::Wire;
use weft_wire::messages::ClusterMapReply;

const FILE: &str = "weft-map";
const FRESH_FILE: &str = ".weft-map.new";
const FIRST_LINE: &[u8] = b"weft-map 1\n";

/// The map in this directory, if there is one of this cluster. One that is damaged counts as none: the server is told a new one.
pub(crate) fn load(server: &str, directory: &Path, cluster_id: [u8; 16]) -> Option<ClusterMapReply> {
    let path = directory.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            log::warning!(server, "cannot read {}: {error}", path.display());
            return None;
        }
    };
    let map = decode(&bytes).filter(|map| map.cluster_id == cluster_id);
    if map.is_none() {
        log::warning!(server, "{} is damaged, and not used", path.display());
    }
    map
}

fn decode(bytes: &[u8]) -> Option<ClusterMapReply> {
    let (checksum, body) = bytes.strip_prefix(FIRST_LINE)?.split_first_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    ClusterMapReply::from_bytes(body).ok().filter(|map| map.check().is_ok())
}

/// Puts a map there, in place of the one before.
pub(crate) fn save(directory: &Path, map: &ClusterMapReply) -> io::Result<()> {
    let body = map.to_bytes();
    let fresh = directory.join(FRESH_FILE);
    let mut file = File::create(&fresh)?;
    file.write_all(&[FIRST_LINE, &crc32c::crc32c(&body).to_le_bytes(), &body].concat())?;
    file.sync_data()?;
    std::fs::rename(&fresh, directory.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SyncMode;

    #[test]
    fn a_map_is_found_again_and_a_damaged_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let map = crate::map::first_map(&crate::tests::config(2, SyncMode::Sync));
        let cluster = map.cluster_id;
        assert_eq!(load("io0", directory.path(), cluster), None);
        save(directory.path(), &map).unwrap();
        assert_eq!(load("io0", directory.path(), cluster), Some(map));
        assert_eq!(load("io0", directory.path(), [9; 16]), None, "of another cluster");
        let path = directory.path().join(FILE);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(decode(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn damaged_maps_are_none_or_sound() {
        let map = crate::map::first_map(&crate::tests::config(2, SyncMode::Sync));
        weft_test_fuzz::run("map", &[map.to_bytes()], |body| {
            let _ = decode(body);
            // Without a right checksum nothing else would be reached.
            let whole = [FIRST_LINE, &crc32c::crc32c(body).to_le_bytes(), body].concat();
            if let Some(map) = decode(&whole) {
                assert_eq!(map.to_bytes(), body);
            }
        });
    }
}
