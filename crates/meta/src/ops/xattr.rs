//! Extended attributes, in the name spaces `user.`, `trusted.` (root only) and `security.` (set by root only); and access control
//! lists and flags, which look like attributes and are part of the inode.

use crate::MetaError;
use crate::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::flags::{self, APPEND_ONLY, IMMUTABLE, require_alterable};
use crate::inode::{Inode, Kind, SET_GID, STICKY, Timestamp};
use crate::keys;
use crate::op::Op;
use crate::permission::{READ, WRITE, require};
use crate::walk::{At, Follow, NAME_BYTES_MAX};

/// The longest value.
const VALUE_BYTES_MAX: usize = 64 * 1024;
/// How many attributes one inode may have.
const XATTRS_MAX: u32 = 1024;
const XATTR_VERSION: u8 = 1;
/// What a program may do beyond its user, as Linux stores it.
const CAPABILITY_NAME: &[u8] = b"security.capability";
/// The flags of a file or directory: 4 bytes, little-endian. Lists of names leave it out, so that copies do not take it along.
const FLAGS_NAME: &[u8] = b"weft.flags";

/// Whether an attribute must be new or exist when it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Either.
    #[default]
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

fn follow_if(follow: bool) -> Follow {
    if follow { Follow::Always } else { Follow::BeforeSlash }
}

/// Whether the caller may use attribute `name`, for reading or for a change.
fn check_name(caller: &Caller, inode: &Inode, name: &[u8], change: bool) -> Result<(), MetaError> {
    let absent = if change { MetaError::NotPermitted } else { MetaError::NoXattr };
    let rest = if let Some(rest) = name.strip_prefix(b"user.") {
        if !matches!(inode.kind, Kind::File | Kind::Directory) {
            return Err(absent);
        }
        if change && inode.is_dir() && inode.mode & STICKY != 0 && !caller.owns(inode) {
            return Err(MetaError::NotPermitted);
        }
        require(caller, inode, if change { WRITE } else { READ })?;
        rest
    } else if let Some(rest) = name.strip_prefix(b"trusted.") {
        if !caller.is_root() {
            return Err(absent);
        }
        rest
    } else if let Some(rest) = name.strip_prefix(b"security.") {
        if change && !caller.is_root() {
            return Err(MetaError::NotPermitted);
        }
        rest
    } else {
        return Err(MetaError::NotSupported("name space of the extended attribute"));
    };
    match rest.len() {
        0 => Err(MetaError::Invalid("name of the extended attribute")),
        _ if name.len() > NAME_BYTES_MAX => Err(MetaError::NameTooLong),
        _ => Ok(()),
    }
}

fn require_flags(inode: &Inode) -> Result<(), MetaError> {
    match inode.kind {
        Kind::File | Kind::Directory => Ok(()),
        _ => Err(MetaError::NotSupported("flags of what is no file and no directory")),
    }
}

/// One of the two lists of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Access,
    Default,
}

impl Which {
    /// The list that an attribute's name means.
    fn named(name: &[u8]) -> Option<Which> {
        match name {
            ACCESS_NAME => Some(Which::Access),
            DEFAULT_NAME => Some(Which::Default),
            _ => None,
        }
    }

    /// The inode's list.
    fn of(self, inode: &Inode) -> Option<&Acl> {
        match self {
            Which::Access => inode.acl.as_ref(),
            Which::Default => inode.default_acl.as_ref(),
        }
    }

    /// Gives `inode` the list, or takes it away; for the owner and root. The mode follows, and set-group-id falls where
    /// chmod would not set it.
    fn set(self, caller: &Caller, inode: &mut Inode, acl: Option<Acl>) -> Result<(), MetaError> {
        if inode.kind == Kind::Symlink {
            return Err(MetaError::NotSupported("access control lists of symbolic links"));
        }
        if !caller.owns(inode) {
            return Err(MetaError::NotPermitted);
        }
        match (self, acl) {
            (Which::Access, None) => inode.acl = None,
            (Which::Access, Some(acl)) => {
                inode.mode = acl.mode(inode.mode);
                if !caller.is_root() && !caller.in_group(inode.gid) {
                    inode.mode &= !SET_GID;
                }
                inode.acl = acl.says_more_than_a_mode().then_some(acl);
            }
            (Which::Default, Some(_)) if !inode.is_dir() => return Err(MetaError::Access),
            (Which::Default, acl) => inode.default_acl = acl,
        }
        Ok(())
    }
}

impl<E: Engine> Op<'_, E> {
    /// The value of one attribute.
    pub fn get_xattr(
        &mut self,
        caller: &Caller,
        at: At,
        follow: bool,
        name: &[u8],
    ) -> Result<Vec<u8>, MetaError> {
        let inode = self.resolve(caller, at, follow_if(follow))?;
        if let Some(which) = Which::named(name) {
            return which.of(&inode).map(Acl::value).ok_or(MetaError::NoXattr);
        }
        if name == FLAGS_NAME {
            require_flags(&inode)?;
            return Ok(u32::from(inode.flags).to_le_bytes().to_vec());
        }
        check_name(caller, &inode, name, false)?;
        if inode.xattrs == 0 {
            return Err(MetaError::NoXattr);
        }
        let key = keys::xattr(inode.ino, name);
        let value = self.record(&key)?.ok_or(MetaError::NoXattr)?;
        let mut from = crate::codec::Reader::with_version(&key, &value, XATTR_VERSION)?;
        Ok(from.remainder().to_vec())
    }

    /// The names of all attributes the caller may see, sorted.
    pub fn list_xattrs(&mut self, caller: &Caller, at: At, follow: bool) -> Result<Vec<Vec<u8>>, MetaError> {
        let inode = self.resolve(caller, at, follow_if(follow))?;
        let lists = [(ACCESS_NAME, &inode.acl), (DEFAULT_NAME, &inode.default_acl)];
        let set = lists.into_iter().filter(|(_, acl)| acl.is_some());
        let mut all: Vec<_> = set.map(|(name, _)| name.to_vec()).collect();
        if inode.xattrs == 0 {
            return Ok(all);
        }
        let prefix = keys::numbered(keys::XATTR, inode.ino);
        let records = self.records_after(&prefix, &prefix, usize::MAX)?;
        let names = records.into_iter().map(|(key, _)| key[prefix.len()..].to_vec());
        all.extend(names.filter(|name| caller.is_root() || !name.starts_with(b"trusted.")));
        all.sort();
        Ok(all)
    }

    /// Sets one attribute.
    #[allow(clippy::too_many_arguments, reason = "they are those of setxattr(2)")]
    pub fn set_xattr(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        follow: bool,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), MetaError> {
        self.attempt(|op| {
            let mut inode = op.resolve(caller, at, follow_if(follow))?;
            if name == FLAGS_NAME {
                return op.set_flags(caller, now, inode, value);
            }
            require_alterable(&inode)?;
            if let Some(which) = Which::named(name) {
                return op.set_acl(caller, now, inode, which, Acl::parse(value)?);
            }
            check_name(caller, &inode, name, true)?;
            if value.len() > VALUE_BYTES_MAX {
                return Err(MetaError::XattrTooBig);
            }
            let key = keys::xattr(inode.ino, name);
            match (op.record(&key)?.is_some(), mode) {
                (true, XattrMode::Create) => return Err(MetaError::Exists),
                (false, XattrMode::Replace) => return Err(MetaError::NoXattr),
                (false, _) if inode.xattrs >= XATTRS_MAX => return Err(MetaError::NoSpace),
                (false, _) => inode.xattrs += 1,
                (true, _) => {}
            }
            let mut out = crate::codec::Writer::with_version(XATTR_VERSION, 1 + value.len());
            out.bytes.extend_from_slice(value);
            op.put(key, out.bytes);
            op.needs_room();
            inode.ctime = now;
            op.put_inode(inode);
            Ok(())
        })
    }

    /// Removes one attribute.
    pub fn remove_xattr(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        follow: bool,
        name: &[u8],
    ) -> Result<(), MetaError> {
        self.attempt(|op| {
            let mut inode = op.resolve(caller, at, follow_if(follow))?;
            require_alterable(&inode)?;
            if let Some(which) = Which::named(name) {
                which.of(&inode).ok_or(MetaError::NoXattr)?;
                return op.set_acl(caller, now, inode, which, None);
            }
            match name == CAPABILITY_NAME {
                // A kernel takes it away before a write, on behalf of whoever writes; a write alone would do it, too.
                true => require(caller, &inode, WRITE)?,
                false => check_name(caller, &inode, name, true)?,
            }
            let key = keys::xattr(inode.ino, name);
            op.record(&key)?.ok_or(MetaError::NoXattr)?;
            op.delete(key);
            inode.xattrs -= 1;
            inode.ctime = now;
            op.put_inode(inode);
            Ok(())
        })
    }

    /// Takes the capabilities of a program away, as a change of its contents or of its owner does by whoever it is. The caller
    /// stages `inode` afterwards.
    pub(crate) fn drop_capability(&mut self, inode: &mut Inode) -> Result<(), MetaError> {
        if inode.xattrs == 0 || inode.kind != Kind::File {
            return Ok(());
        }
        let key = keys::xattr(inode.ino, CAPABILITY_NAME);
        if self.record(&key)?.is_some() {
            self.delete(key);
            inode.xattrs -= 1;
        }
        Ok(())
    }

    /// Root alone makes what nobody changes, and unmakes it.
    fn set_flags(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        mut inode: Inode,
        value: &[u8],
    ) -> Result<(), MetaError> {
        require_flags(&inode)?;
        let bits = value.try_into().map_err(|_| MetaError::Invalid("flags that are not 4 bytes"))?;
        let flags = flags::parse(u32::from_le_bytes(bits))?;
        let binds = (flags ^ inode.flags) & (APPEND_ONLY | IMMUTABLE) != 0;
        if !caller.owns(&inode) || binds && !caller.is_root() {
            return Err(MetaError::NotPermitted);
        }
        inode.flags = flags;
        inode.ctime = now;
        self.needs_room();
        self.put_inode(inode);
        Ok(())
    }

    fn set_acl(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        mut inode: Inode,
        which: Which,
        acl: Option<Acl>,
    ) -> Result<(), MetaError> {
        which.set(caller, &mut inode, acl)?;
        inode.ctime = now;
        self.needs_room();
        self.put_inode(inode);
        Ok(())
    }
}
