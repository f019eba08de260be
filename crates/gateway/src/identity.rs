//! Users and groups of this machine, and who they are in the file system.
//!
//! ```text
//!   a request of uid 1000 here ──► mapped (1000:5001) ──► 5001 in the file system
//!   a file of uid 5001 there   ──► shown as 1000 here
//!   squashed users             ──► the anonymous user, without supplementary groups
//!   another user in group 0    ──► the anonymous group instead, if root is squashed
//! ```
//!
//! Who is squashed is decided by the number here, before mapping. The anonymous user's files are shown as they are.

use std::fmt;
use std::str::FromStr;
use weft_wire::messages::{Attr, Caller};

/// Whose requests are done as the anonymous user (as in exports of NFS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// Nobody's.
    #[default]
    None,
    /// Those of root. Other users lose group 0: as primary group it becomes the anonymous one.
    Root,
    /// Everybody's. Permissions are then checked by the servers alone, as the kernel cannot know who is who.
    All,
}

/// Numbers of users or groups here and in the file system: `1000:5001,1001:5002`. Others are the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdMap(Vec<(u32, u32)>);

/// A map that makes no sense, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMapError(String);

impl fmt::Display for IdMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IdMapError {}

impl FromStr for IdMap {
    type Err = IdMapError;

    fn from_str(text: &str) -> Result<IdMap, IdMapError> {
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for word in text.split([',', '+']) {
            let wrong = || {
                IdMapError(format!(
                    "`{word}`: write HERE:THERE, two numbers, as in 1000:5001; separate with , or +"
                ))
            };
            let (here, there) = word.split_once(':').ok_or_else(wrong)?;
            let (here, there) = (here.parse().map_err(|_| wrong())?, there.parse().map_err(|_| wrong())?);
            if pairs.iter().any(|pair| pair.0 == here || pair.1 == there) {
                return Err(IdMapError(format!("`{word}`: one of these numbers is mapped already")));
            }
            pairs.push((here, there));
        }
        Ok(IdMap(pairs))
    }
}

impl IdMap {
    /// The number in the file system of `here`.
    pub fn there(&self, here: u32) -> u32 {
        self.0.iter().find(|pair| pair.0 == here).map_or(here, |pair| pair.1)
    }

    /// The number here of `there`.
    pub fn here(&self, there: u32) -> u32 {
        self.0.iter().find(|pair| pair.1 == there).map_or(there, |pair| pair.0)
    }
}

/// Who everybody is in the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identities {
    /// Whose requests are done as the anonymous user.
    pub squash: Squash,
    /// User and group of the anonymous user, in the file system.
    pub anonymous: (u32, u32),
    /// Users.
    pub users: IdMap,
    /// Groups.
    pub groups: IdMap,
}

impl Default for Identities {
    /// Everybody is himself.
    fn default() -> Identities {
        Identities {
            squash: Squash::None,
            anonymous: (Self::NOBODY, Self::NOBODY),
            users: IdMap::default(),
            groups: IdMap::default(),
        }
    }
}

impl Identities {
    /// The anonymous user where nothing else is said; its group has the same number.
    pub const NOBODY: u32 = 65534;

    fn is_squashed(&self, uid: u32) -> bool {
        match self.squash {
            Squash::None => false,
            Squash::Root => uid == 0,
            Squash::All => true,
        }
    }

    /// Whether this machine can check permissions: not where everybody is the anonymous user, as it knows its own numbers
    /// only.
    pub fn kernel_checks(&self) -> bool {
        self.squash != Squash::All
    }

    /// As whom a request of this user and group is done; `groups` says the supplementary groups here, if they matter.
    pub fn caller(&self, uid: u32, gid: u32, groups: impl FnOnce() -> Vec<u32>) -> Caller {
        if self.is_squashed(uid) {
            return Caller { uid: self.anonymous.0, gid: self.anonymous.1, groups: Vec::new() };
        }
        let groups = groups().into_iter().filter_map(|gid| self.group(gid)).collect();
        let gid = self.group(gid).unwrap_or(self.anonymous.1);
        Caller { uid: self.users.there(uid), gid, groups }
    }

    /// The group there of a user who is not squashed; `None` for one that is.
    fn group(&self, gid: u32) -> Option<u32> {
        (self.squash != Squash::Root || gid != 0).then(|| self.groups.there(gid))
    }

    /// Whether a user in the group of root is root there as well, group and all.
    pub fn is_plain_root(&self, uid: u32, gid: u32) -> bool {
        self.is_root(uid) && self.group(gid) == Some(0)
    }

    /// Whether the servers will let the user do everything.
    pub fn is_root(&self, uid: u32) -> bool {
        !self.is_squashed(uid) && self.users.there(uid) == 0
    }

    /// Attributes with the owners' numbers of this machine.
    pub fn here(&self, attr: Attr) -> Attr {
        Attr { uid: self.users.here(attr.uid), gid: self.groups.here(attr.gid), ..attr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_mapped_both_ways() {
        let map: IdMap = "1000:5001+0:1".parse().unwrap();
        assert_eq!([1000, 0, 7].map(|uid| map.there(uid)), [5001, 1, 7]);
        assert_eq!([5001, 1, 7].map(|uid| map.here(uid)), [1000, 0, 7]);
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        for text in ["", "1", "1:", "a:b", "1:2,1:3", "1:2,3:2", "1:-2", "4294967296:1"] {
            assert!(text.parse::<IdMap>().is_err(), "{text}");
        }
    }

    #[test]
    fn squashed_users_are_the_anonymous_one_without_other_groups() {
        let mut identities = Identities { anonymous: (7, 8), ..Identities::default() };
        let as_whom = |identities: &Identities, uid| identities.caller(uid, uid, || vec![9]);
        assert_eq!(as_whom(&identities, 0), Caller { uid: 0, gid: 0, groups: vec![9] });
        identities.squash = Squash::Root;
        assert_eq!(as_whom(&identities, 0), Caller { uid: 7, gid: 8, groups: vec![] });
        assert_eq!(as_whom(&identities, 3), Caller { uid: 3, gid: 3, groups: vec![9] });
        assert!(!identities.is_root(0));
        identities.squash = Squash::All;
        assert_eq!(as_whom(&identities, 3), Caller { uid: 7, gid: 8, groups: vec![] });
    }

    #[test]
    fn group_0_is_squashed_wherever_it_is() {
        let (anonymous, user) = ((7, 8), 3);
        let nobody = (7, 8, vec![]);
        // Squash, user and groups of the request, and as whom it is done.
        let table = [
            (Squash::None, (0, 0, vec![0, 9]), (0, 0, vec![0, 9])),
            (Squash::None, (user, 0, vec![0]), (user, 0, vec![0])),
            (Squash::Root, (0, 0, vec![]), nobody.clone()),
            (Squash::Root, (0, 0, vec![0, 9]), nobody.clone()),
            (Squash::Root, (0, 9, vec![9]), nobody.clone()),
            (Squash::Root, (user, 9, vec![9, 10]), (user, 9, vec![9, 10])),
            (Squash::Root, (user, 0, vec![]), (user, 8, vec![])),
            (Squash::Root, (user, 9, vec![0]), (user, 9, vec![])),
            (Squash::Root, (user, 0, vec![9, 0, 10]), (user, 8, vec![9, 10])),
            (Squash::All, (0, 0, vec![0, 9]), nobody.clone()),
            (Squash::All, (user, 0, vec![0]), nobody.clone()),
            (Squash::All, (user, 9, vec![9]), nobody),
        ];
        for (squash, (uid, gid, groups), (there_uid, there_gid, there)) in table {
            let identities = Identities { squash, anonymous, ..Identities::default() };
            let caller = identities.caller(uid, gid, || groups.clone());
            let expected = Caller { uid: there_uid, gid: there_gid, groups: there };
            assert_eq!(caller, expected, "{squash:?} of {uid}:{gid} {groups:?}");
            let is_root = expected.uid == 0 && expected.gid == 0;
            assert_eq!(identities.is_plain_root(uid, gid), is_root, "{squash:?} of {uid}:{gid}");
        }
    }

    #[test]
    fn a_mapped_group_0_is_squashed_all_the_same() {
        let (users, groups) = ("5:0".parse().unwrap(), "0:100,27:0".parse().unwrap());
        let identities = Identities { squash: Squash::Root, anonymous: (7, 8), users, groups };
        assert_eq!(identities.caller(5, 0, || vec![0, 4]), Caller { uid: 0, gid: 8, groups: vec![4] });
        assert!(!identities.is_plain_root(5, 0));
        assert_eq!(identities.caller(6, 27, Vec::new).gid, 0, "the administrator's map says so");
    }

    #[test]
    fn groups_are_mapped_too() {
        let identities = Identities {
            users: "1000:5001".parse().unwrap(),
            groups: "1000:6001,27:28".parse().unwrap(),
            ..Identities::default()
        };
        let caller = identities.caller(1000, 1000, || vec![27, 4]);
        assert_eq!(caller, Caller { uid: 5001, gid: 6001, groups: vec![28, 4] });
    }
}
