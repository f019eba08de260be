//! The list of keys: which were issued or used, and which are revoked. It is in the store; a copy is in memory.

use super::MetaPart;
use crate::announce::Announcer;
use crate::answer::{Answer, Refusal};
use crate::clock::unix_s;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;
use weft_meta::{Engine, MetaError, Namespace};
use weft_wire::keys::{KeyInfo, KeyKind, id_text};
use weft_wire::limits::{KEYS_PER_MESSAGE_MAX, KEYS_REVOKED_MAX};
use weft_wire::messages::*;
use weft_wire::{Status, Wire};

/// First byte of a record in the store.
const RECORD_VERSION: u8 = 1;
/// How long the reply to a revocation waits for I/O servers.
const CONFIRM: Duration = Duration::from_secs(3);
const CONFIRM_STEP: Duration = Duration::from_millis(10);

/// All keys that the metadata server has heard of.
pub(super) struct IssuedKeys {
    records: RefCell<BTreeMap<[u8; 16], KeyRecord>>,
    announcer: RefCell<Option<Announcer>>,
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

    fn revoked(&self, now_s: u64) -> Vec<[u8; 16]> {
        let records = self.records.borrow();
        let in_force = |record: &&KeyRecord| record.revoked_s != 0 && !record.key.is_expired(now_s);
        records.values().filter(in_force).map(|record| record.key.id).collect()
    }
}

/// The record of a revoked key of which no more is known than its id.
fn unknown(id: [u8; 16], name: &str) -> KeyRecord {
    let kind = KeyKind::Host { squash_root: true };
    let key = KeyInfo { id, issuer: [0; 8], kind, expires_s: 0, name: name.into() };
    KeyRecord { key, noted_s: 0, revoked_s: 1 }
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Ids of keys that are revoked, and are not over anyway.
    pub fn revoked_keys(&self) -> Vec<[u8; 16]> {
        self.issued.revoked(unix_s())
    }

    /// Has `announcer` tell the I/O servers which keys are revoked; not before [`MetaPart::take_revoked`] where they may know more
    /// than a store that was put back from a copy.
    pub fn announce_by(&self, announcer: Announcer, they_know_more: bool) {
        let revoked = self.revoked_keys();
        if !revoked.is_empty() && !they_know_more {
            announcer.announce(revoked);
        }
        *self.issued.announcer.borrow_mut() = Some(announcer);
    }

    /// Puts a key on the list that was not heard of before.
    pub fn note_key(&self, key: &KeyInfo) -> Result<(), Refusal> {
        if key.id == KeyInfo::ID_OF_CLUSTER || self.issued.records.borrow().contains_key(&key.id) {
            return Ok(());
        }
        self.put_key(KeyRecord { key: key.clone(), noted_s: unix_s(), revoked_s: 0 })
    }

    fn put_key(&self, record: KeyRecord) -> Result<(), Refusal> {
        let mut value = vec![RECORD_VERSION];
        value.extend(record.to_bytes());
        self.namespace.borrow_mut().change(|op| {
            op.put_issued_key(record.key.id, value.clone());
            Ok::<_, MetaError>(())
        })?;
        self.issued.records.borrow_mut().insert(record.key.id, record);
        Ok(())
    }

    /// A page of the list.
    pub fn list_keys(&self, request: ListKeysRequest) -> Answer {
        let records = self.issued.records.borrow();
        let mut rest = records.range((Bound::Excluded(request.after), Bound::Unbounded));
        let keys: Vec<_> =
            rest.by_ref().take(KEYS_PER_MESSAGE_MAX).map(|(_, record)| record.clone()).collect();
        Answer::of(&ListKeysReply { keys, end: rest.next().is_none() })
    }

    /// Notes in the store, durably, that a key is revoked.
    pub async fn revoke_key(&self, id: [u8; 16]) -> Result<(), Refusal> {
        let record = self.issued.records.borrow().get(&id).cloned();
        let Some(record) = record else {
            let text = format!("no key {} was ever issued or used here", id_text(&id));
            return Err(Refusal::new(Status::NotFound, text));
        };
        if record.revoked_s == 0 {
            if self.revoked_keys().len() >= KEYS_REVOKED_MAX {
                let text = format!("{KEYS_REVOKED_MAX} keys are revoked already, and no more can be");
                return Err(Refusal::new(Status::Limit, text));
            }
            self.put_key(KeyRecord { revoked_s: unix_s(), ..record })?;
        }
        self.sync_all().await
    }

    /// Notes keys as revoked, durably, that were revoked after the copy was made which this store was put back from.
    pub async fn take_revoked(&self, ids: BTreeSet<[u8; 16]>) -> Result<(), Refusal> {
        let known: BTreeSet<_> = self.revoked_keys().into_iter().collect();
        let mut room = KEYS_REVOKED_MAX.saturating_sub(known.len());
        for id in ids.difference(&known) {
            let found = self.issued.records.borrow().get(id).cloned();
            if found.as_ref().is_some_and(|record| record.revoked_s != 0) {
                continue;
            }
            if room == 0 {
                crate::log::warning!(
                    "meta",
                    "the key {} was revoked after the backup, and {KEYS_REVOKED_MAX} others are revoked: it is good again",
                    id_text(id)
                );
                continue;
            }
            room -= 1;
            let record = found.unwrap_or_else(|| unknown(*id, "(revoked after the backup)"));
            crate::log::warning!(
                "meta",
                "the key {} ({}) was revoked after the backup, and stays so",
                id_text(id),
                record.key.name
            );
            self.put_key(KeyRecord { revoked_s: unix_s(), ..record })?;
        }
        let revoked = self.revoked_keys();
        if let Some(announcer) = self.issued.announcer.borrow().clone().filter(|_| !revoked.is_empty()) {
            announcer.announce(revoked);
        }
        self.sync_all().await
    }

    /// Has all I/O servers told of the revoked keys, and waits a little. Returns the names of those that did not confirm.
    pub async fn tell_of_revoked_keys(&self) -> Vec<String> {
        let announcer = self.issued.announcer.borrow().clone();
        let Some(announcer) = announcer else { return Vec::new() };
        let list = announcer.announce(self.revoked_keys());
        let confirmed = async {
            while !announcer.waiting(list).is_empty() {
                weft_reactor::sleep(CONFIRM_STEP).await;
            }
        };
        // What is still missing is in the reply.
        let _ = weft_reactor::timeout(CONFIRM, confirmed).await;
        announcer.waiting(list)
    }
}
