//! Between the messages' types and the namespace's, in one place.

use crate::answer::Refusal;
pub(crate) use crate::clock::now;
use weft_layout::Layout;
use weft_meta::{LayoutRequest, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};
use weft_wire::Status;
use weft_wire::messages::{self as wire, attr_valid, rename_flags, rights};

pub(crate) fn caller(caller: wire::Caller) -> weft_meta::Caller {
    weft_meta::Caller { uid: caller.uid, gid: caller.gid, groups: caller.groups }
}

pub(crate) fn at(at: &wire::At) -> weft_meta::At<'_> {
    crate::spent::note_ino(at.dir);
    weft_meta::At::new(at.dir, &at.path)
}

fn time_to_wire(time: Timestamp) -> wire::Time {
    wire::Time { seconds: time.seconds, nanoseconds: time.nanos }
}

fn time_from_wire(time: &wire::Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanos: time.nanoseconds }
}

pub(crate) fn kind_to_wire(kind: weft_meta::Kind) -> wire::FileKind {
    match kind {
        weft_meta::Kind::File => wire::FileKind::File,
        weft_meta::Kind::Directory => wire::FileKind::Directory,
        weft_meta::Kind::Symlink => wire::FileKind::Symlink,
        weft_meta::Kind::Fifo => wire::FileKind::Fifo,
        weft_meta::Kind::Socket => wire::FileKind::Socket,
        weft_meta::Kind::Char => wire::FileKind::Character,
        weft_meta::Kind::Block => wire::FileKind::Block,
    }
}

pub(crate) fn kind_from_wire(kind: wire::FileKind) -> weft_meta::Kind {
    match kind {
        wire::FileKind::File => weft_meta::Kind::File,
        wire::FileKind::Directory => weft_meta::Kind::Directory,
        wire::FileKind::Symlink => weft_meta::Kind::Symlink,
        wire::FileKind::Fifo => weft_meta::Kind::Fifo,
        wire::FileKind::Socket => weft_meta::Kind::Socket,
        wire::FileKind::Character => weft_meta::Kind::Char,
        wire::FileKind::Block => weft_meta::Kind::Block,
    }
}

/// Modes go through as they are.
const _: () = assert!(weft_meta::UMASK_SHIFT == wire::UMASK_SHIFT);

pub(crate) fn attr(attr: &weft_meta::Attr) -> wire::Attr {
    wire::Attr {
        ino: attr.ino,
        generation: u64::from(attr.generation),
        kind: kind_to_wire(attr.kind),
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev as u32,
        size: attr.size,
        size_live: attr.size_live,
        epoch: attr.epoch,
        atime: time_to_wire(attr.atime),
        mtime: time_to_wire(attr.mtime),
        ctime: time_to_wire(attr.ctime),
        btime: time_to_wire(attr.btime),
        layout: attr.layout,
    }
}

/// A wish; where it is 0 it says nothing, which leaves the choice to the directory and the cluster.
pub(crate) fn layout_request(wish: Option<&wire::LayoutWish>) -> LayoutRequest {
    let Some(wish) = wish else { return LayoutRequest::default() };
    LayoutRequest {
        strip_bytes: (wish.strip_bytes != 0).then_some(wish.strip_bytes),
        server_count: (wish.server_count != 0).then_some(wish.server_count),
        first_server: wish.first_server_plus_1.checked_sub(1),
    }
}

/// The layout that a directory's default comes to, with first server 0 where files are spread.
pub(crate) fn default_layout(request: &LayoutRequest, ring_servers: u16) -> Option<Layout> {
    let count = match request.server_count.unwrap_or(0) {
        0 => ring_servers,
        count => count.min(ring_servers),
    };
    Layout::new(
        request.strip_bytes?,
        request.first_server.unwrap_or(0) % ring_servers.max(1),
        count,
        ring_servers,
    )
    .ok()
}

pub(crate) fn set_attr(request: &wire::SetAttrRequest) -> Result<SetAttr, Refusal> {
    if request.valid & !attr_valid::KNOWN != 0 {
        return Err(Refusal::new(Status::Invalid, "unknown attribute to be set"));
    }
    let given = |bit| request.valid & bit != 0;
    let time = |now, explicit, time: &wire::Time| {
        if given(now) {
            Some(SetTime::Now)
        } else {
            given(explicit).then(|| SetTime::At(time_from_wire(time)))
        }
    };
    Ok(SetAttr {
        mode: given(attr_valid::MODE).then_some(request.mode),
        uid: given(attr_valid::UID).then_some(request.uid),
        gid: given(attr_valid::GID).then_some(request.gid),
        atime: time(attr_valid::ATIME_NOW, attr_valid::ATIME, &request.atime),
        mtime: time(attr_valid::MTIME_NOW, attr_valid::MTIME, &request.mtime),
    })
}

/// Both times, as they are given.
pub(crate) fn new_times(times: &wire::NewTimes) -> SetAttr {
    SetAttr {
        atime: Some(SetTime::At(time_from_wire(&times.atime))),
        mtime: Some(SetTime::At(time_from_wire(&times.mtime))),
        ..SetAttr::default()
    }
}

/// Whether `access` asks to read and whether to write.
pub(crate) fn access(access: u32) -> Result<(bool, bool), Refusal> {
    if access & !(rights::READ | rights::WRITE) != 0 {
        return Err(Refusal::new(Status::Invalid, "unknown right asked for"));
    }
    Ok((access & rights::READ != 0, access & rights::WRITE != 0))
}

pub(crate) fn write_report(report: &wire::WriteReport, now: Timestamp) -> weft_meta::WriteReport {
    weft_meta::WriteReport { max_end: report.end_bytes, mtime: report.touch.then_some(now) }
}

pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Refusal> {
    match flags {
        0 => Ok(RenameMode::Replace),
        rename_flags::NOREPLACE => Ok(RenameMode::NoReplace),
        rename_flags::EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Refusal::new(Status::Invalid, "unknown or contradicting flags of a rename")),
    }
}

pub(crate) fn xattr_mode(flags: u32) -> Result<XattrMode, Refusal> {
    match flags {
        0 => Ok(XattrMode::Any),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Refusal::new(Status::Invalid, "unknown flags for setting an extended attribute")),
    }
}

pub(crate) fn entry(entry: weft_meta::DirEntry) -> wire::Entry {
    wire::Entry {
        attr: entry.attr.as_ref().map(attr),
        kind: kind_to_wire(entry.kind),
        name: entry.name,
        ino: entry.ino,
        cookie: entry.cookie,
    }
}
