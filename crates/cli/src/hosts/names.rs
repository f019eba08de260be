//! Lists of hosts, as users and job managers write them.
//!
//! ```text
//!   node[01-03,07],gpu1        node01 node02 node03 node07 gpu1      as in $SLURM_JOB_NODELIST
//!   node1=10.0.0.1,node2=…     with the addresses where clients reach them
//!   @hosts.txt                 a file with a host on each line       as in $PBS_NODEFILE
//! ```

use std::path::Path;

/// More hosts than a list may have by mistake.
const HOSTS_MAX: usize = 1024;

/// A host of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name, for ssh.
    pub name: String,
    /// Where clients and servers reach it, if the list says so.
    pub address: Option<String>,
}

/// The hosts of a list, in its order; a host that is there twice counts once.
///
/// # Errors
/// What is wrong with the list.
pub fn parse(text: &str) -> Result<Hosts, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for item in split_outside_brackets(text)? {
        let found = match item.strip_prefix('@') {
            Some(file) => of_file(Path::new(file))?,
            None => of_item(item)?,
        };
        for host in found {
            if !hosts.iter().any(|known| known.name == host.name) {
                hosts.push(host);
            }
        }
        if hosts.len() > HOSTS_MAX {
            return Err(format!("more than {HOSTS_MAX} hosts"));
        }
    }
    if hosts.is_empty() {
        return Err("no host is named".to_string());
    }
    Ok(Hosts(hosts))
}

/// A list that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(pub Vec<Host>);

fn split_outside_brackets(text: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(format!("`{text}`: brackets do not match"));
        }
    }
    if depth != 0 {
        return Err(format!("`{text}`: a bracket is not closed"));
    }
    items.push(&text[from..]);
    Ok(items.into_iter().map(str::trim).filter(|item| !item.is_empty()).collect())
}

fn of_item(item: &str) -> Result<Vec<Host>, String> {
    let (names, address) = match item.split_once('=') {
        Some((name, address)) => (expand(name)?, Some(address)),
        None => (expand(item)?, None),
    };
    if address.is_some() && names.len() != 1 {
        return Err(format!("`{item}`: an address is for one host"));
    }
    if address.is_some_and(|address| address.is_empty() || address.contains(['/', ' '])) {
        return Err(format!("`{item}`: write NAME=ADDRESS, such as node1=10.0.0.1"));
    }
    let address = address.map(str::to_string);
    names.into_iter().map(|name| Ok(Host { name: checked(name)?, address: address.clone() })).collect()
}

fn of_file(file: &Path) -> Result<Vec<Host>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let hosts = lines.filter(|line| !line.is_empty()).map(of_item).collect::<Result<Vec<_>, _>>()?;
    Ok(hosts.into_iter().flatten().collect())
}

/// A name that is safe as an argument of ssh and as a file name.
fn checked(name: String) -> Result<String, String> {
    let is_good = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    match !name.starts_with(['-', '.']) && name.chars().all(is_good) && !name.is_empty() {
        true => Ok(name),
        false if name.contains('@') => {
            Err(format!("`{name}` has a user: name that in ~/.ssh/config, or by --ssh \"ssh -l USER\""))
        }
        false => Err(format!("`{name}` is not the name of a host")),
    }
}

/// `a[1-2]b` is `a1b`, `a2b`. Leading zeros of a range stay.
fn expand(text: &str) -> Result<Vec<String>, String> {
    let Some((front, rest)) = text.split_once('[') else { return Ok(vec![text.to_string()]) };
    let (ranges, back) = rest.split_once(']').ok_or_else(|| format!("`{text}`: a bracket is not closed"))?;
    let backs = expand(back)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        for number in
            numbers(range).ok_or_else(|| format!("`{text}`: `{range}` is not a range as in 01-16"))?
        {
            names.extend(backs.iter().map(|back| format!("{front}{number}{back}")));
            if names.len() > HOSTS_MAX {
                return Err(format!("`{text}` is more than {HOSTS_MAX} hosts"));
            }
        }
    }
    Ok(names)
}

fn numbers(range: &str) -> Option<impl Iterator<Item = String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let is_number =
        |text: &str| (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let width = first.len();
    let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
    (first <= last).then(|| (first..=last).map(move |number| format!("{number:0width$}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse(text).unwrap().0.into_iter().map(|host| host.name).collect()
    }

    #[test]
    fn lists_of_job_managers_are_understood() {
        assert_eq!(names("a"), ["a"]);
        assert_eq!(names("node[08-11],gpu1"), ["node08", "node09", "node10", "node11", "gpu1"]);
        assert_eq!(names("n[1,3-4]"), ["n1", "n3", "n4"]);
        assert_eq!(names("r[1-2]n[1-2].x"), ["r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x"]);
        assert_eq!(names("b, a,b,,a"), ["b", "a"]);
        assert_eq!(names("n[98-101]"), ["n98", "n99", "n100", "n101"]);
    }

    #[test]
    fn a_host_may_come_with_its_address() {
        let Hosts(hosts) = parse("a=10.0.0.1,b=fd00::1,c").unwrap();
        let addresses: Vec<_> = hosts.iter().map(|host| host.address.as_deref()).collect();
        assert_eq!(addresses, [Some("10.0.0.1"), Some("fd00::1"), None]);
    }

    #[test]
    fn a_file_names_a_host_on_each_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# hosts\na\na\nb=10.0.0.2 # fast\n\n").unwrap();
        let Hosts(hosts) = parse(&format!("@{}", file.path().display())).unwrap();
        let host = |name: &str, address: Option<&str>| Host {
            name: name.into(),
            address: address.map(str::to_string),
        };
        assert_eq!(hosts, [host("a", None), host("b", Some("10.0.0.2"))]);
        assert!(parse("@/nowhere/hosts").unwrap_err().contains("/nowhere/hosts"));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            ",",
            "a[1-2",
            "a]1[",
            "a[[1]]",
            "a[2-1]",
            "a[x]",
            "a[]",
            "a[1-99999]",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "../a",
            "u@h",
            "a[1-2]=10.0.0.1",
            "a=",
            "a=x/y",
            "a[1-9999999999]",
            "a[1-90][1-90]",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
