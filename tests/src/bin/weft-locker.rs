//! A process that locks and writes as it is told, line by line, and answers each line with one: `ok`, a value, or `errno N`.
//!
//! ```text
//!   open 0 /mnt/file            descriptor 0 of this program's own        append 0 /mnt/file    the same, to append
//!   fcntl 0 w 10 5 wait         F_SETLKW, exclusive, 5 bytes from 10      r: shared, u: none; try: F_SETLK
//!   ofd 0 w 10 5 try            the same for the open file
//!   flock 0 x wait              LOCK_EX                                   s: shared, u: none; try: with LOCK_NB
//!   getlk 0 w 10 5              `free`, or kind, first, bytes and process of what is in the way
//!   read 0 4    write 0 text    at the beginning of the file
//!   truncate 0, punch 0, allocate 0, zero 0, copy 0    changes the first bytes, or what is behind them, by that call
//!   close 0
//!   sync 0                      fsync                                     poke 0 t    the first byte through a shared mapping
//!   weft 0 URL KEY-FILE /file   the same through the library: then lock 0 w 10 5 wait, for the open file, put 0 text, get 0 4,
//!                               and the changes as above
//! ```
//!
//! SIGUSR1 has a handler that does nothing and lets no call go on.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use weft_client::{Client, ConnectOptions, LockKind, LockTarget, LockWait, Url};

/// What `copy` copies is here, beyond the size of small files.
const COPY_FROM: u64 = 128 << 10;

#[derive(Default)]
struct Open {
    files: HashMap<String, File>,
    weft_files: HashMap<String, (Client, weft_client::File)>,
}

type Answer = Result<String, i32>;

fn done() -> Answer {
    Ok("ok".into())
}

fn failed(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The result of a call that returns -1 where it failed.
fn checked(result: i32) -> Answer {
    if result == -1 { Err(failed(std::io::Error::last_os_error())) } else { done() }
}

fn kind_of(word: &str) -> libc::c_int {
    match word {
        "r" => libc::F_RDLCK,
        "w" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    }
}

fn flock_of(kind: &str, first: &str, bytes: &str) -> libc::flock {
    // SAFETY: all zeros are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind_of(kind) as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = first.parse().expect("a number");
    lock.l_len = bytes.parse().expect("a number");
    lock
}

/// Changes the first byte of a file through a shared mapping, which stays. The kernel writes it back when it likes.
fn poke(file: &File, byte: u8) -> Answer {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of a file with at least one byte, that nobody else of this process has.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return checked(-1);
        }
        at.cast::<u8>().write_volatile(byte);
    }
    done()
}

/// Changes a file otherwise than by a write. `copy` copies what is at [`COPY_FROM`] onto the beginning.
fn change(file: &File, how: &str) -> Answer {
    let fd = file.as_raw_fd();
    let (mut from, mut to) = (COPY_FROM as i64, 0);
    // SAFETY: an open descriptor, and two live numbers.
    checked(unsafe {
        match how {
            "truncate" => libc::ftruncate(fd, 2),
            "punch" => libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4),
            "zero" => libc::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, 0, 4),
            "allocate" => libc::fallocate(fd, 0, 0, 2 * COPY_FROM as i64),
            _ => libc::copy_file_range(fd, &mut from, fd, &mut to, 4, 0) as i32,
        }
    })
}

/// The same through the library.
fn change_weft(client: &Client, file: &weft_client::File, how: &str) -> Answer {
    let changed = match how {
        "truncate" => file.truncate(2),
        "punch" => file.punch(0, 4),
        "zero" => file.zero(0, 4, false),
        "allocate" => file.allocate(0, 2 * COPY_FROM, false),
        _ => client.copy_range(file, COPY_FROM, file, 0, 4).map(drop),
    };
    changed.map_err(|error| error.errno()).and_then(|()| done())
}

impl Open {
    fn file(&self, slot: &str) -> Result<&File, i32> {
        self.files.get(slot).ok_or(libc::EBADF)
    }

    fn obey(&mut self, words: &[&str]) -> Answer {
        match words {
            [how @ ("open" | "append"), slot, path] => {
                let mut options = OpenOptions::new();
                options.read(true).create(true).append(*how == "append").write(true);
                self.files.insert(slot.to_string(), options.open(path).map_err(failed)?);
                done()
            }
            [how @ ("fcntl" | "ofd"), slot, kind, first, bytes, wait] => {
                let mut lock = flock_of(kind, first, bytes);
                let call = match (*how, *wait) {
                    ("fcntl", "wait") => libc::F_SETLKW,
                    ("fcntl", _) => libc::F_SETLK,
                    (_, "wait") => libc::F_OFD_SETLKW,
                    _ => libc::F_OFD_SETLK,
                };
                // SAFETY: an open descriptor and a live structure.
                checked(unsafe { libc::fcntl(self.file(slot)?.as_raw_fd(), call, &mut lock) })
            }
            ["getlk", slot, kind, first, bytes] => {
                let mut lock = flock_of(kind, first, bytes);
                // SAFETY: as above.
                checked(unsafe { libc::fcntl(self.file(slot)?.as_raw_fd(), libc::F_GETLK, &mut lock) })?;
                let kind = match libc::c_int::from(lock.l_type) {
                    libc::F_UNLCK => return Ok("free".into()),
                    libc::F_RDLCK => "r",
                    _ => "w",
                };
                Ok(format!("{kind} {} {} {}", lock.l_start, lock.l_len, lock.l_pid))
            }
            ["flock", slot, kind, wait] => {
                let kind = match *kind {
                    "s" => libc::LOCK_SH,
                    "x" => libc::LOCK_EX,
                    _ => libc::LOCK_UN,
                };
                let no_wait = if *wait == "wait" { 0 } else { libc::LOCK_NB };
                // SAFETY: an open descriptor.
                checked(unsafe { libc::flock(self.file(slot)?.as_raw_fd(), kind | no_wait) })
            }
            ["read", slot, bytes] => {
                let mut text = vec![0; bytes.parse().expect("a number")];
                let read = self.file(slot)?.read_at(&mut text, 0).map_err(failed)?;
                Ok(String::from_utf8_lossy(&text[..read]).into_owned())
            }
            ["write", slot, text] => {
                self.file(slot)?.write_all_at(text.as_bytes(), 0).map_err(failed)?;
                done()
            }
            ["sync", slot] => {
                self.file(slot)?.sync_all().map_err(failed)?;
                done()
            }
            [how @ ("truncate" | "punch" | "zero" | "allocate" | "copy"), slot] => {
                match self.weft_files.get(*slot) {
                    Some((client, file)) => change_weft(client, file, how),
                    None => change(self.file(slot)?, how),
                }
            }
            ["poke", slot, text] => poke(self.file(slot)?, text.as_bytes()[0]),
            ["put", slot, text] => {
                let (_, file) = self.weft_files.get(*slot).ok_or(libc::EBADF)?;
                file.write_at(text.as_bytes(), 0).map_err(|error| error.errno())?;
                done()
            }
            ["get", slot, bytes] => {
                let mut text = vec![0; bytes.parse().expect("a number")];
                let (_, file) = self.weft_files.get(*slot).ok_or(libc::EBADF)?;
                let read = file.read_at(&mut text, 0).map_err(|error| error.errno())?;
                Ok(String::from_utf8_lossy(&text[..read]).into_owned())
            }
            ["close", slot] => {
                self.files.remove(*slot);
                self.weft_files.remove(*slot);
                done()
            }
            ["weft", slot, url, key_file, path] => {
                let key = Some(weft_client::read_key_file(key_file.as_ref()).expect("a key"));
                let options = ConnectOptions { key, ..ConnectOptions::default() };
                let open = weft_client::OpenOptions::new().read(true).write(true).create(true);
                let opened = Client::connect(&Url::parse(url).expect("a URL"), options).and_then(|client| {
                    let file = client.open(*path, &open)?;
                    Ok((client, file))
                });
                self.weft_files.insert(slot.to_string(), opened.map_err(|error| error.errno())?);
                done()
            }
            ["lock", slot, kind, first, bytes, wait] => {
                let lock = flock_of(kind, first, bytes);
                let (first, bytes) = (lock.l_start as u64, lock.l_len as u64);
                let target = LockTarget::range(first..first + bytes);
                let wait = if *wait == "wait" { LockWait::UntilSignal } else { LockWait::Never };
                let (_, file) = self.weft_files.get(*slot).ok_or(libc::EBADF)?;
                let locked = match *kind {
                    "u" => file.unlock(target),
                    "r" => file.lock(target, LockKind::Shared, wait),
                    _ => file.lock(target, LockKind::Exclusive, wait),
                };
                locked.map_err(|error| error.errno())?;
                done()
            }
            _ => panic!("unknown command {words:?}"),
        }
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

fn main() {
    // SAFETY: the handler does nothing, and all zeros are no flags and an empty mask.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let mut open = Open::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = open.obey(&words).unwrap_or_else(|errno| format!("errno {errno}"));
        println!("{answer}");
        std::io::stdout().flush().expect("standard output is open");
    }
}
