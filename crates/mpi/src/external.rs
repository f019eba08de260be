//! The data representation external32 (MPI 4.0, 14.5.2): data passes through a buffer, and the program's MPI
//! converts it.

use std::ffi::c_int;

use weft_client::Direction;
use weft_layout::Regions;

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::types::external_datatype_of;

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
    /// The program's memory.
    buffer: usize,
    datatype: Handle,
    /// Bytes of an element in the file and in memory.
    external_bytes: u64,
    memory_bytes: u64,
}

impl Staged {
    /// A buffer for an access, with the program's data converted in it if that is to be written.
    pub fn new(
        mpi: &'static Mpi,
        direction: Direction,
        elements: Elements,
        memory_bytes: u64,
    ) -> Result<Staged> {
        let Elements { buffer, count, datatype } = elements;
        let external_bytes = external_datatype_of(mpi, datatype)?.size_bytes();
        let bytes = external_bytes.checked_mul(count).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| MpiError::new(Class::Count, "more than 2^63 bytes in one access"))?;
        let mut data = Vec::new();
        data.try_reserve_exact(bytes).map_err(|_| {
            MpiError::new(Class::NoMem, format!("{bytes} bytes for a conversion to external32"))
        })?;
        data.resize(bytes, 0);
        let memory_bytes = memory_bytes.checked_div(count).unwrap_or(0);
        let mut staged = Staged { mpi, data, buffer, datatype, external_bytes, memory_bytes };
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
        if self.external_bytes == 0 {
            return Ok(0);
        }
        let whole = bytes / self.external_bytes;
        if direction == Direction::Read {
            self.unpack(whole)?;
        }
        Ok(whole * self.memory_bytes)
    }

    /// Elements are converted in parts whose number fits into an `int`.
    fn parts(count: u64) -> impl Iterator<Item = c_int> {
        const PART: u64 = c_int::MAX as u64;
        (0..count.div_ceil(PART)).map(move |part| (count - part * PART).min(PART) as c_int)
    }

    fn extent_bytes(&self) -> Result<i64> {
        Ok(self.mpi.type_sizes(self.datatype)?.extent_bytes)
    }

    fn pack(&mut self, count: u64) -> Result<()> {
        let (extent, bytes, mut at, mut done) = (self.extent_bytes()?, self.data.len() as isize, 0, 0i64);
        for part in Staged::parts(count) {
            let from = (self.buffer as i64 + done * extent) as *const _;
            // SAFETY: the program's memory, as its datatype says; the buffer has room for all of it.
            let code = unsafe {
                (self.mpi.f.pack_external)(
                    c"external32".as_ptr(),
                    from,
                    part,
                    self.datatype,
                    self.data.as_mut_ptr().cast(),
                    bytes,
                    &mut at,
                )
            };
            self.check("MPI_Pack_external", code)?;
            done += i64::from(part);
        }
        Ok(())
    }

    fn unpack(&mut self, count: u64) -> Result<()> {
        let (extent, bytes, mut at, mut done) = (self.extent_bytes()?, self.data.len() as isize, 0, 0i64);
        for part in Staged::parts(count) {
            let to = (self.buffer as i64 + done * extent) as *mut _;
            // SAFETY: as above.
            let code = unsafe {
                (self.mpi.f.unpack_external)(
                    c"external32".as_ptr(),
                    self.data.as_ptr().cast(),
                    bytes,
                    &mut at,
                    to,
                    part,
                    self.datatype,
                )
            };
            self.check("MPI_Unpack_external", code)?;
            done += i64::from(part);
        }
        Ok(())
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            _ => Err(MpiError::new(Class::Conversion, format!("{what} failed with error code {code}"))),
        }
    }
}
