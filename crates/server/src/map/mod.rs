//! What the metadata server knows of the cluster's map, and how it changes. Pure: who reads files, stores and
//! tells is elsewhere.
//!
//! Three tell where a server is: the cluster file that the metadata server reads, an operator (`weft server
//! move`), and the server itself, when it says which storage it has. Any of them may be behind the others, so
//! none counts for what it says, only for what it says *anew*: each is compared with its own last word.
//!
//! ```text
//!   cluster file   a:1 ──► a:1 ──────────────► b:2      its word of before is kept: an old file changes nothing
//!   operator              move to b:2                   said once
//!   the server     a:1 ──► a:1 ──► restarted, b:2
//!                  ─────┬────────┬─────────────┬─────
//!   the map        a:1  │ b:2 a:1│ b:2         │ b:2   what is intended, then where the server still is
//! ```
//!
//! A server gets its id when it comes into the map, its place among those of its role in the cluster file; it
//! is never given again. One that was added is *joining*, and no new file is striped over it, until it has
//! come with a storage.

mod error;
mod event;
mod kept;

pub use error::MapError;
pub(crate) use event::{Event, FileMap, endpoints_of};
pub(crate) use kept::{KeptMap, first_map};

#[cfg(test)]
mod tests {
    use super::event::FileServer;
    use super::*;
    use proptest::prelude::*;
    use weft_wire::Wire;
    use weft_wire::messages::{ClusterMapReply, Endpoint, ServerInfo, endpoint, server_state};

    const META: [u8; 16] = [9; 16];

    fn tcp(address: &str) -> Vec<Endpoint> {
        vec![Endpoint::new(endpoint::TCP, address)]
    }

    fn file(servers: &[(&str, &str)]) -> FileMap {
        let io = servers.iter().map(|(name, at)| FileServer { name: (*name).into(), endpoints: tcp(at) });
        FileMap {
            cluster_id: [1; 16],
            meta: FileServer { name: "meta0".into(), endpoints: tcp("m:1") },
            io: io.collect(),
            strip_bytes: 65536,
            server_count: 0,
        }
    }

    fn two() -> FileMap {
        file(&[("io0", "a:1"), ("io1", "b:1")])
    }

    fn came(id: u16, at: &str) -> Event {
        Event::Registered { id, storage: [id as u8 + 1; 16], endpoints: tcp(at), map_version: 0 }
    }

    /// Two servers that have come.
    fn kept() -> KeptMap {
        let kept = KeptMap::first(&two(), META, &[]);
        kept.after(&came(0, "a:1")).unwrap().after(&came(1, "b:1")).unwrap()
    }

    fn addresses(kept: &KeptMap, id: u16) -> Vec<String> {
        let server = kept.map.io_server(id).unwrap();
        server.addresses(endpoint::TCP).map(str::to_owned).collect()
    }

    fn moved(name: &str, at: &str) -> Event {
        Event::Moved { name: name.into(), endpoints: tcp(at) }
    }

    #[test]
    fn the_first_map_is_the_files_and_who_comes_brings_a_storage() {
        let first = KeptMap::first(&two(), META, &[]);
        assert_eq!((first.map.version, first.ring_servers(), first.check()), (1, 2, Ok(())));
        let kept = kept();
        assert_eq!(kept.map.version, 3);
        assert_eq!(kept.map.io_server(1).unwrap().storage, [2; 16]);
        assert_eq!(kept.after(&came(1, "b:1")).unwrap(), kept, "it says so every second");
        assert_eq!(kept.after(&Event::Started(two(), META)).unwrap(), kept);
        assert_eq!(KeptMap::from_bytes(&kept.to_bytes()).unwrap(), kept);
    }

    #[test]
    fn where_servers_were_known_before_there_were_maps_one_more_in_the_file_is_joining() {
        let three = file(&[("io0", "a:1"), ("io1", "b:1"), ("io2", "c:1")]);
        let kept = KeptMap::first(&three, META, &[(0, [1; 16]), (1, [2; 16])]);
        assert_eq!(kept.ring_servers(), 2);
        assert_eq!(kept.after(&came(2, "c:1")).unwrap().ring_servers(), 3);
    }

    #[test]
    fn an_added_server_has_no_new_files_before_it_has_come() {
        let added = Event::Added { name: "io2".into(), endpoints: tcp("c:1") };
        let joining = kept().after(&added).unwrap();
        let server = joining.map.io_server(2).unwrap();
        assert_eq!((server.name.as_str(), server.state), ("io2", server_state::JOINING));
        assert_eq!((joining.map.version, joining.ring_servers()), (4, 2));
        assert_eq!(joining.map.default_layout.server_count(), 2);
        assert_eq!(joining.after(&added).unwrap(), joining, "twice is once");
        let there = joining.after(&came(2, "c:1")).unwrap();
        assert_eq!((there.map.version, there.ring_servers()), (5, 3));
        assert_eq!(there.map.default_layout.server_count(), 3);
        let other = Event::Added { name: "io2".into(), endpoints: tcp("d:1") };
        assert!(matches!(there.after(&other), Err(MapError::NameTaken { .. })));
        let taken = Event::Added { name: "io3".into(), endpoints: tcp("c:1") };
        assert!(matches!(there.after(&taken), Err(MapError::AddressTaken { .. })));
        // The file of before does not know it, which is no reason to lose it; the newest changes nothing.
        assert_eq!(there.after(&Event::Started(two(), META)).unwrap(), there);
        let three = file(&[("io0", "a:1"), ("io1", "b:1"), ("io2", "c:1")]);
        let read = there.after(&Event::Reread(three)).unwrap();
        assert_eq!(read.map, there.map);
        assert!(matches!(read.after(&Event::Reread(two())), Err(MapError::Missing { id: 2, .. })));
    }

    #[test]
    fn a_move_is_safe_in_any_order() {
        let new = file(&[("io0", "a:1"), ("io1", "c:1")]);
        let started = |file: &FileMap| Event::Started(file.clone(), META);
        let told = kept().after(&moved("io1", "c:1")).unwrap();
        assert_eq!(addresses(&told, 1), ["c:1", "b:1"]);
        // It goes on where it was, and says so.
        assert_eq!(told.after(&came(1, "b:1")).unwrap(), told);
        assert_eq!(addresses(&told.after(&came(1, "c:1")).unwrap(), 1), ["c:1"]);
        // The metadata server's file first, then the server.
        let read = kept().after(&started(&new)).unwrap();
        assert_eq!(addresses(&read, 1), ["c:1", "b:1"]);
        assert_eq!(addresses(&read.after(&came(1, "c:1")).unwrap(), 1), ["c:1"]);
        // The server first: the metadata server's file is old, and stays so for a while.
        let came_first = kept().after(&came(1, "c:1")).unwrap();
        assert_eq!(addresses(&came_first, 1), ["c:1"]);
        let restarted = came_first.after(&started(&two())).unwrap();
        assert_eq!(addresses(&restarted, 1), ["c:1"], "an old file changes nothing");
        assert_eq!(addresses(&restarted.after(&started(&new)).unwrap(), 1), ["c:1"]);
    }

    #[test]
    fn the_metadata_server_is_where_it_has_started() {
        let told = kept().after(&moved("meta0", "n:1")).unwrap();
        let at = |kept: &KeptMap| {
            kept.map.servers[0].addresses(endpoint::TCP).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(at(&told), ["n:1", "m:1"]);
        let mut new = two();
        new.meta.endpoints = tcp("n:1");
        assert_eq!(at(&kept().after(&Event::Reread(new.clone())).unwrap()), ["n:1", "m:1"]);
        let started = told.after(&Event::Started(new, META)).unwrap();
        assert_eq!(at(&started), ["n:1"]);
    }

    #[test]
    fn servers_that_change_places_have_no_address_of_another() {
        let swapped = file(&[("io0", "b:1"), ("io1", "c:1")]);
        let read = kept().after(&Event::Started(swapped, META)).unwrap();
        assert_eq!(addresses(&read, 0), ["b:1", "a:1"]);
        assert_eq!(addresses(&read, 1), ["c:1"], "b:1 is the other one's from now on");
        let reordered = file(&[("io1", "b:1"), ("io0", "a:1")]);
        assert!(matches!(kept().after(&Event::Reread(reordered)), Err(MapError::Reordered { .. })));
    }

    #[test]
    fn who_was_told_a_newer_map_than_the_store_has_is_told_one_that_is_newer_still() {
        let event = Event::Registered { id: 0, storage: [1; 16], endpoints: tcp("a:1"), map_version: 70 };
        assert_eq!(kept().after(&event).unwrap().map.version, 71);
    }

    #[test]
    fn while_nobody_has_come_the_file_may_still_lose_servers() {
        let kept = KeptMap::first(&two(), META, &[]);
        let one = kept.after(&Event::Started(file(&[("io0", "a:1")]), META)).unwrap();
        assert_eq!((one.map.version, one.ring_servers()), (2, 1));
    }

    /// What really is: where each server listens, and what each file says.
    #[derive(Debug, Clone)]
    struct World {
        kept: KeptMap,
        at: Vec<Option<String>>,
        files: Vec<FileMap>,
    }

    fn step(world: &mut World, choice: u8, which: usize, address: u8) {
        let count = world.kept.map.io_servers().count();
        let at = format!("h:{address}");
        let id = which % count;
        let name = world.kept.map.io_server(id as u16).unwrap().name.clone();
        let before = world.kept.clone();
        let event = match choice {
            0 => Event::Added { name: format!("new{which}"), endpoints: tcp(&at) },
            1 | 2 => Event::Moved { name, endpoints: tcp(&at) },
            3 | 4 => {
                let stays = world.at[id].clone().filter(|_| choice == 3);
                let at = stays.unwrap_or(at);
                world.at[id] = Some(at.clone());
                came(id as u16, &at)
            }
            // Any file that there ever was, or the newest, changed.
            5 => Event::Reread(world.files[which % world.files.len()].clone()),
            6 => Event::Started(world.files[which % world.files.len()].clone(), META),
            _ => {
                let listed = |server: &ServerInfo| FileServer {
                    name: server.name.clone(),
                    endpoints: server.endpoints[..1].to_vec(),
                };
                let mut file = two();
                file.io = world.kept.map.io_servers().map(listed).collect();
                match choice {
                    7 => file.io[id].endpoints = tcp(&at),
                    8 => drop(file.io.pop()),
                    _ => file.io.swap(0, id),
                }
                world.files.push(file.clone());
                Event::Reread(file)
            }
        };
        let Ok(after) = before.after(&event) else { return };
        assert_eq!(after.check(), Ok(()), "{event:?}");
        assert_eq!(after.after(&event).unwrap(), after, "what is heard twice changes nothing: {event:?}");
        let is_same = ClusterMapReply { version: 0, ..after.map.clone() }
            == ClusterMapReply { version: 0, ..before.map.clone() };
        assert_eq!(after.map.version, before.map.version + u32::from(!is_same), "{event:?}");
        assert!(after.ring_servers() >= before.ring_servers(), "{event:?}");
        for server in before.map.io_servers() {
            let now = after.map.io_server(server.id).expect("no server is lost");
            assert!(server.storage == [0; 16] || now.storage == server.storage);
        }
        world.at.resize(after.map.io_servers().count(), None);
        for (id, at) in world.at.iter().enumerate() {
            let Some(at) = at else { continue };
            let is_there = addresses(&after, id as u16).contains(at);
            let is_anothers = after.words[1..]
                .iter()
                .enumerate()
                .any(|(other, words)| other != id && words.intended == tcp(at));
            assert!(is_there || is_anothers, "I/O server {id} is at {at}: {event:?}, {:?}", after.map);
        }
        world.kept = after;
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(2000))]
        #[test]
        fn versions_rise_with_every_change_and_no_server_or_place_is_lost(
            steps in proptest::collection::vec((0u8..10, 0usize..6, 0u8..8), 1..40)
        ) {
            let kept = kept();
            let mut world =
                World { kept, at: vec![Some("a:1".into()), Some("b:1".into())], files: vec![two()] };
            for (choice, which, address) in steps {
                step(&mut world, choice, which, address);
            }
        }
    }
}
