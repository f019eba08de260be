//! Hosts that are network namespaces, joined by a bridge.
//!
//! ```text
//!    node1 10.77.N.1     node2 10.77.N.2     client 10.77.N.3        each a namespace with a veth
//!          └─────────────────┴───────┬────────┘
//!                                 bridge                             in a namespace of its own
//! ```

use crate::{end_with_parent, expect_success};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The namespaces; gone when dropped.
#[derive(Debug)]
pub struct Network {
    prefix: String,
    subnet: u32,
    hosts: Vec<String>,
}

fn run(words: &[&str]) {
    let output = Command::new(words[0])
        .args(&words[1..])
        .output()
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    expect_success(&words.join(" "), &output);
}

impl Network {
    /// Hosts of these names, at addresses that end with .1, .2, ….
    #[must_use]
    pub fn new(hosts: &[&str]) -> Network {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("weft{}x{number}", std::process::id());
        let hosts: Vec<_> = hosts.iter().map(|host| host.to_string()).collect();
        let network = Network { prefix, subnet: (std::process::id() * 7 + number) % 250, hosts };
        let bridge = network.namespace("bridge");
        run(&["ip", "netns", "add", &bridge]);
        run(&["ip", "-n", &bridge, "link", "add", "br0", "type", "bridge"]);
        run(&["ip", "-n", &bridge, "link", "set", "br0", "up"]);
        for host in &network.hosts {
            let (namespace, address) = (network.namespace(host), format!("{}/24", network.address(host)));
            run(&["ip", "netns", "add", &namespace]);
            run(&[
                "ip", "-n", &bridge, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns",
                &namespace,
            ]);
            run(&["ip", "-n", &bridge, "link", "set", host, "master", "br0", "up"]);
            run(&["ip", "-n", &namespace, "addr", "add", &address, "dev", "eth0"]);
            run(&["ip", "-n", &namespace, "link", "set", "eth0", "up"]);
            run(&["ip", "-n", &namespace, "link", "set", "lo", "up"]);
        }
        network
    }

    /// The name of a host's namespace.
    pub fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// A host's address.
    pub fn address(&self, host: &str) -> String {
        let index = self.hosts.iter().position(|name| name == host).expect("one of the hosts");
        format!("10.77.{}.{}", self.subnet, index + 1)
    }

    /// Cuts a host's cable ("down"), or mends it ("up").
    pub fn link(&self, host: &str, state: &str) {
        run(&["ip", "-n", &self.namespace("bridge"), "link", "set", host, state]);
    }

    /// A program on a host. It ends with the calling thread.
    pub fn inside(&self, host: &str, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host)]).arg(program);
        end_with_parent(&mut command);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in self.hosts.iter().map(String::as_str).chain(["bridge"]) {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(host)]).output();
        }
    }
}
