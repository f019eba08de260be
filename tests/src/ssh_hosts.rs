//! Hosts that are reached by ssh: network namespaces, each with directories and an SSH server of its own.
//!
//! ```text
//!   login                     node1            node2            …
//!     /srv /mnt /root           the same paths, others in each
//!     ssh node1 …  ─────────►  dropbear
//! ```
//!
//! Hosts of [`SshHosts::start`] share this machine's system: `/srv`, `/mnt` and `/root` are the host's own, and `weft` is on the
//! search path of those that are not bare.
//!
//! Hosts of [`SshHosts::start_own`] have systems of their own: an overlay over this machine's `/etc`, `/usr` and `/var`, in which
//! packages can be installed, and a home of an ordinary user. Only the first host has `weft`.

use crate::{Network, end_with_parent, expect_success, temporary_dir, wait_until, weft_bin};
use crate::{mpi::mpi_library, preload_library};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use weft_test_needs::Need;

/// Where a host finds `weft`.
const PROGRAMS: &str = "/srv/.bin";
/// The ordinary user of hosts with systems of their own.
pub const USER: &str = "ann";
const USER_ID: u32 = 4321;
/// The search path of a login shell on Debian.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What hosts have.
#[derive(Debug, Clone, Copy)]
enum System<'a> {
    /// This machine's system; those named do not have `weft`.
    Shared { bare: &'a [&'a str] },
    /// One of its own. The first host has `weft`, if it is said so.
    Own { has_weft: bool },
}

/// The hosts. What still runs on them ends when they are dropped. (Fields are dropped in this order.)
#[derive(Debug)]
pub struct SshHosts {
    hosts: Vec<(String, Child)>,
    network: Network,
    scratch: TempDir,
}

impl SshHosts {
    /// Hosts of these names; `None` where there can be none. Those in `bare` do not have `weft`. Root of each may log in to each.
    pub fn start(names: &[&str], bare: &[&str]) -> Option<SshHosts> {
        SshHosts::boot_all(names, System::Shared { bare })
    }

    /// Hosts with systems of their own, on this machine's disk; `None` where there can be none. None has `weft`, except the first one
    /// with `has_weft`. Root and [`USER`] of each may log in to each as themselves.
    pub fn start_own(names: &[&str], has_weft: bool) -> Option<SshHosts> {
        if !Need::OverlayMounts.is_met() {
            return None;
        }
        SshHosts::boot_all(names, System::Own { has_weft })
    }

    fn boot_all(names: &[&str], system: System) -> Option<SshHosts> {
        if !Need::NetworkNamespaces.is_met() || !Need::Ssh.is_met() {
            return None;
        }
        let scratch = match system {
            System::Shared { .. } => temporary_dir(),
            // Copies of the program, of a hundred megabytes each in a test, are no load for the memory.
            System::Own { .. } => tempfile::tempdir().expect("a temporary directory"),
        };
        let network = Network::new(names);
        let lines: String = names.iter().map(|name| format!("{} {name}\n", network.address(name))).collect();
        fs::write(scratch.path().join("hosts"), format!("127.0.0.1 localhost\n{lines}")).expect("room");
        let key = scratch.path().join("key");
        done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
        let mut hosts = SshHosts { hosts: Vec::new(), network, scratch };
        for name in names {
            let child = match system {
                System::Shared { bare } => hosts.boot(name, &key, !bare.contains(name)),
                System::Own { has_weft } => hosts.boot_own(name, &key, has_weft && *name == names[0]),
            };
            hosts.hosts.push((name.to_string(), child));
        }
        for name in names {
            let address = format!("{}:22", hosts.network.address(name));
            wait_until("its SSH server listens", Duration::from_secs(20), || {
                let asked = hosts
                    .command(names[0], &format!("exec 3<>/dev/tcp/{}", address.replace(':', "/")))
                    .output();
                asked.is_ok_and(|output| output.status.success())
            });
        }
        Some(hosts)
    }

    fn boot(&self, name: &str, key: &Path, has_weft: bool) -> Child {
        let dir = self.dir(name);
        for below in ["srv/.bin", "mnt", "root"] {
            fs::create_dir_all(dir.join(below)).expect("room");
        }
        let home = dir.join("root");
        write_ssh(&home, key);
        if has_weft {
            // The login shell reads it, as it knows that it is started by an SSH server.
            fs::write(home.join(".bashrc"), format!("PATH={}\n", path())).expect("room");
        }
        for path in [&dir, &home] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("its owner");
        }
        let programs = weft_bin().parent().expect("a program is in a directory");
        let bind = if has_weft {
            format!("mount --bind {} {}/srv/.bin\n", programs.display(), dir.display())
        } else {
            String::new()
        };
        let script = format!(
            "{bind}mount --bind {scratch}/hosts /etc/hosts\nmount --rbind {dir}/srv /srv\nmount --bind {dir}/mnt /mnt\n\
             mount --bind {dir}/root /root\n",
            scratch = self.scratch.path().display(),
            dir = dir.display(),
        );
        self.start_ssh_server(name, &script)
    }

    /// A host whose system is an overlay over this machine's.
    fn boot_own(&self, name: &str, key: &Path, has_weft: bool) -> Child {
        let dir = self.dir(name);
        let user_home = dir.join("home").join(USER);
        for below in ["srv", "mnt", "root", "tmp"] {
            fs::create_dir_all(dir.join(below)).expect("room");
        }
        fs::create_dir_all(&user_home).expect("room");
        write_ssh(&dir.join("root"), key);
        write_ssh(&user_home, key);
        let owner = format!("{USER_ID}:{USER_ID}");
        done(Command::new("chown").arg("-R").arg(owner).arg(&user_home));
        fs::set_permissions(dir.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("its owner");
        let install = match has_weft {
            true => format!("cp {} /usr/local/bin/weft\n", self.one_file_program().display()),
            false => String::new(),
        };
        let script = format!(
            "for at in etc usr var; do
                 mkdir -p {dir}/changed/$at {dir}/work/$at
                 mount -t overlay overlay -o lowerdir=/$at,upperdir={dir}/changed/$at,workdir={dir}/work/$at /$at
             done
             for at in srv mnt root home; do mount --bind {dir}/$at /$at; done
             mount --bind {dir}/tmp /var/tmp
             cp {scratch}/hosts /etc/hosts
             echo '{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash' >> /etc/passwd
             echo '{USER}:x:{USER_ID}:' >> /etc/group
             {install}",
            scratch = self.scratch.path().display(),
            dir = dir.display(),
        );
        self.start_ssh_server(name, &script)
    }

    /// `weft` as it is installed: one file, with its libraries in it and without what is for debuggers.
    fn one_file_program(&self) -> PathBuf {
        let program = self.scratch.path().join("weft");
        done(Command::new("strip").arg("-o").arg(&program).arg(weft_bin()));
        let embed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/embed.sh");
        done(Command::new(embed).arg(&program).arg(preload_library()).arg(mpi_library()));
        program
    }

    /// Runs `script` in the namespaces of a host, and then its SSH server.
    fn start_ssh_server(&self, name: &str, script: &str) -> Child {
        let dir = self.dir(name);
        let host_key = dir.join("host_key");
        done(Command::new("dropbearkey").args(["-t", "ed25519", "-f"]).arg(&host_key));
        let script = format!(
            "set -e\n{script}\ncd /\nexec dropbear -F -E -e -s -r {key} -p 22 -P '' 2> {dir}/dropbear.log",
            dir = dir.display(),
            key = host_key.display(),
        );
        let mut command = self.network.inside(name, Path::new("sh"));
        command
            .args(["-c", &script])
            .env("PATH", path())
            .env_remove("WEFT_URL")
            .env_remove("SHLVL")
            .stdin(Stdio::null());
        command.spawn().expect("ip can be run")
    }

    /// The directory that has a host's directories.
    #[must_use]
    pub fn dir(&self, host: &str) -> PathBuf {
        self.scratch.path().join(host)
    }

    /// The address of a host.
    #[must_use]
    pub fn address(&self, host: &str) -> String {
        self.network.address(host)
    }

    /// A script for bash, run by root of a host.
    #[must_use]
    pub fn command(&self, host: &str, script: &str) -> Command {
        let (_, child) = self.hosts.iter().find(|(name, _)| name == host).expect("one of the hosts");
        let mut command = Command::new("nsenter");
        command.args(["-m", "-n", "-t", &child.id().to_string(), "bash", "-c", script]);
        command.env_clear().env("PATH", path()).env("HOME", "/root").env("USER", "root");
        // The runner of all tests finds what is left by it.
        command.envs(std::env::vars_os().filter(|(name, _)| name == "WEFT_TEST_DIR"));
        end_with_parent(&mut command);
        command
    }

    /// What a script prints that must end well.
    #[track_caller]
    pub fn sh(&self, host: &str, script: &str) -> String {
        expect_success(script, &self.output(host, script))
    }

    /// What becomes of a script.
    #[must_use]
    pub fn output(&self, host: &str, script: &str) -> Output {
        self.command(host, script).stdin(Stdio::null()).output().expect("nsenter can be run")
    }

    /// What becomes of a script of the user `user`, as of one who has logged in.
    #[must_use]
    pub fn output_as(&self, user: &str, host: &str, script: &str) -> Output {
        let mut command = self.command(host, "exec runuser -u \"$USER\" -- bash -c \"$SCRIPT\"");
        let home = if user == "root" { "/root".to_string() } else { format!("/home/{user}") };
        command.env("USER", user).env("HOME", home).env("PATH", USUAL_PATH).env("SCRIPT", script);
        command.stdin(Stdio::null()).output().expect("nsenter can be run")
    }

    /// The processes on a host that are not its SSH server's.
    #[must_use]
    pub fn processes(&self, host: &str) -> Vec<String> {
        let mut pids = self.pids(host);
        pids.retain(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !line.is_empty() && !line.starts_with("dropbear\0")
        });
        pids.iter()
            .map(|pid| {
                fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
            })
            .collect()
    }

    fn pids(&self, host: &str) -> Vec<String> {
        let listed = Command::new("ip").args(["netns", "pids", &self.network.namespace(host)]).output();
        let listed =
            listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        listed.split_whitespace().map(str::to_string).collect()
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        for name in self.hosts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            for pid in self.pids(&name) {
                let _ = Command::new("kill").args(["-9", &pid]).output();
            }
        }
        for (_, child) in &mut self.hosts {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets whoever has this home log in from and to all hosts, by one key.
fn write_ssh(home: &Path, key: &Path) {
    let ssh = home.join(".ssh");
    fs::create_dir_all(&ssh).expect("room");
    for (from, to) in [(key.to_path_buf(), "id_ed25519"), (key.with_extension("pub"), "authorized_keys")] {
        fs::copy(from, ssh.join(to)).expect("room");
    }
    fs::write(ssh.join("config"), "StrictHostKeyChecking accept-new\nLogLevel ERROR\n").expect("room");
    fs::set_permissions(ssh, fs::Permissions::from_mode(0o700)).expect("its owner");
}

fn path() -> String {
    format!("{PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin")
}

#[track_caller]
fn done(command: &mut Command) {
    let what = format!("{command:?}");
    expect_success(&what, &command.output().unwrap_or_else(|error| panic!("{what}: {error}")));
}
