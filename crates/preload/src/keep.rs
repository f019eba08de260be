//! Weft's environment variables, which a program keeps over exec even if it is given another environment.
//!
//! ```text
//!   weft run ──► LD_PRELOAD, WEFT_PREFIX, … ──► env -i program ──► execve(…, environment without them)
//!                     └─ noted at the start ────────────────────────────────┴─► are put back
//! ```
//!
//! An environment without `WEFT_PREFIX` replaces the old one, and gets all variables of Weft. One that has it was
//! edited, so what it lacks was taken out on purpose. It gets the library all the same. `WEFT_KEEP=0` in either
//! environment switches this off.
//!
//! The library comes first in `LD_PRELOAD`, except behind the runtime of AddressSanitizer, which refuses to
//! start elsewhere. A program that needs that runtime gets it by `RUNTIME::LIBRARIES`. The empty name marks it
//! as put there, so that programs after it do not get it.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_host::program::{is_address_sanitizer, preload_value, preloaded, without_runtime};

use crate::strings::{Strings, list_of, with_entries};

const PRELOAD: &[u8] = b"LD_PRELOAD";
const PREFIX: &[u8] = b"WEFT_PREFIX";
/// The variable that switches it off.
const KEEP: &[u8] = b"WEFT_KEEP";
/// The contents of a key.
const KEY: &[u8] = b"WEFT_KEY";
/// What an exec passes on by itself, or must not.
const NOT_KEPT: [&[u8]; 3] = [KEEP, b"WEFT_CWD", b"WEFT_LOCKS"];
const KEYS: [&[u8]; 3] = [KEY, b"WEFT_KEY_FILE", b"WEFT_KEY_DIR"];
/// How the names of Weft's libraries begin.
const LIBRARIES: &[u8] = b"libweft_";
const OWN_LIBRARY: &[u8] = b"libweft_preload";

/// What the environment had when the program started. Never freed.
struct Kept {
    libraries: Vec<Vec<u8>>,
    variables: Vec<Vec<u8>>,
    is_off: bool,
    user: libc::uid_t,
}

static KEPT: AtomicPtr<Kept> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    static mut environ: Strings;
}

/// A variable and its value.
fn pair(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = entry.iter().position(|byte| *byte == b'=')?;
    Some((&entry[..equals], &entry[equals + 1..]))
}

fn value<'a>(entries: &[&'a [u8]], name: &[u8]) -> Option<&'a [u8]> {
    entries.iter().filter_map(|entry| pair(entry)).find(|(other, _)| *other == name).map(|(_, value)| value)
}

fn own_environment() -> Vec<&'static [u8]> {
    // SAFETY: libc's list of strings, which ends with NULL.
    let entries = unsafe { list_of(environ) };
    // SAFETY: strings.
    entries.into_iter().map(|entry| unsafe { CStr::from_ptr(entry) }.to_bytes()).collect()
}

/// Notes the environment, when the program starts.
pub(crate) fn note_environment() {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let kept = Box::new(Kept::of(&own_environment(), user));
    KEPT.store(Box::leak(kept), Ordering::Release);
}

fn kept() -> Option<&'static Kept> {
    // SAFETY: null, or never freed.
    unsafe { KEPT.load(Ordering::Acquire).as_ref() }
}

/// The variables, as `NAME=VALUE`, that replace or follow those of a program's environment. `runtime`: the
/// library of AddressSanitizer that the program needs.
pub(crate) fn missing(given: &[&[u8]], runtime: Option<&[u8]>) -> Vec<CString> {
    let Some(kept) = kept() else { return Vec::new() };
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let texts = kept.missing(given, runtime, user).into_iter();
    texts.filter_map(|text| CString::new(text).ok()).collect()
}

/// Puts variables back that the program has removed from its own environment. For what libc executes by
/// itself, and before this library looks for a key.
///
/// The environment becomes a new list, which is never freed. `setenv` could free the old one, which the program may just have
/// passed to `execve`.
pub(crate) fn restore_own() {
    let missing = missing(&own_environment(), None);
    if missing.is_empty() {
        return;
    }
    // SAFETY: libc's list of strings. The new list and the strings that are added are never freed.
    unsafe { environ = with_entries(environ, missing.leak(), &[]).leak().as_ptr() };
}

fn is_named(library: &[u8], start: &[u8]) -> bool {
    library.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(start))
}

impl Kept {
    fn of(environment: &[&[u8]], user: libc::uid_t) -> Kept {
        let preload = preloaded(value(environment, PRELOAD).unwrap_or_default());
        let libraries = preload.into_iter().filter(|library| is_named(library, LIBRARIES));
        let is_kept = |entry: &[u8]| {
            let (name, value) = pair(entry).unwrap_or_default();
            name.starts_with(b"WEFT_") && !value.is_empty() && !NOT_KEPT.contains(&name)
        };
        Kept {
            libraries: libraries.map(<[u8]>::to_vec).collect(),
            variables: environment
                .iter()
                .filter(|entry| is_kept(entry))
                .map(|entry| entry.to_vec())
                .collect(),
            is_off: value(environment, KEEP) == Some(b"0"),
            user,
        }
    }

    fn has(&self, name: &[u8]) -> bool {
        self.variables.iter().filter_map(|entry| pair(entry)).any(|(other, _)| other == name)
    }

    fn missing(&self, given: &[&[u8]], runtime: Option<&[u8]>, user: libc::uid_t) -> Vec<Vec<u8>> {
        let is_off = value(given, KEEP).map_or(self.is_off, |value| value == b"0");
        let before = value(given, PRELOAD).unwrap_or_default();
        let preload = self.preload(before, runtime, is_off);
        let mut texts = Vec::new();
        if preload != before {
            texts.push([PRELOAD, b"=", &preload].concat());
        }
        let names = |names: &[&[u8]]| names.iter().any(|name| value(given, name).is_some());
        let is_edited = match self.has(PREFIX) {
            true => names(&[PREFIX]),
            false => given
                .iter()
                .filter_map(|entry| pair(entry))
                .any(|(name, _)| name.starts_with(b"WEFT_") && !NOT_KEPT.contains(&name)),
        };
        if is_off || is_edited || self.libraries.is_empty() {
            return texts;
        }
        let has_key = names(&KEYS);
        for entry in &self.variables {
            let (name, _) = pair(entry).unwrap_or_default();
            let is_other_key = has_key && KEYS.contains(&name);
            // A process that has become another user's does not reveal the key to that user.
            let is_secret = name == KEY && user != self.user;
            if !names(&[name]) && !is_other_key && !is_secret {
                texts.push(entry.clone());
            }
        }
        texts
    }

    /// The value of `LD_PRELOAD` for a program that needs this runtime.
    fn preload(&self, given: &[u8], runtime: Option<&[u8]>, is_off: bool) -> Vec<u8> {
        let rest = without_runtime(given);
        let mut others = preloaded(rest);
        let is_there = others.iter().any(|library| is_named(library, OWN_LIBRARY));
        if !is_there && (is_off || self.libraries.is_empty()) {
            return given.to_vec();
        }
        let has_runtime = others.first().is_some_and(|library| is_address_sanitizer(library));
        if is_there && (runtime.is_none() || has_runtime) {
            return rest.to_vec();
        }
        let mut libraries = Vec::new();
        if !is_there {
            others.retain(|library| !is_named(library, LIBRARIES));
            libraries.extend(self.libraries.iter().map(Vec::as_slice));
        }
        preload_value(&libraries, others, runtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBS: &str = "/l/libweft_preload.so:/l/libweft_mpi.so";

    fn kept(environment: &[&str]) -> Kept {
        Kept::of(&environment.iter().map(|entry| entry.as_bytes()).collect::<Vec<_>>(), 1000)
    }

    fn missing(kept: &Kept, given: &[&str], runtime: Option<&str>, user: u32) -> Vec<String> {
        let given: Vec<_> = given.iter().map(|entry| entry.as_bytes()).collect();
        let texts = kept.missing(&given, runtime.map(str::as_bytes), user).into_iter();
        texts.map(|text| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn a_new_environment_gets_all_and_an_edited_one_the_library() {
        let preload = format!("LD_PRELOAD={LIBS}:/x.so");
        let with_libraries = format!("LD_PRELOAD={LIBS}");
        let own = ["A=b", &preload, "WEFT_PREFIX=/weft=u", "WEFT_URL=u", "WEFT_KEY=k", "WEFT_CWD=1:/"];
        let kept = kept(&own);
        let all = [&with_libraries, "WEFT_PREFIX=/weft=u", "WEFT_URL=u", "WEFT_KEY=k"];
        assert_eq!(missing(&kept, &[], None, 1000), all);
        assert_eq!(missing(&kept, &["B=c", "LD_PRELOAD="], None, 1000), all);
        assert_eq!(missing(&kept, &[], None, 1001), all[..3], "the key is not for another user");
        assert_eq!(missing(&kept, &["WEFT_KEY_FILE=f", "WEFT_URL=v"], None, 1000), all[..2]);
        assert_eq!(missing(&kept, &own, None, 1000), [""; 0]);
        assert_eq!(missing(&kept, &["WEFT_PREFIX=/other=v"], None, 1000), [&*with_libraries]);
        assert_eq!(
            missing(&kept, &["WEFT_PREFIX=/weft=u", "LD_PRELOAD=/y.so /z.so"], None, 1000),
            [format!("{with_libraries}:/y.so:/z.so")]
        );
    }

    #[test]
    fn it_is_switched_off_by_a_variable_or_without_the_library() {
        let with_libraries = format!("LD_PRELOAD={LIBS}");
        assert_eq!(missing(&kept(&[&with_libraries, "WEFT_URL=u", "WEFT_KEEP=0"]), &[], None, 0), [""; 0]);
        assert_eq!(missing(&kept(&[&with_libraries, "WEFT_URL=u"]), &["WEFT_KEEP=0"], None, 0), [""; 0]);
        let off = kept(&[&with_libraries, "WEFT_URL=u", "WEFT_KEEP=0"]);
        assert_eq!(missing(&off, &["WEFT_KEEP=1"], None, 0), [&*with_libraries, "WEFT_URL=u"]);
        assert_eq!(missing(&kept(&["WEFT_URL=u"]), &[], Some("libasan.so.8"), 0), [""; 0]);
    }

    #[test]
    fn the_runtime_of_address_sanitizer_is_first_while_a_program_needs_it() {
        let kept = kept(&[&format!("LD_PRELOAD={LIBS}"), "WEFT_PREFIX=/weft=u"]);
        let edited = |value: &str| ["WEFT_PREFIX=/weft=u".to_string(), format!("LD_PRELOAD={value}")];
        let check = |given: &str, runtime, expected: Option<&str>| {
            let given = edited(given);
            let given: Vec<_> = given.iter().map(String::as_str).collect();
            let expected: Vec<_> = expected.iter().map(|value| format!("LD_PRELOAD={value}")).collect();
            assert_eq!(missing(&kept, &given, runtime, 1000), expected);
        };
        let (runtime, marked) = (Some("libasan.so.8"), format!("libasan.so.8::{LIBS}"));
        check(LIBS, runtime, Some(&marked));
        check(&marked, runtime, None);
        check(&marked, None, Some(LIBS));
        // One that the user preloads stays, and the library follows it.
        let by_user = format!("/usr/lib/libasan.so.8:{LIBS}:/x.so");
        check("/usr/lib/libasan.so.8:/x.so", None, Some(&by_user));
        check(&by_user, runtime, None);
        check(&by_user, None, None);
        check(&format!("{LIBS}:/usr/lib/libasan.so.8"), None, None);
    }
}
