//! One file per system call (or few that are one rule), each adding its cases to the table.

mod access;
mod acl;
mod chdir;
mod chmod;
mod chown;
mod dup;
mod fallocate;
mod fsync;
mod limits;
mod link;
mod lseek;
mod mkdir;
mod mknod;
mod mmap;
mod open;
mod paths;
mod read;
mod readdir;
mod readlink;
mod rename;
mod renameat2;
mod rmdir;
mod stat;
mod statvfs;
mod symlink;
mod truncate;
mod umask;
mod unlink;
mod utimensat;
mod write;
mod xattr;

use crate::table::Table;

/// Adds the cases of one group.
pub type Define = fn(&mut Table);

/// Groups of cases by the name that begins theirs.
pub const GROUPS: &[(&str, Define)] = &[
    ("access", access::define),
    ("acl", acl::define),
    ("chdir", chdir::define),
    ("chmod", chmod::define),
    ("chown", chown::define),
    ("dup", dup::define),
    ("fallocate", fallocate::define),
    ("fsync", fsync::define),
    ("limits", limits::define),
    ("link", link::define),
    ("lseek", lseek::define),
    ("mkdir", mkdir::define),
    ("mknod", mknod::define),
    ("mmap", mmap::define),
    ("open", open::define),
    ("read", read::define),
    ("readdir", readdir::define),
    ("readlink", readlink::define),
    ("rename", rename::define),
    ("renameat2", renameat2::define),
    ("rmdir", rmdir::define),
    ("stat", stat::define),
    ("statvfs", statvfs::define),
    ("symlink", symlink::define),
    ("truncate", truncate::define),
    ("umask", umask::define),
    ("unlink", unlink::define),
    ("utimensat", utimensat::define),
    ("write", write::define),
    ("xattr", xattr::define),
];
