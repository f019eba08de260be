//! Output of commands: tables, JSON, modes, times and names of owners.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use std::ffi::CStr;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use weft_wire::messages::{Attr, FileKind, Time};

/// Buffered standard output. Commands write with `writeln!(out, …)?`, so that a closed pipe ends the command
/// quietly. On a terminal, control characters are escaped, since file names may contain any.
pub fn stdout() -> BufWriter<Out> {
    let stdout = std::io::stdout();
    let to_terminal = stdout.is_terminal();
    BufWriter::new(Out { stdout, to_terminal })
}

/// Standard output of a command.
pub struct Out {
    stdout: Stdout,
    to_terminal: bool,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !self.to_terminal {
            return self.stdout.write(bytes);
        }
        // A character that is cut by the end of a buffer waits for the rest.
        let whole = match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.stdout.write_all(visible_lines(&String::from_utf8_lossy(&bytes[..whole])).as_bytes())?;
        Ok(whole)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stdout.flush()
    }
}

/// Whether a terminal does not simply show this character: it is a control character, invisible, or changes
/// the order of text.
fn is_invisible(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, keep: &[char]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match is_invisible(character) && !keep.contains(&character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
}

/// Text from outside for one line, with characters escaped that a terminal would not show.
pub fn visible(text: &str) -> String {
    escape(text, &[])
}

/// The same, but line ends and tabs are kept.
pub fn visible_lines(text: &str) -> String {
    escape(text, &['\n', '\t'])
}

/// An error and its causes as one text. Where a context says what failed, the client library's own operation and path are left
/// out: they may be internal.
pub fn error_text(error: &anyhow::Error) -> String {
    let hint = if is_dead_mount(error) { DEAD_MOUNT } else { "" };
    let text = |(depth, cause): (usize, &(dyn std::error::Error + 'static))| {
        let of_library = cause.downcast_ref::<weft_client::Error>().filter(|_| depth > 0);
        of_library.map_or_else(|| cause.to_string(), |error| error.reason().to_string())
    };
    let texts: Vec<String> = error.chain().enumerate().map(text).collect();
    visible_lines(&format!("{}{hint}", texts.join(": ")))
}

/// What is said of a path below a mount whose process is gone.
pub const DEAD_MOUNT: &str =
    ": a mount is there whose process died; detach it with `weft umount DIR` or `fusermount3 -u DIR`";

/// Whether a local path was below a mount whose process is gone.
pub fn is_dead_mount(error: &anyhow::Error) -> bool {
    let of_system = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error)
    };
    error.chain().any(|cause| of_system(cause) == Some(libc::ENOTCONN))
}

/// Appends everything that this process writes to standard output and standard error to a file. Another call
/// reopens the path, so that the file can be renamed in between.
pub fn log_to(path: &Path) -> Result<()> {
    weft_log::redirect_to(path).with_context(|| format!("cannot write the log {}", path.display()))
}

/// Prints a line.
pub fn print_line(text: impl std::fmt::Display) -> Result<()> {
    let mut out = stdout();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints one JSON value.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A plain table: headings, then rows; columns in `right` are aligned to the right.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headings);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table.
pub fn print_table(table: &Table) -> Result<()> {
    let mut out = stdout();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(out.flush()?)
}

/// The mode as in `ls -l`: `drwxr-xr-x`.
pub fn mode_text(kind: FileKind, mode: u32) -> String {
    let mut text = String::from(match kind {
        FileKind::File => "-",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::Character => "c",
        FileKind::Block => "b",
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The name of a kind of file.
pub fn kind_text(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Character => "character device",
        FileKind::Block => "block device",
    }
}

/// Local time to the minute; with `full`, to the nanosecond and with the zone.
pub fn time_text(time: &Time, full: bool) -> String {
    let mut parts = MaybeUninit::<libc::tm>::zeroed();
    let mut text = [0u8; 64];
    let format = if full { c"%Y-%m-%d %H:%M:%S" } else { c"%Y-%m-%d %H:%M" };
    // SAFETY: all pointers are to live values, and strftime gets the true size of its buffer.
    let (length, zone_s) = unsafe {
        if libc::localtime_r(&time.seconds, parts.as_mut_ptr()).is_null() {
            return time.seconds.to_string();
        }
        let parts = parts.assume_init();
        (libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts), parts.tm_gmtoff)
    };
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    if !full {
        return text;
    }
    let sign = if zone_s < 0 { '-' } else { '+' };
    let zone_min = zone_s.abs() / 60;
    format!("{text}.{:09} {sign}{:02}{:02}", time.nanoseconds, zone_min / 60, zone_min % 60)
}

/// Name of a user, or the number if it has none here.
pub fn user_name(uid: u32) -> String {
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut text = [0 as libc::c_char; 4096];
    // SAFETY: the buffers live through the call and their true size is given; `found` points to `entry` when
    // it is set.
    unsafe {
        libc::getpwuid_r(uid, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found);
        if found.is_null() {
            uid.to_string()
        } else {
            CStr::from_ptr((*found).pw_name).to_string_lossy().into()
        }
    }
}

/// Name of a group, or the number if it has none here.
pub fn group_name(gid: u32) -> String {
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut text = [0 as libc::c_char; 16384];
    // SAFETY: as in `user_name`.
    unsafe {
        libc::getgrgid_r(gid, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found);
        if found.is_null() {
            gid.to_string()
        } else {
            CStr::from_ptr((*found).gr_name).to_string_lossy().into()
        }
    }
}

/// The number of the user with this name on this machine.
pub fn user_id(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut text = [0 as libc::c_char; 4096];
    // SAFETY: as in `user_name`; `name` is a C string.
    unsafe {
        libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found);
        (!found.is_null()).then(|| (*found).pw_uid)
    }
}

/// The group that a user has at login on this machine.
pub fn login_group(uid: u32) -> Option<u32> {
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut text = [0 as libc::c_char; 4096];
    // SAFETY: as in `user_name`.
    unsafe {
        libc::getpwuid_r(uid, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found);
        (!found.is_null()).then(|| (*found).pw_gid)
    }
}

/// The number of the group with this name on this machine.
pub fn group_id(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    let mut text = [0 as libc::c_char; 65536];
    // SAFETY: as in `user_name`; `name` is a C string.
    unsafe {
        libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found);
        (!found.is_null()).then(|| (*found).gr_gid)
    }
}

/// Attributes as JSON.
pub fn attr_json(path: &str, attr: &Attr) -> serde_json::Value {
    let layout = attr.layout.map(|layout| layout_json(&layout));
    let seconds = |time: &Time| time.seconds as f64 + f64::from(time.nanoseconds) / 1e9;
    serde_json::json!({
        "path": path,
        "ino": attr.ino,
        "kind": kind_text(attr.kind),
        "mode": format!("{:04o}", attr.mode & 0o7777),
        "uid": attr.uid,
        "gid": attr.gid,
        "nlink": attr.nlink,
        "bytes": attr.size,
        "atime_s": seconds(&attr.atime),
        "mtime_s": seconds(&attr.mtime),
        "ctime_s": seconds(&attr.ctime),
        "btime_s": seconds(&attr.btime),
        "layout": layout,
    })
}

/// A layout as JSON.
pub fn layout_json(layout: &weft_layout::Layout) -> serde_json::Value {
    serde_json::json!({
        "strip_bytes": layout.strip_bytes(),
        "servers": layout.server_count(),
        "first": layout.first_server(),
        "server_ids": (0..layout.server_count()).map(|slot| layout.chain(slot).single_server()).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        for (kind, mode, text) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o2640, "-rw-r-S---"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode_text(kind, mode), text);
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(visible("a\x1b[2J\u{9b}\n\u{202e}é\x7f"), r"a\u{1b}[2J\u{9b}\n\u{202e}é\u{7f}");
        assert_eq!(visible_lines("a\n\tb\r"), "a\n\tb\\r");
    }

    #[test]
    fn times_and_owners_have_names() {
        assert!(time_text(&Time { seconds: 86400 * 365, nanoseconds: 5 }, true).contains(".000000005 "));
        assert_eq!(user_name(0), "root");
        assert_eq!(group_name(0), "root");
        assert_eq!(user_name(4_000_000_001), "4000000001");
    }
}
