//! Starting a cluster on several hosts.

use super::down::{Removal, down};
use super::names::{Host, Hosts};
use super::probe::{self, Facts};
use super::record::{Placed, RECORD_FILE, Record};
use super::remote::{Remote, on_each, quoted};
use crate::commands::version;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use weft_cli_common::launch::{CLUSTER_FILE, NEW_FILE, PORT_DEFAULT, install_client_key, url_of};
use weft_cli_common::size;
use weft_server::config::STRIP_BYTES_DEFAULT;
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig, Generate, SyncMode};

/// The program where the user's search path has it.
const ON_PATH: &str = "weft";

/// What is asked for.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The directory here and on the hosts.
    pub dir: PathBuf,
    /// The hosts; `None`: those of the cluster that is there.
    pub hosts: Option<Hosts>,
    /// The number of I/O servers; `None`: one on each host.
    pub io_servers: Option<u16>,
    /// The metadata server's port; I/O servers have the following ones of their hosts.
    pub port: Option<u16>,
    /// When writes are acknowledged.
    pub sync: SyncMode,
    /// The port for metrics of the first server on each host.
    pub metrics: Option<u16>,
    /// Where the file system is to be mounted on each host.
    pub mount: Option<PathBuf>,
    /// The command that runs another one on a host, in words.
    pub ssh: Vec<String>,
    /// Start only these servers.
    pub only: Vec<String>,
}

/// Starts a cluster on several hosts, new or as it was, and returns when all its servers answer.
///
/// # Errors
/// What failed, on which hosts. What was begun is undone.
pub fn up(wanted: &Wanted) -> Result<Record> {
    let (begun, facts) = match Record::load(&wanted.dir)? {
        Some(record) => again(record, wanted)?,
        None => begin(wanted)?,
    };
    if let Err(error) = copy_program(&begun, &facts).and_then(|()| start(&begun, wanted)) {
        // As it was: a cluster that was complete before keeps its data, and runs as far as it did.
        if !begun.is_complete {
            eprintln!("weft: that failed; removing what was begun");
            let undone = down(&begun, &[], Removal::Everything);
            undone.failures.iter().for_each(|failure| eprintln!("weft: {failure}"));
        }
        return Err(error);
    }
    Ok(Record { is_complete: true, ..begun })
}

/// A cluster that was started before.
fn again(mut record: Record, wanted: &Wanted) -> Result<(Record, Vec<Facts>)> {
    let dir = wanted.dir.display();
    if let Some(Hosts(hosts)) = &wanted.hosts {
        let (known, named): (Vec<_>, Vec<_>) = (
            record.hosts.iter().map(|host| host.name.as_str()).collect(),
            hosts.iter().map(|host| host.name.as_str()).collect(),
        );
        if known != named {
            bail!(
                "the cluster in {dir} is on {}, and its files are on these hosts; leave out --hosts, or choose another --dir",
                known.join(", ")
            );
        }
    }
    let count =
        record.hosts.iter().flat_map(|host| &host.servers).filter(|name| name.starts_with("io")).count();
    for (given, option) in [
        (wanted.io_servers.is_some_and(|io| usize::from(io) != count), "--io"),
        (wanted.port.is_some(), "--port"),
        (wanted.metrics.is_some(), "--metrics"),
        (wanted.sync == SyncMode::Sync, "--sync"),
    ] {
        if given {
            bail!(
                "{option} is for a new cluster, and there is one in {dir}; change {dir}/{CLUSTER_FILE} on all hosts"
            );
        }
    }
    if wanted.mount.is_some() {
        record.mount.clone_from(&wanted.mount);
    }
    let facts = ask(&record.ssh, &record.hosts, |host| (host.name.as_str(), record.dir_on(host)))?;
    for (host, facts) in record.hosts.iter().zip(&facts) {
        if facts.cluster_id.as_ref().is_some_and(|id| *id != record.cluster_id) {
            bail!("{}: {} is of another cluster", host.name, record.dir_on(host).display());
        }
        if record.is_complete && facts.cluster_id.is_none() {
            bail!(
                "{}: {} is gone; if its disk is not mounted, mount it; if it is lost, see `weft help recovery`",
                host.name,
                record.dir_on(host).display()
            );
        }
    }
    record.save()?;
    Ok((record, facts))
}

/// A new cluster: asks the hosts, and writes cluster file, keys and record here.
fn begin(wanted: &Wanted) -> Result<(Record, Vec<Facts>)> {
    let Some(Hosts(hosts)) = &wanted.hosts else { bail!("which hosts? name them with --hosts") };
    std::fs::create_dir_all(&wanted.dir)
        .with_context(|| format!("cannot create the cluster's directory {}", wanted.dir.display()))?;
    let dir = wanted.dir.canonicalize().with_context(|| format!("cannot find {}", wanted.dir.display()))?;
    if dir.join(CLUSTER_FILE).exists() {
        bail!("{} has a cluster that is not of `weft up --hosts`; choose another --dir", dir.display());
    }
    if wanted.mount.as_ref().is_some_and(|mount| !mount.is_absolute() || has_blank(mount)) {
        bail!("--mount needs a directory from the root on, without blanks");
    }
    if dir.to_str().is_none_or(|text| text.contains(['\n', '\r'])) {
        bail!("{}: the directory's name must be one line of UTF-8", dir.display());
    }
    let facts = ask(&wanted.ssh, hosts, |host| (host.name.as_str(), dir.join(&host.name)))?;
    eprintln!("weft: {} hosts answer", hosts.len());
    let placed = place(wanted, hosts, &facts, &dir)?;
    let port = choose_port(wanted, &facts)?;
    let config = cluster_file(wanted, &placed, port, &dir)?;
    weft_server::create_keys(&dir)?;
    config.save()?;
    let record = Record {
        ssh: wanted.ssh.clone(),
        url: url_of(&config),
        cluster_id: config.cluster.id.to_string(),
        mount: wanted.mount.clone(),
        is_complete: false,
        hosts: placed,
        dir,
    };
    record.save()?;
    Ok((record, facts))
}

fn has_blank(path: &Path) -> bool {
    path.to_str().is_none_or(|text| text.contains(char::is_whitespace))
}

/// What all hosts say of themselves.
fn ask<T: Sync>(
    ssh: &[String],
    hosts: &[T],
    of: impl Fn(&T) -> (&str, PathBuf) + Sync,
) -> Result<Vec<Facts>> {
    let answers = on_each(hosts, |host| {
        let (host, dir) = of(host);
        Remote { ssh, host }.script(&probe::script(&dir)).map(|text| probe::read(&text))
    });
    let names = hosts.iter().map(|host| of(host).0);
    all_or_why("cannot run commands on", names, answers)
}

/// All results, or an error with all that failed.
fn all_or_why<'a, R>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    results: Vec<Result<R>>,
) -> Result<Vec<R>> {
    let (mut good, mut bad) = (Vec::with_capacity(results.len()), Vec::new());
    for (name, result) in names.zip(results) {
        match result {
            Ok(result) => good.push(result),
            Err(error) => bad.push(format!("{name}: {error:#}")),
        }
    }
    match bad.len() {
        0 => Ok(good),
        1 => bail!("{what} {}", bad[0]),
        count => bail!("{what} {count} hosts:\n  {}", bad.join("\n  ")),
    }
}

/// Which servers each host gets, where it is reached and what program it runs.
fn place(wanted: &Wanted, hosts: &[Host], facts: &[Facts], dir: &Path) -> Result<Vec<Placed>> {
    let io_servers = wanted.io_servers.map_or(hosts.len(), usize::from);
    let mine = this_machine();
    let addresses = probe::addresses(&facts.iter().collect::<Vec<_>>());
    let mut placed: Vec<Placed> = Vec::with_capacity(hosts.len());
    for (at, ((host, facts), found)) in hosts.iter().zip(facts).zip(addresses).enumerate() {
        let name = &host.name;
        let on_host = dir.join(name);
        if facts.cluster_id.is_some() {
            bail!("{name}: {} has a cluster already; choose another --dir", on_host.display());
        }
        if facts.is_occupied {
            bail!("{name}: {} is not empty; choose another --dir", on_host.display());
        }
        if wanted.mount.is_some()
            && let Some(why) = &facts.no_mount
        {
            bail!("{name}: it cannot mount a file system: {why}");
        }
        let has_this = |(_, version): &&(String, String)| *version == version::line();
        let program = match facts.programs.iter().find(has_this) {
            Some((path, _)) => path.clone(),
            None if facts.machine == mine => on_host.join("bin/weft").display().to_string(),
            None => bail!(
                "{name} is {} and this host {mine}, so the program cannot be copied; install weft {} there",
                facts.machine,
                env!("CARGO_PKG_VERSION")
            ),
        };
        let Some(address) = host.address.clone().or(found) else {
            bail!("{name}: it cannot be told where clients reach it; write {name}=ADDRESS in --hosts")
        };
        if let Some(other) = placed.iter().find(|other| other.address == address) {
            bail!(
                "{} and {name} are both reached at {address}; write NAME=ADDRESS in --hosts for each",
                other.name
            );
        }
        let meta = (at == 0).then(|| "meta0".to_string()).into_iter();
        let io = (at..io_servers).step_by(hosts.len()).map(|number| format!("io{number}"));
        placed.push(Placed { name: name.clone(), address, program, servers: meta.chain(io).collect() });
    }
    Ok(placed)
}

/// `uname -sm` of this host.
fn this_machine() -> String {
    format!("Linux {}", std::env::consts::ARCH)
}

fn choose_port(wanted: &Wanted, facts: &[Facts]) -> Result<u16> {
    let io_servers = wanted.io_servers.map_or(facts.len(), usize::from);
    let count = 1 + u16::try_from(io_servers.div_ceil(facts.len())).context("too many I/O servers")?;
    let first = wanted.port.unwrap_or(PORT_DEFAULT);
    let free = probe::free_ports(facts.iter(), first, count);
    match free {
        Some(port) if wanted.port.is_none() || port == first => Ok(port),
        _ => bail!(
            "ports {first} to {} are not free on all hosts; choose another --port",
            first.saturating_add(count - 1)
        ),
    }
}

fn cluster_file(wanted: &Wanted, placed: &[Placed], port: u16, dir: &Path) -> Result<ClusterConfig> {
    let io_servers = placed.iter().map(|host| host.servers.len()).sum::<usize>() - 1;
    let path = dir.join(CLUSTER_FILE);
    let mut config = ClusterConfig::generate(&Generate {
        path: path.clone(),
        host: "localhost".into(),
        port: 1,
        io_servers: u16::try_from(io_servers).context("too many I/O servers")?,
        sync: wanted.sync,
        strip_bytes: STRIP_BYTES_DEFAULT,
    })?;
    for host in placed {
        let ip = match host.address.contains(':') {
            true => format!("[{}]", host.address),
            false => host.address.clone(),
        };
        // The metadata server's port is kept for it on every host, so that I/O servers have the same ones on all.
        let mut io_port = port;
        for (name, at) in host.servers.iter().zip(0u16..) {
            let server = config.servers.iter_mut().find(|server| server.name == *name);
            let server = server.with_context(|| format!("no server {name} was generated"))?;
            let port = match name.starts_with("io") {
                true => {
                    io_port = io_port.checked_add(1).context("ports beyond 65535; choose a lower --port")?;
                    io_port
                }
                false => port,
            };
            server.addresses = vec![format!("{ip}:{port}")];
            server.threads = None;
            server.metrics = wanted.metrics.map(|first| format!("{ip}:{}", first.saturating_add(at)));
        }
    }
    Ok(ClusterConfig::parse(&config.to_toml(), &path)?)
}

/// Copies this program to the hosts that do not have it.
fn copy_program(record: &Record, facts: &[Facts]) -> Result<()> {
    let version = version::line();
    let is_missing = |(host, facts): &(&Placed, &Facts)| {
        let is_it = |(path, found): &(String, String)| *path == host.program && *found == version;
        host.program != ON_PATH && !facts.programs.iter().any(is_it)
    };
    let to: Vec<_> = record.hosts.iter().zip(facts).filter(is_missing).map(|(host, _)| host).collect();
    if to.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let bytes = std::fs::metadata(&program).map_or(0, |meta| meta.len());
    eprintln!(
        "weft: copying the program to {} ({} each)",
        counted(to.len(), "host"),
        size::format_bytes(bytes)
    );
    let results = on_each(&to, |host| {
        let dir = quoted(&record.dir_on(host).display().to_string());
        let command = format!(
            "d={dir}; mkdir -p \"$d/bin\" && cat > \"$d/bin/.weft\" && chmod 755 \"$d/bin/.weft\" && \
             mv \"$d/bin/.weft\" \"$d/bin/weft\""
        );
        record.remote(host).feed(&format!("sh -c {}", quoted(&command)), &program)
    });
    all_or_why("cannot copy the program to", to.iter().map(|host| host.name.as_str()), results).map(drop)
}

/// Starts the servers that do not run, and mounts.
fn start(record: &Record, wanted: &Wanted) -> Result<()> {
    let files = Files::load(&record.dir)?;
    let running = if record.is_complete { running(record)? } else { Vec::new() };
    let missing = |host: &Placed| -> Vec<String> {
        let is_meant = |name: &&String| wanted.only.is_empty() || wanted.only.contains(name);
        host.servers.iter().filter(is_meant).filter(|name| !running.contains(name)).cloned().collect()
    };
    let meant = record.hosts_of(&wanted.only)?;
    let (meta, others): (Vec<_>, Vec<_>) =
        meant.into_iter().partition(|host| host.servers.iter().any(|name| name.starts_with("meta")));
    let mut started = 0;
    // I/O servers wait for the metadata server's consent.
    for hosts in [meta, others] {
        let results = on_each(&hosts, |host| {
            let names = missing(host);
            record.remote(host).script(&install_script(record, host, &files, &names)).map(|_| names.len())
        });
        let names = hosts.iter().map(|host| host.name.as_str());
        started += all_or_why("cannot start servers on", names, results)?.into_iter().sum::<usize>();
    }
    install_client_key(&record.dir.join(CLIENT_KEY_FILE), &record.url)?;
    if !record.is_complete {
        Record { is_complete: true, ..record.clone() }.save()?;
    }
    let (servers, hosts) = (counted(started, "server"), counted(record.hosts.len(), "host"));
    eprintln!("weft: started {servers}; the cluster is on {hosts}");
    if let Some(mount) = record.mount.as_ref().filter(|_| wanted.only.is_empty()) {
        let results =
            on_each(&record.hosts, |host| record.remote(host).script(&mount_script(record, host, mount)));
        all_or_why("cannot mount on", record.hosts.iter().map(|host| host.name.as_str()), results)?;
        eprintln!("weft: mounted at {} on {hosts}", mount.display());
    }
    Ok(())
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Names of the servers that run.
fn running(record: &Record) -> Result<Vec<String>> {
    let statuses = statuses(record)?;
    let servers = statuses.iter().flat_map(|(_, status)| status["servers"].as_array()).flatten();
    let runs = |server: &&Value| server["running"].as_bool() == Some(true);
    Ok(servers.filter(runs).filter_map(|server| server["name"].as_str()).map(str::to_string).collect())
}

/// What `weft status --dir DIR/HOST --json` prints on each host.
///
/// # Errors
/// Which hosts cannot be asked.
pub fn statuses(record: &Record) -> Result<Vec<(&Placed, Value)>> {
    let results = on_each(&record.hosts, |host| {
        let (program, dir) = (quoted(&host.program), quoted(&record.dir_on(host).display().to_string()));
        // It ends with 1 where a server does not run.
        let text =
            record.remote(host).script(&format!("{program} status --dir {dir} --json || [ $? = 1 ]\n"))?;
        serde_json::from_str(&text).with_context(|| format!("it answers with: {}", text.trim()))
    });
    let values = all_or_why("cannot ask", record.hosts.iter().map(|host| host.name.as_str()), results)?;
    Ok(record.hosts.iter().zip(values).collect())
}

/// The files that hosts get copies of.
struct Files {
    cluster: String,
    cluster_key: String,
    client_key: String,
}

impl Files {
    fn load(dir: &Path) -> Result<Files> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Files {
            cluster: read(CLUSTER_FILE)?,
            cluster_key: read(CLUSTER_KEY_FILE)?,
            client_key: read(CLIENT_KEY_FILE)?,
        })
    }
}

/// Gives a host its files, and starts servers there. A directory of somebody else is not used.
fn install_script(record: &Record, host: &Placed, files: &Files, names: &[String]) -> String {
    let dir = quoted(&record.dir_on(host).display().to_string());
    let above = quoted(&record.dir.display().to_string());
    let mut script = format!(
        r#"set -eu
umask 022
dir={dir}
weft={program}
above={above}
mkdir -p "$dir"
[ ! -L "$dir" ] && [ -O "$dir" ] || {{ echo "$dir is not a directory of user $(id -un)" >&2; exit 1; }}
owner=$(stat -c %u "$above")
[ "$owner" = 0 ] || [ "$owner" = "$(id -u)" ] || {{ echo "$above is of another user" >&2; exit 1; }}
put() {{ cat > "$dir/.$1.new" && mv "$dir/.$1.new" "$dir/$1"; }}
put {CLUSTER_FILE} <<'END OF FILE'
{cluster}
END OF FILE
umask 077
put {CLIENT_KEY_FILE} <<'END OF FILE'
{client_key}
END OF FILE
"#,
        program = quoted(&host.program),
        cluster = files.cluster.trim_end(),
        client_key = files.client_key.trim_end(),
    );
    if host.servers.is_empty() {
        // The key is where a client of this user looks for it.
        let server = record.url.trim_start_matches("weft://").trim_end_matches('/');
        script += &format!(
            "keys=\"${{XDG_CONFIG_HOME:-$HOME/.config}}/weft/keys\"\nmkdir -p \"$keys\"\n\
             cp \"$dir/{CLIENT_KEY_FILE}\" \"$keys\"/{}\n",
            quoted(server)
        );
        return script;
    }
    script += &format!(
        "put {CLUSTER_KEY_FILE} <<'END OF FILE'\n{}\nEND OF FILE\numask 022\n",
        files.cluster_key.trim_end()
    );
    if !record.is_complete {
        script += &format!(": > \"$dir/{NEW_FILE}\"\n");
    }
    if !names.is_empty() {
        let only: String = names.iter().map(|name| format!(" --only {}", quoted(name))).collect();
        script += &format!("\"$weft\" up --dir \"$dir\"{only} --detach --json\n");
    }
    script
}

/// Mounts, unless it is mounted already.
fn mount_script(record: &Record, host: &Placed, mount: &Path) -> String {
    format!(
        r#"set -eu
mount={mount}
! grep -q " $mount fuse.weft " /proc/self/mounts || exit 0
mkdir -p "$mount"
{program} mount {url} "$mount" --key {key}
"#,
        mount = quoted(&mount.display().to_string()),
        program = quoted(&host.program),
        url = quoted(&record.url),
        key = quoted(&record.dir_on(host).join(CLIENT_KEY_FILE).display().to_string()),
    )
}

/// Removes what [`begin`] wrote here.
pub(super) fn remove_here(record: &Record) {
    for name in [CLUSTER_FILE, CLUSTER_KEY_FILE, CLIENT_KEY_FILE, RECORD_FILE] {
        let _ = std::fs::remove_file(record.dir.join(name));
    }
    if let Some(key) = installed_key(record) {
        let _ = std::fs::remove_file(key);
    }
    // What else is in it stays, and the directory with it.
    let _ = std::fs::remove_dir(&record.dir);
}

fn installed_key(record: &Record) -> Option<PathBuf> {
    weft_client::installed_key_path(&weft_client::Url::parse(&record.url).ok()?.server())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<Host> {
        super::super::parse(names).unwrap().0
    }

    fn facts(count: usize) -> Vec<Facts> {
        let one = |number: usize| Facts {
            machine: this_machine(),
            programs: vec![("weft".into(), version::line())],
            ssh_ends: Some(("10.0.0.100".into(), format!("10.0.0.{}", number + 1))),
            ..Facts::default()
        };
        (0..count).map(one).collect()
    }

    fn servers(names: &str, io: Option<u16>) -> Vec<String> {
        let hosts = hosts(names);
        let wanted = Wanted { io_servers: io, ..Wanted::default() };
        let placed = place(&wanted, &hosts, &facts(hosts.len()), Path::new("/d")).unwrap();
        placed.into_iter().map(|host| host.servers.join(" ")).collect()
    }

    #[test]
    fn servers_are_dealt_out_to_hosts() {
        assert_eq!(servers("a,b,c", None), ["meta0 io0", "io1", "io2"]);
        assert_eq!(servers("a,b", Some(5)), ["meta0 io0 io2 io4", "io1 io3"]);
        assert_eq!(servers("a,b,c", Some(2)), ["meta0 io0", "io1", ""]);
    }

    #[test]
    fn the_cluster_file_says_where_each_server_is() {
        let wanted = Wanted { io_servers: Some(4), metrics: Some(9400), ..Wanted::default() };
        let hosts = hosts("a,b=fd00::2");
        let placed = place(&wanted, &hosts, &facts(2), Path::new("/d")).unwrap();
        let config = cluster_file(&wanted, &placed, 7400, Path::new("/d")).unwrap();
        let found: Vec<_> = config
            .servers
            .iter()
            .map(|server| {
                format!("{} {} {}", server.name, server.addresses[0], server.metrics.as_deref().unwrap())
            })
            .collect();
        assert_eq!(
            found,
            [
                "meta0 10.0.0.1:7400 10.0.0.1:9400",
                "io0 10.0.0.1:7401 10.0.0.1:9401",
                "io1 [fd00::2]:7401 [fd00::2]:9400",
                "io2 10.0.0.1:7402 10.0.0.1:9402",
                "io3 [fd00::2]:7402 [fd00::2]:9401",
            ]
        );
        assert!(config.servers.iter().all(|server| server.threads.is_none()));
    }

    #[test]
    fn what_cannot_work_is_said_before_anything_is_done() {
        let hosts = hosts("a,b");
        let wanted = Wanted { mount: Some("/mnt".into()), ..Wanted::default() };
        let place = |facts: &[Facts]| place(&wanted, &hosts, facts, Path::new("/d")).unwrap_err().to_string();
        let mut no_fuse = facts(2);
        no_fuse[1].no_mount = Some("fusermount3 is missing".into());
        assert!(place(&no_fuse).contains("b: it cannot mount a file system: fusermount3 is missing"));
        let mut arm = facts(2);
        arm[1] = Facts { machine: "Linux armv9".into(), programs: Vec::new(), ..arm[1].clone() };
        assert!(place(&arm).contains("b is Linux armv9"));
        let mut same = facts(2);
        same[1].ssh_ends = same[0].ssh_ends.clone();
        assert!(place(&same).contains("a and b are both reached at 10.0.0.1"));
        let mut other = facts(2);
        other[0].cluster_id = Some("7".into());
        assert!(place(&other).contains("a: /d/a has a cluster already"));
        let mut nowhere = facts(2);
        nowhere[1].ssh_ends = None;
        nowhere[0].ssh_ends = None;
        assert!(place(&nowhere).contains("a=ADDRESS"));
    }

    #[test]
    fn ports_that_are_asked_for_must_be_free() {
        let mut facts = facts(2);
        facts[1].taken_ports = [7401].into();
        assert_eq!(choose_port(&Wanted::default(), &facts).unwrap(), 7402);
        let wanted = Wanted { port: Some(7400), ..Wanted::default() };
        assert!(choose_port(&wanted, &facts).unwrap_err().to_string().contains("7400 to 7401"));
    }
}
