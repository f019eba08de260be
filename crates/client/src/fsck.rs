//! Checks and backups of the whole file system, done by the metadata server.

use weft_wire::Added;
use weft_wire::messages::{BackupReply, BackupRequest, CheckReply, CheckRequest, TreatReply, TreatRequest};

use crate::batch;
use crate::{Client, Result};

impl Client {
    /// Begins the check with this number, chosen at random, or asks how far it is; `known` findings are not told again. Only
    /// for root and the owner of the root directory.
    pub fn check(&self, check: u64, known: u32) -> Result<CheckReply> {
        let request = CheckRequest { caller: self.caller().clone(), check, known };
        batch::ask(&self.inner, &request)
    }

    /// Has one finding of a finished check repaired, if it still holds; the reply comes when that is durable. A finding that data
    /// is lost is left, unless `accept_loss`.
    pub fn treat(&self, check: u64, finding: u32, accept_loss: bool) -> Result<TreatReply> {
        let (caller, accept_loss) = (self.caller().clone(), Added(accept_loss));
        let request = TreatRequest { caller, check, finding, accept_loss };
        batch::ask(&self.inner, &request)
    }

    /// Begins the backup of the names with this number, chosen at random, or gets the records behind the key `after`. Only for
    /// administrators.
    pub fn backup(&self, backup: u64, after: &[u8]) -> Result<BackupReply> {
        let request = BackupRequest { caller: self.caller().clone(), backup, after: after.to_vec() };
        batch::ask(&self.inner, &request)
    }
}
