//! The file tools do what coreutils and rsync do: the same table of command lines is run by these on a local directory and by `weft`
//! on the same tree in Weft. The exit status (success or not) and the tree afterwards must be the same: names, kinds, contents, targets.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use weft_tests::{Cluster, sh_in};

const JOBS: usize = 4;

/// A tree with everything that a command may meet. `full` has names of `d` and `f` with another kind behind each.
const MAKE_TREE: &str = "
    mkdir -p d/sub e full/f full/x
    echo f > f; echo g > g; echo x > d/x; echo s > d/sub/s; ln -s x d/l
    echo in > full/f/in; echo d > full/d; ln -s ../f full/l; ln -s ../d full/sub
    mkdir n; echo n > n/l; ln -s f lf; ln -s d ld; ln -s nowhere dang; ln f hf
";

/// What commands that change attributes may meet besides.
const SET_ATTRIBUTES: &str = "
    chmod 6755 g; chmod 2775 d/sub; chmod 1777 e; chmod 600 d/x; chown 3:4 hf d
    find . -exec touch -h -d 2001-02-03 {} +; touch -d 2005-06-07 g
";

/// Attributes are compared where commands set them: times of access in this year, and of changes before it.
const YEAR: i64 = 2010;

/// A command line. Paths begin with `@` in the tree of the sources, with `%` in the one of the target, which is the same tree unless
/// the case copies between Weft and this machine.
#[derive(Debug, Clone)]
struct Case {
    theirs: Vec<String>,
    ours: Vec<String>,
}

impl Case {
    fn new(tool: &str, arguments: &[&str]) -> Case {
        Case::with(tool, arguments, tool, arguments)
    }

    fn with(their: &str, theirs: &[&str], our: &str, ours: &[&str]) -> Case {
        let line = |tool: &str, arguments: &[&str]| {
            std::iter::once(&tool).chain(arguments).map(|word| (*word).to_owned()).collect()
        };
        Case { theirs: line(their, theirs), ours: line(our, ours) }
    }
}

/// Where the two trees of a case are for `weft`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trees {
    /// One tree, in Weft.
    One,
    /// The sources are local, the target is in Weft.
    Into,
    /// The other way around.
    OutOf,
}

/// Deliberate differences: a command line in the form for `weft`, and the reason.
type Deliberate = [(&'static str, &'static str)];

/// Mode, owner, number of names and times.
fn attributes(meta: &fs::Metadata) -> String {
    let year = |seconds: i64| 1970 + seconds / 31_556_952;
    let mode = if meta.is_symlink() { 0 } else { meta.mode() & 0o7777 };
    let names = if meta.is_dir() { 0 } else { meta.nlink() };
    let time = |is_told, seconds, nanoseconds| match is_told {
        true => format!("{seconds}.{nanoseconds:09}"),
        false => "-".to_string(),
    };
    let atime = time(year(meta.atime()) == YEAR, meta.atime(), meta.atime_nsec());
    let mtime = time(year(meta.mtime()) <= YEAR, meta.mtime(), meta.mtime_nsec());
    format!("{mode:04o} {}:{} {names} {atime} {mtime} ", meta.uid(), meta.gid())
}

fn fingerprint(top: &Path, with_attributes: bool) -> Vec<String> {
    let mut all = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("one").path()));
        }
        all.push((path, meta));
    }
    // Reading comes last: it changes times.
    let mut found: Vec<String> = all
        .into_iter()
        .map(|(path, meta)| {
            let shown = if with_attributes { attributes(&meta) } else { String::new() };
            let name = format!("{shown}{}", path.strip_prefix(top).expect("it is below").display());
            match meta.file_type() {
                kind if kind.is_dir() => format!("{name}/"),
                kind if kind.is_symlink() => {
                    format!("{name} -> {}", fs::read_link(&path).expect("a link").display())
                }
                kind if kind.is_fifo() => format!("{name}|"),
                _ => format!("{name}: {:?}", fs::read_to_string(&path).expect("text")),
            }
        })
        .collect();
    found.sort();
    found
}

struct Bench<'a> {
    cluster: &'a Cluster,
    local: PathBuf,
    mounted: PathBuf,
    /// Modes, owners and times are compared as well.
    with_attributes: bool,
}

impl Bench<'_> {
    /// The words with the places of the trees.
    fn line(words: &[String], source: &str, target: &str) -> Vec<String> {
        let place = |word: &String| match word.split_at_checked(1) {
            Some(("@", path)) => format!("{source}/{path}"),
            Some(("%", path)) => format!("{target}/{path}"),
            _ => word.clone(),
        };
        words.iter().map(place).collect()
    }

    /// Runs a case with both programs. Returns what differs.
    fn run(&self, number: usize, case: &Case, trees: Trees) -> Option<String> {
        let name = |what: &str| format!("{what}{number}");
        let names = if trees == Trees::One { vec![name("s")] } else { vec![name("s"), name("t")] };
        let (source_here, target_here) = (trees != Trees::One && trees == Trees::Into, trees == Trees::OutOf);
        let theirs_in = self.local.join("theirs");
        let ours_in = |here: bool| if here { self.local.join("ours") } else { self.mounted.clone() };
        let places = [ours_in(source_here), ours_in(target_here)];
        for (name, place) in names.iter().zip(&places) {
            sh_in(&self.local, &format!("cp -a tree theirs/{name}; cp -a tree {}/{name}", place.display()));
        }
        let (source, target) = (names.first().expect("one"), names.last().expect("one"));
        let their_place = |name: &str| theirs_in.join(name).display().to_string();
        let our_place = |here: bool, name: &str| match here {
            true => self.local.join("ours").join(name).display().to_string(),
            false => format!("weft:/{name}"),
        };
        let line = Bench::line(&case.theirs, &their_place(source), &their_place(target));
        let theirs = Command::new(&line[0]).args(&line[1..]).output().expect("it can be run");
        let line = Bench::line(&case.ours, &our_place(source_here, source), &our_place(target_here, target));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let ours = self.cluster.command(&line).env("WEFT_URL", self.cluster.url()).output();
        let ours = ours.expect("weft can be run");
        let mut said = Vec::new();
        if theirs.status.success() != ours.status.success() {
            said.push(format!("  theirs {}, ours {}", theirs.status, ours.status));
        }
        for (name, place) in names.iter().zip(&places) {
            let (one, other) = (theirs_in.join(name), place.join(name));
            let (one, other) =
                (fingerprint(&one, self.with_attributes), fingerprint(&other, self.with_attributes));
            let only = |a: &[String], b: &[String]| -> Vec<String> {
                a.iter().filter(|line| !b.contains(line)).cloned().collect()
            };
            if one != other {
                said.push(format!(
                    "  only theirs {:?}, only ours {:?}",
                    only(&one, &other),
                    only(&other, &one)
                ));
            }
            fs::remove_dir_all(theirs_in.join(name)).expect("it can be removed");
            fs::remove_dir_all(place.join(name)).expect("it can be removed");
        }
        if said.is_empty() {
            return None;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        said.push(format!("  theirs: {}\n  ours:   {}", text(&theirs.stderr), text(&ours.stderr)));
        Some(said.join("\n"))
    }
}

/// Runs all cases. What differs must be listed, and what is listed must differ.
#[track_caller]
fn compare(cases: &[(Case, Trees)], deliberate: &Deliberate) {
    compare_with(cases, deliberate, false);
}

/// The same; `with_attributes`: modes, owners and times, too.
#[track_caller]
fn compare_with(cases: &[(Case, Trees)], deliberate: &Deliberate, with_attributes: bool) {
    let cluster = Cluster::start(2);
    let (local, mount) = (cluster.scratch("local"), cluster.mount());
    sh_in(&local, &format!("mkdir tree theirs ours; cd tree; {MAKE_TREE}"));
    if with_attributes {
        sh_in(&local.join("tree"), SET_ATTRIBUTES);
    }
    let bench = Bench { cluster: &cluster, local, mounted: mount.path().to_owned(), with_attributes };
    let (next, differing) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((case, trees)) = cases.get(number) else { return };
                    if let Some(said) = bench.run(number, case, *trees) {
                        differing.lock().expect("no panic").push((number, said));
                    }
                }
            });
        }
    });
    let mut differing = differing.into_inner().expect("no panic");
    differing.sort();
    let line = |number: usize| format!("{} ({:?})", cases[number].0.ours.join(" "), cases[number].1);
    let is_listed = |number: usize| deliberate.iter().any(|(listed, _)| line(number).starts_with(listed));
    let wrong: Vec<String> = differing
        .iter()
        .filter(|(number, _)| !is_listed(*number))
        .map(|(number, said)| format!("{}\n{said}", line(*number)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    for (listed, reason) in deliberate {
        let differs = differing.iter().any(|(number, _)| line(*number).starts_with(listed));
        assert!(differs, "no difference any more: {listed} ({reason})");
    }
}

/// Existing and missing names of every kind, with slashes and dots at the end.
const SOURCES: [&str; 14] =
    ["f", "f/", "d", "d/.", "d/..", "lf", "ld", "ld/", "ld/.", "dang", "none", ".", "hf", "d/sub/../x"];
const TARGETS: [&str; 13] =
    ["f", "g/", "e/", "e/.", "full", "lf", "ld/", "dang", "new", "new/", "d/new", "none/new", "ld/../new"];

fn pairs(tool: &str, options: &[&str]) -> Vec<Case> {
    let all = SOURCES.iter().flat_map(|from| TARGETS.iter().map(move |to| (from, to)));
    let with = |(from, to): (&&str, &&str)| {
        let (from, to) = (format!("@{from}"), format!("%{to}"));
        Case::new(tool, &[options, &[from.as_str(), to.as_str()]].concat())
    };
    all.map(with).collect()
}

const SEVERAL: [&[&str]; 8] = [
    &["f", "g", "e"],
    &["f", "g", "e/"],
    &["f", "g", "new"],
    &["f", "g", "new/"],
    &["f", "d", "e"],
    &["f", "none", "g", "e"],
    &["f", "g", "lf"],
    &["f", "d/x", "ld"],
];

fn several(tool: &str, options: &[&str]) -> Vec<Case> {
    let with = |places: &&[&str]| {
        let (last, first) = places.split_last().expect("two at least");
        let mut words: Vec<String> = first.iter().map(|path| format!("@{path}")).collect();
        words.push(format!("%{last}"));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Case::new(tool, &[options, &words].concat())
    };
    SEVERAL.iter().map(with).collect()
}

const INTO_ITSELF: &str = "cp copies a part of a directory into itself before it refuses; weft refuses first";
const SELF_COPIES: &Deliberate = &[
    ("cp -r @d %ld/ ", INTO_ITSELF),
    ("cp -r @d %d/new ", INTO_ITSELF),
    ("cp -r @d/. %d/new ", INTO_ITSELF),
    ("cp -r @d/.. %", INTO_ITSELF),
    ("cp -r @ld/ %ld/ ", INTO_ITSELF),
    ("cp -r @ld/ %d/new ", INTO_ITSELF),
    ("cp -r @ld/. %d/new ", INTO_ITSELF),
    ("cp -r @. %", INTO_ITSELF),
];

/// A link that has the name of what is copied, in a directory that was given.
fn to_found_links() -> Vec<Case> {
    vec![Case::new("cp", &["@n/l", "%full"]), Case::new("cp", &["-r", "@n/.", "%full"])]
}

const FOUND_LINK: &str =
    "cp writes to the file behind a link that it finds; weft follows only links that are arguments";
const FOUND_LINKS: &Deliberate = &[("cp @n/l %full ", FOUND_LINK), ("cp -r @n/. %full ", FOUND_LINK)];

const THROUGH_LINK: &str = "rm empties the directory behind the link, then says that it cannot remove it";
const REMOVALS: &Deliberate = &[("rm -r @ld/ ", THROUGH_LINK), ("rm -rf @ld/ ", THROUGH_LINK)];

const NEW_FOR_NOTHING: &str = "rsync makes the target's directory though the source cannot be read";
const EMPTY_IN_THE_WAY: &str =
    "rsync removes an empty directory for a file; weft removes directories with --delete only";
const LINK_TO_NOTHING: &str =
    "rsync replaces a target that is a dangling link, if the source is empty; weft never does";
const SYNCS: &Deliberate = &[
    ("sync @f/ %new/ ", NEW_FOR_NOTHING),
    ("sync --delete @f/ %new/ ", NEW_FOR_NOTHING),
    ("sync --checksum @f/ %new/ ", NEW_FOR_NOTHING),
    ("sync @none %new/ ", NEW_FOR_NOTHING),
    ("sync --delete @none %new/ ", NEW_FOR_NOTHING),
    ("sync --checksum @none %new/ ", NEW_FOR_NOTHING),
    ("sync @d %full ", EMPTY_IN_THE_WAY),
    ("sync --checksum @d %full ", EMPTY_IN_THE_WAY),
    ("sync @d/ %full ", EMPTY_IN_THE_WAY),
    ("sync --checksum @d/ %full ", EMPTY_IN_THE_WAY),
    ("sync @ld %full ", EMPTY_IN_THE_WAY),
    ("sync --checksum @ld %full ", EMPTY_IN_THE_WAY),
    ("sync @e %dang ", LINK_TO_NOTHING),
    ("sync --delete @e %dang ", LINK_TO_NOTHING),
    ("sync --checksum @e %dang ", LINK_TO_NOTHING),
];

fn in_trees(cases: Vec<Case>, trees: Trees) -> impl Iterator<Item = (Case, Trees)> {
    cases.into_iter().map(move |case| (case, trees))
}

fn copies() -> Vec<Case> {
    let cases = [pairs("cp", &[]), pairs("cp", &["-r"]), several("cp", &[]), several("cp", &["-r"])];
    [cases.concat(), to_found_links()].concat()
}

#[test]
fn cp_within_weft() {
    compare(&in_trees(copies(), Trees::One).collect::<Vec<_>>(), &[SELF_COPIES, FOUND_LINKS].concat());
}

#[test]
fn cp_into_weft() {
    compare(&in_trees(copies(), Trees::Into).collect::<Vec<_>>(), FOUND_LINKS);
}

#[test]
fn cp_out_of_weft() {
    compare(&in_trees(copies(), Trees::OutOf).collect::<Vec<_>>(), FOUND_LINKS);
}

#[test]
fn mv() {
    let cases = [pairs("mv", &[]), several("mv", &[])];
    compare(&in_trees(cases.concat(), Trees::One).collect::<Vec<_>>(), &[]);
}

#[test]
fn rm_and_mkdir() {
    let mut cases = Vec::new();
    for path in SOURCES.iter().chain(&TARGETS).chain(&["..", "./", "d/./", "d/../", "none/..", "e/../d/."]) {
        let path = format!("@{path}");
        for options in [&[][..], &["-r"], &["-f"], &["-rf"]] {
            cases.push(Case::new("rm", &[options, &[path.as_str()]].concat()));
        }
        for options in [&[][..], &["-p"]] {
            cases.push(Case::new("mkdir", &[options, &[path.as_str()]].concat()));
        }
    }
    compare(&in_trees(cases, Trees::One).collect::<Vec<_>>(), REMOVALS);
}

/// `weft sync A B` is `rsync A/ B` where A is a directory.
#[test]
fn sync() {
    let mut cases = Vec::new();
    let sources =
        [("f", "f"), ("f/", "f/"), ("none", "none/"), ("d", "d/"), ("d/", "d/"), ("ld", "ld/"), ("e", "e/")];
    for (source, theirs) in sources {
        for target in TARGETS.iter().chain(&["full/x", "full/f"]) {
            for options in [&[][..], &["--delete"], &["--checksum"]] {
                let (from, to) = (format!("@{source}"), format!("%{target}"));
                let their_from = format!("@{theirs}");
                let theirs = [&["-rlpt"][..], options, &[&their_from, &to]].concat();
                cases.push(Case::with(
                    "rsync",
                    &theirs,
                    "sync",
                    &[options, &[from.as_str(), to.as_str()]].concat(),
                ));
            }
        }
    }
    let both = in_trees(cases.clone(), Trees::Into).chain(in_trees(cases, Trees::OutOf));
    compare(&both.collect::<Vec<_>>(), SYNCS);
}

/// Files and directories of every kind, for commands that change their attributes.
const CHANGED: [&str; 10] = ["f", "g", "d", "lf", "ld", "ld/", "dang", "none", "f/", "d/."];

/// The tool with each of the options and words, on each of the places.
fn changes(tool: &str, options: &[&[&str]], words: &[&str], places: &[&str]) -> Vec<(Case, Trees)> {
    let mut cases = Vec::new();
    for place in places {
        let place = format!("@{place}");
        for options in options {
            for word in words {
                let words = [options, &[*word, &place][..]].concat();
                cases.push((Case::new(tool, &words), Trees::One));
            }
            if words.is_empty() {
                cases.push((Case::new(tool, &[options, &[place.as_str()][..]].concat()), Trees::One));
            }
        }
    }
    cases
}

#[test]
fn chmod() {
    let modes =
        ["755", "04755", "u+rw,g-w", "a=rX", "g=u", "-w", "+x", "=", "u-s,g-s", "+7", "999", "u+q", "-rwx"];
    let cases = [
        changes("chmod", &[&[]], &modes, &["g", "d/sub"]),
        changes("chmod", &[&[], &["-R"]], &["750", "u+rwX,g-w"], &CHANGED),
    ];
    compare_with(&cases.concat(), &[], true);
}

#[test]
fn chown() {
    let owners = [
        "1:2",
        "1",
        ":2",
        "daemon",
        "daemon:",
        "daemon:bin",
        "+1:+2",
        "",
        "no-such-user",
        "1:no-such-group",
        "1:",
    ];
    let cases = [
        changes("chown", &[&[]], &owners, &["g", "d"]),
        changes("chown", &[&[], &["-h"], &["-R"], &["-hR"]], &["1:2"], &CHANGED),
    ];
    let login_group =
        "chown asks for a name before `:` alone; weft also takes the number of a user that has one";
    let empty = "chown clears set-id bits also if it is to change nothing; weft then changes nothing";
    compare_with(&cases.concat(), &[("chown 1: ", login_group), ("chown  @g ", empty)], true);
}

#[test]
fn ln() {
    let mut cases = Vec::new();
    for to in TARGETS {
        let to = format!("@{to}");
        for options in [&["-s"][..], &["-sf"], &["-s", "-n"], &["-sfn"], &["-sf", "-T"]] {
            cases.push((Case::new("ln", &[options, &["d/x", &to]].concat()), Trees::One));
        }
        for from in ["@f", "@lf", "@d", "@none", "@hf", "@dang"] {
            for options in [&[][..], &["-f"]] {
                cases.push((Case::new("ln", &[options, &[from, &to]].concat()), Trees::One));
            }
        }
    }
    for words in [
        &["-L", "@lf", "@new"][..],
        &["-L", "@dang", "@new"],
        &["-s", "", "@new"],
        &["-s", ".", "@e"],
        &["-s", "..", "@new"],
        &["-s", "d/", "@e"],
        &["-sf", "a", "b/f", "f", "@e"],
        &["-s", "a", "b", "@new"],
        &["-f", "@f", "@f"],
        &["-f", "@f", "@./f"],
        &["-f", "@f", "@d/../f"],
    ] {
        cases.push((Case::new("ln", words), Trees::One));
    }
    cases.extend(in_trees([several("ln", &[]), several("ln", &["-f"])].concat(), Trees::One));
    compare_with(&cases, &[], true);
}

#[test]
fn touch() {
    let places = [&CHANGED[..], &["new", "new/", "d/new", "none/new", "ld/new", "e/", "full/x"]].concat();
    let mut cases =
        changes("touch", &[&[], &["-c"], &["-h"], &["-d", "2010-05-06 07:08:09.5"]], &[], &places);
    for options in [
        &["-a", "-d", "2010-05-06"][..],
        &["-m", "-d", "2010-05-06"],
        &["-a", "-m", "-d", "2010-05-06"],
        &["-a"],
        &["-m"],
        &["-t", "201005060708.09"],
        &["-t", "1005060708"],
        &["-t", "201005"],
        &["-d", "nonsense"],
        &["-d", "@1273000000"],
        &["-h", "-d", "2010-05-06"],
        &["-c", "-d", "2010-05-06"],
    ] {
        cases.extend(changes("touch", &[options], &[], &["f", "lf", "dang", "new"]));
    }
    for words in [
        &["-r", "@g", "@f"][..],
        &["-r", "@none", "@f"],
        &["-m", "-r", "@g", "@d"],
        &["@f", "@none/new", "@new"],
    ] {
        cases.push((Case::new("touch", words), Trees::One));
    }
    compare_with(&cases, &[], true);
}

#[test]
fn mkdir_with_a_mode() {
    let modes = ["750", "u=rwx,go=", "g-w,o-rx", "+t", "o=g", "+w", "2755", "8"];
    let options: Vec<[&str; 2]> = modes.iter().map(|mode| ["-m", mode]).collect();
    let options: Vec<&[&str]> = options.iter().map(|words| &words[..]).collect();
    compare_with(&changes("mkdir", &options, &[], &["new", "d/new"]), &[], true);
}
