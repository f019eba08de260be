//! Copies between a file in Weft and standard input or output.
//!
//! ```text
//!   stdin ─ this thread ─► buffer ─┐                 two buffers: one is filled while the other is written
//!              ▲                   ├─► writer ─► file
//!              └────── empty ◄─────┘
//! ```

use super::apart::of_stream;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use weft_cli_common::connections::at;
use weft_client::{Client, OpenOptions};
use weft_wire::messages::LayoutWish;

const BUFFER_BYTES: usize = 8 << 20;

/// Writes standard input into a file; the bytes. A new file gets its name when the input has ended without an error.
///
/// # Errors
/// Those of both.
pub fn from_stdin(client: &Client, path: &Path, layout: Option<&LayoutWish>, mode: u32) -> Result<u64> {
    let is_there = client.stat(at(path), false).is_ok();
    let name = path.file_name().context("this is no name of a file")?;
    let apart = path.with_file_name(of_stream(name));
    let written_to = if is_there { path } else { &apart };
    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(mode);
    let options = layout.cloned().into_iter().fold(options, OpenOptions::layout);
    let file = client.open(at(written_to), &options)?;
    let copied = pump(&mut std::io::stdin().lock(), |data, offset| {
        file.write_at(data, offset)?;
        Ok(())
    });
    let ended = copied.and_then(|bytes| {
        file.close()?;
        if !is_there {
            client.rename(at(written_to), at(path), 0)?;
        }
        Ok(bytes)
    });
    if ended.is_err() && !is_there {
        let _ = client.unlink(at(written_to));
    }
    ended
}

/// Reads all of `from` while what was read before is written.
fn pump(from: &mut impl Read, write: impl Fn(&[u8], u64) -> Result<()> + Send) -> Result<u64> {
    let (full, filled) = sync_channel::<(Vec<u8>, usize, u64)>(1);
    let (empty, emptied) = sync_channel::<Vec<u8>>(2);
    for _ in 0..2 {
        empty.send(vec![0; BUFFER_BYTES]).expect("there is room");
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || -> Result<()> {
            for (buffer, bytes, offset) in filled {
                write(&buffer[..bytes], offset)?;
                let _ = empty.send(buffer);
            }
            Ok(())
        });
        let mut offset = 0;
        let read = loop {
            // The writer has failed.
            let Ok(mut buffer) = emptied.recv() else { break Ok(()) };
            match fill(from, &mut buffer) {
                Ok(0) => break Ok(()),
                Ok(bytes) => {
                    if full.send((buffer, bytes, offset)).is_err() {
                        break Ok(());
                    }
                    offset += bytes as u64;
                }
                Err(error) => break Err(error),
            }
        };
        drop(full);
        writer.join().expect("it does not panic")?;
        read.context("cannot read standard input")?;
        Ok(offset)
    })
}

/// Reads until the buffer is full or the input ends.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut bytes = 0;
    while bytes < buffer.len() {
        match from.read(&mut buffer[bytes..]) {
            Ok(0) => break,
            Ok(more) => bytes += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Writes a file to standard output.
///
/// # Errors
/// Those of both.
pub fn to_stdout(client: &Client, path: &Path) -> Result<()> {
    let file = client.open(at(path), &OpenOptions::new().read(true))?;
    let (mut buffer, mut offset) = (vec![0; BUFFER_BYTES], 0);
    let mut out = std::io::stdout().lock();
    loop {
        let bytes = file.read_at(&mut buffer, offset)?;
        if bytes == 0 {
            out.flush()?;
            return Ok(());
        }
        out.write_all(&buffer[..bytes])?;
        offset += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn all_of_a_stream_arrives_in_order_and_errors_end_it() {
        let input: Vec<u8> = (0..3 * BUFFER_BYTES + 5).map(|at| (at % 251) as u8).collect();
        let output = Mutex::new(Vec::new());
        let bytes = pump(&mut &input[..], |data, offset| {
            let mut output = output.lock().unwrap();
            assert_eq!(output.len() as u64, offset);
            output.extend_from_slice(data);
            Ok(())
        });
        assert_eq!(bytes.unwrap(), input.len() as u64);
        assert!(output.into_inner().unwrap() == input);
        assert_eq!(pump(&mut &[][..], |_, _| unreachable!()).unwrap(), 0);
        let failed = pump(&mut &input[..], |_, _| anyhow::bail!("full"));
        assert_eq!(failed.unwrap_err().to_string(), "full");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("broken"))
            }
        }
        assert!(pump(&mut Broken, |_, _| Ok(())).is_err());
    }
}
