//! The keys of the store. The first byte is the kind of record; numbers are big-endian so that keys sort as numbers.
//!
//! ```text
//!   i <ino>                    inode
//!   n <dir ino> <name>         entry, found by name      -> ino, kind, cookie
//!   o <dir ino> <cookie>       entry, in creation order  -> ino, kind, name
//!   x <ino> <name>             extended attribute
//!   d <block of 64>            removed inodes that the superblock's count has still; see count.rs
//!   b <ino>                    bytes of a small file
//!   g <ino>                    garbage: data files to remove on the I/O servers -> layout
//!   p <server id 2> <ino>      postponed: a data file that is still to be removed on this server
//!   u <ino>                    orphan: no name (any more, or yet), but open somewhere, or lately removed; see orphan.rs
//!   t <ino>                    tail of the appends to a file that is open for writing
//!   c <ino> <session 16> <number 8>   counter of the open that has this number in its session
//!   r <session 16> <shard 2> <slot 2>   last request of a session's slot, with its reply
//!   w <session 16> <shard 2>   a session that watches; without the shard where that is 0
//!   y <session 16> <shard 2> <member 2>   a process that may hold locks
//!   v <server id 2>            an I/O server, and which storage it has
//!   h <mark 8>                 a run of the metadata server, by its first mark
//!   k <id 16>                  a key that was issued to a client
//!   q, l                       usage and limits: see quota.rs
//!   s <field>                  superblock
//! ```
//!
//! A directory with the entries `a` (inode 7, cookie 16) and `b` (inode 8, cookie 17) under root (inode 1) is
//! `n1a -> 7,16`, `n1b -> 8,17`, `o1,16 -> 7,a`, `o1,17 -> 8,b`. Reading goes along `o`, so that a page of a
//! listing is continued by its last cookie whatever was created or removed meanwhile.

use crate::caller::{Locker, SessionId};
use crate::open_counter::CounterId;

pub(crate) const INODE: u8 = b'i';
pub(crate) const NAME: u8 = b'n';
pub(crate) const ORDER: u8 = b'o';
pub(crate) const XATTR: u8 = b'x';
pub(crate) const REMOVED: u8 = b'd';
pub(crate) const SMALL: u8 = b'b';
pub(crate) const GARBAGE: u8 = b'g';
pub(crate) const POSTPONED: u8 = b'p';
pub(crate) const ORPHAN: u8 = b'u';
pub(crate) const APPEND_TAIL: u8 = b't';
pub(crate) const COUNTER: u8 = b'c';
pub(crate) const REPLY: u8 = b'r';
pub(crate) const WATCHER: u8 = b'w';
pub(crate) const LOCKER: u8 = b'y';
pub(crate) const SERVER: u8 = b'v';
pub(crate) const ISSUED: u8 = b'k';
pub(crate) const RUN: u8 = b'h';
pub(crate) const USED: u8 = b'q';
pub(crate) const LIMIT: u8 = b'l';

/// Superblock fields.
pub(crate) const SUPER_FORMAT: &[u8] = b"sformat";
pub(crate) const SUPER_INO_LEASE: &[u8] = b"sino";
pub(crate) const SUPER_COOKIE_LEASE: &[u8] = b"scookie";
pub(crate) const SUPER_FILES: &[u8] = b"sfiles";
pub(crate) const SUPER_INCARNATION: &[u8] = b"sincarnation";
/// Which storage this is: random, made once.
pub(crate) const SUPER_STORAGE: &[u8] = b"sstorage";
/// A number that no older copy of this store has, and the run of the server that wrote it.
pub(crate) const SUPER_MARK: &[u8] = b"smark";
/// The store's history has a gap before this inode number: what is below and not here may have been forgotten, not removed.
pub(crate) const SUPER_VOUCHED_FROM: &[u8] = b"svouched";
/// There from when this store was made from a backup until the I/O servers have agreed.
pub(crate) const SUPER_LOADED: &[u8] = b"sloaded";
/// The map of the cluster, as the server encodes it.
pub(crate) const SUPER_MAP: &[u8] = b"smap";
/// Earlier releases: there while locks may be held that clients claim after a restart.
pub(crate) const SUPER_LOCKS: &[u8] = b"slocks";
/// There where usage is counted for quotas.
pub(crate) const SUPER_QUOTA: &[u8] = b"squota";

/// `kind` followed by one number: the keys of inodes, garbage and orphans, and the prefix of the others.
pub(crate) fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn inode(ino: u64) -> [u8; 9] {
    numbered(INODE, ino)
}

pub(crate) fn name(dir: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + name.len());
    name_into(&mut key, dir, name);
    key
}

/// Makes `key` the one of a name.
pub(crate) fn name_into(key: &mut Vec<u8>, dir: u64, name: &[u8]) {
    key.clear();
    key.extend_from_slice(&numbered(NAME, dir));
    key.extend_from_slice(name);
}

pub(crate) fn order(dir: u64, cookie: u64) -> [u8; 17] {
    let mut key = [ORDER; 17];
    key[1..9].copy_from_slice(&dir.to_be_bytes());
    key[9..].copy_from_slice(&cookie.to_be_bytes());
    key
}

pub(crate) fn xattr(ino: u64, name: &[u8]) -> Vec<u8> {
    [&numbered(XATTR, ino), name].concat()
}

pub(crate) fn removed(block: u64) -> [u8; 9] {
    numbered(REMOVED, block)
}

pub(crate) fn garbage(ino: u64) -> [u8; 9] {
    numbered(GARBAGE, ino)
}

pub(crate) fn postponed(server: u16, ino: u64) -> [u8; 11] {
    let mut key = [POSTPONED; 11];
    key[1..3].copy_from_slice(&server.to_be_bytes());
    key[3..].copy_from_slice(&ino.to_be_bytes());
    key
}

/// The beginning of the keys of all removals that a server was not there for.
pub(crate) fn postponed_on(server: u16) -> [u8; 3] {
    let [high, low] = server.to_be_bytes();
    [POSTPONED, high, low]
}

/// Server and inode of a [`postponed`] key; `None` of another key.
pub(crate) fn postponed_of(key: &[u8]) -> Option<(u16, u64)> {
    let key: &[u8; 11] = key.try_into().ok()?;
    let server = u16::from_be_bytes([key[1], key[2]]);
    Some((server, u64::from_be_bytes(key[3..].try_into().ok()?)))
}

pub(crate) fn small(ino: u64) -> [u8; 9] {
    numbered(SMALL, ino)
}

pub(crate) fn orphan(ino: u64) -> [u8; 9] {
    numbered(ORPHAN, ino)
}

pub(crate) fn append_tail(ino: u64) -> [u8; 9] {
    numbered(APPEND_TAIL, ino)
}

pub(crate) fn counter(id: &CounterId) -> [u8; 33] {
    let mut key = [COUNTER; 33];
    key[1..9].copy_from_slice(&id.ino.to_be_bytes());
    key[9..25].copy_from_slice(&id.session.0);
    key[25..].copy_from_slice(&id.number.to_be_bytes());
    key
}

/// The open that a counter's key names; `None` if it is not as long as such a key.
pub(crate) fn counter_of(key: &[u8]) -> Option<CounterId> {
    let key: &[u8; 33] = key.try_into().ok()?;
    let session = SessionId(key[9..25].try_into().ok()?);
    let number = u64::from_be_bytes(key[25..].try_into().ok()?);
    Some(CounterId { ino: number_of(key)?, session, number })
}

pub(crate) fn reply(shard: u16, session: SessionId, slot: u16) -> [u8; 21] {
    let mut key = [REPLY; 21];
    key[..19].copy_from_slice(&replies_of(shard, session));
    key[19..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// The prefix of a session's replies in a shard.
pub(crate) fn replies_of(shard: u16, session: SessionId) -> [u8; 19] {
    of_session(REPLY, shard, session)
}

/// `kind` followed by session and shard.
fn of_session(kind: u8, shard: u16, session: SessionId) -> [u8; 19] {
    let mut key = [kind; 19];
    key[1..17].copy_from_slice(&session.0);
    key[17..].copy_from_slice(&shard.to_be_bytes());
    key
}

pub(crate) fn watcher(shard: u16, session: SessionId) -> Vec<u8> {
    let mut key = vec![WATCHER];
    key.extend_from_slice(&session.0);
    if shard != 0 {
        key.extend_from_slice(&shard.to_be_bytes());
    }
    key
}

/// The beginning of the keys of all processes of a session that may hold locks.
pub(crate) fn lockers_of(shard: u16, session: SessionId) -> [u8; 19] {
    of_session(LOCKER, shard, session)
}

pub(crate) fn locker(shard: u16, locker: &Locker) -> [u8; 21] {
    let mut key = [0; 21];
    key[..19].copy_from_slice(&lockers_of(shard, locker.session));
    key[19..].copy_from_slice(&locker.member.to_be_bytes());
    key
}

/// What [`locker`] was made of; `None` of another key.
pub(crate) fn locker_of(key: &[u8]) -> Option<(Locker, u16)> {
    let (session, shard) = session_of(key)?;
    let member = u16::from_be_bytes(key.get(19..)?.try_into().ok()?);
    Some((Locker { session, member }, shard))
}

/// Session and shard of a reply or a watcher; `None` if the key is too short to have them.
pub(crate) fn session_of(key: &[u8]) -> Option<(SessionId, u16)> {
    let session = SessionId(key.get(1..17)?.try_into().ok()?);
    let shard = key.get(17..19).and_then(|shard| shard.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some((session, shard))
}

pub(crate) fn server(id: u16) -> [u8; 3] {
    let [high, low] = id.to_be_bytes();
    [SERVER, high, low]
}

pub(crate) fn run(first_mark: u64) -> [u8; 9] {
    numbered(RUN, first_mark)
}

pub(crate) fn issued(id: &[u8; 16]) -> [u8; 17] {
    let mut key = [ISSUED; 17];
    key[1..].copy_from_slice(id);
    key
}

/// The number after the kind byte, if the key is long enough to have one.
pub(crate) fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}

/// The last eight bytes of an order key.
pub(crate) fn cookie_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(9..17)?.try_into().ok()?))
}

/// The directory and the cookie of an order key.
pub(crate) fn place_of(key: &[u8]) -> Option<(u64, u64)> {
    Some((u64::from_be_bytes(key.get(1..9)?.try_into().ok()?), cookie_of(key)?))
}

/// The first key after all keys that begin with `prefix` (which never consists of 0xff bytes alone: it begins with
/// a kind letter).
pub(crate) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A key for an error message: the kind letter, the number, then what follows in hexadecimal.
pub(crate) fn readable(key: &[u8]) -> String {
    let kind = key.first().map_or('?', |byte| char::from(*byte));
    match number_of(key) {
        Some(number)
            if matches!(key[0], INODE | NAME | ORDER | XATTR | GARBAGE | ORPHAN | APPEND_TAIL | COUNTER) =>
        {
            format!("{kind}:{number}:{}", hex(&key[9..]))
        }
        _ => format!("{kind}:{}", hex(key.get(1..).unwrap_or_default())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        let prefix = numbered(NAME, u64::MAX);
        let end = after_prefix(&prefix);
        assert!(name(u64::MAX, &[0xff; 255]) < end);
        assert_eq!(end, b"o");
        assert!(name(7, &[0xff; 255]) < after_prefix(&numbered(NAME, 7)));
        assert!(after_prefix(&numbered(NAME, 7)) <= name(8, b""));
    }

    #[test]
    fn damaged_keys_are_readable() {
        assert_eq!(readable(&name(1, b"ab")), "n:1:6162");
        assert_eq!(readable(b"sino"), "s:696e6f");
    }
}
