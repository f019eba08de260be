//! What the tests share: a fixed time, callers, and operations that commit.
#![allow(dead_code, reason = "each test file uses a part")]

use weft_meta::{
    At, Attr, Caller, Engine, MemEngine, MetaError, Namespace, NamespaceOptions, NewFile, Op, OpenFlags,
    Opened, ROOT_INO, SessionId, Timestamp,
};

pub const READ: OpenFlags =
    OpenFlags { read: true, write: false, exclusive: false, no_follow: false, execute: false, append: false };
pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, ..READ };
pub const S1: SessionId = SessionId([1; 16]);
pub const S2: SessionId = SessionId([2; 16]);

pub fn at(path: &str) -> At<'_> {
    At::new(ROOT_INO, path)
}

pub fn now(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 5 }
}

pub fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: vec![] }
}

pub fn options() -> NamespaceOptions {
    NamespaceOptions { ring_servers: 4, cached_inodes: 16, cached_entries: 16, ..NamespaceOptions::default() }
}

/// Formats and opens; root's directory is open to all, so that other users may test there.
pub fn fresh<E: Engine>(mut engine: E) -> Namespace<E> {
    Namespace::format(&mut engine, [9; 16], &Caller::root(), now(0)).unwrap();
    let mut ns = Namespace::open(engine, options()).unwrap();
    let open = weft_meta::SetAttr { mode: Some(0o777), ..Default::default() };
    run(&mut ns, |op| op.setattr(&Caller::root(), now(0), at("/"), true, &open)).unwrap();
    ns
}

/// In memory, where every operation meets a conflict first and is run again.
pub fn mem() -> Namespace<MemEngine> {
    let engine = MemEngine::new();
    engine.set_conflicting();
    fresh(engine)
}

/// Runs one operation and commits it if it succeeded.
pub fn run<E: Engine, T>(
    ns: &mut Namespace<E>,
    operation: impl Fn(&mut Op<'_, E>) -> Result<T, MetaError>,
) -> Result<T, MetaError> {
    ns.change(operation).map(|(out, _)| out)
}

pub fn mkdir<E: Engine>(
    ns: &mut Namespace<E>,
    caller: &Caller,
    path: &str,
    mode: u32,
) -> Result<u64, MetaError> {
    run(ns, |op| op.mkdir(caller, now(1), at(path), mode)).map(|created| created.attr.ino)
}

pub fn mkfile<E: Engine>(
    ns: &mut Namespace<E>,
    caller: &Caller,
    path: &str,
    mode: u32,
) -> Result<u64, MetaError> {
    let kind = weft_meta::Kind::File;
    run(ns, |op| op.mknod(caller, now(1), at(path), kind, mode, 0)).map(|created| created.attr.ino)
}

pub fn symlink<E: Engine>(ns: &mut Namespace<E>, target: &str, path: &str) {
    run(ns, |op| op.symlink(&Caller::root(), now(1), at(path), target.as_bytes())).unwrap();
}

pub fn create<E: Engine>(
    ns: &mut Namespace<E>,
    session: SessionId,
    path: &str,
    flags: OpenFlags,
) -> Result<Opened, MetaError> {
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    run(ns, |op| op.create(&Caller::root(), now(1), session, at(path), &new, flags))
}

pub fn stat<E: Engine>(ns: &mut Namespace<E>, path: &str) -> Result<Attr, MetaError> {
    ns.begin().stat(&Caller::root(), at(path), false)
}

/// The name of an error, for tables of expectations; "ok" for success.
pub fn outcome<T>(result: Result<T, MetaError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(MetaError::NotFound) => "NotFound",
        Err(MetaError::Exists) => "Exists",
        Err(MetaError::Small { .. }) => "Small",
        Err(MetaError::NotDirectory) => "NotDirectory",
        Err(MetaError::IsDirectory) => "IsDirectory",
        Err(MetaError::NotEmpty) => "NotEmpty",
        Err(MetaError::Access) => "Access",
        Err(MetaError::NotPermitted) => "NotPermitted",
        Err(MetaError::NameTooLong) => "NameTooLong",
        Err(MetaError::Loop) => "Loop",
        Err(MetaError::Stale) => "Stale",
        Err(MetaError::Invalid(_)) => "Invalid",
        Err(MetaError::Busy(_)) => "Busy",
        Err(MetaError::NoXattr) => "NoXattr",
        Err(MetaError::XattrTooBig) => "XattrTooBig",
        Err(MetaError::NotSupported(_)) => "NotSupported",
        Err(MetaError::TooManyLinks) => "TooManyLinks",
        Err(MetaError::NoSpace) => "NoSpace",
        Err(MetaError::OtherTree) => "OtherTree",
        Err(MetaError::Quota(_)) => "Quota",
        Err(MetaError::NoNumbers { .. }) => "NoNumbers",
        Err(MetaError::Counter { .. }) => "Counter",
        Err(MetaError::TooManyCounters) => "TooManyCounters",
        Err(MetaError::Engine(error)) => panic!("{error}"),
    }
}

pub fn sound<E: Engine>(ns: &Namespace<E>) {
    assert_eq!(ns.check().unwrap(), vec![]);
}
