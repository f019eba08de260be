//! Which names are Weft's.
//!
//! ```text
//!   weft:/a/b                    /a/b below $WEFT_URL
//!   weft://node1:7400/a/b        names its cluster itself
//!   /weft/a/b                    what `weft run` shows: $WEFT_PREFIX
//!   /mnt/weft/a/b                below a mount of type fuse.weft, if that cluster can be connected to
//!   ufs:/mnt/weft/a/b            prefixes of ROMIO mean nothing here
//!   /tmp/x, x                    the program's own MPI's
//! ```

use std::path::{Component, Path, PathBuf};

use weft_client::Url;

use crate::error::{Class, MpiError, Result};

/// A file of Weft's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its cluster, with what the URL says of the way there.
    pub cluster: Url,
    /// Its path there.
    pub path: String,
    /// It is below a mount: the program's own MPI can open it too.
    pub has_mount: bool,
}

/// A mount of a cluster on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub point: PathBuf,
    /// Which directory of which cluster.
    pub url: String,
}

/// What names are looked up in.
pub trait Surroundings {
    /// An environment variable that is not empty.
    fn variable(&self, name: &str) -> Option<String>;
    /// The absolute path of a name, without symbolic links, as far as it exists.
    fn resolved(&self, path: &Path) -> PathBuf;
    /// The mounts of Weft.
    fn mounts(&self) -> Vec<Mounted>;
}

/// Prefixes by which a program chooses a driver of ROMIO (MPICH's documentation of MPI_File_open).
const ROMIO_PREFIXES: [&str; 14] = [
    "ufs:", "nfs:", "xfs:", "pvfs2:", "panfs:", "lustre:", "gpfs:", "daos:", "testfs:", "ime:", "quobyte:",
    "unifyfs:", "piofs:", "pfs:",
];

/// The place of a name; `None` for names that are not Weft's.
///
/// # Errors
/// Where the name is Weft's and does not say enough.
pub fn place_of(name: &[u8], surroundings: &dyn Surroundings) -> Result<Option<Place>> {
    let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
    if let Some(rest) = name.strip_prefix("weft:") {
        return of_url(name, rest, surroundings).map(Some);
    }
    let name = ROMIO_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if let Some(rest) = name.strip_prefix("weft:") {
        return of_url(name, rest, surroundings).map(Some);
    }
    if let Some(place) = of_prefix(name, surroundings) {
        return Ok(Some(place));
    }
    Ok(of_mount(name, surroundings))
}

fn of_url(name: &str, rest: &str, surroundings: &dyn Surroundings) -> Result<Place> {
    let bad = |text: String| MpiError::new(Class::BadFile, text);
    if rest.starts_with("//") {
        let url = Url::parse(name).map_err(|error| bad(error.to_string()))?;
        return Ok(Place { path: url.path().to_string(), cluster: url.with_path("/"), has_mount: false });
    }
    let text = surroundings.variable("WEFT_URL").ok_or_else(|| {
        bad(format!("{name}: no cluster is given; set WEFT_URL=weft://HOST:PORT/, or name it in the path"))
    })?;
    let base = Url::parse(&text).map_err(|error| bad(format!("WEFT_URL: {error}")))?;
    Ok(Place { path: joined(base.path(), rest), cluster: base.with_path("/"), has_mount: false })
}

fn joined(base: &str, rest: &str) -> String {
    format!("{}/{}", base.trim_end_matches('/'), rest.trim_start_matches('/'))
}

fn of_prefix(name: &str, surroundings: &dyn Surroundings) -> Option<Place> {
    let prefixes = surroundings.variable("WEFT_PREFIX")?;
    let path = without_dots(&absolute(Path::new(name)));
    prefixes.split(';').filter_map(|entry| entry.split_once('=')).find_map(|(prefix, url)| {
        let rest = path.strip_prefix(prefix).ok()?;
        let url = Url::parse(url).ok()?;
        let path = joined(url.path(), rest.to_str()?);
        Some(Place { path, cluster: url.with_path("/"), has_mount: false })
    })
}

fn of_mount(name: &str, surroundings: &dyn Surroundings) -> Option<Place> {
    let mounts = surroundings.mounts();
    if mounts.is_empty() {
        return None;
    }
    let path = surroundings.resolved(Path::new(name));
    let inside = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    let mount = inside.max_by_key(|mount| mount.point.as_os_str().len())?;
    let url = Url::parse(&mount.url).ok()?;
    let rest = path.strip_prefix(&mount.point).ok()?.to_str()?;
    Some(Place { path: joined(url.path(), rest), cluster: url.with_path("/"), has_mount: true })
}

fn absolute(path: &Path) -> PathBuf {
    match std::env::current_dir() {
        Ok(current) => current.join(path),
        Err(_) => path.to_path_buf(),
    }
}

/// Without `.` and `..`, as text.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// This process's surroundings.
pub struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn resolved(&self, path: &Path) -> PathBuf {
        let path = absolute(path);
        if let Ok(resolved) = path.canonicalize() {
            return resolved;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path };
        match parent.canonicalize() {
            Ok(parent) => parent.join(name),
            Err(_) => without_dots(&path),
        }
    }

    fn mounts(&self) -> Vec<Mounted> {
        weft_host::mounts().iter().filter_map(mounted).collect()
    }
}

/// What a mount shows, if it is one of Weft's: of a mount of a part of a mount, that part.
fn mounted(mount: &weft_host::Mount) -> Option<Mounted> {
    mount.is_weft().then_some(())?;
    let url = Url::parse(&mount.source).ok()?;
    let url = url.with_path(&joined(url.path(), &mount.root.to_string_lossy())).to_string();
    Some(Mounted { point: mount.dir.clone(), url })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Here {
        url: Option<&'static str>,
        prefix: Option<&'static str>,
        mounts: Vec<Mounted>,
    }

    impl Surroundings for Here {
        fn variable(&self, name: &str) -> Option<String> {
            match name {
                "WEFT_URL" => self.url.map(str::to_string),
                "WEFT_PREFIX" => self.prefix.map(str::to_string),
                _ => None,
            }
        }
        fn resolved(&self, path: &Path) -> PathBuf {
            without_dots(&Path::new("/work").join(path))
        }
        fn mounts(&self) -> Vec<Mounted> {
            self.mounts.clone()
        }
    }

    fn place(name: &str, here: &Here) -> Option<(String, String)> {
        let place = place_of(name.as_bytes(), here).unwrap()?;
        Some((place.cluster.to_string(), place.path))
    }

    fn some(cluster: &str, path: &str) -> Option<(String, String)> {
        Some((cluster.to_string(), path.to_string()))
    }

    #[test]
    fn urls_name_their_cluster_or_take_that_of_the_environment() {
        let here = Here { url: Some("weft://a:1/base"), ..Here::default() };
        assert_eq!(place("weft:/x/y", &here), some("weft://a:1/", "/base/x/y"));
        assert_eq!(place("weft:x", &here), some("weft://a:1/", "/base/x"));
        assert_eq!(place("weft://b:2/x", &here), some("weft://b:2/", "/x"));
        assert_eq!(place("ufs:weft://b:2/x", &here), some("weft://b:2/", "/x"));
        let error = place_of(b"weft:/x", &Here::default()).unwrap_err();
        assert!(error.class == Class::BadFile && error.text.contains("WEFT_URL"), "{error:?}");
    }

    #[test]
    fn what_weft_run_shows_is_found_also_with_dots_and_prefixes() {
        let here = Here { prefix: Some("/weft=weft://a:1/base;/two=weft://b:2/"), ..Here::default() };
        assert_eq!(place("/weft/x", &here), some("weft://a:1/", "/base/x"));
        assert_eq!(place("nfs:/two/./y/../x", &here), some("weft://b:2/", "/x"));
        assert_eq!(place("/weft/../tmp/x", &here), None);
        assert_eq!(place("/wefty/x", &here), None);
    }

    #[test]
    fn paths_below_a_mount_are_found_and_the_innermost_mount_counts() {
        let mount = |point: &str, url: &str| Mounted { point: point.into(), url: url.into() };
        let mounts = vec![mount("/work/m", "weft://a:1/"), mount("/work/m/in", "weft://b:2/sub")];
        let here = Here { mounts, ..Here::default() };
        assert_eq!(place("m/x", &here), some("weft://a:1/", "/x"));
        assert_eq!(place("ufs:/work/m/in/y/x", &here), some("weft://b:2/", "/sub/y/x"));
        assert_eq!(place("/work/mx", &here), None);
        assert_eq!(place("/tmp/x", &here), None);
    }

    #[test]
    fn mounts_of_weft_are_found_and_what_they_show() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw,noatime - fuse.weft weft://h:7400/data rw\n\
                     37 35 0:5 / / rw - ext4 /dev/x rw\n\
                     38 36 98:0 /part /bound rw shared:7 - fuse.weft weft://h:7400/data rw\n";
        let mounts: Vec<_> = weft_host::mounts_in(table).iter().filter_map(mounted).collect();
        assert_eq!(mounts[0], Mounted { point: "/mnt/a b".into(), url: "weft://h:7400/data/".into() });
        assert_eq!(mounts[1], Mounted { point: "/bound".into(), url: "weft://h:7400/data/part".into() });
        assert_eq!(mounts.len(), 2);
    }
}
