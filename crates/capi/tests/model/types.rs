//! Types as trees, made of both interfaces' types and of nothing else: their meaning here is a list of
//! displacements.

use proptest::collection::vec;
use proptest::prelude::*;
use std::ffi::c_int;
use weft::*;
use weft_layout::{Datatype, Order};

/// Longest type, in bytes.
const BYTES_MAX: u64 = 12_000;
/// Greatest distance between two bytes of a side.
const SPAN_MAX: i64 = 300_000;

/// How a type was made.
#[derive(Debug, Clone)]
pub enum Tree {
    Bytes(u64),
    Contiguous(u64, Box<Tree>),
    Vector(u64, u64, i64, Box<Tree>),
    Hvector(u64, u64, i64, Box<Tree>),
    Indexed(Vec<(i64, u64)>, Box<Tree>),
    Hindexed(Vec<(i64, u64)>, Box<Tree>),
    Struct(Vec<(i64, u64, Tree)>),
    Subarray(Vec<(u64, u64, u64)>, bool, Box<Tree>),
    Resized(i64, i64, Box<Tree>),
}

/// Up to three constructors around bytes.
pub fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(0u64..=64).prop_map(Tree::Bytes), (0u64..3000).prop_map(Tree::Bytes)];
    let tree = leaf.prop_recursive(3, 10, 3, |inner| {
        let boxed = inner.clone().prop_map(Box::new).boxed();
        let axis = (1u64..=6)
            .prop_flat_map(|dim| (Just(dim), 0..dim))
            .prop_flat_map(|(dim, start)| (Just(dim), Just(start), 1..=dim - start));
        prop_oneof![
            (0u64..5, boxed.clone()).prop_map(|(count, element)| Tree::Contiguous(count, element)),
            (0u64..5, 0u64..4, -6i64..10, boxed.clone())
                .prop_map(|(count, block, stride, element)| Tree::Vector(count, block, stride, element)),
            (0u64..5, 0u64..4, -500i64..5000, boxed.clone())
                .prop_map(|(count, block, stride, element)| Tree::Hvector(count, block, stride, element)),
            (vec((-5i64..20, 0u64..4), 0..5), boxed.clone())
                .prop_map(|(blocks, element)| Tree::Indexed(blocks, element)),
            (vec((-300i64..20_000, 0u64..3), 0..5), boxed.clone())
                .prop_map(|(blocks, element)| Tree::Hindexed(blocks, element)),
            vec((-300i64..20_000, 0u64..3, inner), 0..4).prop_map(Tree::Struct),
            (vec(axis, 1..=3), any::<bool>(), boxed.clone())
                .prop_map(|(axes, is_c, element)| Tree::Subarray(axes, is_c, element)),
            (-50i64..50, 0i64..6000, boxed)
                .prop_map(|(lower, extent, element)| Tree::Resized(lower, extent, element)),
        ]
    });
    tree.prop_map(|tree| if tree.is_small() { tree } else { Tree::Bytes(100) })
}

/// A type that a file can be seen through: bytes that follow each other, also from one repetition to the
/// next, and not far apart.
pub fn view_tree() -> impl Strategy<Value = Tree> {
    (tree(), 0i64..500).prop_map(|(tree, gap)| {
        let sorted = sorted(tree.map().displacements, gap);
        let simple = Tree::Resized(0, 60, Box::new(Tree::Bytes(7)));
        [tree, sorted].into_iter().find(is_view).unwrap_or(simple)
    })
}

fn is_view(tree: &Tree) -> bool {
    let map = tree.map();
    let (Some(first), Some(last)) = (map.displacements.first(), map.displacements.last()) else {
        return false;
    };
    let rises = map.displacements.windows(2).all(|pair| pair[0] < pair[1]);
    let is_dense = map.extent() <= 12 * map.displacements.len() as i64;
    rises && *first >= 0 && last - first < map.extent() && is_dense
}

/// The same bytes in the order in which the file has them.
fn sorted(mut displacements: Vec<i64>, gap: i64) -> Tree {
    displacements.sort_unstable();
    displacements.dedup();
    let first = displacements.first().copied().unwrap_or(0);
    let extent = displacements.last().map_or(0, |last| last - first + 1);
    let blocks: Vec<(i64, u64)> = displacements.iter().map(|at| (at - first, 1)).collect();
    Tree::Resized(0, extent + gap, Box::new(Tree::Hindexed(blocks, Box::new(Tree::Bytes(1)))))
}

/// What a type means: displacements in order, and from where to where an element spans.
#[derive(Debug, Clone, Default)]
pub struct Map {
    pub displacements: Vec<i64>,
    bounds: Option<Bounds>,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    lower: i64,
    upper: i64,
    /// Bounds that were set hide those of bytes.
    are_set: bool,
}

impl Map {
    pub fn extent(&self) -> i64 {
        self.bounds.map_or(0, |bounds| bounds.upper - bounds.lower)
    }

    /// Maps, each displaced.
    fn join<'a>(blocks: impl IntoIterator<Item = (i64, &'a Map)>) -> Map {
        let mut joined = Map::default();
        let mut all = Vec::new();
        for (displacement, map) in blocks {
            joined.displacements.extend(map.displacements.iter().map(|at| at + displacement));
            all.extend(map.bounds.map(|bounds| Bounds {
                lower: displacement + bounds.lower,
                upper: displacement + bounds.upper,
                ..bounds
            }));
        }
        let are_set = all.iter().any(|bounds| bounds.are_set);
        let deciding = || all.iter().filter(|bounds| bounds.are_set == are_set);
        let (lower, upper) =
            (deciding().map(|bounds| bounds.lower).min(), deciding().map(|bounds| bounds.upper).max());
        joined.bounds = lower.zip(upper).map(|(lower, upper)| Bounds { lower, upper, are_set });
        joined
    }

    /// The same bytes, with bounds that are set.
    fn bounded(self, lower: i64, upper: i64) -> Map {
        Map { bounds: Some(Bounds { lower, upper, are_set: true }), ..self }
    }

    /// `count` of these, one after the other.
    pub fn repeated(&self, count: u64) -> Map {
        Map::join((0..count as i64).map(|index| (index * self.extent(), self)))
    }
}

impl Tree {
    fn size(&self) -> u64 {
        let blocks = |blocks: &[(i64, u64)]| blocks.iter().map(|block| block.1).sum::<u64>();
        match self {
            Tree::Bytes(bytes) => *bytes,
            Tree::Contiguous(count, element) => count * element.size(),
            Tree::Vector(count, block, _, element) | Tree::Hvector(count, block, _, element) => {
                count * block * element.size()
            }
            Tree::Indexed(list, element) | Tree::Hindexed(list, element) => blocks(list) * element.size(),
            Tree::Struct(fields) => fields.iter().map(|(_, count, tree)| count * tree.size()).sum(),
            Tree::Subarray(axes, _, element) => {
                axes.iter().map(|axis| axis.2).product::<u64>() * element.size()
            }
            Tree::Resized(_, _, element) => element.size(),
        }
    }

    /// Whether a model can walk over it a byte at a time.
    pub fn is_small(&self) -> bool {
        let within = |map: &Map| {
            let (low, high) = (map.displacements.iter().min(), map.displacements.iter().max());
            high.copied().unwrap_or(0) - low.copied().unwrap_or(0) <= SPAN_MAX && map.extent() <= SPAN_MAX
        };
        self.size() <= BYTES_MAX && within(&self.map())
    }

    /// Its meaning, byte by byte (MPI 4.1, chapter 5).
    pub fn map(&self) -> Map {
        match self {
            Tree::Bytes(bytes) => {
                let upper = *bytes as i64;
                let bounds = Bounds { lower: 0, upper, are_set: false };
                Map { displacements: (0..upper).collect(), bounds: (upper > 0).then_some(bounds) }
            }
            Tree::Contiguous(count, element) => element.map().repeated(*count),
            Tree::Vector(count, block, stride, element) => {
                let element = element.map();
                strided(*count, *block, stride * element.extent(), &element)
            }
            Tree::Hvector(count, block, stride, element) => strided(*count, *block, *stride, &element.map()),
            Tree::Indexed(blocks, element) => {
                let element = element.map();
                displaced(blocks.iter().map(|(at, count)| (at * element.extent(), *count)), &element)
            }
            Tree::Hindexed(blocks, element) => displaced(blocks.iter().copied(), &element.map()),
            Tree::Struct(fields) => {
                let fields: Vec<(i64, Map)> = fields
                    .iter()
                    .filter(|(_, count, _)| *count > 0)
                    .map(|(at, count, tree)| (*at, tree.map().repeated(*count)))
                    .collect();
                Map::join(fields.iter().map(|(at, map)| (*at, map)))
            }
            Tree::Subarray(axes, is_c, element) => subarray(axes, *is_c, &element.map()),
            Tree::Resized(lower, extent, element) => element.map().bounded(*lower, lower + extent),
        }
    }

    /// With the Rust interface.
    pub fn datatype(&self) -> Datatype {
        let made = match self {
            Tree::Bytes(bytes) => Datatype::bytes(*bytes),
            Tree::Contiguous(count, element) => Datatype::contiguous(*count, &element.datatype()),
            Tree::Vector(count, block, stride, element) => {
                Datatype::vector(*count, *block, *stride, &element.datatype())
            }
            Tree::Hvector(count, block, stride, element) => {
                Datatype::hvector(*count, *block, *stride, &element.datatype())
            }
            Tree::Indexed(blocks, element) => Datatype::indexed(blocks, &element.datatype()),
            Tree::Hindexed(blocks, element) => Datatype::hindexed(blocks, &element.datatype()),
            Tree::Struct(fields) => {
                let types: Vec<_> =
                    fields.iter().map(|(at, count, tree)| (*at, *count, tree.datatype())).collect();
                let fields: Vec<_> = types.iter().map(|(at, count, tree)| (*at, *count, tree)).collect();
                Datatype::structure(&fields)
            }
            Tree::Subarray(axes, is_c, element) => {
                let (dims, starts, counts) = columns(axes);
                let order = if *is_c { Order::C } else { Order::Fortran };
                Datatype::subarray(&dims, &starts, &counts, order, &element.datatype())
            }
            Tree::Resized(lower, extent, element) => Datatype::resized(*lower, *extent, &element.datatype()),
        };
        made.unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// With the C interface.
    pub fn handle(&self) -> Handle {
        // SAFETY: the handles and arrays live through the calls.
        let made = unsafe {
            match self {
                Tree::Bytes(bytes) => weft_type_bytes(*bytes),
                Tree::Contiguous(count, element) => weft_type_contiguous(*count, element.handle().0),
                Tree::Vector(count, block, stride, element) => {
                    weft_type_vector(*count, *block, *stride, element.handle().0)
                }
                Tree::Hvector(count, block, stride, element) => {
                    weft_type_hvector(*count, *block, *stride, element.handle().0)
                }
                Tree::Indexed(blocks, element) | Tree::Hindexed(blocks, element) => {
                    let (at, counts): (Vec<i64>, Vec<u64>) = blocks.iter().copied().unzip();
                    let make = match self {
                        Tree::Indexed(..) => weft_type_indexed,
                        _ => weft_type_hindexed,
                    };
                    make(at.len(), at.as_ptr(), counts.as_ptr(), element.handle().0)
                }
                Tree::Struct(fields) => {
                    let at: Vec<i64> = fields.iter().map(|field| field.0).collect();
                    let counts: Vec<u64> = fields.iter().map(|field| field.1).collect();
                    let types: Vec<Handle> = fields.iter().map(|field| field.2.handle()).collect();
                    let handles: Vec<*const weft_type> =
                        types.iter().map(|handle| handle.0.cast_const()).collect();
                    weft_type_struct(at.len(), at.as_ptr(), counts.as_ptr(), handles.as_ptr())
                }
                Tree::Subarray(axes, is_c, element) => {
                    let (dims, starts, counts) = columns(axes);
                    let (dims, starts, counts) = (dims.as_ptr(), starts.as_ptr(), counts.as_ptr());
                    let order = c_int::from(!*is_c);
                    weft_type_subarray(axes.len(), dims, starts, counts, order, element.handle().0)
                }
                Tree::Resized(lower, extent, element) => {
                    weft_type_resized(*lower, *extent, element.handle().0)
                }
            }
        };
        assert!(!made.is_null(), "{self:?}: {}", crate::last_error());
        Handle(made)
    }
}

/// A `weft_type` that frees itself.
pub struct Handle(pub *mut weft_type);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was made, and nothing uses it any more.
        unsafe { weft_type_free(self.0) };
    }
}

fn columns(axes: &[(u64, u64, u64)]) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    (
        axes.iter().map(|axis| axis.0).collect(),
        axes.iter().map(|axis| axis.1).collect(),
        axes.iter().map(|axis| axis.2).collect(),
    )
}

fn strided(count: u64, block: u64, stride_bytes: i64, element: &Map) -> Map {
    displaced((0..count as i64).map(|index| (index * stride_bytes, block)), element)
}

fn displaced(blocks: impl Iterator<Item = (i64, u64)>, element: &Map) -> Map {
    let places = blocks
        .flat_map(|(at, count)| (0..count as i64).map(move |index| (at + index * element.extent(), element)));
    Map::join(places)
}

fn subarray(axes: &[(u64, u64, u64)], is_c: bool, element: &Map) -> Map {
    // Slowest axis first, as C has them.
    let axes: Vec<_> = if is_c { axes.to_vec() } else { axes.iter().rev().copied().collect() };
    let elements: u64 = axes.iter().map(|axis| axis.0).product();
    let mut places = vec![0];
    for (dim, start, count) in &axes {
        places = places
            .iter()
            .flat_map(|place| (*start..start + count).map(move |index| place * *dim as i64 + index as i64))
            .collect();
    }
    let block = Map::join(places.into_iter().map(|place| (place * element.extent(), element)));
    block.bounded(0, elements as i64 * element.extent())
}
