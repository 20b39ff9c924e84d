//! [`Placed`]: the two backends, what each has, and where the next operation runs.
//!
//! Separate from the operations, which all follow one rule: an operation runs on the side of the part that was entered last, or
//! where its weights are, where these are on the other side alone. Invariant: a side is asked for nothing that the placement
//! does not give it, so it allocates for its own parts only.

use std::collections::VecDeque;

use tokenmill_backend::{
    Allocation, BackendError, ForwardBatch, KvLayerShape, KvLayout, MatrixData, MatrixUsage, Memory,
    NetworkPart, PageGroup, Side, SplitOperations, StateLayout, StepOutput, StepShape,
};

use crate::{Kept, Overlap, PlacedBuffer, Placement, StepThresholds, buffer::copy, placement::Sides};

/// A backend made of two: parts of a network on `H`, the host, and the rest on `D`, the device.
pub struct Placed<H: SplitOperations, D: SplitOperations> {
    pub(crate) host: H,
    pub(crate) device: D,
    pub(crate) placement: Placement,
    /// From where on the device computes what both sides have.
    thresholds: StepThresholds,
    /// The part whose allocations or operations come next, and where they are.
    part: NetworkPart,
    pub(crate) now: Side,
    /// Whether the device computes what both sides have in the current step.
    pub(crate) goes_to_device: bool,
    pub(crate) overlap: Overlap,
    /// Whether tokens see those after them too.
    pub(crate) is_encoder: bool,
    /// Where the current step has two parts: each of them.
    pub(crate) parts: [ForwardBatch; 2],
    pub(crate) is_cut: bool,
    /// The current step as each side counts it.
    pub(crate) shapes: [Option<StepShape>; 2],
    /// Shapes of the layers of the KV store, and their numbers on each side.
    pub(crate) kv_shapes: Vec<KvLayerShape>,
    kv_places: Vec<[usize; 2]>,
    /// The page groups of each side.
    pub(crate) groups: [Vec<PageGroup>; 2],
    /// Numbers of the layers of the store of states on their sides.
    state_places: Vec<usize>,
    pub(crate) results: Results,
    pub(crate) pass: Pass,
}

/// How the current pass over the operations runs, and how far it is.
pub(crate) struct Pass {
    pub(crate) mode: Mode,
    /// The number of the device's next or open segment: its operations between two borders.
    segment: usize,
    is_open: bool,
}

/// What a pass does with operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs them.
    Run,
    /// Records the device's and runs none.
    Record,
    /// Runs the host's and replays the device's.
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

/// Results that were taken from the device before anybody asked for them, since the host needed their tokens.
#[derive(Default)]
pub(crate) struct Results {
    /// Of each step that ran and was not taken, its parts: results of the device.
    pub(crate) open: VecDeque<usize>,
    pub(crate) taken: VecDeque<Result<StepOutput, BackendError>>,
    /// The tokens of the newest step that was taken, 0 where a row has none; `None` where taking it failed.
    pub(crate) newest: Option<Vec<u32>>,
    pub(crate) spare: Option<StepOutput>,
    /// The results of a second part.
    pub(crate) second: StepOutput,
    /// The current step's batch, with the ids of its tokens.
    pub(crate) batch: ForwardBatch,
}

/// Runs an operation on a side: `$own` is its backend, `$of` picks its weights and buffers. The end of an operation: where the pass
/// runs none, it returns.
macro_rules! on_side {
    ($self:ident, $side:expr, |$own:ident, $of:ident| $run:expr) => {{
        if !$self.runs_on($side)? {
            return Ok(());
        }
        match $side {
            Side::Host => {
                let ($own, $of) = (&mut $self.host, OfHost);
                $run
            }
            Side::Device => {
                let ($own, $of) = (&mut $self.device, OfDevice);
                $run
            }
        }
    }};
}
pub(crate) use on_side;

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Joins two backends that have no weights yet.
    pub fn new(host: H, device: D, placement: Placement) -> Self {
        Self {
            host,
            device,
            thresholds: StepThresholds::of_all(placement.min_device_tokens()),
            placement,
            part: NetworkPart::Common,
            now: Side::Device,
            goes_to_device: false,
            overlap: Overlap::default(),
            is_encoder: false,
            parts: Default::default(),
            is_cut: false,
            shapes: [None; 2],
            kv_shapes: Vec::new(),
            kv_places: Vec::new(),
            groups: [Vec::new(), Vec::new()],
            state_places: Vec::new(),
            results: Results::default(),
            pass: Pass::new(Mode::Run),
        }
    }

    /// The device's backend alone, where nothing is to be the host's.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Places the network otherwise. To be called before a load.
    pub fn set_placement(&mut self, placement: Placement) {
        self.thresholds = StepThresholds::of_all(placement.min_device_tokens());
        self.placement = placement;
    }

    /// Sets from how many tokens of a step on the device computes the feed-forward networks that both sides have. Results do not
    /// depend on it beyond rounding. What was recorded is forgotten, since its borders were others.
    ///
    /// # Panics
    /// If the network was loaded for the device alone.
    pub fn set_thresholds(&mut self, thresholds: StepThresholds) {
        assert!(
            self.placement.min_device_tokens() > 1,
            "both sides have the networks"
        );
        self.thresholds = thresholds;
        self.device.forget_segments();
    }

    /// Notes how many tokens the step that begins has, of how many sequences.
    pub(crate) fn choose_route(&mut self, n_tokens: usize, n_seqs: usize) {
        self.goes_to_device = self.thresholds.goes_to_device(n_tokens, n_seqs);
    }

    /// Sets which steps are computed in two parts. Where a prompt is cut, results may differ in rounding, as they do by its chunks; on
    /// backends whose rows do not depend on each other they do not.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// What each side has.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The host's backend.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The device's backend.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Brings the first values of a buffer to a side.
    pub(crate) fn bring(
        &mut self,
        side: Side,
        buffer: &PlacedBuffer<H::Buffer, D::Buffer>,
        n_values: usize,
    ) -> Result<(), BackendError> {
        let n_missing = buffer.n_missing(side, n_values);
        if n_missing == 0 {
            return Ok(());
        }
        let (Some(on_host), Some(on_device)) = (&buffer.host, &buffer.device) else {
            return Err(crate::buffer::absent());
        };
        self.leave_device()?;
        if self.pass.mode != Mode::Record {
            copy(
                (&mut self.host, on_host),
                (&mut self.device, on_device),
                side,
                n_missing,
            )?;
        } else if side == Side::Device {
            self.device.will_be_filled(&mut on_device.borrow_mut());
        }
        buffer.brought(n_missing);
        Ok(())
    }

    /// Comes to an operation of a side; says whether the pass runs it.
    pub(crate) fn runs_on(&mut self, side: Side) -> Result<bool, BackendError> {
        if side == Side::Host {
            self.leave_device()?;
            return Ok(self.pass.mode != Mode::Record);
        }
        if self.pass.mode == Mode::Run {
            return Ok(true);
        }
        let is_first = !std::mem::replace(&mut self.pass.is_open, true);
        match self.pass.mode {
            Mode::Record if is_first => self.device.begin_segment()?,
            Mode::Replay if is_first => {
                let shape = self.shape_on(Side::Device);
                self.device.replay_segment(&shape, self.pass.segment)?;
            }
            _ => {}
        }
        Ok(self.pass.mode == Mode::Record)
    }

    /// Comes to a border: what the device does from here on is another segment.
    pub(crate) fn leave_device(&mut self) -> Result<(), BackendError> {
        if std::mem::replace(&mut self.pass.is_open, false) {
            self.pass.segment += 1;
            if self.pass.mode == Mode::Record {
                self.device.end_segment()?;
            }
        }
        Ok(())
    }

    /// Where an operation with a weight runs.
    pub(crate) fn side_of<A, B>(&self, weight: Option<&Kept<A, B>>) -> Side {
        match weight {
            Some(weight) if !weight.is_on(self.now) => self.now.other(),
            _ => self.now,
        }
    }

    /// The side and the number there of a layer of the KV store.
    pub(crate) fn kv_place(&self, kv_idx: usize) -> (Side, usize) {
        let side = self.placement.side(NetworkPart::Kv(kv_idx), true, self.now);
        (side, self.kv_places[kv_idx][side as usize])
    }

    /// The side and the number there of a layer of the store of states.
    pub(crate) fn state_place(&self, state_idx: usize) -> (Side, usize) {
        let side = self.placement.side(NetworkPart::State(state_idx), true, self.now);
        (side, self.state_places[state_idx])
    }

    /// The current step as a side counts it.
    pub(crate) fn shape_on(&self, side: Side) -> StepShape {
        self.shapes[side as usize].expect("operations follow the beginning of a step")
    }

    /// The layers of the KV store that a side has; numbers them.
    pub(crate) fn kv_layout_of(&self, side: Side, layout: &KvLayout) -> KvLayout {
        let is_here = |kv_idx: &usize| self.placement.sides(NetworkPart::Kv(*kv_idx)).has(side);
        let here: Vec<usize> = (0..layout.layers.len()).filter(is_here).collect();
        KvLayout {
            layers: here.iter().map(|&kv_idx| layout.layers[kv_idx]).collect(),
            groups: here.iter().map(|&kv_idx| layout.groups[kv_idx]).collect(),
            ..layout.clone()
        }
    }

    /// Takes what the stores hold and numbers their layers on their sides.
    pub(crate) fn number_kv(&mut self, layout: &KvLayout) {
        self.kv_shapes.clone_from(&layout.layers);
        let mut counts = [0; 2];
        self.kv_places = (0..layout.layers.len())
            .map(|kv_idx| {
                let place = counts;
                for side in Side::ALL {
                    counts[side as usize] +=
                        usize::from(self.placement.sides(NetworkPart::Kv(kv_idx)).has(side));
                }
                place
            })
            .collect();
    }

    /// The layers of the store of states that a side has.
    pub(crate) fn state_layout_of(&self, side: Side, layout: &StateLayout) -> StateLayout {
        let is_here = |state_idx: &usize| self.placement.sides(NetworkPart::State(*state_idx)).has(side);
        StateLayout {
            layers: ((0..layout.layers.len()).filter(is_here))
                .map(|state_idx| layout.layers[state_idx])
                .collect(),
            n_states: layout.n_states,
        }
    }

    pub(crate) fn number_states(&mut self, layout: &StateLayout) {
        let mut counts = [0; 2];
        self.state_places = (0..layout.layers.len())
            .map(|state_idx| {
                let side =
                    self.placement
                        .side(NetworkPart::State(state_idx), true, Side::Device) as usize;
                counts[side] += 1;
                counts[side] - 1
            })
            .collect();
    }

    /// The sides that have a matrix: those of its part, and of a token embedding that is the head too, both's.
    fn sides_of_matrix(&self, part: NetworkPart, usage: MatrixUsage) -> Sides {
        match usage {
            MatrixUsage::Tied => self.placement.sides(part).with(Side::Device),
            _ => self.placement.sides(part),
        }
    }

    /// What of a matrix's uses is a side's.
    fn usage_on(&self, side: Side, part: NetworkPart, usage: MatrixUsage) -> MatrixUsage {
        match usage {
            MatrixUsage::Tied if !self.placement.sides(part).has(Side::Device) => match side {
                Side::Host => MatrixUsage::Embedding,
                Side::Device => MatrixUsage::Linear,
            },
            other => other,
        }
    }

    /// Memory that an allocation of a part takes on a side.
    pub(crate) fn bytes_on(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        let bytes_of = |allocation: &Allocation<'_>| match side {
            Side::Host => self.host.bytes_of(allocation),
            Side::Device => self.device.bytes_of(allocation),
        };
        let is_here = match *allocation {
            Allocation::Matrix { usage, .. } => self.sides_of_matrix(part, usage),
            _ => self.placement.sides(part),
        };
        if !is_here.has(side) {
            return 0;
        }
        match *allocation {
            Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage,
                is_in_file,
            } => bytes_of(&Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage: self.usage_on(side, part, usage),
                is_in_file,
            }),
            Allocation::Workspace(network, limits) => bytes_of(&Allocation::Workspace(
                &self.placement.network_of(side, network),
                limits,
            )),
            _ => bytes_of(allocation),
        }
    }

    /// Makes something on each side that has it.
    fn on_sides<A, B>(
        &mut self,
        sides: Sides,
        on_host: impl FnOnce(&mut H) -> Result<A, BackendError>,
        on_device: impl FnOnce(&mut D) -> Result<B, BackendError>,
    ) -> Result<(Option<A>, Option<B>), BackendError> {
        let host = if sides.has(Side::Host) {
            Some(on_host(&mut self.host)?)
        } else {
            None
        };
        let device = if sides.has(Side::Device) {
            Some(on_device(&mut self.device)?)
        } else {
            None
        };
        Ok((host, device))
    }
}

/// The routes of a step's rows, on the side where they were made.
pub struct PlacedRoutes<A, B> {
    host: Option<A>,
    device: Option<B>,
}

impl<A, B> PlacedRoutes<A, B> {
    pub(crate) fn host(&self) -> Result<&A, BackendError> {
        self.host.as_ref().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn device(&self) -> Result<&B, BackendError> {
        self.device.as_ref().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn host_mut(&mut self) -> Result<&mut A, BackendError> {
        self.host.as_mut().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn device_mut(&mut self) -> Result<&mut B, BackendError> {
        self.device.as_mut().ok_or_else(crate::buffer::absent)
    }
}

impl<H: SplitOperations, D: SplitOperations> Memory for Placed<H, D> {
    type Matrix = Kept<H::Matrix, D::Matrix>;
    type Vector = Kept<H::Vector, D::Vector>;
    type Buffer = PlacedBuffer<H::Buffer, D::Buffer>;
    type Routes = PlacedRoutes<H::Routes, D::Routes>;

    fn enter(&mut self, part: NetworkPart) {
        self.part = part;
        self.now = self.placement.side(part, self.goes_to_device, self.now);
    }

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<Self::Matrix, BackendError> {
        let part = self.part;
        let of = |side| MatrixData {
            usage: self.usage_on(side, part, data.usage),
            ..*data
        };
        let (host, device) = (of(Side::Host), of(Side::Device));
        let (host, device) = self.on_sides(
            self.sides_of_matrix(part, data.usage),
            |own| own.upload_matrix(&host),
            |own| own.upload_matrix(&device),
        )?;
        Ok(Kept::new(host, device))
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.upload_vector(values),
            |own| own.upload_vector(values),
        )?;
        Ok(Kept::new(host, device))
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Self::Buffer, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.alloc(max_rows, width),
            |own| own.alloc(max_rows, width),
        )?;
        Ok(PlacedBuffer::new(host, device))
    }

    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<Self::Routes, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.alloc_routes(max_rows, n_experts, n_used),
            |own| own.alloc_routes(max_rows, n_experts, n_used),
        )?;
        Ok(PlacedRoutes { host, device })
    }
}
