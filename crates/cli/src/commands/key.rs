//! `weft key`

mod rotation;

use crate::time_text;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_cli_common::launch::CLUSTER_FILE;
use weft_cli_common::output;
use weft_client::{Client, ConnectOptions, Url, read_key_file};
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig, issue_key, load_cluster_keys};
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind, id_from_text, id_text};
use weft_wire::messages::KeyRecord;
use weft_wire::security::{ClusterKeys, Key};

/// Issue, list, revoke and rotate keys.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Issue a key to a user or a host.
    ///
    /// The holder of a user key acts as that user, with the groups given here, whatever user the process runs
    /// as. A host key is for root on that host: a mount there acts for all users, and root itself becomes the
    /// anonymous user (65534) unless --no-root-squash is given. The key is printed, or written to a file that
    /// only its owner can read.
    #[command(after_help = "Examples:
  weft key issue --uid 1000 --gid 1000 --gid 27 --expires 90d --name alice --out alice.key
  weft key issue --host node7 --out node7.key")]
    Issue(IssueArgs),
    /// List the keys that were issued or used.
    ///
    /// States: valid; "valid, old" (issued with a cluster key that is being replaced: issue another); void
    /// (issued with a cluster key that was replaced); revoked; expired.
    List(ListArgs),
    /// Replace the cluster's secret in three steps, while the cluster is in use.
    ///
    /// Servers accept two cluster keys during the rotation, and read cluster.key once a second. If servers
    /// run on several machines, copy the file to all of them after each step. Each step first checks that
    /// every server has taken over the step before.
    ///
    /// add: creates a new key, which servers accept from then on.
    ///
    /// switch: servers sign, prove and issue with the new key. Keys that were issued with the old one stay
    /// valid until the last step, so issue new ones to hosts and users now; `weft key list` shows which are
    /// left.
    ///
    /// drop: servers no longer accept the old key, and close connections that use it.
    #[command(after_help = "Example:
  weft key rotate add       copy cluster.key to all servers' machines
  weft key rotate switch    copy cluster.key again; issue new keys to hosts and users
  weft key rotate drop      copy cluster.key again")]
    Rotate(rotation::Args),
    /// Revoke keys. Servers refuse them from then on, and close connections that use them.
    Revoke(RevokeArgs),
}

/// Selects the cluster.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    /// The cluster file, or its directory.
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/weft.toml")]
    config: PathBuf,
    /// File with the cluster's secret [default: cluster.key beside the cluster file].
    #[arg(long, value_name = "FILE")]
    cluster_key: Option<PathBuf>,
}

/// Options of `issue`.
#[derive(Debug, clap::Args)]
pub struct IssueArgs {
    /// The user that the holder acts as.
    #[arg(long, value_name = "UID", required_unless_present = "host", value_parser = clap::value_parser!(u32).range(1..))]
    uid: Option<u32>,
    /// A group of that user, the primary one first; may be repeated [default: the user's groups on this
    /// machine].
    #[arg(long, value_name = "GID", requires = "uid")]
    gid: Vec<u32>,
    /// The host whose users the holder acts for.
    #[arg(long, value_name = "NAME", conflicts_with = "uid")]
    host: Option<String>,
    /// Let root on that host act as root, and administer the file system.
    #[arg(long, requires = "host", conflicts_with = "uid")]
    no_root_squash: bool,
    /// When the key expires: after a time (90d, 12h, 30m), or at a date (2027-01-31, 2027-01-31T12:00:00Z)
    /// [default: never].
    #[arg(long, value_name = "TIME", value_parser = parse_expiry)]
    expires: Option<u64>,
    /// A name for the key, shown in the list of keys.
    #[arg(long, value_name = "TEXT", conflicts_with = "host")]
    name: Option<String>,
    /// Write the key to a new file that only its owner can read.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// Ids of keys, the first digits of ids, or key files.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Runs `weft key`.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Issue(args) => issue(args),
        Command::List(args) => list(&args),
        Command::Rotate(args) => rotation::run(&args),
        Command::Revoke(args) => revoke(&args),
    }
}

impl ClusterArgs {
    fn load(&self) -> Result<(ClusterConfig, ClusterKeys)> {
        let path = if self.config.is_dir() { self.config.join(CLUSTER_FILE) } else { self.config.clone() };
        let config = ClusterConfig::load(&path)?;
        let keys = load_cluster_keys(&self.key_file(&config))?;
        Ok((config, keys))
    }

    /// The file of the cluster's keys.
    fn key_file(&self, config: &ClusterConfig) -> PathBuf {
        self.cluster_key.clone().unwrap_or_else(|| config.resolve(CLUSTER_KEY_FILE.as_ref()))
    }

    /// Connects with the cluster's own key.
    fn connect(&self) -> Result<Client> {
        let (config, keys) = self.load()?;
        connect(&config, keys.in_use())
    }
}

/// Connects with the cluster's secret.
pub(super) fn connect(config: &ClusterConfig, cluster_key: &Key) -> Result<Client> {
    let server = config.meta_servers().next().expect("a checked cluster file has a metadata server");
    let url = Url::parse(&format!("weft://{}/", server.addresses[0]))?;
    let key = Some(IssuedKey::of_cluster(cluster_key));
    Ok(Client::connect(&url, ConnectOptions { key, retry_timeout_ms: 5_000, ..ConnectOptions::default() })?)
}

fn issue(args: IssueArgs) -> Result<()> {
    let (config, cluster_keys) = args.cluster.load()?;
    let cluster_key = cluster_keys.in_use();
    let (kind, name) = match (args.uid, args.host) {
        (Some(uid), _) => {
            let gids = if args.gid.is_empty() { groups_here(uid)? } else { args.gid };
            (KeyKind::User { uid, gids }, args.name.unwrap_or_default())
        }
        (None, host) => (KeyKind::Host { squash_root: !args.no_root_squash }, host.unwrap_or_default()),
    };
    let expires_s = args.expires.unwrap_or(0);
    if expires_s != 0 && expires_s <= now_s() {
        bail!("--expires is in the past");
    }
    let key = issue_key(cluster_key, kind, expires_s, &name)?;
    match &args.out {
        Some(path) => {
            let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(key.to_text().as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => output::print_line(key.to_text().trim_end())?,
    }
    if let Err(error) = connect(&config, cluster_key).and_then(|client| Ok(client.note_key(&key.info)?)) {
        eprintln!(
            "weft: the key {} is valid, but `weft key list` shows it only after its first use: {error:#}",
            id_text(&key.info.id)
        );
    }
    Ok(())
}

/// A user's groups on this machine, the primary one first.
fn groups_here(uid: u32) -> Result<Vec<u32>> {
    let unknown = || format!("user {uid} does not exist on this machine; give the groups with --gid");
    let groups = |option: &str| -> Result<Vec<u32>> {
        let output = std::process::Command::new("id").arg(option).arg(uid.to_string()).output();
        let output = output.ok().filter(|output| output.status.success()).with_context(unknown)?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_whitespace().map(|gid| gid.parse().with_context(unknown)).collect()
    };
    let mut all = groups("-g")?;
    let others: Vec<u32> = groups("-G")?.into_iter().filter(|gid| !all.contains(gid)).collect();
    all.extend(others);
    Ok(all)
}

fn list(args: &ListArgs) -> Result<()> {
    let (config, cluster_keys) = args.cluster.load()?;
    let keys = connect(&config, cluster_keys.in_use())?.list_keys()?;
    if args.json {
        let keys: Vec<_> = keys.iter().map(|record| to_json(record, &cluster_keys)).collect();
        return output::print_json(&json!({ "keys": keys }));
    }
    let mut table = output::table(&["ID", "FOR", "EXPIRES", "STATE", "NAME"], &[]);
    for record in keys {
        let KeyInfo { id, kind, expires_s, name, .. } = &record.key;
        let whom = match kind {
            KeyKind::User { uid, gids } => {
                let gids: Vec<_> = gids.iter().map(u32::to_string).collect();
                format!("user {uid} ({})", gids.join(","))
            }
            KeyKind::Host { squash_root: true } => "host".into(),
            KeyKind::Host { squash_root: false } => "host, no root squash".into(),
        };
        let expires = if *expires_s == 0 { "never".into() } else { time_text::utc(*expires_s) };
        table.add_row([id_text(id), whom, expires, state(&record, &cluster_keys).into(), name.clone()]);
    }
    output::print_table(&table)
}

fn state(record: &KeyRecord, cluster_keys: &ClusterKeys) -> &'static str {
    if record.revoked_s != 0 {
        "revoked"
    } else if record.key.is_expired(now_s()) {
        "expired"
    } else if !cluster_keys.all().any(|key| key.name() == record.key.issuer) {
        "void"
    } else if record.key.issuer != cluster_keys.in_use().name() {
        "valid, old"
    } else {
        "valid"
    }
}

fn to_json(record: &KeyRecord, cluster_keys: &ClusterKeys) -> serde_json::Value {
    let KeyInfo { id, kind, expires_s, name, .. } = &record.key;
    let mut value = json!({
        "id": id_text(id),
        "name": name,
        "state": state(record, cluster_keys),
        "expires_s": (*expires_s != 0).then_some(expires_s),
        "noted_s": record.noted_s,
        "revoked_s": (record.revoked_s != 0).then_some(record.revoked_s),
    });
    match kind {
        KeyKind::User { uid, gids } => {
            value["kind"] = json!("user");
            value["uid"] = json!(uid);
            value["gids"] = json!(gids);
        }
        KeyKind::Host { squash_root } => {
            value["kind"] = json!("host");
            value["root_squash"] = json!(squash_root);
        }
    }
    value
}

fn revoke(args: &RevokeArgs) -> Result<()> {
    let client = args.cluster.connect()?;
    for text in &args.ids {
        let id = find(&client, text)?;
        let waiting = client.revoke_key(id).with_context(|| format!("cannot revoke {}", id_text(&id)))?;
        output::print_line(format!("revoked {}", id_text(&id)))?;
        if !waiting.is_empty() {
            eprintln!(
                "weft: {} did not answer; it accepts the key until it is reachable again and notified",
                waiting.join(", ")
            );
        }
    }
    Ok(())
}

/// Finds a key by its file, its id, or the first digits of its id.
fn find(client: &Client, text: &str) -> Result<[u8; 16]> {
    if Path::new(text).is_file() {
        let key = read_key_file(Path::new(text))?;
        client.note_key(&key.info)?;
        return Ok(key.info.id);
    }
    if let Some(id) = id_from_text(text) {
        return Ok(id);
    }
    let known = client.list_keys()?;
    let mut found = known.iter().filter(|record| id_text(&record.key.id).starts_with(text));
    match (found.next(), found.next()) {
        (Some(record), None) if text.len() >= 4 => Ok(record.key.id),
        (Some(_), _) => bail!("`{text}` matches several keys; give more digits of the id"),
        (None, _) => bail!("there is no key `{text}`; `weft key list` shows all"),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Parses a time from now, or a date, into seconds since 1970.
fn parse_expiry(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is neither a time like 90d, 12h or 30m nor a date like 2027-01-31");
    if text.contains('-') {
        return time_text::parse_utc(text).ok_or_else(wrong);
    }
    let (count, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count.checked_mul(unit_s).and_then(|after_s| after_s.checked_add(now_s())).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_expires_after_a_time_or_at_a_date() {
        let after = parse_expiry("90d").unwrap();
        assert!((90 * 86_400..90 * 86_400 + 5).contains(&(after - now_s())));
        assert_eq!(parse_expiry("2027-01-31"), Ok(1_801_353_600));
        for text in ["", "d", "5", "5y", "-5d", "2027-13-01", "999999999999999999d", "日"] {
            assert!(parse_expiry(text).is_err(), "{text}");
        }
    }
}
