use proptest::collection::vec;
use proptest::prelude::*;
use weft_layout::{Datatype, DatatypeError, Extent, Level, OFFSET_LIMIT, Order, Region, Regions};

use crate::generate::{bytes_of, joined};

/// A type as the standard of MPI has it: the displacement of each byte, and markers for bounds that were set.
#[derive(Debug, Clone, Default)]
pub struct Typemap {
    pub bytes: Vec<i64>,
    lower_markers: Vec<i64>,
    upper_markers: Vec<i64>,
}

impl Typemap {
    fn lower(&self) -> i64 {
        self.lower_markers.iter().min().or(self.bytes.iter().min()).copied().unwrap_or(0)
    }

    fn upper(&self) -> i64 {
        let last = self.bytes.iter().max().map(|last| last + 1);
        self.upper_markers.iter().max().copied().or(last).unwrap_or(0)
    }

    pub fn extent(&self) -> i64 {
        self.upper() - self.lower()
    }

    fn add(&mut self, other: &Typemap, displacement: i64) {
        let moved = |places: &Vec<i64>| places.iter().map(|place| place + displacement).collect::<Vec<_>>();
        self.bytes.extend(moved(&other.bytes));
        self.lower_markers.extend(moved(&other.lower_markers));
        self.upper_markers.extend(moved(&other.upper_markers));
    }

    /// Blocks of (displacement, count, element).
    fn sum(blocks: &[(i64, u64, &Typemap)]) -> Typemap {
        let mut sum = Typemap::default();
        for &(displacement, count, element) in blocks {
            for index in 0..count as i64 {
                sum.add(element, displacement + index * element.extent());
            }
        }
        sum
    }

    pub fn repeated(&self, count: u64) -> Typemap {
        Typemap::sum(&[(0, count, self)])
    }

    fn with_bounds(bytes: Vec<i64>, lower: i64, extent: i64) -> Typemap {
        Typemap { bytes, lower_markers: vec![lower], upper_markers: vec![lower + extent] }
    }
}

/// How to build a type, both ways.
#[derive(Debug, Clone)]
pub enum Recipe {
    Bytes(u64),
    Contiguous(u64, Box<Recipe>),
    Vector(u64, u64, i64, Box<Recipe>),
    Hvector(u64, u64, i64, Box<Recipe>),
    Indexed(Vec<(i64, u64)>, Box<Recipe>),
    Hindexed(Vec<(i64, u64)>, Box<Recipe>),
    Structure(Vec<(i64, u64, Recipe)>),
    Subarray(Vec<(u64, u64, u64)>, Order, Box<Recipe>),
    Resized(i64, i64, Box<Recipe>),
}

impl Recipe {
    pub fn datatype(&self) -> Result<Datatype, DatatypeError> {
        match self {
            Recipe::Bytes(bytes) => Datatype::bytes(*bytes),
            Recipe::Contiguous(count, of) => Datatype::contiguous(*count, &of.datatype()?),
            Recipe::Vector(count, block, stride, of) => {
                Datatype::vector(*count, *block, *stride, &of.datatype()?)
            }
            Recipe::Hvector(count, block, stride, of) => {
                Datatype::hvector(*count, *block, *stride, &of.datatype()?)
            }
            Recipe::Indexed(blocks, of) => Datatype::indexed(blocks, &of.datatype()?),
            Recipe::Hindexed(blocks, of) => Datatype::hindexed(blocks, &of.datatype()?),
            Recipe::Structure(fields) => {
                let types = fields
                    .iter()
                    .map(|field| field.2.datatype())
                    .collect::<Result<Vec<_>, DatatypeError>>()?;
                let fields: Vec<_> =
                    fields.iter().zip(&types).map(|((at, count, _), of)| (*at, *count, of)).collect();
                Datatype::structure(&fields)
            }
            Recipe::Subarray(axes, order, of) => {
                let (dims, starts, counts) = columns(axes);
                Datatype::subarray(&dims, &starts, &counts, *order, &of.datatype()?)
            }
            Recipe::Resized(lower, extent, of) => Datatype::resized(*lower, *extent, &of.datatype()?),
        }
    }

    pub fn typemap(&self) -> Typemap {
        match self {
            Recipe::Bytes(bytes) => Typemap { bytes: (0..*bytes as i64).collect(), ..Typemap::default() },
            Recipe::Contiguous(count, of) => of.typemap().repeated(*count),
            Recipe::Vector(count, block, stride, of) => {
                let of = of.typemap();
                let at = |index| index as i64 * stride * of.extent();
                Typemap::sum(&(0..*count).map(|index| (at(index), *block, &of)).collect::<Vec<_>>())
            }
            Recipe::Hvector(count, block, stride, of) => {
                let of = of.typemap();
                let at = |index| index as i64 * stride;
                Typemap::sum(&(0..*count).map(|index| (at(index), *block, &of)).collect::<Vec<_>>())
            }
            Recipe::Indexed(blocks, of) => {
                let of = of.typemap();
                Typemap::sum(&blocks.iter().map(|(at, n)| (at * of.extent(), *n, &of)).collect::<Vec<_>>())
            }
            Recipe::Hindexed(blocks, of) => {
                let of = of.typemap();
                Typemap::sum(&blocks.iter().map(|(at, n)| (*at, *n, &of)).collect::<Vec<_>>())
            }
            Recipe::Structure(fields) => {
                let types: Vec<Typemap> = fields.iter().map(|field| field.2.typemap()).collect();
                Typemap::sum(
                    &fields.iter().zip(&types).map(|((at, n, _), of)| (*at, *n, of)).collect::<Vec<_>>(),
                )
            }
            Recipe::Subarray(axes, order, of) => {
                let of = of.typemap();
                let (dims, starts, counts) = columns(axes);
                let elements = Regions::subarray(0, dims.clone(), starts, counts, 1, *order);
                let at = bytes_of(&elements).into_iter().map(|index| index as i64 * of.extent());
                let bytes = at.flat_map(|at| of.bytes.iter().map(move |byte| byte + at)).collect();
                Typemap::with_bounds(bytes, 0, dims.iter().product::<u64>() as i64 * of.extent())
            }
            Recipe::Resized(lower, extent, of) => Typemap::with_bounds(of.typemap().bytes, *lower, *extent),
        }
    }
}

fn columns(axes: &[(u64, u64, u64)]) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let column = |of: fn(&(u64, u64, u64)) -> u64| axes.iter().map(of).collect();
    (column(|axis| axis.0), column(|axis| axis.1), column(|axis| axis.2))
}

/// Types of up to some thousands of bytes.
fn recipe() -> impl Strategy<Value = Recipe> {
    (0u64..6).prop_map(Recipe::Bytes).prop_recursive(4, 12, 3, |of| {
        let boxed = of.clone().prop_map(Box::new);
        let axis = (0u64..=3).prop_flat_map(|dim| (Just(dim), 0..=dim)).prop_flat_map(|(dim, start)| {
            (Just(dim), Just(start), prop_oneof![Just(dim - start), 0..=dim - start])
        });
        let blocks = |reach: i64| vec((-reach..reach, 0u64..3), 0..6);
        let regular = (-20..20i64, -9..9i64, 0u64..3, 0usize..7)
            .prop_map(|(first, step, block, n)| (0..n as i64).map(|at| (first + at * step, block)).collect());
        let order = prop_oneof![Just(Order::C), Just(Order::Fortran)];
        prop_oneof![
            (0u64..5, boxed.clone()).prop_map(|(n, of)| Recipe::Contiguous(n, of)),
            (0u64..4, 0u64..3, -4..5i64, boxed.clone())
                .prop_map(|(n, block, stride, of)| Recipe::Vector(n, block, stride, of)),
            (0u64..4, 0u64..3, -30..30i64, boxed.clone())
                .prop_map(|(n, block, stride, of)| Recipe::Hvector(n, block, stride, of)),
            (prop_oneof![blocks(8), regular], boxed.clone())
                .prop_map(|(blocks, of)| Recipe::Indexed(blocks, of)),
            (blocks(40), boxed.clone()).prop_map(|(blocks, of)| Recipe::Hindexed(blocks, of)),
            vec((-30..30i64, 0u64..3, of), 0..4).prop_map(Recipe::Structure),
            (vec(axis, 0..=3), order, boxed.clone())
                .prop_map(|(axes, order, of)| Recipe::Subarray(axes, order, of)),
            (-20..20i64, -30..60i64, boxed)
                .prop_map(|(lower, extent, of)| Recipe::Resized(lower, extent, of)),
        ]
    })
}

/// A recipe of a type that is not too long for a model of single bytes.
fn short_recipe() -> impl Strategy<Value = Recipe> {
    recipe().prop_filter("too many bytes", |recipe| {
        recipe.datatype().is_ok_and(|datatype| datatype.size_bytes() <= 20_000)
    })
}

proptest! {
    #![proptest_config(weft_test_random::cases(256))]

    #[test]
    fn a_type_is_its_typemap(recipe in short_recipe(), count in 0u64..4) {
        let (datatype, typemap) = (recipe.datatype().unwrap(), recipe.typemap());
        prop_assert_eq!(datatype.size_bytes(), typemap.bytes.len() as u64);
        prop_assert_eq!(datatype.extent_bytes(), typemap.extent());
        prop_assert_eq!(datatype.lower_bound_bytes(), typemap.lower());
        let (first, last) = (typemap.bytes.iter().min(), typemap.bytes.iter().max());
        let span = first.zip(last).map_or((0, 0), |(&first, &last)| (first, (last + 1 - first) as u64));
        prop_assert_eq!(datatype.true_extent(), span);

        let origin = 1 << 40;
        let all = typemap.repeated(count).bytes;
        let expected: Vec<u64> = all.iter().map(|&byte| (origin + byte) as u64).collect();
        let regions = datatype.regions(origin as u64, count).unwrap();
        prop_assert_eq!(regions.validate(usize::MAX, 16), Ok(()));
        prop_assert_eq!(bytes_of(&regions), expected);
        prop_assert_eq!(regions.parts.iter().all(|part| part.total_bytes() > 0), true);
    }

    #[test]
    fn a_type_goes_as_far_down_as_offset_zero(recipe in short_recipe(), count in 1u64..4) {
        let (datatype, typemap) = (recipe.datatype().unwrap(), recipe.typemap().repeated(count));
        let Some(&lowest) = typemap.bytes.iter().min() else { return Ok(()) };
        let origin = 0.max(-lowest) as u64;
        prop_assert!(datatype.regions(origin, count).is_ok());
        if lowest < 0 {
            let refusal = DatatypeError::OutOfRange { offset: origin - 1, count };
            prop_assert_eq!(datatype.regions(origin - 1, count), Err(refusal));
        }
    }

    /// Whichever way a regular selection is written, it is the same few words, and never more parts than
    /// extents.
    #[test]
    fn types_are_compact(recipe in short_recipe()) {
        let regions = recipe.datatype().unwrap().regions(1 << 40, 1).unwrap();
        let extents = joined(&bytes_of(&regions));
        prop_assert!(regions.part_count() <= extents.len().max(1), "{regions:?}");
        if let [only] = extents[..] {
            prop_assert_eq!(&regions.parts, &[Region::Contiguous(only)]);
        }
        let is_uniform = extents.windows(2).all(|pair| {
            pair[1].bytes == extents[0].bytes
                && pair[1].offset.wrapping_sub(pair[0].offset) == extents[1].offset.wrapping_sub(extents[0].offset)
        });
        if is_uniform && extents.len() > 1 && extents.len() <= 16 {
            let stride_bytes = extents[1].offset.wrapping_sub(extents[0].offset) as i64;
            let levels = vec![Level { count: extents.len() as u64, stride_bytes }];
            let (offset, block_bytes) = (extents[0].offset, extents[0].bytes);
            prop_assert_eq!(&regions.parts, &[Region::Strided { offset, block_bytes, levels }]);
        }
    }

    #[test]
    fn extreme_types_are_made_or_refused(
        numbers in vec(extreme(), 12),
        signed in vec(extreme().prop_map(|number| number as i64), 6),
        negate: bool,
    ) {
        let sign = |number: i64| if negate { number.wrapping_neg() } else { number };
        let made = |last: &Datatype| {
            let mut types = vec![
                Datatype::contiguous(numbers[1], last),
                Datatype::vector(numbers[2], numbers[3], sign(signed[0]), last),
                Datatype::hvector(numbers[2], numbers[3], sign(signed[1]), last),
                Datatype::indexed(&[(signed[2], numbers[4]), (sign(signed[3]), numbers[5])], last),
                Datatype::hindexed(&[(signed[2], numbers[4]), (sign(signed[3]), numbers[5])], last),
                Datatype::resized(sign(signed[4]), signed[5], last),
            ];
            let (dim, count) = (numbers[6], numbers[7]);
            types.push(Datatype::subarray(&[dim, 9], &[numbers[8], 1], &[count, 3], Order::C, last));
            types.into_iter().flatten().collect::<Vec<_>>()
        };
        let Ok(first) = Datatype::bytes(numbers[0]) else { return Ok(()) };
        for second in made(&first) {
            for third in made(&second) {
                let Ok(regions) = third.regions(numbers[9], numbers[10]) else { continue };
                prop_assert_eq!(regions.validate(usize::MAX, usize::MAX), Ok(()));
                prop_assert_eq!(regions.total_bytes(), third.size_bytes() * numbers[10]);
            }
        }
    }
}

/// Numbers where overflows live.
fn extreme() -> impl Strategy<Value = u64> {
    let power = (0u32..64, 0u64..3).prop_map(|(bit, less)| (1u64 << bit).wrapping_sub(less));
    prop_oneof![3 => 0u64..4, 2 => power, 1 => any::<u64>()]
}

fn one_part(datatype: &Datatype, count: u64) -> Region {
    let regions = datatype.regions(0, count).unwrap();
    assert_eq!(regions.parts.len(), 1, "{regions:?}");
    regions.parts[0].clone()
}

fn strided<const LEVELS: usize>(offset: u64, block_bytes: u64, levels: [(u64, i64); LEVELS]) -> Region {
    let levels = levels.iter().map(|&(count, stride_bytes)| Level { count, stride_bytes }).collect();
    Region::Strided { offset, block_bytes, levels }
}

#[test]
fn what_is_dense_is_contiguous() {
    let int = Datatype::bytes(4).unwrap();
    let dense = Datatype::vector(1 << 20, 8, 8, &int).unwrap();
    assert_eq!(one_part(&dense, 1 << 10), Region::Contiguous(Extent::new(0, 1 << 35)));
    let rows = Datatype::subarray(&[100, 50, 20], &[7, 0, 0], &[2, 50, 20], Order::C, &int).unwrap();
    assert_eq!(one_part(&rows, 1), Region::Contiguous(Extent::new(7 * 4000, 8000)));
}

#[test]
fn loops_of_loops_are_levels() {
    let int = Datatype::bytes(4).unwrap();
    let column = Datatype::vector(1000, 1, 50, &int).unwrap();
    assert_eq!(one_part(&column, 1), strided(0, 4, [(1000, 200)]));
    let columns = Datatype::hvector(5, 1, 8, &column).unwrap();
    assert_eq!(one_part(&columns, 1), strided(0, 4, [(5, 8), (1000, 200)]));
    let listed = Datatype::hindexed(&[(0, 1), (8, 1), (16, 1), (24, 1), (32, 1)], &column).unwrap();
    assert_eq!(one_part(&listed, 1), one_part(&columns, 1));
    let continued = Datatype::hvector(7, 1, 200_000, &column).unwrap();
    assert_eq!(one_part(&continued, 1), strided(0, 4, [(7000, 200)]));
    let fortran = Datatype::subarray(&[50, 100, 20], &[7, 5, 1], &[2, 50, 10], Order::Fortran, &int).unwrap();
    assert_eq!(one_part(&fortran, 1), strided((20_000 + 5 * 200) + 28, 8, [(10, 20_000), (50, 200)]));
}

#[test]
fn only_what_is_irregular_is_a_repeat() {
    let int = Datatype::bytes(4).unwrap();
    let mixed = Datatype::indexed(&[(0, 1), (3, 2), (9, 1)], &int).unwrap();
    let record = Datatype::resized(0, 64, &mixed).unwrap();
    let body = Regions::list([Extent::new(0, 4), Extent::new(12, 8), Extent::new(36, 4)]);
    let repeat = Region::Repeat { offset: 0, count: 1000, stride_bytes: 64, body };
    assert_eq!(one_part(&record, 1000), repeat);
    let nested = Datatype::contiguous(10, &Datatype::contiguous(100, &record).unwrap()).unwrap();
    assert_eq!(one_part(&nested, 1), repeat);
    assert_eq!(one_part(&Datatype::contiguous(50, &record).unwrap(), 20), repeat);
}

#[test]
fn long_runs_in_a_list_are_loops() {
    let mut blocks: Vec<(i64, u64)> = (0..1000).map(|at| (at * 3, 1)).collect();
    blocks.push((5000, 2));
    blocks.push((5003, 1));
    blocks.extend((0..500).map(|at| (6000 + at * 7, 1)));
    let listed = Datatype::indexed(&blocks, &Datatype::bytes(8).unwrap()).unwrap();
    let regions = listed.regions(0, 1).unwrap();
    assert_eq!(
        regions.parts,
        [
            strided(0, 8, [(1000, 24)]),
            Region::List(vec![Extent::new(40_000, 16), Extent::new(40_024, 8)]),
            strided(48_000, 8, [(500, 56)]),
        ]
    );
}

#[test]
fn bounds_that_were_set_win() {
    let (int, wide) = (Datatype::bytes(4).unwrap(), Datatype::bytes(100).unwrap());
    let resized = Datatype::resized(-4, 16, &int).unwrap();
    let both = Datatype::structure(&[(8, 1, &resized), (40, 1, &wide)]).unwrap();
    assert_eq!((both.lower_bound_bytes(), both.extent_bytes()), (4, 16));
    assert_eq!(both.true_extent(), (8, 132));
    let again = Datatype::resized(0, 200, &both).unwrap();
    assert_eq!((again.lower_bound_bytes(), again.extent_bytes()), (0, 200));
}

#[test]
fn refuses_what_makes_no_sense() {
    let int = Datatype::bytes(4).unwrap();
    assert_eq!(Datatype::bytes(OFFSET_LIMIT), Err(DatatypeError::TooLarge));
    assert_eq!(Datatype::contiguous(1 << 61, &int), Err(DatatypeError::TooLarge));
    assert_eq!(Datatype::hindexed(&[(i64::MAX - 2, 1)], &int), Err(DatatypeError::TooLarge));
    assert_eq!(Datatype::hindexed(&[(i64::MIN, 1), (0, 1)], &int), Err(DatatypeError::TooLarge));
    assert_eq!(
        Datatype::subarray(&[4], &[0, 0], &[4], Order::C, &int),
        Err(DatatypeError::DimensionMismatch { dims: 1, starts: 2, counts: 1 })
    );
    assert_eq!(
        Datatype::subarray(&[4, 4], &[0, 2], &[4, 3], Order::C, &int),
        Err(DatatypeError::OutsideArray { axis: 1, start: 2, count: 3, dim: 4 })
    );
    assert_eq!(
        int.regions(OFFSET_LIMIT - 8, 3),
        Err(DatatypeError::OutOfRange { offset: OFFSET_LIMIT - 8, count: 3 })
    );
    assert_eq!(int.regions(u64::MAX, 0), Ok(Regions::default()));
}
