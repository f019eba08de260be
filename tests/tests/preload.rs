//! Programs as they are under `weft run`: what they do in a file system of Weft is what they do in a directory of this machine.
//!
//! ```text
//!   the same script ──► in a local directory      ──► what it printed ─┐
//!                   └─► in /weft, by `weft run`   ──► what it printed ─┴─ equal
//! ```

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use weft_client::{LockKind, LockTarget, LockWait, OpenOptions, Transport};
use weft_tests::{
    Cluster, Locker, Served, expect_success, gauge, preload_library, signal, temporary_dir, wait_until,
};

/// `weft run` with the cluster at /weft.
fn run(cluster: &Cluster, program: &[&str]) -> Command {
    preload_library();
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--"]);
    command.args(program).env("LC_ALL", "C").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Runs a bash script in a new directory of the cluster; what it printed.
#[track_caller]
fn sh_in_weft(cluster: &Cluster, dir: &str, script: &str) -> String {
    let script = format!("mkdir -p /weft/{dir}; cd /weft/{dir}; {script}");
    let output = run(cluster, &["bash", "-euo", "pipefail", "-c", &script]).output();
    expect_success(&script, &output.expect("weft can be run"))
}

/// Runs a script in a local directory and in Weft; both must print the same.
#[track_caller]
fn same(cluster: &Cluster, dir: &str, script: &str) {
    let local = temporary_dir();
    let expected = weft_tests::sh_in(local.path(), script);
    assert_eq!(sh_in_weft(cluster, dir, script), expected, "{script}");
}

fn output(mut command: Command) -> Output {
    command.output().expect("weft can be run")
}

const MAKE_TREE: &str = r#"
    mkdir -p src/deep/er
    for n in $(seq 30); do echo "line $n" > src/f$n; done
    seq 60000 > src/deep/big; ln -s ../f1 src/deep/link; chmod 600 src/f2
    touch -d '2001-02-03 04:05:06.789' src/f3
"#;

#[test]
fn bash_redirects_and_moves_about() {
    let cluster = Cluster::start(2);
    same(
        &cluster,
        "shell",
        r#"
        echo one > a; echo two >> a; cat a; cat < a; { read x; read y; echo "$y $x"; } < a
        exec 3>b; echo three >&3; printf 'four\n' >&3; exec 3>&-; cat b
        exec 4<>a; read -u 4 x; echo "$x"; (read -u 4 y; echo "$y"); exec 4>&-
        mkdir -p d/e; cd d/e; echo deep > f; cd ../..; cat d/e/f; pwd | sed 's,.*/,,' | wc -l
        (cd d; ls; cd e; ls -la | wc -l; cat ../../a); for f in *; do echo "$f"; done; echo d/*/f
        cat /dev/stdin < a; exec 5< b; cat /dev/fd/5 /proc/self/fd/5; exec 5<&-; cat <<< "here" > h; cat h; test -s h; test -d d; [[ a -ef a ]]; ls nothing 2> errors || true; wc -l < errors
        exec 6> i; sh -c 'echo in another >&6'; bash -c 'echo and another >&6; cat a >&6'; exec 6>&-; cat i
        set -o noclobber; (echo x > a) 2> /dev/null || echo kept; x=$(< b); echo "$x"
        cat > c <<END
text
END
        cat c | tee t | wc -c; cmp c t; (echo out; echo err >&2) > both 2>&1; sort both
        "#,
    );
    // The prefix is there, though the kernel knows nothing of it.
    sh_in_weft(
        &cluster,
        "root",
        "if mkdir /weft 2> said; then exit 1; fi; grep -q 'File exists' said; mkdir -p /weft /weft/root/deep",
    );
}

#[test]
fn the_usual_tools_do_what_they_do_anywhere() {
    let cluster = Cluster::start(2);
    let script = format!(
        r#"{MAKE_TREE}
        cp -a src copy; diff -r src copy; mv copy moved; ls -A moved | sort; rm -r moved
        sort -r src/f* | uniq | wc -l; cat src/f* | md5sum; wc -c src/deep/big; cksum src/deep/big
        du -s --apparent-size src | cut -f2; stat -c '%s %a %F %h' src/f2; readlink src/deep/link
        realpath src/deep/link | sed 's/.*src/src/'; realpath -m nothing/there | sed 's/.*nothing/nothing/'
        dd if=src/deep/big of=dd bs=7k status=none; cmp dd src/deep/big; truncate -s 100 dd; stat -c %s dd
        split -n 3 src/deep/big part.; cat part.* | cmp - src/deep/big; rm part.*
        csplit -s src/f1 1; cat xx01; tail -c 3 src/f4; tail -n 1 src/f9; head -n 1 src/f5; tac src/deep/big | tail -n 2
        ln src/f1 hard; stat -c %h hard; ln -s f1 src/soft; cat src/soft; ln -sf f2 src/soft; cat src/soft
        name=$(mktemp -p .); test -f "$name"; rm "$name"; name=$(mktemp -d -p .); rmdir "$name"
        install -D -m 755 src/f1 in/st/all; stat -c %a in/st/all; shred -n 1 -u in/st/all
        mkfifo fifo; test -p fifo; unlink fifo
        touch -r src/f3 src/f7; stat -c '%.9Y' src/f7; chmod u=rw,go= src/f8; stat -c %a src/f8; chmod -R g+w src/deep
        od -c src/f1; nl src/f1; cut -c 1-3 src/f1; paste src/f1 src/f2; comm src/f1 src/f2; join src/f1 src/f1
        fold -w 3 src/f1; expand src/f1; fmt src/f1; pr -t src/f1; tr a-z A-Z < src/f1
        sha256sum src/f* > sums; sha256sum -c --quiet sums; b2sum src/f1; base64 src/f1; sum src/f1; tsort <<< 'a b'
        ls -1 src | sort -V | tail -n 2; ls -R src | wc -l; df . | wc -l; sync src/f1; sync; dir src/deep; vdir src | wc -l
        pathchk src/f1; basename src/f1; dirname src/f1; timeout 9 cat src/f1
        seq 5 | xargs -I N cp src/f1 xN; ls x?; shuf src/f1; numfmt 5; ptx src/f1 > /dev/null; cat src/f1 - < src/f2
        rm -rf src/deep; test ! -e src/deep; rmdir --ignore-fail-on-non-empty src; mkdir -m 700 -p m/n; stat -c %a m/n
        "#
    );
    same(&cluster, "tools", &script);
}

#[test]
fn archives_and_searches_give_the_same_bytes() {
    let cluster = Cluster::start(2);
    let script = format!(
        r#"{MAKE_TREE}
        tar cf t.tar src; mkdir x; tar xf t.tar -C x; diff -r --no-dereference src x/src
        tar czf t.tgz -C src .; tar tzf t.tgz | sort | sed -n 1,5p; gzip -k src/f1; zcat src/f1.gz
        rsync -a --exclude '*.gz' src/ r/; rsync -a --checksum --delete r/ r2/; diff -r --no-dereference r r2; rsync -ai r/ r2/
        echo changed >> r/f4; rsync -a --inplace r/ r2/; cmp r/f4 r2/f4
        find src -name 'f1*' -size -2 | sort; find src -type l -printf '%p %l\n'; find src -newer src/f3 -type d | sort
        find src -name 'f2?' -exec grep -H line {{}} + | sort; find r2 -delete; test ! -e r2
        grep -rl 'line 7' src | sort; grep -c 9 src/deep/big; grep -rn --include='f*' 'line 1$' src
        sed -i 's/line/LINE/' src/f5; cat src/f5; sed -n '2,3p' src/deep/big; awk '{{ sum += $1 }} END {{ print sum }}' src/deep/big
        diff src/f1 src/f2 > p || true; patch -s src/f1 p; cmp src/f1 src/f2
        "#
    );
    same(&cluster, "archives", &script);
}

#[test]
fn git_clones_commits_and_collects() {
    let cluster = Cluster::start(2);
    let script = r#"
        export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
        export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@n GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@n
        git init -q -b main repo; cd repo
        for i in 1 2; do seq $i 300 > f$i; git add f$i; git commit -qm "change $i"; done; cd ..
        git clone -q repo clone; cd clone; git gc -q; git fsck --no-progress; git log --format='%h %s'
        git status --short; echo x >> f1; git diff --stat; git commit -qam more; git push -q origin HEAD:other
        git checkout -q -b side HEAD~1; git merge -q -m m main; git rev-parse HEAD; ls
    "#;
    same(&cluster, "git", script);
}

#[test]
fn sqlite_keeps_its_database() {
    let cluster = Cluster::start(2);
    let script = r#"
        sqlite3 db 'create table t(a,b); insert into t values(1,2),(3,4); create index i on t(a); select sum(b) from t'
        for i in 1 2 3; do (sqlite3 -cmd '.timeout 60000' db "insert into t values($i,$i)") & done; wait
        sqlite3 db 'select count(*) from t; pragma integrity_check; vacuum; pragma journal_mode=truncate; delete from t where a=1'
        sqlite3 db 'pragma integrity_check'; ls db*
    "#;
    same(&cluster, "sqlite", script);
}

/// Patience with what takes a while on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A session without connections is over after 10 seconds.
const LONGER_THAN_A_SESSION: Duration = Duration::from_secs(12);

/// A program under `weft run` that locks as it is told, with a file open.
#[track_caller]
fn locker(cluster: &Cluster, path: &str) -> Locker {
    let program = weft_tests::weft_locker();
    let mut locker = Locker::start_by(run(cluster, &[program.to_str().expect("UTF-8")]));
    locker.must(&format!("open 0 {path}"));
    locker
}

#[test]
fn locks_hold_against_the_mount_and_clients_and_go_with_a_killed_process() {
    let cluster = Cluster::start(1);
    let (mount, client) = (cluster.mount(), cluster.client());
    let (mut here, mut neighbour) = (locker(&cluster, "/weft/f"), locker(&cluster, "/weft/f"));
    let mut there = Locker::start();
    there.must(&format!("open 0 {}", mount.join("f").display()));
    let file = client.open("/f", &OpenOptions::new().read(true).write(true)).unwrap();
    let try_lock =
        |target| file.lock(target, LockKind::Exclusive, LockWait::Never).map_err(|error| error.errno());
    // Of the process.
    here.must("fcntl 0 w 0 10 try");
    there.must_fail("fcntl 0 r 9 1 try", libc::EAGAIN);
    neighbour.must_fail("fcntl 0 w 0 1 try", libc::EAGAIN);
    assert_eq!(try_lock(LockTarget::range(5..6)), Err(libc::EAGAIN));
    assert_eq!(neighbour.ask("getlk 0 w 0 5"), format!("w 0 10 {}", here.pid()));
    assert_eq!(there.ask("getlk 0 w 0 5"), format!("w 0 10 {}", here.pid()));
    there.must("fcntl 0 w 10 10 try");
    here.must_fail("ofd 0 w 19 1 try", libc::EAGAIN);
    // Any descriptor of the file that is closed ends them; those of the open file stay.
    here.must("ofd 0 w 30 5 try");
    assert_eq!(neighbour.ask("getlk 0 w 30 5"), "w 30 5 -1", "a lock of an open file is no process's");
    here.must("open 1 /weft/f");
    here.must("close 1");
    assert_eq!(try_lock(LockTarget::range(0..10)), Ok(()));
    there.must_fail("fcntl 0 w 30 1 try", libc::EAGAIN);
    here.must_fail("fcntl 0 r 9 1 try", libc::EAGAIN);
    // On the whole file, both ways.
    there.must("flock 0 x try");
    here.must_fail("flock 0 s try", libc::EAGAIN);
    there.must("flock 0 u try");
    here.must("flock 0 x try");
    there.must_fail("flock 0 s try", libc::EAGAIN);
    assert_eq!(try_lock(LockTarget::Whole), Err(libc::EAGAIN));
    // A wait ends by a signal, or with the lock.
    neighbour.send("flock 0 x wait");
    let waits = || gauge(&client, "lock_waits") == 1;
    wait_until("it waits", PATIENCE, waits);
    signal(neighbour.pid(), libc::SIGUSR1);
    assert_eq!(neighbour.answer(), format!("errno {}", libc::EINTR));
    neighbour.send("flock 0 x wait");
    wait_until("it waits again", PATIENCE, waits);
    here.kill();
    assert_eq!(neighbour.answer(), "ok");
    there.must("fcntl 0 w 30 5 wait");
}

/// How long the metadata server waits whether a client comes back whose connection broke.
const SESSION_GRACE: Duration = Duration::from_secs(10);

#[test]
fn locks_of_a_killed_process_are_released_when_its_sockets_are_closed() {
    let cluster = Cluster::start(1);
    let mut neighbour = locker(&cluster, "/weft/f");
    let mut is_released = |what: &str, order: &str| {
        let killed = Instant::now();
        wait_until(what, PATIENCE, || neighbour.ask(order) == "ok");
        assert!(killed.elapsed() < SESSION_GRACE / 2, "{what}: {:?}", killed.elapsed());
    };
    for (lock, try_lock) in [("fcntl 0 w 0 10 try", "fcntl 0 w 5 1 try"), ("flock 0 x try", "flock 0 s try")]
    {
        let mut here = locker(&cluster, "/weft/f");
        here.must(lock);
        here.kill();
        is_released("the lock of a killed process is released", try_lock);
    }
    // A forked child keeps the locks of open files, and not those of the process.
    let script = r#"if 1:
        import fcntl, os, signal, sys, time
        f = open('/weft/f', 'r+')
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 40)
        g = open('/weft/g', 'w')
        fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(child, flush=True)
        time.sleep(600)
    "#;
    let mut parent =
        run(&cluster, &["python3", "-c", script]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("it has locked");
    let child: u32 = line.trim().parse().expect("a process");
    parent.kill().expect("it can be killed");
    parent.wait().expect("it can be waited for");
    is_released("the lock of a killed process with a child is released", "fcntl 0 w 45 1 try");
    let mut other = locker(&cluster, "/weft/g");
    other.must_fail("flock 0 x try", libc::EAGAIN);
    signal(child, libc::SIGKILL);
    let killed = Instant::now();
    wait_until("the lock of an open file ends with the last process", PATIENCE, || {
        other.ask("flock 0 x try") == "ok"
    });
    assert!(killed.elapsed() < SESSION_GRACE / 2, "{:?}", killed.elapsed());
}

#[test]
fn locks_of_open_files_are_shared_and_those_of_a_process_stay_over_exec() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    client.open("/f", &OpenOptions::new().write(true).create(true)).unwrap().close().unwrap();
    let pause = LONGER_THAN_A_SESSION.as_secs();
    // `flock 9` locks and ends: the shell goes on with the lock, its children too; who closes as the last gives it back.
    let script = format!(
        r#"cd /weft
        exec 9> f; flock -n 9; (sleep {pause}; flock -n f true || echo kept) & child=$!
        flock -n f true || echo held; wait $child; flock -n f true || echo kept by the shell
        (exec 9>&-; flock -n f true || echo still); exec 9>&-; flock -n f true && echo free
        flock f bash -c 'flock -n f true || echo held over exec'; flock -n f true && echo free
        (exec 9> f; flock 9; exec env bash -c 'flock -n f true || echo held over two; exec 9>&-; flock -n f true && echo free')"#
    );
    let said = expect_success(&script, &output(run(&cluster, &["bash", "-euc", &script])));
    let lines: Vec<_> = said.lines().collect();
    let expected = [
        "held",
        "kept",
        "kept by the shell",
        "still",
        "free",
        "held over exec",
        "free",
        "held over two",
        "free",
    ];
    assert_eq!(lines, expected);
    let script = r#"
import fcntl, os, subprocess, sys
probe = ["python3", "-c", """if 1:
    import fcntl
    f = open('/weft/f', 'r+')
    try:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('locked', flush=True)
    except BlockingIOError:
        print('refused', flush=True)
"""]
f = open('/weft/f', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
child = os.fork()
if child == 0:
    try:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('inherited', flush=True)
    except BlockingIOError:
        print('not inherited', flush=True)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run(probe)
os.set_inheritable(f.fileno(), True)
os.execvp('python3', ['python3', '-c', f"import os, subprocess; probe = {probe!r}; subprocess.run(probe); os.close({f.fileno()}); subprocess.run(probe)"])
"#;
    let said = expect_success(script, &output(run(&cluster, &["python3", "-c", script])));
    assert_eq!(
        said,
        "not inherited
refused
refused
locked
"
    );
}

#[test]
fn locks_survive_a_restart_where_files_are_used_and_what_was_lost_fails() {
    let mut cluster = Served::start(1);
    preload_library();
    let start = |program: &[&str]| {
        let mut command = cluster.command(&["run", "--url", &cluster.url(), "--"]);
        command.args(program);
        Locker::start_by(command)
    };
    let program = weft_tests::weft_locker();
    let locker = |path: &str, order: &str| {
        let mut locker = start(&[program.to_str().expect("UTF-8")]);
        locker.must(&format!("open 0 {path}"));
        locker.must("write 0 first");
        locker.must(order);
        locker
    };
    let (mut used, mut away) =
        (locker("/weft/used", "fcntl 0 w 0 9 try"), locker("/weft/away", "fcntl 0 w 0 9 try"));
    let mut open_file = locker("/weft/open-file", "ofd 0 w 0 9 try");
    // A shell whose child has locked, and ended.
    let shell = |path: &str| {
        let script =
            format!("exec 9>> {path}; flock 9; echo locked; while read -r order; do eval \"$order\"; done");
        let mut shell = start(&["bash", "-c", &script]);
        assert_eq!(shell.answer(), "locked");
        shell
    };
    let (mut used_shell, mut away_shell) = (shell("/weft/used-shell"), shell("/weft/away-shell"));
    cluster.crash("meta0");
    assert_eq!(used.ask("read 0 5"), "first");
    assert_eq!(used_shell.ask("echo more >&9 && echo wrote"), "wrote");
    // Others get what nobody has claimed, when the time of grace is over.
    let client = cluster.client(Transport::Auto);
    let takes = |path: &str, target| {
        let file = client.open(path, &OpenOptions::new().read(true).write(true)).expect("it is there");
        file.lock(target, LockKind::Exclusive, LockWait::Never).map(|()| file).map_err(|error| error.errno())
    };
    let (bytes, whole) = (LockTarget::range(0..9), LockTarget::Whole);
    assert!(matches!(takes("/used", bytes), Err(libc::EAGAIN)));
    assert!(matches!(takes("/used-shell", whole), Err(libc::EAGAIN)));
    let taken = [takes("/away", bytes), takes("/open-file", bytes), takes("/away-shell", whole)];
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    for locker in [&mut away, &mut open_file] {
        locker.must_fail("write 0 again", libc::EIO);
        locker.must_fail("read 0 5", libc::EIO);
    }
    // They know of it now, and may lock again; others have it.
    away.must_fail("fcntl 0 w 0 1 try", libc::EAGAIN);
    open_file.must_fail("ofd 0 w 0 1 try", libc::EAGAIN);
    open_file.must("flock 0 x try");
    open_file.must_fail("write 0 again", libc::EIO);
    assert_eq!(away_shell.ask("echo more >&9 2> /dev/null || echo failed"), "failed");
    // Those who have the open file from it know it, too.
    assert_eq!(away_shell.ask("bash -c 'echo more >&9' 2> /dev/null || echo failed"), "failed");
    for (locker, path) in [(&mut away, "/weft/away"), (&mut open_file, "/weft/open-file")] {
        locker.must("close 0");
        locker.must(&format!("open 0 {path}"));
        assert_eq!(locker.ask("read 0 5"), "first");
        locker.must_fail("fcntl 0 w 0 1 try", libc::EAGAIN);
    }
    taken[2].as_ref().unwrap().unlock(whole).unwrap();
    assert_eq!(away_shell.ask("flock 9 && echo more >&9 && echo wrote"), "wrote", "locked again by a child");
    used.must("write 0 still");
    used.must("fcntl 0 u 0 9 try");
    assert!(takes("/used", bytes).is_ok());
}

#[test]
fn sqlite_keeps_a_database_that_programs_here_and_on_a_mount_write() {
    const ROUNDS: usize = 10;
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh(
        "sqlite3 db 'create table t (id integer primary key, who text, v text); create index i on t (v)'",
    );
    let work = |dir: &str, who: &str| {
        format!(
            r#"for round in $(seq {ROUNDS}); do sqlite3 -cmd '.timeout 50000' {dir}/db "begin immediate; insert into t (who, v) values
             ('{who}', '$round'); update t set v = v || 'x' where who = '{who}'; commit"; done"#
        )
    };
    std::thread::scope(|scope| {
        scope.spawn(|| mount.sh(&work(".", "mount")));
        scope.spawn(|| {
            let script = work("/weft", "weft run");
            expect_success(&script, &output(run(&cluster, &["bash", "-euc", &script])))
        });
    });
    let said = mount.sh("sqlite3 db 'pragma integrity_check' 'select count(*), count(distinct who) from t'");
    assert_eq!(said, format!("ok\n{}|2\n", 2 * ROUNDS));
}

#[test]
fn python_and_perl_run_on_it() {
    let cluster = Cluster::start(2);
    let script = r#"
        python3 - <<'END'
import glob, mmap, multiprocessing, os, pathlib, shutil, subprocess, tempfile
os.makedirs('py/a/b')
open('py/a/f', 'w').write('hello\n' * 1000)
shutil.copy2('py/a/f', 'py/g'); shutil.copytree('py/a', 'py/c'); shutil.move('py/c', 'py/d')
print(sorted(os.listdir('py')), os.path.getsize('py/g'), sum(len(f) for _, _, f in os.walk('py')))
with open('py/g', 'r+b') as f:
    with mmap.mmap(f.fileno(), 0) as m:
        m[0:5] = b'HELLO'
print(open('py/g').read(11))
with open('py/g', 'rb') as f:
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        print(m[:5], m.find(b'hello'))
print(subprocess.run(['head', '-c5', 'py/g'], capture_output=True).stdout, subprocess.check_output('wc -c < py/g', shell=True))
with open('py/out', 'w') as f:
    subprocess.run(['echo', 'to file'], stdout=f, check=True)
print(open('py/out').read())
def work(n):
    open(f'py/w{n}', 'w').write(str(n) * 10)
    return os.path.getsize(f'py/w{n}')
with multiprocessing.Pool(3) as p:
    print(p.map(work, range(8)))
print(sorted(glob.glob('py/w*')), pathlib.Path('py/a').resolve().name)
fd = os.open('py', os.O_RDONLY)
print(sorted(os.listdir(fd))[:2], os.stat('g', dir_fd=fd).st_size)
with tempfile.NamedTemporaryFile(dir='py') as t:
    t.write(b'x'); t.flush(); print(os.path.getsize(t.name))
shutil.make_archive('py/ar', 'gztar', 'py/a'); shutil.unpack_archive('py/ar.tar.gz', 'py/un'); print(sorted(os.listdir('py/un')))
os.chdir('py'); print(os.path.basename(os.getcwd()), os.path.exists('g')); shutil.rmtree('../py/d')
END
        perl -e 'mkdir "p"; open(F, ">p/x") or die; print F "line $_\n" for 1..5; close F; open(F, "<p/x"); my @l = <F>;
            print scalar(@l), $l[2]; close F; rename "p/x", "p/y"; opendir(D, "p"); print join(",", grep {!/^\./} readdir D), "\n";
            open(F, "+<p/y"); seek F, 5, 0; print F "Z"; close F; open(F, "p/y"); print scalar <F>; print -s "p/y", "\n";
            unlink "p/y"; rmdir "p" or die; print `ls`;'
    "#;
    same(&cluster, "languages", script);
}

#[test]
fn a_project_is_compiled_and_run_in_it() {
    let cluster = Cluster::start(2);
    let script = r#"
        echo 'int f(int);' > a.h; printf '#include "a.h"\nint f(int x) { return x * 2; }\n' > a.c
        printf '#include <stdio.h>\n#include "a.h"\nint main(void) { FILE *o = fopen("made", "w"); fprintf(o, "%%d\\n", f(21)); return fclose(o); }\n' > m.c
        printf 'm: m.o a.o\n\tgcc -o $@ $^\n%%.o: %%.c a.h\n\tgcc -g -O1 -c $<\nlib: a.o\n\tar rcs liba.a a.o\n' > Makefile
        make -s -j2 m; ./m; cat made; make -s lib; ar t liba.a; gcc -shared -fPIC -o liba.so a.c; nm -D liba.so | grep -c ' f$'
        python3 -c 'import ctypes; one, two = ctypes.CDLL("./liba.so"), ctypes.CDLL(".//liba.so"); print(one.f(4), one._handle == two._handle)'
        sed -i 's/x \* 2/x * 3/' a.c; gcc -shared -fPIC -o liba.so a.c; python3 -c 'import ctypes; print(ctypes.CDLL("./liba.so").f(4))'
        strip m; rm made; "$PWD/m"; cat made; PATH="$PWD:$PATH"; rm made; m; cat made
        printf '#!/bin/bash -e\necho script $# $1\n' > s.sh; chmod 755 s.sh; ./s.sh arg; find . -name s.sh -exec {} again \;
    "#;
    same(&cluster, "compiled", script);
}

#[test]
fn vim_edits_in_a_terminal() {
    let cluster = Cluster::start(1);
    let script = r#"
        printf 'one\ntwo\n' > text
        TERM=xterm script -qec "vim -u NONE -i NONE -N text -c 'normal Goadded' -c '1s/one/first/' -c wq" /dev/null < /dev/null > /dev/null
        cat text; ls -A
    "#;
    same(&cluster, "vim", script);
}

fn compile(source: &str, program: &Path, arguments: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-o"]).arg(program);
    gcc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("preload").join(source)).args(arguments);
    expect_success(source, &output(gcc));
}

#[test]
fn descriptors_are_what_posix_has() {
    let cluster = Cluster::start(2);
    let program: PathBuf = cluster.scratch("programs").join("descriptors");
    compile("descriptors.c", &program, &["-lpthread"]);
    let program = program.to_str().expect("UTF-8");
    cluster.weft(&["mkdir", &format!("{}d", cluster.url())]);
    let said = expect_success("descriptors", &output(run(&cluster, &[program, "/weft/d"])));
    assert_eq!(said, "all of it holds\n");
    // The same by URLs, and by a link that leads into it.
    let scratch = cluster.scratch("links");
    std::os::unix::fs::symlink("/weft/d", scratch.join("in")).expect("a link");
    let script = format!(
        "cat {0}d/out weft:/d/out /dev/shm/../../weft/d/out {1}/in/out /weft/../weft//d/./out | sort | uniq -c | sort -n",
        cluster.url(),
        scratch.display()
    );
    let said = expect_success(&script, &output(run(&cluster, &["bash", "-c", &script])));
    let words: Vec<_> = said.split_whitespace().collect();
    assert_eq!(words.join(" "), "5 by a child 5 printed 7");
}

#[test]
fn every_function_on_streams_does_what_it_does_on_local_files_or_refuses() {
    let cluster = Cluster::start(2);
    let program: PathBuf = cluster.scratch("programs").join("stdio");
    compile("stdio.c", &program, &["-w", "-D_FORTIFY_SOURCE=2"]);
    let program = program.to_str().expect("UTF-8");
    same(&cluster, "stdio", program);
    let script = format!("mkdir -p /weft/wide; cd /weft/wide; {program} wide");
    let output = output(run(&cluster, &["bash", "-euc", &script]));
    let said = expect_success(&script, &output);
    let refused = said.matches("EOPNOTSUPP").count();
    assert!(refused == 18 && !said.contains("ended with") && said.contains("f has 23: one 1|two"), "{said}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told.matches("for bytes only").count(), 1, "{told}");
}

#[test]
fn walks_requests_and_programs_that_are_executed_are_what_libc_has() {
    let cluster = Cluster::start(2);
    let program: PathBuf = cluster.scratch("programs").join("walks");
    compile("walks.c", &program, &["-lpthread"]);
    let program = program.to_str().expect("UTF-8");
    same(&cluster, "walks", &format!("{program} $PWD 2>&1"));
}

#[test]
fn system_calls_by_number_are_what_the_kernel_does() {
    let cluster = Cluster::start(2);
    let program: PathBuf = cluster.scratch("programs").join("raw");
    compile("raw.c", &program, &[]);
    let program = program.to_str().expect("UTF-8");
    same(&cluster, "raw", &format!("{program} $PWD 2>&1"));
}

#[test]
fn a_static_program_is_refused_and_finds_nothing() {
    let cluster = Cluster::start(1);
    let program = cluster.scratch("programs").join("static");
    compile("static.c", &program, &["-static"]);
    let program = program.to_str().expect("UTF-8");
    let refused = output(run(&cluster, &[program, "/weft/x"]));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && said.contains("statically") && said.contains("weft mount"),
        "{said}"
    );
    let script = format!(
        "echo x > /weft/x; {program} /weft/x; {program} - < /weft/x; {program} - > /weft/x < /dev/null"
    );
    let said = expect_success(&script, &output(run(&cluster, &["bash", "-c", &script])));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["open: No such file or directory", "read: Bad file descriptor"]);
}

#[test]
fn what_would_pass_through_fifos_and_sockets_is_refused_and_said_once() {
    let cluster = Cluster::start(1);
    let script = r#"
import errno, os, socket, stat
os.chdir("/weft")
def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
os.mkfifo("fifo", 0o600)
assert stat.S_ISFIFO(os.stat("fifo").st_mode)
print(refused(os.open, "fifo", os.O_RDWR), refused(os.open, "/weft/fifo", os.O_RDONLY | os.O_NONBLOCK))
print(refused(os.open, "fifo", os.O_WRONLY | os.O_NONBLOCK))
unix = socket.socket(socket.AF_UNIX)
print(refused(unix.bind, "/weft/socket"), refused(unix.connect, "socket"), os.listdir("."))
unix.bind("\0weft-test-%d" % os.getpid())
"#;
    let output = output(run(&cluster, &["python3", "-c", script]));
    let said = expect_success("python", &output);
    assert_eq!(said, "ENOTSUP ENOTSUP\nENXIO\nENOTSUP ENOTSUP ['fifo']\n");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told.matches("fifos and sockets in Weft have only names").count(), 1, "{told}");
}

#[test]
fn a_cluster_that_is_not_there_is_said_once() {
    let cluster = Cluster::start(1);
    let port = weft_tests::free_ports(1);
    preload_library();
    let mut command = cluster.command(&["run", "--url", &format!("weft://127.0.0.1:{port}/")]);
    command.env("WEFT_KEY_FILE", cluster.key_file()).args(["--", "stat", "/weft/a", "/weft/b", "/"]);
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("weft: ").count(), 1, "{said}");
    assert_eq!(said.matches("No route to host").count(), 2, "{said}");
}

#[test]
fn who_does_not_touch_it_connects_to_nothing() {
    let cluster = Cluster::start(1);
    preload_library();
    let mut command = cluster.command(&["run", "--url", "weft://127.0.0.1:1/", "--", "bash", "-c"]);
    command.arg("ls -l /proc/self/fd | wc -l; ls / | grep -c weft; grep -c socket: <(ls -l /proc/$$/fd)");
    let said = String::from_utf8_lossy(&output(command).stdout).into_owned();
    let mut plain = Command::new("bash");
    plain.args([
        "-c",
        "ls -l /proc/self/fd | wc -l; ls / | grep -c weft; grep -c socket: <(ls -l /proc/$$/fd)",
    ]);
    assert_eq!(said, String::from_utf8_lossy(&output(plain).stdout));
}
