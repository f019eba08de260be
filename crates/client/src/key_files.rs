//! Where a client finds its key. The first of these that there is counts:
//!
//! | place | what it is |
//! | --- | --- |
//! | [`ConnectOptions::key`](crate::ConnectOptions::key) | given by the program |
//! | `$WEFT_KEY` | the text of a key file |
//! | `$WEFT_KEY_FILE` | the path of one |
//! | `weft://…?key-file=PATH` | the same, in the URL |
//! | `$WEFT_KEY_DIR` | a directory like the next one; what this user may not read is passed over |
//! | `~/.config/weft/keys/` | of this user: `HOST:PORT`, then `HOST`, as in the URL; then the same for the addresses of the host |
//! | `/etc/weft/keys/` | of this host, in the same way; what this user may not read is passed over |
//! | nothing, and `weft://…?socket=PATH` | no key: on the servers' own host the kernel says who this process is |
//!
//! A key file that others than its owner may read is refused wherever it is.

use std::fs::File;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use weft_wire::keys::{IssuedKey, KeyTextError};

use crate::error::Error;
use crate::url::Url;

/// Keys of this host.
const HOST_KEYS: &str = "/etc/weft/keys";
/// More than any key file has.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Names the directory of the keys of the user who started `weft run`, for programs with another `HOME`.
pub const KEY_DIR: &str = "WEFT_KEY_DIR";

/// Where the key for the cluster reached through `server` (`HOST:PORT`) is kept for this user; `None` without a home.
pub fn installed_key_path(server: &str) -> Option<PathBuf> {
    Some(user_keys().or_else(|| variable(KEY_DIR))?.join(server))
}

/// The directory of this user's keys; `None` without a home.
pub fn user_keys() -> Option<PathBuf> {
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    Some(config?.join("weft/keys"))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Reads a key file.
///
/// # Errors
/// It is not there, others may read it, or it has something else in it.
pub fn read_key_file(path: &Path) -> Result<IssuedKey, Error> {
    read(path).map_err(|failure| failure.of(path))
}

enum Failure {
    Io(io::Error),
    Readable(u32),
    Text(KeyTextError),
}

impl Failure {
    fn of(self, path: &Path) -> Error {
        let path = path.display();
        let is_unusable = matches!(self, Failure::Text(_));
        let reason = match self {
            Failure::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                format!("{error}; this user needs a key of its own: weft key issue")
            }
            Failure::Io(error) => error.to_string(),
            Failure::Readable(mode) => {
                format!("others may read it (its mode is {mode:04o}); run: chmod 600 {path}")
            }
            Failure::Text(KeyTextError::Bare) => {
                "it is a cluster key, or a client key of an earlier release; the administrator issues keys with: weft key issue"
                    .to_string()
            }
            Failure::Text(error) => error.to_string(),
        };
        let text = format!("the key file {path}: {reason}");
        if is_unusable { Error::configuration(text) } else { Error::without_key(text) }
    }
}

fn read(path: &Path) -> Result<IssuedKey, Failure> {
    let mut file = File::open(path).map_err(Failure::Io)?;
    // Of the file that is read, whatever the name leads to by now.
    let metadata = file.metadata().map_err(Failure::Io)?;
    let mode = metadata.permissions().mode() & 0o7777;
    // SAFETY: the call only returns a number.
    let own_uid = unsafe { libc::geteuid() };
    if mode & 0o077 != 0 {
        return Err(Failure::Readable(mode));
    }
    if metadata.uid() != own_uid && own_uid != 0 {
        return Err(Failure::Io(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user",
        )));
    }
    let mut text = String::new();
    file.by_ref().take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(Failure::Io)?;
    IssuedKey::from_text(&text).map_err(Failure::Text)
}

/// The key for the cluster of `url`.
pub(crate) fn find(url: &Url) -> Result<Option<IssuedKey>, Error> {
    if let Some(text) = std::env::var("WEFT_KEY").ok().filter(|text| !text.is_empty()) {
        let key = IssuedKey::from_text(&text);
        return key.map(Some).map_err(|error| Error::configuration(format!("WEFT_KEY: {error}")));
    }
    if let Some(path) = std::env::var_os("WEFT_KEY_FILE").filter(|path| !path.is_empty()) {
        return read_key_file(Path::new(&path)).map(Some);
    }
    if let Some(path) = url.key_file() {
        return read_key_file(Path::new(path)).map(Some);
    }
    let user_keys = user_keys();
    let given = variable(KEY_DIR).filter(|dir| user_keys.as_ref() != Some(dir));
    let places: Vec<(&Path, bool)> = (given.iter().map(|dir| (&**dir, true)))
        .chain(user_keys.iter().map(|dir| (&**dir, false)))
        .chain([(Path::new(HOST_KEYS), true)])
        .collect();
    if let Some(key) = find_in(&places, url)? {
        return Ok(Some(key));
    }
    if url.socket().is_some() {
        return Ok(None);
    }
    let server = url.server();
    let place = match installed_key_path(&server) {
        Some(path) => format!("put it in {} (mode 0600)", path.display()),
        None => "HOME is not set".to_string(),
    };
    Err(Error::without_key(format!(
        "{NO_KEY} {server}: ask the administrator for one (weft key issue) and {place}, or name its file in \
         WEFT_KEY_FILE or with ?key-file=PATH"
    )))
}

/// How the error for a missing key begins.
const NO_KEY: &str = "there is no key for";

/// Whether [`find`] found no key anywhere.
pub(crate) fn is_missing(error: &Error) -> bool {
    error.detail().starts_with(NO_KEY)
}

/// In the first of these directories that has one under a name of the server. In those marked `true`, which may be others', a file
/// that may not be read counts as none.
fn find_in(places: &[(&Path, bool)], url: &Url) -> Result<Option<IssuedKey>, Error> {
    for (dir, may_be_others) in places {
        let in_dir = |names: Vec<String>| {
            for path in names.into_iter().map(|name| dir.join(name)) {
                match read(&path) {
                    Ok(key) => return Ok(Some(key)),
                    Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(Failure::Io(error))
                        if *may_be_others && error.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(failure) => return Err(failure.of(&path)),
                }
            }
            Ok(None)
        };
        if !dir.is_dir() {
            continue;
        }
        if let Some(key) = in_dir(vec![url.server(), url.host().to_string()])? {
            return Ok(Some(key));
        }
        // A host that cannot be looked up cannot be connected to either, and that is told then.
        let addresses = (url.host(), url.port()).to_socket_addrs().into_iter().flatten();
        let names = addresses.flat_map(|address| [address.to_string(), address.ip().to_string()]).collect();
        if let Some(key) = in_dir(names)? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use weft_wire::keys::{KeyInfo, KeyKind};
    use weft_wire::security::Key;

    fn key(uid: u32) -> IssuedKey {
        let kind = KeyKind::User { uid, gids: vec![uid] };
        let info = KeyInfo { id: [uid as u8; 16], issuer: [0; 8], kind, expires_s: 0, name: String::new() };
        IssuedKey::issue(&Key([3; 32]), info).unwrap()
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            write(&path, &key(5).to_text(), mode);
            let error = read_key_file(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
        for mode in [0o600, 0o400] {
            write(&path, &key(5).to_text(), mode);
            assert_eq!(read_key_file(&path).unwrap(), key(5));
        }
        write(&path, &"ab".repeat(32), 0o600);
        assert!(read_key_file(&path).unwrap_err().to_string().contains("weft key issue"));
        let error = read_key_file(Path::new("/does/not/exist")).unwrap_err().to_string();
        assert!(error.contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn the_nearest_name_of_the_nearest_directory_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (users, hosts) = (dir.path().join("user"), dir.path().join("host"));
        [&users, &hosts].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let places = [(&*users, false), (&*hosts, true)];
        let url = Url::parse("weft://localhost:7411/").unwrap();
        let found = || find_in(&places, &url).unwrap().map(|key| key.info.id[0]);
        assert_eq!(found(), None);
        let steps = [
            (&hosts, "127.0.0.1", 1),
            (&hosts, "localhost", 2),
            (&hosts, "localhost:7411", 3),
            (&users, "127.0.0.1:7411", 4),
            (&users, "localhost:7411", 5),
        ];
        for (dir, name, number) in steps {
            write(&dir.join(name), &key(number).to_text(), 0o600);
            assert_eq!(found(), Some(number as u8), "{name}");
        }
        write(&users.join("localhost:7411"), &key(5).to_text(), 0o644);
        assert!(find_in(&places, &url).is_err(), "no other key takes the place of one that is refused");
    }
}
