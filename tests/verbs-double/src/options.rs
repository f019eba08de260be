//! What a pretended fabric is like: adapters, costs, and what goes wrong.

use std::net::{IpAddr, Ipv4Addr};
use weft_test_random::Random;
use weft_verbs::{DeviceLimits, LinkLayer, WorkStatus};

/// What a network of pretended adapters is like.
#[derive(Debug, Clone)]
pub struct PretendOptions {
    /// Where all chance comes from: the same seed and the same calls give the same run.
    pub seed: u64,
    /// The adapters of the first host.
    pub adapters: Vec<Adapter>,
    /// What things cost.
    pub costs: Costs,
    /// What goes wrong by itself.
    pub faults: Faults,
    /// When posted work is done.
    pub delivery: Delivery,
    /// What happens to a message for which the peer has no receive.
    pub not_ready: NotReady,
    /// What a registration does to its pages.
    pub pinning: Pinning,
    /// Bytes that one host may have registered in all; beyond, registering fails with `ENOMEM`.
    pub pinned_bytes_max: u64,
}

impl Default for PretendOptions {
    fn default() -> PretendOptions {
        PretendOptions {
            seed: weft_test_random::seed(),
            adapters: vec![Adapter::default()],
            costs: Costs::default(),
            faults: Faults::default(),
            delivery: Delivery::AtOnce,
            not_ready: NotReady::Wait,
            pinning: Pinning::Copied,
            pinned_bytes_max: u64::MAX,
        }
    }
}

/// One adapter of a host.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// As [`weft_verbs::Device::name`] gives it.
    pub name: String,
    /// What it is reached at.
    pub addresses: Vec<IpAddr>,
    /// What it can do. The link layer is always [`LinkLayer::Pretended`].
    pub limits: DeviceLimits,
    /// Room for work that is taken at once.
    pub inline_bytes_max: u32,
}

impl Adapter {
    /// One with the usual limits.
    pub fn new(name: &str, address: IpAddr) -> Adapter {
        const INLINE_BYTES: u32 = 512;
        Adapter {
            name: name.to_string(),
            addresses: vec![address],
            limits: usual_limits(),
            inline_bytes_max: INLINE_BYTES,
        }
    }
}

impl Default for Adapter {
    fn default() -> Adapter {
        Adapter::new("pretend0", IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// About what today's adapters can do.
pub fn usual_limits() -> DeviceLimits {
    DeviceLimits {
        link_layer: LinkLayer::Pretended,
        send_pieces_max: 30,
        read_pieces_max: 30,
        send_depth_max: 8192,
        reads_out_max: 16,
        reads_in_max: 16,
        shared_receives_max: 32 * 1024,
        completions_max: 1 << 20,
        registrations_max: 1 << 20,
        registration_bytes_max: 1 << 40,
        windows: true,
        binds_alone: false,
        on_demand: false,
    }
}

/// What things cost, in time that nobody waits for: it is only added up ([`crate::Charged`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Of a registration.
    pub registration_ns: u64,
    /// Of each page in it.
    pub registration_page_ns: u64,
    /// Of ending a registration.
    pub deregistration_ns: u64,
    /// Of each page in it.
    pub deregistration_page_ns: u64,
    /// Of one ring of the doorbell.
    pub doorbell_ns: u64,
    /// Of a piece of work, and of a receive.
    pub work_ns: u64,
    /// Of each local piece of memory in it.
    pub piece_ns: u64,
    /// Of 1024 bytes that are moved.
    pub kilobyte_ns: u64,
    /// Of a completion.
    pub completion_ns: u64,
    /// Of looking at a completion queue.
    pub poll_ns: u64,
    /// Of being woken.
    pub wakeup_ns: u64,
}

impl Default for Costs {
    /// Registration as measured for "Noncontiguous I/O Accesses Through MPI-IO" and its companion on PVFS (section 4.3:
    /// 0.77 and 0.23 µs a page, 7.42 and 1.1 µs a call); the rest is of the order of an adapter of 100 Gbit/s.
    fn default() -> Costs {
        Costs {
            registration_ns: 7420,
            registration_page_ns: 770,
            deregistration_ns: 1100,
            deregistration_page_ns: 230,
            doorbell_ns: 150,
            work_ns: 50,
            piece_ns: 10,
            kilobyte_ns: 85,
            completion_ns: 40,
            poll_ns: 15,
            wakeup_ns: 4000,
        }
    }
}

/// What goes wrong by itself. Counts are of the whole network and begin at 1.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Registrations that are refused with `ENOMEM`.
    pub refused_registrations: When,
    /// Work that fails when its turn comes, and how.
    pub failed_work: Option<(When, WorkStatus)>,
    /// Work in whose place the network between the two ends breaks for good.
    pub broken_connections: When,
}

/// Which of many.
#[derive(Debug, Clone, Default)]
pub enum When {
    /// None.
    #[default]
    Never,
    /// Those with these numbers.
    At(Vec<u64>),
    /// By chance, one in so many.
    OneIn(u32),
}

impl When {
    pub(crate) fn strikes(&self, number: u64, random: &mut Random) -> bool {
        match self {
            When::Never => false,
            When::At(numbers) => numbers.contains(&number),
            When::OneIn(many) => random.below(u64::from(*many).max(1)) == 0,
        }
    }
}

/// When posted work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// While it is posted.
    AtOnce,
    /// By chance: connections overtake each other, and what follows a read that is not fenced overtakes its answer. A few
    /// pieces are done whenever something is posted or a completion queue is looked at; while a completion queue is
    /// armed, and so somebody may sleep, nothing is held back.
    Shuffled,
}

/// What happens to a message for which the peer has no receive. It is counted in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// It waits until there is one.
    Wait,
    /// It fails, and the connection with it.
    Fail,
}

/// What a registration does to its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinning {
    /// Nothing: they are looked at when it is made, and what is mapped there later is used.
    Copied,
    /// They are pinned by the kernel, as registered buffers of an io_uring, and used as they were then: memory that is
    /// unmapped and mapped again is not what was registered, as with a real adapter. Pages that cannot be written to
    /// cannot be pinned so: they are [`Pinning::Copied`]. At most 16384 registrations, of 1 GiB each.
    Pinned,
}
