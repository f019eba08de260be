//! Files without a name (`O_TMPFILE`) as programs use them: on a mount and under `weft run`, over killed programs and servers.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_client::{Client, Transport};
use weft_tests::{Cluster, Served, expect_success, gauge, preload_library, python, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// What programs do in an empty directory: by `tempfile`, with links from descriptors that succeed and that fail, over a fork.
const USES: &str = r#"
import ctypes, errno, os, sys, tempfile
top = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000

def unnamed(flags=0):
    return os.open(top, os.O_TMPFILE | os.O_RDWR | flags, 0o640)

def give_name(fd, name):
    # With a directory given, it follows the link of the descriptor.
    os.link(f"/proc/self/fd/{fd}", f"{top}/{name}", src_dir_fd=0)

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]

with tempfile.TemporaryFile(dir=top) as file:
    file.write(b"x" * 100_000)
    assert os.fstat(file.fileno()).st_nlink == 0 and os.listdir(top) == []

for bytes in 10, 300_000:
    fd = unnamed()
    assert os.write(fd, b"y" * bytes) == bytes
    assert os.listdir(top) == []
    give_name(fd, "named")
    os.write(fd, b"end")
    assert refused(give_name, fd, "named") == "EEXIST"
    os.close(fd)
    with open(f"{top}/named", "rb") as file:
        assert file.read() == b"y" * bytes + b"end"
    assert os.stat(f"{top}/named").st_nlink == 1 and os.listdir(top) == ["named"]
    os.unlink(f"{top}/named")

fd = unnamed()
give_name(fd, "lost")
os.unlink(f"{top}/lost")
assert refused(give_name, fd, "lost") == "ENOENT"
assert refused(give_name, unnamed(os.O_EXCL), "never") == "ENOENT"
assert refused(os.open, top, os.O_TMPFILE | os.O_RDONLY) == "EINVAL"
assert os.path.samestat(os.fstat(os.open(top, os.O_TMPFILE | os.O_RDWR | os.O_PATH)), os.stat(top))

fd = unnamed()
to = f"{top}/by-descriptor".encode()
assert libc.linkat(fd, b"", AT_FDCWD, to, 0) == -1 and ctypes.get_errno() == errno.ENOENT
assert libc.linkat(fd, b"", AT_FDCWD, to, AT_EMPTY_PATH) == 0 and os.fstat(fd).st_nlink == 1
os.unlink(to)

fd = unnamed()
os.write(fd, b"of the parent, ")
if os.fork() == 0:
    os.write(fd, b"of the child")
    give_name(fd, "inherited")
    os._exit(0)
assert os.wait()[1] == 0
os.close(fd)
assert open(f"{top}/inherited").read() == "of the parent, of the child"
os.unlink(f"{top}/inherited")
"#;

/// Writes to a file without a name and waits. What comes on its standard input is the name it gives it.
const HOLDER: &str = r#"
import os, sys
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"z" * 300_000)
print(os.fstat(fd).st_ino, flush=True)
for name in sys.stdin:
    os.link(f"/proc/self/fd/{fd}", f"{sys.argv[1]}/{name.strip()}", src_dir_fd=0)
    os.write(fd, b"end")
"#;

fn holder(dir: &Path) -> (Child, u64) {
    let mut command = Command::new("python3");
    command.args(["-c", HOLDER]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python is installed");
    let mut said = String::new();
    let out = child.stdout.as_mut().expect("it is piped");
    while !said.ends_with('\n') {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).expect("it can be read"), 1, "it has ended");
        said.push(byte[0].into());
    }
    (child, said.trim().parse().expect("a number"))
}

fn removed_files(client: &Client) -> u64 {
    gauge(client, "garbage_removed_files")
}

#[test]
fn programs_use_files_without_a_name_on_a_mount_and_under_weft_run() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    std::fs::create_dir(mount.join("mounted")).unwrap();
    std::fs::create_dir(mount.join("preloaded")).unwrap();
    python(USES, &[mount.join("mounted")]);
    preload_library();
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--", "python3", "-c", USES]);
    let output = command.arg("/weft/preloaded").output().expect("weft can be run");
    expect_success("files without a name under weft run", &output);
    wait_until("what got no name is collected", PATIENCE, || {
        cluster.client().statfs().expect("it is up").files == 3
    });
    assert!(cluster.weft(&["fsck", cluster.url()]).contains("nothing is wrong"));
}

#[test]
fn a_file_without_a_name_goes_with_the_program_that_is_killed() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let client = cluster.client();
    let (mut program, ino) = holder(mount.path());
    assert_eq!(client.getattr(ino).unwrap().nlink, 0);
    assert!(cluster.weft(&["fsck", cluster.url()]).contains("nothing is wrong"), "while it is open");
    program.kill().unwrap();
    program.wait().unwrap();
    wait_until("its data is removed", PATIENCE, || removed_files(&client) > 0);
    assert!(client.getattr(ino).is_err(), "and its inode");
}

#[test]
fn a_file_without_a_name_outlives_servers_that_are_killed_and_gets_its_name_then() {
    let mut cluster = Served::start(2);
    let mount = cluster.mount();
    let (mut named, _) = holder(mount.path());
    let (mut left, ino) = holder(mount.path());
    for name in cluster.names() {
        cluster.kill(&name);
        cluster.spawn(&name);
        cluster.wait_ready(&name);
    }
    let mut input = named.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut input, b"named\n").unwrap();
    drop((input, left.stdin.take()));
    assert!(named.wait().unwrap().success() && left.wait().unwrap().success());
    let content = std::fs::read(mount.join("named")).unwrap();
    assert!(content.len() == 300_003 && content.starts_with(b"zzz") && content.ends_with(b"zend"));
    let client = cluster.client(Transport::Auto);
    wait_until("the other is collected", PATIENCE, || client.getattr(ino).is_err());
}
