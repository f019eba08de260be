//! `weft quota`

use crate::time_text::{duration, utc};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::WeftPath;
use weft_cli_common::{output, size};
use weft_client::{Client, Quotas};
use weft_wire::messages::{QuotaLimits, QuotaRow, quota_kind};

/// The id of what counts for all without limits of their own.
const EVERYONE: u64 = u32::MAX as u64;
/// How often the progress of a count is looked at.
const POLL: Duration = Duration::from_millis(50);
const GRACE_DEFAULT_S: u32 = 7 * 24 * 3600;

/// Limit what users, groups and directory trees may use.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Set limits of a user, a group, or a directory and all below it.
    ///
    /// What counts is the size of files, holes included, and the number of files, directories and other
    /// inodes. It counts for the owner of a file, for its group, and for the tree that it is in, whoever writes
    /// it. A hard limit is never exceeded: what would exceed it fails with "disk quota exceeded" (EDQUOT). A
    /// soft limit may be exceeded for the time of grace, and is a hard one afterwards, until usage is below
    /// it again. Root is not held to limits.
    ///
    /// Limits that are not given stay as they are; 0 removes one. With the first limit the server counts
    /// all usage; limits hold when that is done. Files that were opened before somebody had a limit are held
    /// to it when they are opened the next time, or after a day.
    ///
    /// A tree is marked first, entry by entry, while it is in use. A directory does not move out of a tree or
    /// into one by renaming (`mv` copies it), and trees do not contain each other.
    #[command(after_help = "Examples:
  weft quota set --user alice --bytes 1T --files 10000000
  weft quota set --user alice --soft-bytes 900G --grace 14d
  weft quota set --each-user --bytes 100G
  weft quota set --tree weft:/projects/p1 --bytes 20T --df")]
    Set(SetArgs),
    /// Show usage and limits of yourself, or of one user, group or tree.
    #[command(after_help = "Examples:
  weft quota get
  weft quota get --group chem
  weft quota get --tree weft:/projects/p1 --json")]
    Get(GetArgs),
    /// List usage and limits of all users, groups and trees.
    Ls(LsArgs),
    /// Remove all limits of a user, a group or a tree. A tree is none afterwards.
    Rm(RmArgs),
    /// Count all usage anew. It is kept exact; this is for who doubts it.
    Count(CountArgs),
}

/// Whose limits.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct SubjectArgs {
    /// A user, by name or number.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// A group, by name or number.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// A directory and all below it.
    #[arg(long, value_name = "URL")]
    tree: Option<String>,
    /// Each user that has no limits of its own.
    #[arg(long)]
    each_user: bool,
    /// Each group that has no limits of its own.
    #[arg(long)]
    each_group: bool,
}

/// The file system.
#[derive(Debug, clap::Args)]
pub struct SystemArgs {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Options of `set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// The hard limit of bytes.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    bytes: Option<u64>,
    /// The soft limit of bytes.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    soft_bytes: Option<u64>,
    /// The hard limit of files.
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// The soft limit of files.
    #[arg(long, value_name = "N")]
    soft_files: Option<u64>,
    /// How long soft limits may be exceeded: 14d, 12h, 30m, 45s [default: 7d].
    #[arg(long, value_name = "TIME", value_parser = parse_grace)]
    grace: Option<u32>,
    /// Of a tree: `df` in it shows its limit as the size of the file system.
    #[arg(long)]
    df: bool,
    /// Do not wait until usage is counted.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    system: SystemArgs,
}

/// Options of `get`.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    system: SystemArgs,
}

/// Options of `ls`.
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Users only.
    #[arg(long)]
    users: bool,
    /// Groups only.
    #[arg(long, conflicts_with = "users")]
    groups: bool,
    /// Trees only.
    #[arg(long, conflicts_with_all = ["users", "groups"])]
    trees: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    system: SystemArgs,
}

/// Options of `rm`.
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    system: SystemArgs,
}

/// Options of `count`.
#[derive(Debug, clap::Args)]
pub struct CountArgs {
    /// Do not wait until it is done.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    system: SystemArgs,
}

/// Sets or shows quotas.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Set(args) => set(&args),
        Command::Get(args) => get(&args),
        Command::Ls(args) => ls(&args),
        Command::Rm(args) => rm(&args),
        Command::Count(args) => count(&args),
    }
}

fn parse_grace(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a time; write for example 14d, 12h, 30m or 45s");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?);
    let unit_s = match unit {
        "d" => 24 * 3600,
        "h" => 3600,
        "m" => 60,
        "s" => 1,
        _ => return Err(wrong()),
    };
    number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit_s)).ok_or_else(wrong)
}

/// Whose limits, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Id(u8, u64),
    Tree(WeftPath),
}

impl SubjectArgs {
    fn subject(&self) -> Result<Option<Subject>> {
        Ok(Some(match self {
            SubjectArgs { user: Some(user), .. } => Subject::Id(quota_kind::USER, user_id(user)?.into()),
            SubjectArgs { group: Some(group), .. } => Subject::Id(quota_kind::GROUP, group_id(group)?.into()),
            SubjectArgs { tree: Some(tree), .. } => Subject::Tree(WeftPath::from_argument(tree)?),
            SubjectArgs { each_user: true, .. } => Subject::Id(quota_kind::USER, EVERYONE),
            SubjectArgs { each_group: true, .. } => Subject::Id(quota_kind::GROUP, EVERYONE),
            _ => return Ok(None),
        }))
    }

    fn required(&self) -> Result<Subject> {
        let subject = self.subject()?;
        subject.context("whose? give --user, --group, --tree, --each-user or --each-group")
    }
}

fn user_id(user: &str) -> Result<u32> {
    let known = || output::user_id(user).with_context(|| format!("this machine knows no user `{user}`"));
    user.parse().or_else(|_| known())
}

fn group_id(group: &str) -> Result<u32> {
    let known = || output::group_id(group).with_context(|| format!("this machine knows no group `{group}`"));
    group.parse().or_else(|_| known())
}

impl SystemArgs {
    /// The file system that is named, or that of the tree.
    fn client(&self, subject: Option<&Subject>) -> Result<Client> {
        let connections = Connections::new(&self.connect);
        if let Some(Subject::Tree(tree)) = subject {
            return connections.client(&tree.url);
        }
        let Some(url) = &self.url else {
            bail!("which file system? give its URL, or set WEFT_URL");
        };
        connections.client(&WeftPath::from_argument(url)?.url)
    }
}

fn tree_of(client: &Client, path: &Path) -> Result<u64> {
    Ok(client.stat(at(path), true)?.ino)
}

fn set(args: &SetArgs) -> Result<()> {
    let given = [args.bytes, args.soft_bytes, args.files, args.soft_files];
    if given.iter().all(Option::is_none) && args.grace.is_none() && !args.df {
        bail!("nothing to set; give --bytes, --soft-bytes, --files, --soft-files, --grace or --df");
    }
    let subject = args.subject.required()?;
    if args.df && !matches!(subject, Subject::Tree(_)) {
        bail!("--df is for trees: a user or a group has no directory in which df could show its limit");
    }
    let client = args.system.client(Some(&subject))?;
    let (kind, id) = match &subject {
        Subject::Id(kind, id) => (*kind, *id),
        Subject::Tree(place) => {
            let progress = ProgressBar::new_spinner();
            let told =
                |entries| progress.set_message(format!("marking {}: {entries} entries", place.display()));
            let tree = client.mark_tree(at(&place.path), true, told).with_context(|| place.typed())?;
            progress.finish_and_clear();
            (quota_kind::TREE, tree)
        }
    };
    let known = client.quota(kind, id)?.filter(|row| row.is_own).and_then(|row| row.limits);
    let known = known.unwrap_or(QuotaLimits {
        hard_bytes: 0,
        soft_bytes: 0,
        hard_files: 0,
        soft_files: 0,
        grace_s: GRACE_DEFAULT_S,
        in_statfs: false,
    });
    let limits = QuotaLimits {
        hard_bytes: args.bytes.unwrap_or(known.hard_bytes),
        soft_bytes: args.soft_bytes.unwrap_or(known.soft_bytes),
        hard_files: args.files.unwrap_or(known.hard_files),
        soft_files: args.soft_files.unwrap_or(known.soft_files),
        grace_s: args.grace.unwrap_or(known.grace_s),
        in_statfs: args.df || known.in_statfs,
    };
    for (soft, hard, what) in
        [(limits.soft_bytes, limits.hard_bytes, "bytes"), (limits.soft_files, limits.hard_files, "files")]
    {
        if hard != 0 && soft > hard {
            bail!("the soft limit of {what} ({soft}) is above the hard one ({hard})");
        }
    }
    client.set_quota(kind, id, Some(limits))?;
    if args.no_wait { Ok(()) } else { wait_for_count(&client) }
}

/// Waits until usage is counted, which is only long when it is counted for the first time.
fn wait_for_count(client: &Client) -> Result<()> {
    let progress = ProgressBar::new_spinner();
    while let Some((counted, all)) = client.quotas(Some(quota_kind::TREE))?.counting {
        progress.set_message(format!("counting usage: {counted} of {all} files and directories"));
        std::thread::sleep(POLL);
    }
    progress.finish_and_clear();
    Ok(())
}

fn get(args: &GetArgs) -> Result<()> {
    let subject = args.subject.subject()?;
    let client = args.system.client(subject.as_ref())?;
    let mut quotas = client.quotas(None)?;
    let is_wanted: Box<dyn Fn(&QuotaRow) -> bool> = match &subject {
        Some(Subject::Id(kind, id)) => {
            let (kind, id) = (*kind, *id);
            Box::new(move |row| (row.kind, row.id) == (kind, id))
        }
        Some(Subject::Tree(place)) => {
            let tree = tree_of(&client, &place.path).with_context(|| place.typed())?;
            Box::new(move |row| (row.kind, row.id) == (quota_kind::TREE, tree))
        }
        None => {
            // SAFETY: these always succeed.
            let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
            Box::new(move |row| match row.kind {
                quota_kind::USER => row.id == u64::from(uid),
                quota_kind::GROUP => row.id == u64::from(gid),
                _ => false,
            })
        }
    };
    quotas.rows.retain(|row| is_wanted(row));
    print(&quotas, args.json)
}

fn ls(args: &LsArgs) -> Result<()> {
    let kind = match args {
        LsArgs { users: true, .. } => Some(quota_kind::USER),
        LsArgs { groups: true, .. } => Some(quota_kind::GROUP),
        LsArgs { trees: true, .. } => Some(quota_kind::TREE),
        _ => None,
    };
    print(&args.system.client(None)?.quotas(kind)?, args.json)
}

fn rm(args: &RmArgs) -> Result<()> {
    let subject = args.subject.required()?;
    let client = args.system.client(Some(&subject))?;
    match &subject {
        Subject::Id(kind, id) => client.set_quota(*kind, *id, None)?,
        Subject::Tree(place) => {
            let tree = tree_of(&client, &place.path).with_context(|| place.typed())?;
            client.set_quota(quota_kind::TREE, tree, None)?;
            client.mark_tree(at(&place.path), false, |_| {}).with_context(|| place.typed())?;
        }
    }
    Ok(())
}

fn count(args: &CountArgs) -> Result<()> {
    let client = args.system.client(None)?;
    client.count_usage()?;
    if args.no_wait { Ok(()) } else { wait_for_count(&client) }
}

fn print(quotas: &Quotas, as_json: bool) -> Result<()> {
    if as_json {
        let counting = quotas.counting.map(|(counted, all)| json!({ "counted": counted, "of": all }));
        let rows: Vec<_> = quotas.rows.iter().map(row_json).collect();
        return output::print_json(&json!({ "on": quotas.is_on, "counting": counting, "quotas": rows }));
    }
    if !quotas.is_on {
        println!("no limits were ever set, so usage is not counted; weft quota set begins to");
        return Ok(());
    }
    let headings = ["for", "bytes", "soft", "hard", "files", "soft", "hard", "over"];
    let mut table = output::table(&headings, &[1, 2, 3, 4, 5, 6]);
    for row in &quotas.rows {
        let limits = row.limits.as_ref();
        let bytes = |limit: fn(&QuotaLimits) -> u64| match limits.map_or(0, limit) {
            0 => "-".to_string(),
            bytes => size::format_bytes(bytes),
        };
        let files = |limit: fn(&QuotaLimits) -> u64| match limits.map_or(0, limit) {
            0 => "-".to_string(),
            files => files.to_string(),
        };
        table.add_row([
            name_of(row),
            size::format_bytes(row.used_bytes),
            bytes(|limits| limits.soft_bytes),
            bytes(|limits| limits.hard_bytes),
            row.used_files.to_string(),
            files(|limits| limits.soft_files),
            files(|limits| limits.hard_files),
            over(row, now_s()),
        ]);
    }
    output::print_table(&table)?;
    if let Some((counted, all)) = quotas.counting {
        println!("usage is being counted: {counted} of {all}; until then limits do not hold");
    }
    Ok(())
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn name_of(row: &QuotaRow) -> String {
    let id = row.id as u32;
    match row.kind {
        quota_kind::USER if row.id == EVERYONE => "each user".to_string(),
        quota_kind::GROUP if row.id == EVERYONE => "each group".to_string(),
        quota_kind::USER => format!("user {}", output::user_name(id)),
        quota_kind::GROUP => format!("group {}", output::group_name(id)),
        _ => match &row.path {
            Some(path) => format!("tree {}", String::from_utf8_lossy(path)),
            None => format!("tree of inode {}", row.id),
        },
    }
}

/// What is said of limits that are reached.
fn over(row: &QuotaRow, now_s: u64) -> String {
    let Some(limits) = &row.limits else { return String::new() };
    let mut said = Vec::new();
    for (since_s, used, hard, what) in [
        (row.bytes_over_s, row.used_bytes, limits.hard_bytes, "bytes"),
        (row.files_over_s, row.used_files, limits.hard_files, "files"),
    ] {
        let ends_s = since_s + u64::from(limits.grace_s);
        if hard != 0 && used >= hard {
            said.push(format!("{what}: full"));
        } else if since_s != 0 && now_s < ends_s {
            said.push(format!("{what}: {} of grace left", duration((ends_s - now_s) * 1000)));
        } else if since_s != 0 {
            said.push(format!("{what}: grace is over"));
        }
    }
    said.join(", ")
}

fn row_json(row: &QuotaRow) -> serde_json::Value {
    let kind = match row.kind {
        quota_kind::USER => "user",
        quota_kind::GROUP => "group",
        _ => "tree",
    };
    let everyone = row.kind != quota_kind::TREE && row.id == EVERYONE;
    let limits = row.limits.as_ref().map(|limits| {
        json!({
            "hard_bytes": limits.hard_bytes,
            "soft_bytes": limits.soft_bytes,
            "hard_files": limits.hard_files,
            "soft_files": limits.soft_files,
            "grace_s": limits.grace_s,
            "in_df": limits.in_statfs,
            "own": row.is_own,
        })
    });
    let since = |seconds: u64| (seconds != 0).then(|| utc(seconds));
    json!({
        "kind": kind,
        "id": if everyone { None } else { Some(row.id) },
        "path": row.path.as_ref().map(|path| String::from_utf8_lossy(path)),
        "used_bytes": row.used_bytes,
        "reserved_bytes": row.reserved_bytes,
        "used_files": row.used_files,
        "limits": limits,
        "bytes_over_since": since(row.bytes_over_s),
        "files_over_since": since(row.files_over_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_grace_are_read() {
        for (text, seconds) in [("14d", 1_209_600), ("12h", 43_200), ("30m", 1800), ("45s", 45), ("0d", 0)] {
            assert_eq!(parse_grace(text), Ok(seconds), "{text}");
        }
        for text in ["", "14", "d", "1w", "-1d", "99999999d"] {
            parse_grace(text).expect_err(text);
        }
    }

    #[test]
    fn what_is_reached_is_said() {
        let limits = QuotaLimits {
            hard_bytes: 100,
            soft_bytes: 50,
            hard_files: 0,
            soft_files: 5,
            grace_s: 3600,
            in_statfs: false,
        };
        let row = QuotaRow {
            used_bytes: 60,
            used_files: 6,
            limits: Some(limits),
            bytes_over_s: 1000,
            files_over_s: 10,
            ..weft_wire::Wire::sample(&mut 0)
        };
        assert_eq!(over(&row, 3700), "bytes: 15m00s of grace left, files: grace is over");
        assert_eq!(over(&QuotaRow { used_bytes: 100, files_over_s: 0, ..row }, 3700), "bytes: full");
    }
}
