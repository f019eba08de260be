//! What clients have locked through this gateway, and how much each may have. Pure: who may lock what is decided
//! by the metadata server; this is what must be given back when a client has restarted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weft_onc_rpc::nlm::Lock;
use weft_wire::locks::HeldLocks;

use super::store::{Held, Host};

/// The last byte that a lock can have.
pub(super) const LAST_BYTE: u64 = i64::MAX as u64;
/// Locks and waits of all names of one address.
pub(super) const PER_ADDRESS_MAX: usize = 4096;
/// Locks and waits of all; the metadata server has a limit for the session.
const ALL_MAX: usize = 60_000;
/// Names of one address.
pub(super) const NAMES_PER_ADDRESS_MAX: usize = 64;
/// Clients.
const HOSTS_MAX: usize = 8192;
/// How long a client is remembered that has no locks.
const IDLE: Duration = Duration::from_secs(300);

/// The number of an owner at the metadata server, the same after each restart.
pub(super) fn owner_of(host: &Host, lock: &Lock) -> u64 {
    let address = host.address.to_string();
    let mut hasher = blake3::Hasher::new_derive_key("weft 1 nfs lock owner");
    for part in [address.as_bytes(), &host.name, &lock.owner] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.update(&lock.process.to_be_bytes());
    let bytes = hasher.finalize().as_bytes()[..8].try_into().expect("8 of 32 bytes");
    (u64::from_be_bytes(bytes) >> 1).max(1)
}

/// The first and the last byte of a lock; `None` where it begins beyond the end of any file.
pub(super) fn range_of(offset: u64, bytes: u64) -> Option<(u64, u64)> {
    let last = match bytes {
        0 => LAST_BYTE,
        _ => offset.saturating_add(bytes - 1).min(LAST_BYTE),
    };
    (offset <= LAST_BYTE).then_some((offset, last))
}

#[derive(Debug)]
struct Owned {
    host: Host,
    ranges: HeldLocks,
}

#[derive(Debug)]
struct Client {
    waits: usize,
    used_at: Instant,
}

/// All clients, and what they have.
#[derive(Debug, Default)]
pub(super) struct Table {
    owned: HashMap<Held, Owned>,
    /// Owners that have locks of each file.
    files: HashMap<u64, usize>,
    /// The same by address.
    at: HashMap<(u64, IpAddr), usize>,
    clients: BTreeMap<Host, Client>,
    /// Locks and waits.
    counts: HashMap<IpAddr, usize>,
    all: usize,
}

impl Table {
    /// Whether the client may have one lock more. It is known from then on if it may.
    pub(super) fn admit(&mut self, host: &Host, now: Instant) -> bool {
        if !self.clients.contains_key(host) {
            let of_address = self.clients.keys().filter(|known| known.address == host.address).count();
            if self.clients.len() >= HOSTS_MAX || of_address >= NAMES_PER_ADDRESS_MAX {
                return false;
            }
        }
        let of_address = self.counts.get(&host.address).copied().unwrap_or(0);
        if of_address >= PER_ADDRESS_MAX || self.all >= ALL_MAX {
            return false;
        }
        self.clients.entry(host.clone()).or_insert(Client { waits: 0, used_at: now }).used_at = now;
        true
    }

    /// Clients that have had no locks for a while: they are forgotten.
    pub(super) fn take_idle(&mut self, now: Instant) -> Vec<Host> {
        let locking: HashSet<&Host> = self.owned.values().map(|owned| &owned.host).collect();
        let is_idle = |host: &Host, client: &Client| {
            let is_old = now.saturating_duration_since(client.used_at) >= IDLE;
            is_old && client.waits == 0 && !locking.contains(host)
        };
        let idle: Vec<Host> = self
            .clients
            .iter()
            .filter(|(host, client)| is_idle(host, client))
            .map(|one| one.0.clone())
            .collect();
        for host in &idle {
            self.clients.remove(host);
        }
        idle
    }

    /// Whether a client has asked for a lock lately.
    pub(super) fn knows(&self, host: &Host) -> bool {
        self.clients.contains_key(host)
    }

    /// Clients of an address.
    pub(super) fn hosts_at(&self, address: IpAddr) -> Vec<Host> {
        self.clients.keys().filter(|host| host.address == address).cloned().collect()
    }

    /// Notes a lock (`exclusive`), or that it was given back.
    pub(super) fn set(&mut self, host: &Host, pair: Held, range: (u64, u64), exclusive: Option<bool>) {
        if exclusive.is_none() && !self.owned.contains_key(&pair) {
            return;
        }
        let owned = self.owned.entry(pair).or_insert_with(|| {
            *self.files.entry(pair.0).or_default() += 1;
            *self.at.entry((pair.0, host.address)).or_default() += 1;
            Owned { host: host.clone(), ranges: HeldLocks::default() }
        });
        let before = owned.ranges.len();
        owned.ranges.set(range.0, range.1, exclusive);
        let (after, address) = (owned.ranges.len(), owned.host.address);
        self.count(address, before, after);
        if after == 0 {
            self.remove(pair);
        }
    }

    /// Notes a wait that begins (`true`), or has ended.
    pub(super) fn wait(&mut self, host: &Host, begins: bool) {
        if let Some(client) = self.clients.get_mut(host) {
            client.waits = if begins { client.waits + 1 } else { client.waits - 1 };
            self.count(host.address, usize::from(!begins), usize::from(begins));
        }
    }

    fn count(&mut self, address: IpAddr, before: usize, after: usize) {
        let count = self.counts.entry(address).or_default();
        *count = *count + after - before;
        if *count == 0 {
            self.counts.remove(&address);
        }
        self.all = self.all + after - before;
    }

    /// Whether an owner has anything of a file.
    pub(super) fn has(&self, pair: Held) -> bool {
        self.owned.contains_key(&pair)
    }

    /// Whether an owner has any lock of a file.
    pub(super) fn has_file(&self, ino: u64) -> bool {
        self.files.contains_key(&ino)
    }

    /// Whether an owner at this address has any lock of a file.
    pub(super) fn has_at(&self, ino: u64, address: IpAddr) -> bool {
        self.at.contains_key(&(ino, address))
    }

    /// All locks: whose they are.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Host, Held, (u64, u64))> {
        self.owned.iter().flat_map(|(pair, owned)| {
            owned.ranges.iter().map(|lock| (&owned.host, *pair, (lock.first, lock.last)))
        })
    }

    /// Whether an owner has all these bytes, at least so.
    pub(super) fn covers(&self, pair: Held, range: (u64, u64), exclusive: bool) -> bool {
        self.owned.get(&pair).is_some_and(|owned| owned.ranges.covers(range.0, range.1, exclusive))
    }

    /// Whether an owner has any of these bytes.
    pub(super) fn overlaps(&self, pair: Held, range: (u64, u64)) -> bool {
        self.owned.get(&pair).is_some_and(|owned| owned.ranges.overlapping(range.0, range.1).next().is_some())
    }

    /// The ranges that an owner has not locked.
    pub(super) fn gaps(&self, pair: Held) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = Some(0);
        for lock in self.owned.get(&pair).into_iter().flat_map(|owned| owned.ranges.iter()) {
            if let Some(first) = next.filter(|first| *first < lock.first) {
                gaps.push((first, lock.first - 1));
            }
            next = lock.last.checked_add(1).filter(|first| *first <= LAST_BYTE);
        }
        gaps.extend(next.map(|first| (first, LAST_BYTE)));
        gaps
    }

    /// What the owners of a client have.
    pub(super) fn of_host(&self, host: &Host) -> Vec<Held> {
        self.owned.iter().filter(|(_, owned)| owned.host == *host).map(|(pair, _)| *pair).collect()
    }

    /// Takes all that an owner has of a file out.
    pub(super) fn remove(&mut self, pair: Held) {
        if let Some(owned) = self.owned.remove(&pair) {
            self.count(owned.host.address, owned.ranges.len(), 0);
            let owners = self.files.entry(pair.0).or_default();
            *owners -= 1;
            if *owners == 0 {
                self.files.remove(&pair.0);
            }
            let key = (pair.0, owned.host.address);
            let owners = self.at.entry(key).or_default();
            *owners -= 1;
            if *owners == 0 {
                self.at.remove(&key);
            }
        }
    }

    /// Takes all locks out. Clients stay.
    pub(super) fn clear(&mut self) {
        let pairs: Vec<Held> = self.owned.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.remove(pair));
    }

    /// Whether there are no locks.
    pub(super) fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// Clients that are known, and locks and waits.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.clients.len(), self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8, name: &str) -> Host {
        Host { address: [10, 0, 0, last].into(), name: name.into() }
    }

    #[test]
    fn owners_are_told_apart_by_all_that_names_them() {
        let lock = |owner: &[u8], process| Lock { owner: owner.to_vec(), process, ..Lock::default() };
        let node = host(1, "node");
        let first = owner_of(&node, &lock(b"9@node", 9));
        assert_eq!(first, owner_of(&node, &Lock { offset: 5, ..lock(b"9@node", 9) }));
        let others = [
            owner_of(&node, &lock(b"9@node", 8)),
            owner_of(&node, &lock(b"8@node", 9)),
            owner_of(&host(1, "nod"), &lock(b"e9@node", 9)),
            owner_of(&host(2, "node"), &lock(b"9@node", 9)),
        ];
        assert!(!others.contains(&first));
        assert!(first > 0 && first < 1 << 63);
    }

    #[test]
    fn ranges_end_with_the_greatest_file() {
        assert_eq!(range_of(5, 10), Some((5, 14)));
        assert_eq!(range_of(5, 0), Some((5, LAST_BYTE)));
        assert_eq!(range_of(5, u64::MAX), Some((5, LAST_BYTE)));
        assert_eq!(range_of(LAST_BYTE, 1), Some((LAST_BYTE, LAST_BYTE)));
        assert_eq!(range_of(LAST_BYTE + 1, 0), None);
    }

    #[test]
    fn an_address_has_so_many_locks_and_names() {
        let (mut table, now) = (Table::default(), Instant::now());
        let (one, other) = (host(1, "one"), host(2, "other"));
        for at in 0..PER_ADDRESS_MAX as u64 {
            assert!(table.admit(&one, now), "{at}");
            match at % 2 {
                0 => table.set(&one, (at, 1), (0, 9), Some(true)),
                _ => table.wait(&one, true),
            }
        }
        assert!(!table.admit(&one, now) && !table.admit(&host(1, "another name"), now));
        assert!(table.admit(&other, now), "others have their own");
        table.set(&one, (0, 1), (0, 9), None);
        assert!(table.admit(&one, now));
        for name in 0..NAMES_PER_ADDRESS_MAX {
            assert!(table.admit(&host(3, &name.to_string()), now));
        }
        assert!(!table.admit(&host(3, "one more"), now));
        assert_eq!(table.take_idle(now).len(), 0, "they were here just now");
        assert_eq!(table.take_idle(now + IDLE).len(), NAMES_PER_ADDRESS_MAX + 1);
        assert!(table.admit(&host(3, "one more"), now));
        assert_eq!(table.sizes(), (2, PER_ADDRESS_MAX - 1));
    }

    #[test]
    fn what_a_host_has_is_found_and_what_it_has_not() {
        let (mut table, now) = (Table::default(), Instant::now());
        let (one, other) = (host(1, "one"), host(1, "other"));
        assert!(table.admit(&one, now) && table.admit(&other, now));
        table.set(&one, (7, 1), (10, 19), Some(true));
        table.set(&one, (7, 1), (30, LAST_BYTE), Some(false));
        table.set(&other, (7, 2), (0, 5), Some(false));
        assert_eq!((table.of_host(&one), table.of_host(&other)), (vec![(7, 1)], vec![(7, 2)]));
        assert_eq!(table.gaps((7, 1)), [(0, 9), (20, 29)]);
        assert_eq!(table.gaps((7, 2)), [(6, LAST_BYTE)]);
        assert_eq!(table.gaps((8, 1)), [(0, LAST_BYTE)]);
        assert!(table.covers((7, 1), (10, 19), true) && table.covers((7, 1), (40, 50), false));
        assert!(!table.covers((7, 1), (40, 50), true) && !table.covers((7, 1), (19, 30), false));
        assert!(table.overlaps((7, 1), (19, 25)) && !table.overlaps((7, 1), (20, 29)));
        table.set(&one, (7, 1), (0, LAST_BYTE), None);
        assert!(!table.has((7, 1)) && table.has_file(7) && table.has_at(7, one.address));
        assert_eq!(table.all().collect::<Vec<_>>(), [(&other, (7, 2), (0, 5))]);
        table.remove((7, 2));
        assert!(!table.has_file(7) && !table.has_at(7, one.address) && table.is_empty());
        assert_eq!(table.hosts_at(one.address), [one, other]);
        assert_eq!(table.sizes(), (2, 0));
    }
}
