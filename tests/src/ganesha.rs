//! NFS-Ganesha, a server of NFSv3 that is not Weft's, exporting a directory in memory.
//!
//! ```text
//!   namespace of processes and mounts, which ends with the test
//!     /run is empty     rpcbind, without a network: Ganesha wants to register somewhere, and shall not at the host's
//!     ganesha.nfsd      NFS and MOUNT on two ports of 127.0.0.1
//! ```

use crate::{END_TIMEOUT, end_with_parent, free_ports, wait_until};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Starts rpcbind, so that `/run/rpcbind.sock` is there. `$ALONE` runs it in a network of its own.
const RPCBIND: &str = "
mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p /run/rpcbind /run/ganesha || exit 1
$ALONE rpcbind -f -w &
for i in $(seq 200); do [ -S /run/rpcbind.sock ] && break; sleep 0.05; done
";

/// The server. Dropping it ends it.
pub struct Ganesha {
    dir: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Ganesha {
    /// Starts a server that exports an empty directory.
    pub fn start() -> Ganesha {
        let dir = crate::temporary_dir();
        let mut server = Ganesha { dir, port: free_ports(2), child: None };
        std::fs::create_dir(server.exported()).expect("a directory can be made");
        server.begin();
        server
    }

    /// The directory that is exported.
    pub fn exported(&self) -> PathBuf {
        self.dir.path().join("export")
    }

    /// A directory beside it.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// URL of a path in the export.
    pub fn url(&self, path: &str) -> String {
        let (port, mount_port) = (self.port, self.port + 1);
        let path = self.exported().join(path);
        format!("nfs://127.0.0.1:{port}{}?mountport={mount_port}", path.display())
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("it is a child");
            wait_until("Ganesha is gone", END_TIMEOUT, || {
                !self.is_there(self.port) && !self.is_there(self.port + 1)
            });
        }
    }

    /// Starts it again after [`Ganesha::kill`].
    pub fn begin(&mut self) {
        let config = self.dir.path().join("ganesha.conf");
        std::fs::write(&config, self.config()).expect("the configuration can be written");
        let serve = format!("exec {}", self.command());
        let mut command = namespaces(&["-m", "-p"], "unshare -n", &serve);
        end_with_parent(&mut command);
        let log = std::fs::File::create(self.dir.path().join("out")).expect("a log can be made");
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        self.child = Some(command.spawn().expect("unshare can be run"));
        wait_until("Ganesha serves", END_TIMEOUT, || {
            self.is_there(self.port) && self.is_there(self.port + 1)
        });
    }

    fn is_there(&self, port: u16) -> bool {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    /// Runs a command in a network of its own, where this server is registered with a portmapper: its output. Ganesha binds to
    /// no address of a network that has only loopback ones.
    pub fn with_portmapper(&self, command: &str) -> std::process::Output {
        let script = format!(
            "ip link set lo up && ip addr add 10.9.9.9/32 dev lo; {} & for i in $(seq 200); do rpcinfo -t 127.0.0.1 100005 3 >/dev/null 2>&1 && break; \
             sleep 0.1; done; {command}",
            self.command()
        );
        namespaces(&["-m", "-p", "-n"], "", &script).output().expect("unshare can be run")
    }

    fn command(&self) -> String {
        let dir = self.dir.path().display();
        format!("ganesha.nfsd -F -f {dir}/ganesha.conf -L {dir}/ganesha.log -p /run/ganesha.pid")
    }

    fn config(&self) -> String {
        let (port, mount_port, path) = (self.port, self.port + 1, self.exported());
        format!(
            "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1;
               Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = false; }}
             NFSV4 {{ Graceless = true; }}
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
               SecType = sys; Protocols = 3; Transports = TCP; Disable_ACL = true; FSAL {{ Name = VFS; }} }}
             LOG {{ Default_Log_Level = EVENT; }}\n",
            path = path.display()
        )
    }
}

/// A script in namespaces of its own, behind that which starts rpcbind.
fn namespaces(kinds: &[&str], alone: &str, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(kinds).args(["--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    command.arg(format!("ALONE='{alone}'\n{RPCBIND}\n{script}")).stdin(Stdio::null());
    command
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["out", "ganesha.log"] {
                let text = std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
                eprintln!("--- {name}\n{text}");
            }
        }
        self.kill();
    }
}
