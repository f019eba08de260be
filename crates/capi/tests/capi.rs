//! The C interface as C programs see it: `capi.c` is compiled, linked with libweft, and run against a
//! cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use weft_tests::{Cluster, c_library, expect_success};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles a C program as strictly as gcc can and links it with libweft.
fn compile(source: &str, program: &Path, static_library: bool) {
    let library = c_library();
    let library = library.parent().expect("a library is in a directory");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    cc.arg(format!("-I{CRATE}/include")).arg(format!("{CRATE}/{source}")).arg("-o").arg(program);
    if static_library {
        cc.arg(library.join("libweft.a")).args(["-lpthread", "-ldl", "-lm"]);
    } else {
        cc.arg("-L")
            .arg(library)
            .arg("-lweft")
            .arg(format!("-Wl,-rpath,{}", library.display()))
            .arg("-lpthread");
    }
    expect_success(source, &cc.output().expect("cc can be run"));
}

fn run(cluster: &Cluster, program: &Path) -> String {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).arg(cluster.url()).env("WEFT_KEY_FILE", cluster.key_file());
    expect_success("the C program", &command.output().expect("timeout can be run"))
}

#[test]
fn every_function_works_from_c() {
    let cluster = Cluster::start(3);
    let program = cluster.scratch("bin").join("capi");
    compile("tests/capi.c", &program, false);
    assert_eq!(run(&cluster, &program).lines().filter(|line| line.starts_with("ok ")).count(), 20);
}

#[test]
fn the_example_greets() {
    let cluster = Cluster::start(2);
    let program = cluster.scratch("bin").join("hello");
    compile("../../examples/c/hello.c", &program, true);
    let said = run(&cluster, &program);
    assert!(said.starts_with("Hello, striped world!\n/hello.txt: strips of "), "{said}");
}

#[test]
fn the_example_puts_tiles_together() {
    let cluster = Cluster::start(3);
    let program = cluster.scratch("bin").join("tiles");
    compile("../../examples/c/tiles.c", &program, false);
    let said = run(&cluster, &program);
    assert_eq!(said, "column 5 of tiles.f64: 5 17 29 41 53 65 77 89\nfirst 3 of 96 numbers: 0 1 2\n");
}

#[test]
fn the_example_passes_an_open_file_to_other_processes() {
    let cluster = Cluster::start(2);
    let program = cluster.scratch("bin").join("shared");
    compile("../../examples/c/shared.c", &program, false);
    assert_eq!(run(&cluster, &program), "8 of 8 processes have read their parts of /shared.dat\n");
}

#[test]
fn the_header_is_right_for_cpp() {
    let mut cpp = Command::new("c++");
    cpp.args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++"]);
    cpp.arg(format!("{CRATE}/include/weft.h"));
    expect_success("weft.h as C++", &cpp.output().expect("c++ can be run"));
}

/// Names of functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(format!("{CRATE}/include/weft.h")).unwrap();
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let before_parenthesis = code.split('(').filter_map(|part| part.rsplit([' ', '*', '\n']).next());
    before_parenthesis.filter(|name| name.starts_with("weft_")).map(String::from).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--format=posix"]).arg(c_library());
    let symbols = expect_success("nm", &nm.output().expect("nm can be run"));
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    assert_eq!(exported, declared());
}

#[test]
fn versions_agree() {
    let header = std::fs::read_to_string(format!("{CRATE}/include/weft.h")).unwrap();
    let numbers = env!("CARGO_PKG_VERSION").split('.');
    for (part, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(numbers) {
        assert!(header.contains(&format!("#define WEFT_VERSION_{part} {number}\n")), "{part} in weft.h");
    }
}
