//! Finds Weft's other programs.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The environment variable that holds the path of the `weft` that started another program.
pub const STARTED_BY: &str = "WEFT_PROGRAM";

/// Finds a program of Weft: beside the one that runs, else on PATH. `package` is the crate that builds it.
pub fn find(name: &str, package: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH");
    match find_in(name, beside, path.as_deref()) {
        Some(found) => Ok(found),
        None => bail!(
            "{name} is neither in {} nor on PATH; install it there (`make install` does), or build it: \
             cargo build --release -p {package}",
            beside.display()
        ),
    }
}

fn find_in(name: &str, beside: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let on_path = path.into_iter().flat_map(std::env::split_paths);
    std::iter::once(beside.to_owned()).chain(on_path).map(|dir| dir.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_comes_before_those_on_the_path_and_other_files_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32| {
            let dir = dir.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("tool"), "").unwrap();
            std::fs::set_permissions(dir.join("tool"), PermissionsExt::from_mode(mode)).unwrap();
            dir
        };
        let (beside, text, second) = (place("beside", 0o755), place("text", 0o644), place("second", 0o755));
        let path = std::env::join_paths([&text, &second]).unwrap();
        assert_eq!(find_in("tool", &beside, Some(&path)), Some(beside.join("tool")));
        assert_eq!(find_in("tool", &text, Some(&path)), Some(second.join("tool")));
        assert_eq!(find_in("tool", &text, None), None);
        assert_eq!(find_in("other", &beside, Some(&path)), None);
    }

    #[test]
    fn what_is_missing_is_told_with_what_makes_it() {
        let error = find("weft-nothing", "weft-nothing").unwrap_err().to_string();
        assert!(error.contains("cargo build --release -p weft-nothing"), "{error}");
    }
}
