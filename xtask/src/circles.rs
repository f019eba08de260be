//! Circles of files within a crate: each uses the next one and the last uses the first, so none can be read
//! before the others.
//!
//! ```text
//!   uses.rs     the text of a file      ─► its imports and paths, without tests
//!   here        imports, modules        ─► which file defines what a path names ─► who uses whom ─► circles
//! ```
//!
//! It is an approximation: a re-export counts for the file behind it, and what one type's methods call of
//! another's is not seen.

mod uses;

use crate::{Complaint, SourceFile};
use std::collections::{BTreeMap, BTreeSet};
use uses::Uses;

/// The longest circle that may be.
const FILES_MAX: usize = 3;

/// How many re-exports a path may lead through.
const REEXPORTS_MAX: usize = 8;

/// Complains about long circles.
pub fn check(files: &[SourceFile]) -> Vec<Complaint> {
    let mut crates: BTreeMap<String, Vec<&SourceFile>> = BTreeMap::new();
    for file in files {
        if let Some(name) = crate_of(file) {
            crates.entry(name).or_default().push(file);
        }
    }
    let mut complaints = Vec::new();
    for (name, files) in crates {
        for circle in circles(&files).into_iter().filter(|circle| circle.len() > FILES_MAX) {
            let text = format!("circle of {} files: {}", circle.len(), circle.join(", "));
            complaints.push(Complaint::new(name.as_str(), text));
        }
    }
    complaints
}

/// Directory of the crate that a source file is part of: `crates/server` of `crates/server/src/io/mod.rs`.
fn crate_of(file: &SourceFile) -> Option<String> {
    let (name, _) = file.path.to_str()?.strip_suffix(".rs")?.split_once("/src/")?;
    name.starts_with("crates/").then(|| name.to_owned())
}

/// The modules of a crate, each with its file.
struct Modules<'a> {
    by_path: BTreeMap<Vec<String>, (&'a str, Uses)>,
}

/// All circles of a crate's files, of two files and more.
fn circles(files: &[&SourceFile]) -> Vec<Vec<String>> {
    let modules = Modules::of(files);
    let edges = modules.edges();
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (*file, reachable(&edges, file))).collect();
    let mut circles = BTreeSet::new();
    for (file, reached) in &reach {
        let circle: Vec<String> = reached
            .iter()
            .filter(|other| reach[*other].contains(file))
            .map(|other| other.to_string())
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(file) = left.pop() {
        left.extend(edges[file].iter().copied().filter(|next| reached.insert(*next)));
    }
    reached
}

impl<'a> Modules<'a> {
    /// Modules that are compiled for tests only are left out, with all in them.
    fn of(files: &[&'a SourceFile]) -> Modules<'a> {
        let mut by_path = BTreeMap::new();
        for file in files {
            if let Some(name) = file.path.to_str() {
                by_path.insert(module_of(name), (name, Uses::of(&file.text)));
            }
        }
        let tests: BTreeSet<Vec<String>> = by_path
            .iter()
            .flat_map(|(path, (_, uses))| uses.test_modules.iter().map(|name| child(path, name)))
            .collect();
        by_path.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Modules { by_path }
    }

    /// Which file uses which others.
    fn edges(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut edges = BTreeMap::new();
        for (module, (file, uses)) in &self.by_path {
            let named = uses.imports.iter().map(|(_, path)| path).chain(&uses.paths);
            let used = named
                .filter_map(|path| self.absolute(module, path))
                .filter_map(|path| self.file_of(&path, 0));
            edges.insert(*file, used.filter(|used| used != file).collect());
        }
        edges
    }

    /// A path that stands in a module, from the crate's root on; `None` where it leads to another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let (base, rest) = match first {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.to_vec(), &path[1..]),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                (module[..module.len().checked_sub(ups)?].to_vec(), &path[ups..])
            }
            _ if self.by_path.contains_key(&child(module, first)) => (module.to_vec(), path),
            _ => {
                let (_, import) = self.import(module, first)?;
                return self.absolute(module, &[import, &path[1..]].concat());
            }
        };
        Some([&base[..], rest].concat())
    }

    fn import(&self, module: &[String], name: &str) -> Option<&(String, Vec<String>)> {
        let (_, uses) = self.by_path.get(module)?;
        uses.imports
            .iter()
            .find(|(known, path)| known == name && path.first().is_some_and(|first| first != name))
    }

    /// The file that defines what a path from the crate's root names; `None` for a whole module, and for
    /// another crate's.
    fn file_of(&self, path: &[String], reexports: usize) -> Option<&'a str> {
        let depth = (0..=path.len()).rev().find(|depth| self.by_path.contains_key(&path[..*depth]))?;
        let name = path.get(depth)?;
        let (module, rest) = (&path[..depth], &path[depth + 1..]);
        let (file, uses) = &self.by_path[module];
        if uses.defined.contains(name) || reexports == REEXPORTS_MAX {
            return Some(file);
        }
        if let Some((_, import)) = uses.imports.iter().find(|(known, _)| known == name) {
            let import = self.absolute(module, import)?;
            return self.file_of(&[&import[..], rest].concat(), reexports + 1);
        }
        let mut globs = uses.imports.iter().filter(|(known, _)| known == "*");
        let behind = globs.find_map(|(_, import)| {
            let target = self.absolute(module, &import[..import.len() - 1])?;
            let (_, uses) = self.by_path.get(&target)?;
            uses.defined.contains(name).then(|| self.file_of(&child(&target, name), reexports + 1))?
        });
        Some(behind.unwrap_or(file))
    }
}

fn child(module: &[String], name: &str) -> Vec<String> {
    [module, &[name.to_owned()]].concat()
}

/// `["io", "read"]` of `crates/server/src/io/read.rs`.
fn module_of(file: &str) -> Vec<String> {
    let inner = file.split_once("/src/").map_or(file, |(_, inner)| inner).trim_end_matches(".rs");
    let mut path: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| SourceFile {
                path: format!("crates/x/src/{name}").into(),
                text: (*text).into(),
            })
            .collect();
        circles(&files.iter().collect::<Vec<_>>())
            .iter()
            .map(|circle| circle.join(" ").replace("crates/x/src/", ""))
            .collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a; mod b; mod c; pub use a::A; use other as log;");
        let a = ("a.rs", "use crate::b::B; use crate::log; pub struct A;");
        let c = ("c.rs", "use crate::{a::A, b};\nstruct C(b::B);");
        assert_eq!(found(&[lib, a, c, ("b.rs", "pub struct B;")]), [""; 0]);
        assert_eq!(
            found(&[lib, a, c, ("b.rs", "pub struct B; fn f() { crate::c::C; }")]),
            ["a.rs b.rs c.rs"]
        );
        assert_eq!(found(&[lib, a, c, ("b.rs", "pub struct B; fn f() { super::A; }")]), ["a.rs b.rs"]);
        assert_eq!(
            found(&[
                lib,
                a,
                c,
                ("b.rs", "// crate::c::C\npub struct B(&'static str); const T: &str = \"crate::c::C\";")
            ]),
            [""; 0]
        );
    }

    #[test]
    fn a_reexport_counts_for_the_file_behind_it() {
        let lib = ("lib.rs", "mod a;");
        let all = |b: &'static str| {
            [
                lib,
                ("a/mod.rs", "mod b; mod c; pub use c::C; use b::B; fn f(_: B) {}"),
                ("a/b.rs", b),
                ("a/c.rs", "pub struct C;"),
            ]
        };
        assert_eq!(found(&all("use super::C; pub struct B(C);")), [""; 0]);
        assert_eq!(found(&all("use super::f; pub struct B;")), ["a/b.rs a/mod.rs"]);
    }

    #[test]
    fn tests_do_not_count() {
        let lib = ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;");
        let a = ("a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }");
        let b = ("b.rs", "use crate::a::A; pub struct B(A);");
        assert_eq!(found(&[lib, a, b, ("tests/mod.rs", "use crate::a::A;")]), [""; 0]);
        let a = ("a.rs", "pub struct A; mod inner { use super::super::b::B; }");
        assert_eq!(found(&[lib, a, b]), ["a.rs b.rs"]);
    }

    #[test]
    fn super_in_an_inner_module_is_the_file_itself() {
        let lib = ("lib.rs", "mod a; use a::A; fn f(_: A) {}");
        for inner in
            ["mod inner { use super::*; }", "macro_rules! m { ($x:ident) => { mod $x { use super::*; } } }"]
        {
            assert_eq!(found(&[lib, ("a.rs", &format!("pub struct A; {inner}"))]), [""; 0], "{inner}");
        }
    }

    #[test]
    fn short_circles_are_no_complaint() {
        let file = |name: &str, text: &str| SourceFile {
            path: format!("crates/x/src/{name}.rs").into(),
            text: text.into(),
        };
        let mut files = vec![
            file("lib", "mod a; mod b; mod c; mod d;"),
            file("a", "use crate::b::X;"),
            file("b", "use crate::c::X;"),
            file("c", "use crate::a::X;"),
        ];
        assert_eq!(check(&files), []);
        files[3] = file("c", "use crate::d::X;");
        files.push(file("d", "use crate::a::X;"));
        assert!(check(&files)[0].text.starts_with("circle of 4 files: crates/x/src/a.rs,"));
    }
}
