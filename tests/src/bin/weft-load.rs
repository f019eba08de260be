//! A client process under test: it works until its standard input ends and prints a line for everything that was acknowledged.
//!
//! ```text
//!   weft-load write  URL KEY_FILE PATH WRITER BLOCK_BYTES SLOTS   writes its blocks of PATH round after round; "SLOT ROUND"
//!   weft-load names  URL KEY_FILE DIR WRITER                      creates, renames and unlinks; "+NAME" or "-NAME"
//!   weft-load files  URL KEY_FILE DIR SEED                        files in a mounted directory, read back; "ROUND"
//!   weft-load memory URL KEY_FILE PATH BUFFER_BYTES               writes and reads one buffer; "RESIDENT_BYTES"
//! ```
//!
//! `$WEFT_LOAD_TIMEOUT_MS`, if set, is how long a server may be silent and how long it is tried again after that.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_client::{Client, ConnectOptions, OpenOptions, Result, Url};
use weft_tests::pattern::{MOUNT_FILE_BYTES, Stamp, fill, same, scattered};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let stop = stop_at_end_of_input();
    let result = match words[..] {
        ["write", url, key, path, writer, block_bytes, slots] => connect(url, key).and_then(|client| {
            write(&client, path, number(writer), number(block_bytes), number(slots), &stop)
        }),
        ["names", url, key, dir, writer] => {
            connect(url, key).and_then(|client| names(&client, dir, number(writer), &stop))
        }
        ["files", _, _, dir, seed] => return files(dir.as_ref(), number(seed), &stop),
        ["memory", url, key, path, bytes] => {
            connect(url, key).and_then(|client| memory(&client, path, number(bytes)))
        }
        _ => panic!("not understood: {words:?}"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn files(dir: &Path, seed: u64, stop: &AtomicBool) -> ExitCode {
    let open = fs::File::options().read(true).write(true).create_new(true).open(dir.join("open"));
    let open = open.expect("it is new");
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if let Err(error) = files_round(dir, &open, round, seed) {
            eprintln!("a mount, round {round}: {error}");
            return ExitCode::FAILURE;
        }
        tell(&round.to_string());
    }
    ExitCode::SUCCESS
}

/// A new file, which is read back, and one of before; and one that stays open all the time.
fn files_round(dir: &Path, open: &fs::File, round: u64, seed: u64) -> std::result::Result<(), String> {
    let told = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let (path, wanted) = (dir.join(round.to_string()), scattered(seed + round, MOUNT_FILE_BYTES));
    fs::write(&path, &wanted).map_err(told("write"))?;
    same("what was written", &fs::read(&path).map_err(told("read"))?, &wanted)?;
    let old = fs::read(dir.join((round / 2).to_string())).map_err(told("read an old file"))?;
    same("an old file", &old, &scattered(seed + round / 2, MOUNT_FILE_BYTES))?;
    open.write_all_at(&wanted, 0).map_err(told("write the open file"))?;
    open.sync_data().map_err(told("sync the open file"))?;
    let mut found = vec![0; MOUNT_FILE_BYTES];
    open.read_exact_at(&mut found, 0).map_err(told("read the open file"))?;
    same("the open file", &found, &wanted)?;
    match fs::read_dir(dir).map_err(told("list"))?.count() as u64 {
        count if count == round + 2 => Ok(()),
        count => Err(format!("{count} files are listed, not {}", round + 2)),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

fn connect(url: &str, key_file: &str) -> Result<Client> {
    let key = weft_client::read_key_file(key_file.as_ref()).expect("it holds a key");
    let url = Url::parse(url).expect("a URL");
    let mut options = ConnectOptions { key: Some(key), ..ConnectOptions::default() };
    if let Ok(timeout_ms) = std::env::var("WEFT_LOAD_TIMEOUT_MS") {
        (options.retry_timeout_ms, options.reply_timeout_ms) = (number(&timeout_ms), number(&timeout_ms));
    }
    Client::connect(&url, options)
}

fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|count| count > 0) {}
        flag.store(true, Ordering::Relaxed);
    });
    stop
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Block `slot` of `writer` is block `slot * 3 + writer` of the file, so that the writers' blocks alternate.
fn write(
    client: &Client,
    path: &str,
    writer: u64,
    block_bytes: u64,
    slots: u64,
    stop: &AtomicBool,
) -> Result<()> {
    let file = client.open(path, &OpenOptions::new().read(true).write(true).create(true))?;
    let mut block = vec![0; block_bytes as usize];
    for round in 0.. {
        for slot in 0..slots {
            if stop.load(Ordering::Relaxed) {
                return file.close();
            }
            fill(&mut block, Stamp { writer: writer as u32, slot: slot as u32, round });
            let written = file.write_at(&block, (slot * 3 + writer) * block_bytes)?;
            assert_eq!(written, block.len(), "a write is whole or an error");
            tell(&format!("{slot} {round}"));
        }
    }
    Ok(())
}

/// Every change must succeed: a retry that the server does not recognise shows as EEXIST or ENOENT.
fn names(client: &Client, dir: &str, writer: u64, stop: &AtomicBool) -> Result<()> {
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (name, renamed) = (format!("{writer}-{round}"), format!("{writer}-{round}-renamed"));
        let (path, renamed_path) = (format!("{dir}/{name}"), format!("{dir}/{renamed}"));
        if round % 5 == 0 {
            client.mkdir(&path, 0o755)?;
        } else {
            client.open(&path, &OpenOptions::new().write(true).create_new(true))?.close()?;
        }
        tell(&format!("+{name}"));
        client.rename(&path, &renamed_path, 0)?;
        tell(&format!("-{name}"));
        tell(&format!("+{renamed}"));
        if round % 10 == 0 {
            client.rmdir(&renamed_path)?;
            tell(&format!("-{renamed}"));
        } else if round % 3 == 0 && round % 5 != 0 {
            client.unlink(&renamed_path)?;
            tell(&format!("-{renamed}"));
        }
    }
    Ok(())
}

fn memory(client: &Client, path: &str, buffer_bytes: u64) -> Result<()> {
    let mut buffer = vec![1u8; buffer_bytes as usize];
    let file = client.open(path, &OpenOptions::new().read(true).write(true).create(true))?;
    for _ in 0..3 {
        file.write_at(&buffer, 0)?;
        assert_eq!(file.read_at(&mut buffer, 0)?, buffer.len());
    }
    tell(&weft_tests::resident_bytes(std::process::id()).to_string());
    file.close()
}
