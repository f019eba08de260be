//! Which files have lost data: each I/O server is asked about many files at once.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_layout::ChainId;
use weft_wire::limits::OBJECTS_PER_MESSAGE_MAX;
use weft_wire::messages::{Attr, FileKind, StatObjectsRequest};

use crate::{Client, batch};

/// How long a server is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

impl Client {
    /// Whether I/O servers have lost data of these files; `None` where one that has a part of the file does not say. One message to each
    /// server, for up to 2,048 files.
    pub fn lost_data<'a>(&self, attrs: impl IntoIterator<Item = &'a Attr>) -> Vec<Option<bool>> {
        let _operation = self.operation();
        let attrs: Vec<&Attr> = attrs.into_iter().collect();
        let mut lost = vec![Some(false); attrs.len()];
        let mut by_chain: BTreeMap<ChainId, Vec<usize>> = BTreeMap::new();
        for (file, attr) in attrs.iter().enumerate().filter(|(_, attr)| attr.kind == FileKind::File) {
            let Some(layout) = attr.layout else { continue };
            let slots = 0..layout.server_count();
            for slot in slots.filter(|slot| layout.local_size(*slot, attr.size) > 0) {
                by_chain.entry(layout.chain(slot)).or_default().push(file);
            }
        }
        let (mut asked, mut requests) = (Vec::new(), Vec::new());
        for (chain, files) in &by_chain {
            let Ok(server) = self.inner.io(*chain) else {
                files.iter().for_each(|file| lost[*file] = lost[*file].filter(|is_lost| *is_lost));
                continue;
            };
            for files in files.chunks(OBJECTS_PER_MESSAGE_MAX) {
                let inos = files.iter().map(|file| attrs[*file].ino).collect();
                requests.push((server, StatObjectsRequest { inos }));
                asked.push(files);
            }
        }
        let patience = PATIENCE.min(self.inner.options.patience() / 2);
        let replies =
            batch::ask_each(&self.inner, requests, |_, call| call.patience_also_to_connect(patience));
        for (files, reply) in asked.into_iter().zip(replies) {
            let named = reply.ok().map(|reply| reply.lost.0);
            for file in files {
                let says = named.as_ref().map(|named| named.contains(&attrs[*file].ino));
                lost[*file] = match (lost[*file], says) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    (known, Some(false)) => known,
                    (_, None) => None,
                };
            }
        }
        lost
    }
}
