//! The scripts that hosts run.

use super::record::{Placed, Record};
use super::remote::quoted;
use anyhow::{Context, Result};
use std::path::Path;
use weft_cli_common::launch::{CLUSTER_FILE, NEW_FILE};
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE};

/// What is removed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing: the cluster can be started again.
    Nothing,
    /// All data, keys and files of the cluster, on all hosts.
    Everything,
}

/// The files that hosts get copies of.
pub struct Files {
    cluster: String,
    cluster_key: String,
    client_key: String,
}

impl Files {
    /// Reads them.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn load(dir: &Path) -> Result<Files> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Files {
            cluster: read(CLUSTER_FILE)?,
            cluster_key: read(CLUSTER_KEY_FILE)?,
            client_key: read(CLIENT_KEY_FILE)?,
        })
    }
}

/// Gives a host its files, and starts servers there. A directory of somebody else is not used.
pub fn install_script(record: &Record, host: &Placed, files: &Files, names: &[String]) -> String {
    let dir = quoted(&record.dir_on(host).display().to_string());
    let above = quoted(&record.dir.display().to_string());
    let mut script = format!(
        r#"set -eu
umask 022
dir={dir}
weft={program}
above={above}
mkdir -p "$dir"
[ ! -L "$dir" ] && [ -O "$dir" ] || {{ echo "$dir is not a directory of user $(id -un)" >&2; exit 1; }}
owner=$(stat -c %u "$above")
[ "$owner" = 0 ] || [ "$owner" = "$(id -u)" ] || {{ echo "$above is of another user" >&2; exit 1; }}
# The program is at this path on every host, so that commands for single servers are the same on all.
[ "$weft" = "$dir/bin/weft" ] || {{ mkdir -p "$dir/bin" && ln -sfn "$(command -v "$weft")" "$dir/bin/weft"; }}
put() {{ cat > "$dir/.$1.new" && mv "$dir/.$1.new" "$dir/$1"; }}
put {CLUSTER_FILE} <<'END OF FILE'
{cluster}
END OF FILE
umask 077
put {CLIENT_KEY_FILE} <<'END OF FILE'
{client_key}
END OF FILE
"#,
        program = quoted(&host.program),
        cluster = files.cluster.trim_end(),
        client_key = files.client_key.trim_end(),
    );
    if host.servers.is_empty() {
        // The key is where a client of this user looks for it.
        script += &format!(
            "keys=\"${{XDG_CONFIG_HOME:-$HOME/.config}}/weft/keys\"\nmkdir -p \"$keys\"\n\
             cp \"$dir/{CLIENT_KEY_FILE}\" \"$keys\"/{}\n",
            quoted(record.server())
        );
        return script;
    }
    script += &format!(
        "put {CLUSTER_KEY_FILE} <<'END OF FILE'\n{}\nEND OF FILE\numask 022\n",
        files.cluster_key.trim_end()
    );
    if host.is_new {
        script += &format!(": > \"$dir/{NEW_FILE}\"\n");
    }
    if !names.is_empty() {
        let only: String = names.iter().map(|name| format!(" --only {}", quoted(name))).collect();
        script += &format!("\"$weft\" up --dir \"$dir\"{only} --detach --json\n");
    }
    script
}

/// Mounts, unless it is mounted already.
pub fn mount_script(record: &Record, host: &Placed, mount: &Path) -> String {
    format!(
        r#"set -eu
mount={mount}
! grep -qF " $mount fuse.weft " /proc/self/mounts || exit 0
mkdir -p "$mount"
{program} mount {url} "$mount" --key {key}
"#,
        mount = quoted(&mount.display().to_string()),
        program = quoted(&host.program),
        url = quoted(&record.url),
        key = quoted(&record.dir_on(host).join(CLIENT_KEY_FILE).display().to_string()),
    )
}

/// Unmounts, if it is mounted.
pub fn umount_script(host: &Placed, mount: &Path, by_force: bool) -> String {
    let or_else = if by_force { " || \"$weft\" umount --force \"$mount\"" } else { "" };
    format!(
        "mount={mount}\nweft={weft}\n! grep -qF \" $mount fuse.weft \" /proc/self/mounts || \"$weft\" umount \"$mount\"{or_else}\n",
        mount = quoted(&mount.display().to_string()),
        weft = quoted(&host.program),
    )
}

/// Stops, and removes only a directory that is of this cluster.
pub fn stop_script(record: &Record, host: &Placed, only: &[String], removal: Removal) -> String {
    let only: String = only.iter().map(|name| format!(" --only {}", quoted(name))).collect();
    let mut script = format!(
        "set -u\ndir={dir}\nweft={weft}\nif [ -e \"$dir/{CLUSTER_FILE}\" ]; then \"$weft\" down --dir \"$dir\"{only} --json || exit 1; fi\n",
        dir = quoted(&record.dir_on(host).display().to_string()),
        weft = quoted(&host.program),
    );
    if removal == Removal::Everything {
        script += &format!(
            "if grep -q '^id = \"{id}\"' \"$dir/{CLUSTER_FILE}\" 2>/dev/null; then rm -rf \"$dir\"; fi\n\
             rm -f \"$dir/bin/weft\"\nrmdir \"$dir/bin\" \"$dir\" {above} 2>/dev/null\n\
             rmdir {mount} 2>/dev/null\n\
             rm -f \"${{XDG_CONFIG_HOME:-$HOME/.config}}/weft/keys\"/{key}\n",
            id = record.cluster_id,
            mount = record.mount.as_ref().map_or(String::new(), |mount| quoted(&mount.display().to_string())),
            above = quoted(&record.dir.display().to_string()),
            key = quoted(record.server()),
        );
    }
    script
}
