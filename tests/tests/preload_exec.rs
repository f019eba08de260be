//! Programs that programs under `weft run` execute see Weft, whatever environment they are given, wherever they are, and whatever
//! they are made of; or it is said why they do not.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use weft_test_needs::Need;
use weft_tests::{Cluster, expect_success, preload_library};

/// `weft run` with the cluster at /weft.
fn run(cluster: &Cluster, program: &[&str]) -> Command {
    preload_library();
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--"]);
    command.args(program).env("LC_ALL", "C");
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("weft can be run")
}

/// Standard output and standard error of a bash script, which may fail.
fn said(cluster: &Cluster, script: &str) -> (String, String) {
    let output = output(run(cluster, &["bash", "-c", script]));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn compile(source: &Path, program: &Path, arguments: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-o"]).arg(program).arg(source).args(arguments);
    expect_success(&source.display().to_string(), &output(gcc));
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("preload").join(name)
}

/// A cluster with programs in Weft, and a directory with local ones.
fn with_programs() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1);
    let local = cluster.scratch("programs");
    let script = format!(
        r#"
        echo hello > /weft/file; cp /bin/cat /weft/elf; cp /bin/sh /weft/shell
        printf '#!/bin/sh -e\n/bin/cat "$1"\n' > /weft/script
        printf '#!/weft/shell\n/bin/cat "$1"\n' > {0}/script-by-weft
        printf '#!{0}/script-by-weft -x\n' > {0}/script-by-script
        printf '#!{0}/link\n/bin/cat "$1"\n' > {0}/script-by-link; ln -s /weft/shell {0}/link
        chmod 755 /weft/script {0}/script*
        "#,
        local.display()
    );
    expect_success(&script, &output(run(&cluster, &["bash", "-euc", &script])));
    (cluster, local)
}

#[test]
fn an_empty_environment_keeps_weft_by_whatever_function_and_program() {
    let (cluster, local) = with_programs();
    let program = local.join("empty_environment");
    compile(&source("empty_environment.c"), &program, &[]);
    let local_script = |name: &str| local.join(name).to_str().expect("UTF-8").to_string();
    let programs = [
        "/bin/cat".to_string(),
        "/weft/elf".to_string(),
        "/weft/script".to_string(),
        local_script("script-by-weft"),
        local_script("script-by-link"),
    ];
    for executed in &programs {
        let output = output(run(&cluster, &[program.to_str().expect("UTF-8"), executed, "/weft/file"]));
        let said = expect_success(executed, &output);
        let wrong: Vec<_> = said.lines().filter(|line| !line.ends_with(": hello")).collect();
        assert!(wrong.is_empty() && said.lines().count() == 17, "{executed}: {wrong:#?}");
    }
    // As users meet it.
    let script = r#"
import os, subprocess
for arguments, environment in [
    (["/bin/cat", "/weft/file"], {}),
    (["/bin/cat", "/weft/file"], {"PATH": "/bin"}),
    (["env", "-i", "/bin/cat", "/weft/file"], None),
    (["env", "-i", "/bin/sh", "-c", "exec /usr/bin/env -i /bin/cat /weft/file"], None),
    (["/bin/cat", "/weft/file"], {**os.environ, "HOME": "/nowhere"}),
    (["/bin/cat", "/weft/file"], {**os.environ, "LD_PRELOAD": ""}),
    (["/bin/cat", "file"], {}),
]:
    print(subprocess.run(arguments, env=environment, cwd="/weft", capture_output=True))
"#;
    let said = expect_success(script, &output(run(&cluster, &["python3", "-c", script])));
    let wrong: Vec<_> =
        said.lines().filter(|line| !line.contains(r"stdout=b'hello\n', stderr=b''")).collect();
    assert!(wrong.is_empty() && said.lines().count() == 7, "{wrong:#?}");
}

#[test]
fn programs_of_weft_are_executed_by_weft_run_itself() {
    let (cluster, local) = with_programs();
    let scripts = ["script-by-weft", "script-by-link"].map(|name| local.join(name).display().to_string());
    for program in ["/weft/elf", "/weft/script", &scripts[0], &scripts[1]] {
        let said = expect_success(program, &output(run(&cluster, &[program, "/weft/file"])));
        assert_eq!(said, "hello\n", "{program}");
    }
    let mut found = run(&cluster, &["elf", "/weft/file"]);
    found.env("PATH", format!("/weft:{}", std::env::var("PATH").expect("there is a PATH")));
    assert_eq!(expect_success("a name", &output(found)), "hello\n");
    let missing = output(run(&cluster, &["/weft/nothing"]));
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/weft/nothing: not found"));
}

#[test]
fn a_variable_switches_it_off_and_what_was_taken_out_stays_out() {
    let (cluster, _) = with_programs();
    let script = r#"
        for set in 'env -i WEFT_KEEP=0' 'env WEFT_KEEP=0 env -i' 'env WEFT_KEEP=0 env -u LD_PRELOAD'; do
            $set /bin/cat /weft/file 2> /dev/null && echo found by $set
        done
        env -u WEFT_URL sh -c 'echo "<$WEFT_URL>"'
        env -i /bin/sh -c 'echo "<$WEFT_URL>"'
        env -i WEFT_URL=other /bin/sh -c 'echo "<$WEFT_URL>"'
        env -i /usr/bin/env | sed 's/=.*//' | grep -v '^WEFT_TEST_' | sort | paste -sd ' '
    "#;
    let (said, _) = said(&cluster, script);
    let expected =
        format!("<>\n<{0}>\n<other>\nLD_PRELOAD WEFT_KEY_DIR WEFT_PREFIX WEFT_URL\n", cluster.url());
    assert_eq!(said, expected);
}

#[test]
fn programs_that_cannot_see_it_are_named_once() {
    let (cluster, local) = with_programs();
    let program = local.join("static");
    compile(&source("static.c"), &program, &["-static"]);
    let program = program.display();
    // Without a path of Weft among the arguments there is no message.
    let (_, quiet) = said(&cluster, &format!("{program} /tmp/x; {program} /weftless"));
    assert!(!quiet.contains("weft: "), "{quiet}");
    let says = format!("weft: {program} is linked statically: weft run cannot show it");
    for (script, object) in [
        (format!("exec {program} /weft/file"), "/weft/file"),
        (format!("exec {program} weft:/file"), "weft:/file"),
        (format!("exec env -i {program} /weft/file"), "/weft/file"),
        (format!("cd /weft; exec {program} x"), "its current directory"),
    ] {
        let (_, told) = said(&cluster, &script);
        assert_eq!(told.matches(&format!("{says} {object}; use a mount")).count(), 1, "{script}: {told}");
    }
    // Such a program passes Weft on to others.
    let (code, launcher) = (local.join("launcher.c"), local.join("launcher"));
    let text = "#include <unistd.h>\nint main(int count, char **list) { return execv(list[1], list + 1); }\n";
    std::fs::write(&code, text).expect("a file");
    compile(&code, &launcher, &["-static"]);
    let script = format!("exec env -i {} /bin/cat /weft/file", launcher.display());
    assert_eq!(said(&cluster, &script).0, "hello\n");
    if !Need::Root.is_met() {
        return;
    }
    let set_id = local.join("set-id");
    std::fs::copy("/bin/cat", &set_id).expect("a copy");
    std::os::unix::fs::chown(&set_id, Some(1000), None).expect("root may");
    std::fs::set_permissions(&set_id, PermissionsExt::from_mode(0o4755)).expect("root may");
    let (out, told) = said(&cluster, &format!("exec env -i {} /weft/file", set_id.display()));
    assert!(told.contains("set-id gains privileges (set-id): weft run cannot show it /weft/file"), "{told}");
    assert_eq!(out, "");
}

/// Prints what it reads; then executes a shell, or reads beyond a buffer.
const SANITIZED: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
    char line[100];
    FILE *file = fopen(arguments[1], "r");
    if (file == NULL || fgets(line, sizeof line, file) == NULL) { perror(arguments[1]); return 1; }
    fclose(file);
    printf("read %s", line), fflush(stdout);
    if (count > 2) execlp(arguments[2], arguments[2], "-c", "echo ${LD_PRELOAD%%:*}; cat /weft/file", NULL);
    char *small = malloc(4);
    int fd = open(arguments[1], O_RDONLY);
    read(fd, small, strlen(line));
    free(small);
    return 0;
}
"#;

#[test]
fn programs_with_sanitizers_start_and_find_what_they_look_for() {
    let (cluster, local) = with_programs();
    let code = local.join("sanitized.c");
    std::fs::write(&code, SANITIZED).expect("a file");
    for sanitizer in ["address", "leak", "thread", "undefined"] {
        let program = local.join(sanitizer);
        let made = Command::new("gcc")
            .args(["-g", "-w", &format!("-fsanitize={sanitizer}"), "-o"])
            .args([&program, &code])
            .output()
            .expect("gcc can be run");
        if !made.status.success() {
            // The compiler has no such runtime.
            assert!(String::from_utf8_lossy(&made.stderr).contains("cannot find"), "{made:?}");
            continue;
        }
        let name = program.to_str().expect("UTF-8");
        // Only AddressSanitizer looks at what is read into the buffer.
        let direct = output(run(&cluster, &[name, "/weft/file"]));
        let (out, told) = (String::from_utf8_lossy(&direct.stdout), String::from_utf8_lossy(&direct.stderr));
        assert_eq!(out, "read hello\n", "{sanitizer}: {told}");
        assert_eq!(told.contains("heap-buffer-overflow"), sanitizer == "address", "{sanitizer}: {told}");
        let script = format!(
            "{name} /weft/file sh; env -i PATH=/bin {name} /weft/file sh; cp {name} /weft/{sanitizer}; /weft/{sanitizer} /weft/file sh"
        );
        let (out, told) = said(&cluster, &script);
        let library = preload_library().display();
        assert_eq!(out, format!("read hello\n{library}\nhello\n").repeat(3), "{sanitizer}: {told}");
    }
}

#[test]
fn a_user_without_a_key_is_refused_and_told_once() {
    if !Need::Root.is_met() {
        return;
    }
    let (cluster, _) = with_programs();
    let script = r#"
import errno, os
def outcome(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
os.chdir("/")
os.setgroups([]); os.setgid(1000); os.setuid(1000)
print(outcome(os.stat, "/weft/file"), outcome(open, "/weft/file"), outcome(os.mkdir, "/weft/d"), outcome(os.listdir, "/weft"))
"#;
    for key in [None, Some(cluster.key_file())] {
        let mut command = run(&cluster, &["python3", "-c", script]);
        command.envs(key.iter().map(|key| ("WEFT_KEY_FILE", key)));
        let output = output(command);
        assert_eq!(expect_success(script, &output), "EACCES EACCES EACCES EACCES\n");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.matches("weft: ").count() == 1 && told.contains("key"), "{told}");
    }
}
