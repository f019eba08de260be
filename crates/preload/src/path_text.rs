//! Paths as text: normal forms, and whether one is below another.

/// Normalises an absolute path: without empty names, `.` and `..`, and without a final slash.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut normal = Vec::with_capacity(path.len() + 1);
    for name in names {
        normal.push(b'/');
        normal.extend_from_slice(name);
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    normal
}

/// Removes empty names and `.` from a path, which may make it much shorter. `..` stays, since a symbolic link
/// may precede it.
pub(crate) fn tidy(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.flat_map(|name| [&b"/"[..], name]).flatten().copied().collect()
}

/// The part of a path after a prefix, with its slash; `None` if the path is not below it.
pub(crate) fn behind<'a>(prefix: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// Whether a path goes above its start.
pub(crate) fn leaves(path: &[u8]) -> bool {
    let mut depth = 0i32;
    path.split(|byte| *byte == b'/').any(|name| {
        match name {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        depth < 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        for (path, plain) in
            [("/", "/"), ("", "/"), ("//a///b/", "/a/b"), ("/a/./b/../c", "/a/c"), ("/../..", "/")]
        {
            assert_eq!(normal(path.as_bytes()), plain.as_bytes(), "{path}");
        }
        assert_eq!(tidy(b"/./a//b/../c/"), b"/a/b/../c");
        assert_eq!(tidy(b"/"), b"");
    }

    #[test]
    fn a_path_leaves_by_more_dots_than_names() {
        assert!(!leaves(b"/a/../b") && !leaves(b"") && !leaves(b"/a/b/../.."));
        assert!(leaves(b"/..") && leaves(b"/a/../../b") && leaves(b"../x/y/z"));
    }

    #[test]
    fn a_prefix_ends_where_a_name_ends() {
        assert_eq!(behind(b"/weft", b"/weft/a"), Some(&b"/a"[..]));
        assert_eq!(behind(b"/weft", b"/weft"), Some(&b""[..]));
        assert_eq!(behind(b"/weft", b"/wefts"), None);
        assert_eq!(behind(b"/weft", b"/we"), None);
    }
}
