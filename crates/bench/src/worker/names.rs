//! Creating, querying and removing many files.

use super::measure::{Done, Ready, measure};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use weft_cli_common::connections::at;
use weft_client::{Client, OpenOptions};

/// An operation on many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameOp {
    Create,
    Stat,
    Unlink,
}

/// Does the operation to `files` files in a cluster, with this many threads.
pub fn by_threads(
    client: &Client,
    dir: &Path,
    op: NameOp,
    (files, threads): (usize, usize),
    ready: Ready<'_>,
) -> Result<Done> {
    let one = |index| in_cluster(client, dir, op, index);
    ready(String::new())?;
    measure(|| {
        std::thread::scope(|scope| {
            let part = |thread: usize| move || (thread..files).step_by(threads).try_for_each(one);
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(part(thread))).collect();
            let mine = part(0)();
            let theirs =
                others.into_iter().map(|other| other.join().expect("a worker's thread does not panic"));
            theirs.fold(mine, Result::and)
        })
    })
}

fn in_cluster(client: &Client, dir: &Path, op: NameOp, index: usize) -> Result<()> {
    let path = dir.join(format!("f{index}"));
    match op {
        NameOp::Create => {
            let options = OpenOptions::new().write(true).create_new(true).mode(0o644);
            client.open(at(&path), &options)?.close()?;
        }
        NameOp::Stat => {
            client.stat(at(&path), true)?;
        }
        NameOp::Unlink => client.unlink(at(&path))?,
    }
    Ok(())
}

/// Does the operation to one local file.
pub fn local(dir: &Path, op: NameOp, index: usize) -> Result<()> {
    let path = dir.join(format!("f{index}"));
    match op {
        NameOp::Create => drop(File::create_new(&path)?),
        NameOp::Stat => {
            std::fs::metadata(&path)?;
        }
        NameOp::Unlink => std::fs::remove_file(&path)?,
    }
    Ok(())
}
