//! Access control lists: the rules of POSIX.1e (draft 17) as Linux has them, in one place.
//!
//! A list is the value of the attribute `system.posix_acl_access`, which decides, or, on a directory,
//! `system.posix_acl_default`, which new entries take. It has an entry for the owner, any for named users, one for the group, any for
//! named groups, a mask where somebody is named, and one for others, in this order. The mode shows three of them:
//!
//! ```text
//!   user::rwx  user:7:rw-  group::r-x  group:9:--x  mask::r--  other::---        mode 0740
//!      7 ─────────────────────────────────────────────── 4 ───────── 0
//!   user 7 may read: rw- and the mask; user 8 in group 9 may nothing: --x and the mask
//! ```
//!
//! A list of owner, group and others only says no more than a mode, and is not kept.

use crate::MetaError;
use crate::caller::Caller;

/// The attribute of the list that decides.
pub(crate) const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The attribute of the list that new entries of a directory take.
pub(crate) const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

/// Where the mode of something new has the bits of the umask, which fall where its directory has no default list.
pub const UMASK_SHIFT: u32 = 16;

/// The most entries of one list.
const ENTRIES_MAX: usize = 1024;
/// Bytes of a value before its entries: its version.
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The one version of values there is.
const VALUE_VERSION: u32 = 2;

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// One entry; the id counts for named users and groups only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    bits: u16,
    id: u32,
}

/// A list, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Box<[Entry]>);

impl Acl {
    /// The list in an attribute's value; `None` if it has no entries.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, MetaError> {
        const WRONG: MetaError = MetaError::Invalid("access control list");
        let (version, entries) = value.split_first_chunk::<HEADER_BYTES>().ok_or(WRONG)?;
        if u32::from_le_bytes(*version) != VALUE_VERSION {
            return Err(MetaError::NotSupported("version of the access control list"));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(WRONG);
        }
        if entries.len() > ENTRIES_MAX {
            return Err(MetaError::XattrTooBig);
        }
        let entry = |&[t0, t1, b0, b1, id @ ..]: &[u8; ENTRY_BYTES]| Entry {
            tag: u16::from_le_bytes([t0, t1]),
            bits: u16::from_le_bytes([b0, b1]),
            id: u32::from_le_bytes(id),
        };
        let acl = Acl(entries.iter().map(entry).collect());
        match acl.0.is_empty() {
            true => Ok(None),
            false if acl.is_sound() => Ok(Some(acl)),
            false => Err(WRONG),
        }
    }

    /// The attribute's value.
    pub fn value(&self) -> Vec<u8> {
        let mut value = VALUE_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.bits.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Whether every tag is there as often as it must, in order, with bits that there are.
    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let known = self.0.iter().all(|entry| {
            entry.bits <= 7 && [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&entry.tag)
        });
        let names = count(USER) + count(GROUP);
        known
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (names == 0 || count(MASK) == 1)
    }

    fn bits_of(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.bits)
    }

    fn bits_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.bits)
    }

    /// The tags that the three classes of a mode show: with a mask, that is the group's class.
    fn shown(&self) -> [(u16, u32); 3] {
        let group = if self.bits_of(MASK).is_some() { MASK } else { GROUP_OBJ };
        [(USER_OBJ, 6), (group, 3), (OTHER, 0)]
    }

    pub fn says_more_than_a_mode(&self) -> bool {
        self.0.len() > 3
    }

    /// `mode` with the permission bits that the list shows.
    pub fn mode(&self, mode: u32) -> u32 {
        let shown = self.shown().map(|(tag, shift)| u32::from(self.bits_of(tag).unwrap_or(0)) << shift);
        mode & !0o777 | shown.iter().sum::<u32>()
    }

    /// As chmod changes it.
    pub fn set_mode(&mut self, mode: u32) {
        for (tag, shift) in self.shown() {
            if let Some(bits) = self.bits_mut(tag) {
                *bits = (mode >> shift & 7) as u16;
            }
        }
    }

    /// What something new made with `mode` takes of this default list: its own list, if that says more than a mode, and its mode.
    pub fn inherited(&self, mode: u32) -> (Option<Acl>, u32) {
        let mut acl = self.clone();
        acl.set_mode(self.mode(mode) & mode);
        let mode = acl.mode(mode);
        (acl.says_more_than_a_mode().then_some(acl), mode)
    }

    /// Whether a caller who is not root may do all of `mask` with what this user and group own. The first that matches decides: the owner, his name, one of the
    /// groups that alone allows it; others only who is in none of the groups.
    pub fn allows(&self, caller: &Caller, (uid, gid): (u32, u32), mask: u32) -> bool {
        let limit = self.bits_of(MASK).unwrap_or(7);
        let allows = |bits: u16| u32::from(bits) & mask == mask;
        if caller.uid == uid {
            return self.bits_of(USER_OBJ).is_some_and(allows);
        }
        if let Some(named) = self.0.iter().find(|entry| entry.tag == USER && entry.id == caller.uid) {
            return allows(named.bits & limit);
        }
        let mut groups = self
            .0
            .iter()
            .filter(|entry| match entry.tag {
                GROUP_OBJ => caller.in_group(gid),
                GROUP => caller.in_group(entry.id),
                _ => false,
            })
            .peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| allows(entry.bits & limit));
        }
        self.bits_of(OTHER).is_some_and(allows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, bits, id)| Entry { tag, bits, id }).collect())
    }

    #[test]
    fn a_value_is_parsed_and_written_back() {
        let list = acl(&[(USER_OBJ, 7, 0), (USER, 6, 7), (GROUP_OBJ, 5, 0), (MASK, 4, 0), (OTHER, 0, 0)]);
        assert_eq!(Acl::parse(&list.value()).unwrap(), Some(list));
        assert_eq!(Acl::parse(&VALUE_VERSION.to_le_bytes()).unwrap(), None);
        let unmasked = acl(&[(USER_OBJ, 7, 0), (USER, 6, 7), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]);
        let unordered = acl(&[(OTHER, 7, 0), (GROUP_OBJ, 5, 0), (USER_OBJ, 0, 0)]);
        for value in [&unmasked.value()[..], &unordered.value(), b"", b"\x02\0\0\0x", b"\x03\0\0\0"] {
            assert!(Acl::parse(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_new_file_gets_what_list_and_mode_both_allow() {
        let list = acl(&[(USER_OBJ, 7, 0), (USER, 6, 7), (GROUP_OBJ, 5, 0), (MASK, 7, 0), (OTHER, 5, 0)]);
        let (own, mode) = list.inherited(0o4644);
        assert_eq!(mode, 0o4644);
        let expected = acl(&[(USER_OBJ, 6, 0), (USER, 6, 7), (GROUP_OBJ, 5, 0), (MASK, 4, 0), (OTHER, 4, 0)]);
        assert_eq!(own, Some(expected));
    }

    #[test]
    fn damaged_lists_are_refused_or_written_back_the_same() {
        let list = acl(&[(USER_OBJ, 7, 0), (USER, 6, 7), (GROUP_OBJ, 5, 0), (MASK, 4, 0), (OTHER, 0, 0)]);
        weft_test_fuzz::run("acl", &[list.value()], |bytes| {
            if let Ok(Some(list)) = Acl::parse(bytes) {
                assert_eq!(list.value(), bytes);
            }
        });
    }
}
