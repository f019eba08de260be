//! Libraries that are sections of this program: one copied file is enough.
//!
//! ```text
//!   weft: code, data, …, section ".libweft_preload.so" (scripts/embed.sh)
//!                                  └─► ~/.cache/weft/libweft_preload.so-CHECKSUM-BYTES, once, for its owner only
//! ```

use anyhow::{Context, Result, bail};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ReadCache};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The path of a library of this program, unpacked if need be; `None` if the program has none of this name.
///
/// # Errors
/// It cannot be unpacked.
pub fn library(name: &str) -> Result<Option<PathBuf>> {
    let program = File::open("/proc/self/exe").context("cannot read this program")?;
    let Some(bytes) = section(&program, &format!(".{name}"))? else { return Ok(None) };
    unpack(&directory()?, name, &bytes).map(Some)
}

/// A directory for it that nobody else can write to.
fn directory() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    // SAFETY: getuid has no preconditions.
    let user = unsafe { libc::getuid() };
    let candidates =
        [cache.map(|cache| cache.join("weft")), Some(format!("/tmp/weft-{user}-libraries").into())];
    let mut last = None;
    for dir in candidates.into_iter().flatten() {
        match private(&dir, user) {
            Ok(()) => return Ok(dir),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("one of them was tried"))
        .context("there is no place for the library of `weft run`; set XDG_CACHE_HOME")
}

fn private(dir: &Path, user: u32) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {}", dir.display()))?;
    let found = std::fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        bail!("{} is not a directory of this user alone", dir.display());
    }
    Ok(())
}

fn unpack(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = dir.join(format!("{name}-{:08x}-{}", crc32c::crc32c(bytes), bytes.len()));
    if std::fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    let fresh = dir.join(format!(".{name}-{}", std::process::id()));
    let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o700).open(&fresh);
    file.and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&fresh, &path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The bytes of a section of an ELF file; `None` if it has none of this name, or is no such file.
fn section(file: &File, name: &str) -> Result<Option<Vec<u8>>> {
    let cache = ReadCache::new(file);
    let Ok(program) = ElfFile64::<Endianness, _>::parse(&cache) else { return Ok(None) };
    let found = program.section_by_name(name);
    let bytes = found.map(|section| section.data().map(<[u8]>::to_vec));
    bytes.transpose().with_context(|| format!("section {name} of this program is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_a_program_are_found_by_name() {
        let program = File::open("/proc/self/exe").unwrap();
        let strings = section(&program, ".shstrtab").unwrap().unwrap();
        assert!(strings.windows(5).any(|bytes| bytes == b".text"));
        assert_eq!(section(&program, ".libweft_preload.so").unwrap(), None);
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(other.path(), [b'x'; 100]).unwrap();
        assert_eq!(section(&File::open(other.path()).unwrap(), ".text").unwrap(), None);
        std::fs::write(other.path(), [b"\x7fELF\x02\x01".as_slice(), &[0xff; 100]].concat()).unwrap();
        assert_eq!(section(&File::open(other.path()).unwrap(), ".text").unwrap(), None);
    }

    #[test]
    fn a_library_is_unpacked_once_and_a_damaged_one_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = unpack(dir.path(), "l.so", b"library").unwrap();
        let made = std::fs::metadata(&path).unwrap();
        assert_eq!(made.mode() & 0o777, 0o700);
        assert_eq!(unpack(dir.path(), "l.so", b"library").unwrap(), path);
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), made.ino());
        std::fs::write(&path, b"damaged").unwrap();
        unpack(dir.path(), "l.so", b"library").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"library");
        assert_ne!(unpack(dir.path(), "l.so", b"newer").unwrap(), path);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let user = std::fs::metadata(dir.path()).unwrap().uid();
        private(&dir.path().join("a/b"), user).unwrap();
        assert!(private(&dir.path().join("a/b"), user + 1).is_err());
        let shared = dir.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(private(&shared, user).is_err());
        std::os::unix::fs::symlink(dir.path().join("a/b"), dir.path().join("link")).unwrap();
        assert!(private(&dir.path().join("link"), user).is_err());
    }
}
