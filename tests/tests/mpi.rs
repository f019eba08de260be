//! MPI-IO: programs that use it (`tests/mpi`), with each MPI library of this machine, on Weft.
//!
//! `WEFT_TEST_MPI_OWN=1 cargo test -p weft-tests --test mpi` runs them with each library's own MPI-IO on a local directory, which
//! proves the programs. `WEFT_TEST_MPI_PROGRAMS="types randomio"` runs only these. Debian's two
//! libraries run all programs. The other three run those that depend on the binary interface, and all of them with
//! `WEFT_TEST_MPI_ALL=1`, as in `make long`.

use std::ffi::OsString;
use std::time::Duration;
use weft_test_needs::Need;
use weft_tests::mpi::{Ended, Job, Mpi, Place, constants, differences, is_own};
use weft_tests::{Cluster, Served, temporary_dir};

/// The programs for four processes.
const PROGRAMS: &[&str] =
    &["basics", "access", "types", "pointers", "consistency", "datarep", "bad", "mixed", "randomio"];

/// Of these, the ones that pass the interface's constants, handles and structures in every form.
const INTERFACE_PROGRAMS: &[&str] = &["basics", "types", "bad"];

fn cluster() -> Option<Cluster> {
    (!is_own()).then(|| Cluster::start(4))
}

fn is_wanted(program: &str) -> bool {
    std::env::var("WEFT_TEST_MPI_PROGRAMS").map_or(true, |names| names.split(' ').any(|name| name == program))
}

fn job(mpi: Mpi, program: &str, place: &Place) -> Ended {
    let mut job = Job::new(mpi, program, place);
    if program == "randomio" {
        job.arguments(["200", "5"]).env("WEFT_TEST_SEED", weft_test_random::seed().to_string());
    }
    job.run()
}

/// All programs with a library.
#[track_caller]
fn all_programs(mpi: Mpi) {
    run_programs(mpi, PROGRAMS);
}

/// The programs that depend on the binary interface. The others do the same with every library.
#[track_caller]
fn interface_programs(mpi: Mpi) {
    let is_all = std::env::var_os("WEFT_TEST_MPI_ALL").is_some() || is_own();
    run_programs(mpi, if is_all { PROGRAMS } else { INTERFACE_PROGRAMS });
}

/// Runs each program, also after one that failed, and lists all failures.
#[track_caller]
fn run_programs(mpi: Mpi, programs: &[&str]) {
    if !mpi.is_met() {
        return;
    }
    let (cluster, dir) = (cluster(), temporary_dir());
    let place = Place::of_mode(&cluster, dir.path());
    let mut complaints = Vec::new();
    for program in programs.iter().filter(|program| is_wanted(program)) {
        let ended = job(mpi, program, &place);
        println!("{program}: {:.1} s", ended.took.as_secs_f64());
        complaints.extend(ended.complaint());
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn programs_with_mpich_of_debian() {
    all_programs(Mpi::DebianMpich);
}

#[test]
fn programs_with_open_mpi_of_debian() {
    all_programs(Mpi::DebianOpenMpi);
}

#[test]
fn programs_with_mpich_5() {
    interface_programs(Mpi::Mpich5);
}

#[test]
fn programs_with_the_abi_of_mpi_5() {
    interface_programs(Mpi::Mpich5Abi);
}

#[test]
fn programs_with_open_mpi_5() {
    interface_programs(Mpi::OpenMpi5);
}

#[test]
fn fortran_in_its_three_bindings() {
    if !Need::Fortran.is_met() {
        return;
    }
    let (cluster, dir) = (cluster(), temporary_dir());
    for mpi in [Mpi::DebianMpich, Mpi::DebianOpenMpi].into_iter().filter(|mpi| mpi.is_met()) {
        for program in ["fortran1", "fortran2", "fortran3"] {
            job(mpi, program, &Place::of_mode(&cluster, dir.path())).expect_ok();
        }
    }
}

/// mpi4py's own tests of MPI-IO, by one process and by three.
#[test]
fn the_tests_of_mpi4py() {
    let (cluster, dir) = (cluster(), temporary_dir());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/mpi4py_io.py");
    for mpi in [Mpi::Mpich5, Mpi::OpenMpi5].into_iter().filter(|mpi| mpi.is_met()) {
        let tests = weft_tests::mpi::mpi4py_tests();
        for processes in [1, 3] {
            let words =
                [mpi.python().expect("a wheel has Python").into(), script.into(), tests.clone().into()];
            let place = Place::of_mode(&cluster, dir.path());
            let mut job = Job::of(mpi, "mpi4py", &words, &place, processes, Some("mpi4py"));
            // Hundreds of small collective calls, each of which waits for a turn on a busy processor.
            job.arguments((!is_own()).then_some("--all")).limit(Duration::from_secs(400));
            job.run().expect_ok();
        }
    }
}

/// Libraries that use MPI-IO below, and look at their files by usual system calls besides: `weft run` takes both.
#[test]
fn hdf5_and_netcdf_under_weft_run() {
    let mpi = Mpi::DebianOpenMpi;
    if is_own() || !mpi.is_met() || !Need::Hdf5AndNetcdf.is_met() {
        return;
    }
    let cluster = Cluster::start(4);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/h5py_io.py");
    let [pnetcdf, netcdf] = ["pnetcdf", "netcdf"].map(|name| mpi.program(name).display().to_string());
    let h5py = ["/usr/bin/python3", script, "/weft/a.h5"];
    for program in [&h5py[..], &[&pnetcdf, "/weft/a.nc"], &[&netcdf, "/weft/b.nc"]] {
        let weft = weft_tests::weft_bin();
        weft_tests::preload_library();
        weft_tests::mpi::mpi_library();
        let words = [weft.as_os_str(), "run".as_ref(), "--".as_ref()];
        let words: Vec<_> =
            words.into_iter().chain(program.iter().map(|word| word.as_ref())).map(OsString::from).collect();
        Job::of(mpi, program[0], &words, &Place::Weft(&cluster), 4, None).run().expect_ok();
    }
    // A program without MPI, on another build of the library, reads what four processes have written.
    let words = ["run", "--url", cluster.url(), "--", "ncdump", "-v", "series", "/weft/b.nc"];
    let dumped = cluster.weft(&words);
    assert!(dumped.contains("record = UNLIMITED ; // (5 currently)"), "{dumped}");
    assert!(dumped.contains(":title = \"weft\"") && dumped.contains(" 3039 ;"), "{dumped}");
}

/// The MPI of Debian's MPICH drops the texts of errors: process 0 prints the text of a failed open, once.
#[test]
fn a_failed_open_says_why_once_where_the_mpi_cannot() {
    if is_own() || !Mpi::DebianMpich.is_met() {
        return;
    }
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    std::fs::create_dir(mount.join("dir")).expect("a directory in the mount");
    for mpi in [Mpi::DebianMpich, Mpi::DebianOpenMpi].into_iter().filter(|mpi| mpi.is_met()) {
        let mut job = Job::new(mpi, "bad", &Place::Below(&cluster, &mount.join("dir")));
        job.arguments(["directories"]);
        let ended = job.run();
        let told = ended.said.lines().filter(|line| line.starts_with("weft-mpi: MPI_File_open of "));
        let expected = if mpi == Mpi::DebianMpich { 2 } else { 0 };
        assert_eq!(told.filter(|line| line.contains("directory")).count(), expected, "{}", ended.said);
    }
}

/// A path below a mount is a file of Weft, too.
#[test]
fn a_mount_is_taken_natively() {
    if is_own() || !Mpi::DebianMpich.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    for program in ["basics", "pointers"] {
        let dir = mount.join(program);
        std::fs::create_dir(&dir).expect("a directory in the mount");
        Job::new(Mpi::DebianMpich, program, &Place::Below(&cluster, &dir)).run().expect_ok();
    }
}

/// What `WEFT_MPI_STATS` says before `what`, of each file, in the order in which they were closed.
fn counts(said: &str, what: &str) -> Vec<u64> {
    let before = said.lines().filter_map(|line| line.split_once(what)).map(|(before, _)| before.trim());
    before.map(|text| text.rsplit(' ').next().unwrap_or(text).parse().expect("a number")).collect()
}

/// Runs cases of `agreement` with both kinds of MPI, and what they counted.
fn agreement(cases: &[&str], check: impl Fn(&str)) {
    if is_own() {
        return;
    }
    let cluster = Cluster::start(4);
    for mpi in [Mpi::DebianMpich, Mpi::DebianOpenMpi].into_iter().filter(|mpi| mpi.is_met()) {
        let mut job = Job::new(mpi, "agreement", &Place::Weft(&cluster));
        job.arguments(cases.iter().copied())
            .env("WEFT_MPI_STATS", "1")
            .env("WEFT_MPI_LOG", "1")
            .limit(Duration::from_secs(60));
        let ended = job.run();
        check(&ended.said);
        ended.expect_ok();
    }
}

/// A collective call in contiguous or coarse views returns whatever other processes do; each of them is counted.
#[test]
fn collective_calls_in_coarse_views_do_not_wait_for_others() {
    let cases = [
        "straight_without_a_view",
        "straight_from_pieces_of_memory",
        "straight_in_views_of_large_blocks",
        "straight_past_a_rank_that_fails",
    ];
    agreement(&cases, |said| {
        assert_eq!(said.matches("closed by 4 processes").count(), cases.len(), "{said}");
        assert!(counts(said, " agreements").iter().all(|count| *count == 0), "{said}");
    });
}

#[test]
fn processes_agree_where_the_view_of_one_shows_small_pieces() {
    // Six calls by four processes.
    let case = ["agreed_where_one_view_is_fine"];
    agreement(&case, |said| assert_eq!(counts(said, " agreements"), [24], "{said}"));
}

/// Smaller buffers take more rounds, each with a request to each server; with one process there are as many rounds,
/// of smaller parts.
#[test]
fn hints_that_change_count_from_the_next_exchange_on() {
    agreement(&["hints_that_change"], |said| {
        let requests = counts(said, ", of ");
        let [same, info, view, nodes, list] = requests[..] else { panic!("{said}") };
        assert!(info > same + 40 && view == info && nodes > same, "{requests:?}: {said}");
        assert!(list > same, "{requests:?}");
        assert_eq!(counts(said, " by exchange"), [8, 8, 8, 8, 4], "{said}");
    });
}

#[test]
fn what_is_kept_for_the_next_file_goes_with_its_communicator() {
    agreement(&["files_of_many_communicators"], |said| {
        let exchanges = counts(said, " by exchange;");
        // Four files in each turn, of two groups of two processes, with a write and a read by each.
        assert!(exchanges.len() == 30 * 2 * 4 && exchanges.iter().all(|count| *count == 4), "{said}");
    });
}

#[test]
fn processes_that_cannot_share_memory_exchange_by_messages() {
    agreement(&["exchange_without_shared_memory"], |said| {
        let exchanges = counts(said, " by exchange;");
        assert_eq!(exchanges.iter().filter(|count| **count == 12).count(), 3, "{said}");
        assert!(said.contains("share no memory"), "{said}");
    });
}

#[test]
fn all_processes_fail_where_one_has_no_memory_to_share() {
    agreement(&["exchange_without_memory"], |said| {
        assert!(said.contains("cb_buffer_size takes less"), "{said}")
    });
}

/// One process dies in the middle of a collective write: the job ends, and the file can be used.
#[test]
fn a_process_that_dies_ends_the_job_and_leaves_the_file_usable() {
    let (cluster, dir) = (cluster(), temporary_dir());
    for mpi in [Mpi::DebianMpich, Mpi::OpenMpi5].into_iter().filter(|mpi| mpi.is_met()) {
        let place = Place::of_mode(&cluster, dir.path());
        let mut dying = Job::new(mpi, "failing", &place);
        dying.arguments(["die"]).limit(Duration::from_secs(60));
        let ended = dying.run();
        let status = ended.status.unwrap_or_else(|| panic!("the job hangs: {}", ended.said));
        assert!(!status.success() && ended.said.contains("writing"), "{}", ended.said);
        let mut later = Job::new(mpi, "failing", &place);
        later.arguments(["usable"]).limit(Duration::from_secs(60));
        later.run().expect_ok();
    }
}

/// An I/O server is killed and started again in the middle of collective writes: each call ends, right or with an error.
#[test]
fn a_server_that_dies_ends_no_job() {
    if is_own() {
        return;
    }
    for mpi in [Mpi::DebianMpich, Mpi::DebianOpenMpi].into_iter().filter(|mpi| mpi.is_met()) {
        let mut cluster = Served::start(3);
        let mut job = Job::new(mpi, "failing", &Place::Served(&cluster));
        job.arguments(["write", "6"]).limit(Duration::from_secs(100));
        let ended = job.run_and("writing", || {
            cluster.kill("io1");
            std::thread::sleep(Duration::from_millis(500));
            cluster.spawn("io1");
            cluster.wait_ready("io1");
        });
        ended.expect_ok();
    }
}

/// A full disk of one server is an error of each rank that has written there, by each method, until there is room.
#[test]
fn a_full_disk_is_an_error_on_every_rank() {
    if is_own() {
        return;
    }
    for mpi in [Mpi::DebianMpich, Mpi::DebianOpenMpi].into_iter().filter(|mpi| mpi.is_met()) {
        let Some(cluster) = Served::start_with_small_disk(24 << 20) else { return };
        let mut job = Job::new(mpi, "failing", &Place::Served(&cluster));
        job.arguments(["full"]).limit(Duration::from_secs(100));
        job.run().expect_ok();
    }
}

/// The tables of constants are what the headers say.
#[test]
fn the_headers_are_as_the_library_has_them() {
    use weft_mpi::abi::{MPICH, OPEN_MPI, STANDARD};
    for mpi in Mpi::ALL.into_iter().filter(|mpi| mpi.is_met()) {
        let abi = match mpi {
            Mpi::DebianMpich | Mpi::Mpich5 => MPICH,
            Mpi::Mpich5Abi => STANDARD,
            Mpi::DebianOpenMpi | Mpi::OpenMpi5 => OPEN_MPI,
        };
        let mut table = abi.numbers.named();
        table.extend([
            ("sizeof MPI_Datatype", abi.handle_bytes as i64),
            ("sizeof MPI_Comm", abi.handle_bytes as i64),
            ("sizeof MPI_Status", abi.status_bytes as i64),
            ("sizeof MPI_File", 8),
            ("sizeof MPI_Offset", 8),
        ]);
        let differences = differences(&constants(mpi), &table);
        assert!(differences.is_empty(), "{}: {}", mpi.name(), differences.join("; "));
    }
}
