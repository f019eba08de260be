//! `weft server`

use crate::launch::CLUSTER_FILE;
use crate::output;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig};
use weft_wire::keys::id_text;

/// Shows which storage each server of a cluster has, and puts a new one in the place of one that is lost.
///
/// Every storage directory has a name of its own, and the metadata server knows which one each I/O server has. A server whose
/// directory is another one, an older copy or empty is refused. `weft help recovery` shows what to do then.
#[derive(Debug, clap::Subcommand)]
pub enum ServerCommand {
    /// List the servers, their storages, and whether they are there.
    Ls(LsArgs),
    /// Give up the storage of an I/O server: the next one that it comes with is its own.
    ///
    /// The server must be down. Afterwards make a new storage (`weft serve --format`), or put back an older copy of the
    /// directory, and start it. Reading what was on the old storage only is an error (EIO); `weft fsck` lists the files.
    Replace(ReplaceArgs),
}

/// Which cluster.
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
    fn load(&self) -> Result<(ClusterConfig, weft_wire::security::ClusterKeys)> {
        let path = match (&self.config, &self.dir) {
            (Some(config), _) => config.clone(),
            (None, Some(dir)) => dir.join(CLUSTER_FILE),
            (None, None) => bail!("--dir or --config is needed"),
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

/// Lists or replaces.
pub fn run(command: ServerCommand) -> Result<()> {
    match command {
        ServerCommand::Ls(args) => ls(&args),
        ServerCommand::Replace(args) => replace(&args),
    }
}

fn ls(args: &LsArgs) -> Result<()> {
    let (config, key) = args.cluster.load()?;
    let servers = weft_server::list_servers(&config, &key).context("cannot ask the metadata server")?;
    if args.json {
        let servers: Vec<_> = servers
            .iter()
            .map(|server| {
                serde_json::json!({
                    "name": server.name,
                    "role": server.role,
                    "id": server.id,
                    "storage": id_text(&server.storage),
                    "mark": server.mark,
                    "state": server.state,
                    "lost_below_ino": server.lost_below_ino,
                })
            })
            .collect();
        return output::print_json(&servers);
    }
    let mut table = output::table(&["server", "state", "storage", "mark", "lost below inode"], &[3, 4]);
    for server in &servers {
        let storage = if server.storage == [0; 16] { "-".into() } else { id_text(&server.storage) };
        let lost = match server.lost_below_ino {
            0 => "-".to_string(),
            ino => ino.to_string(),
        };
        table.add_row([&server.name, &server.state, &storage, &server.mark.to_string(), &lost]);
    }
    output::print_table(&table)
}

fn replace(args: &ReplaceArgs) -> Result<()> {
    let (config, key) = args.cluster.load()?;
    let server = config.server(&args.name)?;
    weft_server::replace_server(&config, &key, &args.name)?;
    eprintln!(
        "weft: the next storage that {} comes with is its own; to make a new one in {}: weft serve --config {} --name {} \
         --format",
        args.name,
        config.directory_of(server).display(),
        config.path.display(),
        args.name
    );
    Ok(())
}
