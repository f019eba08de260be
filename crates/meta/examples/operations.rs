//! Rates of single operations on one thread over the embedded engine: what the metadata thread can give at most.
//!
//! ```text
//!   cargo run --release -p weft-meta --example operations -- [FILES] [DIRECTORY]
//! ```

use std::path::PathBuf;
use std::time::Instant;
use weft_meta::{
    At, Caller, Engine, FjallEngine, FjallOptions, Namespace, NamespaceOptions, NewFile, Once, OpenFlags,
    ROOT_INO, SessionId, Timestamp, WriteReport,
};

const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanos: 0 };
const SESSION: SessionId = SessionId([7; 16]);

fn measure(what: &str, operations: u64, mut operation: impl FnMut(u64)) {
    let start = Instant::now();
    (0..operations).for_each(&mut operation);
    let seconds = start.elapsed().as_secs_f64();
    let rate = operations as f64 / seconds;
    println!("{what:<34} {rate:>12.0} /s {:>8.2} us", 1e6 / rate);
}

fn once<E: Engine>(ns: &mut Namespace<E>, request: u64, operation: impl FnOnce(&mut weft_meta::Op<E>)) {
    match ns.begin_once(NOW, SESSION, (request % 16) as u32, request + 1).expect("begin") {
        Once::Fresh(mut op) => {
            operation(&mut op);
            op.commit_with_reply(&[0; 96]).expect("commit");
        }
        Once::Replay(_) => panic!("no request was repeated"),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let files: u64 = arguments.next().map_or(100_000, |files| files.parse().expect("FILES is a number"));
    let directory =
        arguments.next().map_or_else(|| std::env::temp_dir().join("weft-meta-rates"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&directory);
    let mut engine = FjallEngine::open(&directory, &FjallOptions::default()).expect("open the store");
    Namespace::format(&mut engine, [1; 16], &Caller::root(), NOW).expect("format");
    let mut ns = Namespace::open(engine, NamespaceOptions::default()).expect("open the namespace");
    let root = Caller::root();
    let write = OpenFlags { write: true, exclusive: true, ..OpenFlags::default() };
    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let path = |file: u64| format!("file{file:08}");
    let mut inos = vec![0; files as usize];
    let mut request = 0;
    let mut next = || {
        request += 1;
        request - 1
    };

    measure("create, open for writing", files, |file| {
        once(&mut ns, next(), |op| {
            let opened = op.create(&root, NOW, SESSION, At::new(ROOT_INO, &path(file)), &new, write);
            inos[file as usize] = opened.expect("create").attr.ino;
        });
    });
    measure("close, nothing written", files, |file| {
        let mut op = ns.begin();
        op.close(NOW, SESSION, inos[file as usize], true, Some(&WriteReport::default())).expect("close");
        op.commit().expect("commit");
    });
    let hot = files.min(10_000);
    for round in ["first", "cached"] {
        measure(&format!("stat by path ({round}, {hot} files)"), hot, |file| {
            ns.begin().stat(&root, At::new(ROOT_INO, &path(file)), true).expect("stat");
        });
    }
    measure("stat by path (all files)", files, |file| {
        ns.begin().stat(&root, At::new(ROOT_INO, &path(file)), true).expect("stat");
    });
    measure("getattr (cached)", files, |file| {
        ns.begin().getattr(inos[(file % hot) as usize]).expect("getattr");
    });
    let mut after = 0;
    let mut entries = 0;
    let start = Instant::now();
    loop {
        let page = ns.begin().readdir(&root, ROOT_INO, after, 1000, 1 << 20, true).expect("readdir");
        entries += page.entries.len();
        after = page.entries.last().map_or(after, |entry| entry.cookie);
        if page.eof {
            break;
        }
    }
    println!(
        "{:<34} {:>12.0} entries/s",
        "readdir with attributes",
        entries as f64 / start.elapsed().as_secs_f64()
    );
    measure("unlink", files, |file| {
        once(&mut ns, next(), |op| {
            op.unlink(&root, NOW, At::new(ROOT_INO, &path(file))).expect("unlink");
        });
    });
    let syncer = ns.syncer();
    let mut op = ns.begin();
    op.mkdir(&root, NOW, At::new(ROOT_INO, "d"), 0o755).expect("mkdir");
    op.commit().expect("commit");
    measure("sync", 20, |_| {
        syncer.sync().expect("sync");
    });
    drop(ns);
    std::fs::remove_dir_all(&directory).expect("remove the store");
}
