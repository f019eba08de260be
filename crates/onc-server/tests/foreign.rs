//! Clients that are not ours.

mod common;

use std::process::Command;

use common::*;
use weft_onc_server::Limits;
use weft_test_needs::Need;

fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    // A program that waits for ever is ended.
    let output = Command::new("timeout").arg("20").arg(program).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn rpcinfo_finds_the_program() {
    if !Need::Rpcinfo.is_met() {
        return;
    }
    with_server(Limits::default(), |address, _| {
        // An address as RFC 5665 writes it: so rpcinfo asks no port mapper.
        let port = address.port();
        let at = format!("127.0.0.1.{}.{}", port >> 8, port & 255);
        let ask = |program: &str| run("/usr/sbin/rpcinfo", &["-a", &at, "-T", "tcp", program, "1"]);
        let (is_ready, text) = ask(&PROGRAM.to_string());
        assert!(is_ready && text.contains("ready and waiting"), "{text}");
        let (is_ready, text) = ask("536870999");
        assert!(!is_ready && text.contains("Program unavailable"), "{text}");
    });
}
