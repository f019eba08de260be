//! Completions of shells, in the shells themselves: each runs on a terminal, and Tab is typed.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weft_test_needs::Need;
use weft_tests::{Cluster, expect_success, temporary_dir, weft_bin};

/// Runs a shell on a terminal of its own: `DRIVE.py MARK LINES… -- SHELL…`. For each line: types it and a Tab, has the shell print its
/// line by the key that the test's set-up gives it, and clears the line. A shell handles keys one after the other, so that nothing
/// depends on time.
const DRIVE: &str = r#"
import fcntl, json, os, pty, re, select, struct, sys, termios, time
mark, rest = sys.argv[1], sys.argv[2:]
lines, shell = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(shell[0], shell)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 1000, 0, 0))
seen = b""
def until(pattern):
    global seen
    end = time.time() + 30
    while not (found := re.search(pattern, seen, re.S)):
        if time.time() > end or not select.select([terminal], [], [], 30)[0]:
            sys.exit(f"{pattern} does not come after: {seen}")
        seen += os.read(terminal, 65536)
    seen = seen[found.end() :]
    return found.group(1).decode()
until(f"({mark}ready)".encode())
results = []
for line in lines:
    os.write(terminal, line.encode() + b"\t\x18\x10")
    results.append(until(f"{mark}<(.*?)>{mark}".encode()))
    os.write(terminal, b"\x15")
os.kill(pid, 9)
print(json.dumps(results))
"#;
const MARK: &str = "@@";

/// A cluster with names that are awkward in shells.
fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    for directory in ["/data", "/data/deep", "/with space", "/.hidden", "/x=1", "/x=1/co:lon", "/$money"] {
        client.mkdir(directory, 0o755).expect("it is new");
    }
    for file in ["/dates", "/data/file", "/with space/it's", "/with space/two words", "/q\"uote"] {
        let create = weft_client::OpenOptions::new().write(true).create(true);
        client.open(file, &create).expect("it is new").close().expect("it is empty");
    }
    client.symlink("/data-link", b"data").expect("it is new");
    cluster
}

fn search_path() -> String {
    format!("{}:/usr/bin:/bin", weft_bin().parent().expect("a directory").display())
}

/// Types lines and a Tab at the end of each. Returns the lines that the shell then shows.
fn completed(cluster: &Cluster, shell: &[&str], home: &Path, lines: &[&str]) -> Vec<String> {
    let mut command = Command::new("python3");
    command.args(["-c", DRIVE, MARK]).args(lines).arg("--").args(shell);
    command
        .env_clear()
        .env("PATH", search_path())
        .env("HOME", home)
        .env("TERM", "dumb")
        .env("LC_ALL", "C.UTF-8");
    command.env("WEFT_URL", cluster.url()).env("WEFT_KEY_FILE", cluster.key_file());
    let said = expect_success(shell[0], &command.current_dir(home).output().expect("python3 can be run"));
    serde_json::from_str(&said).expect("JSON")
}

#[track_caller]
fn check(cluster: &Cluster, shell: &[&str], home: &Path, cases: &[(&str, &str)]) {
    let lines: Vec<_> = cases.iter().map(|(line, _)| *line).collect();
    let found = completed(cluster, shell, home, &lines);
    let found: Vec<_> = lines.into_iter().zip(found.iter().map(String::as_str)).collect();
    assert_eq!(found, cases);
}

#[test]
fn bash_completes_paths_in_file_systems_and_subjects_of_help() {
    let cluster = cluster();
    let home = temporary_dir();
    fs::write(home.path().join("local file"), "").expect("room");
    let rc = home.path().join("rc");
    let show = format!(r#"bind -x '"\C-x\C-p": printf "{MARK}<%s>{MARK}" "$READLINE_LINE"'"#);
    fs::write(
        &rc,
        format!("bind 'set bell-style none'\n{show}\nsource <(weft completions bash)\nPS1=$\nprintf '%s%s' {MARK} ready\n"),
    )
    .expect("room");
    let rc = rc.display().to_string();
    let url = cluster.url();
    let server = url.trim_start_matches("weft://").trim_end_matches('/');
    let (long, long_done) = (format!("weft ls {url}dates"), format!("weft ls {url}dates "));
    let (short, short_done) = (format!("weft ls {server}:/wi"), format!("weft ls {server}:/with\\ space/"));
    let cases = [
        ("weft ls weft:/dates", "weft ls weft:/dates "),
        ("weft ls weft:/d", "weft ls weft:/dat"),
        ("weft ls weft:/data/d", "weft ls weft:/data/deep/"),
        ("weft ls weft:/.h", "weft ls weft:/.hidden/"),
        ("weft ls weft:/nothing", "weft ls weft:/nothing"),
        (&long, &long_done),
        (&short, &short_done),
        // Spaces, quotes and signs of the shell, typed in each way.
        ("weft ls weft:/w", r"weft ls weft:/with\ space/"),
        (r"weft ls weft:/with\ s", r"weft ls weft:/with\ space/"),
        (r"weft ls weft:/with\ space/t", r"weft ls weft:/with\ space/two\ words "),
        (r"weft ls weft:/with\ space/i", r"weft ls weft:/with\ space/it\'s "),
        ("weft ls \"weft:/with s", "weft ls \"weft:/with space/"),
        ("weft ls \"weft:/with space/t", "weft ls \"weft:/with space/two words\" "),
        ("weft ls 'weft:/wi", "weft ls 'weft:/with space/"),
        ("weft ls 'weft:/with space/t", "weft ls 'weft:/with space/two words' "),
        (r"weft ls weft:/\$m", r"weft ls weft:/\$money/"),
        ("weft ls 'weft:/$m", "weft ls 'weft:/$money/"),
        (r#"weft ls "weft:/\$m"#, r#"weft ls "weft:/\$money/"#),
        (r#"weft ls weft:/q"#, r#"weft ls weft:/q\"uote "#),
        // Readline's words end at these signs.
        ("weft ls weft:/x", "weft ls weft:/x=1/"),
        ("weft ls weft:/x=", "weft ls weft:/x=1/"),
        ("weft ls weft:/x=1/c", "weft ls weft:/x=1/co:lon/"),
        ("weft ls weft:/x=1/co:l", "weft ls weft:/x=1/co:lon/"),
        // Not the first path of the line, and not the first command.
        ("weft cp weft:/dates weft:/data/f", "weft cp weft:/dates weft:/data/file "),
        ("true; weft cat weft:/data/f", "true; weft cat weft:/data/file "),
        ("weft cp loc", r"weft cp local\ file "),
        ("weft help host", "weft help hosts "),
        ("weft strip", "weft stripe "),
        ("weft ls weft://127.0.0.1:1/x", "weft ls weft://127.0.0.1:1/x"),
    ];
    check(&cluster, &["bash", "--noprofile", "--rcfile", &rc, "-i"], home.path(), &cases);
}

#[test]
fn zsh_completes_paths_in_file_systems_and_subjects_of_help() {
    if !Need::OtherShells.is_met() {
        return;
    }
    let cluster = cluster();
    let home = temporary_dir();
    fs::write(
        home.path().join(".zshrc"),
        format!(
            "autoload -Uz compinit && compinit -u -D\nunsetopt zle_bracketed_paste beep 2>/dev/null\nsource <(weft completions zsh)\n\
             show() {{ print -rn -- \"{MARK}<$BUFFER>{MARK}\" }}\nzle -N show\nbindkey '^X^P' show\nbindkey '^U' kill-whole-line\n\
             PS1=$\nprintf '%s%s' {MARK} ready\n"
        ),
    )
    .expect("room");
    let url = cluster.url();
    let (long, long_done) = (format!("weft ls {url}dates"), format!("weft ls {url}dates"));
    let cases = [
        (long.as_str(), long_done.as_str()),
        ("weft ls weft:/data/d", "weft ls weft:/data/deep/"),
        ("weft ls weft:/w", r"weft ls weft:/with\ space/"),
        (r"weft ls weft:/with\ s", r"weft ls weft:/with\ space/"),
        (r"weft ls weft:/with\ space/t", r"weft ls weft:/with\ space/two\ words"),
        ("weft ls 'weft:/with s", "weft ls 'weft:/with space/"),
        ("weft ls weft:/nothing", "weft ls weft:/nothing"),
        ("weft strip", "weft stripe "),
    ];
    check(&cluster, &["zsh", "-i"], home.path(), &cases);
}

#[test]
fn fish_completes_paths_in_file_systems_and_subjects_of_help() {
    if !Need::OtherShells.is_met() {
        return;
    }
    let cluster = cluster();
    let fish = |line: &str| {
        let mut command = Command::new("fish");
        command.arg("-c").arg("source (weft completions fish | psub); complete -C $argv[1]").arg(line);
        command
            .env("PATH", search_path())
            .env("WEFT_URL", cluster.url())
            .env("WEFT_KEY_FILE", cluster.key_file());
        expect_success(line, &command.output().expect("fish can be run"))
    };
    assert_eq!(fish("weft ls weft:/dat"), "weft:/data/\nweft:/data-link/\nweft:/dates\n", "as fish sorts");
    assert_eq!(fish("weft ls weft:/with\\ s"), "weft:/with space/\n");
    assert_eq!(fish("weft ls \"weft:/with space/t"), "weft:/with space/two words\n");
    assert!(fish("weft help ho").contains("hosts"));
}

#[test]
fn a_path_is_completed_in_time_or_not_at_all() {
    let cluster = cluster();
    let asked = |word: &str| {
        let begun = Instant::now();
        let candidates = cluster.weft(&["complete", "path", "--", word]);
        (candidates, begun.elapsed())
    };
    let url = cluster.url();
    assert_eq!(asked(&format!("{url}da")).0, format!("{url}data-link/\n{url}data/\n{url}dates\n"));
    assert_eq!(asked(&format!("{url}data/")).0, format!("{url}data/deep/\n{url}data/file\n"));
    assert_eq!(asked(&format!("{url}.h")).0, format!("{url}.hidden/\n"));
    assert!(cluster.weft(&["complete", "subject", "ho"]).contains("hosts"));
    // A server that never answers, closed ports, and a name that does not exist.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = silent.local_addr().expect("it is bound").port();
    for place in [
        format!("127.0.0.1:{port}"),
        "127.0.0.1:1".into(),
        "[::1]:1".into(),
        "no.such.host.invalid:7400".into(),
    ] {
        let (candidates, took) = asked(&format!("weft://{place}/x"));
        assert_eq!(candidates, "", "{place}");
        assert!(took < Duration::from_secs(4), "{place}: {took:?}");
    }
}
