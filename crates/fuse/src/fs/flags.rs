//! Flags of files and directories (chattr(1)), which the metadata server keeps and enforces. The kernel asks for them, and sets
//! them, by ioctl, in one of two forms:
//!
//! ```text
//!   FS_IOC_GETFLAGS, FS_IOC_SETFLAGS          4 bytes: bits of linux/fs.h
//!   FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR     28 bytes: other bits for the same; a project, which is refused; sizes of extents
//! ```
//!
//! It checks itself who may, as does the server.

use super::WeftFs;
use crate::outcome::{Errno, Outcome};
use weft_gateway::Process;

const GET_FLAGS: u32 = libc::FS_IOC_GETFLAGS as u32;
const SET_FLAGS: u32 = libc::FS_IOC_SETFLAGS as u32;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, which the libc crate does not have.
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;

/// A flag in both forms.
const FORMS: [(u32, u32); 4] = [(0x10, 0x08), (0x20, 0x10), (0x40, 0x80), (0x80, 0x40)];
const EXTENDED_BYTES: usize = 28;

/// The extended form of flags.
fn extended(flags: u32) -> [u8; EXTENDED_BYTES] {
    let bits: u32 = FORMS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum();
    let mut form = [0; EXTENDED_BYTES];
    form[..4].copy_from_slice(&bits.to_ne_bytes());
    form
}

/// The flags of an extended form.
fn of_extended(form: &[u8]) -> Outcome<u32> {
    let (bits, rest) = form.split_first_chunk().ok_or(Errno(libc::EINVAL))?;
    let bits = u32::from_ne_bytes(*bits);
    let known: u32 = FORMS.iter().map(|(_, bit)| bit).sum();
    if bits & !known != 0 || rest.iter().any(|byte| *byte != 0) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    Ok(FORMS.iter().filter(|(_, bit)| bits & bit != 0).map(|(flag, _)| flag).sum())
}

impl WeftFs {
    /// What an ioctl writes to where its argument leads.
    pub(crate) fn ioctl(&self, who: Process, node: u64, command: u32, data: &[u8]) -> Outcome<Vec<u8>> {
        let (client, ino) = (self.callers.client(who), self.ino(node));
        let set = |flags| {
            self.last_replies.forget(ino);
            let set = client.set_flags(ino, flags);
            // Of an ioctl the kernel does not know what it changes.
            self.coherence.attributes_changed(ino);
            set.map(|()| Vec::new())
        };
        Ok(match command {
            GET_FLAGS => client.flags(ino)?.to_ne_bytes().to_vec(),
            GET_EXTENDED => extended(client.flags(ino)?).to_vec(),
            SET_FLAGS => {
                let (flags, _) = data.split_first_chunk().ok_or(Errno(libc::EINVAL))?;
                set(u32::from_ne_bytes(*flags))?
            }
            SET_EXTENDED => set(of_extended(data)?)?,
            _ => return Err(Errno(libc::ENOTTY)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_the_same_flags() {
        for flags in (0..16).map(|flags: u32| flags << 4) {
            assert_eq!(of_extended(&extended(flags)).unwrap(), flags);
        }
        assert_eq!(extended(0x30)[..4], 0x18u32.to_ne_bytes());
        let mut project = extended(0x10);
        project[12] = 1;
        assert_eq!(of_extended(&project).unwrap_err().0, libc::EOPNOTSUPP);
        assert_eq!(of_extended(&[0x01, 0, 0, 0]).unwrap_err().0, libc::EOPNOTSUPP);
        assert_eq!(of_extended(&[8, 0]).unwrap_err().0, libc::EINVAL);
    }
}
