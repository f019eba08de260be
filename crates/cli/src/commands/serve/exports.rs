//! The exports of a cluster file as the gateway takes them.

use crate::gateway_state::Export;
use std::net::{IpAddr, ToSocketAddrs};
use weft_nfs::{ExportOptions, Identities, Network, Rule, Squash};
use weft_server::config::{ExportAccess, ExportConfig, ExportSquash};

/// Exports in use, and which of their clients' names have no address at the moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Resolved {
    pub(super) exports: Vec<ExportOptions>,
    pub(super) unknown: Vec<String>,
}

/// What is exported, with the addresses that `resolve` finds for names of hosts.
pub(super) fn resolved(exports: &[ExportConfig], resolve: &dyn Fn(&str) -> Vec<IpAddr>) -> Resolved {
    let mut unknown = Vec::new();
    let exports = exports.iter().map(|export| {
        let mut rules = Vec::new();
        for client in &export.clients {
            let networks = networks_of(client, resolve);
            if networks.is_empty() {
                unknown.push(client.clone());
            }
            rules.extend(networks.into_iter().map(|clients| rule(export, clients)));
        }
        ExportOptions { path: export.path.clone(), rules }
    });
    let exports = exports.collect();
    unknown.sort();
    unknown.dedup();
    Resolved { exports, unknown }
}

fn networks_of(client: &str, resolve: &dyn Fn(&str) -> Vec<IpAddr>) -> Vec<Network> {
    match client.parse() {
        Ok(network) => vec![network],
        Err(_) => resolve(client).into_iter().map(Network::of_address).collect(),
    }
}

fn rule(export: &ExportConfig, clients: Network) -> Rule {
    let squash = match export.squash {
        ExportSquash::None => Squash::None,
        ExportSquash::Root => Squash::Root,
        ExportSquash::All => Squash::All,
    };
    let anonymous = (export.anonymous_uid, export.anonymous_gid);
    Rule {
        clients,
        read_only: export.access == ExportAccess::ReadOnly,
        insecure: export.insecure_ports,
        identities: Identities { squash, anonymous, ..Identities::default() },
    }
}

/// An export as commands show it.
pub(super) fn shown(export: &ExportConfig) -> Export {
    let access = match export.access {
        ExportAccess::ReadOnly => "ro",
        ExportAccess::ReadWrite => "rw",
    };
    let squash = match export.squash {
        ExportSquash::None => "none",
        ExportSquash::Root => "root",
        ExportSquash::All => "all",
    };
    Export {
        path: export.path.clone(),
        clients: export.clients.clone(),
        access: access.into(),
        squash: squash.into(),
        anonymous_uid: export.anonymous_uid,
        anonymous_gid: export.anonymous_gid,
        insecure_ports: export.insecure_ports,
    }
}

/// An export in words.
pub(super) fn about(export: &ExportConfig) -> String {
    let Export { path, clients, access, squash, insecure_ports, .. } = shown(export);
    let ports = if insecure_ports { ", any port" } else { "" };
    format!("{path} to {} ({access}, squash {squash}{ports})", clients.join(", "))
}

/// The addresses of a host.
pub(super) fn addresses_of(host: &str) -> Vec<IpAddr> {
    let mut addresses: Vec<_> =
        (host, 0).to_socket_addrs().map(|found| found.map(|one| one.ip()).collect()).unwrap_or_default();
    addresses.sort();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use weft_server::{ClusterConfig, Generate};

    fn exports(text: &str) -> Vec<ExportConfig> {
        let generate = Generate {
            path: "/c/weft.toml".into(),
            host: "127.0.0.1".into(),
            port: 7400,
            io_servers: 1,
            sync: Default::default(),
            strip_bytes: weft_server::config::STRIP_BYTES_DEFAULT,
        };
        let text = ClusterConfig::generate(&generate).unwrap().to_toml() + text;
        ClusterConfig::parse(&text, Path::new("/c/weft.toml")).unwrap().exports
    }

    #[test]
    fn each_key_of_an_export_counts() {
        let exports = exports(
            "[[export]]\npath = \"/a\"\nclients = [\"10.0.0.0/8\", \"login\", \"gone\"]\n\
             [[export]]\npath = \"/b\"\nclients = [\"*\", \"gone\"]\naccess = \"ro\"\nsquash = \"all\"\n\
             anonymous_uid = 7\nanonymous_gid = 8\ninsecure_ports = true\n",
        );
        let login = ["10.1.1.1", "fd00::1"].map(|text| text.parse().unwrap());
        let resolve = |host: &str| if host == "login" { login.to_vec() } else { Vec::new() };
        let found = resolved(&exports, &resolve);
        assert_eq!(found.unknown, ["gone"], "each is named once");
        let [a, b] = found.exports.as_slice() else { panic!("two exports") };
        let clients: Vec<_> = a.rules.iter().map(|rule| rule.clients.to_string()).collect();
        assert_eq!(
            (a.path.as_str(), clients),
            ("/a", vec!["10.0.0.0/8".into(), "10.1.1.1/32".into(), "fd00::1/128".into()])
        );
        assert!(a.rules.iter().all(|rule| !rule.read_only && !rule.insecure));
        assert_eq!(a.rules[0].identities.squash, Squash::Root);
        assert_eq!(about(&exports[0]), "/a to 10.0.0.0/8, login, gone (rw, squash root)");
        assert_eq!(about(&exports[1]), "/b to *, gone (ro, squash all, any port)");
        let [rule] = b.rules.as_slice() else { panic!("one rule") };
        assert!(rule.read_only && rule.insecure && rule.clients == Network::ANY);
        assert_eq!((rule.identities.squash, rule.identities.anonymous), (Squash::All, (7, 8)));
    }

    #[test]
    fn this_host_has_addresses_and_an_invented_one_has_none() {
        assert!(addresses_of("localhost").contains(&"127.0.0.1".parse().unwrap()));
        assert!(addresses_of("no-such-host.invalid").is_empty());
    }
}
