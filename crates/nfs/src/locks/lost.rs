//! Locks that clients have lost, and so what they must not write. Pure.
//!
//! A WRITE of NFSv3 does not name the owner of a lock. So a client that has lost a lock of a file may not change that file, by
//! whichever process, until each owner has locked again or given up what it had lost.

use std::collections::HashMap;
use std::net::IpAddr;

use weft_wire::locks::HeldLocks;

use super::store::{Held, Host};
use super::table::PER_ADDRESS_MAX;

#[derive(Debug)]
struct Owned {
    host: Host,
    ranges: HeldLocks,
}

/// What all clients have lost.
#[derive(Debug, Default)]
pub(super) struct LostLocks {
    owners: HashMap<Held, Owned>,
    /// Owners that have lost locks, by file and address.
    files: HashMap<(u64, IpAddr), usize>,
    /// Ranges of all owners, by address.
    counts: HashMap<IpAddr, usize>,
}

impl LostLocks {
    /// An owner has lost a range. `false`: the address has lost more than is noted.
    pub(super) fn add(&mut self, host: &Host, pair: Held, range: (u64, u64)) -> bool {
        if self.counts.get(&host.address).is_some_and(|count| *count >= PER_ADDRESS_MAX) {
            return false;
        }
        self.set(host, pair, range, Some(true));
        true
    }

    /// An owner has locked a range again, or given it up.
    pub(super) fn end(&mut self, pair: Held, range: (u64, u64)) {
        if let Some(host) = self.owners.get(&pair).map(|owned| owned.host.clone()) {
            self.set(&host, pair, range, None);
        }
    }

    fn set(&mut self, host: &Host, pair: Held, range: (u64, u64), lost: Option<bool>) {
        let key = (pair.0, host.address);
        let owned = self.owners.entry(pair).or_insert_with(|| {
            *self.files.entry(key).or_default() += 1;
            Owned { host: host.clone(), ranges: HeldLocks::default() }
        });
        let before = owned.ranges.len();
        owned.ranges.set(range.0, range.1, lost);
        let after = owned.ranges.len();
        let count = self.counts.entry(host.address).or_default();
        *count = *count + after - before;
        if *count == 0 {
            self.counts.remove(&host.address);
        }
        if after == 0 {
            self.owners.remove(&pair);
            let owners = self.files.entry(key).or_default();
            *owners -= 1;
            if *owners == 0 {
                self.files.remove(&key);
            }
        }
    }

    /// An owner, or all of a client that has restarted, has given up whatever it had lost.
    pub(super) fn forget(&mut self, is_meant: impl Fn(&Host, Held) -> bool) {
        let meant = self.owners.iter().filter(|(pair, owned)| is_meant(&owned.host, **pair));
        let pairs: Vec<Held> = meant.map(|(pair, _)| *pair).collect();
        pairs.into_iter().for_each(|pair| self.end(pair, (0, u64::MAX)));
    }

    /// Whether the client at this address must not change the file.
    pub(super) fn has(&self, ino: u64, address: IpAddr) -> bool {
        self.files.contains_key(&(ino, address))
    }

    /// Clients of an address that have lost something.
    pub(super) fn hosts_at(&self, address: IpAddr) -> Vec<Host> {
        let mut hosts: Vec<Host> = Vec::new();
        for owned in self.owners.values().filter(|owned| owned.host.address == address) {
            if !hosts.contains(&owned.host) {
                hosts.push(owned.host.clone());
            }
        }
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Host {
        Host { address: [10, 0, 0, last].into(), name: b"node".to_vec() }
    }

    #[test]
    fn a_file_may_be_changed_again_when_every_owner_has_locked_or_given_up_all() {
        let (mut lost, one, other) = (LostLocks::default(), host(1), host(2));
        assert!(
            lost.add(&one, (5, 7), (0, 9))
                && lost.add(&one, (5, 8), (20, 29))
                && lost.add(&one, (6, 7), (0, 9))
        );
        assert!(lost.has(5, one.address) && lost.has(6, one.address) && !lost.has(5, other.address));
        lost.end((5, 7), (0, 4));
        lost.end((5, 8), (0, u64::MAX));
        assert!(lost.has(5, one.address), "half of a range is lost still");
        lost.end((5, 9), (0, 9));
        lost.end((5, 7), (5, 5));
        lost.end((5, 7), (6, 9));
        assert!(!lost.has(5, one.address) && lost.has(6, one.address));
        lost.forget(|host, _| *host == other);
        assert_eq!(lost.hosts_at(one.address), std::slice::from_ref(&one));
        lost.forget(|host, _| *host == one);
        assert!(
            !lost.has(6, one.address)
                && lost.owners.is_empty()
                && lost.files.is_empty()
                && lost.counts.is_empty()
        );
    }

    #[test]
    fn an_address_has_a_bound() {
        let (mut lost, one) = (LostLocks::default(), host(1));
        for at in 0..PER_ADDRESS_MAX as u64 {
            assert!(lost.add(&one, (5, 7), (2 * at, 2 * at)));
        }
        assert!(!lost.add(&one, (5, 7), (1 << 40, 1 << 40)) && lost.add(&host(2), (5, 9), (0, 0)));
        lost.end((5, 7), (0, 0));
        assert!(lost.add(&one, (5, 7), (1 << 40, 1 << 40)));
    }
}
