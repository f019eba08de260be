//! Quotas: limits and usage of users, groups and directory trees. Setting them is for administrators.
//!
//! How an open file gets more space under a quota is in `report.rs`.

use weft_wire::limits::QUOTA_ROWS_MAX;
use weft_wire::messages::{
    CountUsageRequest, ListQuotasReply, ListQuotasRequest, MarkTreeRequest, QuotaLimits, QuotaRow,
    SetQuotaRequest, quota_kind,
};

use crate::batch;
use crate::{At, Client, Result};

/// Usage and limits, and how far they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quotas {
    /// Whether usage is counted: from the first limit on.
    pub is_on: bool,
    /// While all usage is being counted: how many inodes are, of how many.
    pub counting: Option<(u64, u64)>,
    /// In order of kind and id.
    pub rows: Vec<QuotaRow>,
}

impl Client {
    /// Usage and limits of all that this client may see, of one kind ([`quota_kind`]) or of all.
    pub fn quotas(&self, kind: Option<u8>) -> Result<Quotas> {
        let mut quotas = Quotas { is_on: false, counting: None, rows: Vec::new() };
        let mut from = (kind.unwrap_or(quota_kind::USER), 0, true);
        loop {
            let page = self.quota_page(from, QUOTA_ROWS_MAX)?;
            quotas.is_on = page.is_on;
            quotas.counting = (page.to_count > 0).then_some((page.counted, page.to_count));
            let is_wanted = |row: &QuotaRow| kind.is_none_or(|kind| row.kind == kind);
            let is_end = page.is_last || page.rows.last().is_none_or(|row| !is_wanted(row));
            from = page.rows.last().map_or(from, |row| (row.kind, row.id, false));
            quotas.rows.extend(page.rows.into_iter().filter(is_wanted));
            if is_end {
                return Ok(quotas);
            }
        }
    }

    /// Usage and limits of one subject, if it uses something or has limits of its own.
    pub fn quota(&self, kind: u8, id: u64) -> Result<Option<QuotaRow>> {
        let page = self.quota_page((kind, id, true), 1)?;
        Ok(page.rows.into_iter().find(|row| (row.kind, row.id) == (kind, id)))
    }

    fn quota_page(&self, (kind, id, inclusive): (u8, u64, bool), rows_max: u32) -> Result<ListQuotasReply> {
        let request = ListQuotasRequest { caller: (*self.caller).clone(), kind, id, inclusive, rows_max };
        batch::ask(&self.inner, &request)
    }

    /// Sets the limits of a subject; `None` takes its own away.
    pub fn set_quota(&self, kind: u8, id: u64, limits: Option<QuotaLimits>) -> Result<()> {
        let request = SetQuotaRequest { kind, id, limits };
        batch::ask(&self.inner, &request).map(drop)
    }

    /// Makes a directory and all below it a tree that can have a quota, or takes that back. `progress` is told how many entries were
    /// marked so far. It can be done again where it was interrupted.
    pub fn mark_tree<'a>(
        &self,
        at: impl Into<At<'a>>,
        on: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<u64> {
        let tree = self.stat(at, true)?.ino;
        let (mut waiting, mut entries) = (vec![tree], 0);
        while let Some(dir) = waiting.pop() {
            let mut after = Some(0);
            while let Some(from) = after {
                let request = MarkTreeRequest { tree, dir, on, after: from };
                let page = batch::ask(&self.inner, &request)?;
                entries += u64::from(page.entries);
                progress(entries);
                waiting.extend(page.directories);
                after = page.next;
            }
        }
        Ok(tree)
    }

    /// Has all usage counted anew.
    pub fn count_usage(&self) -> Result<()> {
        batch::ask(&self.inner, &CountUsageRequest {}).map(drop)
    }
}
