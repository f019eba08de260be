//! Servers whose clocks are wrong: a library that is loaded before the C library shifts what they read.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use weft_client::{Client, File, OpenOptions, Transport};
use weft_tests::{Served, ServedOptions};

const DAY_S: i64 = 24 * 3600;

/// Shifts the wall clock by the seconds in the file `$WEFT_TEST_CLOCK`.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    const char *path = getenv("WEFT_TEST_CLOCK");
    if (clock != CLOCK_REALTIME || result != 0 || path == NULL) return result;
    char text[32] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) now->tv_sec += atoll(text);
        close(file);
    }
    return result;
}
"#;

/// Sets the clock of a server this far ahead.
fn set_ahead(clocks: &Path, server: &str, seconds: i64) {
    let new = clocks.join("new");
    std::fs::write(&new, seconds.to_string()).unwrap();
    std::fs::rename(new, clocks.join(server)).unwrap();
}

fn open(client: &Client, path: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true);
    client.open(path, &options).unwrap()
}

fn try_out(file: &File, byte: u8) -> weft_client::Result<()> {
    let data = vec![byte; 300_000];
    file.write_at(&data, 0)?;
    let mut found = vec![0; data.len()];
    file.read_at(&mut found, 0)?;
    assert!(found == data);
    Ok(())
}

#[test]
fn files_are_used_while_the_clock_of_a_server_is_wrong_by_a_day() {
    let clocks = tempfile::tempdir().unwrap();
    let (source, library) = (clocks.path().join("clock.c"), clocks.path().join("clock.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(made.success());
    let through = |name: &str| {
        let clock = format!("WEFT_TEST_CLOCK={}", clocks.path().join(name).display());
        vec!["env".into(), format!("LD_PRELOAD={}", library.display()), clock]
    };
    let names = ["meta0", "io0", "io1"];
    let through = BTreeMap::from_iter(names.map(|name| (name.to_string(), through(name))));
    let cluster = Served::start_with(ServedOptions { through, ..ServedOptions::default() });
    let client = cluster.client(Transport::Tcp);
    let old = open(&client, "/old");
    try_out(&old, 1).unwrap();
    let wrong = [("meta0", -DAY_S), ("meta0", DAY_S), ("io0", DAY_S), ("io1", -DAY_S)];
    for (number, (server, ahead_s)) in wrong.into_iter().enumerate() {
        set_ahead(clocks.path(), server, ahead_s);
        try_out(&old, 2).unwrap_or_else(|error| panic!("{server} {ahead_s}: {error}"));
        let new = open(&client, &format!("/new{number}"));
        try_out(&new, 3).unwrap_or_else(|error| panic!("{server} {ahead_s}: {error}"));
        let status = cluster.weft(&["status", &cluster.url()]);
        let side = if ahead_s > 0 { "ahead of" } else { "behind" };
        let named = |line: &str| line.contains(&format!("the clock of {server} is")) && line.contains(side);
        assert!(status.lines().any(named), "{status}");
        set_ahead(clocks.path(), server, 0);
    }
    // Beyond the bound it fails, and the error says why.
    set_ahead(clocks.path(), "io0", 3 * DAY_S);
    let error = try_out(&open(&client, "/old"), 4).unwrap_err();
    assert!(error.errno() == libc::EKEYEXPIRED && error.to_string().contains("clocks"), "{error}");
    set_ahead(clocks.path(), "io0", 0);
    try_out(&open(&client, "/old"), 5).unwrap();
}
