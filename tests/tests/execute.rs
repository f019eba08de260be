//! Programs on a mount are executed by whom their modes let, as on a local file system.

use std::path::Path;
use weft_test_needs::Need;
use weft_tests::{Cluster, python, temporary_dir};

/// Prints for each mode of a program what becomes of each user who executes it, and who reads it: 0, or an error.
const EXECUTIONS: &str = r#"
import os, sys

program = sys.argv[1] + "/program"
with open("/bin/true", "rb") as source, open(program, "wb") as copy:
    copy.write(source.read())
USERS = [(500, 1, []), (1000, 600, []), (1000, 1, [600]), (1000, 1, [1, 2, 600]), (1000, 1, []), (500, 600, [600]), (0, 0, [])]
MODES = [0o001, 0o010, 0o100, 0o011, 0o101, 0o110, 0o111, 0o555, 0o005, 0o050, 0o500, 0o051, 0o755, 0o711, 0o444, 0o000]

def outcome(user, act):
    uid, gid, groups = user
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups); os.setgid(gid); os.setuid(uid)
            act()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for owner in (500, 600), (0, 0):
    for mode in MODES:
        os.chown(program, *owner)
        os.chmod(program, mode)
        executed = [outcome(user, lambda: os.execv(program, [program])) for user in USERS]
        read = [outcome(user, lambda: os.open(program, os.O_RDONLY)) for user in USERS]
        print(owner[0], f"{mode:03o}", executed, read)
"#;

#[test]
fn the_permission_to_execute_is_enough() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let (mount, local) = (cluster.mount(), temporary_dir());
    let run = |top: &Path| {
        std::fs::set_permissions(top, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        python(EXECUTIONS, &[top])
    };
    let (on_mount, expected) = (run(mount.path()), run(local.path()));
    let differ: Vec<_> = on_mount.lines().zip(expected.lines()).filter(|(one, other)| one != other).collect();
    assert!(differ.is_empty() && expected.lines().count() == 32, "{differ:#?}");
    assert!(expected.contains("500 001 [13, 13, 13, 13, 0, 13, 0]"), "{expected}");
}
