//! [`Placed`]: the backends of a split network, its placement, and the sizes of each side's slots.
//!
//! Invariant: a side is used only for the parts that the placement gives it, so it allocates for its own parts only.

use std::{collections::VecDeque, sync::Arc};

use tokenmill_backend::{
    BackendError, ForwardBatch, KvLayout, MatrixUsage, NetworkPart, PageGroup, Side, SplitOperations,
    StateLayout, StepOutput, StepShape,
    program::{Interpreter, Op, Prepared},
};

use crate::{
    Overlap, Placement, StepThresholds,
    schedule::{Schedule, WeightSides},
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
    pub(crate) weights: WeightSides,
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

/// The programs of a network, and what each variant of them does.
pub(crate) struct Programs {
    pub(crate) prepared: Prepared,
    /// By route, to the host or to the device, and by variant.
    pub(crate) schedules: [Vec<Schedule>; 2],
    pub(crate) of_empty_step: Op,
}

/// The mode and progress of the current pass over the actions.
pub(crate) struct Pass {
    pub(crate) mode: Mode,
    /// Index of the device's next or open segment: its operations between two borders.
    pub(crate) segment: usize,
    pub(crate) is_open: bool,
}

/// How a pass executes actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs them.
    Run,
    /// Records the device's operations and runs none.
    Record,
    /// Runs the host's operations and replays the device's.
    Replay,
}

impl Pass {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            segment: 0,
            is_open: false,
        }
    }
}

/// Results fetched from the device before the caller asked, because the host needed their tokens.
#[derive(Default)]
pub(crate) struct Results {
    /// For each step that ran and was not fetched, its number of parts, each with a result on the device.
    pub(crate) open: VecDeque<usize>,
    pub(crate) taken: VecDeque<Result<StepOutput, BackendError>>,
    /// The tokens of the newest fetched step, 0 for a row without one; `None` if fetching failed.
    pub(crate) newest: Option<Vec<u32>>,
    pub(crate) spare: Option<StepOutput>,
    /// The results of a second part.
    pub(crate) second: StepOutput,
    /// The current step's batch, with the ids of its tokens.
    pub(crate) batch: ForwardBatch,
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
            weights: WeightSides::default(),
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

    /// Returns the layers of the KV store on a side; their order gives their indices.
    pub(crate) fn kv_layout_of(&self, side: Side, layout: &KvLayout) -> KvLayout {
        let here = (self.placement).stored_on(side, NetworkPart::Kv, layout.layers.len());
        KvLayout {
            layers: here.iter().map(|&kv_idx| layout.layers[kv_idx]).collect(),
            groups: here.iter().map(|&kv_idx| layout.groups[kv_idx]).collect(),
            ..layout.clone()
        }
    }

    /// Returns the layers of the store of states on a side; their order gives their indices.
    pub(crate) fn state_layout_of(&self, side: Side, layout: &StateLayout) -> StateLayout {
        let here = (self.placement).stored_on(side, NetworkPart::State, layout.layers.len());
        StateLayout {
            layers: here.iter().map(|&state_idx| layout.layers[state_idx]).collect(),
            n_states: layout.n_states,
        }
    }

    /// Returns the uses of a part's matrix on one side; `None` if it is not there. A token embedding that is also the head is
    /// on the device too.
    pub(crate) fn usage_on(&self, side: Side, part: NetworkPart, usage: MatrixUsage) -> Option<MatrixUsage> {
        let sides = self.placement.sides(part);
        match (usage, side) {
            (MatrixUsage::Tied, Side::Host) if !sides.has(Side::Device) => Some(MatrixUsage::Embedding),
            (MatrixUsage::Tied, Side::Device) if !sides.has(Side::Device) => Some(MatrixUsage::Linear),
            _ => sides.has(side).then_some(usage),
        }
    }
}
