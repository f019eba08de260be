//! Kinds of numbers in files: `u16`, `f64`, `i32be`.

use std::fmt;

/// Kinds of numbers, without their byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

/// Every kind: its name, its size in bytes, and the columns of its longest text.
const KINDS: [(&str, Kind, usize, usize); 10] = [
    ("u8", Kind::U8, 1, 3),
    ("u16", Kind::U16, 2, 5),
    ("u32", Kind::U32, 4, 10),
    ("u64", Kind::U64, 8, 20),
    ("i8", Kind::I8, 1, 4),
    ("i16", Kind::I16, 2, 6),
    ("i32", Kind::I32, 4, 11),
    ("i64", Kind::I64, 8, 20),
    ("f32", Kind::F32, 4, 14),
    ("f64", Kind::F64, 8, 24),
];

/// A kind of number in a byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    kind: Kind,
    big_endian: bool,
}

impl Number {
    /// Parses a name: little-endian unless it ends in `be`.
    pub fn parse(text: &str) -> Option<Number> {
        let (name, big_endian) = match text.strip_suffix("be") {
            Some(name) => (name, true),
            None => (text.strip_suffix("le").unwrap_or(text), false),
        };
        let kind = KINDS.iter().find(|kind| kind.0 == name)?.1;
        Some(Number { kind, big_endian })
    }

    fn row(self) -> &'static (&'static str, Kind, usize, usize) {
        KINDS.iter().find(|kind| kind.1 == self.kind).expect("every kind has a row")
    }

    /// Its size in bytes.
    pub fn bytes(self) -> usize {
        self.row().2
    }

    /// The columns of its longest text.
    pub fn columns(self) -> usize {
        self.row().3
    }

    /// The number at the start of `data`, as text.
    pub fn text(self, data: &[u8]) -> String {
        let mut bytes = [0; 8];
        bytes[..self.bytes()].copy_from_slice(&data[..self.bytes()]);
        if self.big_endian {
            bytes[..self.bytes()].reverse();
        }
        let bits = u64::from_le_bytes(bytes);
        match self.kind {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => bits.to_string(),
            Kind::I8 => (bits as i8).to_string(),
            Kind::I16 => (bits as i16).to_string(),
            Kind::I32 => (bits as i32).to_string(),
            Kind::I64 => (bits as i64).to_string(),
            Kind::F32 => format!("{:?}", f32::from_bits(bits as u32)),
            Kind::F64 => format!("{:?}", f64::from_bits(bits)),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.row().0, if self.big_endian { "be" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, data: &[u8]) -> String {
        Number::parse(name).unwrap().text(data)
    }

    #[test]
    fn numbers_are_read_in_both_byte_orders() {
        assert_eq!(text("u16", &[1, 2]), "513");
        assert_eq!(text("u16le", &[1, 2]), "513");
        assert_eq!(text("u16be", &[1, 2]), "258");
        assert_eq!(text("i8", &[255]), "-1");
        assert_eq!(text("i32be", &(-70_000i32).to_be_bytes()), "-70000");
        assert_eq!(text("u64", &u64::MAX.to_le_bytes()), u64::MAX.to_string());
        assert_eq!(text("f32", &0.1f32.to_le_bytes()), "0.1");
        assert_eq!(text("f64be", &(-2.0f64).to_be_bytes()), "-2.0");
    }

    #[test]
    fn other_names_are_none() {
        for name in ["", "u7", "be", "f16", "u16bebe", "U8"] {
            assert_eq!(Number::parse(name), None, "{name}");
        }
    }

    #[test]
    fn no_text_is_wider_than_its_columns() {
        let longest = [
            ("u64", u64::MAX.to_le_bytes().to_vec()),
            ("i64", i64::MIN.to_le_bytes().to_vec()),
            ("i32", i32::MIN.to_le_bytes().to_vec()),
            ("f32", (-1.175_494_4e-38f32).to_le_bytes().to_vec()),
            ("f64", (-2.225_073_858_507_201_4e-308f64).to_le_bytes().to_vec()),
        ];
        for (name, data) in longest {
            let number = Number::parse(name).unwrap();
            assert!(number.text(&data).len() <= number.columns(), "{}", number.text(&data));
            assert_eq!(number.to_string(), name);
        }
    }
}
