//! The program as its users call it: clusters come up and go, files are copied, listed, striped and removed.

use serde_json::Value;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use weft_tests::{
    Cluster, expect_success, free_ports, host, processes_naming, sh_in, usual_transport, wait_until, weft_bin,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn json(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What a call that must fail says.
#[track_caller]
fn complaint(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("weft: "), "{stderr}");
    stderr
}

#[test]
fn a_second_up_finds_the_data_again() {
    let mut cluster = Cluster::start(2);
    let file = cluster.scratch("files").join("file");
    std::fs::write(&file, "still here").unwrap();
    cluster.weft(&["cp", text(&file), cluster.url()]);
    cluster.down();
    cluster.up(2, &[]);
    assert_eq!(cluster.weft(&["cat", &format!("{}file", cluster.url())]), "still here");
}

#[test]
fn what_cannot_be_is_told() {
    let cluster = Cluster::start(2);
    let storage = cluster.storage();
    let dir = text(&storage);
    let run = |arguments: &[&str]| cluster.command(arguments).output().expect("weft can be run");
    assert!(complaint(&run(&["up", "--dir", dir, "--detach"])).contains("already running"));
    let missing = format!("{}no/such", cluster.url());
    assert!(complaint(&run(&["cat", &missing])).contains("no such file"));
    assert!(complaint(&run(&["rm", cluster.url()])).contains("root"));
    assert!(complaint(&run(&["cp", dir, "/tmp/x"])).contains("local"));
    assert!(complaint(&run(&["ls", &format!("{}*.none", cluster.url())])).contains("no file matches"));
    assert!(complaint(&run(&["ls", "weft:/x"])).contains("WEFT_URL"));
    assert!(complaint(&run(&["help", "nonsense"])).contains("weft help"));
    assert_eq!(run(&["nonsense"]).status.code(), Some(2));
    cluster.down();
    assert!(complaint(&run(&["up", "--dir", dir, "--detach", "--io", "3"])).contains("2 I/O servers"));
    assert!(cluster.weft(&["down", "--dir", dir]).contains("no cluster"));
}

#[test]
fn the_wrong_key_opens_nothing() {
    let (cluster, other) = (Cluster::start(1), Cluster::start(1));
    let key = other.key_file();
    let output =
        cluster.command(&["ls", cluster.url(), "--key", text(&key)]).output().expect("weft can be run");
    assert!(complaint(&output).contains("key"), "{output:?}");
    cluster.weft(&["ls", cluster.url(), "--key", text(&cluster.key_file())]);
}

/// Starts `weft up` in the foreground and waits until it has printed its URL.
fn foreground(dir: &Path) -> std::process::Child {
    let mut command = Command::new(weft_bin());
    command.args(["up", "--io", "2", "--dir"]).arg(dir.join("storage")).env("HOME", dir);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("weft can be run");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    assert!(line.starts_with("weft://"), "{line}");
    child
}

#[test]
fn servers_end_with_a_foreground_up_however_it_ends() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let dir = tempfile::tempdir().unwrap();
        let mut up = foreground(dir.path());
        let servers = || processes_naming(text(&dir.path().join("storage/weft.toml")));
        assert_eq!(servers().len(), 3);
        // SAFETY: the process is our child and was not waited for.
        unsafe { libc::kill(up.id() as i32, signal) };
        let status = up.wait().unwrap();
        assert_eq!(status.success(), signal != libc::SIGKILL, "{status}");
        wait_until("the servers have ended", TIMEOUT, || servers().is_empty());
    }
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let cluster = Cluster::start(3);
    let scratch = cluster.scratch("files");
    sh_in(
        &scratch,
        "mkdir -p tree/deep/er tree/empty; for size in 0 1 4095 65537 3000000; do head -c $size /dev/urandom > tree/deep/$size; done
         head -c 150000000 /dev/urandom > tree/large; ln -s deep/1 tree/link; chmod 600 tree/deep/1; chmod 555 tree/deep/er
         touch -d '2001-02-03 04:05:06.789' tree/deep/4095 tree/empty; printf x > 'tree/a name with * and ?'",
    );
    let (url, tree, back) = (cluster.url(), scratch.join("tree"), scratch.join("back"));
    cluster.weft(&["cp", "-rp", text(&tree), url]);
    cluster.weft(&["cp", "-rp", &format!("{url}tree"), text(&back)]);
    sh_in(&scratch, "diff -r --no-dereference tree back");
    let all = "find . -printf '%p %y %m %T@ %l\\n' | sort";
    assert_eq!(sh_in(&tree, all), sh_in(&back, all));
    // Between places of one file system, and over what is there already.
    cluster.weft(&["cp", "-r", &format!("{url}tree"), &format!("{url}copy")]);
    cluster.weft(&["cp", "-r", &format!("{url}copy/."), text(&back)]);
    sh_in(&scratch, "diff -r --no-dereference tree back");
    // Into itself is no copy.
    let output =
        cluster.command(&["cp", "-r", &format!("{url}tree"), &format!("{url}tree/deep")]).output().unwrap();
    assert!(complaint(&output).contains("itself"));
}

#[test]
fn sparse_files_stay_sparse() {
    let cluster = Cluster::start(2);
    let scratch = cluster.scratch("files");
    let (sparse, back) = (scratch.join("sparse"), scratch.join("back"));
    let file = std::fs::File::create(&sparse).unwrap();
    file.write_all_at(b"in the middle", 300 << 20).unwrap();
    file.set_len(1 << 30).unwrap();
    cluster.weft(&["cp", text(&sparse), cluster.url()]);
    let stored = sh_in(&cluster.storage(), "du -sk io0 io1 | awk '{ sum += $1 } END { print sum }'");
    assert!(stored.trim().parse::<u64>().unwrap() < 20 << 10, "the servers hold {stored} KiB");
    cluster.weft(&["cp", &format!("{}sparse", cluster.url()), text(&back)]);
    sh_in(&scratch, "cmp sparse back");
    assert!(std::fs::metadata(&back).unwrap().blocks() * 512 < 1 << 20, "the copy has no holes");
}

#[test]
fn what_fails_is_listed_and_the_rest_is_copied() {
    let cluster = Cluster::start(1);
    let scratch = cluster.scratch("files");
    sh_in(&scratch, "mkdir tree; echo 1 > tree/one; mkfifo tree/pipe; echo 2 > tree/two");
    let output = cluster.command(&["cp", "-r", text(&scratch.join("tree")), cluster.url()]).output().unwrap();
    let stderr = complaint(&output);
    assert!(stderr.contains("tree/pipe") && stderr.contains("1 could not be copied"), "{stderr}");
    assert_eq!(cluster.weft(&["cat", &format!("{}tree/*", cluster.url())]), "1\n2\n");
}

/// The bytes of `a[rows, columns]` of an array with `width` elements of `element` bytes in a row that begins at `offset`, cut out by
/// hand.
fn slice(
    file: &[u8],
    offset: usize,
    (width, element): (usize, usize),
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Vec<u8> {
    let place = |row: usize, column: usize| offset + (row * width + column) * element;
    rows.flat_map(|row| file[place(row, columns.start)..place(row, columns.end)].to_vec()).collect()
}

#[test]
fn a_part_of_a_file_is_shown() {
    let cluster = Cluster::start(3);
    let dir = cluster.scratch("dump");
    let numbers: Vec<u8> = (0..60_000u32).flat_map(|number| f64::from(number).to_le_bytes()).collect();
    let file = [vec![0xee; 512], numbers].concat();
    std::fs::write(dir.join("array"), &file).unwrap();
    let url = format!("{}array", cluster.url());
    cluster.weft(&["cp", "--strip-bytes", "4K", text(&dir.join("array")), &url]);
    let dump = |arguments: &[&str]| {
        let output =
            cluster.command(&[&["dump"], arguments, &[&url]].concat()).output().expect("weft can be run");
        expect_success("weft dump", &output);
        output.stdout
    };

    let block = dump(&["--subarray", "200,300:17,250:100,50:f64", "--offset", "512"]);
    assert!(block == slice(&file, 512, (300, 8), 17..117, 250..300), "raw into a pipe");
    let column = dump(&["--subarray", "200,300:0,299:200,1:8", "--offset", "512"]);
    assert!(column == slice(&file, 512, (300, 8), 0..200, 299..300));
    // In Fortran's order the same array is 300 by 200, and its columns are what C calls rows.
    let fortran = dump(&["--subarray", "300,200:250,17:50,100:f64:F", "--offset", "512"]);
    assert!(fortran == block);
    let range = dump(&["--offset", "1000", "--bytes", "70001"]);
    sh_in(&dir, "dd if=array of=range bs=1 skip=1000 count=70001 status=none");
    assert!(range == std::fs::read(dir.join("range")).unwrap());
    assert!(dump(&[]) == file);

    let table = dump(&["--subarray", "200,300:9,7:2,3:f64", "--offset", "512", "--format", "f64"]);
    let table = String::from_utf8(table).unwrap();
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words, [["[9,7]", "2707.0", "2708.0", "2709.0"], ["[10,7]", "3007.0", "3008.0", "3009.0"]]);
    let hex = String::from_utf8(dump(&["--offset", "508", "--bytes", "20", "--format", "hex"])).unwrap();
    assert!(hex.starts_with("000001fc  ee ee ee ee 00 00 00 00  "), "{hex}");

    let run = |arguments: &[&str]| {
        complaint(
            &cluster.command(&[&["dump"], arguments, &[&url]].concat()).output().expect("weft can be run"),
        )
    };
    let said = run(&["--subarray", "201,300:200,0:1,1:f64", "--offset", "512"]);
    assert!(said.contains("has 480512 bytes, but the requested part ends at 480520"), "{said}");
    assert!(run(&["--offset", "480000", "--bytes", "1K"]).contains("ends at 481024"));
    assert!(run(&["--offset", "1M"]).contains("there is nothing at 1048576"));
    assert!(
        run(&["--bytes", "9", "--format", "u16"])
            .contains("9 bytes are not a multiple of the 2 bytes of u16")
    );
}

#[test]
fn a_part_of_a_file_is_copied_out_and_in() {
    let cluster = Cluster::start(3);
    let dir = cluster.scratch("blocks");
    // An array of 1000 by 2000 elements of 5 bytes, put together of four blocks, in no order.
    let (height, width, element) = (1000, 2000, 5);
    let array: Vec<u8> = (0..(height * width * element) as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let url = format!("{}array", cluster.url());
    let blocks = [(600..1000, 700..2000), (0..600, 0..700), (600..1000, 0..700), (0..600, 700..2000)];
    let block_file = dir.join("block");
    let spec = |(rows, columns): &(std::ops::Range<usize>, std::ops::Range<usize>)| {
        format!("1000,2000:{},{}:{},{}:5", rows.start, columns.start, rows.len(), columns.len())
    };
    for block in &blocks {
        std::fs::write(&block_file, slice(&array, 0, (width, element), block.0.clone(), block.1.clone()))
            .unwrap();
        let (from, spec) = (text(&block_file), spec(block));
        cluster.weft(&[
            "cp",
            "-q",
            "--subarray",
            &spec,
            "--offset",
            "100",
            "--strip-bytes",
            "64K",
            from,
            &url,
        ]);
    }
    let whole = cluster.command(&["dump", "--offset", "100", &url]).output().unwrap().stdout;
    assert!(whole == array);
    assert_eq!(json(&cluster.weft(&["stripe", "get", "--json", &url]))[0]["layout"]["strip_bytes"], 65536);

    std::fs::remove_file(&block_file).unwrap();
    let inner = (1..999, 3..1997);
    cluster.weft(&["cp", "--subarray", &spec(&inner), "--offset", "100", &url, text(&dir)]);
    assert!(
        std::fs::read(dir.join("array")).unwrap() == slice(&array, 0, (width, element), inner.0, inner.1)
    );

    let run = |arguments: &[&str]| {
        complaint(&cluster.command(&[&["cp"], arguments].concat()).output().expect("weft can be run"))
    };
    let local = dir.join("local");
    std::fs::write(&local, [7; 99]).unwrap();
    let said = run(&["--subarray", "10,10:0,0:5,4:5", text(&local), &url]);
    assert!(said.contains("has 99 bytes, but the subarray has 100"), "{said}");
    let said = run(&["--subarray", "9000,9000:8999,0:1,1:5", &url, text(&local)]);
    assert!(said.contains("the requested part ends at"), "{said}");
    assert_eq!(std::fs::read(&local).unwrap(), [7; 99], "nothing is touched before it is known to fit");
    assert!(
        run(&["--subarray", "9:0:1:5", &url, &format!("{url}2")])
            .contains("one Weft file and one local file")
    );
    assert!(
        run(&["--subarray", "9:0:1:5", text(&local), text(&local), cluster.url()])
            .contains("copies one file")
    );
}

#[test]
fn names_are_made_listed_moved_and_removed() {
    let cluster = Cluster::start(1);
    let weft = |arguments: &[&str]| {
        let output =
            cluster.command(arguments).env("WEFT_URL", cluster.url()).output().expect("weft can be run");
        expect_success(&arguments.join(" "), &output)
    };
    let files = cluster.scratch("files");
    sh_in(&files, "echo a > a.txt; echo bb > b.txt; echo c > c.dat; echo h > .hidden");
    weft(&["mkdir", "-p", "weft:/x/y/z"]);
    weft(&["mkdir", "-p", "weft:/x/y/z"]);
    weft(&["mkdir", "-m", "1770", "weft:/tmp"]);
    for name in ["a.txt", "b.txt", "c.dat", ".hidden"] {
        weft(&["cp", text(&files.join(name)), "weft:/x/y"]);
    }
    assert_eq!(weft(&["ls", "weft:/x/y"]), "a.txt\nb.txt\nc.dat\nz\n");
    assert!(weft(&["ls", "-a", "weft:/x/y"]).starts_with(".hidden\n"));
    assert!(weft(&["ls", "-ld", "weft:/tmp"]).starts_with("drwxrwx--T"));
    let long = weft(&["ls", "-l", "weft:/x/y/b.txt"]);
    assert!(long.starts_with("-rw-r--r--") && long.contains(" 3 "), "{long}");
    let listed = json(&weft(&["ls", "--json", "weft:/x/y/*.txt"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert_eq!(listed[1]["bytes"], 3);
    assert_eq!(weft(&["cat", "weft:/x/y/[ab].txt"]), "a\nbb\n");

    weft(&["mv", "weft:/x/y/a.txt", "weft:/x/y/c.dat", "weft:/x/y/z"]);
    weft(&["mv", "weft:/x/y/b.txt", "weft:/x/y/renamed"]);
    let tree = weft(&["tree", "weft:/x"]);
    assert!(tree.contains("│       ├── a.txt") || tree.contains("├── a.txt"), "{tree}");
    assert!(tree.contains("2 directories, 3 files"), "{tree}");
    let sums = json(&weft(&["du", "--json", "weft:/x"]));
    let last = sums.as_array().and_then(|sums| sums.last()).unwrap();
    assert_eq!((&last["bytes"], &last["files"]), (&Value::from(2 + 3 + 2 + 2), &Value::from(4)));
    assert!(weft(&["du", "-sb", "weft:/x"]).trim_start().starts_with("9 "));
    let stat = weft(&["stat", "weft:/x/y/renamed"]);
    assert!(stat.contains("3 bytes") && stat.contains("io0, reached by"), "{stat}");

    let output = cluster.command(&["rm", &format!("{}x", cluster.url())]).output().unwrap();
    assert!(complaint(&output).contains("-r"));
    weft(&["rm", "weft:/x/y/z/*"]);
    weft(&["rm", "-rf", "weft:/x", "weft:/nothing/here", "weft:/none*"]);
    assert_eq!(weft(&["ls", "weft:/"]), "tmp\n");
}

#[test]
fn directories_give_their_striping_to_files() {
    let cluster = Cluster::start(3);
    let url = cluster.url();
    let at = |path: &str| format!("{url}{path}");
    let layout =
        |path: &str| json(&cluster.weft(&["stripe", "get", "--json", &at(path)]))[0]["layout"].clone();
    cluster.weft(&["mkdir", "--strip-bytes", "1M", "--servers", "2", &at("two")]);
    cluster.weft(&["mkdir", &at("two/below")]);
    let file = cluster.scratch("files").join("file");
    std::fs::write(&file, vec![7; 3_000_000]).unwrap();
    cluster.weft(&["cp", text(&file), &at("two/below/file")]);
    let inherited = layout("two/below/file");
    assert_eq!((&inherited["strip_bytes"], &inherited["servers"]), (&Value::from(1 << 20), &Value::from(2)));

    cluster.weft(&["cp", "--strip-bytes", "64K", "--servers", "1", "--first", "2", text(&file), &at("one")]);
    assert_eq!(layout("one")["server_ids"], Value::from(vec![2]));
    cluster.weft(&["stripe", "set", &at("new"), "--servers", "3", "--first", "1"]);
    assert_eq!(layout("new")["server_ids"], Value::from(vec![1, 2, 0]));
    cluster.weft(&["stripe", "set", &at("two"), "--reset"]);
    assert!(cluster.weft(&["stripe", "get", &at("two")]).contains("default"));
    for wrong in [["--servers", "9"], ["--strip-bytes", "5000"], ["--first", "3"]] {
        let place = at("two");
        let output = cluster.command(&["stripe", "set", &place, wrong[0], wrong[1]]).output().unwrap();
        complaint(&output);
    }
    assert_eq!(layout("one")["servers"], 1);
}

#[test]
fn status_and_space_are_told() {
    let cluster = Cluster::start(2);
    let status = json(&cluster.weft(&["status", "--json", cluster.url()]));
    let servers = status["servers"].as_array().unwrap();
    let names: Vec<_> = servers.iter().map(|server| server["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["meta0", "io0", "io1"]);
    for server in servers {
        assert_eq!(server["answers"], true);
        assert!(server["transport"].as_str().unwrap().starts_with(usual_transport()), "{server}");
        assert!(server["space_bytes"].as_u64().unwrap() > 0);
        assert!(server["memory_bytes"].as_u64().unwrap() > 0);
    }
    let by_tcp = json(&cluster.weft(&["status", "--json", &format!("{}?transport=tcp", cluster.url())]));
    assert!(by_tcp["servers"][1]["transport"].as_str().unwrap().starts_with("tcp"));
    let table = cluster.weft(&["status", "-v", "--clients", "--operations", cluster.url()]);
    assert!(table.contains("io1") && table.contains("nosync") && table.contains("weft"), "{table}");
    let space = json(&cluster.weft(&["df", "--json", cluster.url()]));
    assert_eq!(space.as_array().map(Vec::len), Some(3));
    assert!(space[0]["free_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn a_server_that_is_gone_is_told_about() {
    let cluster = Cluster::start(2);
    // One that is killed would be started again.
    cluster.weft(&["down", "--only", "io1", "--dir", text(&cluster.storage())]);
    wait_until("status tells", TIMEOUT, || {
        let output = cluster.command(&["status", cluster.url()]).output().expect("weft can be run");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.code() == Some(1) && stdout.contains("does not answer") && stdout.contains("io0")
    });
}

#[test]
fn a_cluster_file_is_served_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let weft = |arguments: &[&str]| {
        let mut command = Command::new(weft_bin());
        command.args(arguments).env("HOME", dir.path()).env("WEFT_KEY_FILE", dir.path().join("c/client.key"));
        command
    };
    let (cluster_dir, port) = (dir.path().join("c"), free_ports(3));
    let place =
        |index: u16| format!("{}:{}:{}", host(), port + index, text(&dir.path().join(format!("s{index}"))));
    let init = [
        "init",
        "--dir",
        text(&cluster_dir),
        "--meta",
        &place(0),
        "--io",
        &place(1),
        "--io",
        &place(2),
        "--json",
    ];
    let said = json(&expect_success("init", &weft(&init).output().unwrap()));
    let url = said["url"].as_str().unwrap().to_string();
    assert!(complaint(&weft(&init).output().unwrap()).contains("never overwritten"));
    let config = cluster_dir.join("weft.toml");
    let mut servers: Vec<_> = ["meta0", "io0", "io1"]
        .iter()
        .map(|name| {
            let make =
                weft(&["serve", "--config", text(&config), "--name", name, "--format"]).output().unwrap();
            expect_success("serve --format", &make);
            weft(&["serve", "--config", text(&config), "--name", name]).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    wait_until("all servers answer", TIMEOUT, || weft(&["status", &url]).output().unwrap().status.success());
    expect_success("mkdir", &weft(&["mkdir", &format!("{url}dir")]).output().unwrap());
    for server in &mut servers {
        // SAFETY: the process is our child and was not waited for.
        unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
        assert!(server.wait().unwrap().success());
    }
    let output = weft(&["serve", "--config", text(&config), "--name", "io7"]).output().unwrap();
    // A new start would end the same way.
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("meta0, io0, io1"), "{output:?}");
}

#[test]
fn the_program_explains_itself() {
    let run = |arguments: &[&str]| {
        expect_success("weft", &Command::new(weft_bin()).args(arguments).output().unwrap())
    };
    assert!(run(&["help"]).contains("striping"));
    assert!(run(&["help", "striping"]).contains("--strip-bytes"));
    assert!(run(&["help", "stripe", "set"]).contains("--reset"));
    assert!(run(&["completions", "bash"]).contains("complete"));
    let dir = tempfile::tempdir().unwrap();
    run(&["man", text(dir.path())]);
    assert!(dir.path().join("weft-up.1").exists() && dir.path().join("weft-semantics.7").exists());
}

/// By `cp`: what this process writes cannot be executed while another of its threads starts a program, which has the file open too.
fn copy_program(from: &Path, to: &Path) {
    expect_success("cp", &Command::new("cp").args([from, to]).output().unwrap());
}

/// `weft-bench` is a program of its own: `weft bench` becomes it, so that its signals and its exit status are its own.
#[test]
fn weft_bench_becomes_the_program_beside_it_or_on_the_path() {
    let (beside, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let weft = beside.path().join("weft");
    copy_program(weft_bin(), &weft);
    let stand_in = |dir: &Path, name: &str| {
        let text = dir.join("text");
        let script = format!("#!/bin/sh\necho {name} $$ \"$WEFT_PROGRAM\" \"$@\"\nkill -TERM $$\n");
        std::fs::write(&text, script).unwrap();
        std::fs::set_permissions(&text, PermissionsExt::from_mode(0o755)).unwrap();
        copy_program(&text, &dir.join("weft-bench"));
    };
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(&weft);
        command.arg("bench").args(arguments).env("PATH", elsewhere.path()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        (child.id(), child.wait_with_output().unwrap())
    };
    let arguments = ["tile", "--runs", "3", "--svg=a b"];
    let (_, missing) = bench(&arguments);
    let said = complaint(&missing);
    assert!(said.contains("weft-bench") && said.contains("make install") && said.contains("-p weft-bench"));
    for (dir, name) in [(&elsewhere, "elsewhere"), (&beside, "beside")] {
        stand_in(dir.path(), name);
        let (pid, output) = bench(&arguments);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("{name} {pid} {} tile --runs 3 --svg=a b\n", weft.display()));
        assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    }
    let (_, refused) = bench(&["tile", "--runs", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty(), "it was started: {refused:?}");
}

#[test]
fn a_stopped_bench_removes_its_directories_and_tells_of_progress_on_a_pipe() {
    let cluster = Cluster::start(1);
    let scratch = cluster.scratch("bench");
    let log = cluster.scratch("log").join("said");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut bench =
            cluster.command(&["bench", "latency", "--runs", "1000", "--url", cluster.url(), "--dir"]);
        bench.arg(&scratch).env("WEFT_KEY_FILE", cluster.key_file()).stdout(Stdio::null());
        let mut bench = bench.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let said = || std::fs::read_to_string(&log).unwrap();
        wait_until("it tells how far it is", Duration::from_secs(120), || {
            assert!(bench.try_wait().unwrap().is_none(), "{}", said());
            said().contains(" measurements in ")
        });
        assert!(cluster.weft(&["ls", cluster.url()]).contains("weft-bench-"));
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
        weft_tests::signal(bench.id(), signal);
        assert_eq!(bench.wait().unwrap().code(), Some(128 + signal), "{}", said());
        assert_eq!(cluster.weft(&["ls", cluster.url()]), "");
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    }
}

/// Its servers are of the `weft` that started it, or of the one beside it.
#[test]
fn weft_bench_measures_the_weft_that_started_it() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (weft, bench) = (dir.path().join("weft"), elsewhere.path().join("weft-bench"));
    copy_program(weft_bin(), &weft);
    copy_program(&weft_bin().with_file_name("weft-bench"), &bench);
    let latency = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).args([
            "latency",
            "--rounds",
            "5",
            "--pause-us",
            "1000",
            "--runs",
            "1",
            "--json",
            "--dir",
        ]);
        command.arg(dir.path()).env("PATH", elsewhere.path()).env_remove("WEFT_PROGRAM").output().unwrap()
    };
    json(&expect_success("weft bench", &latency(&weft, &["bench"])));
    assert!(complaint(&latency(&bench, &[])).contains("-p weft-cli"));
    std::fs::rename(&weft, elsewhere.path().join("weft")).unwrap();
    json(&expect_success("weft-bench", &latency(&bench, &[])));
}

/// What `weft` tells of measurements does not need the program that makes them.
#[test]
fn weft_explains_the_measurements_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let weft = dir.path().join("weft");
    copy_program(weft_bin(), &weft);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&weft);
        expect_success("weft", &command.args(arguments).env("PATH", "").output().unwrap())
    };
    assert!(run(&["help"]).contains("bench"));
    for arguments in [&["bench", "--help"][..], &["help", "bench"]] {
        let said = run(arguments);
        assert!(said.contains("registration-costs") && !said.contains("worker"), "{said}");
    }
    for arguments in [&["bench", "tile", "--help"][..], &["help", "bench", "tile"]] {
        let said = run(arguments);
        assert!(said.contains("--element") && said.contains("mpi-tile-io"), "{said}");
    }
    let completions = run(&["completions", "bash"]);
    assert!(completions.contains("group-registration") && completions.contains("--least-bytes"));
    run(&["man", text(dir.path())]);
    let page = std::fs::read_to_string(dir.path().join("weft-bench-block-column.1")).unwrap();
    assert!(page.contains("least\\-bytes"), "{page}");
}

#[test]
fn measurements_end_with_figures_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(weft_bin());
        command.arg("bench").args(arguments).args(["--runs", "1", "--json", "--dir", text(dir.path())]);
        command
    };
    for (arguments, rows) in [
        (&["shared-file", "--clients", "2", "--io", "2", "--bytes", "1M"][..], 7),
        (&["latency", "--rounds", "50"], 8),
        (&["list", "--entries", "30"], 5),
        (
            &[
                "requests",
                "--size",
                "4K,64K",
                "--depth",
                "1,3",
                "--requests",
                "2",
                "--file-bytes",
                "1M",
                "--io",
                "1",
            ],
            32,
        ),
        (
            &[
                "requests",
                "--size",
                "4K",
                "--depth",
                "9",
                "--requests",
                "2",
                "--transport",
                "shm",
                "--memory",
                "alloc",
            ],
            2,
        ),
        (&["meta", "--files", "20", "--clients", "2"], 3),
        (&["meta", "--files", "20", "--clients", "1", "--threads", "2", "--tcp"], 3),
    ] {
        let report = json(&expect_success(&arguments.join(" "), &bench(arguments).output().unwrap()));
        let found = report["rows"].as_array().unwrap();
        assert_eq!(found.len(), rows, "{report}");
        assert!(found.iter().all(|row| row["value"].as_f64().unwrap() > 0.0), "{report}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a scratch directory is left");
    }
    for (arguments, contests) in [
        (&["tile", "--element", "3", "--tile", "64x48"][..], 12),
        (&["block-column", "--size", "64", "--sync", "--transport", "tcp"], 3),
        (&["transfer", "--piece", "128", "--pieces", "16", "--array", "32", "--transport", "shm"], 9),
        (&["blocks", "--blocks", "4", "--block-bytes", "4K", "--clients", "2"], 6),
        (&["btio", "--class", "s", "--solutions", "2"], 4),
        (
            &[
                "random",
                "--piece",
                "64",
                "--pieces",
                "100",
                "--file-bytes",
                "1M",
                "--clients",
                "2",
                "--seed",
                "9",
            ],
            4,
        ),
    ] {
        let drawn = dir.path().join("drawn.svg");
        let more = ["--io", "2", "--least-bytes", "0", "--svg", text(&drawn)];
        let output = bench(arguments).args(more).output().unwrap();
        let report = json(&expect_success(&arguments.join(" "), &output));
        let found = report["contests"].as_array().unwrap();
        assert_eq!(found.len(), contests, "{report}");
        let methods = |contest: &Value| contest["methods"].as_array().unwrap().clone();
        let speeds = found.iter().flat_map(methods).map(|method| method["mib_s"].as_f64().unwrap());
        assert!(speeds.into_iter().all(|speed| speed > 0.0), "{report}");
        let picture = std::fs::read_to_string(&drawn).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        std::fs::remove_file(&drawn).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a scratch directory is left");
    }
    for (arguments, said) in [
        (&["tile", "--method", "pack"][..], "--method"),
        (&["requests", "--size", "0"], "--size 0"),
        (&["requests", "--size", "1M", "--file-bytes", "64K"], "--file-bytes"),
    ] {
        assert!(complaint(&bench(arguments).output().unwrap()).contains(said), "{arguments:?}");
    }
    let mut long = bench(&["shared-file", "--bytes", "128M"]).stdout(Stdio::null()).spawn().unwrap();
    let name = text(dir.path()).to_string();
    wait_until("its servers run", TIMEOUT, || processes_naming(&format!("{name}/weft-bench")).len() >= 5);
    // SAFETY: the process is our child and was not waited for.
    unsafe { libc::kill(long.id() as i32, libc::SIGINT) };
    assert_eq!(long.wait().unwrap().code(), Some(130));
    wait_until("its servers have ended", TIMEOUT, || processes_naming(&name).is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a scratch directory is left");
}

/// The answer of `weft explain --json` about a file.
fn explained(cluster: &Cluster, url: &str, arguments: &[&str]) -> Value {
    json(&cluster.weft(&[&["explain", url, "--json"], arguments].concat()))
}

fn sum(servers: &Value, field: &str) -> u64 {
    servers["servers"].as_array().unwrap().iter().map(|server| server[field].as_u64().unwrap()).sum()
}

#[test]
fn servers_explain_what_they_would_do_and_what_it_cost() {
    let cluster = Cluster::start(3);
    let dir = cluster.scratch("explain");
    sh_in(&dir, "head -c 3000000 /dev/urandom > file; seq 0 1000 200000 | sed 's/$/ 24 # a record/' > list");
    let url = format!("{}file", cluster.url());
    cluster.weft(&["cp", "-q", "--strip-bytes", "16K", text(&dir.join("file")), &url]);

    let stride = explained(&cluster, &url, &["--stride", "100:64:1000:2900", "--run"]);
    assert_eq!((stride["bytes"].as_u64(), stride["pieces"].as_u64()), (Some(2900 * 64), Some(2900)));
    assert_eq!(stride["flat_list_bytes"], 2900 * 16);
    assert_eq!(sum(&stride, "request_bytes"), stride["request_bytes"].as_u64().unwrap());
    assert!(stride["request_bytes"].as_u64().unwrap() < 1000, "{stride}");
    assert_eq!(sum(&stride, "bytes"), 2900 * 64);
    assert!(sum(&stride, "pieces") >= 2900, "pieces that cross strips are two");
    for server in stride["servers"].as_array().unwrap() {
        let ways = server["ways"].as_array().unwrap();
        let chosen: u64 = ways.iter().map(|way| way["chosen_windows"].as_u64().unwrap()).sum();
        assert_eq!(chosen, server["windows"].as_u64().unwrap());
        assert_eq!(ways[0]["accesses"], server["pieces"], "one each");
        // How long a gap pays depends on what this machine was measured to take.
        assert!(ways[1]["accesses"].as_u64() <= ways[0]["accesses"].as_u64(), "{}", ways[1]);
    }
    let close = explained(&cluster, &url, &["--stride", "100:64:72:2900"]);
    for server in close["servers"].as_array().unwrap() {
        let sieve = &server["ways"][1];
        assert!(sieve["accesses"].as_u64().unwrap() < 100, "a few large ones: {sieve}");
    }
    let runs = stride["runs"].as_array().unwrap();
    let ways: Vec<&str> = runs.iter().map(|run| run["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["planned", "each", "sieve", "mapped"]);
    for run in runs {
        assert_eq!(run["moved_bytes"], 2900 * 64);
        assert!(run["busy_ns"].as_u64().unwrap() > 0 && run["expected_ns"].as_u64().unwrap() > 0);
    }
    assert_eq!(runs[1]["accesses"].as_u64(), Some(sum(&stride, "pieces")));

    let rows = ["--subarray", "500,600:0,0:500,60:10", "--rdma", "--in-place"];
    let rdma = explained(&cluster, &url, &rows);
    assert!(rdma["rdma"].is_object(), "what it would take over RDMA: {rdma}");

    let list = explained(&cluster, &url, &["--list", text(&dir.join("list"))]);
    assert_eq!((list["pieces"].as_u64(), list["bytes"].as_u64()), (Some(201), Some(201 * 24)));
    let block = explained(&cluster, &url, &["--subarray", "500,600:0,0:500,60:10", "--write", "--sync"]);
    assert_eq!((block["write"].as_bool(), sum(&block, "bytes")), (Some(true), 300_000));
    let range = explained(&cluster, &url, &["--offset", "5", "--bytes", "10"]);
    assert_eq!(sum(&range, "pieces"), 1);
    assert!(cluster.weft(&["explain", &url, "--bytes", "1M", "--run"]).contains("servers busy"));
    let before = sh_in(&dir, "sha256sum < file");
    cluster.weft(&["cp", "-q", &url, text(&dir.join("back"))]);
    assert_eq!(before, sh_in(&dir, "sha256sum < back"), "nothing was written");

    let run = |arguments: &[&str]| {
        let arguments = [&["explain", &url], arguments].concat();
        complaint(&cluster.command(&arguments).output().expect("weft can be run"))
    };
    std::fs::write(dir.join("bad"), "0 5\nx 6\n").unwrap();
    let said = run(&["--list", text(&dir.join("bad"))]);
    assert!(said.contains("line 2: `x 6`"), "{said}");
}

/// Block columns, pieces in turn, and pieces that are described for one process are the same pieces.
#[test]
fn methods_of_mpi_are_explained_for_any_file() {
    let run = |arguments: &[&str]| Command::new(weft_bin()).arg("explain").args(arguments).output().unwrap();
    let of = |arguments: &[&str]| json(&expect_success("weft explain", &run(arguments)));
    let common = ["--json", "--mpi", "--servers", "4", "--strip-bytes", "64K", "--processors", "2"];
    let four = |pieces: &[&str]| of(&[&common, pieces].concat());
    let columns = four(&["--array", "1000,16:f64", "--grid", "1,4"]);
    let interleaved = four(&["--processes", "4", "--interleaved", "32:1000"]);
    let shifted = four(&["--processes", "4", "--stride", "0:32:128:1000", "--shift", "32"]);
    assert_eq!((columns["pieces"].as_u64(), columns["bytes"].as_u64()), (Some(4000), Some(128_000)));
    assert_eq!(columns, interleaved);
    assert_eq!(columns, shifted);
    assert_eq!((columns["memory_pieces"].as_u64(), columns["nodes"].as_u64()), (Some(4), Some(1)));
    for way in ["read", "write"] {
        let methods = columns[way]["methods"].as_array().unwrap();
        let of = |name: &str| methods.iter().find(|it| it["method"] == name).unwrap();
        let automatic = methods.iter().filter(|it| it["automatic"] == true);
        let best = automatic.min_by_key(|it| it["expected_ns"].as_u64().unwrap()).unwrap();
        assert_eq!(best["method"], columns[way]["chosen"], "{columns}");
        assert_eq!(of("multiple")["requests"], 4000);
        assert!(!columns[way]["reason"].as_str().unwrap().is_empty());
    }
    // Very many tiny pieces are worth the first exchange, and a few are not.
    let many = four(&["--processes", "4", "--interleaved", "8:10000000"]);
    assert_eq!(many["write"]["chosen"], "two_phase", "{many}");
    let later = four(&["--processes", "4", "--interleaved", "8:4096"]);
    assert_eq!(
        (later["read"]["chosen"].as_str(), later["read"]["later"].as_str()),
        (Some("list"), Some("two_phase"))
    );
    assert!(later["read"]["later_after_calls"].as_u64().unwrap() > 1, "{later}");

    // Each process has one piece: none waits for another, whatever an exchange would cost.
    let blocks = four(&["--processes", "4", "--bytes", "1K", "--shift", "1K"]);
    let two_phase = &blocks["write"]["methods"][2];
    assert_eq!(blocks["write"]["chosen"], "list");
    assert_eq!(two_phase["automatic"], false);
    assert!(blocks["write"]["reason"].as_str().unwrap().contains("none waits"), "{blocks}");

    let spread = four(&["--processes", "4", "--per-node", "2", "--interleaved", "32:10", "--in-place"]);
    assert_eq!((spread["nodes"].as_u64(), spread["processors"].as_u64()), (Some(2), Some(4)));
    assert_eq!(spread["memory_pieces"], 40);
    let alone = four(&["--processes", "1", "--bytes", "1M", "--shift", "0"]);
    assert_eq!(alone["read"]["methods"][2]["expected_ns"], Value::Null, "nobody to exchange with");

    let said = complaint(&run(&["--mpi", "--servers", "4", "--processes", "4", "--bytes", "1M"]));
    assert!(said.contains("--shift"), "{said}");
    let said = complaint(&run(&["--mpi", "--servers", "4", "--array", "9,2:1", "--grid", "1,4"]));
    assert!(said.contains("dimension 1") && said.contains("4 blocks"), "{said}");
}

#[test]
fn methods_of_mpi_are_explained_for_a_file_that_is_there() {
    let cluster = Cluster::start(3);
    let url = format!("{}file", cluster.url());
    let dir = cluster.scratch("explain-mpi");
    sh_in(&dir, "head -c 100000 /dev/urandom > file");
    cluster.weft(&["cp", "-q", "--strip-bytes", "16K", text(&dir.join("file")), &url]);
    let pieces = ["--mpi", "--array", "100,100:8", "--grid", "2,2"];
    let answer = explained(&cluster, &url, &pieces);
    assert_eq!(
        (answer["layout"]["strip_bytes"].as_u64(), answer["layout"]["servers"].as_u64()),
        (Some(16384), Some(3))
    );
    let table = cluster.weft(&[&["explain", &url], &pieces[..]].concat());
    for word in ["read:", "write:", "two_phase", "chosen", "by hint only", "times as long"] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn cost_models_are_measured_once_kept_and_renewed() {
    let mut cluster = Cluster::start(2);
    let models = |cluster: &Cluster, more: &[&str]| {
        json(&cluster.weft(&[&["calibrate", cluster.url(), "--json"], more].concat()))["servers"].clone()
    };
    let stored =
        |cluster: &Cluster| std::fs::read_to_string(cluster.storage().join("io1/cost-model.toml")).unwrap();
    let first = models(&cluster, &[]);
    assert_eq!(first[0]["curves"], first[1]["curves"], "one has measured, the other has taken it");
    assert!(first[0]["measured_s"].as_i64().unwrap() > 0);
    for (name, points) in first[0]["curves"].as_object().unwrap() {
        assert!(points.as_array().unwrap().len() >= 2, "{name}");
    }
    let text_of_first = stored(&cluster);
    assert!(text_of_first.contains("[curves]"), "{text_of_first}");
    cluster.down();
    cluster.up(2, &[]);
    assert_eq!(models(&cluster, &[]), first, "it is kept");

    let again = models(&cluster, &["--measure"]);
    assert_ne!(again[1]["curves"], first[1]["curves"]);
    assert_ne!(stored(&cluster), text_of_first);
    assert_eq!(models(&cluster, &[]), again);
    assert!(cluster.weft(&["calibrate", cluster.url()]).contains("O_r + O_seek"));

    cluster.down();
    std::fs::write(cluster.storage().join("io1/cost-model.toml"), "version = 1\nrubbish").unwrap();
    cluster.up(2, &[]);
    assert_eq!(
        models(&cluster, &[])[1]["curves"],
        again[0]["curves"],
        "the neighbour's, as its own was damaged"
    );
    let said = sh_in(&cluster.storage(), "cat log/io1*");
    assert!(said.contains("the stored cost model is not used: it is damaged"), "{said}");
}
