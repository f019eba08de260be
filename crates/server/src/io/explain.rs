//! Telling how requests would be served, and by which cost model.

use super::IoPart;
use super::plan::{Planner, SIEVE_BYTES_MAX, flag_of};
use super::units::{Share, Units};
use crate::answer::{Answer, Refusal};
use crate::log;
use std::io;
use weft_layout::Extent;
use weft_storage::cost::{Choice, CostModel, Curve, Method, WindowShape, choose, sieve_groups};
use weft_storage::{DataFile, Disk};
use weft_transport::ServerBulk;
use weft_wire::Status;
use weft_wire::messages::*;

impl<D: Disk> IoPart<D> {
    /// Plans this server's share of the regions as it would be read or written now through buffers for `bulk`, and touches no
    /// data.
    pub async fn explain<B: ServerBulk>(&self, request: ExplainRequest, bulk: &B) -> Result<Answer, Refusal> {
        let (unit_bytes, is_gone) = (bulk.info().unit_bytes, || bulk.is_gone());
        let right = if request.write { rights::WRITE } else { rights::READ };
        let (ino, layout) = self.admit(&request.capability, right, request.slot)?;
        if request.flags & !io_flags::SYNC != 0 {
            return Err(Refusal::new(Status::Invalid, "unknown flags of a request to explain"));
        }
        let file = self.files.open(ino)?;
        let local_bytes = file.as_ref().map_or(Ok(0), DataFile::size)?;
        let share = Share::of(&layout, request.slot, &request.regions, local_bytes, &is_gone).await?;
        let end = if request.write { share.bytes } else { share.filled_bytes };
        let planner = self.planner(request.write, request.flags & io_flags::SYNC != 0, None);
        let mut told = Told::default();
        let mut units = Units::new(&layout, request.slot, &request.regions, end);
        while let Some(unit) = units.next_at_most(unit_bytes, &is_gone).await? {
            let (shape, choice) = look(&planner, file.as_ref(), &unit.pieces, local_bytes);
            let factor = self.corrections.borrow().factor(choice.method, request.write, shape.is_cached());
            told.add(&shape, &choice, factor);
            weft_reactor::yield_now().await;
        }
        Ok(Answer::of(&told.reply(share.bytes, local_bytes)))
    }

    /// Tells the cost model, measured anew on a thread of its own if that is wanted.
    pub async fn calibrate(&self, server: &str, request: CalibrateRequest) -> Result<Answer, Refusal> {
        if request.measure {
            let (sender, mut result) = weft_reactor::mailbox(1);
            let calibration = self.calibration.clone();
            let measure = move || drop(sender.send(calibration.measure_anew()));
            std::thread::Builder::new()
                .name("weft-calibrate".into())
                .spawn(measure)
                .map_err(|error| Refusal::new(Status::Limit, format!("cannot start a thread: {error}")))?;
            let measured = result.receive().await;
            measured
                .unwrap_or_else(|| Err(io::Error::other("the measuring thread failed")))
                .map_err(unmeasured)?;
            log::info!(server, "measured anew what accesses cost here, as was asked");
        }
        Ok(Answer::of(&report(&self.calibration.model.get())))
    }
}

/// The shape of a unit and what was chosen for it; pieces of a file that is not there yet are all beyond its end.
fn look<D: Disk>(
    planner: &Planner<'_>,
    file: Option<&DataFile<D>>,
    pieces: &[Extent],
    local_bytes: u64,
) -> (WindowShape, Choice) {
    let planned = file.and_then(|file| planner.plan(file, pieces, local_bytes).chosen);
    planned.unwrap_or_else(|| {
        let cached = file.is_none_or(|file| pieces.iter().all(|piece| file.resident(*piece)));
        let gap_bytes_max = planner.model.gap_bytes_max(planner.write, cached);
        let groups = sieve_groups(pieces.iter().copied(), gap_bytes_max, SIEVE_BYTES_MAX);
        let shape = WindowShape {
            sync: planner.sync,
            cached_fraction: f64::from(cached),
            ..WindowShape::of(planner.write, pieces, &groups, local_bytes)
        };
        let choice = choose(&planner.model, &planner.corrections.borrow(), &shape);
        (shape, choice)
    })
}

/// Sums over units.
#[derive(Default)]
struct Told {
    pieces: u64,
    windows: u64,
    single_windows: u64,
    groups: u64,
    cached_bytes: f64,
    chosen_cost_ns: f64,
    methods: [MethodSum; 3],
}

#[derive(Default, Clone, Copy)]
struct MethodSum {
    chosen_windows: u64,
    possible_windows: u64,
    cost_ns: f64,
    accesses: u64,
    accessed_bytes: u64,
}

impl MethodSum {
    fn report(&self, method: u32) -> PlanReport {
        PlanReport {
            method,
            chosen_windows: self.chosen_windows,
            possible_windows: self.possible_windows,
            cost_ns: self.cost_ns as u64,
            accesses: self.accesses,
            accessed_bytes: self.accessed_bytes,
        }
    }
}

impl Told {
    fn add(&mut self, shape: &WindowShape, choice: &Choice, factor: f64) {
        self.pieces += shape.pieces;
        self.windows += 1;
        self.single_windows += u64::from(shape.pieces == 1);
        self.groups += shape.groups;
        self.cached_bytes += shape.cached_fraction * shape.wanted_bytes as f64;
        for method in Method::ALL {
            let Some(prediction) = choice.prediction(method) else { continue };
            let sum = &mut self.methods[method as usize];
            sum.possible_windows += 1;
            sum.accesses += prediction.accesses;
            sum.accessed_bytes += prediction.accessed_bytes;
            sum.cost_ns += prediction.cost_ns + prediction.sync_ns;
            if method == choice.method {
                sum.chosen_windows += 1;
                self.chosen_cost_ns += prediction.cost_ns * factor + prediction.sync_ns;
            }
        }
    }

    fn reply(self, bytes: u64, local_bytes: u64) -> ExplainReply {
        ExplainReply {
            pieces: self.pieces,
            bytes,
            windows: self.windows,
            single_windows: self.single_windows,
            groups: self.groups,
            cached_bytes: self.cached_bytes as u64,
            local_bytes,
            chosen_cost_ns: self.chosen_cost_ns as u64,
            plans: Method::ALL.map(|method| self.methods[method as usize].report(flag_of(method))).to_vec(),
        }
    }
}

fn unmeasured(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            Refusal::new(Status::Busy, "a measurement is under way; ask for its result in a second")
        }
        io::ErrorKind::Unsupported => {
            Refusal::new(Status::Unsupported, "this server's data is in no directory to measure in")
        }
        _ => Refusal::new(
            Status::Io,
            format!("cannot measure what accesses cost: {error}; the present model stays"),
        ),
    }
}

fn report(model: &CostModel) -> CalibrateReply {
    let curve = |name: &str, curve: &Curve| CurveReport {
        name: name.to_owned(),
        points: curve.points().iter().map(|(bytes, ns)| CurvePoint { bytes: *bytes, ns: *ns }).collect(),
    };
    CalibrateReply {
        measured_s: model.measured_s,
        page_fault_ns: model.page_fault_ns,
        page_fault_write_ns: model.page_fault_write_ns,
        new_page_ns: model.new_page_ns,
        lock_ns: model.lock_ns,
        read_gap_cached_bytes: model.gap_bytes_max(false, true),
        read_gap_device_bytes: model.gap_bytes_max(false, false),
        write_gap_cached_bytes: model.gap_bytes_max(true, true),
        write_gap_device_bytes: model.gap_bytes_max(true, false),
        curves: vec![
            curve("read_cached", &model.read_cached),
            curve("read_device", &model.read_device),
            curve("write_cached", &model.write_cached),
            curve("write_device", &model.write_device),
            curve("copy", &model.copy),
            curve("mapped_read", &model.mapped_read),
            curve("mapped_write", &model.mapped_write),
            curve("sync", &model.sync),
        ],
    }
}
