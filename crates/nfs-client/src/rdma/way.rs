//! From an address to a link.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weft_transport::registration::{ForeignMemory, RegistrationCache, RegistrationOptions};
use weft_verbs::{Device, Endpoint, Fabric, TrafficClass};

use super::link::RdmaLink;
use super::memory::{RdmaDesign, RdmaMemory};
use super::status::{RdmaCounts, RdmaStatus};
use crate::link::{Begun, Lost, Way};

/// How connections over RDMA are made.
pub(crate) struct RdmaWay<F: Fabric> {
    fabric: F,
    design: RdmaDesign,
    memory: RdmaMemory,
    counts: RdmaCounts,
    cache: Option<RegistrationCache<F::Device>>,
}

impl<F: Fabric> RdmaWay<F> {
    pub(crate) fn new(fabric: F, design: RdmaDesign, memory: RdmaMemory) -> RdmaWay<F> {
        RdmaWay { fabric, design, memory, counts: RdmaCounts::default(), cache: None }
    }

    /// The registrations with an adapter: those of before, unless the way leads over another one now.
    fn cache_of(&mut self, device: &Arc<F::Device>) -> RegistrationCache<F::Device> {
        let known = self.cache.take().filter(|cache| Arc::ptr_eq(cache.device(), device));
        let foreign = match self.memory {
            RdmaMemory::Each | RdmaMemory::Copied => ForeignMemory::NotCached,
            RdmaMemory::Cached | RdmaMemory::Windows => ForeignMemory::Watched,
        };
        let options = RegistrationOptions {
            foreign,
            windows: self.memory == RdmaMemory::Windows,
            ..RegistrationOptions::default()
        };
        let cache = known.unwrap_or_else(|| RegistrationCache::new(device.clone(), options));
        self.cache = Some(cache.clone());
        cache
    }
}

impl<F: Fabric> Way for RdmaWay<F> {
    fn begin(&mut self, address: SocketAddr, patience: Duration) -> Result<Begun, Lost> {
        let lost = |error: weft_verbs::VerbsError| Lost::new(error.to_string());
        let endpoint = self.fabric.resolve(address, TrafficClass::default(), patience).map_err(lost)?;
        let device = endpoint.device();
        if self.memory == RdmaMemory::Windows && !device.limits().windows {
            return Err(Lost::new(format!(
                "the adapter {} has no memory windows; use rdma-memory=cached",
                device.name()
            )));
        }
        let cache = self.cache_of(&device);
        let (design, memory, counts) = (self.design, self.memory, self.counts.clone());
        let link = RdmaLink::<F>::connect(endpoint, design, memory, cache, counts, patience)?;
        self.counts.update(|totals| totals.connections += 1);
        Ok(Begun::Made(Box::new(link)))
    }

    fn rdma_status(&self) -> Option<RdmaStatus> {
        let cache = self.cache.as_ref()?;
        Some(RdmaStatus {
            device: cache.device().name().into(),
            design: self.design,
            memory: self.memory,
            totals: self.counts.totals(),
            registrations: cache.stats(),
            counts: cache.device().counters().counts(),
        })
    }
}
