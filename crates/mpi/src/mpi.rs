//! The MPI of this process: its functions as ones that return a [`Result`].

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::abi::{Abi, Family, Handle, Handles, Numbers};
use crate::error::{Class, MpiError, Result};
use crate::find::{self, Library};
use crate::functions::Functions;
use crate::report::report;
use crate::turns::turn;

/// An MPI that is known and loaded.
pub struct Mpi {
    /// Its family.
    pub abi: &'static Abi,
    /// Its predefined handles.
    pub handles: Handles,
    /// Its functions.
    pub f: Functions,
    /// Where it is loaded from.
    pub library: Library,
}

static MPI: OnceLock<Option<Mpi>> = OnceLock::new();

/// The MPI of this process; `None` if there is none to work with, and why was reported then.
pub fn mpi() -> Option<&'static Mpi> {
    MPI.get_or_init(|| match load() {
        Ok(mpi) => {
            report(|| format!("serves {} from {}", mpi.abi.name, mpi.library.path.to_string_lossy()));
            Some(mpi)
        }
        Err(reason) => {
            report(|| format!("is idle in this process: {reason}"));
            None
        }
    })
    .as_ref()
}

fn load() -> std::result::Result<Mpi, String> {
    let (abi, library) = find::find().map_err(|missing| missing.to_string())?;
    let lacks = |name: &str| format!("{} has no {name}", library.path.to_string_lossy());
    // SAFETY: the library is an MPI by its name and by the functions that it has.
    let f = unsafe { Functions::find(|name| library.function(name)) }.map_err(lacks)?;
    let handles = abi.predefined.find(|name| library.variable(name));
    let handles = handles.map_err(|name| lacks(&name.to_string_lossy()))?;
    Ok(Mpi { abi, handles, f, library })
}

/// Room for a status of any MPI.
pub const STATUS_WORDS: usize = 8;
/// So often who waits only lets others run.
const YIELDS: u32 = 50;
/// Then it sleeps, longer each time.
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// How long who waits sleeps before each look; 0: it lets others run.
fn pauses() -> impl Iterator<Item = Duration> {
    let longer = |asleep: &Duration| Some((*asleep * 5 / 4).min(SLEEP_MAX));
    let sleeps = std::iter::successors(Some(SLEEP_MIN), longer);
    std::iter::repeat_n(Duration::ZERO, YIELDS as usize).chain(sleeps)
}

/// Elementwise, over the processes of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The greatest.
    Max,
    /// The sum.
    Sum,
}

impl Mpi {
    /// Constants.
    pub fn numbers(&self) -> &'static Numbers {
        &self.abi.numbers
    }

    /// A result of one of its functions.
    pub fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(MpiError::from_mpi(code, format!("{what} of {} failed with error code {code}", self.abi.name)))
    }

    /// This process's rank, and the number of processes.
    pub fn rank_and_size(&self, comm: Handle) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: both are written.
        self.check("MPI_Comm_rank", unsafe { (self.f.comm_rank)(comm, &mut rank) })?;
        // SAFETY: as above.
        self.check("MPI_Comm_size", unsafe { (self.f.comm_size)(comm, &mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// Whether it is an intercommunicator.
    pub fn is_inter(&self, comm: Handle) -> bool {
        let mut flag = 0;
        // SAFETY: it is written.
        unsafe { (self.f.comm_test_inter)(comm, &mut flag) == 0 && flag != 0 }
    }

    /// A communicator of the same processes, whose messages do not mix with the program's.
    pub fn dup(&self, comm: Handle) -> Result<Handle> {
        let mut dup = Handle(0);
        self.collective("MPI_Comm_idup", |request| {
            let _turn = turn();
            // SAFETY: the new handle is written until the operation ends.
            unsafe { (self.f.comm_idup)(comm, &mut dup, request) }
        })?;
        Ok(dup)
    }

    /// Moves messages of this process on, as every function of MPI that waits has to. `comm` has none to it.
    pub fn progress(&self, comm: Handle, rank: usize) {
        let (mut is_there, ignored) = (0, self.abi.status_ignore as *mut c_void);
        // SAFETY: the flag is written.
        unsafe { (self.f.iprobe)(rank as c_int, 0, comm, &mut is_there, ignored) };
    }

    /// A communicator of this process alone that the program does not know. It stays. Its errors are returned.
    pub fn own_comm(&self) -> Result<Handle> {
        static OWN: OnceLock<Handle> = OnceLock::new();
        let _turn = turn();
        if let Some(own) = OWN.get() {
            return Ok(*own);
        }
        let mut own = Handle(0);
        // SAFETY: it is written.
        let code = unsafe { (self.f.comm_split)(self.handles.comm_self, 0, 0, &mut own) };
        self.check("MPI_Comm_split", code)?;
        // SAFETY: the communicator was made above; the handler is a predefined one.
        let code = unsafe { (self.f.comm_set_errhandler)(own, self.handles.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)?;
        Ok(*OWN.get_or_init(|| own))
    }

    /// Checks that a datatype is committed. MPI has no call that says so; packing nothing of it fails if it is
    /// not. An MPI that was built without checks of arguments takes it for committed.
    ///
    /// # Errors
    /// [`Class::Type`].
    pub fn check_committed(&self, datatype: Handle) -> Result<()> {
        let own = self.own_comm()?;
        let (nothing, mut room, mut position) = (0u64, 0u64, 0);
        let (from, to) = (ptr::from_ref(&nothing).cast(), ptr::from_mut(&mut room).cast());
        // SAFETY: no element is packed; the position is written.
        let code = unsafe { (self.f.pack)(from, 0, datatype, to, 8, &mut position, own) };
        if code == 0 {
            return Ok(());
        }
        Err(MpiError::new(Class::Type, "a datatype that is not committed; call MPI_Type_commit first"))
    }

    /// Gives a communicator back.
    pub fn free_comm(&self, comm: Handle) {
        let (mut comm, _turn) = (comm, turn());
        // SAFETY: it is one that was made here.
        unsafe { (self.f.comm_free)(&mut comm) };
    }

    /// Starts an operation of all processes, and waits for its end. What it uses lives until then.
    pub fn collective(&self, what: &str, start: impl FnOnce(&mut Handle) -> c_int) -> Result<()> {
        let mut request = Handle(0);
        self.check(what, start(&mut request))?;
        self.wait_for(request, self.abi.status_ignore as *mut c_void)
    }

    /// Waits for the end of what is under way. Blocking functions of MPI wait at full speed: where processes
    /// are more than processors, they take the time of those that they wait for.
    pub fn wait(&self, request: Handle, status: &mut [u64; STATUS_WORDS]) -> Result<()> {
        self.wait_for(request, status.as_mut_ptr().cast())
    }

    fn wait_for(&self, mut request: Handle, status: *mut c_void) -> Result<()> {
        for pause in pauses() {
            let mut is_done = 0;
            // SAFETY: all are written; the caller's status, if it is one, is one of this MPI.
            let code = unsafe { (self.f.test)(&mut request, &mut is_done, status) };
            self.check("MPI_Test", code)?;
            if is_done != 0 {
                break;
            }
            if pause.is_zero() {
                std::thread::yield_now();
            } else {
                std::thread::sleep(pause);
            }
        }
        Ok(())
    }

    /// Waits for all processes.
    pub fn barrier(&self, comm: Handle) -> Result<()> {
        // SAFETY: no memory is passed.
        self.collective("MPI_Ibarrier", |request| unsafe { (self.f.ibarrier)(comm, request) })
    }

    /// Bytes of process `root` to all.
    pub fn bcast(&self, bytes: &mut [u8], root: usize, comm: Handle) -> Result<()> {
        let count = count(bytes.len())?;
        let buffer = bytes.as_mut_ptr().cast();
        // SAFETY: the buffer has this many bytes.
        self.collective("MPI_Ibcast", |request| unsafe {
            (self.f.ibcast)(buffer, count, self.handles.byte, root as c_int, comm, request)
        })
    }

    /// Each number, reduced over the processes; all get the results.
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce, comm: Handle) -> Result<()> {
        let op = match reduce {
            Reduce::Max => self.handles.max,
            Reduce::Sum => self.handles.sum,
        };
        let (count, values) = (count(values.len())?, values.as_mut_ptr().cast());
        let (in_place, kind) = (self.abi.in_place(), self.handles.uint64);
        // SAFETY: there are this many numbers.
        self.collective("MPI_Iallreduce", |request| unsafe {
            (self.f.iallreduce)(in_place, values, count, kind, op, comm, request)
        })
    }

    /// The sum of `value` over all processes of lower rank.
    pub fn sum_below(&self, value: u64, rank: usize, comm: Handle) -> Result<u64> {
        let (mut below, kind, op) = (0u64, self.handles.uint64, self.handles.sum);
        let (from, to) = (ptr::from_ref(&value).cast(), ptr::from_mut(&mut below).cast());
        // SAFETY: both are one number.
        self.collective("MPI_Iexscan", |request| unsafe {
            (self.f.iexscan)(from, to, 1, kind, op, comm, request)
        })?;
        // What rank 0 gets is undefined.
        Ok(if rank == 0 { 0 } else { below })
    }

    /// Sets what a status says of a finished operation; does nothing for `MPI_STATUS_IGNORE`.
    ///
    /// # Safety
    /// `status` is the program's: a status, or to be ignored.
    pub unsafe fn set_status(&self, status: *mut c_void, bytes: u64) {
        if status as usize == self.abi.status_ignore {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            (self.f.status_set_elements)(status, self.handles.byte, bytes as i64);
            (self.f.status_set_cancelled)(status, 0);
        }
    }

    /// The value of an info's key, if it is set.
    pub fn info_value(&self, info: Handle, key: &str) -> Option<String> {
        if info == self.handles.info_null {
            return None;
        }
        let key = CString::new(key).ok()?;
        let mut value = vec![0u8; self.numbers().max_info_value_bytes as usize + 1];
        let (length, mut is_set) = (value.len() as c_int - 1, 0);
        // SAFETY: at most `length` bytes and a zero are written.
        let code =
            unsafe { (self.f.info_get)(info, key.as_ptr(), length, value.as_mut_ptr().cast(), &mut is_set) };
        if code != 0 || is_set == 0 {
            return None;
        }
        let text = CStr::from_bytes_until_nul(&value).ok()?.to_string_lossy();
        Some(text.trim().to_string())
    }

    /// A new info with these keys and values.
    pub fn new_info(&self, entries: &[(String, String)]) -> Result<Handle> {
        let mut info = Handle(0);
        // SAFETY: it is written.
        self.check("MPI_Info_create", unsafe { (self.f.info_create)(&mut info) })?;
        for (key, value) in entries {
            let (Ok(key), Ok(value)) = (CString::new(key.as_str()), CString::new(value.as_str())) else {
                continue;
            };
            // SAFETY: both are strings, which are copied.
            self.check("MPI_Info_set", unsafe { (self.f.info_set)(info, key.as_ptr(), value.as_ptr()) })?;
        }
        Ok(info)
    }

    /// A file of this MPI, of this process alone, whose handle stands for one of Weft's.
    pub fn open_shadow(&self) -> Result<usize> {
        let (comm, info, mode) = (self.own_comm()?, self.handles.info_null, self.numbers().mode_rdwr);
        let (mut shadow, _turn) = (0, turn());
        // SAFETY: the name is a string; the handle is written.
        let code = unsafe { (self.f.file_open)(comm, c"/dev/null".as_ptr(), mode, info, &mut shadow) };
        self.check("MPI_File_open of /dev/null", code)?;
        Ok(shadow)
    }

    /// Gives the file back, whose handle nobody uses any more.
    pub fn close_shadow(&self, shadow: usize) {
        let (mut shadow, _turn) = (shadow, turn());
        // SAFETY: it was opened by `open_shadow`.
        unsafe { (self.f.file_close)(&mut shadow) };
    }

    /// Bytes of data, and lower bound and extent, of a datatype.
    pub fn type_sizes(&self, datatype: Handle) -> Result<TypeSizes> {
        let refused = |code| match code {
            0 => Ok(()),
            _ => Err(MpiError::new(Class::Type, "this is no datatype, or one that was freed")),
        };
        if datatype == self.handles.datatype_null {
            refused(1)?;
        }
        let (mut size_bytes, mut lower_bound_bytes, mut extent_bytes) = (0, 0, 0);
        // SAFETY: all are written.
        refused(unsafe { (self.f.type_size)(datatype, &mut size_bytes) })?;
        // SAFETY: as above.
        refused(unsafe { (self.f.type_get_extent)(datatype, &mut lower_bound_bytes, &mut extent_bytes) })?;
        let size_bytes = u64::try_from(size_bytes)
            .map_err(|_| MpiError::new(Class::Type, "a datatype whose size cannot be represented"))?;
        Ok(TypeSizes { size_bytes, lower_bound_bytes, extent_bytes })
    }

    /// A handle of the same datatype, which stays when the program frees its own.
    pub fn dup_type(&self, datatype: Handle) -> Result<Handle> {
        let (mut dup, _turn) = (Handle(0), turn());
        // SAFETY: it is written.
        self.check("MPI_Type_dup", unsafe { (self.f.type_dup)(datatype, &mut dup) })?;
        Ok(dup)
    }

    /// Gives a datatype back that was made here.
    pub fn free_type(&self, datatype: Handle) {
        let (mut datatype, _turn) = (datatype, turn());
        // SAFETY: it is one that was made here.
        unsafe { (self.f.type_free)(&mut datatype) };
    }

    /// Whether requests can have a function that moves them on (MPICH and its family).
    pub fn has_pollable_requests(&self) -> bool {
        self.abi.family != Family::OpenMpi && self.f.pollable_grequest_start.is_some()
    }
}

/// Sizes of a datatype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeSizes {
    /// Bytes of data.
    pub size_bytes: u64,
    /// Where it begins.
    pub lower_bound_bytes: i64,
    /// From one to the next.
    pub extent_bytes: i64,
}

/// A number of elements as the functions take it.
pub fn count(elements: usize) -> Result<c_int> {
    c_int::try_from(elements)
        .map_err(|_| MpiError::new(Class::Intern, format!("{elements} elements in one message: too many")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use std::cell::RefCell;

    thread_local! {
        /// Looks until the operation is over, and the result of each look.
        static LEFT: RefCell<(u32, c_int)> = const { RefCell::new((0, 0)) };
        /// Requests and statuses of all looks.
        static LOOKS: RefCell<Vec<(Handle, usize)>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn test(request: *mut Handle, is_done: *mut c_int, status: *mut c_void) -> c_int {
        let (left, code) = LEFT.with_borrow_mut(|(left, code)| {
            *left -= 1;
            (*left, *code)
        });
        // SAFETY: as MPI_Test is called; a status that is not ignored has room for a number.
        unsafe {
            LOOKS.with_borrow_mut(|looks| looks.push((*request, status as usize)));
            *is_done = c_int::from(left == 0);
            if status as usize != crate::abi::MPICH.status_ignore {
                *status.cast::<u64>() = 77;
            }
        }
        code
    }

    fn mpi(looks: u32, code: c_int) -> &'static Mpi {
        LEFT.set((looks, code));
        LOOKS.take();
        // SAFETY: it has the parameters of MPI_Test.
        unsafe { double::mpi(&[("PMPI_Test", test as *const () as usize)]) }
    }

    fn start(request: &mut Handle) -> c_int {
        *request = Handle(9);
        0
    }

    #[test]
    fn an_operation_of_all_is_looked_at_until_it_is_over() {
        for looks in [1, 3, YIELDS + 5] {
            let mpi = mpi(looks, 0);
            mpi.collective("MPI_Ibarrier", start).unwrap();
            assert_eq!(LOOKS.take(), vec![(Handle(9), mpi.abi.status_ignore); looks as usize]);
        }
    }

    #[test]
    fn what_fails_to_start_or_to_end_is_an_error_with_the_code_of_mpi() {
        let not_started = mpi(1, 0).collective("MPI_Ibarrier", |_| 16).unwrap_err();
        assert!(
            not_started.text.contains("MPI_Ibarrier") && not_started.text.contains("16"),
            "{not_started}"
        );
        assert_eq!(LOOKS.take(), []);
        let mpi = mpi(5, 17);
        let not_ended = mpi.collective("MPI_Ibarrier", start).unwrap_err();
        assert!(not_ended.text.contains("MPI_Test") && mpi.code(&not_ended) == 17, "{not_ended}");
        assert_eq!(LOOKS.take().len(), 1);
    }

    #[test]
    fn who_waits_for_a_message_gets_its_status() {
        let mut status = [0; STATUS_WORDS];
        mpi(2, 0).wait(Handle(3), &mut status).unwrap();
        assert_eq!(status[0], 77);
        assert_eq!(LOOKS.take(), [(Handle(3), status.as_ptr() as usize); 2]);
    }

    #[test]
    fn who_waits_lets_others_run_and_then_sleeps_longer_and_longer() {
        let pauses: Vec<Duration> = pauses().take(YIELDS as usize + 40).collect();
        let (yields, sleeps) = pauses.split_at(YIELDS as usize);
        assert!(yields.iter().all(Duration::is_zero));
        assert_eq!(sleeps[..2], [SLEEP_MIN, SLEEP_MIN * 5 / 4]);
        assert!(sleeps.is_sorted() && sleeps.last() == Some(&SLEEP_MAX));
    }
}
