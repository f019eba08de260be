//! `weft up --hosts` and `weft job` over real ssh, on hosts that are network namespaces.

use std::collections::BTreeSet;
use weft_tests::SshHosts;

const NAMES: [&str; 5] = ["login", "node1", "node2", "node3", "node4"];

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Neither processes nor files of a cluster in /srv/weft are left.
#[track_caller]
fn nothing_is_left(hosts: &SshHosts) {
    for host in NAMES {
        assert_eq!(hosts.processes(host), [""; 0], "{host}");
        assert!(!hosts.dir(host).join("srv/weft").exists(), "{host}: {}", hosts.sh(host, "find /srv/weft"));
        let keys = hosts.dir(host).join("root/.config/weft/keys");
        let left = std::fs::read_dir(&keys).map(|keys| keys.count()).unwrap_or(0);
        assert_eq!(left, 0, "{host}: keys");
        assert_eq!(hosts.sh(host, "grep '/mnt/.* fuse.weft' /proc/self/mounts || true"), "", "{host}");
    }
}

#[test]
fn one_command_starts_and_stops_a_cluster_on_several_hosts() {
    // One host has no weft: it gets a copy.
    let Some(hosts) = SshHosts::start(&NAMES, &["node2"]) else { return };
    let begun = hosts.output(
        "login",
        "weft up --dir /srv/weft --hosts 'node[1-3]' --io 4 --mount /mnt/weft --metrics 9400 --json",
    );
    assert!(begun.status.success(), "{}", said(&begun));
    assert!(said(&begun).contains("copying the program to 1 host"), "{}", said(&begun));
    let record: serde_json::Value = serde_json::from_slice(&begun.stdout).expect("JSON");
    let url = format!("weft://{}:7400/", hosts.address("node1"));
    assert_eq!(record["url"], url.as_str());
    assert_eq!(record["hosts"][0]["servers"], serde_json::json!(["meta0", "io0", "io3"]));
    assert_eq!(record["hosts"][0]["is_new"], false, "it is up");

    // The program is at the same path on every host, copied or not.
    let version = hosts.sh("login", "weft version");
    for host in &NAMES[1..4] {
        assert_eq!(hosts.sh(host, &format!("/srv/weft/{host}/bin/weft version")), version, "{host}");
    }

    // Files through all of them: by the key that was installed here, and by the mounts there.
    let login = format!("set -e; export WEFT_URL={url}; ");
    hosts.sh(
        "login",
        &(login.clone()
            + "head -c 20M /dev/urandom > ~/data; weft cp ~/data weft:/; weft stripe get weft:/data"),
    );
    let sum = hosts.sh("login", "sha256sum < ~/data");
    for host in &NAMES[1..4] {
        assert_eq!(hosts.sh(host, "sha256sum < /mnt/weft/data"), sum, "{host}");
    }
    hosts.sh("node3", "echo from node3 > /mnt/weft/note");
    assert_eq!(hosts.sh("node1", "cat /mnt/weft/note"), "from node3\n");
    let status = hosts.sh("login", &(login.clone() + "weft status --json"));
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(5), "{status}");
    let metrics = format!(
        "exec 3<>/dev/tcp/{}/9400; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
        hosts.address("node2")
    );
    assert!(hosts.sh("login", &metrics).contains("weft_info"));

    // All processes, from one place.
    let text = hosts.sh("login", "weft status --dir /srv/weft");
    assert!(
        text.lines().any(|line| line.starts_with("node2") && line.contains("io1") && line.contains("runs")),
        "{text}"
    );
    hosts.sh("login", "weft down --dir /srv/weft --only io1");
    let stopped = hosts.output("login", "weft status --dir /srv/weft --json");
    assert_eq!(stopped.status.code(), Some(1));
    let stopped: serde_json::Value = serde_json::from_slice(&stopped.stdout).expect("JSON");
    let down: Vec<_> =
        stopped["servers"].as_array().expect("a list").iter().filter(|row| row["running"] == false).collect();
    assert!(down.len() == 1 && down[0]["name"] == "io1" && down[0]["host"] == "node2", "{stopped}");
    hosts.sh("login", "weft up --dir /srv/weft --only io1 --ssh 'ssh -o BatchMode=yes'");
    assert_eq!(hosts.sh("node2", "sha256sum < /mnt/weft/data"), sum);

    // A mount in use is left alone, and all that it needs with it.
    let busy = hosts.command("node3", "cd /mnt/weft && exec sleep 1000").spawn().expect("bash can be run");
    weft_tests::wait_until("it is in use", std::time::Duration::from_secs(10), || {
        std::fs::read_link(format!("/proc/{}/cwd", busy.id()))
            .is_ok_and(|dir| dir == std::path::Path::new("/mnt/weft"))
    });
    let refused = hosts.output("login", "weft down --dir /srv/weft");
    assert!(!refused.status.success() && said(&refused).contains("node3: "), "{}", said(&refused));
    assert_eq!(hosts.sh("node3", "cat /mnt/weft/note"), "from node3\n");
    let mut busy = busy;
    busy.kill().and_then(|()| busy.wait()).expect("it is a child");

    // Down and up again, with the data.
    let down: serde_json::Value =
        serde_json::from_str(&hosts.sh("login", "weft down --dir /srv/weft --json")).expect("JSON");
    assert_eq!(down["stopped"], 5, "{down}");
    for host in NAMES {
        assert_eq!(hosts.processes(host), [""; 0], "{host}");
    }
    assert_eq!(hosts.sh("login", "weft up --dir /srv/weft"), format!("{url}\n"));
    assert_eq!(hosts.sh("node1", "sha256sum < /mnt/weft/data"), sum);

    // What changes the cluster is refused while there is one.
    for (line, word) in [
        ("weft up --dir /srv/weft --hosts node1", "name these first"),
        ("weft up --dir /srv/weft --io 9", "--io is for a new cluster"),
        ("weft up --dir /srv/weft --nfs", "clusters on one host"),
        ("weft server add --dir /srv/weft", "give --config"),
        ("weft up --dir /srv/weft --only io9", "no server io9"),
        ("weft job start --dir /srv/weft --hosts node1", "weft job stop"),
    ] {
        let output = hosts.output("login", line);
        assert!(!output.status.success() && said(&output).contains(word), "{line}: {}", said(&output));
    }
    // It grows by a host that is named in addition, while it is in use.
    hosts.sh("login", "weft up --dir /srv/weft --hosts node[1-4]");
    hosts.sh(
        "login",
        &(login.clone()
            + "weft cp ~/data weft:/wide && weft stripe get --json weft:/wide | grep -q '\"servers\": 5'"),
    );
    assert_eq!(hosts.sh("node4", "sha256sum < /mnt/weft/wide"), sum);
    assert!(hosts.sh("login", "weft status --dir /srv/weft").contains("io4"));
    // A host whose disk is not there is not started anew.
    hosts.sh("login", "weft down --dir /srv/weft");
    hosts.sh("node2", "mv /srv/weft/node2 /srv/elsewhere");
    let lost = hosts.output("login", "weft up --dir /srv/weft");
    assert!(
        !lost.status.success() && said(&lost).contains("node2: /srv/weft/node2 is gone"),
        "{}",
        said(&lost)
    );
    hosts.sh("node2", "mv /srv/elsewhere /srv/weft/node2");
    hosts.sh("login", "weft up --dir /srv/weft");
    assert_eq!(hosts.sh("node2", "sha256sum < /mnt/weft/data"), sum);
    // A host that is not reached: the others are told of, and can be used.
    let cut = "weft status --dir /srv/weft --json; weft down --dir /srv/weft --only io2 && weft up --dir /srv/weft --only io2";
    hosts.sh("login", "sed -i 's/\"ssh\",/\"fails-at-node2\",/' /srv/weft/hosts.json");
    hosts.sh("login", "mkdir ~/bin; printf '#!/bin/sh\ncase \" $* \" in *\" node2 \"*) echo no way >&2; exit 255;; esac; exec ssh \"$@\"\n' > ~/bin/fails-at-node2; chmod 755 ~/bin/*");
    let status = hosts.sh("login", &format!("PATH=$PATH:~/bin; {cut}"));
    assert!(status.contains("unknown: no way"), "{status}");
    hosts.sh("login", "sed -i 's/\"fails-at-node2\",/\"ssh\",/' /srv/weft/hosts.json");
    hosts.sh("login", "weft job stop --dir /srv/weft");
    nothing_is_left(&hosts);
}

/// As Slurm runs them: by root on each node of the job.
#[test]
fn the_prolog_and_epilog_of_slurm_make_a_file_system_for_a_job() {
    let Some(hosts) = SshHosts::start(&NAMES, &[]) else { return };
    let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/slurm");
    let run = |host: &str, script: &str, features: &str| {
        let script = scripts.join(script);
        let line = format!(
            "export WEFT_JOB_DIR=/srv WEFT_JOB_MOUNT=/mnt SLURM_JOB_ID=9 SLURM_JOB_UID=1234 SLURM_NODELIST='node[2-4]' \
             SLURMD_NODENAME={host} SLURM_JOB_CONSTRAINTS='{features}'; sh {}",
            script.display()
        );
        hosts.sh(host, &line);
    };
    // A job that does not ask for it.
    ["node2", "node3"].iter().for_each(|host| run(host, "prolog", "gpu&weftless"));
    assert!(!hosts.dir("node2").join("srv/weft-job-9").exists());
    ["node3", "node2", "node4"].iter().for_each(|host| run(host, "prolog", "gpu&weft"));
    for host in ["node2", "node3", "node4"] {
        // The user of the job, who has no key.
        hosts.sh(host, &format!("cd / && setpriv --reuid 1234 --regid 1234 --clear-groups sh -c 'echo {host} > /mnt/weft-job-9/{host}'"));
    }
    assert_eq!(hosts.sh("node4", "cat /mnt/weft-job-9/*"), "node2\nnode3\nnode4\n");
    ["node4", "node2", "node3"].iter().for_each(|host| run(host, "epilog", "weft"));
    for host in ["node2", "node3", "node4"] {
        assert_eq!(hosts.processes(host), [""; 0], "{host}");
        assert_eq!(hosts.sh(host, "ls -A /srv /mnt | grep -v '^.bin$'"), "/mnt:\n\n/srv:\n", "{host}");
    }
}

#[test]
fn what_fails_on_one_host_is_told_and_undone_on_all() {
    let Some(hosts) = SshHosts::start(&NAMES, &[]) else { return };
    let fails = |line: &str, words: &[&str]| {
        let output = hosts.output("login", line);
        let said = said(&output);
        assert!(!output.status.success(), "{line}");
        words.iter().for_each(|word| assert!(said.contains(word), "{line}: {said}"));
    };
    // Before anything is done.
    fails("weft up --dir /srv/weft --hosts node1,nowhere,nobody", &["2 hosts", "nowhere: ", "nobody: "]);
    fails("weft up --dir /srv/weft --hosts node1 --ssh /bin/false", &["node1: "]);
    fails("weft up --dir /srv/weft --hosts node1 --mount here", &["--mount needs"]);
    fails("weft up --dir /srv/weft --hosts 'node[1-2]' --port 22", &["ports 22 to 23 are not free"]);
    hosts.sh("node2", "mkdir -p /srv/weft/node2 && echo precious > /srv/weft/node2/mine");
    fails("weft up --dir /srv/weft --hosts 'node[1-2]'", &["node2: /srv/weft/node2 is not empty"]);
    // When servers run already on another host.
    hosts.sh("node2", "rm -r /srv/weft; mkdir -p /srv/weft/node2/io1 && echo precious > /srv/weft/mine && chattr -f +i /srv/weft/node2 || mount --bind -o ro /srv /srv");
    fails("weft up --dir /srv/weft --hosts 'node[1-2]'", &["node2: "]);
    hosts.sh(
        "node2",
        "chattr -f -i /srv/weft/node2; umount /srv 2>/dev/null; cat /srv/weft/mine && rm -r /srv/weft",
    );
    // A directory that another user can change.
    hosts.sh("node2", "mkdir -m 777 /srv/weft && chown 1234 /srv/weft");
    fails("weft up --dir /srv/weft --hosts 'node[1-2]'", &["node2: /srv/weft is of another user"]);
    hosts.sh("node2", "rm -rf /srv/weft");
    nothing_is_left(&hosts);
}

#[test]
fn a_job_has_a_file_system_on_its_hosts_and_takes_its_results_out() {
    let Some(hosts) = SshHosts::start(&NAMES, &[]) else { return };
    // The script runs on the first host of the job, as under Slurm.
    let job = "export SLURM_JOB_ID=77 SLURM_JOB_NODELIST='node[1-3]'; set -e; ";
    hosts.sh("node1", "mkdir -p ~/in/deep && head -c 3M /dev/urandom > ~/in/deep/a && echo b > ~/in/b");
    let start = "weft job start --dir /srv/weft --mount /mnt/job --stage-in ~/in /in --stage-in ~/in/b /b";
    hosts.sh("node1", &format!("{job} {start} > ~/variables"));
    let variables = hosts.sh("node1", "cat ~/variables");
    let url = format!("weft://{}:7400/", hosts.address("node1"));
    let named: BTreeSet<_> = variables.lines().collect();
    assert_eq!(
        named,
        BTreeSet::from([format!("export WEFT_URL={url}").as_str(), "export WEFT_MOUNT=/mnt/job"])
    );
    hosts.sh("node2", "cmp /mnt/job/in/deep/a /mnt/job/in/deep/a && tr b c < /mnt/job/b > /mnt/job/out");
    let again = hosts.output("node1", &format!("{job} {start}"));
    assert!(said(&again).contains("weft job stop"), "{}", said(&again));
    // The results cannot be copied out: nothing is lost.
    let failed =
        hosts.output("node1", &format!("{job} weft job stop --dir /srv/weft --stage-out /out /proc/nowhere"));
    assert!(!failed.status.success() && said(&failed).contains("the file system stays"), "{}", said(&failed));
    // Someone has left a shell in the mount: it goes nevertheless.
    let mut busy = hosts.command("node3", "cd /mnt/job && exec sleep 1000").spawn().expect("bash can be run");
    let stop = "weft job stop --dir /srv/weft --stage-out /out ~/out --stage-out /in ~/back --json";
    let stopped: serde_json::Value =
        serde_json::from_str(&hosts.sh("node1", &format!("{job} {stop}"))).expect("JSON");
    assert_eq!((&stopped["removed"], &stopped["down"]["stopped"]), (&true.into(), &4.into()), "{stopped}");
    busy.kill().and_then(|()| busy.wait()).expect("it is a child");
    assert_eq!(hosts.sh("node1", "cat ~/out; diff -r ~/in ~/back"), "c\n");
    nothing_is_left(&hosts);

    // Data that is not there: nothing stays behind.
    let none =
        hosts.output("node1", &format!("{job} weft job start --dir /srv/weft --stage-in ~/nowhere /in"));
    assert!(!none.status.success() && said(&none).contains("nowhere"), "{}", said(&none));
    nothing_is_left(&hosts);

    // Kept on request, and without a job manager.
    for (line, word) in [
        ("weft job start --dir /srv/weft", "which hosts"),
        ("weft job start --hosts node1", "which job"),
        ("SLURM_JOB_ID=../x weft job start --hosts node1", "not the number of a job"),
        ("SLURM_JOB_NODELIST='a[' weft job start --dir /srv/weft", "$SLURM_JOB_NODELIST: "),
        ("weft job stop --dir /srv/weft", "no file system of a job"),
    ] {
        let output = hosts.output("node1", line);
        assert!(!output.status.success() && said(&output).contains(word), "{line}: {}", said(&output));
    }
    hosts.sh("node1", "printf 'node2\\nnode2\\nnode3\\n' > ~/nodes");
    let pbs = "export PBS_JOBID=5.server PBS_NODEFILE=$HOME/nodes; set -e; ";
    let begun = hosts.sh("node1", &format!("{pbs} weft job start --dir /srv/weft --io 1 --port 7500 --json"));
    let begun: serde_json::Value = serde_json::from_str(&begun).expect("JSON");
    assert_eq!(begun["hosts"][1]["servers"], serde_json::json!([]), "{begun}");
    let url = format!("weft://{}:7500/", hosts.address("node2"));
    // A host without servers has a key too.
    hosts.sh("node3", &format!("echo x | weft cp - {url}x && weft cat {url}x"));
    hosts.sh("node1", &format!("{pbs} weft job stop --dir /srv/weft --keep"));
    hosts.sh("node1", "weft up --dir /srv/weft");
    assert_eq!(hosts.sh("node1", &format!("weft cat {url}x")), "x\n");
    hosts.sh("node1", "weft job stop --dir /srv/weft");
    nothing_is_left(&hosts);
}
