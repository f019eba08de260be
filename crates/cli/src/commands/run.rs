//! `weft run`

use crate::embedded;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_cli_common::place::WeftPath;
use weft_client::KEY_DIR;
use weft_host::program::{Program, preload_value, preloaded};

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
/// works and all limits. Programs that are started with an empty environment (env -i) see the directory, too,
/// unless WEFT_KEEP=0 is set.
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
    let found = find(&args.program[0]);
    let program = found.as_deref().map_or(Program::Other, |found| examine(found, 0));
    if let (Some(path), Program::Static) = (&found, &program) {
        bail!(
            "{} is linked statically, so LD_PRELOAD cannot reach it; use `weft mount` for it",
            path.display()
        );
    }
    let mut libraries = vec![library()?];
    libraries.extend(mpi_library()?);
    let mut prefix = args.at.clone().into_os_string();
    prefix.push("=");
    prefix.push(place.display());
    let others = std::env::var_os("LD_PRELOAD");
    let preload = with_libraries(&libraries, others.as_deref(), program.address_sanitizer());
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env("LD_PRELOAD", preload);
    command.env("WEFT_PREFIX", prefix).env("WEFT_URL", place.display());
    if let Some(key) = &args.key {
        let key =
            key.canonicalize().with_context(|| format!("cannot find the key file {}", key.display()))?;
        command.env_remove("WEFT_KEY").env("WEFT_KEY_FILE", key);
    }
    if let Some(transport) = args.transport {
        command.env("WEFT_TRANSPORT", transport.to_string());
    }
    // Programs find it also where HOME is another directory.
    if let (None, Some(keys)) = (std::env::var_os(KEY_DIR), weft_client::user_keys()) {
        command.env(KEY_DIR, keys);
    }
    let error = command.exec();
    if error.kind() == ErrorKind::NotFound && may_be_in_weft(&args, found.is_some()) {
        return by_shell(&command, &args);
    }
    Err(error).with_context(|| format!("cannot run {}", args.program[0].display()))
}

/// Whether the kernel may not have found the program because it is in Weft, or its interpreter is.
fn may_be_in_weft(args: &Args, is_local: bool) -> bool {
    let program = Path::new(&args.program[0]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_searched = !args.program[0].as_bytes().contains(&b'/');
    is_local
        || program.starts_with(&args.at)
        || is_searched && std::env::split_paths(&path).any(|dir| dir.starts_with(&args.at))
}

/// Has a shell execute the program: the library in it reads the program.
fn by_shell(command: &Command, args: &Args) -> Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$@\"", "weft run"]).args(&args.program);
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    for (name, _) in command.get_envs().filter(|(_, value)| value.is_none()) {
        shell.env_remove(name);
    }
    let error = shell.exec();
    Err(error).with_context(|| format!("cannot run {} by /bin/sh", args.program[0].display()))
}

/// The value of LD_PRELOAD: the libraries, before all others but the runtime of AddressSanitizer. That refuses
/// to start elsewhere.
fn with_libraries(libraries: &[PathBuf], others: Option<&OsStr>, runtime: Option<&[u8]>) -> OsString {
    let libraries: Vec<&[u8]> = libraries.iter().map(|library| library.as_os_str().as_bytes()).collect();
    let others = preloaded(others.unwrap_or_default().as_bytes());
    OsString::from_vec(preload_value(&libraries, others, runtime))
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

/// Depth limit of interpreters that are scripts.
const SCRIPTS_MAX: u32 = 4;

/// Examines a local program. A script counts as its interpreter.
fn examine(path: &Path, depth: u32) -> Program {
    let Ok(file) = File::open(path) else { return Program::Other };
    match Program::read(|buffer, offset| file.read_at(buffer, offset)) {
        Ok(Program::Script { interpreter, .. }) if depth < SCRIPTS_MAX => {
            examine(Path::new(OsStr::from_bytes(&interpreter)), depth + 1)
        }
        other => other.unwrap_or(Program::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay_and_the_runtime_of_address_sanitizer_is_first() {
        let libraries = [PathBuf::from("/l/libweft_preload.so"), PathBuf::from("/l/libweft_mpi.so")];
        let with = |others: &str, runtime: Option<&str>| {
            with_libraries(&libraries, Some(OsStr::new(others)), runtime.map(str::as_bytes))
        };
        let all = "/l/libweft_preload.so:/l/libweft_mpi.so";
        assert_eq!(with("/x.so /y.so", None), format!("{all}:/x.so:/y.so").as_str());
        assert_eq!(with_libraries(&libraries, None, None), all);
        assert_eq!(with_libraries(&libraries[..1], Some(OsStr::new("")), None), "/l/libweft_preload.so");
        assert_eq!(with("/x.so", Some("libasan.so.8")), format!("libasan.so.8::{all}:/x.so").as_str());
        let by_user = format!("/l/libasan.so.8:{all}:/x.so");
        assert_eq!(with("/l/libasan.so.8:/x.so", None), by_user.as_str());
        assert_eq!(with("/l/libasan.so.8:/x.so", Some("libasan.so.8")), by_user.as_str());
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
