//! A unit between its data file and memory of this process, by the plan that was made for it.
//!
//! ```text
//!   each      preadv / pwritev per piece; what has to come from a device comes all at once before
//!   sieve     [aa..bb..cc] ──one read──► buffer ──copies──► aabbcc      a group without gaps needs no buffer
//!             [aa..bb..cc] ◄─one write── buffer ◄─copies─── aabbcc      after a read of the group, in an exclusive turn
//!   mapped    pages ◄──copies──► memory; if a page was gone: each
//! ```

use super::memory::{Memory, MemoryCursor, zero_rest};
use super::plan::{Plan, SIEVE_BYTES_MAX, span};
use super::work::Work;
use crate::answer::Refusal;
use crate::spent::{Part, during};
use std::cell::Cell;
use std::io::IoSliceMut;
use weft_layout::Extent;
use weft_storage::cost::{Group, Method, sieve_groups};
use weft_storage::sums::Change;
use weft_storage::{Buffer, BufferPool, DataFile, Disk, MemoryGone};
use weft_wire::Status;

/// The buffer for the next part of a transfer of `client`. While a transfer holds the part before, `give_back` is the way to be
/// rid of it: a further buffer is taken where there is one, so that network and disk overlap; else the same memory again.
pub(super) async fn next_buffer(
    pool: &BufferPool,
    client: u64,
    want_bytes: usize,
    give_back: Option<impl Future<Output = Result<(), Refusal>>>,
) -> Result<Buffer, Refusal> {
    if let Some(give_back) = give_back {
        if let Some(buffer) = pool.try_take_more(client, want_bytes) {
            return Ok(buffer);
        }
        give_back.await?;
    }
    Ok(during(Part::Buffers, pool.take(client, want_bytes)).await)
}

/// One data file, on behalf of one client.
pub(super) struct Access<'a, D: Disk> {
    pub file: &'a DataFile<D>,
    pub pool: &'a BufferPool,
    pub client: u64,
    memory_is_gone: Cell<bool>,
}

impl<'a, D: Disk> Access<'a, D> {
    pub fn new(file: &'a DataFile<D>, pool: &'a BufferPool, client: u64) -> Access<'a, D> {
        Access { file, pool, client, memory_is_gone: Cell::new(false) }
    }

    /// Whether a page of the memory that a unit was to come from or go to was gone.
    pub fn memory_is_gone(&self) -> bool {
        self.memory_is_gone.get()
    }

    fn noted<T>(&self, copied: Result<T, MemoryGone>) -> Result<T, Refusal> {
        copied.map_err(|gone| {
            self.memory_is_gone.set(true);
            let text = format!("{gone}: this host has none left, or they were taken away");
            Refusal::new(Status::Invalid, text)
        })
    }

    /// Reads `pieces` into `memory`, which is writable and as long; what the file does not have is zeros.
    pub async fn fill(
        &self,
        plan: &Plan,
        pieces: &[Extent],
        memory: &Memory,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        self.file.verify(pieces).await?;
        if let Some(mapped) = &plan.mapped {
            // SAFETY: the memory is writable, as long as the pieces, and no part of a data file's pages.
            if self.noted(unsafe { mapped.copy_to(memory) })? {
                work.mapped(pieces);
                return Ok(());
            }
        }
        if plan.method == Method::Sieve
            && let Some(mut buffer) = self.sieve_buffer(&plan.groups)
        {
            let groups = fitting(&plan.groups, pieces, buffer.len());
            // In a box, as what is seldom: it makes every request larger.
            let filling = self.fill_by_sieving(&groups, plan.waits, pieces, memory, &mut buffer, work);
            return Box::pin(filling).await;
        }
        if plan.waits && pieces.len() > 1 {
            during(Part::Disk, self.file.fetch(pieces)).await;
        }
        let mut memory = MemoryCursor::over(memory);
        for piece in pieces {
            self.read_extent(*piece, &mut memory).await?;
        }
        work.read_each(pieces);
        Ok(())
    }

    async fn read_extent(&self, extent: Extent, memory: &mut MemoryCursor<'_>) -> Result<(), Refusal> {
        let begin = memory.here();
        let mut slices = memory.slices_mut(extent.bytes as usize);
        let present = during(Part::Disk, self.file.read_verified(extent.offset, &mut slices)).await?;
        if (present as u64) < extent.bytes {
            // Reading has used the slices up.
            let zeroed = { begin }.guarded(|begin| {
                zero_rest(&mut begin.slices_mut(extent.bytes as usize), present);
            });
            self.noted(zeroed)?;
        }
        Ok(())
    }

    async fn fill_by_sieving(
        &self,
        groups: &[Group],
        waits: bool,
        mut pieces: &[Extent],
        memory: &Memory,
        buffer: &mut Buffer,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        if waits {
            let extents: Vec<Extent> = groups.iter().map(|group| group.extent).collect();
            during(Part::Disk, self.file.fetch(&extents)).await;
        }
        let mut memory = MemoryCursor::over(memory);
        for group in groups {
            let (here, behind) = pieces.split_at(group.pieces as usize);
            pieces = behind;
            if !group.has_gaps() {
                self.read_extent(group.extent, &mut memory).await?;
                continue;
            }
            let whole = &mut buffer[..group.extent.bytes as usize];
            // Nobody sees what lies between the pieces.
            let mut slices = [IoSliceMut::new(&mut *whole)];
            let present =
                during(Part::Disk, self.file.read_verified(group.extent.offset, &mut slices)).await?;
            whole[present..].fill(0);
            let copied = memory.guarded(|memory| {
                for piece in here {
                    let at = (piece.offset - group.extent.offset) as usize;
                    memory.put(&whole[at..at + piece.bytes as usize]);
                }
            });
            self.noted(copied)?;
        }
        work.read_sieved(groups);
        Ok(())
    }

    /// Writes `memory`, which is readable and as long, to `pieces`.
    pub async fn store(
        &self,
        plan: &Plan,
        pieces: &[Extent],
        memory: &Memory,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        if let Some(mapped) = &plan.mapped {
            let _turn = during(Part::Turn, self.file.plain_turn(span(pieces))).await;
            let _change = during(Part::Disk, self.file.begin_change(pieces)).await?;
            // SAFETY: the memory is readable, as long as the pieces, and no part of a data file's pages.
            if self.noted(unsafe { mapped.copy_from(memory) })? {
                self.file.note_written()?;
                work.mapped(pieces);
                return Ok(());
            }
        }
        if plan.method == Method::Sieve
            && let Some(mut buffer) = self.sieve_buffer(&plan.groups)
        {
            let groups = fitting(&plan.groups, pieces, buffer.len());
            let storing = self.store_by_sieving(&groups, plan.waits, pieces, memory, &mut buffer, work);
            return Box::pin(storing).await;
        }
        if plan.waits && pieces.len() > 1 {
            // Pages that are written in part are read before, all at once instead of one by one.
            during(Part::Disk, self.file.fetch(pieces)).await;
        }
        let _turn = during(Part::Turn, self.file.plain_turn(span(pieces))).await;
        let change = during(Part::Disk, self.file.begin_change(pieces)).await?;
        let mut memory = MemoryCursor::over(memory);
        for piece in pieces {
            self.write_extent(&change, *piece, &mut memory).await?;
        }
        work.wrote_each(pieces);
        Ok(())
    }

    async fn write_extent(
        &self,
        change: &Change<'_>,
        extent: Extent,
        memory: &mut MemoryCursor<'_>,
    ) -> Result<(), Refusal> {
        let mut slices = memory.slices(extent.bytes as usize);
        Ok(during(Part::Disk, self.file.write_within(change, extent.offset, &mut slices)).await?)
    }

    async fn store_by_sieving(
        &self,
        groups: &[Group],
        waits: bool,
        mut pieces: &[Extent],
        memory: &Memory,
        buffer: &mut Buffer,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        if waits {
            let with_gaps = groups.iter().filter(|group| group.has_gaps());
            let extents: Vec<Extent> = with_gaps.map(|group| group.extent).collect();
            during(Part::Disk, self.file.fetch(&extents)).await;
        }
        let mut memory = MemoryCursor::over(memory);
        for group in groups {
            let (here, behind) = pieces.split_at(group.pieces as usize);
            pieces = behind;
            if !group.has_gaps() {
                let _turn = during(Part::Turn, self.file.plain_turn(group.extent)).await;
                let change = during(Part::Disk, self.file.begin_change(&[group.extent])).await?;
                self.write_extent(&change, group.extent, &mut memory).await?;
                continue;
            }
            let _turn = during(Part::Turn, self.file.exclusive_turn(group.extent)).await;
            let whole = &mut buffer[..group.extent.bytes as usize];
            during(Part::Disk, self.file.read_pieces(&[group.extent], whole)).await?;
            let copied = memory.guarded(|memory| {
                for piece in here {
                    let at = (piece.offset - group.extent.offset) as usize;
                    memory.get(&mut whole[at..at + piece.bytes as usize]);
                }
            });
            self.noted(copied)?;
            during(Part::Disk, self.file.write(group.extent.offset, whole)).await?;
        }
        work.wrote_sieved(groups);
        Ok(())
    }

    /// A buffer for the greatest group with gaps; `None` where memory is short, and sieving has to be left.
    fn sieve_buffer(&self, groups: &[Group]) -> Option<Buffer> {
        let with_gaps = groups.iter().filter(|group| group.has_gaps());
        let bytes = with_gaps.map(|group| group.extent.bytes).max().unwrap_or(1);
        self.pool.try_take_more(self.client, bytes.min(SIEVE_BYTES_MAX) as usize)
    }
}

/// The groups as they were planned, or smaller ones where the buffer is smaller.
fn fitting<'a>(groups: &'a [Group], pieces: &[Extent], buffer_bytes: usize) -> std::borrow::Cow<'a, [Group]> {
    let fits = |group: &Group| !group.has_gaps() || group.extent.bytes <= buffer_bytes as u64;
    if groups.iter().all(fits) {
        return groups.into();
    }
    sieve_groups(pieces.iter().copied(), buffer_bytes as u64, buffer_bytes as u64).into()
}

#[cfg(test)]
mod tests {
    use super::super::memory::memory_of;
    use super::super::plan::Planner;
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use weft_reactor::{Reactor, ReactorOptions};
    use weft_storage::{DataFiles, DiskEngine, Identity, LocalDisk, MemDisk};

    const FILE_BYTES: u64 = 200_000;
    const POOL_BYTES: usize = 4 << 20;

    #[derive(Debug, Clone)]
    struct Operation {
        write: bool,
        wish: Option<Method>,
        pieces: Vec<Extent>,
        /// Where the memory is cut, in thousandths.
        cut: usize,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let wish = prop_oneof![
            Just(None),
            Just(Some(Method::Each)),
            Just(Some(Method::Sieve)),
            Just(Some(Method::Mapped))
        ];
        let ascending = (0u64..5000, proptest::collection::vec((1u64..3000, 0u64..4000), 1..60)).prop_map(
            |(mut at, steps)| {
                let mut piece = |(bytes, gap): (u64, u64)| {
                    at += gap + bytes;
                    Extent::new(at - gap - bytes, bytes)
                };
                steps.into_iter().map(&mut piece).collect::<Vec<_>>()
            },
        );
        let anywhere = proptest::collection::vec((0u64..FILE_BYTES, 1u64..3000), 1..40)
            .prop_map(|pieces| pieces.into_iter().map(|(at, bytes)| Extent::new(at, bytes)).collect());
        let pieces = prop_oneof![3 => ascending, 1 => anywhere];
        (any::<bool>(), wish, pieces, 0usize..1000).prop_map(|(write, wish, pieces, cut)| Operation {
            write,
            wish,
            pieces,
            cut,
        })
    }

    /// Does the operations to a data file and to plain bytes, which must stay alike.
    async fn compare<D: Disk>(files: DataFiles<D>, operations: &[Operation]) {
        let (pool, corrections) = (BufferPool::new(POOL_BYTES).unwrap(), RefCell::default());
        let file = files.create(7).unwrap();
        let access = Access::new(&file, &pool, 1);
        let mut model: Vec<u8> = Vec::new();
        for (number, Operation { write, wish, pieces, cut }) in operations.iter().enumerate() {
            let planner = Planner {
                model: Default::default(),
                corrections: &corrections,
                write: *write,
                sync: false,
                wish: *wish,
                not_in_memory: Default::default(),
            };
            let local_bytes = file.size().unwrap();
            let plan = planner.plan(&file, pieces, local_bytes);
            let bytes: usize = pieces.iter().map(|piece| piece.bytes as usize).sum();
            let mut buffer: Vec<u8> = (0..bytes).map(|at| (at * 7 + number * 31) as u8).collect();
            let (front, behind) = buffer.split_at_mut(bytes * cut / 1000);
            let memory = [memory_of(front), memory_of(behind)];
            let mut work = Work::begin();
            if *write {
                access.store(&plan, pieces, &memory, &mut work).await.unwrap();
                let mut at = 0;
                for piece in pieces {
                    let (begin, end) = (piece.offset as usize, piece.end() as usize);
                    model.resize(model.len().max(end), 0);
                    model[begin..end].copy_from_slice(&buffer[at..at + end - begin]);
                    at += end - begin;
                }
            } else {
                access.fill(&plan, pieces, &memory, &mut work).await.unwrap();
                let wanted = pieces.iter().flat_map(|piece| piece.offset as usize..piece.end() as usize);
                let wanted: Vec<u8> = wanted.map(|at| model.get(at).copied().unwrap_or(0)).collect();
                assert!(buffer == wanted, "{number}: {:?}", plan.method);
            }
            assert_eq!(file.size().unwrap(), model.len() as u64);
        }
        let mut whole = vec![1; model.len()];
        file.read(0, &mut whole).await.unwrap();
        assert!(whole == model);
    }

    fn run(future: impl Future<Output = ()>) {
        Reactor::new(ReactorOptions::default()).unwrap().run(future);
    }

    const IDENTITY: Identity = Identity { cluster_id: [1; 16], server_id: 0 };

    fn formatted(directory: &tempfile::TempDir) -> &std::path::Path {
        weft_storage::Directory::format(directory.path(), &IDENTITY, &[2; 16]).unwrap();
        directory.path()
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(60))]
        #[test]
        fn every_method_does_the_same(operations in proptest::collection::vec(operation(), 1..12)) {
            run(compare(DataFiles::new(MemDisk::new(1 << 30)), &operations));
            let on_tmpfs = tempfile::tempdir_in("/dev/shm").unwrap();
            run(compare(DataFiles::new(LocalDisk::open(formatted(&on_tmpfs), &IDENTITY, DiskEngine::Plain).unwrap()), &operations));
            let on_disk = tempfile::tempdir().unwrap();
            run(compare(DataFiles::new(LocalDisk::open(formatted(&on_disk), &IDENTITY, DiskEngine::Ring).unwrap()), &operations));
        }
    }

    fn strided(count: u64, bytes: u64, stride: u64) -> Vec<Extent> {
        (0..count).map(|at| Extent::new(at * stride, bytes)).collect()
    }

    #[test]
    fn a_sieved_write_loses_no_write_between_its_pieces() {
        let files = DataFiles::new(MemDisk::new(1 << 30));
        let file = files.create(1).unwrap();
        run(async {
            file.write(0, &vec![0; 64 << 10]).await.unwrap();
            let writer = |odd: u64| {
                let file = file.clone();
                weft_reactor::spawn(async move {
                    let (pool, corrections) = (BufferPool::new(POOL_BYTES).unwrap(), RefCell::default());
                    let access = Access::new(&file, &pool, odd);
                    let pieces: Vec<Extent> =
                        strided(500, 64, 128).iter().map(|p| Extent::new(p.offset + odd * 64, 64)).collect();
                    for round in 1..=20u8 {
                        let wish = Some(if odd == 1 { Method::Sieve } else { Method::Each });
                        let planner = Planner {
                            model: Default::default(),
                            corrections: &corrections,
                            write: true,
                            sync: false,
                            wish,
                            not_in_memory: Default::default(),
                        };
                        let plan = planner.plan(&file, &pieces, 64 << 10);
                        let mut buffer = vec![round; 500 * 64];
                        let memory = [memory_of(&mut buffer)];
                        access.store(&plan, &pieces, &memory, &mut Work::begin()).await.unwrap();
                        weft_reactor::yield_now().await;
                        let mut seen = vec![0; 500 * 128];
                        file.read(0, &mut seen).await.unwrap();
                        let mine = |at: &usize| (*at as u64 / 64) % 2 == odd;
                        assert!(
                            (0..seen.len()).filter(mine).all(|at| seen[at] == round),
                            "round {round} of {odd}"
                        );
                    }
                })
            };
            let (first, second) = (writer(0), writer(1));
            first.await;
            second.await;
        });
    }

    #[test]
    fn sieving_goes_on_with_a_small_buffer() {
        let files = DataFiles::new(MemDisk::new(1 << 30));
        let file = files.create(1).unwrap();
        let pool = BufferPool::new(2 << 20).unwrap();
        let corrections = RefCell::default();
        run(async {
            let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 100) as u8).collect();
            file.write(0, &content).await.unwrap();
            // Another client's buffers leave little.
            let held: Vec<_> = std::iter::from_fn(|| pool.try_take_more(9, 512 << 10)).collect();
            assert!(!held.is_empty());
            let access = Access::new(&file, &pool, 1);
            let pieces = strided(1000, 100, 1000);
            let planner = Planner {
                model: Default::default(),
                corrections: &corrections,
                write: false,
                sync: false,
                wish: Some(Method::Sieve),
                not_in_memory: Default::default(),
            };
            let plan = planner.plan(&file, &pieces, 1 << 20);
            let mut buffer = vec![0; 100_000];
            let memory = [memory_of(&mut buffer)];
            access.fill(&plan, &pieces, &memory, &mut Work::begin()).await.unwrap();
            for (piece, got) in pieces.iter().zip(buffer.chunks(100)) {
                assert_eq!(got, &content[piece.offset as usize..piece.end() as usize]);
            }
        });
    }
}
