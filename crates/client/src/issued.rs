//! The list of keys, which the metadata server has; for administrators.

use weft_wire::keys::KeyInfo;
use weft_wire::messages::{KeyRecord, ListKeysRequest, NoteKeyRequest, RevokeKeyRequest};

use crate::batch;
use crate::{Client, Result};

impl Client {
    /// Puts an issued key on the list. One that is not on it comes there when it is first used.
    pub fn note_key(&self, key: &KeyInfo) -> Result<()> {
        let request = NoteKeyRequest { key: key.clone() };
        batch::ask(&self.inner, &request).map(drop)
    }

    /// All keys that were issued or used, by id.
    pub fn list_keys(&self) -> Result<Vec<KeyRecord>> {
        let mut all: Vec<KeyRecord> = Vec::new();
        loop {
            let after = all.last().map_or([0; 16], |record| record.key.id);
            let page = batch::ask(&self.inner, &ListKeysRequest { after })?;
            let is_end = page.end || page.keys.is_empty();
            all.extend(page.keys);
            if is_end {
                return Ok(all);
            }
        }
    }

    /// Ends a key: its connections are closed, and no new ones are served. Returns the names of I/O servers that have not
    /// confirmed it yet; they are told when they answer again.
    pub fn revoke_key(&self, id: [u8; 16]) -> Result<Vec<String>> {
        Ok(batch::ask(&self.inner, &RevokeKeyRequest { id })?.waiting)
    }
}
