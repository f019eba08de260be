//! The cluster file: which servers there are, where, and with which defaults.
//!
//! The same file is used by every server and by `weft up`. One metadata server and two I/O servers on one
//! machine:
//!
//! ```toml
//! [cluster]
//! id = "000102030405060708090a0b0c0d0e0f"
//! strip_bytes = 262144          # of files for which nothing else is asked
//! server_count = 0              # I/O servers of such a file; 0: all
//! small_file_bytes = 16384      # up to this size a file's bytes lie with its inode; 0: never
//!
//! [[server]]
//! name = "meta0"
//! role = "meta"
//! addresses = ["127.0.0.1:7400"]
//! directory = "meta0"           # relative to the cluster file
//!
//! [[server]]
//! name = "io0"
//! role = "io"
//! addresses = ["127.0.0.1:7401"]
//! directory = "io0"
//! sync = "sync"
//! rdma = "auto"                  # where there are libraries and an adapter
//! ```
//!
//! An I/O server's place among the `[[server]]` entries of its role is its id in the ring. It is part of
//! where every file's bytes are, so servers are added at the end and never reordered.

mod check;
mod cluster;
mod error;
mod file;
mod gateway;
mod generate;
mod member;

pub(crate) use cluster::NAMES_DIRECTORY;
pub use cluster::{
    BUFFERS_BYTES_DEFAULT, ClusterConfig, ClusterId, ClusterSection, DiskChoice, RdmaMode,
    SMALL_FILE_BYTES_DEFAULT, STRIP_BYTES_DEFAULT, ServerConfig, ServerRole, SyncMode,
};
pub use error::ConfigError;
pub use file::EditedFile;
pub use gateway::{
    ExportAccess, ExportConfig, ExportSquash, GatewayConfig, NOBODY, NfsRdmaDesign, NfsRdmaMemory,
};
pub use generate::Generate;
pub use member::Member;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use weft_layout::Layout;

    fn wanted() -> Generate {
        Generate {
            path: PathBuf::from("/scratch/cluster.toml"),
            host: "127.0.0.1".into(),
            port: 7400,
            io_servers: 3,
            sync: SyncMode::Nosync,
            strip_bytes: STRIP_BYTES_DEFAULT,
        }
    }

    #[test]
    fn a_generated_cluster_survives_its_file() {
        let config = ClusterConfig::generate(&wanted()).unwrap();
        let again = ClusterConfig::parse(&config.to_toml(), &config.path).unwrap();
        assert_eq!(again, config);
        let io2 = again.server("io2").unwrap();
        assert_eq!(again.id_of(io2), 2);
        assert_eq!(io2.addresses, ["127.0.0.1:7403"]);
        assert_eq!(again.socket_of(io2), Path::new("/scratch/io2/weft.sock"));
        assert_eq!(again.default_layout(), Layout::new(STRIP_BYTES_DEFAULT, 0, 3, 3).unwrap());
    }

    #[test]
    fn an_edit_keeps_what_people_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let config = ClusterConfig::generate(&Generate { path: directory.path().join("c.toml"), ..wanted() });
        let config = config.unwrap();
        let text = config.to_toml().replacen("[[server]]", "# the names\n[[server]]", 1);
        let text = text.replacen("name = \"io1\"", "name = \"io1\" # in rack 7", 1);
        std::fs::write(&config.path, &text).unwrap();
        let io3 = ServerConfig {
            name: "io3".into(),
            addresses: vec!["node9:7401".into()],
            directory: "/srv/io3".into(),
            ..config.servers[3].clone()
        };
        let added = config.with_server(&io3).unwrap();
        assert_eq!(added.config.id_of(added.config.server("io3").unwrap()), 3);
        assert_eq!(added.config.server("io3").unwrap(), &io3);
        added.save().unwrap();
        let moved = added.config.with_addresses("io1", &["node8:7".into()], &["ib8:7".into()]).unwrap();
        assert_eq!(moved.config.server("io1").unwrap().addresses, ["node8:7"]);
        assert_eq!(moved.config.server("io1").unwrap().rdma_addresses, ["ib8:7"]);
        moved.save().unwrap();
        let now = std::fs::read_to_string(&config.path).unwrap();
        assert!(now.contains("# the names\n[[server]]") && now.contains("# in rack 7"), "{now}");
        assert_eq!(ClusterConfig::load(&config.path).unwrap(), moved.config);
        let others = |config: &ClusterConfig| [0, 1, 3].map(|at| config.servers[at].clone());
        assert_eq!(others(&moved.config), others(&config));
        assert!(config.with_server(&config.servers[1]).is_err(), "the name is used twice");
        assert!(config.with_addresses("io9", &["node8:7".into()], &[]).is_err());
    }

    #[test]
    fn errors_name_file_key_and_cure() {
        let good = ClusterConfig::generate(&wanted()).unwrap().to_toml();
        for (from, to, said) in [
            ("strip_bytes = 262144", "strip_bytes = 1000", "cluster.strip_bytes: strip size of 1000 bytes"),
            ("server_count = 0", "server_count = 4", "cluster.server_count: 4 of 3 I/O servers; 0 means all"),
            ("server_count = 0", "log = \"loud\"", "cluster.log: \"loud\" is not off"),
            ("name = \"io1\"", "name = \"io0\"", "server \"io0\": the name is used twice; rename one"),
            ("127.0.0.1:7402", "127.0.0.1:7401", "127.0.0.1:7401 is used twice"),
            ("127.0.0.1:7402", "127.0.0.1", "server \"io1\": addresses: \"127.0.0.1\" is not host:port"),
            ("role = \"meta\"", "role = \"io\"", "there is none with role = \"meta\"; add one"),
            ("server_count = 0", "server_cuont = 0", "server_cuont"),
            ("disk = \"auto\"", "disk = \"tape\"", "tape"),
            ("rdma = \"auto\"", "rdma = \"maybe\"", "maybe"),
            ("rdma = \"auto\"", "rdma_addresses = [\"ib0\"]", "rdma_addresses: \"ib0\" is not host:port"),
            ("rdma = \"auto\"", "metrics = \"9400\"", "metrics: \"9400\" is not host:port"),
            (
                "rdma = \"auto\"",
                "rdma = \"off\"\nrdma_addresses = [\"ib0:1\"]",
                "rdma is \"off\"; remove one",
            ),
            (
                "rdma = \"auto\"",
                "rdma_addresses = [\"127.0.0.1:7402\"]",
                "rdma_addresses: 127.0.0.1:7402 is used",
            ),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = ClusterConfig::parse(&text, Path::new("/c.toml")).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("/c.toml"), "{error}");
        }
    }

    /// A cluster file with a gateway and two exports.
    const WITH_NFS: &str = r#"
[[gateway]]
name = "nfs0"
addresses = ["0.0.0.0:2049"]
rdma_addresses = ["10.0.0.5:20049"]
directory = "nfs0"

[[export]]
path = "/"
clients = ["10.0.0.0/8", "fd00::/8", "login1", "10.1.2.3"]

[[export]]
path = "/public/data"
clients = ["*"]
access = "ro"
squash = "all"
anonymous_uid = 99
insecure_ports = true
"#;

    #[test]
    fn gateways_and_exports_have_defaults_and_survive_the_file() {
        let good = ClusterConfig::generate(&wanted()).unwrap().to_toml() + WITH_NFS;
        let config = ClusterConfig::parse(&good, Path::new("/c/weft.toml")).unwrap();
        assert_eq!(ClusterConfig::parse(&config.to_toml(), &config.path).unwrap(), config);
        let [all, public] = config.exports.as_slice() else { panic!("two exports") };
        assert_eq!((all.access, all.squash), (ExportAccess::ReadWrite, ExportSquash::Root));
        assert_eq!((all.anonymous_uid, all.insecure_ports), (NOBODY, false));
        assert_eq!((public.access, public.squash), (ExportAccess::ReadOnly, ExportSquash::All));
        assert_eq!((public.anonymous_uid, public.anonymous_gid), (99, NOBODY));
        let gateway = &config.gateways[0];
        assert_eq!(gateway.rdma_addresses, ["10.0.0.5:20049"]);
        let chosen = (gateway.rdma_design, gateway.rdma_memory);
        assert_eq!(chosen, (NfsRdmaDesign::ReadWrite, NfsRdmaMemory::Pool));
        let other =
            good.replacen("20049\"]", "20049\"]\nrdma_design = \"read-read\"\nrdma_memory = \"windows\"", 1);
        let other = ClusterConfig::parse(&other, &config.path).unwrap();
        assert_eq!(ClusterConfig::parse(&other.to_toml(), &other.path).unwrap(), other);
        let chosen = (other.gateways[0].rdma_design, other.gateways[0].rdma_memory);
        assert_eq!(chosen, (NfsRdmaDesign::ReadRead, NfsRdmaMemory::Windows));
        let names: Vec<_> = config.members().map(|member| (member.name(), member.role_name())).collect();
        assert_eq!(names[0], ("meta0", "meta"));
        assert_eq!(names[4], ("nfs0", "nfs"));
        let gateway = config.member("nfs0").unwrap();
        assert_eq!(config.lock_file_of(gateway), Path::new("/c/nfs0/lock"));
        assert!(config.server("nfs0").is_err(), "it keeps nothing");
        assert!(config.member("nfs1").unwrap_err().to_string().contains("io2, nfs0"));
    }

    #[test]
    fn wrong_gateways_and_exports_are_named_with_the_cure() {
        let good = ClusterConfig::generate(&wanted()).unwrap().to_toml() + WITH_NFS;
        for (from, to, said) in [
            ("name = \"nfs0\"", "name = \"io0\"", "gateway \"io0\": the name is used twice"),
            ("0.0.0.0:2049", "0.0.0.0", "gateway \"nfs0\": addresses: \"0.0.0.0\" is not host:port"),
            ("0.0.0.0:2049", "127.0.0.1:7402", "gateway \"nfs0\": addresses: 127.0.0.1:7402 is used twice"),
            ("[\"0.0.0.0:2049\"]", "[]", "gateway \"nfs0\": addresses: there is none"),
            ("10.0.0.5:20049", "ib0", "gateway \"nfs0\": rdma_addresses: \"ib0\" is not host:port"),
            (
                "[\"10.0.0.5:20049\"]",
                "[\"10.0.0.5:20049\"]\nrdma_memory = \"windows\"",
                "gateway \"nfs0\": rdma_memory: windows give keys",
            ),
            (
                "rdma_addresses = [\"10.0.0.5:20049\"]",
                "rdma_design = \"read-read\"",
                "gateway \"nfs0\": rdma_design: there are no rdma_addresses",
            ),
            ("[\"10.0.0.5:20049\"]", "[\"10.0.0.5:20049\"]\nrdma_design = \"write-write\"", "write-write"),
            ("path = \"/\"", "path = \"public\"", "export \"public\": path: not a path from the root"),
            ("path = \"/\"", "path = \"/a/../b\"", "export \"/a/../b\": path: not a path"),
            ("path = \"/\"", "path = \"/a/\"", "export \"/a/\": path: not a path"),
            ("path = \"/\"", "path = \"/public/data\"", "path: it is exported twice"),
            ("10.0.0.0/8", "10.0.0.0/33", "clients: \"10.0.0.0/33\" is no address"),
            ("login1", "login 1", "clients: \"login 1\" is no address"),
            ("[\"*\"]", "[]", "clients: there is none"),
            ("access = \"ro\"", "access = \"wo\"", "wo"),
            ("squash = \"all\"", "squash = \"some\"", "some"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = ClusterConfig::parse(&text, Path::new("/c.toml")).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_gateway_is_added_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        let config = ClusterConfig::generate(&Generate { path, ..wanted() }).unwrap();
        config.save().unwrap();
        let text = config.to_toml() + WITH_NFS;
        let both = ClusterConfig::parse(&text, &config.path).unwrap();
        let added = config.with_gateway(&both.gateways[0], &both.exports).unwrap();
        assert_eq!(added.config, both);
        assert!(config.with_gateway(&both.gateways[0], &[]).unwrap().config.exports.is_empty());
    }

    #[test]
    fn clients_are_told_where_rdma_is_to_be_tried() {
        let mut server = ClusterConfig::generate(&wanted()).unwrap().servers.remove(1);
        assert_eq!(server.addresses_for_rdma(), ["127.0.0.1:7401"]);
        server.rdma_addresses = vec!["ib0:7401".into(), "ib1:7401".into()];
        assert_eq!(server.addresses_for_rdma(), ["ib0:7401", "ib1:7401"]);
        server.rdma = RdmaMode::Off;
        assert!(server.addresses_for_rdma().is_empty());
    }

    #[test]
    fn an_unknown_server_is_told_which_there_are() {
        let error = ClusterConfig::generate(&wanted()).unwrap().server("io9").unwrap_err().to_string();
        assert!(error.contains("io9") && error.contains("meta0, io0, io1, io2"), "{error}");
    }

    #[test]
    fn damaged_cluster_files_are_refused_or_written_back_the_same() {
        let plain = ClusterConfig::generate(&wanted()).unwrap().to_toml();
        let seeds = [plain.clone().into_bytes(), (plain + WITH_NFS).into_bytes()];
        weft_test_fuzz::run("cluster-file", &seeds, |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(config) = ClusterConfig::parse(text, &wanted().path) {
                assert_eq!(ClusterConfig::parse(&config.to_toml(), &config.path).unwrap(), config);
            }
        });
    }
}
