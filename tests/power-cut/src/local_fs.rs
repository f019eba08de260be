//! A real local file system whose device records what was written to it, and images of that device.
//!
//! ```text
//!   who is tested ─► ext4 or XFS ─► loop device ─► one file of a Disk, mounted by a Recorder
//!                                                    a write is pending until the next flush of the device
//!   an image of the Disk ─► that file, in memory ─► loop device ─► mounted: its journal is replayed
//! ```
//!
//! The device is full of bytes that nobody wrote before the file system is made on it: a block that is shown before its data has
//! arrived is seen. Who works on such a file system must be another process than the one that has the [`Recorder`]: a thread that
//! waits for a mapped page holds up all that allocate memory, and one of these answers for the page.

use crate::disk::{Disk, Image};
use crate::recorder::Recorder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weft_test_needs::Need;
use weft_test_random::Random;

/// Room for a cluster, and not so much that images take long.
const DEVICE_BYTES: usize = 96 << 20;
/// What the device writes whole: a page, as disks with sectors of 4 KiB do, and NVMe drives that say so.
const DEVICE_WHOLE_BYTES: usize = 4096;
/// What the device is full of at first.
const OTHERS: u8 = 0xa5;
const DEVICE: &str = "device";
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether file systems can be mounted here. Where that should be possible (root, and loop devices), whatever is missing for `kind`
/// (`ext4` or `xfs`) fails the test.
pub fn can_mount(kind: &str) -> bool {
    if !Need::LoopDevices.is_met() {
        return false;
    }
    let tool = format!("mkfs.{kind}");
    let found = Command::new(&tool).arg("-V").output();
    assert!(found.is_ok(), "{tool} is not there; scripts/need.sh {tool} installs it");
    true
}

/// A device with an empty file system of this kind.
fn made(kind: &str, below: &Path) -> Image {
    let file = below.join(DEVICE);
    std::fs::write(&file, vec![OTHERS; DEVICE_BYTES]).unwrap();
    let options: &[&str] = match kind {
        "xfs" => &["-q", "-K", "-f", "--unsupported"],
        _ => &["-q", "-F", "-E", "nodiscard"],
    };
    run(Command::new(format!("mkfs.{kind}")).args(options).arg(&file));
    let image = Image::of_file(DEVICE, &std::fs::read(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    image
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A file system on a loop device. Dropping it unmounts it, and waits for the device to be let go.
struct Mount {
    device: PathBuf,
    directory: tempfile::TempDir,
}

impl Mount {
    fn new(kind: &str, device: PathBuf) -> Result<Mount, String> {
        let directory = tempfile::tempdir_in(crate::scratch()).unwrap();
        let options = if kind == "xfs" { "loop,nouuid" } else { "loop" };
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", options]).arg(&device).arg(directory.path());
        let output = mount.output().unwrap_or_else(|error| panic!("{mount:?}: {error}"));
        match output.status.success() {
            true => Ok(Mount { device, directory }),
            false => Err(format!("{mount:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn is_on_a_loop_device(&self) -> bool {
        let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        devices.into_iter().any(|device| {
            let backing = std::fs::read_to_string(device.path().join("loop/backing_file"));
            backing.is_ok_and(|path| Path::new(path.trim_end()) == self.device)
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let begun = Instant::now();
        let umount = |lazily: &[&str]| {
            Command::new("umount")
                .args(lazily)
                .arg(self.directory.path())
                .output()
                .is_ok_and(|it| it.status.success())
        };
        // Processes that were killed may still be on their way.
        while !umount(&[]) {
            if begun.elapsed() > END_TIMEOUT {
                umount(&["-l"]);
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        while self.is_on_a_loop_device() && begun.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A file system on a device that records.
pub struct LocalFs {
    // In this order: the file system goes before its device.
    mount: Mount,
    /// The device's disk.
    pub recorder: Recorder,
}

impl LocalFs {
    /// An empty file system, of whose device `cuts_max` images will be taken.
    pub fn new(kind: &str, random: Random, cuts_max: usize) -> LocalFs {
        let scratch = tempfile::tempdir_in(crate::scratch()).unwrap();
        let mut disk = Disk::from_image(&made(kind, scratch.path()));
        disk.whole_bytes = Some(DEVICE_WHOLE_BYTES);
        let recorder = Recorder::mount(disk, 0, random, cuts_max);
        let mount =
            Mount::new(kind, recorder.mount_point().join(DEVICE)).unwrap_or_else(|error| panic!("{error}"));
        LocalFs { mount, recorder }
    }

    /// A directory in it.
    pub fn directory(&self) -> &Path {
        self.mount.directory.path()
    }
}

/// What a power cut has left of a file system, mounted.
pub struct MountedImage {
    // In this order, as above.
    mount: Mount,
    _scratch: tempfile::TempDir,
}

impl MountedImage {
    /// Mounts an image of the device of a [`LocalFs`].
    ///
    /// # Errors
    /// The local file system does not take it.
    pub fn mount(kind: &str, image: &Image) -> Result<MountedImage, String> {
        let scratch = tempfile::tempdir_in(crate::scratch()).unwrap();
        image.write_to(scratch.path());
        let mount = Mount::new(kind, scratch.path().join(DEVICE))?;
        Ok(MountedImage { mount, _scratch: scratch })
    }

    /// A directory in it.
    pub fn directory(&self) -> &Path {
        self.mount.directory.path()
    }
}
