//! Nonblocking accesses: requests of the program's MPI, that end when Weft's operation has (generalized
//! requests, MPI 4.0, 13.2).
//!
//! ```text
//!   MPICH       MPIX_Grequest_start(…, poll, wait): MPI_Test and MPI_Wait drive Weft's operation
//!   Open MPI    a generalized request has nobody to drive it: the call ends when the operation has, as MPI
//!               allows, and the request is complete at once
//! ```

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use weft_client::PendingRaw;

use crate::abi::Handle;
use crate::error::Result;
use crate::file::MpiFile;
use crate::job::Job;
use crate::sync::lock;
use crate::turns;

/// An access under way, or over.
struct State {
    file: Arc<MpiFile>,
    progress: Mutex<Progress>,
}

struct Progress {
    /// Comes before `job`, whose buffer it may use.
    pending: Option<PendingRaw>,
    job: Job,
    /// Bytes of the program's data.
    result: Option<Result<u64>>,
    /// The program's request, once it is known.
    request: Option<Handle>,
}

impl State {
    /// Notes the end, and tells MPI of it.
    fn complete(&self, progress: &mut Progress, result: Result<u64>) -> c_int {
        if let Ok(bytes) = result {
            self.file.stats.note(progress.job.direction, bytes);
        }
        progress.result = Some(result);
        // SAFETY: the request is this state's, and is completed once.
        progress.request.map_or(0, |request| unsafe { (self.file.mpi.f.grequest_complete)(request) })
    }

    /// Moves it on; waits for the end if asked to.
    fn advance(&self, waits: bool) -> c_int {
        let mut progress = lock(&self.progress);
        if progress.result.is_some() || progress.request.is_none() {
            return 0;
        }
        let is_over = progress.pending.as_mut().is_none_or(PendingRaw::test);
        if !is_over && !waits {
            return 0;
        }
        let result = progress.pending.take().map_or(Ok(0), |pending| Ok(pending.wait()?));
        let result = result.and_then(|bytes| progress.job.finish(bytes));
        self.complete(&mut progress, result)
    }
}

/// Begins a job.
pub fn start(file: &Arc<MpiFile>, job: Job) -> Result<Handle> {
    let mpi = file.mpi;
    let is_pollable = mpi.has_pollable_requests() && !file.is_atomic();
    let (pending, job, result) = if is_pollable && !job.file.is_empty() {
        // SAFETY: the program's memory is this operation's until its request has ended, by the rules of MPI.
        let pending =
            unsafe { file.file.start_raw(job.direction, 0, job.memory.clone(), None, job.file.clone()) };
        (Some(pending), job, None)
    } else {
        let (result, job) = job.run_and_keep(file);
        if let Ok(bytes) = result {
            file.stats.note(job.direction, bytes);
        }
        (None, job, Some(result))
    };
    let is_over = result.is_some();
    let progress = Mutex::new(Progress { pending, job, result, request: None });
    let state = Box::into_raw(Box::new(State { file: file.clone(), progress }));
    let mut request = Handle(0);
    // SAFETY: the functions take the state, which lives until MPI frees the request.
    let code = unsafe {
        match mpi.f.pollable_grequest_start.filter(|_| is_pollable) {
            Some(start) => start(query, free, cancel, poll, wait, state.cast(), &mut request),
            None => (mpi.f.grequest_start)(query, free, cancel, state.cast(), &mut request),
        }
    };
    if code != 0 {
        // SAFETY: MPI has not taken it.
        drop(unsafe { Box::from_raw(state) });
        mpi.check("MPI_Grequest_start", code)?;
    }
    // SAFETY: the state lives at least until the request is freed, which is the program's to do.
    let state = unsafe { &*state };
    lock(&state.progress).request = Some(request);
    if is_over {
        // SAFETY: the request was made above.
        mpi.check("MPI_Grequest_complete", unsafe { (mpi.f.grequest_complete)(request) })?;
    }
    Ok(request)
}

unsafe extern "C" fn query(state: *mut c_void, status: *mut c_void) -> c_int {
    // SAFETY: MPI passes what the request was made with.
    let state = unsafe { &*state.cast::<State>() };
    let progress = lock(&state.progress);
    let mpi = state.file.mpi;
    let (bytes, code) = match &progress.result {
        Some(Ok(bytes)) => (*bytes, 0),
        Some(Err(error)) => (0, mpi.code(error)),
        None => (0, 0),
    };
    // SAFETY: MPI's status.
    unsafe { mpi.set_status(status, bytes) };
    code
}

unsafe extern "C" fn free(state: *mut c_void) -> c_int {
    // SAFETY: MPI passes what the request was made with, once.
    let state = unsafe { Box::from_raw(state.cast::<State>()) };
    // It may be the last that has the file.
    turns::without(|| drop(state));
    0
}

unsafe extern "C" fn cancel(_state: *mut c_void, _is_complete: c_int) -> c_int {
    // An access that has begun ends.
    0
}

unsafe extern "C" fn poll(state: *mut c_void, _status: *mut c_void) -> c_int {
    // SAFETY: as in `query`.
    unsafe { &*state.cast::<State>() }.advance(false)
}

unsafe extern "C" fn wait(
    count: c_int,
    states: *mut *mut c_void,
    _timeout: f64,
    _status: *mut c_void,
) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: MPI passes as many states as it says.
        let state = unsafe { &*(*states.add(index)).cast::<State>() };
        let code = state.advance(true);
        if code != 0 {
            return code;
        }
    }
    0
}
