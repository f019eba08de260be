//! The client of NFS and `weft nfs`, with a server that is not Weft's: NFS-Ganesha.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use weft_nfs_client::{
    Access, ConnectOptions, Cookie, CreateHow, Error, FileKind, NfsClient, NfsUrl, Node, SetAttr, SetTime,
    Stable, Status, Time, wait_all,
};
use weft_test_needs::Need;
use weft_test_random::{Random, seed};
use weft_tests::ganesha::Ganesha;
use weft_tests::{expect_success, weft_bin};

fn weft(arguments: &[&str]) -> Output {
    Command::new(weft_bin()).arg("nfs").args(arguments).output().expect("weft can be run")
}

#[track_caller]
fn said(arguments: &[&str]) -> String {
    expect_success(&arguments.join(" "), &weft(arguments))
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let said = said(arguments);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[track_caller]
fn complaint(arguments: &[&str]) -> String {
    let output = weft(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("weft: "), "{stderr}");
    stderr
}

fn connect(server: &Ganesha) -> NfsClient {
    let url = NfsUrl::parse(&server.url("")).expect("a URL");
    NfsClient::connect(&url, &ConnectOptions::default()).expect("Ganesha answers")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A small tree: a large file, an empty one, one that is hidden, directories and a symbolic link.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("below/deeper")).unwrap();
    let mut random = Random(seed());
    fs::write(at.join("large"), random.bytes(9_000_001)).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    fs::write(at.join(".hidden"), "hidden").unwrap();
    fs::write(at.join("below/deeper/small"), "small").unwrap();
    fs::set_permissions(at.join("below/deeper/small"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("deeper/small", at.join("below/link")).unwrap();
}

fn expect_same(one: &Path, other: &Path) {
    let output = Command::new("diff").args(["-r", "--no-dereference", text(one), text(other)]).output();
    expect_success("diff", &output.expect("diff can be run"));
}

#[test]
fn trees_are_copied_both_ways_and_listed() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let (tree, back) = (server.scratch().join("tree"), server.scratch().join("back"));
    make_tree(&tree);
    assert!(complaint(&["cp", text(&tree), &server.url("")]).contains("give -r"));
    said(&["cp", "-r", "--depth", "8", "-q", text(&tree), &server.url("")]);
    expect_same(&tree, &server.exported().join("tree"));
    said(&["cp", "--recursive", &server.url("tree"), text(&back)]);
    expect_same(&tree, &back);
    assert_eq!(fs::metadata(back.join("below/deeper/small")).unwrap().mode() & 0o777, 0o640);

    assert_eq!(said(&["ls", &server.url("tree")]), "below\nempty\nlarge\n");
    let long = said(&["ls", "-l", "-a", "--recursive", &server.url("tree")]);
    assert!(
        long.contains(".hidden") && long.contains("9000001") && long.contains("link -> deeper/small"),
        "{long}"
    );
    assert!(long.contains("tree/below/deeper:"), "{long}");
    let listed = json(&["ls", "-R", "--json", &server.url("tree")]);
    let small =
        listed.as_array().unwrap().iter().find(|row| row["path"].as_str().unwrap().ends_with("/small"));
    let small = small.unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(
        (&small["bytes"], &small["mode"], &small["kind"]),
        (&5.into(), &"0640".into(), &"file".into())
    );

    assert_eq!(said(&["cat", &server.url("tree/below/link"), &server.url("tree/.hidden")]), "smallhidden");
    let whole = weft(&["cat", &server.url("tree/large")]).stdout;
    assert!(whole == fs::read(tree.join("large")).unwrap());
    let shown = json(&["stat", "--json", &server.url("tree/below/link")]);
    assert_eq!((&shown[0]["kind"], &shown[0]["target"]), (&"symbolic link".into(), &"deeper/small".into()));
    assert!(shown[0]["server"]["total_bytes"].as_u64() > Some(0), "{shown}");
    assert!(said(&["stat", &server.url("tree/large")]).contains("size      9000001 bytes"));
}

/// Links in the target directory: one with the name of a file, and one with the name of a directory.
#[test]
fn links_below_the_target_are_not_followed() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let (tree, to) = (server.scratch().join("tree"), server.scratch().join("to"));
    let outside = server.scratch().join("outside");
    make_tree(&tree);
    for dir in [&to, &outside] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(outside.join("large"), "old").unwrap();
    said(&["cp", "-r", "-q", text(&tree), &server.url("")]);
    symlink(outside.join("large"), to.join("large")).unwrap();
    symlink(&outside, to.join("tree")).unwrap();
    assert!(complaint(&["cp", &server.url("tree/large"), text(&to)]).contains("is a symbolic link"));
    assert!(complaint(&["cp", "-r", &server.url("tree"), text(&to)]).contains("cannot make the directory"));
    assert_eq!(fs::read_to_string(outside.join("large")).unwrap(), "old");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn a_file_gets_the_name_that_is_given() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let local = server.scratch().join("one");
    fs::write(&local, "first").unwrap();
    said(&["cp", text(&local), &server.url("other")]);
    fs::write(&local, "2nd").unwrap();
    said(&["cp", "--quiet", text(&local), &server.url("other")]);
    assert_eq!(fs::read_to_string(server.exported().join("other")).unwrap(), "2nd");
    said(&["cp", &server.url("other"), text(&server.scratch().join("copy"))]);
    assert_eq!(fs::read_to_string(server.scratch().join("copy")).unwrap(), "2nd");
    assert!(complaint(&["cp", text(&local), text(&local)]).contains("both local"));
    assert!(complaint(&["cp", &server.url("a"), &server.url("b")]).contains("on a server"));
}

#[test]
fn exports_are_listed_and_failures_told() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let root = server.url("").replace(text(&server.exported()), "");
    assert!(said(&["ls", &root]).contains(text(&server.exported())));
    let exports = json(&["ls", "--json", &root]);
    assert_eq!(exports[0]["export"], text(&server.exported()));
    let missing = complaint(&["cat", &server.url("no")]);
    assert!(
        missing.contains("LOOKUP") && missing.contains("NFS3ERR_NOENT") && missing.contains("/no"),
        "{missing}"
    );
    let outside = complaint(&["ls", &root.replace("/?", "/usr?")]);
    assert!(outside.contains("MNT /usr") && outside.contains("exported"), "{outside}");
    let nowhere = complaint(&["ls", "nfs://127.0.0.1:1/x", "--timeout", "2"]);
    assert!(nowhere.contains("cannot connect") && nowhere.contains("127.0.0.1:1"), "{nowhere}");
    assert!(complaint(&["ls", "nfs://"]).contains("nfs://HOST"));
}

#[test]
fn calls_are_for_the_user_that_is_asked_for() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let secret = server.exported().join("secret");
    fs::write(&secret, "for 4242").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&secret, Some(4242), Some(4343)).unwrap();
    let url = server.url("secret");
    assert_eq!(said(&["cat", &url, "--uid", "4242", "--gid", "1"]), "for 4242");
    assert_eq!(said(&["cat", &url, "--uid", "1", "--gid", "1", "--group", "4343"]), "for 4242");
    assert_eq!(said(&["cat", &url, "--hard"]), "for 4242");
    let refused = complaint(&["cat", &url, "--uid", "1", "--gid", "1"]);
    assert!(refused.contains("NFS3ERR_ACCES"), "{refused}");
}

#[test]
fn ports_are_asked_of_the_portmapper() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let mut server = Ganesha::start();
    server.kill();
    fs::write(server.exported().join("file"), "found").unwrap();
    let url = format!("nfs://127.0.0.1{}/file", server.exported().display());
    let output = server.with_portmapper(&format!("{} nfs cat {url}", text(weft_bin())));
    assert_eq!(expect_success("weft nfs cat", &output), "found");
}

#[test]
fn a_server_is_measured() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let url = server.url("");
    let few =
        ["--bytes", "2500K", "--block", "1M", "--depth", "4", "--small-depth", "8", "--small-count", "100"];
    let arguments = [&["bench", &url, "--files", "50", "--runs", "2", "--json"][..], &few].concat();
    let measured = json(&arguments);
    let figures = measured["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 8);
    for figure in figures {
        assert!(
            figure["median"].as_f64() > Some(0.0) && figure["samples"].as_array().unwrap().len() == 2,
            "{figure}"
        );
    }
    assert_eq!(fs::read_dir(server.exported()).unwrap().count(), 0, "nothing is left");
    let table = said(&[&["bench", &url, "--files", "10", "--runs", "1"][..], &few].concat());
    assert!(table.contains("random read of 4 KiB"), "{table}");
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

#[test]
fn every_procedure_does_what_a_local_call_does() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let (client, local) = (connect(&server), server.exported());
    let root = client.root().clone();
    client.null().unwrap();
    let created = client.create(&root, b"file", &CreateHow::Guarded(mode(0o600))).unwrap();
    let file = created.handle.unwrap_or_else(|| client.lookup(&root, b"file").unwrap().handle);
    let again = client.create(&root, b"file", &CreateHow::Guarded(mode(0o600))).unwrap_err();
    assert_eq!((again.status(), again.errno()), (Some(Status::EXIST), libc::EEXIST));
    let exclusive = CreateHow::Exclusive(*b"verifier");
    let one = client.create(&root, b"exclusive", &exclusive).unwrap().handle;
    assert_eq!(client.create(&root, b"exclusive", &exclusive).unwrap().handle, one, "a repetition succeeds");
    let other = client.create(&root, b"exclusive", &CreateHow::Exclusive(*b"another!")).unwrap_err();
    assert_eq!(other.status(), Some(Status::EXIST));

    let written = client.write(&file, 3, b"data", Stable::Unstable).unwrap();
    assert_eq!(written.bytes, 4);
    client.commit(&file, 0, 0).unwrap();
    assert_eq!(fs::read(local.join("file")).unwrap(), b"\0\0\0data");
    let mut buffer = [9; 10];
    let read = client.read(&file, 1, &mut buffer).unwrap();
    assert_eq!((read.bytes, read.is_end, &buffer[..7]), (6, true, &b"\0\0data\x09"[..]));
    assert_eq!(client.read(&file, 100, &mut buffer).unwrap().bytes, 0);

    let at = SetTime::At(Time { seconds: 1_000_000, nanoseconds: 0 });
    let set = SetAttr { size_bytes: Some(5), mtime: at, mode: Some(0o751), ..SetAttr::default() };
    client.setattr(&file, &set, None).unwrap();
    let attr = client.getattr(&file).unwrap();
    let meta = fs::metadata(local.join("file")).unwrap();
    assert_eq!((attr.size_bytes, attr.mode, attr.mtime.seconds), (5, 0o751, 1_000_000));
    assert_eq!((meta.len(), meta.mtime(), meta.ino()), (5, 1_000_000, attr.fileid));
    let guarded = client.setattr(&file, &mode(0o600), Some(Time { seconds: 1, nanoseconds: 1 })).unwrap_err();
    assert_eq!(guarded.status().map(Status::name).as_deref(), Some("NFS3ERR_NOT_SYNC"));
    let access = client.access(&file, Access::READ | Access::MODIFY).unwrap();
    assert_eq!(access.allowed, Access::READ | Access::MODIFY);

    client.mkdir(&root, b"dir", &mode(0o755)).unwrap();
    let dir = client.lookup(&root, b"dir").unwrap().handle;
    client.symlink(&dir, b"symlink", b"../file", &SetAttr::default()).unwrap();
    let link = client.lookup(&dir, b"symlink").unwrap().handle;
    assert_eq!(client.readlink(&link).unwrap(), b"../file");
    let path = format!("{}/dir/symlink", local.display());
    assert_eq!(client.resolve(&path).unwrap().handle, file, "links are followed");
    assert_eq!(client.resolve_link(&path).unwrap().attr.kind, FileKind::Symlink);
    client.mknod(&dir, b"fifo", Node::Fifo, &mode(0o600)).unwrap();
    assert!(fs::symlink_metadata(local.join("dir/fifo")).unwrap().file_type().is_fifo());
    client.mknod(&dir, b"null", Node::Character(1, 3), &mode(0o600)).unwrap();
    let null = client.lookup(&dir, b"null").unwrap();
    assert_eq!(client.getattr(&null.handle).unwrap().device, (1, 3));
    client.link(&file, &dir, b"second").unwrap();
    assert_eq!(client.getattr(&file).unwrap().nlink, 2);
    client.rename((&dir, b"second"), (&root, b"renamed")).unwrap();
    assert!(local.join("renamed").exists() && !local.join("dir/second").exists());
    let full = client.rmdir(&root, b"dir").unwrap_err();
    assert_eq!(full.errno(), libc::ENOTEMPTY);
    assert!(full.to_string().starts_with(&format!("RMDIR {}/dir: server", local.display())), "{full}");
    for name in [&b"symlink"[..], b"fifo", b"null"] {
        client.remove(&dir, name).unwrap();
    }
    client.rmdir(&root, b"dir").unwrap();
    let stale = client.getattr(&dir).unwrap_err();
    assert_eq!(stale.errno(), libc::ESTALE, "{stale}");

    let space = client.fsstat(&root).unwrap();
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
    assert!(client.fsinfo(&root).unwrap().read_bytes_max >= 1 << 16);
    assert!(client.pathconf(&root).unwrap().name_bytes_max >= 255);
}

#[test]
fn large_directories_are_listed_whole() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let client = connect(&server);
    let names: Vec<String> = (0..3000).map(|number| format!("a-name-of-some-length-{number:06}")).collect();
    let how = CreateHow::Unchecked(mode(0o644));
    let calls = names.iter().map(|name| client.start_create(client.root(), name.as_bytes(), &how)).collect();
    wait_all(calls).into_iter().for_each(|created| _ = created.unwrap());
    let mut listed = client.list(client.root()).unwrap();
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(listed.iter().map(|(name, _)| name).eq(names.iter().map(String::as_bytes)));
    assert!(listed.iter().all(|(_, file)| file.attr.kind == FileKind::File));
    let (mut plain, mut from) = (0, Cookie::default());
    loop {
        let page = client.readdir(client.root(), from, 8192).unwrap();
        plain += page.entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..").count();
        if page.is_end {
            break;
        }
        from = page.next;
    }
    assert_eq!(plain, names.len());
}

#[test]
fn random_accesses_agree_with_a_file_in_memory() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let server = Ganesha::start();
    let client = connect(&server);
    let mut random = Random(seed());
    let created = client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644))).unwrap();
    let file = created.handle.unwrap();
    let mut model: Vec<u8> = Vec::new();
    for _ in 0..300 {
        let bytes_max = *random.choose(&[10, 5000, 2_500_000]);
        let (at, bytes) = (random.below(3_000_000), random.below(bytes_max));
        let (depth, from) = (1 + random.below(16) as usize, at as usize);
        if random.one_in(2) {
            let data = random.bytes(bytes as usize);
            client.write_all(&file, at, &data, depth).unwrap();
            if !data.is_empty() {
                model.resize(model.len().max(from + data.len()), 0);
                model[from..from + data.len()].copy_from_slice(&data);
            }
        } else {
            let mut buffer = vec![0; bytes as usize];
            let read = client.read_all(&file, at, &mut buffer, depth).unwrap();
            let expected = &model[from.min(model.len())..(from + buffer.len()).min(model.len())];
            assert!(buffer[..read] == *expected, "{bytes} bytes at {at}");
        }
    }
    assert!(fs::read(server.exported().join("file")).unwrap() == model);
}

#[test]
fn a_restarted_server_loses_nothing_that_was_committed() {
    if !Need::Ganesha.is_met() {
        return;
    }
    let mut server = Ganesha::start();
    let url = NfsUrl::parse(&server.url("")).unwrap();
    let path = server.exported().join("file");
    let writer = std::thread::spawn(move || -> Result<Vec<u8>, Error> {
        let hard = ConnectOptions { give_up_ms: None, ..ConnectOptions::default() };
        let client = NfsClient::connect(&url, &hard)?;
        let created = client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644)))?;
        let file = created.handle.expect("Ganesha gives handles");
        let data = Random(seed()).bytes(64 << 20);
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(6) {
            client.write_all(&file, 0, &data, 8)?;
            let mut buffer = vec![0; data.len()];
            assert_eq!(client.read_all(&file, 0, &mut buffer, 8)?, data.len());
            assert!(buffer == data, "what was committed is there");
        }
        Ok(data)
    });
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(1200));
        server.kill();
        std::thread::sleep(Duration::from_millis(300));
        server.begin();
    }
    let data = writer.join().expect("it does not panic").unwrap();
    assert!(fs::read(path).unwrap() == data);
}
