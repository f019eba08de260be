//! Which crate may depend on which.

use crate::{Complaint, SourceFile};
use anyhow::{Context, Result};

/// The only edges there may be: a crate, and what of ours it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("weft-layout", &[]),
    ("weft-collective", &["layout"]),
    ("weft-host", &[]),
    ("weft-log", &[]),
    ("weft-metrics", &[]),
    ("weft-wire", &["layout"]),
    ("weft-reactor", &[]),
    ("weft-verbs", &[]),
    ("weft-buffers", &[]),
    ("weft-rdma", &["verbs", "reactor"]),
    ("weft-transport", &["host", "wire", "reactor", "verbs", "rdma"]),
    ("weft-storage", &["host", "layout", "reactor", "buffers"]),
    ("weft-meta", &["host", "layout"]),
    (
        "weft-server",
        &[
            "host",
            "layout",
            "wire",
            "reactor",
            "transport",
            "verbs",
            "storage",
            "meta",
            "rpc",
            "log",
            "metrics",
        ],
    ),
    ("weft-rpc", &["host", "layout", "wire", "transport", "verbs", "log"]),
    ("weft-client", &["layout", "rpc", "wire", "transport", "verbs", "log"]),
    ("weft-fuse-wire", &[]),
    ("weft-nfs-client", &["host", "onc-rpc", "rdma", "transport", "verbs"]),
    ("weft-onc-rpc", &[]),
    ("weft-onc-server", &["buffers", "log", "onc-rpc", "rdma", "reactor", "verbs"]),
    ("weft-gateway", &["client", "wire"]),
    (
        "weft-nfs",
        &[
            "client",
            "gateway",
            "host",
            "layout",
            "log",
            "metrics",
            "onc-rpc",
            "onc-server",
            "reactor",
            "verbs",
            "wire",
        ],
    ),
    ("weft-mpi", &["client", "collective", "host", "layout", "wire"]),
    ("weft-fuse", &["client", "fuse-wire", "gateway", "host", "layout", "wire", "log", "metrics"]),
    ("weft-capi", &["client", "layout", "wire", "log"]),
    ("weft-python", &["client", "layout", "wire", "host"]),
    ("weft-preload", &["client", "host", "layout", "wire", "log"]),
    ("weft-cli-common", &["host", "server", "client", "layout", "log", "wire"]),
    ("weft-bench-args", &["cli-common"]),
    ("weft-bench", &["bench-args", "cli-common", "server", "client", "layout", "transport", "verbs", "wire"]),
    (
        "weft-cli",
        &[
            "bench-args",
            "cli-common",
            "server",
            "client",
            "collective",
            "fuse",
            "host",
            "layout",
            "log",
            "metrics",
            "nfs",
            "nfs-client",
            "wire",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that are tests: they may use everything.
const TESTS: &[&str] = &[
    "weft-tests",
    "weft-test-cluster",
    "weft-test-fuzz",
    "weft-test-needs",
    "weft-test-random",
    "weft-posix",
    "weft-power-cut",
    "weft-verbs-double",
];

/// Complains about every other edge.
pub fn check(files: &[SourceFile]) -> Result<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        complaints.extend(check_manifest(file)?);
    }
    Ok(complaints)
}

fn check_manifest(file: &SourceFile) -> Result<Vec<Complaint>> {
    let place = file.path.display().to_string();
    let manifest: toml::Table = file.text.parse().with_context(|| place.clone())?;
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(|name| name.as_str());
    let Some(name) = name.filter(|name| !TESTS.contains(name)) else {
        return Ok(Vec::new());
    };
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        let text =
            format!("{name} is a new crate; give it a line in xtask/src/edges.rs and in ARCHITECTURE.md");
        return Ok(vec![Complaint::new(place, text)]);
    };
    let used = ours(&manifest);
    let forbidden = used.iter().filter(|used| !allowed.contains(&used.as_str()));
    let complain = |used: &String| {
        let may = if allowed.is_empty() { "nothing of ours".to_string() } else { allowed.join(", ") };
        Complaint::new(place.clone(), format!("{name} must not depend on weft-{used}; it may use {may}"))
    };
    Ok(forbidden.map(complain).collect())
}

/// The crates of ours that a manifest names, in its dependencies for building and running, without their prefix.
/// Dependencies of tests are free.
fn ours(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let owners =
        targets.into_iter().flat_map(|targets| targets.values().filter_map(|target| target.as_table()));
    let tables = std::iter::once(manifest).chain(owners).flat_map(|owner| {
        ["dependencies", "build-dependencies"].into_iter().filter_map(|kind| owner.get(kind)?.as_table())
    });
    let keys = tables.flat_map(|table| table.keys());
    keys.filter_map(|key| key.strip_prefix("weft-")).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<Complaint> {
        check(&[SourceFile { path: "crates/x/Cargo.toml".into(), text: text.into() }]).unwrap()
    }

    #[test]
    fn allowed_edges_pass() {
        let text =
            "[package]\nname = \"weft-client\"\n[dependencies]\nweft-wire.workspace = true\nlibc = \"1\"\n";
        assert!(complaints(text).is_empty());
    }

    #[test]
    fn other_edges_do_not() {
        for section in ["dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"] {
            let text =
                format!("[package]\nname = \"weft-client\"\n[{section}]\nweft-storage.workspace = true\n");
            let found = complaints(&text);
            assert!(found[0].text.contains("must not depend on weft-storage"), "{section}: {found:?}");
        }
    }

    #[test]
    fn tests_may_use_more() {
        let text = "[package]\nname = \"weft-layout\"\n[dev-dependencies]\nweft-wire.workspace = true\n";
        assert!(complaints(text).is_empty());
    }

    #[test]
    fn a_new_crate_needs_a_line() {
        assert!(complaints("[package]\nname = \"weft-new\"\n")[0].text.contains("new crate"));
        assert!(complaints("[workspace]\nmembers = []\n").is_empty());
    }
}
