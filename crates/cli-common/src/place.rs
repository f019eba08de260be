//! What a command's argument names: a local path, or a path in a Weft file system.
//!
//! ```text
//!   weft://10.0.0.5:7400/data/a.txt      a file system by its URL, and a path in it
//!   10.0.0.5:7400:/data/a.txt            the same, shorter
//!   weft:/data/a.txt                     a path in the file system that $WEFT_URL names
//!   data/a.txt, ./weft:/x                anything else is local
//! ```
//!
//! Options such as `?transport=tcp` at the end of a URL belong to the URL, not to the path. Weft paths may
//! have the wildcards `*`, `?` and `[…]`. If a file has exactly that name, they are not expanded.

use crate::connections::{Connections, at};
use anyhow::{Result, bail};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use weft_client::Client;

/// A path in a Weft file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeftPath {
    /// The file system, as `weft://HOST:PORT/` with its options.
    pub url: String,
    /// Absolute, with the dots and slashes that were typed. The metadata server resolves them.
    pub path: PathBuf,
    /// How the user wrote it.
    pub form: Form,
}

/// How a user writes paths in a file system; messages repeat it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Form {
    /// `weft://HOST:PORT/PATH`.
    #[default]
    Url,
    /// `HOST:PORT:/PATH`.
    Plain,
    /// `weft:/PATH`, relative to the path of `WEFT_URL`.
    Default {
        /// The path of `WEFT_URL`.
        base: PathBuf,
    },
}

/// An argument that may be local or in a Weft file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path on this machine.
    Local(PathBuf),
    /// A path in a Weft file system.
    Weft(WeftPath),
}

impl Place {
    /// Parses an argument. `default_url` is the file system of `weft:/path`.
    pub fn parse(text: &str, default_url: Option<&str>) -> Result<Place> {
        if let Some(rest) = text.strip_prefix("weft://") {
            return WeftPath::split(rest).map(Place::Weft);
        }
        if let Some(path) = text.strip_prefix("weft:") {
            let Some(url) = default_url else {
                bail!("{text}: WEFT_URL is not set; set it to weft://HOST:PORT/ or write the whole URL");
            };
            let Some(rest) = url.strip_prefix("weft://") else {
                bail!("WEFT_URL is `{url}`; it must look like weft://HOST:PORT/");
            };
            let base = WeftPath::split(rest)?;
            let path = path.trim_start_matches('/');
            let form = Form::Default { base: base.path.clone() };
            let path = if path.is_empty() { base.path } else { base.path.join(path) };
            return Ok(Place::Weft(WeftPath { path, url: base.url, form }));
        }
        if let Some((server, path)) = plain_url(text) {
            let url = format!("weft://{server}/");
            return Ok(Place::Weft(WeftPath { url, path: path.into(), form: Form::Plain }));
        }
        Ok(Place::Local(PathBuf::from(text)))
    }

    /// As [`Place::parse`] with `$WEFT_URL`.
    pub fn from_argument(text: &str) -> Result<Place> {
        Place::parse(text, std::env::var("WEFT_URL").ok().as_deref())
    }
}

impl WeftPath {
    /// Parses an argument that must be in a Weft file system.
    pub fn from_argument(text: &str) -> Result<WeftPath> {
        match Place::from_argument(text)? {
            Place::Weft(path) => Ok(path),
            Place::Local(path) => bail!(
                "{} is a local path; write weft://HOST:PORT/PATH, or set WEFT_URL and write weft:/PATH",
                path.display()
            ),
        }
    }

    /// Parses `HOST:PORT/path?option=value`.
    fn split(rest: &str) -> Result<WeftPath> {
        let (rest, query) = match rest.rsplit_once('?') {
            Some((front, query)) if query.split('&').all(|option| option.contains('=')) => (front, query),
            _ => (rest, ""),
        };
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        if server.is_empty() {
            bail!("weft://{rest}: the server is missing; write weft://HOST:PORT/PATH");
        }
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let url = format!("weft://{server}/{query}");
        Ok(WeftPath { url, path: Path::new("/").join(path), form: Form::Url })
    }

    /// The same file system, another path.
    pub fn with_path(&self, path: PathBuf) -> WeftPath {
        WeftPath { path, ..self.clone() }
    }

    /// The same without `.`, `..` and doubled slashes, for paths that are kept, such as that of a mount.
    pub fn tidied(&self) -> WeftPath {
        self.with_path(tidy(&self.path))
    }

    /// The path in the form in which the user wrote it, for messages.
    pub fn typed(&self) -> String {
        let server = self.url.trim_start_matches("weft://").split('/').next().unwrap_or_default();
        match &self.form {
            Form::Url => self.display(),
            Form::Plain => format!("{server}:{}", self.path.display()),
            Form::Default { base } => match self.path.strip_prefix(base) {
                // `strip_prefix` would drop slashes and dots at the end.
                Ok(_) => {
                    let base_bytes = base.as_os_str().len() - usize::from(ends_with_slash(base));
                    let rest = &self.path.as_os_str().as_bytes()[base_bytes..];
                    let slash = if rest.is_empty() { "/" } else { "" };
                    format!("weft:{slash}{}", String::from_utf8_lossy(rest))
                }
                Err(_) => self.display(),
            },
        }
    }

    /// The URL with the path in it, for listings and JSON.
    pub fn display(&self) -> String {
        let (server, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let server = server.trim_end_matches('/');
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{server}{}{mark}{query}", self.path.display())
    }

    /// Last component, or `/`.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or(OsStr::new("/"))
    }

    fn has_wildcards(&self) -> bool {
        self.path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
    }

    /// The paths that match the wildcards of this one, sorted; the path itself if it has none. No match is an
    /// error.
    pub fn expand(&self, client: &Client) -> Result<Vec<WeftPath>> {
        if !self.has_wildcards() || client.stat(at(&self.path), false).is_ok() {
            return Ok(vec![self.clone()]);
        }
        let list = |dir: &Path| -> Vec<std::ffi::OsString> {
            let Ok(entries) = crate::tree::list(client, at(dir)) else { return Vec::new() };
            entries.into_iter().map(|entry| entry.name).collect()
        };
        let exists = |path: &Path| client.stat(at(path), false).is_ok();
        let found = expand_with(&self.path, &list, &exists)?;
        if found.is_empty() {
            bail!("{}: no file matches", self.typed());
        }
        Ok(found.into_iter().map(|path| self.with_path(path)).collect())
    }
}

/// The arguments, or where there are none the file system of `WEFT_URL`.
///
/// # Errors
/// Neither is there.
pub fn or_default(arguments: &[String]) -> Result<Vec<String>> {
    if !arguments.is_empty() {
        return Ok(arguments.to_vec());
    }
    match std::env::var("WEFT_URL") {
        Ok(url) if !url.is_empty() => Ok(vec![url]),
        _ => bail!("which file system? give its URL, or set WEFT_URL"),
    }
}

/// Expands the wildcards of arguments. Returns each path with the connection to its file system.
pub fn expand_all(connections: &Connections, arguments: &[String]) -> Result<Vec<(Client, WeftPath)>> {
    let mut all = Vec::new();
    for argument in arguments {
        let place = WeftPath::from_argument(argument)?;
        let client = connections.client(&place.url)?;
        all.extend(place.expand(&client)?.into_iter().map(|place| (client.clone(), place)));
    }
    Ok(all)
}

fn expand_with(
    pattern: &Path,
    list: &dyn Fn(&Path) -> Vec<std::ffi::OsString>,
    exists: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from("/")];
    let components = pattern.as_os_str().as_bytes().split(|byte| *byte == b'/');
    for component in components.filter(|component| !component.is_empty()).map(OsStr::from_bytes) {
        let text = component.to_string_lossy();
        if !text.contains(['*', '?', '[']) {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        }
        let matcher = glob::Pattern::new(&text)
            .map_err(|error| anyhow::anyhow!("{}: {error}; quote a literal [ as [[]", pattern.display()))?;
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
        let mut next = Vec::new();
        for dir in found {
            let mut names = list(&dir);
            names.retain(|name| matcher.matches_with(&name.to_string_lossy(), options));
            names.sort();
            next.extend(names.into_iter().map(|name| dir.join(name)));
        }
        found = next;
    }
    if ends_with_slash(pattern) {
        // Only directories match.
        found.iter_mut().for_each(|path| path.push(""));
    }
    found.retain(|path| exists(path));
    Ok(found)
}

/// Whether a path ends with a slash, so that it names a directory.
pub fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// The last component of a path, without slashes at its end. Unlike [`Path::file_name`] it may be `.` or `..`.
pub fn last_component(path: &Path) -> &OsStr {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    OsStr::from_bytes(&bytes[begin..end])
}

/// Whether a path ends with `.` or `..`.
pub fn ends_with_dots(path: &Path) -> bool {
    matches!(last_component(path).as_bytes(), b"." | b"..")
}

/// Resolves `.`, `..` and doubled slashes of an absolute path.
fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => tidied.push(name),
            Component::ParentDir => {
                tidied.pop();
            }
            _ => {}
        }
    }
    tidied
}

/// Splits `HOST:PORT:/path` into its two parts.
fn plain_url(text: &str) -> Option<(&str, &str)> {
    let (server, _) = text.split_once(":/")?;
    let (host, port) = server.rsplit_once(':')?;
    let host_ok = !host.is_empty() && !host.contains('/');
    (host_ok && port.parse::<u16>().is_ok()).then(|| (server, &text[server.len() + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weft(url: &str, path: &str, form: Form) -> Place {
        Place::Weft(WeftPath { url: url.into(), path: path.into(), form })
    }

    #[test]
    fn every_form_of_a_url_is_understood() {
        let default = Some("weft://h:1/base");
        let below = || Form::Default { base: "/base".into() };
        for (text, place) in [
            ("weft://h:7400/a/b", weft("weft://h:7400/", "/a/b", Form::Url)),
            ("weft://h:7400", weft("weft://h:7400/", "/", Form::Url)),
            ("weft://h:7400/a/../b//c/.", weft("weft://h:7400/", "/a/../b//c/.", Form::Url)),
            ("weft://h:7400/a?transport=tcp", weft("weft://h:7400/?transport=tcp", "/a", Form::Url)),
            ("weft://h:7400/a?.txt", weft("weft://h:7400/", "/a?.txt", Form::Url)),
            ("h:7400:/a/b", weft("weft://h:7400/", "/a/b", Form::Plain)),
            ("weft:/x", weft("weft://h:1/", "/base/x", below())),
            ("weft:", weft("weft://h:1/", "/base", below())),
            ("a/b", Place::Local("a/b".into())),
            ("./h:1:/b", Place::Local("./h:1:/b".into())),
            ("h:x:/b", Place::Local("h:x:/b".into())),
        ] {
            assert_eq!(Place::parse(text, default).unwrap(), place, "{text}");
        }
    }

    #[test]
    fn slashes_and_dots_at_the_end_stay() {
        let Place::Weft(place) = Place::parse("weft:/a/../b/.//", Some("weft://h:1")).unwrap() else {
            panic!()
        };
        assert_eq!(place.path.as_os_str(), "/a/../b/.//");
        assert_eq!(place.tidied().path.as_os_str(), "/b");
        assert_eq!(last_component(&place.path), ".");
        assert!(ends_with_slash(&place.path) && ends_with_dots(&place.path));
        for (path, last) in [("/", ""), ("/a", "a"), ("a//", "a"), ("/a/..", ".."), ("", "")] {
            assert_eq!(last_component(Path::new(path)), last, "{path}");
        }
    }

    #[test]
    fn a_missing_server_or_default_is_said() {
        assert!(Place::parse("weft:///a", None).unwrap_err().to_string().contains("server is missing"));
        assert!(Place::parse("weft:/a", None).unwrap_err().to_string().contains("WEFT_URL"));
        assert!(Place::parse("weft:/a", Some("nfs://x")).unwrap_err().to_string().contains("WEFT_URL"));
    }

    #[test]
    fn a_place_is_shown_as_it_was_written() {
        let texts = [
            "weft://h:7400/a/b",
            "weft://h:7400/a?transport=tcp",
            "h:7400:/a/./b/",
            "weft:/x/../y//",
            "weft:/",
        ];
        for default in ["weft://h:1", "weft://h:1/base", "weft://h:1/base/"] {
            for text in texts {
                let place = Place::parse(text, Some(default)).unwrap();
                let Place::Weft(place) = place else { panic!("{text} is in weft") };
                assert_eq!(place.typed(), text, "below {default}");
            }
        }
        let Place::Weft(place) = Place::parse("weft:/x", Some("weft://h:1/base")).unwrap() else { panic!() };
        assert_eq!(place.display(), "weft://h:1/base/x");
    }

    #[test]
    fn wildcards_match_names_level_by_level() {
        let tree = ["/a/x1.txt", "/a/x2.txt", "/a/.x3.txt", "/b/x1.txt", "/b/y"];
        let list = |dir: &Path| {
            let mut names: Vec<_> = tree
                .iter()
                .filter_map(|path| Path::new(path).strip_prefix(dir).ok()?.components().next())
                .map(|name| name.as_os_str().to_os_string())
                .collect();
            names.dedup();
            names
        };
        let exists = |path: &Path| tree.iter().any(|known| Path::new(known).starts_with(path));
        let expand = |pattern: &str| expand_with(Path::new(pattern), &list, &exists).unwrap();
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(expand("/a/*.txt"), paths(&["/a/x1.txt", "/a/x2.txt"]));
        assert_eq!(expand("/*/x1.txt"), paths(&["/a/x1.txt", "/b/x1.txt"]));
        assert_eq!(expand("/[b-c]/?"), paths(&["/b/y"]));
        assert_eq!(expand("/c*"), paths(&[]));
    }
}
