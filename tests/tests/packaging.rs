//! What is installed: `make install` into a directory, and the unit of systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use weft_test_needs::Need;
use weft_tests::mpi::mpi_library;
use weft_tests::{c_library, expect_success, preload_library, temporary_dir, weft_bin};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    expect_success(&format!("{command:?}"), &output)
}

/// From what this test's profile has built. What `make build` does is not repeated.
#[test]
fn make_install_puts_everything_in_its_place() {
    let (weft, _, _, _) = (weft_bin(), preload_library(), c_library(), mpi_library());
    let staged = temporary_dir();
    let mut make = Command::new("make");
    make.arg("--no-print-directory").args(["--old-file=build", "install", "PREFIX=/opt/weft"]);
    make.arg(format!("DESTDIR={}", staged.path().display()));
    make.arg(format!("BUILT={}", weft.parent().expect("it is in a directory").display()));
    run(make.current_dir(root()));
    let at = |path: &str| staged.path().join(path);
    for (path, mode) in [
        ("opt/weft/bin/weft", 0o755),
        ("opt/weft/bin/weft-bench", 0o755),
        ("opt/weft/lib/libweft.so", 0o755),
        ("opt/weft/lib/libweft_preload.so", 0o755),
        ("opt/weft/lib/libweft_mpi.so", 0o755),
        ("opt/weft/lib/pkgconfig/weft.pc", 0o644),
        ("opt/weft/lib/pkgconfig/weft-mpi.pc", 0o644),
        ("opt/weft/include/weft.h", 0o644),
        ("opt/weft/lib/systemd/system/weft@.service", 0o644),
        ("opt/weft/share/man/man1/weft.1", 0o644),
        ("opt/weft/share/man/man1/weft-mount.1", 0o644),
        ("opt/weft/share/man/man7/weft-cluster.7", 0o644),
    ] {
        let found = fs::metadata(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found.len() > 100, "{path}");
        assert_eq!(found.permissions().mode() & 0o777, mode, "{path}");
    }
    assert_eq!(fs::read_link(at("sbin/mount.weft")).expect("a link"), Path::new("/opt/weft/bin/weft"));
    let version = |program: &Path| run(Command::new(program).arg("--version"));
    assert_eq!(version(&at("opt/weft/bin/weft")), version(weft));
    run(Command::new(at("opt/weft/bin/weft")).args(["bench", "--help"]));
    let unit = fs::read_to_string(at("opt/weft/lib/systemd/system/weft@.service")).expect("it is there");
    assert!(unit.contains("ExecStart=/opt/weft/bin/weft serve"), "it starts what was installed: {unit}");
    // A program in C is built and run with what was installed.
    let example = staged.path().join("example.c");
    fs::write(&example, "#include <weft.h>\nint main(void) { return weft_strerror(0) == 0; }\n")
        .expect("room");
    let mut cc = Command::new("cc");
    cc.arg(&example).arg("-o").arg(staged.path().join("example")).arg("-I").arg(at("opt/weft/include"));
    run(cc.arg("-L").arg(at("opt/weft/lib")).arg("-lweft"));
    run(Command::new(staged.path().join("example")).env("LD_LIBRARY_PATH", at("opt/weft/lib")));
    // The files of pkg-config say the same.
    for (name, library) in [("weft", "-lweft"), ("weft-mpi", "-lweft_mpi")] {
        let text = fs::read_to_string(at(&format!("opt/weft/lib/pkgconfig/{name}.pc"))).expect("it is there");
        assert!(text.starts_with("prefix=/opt/weft\n") && !text.contains('@'), "{text}");
        let libraries =
            text.lines().find_map(|line| line.strip_prefix("Libs: ")).expect("it links something");
        assert!(libraries.split(' ').any(|word| word == library), "{libraries}");
        let said = text.lines().find_map(|line| line.strip_prefix("Version: ")).expect("it has a version");
        assert!(version(weft).trim().ends_with(said) && !said.is_empty(), "{said}");
    }
}

/// `weft run` finds the library for MPI programs where it is installed, and works where it is not.
#[test]
fn weft_run_preloads_the_library_for_mpi_programs_if_it_is_installed() {
    let (weft, preload, mpi) = (weft_bin(), preload_library(), mpi_library());
    let staged = temporary_dir();
    let at = |path: &str| staged.path().join(path);
    let put = |from: &Path, to: &str| {
        fs::create_dir_all(at(to).parent().expect("it is in a directory")).expect("room");
        fs::copy(from, at(to)).expect("room");
    };
    put(weft, "bin/weft");
    put(preload, "lib/libweft_preload.so");
    let preloaded = |mpi_library: Option<&Path>| {
        let mut command = Command::new(at("bin/weft"));
        command.args(["run", "--url", "weft://127.0.0.1:1/", "--", "sh", "-c", "echo $LD_PRELOAD"]);
        command.env_remove("LD_PRELOAD").env_remove("WEFT_PRELOAD").env_remove("WEFT_MPI_LIBRARY");
        mpi_library.map(|path| command.env("WEFT_MPI_LIBRARY", path));
        run(&mut command).trim().replace(&format!("{}/", staged.path().display()), "")
    };
    assert_eq!(preloaded(None), "lib/libweft_preload.so");
    let given = format!("lib/libweft_preload.so:{}", mpi.display());
    assert_eq!(preloaded(Some(&mpi)), given);
    put(&mpi, "lib/libweft_mpi.so");
    assert_eq!(preloaded(None), "lib/libweft_preload.so:lib/libweft_mpi.so");
}

/// The unit of one server, with a program that is there.
#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = fs::read_to_string(root().join("packaging/weft@.service")).expect("it is there");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let words: Vec<_> = start.split(' ').collect();
    assert_eq!(words[1..], ["serve", "--config", "/etc/weft/weft.toml", "--name", "%i"]);
    for line in ["Type=notify", "RestartPreventExitStatus=78", "User=weft", "[Install]"] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    if !Need::SystemdAnalyze.is_met() {
        return;
    }
    let directory = temporary_dir();
    let path = directory.path().join("weft@io0.service");
    fs::write(&path, unit.replace(words[0], &weft_bin().display().to_string())).expect("room");
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["--man=no", "verify"]).arg(&path).output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    // Unknown keys are told of, and no failure.
    assert!(output.status.success() && !said.contains("weft@"), "{said}");
}
