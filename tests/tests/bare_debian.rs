//! The Debian package, and the image of packaging/Containerfile, in a minimal Debian: no systemd, no FUSE, nothing that the package
//! does not ask for.
//!
//! The Debian is the lower layer of an overlay, so that each test has a fresh one. There is no network. Without a minimal Debian
//! (`WEFT_TEST_DEBIAN`), the package's own script is run with a search path that lacks programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use weft_test_needs::{Need, bare_debian};
use weft_tests::{end_with_parent, expect_success, package};

/// A minimal Debian with a package of Weft in it, as /weft.deb.
struct Debian {
    scratch: TempDir,
    lower: PathBuf,
}

impl Debian {
    fn new() -> Option<Debian> {
        if !Need::BareDebian.is_met() || !Need::OverlayMounts.is_met() {
            return None;
        }
        let debian =
            Debian { scratch: tempfile::tempdir().expect("a temporary directory"), lower: bare_debian()? };
        for dir in ["changed", "work", "root"] {
            fs::create_dir(debian.scratch.path().join(dir)).expect("room");
        }
        let made = package("deb", debian.scratch.path());
        fs::copy(&made[0], debian.changed("weft.deb")).expect("room");
        Some(debian)
    }

    /// A file of this Debian, if it differs from the lower layer.
    fn changed(&self, path: &str) -> PathBuf {
        self.scratch.path().join("changed").join(path)
    }

    /// Runs a script by root in the Debian, in which processes, mounts and network are its own.
    fn output(&self, script: &str) -> Output {
        const AROUND: &str = r#"set -e
            mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$SCRATCH/changed,workdir=$SCRATCH/work" "$SCRATCH/root"
            cd "$SCRATCH/root"
            mount -t proc proc proc
            mount -t tmpfs tmpfs dev
            mkdir dev/shm
            for device in null zero urandom; do : > dev/$device; mount --bind /dev/$device dev/$device; done
            ip link set lo up
            exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot . sh -euc "$SCRIPT""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", AROUND]);
        command.env("LOWER", &self.lower).env("SCRATCH", self.scratch.path()).env("SCRIPT", script);
        end_with_parent(&mut command);
        command.stdin(Stdio::null()).output().expect("unshare can be run")
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        expect_success(script, &self.output(script))
    }
}

const INSTALL: &str = "apt-get install -y -q --no-install-recommends /weft.deb";

/// Fields of a package's control file.
fn field(package: &Path, name: &str) -> String {
    let output = Command::new("dpkg-deb").arg("--field").arg(package).arg(name).output();
    expect_success(name, &output.expect("dpkg-deb can be run")).trim().to_string()
}

#[test]
fn the_package_makes_its_user_and_directories() {
    let Some(debian) = Debian::new() else { return };
    assert!(!debian.lower.join("usr/bin/systemd-sysusers").exists(), "it is minimal");
    debian.sh(INSTALL);
    let made = "getent passwd weft | cut -d: -f1,6,7; stat -c '%n %a %U:%G' /etc/weft /var/lib/weft";
    let as_wanted =
        "weft:/var/lib/weft:/usr/sbin/nologin\n/etc/weft 755 root:root\n/var/lib/weft 750 weft:weft\n";
    assert_eq!(debian.sh(made), as_wanted);
    // They are fit for a server, and the package for everything that a file needs.
    debian.sh(
        "runuser -u weft -- weft init --dir /var/lib/weft/c --meta 127.0.0.1:7400:/var/lib/weft/meta --io 127.0.0.1:7401:/var/lib/weft/io
         for name in meta0 io0; do runuser -u weft -- weft serve --config /var/lib/weft/c/weft.toml --name $name --format; done
         export WEFT_URL=$(weft up --dir /demo --detach)
         weft cp /etc/os-release weft:/first
         weft run -- cat /weft/first | cmp - /etc/os-release
         weft down --dir /demo",
    );
    // What the administrator has changed stays when the package is installed again, and when it is removed.
    debian.sh("chmod 700 /etc/weft; echo mine > /etc/weft/weft.toml");
    debian.sh("dpkg --install /weft.deb");
    assert_eq!(debian.sh("stat -c %a /etc/weft; ls /etc/weft"), "700\nweft.toml\n");
    debian.sh("apt-get purge -y -q weft");
    assert_eq!(debian.sh("cat /etc/weft/weft.toml; id -un weft"), "mine\nweft\n");
}

#[test]
fn a_package_that_cannot_make_its_user_is_not_installed() {
    let Some(debian) = Debian::new() else { return };
    debian.sh("rm /usr/sbin/useradd");
    let output = debian.output(INSTALL);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("weft: cannot make the user weft: useradd"), "{said}");
    assert!(!debian.sh("dpkg --status weft").contains("Status: install ok installed"));
    // As it says: with what was missing it is installed.
    debian.sh("printf '#!/bin/sh\necho weft:x:199:199::/var/lib/weft:/usr/sbin/nologin >> /etc/passwd; echo weft:x:199: >> /etc/group\n' > /usr/sbin/useradd");
    debian.sh("chmod 755 /usr/sbin/useradd; dpkg --configure weft; test -d /var/lib/weft");
}

/// The package's script, where there is no Debian to install it in.
#[test]
fn the_script_of_the_package_fails_without_the_programs_that_make_users() {
    if !Need::Debian.is_met() || !Need::MountNamespaces.is_met() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let made = package("deb", scratch.path());
    let scripts = scratch.path().join("scripts");
    let unpacked = Command::new("dpkg-deb").arg("--control").arg(&made[0]).arg(&scripts).output();
    expect_success("dpkg-deb", &unpacked.expect("dpkg-deb can be run"));
    // A search path with all that the script calls before a user is there, which says that there is no user.
    let few = scratch.path().join("few");
    fs::create_dir(&few).expect("room");
    symlink("/bin/false", few.join("getent")).expect("room");
    let run = |root: &str| {
        let mut script = Command::new("/bin/sh");
        script.arg(scripts.join("postinst")).arg("configure").env_clear();
        script.env("PATH", &few).env("DPKG_ROOT", root).output().expect("sh can be run")
    };
    let output = run("");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("cannot make the user weft"), "{said}");
    // Into a directory, as images are made: it says that they are not made.
    let output = run("/elsewhere");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("are not made in /elsewhere"), "{said}");
}

/// The package asks for the libraries that its programs need, in the versions that they need.
#[test]
fn the_package_depends_on_what_dpkg_shlibdeps_finds() {
    if !Need::Debian.is_met() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let made = package("deb", scratch.path());
    let depends = field(&made[0], "Depends");
    let versioned =
        |library: &str| depends.split(", ").any(|one| one.starts_with(&format!("{library} (>= ")));
    assert!(versioned("libc6") && versioned("libgcc-s1"), "{depends}");
    if Command::new("dpkg-shlibdeps").arg("--version").output().is_err() {
        return;
    }
    let tree = scratch.path().join("tree");
    let unpacked = Command::new("dpkg-deb").arg("--extract").arg(&made[0]).arg(&tree).output();
    expect_success("dpkg-deb", &unpacked.expect("dpkg-deb can be run"));
    fs::create_dir(scratch.path().join("debian")).expect("room");
    fs::write(scratch.path().join("debian/control"), "Source: weft\n\nPackage: weft\nArchitecture: any\n")
        .expect("room");
    let programs =
        ["bin/weft", "bin/weft-bench", "lib/libweft.so", "lib/libweft_preload.so", "lib/libweft_mpi.so"];
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    shlibdeps.arg("-O").args(programs.map(|program| tree.join("usr").join(program)));
    let output = shlibdeps.current_dir(scratch.path()).output().expect("it was run before");
    let found = expect_success("dpkg-shlibdeps", &output);
    let found = found.trim().trim_start_matches("shlibs:Depends=");
    for dependency in found.split(", ") {
        let (library, version) = dependency.split_once(" (>= ").expect("a version");
        let ours = depends.split(", ").find_map(|one| one.strip_prefix(&format!("{library} (>= ")));
        let ours = ours.unwrap_or_else(|| panic!("{dependency} is not in {depends}"));
        let is_enough = Command::new("dpkg")
            .args(["--compare-versions", ours.trim_end_matches(')'), "ge", version.trim_end_matches(')')])
            .status();
        assert!(is_enough.is_ok_and(|status| status.success()), "{dependency}: {depends}");
    }
}

/// The words of an instruction of the Containerfile, which occurs once. Lines that end with a backslash go on.
fn instruction(containerfile: &str, name: &str) -> String {
    let joined = containerfile.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let joined = joined.replace("\\\n", " ");
    let mut found = joined.lines().filter_map(|line| line.strip_prefix(&format!("{name} ")));
    let words = found.next().unwrap_or_else(|| panic!("no {name}")).trim().to_string();
    assert!(found.next().is_none(), "{name} twice");
    words
}

/// What `podman build` and `podman run` do, without them.
#[test]
fn the_image_runs_servers_and_not_as_root() {
    let Some(debian) = Debian::new() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/Containerfile");
    let text = fs::read_to_string(path).expect("it is there");
    assert!(instruction(&text, "FROM").starts_with("debian:bookworm"));
    let copied = instruction(&text, "COPY");
    let to = copied.split(' ').next_back().expect("a path");
    debian.sh(&format!("cp /weft.deb {to}"));
    debian.sh(&instruction(&text, "RUN"));
    let user = instruction(&text, "USER");
    assert_eq!(user, "weft");
    assert_eq!(instruction(&text, "ENTRYPOINT"), "[\"weft\"]");
    assert_eq!(debian.sh("id -u weft; id -g weft; stat -c '%u:%g' /var/lib/weft"), "740\n740\n740:740\n");
    debian.sh(&format!(
        "export HOME=/var/lib/weft
         as() {{ setpriv --reuid {user} --regid {user} --clear-groups \"$@\"; }}
         as weft version
         export WEFT_URL=$(as weft up --dir /var/lib/weft/demo --detach)
         as weft cp /etc/os-release weft:/first
         as weft cat weft:/first | cmp - /etc/os-release
         as weft down --dir /var/lib/weft/demo
         command -v fusermount3"
    ));
}
