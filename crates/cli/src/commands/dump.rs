//! `weft dump`

use crate::numbers::Number;
use crate::part::{self, Part, Subarray};
use crate::progress::progress_bar;
use anyhow::{Context, Result, bail};
use std::io::{IsTerminal, Write};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::WeftPath;
use weft_cli_common::told::Told;
use weft_cli_common::{output, size};
use weft_client::OpenOptions;

/// Approximate columns of a line of numbers.
const LINE_COLUMNS: usize = 96;
const HEX_LINE_BYTES: u64 = 16;

/// Prints a part of a file: a range, or a rectangular block of an array that the file holds.
///
/// Only that part is read. Without --format a terminal gets numbers if the element is a kind of number, else
/// a hex dump. A pipe or file gets the bytes themselves.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft dump --bytes 64 weft:/a                                    the first 64 bytes, in hex
  weft dump --subarray 1000,500:10,0:2,8:f64 weft:/a              a[10:12, 0:8] of doubles
  weft dump --subarray 1000,500:10,0:2,8:f64 weft:/a > block.bin  the same, as it is stored
  weft dump --subarray 640,480:0,0:4,4:3 --format u8 weft:/rgb    elements of 3 bytes")]
pub struct Args {
    /// The file.
    #[arg(value_name = "URL")]
    place: String,
    /// A block of an array, as `DIMS:STARTS:COUNTS:ELEMENT[:ORDER]`.
    ///
    /// DIMS is the size of the array, STARTS the first index of the block, COUNTS the size of the block; each
    /// has one number per dimension, separated by commas. ELEMENT is the size of an element, or its kind: u8
    /// … u64, i8 … i64, f32, f64; append `be` for big-endian. ORDER is C (the last index varies fastest, the
    /// default) or F (the first index does).
    #[arg(long, value_name = "SPEC", value_parser = Subarray::parse, conflicts_with = "bytes")]
    subarray: Option<Subarray>,
    /// The offset of the range, or of the array, in the file.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, default_value = "0")]
    offset: u64,
    /// The length of the range [default: to the end of the file].
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    bytes: Option<u64>,
    /// hex, raw, or a kind of number: u8 … u64, i8 … i64, f32, f64; append `be` for big-endian.
    #[arg(long, value_parser = Format::parse)]
    format: Option<Format>,
    /// Show no progress bar.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Raw,
    Hex,
    Numbers(Number),
}

impl Format {
    fn parse(text: &str) -> Result<Format, String> {
        match text {
            "raw" => Ok(Format::Raw),
            "hex" => Ok(Format::Hex),
            _ => Number::parse(text).map(Format::Numbers).ok_or_else(|| {
                "is not a format; use hex, raw or a kind of number such as u16, f64 or i32be".into()
            }),
        }
    }
}

/// Prints a part of a file.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let place = WeftPath::from_argument(&args.place)?;
    let client = connections.client(&place.url)?;
    let file = client.open(at(&place.path), &OpenOptions::new().read(true)).told("open", &place)?;
    let file_bytes = file.stat()?.size;
    let part = match &args.subarray {
        Some(subarray) => Part::array(args.offset, subarray)?,
        None => range(args.offset, args.bytes, &place.display(), file_bytes)?,
    };
    part.check_within(&place.display(), file_bytes)?;
    let to_terminal = std::io::stdout().is_terminal();
    let format = args.format.unwrap_or_else(|| {
        let number = args.subarray.as_ref().and_then(Subarray::number);
        if to_terminal { number.map_or(Format::Hex, Format::Numbers) } else { Format::Raw }
    });
    let bar = progress_bar(args.quiet || to_terminal);
    bar.set_length(part.bytes());
    let mut lines = Lines::new(&part, format)?;
    let mut out = output::stdout();
    part::read(&file, &part, |data| {
        bar.inc(data.len() as u64);
        match format {
            Format::Raw => Ok(out.write_all(data)?),
            _ => lines.put(&mut out, data),
        }
    })
    .with_context(|| place.typed())?;
    bar.finish_and_clear();
    lines.end(&mut out)?;
    Ok(out.flush()?)
}

fn range(offset: u64, bytes: Option<u64>, name: &str, file_bytes: u64) -> Result<Part> {
    if offset > file_bytes {
        bail!("{name} has {file_bytes} bytes; there is nothing at {offset}");
    }
    let bytes = bytes.unwrap_or(file_bytes - offset);
    if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
        bail!("{name} has {file_bytes} bytes; a range of {bytes} at {offset} ends beyond 2^63");
    }
    Ok(Part::Range { offset, bytes })
}

/// Cuts a stream of bytes into lines of text.
struct Lines<'a> {
    part: &'a Part,
    format: Format,
    line_bytes: u64,
    row_bytes: u64,
    /// Columns of the widest label.
    label_columns: usize,
    /// Where the line that is being filled begins.
    position: u64,
    line: Vec<u8>,
}

impl Lines<'_> {
    fn new(part: &Part, format: Format) -> Result<Lines<'_>> {
        let total = part.bytes();
        let mut lines = Lines {
            part,
            format,
            line_bytes: HEX_LINE_BYTES,
            row_bytes: part.row_bytes(),
            label_columns: 0,
            position: 0,
            line: Vec::new(),
        };
        if let Format::Numbers(number) = format {
            let unit = number.bytes() as u64;
            let whole = part.element_bytes().unwrap_or(total);
            if !whole.is_multiple_of(unit) {
                bail!(
                    "{whole} bytes are not a multiple of the {unit} bytes of {number}; choose another --format"
                );
            }
            lines.label_columns = lines.label(total.saturating_sub(1)).len();
            let numbers = LINE_COLUMNS.saturating_sub(lines.label_columns) / (number.columns() + 1);
            let element_bytes = part.element_bytes().unwrap_or(unit);
            let fit = numbers.max(1) as u64 * unit;
            // A line holds whole elements. An element that is too long for a line gets several.
            lines.line_bytes = if element_bytes > fit { fit } else { fit / element_bytes * element_bytes };
            lines.row_bytes = if element_bytes > fit { element_bytes } else { lines.row_bytes };
        }
        Ok(lines)
    }

    fn put(&mut self, out: &mut impl Write, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let to_row_end = self.row_bytes - self.position % self.row_bytes;
            let room = self.line_bytes.min(to_row_end) as usize - self.line.len();
            let (now, later) = data.split_at(room.min(data.len()));
            self.line.extend_from_slice(now);
            data = later;
            if now.len() == room {
                self.end(out)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, out: &mut impl Write) -> Result<()> {
        if !self.line.is_empty() {
            match self.format {
                Format::Numbers(number) => self.write_numbers(out, number)?,
                _ => self.write_hex(out)?,
            }
            self.position += self.line.len() as u64;
            self.line.clear();
        }
        Ok(())
    }

    fn label(&self, position: u64) -> String {
        let unit_bytes = match self.format {
            Format::Numbers(number) => number.bytes() as u64,
            _ => 1,
        };
        self.part.label(position, unit_bytes)
    }

    fn write_numbers(&self, out: &mut impl Write, number: Number) -> Result<()> {
        write!(out, "{:<width$}", self.label(self.position), width = self.label_columns)?;
        for one in self.line.chunks_exact(number.bytes()) {
            write!(out, " {:>width$}", number.text(one), width = number.columns())?;
        }
        Ok(writeln!(out)?)
    }

    /// Writes a line in the format of `hexdump -C`.
    fn write_hex(&self, out: &mut impl Write) -> Result<()> {
        write!(out, "{:08x} ", self.part.file_offset(self.position))?;
        for at in 0..HEX_LINE_BYTES as usize {
            let gap = if at == HEX_LINE_BYTES as usize / 2 { " " } else { "" };
            match self.line.get(at) {
                Some(byte) => write!(out, "{gap} {byte:02x}")?,
                None => write!(out, "{gap}   ")?,
            }
        }
        let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { *byte as char } else { '.' };
        let text: String = self.line.iter().map(printable).collect();
        Ok(writeln!(out, "  |{text}|")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(part: &Part, format: &str, data: &[u8], window_bytes: usize) -> String {
        let mut lines = Lines::new(part, Format::parse(format).unwrap()).unwrap();
        let mut out = Vec::new();
        data.chunks(window_bytes).for_each(|window| lines.put(&mut out, window).unwrap());
        lines.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hex_looks_as_hexdump_does() {
        let part = Part::Range { offset: 0x1000, bytes: 20 };
        let data: Vec<u8> = (b'A'..).take(20).collect();
        let expected = "\
00001000  41 42 43 44 45 46 47 48  49 4a 4b 4c 4d 4e 4f 50  |ABCDEFGHIJKLMNOP|
00001010  51 52 53 54                                       |QRST|
";
        for window_bytes in [1, 7, 16, 100] {
            assert_eq!(dumped(&part, "hex", &data, window_bytes), expected);
        }
    }

    #[test]
    fn rows_of_numbers_begin_with_their_index() {
        let subarray = Subarray::parse("100,100:9,8:2,3:u16").unwrap();
        let part = Part::array(0, &subarray).unwrap();
        let data: Vec<u8> = [1u16, 20, 300, 4000, 50000, 6].iter().flat_map(|n| n.to_le_bytes()).collect();
        let expected = "\
[9,8]       1    20   300
[10,8]   4000 50000     6
";
        for window_bytes in [1, 5, 12] {
            assert_eq!(dumped(&part, "u16", &data, window_bytes), expected);
        }
    }

    #[test]
    fn a_long_row_goes_on_in_the_next_line() {
        let part = Part::Range { offset: 0, bytes: 40 };
        let text = dumped(&part, "u8", &[7; 40], 40);
        let labels: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(labels, ["[0]", "[23]"]);
        assert!(Lines::new(&part, Format::parse("f64").unwrap()).is_ok());
        assert!(Lines::new(&Part::Range { offset: 0, bytes: 41 }, Format::parse("f64").unwrap()).is_err());
    }
}
