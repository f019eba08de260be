//! Lists of strings as exec takes them, which end with NULL.

use std::ffi::{CStr, CString, c_char};

/// Arguments, or an environment.
pub(crate) type Strings = *const *const c_char;

/// The strings of a list.
///
/// # Safety
/// It ends with NULL.
pub(crate) unsafe fn list_of(strings: Strings) -> Vec<*const c_char> {
    let mut all = Vec::new();
    // SAFETY: as the caller promises.
    unsafe {
        let mut next = strings;
        while !next.is_null() && !(*next).is_null() {
            all.push(*next);
            next = next.add(1);
        }
    }
    all
}

/// The name of a variable.
fn name_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// The list of an environment in which these entries, `NAME=VALUE`, replace those of their names, and the variables in `removed` do
/// not occur otherwise. It is valid as long as both lists are.
///
/// # Safety
/// The environment ends with NULL.
pub(crate) unsafe fn with_entries(
    environment: Strings,
    entries: &[CString],
    removed: &[&CStr],
) -> Vec<*const c_char> {
    let names = entries.iter().map(|entry| name_of(entry)).chain(removed.iter().map(|name| name.to_bytes()));
    let names: Vec<&[u8]> = names.collect();
    // SAFETY: as the caller promises.
    let mut all = unsafe { list_of(environment) };
    // SAFETY: strings.
    all.retain(|entry| !names.contains(&name_of(unsafe { CStr::from_ptr(*entry) })));
    all.extend(entries.iter().map(|entry| entry.as_ptr()));
    all.push(std::ptr::null());
    all
}
