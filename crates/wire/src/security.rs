//! Who may connect, and who may access which file.
//!
//! There is one secret, the cluster key, which only servers have. All other keys are derived from it, each in
//! one direction:
//!
//! ```text
//!  cluster key ──derive──► issuing key ──hash over the public part──► secret of each issued key (keys.rs)
//!       │                                  clients: mutual challenge at connect (HelloRequest, ProveRequest)
//!       ├─────────derive──► server key       between servers: the same challenge
//!       ├─────────derive──► capability key   the metadata server signs, I/O servers check; no client has it
//!       └─────────derive──► knock key        in every issued key; for the queues of RDMA connections
//! ```
//!
//! While the cluster key is being replaced there are two, see [`ClusterKeys`].
//!
//! A proof is a keyed hash over both nonces and the greeting. It includes a direction, so that it cannot be
//! reflected or replayed. A [`Capability`] gives the file, its layout, rights, expiry and holder. An I/O
//! server checks it without asking anyone.

use crate::codec::{DecodeError, Reader, Vetting, Wire, Writer};
use weft_layout::Layout;

/// A 256-bit key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct KeyError;

impl Key {
    /// The key of zeros, which everybody knows. It proves nothing.
    pub const ZERO: Key = Key([0; 32]);

    /// Parses the 64 hexadecimal digits of a key file. White space around them is ignored.
    pub fn from_hex(text: &str) -> Result<Key, KeyError> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(KeyError);
        }
        let mut key = [0u8; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| KeyError)?;
        }
        Ok(Key(key))
    }

    /// The 64 hexadecimal digits for a key file.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key that computes the secrets of issued keys ([`crate::keys`]).
    pub fn issuing_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 issued keys", &self.0))
    }

    /// A key that all clients have besides their own. It only protects a server from creating the queues of
    /// RDMA connections for strangers.
    pub fn knock_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 knock", &self.0))
    }

    /// The key that servers prove to each other.
    pub fn server_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 server connection", &self.0))
    }

    /// The key that signs capabilities.
    pub fn capability_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 capability", &self.0))
    }
}

/// A name for a cluster key, which issued keys contain. It reveals nothing of the key.
pub type ClusterKeyName = [u8; 8];

impl Key {
    /// See [`ClusterKeyName`].
    pub fn name(&self) -> ClusterKeyName {
        let hash = blake3::derive_key("weft 1 name of a cluster key", &self.0);
        hash[..8].try_into().expect("8 of 32 bytes")
    }
}

/// The keys of a cluster: the one in use and, during a rotation, another one that is accepted too.
///
/// ```text
///   cluster.key        old          old, new         new, old          new
///                   ───────────► add ───────► switch ─────────► drop ──────►
///   signs, proves      old          old              new               new
///   is accepted        old          old and new      new and old       new
/// ```
///
/// Servers may have files of adjacent states at the same time: keys and proofs of each are accepted by all
/// others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    in_use: DatedKey,
    other: Option<DatedKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DatedKey {
    key: Key,
    /// Start of its use, in seconds since 1970; 0: never used.
    since_s: u64,
}

/// Why the file of a cluster's keys cannot be read, or a step of the rotation cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClusterKeysError {
    /// A line is not valid.
    #[error(
        "line {line} is not a cluster key: 64 hexadecimal digits, and perhaps the time since when it is in use"
    )]
    Line {
        /// The line number, from 1.
        line: usize,
    },
    /// There is no key, there are too many, or one is there twice.
    #[error("it must have one cluster key, or two different ones during a rotation")]
    Count,
    /// There are two keys already.
    #[error("a rotation of the cluster key is already in progress")]
    Two,
    /// There is no other key to switch to or to drop.
    #[error("there is no other key than the one in use")]
    One,
    /// The other key was in use before, so the switch is done.
    #[error("the new key is already in use")]
    Switched,
}

impl ClusterKeys {
    /// The keys of a cluster without a rotation, whose key is in use since `since_s`, in seconds since 1970.
    pub fn new(key: Key, since_s: u64) -> ClusterKeys {
        ClusterKeys { in_use: DatedKey { key, since_s: since_s.max(1) }, other: None }
    }

    /// The key that signs, proves and issues.
    pub fn in_use(&self) -> &Key {
        &self.in_use.key
    }

    /// Start of its use, in seconds since 1970; 1: unknown.
    pub fn since_s(&self) -> u64 {
        self.in_use.since_s
    }

    /// The other key that is accepted.
    pub fn other(&self) -> Option<&Key> {
        self.other.as_ref().map(|other| &other.key)
    }

    /// Whether the other key was not in use yet.
    pub fn is_other_new(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.since_s == 0)
    }

    /// All accepted keys, the one in use first.
    pub fn all(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(self.in_use()).chain(self.other())
    }

    /// Adds a key that is accepted too.
    ///
    /// # Errors
    /// [`ClusterKeysError::Two`], and [`ClusterKeysError::Count`] if it is the key in use.
    pub fn with(self, key: Key) -> Result<ClusterKeys, ClusterKeysError> {
        match self.other {
            Some(_) => Err(ClusterKeysError::Two),
            None if key == self.in_use.key => Err(ClusterKeysError::Count),
            None => Ok(ClusterKeys { other: Some(DatedKey { key, since_s: 0 }), ..self }),
        }
    }

    /// Puts the new key into use from `now_s` on. The previous one is still accepted.
    ///
    /// # Errors
    /// [`ClusterKeysError::One`] and [`ClusterKeysError::Switched`].
    pub fn switched(self, now_s: u64) -> Result<ClusterKeys, ClusterKeysError> {
        match self.other {
            None => Err(ClusterKeysError::One),
            Some(DatedKey { key, since_s: 0 }) => {
                let in_use = DatedKey { key, since_s: now_s.max(1) };
                Ok(ClusterKeys { in_use, other: Some(self.in_use) })
            }
            Some(_) => Err(ClusterKeysError::Switched),
        }
    }

    /// Removes the other key.
    ///
    /// # Errors
    /// [`ClusterKeysError::One`].
    pub fn without_other(self) -> Result<ClusterKeys, ClusterKeysError> {
        self.other.ok_or(ClusterKeysError::One)?;
        Ok(ClusterKeys { other: None, ..self })
    }

    /// The text of a key file: one line per key, the one in use first, with the start of its use.
    pub fn to_text(&self) -> String {
        let line = |key: &DatedKey| match key.since_s {
            0 => format!("{}\n", key.key.to_hex()),
            since_s => format!("{} {since_s}\n", key.key.to_hex()),
        };
        line(&self.in_use) + &self.other.as_ref().map(line).unwrap_or_default()
    }

    /// Parses the text of a key file. White space around lines, and empty lines, are ignored.
    ///
    /// # Errors
    /// [`ClusterKeysError::Line`] and [`ClusterKeysError::Count`].
    pub fn from_text(text: &str) -> Result<ClusterKeys, ClusterKeysError> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = ClusterKeysError::Line { line: at + 1 };
            let mut words = line.split_ascii_whitespace();
            let key = Key::from_hex(words.next().ok_or(wrong)?).map_err(|KeyError| wrong)?;
            let since_s = words.next().map_or(Ok(0), str::parse).map_err(|_| wrong)?;
            if words.next().is_some() {
                return Err(wrong);
            }
            keys.push(DatedKey { key, since_s });
        }
        let mut keys = keys.into_iter();
        let in_use = keys.next().ok_or(ClusterKeysError::Count)?;
        let other = keys.next();
        if keys.next().is_some() || other.as_ref().is_some_and(|other| other.key == in_use.key) {
            return Err(ClusterKeysError::Count);
        }
        Ok(ClusterKeys { other, ..ClusterKeys::new(in_use.key, in_use.since_s) })
    }
}

impl From<&Key> for ClusterKeys {
    fn from(key: &Key) -> ClusterKeys {
        ClusterKeys::new(key.clone(), 0)
    }
}

impl From<&ClusterKeys> for ClusterKeys {
    fn from(keys: &ClusterKeys) -> ClusterKeys {
        keys.clone()
    }
}

fn proof(key: &Key, direction: &[u8], hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(direction).update(server_nonce).update(hello);
    *hash.finalize().as_bytes()
}

/// The server's proof, in reply to a `HelloRequest` with the body `hello`.
pub fn server_proof(key: &Key, hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"server", hello, server_nonce)
}

/// The client's proof, in reply to the server's nonce. `hello` is the body of its `HelloRequest`.
pub fn client_proof(key: &Key, hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"client", hello, server_nonce)
}

/// Shows, in a request for an RDMA connection, that the peer knows the key: a keyed hash over the connection
/// data, with a direction. It does not protect against replays, and only avoids creating queues for
/// strangers. Greeting and proof follow as on every connection.
pub fn connect_mac(key: &Key, direction: &[u8], said: &[&[u8]]) -> [u8; 16] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(b"rdma ").update(direction);
    for part in said {
        hash.update(part);
    }
    hash.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

/// A public name for a session. The id itself is secret, since whoever knows it could claim the session.
pub fn session_name(session: &[u8; 16]) -> [u8; 16] {
    let hash = blake3::derive_key("weft 1 name of a session", session);
    hash[..16].try_into().expect("16 of 32 bytes")
}

/// Compares two such hashes, in constant time.
pub fn same_mac(a: &[u8; 16], b: &[u8; 16]) -> bool {
    let widen = |half: &[u8; 16]| {
        let mut whole = [0u8; 32];
        whole[..16].copy_from_slice(half);
        whole
    };
    same_proof(&widen(a), &widen(b))
}

/// Compares two proofs, in constant time.
pub fn same_proof(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

/// Signed permission to access one file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The file.
    pub ino: u64,
    /// Bits of [`crate::messages::rights`].
    pub rights: u32,
    /// Expiry, in seconds since 1970.
    pub expires_s: u64,
    /// The holder; it is of no use to anybody else.
    pub holder: Holder,
    /// How the file is striped.
    pub layout: Layout,
    /// The signature of all of the above.
    pub signature: [u8; 16],
}

impl Wire for Capability {
    const BYTES_MIN: usize = 54;
    fn put(&self, out: &mut Writer) {
        self.put_signed(out);
        self.signature.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Capability {
            ino: u64::get(input)?,
            rights: u32::get(input)?,
            expires_s: u64::get(input)?,
            holder: Holder(Wire::get(input)?),
            layout: Layout::get(input)?,
            signature: Wire::get(input)?,
        })
    }
    fn sample(seed: &mut u64) -> Self {
        Capability {
            ino: u64::sample(seed),
            rights: u32::sample(seed),
            expires_s: u64::sample(seed),
            holder: Holder(Wire::sample(seed)),
            layout: Layout::sample(seed),
            signature: Wire::sample(seed),
        }
    }
    const VETTED: bool = true;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        vetting.capability(self);
    }
}

/// The holder of a capability: a key, or a user of the servers' own host without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub [u8; 8]);

impl Holder {
    /// Servers of the cluster.
    pub const SERVERS: Holder = Holder([0; 8]);

    /// The holders of the issued key with this id.
    pub fn of_key(id: &[u8; 16]) -> Holder {
        Holder::derived("weft 1 holder: key", id)
    }

    /// Processes of this user, over a Unix socket and without a key.
    pub fn of_user(uid: u32) -> Holder {
        Holder::derived("weft 1 holder: user", &uid.to_le_bytes())
    }

    fn derived(context: &str, who: &[u8]) -> Holder {
        Holder(blake3::derive_key(context, who)[..8].try_into().expect("8 of 32 bytes"))
    }

    /// The session that `id` means for this holder. The same id of another holder is another session, so
    /// knowing an id does not give access to the session.
    pub fn session(&self, id: &[u8; 16]) -> [u8; 16] {
        let named = blake3::derive_key("weft 1 session", &[&self.0[..], id].concat());
        named[..16].try_into().expect("16 of 32 bytes")
    }
}

/// Why a capability does not allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// The signature is not the metadata server's.
    #[error("its signature is wrong")]
    Forged,
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// It does not give the rights.
    #[error("it does not give the required right")]
    Rights,
    /// It was given to another holder.
    #[error("it was given to the holder of another key")]
    Holder,
}

impl Capability {
    /// Creates and signs a capability with the cluster's capability key.
    pub fn sign(
        key: &Key,
        holder: Holder,
        ino: u64,
        rights: u32,
        expires_s: u64,
        layout: Layout,
    ) -> Capability {
        let mut capability = Capability { ino, rights, expires_s, holder, layout, signature: [0; 16] };
        capability.signature = capability.signature_by(key);
        capability
    }

    fn put_signed(&self, out: &mut Writer) {
        self.ino.put(out);
        self.rights.put(out);
        self.expires_s.put(out);
        self.holder.0.put(out);
        self.layout.put(out);
    }

    fn signature_by(&self, key: &Key) -> [u8; 16] {
        let mut out = Writer::new();
        self.put_signed(&mut out);
        let hash = blake3::keyed_hash(&key.0, out.as_bytes());
        hash.as_bytes()[..16].try_into().expect("16 of 32 bytes")
    }

    /// Checks that it is genuine, valid at `now_s` and gives all of `rights`.
    pub fn check(&self, key: &Key, now_s: u64, rights: u32) -> Result<(), CapabilityError> {
        if !same_mac(&self.signature, &self.signature_by(key)) {
            return Err(CapabilityError::Forged);
        }
        if now_s >= self.expires_s {
            return Err(CapabilityError::Expired);
        }
        if self.rights & rights != rights {
            return Err(CapabilityError::Rights);
        }
        Ok(())
    }
}

impl Wire for Layout {
    const BYTES_MIN: usize = 10;
    fn put(&self, out: &mut Writer) {
        self.strip_bytes().put(out);
        self.first_server().put(out);
        self.server_count().put(out);
        self.ring_servers().put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (strip_bytes, first_server) = (u32::get(input)?, u16::get(input)?);
        let (server_count, ring_servers) = (u16::get(input)?, u16::get(input)?);
        Layout::new(strip_bytes, first_server, server_count, ring_servers)
            .map_err(|_| DecodeError::Value("the layout is not valid"))
    }
    fn sample(_seed: &mut u64) -> Self {
        Layout::new(65536, 2, 3, 6).expect("the paper's example (PVFS table 1)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{HelloRequest, rights};

    fn layout() -> Layout {
        Layout::sample(&mut 0)
    }

    #[test]
    fn a_capability_covers_what_it_says_and_nothing_else() {
        let key = Key([7; 32]).capability_key();
        let good = Capability::sign(&key, Holder([5; 8]), 42, rights::READ, 1000, layout());
        assert_eq!(good.check(&key, 999, rights::READ), Ok(()));
        assert_eq!(good.check(&key, 1000, rights::READ), Err(CapabilityError::Expired));
        assert_eq!(good.check(&key, 999, rights::WRITE), Err(CapabilityError::Rights));
        assert_eq!(good.check(&Key([8; 32]), 999, rights::READ), Err(CapabilityError::Forged));
        for changed in [
            Capability { ino: 43, ..good.clone() },
            Capability { rights: 3, ..good.clone() },
            Capability { expires_s: 2000, ..good.clone() },
            Capability { holder: Holder([6; 8]), ..good.clone() },
            Capability { layout: Layout::new(65536, 1, 3, 6).unwrap(), ..good.clone() },
        ] {
            assert_eq!(changed.check(&key, 999, rights::READ), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn what_one_step_of_a_rotation_makes_the_steps_beside_it_accept() {
        let (old, new) = (Key([1; 32]), Key([2; 32]));
        let first = ClusterKeys::new(old.clone(), 0);
        let added = first.clone().with(new.clone()).unwrap();
        let switched = added.clone().switched(77).unwrap();
        let last = switched.clone().without_other().unwrap();
        let steps = [first.clone(), added.clone(), switched.clone(), last.clone()];
        for pair in steps.windows(2) {
            for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                assert!(other.all().any(|key| key == one.in_use()), "{one:?} {other:?}");
            }
        }
        assert_eq!((last.in_use(), last.since_s(), last.other()), (&new, 77, None));
        assert!(added.is_other_new() && !switched.is_other_new());
        assert_eq!(first.clone().switched(1), Err(ClusterKeysError::One));
        assert_eq!(switched.clone().switched(78), Err(ClusterKeysError::Switched));
        assert_eq!(last.without_other(), Err(ClusterKeysError::One));
        assert_eq!(added.with(Key([3; 32])), Err(ClusterKeysError::Two));
        assert_eq!(first.with(old), Err(ClusterKeysError::Count));
        for keys in steps {
            assert_eq!(ClusterKeys::from_text(&keys.to_text()), Ok(keys));
        }
    }

    #[test]
    fn a_file_of_cluster_keys_has_one_or_two_of_them() {
        let [a, b, c] = [1, 2, 3].map(|byte| Key([byte; 32]).to_hex());
        assert_eq!(ClusterKeys::from_text(&a).unwrap(), ClusterKeys::new(Key([1; 32]), 0));
        let two = ClusterKeys::from_text(&format!("\n  {a} 5 \n\n{b}\n")).unwrap();
        assert_eq!((two.since_s(), two.other()), (5, Some(&Key([2; 32]))));
        assert!(two.is_other_new());
        for (text, error) in [
            (String::new(), ClusterKeysError::Count),
            (format!("{a}\n{a}"), ClusterKeysError::Count),
            (format!("{a}\n{b}\n{c}"), ClusterKeysError::Count),
            (format!("{a}\nx"), ClusterKeysError::Line { line: 2 }),
            (format!("{a} soon"), ClusterKeysError::Line { line: 1 }),
            (format!("{a} 1 2"), ClusterKeysError::Line { line: 1 }),
            (a[1..].to_owned(), ClusterKeysError::Line { line: 1 }),
        ] {
            assert_eq!(ClusterKeys::from_text(&text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_capability_fits_a_file_handle() {
        // NFSv3 handles have 64 bytes, of which a gateway needs 8 for itself.
        assert_eq!(Capability::sample(&mut 0).to_bytes().len(), Capability::BYTES_MIN);
        const { assert!(Capability::BYTES_MIN <= 56) };
    }

    #[test]
    fn an_id_of_a_session_means_another_session_to_every_holder() {
        let (alice, bob) = (Holder::of_key(&[1; 16]), Holder::of_key(&[2; 16]));
        assert_eq!(alice.session(&[7; 16]), alice.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), bob.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), alice.session(&[8; 16]));
        assert_ne!(alice.session(&[7; 16]), [7; 16], "the id itself is told to nobody");
        assert_ne!(Holder::of_user(0), Holder::SERVERS);
    }

    #[test]
    fn proofs_differ_by_direction_key_and_nonce() {
        let hello = HelloRequest::sample(&mut 0).to_bytes();
        let (key, nonce) = (Key([1; 32]), [2; 32]);
        let base = server_proof(&key, &hello, &nonce);
        assert!(same_proof(&base, &server_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &client_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key.server_key(), &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key, &hello, &[3; 32])));
        assert!(!same_proof(&base, &server_proof(&key, &HelloRequest::sample(&mut 9).to_bytes(), &nonce)));
    }

    #[test]
    fn the_derived_keys_differ_and_a_key_survives_text() {
        let key = Key([5; 32]);
        let derived =
            [key.issuing_key(), key.knock_key(), key.server_key(), key.capability_key(), key.clone()];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[at + 1..].iter().all(|other| other != one));
        }
        assert_eq!(Key::from_hex(&format!(" {}\n", key.to_hex())), Ok(key));
        assert_eq!(Key::from_hex("abc"), Err(KeyError));
    }

    #[test]
    fn damaged_cluster_keys_are_refused_or_written_back_the_same() {
        let right = ClusterKeys::new(Key([7; 32]), 5).to_text().into_bytes();
        weft_test_fuzz::run("cluster-keys", &[right], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(keys) = ClusterKeys::from_text(text) {
                assert_eq!(ClusterKeys::from_text(&keys.to_text()).unwrap(), keys);
            }
        });
    }
}
