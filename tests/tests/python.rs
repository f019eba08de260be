//! The package for Python: its tests (crates/python/tests) on a cluster of processes, and the wheel as a user installs it.
//!
//! They take what `scripts/python-env.sh target/python` and `scripts/torch-env.sh target/torch target/python` make.

use std::path::{Path, PathBuf};
use std::process::Command;

use weft_test_needs::skip;
use weft_tests::{Cluster, expect_success, temporary_dir};

/// An environment: the variable that names it where it was made, and then it must be there; where it is otherwise; what makes it.
struct Environment(&'static str, &'static str, &'static str);

const PYTHON: Environment =
    Environment("WEFT_TEST_PYTHON", "target/python", "scripts/python-env.sh target/python");
/// With all of the other, and PyTorch.
const TORCH: Environment =
    Environment("WEFT_TEST_TORCH", "target/torch", "scripts/torch-env.sh target/torch target/python");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository")
}

impl Environment {
    /// Its interpreter.
    fn python(&self) -> Option<PathBuf> {
        let Environment(variable, otherwise, script) = self;
        let made = std::env::var_os(variable).map(PathBuf::from);
        let python = made.clone().unwrap_or_else(|| root().join(otherwise)).join("bin/python");
        let (is_there, place) = (python.exists(), python.display());
        assert!(is_there || made.is_none(), "{place} is not there, but {variable} is set");
        if !is_there {
            skip(&format!("needs {script}"));
        }
        is_there.then_some(python)
    }
}

/// A directory with the package as it is in the repository, and the library that the tests were built with.
fn package(dir: &Path) {
    let package = dir.join("weftfs");
    std::fs::create_dir(&package).expect("it is new");
    for entry in std::fs::read_dir(root().join("crates/python/weftfs")).expect("it is there") {
        let path = entry.expect("it can be read").path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().expect("a name"))).expect("there is room");
        }
    }
    let library = weft_tests::weft_bin().with_file_name("lib_weftfs.so");
    std::fs::copy(library, package.join("_weftfs.abi3.so")).expect("the library is built with all others");
}

fn run(environment: Environment, tests: &[&str]) {
    let Some(python) = environment.python() else { return };
    let (cluster, dir) = (Cluster::start(4), temporary_dir());
    package(dir.path());
    let mut command = Command::new(python);
    command
        .args(["-m", "pytest", "-q", "-rs", "-W", "ignore", "-c"])
        .arg(root().join("crates/python/pytest.ini"));
    command.args(tests.iter().map(|test| root().join("crates/python/tests").join(test)));
    command.env("PYTHONPATH", dir.path()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(dir.path());
    command.env("WEFT_TEST_SEED", weft_test_random::seed().to_string());
    // Programs leave caches at home.
    command.env("HOME", dir.path());
    command.env("WEFT_URL", cluster.url()).env("WEFT_KEY_FILE", cluster.key_file());
    let output = command.output().expect("pytest can be run");
    let said = expect_success("pytest", &output);
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");
}

#[test]
fn files_and_arrays() {
    run(PYTHON, &["test_files.py", "test_arrays.py"]);
}

#[test]
fn arrays_are_those_of_numpy_case_by_case() {
    run(PYTHON, &["test_numpy_table.py"]);
}

#[test]
fn files_are_those_of_python_case_by_case() {
    run(PYTHON, &["test_io_table.py"]);
}

#[test]
fn the_suite_of_fsspec() {
    run(PYTHON, &["test_fsspec_suite.py", "test_fsspec.py"]);
}

#[test]
fn the_suite_of_zarr() {
    run(PYTHON, &["test_zarr_suite.py"]);
}

#[test]
fn what_others_read_and_write_through_them() {
    run(PYTHON, &["test_readers.py"]);
}

#[test]
fn checkpoints_safetensors_and_samples_of_pytorch() {
    run(TORCH, &["test_torch.py"]);
}

#[test]
fn the_examples_of_the_tour() {
    run(TORCH, &["test_tour.py"]);
}

#[test]
fn the_stubs_say_what_is_there() {
    let Some(python) = TORCH.python() else { return };
    let dir = temporary_dir();
    package(dir.path());
    let of_package = |name: &str| root().join("crates/python").join(name);
    let mut command = Command::new(python);
    command.args(["-m", "mypy.stubtest", "weftfs", "--ignore-missing-stub", "--mypy-config-file"]);
    command.arg(of_package("mypy.ini")).arg("--allowlist").arg(of_package("stubtest.allow"));
    command.env("PYTHONPATH", dir.path()).env("MYPYPATH", dir.path()).current_dir("/var");
    expect_success("stubtest", &command.output().expect("it can be run"));
}

#[test]
fn the_wheel_needs_nothing_but_python() {
    let Some(python) = PYTHON.python() else { return };
    let dir = temporary_dir();
    let dist = dir.path().join("dist");
    let mut build = Command::new(root().join("scripts/wheel.sh"));
    // Faster to build.
    build.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let built = expect_success("scripts/wheel.sh", &build.arg(&dist).output().expect("it can be run"));
    let wheel = built.lines().last().expect("it says the name").trim();
    assert!(wheel.contains("-cp311-abi3-manylinux_2_") && wheel.ends_with(".whl"), "{wheel}");
    let mut make = Command::new(python);
    make.args(["-m", "venv"]).arg(dir.path().join("venv"));
    expect_success("venv", &make.output().expect("it can be run"));
    let inside = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(dir.path().join("venv/bin").join(name));
        command.args(arguments).env_remove("PYTHONPATH").current_dir(dir.path());
        command
    };
    let mut install =
        inside("pip", &["install", "--quiet", "--no-index", "--disable-pip-version-check", wheel]);
    expect_success("pip install", &install.output().expect("it can be run"));
    let cluster = Cluster::start(2);
    let with_cluster = |mut command: Command| {
        command.env("WEFT_URL", cluster.url()).env("WEFT_KEY_FILE", cluster.key_file());
        expect_success("python", &command.output().expect("it can be run"))
    };
    let said = with_cluster(inside("python", &["-m", "weftfs"]));
    assert!(said.contains("numpy: not installed") && said.contains("io1 (io)"), "{said}");
    let script =
        "import weftfs; fs = weftfs.connect(); fs.write_bytes('/f', b'12'); print(fs.read_bytes('/f'))";
    assert_eq!(with_cluster(inside("python", &["-c", script])), "b'12'\n");
    let licences = "import importlib.metadata as m; print(sum('licences/' in str(f) or 'licenses/' in str(f) for f in m.files('weftfs')))";
    assert_eq!(
        with_cluster(inside("python", &["-c", licences])),
        "2\n",
        "Weft's and those of what it contains"
    );
    let entry = "import importlib.metadata as m; print([e.value for e in m.entry_points(group='fsspec.specs') if e.name == 'weft'])";
    assert_eq!(with_cluster(inside("python", &["-c", entry])), "['weftfs.spec:WeftFileSystem']\n");
}
