//! Which files the load is about: what servers have counted by inode, and the paths of these inodes.
//!
//! ```text
//!   two looks at all servers ─► requests and bytes per second by inode ─► paths: known ones, or looked for among all names,
//!                                                                          a part at each look
//! ```

use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_wire::limits::FIND_INODES_MAX;
use weft_wire::messages::{BusyInode, NamePlace, StatusReply};

/// So many bytes are as much load as a request.
pub const BYTES_PER_LOAD: f64 = 65_536.0;
/// How long paths are looked for at each look.
const FIND_TIME: Duration = Duration::from_millis(300);
/// After this time paths are looked for anew: files are renamed.
const PATHS_AGE: Duration = Duration::from_secs(300);

/// What was done with a file at all servers, per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileLoad {
    /// Its inode.
    pub ino: u64,
    /// A path of it, once it is found. A file that was removed has none.
    pub path: Option<String>,
    /// Requests to all servers.
    pub requests_per_s: f64,
    /// Bytes that were read.
    pub read_bytes_per_s: f64,
    /// Bytes that were written.
    pub written_bytes_per_s: f64,
}

impl FileLoad {
    fn load(&self) -> f64 {
        self.requests_per_s + (self.read_bytes_per_s + self.written_bytes_per_s) / BYTES_PER_LOAD
    }

    /// Its path, or the number of its inode.
    pub fn name(&self) -> String {
        self.path.clone().unwrap_or_else(|| format!("inode {}", self.ino))
    }
}

/// The loads between two looks at servers, the busiest first. A server may have begun anew to count for an inode meanwhile.
pub fn between(pairs: &[(Option<&StatusReply>, &StatusReply)], seconds: f64) -> Vec<FileLoad> {
    let mut files: HashMap<u64, FileLoad> = HashMap::new();
    for (before, now) in pairs {
        let old: HashMap<u64, BusyInode> = before
            .map(|before| before.busy.0.iter().map(|inode| (inode.ino, *inode)).collect())
            .unwrap_or_default();
        for inode in &now.busy.0 {
            let old = old.get(&inode.ino).copied().filter(|old| old.requests <= inode.requests);
            // What is not in the list of before was not busy: all that is counted is new, or little.
            let old = old.unwrap_or_default();
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
            let file = files.entry(inode.ino).or_insert(FileLoad {
                ino: inode.ino,
                path: None,
                requests_per_s: 0.0,
                read_bytes_per_s: 0.0,
                written_bytes_per_s: 0.0,
            });
            file.requests_per_s += rate(inode.requests, old.requests);
            file.read_bytes_per_s += rate(inode.read_bytes, old.read_bytes);
            file.written_bytes_per_s += rate(inode.written_bytes, old.written_bytes);
        }
    }
    let mut files: Vec<FileLoad> = files.into_values().filter(|file| file.requests_per_s > 0.0).collect();
    files.sort_by(|one, other| other.load().total_cmp(&one.load()).then(one.ino.cmp(&other.ino)));
    files
}

/// Paths of inodes, as far as they were found.
pub struct Paths {
    since: Instant,
    known: HashMap<u64, Option<String>>,
    /// Those that are looked for, and whether since the first of all names.
    missing: HashMap<u64, bool>,
    place: NamePlace,
}

impl Paths {
    /// None is known.
    pub fn new() -> Paths {
        Paths {
            since: Instant::now(),
            known: HashMap::new(),
            missing: HashMap::new(),
            place: NamePlace::default(),
        }
    }

    /// Says the paths of the busiest of `files`, as far as they are found in a moment. Not for who may not know them.
    pub fn fill(&mut self, client: &Client, files: &mut [FileLoad]) {
        let busiest = files.len().min(FIND_INODES_MAX);
        let files = &mut files[..busiest];
        if self.since.elapsed() > PATHS_AGE {
            *self = Paths::new();
        }
        self.missing.retain(|ino, _| files.iter().any(|file| file.ino == *ino));
        for file in files.iter() {
            if !self.known.contains_key(&file.ino) {
                self.missing.entry(file.ino).or_insert(self.place == NamePlace::default());
            }
        }
        let until = Instant::now() + FIND_TIME;
        while !self.missing.is_empty() && Instant::now() < until {
            let inodes: Vec<u64> = self.missing.keys().copied().collect();
            let Ok((found, next)) = client.find_paths(&inodes, self.place, until) else { break };
            for path in found {
                self.missing.remove(&path.ino);
                self.known.insert(path.ino, Some(String::from_utf8_lossy(&path.path).into_owned()));
            }
            self.go_on(next);
        }
        for file in files {
            file.path = self.known.get(&file.ino).cloned().flatten();
        }
    }

    /// What was looked for among all names and not found has no name; the others are looked for from the first name on.
    fn go_on(&mut self, next: Option<NamePlace>) {
        self.place = next.unwrap_or_default();
        if next.is_some() {
            return;
        }
        for (ino, is_whole) in std::mem::take(&mut self.missing) {
            match is_whole {
                true => drop(self.known.insert(ino, None)),
                false => drop(self.missing.insert(ino, true)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::{Added, Wire};

    fn status(busy: &[(u64, u64, u64, u64)]) -> StatusReply {
        let inode = |(ino, requests, read_bytes, written_bytes): &(u64, u64, u64, u64)| BusyInode {
            ino: *ino,
            requests: *requests,
            read_bytes: *read_bytes,
            written_bytes: *written_bytes,
        };
        StatusReply { busy: Added(busy.iter().map(inode).collect()), ..StatusReply::sample(&mut 0) }
    }

    #[test]
    fn loads_are_summed_over_servers_and_the_busiest_is_first() {
        let before = [status(&[(7, 100, 0, 0), (8, 50, 1 << 20, 0)]), status(&[(8, 10, 0, 0)])];
        let now =
            [status(&[(8, 52, 3 << 20, 0), (7, 120, 0, 0)]), status(&[(8, 12, 0, 2 << 20), (9, 4, 0, 0)])];
        let pairs = [(Some(&before[0]), &now[0]), (Some(&before[1]), &now[1])];
        let files = between(&pairs, 2.0);
        let shown: Vec<_> = files.iter().map(|file| (file.ino, file.requests_per_s)).collect();
        assert_eq!(shown, [(8, 2.0), (7, 10.0), (9, 2.0)]);
        assert_eq!((files[0].read_bytes_per_s, files[0].written_bytes_per_s), (1_048_576.0, 1_048_576.0));
        assert_eq!(files[0].name(), "inode 8");
    }

    #[test]
    fn a_count_that_began_anew_or_stands_still_is_no_negative_load() {
        let (before, now) = (status(&[(7, 100, 9, 9), (8, 5, 0, 0)]), status(&[(7, 6, 0, 0), (8, 5, 0, 0)]));
        let files = between(&[(Some(&before), &now)], 1.0);
        assert_eq!(files.iter().map(|file| (file.ino, file.requests_per_s)).collect::<Vec<_>>(), [(7, 6.0)]);
    }

    #[test]
    fn who_is_missed_in_a_whole_pass_has_no_name() {
        let mut paths = Paths::new();
        paths.missing = HashMap::from([(7, true), (8, false)]);
        paths.go_on(Some(NamePlace { dir: 4, cookie: 9 }));
        assert_eq!((paths.missing.len(), paths.place.dir), (2, 4));
        paths.go_on(None);
        assert_eq!((paths.missing, paths.known), (HashMap::from([(8, true)]), HashMap::from([(7, None)])));
    }
}
