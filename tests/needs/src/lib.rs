//! What a test needs of the machine, and how it says that it was skipped; and ports, which no two tests get.
//!
//! ```text
//!   if !Need::Root.is_met() { return }      the test ends here, and a line "TEST: needs root" goes to the file $WEFT_TEST_SKIPS
//!   …                                       the need is met: whatever fails from here on fails the test
//! ```
//!
//! A need is looked for by itself, never by trying what the test is about: a test whose need is met cannot be skipped because Weft
//! fails. The test runner (`xtask/src/test`) counts the lines of the file as skipped instead of passed.

mod ports;

pub use ports::free_ports;

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the file to which skipped tests are appended.
pub const SKIPS: &str = "WEFT_TEST_SKIPS";

/// What a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The tests run as root.
    Root,
    /// Network namespaces, made with `ip` by root.
    NetworkNamespaces,
    /// A mount namespace of one's own, as root or in a user namespace.
    MountNamespaces,
    /// Overlays of directories, mounted by root.
    OverlayMounts,
    /// An SSH server that needs no set-up, and OpenSSH's client.
    Ssh,
    /// The shells zsh and fish.
    OtherShells,
    /// The programs that make and install packages of Debian.
    Debian,
    /// A minimal Debian in a directory, root to run programs in it, and the programs that make packages.
    BareDebian,
    /// The programs that make and install packages of RPM.
    Rpm,
    /// Chromium, which shows pages without a screen.
    Chromium,
    /// Loop devices, used by root.
    LoopDevices,
    /// The program `rpcinfo`.
    Rpcinfo,
    /// The program `systemd-analyze`.
    SystemdAnalyze,
    /// A kernel that offers io_uring.
    IoUring,
    /// A kernel that can offer FUSE requests over io_uring, and root to switch it on.
    FuseOverIoUring,
    /// Debian's MPICH, with its compilers.
    Mpich,
    /// Debian's Open MPI, with its compilers.
    OpenMpi,
    /// A Fortran compiler, for MPI programs.
    Fortran,
    /// HDF5 for Python with MPI, and PnetCDF: those of Debian, with Open MPI.
    Hdf5AndNetcdf,
    /// The programs of libnfs.
    Libnfs,
    /// The program `stress-ng`.
    StressNg,
    /// The program `fio`.
    Fio,
    /// NFS-Ganesha with its VFS back end, rpcbind, and root to run both.
    Ganesha,
}

impl Need {
    /// Whether the machine has it. Where it has not, the calling test counts as skipped.
    #[must_use]
    pub fn is_met(self) -> bool {
        let is_met = self.is_there();
        if !is_met {
            skip(&format!("needs {self}"));
        }
        is_met
    }

    fn is_there(self) -> bool {
        match self {
            Need::Root => is_root(),
            Need::NetworkNamespaces => is_root() && succeeds("ip", &["-V"]),
            Need::MountNamespaces => {
                let flags = if is_root() { "-m" } else { "-rm" };
                succeeds("unshare", &[flags, "true"])
            }
            Need::OverlayMounts => is_root() && has_overlays(),
            Need::Ssh => succeeds("sh", &["-c", "command -v dropbear dropbearkey ssh ssh-keygen nsenter"]),
            Need::OtherShells => succeeds("sh", &["-c", "command -v zsh fish"]),
            Need::Debian => succeeds("sh", &["-c", "command -v dpkg-deb dpkg apt-get"]),
            Need::BareDebian => is_root() && Need::Debian.is_there() && bare_debian().is_some(),
            Need::Rpm => succeeds("sh", &["-c", "command -v rpm rpmbuild"]),
            Need::Chromium => succeeds("chromium", &["--version"]),
            Need::LoopDevices => is_root() && Path::new("/dev/loop-control").exists(),
            Need::Rpcinfo => Path::new("/usr/sbin/rpcinfo").exists(),
            Need::SystemdAnalyze => succeeds("systemd-analyze", &["--version"]),
            Need::IoUring => has_io_uring(),
            Need::Mpich => succeeds("mpicc.mpich", &["-show"]),
            Need::OpenMpi => succeeds("mpicc.openmpi", &["--showme"]),
            Need::Fortran => succeeds("gfortran", &["--version"]),
            Need::Hdf5AndNetcdf => {
                // h5py of Debian takes the module with MPI where a launcher has started it.
                let h5py = "import mpi4py, h5py._debian_h5py_mpi";
                succeeds("/usr/bin/python3", &["-c", h5py])
                    && Path::new("/usr/include/pnetcdf.h").exists()
                    && succeeds("sh", &["-c", "command -v ncdump && ls /usr/lib/*/libnetcdf_mpi.so"])
            }
            Need::Libnfs => Path::new("/usr/bin/nfs-ls").exists(),
            Need::StressNg => succeeds("stress-ng", &["--version"]),
            Need::Fio => succeeds("fio", &["--version"]),
            Need::Ganesha => {
                let vfs = "/usr/lib/*/ganesha/libfsalvfs.so";
                is_root()
                    && succeeds(
                        "sh",
                        &["-c", &format!("ls {vfs} && command -v ganesha.nfsd rpcbind unshare")],
                    )
            }
            Need::FuseOverIoUring => {
                is_root() && Path::new("/sys/module/fuse/parameters/enable_uring").exists()
            }
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::Root => "root",
            Need::NetworkNamespaces => "root and ip (package iproute2), for network namespaces",
            Need::MountNamespaces => "mount namespaces, as root or in a user namespace",
            Need::OverlayMounts => "root and a kernel with overlayfs",
            Need::Ssh => "dropbear, ssh and nsenter (packages dropbear-bin, openssh-client, util-linux)",
            Need::OtherShells => "zsh and fish",
            Need::Debian => "dpkg-deb and apt-get, as Debian has them",
            Need::BareDebian => {
                "root, dpkg-deb, and a minimal Debian at $WEFT_TEST_DEBIAN (scripts/debian-root.sh DIR makes it)"
            },
            Need::Rpm => "rpm and rpmbuild (package rpm)",
            Need::Chromium => "chromium",
            Need::LoopDevices => "root and /dev/loop-control",
            Need::Rpcinfo => "rpcinfo (package rpcbind)",
            Need::SystemdAnalyze => "systemd-analyze (package systemd)",
            Need::IoUring => "a kernel that offers io_uring to this user",
            Need::Mpich => "mpicc.mpich (packages mpich, libmpich-dev)",
            Need::OpenMpi => "mpicc.openmpi (packages openmpi-bin, libopenmpi-dev)",
            Need::Fortran => "gfortran",
            Need::Hdf5AndNetcdf => {
                "h5py with MPI, PnetCDF and netCDF-4 (packages python3-h5py-mpi, libpnetcdf-dev, libnetcdf-mpi-dev, \
                 netcdf-bin)"
            },
            Need::Libnfs => "nfs-ls (package libnfs-utils)",
            Need::StressNg => "stress-ng",
            Need::Fio => "fio",
            Need::Ganesha => "root and ganesha.nfsd (packages nfs-ganesha, nfs-ganesha-vfs, rpcbind)",
            Need::FuseOverIoUring => "root and a kernel with FUSE over io_uring (Linux 6.14)",
        })
    }
}

/// The directory with a minimal Debian that scripts/debian-root.sh has made.
#[must_use]
pub fn bare_debian() -> Option<std::path::PathBuf> {
    let dir = std::env::var_os("WEFT_TEST_DEBIAN").map(std::path::PathBuf::from)?;
    dir.join("etc/weft-made-of").exists().then_some(dir)
}

/// The calling test counts as skipped, for this reason. For what is no [`Need`]; the test has to end then.
///
/// # Panics
/// If the file named by `$WEFT_TEST_SKIPS` cannot be written: the test would count as passed.
pub fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    let Some(path) = std::env::var_os(SKIPS) else { return };
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    let appended =
        File::options().append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    appended.unwrap_or_else(|error| panic!("{SKIPS}: {}: {error}", path.display()));
}

/// Whether an overlay can be mounted: containers that are overlays themselves often cannot.
fn has_overlays() -> bool {
    let script = "dir=$(mktemp -d) && trap 'rmdir $dir' EXIT && unshare -m sh -c \"cd $dir && mount -t tmpfs tmpfs . && \
                  mkdir $dir/up $dir/work && mount -t overlay overlay -o lowerdir=/usr,upperdir=$dir/up,workdir=$dir/work /usr\"";
    succeeds("sh", &["-c", script])
}

fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn has_io_uring() -> bool {
    // `struct io_uring_params`: ten words of 32 bits and two tables of offsets, 120 bytes in all.
    let mut parameters = [0u8; 120];
    // SAFETY: `parameters` is as long as the kernel expects, and lives through the call.
    let descriptor = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    // SAFETY: a descriptor that nobody else has.
    descriptor >= 0 && unsafe { libc::close(descriptor as libc::c_int) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own, for the variable is one of the whole process.
    #[test]
    fn a_skipped_test_is_named_in_the_file() {
        const PART: &str = "WEFT_TEST_NEEDS_PART";
        if std::env::var_os(PART).is_some() {
            return skip("is only an example");
        }
        let path = std::env::temp_dir().join(format!("weft-test-needs-{}", std::process::id()));
        File::create(&path).unwrap();
        let name = "tests::a_skipped_test_is_named_in_the_file";
        let status = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads", "2"])
            .envs([(PART, "1".as_ref()), (SKIPS, path.as_os_str())])
            .stdout(Stdio::null())
            .status();
        let said = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(status.unwrap().success());
        assert_eq!(said, format!("{name}: is only an example\n"));
    }
}
