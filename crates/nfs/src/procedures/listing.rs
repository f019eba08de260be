//! READDIR and READDIRPLUS (RFC 1813, 3.3.16 and 3.3.17).
//!
//! Cookies are the metadata server's, moved up to make room for two names that it does not store:
//!
//! ```text
//!   cookie   0      1      2       2 + first …
//!            │  .   │  ..  │   a   │   b   │
//! ```
//!
//! They stay valid for ever: a listing is continued behind the name that had the cookie, or had it once. The cookie
//! verifier says where a listing ends: names that are made after its first page have higher cookies, and are left
//! out. Any is accepted; 0 means as of now.

use nfs3_types::nfs3::{
    Nfs3Option, Nfs3Result, READDIR3res, READDIR3resfail, READDIR3resok, READDIRPLUS3res,
    READDIRPLUS3resfail, READDIRPLUS3resok, cookieverf3, dirlist3, dirlistplus3, entry3, entryplus3,
    filename3, nfsstat3,
};
use nfs3_types::xdr_codec::List;
use weft_gateway::Asked;
use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::Entry;

use super::limits::DIRECTORY_BYTES_MAX;
use super::{Files, by_handle, by_name};
use crate::attributes::post_op;
use crate::handle::HANDLE_BYTES;
use crate::target::{Sender, Target};

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Attributes, the verifier, the end of the list, and `eof`.
const FRAME_BYTES: usize = 4 + ATTRIBUTES_BYTES + 8 + 4 + 4;
const ATTRIBUTES_BYTES: usize = 84;
/// An entry without its name: another follows, file id, length of the name, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// What READDIRPLUS adds: attributes, and the handle with its length.
const PLUS_BYTES: usize = 4 + ATTRIBUTES_BYTES + 4 + 4 + HANDLE_BYTES;
/// Length of a name, where it is not known yet how long they are.
const NAME_BYTES_USUAL: usize = 16;

/// What one reply may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes of the result.
    pub(crate) all_bytes: u32,
    /// Bytes of file ids, names and cookies.
    pub(crate) names_bytes: u32,
    /// Attributes and handles are wanted too.
    pub(crate) plus: bool,
}

impl Room {
    fn entry_bytes(&self, name_bytes: usize) -> usize {
        let plus = if self.plus { PLUS_BYTES } else { 0 };
        ENTRY_BYTES + name_bytes.next_multiple_of(4) + plus
    }
}

/// Names that fit, and whether they are the last ones.
struct Listed {
    entries: Vec<Entry>,
    end: bool,
    /// No entry of the listing has this cookie of the metadata server's, or a higher one.
    until: u64,
}

/// Takes entries as long as there is room.
struct Packer {
    room: Room,
    left_bytes: usize,
    names_left_bytes: usize,
    entries: Vec<Entry>,
}

impl Packer {
    fn new(room: Room) -> Packer {
        let all_bytes = room.all_bytes.min(DIRECTORY_BYTES_MAX) as usize;
        Packer {
            room,
            left_bytes: all_bytes.saturating_sub(FRAME_BYTES),
            names_left_bytes: room.names_bytes as usize,
            entries: Vec::new(),
        }
    }

    /// Whether there was room for it. The first name does not have to fit in what names may take.
    fn push(&mut self, entry: Entry) -> bool {
        let bytes = self.room.entry_bytes(entry.name.len());
        let name_bytes = ENTRY_BYTES - 4 + entry.name.len().next_multiple_of(4);
        let fits =
            bytes <= self.left_bytes && (name_bytes <= self.names_left_bytes || self.entries.is_empty());
        if fits {
            self.left_bytes -= bytes;
            self.names_left_bytes = self.names_left_bytes.saturating_sub(name_bytes);
            self.entries.push(entry);
        }
        fits
    }

    /// How many entries are worth asking for.
    fn entries_wanted(&self) -> u32 {
        let by_all = self.left_bytes / self.room.entry_bytes(NAME_BYTES_USUAL);
        let by_names = self.names_left_bytes / (ENTRY_BYTES - 4 + NAME_BYTES_USUAL);
        (by_all.min(by_names) as u32).clamp(1, DIRECTORY_PAGE_ENTRIES_MAX)
    }
}

fn dot(name: &[u8], ino: u64, cookie: u64) -> Entry {
    let kind = weft_wire::messages::FileKind::Directory;
    Entry { name: name.to_vec(), ino, kind, cookie, attr: None }
}

impl Files {
    async fn list(
        &self,
        target: &Target,
        (cookie, verifier): (u64, u64),
        room: Room,
    ) -> Result<Listed, nfsstat3> {
        let mut packer = Packer::new(room);
        let mut after = cookie.saturating_sub(DOT_DOT);
        let mut until = if cookie == 0 { 0 } else { verifier };
        loop {
            let wanted = packer.entries_wanted();
            let page = target.client.start_read_dir_page(target.ino, (after, until), wanted, room.plus);
            let page = self.call(page).await.map_err(by_handle)?;
            until = page.until.0;
            if packer.entries.is_empty() && cookie < DOT_DOT {
                let root = self.root_of(&target.export).await.map_err(by_name)?;
                let parent = if target.ino == root { root } else { page.parent };
                if cookie < DOT && !packer.push(dot(b".", target.ino, DOT)) {
                    return Err(nfsstat3::NFS3ERR_TOOSMALL);
                }
                if !packer.push(dot(b"..", parent, DOT_DOT)) {
                    return packed(packer, false, until);
                }
            }
            let is_empty = page.entries.is_empty();
            for mut entry in page.entries {
                after = entry.cookie;
                entry.cookie += DOT_DOT;
                if !packer.push(entry) {
                    return packed(packer, false, until);
                }
            }
            if page.end || is_empty {
                return packed(packer, true, until);
            }
        }
    }

    /// READDIR. `place` is the cookie and the verifier that the client sends.
    pub(crate) async fn readdir(
        &self,
        sender: &Sender,
        dir: &[u8],
        place: (u64, u64),
        count: u32,
    ) -> READDIR3res<'static> {
        let target = self.target(sender, dir).await;
        let room = Room { all_bytes: count, names_bytes: u32::MAX, plus: false };
        let listed = match &target {
            Ok(target) => self.list(target, place, room).await,
            Err(status) => Err(*status),
        };
        let dir_attributes = post_op(self.after_on(&target.ok()).await);
        match listed {
            Ok(Listed { entries, end, until }) => {
                let entries = entries.into_iter().map(|entry| entry3 {
                    fileid: entry.ino,
                    name: filename3::from(entry.name),
                    cookie: entry.cookie,
                });
                let reply = dirlist3 { entries: List(entries.collect()), eof: end };
                Nfs3Result::Ok(READDIR3resok { dir_attributes, cookieverf: verifier(until), reply })
            }
            Err(status) => Nfs3Result::Err((status, READDIR3resfail { dir_attributes })),
        }
    }

    /// READDIRPLUS. `place` is as for READDIR.
    pub(crate) async fn readdirplus(
        &self,
        sender: &Sender,
        dir: &[u8],
        place: (u64, u64),
        (dircount, maxcount): (u32, u32),
    ) -> READDIRPLUS3res<'static> {
        let target = self.target(sender, dir).await;
        let room = Room { all_bytes: maxcount, names_bytes: dircount, plus: true };
        let asked = self.known.ask();
        let listed = match &target {
            Ok(target) => match self.list(target, place, room).await {
                Ok(listed) => {
                    let until = listed.until;
                    self.with_attributes(target, &asked, listed).await.map(|reply| (reply, until))
                }
                Err(status) => Err(status),
            },
            Err(status) => Err(*status),
        };
        let dir_attributes = post_op(self.after_on(&target.ok()).await);
        match listed {
            Ok((reply, until)) => {
                let cookieverf = verifier(until);
                Nfs3Result::Ok(READDIRPLUS3resok { dir_attributes, cookieverf, reply })
            }
            Err(status) => Nfs3Result::Err((status, READDIRPLUS3resfail { dir_attributes })),
        }
    }

    async fn with_attributes(
        &self,
        target: &Target,
        asked: &Asked,
        listed: Listed,
    ) -> Result<dirlistplus3<'static>, nfsstat3> {
        let inner = Box::pin(self.inner_roots(&target.export, target.root())).await?;
        let mut attrs = Vec::with_capacity(listed.entries.len());
        let mut names = Vec::with_capacity(listed.entries.len());
        for mut entry in listed.entries {
            // LOOKUP says what the root of another export is to this client.
            let known = match entry.attr.take().filter(|attr| !inner.iter().any(|(ino, _)| *ino == attr.ino))
            {
                // One that was removed meanwhile has no attributes any more.
                Some(attr) => self.opens.brought_up_to_date(target.root(), asked, attr).await.ok(),
                None => None,
            };
            names.push((entry, known.is_some()));
            attrs.extend(known);
        }
        let used_bytes = self.used.of_all(target.root(), &attrs).await;
        let mut told = attrs.into_iter().zip(used_bytes).map(|(attr, used)| target.tell(attr, used));
        let mut entries = Vec::with_capacity(names.len());
        for (entry, is_known) in names {
            let name_attributes = post_op(if is_known { told.next() } else { None });
            let name_handle = match name_attributes.is_some() {
                true => Nfs3Option::Some(target.export.handle(&self.keys, entry.ino, entry.kind)),
                false => Nfs3Option::None,
            };
            entries.push(entryplus3 {
                fileid: entry.ino,
                name: filename3::from(entry.name),
                cookie: entry.cookie,
                name_attributes,
                name_handle,
            });
        }
        Ok(dirlistplus3 { entries: List(entries), eof: listed.end })
    }
}

fn verifier(until: u64) -> cookieverf3 {
    cookieverf3(until.to_be_bytes())
}

fn packed(packer: Packer, end: bool, until: u64) -> Result<Listed, nfsstat3> {
    match packer.entries.is_empty() && !end {
        true => Err(nfsstat3::NFS3ERR_TOOSMALL),
        false => Ok(Listed { entries: packer.entries, end, until }),
    }
}

#[cfg(test)]
mod tests {
    use nfs3_types::xdr_codec::Pack;

    use super::*;

    #[test]
    fn sizes_are_those_on_the_wire() {
        let name = |bytes: usize| filename3::from(vec![b'x'; bytes]);
        for bytes in 1..20 {
            let entry = entry3 { fileid: 1, name: name(bytes), cookie: 2 };
            let room = Room { all_bytes: 0, names_bytes: 0, plus: false };
            assert_eq!(room.entry_bytes(bytes), 4 + entry.packed_size());
        }
        let empty = dirlist3 { entries: List(Vec::new()), eof: true };
        assert_eq!(FRAME_BYTES, 4 + ATTRIBUTES_BYTES + 8 + empty.packed_size());
    }

    #[test]
    fn a_reply_is_as_long_as_the_client_allows() {
        let room = Room { all_bytes: 400, names_bytes: u32::MAX, plus: false };
        let mut packer = Packer::new(room);
        while packer.push(dot(b"12345", 1, 1)) {}
        let bytes = FRAME_BYTES + packer.entries.len() * room.entry_bytes(5);
        assert!(bytes <= 400 && bytes + room.entry_bytes(5) > 400, "{bytes}");
    }

    #[test]
    fn names_may_take_a_part_only_but_there_is_one() {
        let mut packer = Packer::new(Room { all_bytes: 4000, names_bytes: 10, plus: true });
        assert!(packer.push(dot(b"12345", 1, 1)));
        assert!(!packer.push(dot(b"12345", 1, 1)));
    }
}
