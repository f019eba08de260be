//! `weft key rotate`: replaces the cluster's secret while the cluster is in use.
//!
//! ```text
//!   step     cluster.key afterwards   every server must                    issued keys must
//!   add      old, new                 -                                    -
//!   switch   new, old                 accept the new key                   -
//!   drop     new                      prove itself with the new key        not be of the old one, or --force
//! ```

use super::{ClusterArgs, connect, now_s};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Duration;
use weft_cli_common::output;
use weft_server::{
    CLIENT_KEY_FILE, ClusterConfig, create_client_key, random_cluster_key, write_cluster_keys,
};
use weft_wire::keys::{IssuedKey, id_text};
use weft_wire::security::{ClusterKeys, Key};

/// How long a capability lives that the old key signed.
const CAPABILITY_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Options of `rotate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The step.
    #[arg(value_enum)]
    step: Step,
    /// Take the step even if a server does not answer or keys issued with the old one are still valid; their
    /// holders are refused from then on.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// Create a new key, which is accepted besides the current one.
    Add,
    /// Use the new key.
    Switch,
    /// Stop accepting the old key. Before `switch`: discard the new one.
    Drop,
}

/// Takes a step.
pub fn run(args: &Args) -> Result<()> {
    let (config, keys) = args.cluster.load()?;
    let path = args.cluster.key_file(&config);
    let of_file = || format!("{} is unchanged", path.display());
    let next = match args.step {
        Step::Add => keys.clone().with(random_cluster_key()?),
        Step::Switch => keys.clone().switched(now_s()),
        Step::Drop => keys.clone().without_other(),
    }
    .with_context(of_file)?;
    let hindrances = match args.step {
        Step::Add => Vec::new(),
        Step::Switch => {
            unlike(&config, next.in_use(), weft_server::accepts_key, "does not accept the new key yet")
        }
        Step::Drop if keys.is_other_new() => Vec::new(),
        Step::Drop => old_is_needed(&config, &keys)?,
    };
    for hindrance in &hindrances {
        eprintln!("weft: {hindrance}");
    }
    if !hindrances.is_empty() && !args.force {
        bail!("{}; repeat the step when this is resolved, or use --force", of_file());
    }
    write_cluster_keys(&path, &next)?;
    if args.step == Step::Switch {
        renew_client_key(&path, &keys, next.in_use())?;
    }
    output::print_line(advice(args.step, &path, &config))
}

fn advice(step: Step, path: &Path, config: &ClusterConfig) -> String {
    let servers: Vec<&str> = config.servers.iter().map(|server| server.name.as_str()).collect();
    let (path, servers) = (path.display(), servers.join(", "));
    let copy = format!(
        "{path} is written. Copy it to the machine of each server ({servers}) that does not share it; servers take it over within \
         a second or two"
    );
    match step {
        Step::Add => format!("{copy}. Then: weft key rotate switch"),
        Step::Switch => format!(
            "{copy}. Issue new keys to hosts and users: weft key list shows those of the old one as \"valid, old\". Then, after a \
             day: weft key rotate drop"
        ),
        Step::Drop => copy,
    }
}

/// Reasons against dropping the old key.
fn old_is_needed(config: &ClusterConfig, keys: &ClusterKeys) -> Result<Vec<String>> {
    let mut hindrances =
        unlike(config, keys.in_use(), weft_server::proves_with_key, "does not use the new key yet");
    let age_s = now_s().saturating_sub(keys.since_s());
    if age_s < CAPABILITY_LIFE.as_secs() {
        let left = (CAPABILITY_LIFE.as_secs() - age_s).div_ceil(3600);
        hindrances.push(format!(
            "files that were opened with the old key may be open for another {left} h; their users would get errors"
        ));
    }
    let old = keys.other().map(Key::name);
    for record in connect(config, keys.in_use())?.list_keys()? {
        let is_valid = record.revoked_s == 0 && !record.key.is_expired(now_s());
        if is_valid && Some(record.key.issuer) == old {
            let (id, name) = (id_text(&record.key.id), &record.key.name);
            hindrances.push(format!(
                "the key {id} ({name}) was issued with the old cluster key: issue another one, then revoke it"
            ));
        }
    }
    Ok(hindrances)
}

/// The servers for which `test` fails, each with the reason.
fn unlike(
    config: &ClusterConfig,
    key: &Key,
    test: fn(&ClusterConfig, &weft_server::ServerConfig, &Key) -> Result<bool, weft_server::AdminError>,
    what: &str,
) -> Vec<String> {
    let look = |server| match test(config, server, key) {
        Ok(true) => None,
        Ok(false) => Some(format!("{} {what}; check that it has the same cluster.key", server.name)),
        Err(error) => Some(format!("cannot ask {}: {error}", server.name)),
    };
    config.servers.iter().filter_map(look).collect()
}

/// Issues the administrator's key beside the cluster's anew, if it is there and was issued with the old key.
fn renew_client_key(key_file: &Path, old: &ClusterKeys, new: &Key) -> Result<()> {
    let Some(directory) = key_file.parent() else { return Ok(()) };
    let path = directory.join(CLIENT_KEY_FILE);
    let issued = std::fs::read_to_string(&path).ok().and_then(|text| IssuedKey::from_text(&text).ok());
    if issued.is_some_and(|key| key.info.issuer == old.in_use().name()) {
        let kept = directory.join(format!("{CLIENT_KEY_FILE}.old"));
        std::fs::rename(&path, &kept).with_context(|| format!("cannot replace {}", path.display()))?;
        create_client_key(directory, new)?;
        eprintln!("weft: {} is a new key; the previous one is {}", path.display(), kept.display());
    }
    Ok(())
}
