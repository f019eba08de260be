//! What memory this process has, as the system knows it.
//!
//! Asked only after a group was refused, so that the common case (all of it is there) costs nothing (NC 4.3).
//! Kernels since 6.11 answer for one address with one `ioctl` (the paper added a system call for this);
//! before, `/proc/self/maps` is read:
//!
//! ```text
//!   7f21c0000000-7f21c0200000 rw-p 00000000 00:00 0
//!   └── start        └── end  │││└ private  └──┴── inode 0: of no file
//!                             ││└ executable
//!                             └┴ readable, writable
//! ```

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::group::PageRange;

/// Memory of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// Where.
    pub range: PageRange,
    /// What the program may do with it.
    pub is_readable: bool,
    /// See above.
    pub is_writable: bool,
    /// Of no file, and nobody else's: what `malloc` gives.
    pub is_private_anonymous: bool,
    /// What is mapped: device (major, minor) and number of a file, zeros for none.
    pub file: (u32, u32, u64),
}

/// What is mapped of a range, in order.
///
/// # Errors
/// Of the system: `/proc` is not there.
pub fn mapped(range: PageRange) -> io::Result<Vec<Mapped>> {
    let mut parts = mappings(range)?;
    for part in &mut parts {
        part.range =
            PageRange { start: part.range.start.max(range.start), end: part.range.end.min(range.end) };
    }
    Ok(parts)
}

/// The whole mappings that lie in a range or reach into it, in order.
///
/// # Errors
/// As [`mapped`].
pub fn mappings(range: PageRange) -> io::Result<Vec<Mapped>> {
    let file = File::open("/proc/self/maps")?;
    // Refused by older kernels, or forbidden.
    query(&file, range).or_else(|_| parse(&io::read_to_string(file)?, range))
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name_address: u64,
    build_id_address: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong =
    0xc000_0000 | (size_of::<ProcmapQuery>() as libc::c_ulong) << 16 | 0x6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 16;

fn query(maps: &File, range: PageRange) -> io::Result<Vec<Mapped>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: COVERING_OR_NEXT,
            query_address: at,
            ..ProcmapQuery::default()
        };
        // SAFETY: the kernel fills a structure of the size that it is told.
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(found) } else { Err(error) };
        }
        if query.start >= range.end {
            break;
        }
        let file = (query.dev_major, query.dev_minor, query.inode);
        found.push(Mapped {
            range: PageRange { start: query.start, end: query.end },
            is_readable: query.flags & READABLE != 0,
            is_writable: query.flags & WRITABLE != 0,
            is_private_anonymous: query.flags & SHARED == 0 && file == (0, 0, 0),
            file,
        });
        at = query.end;
    }
    Ok(found)
}

// Not fuzzed: the text is the kernel's.
fn parse(maps: &str, range: PageRange) -> io::Result<Vec<Mapped>> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "/proc/self/maps has a line of another form");
    let mut found = Vec::new();
    for line in maps.lines() {
        let line = parse_line(line).ok_or_else(strange)?;
        if line.range.overlaps(&range) {
            found.push(line);
        }
    }
    Ok(found)
}

fn parse_line(line: &str) -> Option<Mapped> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let rights = words.next()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let file = (hex(major)? as u32, hex(minor)? as u32, words.next()?.parse().ok()?);
    Some(Mapped {
        range: PageRange { start: hex(start)?, end: hex(end)? },
        is_readable: rights.starts_with('r'),
        is_writable: rights.as_bytes().get(1) == Some(&b'w'),
        is_private_anonymous: rights.ends_with('p') && file == (0, 0, 0),
        file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::page_bytes;

    #[test]
    fn both_ways_see_the_same() {
        let pages = |n: u64| n * page_bytes();
        // SAFETY: new mappings, used by this test alone; the last lies in the first.
        let base = unsafe {
            let (none, private) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let base = libc::mmap(none, pages(10) as usize, libc::PROT_READ, private, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let at = |page| base.byte_add(pages(page) as usize);
            assert_eq!(libc::mprotect(at(2), pages(2) as usize, libc::PROT_READ | libc::PROT_WRITE), 0);
            assert_eq!(libc::munmap(at(5), pages(2) as usize), 0);
            let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            assert_eq!(libc::mmap(at(8), pages(1) as usize, libc::PROT_NONE, shared, -1, 0), at(8));
            base as u64
        };
        let range = PageRange { start: base + pages(1), end: base + pages(9) };
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let parsed = parse(&text, range).unwrap();
        assert_eq!(mappings(range).unwrap(), parsed);
        let spans: Vec<_> = mapped(range)
            .unwrap()
            .iter()
            .map(|part| ((part.range.start - base) / page_bytes(), (part.range.end - base) / page_bytes()))
            .collect();
        assert_eq!(spans, [(1, 2), (2, 4), (4, 5), (7, 8), (8, 9)]);
        assert_eq!(
            parsed.iter().map(|part| part.is_writable).collect::<Vec<_>>(),
            [false, true, false, false, false]
        );
        assert!(parsed[0].is_readable && !parsed[4].is_readable);
        assert!(parsed[0].is_private_anonymous && !parsed[4].is_private_anonymous);
        // SAFETY: nobody uses it.
        unsafe { libc::munmap(base as *mut libc::c_void, pages(10) as usize) };
    }

    #[test]
    fn the_end_of_the_address_space_is_no_error() {
        let range = PageRange { start: u64::MAX - 3 * page_bytes() + 1, end: u64::MAX - page_bytes() + 1 };
        assert_eq!(mapped(range).unwrap(), []);
    }

    #[test]
    fn lines_of_another_form_are_refused() {
        assert!(parse_line("7f-80 rw-p 0 00:01 5 [x y]").is_some());
        for line in ["", "7f", "7f-80", "7f-80 rw-p 0", "7f-80 rw-p 0 0:0", "zz-80 rw-p 0 00:00 0"] {
            assert!(parse_line(line).is_none(), "{line}");
        }
    }
}
