//! What is installed: `make install` into a directory, and the unit of systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use weft_test_needs::Need;
use weft_tests::mpi::mpi_library;
use weft_tests::{c_library, expect_success, package, preload_library, temporary_dir, weft_bin};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository")
}

fn run_output(output: &std::process::Output) -> String {
    expect_success("weft run", output)
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
        ("opt/weft/lib/libweft.so.0", 0o755),
        ("opt/weft/lib/libweft_preload.so", 0o755),
        ("opt/weft/lib/libweft_mpi.so", 0o755),
        ("opt/weft/lib/pkgconfig/weft.pc", 0o644),
        ("opt/weft/lib/pkgconfig/weft-mpi.pc", 0o644),
        ("opt/weft/include/weft.h", 0o644),
        ("opt/weft/lib/systemd/system/weft@.service", 0o644),
        ("opt/weft/share/man/man1/weft.1", 0o644),
        ("opt/weft/share/man/man1/weft-mount.1", 0o644),
        ("opt/weft/share/man/man7/weft-cluster.7", 0o644),
        ("opt/weft/share/bash-completion/completions/weft", 0o644),
        ("opt/weft/share/zsh/site-functions/_weft", 0o644),
        ("opt/weft/share/fish/vendor_completions.d/weft.fish", 0o644),
        ("opt/weft/lib/tmpfiles.d/weft.conf", 0o644),
        ("opt/weft/share/weft/grafana-dashboard.json", 0o644),
        ("opt/weft/share/weft/slurm/prolog", 0o755),
        ("opt/weft/share/doc/weft/LICENSE", 0o644),
        ("opt/weft/share/doc/weft/licences-of-dependencies.txt", 0o644),
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
    // It is linked with the version of the interface, and runs where only the library of that name is.
    let needed = run(Command::new("objdump").arg("-p").arg(staged.path().join("example")));
    assert!(
        needed.lines().any(|line| line.trim_start().starts_with("NEEDED") && line.ends_with("libweft.so.0")),
        "{needed}"
    );
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
    // With nothing installed: one copied file is enough if the libraries are in it.
    let home = at("home");
    let alone = |what: &str| {
        let mut command = Command::new(at("bin/weft"));
        command.args(["run", "--url", "weft://127.0.0.1:1/", "--", "sh", "-c", what]);
        command.env_remove("LD_PRELOAD").env_remove("WEFT_PRELOAD").env_remove("WEFT_MPI_LIBRARY");
        command.env_remove("XDG_CACHE_HOME").env("HOME", &home).output().expect("it can be run")
    };
    let said = alone("true");
    assert!(String::from_utf8_lossy(&said.stderr).contains("nor in this program"), "{said:?}");
    run(Command::new(root().join("scripts/embed.sh")).arg(at("bin/weft")).args([preload, &mpi]));
    let unpacked =
        run_output(&alone("echo $LD_PRELOAD; grep -c /.cache/weft/libweft_preload.so- /proc/self/maps"));
    let (libraries, mapped) = unpacked.split_once('\n').expect("two lines");
    assert!(mapped.trim().parse::<u32>().is_ok_and(|count| count > 0), "{unpacked}");
    let cache = home.join(".cache/weft");
    for library in libraries.split(':').map(Path::new) {
        assert!(library.starts_with(&cache), "{libraries}");
        assert_eq!(fs::metadata(library).expect("it is there").permissions().mode() & 0o777, 0o700);
    }
    assert_eq!(libraries.split(':').count(), 2);
    put(preload, "lib/libweft_preload.so");
    put(weft, "bin/weft");
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
    // What the unit leaves open, from 0 to 100: services without limits have 96.
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=yes", "--no-pager", "--threshold=30"]).arg(&path);
    let output = security.output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Files below a directory, sorted.
fn files_below(top: &Path) -> Vec<String> {
    let listed =
        run(Command::new("find").arg(top).args(["-mindepth", "1", "-not", "-type", "d", "-printf", "%P\n"]));
    let mut files: Vec<_> = listed.lines().map(ToOwned::to_owned).collect();
    files.sort();
    files
}

#[test]
fn what_is_installed_can_be_removed() {
    let weft = weft_bin();
    let staged = temporary_dir();
    let make = |what: &str| {
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "--old-file=build", what, "PREFIX=/usr"]);
        make.arg(format!("DESTDIR={}", staged.path().display()));
        make.arg(format!("BUILT={}", weft.parent().expect("it is in a directory").display()));
        run(make.current_dir(root()))
    };
    let _ = (preload_library(), c_library(), mpi_library());
    make("install");
    assert!(files_below(staged.path()).len() > 30);
    make("uninstall");
    assert_eq!(files_below(staged.path()), Vec::<String>::new());
}

#[test]
fn a_tarball_is_the_same_twice_and_runs_where_it_is_unpacked() {
    let (first, second) = (temporary_dir(), temporary_dir());
    let made = package("tarball", first.path());
    let again = package("tarball", second.path());
    assert_eq!(made.len(), 2, "programs, and what was stripped");
    for (one, other) in made.iter().zip(&again) {
        assert!(
            fs::read(one).expect("it is there") == fs::read(other).expect("it is there"),
            "{}",
            one.display()
        );
    }
    run(Command::new("tar").arg("-xf").arg(&made[0]).arg("-C").arg(first.path()));
    let top = fs::read_dir(first.path()).expect("it is there").flatten().find(|entry| entry.path().is_dir());
    let top = top.expect("a directory").path();
    let weft = top.join("bin/weft");
    assert_eq!(run(Command::new(&weft).arg("--version")), run(Command::new(weft_bin()).arg("--version")));
    let stripped = fs::metadata(&weft).expect("it is there").len();
    assert!(stripped < fs::metadata(weft_bin()).expect("it is there").len(), "{stripped} bytes");
    let sections = run(Command::new("objdump").arg("-h").arg(&weft));
    assert!(sections.contains(".gnu_debuglink") && !sections.contains(".debug_info"), "{sections}");
    assert!(top.join("LICENSE").exists() && top.join("include/weft.h").exists());
}

#[test]
fn a_debian_package_is_installed_and_removed_without_a_trace() {
    if !Need::Root.is_met() || !Need::Debian.is_met() {
        return;
    }
    let dir = temporary_dir();
    let made = package("deb", dir.path());
    let again = temporary_dir();
    let twice = package("deb", again.path());
    assert!(fs::read(&made[0]).expect("it is there") == fs::read(&twice[0]).expect("it is there"));
    let told = run(Command::new("dpkg-deb").arg("--info").arg(&made[0]));
    assert!(told.contains("Package: weft") && told.contains("Recommends: fuse3"), "{told}");
    // Into a root of its own, as an image is made.
    let target = dir.path().join("root");
    let admin = target.join("var/lib/dpkg");
    for made in ["info", "updates"] {
        fs::create_dir_all(admin.join(made)).expect("room");
    }
    for made in ["status", "available"] {
        fs::write(admin.join(made), "").expect("room");
    }
    let before = files_below(&target);
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.args(["--force-depends", "--force-script-chrootless", "--log=/dev/null"]);
        dpkg.arg(format!("--root={}", target.display())).args(arguments);
        run(&mut dpkg)
    };
    dpkg(&["--install", &made[0].display().to_string()]);
    let weft = target.join("usr/bin/weft");
    assert_eq!(run(Command::new(&weft).arg("--version")), run(Command::new(weft_bin()).arg("--version")));
    for path in ["usr/sbin/mount.weft", "usr/lib/systemd/system/weft@.service", "usr/share/man/man1/weft.1"] {
        assert!(fs::symlink_metadata(target.join(path)).is_ok(), "{path}");
    }
    let unit = fs::read_to_string(target.join("usr/lib/systemd/system/weft@.service")).expect("it is there");
    assert!(unit.contains("ExecStart=/usr/bin/weft serve"), "{unit}");
    dpkg(&["--purge", "weft"]);
    let left: Vec<_> =
        files_below(&target).into_iter().filter(|file| !file.starts_with("var/lib/dpkg/")).collect();
    assert_eq!(
        left,
        before.into_iter().filter(|file| !file.starts_with("var/lib/dpkg/")).collect::<Vec<_>>()
    );
}

#[test]
fn an_rpm_is_installed_and_removed_without_a_trace() {
    if !Need::Root.is_met() || !Need::Rpm.is_met() {
        return;
    }
    let dir = temporary_dir();
    let made = package("rpm", dir.path());
    let again = temporary_dir();
    let twice = package("rpm", again.path());
    assert!(fs::read(&made[0]).expect("it is there") == fs::read(&twice[0]).expect("it is there"));
    let target = dir.path().join("root");
    fs::create_dir(&target).expect("room");
    let rpm = |arguments: &[&str]| {
        let mut rpm = Command::new("rpm");
        // Without the programs that its scripts call: an empty root has none.
        rpm.arg(format!("--root={}", target.display()))
            .args(["--dbpath=/var/lib/rpm", "--nodeps", "--noscripts"])
            .args(arguments);
        run(&mut rpm)
    };
    rpm(&["-i", &made[0].display().to_string()]);
    let weft = target.join("usr/bin/weft");
    assert_eq!(run(Command::new(&weft).arg("--version")), run(Command::new(weft_bin()).arg("--version")));
    for path in ["usr/sbin/mount.weft", "usr/lib/systemd/system/weft@.service", "usr/lib/libweft.so.0"] {
        assert!(fs::symlink_metadata(target.join(path)).is_ok(), "{path}");
    }
    let told = run(Command::new("rpm").args(["-qp", "--scripts", "--requires"]).arg(&made[0]));
    assert!(told.contains("useradd --system") && told.contains("/usr/sbin/useradd"), "{told}");
    assert!(told.contains("glibc >= 2.") && told.contains("libgcc >= "), "{told}");
    rpm(&["-e", "weft"]);
    let left = files_below(&target);
    assert!(left.iter().all(|file| file.starts_with("var/lib/rpm/")), "{left:?}");
}
