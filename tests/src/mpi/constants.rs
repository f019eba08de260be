//! What the header of an MPI says, and where a table of constants says otherwise.

use super::Mpi;

/// The value of a name in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constant {
    /// A number, also of a handle that is one.
    Number(i64),
    /// A handle that is the address of an object of the library.
    Symbol(String),
}

/// All constants that `tests/mpi/abi.c` prints with this MPI: names of the header, `sizeof TYPE`, and `offsetof FIELD` of the
/// status.
pub fn constants(mpi: Mpi) -> Vec<(String, Constant)> {
    let program = super::jobs::compiled(mpi, "abi");
    let output = std::process::Command::new(&program).output().expect("a compiled program can be run");
    parse(&crate::expect_success("abi", &output))
}

fn parse(said: &str) -> Vec<(String, Constant)> {
    let line = |line: &str| {
        let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("no value: {line}"));
        let constant = match value.strip_prefix('@') {
            Some(symbol) => Constant::Symbol(symbol.to_string()),
            None => Constant::Number(value.parse().unwrap_or_else(|_| panic!("no number: {line}"))),
        };
        (name.to_string(), constant)
    };
    said.lines().map(line).collect()
}

/// Where a table differs from what `header` says; names that the header's list lacks are told, too.
pub fn differences(header: &[(String, Constant)], table: &[(&str, i64)]) -> Vec<String> {
    let differs = |(name, value): &(&str, i64)| match header.iter().find(|(known, _)| known == name) {
        None => Some(format!("{name}: not in tests/mpi/abi.c")),
        Some((_, Constant::Number(number))) if number == value => None,
        Some((_, constant)) => Some(format!("{name}: {constant:?} in mpi.h, {value} in the table")),
    };
    table.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_compared_name_by_name() {
        let header = parse("MPI_A=5\nMPI_B=-7\nMPI_C=@ompi_mpi_c\n");
        assert_eq!(header[2], ("MPI_C".to_string(), Constant::Symbol("ompi_mpi_c".to_string())));
        assert_eq!(differences(&header, &[("MPI_A", 5), ("MPI_B", -7)]), Vec::<String>::new());
        let wrong = differences(&header, &[("MPI_A", 6), ("MPI_C", 1), ("MPI_D", 1)]);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
    }
}
