//! The texts of `weft help SUBJECT`.

mod groups;

pub use groups::grouped;

/// One manual page.
pub struct Subject {
    /// The argument of `weft help` that selects it.
    pub name: &'static str,
    /// The title, in one line.
    pub title: &'static str,
    /// The page, at most 90 columns wide.
    pub text: &'static str,
}

macro_rules! subjects {
    ($($name:literal: $title:literal,)*) => {
        &[$(Subject { name: $name, title: $title, text: include_str!(concat!($name, ".txt")) }),*]
    };
}

/// All subjects, in reading order. Each text is in the file of its name.
pub const SUBJECTS: &[Subject] = subjects! {
    "start": "the first ten minutes",
    "urls": "how to name files and file systems",
    "striping": "where a file's bytes are stored",
    "transports": "how data travels",
    "rdma": "InfiniBand, RoCE, iWARP",
    "pieces": "reading and writing many small pieces",
    "mpi": "MPI-IO with the MPI that you have",
    "python": "NumPy, fsspec, Zarr",
    "nfs": "clients of NFS: gateways, exports, mounting",
    "keys": "who may connect, and as whom",
    "semantics": "what Weft guarantees",
    "cluster": "a cluster on several machines",
    "hosts": "a cluster on several hosts by one command, and for a job",
    "cluster-file": "the keys of weft.toml",
    "recovery": "refused servers, lost and damaged data",
    "logs": "log levels, slow requests, trace ids",
    "backup": "backing up names and attributes",
    "quota": "limits of users, groups and directory trees",
    "scripts": "exit codes, JSON, environment",
};

/// Finds a subject by its name.
pub fn find(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_fits_a_terminal() {
        for subject in SUBJECTS {
            for line in subject.text.lines() {
                assert!(line.chars().count() <= 90, "{}: {line}", subject.name);
                assert_eq!(line.trim_end(), line, "{}: {line}", subject.name);
            }
        }
    }

    #[test]
    fn the_list_of_subjects_in_the_program_s_help_is_complete() {
        use clap::CommandFactory;
        let help = crate::args::Cli::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for subject in SUBJECTS {
            assert!(help.contains(subject.name), "{}", subject.name);
        }
    }
}
