//! `weft init`

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::str::FromStr;
use weft_cli_common::launch::CLUSTER_FILE;
use weft_cli_common::{output, size};
use weft_server::{ClusterConfig, Generate, ServerRole, SyncMode};

/// Writes the cluster file and the keys of a new cluster on any number of machines.
///
/// Copy weft.toml and cluster.key to each server's machine. Create each server's storage there once with
/// `weft serve --config weft.toml --name NAME --format`, and start it without `--format` (the systemd unit
/// weft@.service does this). client.key is the administrator's key; `weft key issue` issues others. `weft
/// help cluster` shows every step.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory for weft.toml, cluster.key and client.key; created if missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The metadata server: its address, and its storage directory on its machine.
    #[arg(long, value_name = "HOST:PORT:STORAGE_DIR", required = true)]
    meta: ServerPlace,
    /// An I/O server; repeat this for each, in the order of striping.
    #[arg(long, value_name = "HOST:PORT:STORAGE_DIR", required = true)]
    io: Vec<ServerPlace>,
    /// Default strip size of files [default: 256K].
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    strip_bytes: Option<u64>,
    /// Default number of I/O servers of a file; 0: all.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    servers: u16,
    /// Acknowledge writes and changes of names only when they are on the disk.
    #[arg(long)]
    sync: bool,
    /// Print what was written as JSON.
    #[arg(long)]
    json: bool,
}

/// Where a server will be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerPlace {
    address: String,
    directory: PathBuf,
}

impl FromStr for ServerPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerPlace, String> {
        let wrong = || format!("`{text}` is not HOST:PORT:STORAGE_DIR, such as node1:7401:/srv/weft/io0");
        let (address, directory) = text.split_once(":/").ok_or_else(wrong)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(wrong());
        }
        Ok(ServerPlace { address: address.to_string(), directory: PathBuf::from(format!("/{directory}")) })
    }
}

/// Writes a new cluster.
pub fn run(args: Args) -> Result<()> {
    std::fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot create the directory {}", args.dir.display()))?;
    let path = std::path::absolute(args.dir.join(CLUSTER_FILE))?;
    if path.exists() {
        bail!("{} exists, and a cluster file is never overwritten; choose another --dir", path.display());
    }
    let strip_bytes = args.strip_bytes.unwrap_or(weft_server::config::STRIP_BYTES_DEFAULT.into());
    let mut config = ClusterConfig::generate(&Generate {
        path: path.clone(),
        host: "localhost".into(),
        port: 1,
        io_servers: u16::try_from(args.io.len()).context("too many --io")?,
        sync: if args.sync { SyncMode::Sync } else { SyncMode::Nosync },
        strip_bytes: u32::try_from(strip_bytes).context("--strip-bytes is too large; at most 1G")?,
    })?;
    config.cluster.server_count = args.servers;
    let mut io_places = args.io.iter();
    for server in &mut config.servers {
        let place = match server.role {
            ServerRole::Meta => &args.meta,
            ServerRole::Io => io_places.next().expect("one was generated for each"),
        };
        server.addresses = vec![place.address.clone()];
        server.directory = place.directory.clone();
        // The server's machine may have another number of processors.
        server.threads = None;
    }
    let config = ClusterConfig::parse(&config.to_toml(), &path)?;
    weft_server::create_keys(&args.dir)?;
    config.save()?;
    let url = format!("weft://{}/", args.meta.address);
    let names: Vec<_> = config.servers.iter().map(|server| server.name.as_str()).collect();
    if args.json {
        return output::print_json(&serde_json::json!({ "url": url, "config": path, "servers": names }));
    }
    output::print_line(&url)?;
    eprintln!(
        "weft: wrote {}, cluster.key and client.key for {}; copy weft.toml and cluster.key to each server's machine and run \
         there, once: weft serve --config weft.toml --name NAME --format; and then: weft serve --config weft.toml --name NAME",
        path.display(),
        names.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_and_a_directory() {
        let place: ServerPlace = "node1:7401:/srv/weft".parse().unwrap();
        assert_eq!(place, ServerPlace { address: "node1:7401".into(), directory: "/srv/weft".into() });
        let place: ServerPlace = "[fd00::1]:7401:/srv".parse().unwrap();
        assert_eq!(place.address, "[fd00::1]:7401");
        for text in ["node1", "node1:7401", "node1:x:/srv", ":1:/srv", "node1:0:/srv", "node1:7401:srv"] {
            assert!(text.parse::<ServerPlace>().is_err(), "{text}");
        }
    }
}
