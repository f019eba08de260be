//! `weft server`

use crate::hosts::Record;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_cli_common::launch::{self, CLUSTER_FILE};
use weft_cli_common::output;
use weft_server::config::Member;
use weft_server::{AdminError, CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig, ServerConfig, ServerRole};
use weft_wire::keys::id_text;
use weft_wire::messages::{ClusterMapReply, ServerInfo, endpoint, server_role, server_state};
use weft_wire::security::ClusterKeys;

/// How long running servers have to learn of a change of the map.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(5);
const HEARD_POLL: Duration = Duration::from_millis(50);

/// Lists, adds, moves and replaces the servers of a cluster.
///
/// The cluster's map says which servers there are, and where. Its version rises with each change. Servers,
/// clients and mounts follow it while they work. Every storage directory has an identity, and the metadata
/// server knows the one of each I/O server. A server is refused if its directory is another one, an older
/// copy, or empty. `weft help recovery` says what to do then.
#[derive(Debug, clap::Subcommand)]
pub enum ServerCommand {
    /// List the servers, their storages, and whether they run.
    Ls(LsArgs),
    /// Add an I/O server to a cluster while it is in use.
    ///
    /// The server is added at the end of the cluster file; comments in the file are kept. New files are
    /// striped over the new server too, once it has registered. Existing files stay where they are. With the
    /// --dir of a cluster that `weft up` started, the storage is created and the server is started. Otherwise
    /// the command prints what to do on the server's machine.
    Add(AddArgs),
    /// Change the address of a server while the cluster is in use.
    ///
    /// The address in the cluster file is changed. Both addresses are tried until the server registers at the
    /// new one. With --dir, a server that `weft up` supervises is restarted. Otherwise restart it with the
    /// new file.
    Move(MoveArgs),
    /// Give up the lost storage of an I/O server, and accept the next one that it presents.
    ///
    /// The server must be stopped. Then create a new storage (`weft serve --format`), or put an older copy of
    /// the directory back, and start the server. Reading what only the old storage had fails with EIO; `weft
    /// fsck` lists the files.
    Replace(ReplaceArgs),
}

/// Selects the cluster.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    /// The cluster's directory, as given to `weft up`.
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    dir: Option<PathBuf>,
    /// The cluster file.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// File with the cluster's secret [default: cluster.key beside the cluster file].
    #[arg(long, value_name = "FILE")]
    cluster_key: Option<PathBuf>,
}

impl Cluster {
    /// The lock of the directory, if it is given: it must be of a cluster on this host.
    fn lock(&self) -> Result<Option<File>> {
        let Some(dir) = &self.dir else { return Ok(None) };
        if let Some(record) = Record::load(dir)? {
            bail!(
                "the cluster in {dir} is on {} hosts; give --config {dir}/{CLUSTER_FILE}, and follow `weft help hosts`",
                record.hosts.len(),
                dir = dir.display()
            );
        }
        launch::lock_to_edit(dir).map(Some)
    }

    fn load(&self) -> Result<(ClusterConfig, weft_wire::security::ClusterKeys)> {
        let path = match (&self.config, &self.dir) {
            (Some(config), _) => config.clone(),
            (None, Some(dir)) => dir.join(CLUSTER_FILE),
            (None, None) => bail!("give --dir or --config"),
        };
        let config = ClusterConfig::load(&path)?;
        let key = self.cluster_key.clone().unwrap_or_else(|| config.resolve(CLUSTER_KEY_FILE.as_ref()));
        let keys = weft_server::load_cluster_keys(&key)?;
        Ok((config, keys))
    }
}

/// See [`ServerCommand::Ls`].
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    cluster: Cluster,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`ServerCommand::Replace`].
#[derive(Debug, clap::Args)]
pub struct ReplaceArgs {
    /// Name of the I/O server in the cluster file.
    #[arg(value_name = "SERVER")]
    name: String,
    #[command(flatten)]
    cluster: Cluster,
}

/// See [`ServerCommand::Add`].
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The name of the server [default: io and its number].
    #[arg(value_name = "SERVER")]
    name: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
    /// The address where it will listen and where clients reach it; may be repeated [default with --dir: this
    /// cluster's host and the next free port].
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "dir")]
    address: Vec<String>,
    /// The address where it will listen with RDMA; may be repeated [default: --address].
    #[arg(long, value_name = "HOST:PORT")]
    rdma_address: Vec<String>,
    /// Its storage directory, on its machine [default with --dir: its name, in DIR].
    #[arg(long, value_name = "PATH", required_unless_present = "dir")]
    directory: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`ServerCommand::Move`].
#[derive(Debug, clap::Args)]
pub struct MoveArgs {
    /// Name of the server in the cluster file.
    #[arg(value_name = "SERVER")]
    name: String,
    #[command(flatten)]
    cluster: Cluster,
    /// The address where it will listen and where clients reach it; may be repeated.
    #[arg(long, value_name = "HOST:PORT", required = true)]
    address: Vec<String>,
    /// The address where it will listen with RDMA; may be repeated [default: as in the cluster file].
    #[arg(long, value_name = "HOST:PORT")]
    rdma_address: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `weft server`.
pub fn run(command: ServerCommand) -> Result<()> {
    match command {
        ServerCommand::Ls(args) => ls(&args),
        ServerCommand::Add(args) => add(&args),
        ServerCommand::Move(args) => move_server(&args),
        ServerCommand::Replace(args) => replace(&args),
    }
}

fn ls(args: &LsArgs) -> Result<()> {
    let (config, keys) = args.cluster.load()?;
    let asked = "cannot ask the metadata server";
    let servers = weft_server::list_servers(&config, &keys).context(asked)?;
    let map = weft_server::cluster_map(&config, &keys).context(asked)?;
    let in_map = |role: &str, id: u16| {
        let role = if role == "meta" { server_role::META } else { server_role::IO };
        map.servers.iter().find(|server| (server.role, server.id) == (role, id))
    };
    let mut table = output::table(
        &["server", "id", "state", "addresses", "map", "storage", "mark", "lost below inode"],
        &[1, 4, 6, 7],
    );
    let mut values = Vec::new();
    for server in &servers {
        let info = in_map(&server.role, server.id);
        let endpoints = info.map(|info| info.endpoints.as_slice()).unwrap_or_default();
        let version = match server.state.as_str() {
            "up" => info.and_then(|info| weft_server::map_version_of(info, &keys).ok()),
            _ => None,
        };
        let is_joining = info.is_some_and(|info| info.state == server_state::JOINING);
        let state = if is_joining { "joining" } else { server.state.as_str() };
        let addresses: Vec<_> = info.map(|info| info.addresses(endpoint::TCP).collect()).unwrap_or_default();
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let storage =
            Some(server.storage).filter(|storage| *storage != [0; 16]).map(|storage| id_text(&storage));
        table.add_row([
            &server.name,
            &server.id.to_string(),
            state,
            &addresses.join(", "),
            &or_none(version.map(|version| version.to_string())),
            &or_none(storage),
            &server.mark.to_string(),
            &or_none(Some(server.lost_below_ino).filter(|ino| *ino != 0).map(|ino| ino.to_string())),
        ]);
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|one| serde_json::json!({ "transport": one.transport_name(), "address": one.address }))
            .collect();
        values.push(serde_json::json!({
            "name": server.name,
            "role": server.role,
            "id": server.id,
            "storage": id_text(&server.storage),
            "mark": server.mark,
            "state": state,
            "lost_below_ino": server.lost_below_ino,
            "endpoints": endpoints,
            "map_version": version,
        }));
    }
    if args.json { output::print_json(&values) } else { output::print_table(&table) }
}

/// The map, or `None` if the metadata server does not run. That is not an error: it reads the file when it
/// starts.
fn map_of(config: &ClusterConfig, keys: &ClusterKeys) -> Result<Option<ClusterMapReply>> {
    match weft_server::cluster_map(config, keys) {
        Ok(map) => Ok(Some(map)),
        Err(AdminError { is_refusal: false, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a cluster file that lacks a server of the map: a new server would get the id of the missing one.
fn refuse_old_file(config: &ClusterConfig, map: &ClusterMapReply) -> Result<()> {
    let lacks = |server: &&ServerInfo| config.server(&server.name).is_err();
    let missing: Vec<_> = map.io_servers().filter(lacks).map(|server| server.name.as_str()).collect();
    if !missing.is_empty() {
        bail!(
            "{} is out of date: it lacks {}, which the cluster has; first copy the newest file here",
            config.path.display(),
            missing.join(", ")
        );
    }
    Ok(())
}

fn add(args: &AddArgs) -> Result<()> {
    let held = args.cluster.lock()?;
    let (config, keys) = args.cluster.load()?;
    let map = map_of(&config, &keys)?;
    if let Some(map) = &map {
        refuse_old_file(&config, map)?;
    }
    let ports = args.address.is_empty().then(take_ports).transpose()?;
    let server = new_server(args, &config)?;
    let name = server.name.clone();
    let edited = config.with_server(&server)?;
    let is_here = args.cluster.dir.is_some() && !launch::is_elsewhere(Member::Server(&server));
    if is_here && !weft_server::has_storage(&edited.config, &name)? {
        weft_server::format_storage(&edited.config, &name)?;
    }
    let changed =
        map.is_some().then(|| weft_server::add_server(&config, &keys, &edited.config, &name)).transpose()?;
    edited.save()?;
    drop(held);
    let is_started = match &args.cluster.dir {
        Some(dir) if is_here && changed.is_some() && launch::is_supervised(dir) => {
            launch::start_one(dir, &name)?;
            true
        }
        _ => false,
    };
    drop(ports);
    let id = edited.config.id_of(edited.config.server(&name)?);
    if args.json {
        return output::print_json(&serde_json::json!({
            "name": name,
            "id": id,
            "addresses": server.addresses,
            "directory": edited.config.directory_of(&server),
            "map_version": changed.as_ref().map(|changed| changed.map_version),
            "started": is_started,
        }));
    }
    output::print_line(format_args!("added {name} at {}", server.addresses.join(", ")))?;
    let file = config.path.display();
    let serve = format!("weft serve --config {file} --name {name}");
    match (is_started, is_here, &changed) {
        (true, ..) => {}
        (false, true, _) => {
            let dir = args.cluster.dir.as_deref().unwrap_or(std::path::Path::new("")).display();
            eprintln!("weft: start it: weft up --dir {dir} --only {name} --detach");
        }
        (false, false, _) => eprintln!(
            "weft: copy {file} to every machine of the cluster, and cluster.key to the new one; run there, once: {serve} --format; \
             and then: {serve}"
        ),
    }
    if changed.is_none() && !is_here {
        eprintln!(
            "weft: the metadata server does not answer; it learns of {name} when it starts with the new file"
        );
    }
    Ok(())
}

fn take_ports() -> Result<launch::PortLock> {
    launch::PortLock::take(UPDATE_TIMEOUT, &mut |time| {
        std::thread::sleep(time);
        true
    })
}

/// A server like the last I/O server of the file, except for its name and addresses.
fn new_server(args: &AddArgs, config: &ClusterConfig) -> Result<ServerConfig> {
    let like = config.io_servers().last().context("the cluster file has no I/O server")?;
    let count = config.io_servers().count();
    let unused = |name: &String| config.server(name).is_err();
    let name = match &args.name {
        Some(name) => name.clone(),
        None => (count..).map(|number| format!("io{number}")).find(unused).expect("names never end"),
    };
    let addresses = match args.address.is_empty() {
        true => vec![launch::free_address(config)?],
        false => args.address.clone(),
    };
    let beside = like.socket.as_ref().and_then(|socket| socket.parent());
    Ok(ServerConfig {
        directory: args.directory.clone().unwrap_or_else(|| PathBuf::from(&name)),
        socket: beside.map(|directory| directory.join(format!("{name}.sock"))),
        name,
        role: ServerRole::Io,
        addresses,
        rdma_addresses: args.rdma_address.clone(),
        ..like.clone()
    })
}

fn move_server(args: &MoveArgs) -> Result<()> {
    let held = args.cluster.lock()?;
    let (config, keys) = args.cluster.load()?;
    let map = map_of(&config, &keys)?;
    if let Some(map) = &map {
        refuse_old_file(&config, map)?;
    }
    let edited = config.with_addresses(&args.name, &args.address, &args.rdma_address)?;
    let server = edited.config.server(&args.name)?;
    let changed = map
        .is_some()
        .then(|| weft_server::move_server(&config, &keys, &edited.config, &args.name))
        .transpose()?;
    edited.save()?;
    let behind = match &changed {
        Some(changed) => wait_until_updated(&config, &keys, changed.map_version),
        None => Vec::new(),
    };
    drop(held);
    let is_restarted = match &args.cluster.dir {
        Some(dir) if launch::is_supervised(dir) && !launch::is_elsewhere(Member::Server(server)) => {
            launch::restart_one(dir, &args.name)?;
            let key_file = dir.join(CLIENT_KEY_FILE);
            if server.role == ServerRole::Meta && key_file.exists() {
                launch::install_client_key(&key_file, &launch::url_of(&edited.config))?;
            }
            true
        }
        _ => false,
    };
    if args.json {
        return output::print_json(&serde_json::json!({
            "name": args.name,
            "addresses": server.addresses,
            "map_version": changed.as_ref().map(|changed| changed.map_version),
            "not_heard": behind,
            "restarted": is_restarted,
        }));
    }
    output::print_line(format_args!("moved {} to {}", args.name, server.addresses.join(", ")))?;
    if !behind.is_empty() {
        eprintln!("weft: not yet notified: {}", behind.join(", "));
    }
    if changed.is_none() {
        eprintln!(
            "weft: the metadata server does not answer; it learns the address when it starts with the new file"
        );
    }
    if !is_restarted {
        eprintln!(
            "weft: copy {} to every machine of the cluster, and restart {} with it",
            config.path.display(),
            args.name
        );
    }
    Ok(())
}

/// Waits until all running servers have the map of `version`, since clients ask them where a moved server is.
/// Returns those that do not have it.
fn wait_until_updated(config: &ClusterConfig, keys: &ClusterKeys, version: u32) -> Vec<String> {
    let deadline = Instant::now() + UPDATE_TIMEOUT;
    let map = weft_server::cluster_map(config, keys);
    let mut behind: Vec<ServerInfo> = map.map(|map| map.io_servers().cloned().collect()).unwrap_or_default();
    behind.retain(|server| server.state == server_state::ACTIVE);
    loop {
        // A server that does not run gets the map when it starts.
        behind
            .retain(|server| weft_server::map_version_of(server, keys).is_ok_and(|theirs| theirs < version));
        if behind.is_empty() || Instant::now() >= deadline {
            return behind.into_iter().map(|server| server.name).collect();
        }
        std::thread::sleep(HEARD_POLL);
    }
}

fn replace(args: &ReplaceArgs) -> Result<()> {
    let (config, keys) = args.cluster.load()?;
    let server = config.server(&args.name)?;
    weft_server::replace_server(&config, &keys, &args.name)?;
    eprintln!(
        "weft: the next storage that {} presents is accepted; to create a new one in {}: weft serve --config {} --name {} \
         --format",
        args.name,
        config.directory_of(server).display(),
        config.path.display(),
        args.name
    );
    Ok(())
}
