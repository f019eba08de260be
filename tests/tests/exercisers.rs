//! Programs that others wrote to try file systems, for seconds: stress-ng's stressors, which check what they do, and fio, which reads
//! back what it wrote. `make long` runs more of both, for longer.

use std::process::{Child, Command, Stdio};
use weft_test_needs::Need;
use weft_tests::{Cluster, Mount, expect_success, preload_library};

/// A second each. What they do in it is little, but always the same kinds of calls.
const STRESSORS: &[&str] = &[
    "access",
    "chmod",
    "chown",
    "fallocate",
    "fcntl",
    "fpunch",
    "fsize",
    "getdent",
    "lockofd",
    "link",
    "rename",
    "utime",
    "xattr",
];

#[test]
fn stressors_of_stress_ng_find_nothing_wrong() {
    if !Need::StressNg.is_met() {
        return;
    }
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    for name in STRESSORS {
        let mut stress = Command::new("stress-ng");
        stress
            .args([&format!("--{name}"), "1", "--timeout", "1s", "--verify", "--temp-path"])
            .arg(mount.path());
        stress.args(["--fallocate-bytes", "16m"]);
        expect_success(name, &stress.output().expect("stress-ng can be run"));
        assert_eq!(mount.sh("ls -A"), "", "{name} has removed what it made");
    }
}

/// What stress-ng asks for by the number of a system call is done by Weft, too.
#[test]
fn stressors_of_stress_ng_find_nothing_wrong_under_weft_run() {
    if !Need::StressNg.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    preload_library();
    for name in ["chmod", "getdent", "fallocate", "lockofd", "utime", "xattr"] {
        let mut stress = cluster.command(&["run", "--url", cluster.url(), "--", "stress-ng", "--verify"]);
        stress.args([&format!("--{name}"), "1", "--timeout", "1s", "--temp-path", "/weft"]);
        stress.args(["--fallocate-bytes", "16m"]);
        expect_success(name, &stress.output().expect("weft can be run"));
    }
}

/// fio with a file of 8 MiB on a mount: `extra` says what it does there.
fn fio(mount: &Mount, extra: &[&str]) -> Child {
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--filename=file", "--size=8m", "--verify=crc32c", "--verify_fatal=1"]);
    fio.args(["--verify_state_save=0", "--randseed=7", "--fallocate=none", "--minimal"]);
    fio.arg(format!("--directory={}", mount.path().display())).args(extra);
    // It writes where it runs.
    fio.current_dir(std::env::temp_dir()).stdout(Stdio::piped()).stderr(Stdio::piped());
    fio.spawn().expect("fio can be run")
}

#[track_caller]
fn ends_well(fio: Child, what: &[&str]) {
    expect_success(&what.join(" "), &fio.wait_with_output().expect("it can be waited for"));
}

#[test]
fn what_fio_writes_through_one_mount_it_finds_through_another() {
    if !Need::Fio.is_met() {
        return;
    }
    let cluster = Cluster::start(3);
    let mounts = [cluster.mount(), cluster.mount()];
    let jobs: [&[&str]; 5] = [
        &["--rw=write", "--bs=128k"],
        &["--rw=randwrite", "--bs=4k"],
        &["--rw=randwrite", "--bsrange=512-100k", "--bs_unaligned", "--norandommap=0"],
        &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"],
        &["--rw=randwrite", "--bs=16k", "--ioengine=libaio", "--iodepth=8", "--direct=1"],
    ];
    for (number, job) in jobs.into_iter().enumerate() {
        let [one, other] = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        ends_well(fio(&mounts[one], &[job, &["--do_verify=0"]].concat()), job);
        ends_well(fio(&mounts[other], &[job, &["--verify_only=1"]].concat()), job);
    }
}

/// Neither wrote a byte of the other's half, also where the halves meet within a strip and a page.
#[test]
fn two_mounts_that_write_halves_of_a_file_at_once_keep_to_their_own() {
    if !Need::Fio.is_met() {
        return;
    }
    let cluster = Cluster::start(3);
    let mounts = [cluster.mount(), cluster.mount()];
    let halves = ["--offset=0", "--offset=5000k"];
    for size in ["--bs=4k", "--bs=20k"] {
        let job = |mount: usize, half: usize, how| {
            fio(&mounts[mount], &["--size=5000k", halves[half], size, "--rw=randwrite", how])
        };
        for (how, swapped) in [("--do_verify=0", false), ("--verify_only=1", true)] {
            let both = [0, 1].map(|half: usize| job(if swapped { 1 - half } else { half }, half, how));
            both.into_iter().for_each(|job| ends_well(job, &[size, how]));
        }
    }
}
