//! Issued keys: whom the holder of a key acts for.
//!
//! ```text
//!  public part (KeyInfo)    id, kind: user with groups or host, expiry, name  sent in every greeting
//!  secret                   hash of the public part with the issuing key  never sent; proves the public part
//! ```
//!
//! A server stores nothing about a key. It computes the secret from the public part in the greeting, and
//! checks the proof with it. So the public part cannot be changed, and a key can be issued wherever the
//! cluster key is.

use crate::codec::{DecodeError, Reader, Wire, Writer};
use crate::limits::{KEY_GIDS_MAX, KEY_NAME_BYTES_MAX};
use crate::security::{ClusterKeyName, Key, KeyError};

/// Whom the holder of a key acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// One user, whatever user the process runs as.
    User {
        /// The user.
        uid: u32,
        /// The user's groups, the primary one first.
        gids: Vec<u32>,
    },
    /// All users of a host.
    Host {
        /// Root on that host becomes the anonymous user.
        squash_root: bool,
    },
}

impl Wire for KeyKind {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Writer) {
        match self {
            KeyKind::User { uid, gids } => {
                1u8.put(out);
                uid.put(out);
                gids.put(out);
            }
            KeyKind::Host { squash_root } => {
                2u8.put(out);
                squash_root.put(out);
            }
        }
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            1 => {
                let (uid, gids) = (u32::get(input)?, Vec::get(input)?);
                if gids.is_empty() || gids.len() > KEY_GIDS_MAX {
                    return Err(DecodeError::Value("a key has no groups, or too many"));
                }
                Ok(KeyKind::User { uid, gids })
            }
            2 => Ok(KeyKind::Host { squash_root: bool::get(input)? }),
            _ => Err(DecodeError::Value("unknown kind of key")),
        }
    }
    fn sample(seed: &mut u64) -> Self {
        KeyKind::User { uid: u32::sample(seed), gids: Vec::sample(seed) }
    }
}

crate::message! {
    /// The public part of a key.
    pub struct KeyInfo {
        /// A random id, by which the key is listed and revoked.
        pub id: [u8; 16],
        /// The cluster key that issued it; [`IssuedKey::issue`] sets it.
        pub issuer: ClusterKeyName,
        /// Whom its holder acts for.
        pub kind: KeyKind,
        /// Expiry, in seconds since 1970; 0: never.
        pub expires_s: u64,
        /// A name for users; for a host key, the host.
        pub name: String,
    }
}

impl KeyInfo {
    /// The id of the key that [`IssuedKey::of_cluster`] makes. It is not on the list of keys.
    pub const ID_OF_CLUSTER: [u8; 16] = [0; 16];

    /// Whether it has expired at `now_s`.
    pub fn is_expired(&self, now_s: u64) -> bool {
        self.expires_s != 0 && now_s >= self.expires_s
    }

    /// The secret of the key.
    pub fn secret(&self, issuing_key: &Key) -> Key {
        Key(*blake3::keyed_hash(&issuing_key.0, &self.to_bytes()).as_bytes())
    }

    fn check(&self) -> Result<(), KeyTextError> {
        let is_plain = |c: char| !c.is_control();
        if self.name.len() > KEY_NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            return Err(KeyTextError::Name);
        }
        match &self.kind {
            KeyKind::User { gids, .. } if gids.is_empty() || gids.len() > KEY_GIDS_MAX => {
                Err(KeyTextError::Groups)
            }
            _ => Ok(()),
        }
    }
}

/// Why a key cannot be issued, or a text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// It is not a key file.
    #[error("it does not begin with `{FIRST_LINE}`")]
    Version,
    /// It is a key of an earlier release, or a cluster key.
    #[error("it is just 64 hexadecimal digits: a cluster key, which is for servers only; use an issued key")]
    Bare,
    /// A line is missing or invalid.
    #[error("the line `{0} …` is missing or its value is not valid")]
    Line(&'static str),
    /// There is text after the last line.
    #[error("there is text after its last line")]
    Trailing,
    /// The number of groups is not valid.
    #[error("a key has 1 to {KEY_GIDS_MAX} groups")]
    Groups,
    /// The name is not valid.
    #[error("a key's name is one line of at most {KEY_NAME_BYTES_MAX} bytes")]
    Name,
}

const FIRST_LINE: &str = "weft-key 1";

/// A key with its secret, as its holder has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedKey {
    /// The public part.
    pub info: KeyInfo,
    /// The secret that proves it.
    pub secret: Key,
    /// See [`Key::knock_key`].
    pub knock: Key,
}

impl IssuedKey {
    /// Issues a key with this cluster key.
    ///
    /// # Errors
    /// The name or the groups are not valid.
    pub fn issue(cluster_key: &Key, info: KeyInfo) -> Result<IssuedKey, KeyTextError> {
        let info = KeyInfo { issuer: cluster_key.name(), ..info };
        info.check()?;
        let secret = info.secret(&cluster_key.issuing_key());
        Ok(IssuedKey { info, secret, knock: cluster_key.knock_key() })
    }

    /// The key for a holder of the cluster key: a host key without root squash.
    pub fn of_cluster(cluster_key: &Key) -> IssuedKey {
        let info = KeyInfo {
            id: KeyInfo::ID_OF_CLUSTER,
            issuer: cluster_key.name(),
            kind: KeyKind::Host { squash_root: false },
            expires_s: 0,
            name: "cluster key".into(),
        };
        IssuedKey { secret: info.secret(&cluster_key.issuing_key()), knock: cluster_key.knock_key(), info }
    }

    /// The text of a key file.
    ///
    /// ```
    /// use weft_wire::{keys::*, security::Key};
    /// let kind = KeyKind::User { uid: 1000, gids: vec![1000, 27] };
    /// let info = KeyInfo { id: [0xab; 16], issuer: [0; 8], kind, expires_s: 0, name: "alice".into() };
    /// let text = IssuedKey::issue(&Key([1; 32]), info).unwrap().to_text();
    /// assert!(text.starts_with("weft-key 1\nid abababab"));
    /// assert!(text.contains("\nissuer ") && text.contains("\nkind user\nuid 1000\ngids 1000 27\nexpires never\nname alice\nsecret "));
    /// ```
    pub fn to_text(&self) -> String {
        let KeyInfo { id, issuer, kind, expires_s, name } = &self.info;
        let who = match kind {
            KeyKind::User { uid, gids } => {
                let gids: Vec<_> = gids.iter().map(u32::to_string).collect();
                format!("kind user\nuid {uid}\ngids {}", gids.join(" "))
            }
            KeyKind::Host { squash_root } => {
                format!("kind host\nroot-squash {}", if *squash_root { "yes" } else { "no" })
            }
        };
        let expires = if *expires_s == 0 { "never".to_string() } else { expires_s.to_string() };
        let issuer = hex_text(issuer);
        let (id, secret, knock) = (id_text(id), self.secret.to_hex(), self.knock.to_hex());
        format!(
            "{FIRST_LINE}\nid {id}\nissuer {issuer}\n{who}\nexpires {expires}\nname {name}\nsecret {secret}\nknock {knock}\n"
        )
    }

    /// Parses the text of a key file. White space around it is ignored.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_text(text: &str) -> Result<IssuedKey, KeyTextError> {
        if Key::from_hex(text).is_ok() {
            return Err(KeyTextError::Bare);
        }
        let mut lines = text.trim().lines();
        if lines.next().map(str::trim_end) != Some(FIRST_LINE) {
            return Err(KeyTextError::Version);
        }
        let mut line = |name: &'static str| -> Result<&str, KeyTextError> {
            let value = lines.next().and_then(|line| line.strip_prefix(name));
            let value = value.filter(|value| value.is_empty() || value.starts_with(' '));
            value.map(str::trim).ok_or(KeyTextError::Line(name))
        };
        let id = id_from_text(line("id")?).ok_or(KeyTextError::Line("id"))?;
        let issuer = bytes_of_hex(line("issuer")?).ok_or(KeyTextError::Line("issuer"))?;
        let kind = match line("kind")? {
            "user" => {
                let uid = line("uid")?.parse().map_err(|_| KeyTextError::Line("uid"))?;
                let gids: Result<_, _> = line("gids")?.split_ascii_whitespace().map(str::parse).collect();
                KeyKind::User { uid, gids: gids.map_err(|_| KeyTextError::Line("gids"))? }
            }
            "host" => match line("root-squash")? {
                "yes" => KeyKind::Host { squash_root: true },
                "no" => KeyKind::Host { squash_root: false },
                _ => return Err(KeyTextError::Line("root-squash")),
            },
            _ => return Err(KeyTextError::Line("kind")),
        };
        let expires_s = match line("expires")? {
            "never" => 0,
            seconds => {
                let seconds = seconds.parse().ok().filter(|seconds| *seconds != 0);
                seconds.ok_or(KeyTextError::Line("expires"))?
            }
        };
        let name = line("name")?.to_string();
        let mut key = |name| Key::from_hex(line(name)?).map_err(|KeyError| KeyTextError::Line(name));
        let (secret, knock) = (key("secret")?, key("knock")?);
        if lines.next().is_some() {
            return Err(KeyTextError::Trailing);
        }
        let info = KeyInfo { id, issuer, kind, expires_s, name };
        info.check()?;
        Ok(IssuedKey { info, secret, knock })
    }
}

/// An id as text: 32 hexadecimal digits.
pub fn id_text(id: &[u8; 16]) -> String {
    hex_text(id)
}

fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != 2 * BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Parses the text of an id.
pub fn id_from_text(text: &str) -> Option<[u8; 16]> {
    bytes_of_hex(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(uid: u32) -> KeyInfo {
        KeyInfo {
            id: [3; 16],
            issuer: [4; 8],
            kind: KeyKind::User { uid, gids: vec![uid] },
            expires_s: 0,
            name: "alice".into(),
        }
    }

    #[test]
    fn every_part_of_a_key_is_under_its_secret() {
        let cluster = Key([7; 32]);
        let secret = |info: &KeyInfo| info.secret(&cluster.issuing_key());
        let good = user(1000);
        for changed in [
            user(0),
            KeyInfo { id: [4; 16], ..user(1000) },
            KeyInfo { issuer: [5; 8], ..user(1000) },
            KeyInfo { kind: KeyKind::User { uid: 1000, gids: vec![1000, 0] }, ..user(1000) },
            KeyInfo { kind: KeyKind::Host { squash_root: false }, ..user(1000) },
            KeyInfo { expires_s: 5, ..user(1000) },
            KeyInfo { name: "bob".into(), ..user(1000) },
        ] {
            assert_ne!(secret(&good), secret(&changed), "{changed:?}");
        }
        assert_ne!(secret(&good), good.secret(&Key([8; 32]).issuing_key()));
        let squashed = |squash_root| KeyInfo { kind: KeyKind::Host { squash_root }, ..user(1) };
        assert_ne!(secret(&squashed(true)), secret(&squashed(false)));
    }

    /// If these change, every issued key becomes void.
    #[test]
    fn the_bytes_and_the_secret_are_these() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let id = "03".repeat(16);
        let host = KeyKind::Host { squash_root: true };
        let host = KeyInfo { id: [3; 16], issuer: [4; 8], kind: host, expires_s: 5, name: "n7".into() };
        let id = id + &"04".repeat(8);
        assert_eq!(hex(&host.to_bytes()), format!("{id}0201050000000000000002000000{}", "6e37"));
        let gids = vec![1000, 27];
        let alice = KeyInfo { kind: KeyKind::User { uid: 1000, gids }, expires_s: 0, ..host };
        let who = "01e803000002000000e80300001b000000";
        assert_eq!(hex(&alice.to_bytes()), format!("{id}{who}0000000000000000020000006e37"));
        let cluster = "6f5ee654bf6c4e4a2a2033679b74a37c3b2deb47868e594b05703c8b3bea983b";
        let info = KeyInfo {
            id: id_from_text("5247b5b1889d4f65bf12b749f489804c").unwrap(),
            issuer: [0; 8],
            kind: KeyKind::User { uid: 1000, gids: vec![1000] },
            expires_s: 0,
            name: String::new(),
        };
        let key = IssuedKey::issue(&Key::from_hex(cluster).unwrap(), info).unwrap();
        let secret = "91a112d279cb255b887288355f94f768741ee0d92b7a5e7e2fa035e4a96f9aeb";
        let knock = "81556920e6974aa8330fd72f0037d8c37de805a9f9398a40ca905f96c0990e7f";
        assert_eq!((key.secret.to_hex().as_str(), key.knock.to_hex().as_str()), (secret, knock));
    }

    #[test]
    fn a_key_expires_at_its_second() {
        let key = KeyInfo { expires_s: 100, ..user(1) };
        assert!(!key.is_expired(99) && key.is_expired(100));
        assert!(!user(1).is_expired(u64::MAX));
    }

    #[test]
    fn what_is_no_key_is_told_why() {
        let good = IssuedKey::issue(&Key([1; 32]), user(1000)).unwrap().to_text();
        for (from, to, error) in [
            ("weft-key 1", "weft-key 2", KeyTextError::Version),
            ("kind user", "kind god", KeyTextError::Line("kind")),
            ("uid 1000", "uid -1", KeyTextError::Line("uid")),
            ("uid 1000\n", "", KeyTextError::Line("uid")),
            ("gids 1000", "gids", KeyTextError::Groups),
            ("expires never", "expires 0", KeyTextError::Line("expires")),
            ("secret ", "secret x", KeyTextError::Line("secret")),
            ("knock ", "more\nknock ", KeyTextError::Line("knock")),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good);
            assert_eq!(IssuedKey::from_text(&text), Err(error), "{text}");
        }
        assert_eq!(IssuedKey::from_text(&format!("{good}more")), Err(KeyTextError::Trailing));
        assert_eq!(IssuedKey::from_text(&"ab".repeat(32)), Err(KeyTextError::Bare));
        assert!(IssuedKey::issue(&Key([1; 32]), KeyInfo { name: "a\nb".into(), ..user(1) }).is_err());
    }

    fn infos() -> impl Strategy<Value = KeyInfo> {
        let gids = proptest::collection::vec(any::<u32>(), 1..9);
        let kind = prop_oneof![
            (any::<u32>(), gids).prop_map(|(uid, gids)| KeyKind::User { uid, gids }),
            any::<bool>().prop_map(|squash_root| KeyKind::Host { squash_root }),
        ];
        (any::<[u8; 16]>(), kind, any::<u64>(), "([a-z][a-z .@-]{0,8}[a-z])?")
            .prop_map(|(id, kind, expires_s, name)| KeyInfo { id, issuer: [0; 8], kind, expires_s, name })
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn a_key_survives_its_text_and_its_bytes(info in infos()) {
            let key = IssuedKey::issue(&Key([9; 32]), info.clone()).unwrap();
            prop_assert_eq!(IssuedKey::from_text(&key.to_text()), Ok(key));
            prop_assert_eq!(KeyInfo::from_bytes(&info.to_bytes()), Ok(info));
        }

        #[test]
        fn noise_is_no_key(text in "\\PC{0,200}", tail in "(\\PC{0,40}\n){0,9}") {
            let _ = IssuedKey::from_text(&text);
            let _ = IssuedKey::from_text(&format!("{FIRST_LINE}\n{tail}"));
        }
    }

    #[test]
    fn damaged_key_files_are_refused_or_written_back_the_same() {
        let right = IssuedKey::issue(&Key([9; 32]), user(7)).unwrap().to_text().into_bytes();
        weft_test_fuzz::run("issued-key", &[right], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(key) = IssuedKey::from_text(text) {
                assert_eq!(IssuedKey::from_text(&key.to_text()), Ok(key));
            }
        });
    }
}
