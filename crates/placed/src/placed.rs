//! [`Placed`]: the backends of a split network, its placement, and the progress of its steps.
//!
//! Invariant: a side is used only for the parts that the placement gives it, so it allocates for its own parts only.

use std::sync::Arc;

use tokenmill_backend::{
    ForwardBatch, NetworkPart, PageGroup, Side, SplitOperations, StepShape, program::Interpreter,
};

use crate::{
    Overlap, Placement, StepThresholds,
    pass::{Mode, Pass},
    programs::Programs,
    results::Results,
};

/// A device made of two: parts of a network on `H`, the host, and the rest on `D`, the device.
pub struct Placed<H: SplitOperations, D: SplitOperations> {
    pub(crate) host: Interpreter<H>,
    pub(crate) device: Interpreter<D>,
    pub(crate) placement: Placement,
    /// Thresholds above which the device computes the parts that both sides have.
    thresholds: StepThresholds,
    /// The part of the next weights.
    pub(crate) part: NetworkPart,
    /// `None` until memory is allocated.
    pub(crate) programs: Option<Arc<Programs>>,
    /// Whether the device computes the parts that both sides have in the current step.
    pub(crate) goes_to_device: bool,
    pub(crate) overlap: Overlap,
    /// Whether tokens see later ones too.
    pub(crate) is_encoder: bool,
    /// The two parts of the current step, if it is cut.
    pub(crate) parts: [ForwardBatch; 2],
    pub(crate) is_cut: bool,
    /// The shape of the current step on each side.
    pub(crate) shapes: [Option<StepShape>; 2],
    /// The page groups of each side.
    pub(crate) groups: [Vec<PageGroup>; 2],
    pub(crate) results: Results,
    pub(crate) pass: Pass,
}

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Combines two backends that have no weights yet.
    pub fn new(host: H, device: D, placement: Placement) -> Self {
        Self {
            host: Interpreter::new(host),
            device: Interpreter::new(device),
            thresholds: StepThresholds::of_all(placement.min_device_tokens()),
            placement,
            part: NetworkPart::Common,
            programs: None,
            goes_to_device: false,
            overlap: Overlap::default(),
            is_encoder: false,
            parts: Default::default(),
            is_cut: false,
            shapes: [None; 2],
            groups: [Vec::new(), Vec::new()],
            results: Results::default(),
            pass: Pass::new(Mode::Run),
        }
    }

    /// Returns the device's backend alone, if the host has nothing to compute.
    pub fn into_device(self) -> D {
        self.device.backend
    }

    /// Changes the placement. Must be called before a load.
    pub fn set_placement(&mut self, placement: Placement) {
        self.thresholds = StepThresholds::of_all(placement.min_device_tokens());
        self.placement = placement;
    }

    /// Sets the number of tokens of a step from which the device computes the feed-forward networks that both
    /// sides have. Results depend on it only through rounding. Recorded segments are dropped, since their
    /// borders change.
    ///
    /// # Panics
    /// If the network was loaded for the device alone.
    pub fn set_thresholds(&mut self, thresholds: StepThresholds) {
        assert!(
            self.placement.min_device_tokens() > 1,
            "both sides have the networks"
        );
        self.thresholds = thresholds;
        self.device.backend.forget_segments();
    }

    /// Chooses the route of the next step from its numbers of tokens and sequences.
    pub(crate) fn choose_route(&mut self, n_tokens: usize, n_seqs: usize) {
        self.goes_to_device = self.thresholds.goes_to_device(n_tokens, n_seqs);
    }

    /// Sets which steps are computed in two parts. If a prompt is cut, results may differ in rounding, as
    /// with different chunks; they do not on backends with independent rows.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// Returns the placement.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the host's backend.
    pub fn host(&self) -> &H {
        &self.host.backend
    }

    /// Returns the device's backend.
    pub fn device(&self) -> &D {
        &self.device.backend
    }

    /// Returns the shape of the current step on a side.
    pub(crate) fn shape_on(&self, side: Side) -> StepShape {
        self.shapes[side as usize].expect("operations follow the beginning of a step")
    }
}
