//! This host: kernel, FUSE, limits, memory, RDMA, clock.

use super::{Findings, Level};
use std::path::{Path, PathBuf};

/// The oldest kernel that is tried.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// FUSE over io_uring.
const KERNEL_OF_RING: (u32, u32) = (6, 14);
const OPEN_FILES_MIN: u64 = 4096;
const SHM_BYTES_MIN: u64 = 64 << 20;
const LOCKED_BYTES_MIN: u64 = 256 << 20;

/// What is so on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// As uname(2) says it.
    pub release: String,
    /// Why /dev/fuse cannot be opened.
    pub fuse: Result<(), String>,
    /// Whether fusermount3 is there.
    pub has_fusermount: bool,
    /// Whether this process is root.
    pub is_root: bool,
    /// Mounts of Weft whose process is gone.
    pub dead_mounts: Vec<PathBuf>,
    /// The greatest number of open files.
    pub open_files_max: u64,
    /// What is free in /dev/shm; `None`: it is not there.
    pub shm_free_bytes: Option<u64>,
    /// /proc/sys/kernel/io_uring_disabled.
    pub uring_disabled: Option<u32>,
    /// /sys/module/fuse/parameters/enable_uring.
    pub fuse_ring: Option<bool>,
    /// /proc/sys/kernel/yama/ptrace_scope.
    pub ptrace_scope: Option<u32>,
    /// RDMA devices.
    pub rdma_devices: Vec<String>,
    /// Whether libibverbs and librdmacm are there.
    pub has_rdma_libraries: bool,
    /// How much memory may be locked; `None`: without limit.
    pub locked_bytes_max: Option<u64>,
    /// Whether something keeps the clock right.
    pub clock_is_kept: bool,
}

impl HostFacts {
    /// Looks.
    pub fn gather() -> HostFacts {
        let word = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let number = |path: &str| word(path).and_then(|text| text.parse().ok());
        let release = word("/proc/sys/kernel/osrelease").unwrap_or_default();
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        let in_path = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
        };
        let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        let rdma_devices = devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        HostFacts {
            release,
            fuse: fuse.map(drop).map_err(|error| error.to_string()),
            has_fusermount: in_path("fusermount3"),
            // SAFETY: always succeeds.
            is_root: unsafe { libc::geteuid() } == 0,
            dead_mounts: dead_mounts(),
            open_files_max: limit(libc::RLIMIT_NOFILE).unwrap_or(u64::MAX),
            shm_free_bytes: weft_host::space_of(Path::new("/dev/shm")).map(|space| space.available_bytes),
            uring_disabled: number("/proc/sys/kernel/io_uring_disabled"),
            fuse_ring: word("/sys/module/fuse/parameters/enable_uring").map(|text| text == "Y"),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            rdma_devices,
            has_rdma_libraries: ["libibverbs.so.1", "librdmacm.so.1"].iter().all(|name| has_library(name)),
            locked_bytes_max: limit(libc::RLIMIT_MEMLOCK),
            clock_is_kept: clock_is_kept(),
        }
    }

    /// What that means.
    pub fn judge(&self, findings: &mut Findings) {
        let kernel = version_of(&self.release);
        match kernel < KERNEL_MIN {
            true => findings.add(
                Level::Warning,
                "kernel",
                format!("Linux {} is older than {}.{}", self.release, KERNEL_MIN.0, KERNEL_MIN.1),
                "use a newer kernel: older ones are not tried",
            ),
            false => findings.ok("kernel", format!("Linux {}", self.release)),
        }
        match &self.fuse {
            Ok(()) => findings.ok("fuse-device", "/dev/fuse can be opened"),
            Err(error) => findings.add(
                Level::Warning,
                "fuse-device",
                format!("/dev/fuse cannot be opened: {error}. Nothing can be mounted here by this user"),
                "modprobe fuse; in a container, pass the device (--device /dev/fuse); chmod 666 /dev/fuse. Without it: weft run, MPI and the libraries",
            ),
        }
        match (self.has_fusermount, self.is_root) {
            (true, _) | (_, true) => findings.ok("fusermount", "what mounting needs is there"),
            _ => findings.add(
                Level::Warning,
                "fusermount",
                "fusermount3 is not there, without which only root can mount",
                "install the package fuse3",
            ),
        }
        for dir in &self.dead_mounts {
            findings.add(
                Level::Problem,
                "dead-mount",
                format!("the process of the mount on {} is gone", dir.display()),
                format!(
                    "weft umount {}, and mount it again; the system log says why it ended",
                    dir.display()
                ),
            );
        }
        match self.open_files_max < OPEN_FILES_MIN {
            true => findings.add(
                Level::Warning,
                "open-files",
                format!("a process may have {} files open", self.open_files_max),
                format!("ulimit -n {OPEN_FILES_MIN} or more, LimitNOFILE= in a service: servers and mounts need one for each file and connection"),
            ),
            false => findings.ok("open-files", format!("{} for a process", self.open_files_max)),
        }
        match self.shm_free_bytes {
            None => findings.add(
                Level::Warning,
                "shared-memory",
                "/dev/shm is not there: shared memory between programs and servers of this host cannot be used",
                "mount -t tmpfs tmpfs /dev/shm",
            ),
            Some(free) if free < SHM_BYTES_MIN => findings.add(
                Level::Warning,
                "shared-memory",
                format!("/dev/shm has {} MiB left", free >> 20),
                "remove what is left in it, or make it larger (mount -o remount,size=…)",
            ),
            Some(free) => findings.ok("shared-memory", format!("/dev/shm has {} MiB left", free >> 20)),
        }
        match self.uring_disabled {
            Some(disabled) if disabled > 0 => findings.add(
                Level::Note,
                "io-uring",
                format!("io_uring is turned off (kernel.io_uring_disabled = {disabled}): servers use plain system calls"),
                "sysctl kernel.io_uring_disabled=0",
            ),
            _ => findings.ok("io-uring", "servers may use io_uring"),
        }
        match self.fuse_ring {
            Some(true) => findings.ok("fuse-ring", "mounts get requests through an io_uring"),
            Some(false) if kernel >= KERNEL_OF_RING => findings.add(
                Level::Note,
                "fuse-ring",
                "FUSE over io_uring is turned off: each request of a mount costs a system call more",
                "echo Y > /sys/module/fuse/parameters/enable_uring",
            ),
            _ => findings.ok("fuse-ring", "not offered by this kernel"),
        }
        match self.ptrace_scope {
            Some(scope) if scope >= 2 => findings.add(
                Level::Note,
                "ptrace",
                format!("kernel.yama.ptrace_scope is {scope}: servers cannot reach the memory of programs on this host directly"),
                "sysctl kernel.yama.ptrace_scope=1; without it data is copied once more",
            ),
            _ => findings.ok("ptrace", "servers may reach the memory of programs that allow it"),
        }
        self.judge_rdma(findings);
        match self.clock_is_kept {
            true => findings.ok("clock-source", "the clock is kept right"),
            false => findings.add(
                Level::Note,
                "clock-source",
                "nothing keeps the clock of this host right",
                "run chrony or systemd-timesyncd: keys and capabilities expire by the clock",
            ),
        }
    }

    fn judge_rdma(&self, findings: &mut Findings) {
        if self.rdma_devices.is_empty() {
            return findings.ok("rdma-libraries", "no RDMA adapter here");
        }
        let devices = self.rdma_devices.join(", ");
        match self.has_rdma_libraries {
            true => findings.ok("rdma-libraries", format!("RDMA adapters: {devices}")),
            false => findings.add(
                Level::Warning,
                "rdma-libraries",
                format!("there are RDMA adapters ({devices}), and no libibverbs or librdmacm to use them"),
                "install libibverbs1, librdmacm1 and ibverbs-providers",
            ),
        }
        if let Some(bytes) = self.locked_bytes_max.filter(|bytes| *bytes < LOCKED_BYTES_MIN) {
            findings.add(
                Level::Warning,
                "locked-memory",
                format!("a process may lock {} KiB of memory, which RDMA needs more of", bytes >> 10),
                "ulimit -l unlimited, LimitMEMLOCK=infinity in a service",
            );
        }
    }
}

fn version_of(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn dead_mounts() -> Vec<PathBuf> {
    let is_dead = |dir: &Path| {
        std::fs::read_dir(dir).err().and_then(|error| error.raw_os_error()) == Some(libc::ENOTCONN)
    };
    let ours = weft_host::mounts().into_iter().filter(|mount| mount.is_weft());
    ours.map(|mount| mount.dir).filter(|dir| is_dead(dir)).collect()
}

/// A soft limit of this process; `None`: there is none.
fn limit(what: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable.
    unsafe { libc::getrlimit(what, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn has_library(name: &str) -> bool {
    let dirs = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let below = ["/lib", "/usr/lib"].iter().flat_map(std::fs::read_dir).flatten().flatten();
    dirs.into_iter().chain(below.map(|entry| entry.path())).any(|dir| dir.join(name).exists())
}

fn clock_is_kept() -> bool {
    // SAFETY: all-zero bytes are a valid `timex` that changes nothing.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is live and writable.
    unsafe { libc::adjtimex(&mut clock) != libc::TIME_ERROR }
}

#[cfg(test)]
pub(super) fn healthy() -> HostFacts {
    HostFacts {
        release: "6.18.4".into(),
        fuse: Ok(()),
        has_fusermount: true,
        is_root: false,
        dead_mounts: Vec::new(),
        open_files_max: 1 << 20,
        shm_free_bytes: Some(1 << 30),
        uring_disabled: Some(0),
        fuse_ring: Some(true),
        ptrace_scope: Some(1),
        rdma_devices: Vec::new(),
        has_rdma_libraries: true,
        locked_bytes_max: None,
        clock_is_kept: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(facts: &HostFacts) -> Vec<(Level, &'static str)> {
        let mut findings = Findings::default();
        facts.judge(&mut findings);
        assert!(findings.0.iter().all(|finding| super::super::NAMES.contains(&finding.name)));
        let bad = findings.0.iter().filter(|finding| finding.level != Level::Ok);
        assert!(bad.clone().all(|finding| !finding.cure.is_empty()));
        bad.map(|finding| (finding.level, finding.name)).collect()
    }

    #[test]
    fn each_fault_of_a_host_is_named() {
        let good = healthy();
        assert_eq!(found(&good), []);
        let rdma = HostFacts { rdma_devices: vec!["mlx5_0".into()], ..good.clone() };
        for (facts, level, name) in [
            (HostFacts { release: "4.19.0-amd64".into(), ..good.clone() }, Level::Warning, "kernel"),
            (HostFacts { fuse: Err("No such device".into()), ..good.clone() }, Level::Warning, "fuse-device"),
            (HostFacts { has_fusermount: false, ..good.clone() }, Level::Warning, "fusermount"),
            (HostFacts { dead_mounts: vec!["/mnt".into()], ..good.clone() }, Level::Problem, "dead-mount"),
            (HostFacts { open_files_max: 256, ..good.clone() }, Level::Warning, "open-files"),
            (HostFacts { shm_free_bytes: None, ..good.clone() }, Level::Warning, "shared-memory"),
            (HostFacts { shm_free_bytes: Some(1), ..good.clone() }, Level::Warning, "shared-memory"),
            (HostFacts { uring_disabled: Some(2), ..good.clone() }, Level::Note, "io-uring"),
            (HostFacts { fuse_ring: Some(false), ..good.clone() }, Level::Note, "fuse-ring"),
            (HostFacts { ptrace_scope: Some(3), ..good.clone() }, Level::Note, "ptrace"),
            (HostFacts { has_rdma_libraries: false, ..rdma.clone() }, Level::Warning, "rdma-libraries"),
            (HostFacts { locked_bytes_max: Some(65536), ..rdma }, Level::Warning, "locked-memory"),
            (HostFacts { clock_is_kept: false, ..good.clone() }, Level::Note, "clock-source"),
        ] {
            assert_eq!(found(&facts), [(level, name)], "{facts:?}");
        }
        // An old kernel has no ring to turn on.
        assert_eq!(found(&HostFacts { release: "6.1.0".into(), fuse_ring: Some(false), ..good.clone() }), []);
        assert_eq!(found(&HostFacts { has_fusermount: false, is_root: true, ..good }), []);
        assert!(!HostFacts::gather().release.is_empty());
    }
}
