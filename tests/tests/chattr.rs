//! chattr(1) and lsattr(1): append-only and immutable files and directories, on mounts and under `weft run`.

use std::path::Path;
use weft_test_needs::Need;
use weft_tests::{Cluster, preload_library, sh_in};

/// Tries what the flags forbid, and prints what could be done.
const TRIES: &str = r#"
try() { "${@:2}" 2>/dev/null && echo "$1" || true; }
tries() {
    try read dd if=$1 of=/dev/null status=none
    try append dd if=/etc/hostname of=$1 oflag=append conv=notrunc status=none
    try touch touch $1
    try write dd if=/etc/hostname of=$1 conv=notrunc status=none
    try truncate truncate -s 1 $1
    try chmod chmod 600 $1
    try chown chown 8 $1
    try attribute python3 -c "import os; os.setxattr('$1', 'user.a', b'1')"
    try link ln $1 $1.link
    try rename mv $1 $1.moved
    try remove rm $1
}
in_directory() {
    try create touch $1/$2
    try remove rm $1/old
    try rename mv $1/old $1/renamed
    try mkdir mkdir $1/$2.d
    try rmdir rmdir $1
}
"#;

/// What bash prints in `dir`, with the functions above.
fn sh(dir: &Path, script: &str) -> String {
    sh_in(dir, &format!("{TRIES}\n{script}")).replace('\n', " ").trim().to_owned()
}

#[test]
fn files_of_a_mount_are_made_append_only_and_immutable() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = (one.path(), two.path());
    for (name, bytes) in [("small", 10), ("striped", 300_000)] {
        let flags = |text: &str| sh(here, &format!("lsattr {name} | cut -d' ' -f1 | tr -d -")) == text;
        let tries = || sh(there, &format!("tries {name}"));
        sh(here, &format!("head -c {bytes} /dev/zero > {name}"));
        assert!(flags(""));
        sh(here, &format!("chattr +a {name}"));
        assert!(flags("a"));
        assert_eq!(tries(), "read append touch");
        sh(here, &format!("chattr -a +i {name}"));
        assert!(flags("i"));
        assert_eq!(tries(), "read");
        sh(here, &format!("chattr -i +d {name}"));
        assert!(flags("d"));
        assert_eq!(tries(), "read append touch write truncate chmod chown attribute link rename");
    }
    sh(here, "mkdir d; touch d/old; chattr +a d");
    assert_eq!(sh(there, "in_directory d one"), "create mkdir");
    sh(here, "chattr -a +i d");
    assert_eq!(sh(there, "in_directory d two"), "");
    sh(here, "chattr -i d");
    assert_eq!(sh(there, "rm -r d; ls"), "small.link small.moved striped.link striped.moved");
    for name in ["f", "d"] {
        let made = format!("{}; stat -c %z {name}", if name == "f" { "touch f" } else { "mkdir d" });
        let before = sh(here, &made);
        assert_ne!(sh(here, &format!("chattr +d {name}; stat -c %z {name}")), before, "{name} has changed");
        sh(here, &format!("chattr -d {name}; rm -r {name}"));
    }
    // Flags that are not kept, things that have none, and a user's rights.
    assert!(sh(here, "touch f; chattr +c f 2>&1 || true").contains("not supported"));
    let refused = "chown 7 f; setpriv --reuid 7 --clear-groups chattr +i f 2>&1 | grep -o 'not permitted' || true; \
                   setpriv --reuid 7 --clear-groups chattr +d f; lsattr f | tr -d -";
    assert_eq!(sh(here, refused), "not permitted d f");
    // Backup programs ask for the other form of the flags.
    assert_eq!(sh(here, "cp -a f g; lsattr g | tr -d -"), "g");
}

#[test]
fn programs_under_weft_run_set_and_see_the_flags() {
    if !Need::Root.is_met() {
        return;
    }
    preload_library();
    let cluster = Cluster::start(1);
    let script = "import fcntl, os, struct; fd = os.open('/weft/f', os.O_CREAT | os.O_RDWR); GET, SET = 0x80086601, 0x40086602; \
                  get = lambda: struct.unpack('i', fcntl.ioctl(fd, GET, bytes(4)))[0]; print(get()); \
                  fcntl.ioctl(fd, SET, struct.pack('i', 0x10)); print(get())\ntry: open('/weft/f', 'w')\nexcept \
                  PermissionError as error: print(error.errno)";
    let said = cluster.weft(&["run", "--url", cluster.url(), "--", "python3", "-c", script]);
    assert_eq!(said, "0\n16\n1\n");
    let mount = cluster.mount();
    assert_eq!(sh(mount.path(), "lsattr f | tr -d -; chattr -i +a f"), "i f");
    let script = "echo one >> /weft/f; (echo two > /weft/f) 2>/dev/null || echo refused; cat /weft/f";
    assert_eq!(cluster.weft(&["run", "--url", cluster.url(), "--", "bash", "-c", script]), "refused\none\n");
    assert_eq!(sh(mount.path(), "chattr -a f; rm f; ls"), "");
}
