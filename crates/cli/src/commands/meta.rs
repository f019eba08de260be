//! `weft meta`

use super::key::connect;
use crate::exit::Code;
use crate::time_text;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::launch::CLUSTER_FILE;
use weft_cli_common::place::WeftPath;
use weft_cli_common::{PERMANENT, output};
use weft_client::Client;
use weft_server::{
    BackupHead, BackupSize, BackupWriter, CLUSTER_KEY_FILE, ClusterConfig, load_cluster_keys, load_names,
};
use weft_wire::keys::id_text;

/// Back up all names and attributes, and restore them.
///
/// A backup has no file data, which is on the I/O servers. `weft help backup` explains what happens to
/// changes that were made after the backup.
#[derive(Debug, clap::Subcommand)]
pub enum MetaCommand {
    /// Write all names and attributes, as they are at one moment, to a file.
    ///
    /// Servers and clients keep working meanwhile. The file appears only when it is complete. It contains
    /// secrets (the rights that clients were given), so only its owner may read it; protect it like a key.
    /// Only administrators can make a backup (`weft help keys`).
    #[command(after_help = "Examples:
  weft meta dump weft://10.0.0.5:7400/ /backup/names-monday
  weft meta dump --dir /srv/weft /backup/names-monday")]
    Dump(DumpArgs),
    /// Create a metadata server's storage from a backup.
    ///
    /// The server must be stopped. The backup is read completely, and every checksum verified, before
    /// anything is changed. The server then starts from the backup, once all I/O servers run. Nothing is
    /// removed. `weft fsck --repair` moves data that is newer than the backup to /lost+found.
    #[command(after_help = "Example:
  weft meta load /backup/names-monday --config /etc/weft/weft.toml --name meta0
  weft serve --config /etc/weft/weft.toml --name meta0
  weft fsck --repair weft://10.0.0.5:7400/")]
    Load(LoadArgs),
}

/// See [`MetaCommand::Dump`].
#[derive(Debug, clap::Args)]
pub struct DumpArgs {
    /// The file system, unless --dir is given, and the file to write.
    #[arg(value_names = ["URL", "FILE"], num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
    /// The cluster's directory, as given to `weft up`. Its secret is used to connect.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// See [`MetaCommand::Load`].
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// The backup.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cluster file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The metadata server in it.
    #[arg(long, value_name = "SERVER")]
    name: String,
    /// Move existing names aside, and keep them.
    #[arg(long)]
    replace: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Makes or loads a backup.
pub fn run(command: MetaCommand) -> Result<()> {
    match command {
        MetaCommand::Dump(args) => dump(&args),
        MetaCommand::Load(args) => load(&args),
    }
}

fn dump(args: &DumpArgs) -> Result<()> {
    let (client, path) = match (&args.dir, args.places.as_slice()) {
        (Some(dir), [file]) => {
            let config = ClusterConfig::load(&dir.join(CLUSTER_FILE))?;
            let keys = load_cluster_keys(&config.resolve(CLUSTER_KEY_FILE.as_ref()))?;
            (connect(&config, keys.in_use())?, file)
        }
        (None, [url, file]) => {
            let place = WeftPath::from_argument(url.to_str().context("the URL is not UTF-8")?)?;
            (Connections::new(&args.connect).client(&place.url)?, file)
        }
        (Some(_), _) => bail!("with --dir, give only the file to write"),
        (None, _) => bail!("give a URL and the file to write, or --dir and the file to write"),
    };
    if path.exists() && !args.force {
        bail!("{} exists; --force overwrites it", path.display());
    }
    let begun = Instant::now();
    let (head, size) = write_whole(path, |file| take(&client, file))
        .with_context(|| format!("cannot make the backup {}", path.display()))?;
    tell_dumped(args, path, &head, size, begun.elapsed().as_secs_f64())
}

/// Fetches all pages of the backup.
fn take(client: &Client, file: &File) -> Result<(BackupHead, BackupSize)> {
    let progress = ProgressBar::new_spinner();
    let backup = RandomState::new().hash_one(std::process::id());
    let mut page = client.backup(backup, &[])?;
    let head = BackupHead { cluster: page.cluster, storage: page.storage, taken_s: page.taken_s };
    let mut writer = BackupWriter::begin(BufWriter::new(file), &head)?;
    let mut records = 0u64;
    loop {
        for record in &page.records {
            writer.add(&record.key, &record.value)?;
        }
        records += page.records.len() as u64;
        progress.set_message(format!("{records} records of about {} files and directories", page.inodes));
        progress.tick();
        let Some(last) = page.records.last().filter(|_| !page.finished) else { break };
        page = client.backup(backup, &last.key)?;
    }
    progress.finish_and_clear();
    Ok((head, writer.end()?.1))
}

/// Writes a file that only its owner may read. The file is written under a temporary name, synced, and
/// renamed when it is complete.
fn write_whole<R>(path: &Path, write: impl FnOnce(&File) -> Result<R>) -> Result<R> {
    let name = path.file_name().with_context(|| format!("{} is not a file name", path.display()))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = name.to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = directory.join(beside);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
    let file = file.with_context(|| format!("cannot create {}", beside.display()))?;
    let written = write(&file).and_then(|result| {
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()?;
        Ok(result)
    });
    if written.is_err() {
        // If even that fails, the error that is reported already says why.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn tell_dumped(
    args: &DumpArgs,
    path: &Path,
    head: &BackupHead,
    size: BackupSize,
    seconds: f64,
) -> Result<()> {
    let bytes = std::fs::metadata(path)?.len();
    if args.json {
        return output::print_json(&json!({
            "file": path,
            "cluster": id_text(&head.cluster),
            "storage": id_text(&head.storage),
            "taken_s": head.taken_s,
            "records": size.records,
            "bytes": bytes,
            "seconds": seconds,
        }));
    }
    let bytes = weft_cli_common::size::format_bytes(bytes);
    output::print_line(format!(
        "{}: {} records of the names as they were at {}, {bytes}, in {seconds:.1} s",
        path.display(),
        size.records,
        time_text::utc(head.taken_s)
    ))
}

fn load(args: &LoadArgs) -> Result<()> {
    let config = ClusterConfig::load(&args.config)?;
    let loaded = match load_names(&config, &args.name, &args.file, args.replace) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("weft: {error}");
            return Err(Code(PERMANENT).into());
        }
    };
    if args.json {
        return output::print_json(&json!({
            "server": args.name,
            "directory": loaded.directory,
            "storage": id_text(&loaded.head.storage),
            "taken_s": loaded.head.taken_s,
            "records": loaded.size.records,
            "moved_to": loaded.moved_to,
        }));
    }
    if let Some(moved_to) = &loaded.moved_to {
        output::print_line(format!("the previous names are in {}", moved_to.display()))?;
    }
    output::print_line(format!(
        "{} has the names as they were at {} ({} records); start it while all I/O servers run, then run: weft fsck --repair",
        args.name,
        time_text::utc(loaded.head.taken_s),
        loaded.size.records
    ))
}
