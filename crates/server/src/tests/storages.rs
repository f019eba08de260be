//! When a metadata server that was started again serves names. The I/O servers are this file's: each says what it is told to.

use super::sockets::{Running, TIMEOUT, on_disk};
use super::support::*;
use crate::config::ClusterConfig;
use weft_transport::{TcpLink, TcpOptions, connect_tcp};
use weft_wire::messages::*;

/// An I/O server that says that it is there, and what it knows.
struct Told {
    id: u16,
    link: Client<TcpLink>,
    /// The last reply whose mark it has noted.
    noted: Option<RegisterReply>,
}

impl Told {
    fn connect(config: &ClusterConfig, id: u16, noted: Option<RegisterReply>) -> Told {
        let address = config.server("meta0").unwrap().addresses[0].parse().unwrap();
        let mut link = Client::new(connect_tcp(address, &TcpOptions::default(), TIMEOUT).unwrap());
        link.prove(&cluster_key().server_key(), &hello(peer_role::SERVER, [id as u8 + 2; 16])).unwrap();
        Told { id, link, noted }
    }

    /// Says what it knows; the reply is not noted.
    fn says(&mut self) -> RegisterReply {
        let (meta_storage, meta_mark, meta_run) = match &self.noted {
            Some(reply) => (reply.meta_storage, reply.meta_mark, reply.meta_run),
            None => Default::default(),
        };
        let storage = [0xa0 + self.id as u8; 16];
        let request = RegisterRequest {
            id: self.id,
            storage,
            mark: 1,
            run: storage,
            meta_storage,
            meta_mark,
            meta_run,
            endpoints: Vec::new(),
            map_version: 0,
        };
        self.link.call(&request).unwrap()
    }

    /// Says what it knows, and notes the reply.
    fn comes(&mut self) -> RegisterReply {
        let reply = self.says();
        self.noted = Some(reply.clone());
        reply
    }

    fn sees_names(&mut self) -> bool {
        let servers = self.link.call(&ListServersRequest {}).unwrap().servers;
        servers[0].state == "up"
    }
}

/// A metadata server that was started again, with two I/O servers that know its run before.
fn started_again(config: &ClusterConfig) -> (Running, [Told; 2]) {
    let running = Running::start(config, "meta0");
    let mut told = [0, 1].map(|id| Told::connect(config, id, None));
    let met = || told.iter_mut().all(|io| io.comes().serves_names && io.comes().meta_mark > 0);
    eventually("both are known", met);
    running.end();
    let running = Running::start(config, "meta0");
    (running, told.map(|io| Told::connect(config, io.id, io.noted)))
}

#[test]
fn names_are_served_once_all_have_noted_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let (running, [mut one, mut other]) = started_again(&config);
    let before = one.noted.clone().unwrap();
    assert_eq!(one.says().meta_run, before.meta_run, "nothing is counted up before both have agreed");
    let reply = other.says();
    assert!(reply.meta_run != before.meta_run && reply.meta_mark > before.meta_mark);
    assert!(!reply.serves_names && !other.sees_names(), "nobody knows of this run");
    assert!(!other.comes().serves_names, "it has not said yet that it has noted it");
    assert!(!other.comes().serves_names, "the other one has not");
    assert_eq!(one.comes().meta_run, reply.meta_run);
    assert!(one.comes().serves_names && other.sees_names());
    running.end();
}

#[test]
fn one_that_agrees_and_does_not_note_the_run_is_waited_for_a_moment() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let (running, [mut one, mut other]) = started_again(&config);
    one.says();
    other.says();
    // However long nobody knows the run, no names are served.
    std::thread::sleep(crate::meta::registry::SETTLING * 2);
    assert!(!one.says().serves_names && !other.says().serves_names);
    one.comes();
    assert!(one.comes().serves_names, "one knows it, and a second has passed");
    running.end();
}
