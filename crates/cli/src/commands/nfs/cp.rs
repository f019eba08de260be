//! `weft nfs cp`

use super::place::{ConnectArgs, name_text};
use crate::copy::{Kind, Side, Spot};
use crate::exit::Failures;
use crate::new_files::umask;
use crate::progress::progress_bar;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use weft_cli_common::size;
use weft_nfs_client::{
    CreateHow, Created, FileHandle, FileKind, Located, NfsClient, NfsUrl, SetAttr, Stable, Status,
};

/// How often a file is written again that a restarted server has lost.
const ATTEMPTS_MAX: usize = 5;

/// Options of `cp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sources and the target, each as `nfs://HOST[:PORT]/PATH` or a local path.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<String>,
    /// Copy directories and everything in them; symbolic links are copied as links.
    #[arg(short, long)]
    recursive: bool,
    /// How many READs or WRITEs are under way at a time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Show no progress bar.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Copies.
pub fn run(args: &Args) -> Result<()> {
    let (target, sources) = args.places.split_last().expect("two at least");
    let is_remote = |place: &String| place.starts_with("nfs://");
    let is_upload = is_remote(target);
    if let Some(wrong) = sources.iter().find(|source| is_remote(source) == is_upload) {
        let both = if is_upload { "on a server; copy one to this machine first" } else { "local; use cp" };
        bail!("{wrong} and {target} are both {both}");
    }
    let bar = progress_bar(args.quiet);
    let begun = Instant::now();
    let mut copier = Copier {
        depth: args.depth.into(),
        recursive: args.recursive,
        bar: bar.clone(),
        failures: Failures::default(),
        files: 0,
        bytes: 0,
    };
    if is_upload {
        copier.upload_all(args, sources, target)?;
    } else {
        copier.download_all(args, sources, Path::new(target))?;
    }
    bar.finish_and_clear();
    if !args.quiet && !bar.is_hidden() {
        let seconds = begun.elapsed().as_secs_f64();
        let (bytes, rate) = (size::format_bytes(copier.bytes), size::mib_per_s(copier.bytes, seconds));
        eprintln!("{} files, {bytes} in {seconds:.1} s, {rate:.0} MiB/s", copier.files);
    }
    copier.failures.result()
}

struct Copier {
    depth: usize,
    recursive: bool,
    bar: ProgressBar,
    failures: Failures,
    files: u64,
    bytes: u64,
}

/// From a server.
impl Copier {
    fn download_all(&mut self, args: &Args, sources: &[String], target: &Path) -> Result<()> {
        let typed = Spot::typed(&Side::Local, target)?;
        let there = typed.meta(true).ok().filter(|there| there.kind == Kind::Directory);
        let into = there.map(|there| typed.open_dir(&there)).transpose()?;
        if sources.len() > 1 && into.is_none() {
            bail!("{} is not a directory; it cannot take {} sources", target.display(), sources.len());
        }
        for source in sources {
            let (client, url) = args.connect.connect(source)?;
            let found = client.resolve(&url.path)?;
            let to = match (last_name(&url.path), &into) {
                (Some(name), Some(dir)) => dir.spot(name),
                _ => typed.clone(),
            };
            self.download(&client, &found, &to);
        }
        Ok(())
    }

    /// Copies a file, or a directory and what is below. Failures are reported.
    fn download(&mut self, client: &NfsClient, from: &Located, to: &Spot) {
        let copied = match from.attr.kind {
            FileKind::File => self.download_file(client, from, to),
            FileKind::Directory if self.recursive => self.download_directory(client, from, to),
            FileKind::Directory => {
                Err(anyhow::anyhow!("{} is a directory; give -r to copy it", from.handle.path()))
            }
            FileKind::Symlink => copy_link(client, from, to),
            _ => Err(anyhow::anyhow!("{} is no file, directory or symbolic link", from.handle.path())),
        };
        self.failures.ok(copied);
    }

    fn download_directory(&mut self, client: &NfsClient, from: &Located, to: &Spot) -> Result<()> {
        // Its owner has to be able to fill it.
        let (_, dir) = to.make_dir(from.attr.mode & 0o777 | 0o700)?;
        for (name, file) in client.list(&from.handle)? {
            let to = dir.spot_of(OsStr::from_bytes(&name))?;
            self.download(client, &file, &to);
        }
        Ok(())
    }

    fn download_file(&mut self, client: &NfsClient, from: &Located, to: &Spot) -> Result<()> {
        let file = to.create_local(from.attr.mode & 0o777);
        let file = file.with_context(|| format!("cannot write {}", to.path().display()))?;
        self.bar.inc_length(from.attr.size_bytes);
        let part_bytes = client.info().read_bytes_best as usize;
        let (mut under_way, mut free, mut next) = (VecDeque::new(), Vec::new(), 0);
        loop {
            while under_way.len() < self.depth && next < from.attr.size_bytes {
                let buffer = free.pop().unwrap_or_else(|| vec![0; part_bytes]);
                under_way.push_back((client.start_read(&from.handle, next, buffer), next));
                next += part_bytes as u64;
            }
            let Some((call, at)) = under_way.pop_front() else { break };
            let (read, mut buffer) = call.wait()?;
            let mut bytes = read.bytes;
            if bytes < buffer.len() && !read.is_end {
                let rest = &mut buffer[bytes..];
                bytes += client.read_all(&from.handle, at + bytes as u64, rest, 1)?;
            }
            let written = file.write_all_at(&buffer[..bytes], at);
            written.with_context(|| format!("cannot write {}", to.path().display()))?;
            self.note_bytes(bytes);
            free.push(buffer);
        }
        self.files += 1;
        Ok(())
    }

    fn note_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.inc(bytes as u64);
    }
}

fn copy_link(client: &NfsClient, from: &Located, to: &Spot) -> Result<()> {
    let target = client.readlink(&from.handle)?;
    let made = to.make_symlink(Path::new(OsStr::from_bytes(&target)), None);
    made.with_context(|| format!("cannot make the symbolic link {}", to.path().display()))
}

/// The last name of a path on a server.
fn last_name(path: &str) -> Option<&str> {
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

/// To a server.
impl Copier {
    fn upload_all(&mut self, args: &Args, sources: &[String], target: &str) -> Result<()> {
        let (client, NfsUrl { path, .. }) = args.connect.connect(target)?;
        let dir = match client.resolve(&path) {
            Ok(found) if found.attr.kind == FileKind::Directory => Some(found.handle),
            Ok(_) => None,
            Err(error) if error.status() == Some(Status::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        if dir.is_none() && sources.len() > 1 {
            bail!("{target} is not a directory; it cannot take {} sources", sources.len());
        }
        for source in sources {
            let from = Spot::typed(&Side::Local, Path::new(source))?;
            match &dir {
                Some(dir) => {
                    let whole = std::path::absolute(source)?;
                    let name =
                        whole.file_name().with_context(|| format!("{source} has no name to copy it to"))?;
                    self.upload(&client, &from, dir, name.as_bytes(), true);
                }
                None => {
                    let (parent, name) = client.resolve_parent(&path)?;
                    self.upload(&client, &from, &parent, name, true);
                }
            }
        }
        Ok(())
    }

    /// Copies a file, or a directory and what is below. Failures are reported.
    fn upload(&mut self, client: &NfsClient, from: &Spot, dir: &FileHandle, name: &[u8], is_named: bool) {
        let uploaded = self.try_upload(client, from, dir, name, is_named);
        self.failures.ok(uploaded);
    }

    fn try_upload(
        &mut self,
        client: &NfsClient,
        from: &Spot,
        dir: &FileHandle,
        name: &[u8],
        is_named: bool,
    ) -> Result<()> {
        let place = from.path();
        let unreadable = || format!("cannot read {}", place.display());
        // A link that is an argument is followed.
        let meta = from.meta(is_named).with_context(unreadable)?;
        let set = SetAttr { mode: Some(meta.mode & 0o777 & !umask()), ..SetAttr::default() };
        match meta.kind {
            Kind::Directory if self.recursive => {
                let entries = from.open_dir(&meta).and_then(|dir| Ok((dir.list()?, dir)));
                let (entries, from) = entries.with_context(unreadable)?;
                let made = make_directory(client, dir, name, set)?;
                for (name, _) in entries {
                    self.upload(client, &from.spot(&name), &made, name.as_bytes(), false);
                }
                Ok(())
            }
            Kind::Directory => bail!("{} is a directory; give -r to copy it", place.display()),
            Kind::Symlink => {
                let target = from.read_link().with_context(unreadable)?;
                client.symlink(dir, name, target.as_os_str().as_bytes(), &SetAttr::default())?;
                Ok(())
            }
            Kind::File => {
                self.bar.inc_length(meta.size);
                let file = from.open_local(&meta).with_context(unreadable)?;
                let set = SetAttr { size_bytes: Some(0), ..set };
                let created = client.create(dir, name, &CreateHow::Unchecked(set))?;
                let handle = handle_of(client, dir, name, created)?;
                self.upload_file(client, &file, &place, &handle)
            }
            Kind::Other => bail!("{} is no file, directory or symbolic link", place.display()),
        }
    }

    /// Writes a file until it is on stable storage: once, unless the server restarts meanwhile.
    fn upload_file(&mut self, client: &NfsClient, file: &File, from: &Path, to: &FileHandle) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let verifiers = self.send_file(client, file, from, to)?;
            self.files += 1;
            if verifiers.is_empty() {
                return Ok(());
            }
            let committed = client.commit(to, 0, 0)?;
            if verifiers.iter().all(|verifier| *verifier == committed.verifier) {
                return Ok(());
            }
            self.files -= 1;
        }
        bail!("{}: the server restarts again and again, and each time loses what was written", to.path())
    }

    /// Writes a file; the verifiers of data that are not on stable storage yet.
    fn send_file(
        &mut self,
        client: &NfsClient,
        file: &File,
        from: &Path,
        to: &FileHandle,
    ) -> Result<Vec<[u8; 8]>> {
        let part_bytes = client.info().write_bytes_best as usize;
        let (mut under_way, mut free, mut verifiers) = (VecDeque::new(), Vec::new(), Vec::new());
        let (mut next, mut is_end) = (0, false);
        loop {
            while under_way.len() < self.depth && !is_end {
                let mut buffer: Vec<u8> = free.pop().unwrap_or_default();
                buffer.resize(part_bytes, 0);
                let bytes = read_part(file, &mut buffer, next);
                let bytes = bytes.with_context(|| format!("cannot read {}", from.display()))?;
                is_end = bytes < part_bytes;
                buffer.truncate(bytes);
                if bytes > 0 {
                    under_way.push_back((client.start_write(to, next, buffer, Stable::Unstable), next));
                    next += bytes as u64;
                }
            }
            let Some((call, at)) = under_way.pop_front() else { return Ok(verifiers) };
            let (written, buffer) = call.wait()?;
            if written.stable == Stable::Unstable {
                verifiers.push(written.verifier);
            }
            // What a server has not taken at once.
            let rest = &buffer[written.bytes..];
            verifiers.extend(client.write_unstable(to, at + written.bytes as u64, rest, 1)?);
            verifiers.sort_unstable();
            verifiers.dedup();
            self.note_bytes(buffer.len());
            free.push(buffer);
        }
    }
}

/// Makes a directory on a server, unless it is there.
fn make_directory(client: &NfsClient, dir: &FileHandle, name: &[u8], set: SetAttr) -> Result<FileHandle> {
    match client.mkdir(dir, name, &SetAttr { mode: set.mode.map(|mode| mode | 0o700), ..set }) {
        Ok(created) => handle_of(client, dir, name, created),
        Err(error) if error.status() == Some(Status::EXIST) => Ok(client.lookup(dir, name)?.handle),
        Err(error) => Err(error.into()),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_part(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(done)
}

/// The handle of what was created; servers need not give it.
fn handle_of(client: &NfsClient, dir: &FileHandle, name: &[u8], created: Created) -> Result<FileHandle> {
    match created.handle {
        Some(handle) => Ok(handle),
        None => {
            let looked = client.lookup(dir, name);
            Ok(looked.with_context(|| format!("{} was created, but is not found", name_text(name)))?.handle)
        }
    }
}
