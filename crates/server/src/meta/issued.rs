//! The list of keys: which were issued or used, and which are revoked. It is in the store, with a copy in
//! memory.

use crate::announce::Announcer;
use std::cell::RefCell;
use std::collections::BTreeMap;
use weft_meta::{Engine, MetaError, Namespace};
use weft_wire::Wire;
use weft_wire::keys::{KeyInfo, KeyKind, id_text};
use weft_wire::limits::CLOCK_SKEW_S_MAX;
use weft_wire::messages::KeyRecord;

/// First byte of a record in the store.
const RECORD_VERSION: u8 = 1;

/// All keys that the metadata server has heard of.
pub(super) struct IssuedKeys {
    pub records: RefCell<BTreeMap<[u8; 16], KeyRecord>>,
    pub announcer: RefCell<Option<Announcer>>,
}

impl IssuedKeys {
    /// As the store has them. A record that cannot be read counts as that of a revoked key.
    pub fn load<E: Engine>(namespace: &Namespace<E>) -> Result<IssuedKeys, MetaError> {
        let read = |(id, value): ([u8; 16], Vec<u8>)| {
            let record = value.strip_prefix(&[RECORD_VERSION]).map(KeyRecord::from_bytes);
            let record = record.and_then(Result::ok).unwrap_or_else(|| {
                crate::log::warning!(
                    "meta",
                    "the record of the key {} is damaged: it counts as revoked",
                    id_text(&id)
                );
                unknown(id, "(damaged)")
            });
            (id, record)
        };
        let records = namespace.issued_keys()?.into_iter().map(read).collect();
        Ok(IssuedKeys { records: RefCell::new(records), announcer: RefCell::default() })
    }

    /// Ids of keys that are revoked, and are not over anyway, also if the clock is ahead by as much as it may be: once it is right
    /// again, no server may take them for good.
    pub fn revoked(&self, now_s: u64) -> Vec<[u8; 16]> {
        let now_s = now_s.saturating_sub(CLOCK_SKEW_S_MAX);
        let records = self.records.borrow();
        let in_force = |record: &&KeyRecord| record.revoked_s != 0 && !record.key.is_expired(now_s);
        records.values().filter(in_force).map(|record| record.key.id).collect()
    }
}

/// What the store has of a key.
pub(super) fn stored(record: &KeyRecord) -> Vec<u8> {
    let mut value = vec![RECORD_VERSION];
    value.extend(record.to_bytes());
    value
}

/// The record of a revoked key of which no more is known than its id.
pub(super) fn unknown(id: [u8; 16], name: &str) -> KeyRecord {
    let kind = KeyKind::Host { squash_root: true };
    let key = KeyInfo { id, issuer: [0; 8], kind, expires_s: 0, name: name.into() };
    KeyRecord { key, noted_s: 0, revoked_s: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_key_stays_on_the_list_while_the_clock_is_ahead_by_a_day() {
        const DAY_S: u64 = 86_400;
        let keys = IssuedKeys { records: RefCell::default(), announcer: RefCell::default() };
        let mut record = unknown([7; 16], "k");
        record.key.expires_s = 100 * DAY_S;
        keys.records.borrow_mut().insert(record.key.id, record);
        let ends_soon_s = 100 * DAY_S - 3600;
        for now_s in [0, ends_soon_s - DAY_S, ends_soon_s, ends_soon_s + DAY_S] {
            assert_eq!(keys.revoked(now_s), [[7; 16]], "{now_s}");
        }
        assert!(keys.revoked(103 * DAY_S).is_empty());
    }
}
