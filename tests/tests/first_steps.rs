//! The first steps of the README, as a plain user takes them, from an empty home directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use weft_test_needs::Need;
use weft_tests::{expect_success, preload_library, temporary_dir, weft_bin};

const USER: u32 = 1000;

/// The commands of the first console under a heading, as a script. The port may be another than in the text.
fn commands(text: &str, heading: &str) -> String {
    let (_, section) = text.split_once(&format!("## {heading}\n")).expect("the heading is there");
    let console = section.split("```").find(|part| part.starts_with("console\n")).expect("a console");
    let mut script = String::from("set -ex\n");
    for line in console.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let command = line.split("  #").next().unwrap_or(line).trim();
        match command {
            _ if command.starts_with("weft up") && !command.contains("--only") => {
                script.push_str(&format!("url=$({command})\n"));
            }
            _ if command.starts_with("export WEFT_URL=") => script.push_str("export WEFT_URL=$url\n"),
            _ => script.push_str(&format!("{command}\n")),
        }
    }
    script
}

#[test]
fn the_first_steps_work_as_they_are_written() {
    if !Need::Root.is_met() {
        return;
    }
    let readme =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository").join("README.md");
    let mut script = commands(&fs::read_to_string(readme).expect("it is there"), "First steps");
    // On some machines only root may use it. Elsewhere udev lets everybody.
    let is_for_all = fs::metadata("/dev/fuse").is_ok_and(|meta| meta.permissions().mode() & 0o006 == 0o006);
    if !is_for_all {
        eprintln!("/dev/fuse is for root only: the steps with a mount are left out");
        script = script.replace("weft umount ~/mnt && ", "").replace("weft mount $WEFT_URL ~/mnt\n", "");
    }
    assert!(script.lines().count() > 12, "{script}");
    let dir = temporary_dir();
    let (home, programs) = (dir.path().join("home"), dir.path().join("bin"));
    for made in [&home, &programs] {
        fs::create_dir(made).expect("it is new");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    chown(&home, Some(USER), Some(USER)).expect("root may");
    for program in [weft_bin(), preload_library()] {
        fs::copy(program, programs.join(program.file_name().expect("a name"))).expect("there is room");
    }
    let mut bash = Command::new("setpriv");
    bash.args([
        &format!("--reuid={USER}"),
        &format!("--regid={USER}"),
        "--clear-groups",
        "bash",
        "-c",
        &script,
    ]);
    bash.env_clear().env("HOME", &home).env("LANG", "C").current_dir(&home);
    bash.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display()));
    for variable in ["WEFT_TEST_DIR", "TMPDIR"] {
        bash.envs(std::env::var_os(variable).map(|value| (variable, value)));
    }
    let output = bash.output().expect("setpriv can be run");
    if !output.status.success() {
        // Whatever it has started ends.
        let mut down = Command::new(weft_bin());
        let _ = down.args(["umount", "--lazy"]).arg(home.join("mnt")).output();
        let _ = Command::new(weft_bin()).args(["down", "--dir"]).arg(home.join("weft-demo")).output();
    }
    let said = expect_success(&script, &output);
    assert!(said.contains("big.bin"), "{said}");
}
