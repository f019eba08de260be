//! The texts of `weft help SUBJECT`.

/// One manual page.
pub struct Subject {
    /// The argument of `weft help` that selects it.
    pub name: &'static str,
    /// The title, in one line.
    pub title: &'static str,
    /// The page, at most 90 columns wide.
    pub text: &'static str,
}

/// All subjects, in reading order.
pub const SUBJECTS: &[Subject] = &[
    Subject { name: "start", title: "the first ten minutes", text: include_str!("start.txt") },
    Subject { name: "urls", title: "how to name files and file systems", text: include_str!("urls.txt") },
    Subject {
        name: "striping",
        title: "where a file's bytes are stored",
        text: include_str!("striping.txt"),
    },
    Subject { name: "transports", title: "how data travels", text: include_str!("transports.txt") },
    Subject { name: "rdma", title: "InfiniBand, RoCE, iWARP", text: include_str!("rdma.txt") },
    Subject {
        name: "pieces",
        title: "reading and writing many small pieces",
        text: include_str!("pieces.txt"),
    },
    Subject { name: "keys", title: "who may connect, and as whom", text: include_str!("keys.txt") },
    Subject { name: "semantics", title: "what Weft guarantees", text: include_str!("semantics.txt") },
    Subject { name: "cluster", title: "a cluster on several machines", text: include_str!("cluster.txt") },
    Subject { name: "cluster-file", title: "the keys of weft.toml", text: include_str!("cluster-file.txt") },
    Subject {
        name: "recovery",
        title: "refused servers, lost and damaged data",
        text: include_str!("recovery.txt"),
    },
    Subject { name: "logs", title: "log levels, slow requests, trace ids", text: include_str!("logs.txt") },
    Subject { name: "backup", title: "backing up names and attributes", text: include_str!("backup.txt") },
    Subject { name: "scripts", title: "exit codes, JSON, environment", text: include_str!("scripts.txt") },
];

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
