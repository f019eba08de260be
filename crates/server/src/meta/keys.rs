//! Operations on keys: noting, listing and revoking them.

use super::MetaPart;
use super::issued::{stored, unknown};
use crate::announce::Announcer;
use crate::answer::{Answer, Refusal};
use crate::clock::unix_s;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;
use weft_meta::{Engine, MetaError};
use weft_wire::Status;
use weft_wire::keys::{KeyInfo, id_text};
use weft_wire::limits::{KEYS_PER_MESSAGE_MAX, KEYS_REVOKED_MAX};
use weft_wire::messages::*;

/// How long the reply to a revocation waits for I/O servers.
const CONFIRM: Duration = Duration::from_secs(3);
const CONFIRM_STEP: Duration = Duration::from_millis(10);

impl<E: Engine + 'static> MetaPart<E> {
    /// Ids of keys that are revoked, and are not over anyway.
    pub fn revoked_keys(&self) -> Vec<[u8; 16]> {
        self.issued.revoked(unix_s())
    }

    /// Has `announcer` send the I/O servers the list of revoked keys; not before [`MetaPart::take_revoked`] where
    /// they may know more than a store that was put back from a copy.
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
        let value = stored(&record);
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

    /// Notes keys as revoked, durably, that were revoked after the copy was made which this store was put back
    /// from.
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

    /// Has the list of revoked keys sent to all I/O servers, and waits a little. Returns the names of those that
    /// did not confirm.
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
