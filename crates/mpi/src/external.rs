//! The data representation external32 (MPI 4.0, 14.5.2): data passes through a buffer, and the program's MPI
//! converts it.
//!
//! MPI is given elementary types only: several releases of MPICH crash when they convert structures.

use std::ffi::c_int;
use std::ptr;

use weft_client::Direction;
use weft_layout::Regions;

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::types::{Leaf, datatype_of, external_datatype_of, leaves_of};

/// Data of a program.
#[derive(Debug, Clone, Copy)]
pub struct Elements {
    /// The address of the first element.
    pub buffer: usize,
    /// How many.
    pub count: u64,
    /// Of what.
    pub datatype: Handle,
}

/// Data as it is in the file.
pub struct Staged {
    mpi: &'static Mpi,
    data: Vec<u8>,
    /// The program's memory, and its elements one by one.
    native: Regions,
    leaves: Vec<Leaf>,
    /// Bytes of an element of the program's in the file and in memory.
    external_bytes: u64,
    native_bytes: u64,
}

impl Staged {
    /// A buffer for an access, with the program's data converted in it if that is to be written.
    pub fn new(mpi: &'static Mpi, direction: Direction, elements: Elements) -> Result<Staged> {
        let Elements { buffer, count, datatype } = elements;
        let leaves = leaves_of(mpi, datatype)?;
        let external_bytes = external_datatype_of(mpi, datatype)?.size_bytes();
        let native = datatype_of(mpi, datatype)?;
        let native_bytes = native.size_bytes();
        let native = native.regions(buffer as u64, count)?;
        let bytes = external_bytes.checked_mul(count).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| MpiError::new(Class::Count, "more than 2^63 bytes in one access"))?;
        let mut staged = Staged { mpi, data: zeros(bytes)?, native, leaves, external_bytes, native_bytes };
        if direction == Direction::Write {
            staged.pack(count)?;
        }
        Ok(staged)
    }

    /// Where the data is.
    pub fn memory(&self) -> Regions {
        Regions::contiguous(self.data.as_ptr() as u64, self.data.len() as u64)
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Takes what was moved: converts what was read into the program's memory. Bytes of the program's data.
    pub fn finish(&mut self, direction: Direction, bytes: u64) -> Result<u64> {
        // Of an element that the end of the file cuts nothing is converted.
        let whole = bytes.checked_div(self.external_bytes).unwrap_or(0);
        if direction == Direction::Read {
            self.unpack(whole)?;
        }
        Ok(whole * self.native_bytes)
    }

    /// The elementary types of `count` elements, in parts whose number fits into an `int`.
    fn parts(&self, count: u64) -> Vec<(Handle, c_int)> {
        const PART: u64 = c_int::MAX as u64;
        let whole = match self.leaves[..] {
            [leaf] => vec![Leaf { count: leaf.count.saturating_mul(count), ..leaf }],
            _ => (0..count).flat_map(|_| self.leaves.iter().copied()).collect(),
        };
        let parts = |leaf: Leaf| {
            (0..leaf.count.div_ceil(PART))
                .map(move |part| (leaf.datatype, (leaf.count - part * PART).min(PART) as c_int))
        };
        whole.into_iter().flat_map(parts).collect()
    }

    fn pack(&mut self, count: u64) -> Result<()> {
        let native = gathered(&self.native)?;
        let (bytes, mut at, mut from) = (self.data.len() as isize, 0, 0usize);
        for (datatype, part) in self.parts(count) {
            // SAFETY: the elements are in the gathered memory; the buffer has room for all of them.
            let code = unsafe {
                (self.mpi.f.pack_external)(
                    c"external32".as_ptr(),
                    native.as_ptr().add(from).cast(),
                    part,
                    datatype,
                    self.data.as_mut_ptr().cast(),
                    bytes,
                    &mut at,
                )
            };
            check("MPI_Pack_external", code)?;
            from += self.native_of(datatype, part)?;
        }
        Ok(())
    }

    fn unpack(&mut self, count: u64) -> Result<()> {
        let mut native = zeros((count * self.native_bytes) as usize)?;
        let (bytes, mut at, mut to) = (self.data.len() as isize, 0, 0usize);
        for (datatype, part) in self.parts(count) {
            // SAFETY: as above.
            let code = unsafe {
                (self.mpi.f.unpack_external)(
                    c"external32".as_ptr(),
                    self.data.as_ptr().cast(),
                    bytes,
                    &mut at,
                    native.as_mut_ptr().add(to).cast(),
                    part,
                    datatype,
                )
            };
            check("MPI_Unpack_external", code)?;
            to += self.native_of(datatype, part)?;
        }
        scatter(&native, &self.native);
        Ok(())
    }

    fn native_of(&self, datatype: Handle, count: c_int) -> Result<usize> {
        Ok(self.mpi.type_sizes(datatype)?.size_bytes as usize * count as usize)
    }
}

fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    data.try_reserve_exact(bytes)
        .map_err(|_| MpiError::new(Class::NoMem, format!("{bytes} bytes for a conversion to external32")))?;
    data.resize(bytes, 0);
    Ok(data)
}

/// The bytes of the program's memory, one after the other.
fn gathered(memory: &Regions) -> Result<Vec<u8>> {
    let mut data = zeros(memory.total_bytes() as usize)?;
    let mut to = 0;
    for extent in memory.extents() {
        let bytes = extent.bytes as usize;
        // SAFETY: the program's memory, as its datatype says, which it does not change meanwhile.
        unsafe { ptr::copy_nonoverlapping(extent.offset as *const u8, data[to..].as_mut_ptr(), bytes) };
        to += bytes;
    }
    Ok(data)
}

/// Puts bytes into the program's memory, as far as there are any.
fn scatter(mut data: &[u8], memory: &Regions) {
    for extent in memory.extents() {
        let (here, rest) = data.split_at(data.len().min(extent.bytes as usize));
        // SAFETY: as above; it is this call's alone.
        unsafe { ptr::copy_nonoverlapping(here.as_ptr(), extent.offset as *mut u8, here.len()) };
        data = rest;
    }
}

fn check(what: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(MpiError::new(Class::Conversion, format!("{what} failed with error code {code}"))),
    }
}
