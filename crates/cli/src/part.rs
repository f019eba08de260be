//! Parts of files: a range, or a subarray as `DIMS:STARTS:COUNTS:ELEMENT[:ORDER]`.
//!
//! ```text
//!   4,6:1,2:2,3:f64          . . . . . .      an array of 4 by 6 numbers of 8 bytes;
//!                            . . # # # .      of it a block of 2 by 3, from row 1 and column 2
//!                            . . # # # .
//!                            . . . . . .
//! ```
//!
//! A part is moved in chunks of 8 MiB, so memory use does not depend on its size.

use crate::numbers::Number;
use anyhow::{Result, bail};
use std::io::{IoSlice, IoSliceMut};
use weft_cli_common::size::parse_bytes;
use weft_client::File;
use weft_layout::{Order, Regions};
use weft_wire::limits::REGION_LEVELS_MAX;

/// Bytes moved at a time.
const CHUNK_BYTES: u64 = 8 << 20;
const SHAPE: &str = "DIMS:STARTS:COUNTS:ELEMENT[:C|F], for example 1000,1000:0,500:10,10:f64";

/// A rectangular block of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subarray {
    dims: Vec<u64>,
    starts: Vec<u64>,
    counts: Vec<u64>,
    element_bytes: u64,
    /// The kind of number, if the element was given as one.
    number: Option<Number>,
    order: Order,
}

impl Subarray {
    /// Parses the option's value.
    pub fn parse(text: &str) -> Result<Subarray, String> {
        let fields: Vec<&str> = text.split(':').collect();
        let (dims, starts, counts, element, order) = match fields[..] {
            [dims, starts, counts, element] => (dims, starts, counts, element, "C"),
            [dims, starts, counts, element, order] => (dims, starts, counts, element, order),
            _ => return Err(format!("has {} fields; write {SHAPE}", fields.len())),
        };
        let order = match order {
            "C" => Order::C,
            "F" => Order::Fortran,
            _ => {
                return Err(format!(
                    "`{order}` is not an order; write C (the last index varies fastest) or F (the first)"
                ));
            }
        };
        let number = Number::parse(element);
        let element_bytes = number.map_or_else(|| parse_bytes(element), |number| Ok(number.bytes() as u64));
        let element_bytes = element_bytes
            .map_err(|_| format!("`{element}` is neither a size nor a kind of number such as u16 or f64"))?;
        let (dims, starts, counts) =
            (integers("dims", dims)?, integers("starts", starts)?, integers("counts", counts)?);
        let subarray = Subarray { dims, starts, counts, element_bytes, number, order };
        subarray.check()?;
        Ok(subarray)
    }

    /// Parses a whole array, `DIMS:ELEMENT[:ORDER]`.
    pub fn parse_whole(text: &str) -> Result<Subarray, String> {
        let Some((dims, rest)) = text.split_once(':') else {
            return Err("has one field; write DIMS:ELEMENT[:C|F], for example 1000,1000:f64".into());
        };
        let starts = vec!["0"; dims.split(',').count()].join(",");
        Subarray::parse(&format!("{dims}:{starts}:{dims}:{rest}"))
    }

    /// Of a whole array that is divided into `grid` blocks along its dimensions, block `number`, the last
    /// dimension varying fastest. Blocks that cannot be equal differ by one.
    pub fn block(&self, grid: &[u32], number: u64) -> Result<Subarray, String> {
        if grid.len() != self.dims.len() {
            return Err(format!("a grid of {} numbers for {} dimensions", grid.len(), self.dims.len()));
        }
        let (mut block, mut rest) = (self.clone(), number);
        for (axis, parts) in grid.iter().map(|parts| u64::from(*parts)).enumerate().rev() {
            let dim = self.dims[axis];
            if parts == 0 || parts > dim {
                return Err(format!(
                    "dimension {axis}: its size {dim} cannot be divided into {parts} blocks"
                ));
            }
            let border = |index: u64| (u128::from(dim) * u128::from(index) / u128::from(parts)) as u64;
            let index = rest % parts;
            rest /= parts;
            block.starts[axis] = border(index);
            block.counts[axis] = border(index + 1) - border(index);
        }
        Ok(block)
    }

    fn check(&self) -> Result<(), String> {
        let axes = self.dims.len();
        if self.starts.len() != axes || self.counts.len() != axes {
            let (starts, counts) = (self.starts.len(), self.counts.len());
            return Err(format!(
                "{axes} dims with {starts} starts and {counts} counts; give one each per dimension"
            ));
        }
        if axes > REGION_LEVELS_MAX {
            return Err(format!("{axes} dimensions; at most {REGION_LEVELS_MAX}"));
        }
        for (axis, ((dim, start), count)) in self.dims.iter().zip(&self.starts).zip(&self.counts).enumerate()
        {
            if *count == 0 {
                return Err(format!("dimension {axis}: a count of 0"));
            }
            if start.checked_add(*count).is_none_or(|end| end > *dim) {
                return Err(format!(
                    "dimension {axis}: {count} elements from {start} on exceed its size {dim}"
                ));
            }
        }
        if self.element_bytes == 0 {
            return Err("an element has 0 bytes".into());
        }
        self.regions(0).validate(1, REGION_LEVELS_MAX).map_err(|_| "the array has 2^63 bytes or more".into())
    }

    /// The kind of number of its elements, if given.
    pub fn number(&self) -> Option<Number> {
        self.number
    }

    fn regions(&self, offset: u64) -> Regions {
        let (dims, starts, counts) = (self.dims.clone(), self.starts.clone(), self.counts.clone());
        Regions::subarray(offset, dims, starts, counts, self.element_bytes, self.order)
    }

    /// The axes, the fastest varying one first.
    fn axes(&self) -> Vec<usize> {
        let axes = 0..self.dims.len();
        if self.order == Order::C { axes.rev().collect() } else { axes.collect() }
    }

    /// The index in the array of element number `element` of the block.
    fn index(&self, mut element: u64) -> Vec<u64> {
        let mut index = self.starts.clone();
        for axis in self.axes() {
            index[axis] += element % self.counts[axis];
            element /= self.counts[axis];
        }
        index
    }

    /// The number of the element at `index` in the whole array.
    fn place(&self, index: &[u64]) -> u64 {
        self.axes().iter().rev().fold(0, |place, axis| place * self.dims[*axis] + index[*axis])
    }
}

fn integers(what: &str, text: &str) -> Result<Vec<u64>, String> {
    let integer =
        |number: &str| number.parse().map_err(|_| format!("{what}: `{number}` is not a whole number"));
    text.split(',').map(integer).collect()
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Adjacent bytes.
    Range {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A block of an array.
    Array {
        /// Where the array begins.
        offset: u64,
        /// The block.
        subarray: Subarray,
    },
}

impl Part {
    /// A block of an array that begins at `offset`.
    pub fn array(offset: u64, subarray: &Subarray) -> Result<Part> {
        if subarray.regions(offset).validate(1, REGION_LEVELS_MAX).is_err() {
            bail!("the array begins at {offset} and ends beyond 2^63");
        }
        Ok(Part::Array { offset, subarray: subarray.clone() })
    }

    /// The part as regions for the library.
    pub fn regions(&self) -> Regions {
        match self {
            Part::Range { offset, bytes } => Regions::contiguous(*offset, *bytes),
            Part::Array { offset, subarray } => subarray.regions(*offset),
        }
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.regions().total_bytes()
    }

    /// Refuses a part that is not within a file of `file_bytes`.
    pub fn check_within(&self, name: &str, file_bytes: u64) -> Result<()> {
        let end = self.regions().span().map_or(0, |span| span.end());
        if end > file_bytes {
            bail!("{name} has {file_bytes} bytes, but the requested part ends at {end}");
        }
        Ok(())
    }

    /// Bytes after which a new line begins: the length of a row of the block.
    pub fn row_bytes(&self) -> u64 {
        match self {
            Part::Range { .. } => u64::MAX,
            Part::Array { subarray, .. } => {
                let fastest = subarray.axes().first().map_or(1, |axis| subarray.counts[*axis]);
                fastest * subarray.element_bytes
            }
        }
    }

    /// Size of an element, if the part has elements.
    pub fn element_bytes(&self) -> Option<u64> {
        match self {
            Part::Range { .. } => None,
            Part::Array { subarray, .. } => Some(subarray.element_bytes),
        }
    }

    /// The offset in the file of the byte at `position` of the part.
    pub fn file_offset(&self, position: u64) -> u64 {
        match self {
            Part::Range { offset, .. } => offset + position,
            Part::Array { offset, subarray } => {
                let element = subarray.place(&subarray.index(position / subarray.element_bytes));
                offset + element * subarray.element_bytes + position % subarray.element_bytes
            }
        }
    }

    /// The index of the element at `position`, as in `[3,17]`. In a range, elements have `unit_bytes`.
    pub fn label(&self, position: u64, unit_bytes: u64) -> String {
        let index = match self {
            Part::Range { .. } => vec![position / unit_bytes],
            Part::Array { subarray, .. } => subarray.index(position / subarray.element_bytes),
        };
        let numbers: Vec<String> = index.iter().map(u64::to_string).collect();
        format!("[{}]", numbers.join(","))
    }
}

/// Reads a part and passes its bytes to `take`, in order.
pub fn read(file: &File, part: &Part, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let regions = part.regions();
    let mut buffer = vec![0; part.bytes().min(CHUNK_BYTES) as usize];
    let mut cutter = regions.cutter();
    while !cutter.is_at_end() {
        let window = cutter.take(CHUNK_BYTES);
        let memory = &mut buffer[..window.total_bytes() as usize];
        let read = file.read_list(&mut [IoSliceMut::new(memory)], &window)?;
        if read < memory.len() as u64 {
            bail!("the file became shorter while it was read");
        }
        take(memory)?;
    }
    Ok(())
}

/// Writes a part. `fill` supplies its bytes, in order.
pub fn write(file: &File, part: &Part, mut fill: impl FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
    let regions = part.regions();
    let mut buffer = vec![0; part.bytes().min(CHUNK_BYTES) as usize];
    let mut cutter = regions.cutter();
    while !cutter.is_at_end() {
        let window = cutter.take(CHUNK_BYTES);
        let memory = &mut buffer[..window.total_bytes() as usize];
        fill(memory)?;
        file.write_list(&[IoSlice::new(memory)], &window)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(text: &str) -> Vec<u64> {
        let part = Part::array(100, &Subarray::parse(text).unwrap()).unwrap();
        (0..part.bytes()).map(|position| part.file_offset(position)).collect()
    }

    #[test]
    fn a_grid_divides_an_array() {
        let array = Subarray::parse_whole("5,8:4").unwrap();
        let whole = array.block(&[1, 1], 0).unwrap();
        assert_eq!(whole, array);
        let blocks: Vec<_> = (0..4).map(|number| array.block(&[2, 2], number).unwrap()).collect();
        assert_eq!(blocks[1], Subarray::parse("5,8:0,4:2,4:4").unwrap());
        assert_eq!(blocks[2], Subarray::parse("5,8:2,0:3,4:4").unwrap());
        let bytes: u64 = blocks.iter().map(|block| block.regions(0).total_bytes()).sum();
        assert_eq!(bytes, 5 * 8 * 4);
        assert!(array.block(&[2], 0).unwrap_err().contains("1 numbers for 2"));
        assert!(array.block(&[6, 1], 0).unwrap_err().contains("cannot be divided"));
        assert!(Subarray::parse_whole("5").unwrap_err().contains("DIMS:ELEMENT"));
    }

    #[test]
    fn a_block_is_where_its_regions_are() {
        for text in ["4,6:1,2:2,3:f64", "4,6:1,2:2,3:f64:F", "10:3:4:3", "3,4,5:0,1,2:3,2,3:u16be:F"] {
            let regions = Part::array(100, &Subarray::parse(text).unwrap()).unwrap().regions();
            let flat: Vec<u64> = regions.extents().flat_map(|extent| extent.offset..extent.end()).collect();
            assert_eq!(offsets(text), flat, "{text}");
        }
    }

    #[test]
    fn rows_and_indices_follow_the_order() {
        let part = |text: &str| Part::array(0, &Subarray::parse(text).unwrap()).unwrap();
        let c = part("4,6:1,2:2,3:f64");
        assert_eq!((c.bytes(), c.row_bytes()), (48, 24));
        assert_eq!(c.label(24, 8), "[2,2]");
        assert_eq!(c.label(8, 8), "[1,3]");
        let fortran = part("4,6:1,2:2,3:f64:F");
        assert_eq!((fortran.row_bytes(), fortran.label(16, 8)), (16, "[1,3]".to_string()));
        assert_eq!(Part::Range { offset: 7, bytes: 100 }.label(16, 8), "[2]");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, what) in [
            ("10:0:5", "3 fields"),
            ("10,10:0:5:4", "2 dims with 1 starts"),
            ("10:6:5:4", "dimension 0: 5 elements from 6 on exceed its size 10"),
            ("10:0:0:4", "a count of 0"),
            ("10:0:5:0", "an element has 0 bytes"),
            ("10:0:5:f63", "`f63` is neither"),
            ("10:0:x:4", "counts: `x`"),
            ("10:0:5:4:D", "`D` is not an order"),
            ("9999999999,9999999999:0,0:1,1:8", "2^63"),
        ] {
            let error = Subarray::parse(text).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn a_part_must_be_within_its_file() {
        let part = Part::array(10, &Subarray::parse("4,6:1,2:2,3:1").unwrap()).unwrap();
        assert!(part.check_within("f", 10 + 2 * 6 + 5).is_ok());
        let error = part.check_within("f", 10 + 2 * 6 + 4).unwrap_err().to_string();
        assert_eq!(error, "f has 26 bytes, but the requested part ends at 27");
    }
}
