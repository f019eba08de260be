//! What a host says of itself before anything is done there.

use super::remote::quoted;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

/// What a host has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Processor and system, as of `uname -sm`.
    pub machine: String,
    /// The programs that are there, and what `weft version` of each prints.
    pub programs: Vec<(String, String)>,
    /// The number of the cluster whose file is in the directory.
    pub cluster_id: Option<String>,
    /// Whether there is something else in the directory.
    pub is_occupied: bool,
    /// The two ends of the connection by ssh: the client's address, and this host's.
    pub ssh_ends: Option<(String, String)>,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// TCP ports on which something listens.
    pub taken_ports: BTreeSet<u16>,
    /// Why a file system cannot be mounted by this user.
    pub no_mount: Option<String>,
}

/// The script that prints them. `dir` is the cluster's directory on the host.
pub fn script(dir: &Path) -> String {
    let dir = quoted(&dir.display().to_string());
    format!(
        r#"dir={dir}
echo "machine $(uname -sm)"
[ -z "${{SSH_CONNECTION:-}}" ] || echo "ssh $SSH_CONNECTION"
echo "addresses $(hostname -I 2>/dev/null)"
for weft in weft "$dir/bin/weft"; do
    version=$(WEFT_URL= "$weft" version 2>/dev/null) && echo "program $weft $version"
done
[ ! -e "$dir/weft.toml" ] || echo "cluster $(sed -n 's/^id = "\(.*\)"$/\1/p' "$dir/weft.toml" | head -n 1)"
[ -e "$dir/weft.toml" ] || [ -z "$(ls -A "$dir" 2>/dev/null)" ] || echo occupied
if [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then echo "nomount /dev/fuse is missing, or not for this user"
elif [ "$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then echo "nomount fusermount3 is missing: install fuse3"
fi
for table in /proc/net/tcp /proc/net/tcp6; do [ ! -r $table ] || sed 's/^/tcp /' $table; done
exit 0
"#
    )
}

/// Reads what the script printed. Lines of others, as of a login message, are passed over.
pub fn read(text: &str) -> Facts {
    let mut facts = Facts::default();
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<_> = rest.split_whitespace().collect();
        match key {
            "machine" => facts.machine = rest.to_string(),
            "ssh" if words.len() == 4 => facts.ssh_ends = Some((words[0].into(), words[2].into())),
            "addresses" => facts.addresses = words.iter().map(|word| word.to_string()).collect(),
            "program" => {
                let (path, version) = rest.split_once(' ').unwrap_or((rest, ""));
                facts.programs.push((path.to_string(), version.to_string()));
            }
            "cluster" => facts.cluster_id = Some(rest.to_string()),
            "occupied" => facts.is_occupied = true,
            "nomount" => facts.no_mount = Some(rest.to_string()),
            "tcp" => facts.taken_ports.extend(listening_port(&words)),
            _ => {}
        }
    }
    facts
}

/// The port of a line of /proc/net/tcp, if it is of a socket that listens.
fn listening_port(words: &[&str]) -> Option<u16> {
    const LISTEN: &str = "0A";
    let (local, state) = (words.get(1)?, words.get(3)?);
    let (_, port) = local.rsplit_once(':')?;
    (*state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
}

fn is_loopback(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_link_local(address: &str) -> bool {
    address.contains('%') || address.starts_with("fe80:") || address.starts_with("169.254.")
}

/// Where others reach each host: the address by which ssh has reached it. A host that ssh reaches by its loopback is the one that
/// calls, and has the address that the others see. `None`: it cannot be told.
pub fn addresses(hosts: &[&Facts]) -> Vec<Option<String>> {
    let usable = |address: &&String| !is_loopback(address) && !is_link_local(address);
    let seen = hosts.iter().filter_map(|facts| facts.ssh_ends.as_ref()).map(|(client, _)| client);
    let caller = seen.into_iter().find(usable).cloned();
    let address = |facts: &&Facts| {
        let by_ssh = facts.ssh_ends.as_ref().map(|(_, server)| server).filter(usable);
        let own = || facts.addresses.iter().find(usable);
        by_ssh.or(caller.as_ref()).or_else(own).cloned()
    };
    hosts.iter().map(address).collect()
}

/// The first port of `count` in a row from `wanted` on that are free on all hosts.
pub fn free_ports<'a>(
    hosts: impl Iterator<Item = &'a Facts> + Clone,
    wanted: u16,
    count: u16,
) -> Option<u16> {
    let mut first = wanted;
    loop {
        let last = first.checked_add(count - 1)?;
        match hosts.clone().filter_map(|facts| facts.taken_ports.range(first..=last).next_back()).max() {
            None => return Some(first),
            Some(taken) => first = taken.checked_add(1)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Welcome to the cluster!
machine Linux x86_64
ssh 10.1.0.9 40000 10.1.0.1 22
addresses 192.168.0.1 10.1.0.1 fe80::1
program weft weft 0.5.0 for x86_64-linux, protocol versions 2 to 5
cluster 0123456789abcdef0123456789abcdef
occupied
nomount /dev/fuse is missing, or not for this user
tcp   sl  local_address rem_address   st tx_queue
tcp    0: 0100007F:1CE8 00000000:0000 0A 00000000:00000000
tcp    1: 0100007F:1CE9 00000000:0000 01 00000000:00000000
tcp    0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:0
";

    #[test]
    fn what_a_host_says_is_read() {
        let facts = read(SAID);
        assert_eq!(facts.machine, "Linux x86_64");
        assert_eq!(facts.ssh_ends, Some(("10.1.0.9".into(), "10.1.0.1".into())));
        assert_eq!(
            facts.programs,
            [("weft".into(), "weft 0.5.0 for x86_64-linux, protocol versions 2 to 5".into())]
        );
        assert_eq!(facts.cluster_id.as_deref(), Some("0123456789abcdef0123456789abcdef"));
        assert!(facts.no_mount.is_some() && facts.is_occupied);
        assert_eq!(facts.taken_ports.iter().copied().collect::<Vec<_>>(), [22, 7400]);
        assert_eq!(read("tcp\ntcp x\nssh 1\n"), Facts::default());
    }

    #[test]
    fn this_host_prints_them() {
        let output =
            std::process::Command::new("sh").arg("-c").arg(script(Path::new("/nowhere/it's"))).output();
        let facts = read(&String::from_utf8(output.unwrap().stdout).unwrap());
        assert!(facts.machine.starts_with("Linux "), "{facts:?}");
        assert_eq!(facts.cluster_id, None);
    }

    fn host(ends: Option<(&str, &str)>, addresses: &[&str]) -> Facts {
        Facts {
            ssh_ends: ends.map(|(client, server)| (client.into(), server.into())),
            addresses: addresses.iter().map(|address| address.to_string()).collect(),
            ..Facts::default()
        }
    }

    #[test]
    fn servers_are_reached_where_ssh_reaches_their_hosts() {
        let other = host(Some(("10.0.0.1", "10.0.0.2")), &["192.168.0.2", "10.0.0.2"]);
        let caller = host(Some(("::1", "::1")), &["192.168.0.1", "10.0.0.1"]);
        let found = addresses(&[&caller, &other]);
        assert_eq!(found, [Some("10.0.0.1".into()), Some("10.0.0.2".into())]);
        assert_eq!(addresses(&[&caller]), [Some("192.168.0.1".into())], "alone it takes its first");
        assert_eq!(addresses(&[&host(None, &["fe80::1", "127.0.0.1"])]), [None]);
    }

    #[test]
    fn ports_are_free_on_all_hosts() {
        let with = |ports: &[u16]| Facts { taken_ports: ports.iter().copied().collect(), ..Facts::default() };
        let hosts = [with(&[22, 7400]), with(&[7402]), with(&[7404])];
        assert_eq!(free_ports(hosts.iter(), 7400, 1), Some(7401));
        assert_eq!(free_ports(hosts.iter(), 7400, 2), Some(7405));
        assert_eq!(free_ports(hosts.iter(), 7300, 100), Some(7300));
        assert_eq!(free_ports([with(&[65535])].iter(), 65534, 2), None);
    }
}
