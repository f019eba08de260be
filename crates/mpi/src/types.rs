//! An MPI datatype becomes a [`Datatype`], constructor by constructor, and is never flattened (MPI 4.0, 5.1).
//!
//! ```text
//!   MPI_Type_get_envelope, _contents         weft-layout
//!   vector(1000000, 2, 8, struct(...))  ──►  vector(1000000, 2, 8, structure(...))      a few words
//! ```
//!
//! The result is kept with the datatype, as an attribute, and freed with it. At each level MPI's own bounds
//! of the type are taken, so that padding, which depends on the MPI, is as the program sees it.
//!
//! In the data representation external32 elementary types have the standard's sizes, and bounds follow from
//! these (MPI 4.0, 14.5.2). Such types are not kept.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use weft_layout::{Datatype, Order};

use crate::abi::Handle;
use crate::error::{Class, MpiError, Result};
use crate::mpi::Mpi;
use crate::sync::lock;

/// How elementary types look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Representation {
    /// As in memory.
    Native,
    /// As the standard's `external32` says.
    External32,
}

/// How deep types may be nested.
const DEPTH_MAX: usize = 512;

/// The datatype of a handle, which must be committed (MPI 4.0, 5.1.9).
///
/// # Errors
/// [`Class::Type`] if it is none, is not committed, or has a constructor that is not known.
pub fn datatype_of(mpi: &'static Mpi, handle: Handle) -> Result<Arc<Datatype>> {
    let _turn = lock(&TURN);
    let keyval = keyval(mpi);
    if let Some(known) = keyval.and_then(|keyval| kept(mpi, handle, keyval)) {
        return Ok(known);
    }
    let (datatype, is_named) = read(mpi, handle, Representation::Native, 0)?;
    let datatype = Arc::new(datatype);
    if !is_named {
        mpi.check_committed(handle)?;
    }
    if let Some(keyval) = keyval.filter(|_| !is_named) {
        keep(mpi, handle, keyval, datatype.clone());
    }
    Ok(datatype)
}

/// The datatype of a handle in the representation external32.
pub fn external_datatype_of(mpi: &'static Mpi, handle: Handle) -> Result<Arc<Datatype>> {
    Ok(Arc::new(read(mpi, handle, Representation::External32, 0)?.0))
}

/// Held while an attribute is read or set: an attribute that is set frees the one before.
static TURN: Mutex<()> = Mutex::new(());

/// The key of the attribute; `None` if MPI gives none.
fn keyval(mpi: &Mpi) -> Option<c_int> {
    static KEYVAL: OnceLock<Option<c_int>> = OnceLock::new();
    unsafe extern "C" fn do_not_copy(
        _type: usize,
        _keyval: c_int,
        _extra: *mut c_void,
        _value: *mut c_void,
        _to: *mut c_void,
        is_copied: *mut c_int,
    ) -> c_int {
        // SAFETY: MPI's place for the answer.
        unsafe { *is_copied = 0 };
        0
    }
    unsafe extern "C" fn drop_it(
        _type: usize,
        _keyval: c_int,
        value: *mut c_void,
        _extra: *mut c_void,
    ) -> c_int {
        // SAFETY: the value is one that `keep` has made, and MPI gives it back once.
        drop(unsafe { Arc::from_raw(value.cast::<Datatype>()) });
        0
    }
    *KEYVAL.get_or_init(|| {
        let mut keyval = 0;
        // SAFETY: the functions are of the kinds that MPI asks for.
        let code = unsafe { (mpi.f.type_create_keyval)(do_not_copy, drop_it, &mut keyval, ptr::null_mut()) };
        (code == 0).then_some(keyval)
    })
}

fn kept(mpi: &Mpi, handle: Handle, keyval: c_int) -> Option<Arc<Datatype>> {
    if handle == mpi.handles.datatype_null {
        return None;
    }
    let (mut value, mut is_set) = (ptr::null_mut::<c_void>(), 0);
    // SAFETY: both are written.
    let code = unsafe { (mpi.f.type_get_attr)(handle, keyval, &mut value, &mut is_set) };
    if code != 0 || is_set == 0 {
        return None;
    }
    let value = value.cast_const().cast::<Datatype>();
    // SAFETY: `keep` has set it. It lives while this thread has the turn, as only a datatype that the program
    // frees while it uses it, which is its error, frees it in between.
    unsafe {
        Arc::increment_strong_count(value);
        Some(Arc::from_raw(value))
    }
}

fn keep(mpi: &Mpi, handle: Handle, keyval: c_int, datatype: Arc<Datatype>) {
    let value = Arc::into_raw(datatype);
    // SAFETY: the value is one that the attribute's own function frees.
    if unsafe { (mpi.f.type_set_attr)(handle, keyval, value.cast_mut().cast()) } != 0 {
        // SAFETY: made above, and not taken.
        drop(unsafe { Arc::from_raw(value) });
    }
}

/// What a type was built with.
struct Contents {
    combiner: c_int,
    ints: Vec<c_int>,
    addresses: Vec<isize>,
    counts: Vec<i64>,
    types: Vec<Handle>,
}

fn unreadable(what: &str) -> MpiError {
    MpiError::new(Class::Type, format!("{what}: this is no datatype, or one that was freed"))
}

impl Contents {
    fn read(mpi: &Mpi, handle: Handle) -> Result<Contents> {
        match (mpi.f.type_get_envelope_c, mpi.f.type_get_contents_c) {
            (Some(_), Some(_)) => Contents::read_large(mpi, handle),
            _ => Contents::read_small(mpi, handle),
        }
    }

    fn read_small(mpi: &Mpi, handle: Handle) -> Result<Contents> {
        let (mut ints, mut addresses, mut types, mut combiner) = (0, 0, 0, 0);
        // SAFETY: all are written.
        let code = unsafe {
            (mpi.f.type_get_envelope)(handle, &mut ints, &mut addresses, &mut types, &mut combiner)
        };
        (code == 0).then_some(()).ok_or_else(|| unreadable("MPI_Type_get_envelope"))?;
        let mut contents = Contents::new(combiner, ints as usize, addresses as usize, 0);
        if combiner == mpi.numbers().combiner_named {
            return Ok(contents);
        }
        let mut array = HandleArray::new(mpi, types as usize);
        // SAFETY: the arrays have as many places as the envelope says.
        let code = unsafe {
            (mpi.f.type_get_contents)(
                handle,
                ints,
                addresses,
                types,
                contents.ints.as_mut_ptr(),
                contents.addresses.as_mut_ptr(),
                array.as_mut_ptr(),
            )
        };
        (code == 0).then_some(()).ok_or_else(|| unreadable("MPI_Type_get_contents"))?;
        contents.types = array.handles();
        Ok(contents)
    }

    /// Types that were built with large counts can be read in this way only.
    fn read_large(mpi: &Mpi, handle: Handle) -> Result<Contents> {
        let (mut ints, mut addresses, mut counts, mut types, mut combiner) = (0, 0, 0, 0, 0);
        let missing = || unreadable("MPI_Type_get_envelope_c");
        let envelope = mpi.f.type_get_envelope_c.ok_or_else(missing)?;
        // SAFETY: all are written.
        let code =
            unsafe { envelope(handle, &mut ints, &mut addresses, &mut counts, &mut types, &mut combiner) };
        (code == 0).then_some(()).ok_or_else(missing)?;
        let mut contents = Contents::new(combiner, ints as usize, addresses as usize, counts as usize);
        if combiner == mpi.numbers().combiner_named {
            return Ok(contents);
        }
        let read = mpi.f.type_get_contents_c.ok_or_else(missing)?;
        let mut array = HandleArray::new(mpi, types as usize);
        // SAFETY: the arrays have as many places as the envelope says.
        let code = unsafe {
            read(
                handle,
                ints,
                addresses,
                counts,
                types,
                contents.ints.as_mut_ptr(),
                contents.addresses.as_mut_ptr(),
                contents.counts.as_mut_ptr(),
                array.as_mut_ptr(),
            )
        };
        (code == 0).then_some(()).ok_or_else(|| unreadable("MPI_Type_get_contents_c"))?;
        contents.types = array.handles();
        Ok(contents)
    }

    fn new(combiner: c_int, ints: usize, addresses: usize, counts: usize) -> Contents {
        let (ints, addresses, counts) = (vec![0; ints], vec![0; addresses], vec![0; counts]);
        Contents { combiner, ints, addresses, counts, types: Vec::new() }
    }
}

/// An array of handles in the width of the MPI's.
struct HandleArray {
    bytes: Vec<u64>,
    handle_bytes: usize,
    count: usize,
}

impl HandleArray {
    fn new(mpi: &Mpi, count: usize) -> HandleArray {
        HandleArray { bytes: vec![0; count], handle_bytes: mpi.abi.handle_bytes, count }
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    fn handles(&self) -> Vec<Handle> {
        let word = |index: usize| match self.handle_bytes {
            4 => (self.bytes[index / 2] >> (32 * (index % 2))) & 0xffff_ffff,
            _ => self.bytes[index],
        };
        (0..self.count).map(|index| Handle(word(index) as usize)).collect()
    }
}

/// The values that a constructor was called with, one after the other: numbers of elements are `int`s, or
/// large counts where the type was built with these.
struct Values<'a> {
    ints: &'a [c_int],
    addresses: &'a [isize],
    counts: &'a [i64],
    is_large: bool,
}

impl<'a> Values<'a> {
    fn of(contents: &'a Contents) -> Values<'a> {
        let is_large = !contents.counts.is_empty();
        Values { ints: &contents.ints, addresses: &contents.addresses, counts: &contents.counts, is_large }
    }

    fn int(&mut self) -> Result<c_int> {
        let (first, rest) = self.ints.split_first().ok_or_else(|| unreadable("the contents of a type"))?;
        self.ints = rest;
        Ok(*first)
    }

    /// An `int` or a large count.
    fn number(&mut self) -> Result<i64> {
        if !self.is_large {
            return self.int().map(i64::from);
        }
        let (first, rest) = self.counts.split_first().ok_or_else(|| unreadable("the contents of a type"))?;
        self.counts = rest;
        Ok(*first)
    }

    /// An address or a large count.
    fn displacement(&mut self) -> Result<i64> {
        if self.is_large {
            return self.number();
        }
        let (first, rest) =
            self.addresses.split_first().ok_or_else(|| unreadable("the contents of a type"))?;
        self.addresses = rest;
        Ok(*first as i64)
    }

    fn count(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| MpiError::new(Class::Type, "a type with a negative count"))
    }

    fn counts(&mut self, many: u64) -> Result<Vec<u64>> {
        (0..many).map(|_| self.count()).collect()
    }
}

/// The type, and whether it is a named one.
fn read(
    mpi: &'static Mpi,
    handle: Handle,
    representation: Representation,
    depth: usize,
) -> Result<(Datatype, bool)> {
    if handle == mpi.handles.datatype_null {
        return Err(MpiError::new(Class::Type, "MPI_DATATYPE_NULL where a datatype is needed"));
    }
    if depth > DEPTH_MAX {
        return Err(MpiError::new(Class::Type, format!("a datatype of more than {DEPTH_MAX} levels")));
    }
    if depth > 0
        && representation == Representation::Native
        && let Some(known) = keyval(mpi).and_then(|keyval| kept(mpi, handle, keyval))
    {
        return Ok((Datatype::clone(&known), false));
    }
    let numbers = mpi.numbers();
    let contents = Contents::read(mpi, handle)?;
    let combiner = contents.combiner;
    if combiner == numbers.combiner_named {
        return Ok((named(mpi, handle, representation)?, true));
    }
    let elementary = [numbers.combiner_f90_real, numbers.combiner_f90_complex, numbers.combiner_f90_integer];
    if elementary.contains(&combiner) {
        return Ok((named(mpi, handle, representation)?, false));
    }
    let built = build(mpi, &contents, representation, depth);
    let built = built.and_then(|built| match built {
        Some(built) if representation == Representation::Native => bounded(mpi, handle, built),
        Some(built) => Ok(built),
        None => plain(mpi, handle, combiner, representation),
    });
    Ok((built?, false))
}

/// The type with the bounds that MPI gives it.
fn bounded(mpi: &Mpi, handle: Handle, datatype: Datatype) -> Result<Datatype> {
    let sizes = mpi.type_sizes(handle)?;
    if (datatype.lower_bound_bytes(), datatype.extent_bytes())
        == (sizes.lower_bound_bytes, sizes.extent_bytes)
    {
        return Ok(datatype);
    }
    Ok(Datatype::resized(sizes.lower_bound_bytes, sizes.extent_bytes, &datatype)?)
}

/// A type of an unknown constructor, where its bytes are one run.
fn plain(mpi: &Mpi, handle: Handle, combiner: c_int, representation: Representation) -> Result<Datatype> {
    let sizes = mpi.type_sizes(handle)?;
    if representation == Representation::Native && i64::try_from(sizes.size_bytes) == Ok(sizes.extent_bytes) {
        return Ok(Datatype::bytes(sizes.size_bytes)?);
    }
    Err(MpiError::new(Class::Type, format!("a datatype of the unknown constructor {combiner}")))
}

/// An elementary type, or a pair as MPI_SHORT_INT, which may have a gap in it.
fn named(mpi: &Mpi, handle: Handle, representation: Representation) -> Result<Datatype> {
    if representation == Representation::External32 {
        return Ok(Datatype::bytes(external_bytes(mpi, handle)?)?);
    }
    let sizes = mpi.type_sizes(handle)?;
    if i64::try_from(sizes.size_bytes) == Ok(sizes.extent_bytes) {
        return Ok(Datatype::bytes(sizes.size_bytes)?);
    }
    const INT_BYTES: u64 = size_of::<c_int>() as u64;
    let first_bytes = sizes.size_bytes.saturating_sub(INT_BYTES);
    // The second one is aligned as an int is.
    let second = first_bytes.next_multiple_of(INT_BYTES) as i64;
    let (first_type, second_type) = (Datatype::bytes(first_bytes)?, Datatype::bytes(INT_BYTES)?);
    let pair = Datatype::structure(&[(0, 1, &first_type), (second, 1, &second_type)])?;
    Ok(Datatype::resized(sizes.lower_bound_bytes, sizes.extent_bytes, &pair)?)
}

/// Bytes of an elementary type in external32, found by packing one element, once for each type.
/// `MPI_Pack_external_size` of Open MPI 4.1 reports 8 bytes for `MPI_LONG`, of which it packs 4.
pub fn external_bytes(mpi: &Mpi, handle: Handle) -> Result<u64> {
    static KNOWN: Mutex<Option<HashMap<usize, u64>>> = Mutex::new(None);
    if let Some(known) = lock(&KNOWN).get_or_insert_default().get(&handle.0) {
        return Ok(*known);
    }
    const ELEMENT_BYTES_MAX: usize = 64;
    let (element, mut packed, mut bytes) = ([0u64; ELEMENT_BYTES_MAX / 8], [0u8; ELEMENT_BYTES_MAX], 0);
    let (from, to) = (element.as_ptr().cast(), packed.as_mut_ptr().cast());
    let room = ELEMENT_BYTES_MAX as isize;
    // SAFETY: elementary types have at most so many bytes, in memory and packed; the position is written.
    let code =
        unsafe { (mpi.f.pack_external)(c"external32".as_ptr(), from, 1, handle, to, room, &mut bytes) };
    mpi.check("MPI_Pack_external", code)?;
    lock(&KNOWN).get_or_insert_default().insert(handle.0, bytes as u64);
    Ok(bytes as u64)
}

/// Elements of one elementary type, one after the other in the stream of a type's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// The elementary type.
    pub datatype: Handle,
    /// How many.
    pub count: u64,
}

/// So many runs of elements describe a type at most.
const LEAVES_MAX: usize = 1 << 20;

/// The elementary types of an instance of a type, in the order of its bytes.
///
/// # Errors
/// [`Class::Type`] where there are too many runs, or a pair as MPI_SHORT_INT among them.
pub fn leaves_of(mpi: &'static Mpi, handle: Handle) -> Result<Vec<Leaf>> {
    leaves(mpi, handle, 0)
}

fn leaves(mpi: &'static Mpi, handle: Handle, depth: usize) -> Result<Vec<Leaf>> {
    let unusable = |text: &str| MpiError::new(Class::Type, format!("external32 of {text}"));
    let contents = Contents::read(mpi, handle)?;
    let numbers = mpi.numbers();
    let elementary = [
        numbers.combiner_named,
        numbers.combiner_f90_real,
        numbers.combiner_f90_complex,
        numbers.combiner_f90_integer,
    ];
    if elementary.contains(&contents.combiner) {
        let sizes = mpi.type_sizes(handle)?;
        if i64::try_from(sizes.size_bytes) != Ok(sizes.extent_bytes) {
            return Err(unusable("a pair of values with a gap in a structure"));
        }
        return Ok(vec![Leaf { datatype: handle, count: 1 }]);
    }
    let is_too_deep = depth > DEPTH_MAX;
    let parts: Vec<Result<Vec<Leaf>>> = match is_too_deep {
        true => Vec::new(),
        false => contents.types.iter().map(|part| leaves(mpi, *part, depth + 1)).collect(),
    };
    let sizes: Vec<Result<u64>> =
        contents.types.iter().map(|part| Ok(mpi.type_sizes(*part)?.size_bytes)).collect();
    contents.types.iter().for_each(|part| release(mpi, *part));
    let parts: Vec<Vec<Leaf>> = parts.into_iter().collect::<Result<_>>()?;
    let sizes: Vec<u64> = sizes.into_iter().collect::<Result<_>>()?;
    let mut all = Vec::new();
    if contents.combiner == numbers.combiner_struct {
        let mut values = Values::of(&contents);
        let count = values.count()?;
        for (count, part) in values.counts(count)?.into_iter().zip(&parts) {
            repeat_leaves(&mut all, part, count)?;
        }
    } else if let (Some(part), Some(bytes)) = (parts.first(), sizes.first()) {
        let count = mpi.type_sizes(handle)?.size_bytes.checked_div(*bytes).unwrap_or(0);
        repeat_leaves(&mut all, part, count)?;
    } else {
        return Err(unusable("a type without elements, or nested too deeply"));
    }
    Ok(all)
}

fn repeat_leaves(all: &mut Vec<Leaf>, part: &[Leaf], count: u64) -> Result<()> {
    if let [leaf] = part {
        push_leaf(all, Leaf { count: leaf.count.saturating_mul(count), ..*leaf });
        return Ok(());
    }
    for _ in 0..count {
        part.iter().for_each(|leaf| push_leaf(all, *leaf));
        if all.len() > LEAVES_MAX {
            let text =
                format!("external32 of a type with more than {LEAVES_MAX} changes of elementary types");
            return Err(MpiError::new(Class::Type, text));
        }
    }
    Ok(())
}

fn push_leaf(all: &mut Vec<Leaf>, leaf: Leaf) {
    match all.last_mut() {
        Some(last) if last.datatype == leaf.datatype => last.count = last.count.saturating_add(leaf.count),
        _ if leaf.count == 0 => {}
        _ => all.push(leaf),
    }
}

/// Reads the types that a type is made of, and gives back the handles of those.
fn elements(
    mpi: &'static Mpi,
    contents: &Contents,
    representation: Representation,
    depth: usize,
) -> Result<Vec<Datatype>> {
    // Structures often have the same type many times, and each of them by a handle of its own or by the same.
    let mut known = HashMap::<Handle, Datatype>::new();
    let mut result = Vec::with_capacity(contents.types.len());
    let mut failed = None;
    for handle in &contents.types {
        let element = match known.get(handle) {
            Some(known) => Ok((known.clone(), true)),
            None => read(mpi, *handle, representation, depth + 1),
        };
        match element {
            Ok((element, _)) => {
                known.insert(*handle, element.clone());
                result.push(element);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    contents.types.iter().for_each(|handle| release(mpi, *handle));
    failed.map_or(Ok(result), Err)
}

/// Whether a handle must not be given back.
fn is_predefined(mpi: &Mpi, handle: Handle) -> bool {
    let (mut ints, mut addresses, mut types, mut combiner) = (0, 0, 0, 0);
    let (mut large_ints, mut large_addresses, mut counts, mut large_types) = (0, 0, 0, 0);
    // SAFETY: all are written.
    let code = unsafe {
        match mpi.f.type_get_envelope_c {
            Some(envelope) => envelope(
                handle,
                &mut large_ints,
                &mut large_addresses,
                &mut counts,
                &mut large_types,
                &mut combiner,
            ),
            None => (mpi.f.type_get_envelope)(handle, &mut ints, &mut addresses, &mut types, &mut combiner),
        }
    };
    let numbers = mpi.numbers();
    let unfreed = [
        numbers.combiner_named,
        numbers.combiner_f90_real,
        numbers.combiner_f90_complex,
        numbers.combiner_f90_integer,
    ];
    code != 0 || unfreed.contains(&combiner)
}

/// A handle of the same datatype that stays when the program frees its own; a predefined one is itself.
pub fn keep_handle(mpi: &Mpi, handle: Handle) -> Result<Handle> {
    if is_predefined(mpi, handle) { Ok(handle) } else { mpi.dup_type(handle) }
}

/// Gives back a handle of [`keep_handle`], or one of a type's contents.
pub fn release(mpi: &Mpi, handle: Handle) {
    if !is_predefined(mpi, handle) {
        mpi.free_type(handle);
    }
}

/// The type that a constructor makes; `None` for one that is not known.
fn build(
    mpi: &'static Mpi,
    contents: &Contents,
    representation: Representation,
    depth: usize,
) -> Result<Option<Datatype>> {
    let numbers = mpi.numbers();
    let elements = elements(mpi, contents, representation, depth)?;
    let mut values = Values::of(contents);
    let element = || elements.first().ok_or_else(|| unreadable("a type without an element"));
    let combiner = contents.combiner;
    let built = match () {
        () if combiner == numbers.combiner_dup => element()?.clone(),
        () if combiner == numbers.combiner_contiguous => Datatype::contiguous(values.count()?, element()?)?,
        () if combiner == numbers.combiner_vector => {
            let (count, block_count, stride) = (values.count()?, values.count()?, values.number()?);
            Datatype::vector(count, block_count, stride, element()?)?
        }
        () if combiner == numbers.combiner_hvector => {
            let (count, block_count, stride) = (values.count()?, values.count()?, values.displacement()?);
            Datatype::hvector(count, block_count, stride, element()?)?
        }
        () if combiner == numbers.combiner_indexed => {
            let count = values.count()?;
            let lengths = values.counts(count)?;
            let blocks: Result<Vec<_>> =
                lengths.into_iter().map(|length| Ok((values.number()?, length))).collect();
            Datatype::indexed(&blocks?, element()?)?
        }
        () if combiner == numbers.combiner_hindexed => {
            let count = values.count()?;
            let lengths = values.counts(count)?;
            let blocks: Result<Vec<_>> =
                lengths.into_iter().map(|length| Ok((values.displacement()?, length))).collect();
            Datatype::hindexed(&blocks?, element()?)?
        }
        () if combiner == numbers.combiner_indexed_block => {
            let (count, length) = (values.count()?, values.count()?);
            let blocks: Result<Vec<_>> = (0..count).map(|_| Ok((values.number()?, length))).collect();
            Datatype::indexed(&blocks?, element()?)?
        }
        () if combiner == numbers.combiner_hindexed_block => {
            let (count, length) = (values.count()?, values.count()?);
            let blocks: Result<Vec<_>> = (0..count).map(|_| Ok((values.displacement()?, length))).collect();
            Datatype::hindexed(&blocks?, element()?)?
        }
        () if combiner == numbers.combiner_struct => {
            let count = values.count()?;
            let lengths = values.counts(count)?;
            let fields: Result<Vec<_>> = lengths
                .into_iter()
                .zip(&elements)
                .map(|(length, element)| Ok((values.displacement()?, length, element)))
                .collect();
            Datatype::structure(&fields?)?
        }
        () if combiner == numbers.combiner_subarray => {
            let dimensions = u64::try_from(values.int()?).unwrap_or(0);
            let (dims, counts, starts) =
                (values.counts(dimensions)?, values.counts(dimensions)?, values.counts(dimensions)?);
            let order = if values.int()? == numbers.order_fortran { Order::Fortran } else { Order::C };
            Datatype::subarray(&dims, &starts, &counts, order, element()?)?
        }
        () if combiner == numbers.combiner_darray => darray(mpi, &mut values, element()?)?,
        () if combiner == numbers.combiner_resized => {
            let (lower_bound, extent) = (values.displacement()?, values.displacement()?);
            Datatype::resized(lower_bound, extent, element()?)?
        }
        () => return Ok(None),
    };
    Ok(Some(built))
}

/// How the indices of one dimension are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    /// Elements in this dimension.
    elements: u64,
    /// From one block of this process to the next; `elements` where there is only one.
    cycle: u64,
    /// First element of this process.
    first: u64,
    /// Elements in each block.
    block: u64,
}

impl Axis {
    /// The part of process `place` of `processes`, in blocks of `block`, cyclically.
    fn cyclic(elements: u64, block: u64, place: u64, processes: u64) -> Axis {
        Axis {
            elements,
            cycle: block.saturating_mul(processes).max(1),
            first: place.saturating_mul(block),
            block,
        }
    }

    /// The blocks of this process, as (first element, number).
    fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let axis = *self;
        let count = axis.elements.saturating_sub(axis.first).div_ceil(axis.cycle);
        (0..count).map(move |number| {
            let first = axis.first + number * axis.cycle;
            (first, axis.block.min(axis.elements - first))
        })
    }

    /// `element` at each index of this process, in an array of `elements` of them.
    fn datatype(&self, element: &Datatype, stride_bytes: i64) -> Result<Datatype> {
        let large = || MpiError::from(weft_layout::DatatypeError::TooLarge);
        let bytes = |index: u64| i64::try_from(index).ok()?.checked_mul(stride_bytes);
        let whole = self.elements.saturating_sub(self.first) / self.cycle;
        let rest = self.blocks().nth(usize::try_from(whole).map_err(|_| large())?);
        let first = bytes(self.first).ok_or_else(large)?;
        let blocks = Datatype::hvector(whole, self.block, bytes(self.cycle).ok_or_else(large)?, element)?;
        let (rest_first, rest_count) = rest.unwrap_or((0, 0));
        let rest_first = bytes(rest_first).ok_or_else(large)?;
        let both = Datatype::structure(&[(first, 1, &blocks), (rest_first, rest_count, element)])?;
        Ok(Datatype::resized(0, bytes(self.elements).ok_or_else(large)?, &both)?)
    }
}

/// MPI 4.0, 5.1.4.
fn darray(mpi: &Mpi, values: &mut Values<'_>, element: &Datatype) -> Result<Datatype> {
    let numbers = mpi.numbers();
    // Beside large counts, the `int`s are size, rank, ndims, distribs, dargs, psizes and order.
    let positive = |value: c_int| u64::try_from(value).unwrap_or(0);
    let (_size, rank, dimensions) = (values.int()?, positive(values.int()?), positive(values.int()?));
    let sizes = values.counts(dimensions)?;
    let mut list = || (0..dimensions).map(|_| values.int()).collect::<Result<Vec<c_int>>>();
    let (distributions, arguments, processes) = (list()?, list()?, list()?);
    let is_fortran = values.int()? == numbers.order_fortran;
    let places = places(rank, &processes);
    let mut axes = Vec::with_capacity(sizes.len());
    for (at, &elements) in sizes.iter().enumerate() {
        let (of, place) = (positive(processes[at]).max(1), places[at]);
        let given = (arguments[at] != numbers.distribute_dflt_darg).then(|| positive(arguments[at]));
        axes.push(match distributions[at] {
            kind if kind == numbers.distribute_none => Axis::cyclic(elements, elements.max(1), 0, 1),
            kind if kind == numbers.distribute_cyclic => {
                Axis::cyclic(elements, given.unwrap_or(1), place, of)
            }
            _ => Axis::cyclic(elements, given.unwrap_or(elements.div_ceil(of)), place, of),
        });
    }
    if !is_fortran {
        axes.reverse();
    }
    let mut datatype = Datatype::resized(0, element.extent_bytes(), element)?;
    for axis in axes {
        datatype = axis.datatype(&datatype, datatype.extent_bytes())?;
    }
    Ok(datatype)
}

/// The place of a process in each dimension of the grid of processes, whose last dimension varies fastest.
fn places(rank: u64, processes: &[c_int]) -> Vec<u64> {
    let mut rest = rank;
    let mut places: Vec<u64> = processes
        .iter()
        .rev()
        .map(|count| {
            let count = u64::try_from(*count).unwrap_or(1).max(1);
            let place = rest % count;
            rest /= count;
            place
        })
        .collect();
    places.reverse();
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Extent;

    fn indices(axis: Axis) -> Vec<u64> {
        axis.blocks().flat_map(|(first, count)| first..first + count).collect()
    }

    #[test]
    fn every_index_is_in_one_process() {
        for elements in 0..20 {
            for processes in 1..5 {
                for block in 1..6 {
                    let mut all: Vec<u64> = (0..processes)
                        .flat_map(|place| indices(Axis::cyclic(elements, block, place, processes)))
                        .collect();
                    all.sort_unstable();
                    assert_eq!(all, (0..elements).collect::<Vec<_>>(), "{elements} {processes} {block}");
                }
            }
        }
    }

    #[test]
    fn an_axis_has_its_elements_where_the_array_has_them() {
        let int = Datatype::bytes(4).unwrap();
        for (elements, block, place, processes) in [(10, 3, 0, 2), (10, 3, 1, 2), (7, 2, 2, 3), (3, 4, 1, 2)]
        {
            let axis = Axis::cyclic(elements, block, place, processes);
            let datatype = axis.datatype(&int, 4).unwrap();
            let extents: Vec<Extent> = datatype.regions(0, 1).unwrap().extents().collect();
            let found: Vec<u64> =
                extents.iter().flat_map(|extent| extent.offset / 4..extent.end() / 4).collect();
            assert_eq!(found, indices(axis), "{axis:?}");
            assert_eq!(datatype.extent_bytes(), elements as i64 * 4);
        }
    }

    #[test]
    fn the_grid_of_processes_is_row_major() {
        assert_eq!(places(5, &[2, 3]), [1, 2]);
        assert_eq!(places(3, &[2, 3]), [1, 0]);
        assert_eq!(places(0, &[1, 1, 1]), [0, 0, 0]);
    }

    #[test]
    fn runs_of_one_elementary_type_are_one() {
        let (int, byte) = (Handle(1), Handle(2));
        let mut all = Vec::new();
        repeat_leaves(&mut all, &[Leaf { datatype: int, count: 2 }], 3).unwrap();
        let pair = [Leaf { datatype: int, count: 1 }, Leaf { datatype: byte, count: 4 }];
        repeat_leaves(&mut all, &pair, 2).unwrap();
        let counts: Vec<_> = all.iter().map(|leaf| (leaf.datatype.0, leaf.count)).collect();
        assert_eq!(counts, [(1, 7), (2, 4), (1, 1), (2, 4)]);
        assert!(repeat_leaves(&mut all, &pair, u64::MAX).is_err());
    }

    #[test]
    fn narrow_handles_are_read_in_pairs() {
        let array = HandleArray { bytes: vec![0x2_0000_0001, 3], handle_bytes: 4, count: 3 };
        assert_eq!(array.handles(), [Handle(1), Handle(2), Handle(3)]);
    }
}
