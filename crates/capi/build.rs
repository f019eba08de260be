//! Names the shared library by the version of its interface, as other systems' linkers and packages expect.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    let name = format!("libweft.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    // Programs that were linked with the library where cargo puts it look for it there by this name.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    if let Some(profile) = out.ancestors().nth(3) {
        // It is there already, or programs say what they miss.
        let _ = symlink("libweft.so", profile.join(name));
    }
}
