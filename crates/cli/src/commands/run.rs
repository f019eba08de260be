//! `weft run`

use crate::embedded;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_cli_common::place::WeftPath;

const LIBRARY: &str = "libweft_preload.so";
/// Does nothing until a program calls a function on files of MPI.
const MPI_LIBRARY: &str = "libweft_mpi.so";

/// Runs a program that accesses a Weft file system as a directory, without a mount and without root.
///
/// The directory is /weft, or the one of --at. It need not exist. Programs can also use URLs as paths:
/// weft://HOST:PORT/PATH, and weft:/PATH below the URL given. All child processes see the same.
///
/// It uses LD_PRELOAD. So it works for dynamically linked programs only, and not for those that gain
/// privileges when they start (set-user-id). `weft mount` works for all programs. docs/preload.md lists what
/// works and all limits.
///
/// Programs that use MPI-IO reach the servers by the functions of MPI themselves: `weft help mpi`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  weft run -- bash -c 'cd /weft; tar xf ~/source.tar; make -C source'
  weft run --url weft://node1:7400/data --at /data -- python3 analyse.py /data/in
  mpirun -n 4 weft run -- ./simulation /weft/out")]
pub struct Args {
    /// The file system, or a directory in it [default: WEFT_URL].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The directory as the program sees it: an absolute path.
    #[arg(long, value_name = "DIR", default_value = "/weft")]
    at: PathBuf,
    /// The key file [default: see `weft help keys`].
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The transport: auto, tcp, shm or rdma [default: as in the URL, then WEFT_TRANSPORT, then auto].
    #[arg(long, value_name = "NAME")]
    transport: Option<weft_client::Transport>,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Replaces this process by the program.
pub fn run(args: Args) -> Result<()> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => match std::env::var("WEFT_URL") {
            Ok(url) if !url.is_empty() => url,
            _ => bail!("no file system given; use --url weft://HOST:PORT/, or set WEFT_URL"),
        },
    };
    let place = WeftPath::from_argument(&url)?.tidied();
    let at = args.at.as_os_str();
    let is_good = args.at.is_absolute() && args.at != Path::new("/") && !at.as_bytes().contains(&b';');
    if !is_good || at.as_bytes().contains(&b'=') {
        bail!("--at {}: must be an absolute path other than /, without ; and =", args.at.display());
    }
    let program = find(&args.program[0]);
    if let Some(program) = &program {
        check_dynamic(program)?;
    }
    let mut libraries = vec![library()?];
    libraries.extend(mpi_library()?);
    let mut prefix = args.at.clone().into_os_string();
    prefix.push("=");
    prefix.push(place.display());
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    command.env("LD_PRELOAD", with_libraries(&libraries, std::env::var_os("LD_PRELOAD").as_deref()));
    command.env("WEFT_PREFIX", prefix).env("WEFT_URL", place.display());
    if let Some(key) = &args.key {
        let key =
            key.canonicalize().with_context(|| format!("cannot find the key file {}", key.display()))?;
        command.env_remove("WEFT_KEY").env("WEFT_KEY_FILE", key);
    }
    if let Some(transport) = args.transport {
        command.env("WEFT_TRANSPORT", transport.to_string());
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", args.program[0].display()))
}

/// The value of LD_PRELOAD: the libraries, before all others.
fn with_libraries(libraries: &[PathBuf], others: Option<&OsStr>) -> OsString {
    let others = others.filter(|others| !others.is_empty());
    let all: Vec<_> = libraries.iter().map(|library| library.as_os_str()).chain(others).collect();
    all.join(OsStr::new(":"))
}

/// The path of the library: what WEFT_PRELOAD says, or where it is installed.
fn library() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("WEFT_PRELOAD").filter(|given| !given.is_empty()) {
        return Ok(PathBuf::from(given));
    }
    let beside = own_directory()?;
    match installed(&beside, LIBRARY) {
        Some(found) => Ok(found),
        None => embedded::library(LIBRARY)?.with_context(|| {
            format!(
                "{LIBRARY} is neither in {} nor in ../lib, nor in this program; install it, or set WEFT_PRELOAD to its path",
                beside.display()
            )
        }),
    }
}

/// The path of the library for MPI programs: what WEFT_MPI_LIBRARY says, or where it is installed. Other
/// programs do without, so it may be missing.
fn mpi_library() -> Result<Option<PathBuf>> {
    match std::env::var_os("WEFT_MPI_LIBRARY").filter(|given| !given.is_empty()) {
        Some(given) => Ok(Some(PathBuf::from(given))),
        None => match installed(&own_directory()?, MPI_LIBRARY) {
            Some(found) => Ok(Some(found)),
            None => embedded::library(MPI_LIBRARY),
        },
    }
}

fn own_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_path_buf())
}

/// A library in the program's directory, or in the lib directory beside that.
fn installed(beside: &Path, name: &str) -> Option<PathBuf> {
    let candidates = [beside.join(name), beside.join("../lib").join(name)];
    candidates.iter().find_map(|candidate| candidate.canonicalize().ok())
}

/// The file that will be executed, if it is a local one.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Reports a statically linked program here, where otherwise its files would not be found.
fn check_dynamic(program: &Path) -> Result<()> {
    let Ok(mut file) = File::open(program) else { return Ok(()) };
    let mut bytes = Vec::new();
    file.by_ref().take(HEADER_BYTES).read_to_end(&mut bytes)?;
    if is_static(&bytes) {
        bail!(
            "{} is linked statically, so LD_PRELOAD cannot reach it; use `weft mount` for it",
            program.display()
        );
    }
    Ok(())
}

/// The program headers of usual programs are within this many bytes.
const HEADER_BYTES: u64 = 16 << 10;

/// Whether these are the first bytes of a 64-bit ELF program without an interpreter.
fn is_static(bytes: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, bytes_wide: usize| -> Option<u64> {
        let mut whole = [0u8; 8];
        whole[..bytes_wide].copy_from_slice(bytes.get(at..at + bytes_wide)?);
        Some(u64::from_le_bytes(whole))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let headers = || Some((number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize));
    let Some((start, size, count)) = headers() else { return false };
    let kind = |index: usize| number(start + index * size, 4);
    let kinds: Option<Vec<u64>> = (0..count).map(kind).collect();
    kinds.is_some_and(|kinds| !kinds.contains(&u64::from(INTERPRETER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic_and_a_header_without_an_interpreter_is_not() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_static(&own[..HEADER_BYTES as usize]));
        let mut header = own[..64].to_vec();
        header[56..58].copy_from_slice(&0u16.to_le_bytes());
        assert!(is_static(&header));
        assert!(!is_static(b"#!/bin/sh\n") && !is_static(b""));
    }

    #[test]
    fn other_preloaded_libraries_stay() {
        let libraries = [PathBuf::from("/l/libweft_preload.so"), PathBuf::from("/l/libweft_mpi.so")];
        let all = "/l/libweft_preload.so:/l/libweft_mpi.so";
        assert_eq!(with_libraries(&libraries, Some(OsStr::new("/x.so"))), format!("{all}:/x.so").as_str());
        assert_eq!(with_libraries(&libraries, None), all);
        assert_eq!(with_libraries(&libraries[..1], Some(OsStr::new(""))), "/l/libweft_preload.so");
    }

    #[test]
    fn a_library_is_found_beside_the_program_or_in_lib_or_not_at_all() {
        let root = std::env::temp_dir().join(format!("weft-run-{}", std::process::id()));
        let (bin, lib) = (root.join("bin"), root.join("lib"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&lib).unwrap();
        assert_eq!(installed(&bin, MPI_LIBRARY), None);
        std::fs::write(lib.join(MPI_LIBRARY), "").unwrap();
        assert_eq!(installed(&bin, MPI_LIBRARY), lib.join(MPI_LIBRARY).canonicalize().ok());
        std::fs::write(bin.join(MPI_LIBRARY), "").unwrap();
        assert_eq!(installed(&bin, MPI_LIBRARY), bin.join(MPI_LIBRARY).canonicalize().ok());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
