//! Versions of the protocol.

/// Protocol versions that this build speaks, the oldest and the newest, and why each exists.
///
/// | version | reason |
/// | --- | --- |
/// | 1 | the first |
/// | 2 | [`FetchAdd`](crate::Op::FetchAdd): counters of open files |
/// | 3 | [`DirChange`](crate::messages::DirChange): a directory before and after a change of its names |
/// | 4 | [`ReadSmall`](crate::Op::ReadSmall) and others: small files, whose bytes lie with the inode |
/// | 5 | [`Reserve`](crate::Op::Reserve) and others: quotas |
/// | 6 | [`FindPaths`](crate::Op::FindPaths) |
/// | 7 | [`ReadDirReply::until`](crate::messages::ReadDirReply::until): where a listing ends; [`OpenRequest::execute`](crate::messages::OpenRequest::execute) |
/// | 8 | [`CreateUnnamed`](crate::Op::CreateUnnamed): files without a name; [`HelloRequest::ends_with_connection`](crate::messages::HelloRequest::ends_with_connection); [`OpenRequest::append`](crate::messages::OpenRequest::append) |
/// | 9 | [`StatObjectsReply::lost`](crate::messages::StatObjectsReply::lost) and others: data files that are missing |
pub const VERSIONS: (u8, u8) = (1, if cfg!(feature = "next") { 10 } else { 9 });

/// The version that two peers use: the newest that both speak, or `None`.
///
/// ```
/// assert_eq!(weft_wire::negotiate((1, 3), (2, 5)), Some(3));
/// assert_eq!(weft_wire::negotiate((1, 1), (2, 5)), None);
/// ```
pub fn negotiate(ours: (u8, u8), theirs: (u8, u8)) -> Option<u8> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0.max(theirs.0)).then_some(newest)
}
