//! What the file of a program says of how it is executed: a script's interpreter, or an ELF file's libraries.
//!
//! ```text
//!   #!/bin/sh -e          Script    the kernel executes /bin/sh -e FILE
//!   ELF, interpreter      Dynamic   the dynamic linker loads it with what LD_PRELOAD names
//!   ELF, no interpreter   Static    LD_PRELOAD does nothing
//! ```

use std::io;

/// Bytes of a script's first line that the kernel reads.
pub const SCRIPT_LINE_BYTES_MAX: usize = 255;
/// Bounds for what is read of a damaged file.
const PROGRAM_HEADERS_MAX: usize = 256;
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 255;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// How a program is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A script, with the interpreter and the option that its first line names.
    Script {
        /// The path of the interpreter.
        interpreter: Vec<u8>,
        /// The rest of the line, which the interpreter gets as one argument.
        option: Option<Vec<u8>>,
    },
    /// A 64-bit ELF file without an interpreter.
    Static,
    /// A 64-bit ELF file with an interpreter, and the names of the libraries that it needs.
    Dynamic(Vec<Vec<u8>>),
    /// Anything else, such as an ELF file of another kind.
    Other,
}

impl Program {
    /// Reads what a program is. `read_at` reads at an offset, and returns 0 at the end of the file.
    ///
    /// # Errors
    /// Those of `read_at`.
    pub fn read(read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<Program> {
        let file = Bytes(&read_at);
        let start = file.up_to(0, SCRIPT_LINE_BYTES_MAX)?;
        if let Some((interpreter, option)) = script_line(&start) {
            return Ok(Program::Script {
                interpreter: interpreter.to_vec(),
                option: option.map(<[u8]>::to_vec),
            });
        }
        if start.len() < HEADER_BYTES || !start.starts_with(b"\x7fELF\x02\x01") {
            return Ok(Program::Other);
        }
        let (offset, bytes_each, count) =
            (number(&start, 32, 8), number(&start, 54, 2), number(&start, 56, 2));
        if bytes_each != PROGRAM_HEADER_BYTES as u64 || count > PROGRAM_HEADERS_MAX as u64 {
            return Ok(Program::Other);
        }
        let headers = file.up_to(offset, count as usize * PROGRAM_HEADER_BYTES)?;
        let segments: Vec<Segment> = headers.chunks_exact(PROGRAM_HEADER_BYTES).map(Segment::of).collect();
        if !segments.iter().any(|segment| segment.kind == PT_INTERP) {
            return Ok(Program::Static);
        }
        Ok(Program::Dynamic(file.needed(&segments)?))
    }

    /// The runtime of AddressSanitizer, if the program needs it as a library. It refuses to start unless it is
    /// the first library.
    pub fn address_sanitizer(&self) -> Option<&[u8]> {
        let Program::Dynamic(needed) = self else { return None };
        needed.iter().map(Vec::as_slice).find(|name| is_address_sanitizer(name))
    }
}

/// Whether a library is the runtime of AddressSanitizer: GCC's or Clang's.
pub fn is_address_sanitizer(library: &[u8]) -> bool {
    let has = |part: &[u8]| library.windows(part.len()).any(|window| window == part);
    has(b"libasan.so") || has(b"libclang_rt.asan")
}

/// The names of libraries in a value of `LD_PRELOAD`.
pub fn preloaded(value: &[u8]) -> Vec<&[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty()).collect()
}

/// A value of `LD_PRELOAD` with these libraries before `others`, but behind the runtime of AddressSanitizer. `runtime`: the one
/// that the program needs. It is put in front if none is there, and `::` marks it as not named by the user.
pub fn preload_value<'a>(
    libraries: &[&'a [u8]],
    mut others: Vec<&'a [u8]>,
    runtime: Option<&[u8]>,
) -> Vec<u8> {
    let behind = others.iter().take_while(|library| is_address_sanitizer(library)).count();
    others.splice(behind..behind, libraries.iter().copied());
    let all = others.join(&b':');
    match runtime.filter(|_| behind == 0) {
        Some(runtime) => [runtime, b"::", &all].concat(),
        None => all,
    }
}

/// A value of `LD_PRELOAD` without the runtime that [`preload_value`] put in front.
pub fn without_runtime(value: &[u8]) -> &[u8] {
    match value.windows(2).position(|two| two == b"::") {
        Some(end) if is_address_sanitizer(&value[..end]) && !value[..end].contains(&b':') => {
            &value[end + 2..]
        }
        _ => value,
    }
}

/// The interpreter and its option, if these are the first bytes of a script.
pub fn script_line(start: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let rest = start.strip_prefix(b"#!")?;
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let words = rest[..end].trim_ascii();
    let cut = words.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(words.len());
    let (interpreter, option) = (&words[..cut], words[cut..].trim_ascii());
    Some((interpreter, Some(option).filter(|option| !option.is_empty())))
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl Segment {
    fn of(header: &[u8]) -> Segment {
        Segment {
            kind: number(header, 0, 4) as u32,
            offset: number(header, 8, 8),
            address: number(header, 16, 8),
            file_bytes: number(header, 32, 8),
        }
    }

    /// The offset in the file of an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address).filter(|within| *within < self.file_bytes)?;
        self.offset.checked_add(within)
    }
}

/// A little-endian number of `wide` bytes.
fn number(bytes: &[u8], at: usize, wide: usize) -> u64 {
    bytes[at..at + wide].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

struct Bytes<'a, R>(&'a R);

impl<R: Fn(&mut [u8], u64) -> io::Result<usize>> Bytes<'_, R> {
    /// The bytes from an offset on, fewer at the end of the file.
    fn up_to(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (mut buffer, mut filled) = (vec![0; bytes], 0);
        while filled < bytes {
            let Some(at) = offset.checked_add(filled as u64) else { break };
            match (self.0)(&mut buffer[filled..], at)? {
                0 => break,
                read => filled += read,
            }
        }
        buffer.truncate(filled);
        Ok(buffer)
    }

    /// The names of the libraries that the dynamic section names.
    fn needed(&self, segments: &[Segment]) -> io::Result<Vec<Vec<u8>>> {
        let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
            return Ok(Vec::new());
        };
        let entries = self.up_to(dynamic.offset, dynamic.file_bytes.min(DYNAMIC_BYTES_MAX) as usize)?;
        let pairs = || {
            let pairs = entries.chunks_exact(16).map(|entry| (number(entry, 0, 8), number(entry, 8, 8)));
            pairs.take_while(|(tag, _)| *tag != DT_NULL)
        };
        let load = |address| {
            let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
            loaded.filter_map(|segment| segment.offset_of(address)).next()
        };
        let texts = pairs().find(|(tag, _)| *tag == DT_STRTAB).and_then(|(_, address)| load(address));
        let Some(texts) = texts else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for (_, place) in pairs().filter(|(tag, _)| *tag == DT_NEEDED) {
            let Some(offset) = texts.checked_add(place) else { continue };
            let mut name = self.up_to(offset, NAME_BYTES_MAX + 1)?;
            if let Some(end) = name.iter().position(|byte| *byte == 0) {
                name.truncate(end);
                names.push(name);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn read(bytes: &[u8]) -> Program {
        let read_at = |buffer: &mut [u8], offset: u64| {
            let rest =
                usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
            let read = rest.len().min(buffer.len());
            buffer[..read].copy_from_slice(&rest[..read]);
            Ok(read)
        };
        Program::read(read_at).unwrap()
    }

    #[test]
    fn this_test_needs_libc_and_a_header_without_an_interpreter_is_static() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let program = Program::read(|buffer, offset| own.read_at(buffer, offset)).unwrap();
        let Program::Dynamic(needed) = &program else { panic!("{program:?}") };
        assert!(needed.iter().any(|name| name.starts_with(b"libc.so")), "{needed:?}");
        assert_eq!(program.address_sanitizer(), None);
        let mut header = vec![0; HEADER_BYTES];
        own.read_exact_at(&mut header, 0).unwrap();
        header[56..58].copy_from_slice(&0u16.to_le_bytes());
        assert_eq!(read(&header), Program::Static);
        assert_eq!(read(b""), Program::Other);
        assert_eq!(read(b"\x7fELF\x01\x01"), Program::Other);
    }

    #[test]
    fn the_runtime_of_address_sanitizer_is_recognized_whoever_made_it() {
        let needed = |name: &str| Program::Dynamic(vec![b"libm.so.6".to_vec(), name.as_bytes().to_vec()]);
        for name in ["libasan.so.8", "libclang_rt.asan-x86_64.so"] {
            assert_eq!(needed(name).address_sanitizer(), Some(name.as_bytes()));
        }
        assert_eq!(needed("libtsan.so.2").address_sanitizer(), None);
    }

    #[test]
    fn a_script_names_an_interpreter_and_one_option() {
        let script = |interpreter: &str, option: Option<&str>| Program::Script {
            interpreter: interpreter.into(),
            option: option.map(Into::into),
        };
        assert_eq!(read(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(read(b"#! /usr/bin/env  python3 -u \n"), script("/usr/bin/env", Some("python3 -u")));
        assert_eq!(read(b"#!\n"), script("", None));
        assert_eq!(read(b"# /bin/sh\n"), Program::Other);
    }

    #[test]
    fn damaged_programs_are_refused_or_read() {
        let own = File::open("/bin/sh").unwrap();
        let mut start = vec![0; 64 << 10];
        let bytes = own.read_at(&mut start, 0).unwrap();
        weft_test_fuzz::run("program", &[start[..bytes.min(2000)].to_vec()], |bytes| {
            read(bytes);
        });
    }
}
