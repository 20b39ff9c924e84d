//! Views of [`Core`] for tests outside of it.

use super::Core;
use crate::{
    draft_model::{DraftModel, ledger::DraftLedger},
    engine::board::{Board, Tally},
    masks::workers::MaskWorkers,
    plan::scheduler::Scheduler,
};

impl Core {
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn n_requests(&self) -> usize {
        self.lanes.requests().len()
    }

    pub(crate) fn mask_workers(&self) -> &MaskWorkers {
        self.masks.workers()
    }

    pub(crate) fn draft_model(&self) -> Option<&DraftModel> {
        self.drafts.model()
    }

    pub(crate) fn draft_ledger(&mut self) -> &mut DraftLedger {
        self.drafts
            .model_mut()
            .expect("it has a draft model")
            .ledger_mut()
    }
}
